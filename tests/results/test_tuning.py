"""Output of a search whose configurations, times and memory are given."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.results.tuning import print_tuned
from ppsim.tuning.search import FoundConfiguration, TuneResult
from ppsim.tuning.space import Configuration, SearchProblem
from tests.tuning.questions import question

GIB = 2**30
USUAL = {
    "tp": 2, "cp": 1, "ep": 1, "dp": 4, "pp": 2, "vpp": 1, "micro_batch": 1, "recompute": "none", "schedule": "1f1b",
    "split": "even",
}  # fmt: skip
COUNTS = {
    "configurations": 40, "too_large_without_a_table": 5, "too_large_by_their_table": 7, "left_out_by_bounds": 0,
    "simulated": 9, "cannot_run": 0,
}  # fmt: skip


def found(seconds: float, gib: float, verdict: Any = "fits", **fields: Any) -> FoundConfiguration:
    return FoundConfiguration(Configuration(**USUAL | fields), seconds, gib * GIB, verdict)


BEST = [found(2.0, 60), found(3.0, 50, tp=4, dp=2)]
TIGHT = found(1.5, 74, "fits tightly", tp=1, dp=8)
OTHERS = [
    found(seconds, 40, schedule="zb-h1", tp=tp, dp=8 // tp)
    for seconds, tp in ((1.0, 1), (1.1, 2), (1.2, 4), (1.3, 8))
]


def of_megatron(**fields: Any) -> SearchProblem:
    made = question(runtime="megatron")
    return replace(made, trainer="megatron", **fields)


def lines_of(
    capsys: pytest.CaptureFixture[str], asked: SearchProblem, *, full: bool = False, **fields: Any
) -> list[str]:
    given = {
        "question": asked, "space": None, "best": BEST, "pareto": BEST, "simulated": BEST, "counts": COUNTS,
        "verdicts": {}, "seed": 0,
    }  # fmt: skip
    print_tuned(TuneResult(**given | fields), full=full)
    return capsys.readouterr().out.lstrip("\n").splitlines()


def test_the_best_configurations_are_rows_without_common_columns_and_the_best_is_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lines_of(capsys, question()) == [
        "llama3-8b on 16 × NVIDIA H100 SXM (dgx-h100), 32 sequences of 8192 tokens per step",
        "",
        "tp  dp  iteration  tokens/s      MFU    memory",
        "2    4     2.00 s     131 k  42.62 %  60.0 GiB",
        "4    2     3.00 s    87.4 k  28.41 %  50.0 GiB",
        "all: schedule 1f1b · runs in all · with even · cp 1 · ep 1 · pp 2 · vpp 1 · micro-batch 1 · ZeRO 1",
        "",
        "best  ppsim project --model llama3-8b --cluster dgx-h100 --gpus 16 --tp 2 --cp 1 --ep 1 --pp 2 --vpp",
        "      1 --schedule 1f1b --micro-batch-size 1 --global-batch-size 32 --seq-len 8192 --split even",
        "      --recompute none --memory-limit 75GiB --stack plain",
        "more  --full (Pareto set, search statistics) · -o tune.html · --to-config megatron",
    ]


def test_the_full_output_has_the_pareto_set_and_the_statistics_and_the_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = question()
    asked = replace(asked, job=replace(asked.job, cluster=replace(asked.job.cluster, price_per_gpu_hour=3.0)))
    pareto = [found(2.0 + number / 100, 60 - number, vpp=number + 2) for number in range(14)]
    counts = COUNTS | {"left_out_by_bounds": 3, "cannot_run": 2}
    simulated = [*BEST, found(4.0, 40, zero=3)]
    lines = lines_of(capsys, asked, full=True, pareto=pareto, counts=counts, simulated=simulated)
    first = lines.index("Pareto set of time and memory; 2 more configurations with --json")
    assert lines[first - 1] == ""
    assert [line.split()[0] for line in lines[first + 2 : first + 15]] == [*map(str, range(2, 14)), "all:"]
    assert lines[first + 16 : first + 22] == [
        "",
        "searched  40 configurations: at least 12 do not fit 75.0 GiB per GPU, 9 simulated, 3 skipped because",
        "          of their bounds, 2 cannot run on these channels",
        "costs     estimated from specifications, bfloat16, torch network; adam, ZeRO stage 1 and 3",
        "",
        "best  ppsim project --model llama3-8b --cluster dgx-h100 --gpus 16 --tp 2 --cp 1 --ep 1 --pp 2 --vpp",
    ]
    assert lines[-1] == "cost  0.00889 GPU hours and 0.0267 per step"
    lines = lines_of(capsys, question(), full=True, pareto=BEST[:1])
    assert not any(line.startswith("Pareto") for line in lines)
    assert (
        "searched  40 configurations: 12 do not fit 75.0 GiB per GPU, 9 simulated, 0 skipped because of their"
        in lines
    )
    assert "Pareto set of time and memory" in lines_of(capsys, question(), full=True)


def test_a_tight_configuration_that_is_fastest_comes_below_the_ten_best(capsys: pytest.CaptureFixture[str]) -> None:
    best = [found(2.0 + number / 10, 60 - number, vpp=number + 2) for number in range(12)]
    lines = lines_of(capsys, question(), best=best, simulated=[*best, TIGHT])
    assert [line.split()[2] for line in lines[3:14]] == [*map(str, range(2, 12)), "1"]
    assert lines[13].endswith("74.0 GiB~")
    assert lines[14].startswith("all: ")
    assert lines[15].startswith("~ fits tightly: ")
    assert "2 more: --full" in lines
    full = lines_of(capsys, question(), best=best, simulated=[*best, TIGHT], full=True, pareto=BEST[:1])
    assert [line.split()[0] for line in full[3:15]] == [*map(str, range(2, 14))]
    assert not any("more: --full" in line or "74.0 GiB" in line for line in full)
    assert not any(
        "more: --full" in line for line in lines_of(capsys, question(), best=best[:10], simulated=best[:10])
    )


def test_three_faster_configurations_of_other_trainers_are_rows_or_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulated = [*BEST, *OTHERS]
    lines = lines_of(capsys, of_megatron(), simulated=simulated)
    assert lines[2].split()[:3] == ["schedule", "runs", "in"]
    assert [line.split()[0] for line in lines[3:8]] == ["1f1b", "1f1b", "zb-h1", "zb-h1", "zb-h1"]
    assert [line.split()[1] for line in lines[3:6]] == ["megatron", "megatron", "torch,"]
    assert not any("--schedule any ranks all" in line for line in lines)
    alone = lines_of(capsys, of_megatron(names_trainer=True))
    assert not any("--schedule any ranks all" in line for line in alone)
    lines = lines_of(capsys, of_megatron(names_trainer=True), simulated=simulated)
    assert "with torch or primus: zb-h1 -50.00 % (--schedule any ranks all)" in lines
    assert lines[5].startswith("all: schedule 1f1b · runs in megatron · ")


def test_if_only_other_trainers_fit_the_first_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, of_megatron(), best=OTHERS[:1], simulated=OTHERS)
    assert lines[0] == "no schedule of Megatron-LM fits: zb-h1 does, with torch or primus"
    assert lines[3].split()[:4] == ["schedule", "runs", "in", "with"]


def test_gathered_experts_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    asked = question("mixtral-8x7b", zero=3)
    gathered, exchanged = found(2.0, 60, pp=1, dp=8, zero=3), found(3.0, 50, pp=1, dp=8, ep=2, zero=3)
    line = "experts gathered, not exchanged: rows with ep 1 and ZeRO 3."
    assert line in lines_of(capsys, asked, best=[gathered, exchanged], simulated=[gathered, exchanged])
    assert line not in lines_of(capsys, asked, best=[exchanged], simulated=[exchanged])
