"""How numbers read."""

import pytest

from ppsim.base.units import count, percent, rate, seconds, signed_percent, size


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


def test_each_unit_has_its_factor() -> None:
    assert [seconds(number) for number in (3.0, 3e-3, 3e-6, 3e-9)] == ["3.00 s", "3.00 ms", "3.00 µs", "3.00 ns"]
    assert [size(3 * 1024**power) for power in range(6)] == [
        "3 B", "3.00 KiB", "3.00 MiB", "3.00 GiB", "3.00 TiB", "3072 TiB",
    ]  # fmt: skip
    assert [count(3 * 1000**power) for power in range(6)] == ["3", "3.00 k", "3.00 M", "3.00 G", "3.00 T", "3.00 P"]
    assert rate(123.4e9) == "123 GB/s"
    assert (percent(0.5), signed_percent(0.5)) == ("50.00 %", "+50.00 %")
