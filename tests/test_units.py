"""How numbers read."""

import pytest

from ppsim.base.units import count, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99951, "1.00 s"), (0.9994, "999 ms"), (9.996e-4, "1.00 ms"), (9.999, "10.0 s"), (99.96, "100 s"),
        (0.99949, "999 ms"), (5e-12, "5.0e-12 s"), (-9e-13, "0 s"), (-0.0123, "-12.3 ms"),
    ],
)  # fmt: skip
def test_a_time_rounds_into_the_next_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def test_sizes_and_counts_round_into_the_next_unit() -> None:
    assert size(1023.7 * 2**20) == "1.00 GiB"
    assert size(1010 * 2**20) == "1010 MiB"
    assert count(999_960) == "1.00 M"
