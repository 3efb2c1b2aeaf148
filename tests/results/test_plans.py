"""Screens of projections of times by hand: 12 s of compute, 3 s of bubble and 1 s of transfers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.costs.cost_sources import RankCosts
from ppsim.projection.cost import TrainingCost
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all
from ppsim.projection.projection import ConfigurationChange, Projection, ProjectionSummary
from ppsim.results import plans
from ppsim.results.plans import print_answer, print_plans
from tests.projection.by_hand import MEASURED, by_hand

GIB = 2**30


def answer(**fields: Any) -> ProjectionSummary:
    parts = {"compute": 12.0, "pipeline bubble": 3.0, "exposed P2P": 1.0, "host": 0.001}
    given = {
        "iteration_time_interval_s": (15.0, 17.0), "interval_scope": "", "interval_basis": "cost error: 2.00 %",
        "time_breakdown_s": parts, "advice": [], "cost": TrainingCost(2, 16.0), "by_stack_s": {},
        "sensitivities_function": lambda: {"transfers": 0.004, "compute of stage 0": 0.002, "optimizer": 0.00004},
    }  # fmt: skip
    return ProjectionSummary(**(given | fields))


def printed(capsys: pytest.CaptureFixture[str], made: Projection, found: ProjectionSummary, **how: bool) -> str:
    print_answer(made, found, **how)
    return capsys.readouterr().out


def test_the_first_screen_has_time_parts_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        printed(capsys, by_hand(runtime="ideal"), answer())
        == """\
times given by hand on 2 ranks, 4 microbatches
pp 2 · 1f1b

iteration      16.0 s  (90 % interval 15.0 s to 17.0 s)
bubble         25.00 %  (lower bound for any schedule: 9.43 %)

where it goes  compute                 12.0 s   75.00 %  ████████████████████████
               pipeline bubble         3.00 s   18.75 %  ██████
               exposed P2P             1.00 s    6.25 %  ██
try next       no change that was tried gains half a percent
assumed        no model: --model for throughput, MFU and memory
more           --full · -o timeline.html · --schedule all
"""
    )


def test_the_full_output_has_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, by_hand(runtime="ideal"), answer(), full=True, with_timeline=False)
    assert (
        text
        == """\
times given by hand, 2 ranks; --model for throughput, MFU and memory
1f1b   pp 2   vpp 1   4 microbatches
step time      16.0 s (bubble 25.00 %)
iteration      16.0 s; 90 % interval 15.0 s to 17.0 s (cost error: 2.00 %)
lower bound    13.2 s for any schedule on this placement (20.75 % above it)
critical path  0F0 → 1F0 → 1B0 → 0B0 → … → 1B2 → 1F3 → 1B3 → 0B3 (10 actions)

rank    busy    idle  warm-up  cool-down  waiting    comm  peak   at
0     12.0 s  4.00 s   2.25 s     1.00 s      0 s  750 ms     –  0F0
1     12.0 s  4.00 s   1.00 s     2.25 s   250 ms  500 ms     –  1F0

where an iteration goes    time     part
compute                  12.0 s  75.00 %
pipeline bubble          3.00 s  18.75 %
exposed P2P              1.00 s   6.25 %

bottleneck          transfers
gain if 1 % faster  transfers 0.40 %, compute of stage 0 0.20 %
try next            no change that was tried gains half a percent
P2P serialization   ideal 16.0 s, edge 16.2 s, pair 16.5 s, direction 16.2 s, rank 16.5 s

assumed  costs: measured of a rank
         no --model: throughput, MFU and memory are not known
         runtime: ideal (the literature's network: pure latency, nothing shared); channel ideal,
         receives torch
         overheads: none (fit them with ppsim calibrate, give them with --calibration)
         not in the step time: data-parallel communication, optimizer, gradient norm
"""
    )


def test_changes_and_costs_are_printed_with_their_effects(capsys: pytest.CaptureFixture[str]) -> None:
    made = by_hand(runtime="ideal")
    advice = [
        ConfigurationChange(name, made, gain)
        for name, gain in (("--tp 2", 0.25), ("--schedule zb-h1", 0.2), ("c", 0.1))
    ]
    found = answer(advice=advice, cost=TrainingCost(2, 16.0, 3.0), interval_scope="for runs measured here")
    lines = printed(capsys, made, found).splitlines()
    assert "iteration      16.0 s  (90 % interval 15.0 s to 17.0 s, for runs measured here)" in lines
    assert "cost           0.00889 GPU hours and 0.0267 per step" in lines
    assert "try next       --tp 2             +25.0 % throughput" in lines
    assert "               --schedule zb-h1   +20.0 % throughput" in lines
    assert not [line for line in lines if line.lstrip().startswith("c ")]
    full = printed(capsys, made, found, full=True).splitlines()
    assert "try next            --tp 2             +25.00 % throughput, iteration 16.0 s" in full
    assert "                    c                  +10.00 % throughput, iteration 16.0 s" in full
    assert "rank  0 s to 16.0 s" in full


def test_small_parts_are_one_bar(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"compute": 12.0, "a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6, "e": 0.5, "f": 0.4, "g": 0.1}
    lines = printed(capsys, by_hand(runtime="ideal"), answer(time_breakdown_s=parts)).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("where it goes"))
    assert [line[15:].split("  ")[0] for line in lines[first : first + 7]] == [
        "compute", "a", "b", "c", "d", "all else", "no change that was tried gains half a percent",
    ]  # fmt: skip
    assert lines[first + 5].split() == ["all", "else", "1.00", "s", "6.25", "%", "██"]


def test_a_plan_that_does_not_fit_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    costs = RankCosts(1.0, 1.0, 1.0, transfer_s=0.25, activation_bytes=GIB)
    lines = printed(capsys, by_hand(measured=costs, memory_limit_bytes=GIB), answer()).splitlines()
    assert lines[0] == "DOES NOT FIT: rank 0 needs 2.00 GiB for activations alone, 1.00 GiB usable"
    assert "try next       no change that was tried makes it fit" in lines
    unchecked = printed(capsys, by_hand(measured=costs), answer()).splitlines()
    assert "memory         2.00 GiB on rank 0 (not checked: set --memory-limit)" in unchecked
    advice = [
        ConfigurationChange("--tp 2", by_hand(measured=costs, memory_limit_bytes=4 * GIB), -0.05, makes_it_fit=True)
    ]
    text = printed(capsys, by_hand(measured=costs, memory_limit_bytes=GIB), answer(advice=advice))
    assert "try next       --tp 2   fits, 2.00 GiB free, -5.0 % throughput" in text.splitlines()


LIST = """\
times given by hand, 2 ranks; --model for throughput, MFU and memory

schedule         runs in                 vpp iteration  vs best above bound  bubble span bubble
zb-auto          torch, primus             1    13.2 s  +0.00 %      3.92 %  9.43 %      4.00 %
zbv-fixed        torch, primus             2    13.2 s  +0.00 %      3.92 %  9.43 %      7.69 %
interleaved-1f1b torch, megatron, primus   2    15.0 s +13.21 %     17.65 % 20.00 %     20.00 %
1f1b             all                       1    16.0 s +20.75 %     25.49 % 25.00 %     25.00 %
zb-auto: also to the free memory; names with -fixed: the published table, independent of costs.
"""


def test_schedules_are_a_table_without_repeated_columns(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(pp=2, microbatches=4, measured=MEASURED, runtime="ideal")
    found = project_all(plan, ["1f1b", "interleaved-1f1b", "zbv-fixed", "zb-auto"])
    print_plans(found)
    assert capsys.readouterr().out == LIST
    few = replace(found, projections=found.projections[2:])
    print_plans(few)
    header = capsys.readouterr().out.splitlines()[2]
    assert header.split() == [
        "schedule",
        "runs",
        "in",
        "vpp",
        "iteration",
        "vs",
        "best",
        "above",
        "bound",
        "bubble",
    ]
    print_plans(replace(found, rejected={"zb-h1": "no", "zb-h2": "zb-h2 no", "gpipe": "odd"}))
    assert capsys.readouterr().out == LIST + "3 not possible: --full gives the reasons\n"
    print_plans(replace(found, rejected={"zb-h1": "no", "zb-h2": "zb-h2 no", "gpipe": "odd"}), full=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("not possible  zb-h1, zb-h2: no") + 1].strip() == "gpipe: odd"
    assert [line for line in lines if line.startswith("assumed for zb-auto  schedule: fitted")]


def test_a_list_of_one_has_all_columns_and_may_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    found = project_all(Plan(pp=2, microbatches=4, measured=MEASURED, runtime="ideal"), ["1f1b"])
    print_plans(found, with_timeline=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["1f1b", "all", "1", "16.0", "s", "+0.00", "%", "20.75", "%", "25.00", "%"]
    assert [line for line in lines[4:] if line][:1] == ["1f1b"]
    assert [line for line in lines[4:] if line][1] == "rank  0 s to 16.0 s"


def test_long_lists_end_after_ten(capsys: pytest.CaptureFixture[str]) -> None:
    found = project_all(Plan(pp=2, microbatches=4, measured=MEASURED, runtime="ideal"), ["1f1b"])
    print_plans(replace(found, projections=found.projections * 12))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("1f1b")]) == 10
    assert lines[-1] == "2 more: --full"
    print_plans(replace(found, projections=found.projections * 10))
    assert "more: --full" not in capsys.readouterr().out


def test_marks_say_why_a_schedule_is_no_choice(capsys: pytest.CaptureFixture[str]) -> None:
    costs = RankCosts(1.0, 1.0, 1.0, activation_bytes=GIB)
    plan = Plan(pp=2, microbatches=4, measured=costs, memory_limit_bytes=1.5 * GIB)
    print_plans(project_all(plan, ["1f1b", "gpipe", "dualpipe"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "DOES NOT FIT: rank 0 needs 2.00 GiB for activations alone, 1.50 GiB usable (1f1b; the"
    )
    names = [line.split()[0] for line in lines if "GiB" in line and " s " in line]
    assert names == ["1f1b!", "gpipe!", "dualpipe*!"]
    assert lines[-3:] == [
        "* torch cannot run this table; P2P is simulated as if it could. ppsim schedules NAME prints the",
        "reason.",
        "! does not fit: a rank needs more than the 1.50 GiB usable.",
    ]


def test_parts_of_a_peak_below_a_hundredth_are_all_else() -> None:
    sizes = {"gradients": 60 * GIB, "parameters": 79 * GIB, "buffers": GIB, "small": GIB // 2}
    assert plans._components(sizes) == ["at the peak: parameters 79.0 GiB, gradients 60.0 GiB, all else 1.50 GiB"]
    assert plans._components({"buffers": GIB}) == ["at the peak: buffers 1.00 GiB"]
    assert plans._components({}) == []


def test_the_nearest_other_schedule_fits_and_runs() -> None:
    def one(is_too_large: bool, error: str | None) -> Any:
        return SimpleNamespace(is_too_large=is_too_large, runtime_error=error)

    others = [one(True, None), one(False, "no"), fitting := one(False, None)]
    assert plans._nearest(others) is fitting
    assert plans._nearest(others[:2]) is None
    assert plans.with_others("zb-h1", -0.1) == "with torch or primus: zb-h1 -10.00 % (--schedule any ranks all)"


def test_stacks_are_compared_by_time() -> None:
    assert (
        plans.times_by_stack(answer(by_stack_s={"plain": 1.0, "torchtitan": 2.0}))
        == "plain 1.00 s, torchtitan 2.00 s"
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (
            {},
            {"throughput": "8.00 k tokens/s, 4.00 k tokens/s per GPU on 2 GPUs", "MFU": "50.00 % of 1.00 PFLOP/s"},
        ),
        ({"num_gpus": 1, "peak_flops_per_s": None}, {"throughput": "8.00 k tokens/s, 8.00 k tokens/s per GPU"}),
        ({"tokens_per_s": None, "model_flops_utilization": None}, {}),
    ],
)
def test_throughput_and_mfu_are_delivered_where_they_are_known(
    known: dict[str, Any], expected: dict[str, str]
) -> None:
    projection = SimpleNamespace(**{
        "tokens_per_s": 8000.0, "num_gpus": 2, "plan": SimpleNamespace(job=None), "verdict": None, "iteration_time_s": 16.0,
        "model_flops_utilization": 0.5, "peak_flops_per_s": 1e15, "peak_components_bytes": None,
    } | known)  # fmt: skip
    rows = dict(plans._delivered(projection, answer()))  # type: ignore[arg-type]
    assert rows.pop("iteration") == "16.0 s; 90 % interval 15.0 s to 17.0 s (cost error: 2.00 %)"
    assert rows == expected
