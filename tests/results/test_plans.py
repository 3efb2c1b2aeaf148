"""Screens of projections of times by hand: 12 s of compute, 3 s of bubble and 1 s of transfers."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.cost_sources import RankCosts
from ppsim.projection.cost import TrainingCost
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all
from ppsim.projection.projection import ConfigurationChange, Projection, ProjectionSummary
from ppsim.results import plans
from ppsim.results.plans import print_answer, print_plans
from ppsim.results.text_layout import Page
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


BY_STACK = {"plain": 1.0, "torchtitan": 2.0}


def lines_of(capsys: pytest.CaptureFixture[str], made: Projection, **how: bool) -> list[str]:
    return printed(capsys, made, answer(by_stack_s=BY_STACK), **how).splitlines()


def test_a_job_has_its_options_and_assumptions_on_the_first_screen(capsys: pytest.CaptureFixture[str]) -> None:
    made = ppsim.project(
        model="llama3-8b", gpus=16, tp=2, pp=2, vpp=2, stack="megatron-bridge", lora="16", global_batch=32
    )
    lines = lines_of(capsys, made)
    assert lines[:3] == [
        "llama3-8b on 16 × NVIDIA H100 SXM (dgx-h100), 32 × 8192 tokens",
        "tp 2 · dp 4 · pp 2 · vpp 2 · interleaved-1f1b · 8 microbatches · lora 16",
        "",
    ]
    assert re.fullmatch(r"fits           [\d.]+ of 74.2 GiB \(rank 0\)", lines[3])
    assert re.fullmatch(
        r"MFU            [\d.]+ %   bubble [\d.]+ %  \(lower bound for any .*: [\d.]+ %\)", lines[6]
    )
    assert lines[-3:] == [
        "assumed        stack megatron-bridge: TP communication 50 % hidden, DP overlapped, ZeRO 1, recompute",
        "               none, micro-batch 1",
        "more           --full · -o timeline.html · --schedule all · ppsim tune … to search all layouts",
    ]


def test_an_assumed_number_of_gpus_and_the_basis_of_a_stack_are_on_the_first_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = ppsim.project(model="mixtral-8x7b", pp=2, ep=4, recompute="block/4")
    lines = lines_of(capsys, made)
    assert lines[0].startswith("on 8 GPUs (assumed): needs ")
    assert lines[1:4] == [
        "mixtral-8x7b on 8 × NVIDIA H100 SXM (dgx-h100), 32 × 4096 tokens",
        "ep 4 · dp 4 · pp 2 · 1f1b · 8 microbatches",
        *[line for line in lines if line.startswith(f"stack {made.plan.job.stack_name} (")],
    ]
    assert "by stack: plain 1.00 s, torchtitan 2.00 s" in lines
    assert lines[-2:] == [
        "assumed        8 GPUs, EP exposed, DP overlapped, ZeRO 1, recompute block/4, micro-batch 1",
        "more           --full · -o timeline.html · --schedule all · ppsim tune … to search all layouts",
    ]
    full = lines_of(capsys, made, full=True, with_timeline=False)
    assert any(line.startswith("by stack       plain 1.00 s, torchtitan 2.00 s") for line in full)
    header = next(index for index, line in enumerate(full) if line.startswith("stage "))
    titles = ["stage", "recompute", "rank", "layers", "F", "B", "activations", "limited", "by"]
    assert full[header].split() == titles
    assert [line.split()[:4] for line in full[header + 1 : header + 3]] == [
        ["0", "block/4", "0", "16"], ["1", "block/4", "1", "16"],
    ]  # fmt: skip


def test_a_profile_has_its_name_and_what_its_costs_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    made = ppsim.project(pp=4, microbatches=8, runtime="megatron")
    lines = lines_of(capsys, made)
    assert lines[:3] == ["GPT 6.2B on 4 × NVIDIA A100-SXM4-80GB, 8 microbatches", "pp 4 · 1f1b", ""]
    assert lines[-3:] == [
        "assumed        costs of profile zb-a100-6.2b (packaged example; --model and --cluster for yours)",
        "               no data parallelism and no optimizer in the step",
        "more           --full · -o timeline.html · --schedule all",
    ]
    full = lines_of(capsys, made, full=True, with_timeline=False)
    assert full[1] == (
        "GPT 6.2B on 4 × NVIDIA A100-SXM4-80GB: packaged profile; --model/--cluster or --profile for yours"
    )
    serialization = next(index for index, line in enumerate(full) if line.startswith("P2P serialization"))
    assert "run's blocking calls " in full[serialization + 1]
    few = replace(made, stage_cost_set=replace(made.stage_cost_set, split=[3, 4]))
    assert plans.projection_heading(few).startswith("7 layers of GPT 6.2B on 4 × ")
    profile = replace(made.plan.source.profile, name="mine")
    other = replace(made, plan=replace(made.plan, profile=profile))
    assert plans.projection_heading(other) == "GPT 6.2B on 4 × NVIDIA A100-SXM4-80GB: profile mine"
    assert dict(plans._assumed(other))["assumed"] == "costs of profile mine"


def test_a_job_has_its_parameters_device_and_batch_as_heading() -> None:
    made = ppsim.project(model="llama3-8b", gpus=16, tp=2, pp=2, global_batch=32)
    expected = "llama3-8b (8.03 B) on 16 × NVIDIA H100 SXM (dgx-h100), 32 sequences of 8192 tokens per step"
    assert plans.projection_heading(made) == expected
    assert plans.projection_heading(by_hand(pp=1)).startswith("times given by hand, 1 rank; --model")


def rows_of_stages(**fields: Any) -> Any:
    rows = [
        {
            "stage": stage, "rank": 1 - stage, "recompute": recompute, "offload_modules": offload, "layers": 3 + stage,
            "forward_s": 0.001, "backward_s": 0.002, "activation_bytes": 3 * GIB, "limited_by": "memory",
        }
        for stage, (recompute, offload) in enumerate((("full", ""), ("none", fields.get("offload", ""))))
    ]  # fmt: skip
    job = SimpleNamespace(stage_plans=fields["plans"], execution=SimpleNamespace(recompute=fields["recompute"]))
    return SimpleNamespace(plan=SimpleNamespace(job=job), stages=rows)


def test_stages_have_rows_if_their_plans_differ_with_offloading_if_a_stage_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plans._stages(rows_of_stages(plans=(), recompute="full")) is None
    assert plans._stages(rows_of_stages(plans=(), recompute="block/4")) is not None
    Page().add(plans._stages(rows_of_stages(plans=(1, 2), recompute="none")))
    expected = """\
stage  recompute  rank  layers        F        B  activations  limited by
0      full          1       3  1.00 ms  2.00 ms     3.00 GiB      memory
1      none          0       4  1.00 ms  2.00 ms     3.00 GiB      memory
"""
    assert capsys.readouterr().out == expected
    Page().add(plans._stages(rows_of_stages(plans=(1, 2), recompute="none", offload="core_attn")))
    expected = """\
stage  recompute  offload    rank  layers        F        B  activations  limited by
0      full       none          1       3  1.00 ms  2.00 ms     3.00 GiB      memory
1      none       core_attn     0       4  1.00 ms  2.00 ms     3.00 GiB      memory
"""
    assert capsys.readouterr().out == expected


def test_the_rows_of_a_full_answer_have_its_cost_and_the_notes_of_its_verdict() -> None:
    verdict = SimpleNamespace(notes=("one", "two"))
    projection = SimpleNamespace(
        tokens_per_s=None, num_gpus=2, plan=SimpleNamespace(job=None), verdict=verdict, iteration_time_s=16.0,
        model_flops_utilization=0.5, peak_flops_per_s=None, peak_components_bytes={"buffers": GIB},
    )  # fmt: skip
    rows = plans._delivered(projection, answer(cost=TrainingCost(2, 16.0, training_days=3.0)))  # type: ignore[arg-type]
    assert rows[1:] == [
        ("cost", "0.00889 GPU hours per step; 3.0 days, 144.00 GPU hours per run"), ("note", "one"), ("note", "two"),
        ("memory", "at the peak: buffers 1.00 GiB"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("basis", "by_stack", "labels"),
    [("", {}, ["assumed"]), ("default", {}, ["assumed"]), ("default", BY_STACK, ["assumed", "by stack"])],
)
def test_a_stack_has_its_basis_and_the_times_of_others(
    basis: str, by_stack: dict[str, float], labels: list[str]
) -> None:
    job = replace(ppsim.job(model="gpt2", gpus=2, stack="plain"), stack_basis=basis)
    rows = plans._stack(job, answer(by_stack_s=by_stack))
    assert [label for label, _ in rows] == labels
    assert rows[0][1].endswith(" (default)") is (basis == "default")
    assert plans._stack(None, answer()) == []
    first = plans._stack_line(SimpleNamespace(plan=SimpleNamespace(job=job)), answer(by_stack_s=by_stack))  # type: ignore[arg-type]
    times = ["by stack: plain 1.00 s, torchtitan 2.00 s"]
    assert first == ([f"stack plain ({basis})", *(times if by_stack else [])] if basis else [])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"gpus": 8, "tp": 2, "ep": 2},
            "TP communication exposed, EP exposed, DP overlapped, ZeRO 1, recompute none",
        ),
        ({"gpus": 4, "tp": 4, "ep": 1}, "TP communication exposed, recompute none, micro-batch 1"),
        ({"gpus": 2, "ep": 1, "zero": 0}, "DP overlapped, ZeRO 0, recompute none"),
    ],
)
def test_assumptions_are_of_the_sizes_above_one(options: dict[str, Any], text: str) -> None:
    made = ppsim.project(model="gpt-oss-20b", stack="plain", pp=1, seq_len=1024, global_batch=8, **options)
    assert f"stack plain: {text}" in dict(plans._assumed(made))["assumed"]


def test_the_best_schedule_of_others_comes_below_the_list_of_the_named_trainer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = Plan(pp=2, microbatches=4, measured=MEASURED, runtime="megatron", names_trainer=True)
    found = project_all(plan, ["zb-h1", "1f1b"])
    found = replace(found, trainer="megatron", projections=found.projections[::-1])
    own, other = sorted(found.projections, key=found.is_elsewhere)
    found = replace(found, projections=[own, other])
    print_plans(found)
    lines = capsys.readouterr().out.splitlines()
    change = 100 * (other.iteration_time_s / own.iteration_time_s - 1)
    assert f"with torch or primus: zb-h1 {change:+.2f} % (--schedule any ranks all)" in lines, lines
    print_plans(found, full=True)
    text = capsys.readouterr().out
    assert "--schedule any ranks all" not in text
    assert [line.split()[0] for line in text.splitlines() if " s " in line][:2] == ["1f1b", "zb-h1"]
    print_plans(replace(found, projections=[own]))
    assert "--schedule any ranks all" not in capsys.readouterr().out


def test_if_no_plan_of_a_trainer_fits_the_first_line_names_one_that_does() -> None:
    def one(name: str, peak_gib: float, *, too_large: bool) -> Any:
        peaks = np.array([peak_gib * GIB, 0.0])
        return SimpleNamespace(
            is_too_large=too_large, runtime_error=None, verdict=f"{name} is too large", timeline=SimpleNamespace(memory=SimpleNamespace(peak_bytes=peaks)),
            plan=SimpleNamespace(schedule_name=name),
        )  # fmt: skip

    own = [one("interleaved-1f1b", 9, too_large=True), one("1f1b", 7, too_large=True)]
    fitting = one("zb-h1", 3, too_large=False)
    texts: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "verdict_line", lambda verdict, text: [f"{verdict}{text}"])
        texts += plans._none_fits("megatron", own, [fitting])
        texts += plans._none_fits("", own, [])
        texts += plans._none_fits("megatron", own[1:], [])
    assert texts == [
        "1f1b is too large (1f1b; the others of Megatron-LM need more; zb-h1 fits, with torch or primus)",
        "1f1b is too large (1f1b; the others need more)",
        "1f1b is too large",
    ]
    assert plans._none_fits("megatron", [fitting], []) == []
    assert plans._none_fits("megatron", [], []) == [plans.bold("Megatron-LM runs none of the possible schedules")]


def test_a_tight_schedule_is_marked_and_explained() -> None:
    verdict = SimpleNamespace(is_tight=True, tight_notes=("one", "two"))
    tight: Any = SimpleNamespace(
        verdict=verdict, runtime_error=None, memory_error=None, plan=SimpleNamespace(runtime="torch")
    )
    assert plans._marks(tight) == "~"
    assert plans._of_marks([tight]) == ["~ fits tightly: one; two."]


def test_a_drawing_is_added_to_the_first_screen_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, by_hand(runtime="ideal"), answer(), with_timeline=True).splitlines()
    more = next(index for index, line in enumerate(lines) if line.startswith("more "))
    assert lines[more + 1 : more + 3] == ["", "rank  0 s to 16.0 s"]


def test_parts_and_gains_at_their_least_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"compute": 15.984, "small": 16.0 * 1e-3, "smaller": 16.0 * 0.99e-3}
    gains = {"a": 0.004, "b": 5e-5, "c": 4.9e-5}
    found = answer(time_breakdown_s=parts, sensitivities_function=lambda: gains)
    text = printed(capsys, by_hand(runtime="ideal"), found, full=True, with_timeline=False)
    assert re.search(r"^small +16.0 ms +0.10 %$", text, re.MULTILINE)
    assert "smaller" not in text
    assert re.search(r"^gain if 1 % faster +a 0.40 %, b 0.01 %$", text, re.MULTILINE)
    gains = dict.fromkeys("abcdefg", 0.001)
    text = printed(capsys, by_hand(runtime="ideal"), answer(sensitivities_function=lambda: gains), full=True)
    assert "  a 0.10 %, b 0.10 %, c 0.10 %, d 0.10 %\n" in text
