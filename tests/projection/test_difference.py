"""Two projections side by side: nothing is lost between the parts and the whole."""

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.projection.difference import difference_of, is_projection

JOB = {"model": "llama3-8b", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 32}


def report_of(**options):
    projection = ppsim.project(**(JOB | options))
    return projection.to_json() | projection.summarise(with_advice=False).to_json()


@pytest.fixture(scope="module")
def difference():
    return difference_of(("a", "b"), (report_of(), report_of(vpp=4, recompute="full", zero=0)))


def test_the_differences_by_cause_add_up_to_those_of_the_whole(difference):
    for parts, (before, after) in (
        (difference.time_breakdown_s, difference.iteration_time_s),
        (difference.components_bytes, difference.peak_bytes),
    ):
        assert sum(second - first for first, second in parts.values()) == pytest.approx(after - before, rel=1e-9)
        gains = [abs(second - first) for first, second in parts.values()]
        assert gains == sorted(gains, reverse=True)
    assert difference.time_breakdown_s["recomputation"][0] == 0


def test_only_options_that_differ_are_named(difference):
    assert difference.options == {
        "vpp": (1, 4), "recompute": ("none", "full"), "zero": (1, 0), "schedule": ("1f1b", "interleaved-1f1b"),
        "layers_per_stage": ([16, 16], [4] * 8),
    }  # fmt: skip


def test_a_plan_does_not_differ_from_itself():
    report = report_of()
    found = difference_of(("a", "a"), (report, report))
    assert found.options == {}
    assert all(first == second for first, second in found.time_breakdown_s.values())


def test_a_report_without_its_options_is_refused():
    report = report_of()
    for wrong in ("options", "verdict", "peak_components_bytes"):
        with pytest.raises(ConfigError, match=rf"^b is no report of this version of ppsim \({wrong}\)"):
            difference_of(("a", "b"), (report, {name: report[name] for name in report if name != wrong}))


@pytest.mark.parametrize(
    ("report", "is_one"),
    [
        ({"time_breakdown_s": {}}, True),
        ({"time_breakdown_s": {}, "origin": "simulated"}, True),
        ({"time_breakdown_s": {}, "origin": "measured"}, False),
        ({"step_time_s": 1.0}, False),
        ([], False),
    ],
)
def test_a_projection_is_recognised_by_its_parts(report, is_one):
    assert is_projection(report) is is_one


def test_the_json_of_a_difference_has_all_parts_but_the_timelines(difference):
    assert list(difference.to_json()) == [
        "names", "verdicts", "iteration_time_s", "tokens_per_s", "peak_bytes", "time_breakdown_s",
        "components_bytes", "options",
    ]  # fmt: skip
