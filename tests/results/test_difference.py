"""Tables of two projections side by side."""

from typing import Any

import pytest

from ppsim.projection.difference import PlanDifference
from ppsim.results.difference import difference_tables, print_difference

GIB = 2.0**30


def difference(**fields: Any) -> PlanDifference:
    given = {
        "names": ("a.json", "b.json"), "verdicts": ("fits", "does not fit"), "iteration_time_s": (2.0, 1.0),
        "tokens_per_s": (1000.0, 2000.0), "peak_bytes": (4 * GIB, 5 * GIB),
        "time_breakdown_s": {"compute": (1.5, 0.75), "host": (0.5, 0.25), "tiny": (0.0, 0.0001)},
        "components_bytes": {"gradients": (4 * GIB, 5 * GIB)}, "options": {"pp": (2, 4), "recompute": (None, "full"), "layers_per_stage": ([4, 4], [3, 3, 1, 1])},
    }  # fmt: skip
    return PlanDifference(**(given | fields))


def test_options_times_and_bytes_are_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_difference(difference())
    assert (
        capsys.readouterr().out
        == """\
option            a.json    b.json
pp                     2         4
recompute              –      full
layers-per-stage     2×4  2×3, 2×1

where the time goes  a.json  b.json  difference     change
compute              1.50 s  750 ms     −750 ms   −50.00 %
host                 500 ms  250 ms     −250 ms   −50.00 %
iteration            2.00 s  1.00 s     −1.00 s   −50.00 %
tokens/s             1.00 k  2.00 k     +1.00 k  +100.00 %

memory at the peak    a.json        b.json  difference    change
gradients           4.00 GiB      5.00 GiB   +1.00 GiB  +25.00 %
peak                4.00 GiB      5.00 GiB   +1.00 GiB  +25.00 %
verdict                 fits  does not fit

"""
    )
    print_difference(difference(options={}))
    assert capsys.readouterr().out.splitlines()[-1] == "no option differs"


def test_equal_parts_are_all_else() -> None:
    parts = {"compute": (1.0, 1.0), "host": (0.25, 0.25), "rest": (0.75, 0.5)}
    _, time, _ = difference_tables(difference(time_breakdown_s=parts, iteration_time_s=(2.0, 1.75)))
    assert [row["where the time goes"] for row in time] == ["rest", "all else", "iteration", "tokens/s"]
    assert time[1] == {
        "where the time goes": "all else", "a.json": "1.25 s", "b.json": "1.25 s", "difference": "+0 s",
        "change": "+0.00 %",
    }  # fmt: skip


def test_differences_are_printed_from_a_ten_thousandth_and_above_rounding() -> None:
    parts = {"at": (0.0, 0.0002), "below": (0.0, 0.000199), "rounding": (1.0, 1.0 - 1e-14)}
    _, time, _ = difference_tables(difference(time_breakdown_s=parts))
    assert [row["where the time goes"] for row in time] == ["at", "all else", "iteration", "tokens/s"]
    assert time[0]["change"] == "–"
    assert time[1]["difference"] == "+199 µs"
    equal = difference_tables(difference(iteration_time_s=(1.0, 1.0 - 1e-14)))[1]
    assert next(row for row in equal if row["where the time goes"] == "iteration")["difference"] == "+0 s"


def test_unknown_throughput_and_memory_have_no_rows() -> None:
    _, time, memory = difference_tables(difference(tokens_per_s=(None, 1.0), peak_bytes=(None, 1.0)))
    assert time[-1]["where the time goes"] == "iteration"
    assert memory == []
