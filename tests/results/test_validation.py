"""Text of validations and fits, of few rows whose errors are known."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.machine.cluster import Constant
from ppsim.machine.cluster_files import load_cluster
from ppsim.results.validation import (
    cells_of_skipped,
    describe_run,
    markdown,
    markdown_table,
    print_after_fits,
    print_fits,
    print_fitted,
    print_source_errors,
    print_validations,
    source_rows,
)
from ppsim.validation.bayesian_fit import ConstantEstimate, MeasuredStep, OutlierRow, Posterior, Prior
from ppsim.validation.error_summary import CaseError, SetValidation
from ppsim.validation.fit_result import AfterFit, AfterFits, FitResult, FittedCluster
from ppsim.validation.published_runs import CaseSet, PublishedRun, RowProperties
from ppsim.validation.source_errors import SourceErrors
from ppsim.validation.validation_result import ValidationReport
from tests.projection.jobs import job


def plan() -> ppsim.Plan:
    """Return a plan whose cluster has one constant that was fitted to training runs."""
    made = job(tp=2, dp=4, pp=2)
    device = made.cluster.device
    device = replace(device, efficiency=replace(device.efficiency, fitted=["jitter"]))
    return ppsim.Plan(pp=2, job=replace(made, cluster=replace(made.cluster, device=device)))


PLAN = plan()


def case(number: int = 0, settings: dict[str, Any] | None = None, **properties: Any) -> PublishedRun:
    return PublishedRun(
        RowProperties(**{"metric": "iteration_s", "value": 2.0, **properties}), settings or {}, number
    )


def row(measured: float, projected: float, constant: float | None = None, **properties: Any) -> CaseError:
    """Return a row with an interval of ± 16 % (90 %)."""
    return CaseError(case(**{"value": measured, **properties}), PLAN, measured, projected, constant, 0.1)


TIMES = SetValidation(
    "times", CaseSet(section="dense on A100", title="T", source="S", notes="N", other_tool="sim"),
    [
        row(2.0, 2.2, 2.5, use="fit", title="A"),
        row(2.0, 1.9, 3.0, other=2.1, title="B", remarks="estimated", settings={"recompute": "full", "layers": 4}),
        row(4.0, 2.0, 5.0),
    ],
    "40 % of peak", {"g": 0.5, "h": 1.0}, 1,
    [(case(metric="tokens_per_s_per_gpu", value=430, title="C", settings={"gpus": 8, "tp": 2, "pp": 1}), "no x: there are y")],
)  # fmt: skip
MEMORY = SetValidation(
    "bytes", CaseSet(section="memory", title="T", source="S", notes="N", others="another 5 %"),
    [row(2.0**30, 2.0**31, metric="peak_gib")], "", {}, 0, [],
)  # fmt: skip
ORDER = SetValidation(
    "order", CaseSet(section="order of schedules", title="T", source="S", notes="N", order_only=True),
    [row(1.0, 1.5, 1.0)], "", {"g": 1.0}, 1, [],
)  # fmt: skip
ONLY_FITTED = SetValidation(
    "fitted", CaseSet(section="dense on AMD", title="T", source="S", notes="N"),
    [row(2.0, 2.2, 2.5, use="fit")], "", {}, 0, [],
)  # fmt: skip
ALL = [TIMES, MEMORY, ORDER]


def test_a_single_set_has_every_row_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    print_validations(ValidationReport([TIMES]))
    expected = """\
times   T
use     measured   ppsim     error  constant MFU      sim  run
fitted    2.00 s  2.20 s  +10.00 %      +25.00 %        –  A, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b
test      2.00 s  1.90 s   -5.00 %      +50.00 %  +5.00 %  B, 4 layers, 16 GPUs, tp2 pp2, b 32/1,
                                                           4k, 1f1b, full (estimated)
test      4.00 s  2.00 s  -50.00 %      +25.00 %        –  llama3-8b, 16 GPUs, tp2 pp2, b 32/1, 4k,
                                                           1f1b
skipped:
use   published                 run             why
test  430 tokens per s per gpu  C, 8 GPUs, tp2  no x
source        S
notes         N
constant MFU  40 % of peak
fit rows      1 rows, mean +10.00 %, mean absolute 10.00 %

set    rows  skipped  mean error     MAPE     worst  constant MFU      others  in 90 %      order
times     2        1    -27.50 %  27.50 %  -50.00 %       37.50 %  sim 5.00 %      1/2  0.75, 1/2

"""
    assert capsys.readouterr().out.startswith(expected)


def test_several_sets_have_a_line_per_section_and_the_largest_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_validations(ValidationReport(ALL))
    expected = """\
published runs  rows  fitted  skipped  mean error      MAPE      worst  constant MFU  in 90 %
Dense on A100      2       1        1    -27.50 %   27.50 %   -50.00 %       37.50 %      1/2
Memory             1       0        0   +100.00 %  100.00 %  +100.00 %             –        –

Inside the projection's 90 % interval: 50.00 % of all test times (1/2), 50.00 % of dense models
(1/2).

largest errors
set       error  run
times  -50.00 %  llama3-8b, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b
times   -5.00 %  B, 4 layers, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b, full (estimated)

"""
    assert capsys.readouterr().out.startswith(expected)


def test_the_full_output_has_every_set_the_hardware_and_the_skipped_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_validations(ValidationReport(ALL), full=True)
    expected = """\
dense on A100
set    rows  skipped  mean error     MAPE     worst  constant MFU      others  in 90 %      order
times     2        1    -27.50 %  27.50 %  -50.00 %       37.50 %  sim 5.00 %      1/2  0.75, 1/2

memory
set    rows  skipped  mean error      MAPE      worst  constant MFU       others  in 90 %  order
bytes     1        –   +100.00 %  100.00 %  +100.00 %             –  another 5 %        –      –

order of schedules
set    rows  skipped  mean error  MAPE  worst  constant MFU  others  in 90 %      order
order     1        –           –     –      –             –       –        –  1.00, 1/1

times of all sets, by hardware
cluster   dtype     models  rows  mean error     MAPE     worst  constant MFU  in 90 %
dgx-h100  bfloat16  dense      2    -27.50 %  27.50 %  -50.00 %       37.50 %      1/2

Constants fitted to training runs, per GPU type: h100 1 (jitter); others 0.

Inside the projection's 90 % interval: 50.00 % of all test times (1/2), 50.00 % of dense models
(1/2).

the ten largest errors of times
set       error  run
times  -50.00 %  llama3-8b, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b
times   -5.00 %  B, 4 layers, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b, full (estimated)

set    rows  why
times     1  no x

"""
    assert capsys.readouterr().out.startswith(expected)


def test_the_tables_of_the_pages_are_those_of_the_full_output() -> None:
    expected = """\
Dense on A100:

| set | rows | skipped | mean error | MAPE | worst | constant MFU | others | in 90 % | order |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
| times | 2 | 1 | -27.50 % | 27.50 % | -50.00 % | 37.50 % | sim 5.00 % | 1/2 | 0.75, 1/2 |

Memory:

| set | rows | skipped | mean error | MAPE | worst | constant MFU | others | in 90 % | order |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
| bytes | 1 | – | +100.00 % | 100.00 % | +100.00 % | – | another 5 % | – | – |

Order of schedules:

| set | rows | skipped | mean error | MAPE | worst | constant MFU | others | in 90 % | order |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
| order | 1 | – | – | – | – | – | – | – | 1.00, 1/1 |

Times of all sets, by hardware (a model is dense or has experts):

| cluster | dtype | models | rows | mean error | MAPE | worst | constant MFU | in 90 % |
|---|--:|--:|--:|--:|--:|--:|--:|---|
| dgx-h100 | bfloat16 | dense | 2 | -27.50 % | 27.50 % | -50.00 % | 37.50 % | 1/2 |
"""
    assert markdown(ALL) == expected


def test_a_set_of_fitted_rows_has_a_star(capsys: pytest.CaptureFixture[str]) -> None:
    for one, start in (
        (ONLY_FITTED, "fitted    1*        –    +10.00 %"),
        (MEMORY, "bytes     1        –   +100.00 %"),
    ):
        print_validations(ValidationReport([one]), with_rows=False)
        assert capsys.readouterr().out.splitlines()[1].startswith(start)


KERNEL = ConstantEstimate(Prior("kernel_s", 2e-5, 0.5, "a guess"), 3e-5, 0.25)
RUNS: Any = [SimpleNamespace(times=times, sigma=sigma) for times, sigma in ((9, 9), (1.25, 0.02), (0.9, 0.03))]
POSTERIOR = Posterior(
    cluster=PLAN.job.cluster,  # type: ignore[union-attr]
    rows=[MeasuredStep(case(1), PLAN, 2.0, "runs.csv, row 1"), MeasuredStep(case(2), PLAN, 4.0, "runs.csv, row 2")],
    found=[KERNEL, ConstantEstimate(Prior("rest.0", 0.1, 1.0, "none"), 0.125, 0.5)],
    left=[
        ConstantEstimate(Prior("jitter", 0.02, 0.5, "none"), 0.02, 0.5),
        ConstantEstimate(Prior("rest.1", 0.1, 1.0, "none"), 0.1, 0.5),
    ],
    correlation=np.eye(2),
    runs=tuple(RUNS),
    before=[-0.2, 0.1], after=[-0.01, 0.02], jobs=[PLAN.job.model],  # type: ignore[union-attr]
    outliers=[OutlierRow("runs.csv, row 2", 0.1, 3.0)],
)  # fmt: skip


def test_a_fit_has_its_constants_priors_rows_and_doubts(capsys: pytest.CaptureFixture[str]) -> None:
    """The last runs are those of the rows; the first run is of an earlier fit."""
    print_fitted(FitResult(POSTERIOR, "dgx-h100", "runs.csv", [(case(3), "no tp")]))
    expected = """\
dgx-h100   fitted to 2 measured steps of runs.csv
constant    value        ±    prior       ±   source of the prior
kernel_s  30.0 µs  25.00 %  20.0 µs  50.00 %  a guess
job llama3-8b: add --extra-step-time 0.125 (± 62.5 ms) for this job only

row              measured    before    after     job factor
runs.csv, row 1    2.00 s  -20.00 %  -1.00 %  1.25 ± 2.00 %
runs.csv, row 2    4.00 s  +10.00 %  +2.00 %   0.9 ± 3.00 %
job factor       measured time / time projected with these constants: applied to this job, and
                 partly to similar jobs
far off          runs.csv, row 2 by +10.00 %, 3.0 × the usual error of its GPU type: specific to its
                 job, with little effect on other jobs
at their priors  jitter, extra step time: the rows do not determine them
priors           2 measured steps for 4 constants: the priors decide what the rows do not determine
skipped          3: no tp
"""
    assert capsys.readouterr().out == expected


AFTER = AfterFit(
    "times", [POSTERIOR],
    [(row(2.0, 2.2, number=5), row(2.0, 2.1, number=5)), (row(4.0, 2.0, number=6), row(4.0, 3.0, number=6))],
    [(case(3), "no tp")],
)  # fmt: skip


def test_errors_before_and_after_a_fit_are_next_to_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_after_fits(AfterFits([AFTER]))
    expected = """\
set    rows  fit rows  skipped    before     MAPE     worst     after    MAPE     worst   in 90 %
times     2         2        1  -20.00 %  30.00 %  -50.00 %  -10.00 %  15.00 %  -25.00 %      1/2

dgx-h100: kernel_s 3e-05, rest.0 0.125
  on runs.csv, row 1, runs.csv, row 2
  far off: runs.csv, row 2 by +10.00 %, 3.0 × the usual error of its GPU type: specific to its job,
with little effect on other jobs

row  measured    before     after
5      2.00 s  +10.00 %   +5.00 %
6      4.00 s  -50.00 %  -25.00 %
skipped:
3  no tp

"""
    assert capsys.readouterr().out.startswith(expected)
    print_after_fits(AfterFits([AFTER, AfterFit("none", [], [], [])]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["none", "0", "0", *"–" * 8]
    assert lines[3:5] == [
        "",
        "Errors are projected / measured - 1 of the rows that were not fitted: positive means that the",
    ]


def test_constants_in_use_are_next_to_those_of_a_new_fit(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = load_cluster("dgx-h100")
    print_fits([FittedCluster(cluster, {"kernel_s": 3e-5, "rest": 0.125}, {"kernel_s": 2e-5, "rest": 0.25}, 4)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == ["constant  found  in use", "kernel_s  3e-05   2e-05", "rest      0.125    0.25"]
    assert lines[4].startswith("4 rows, of")


def test_columns_of_a_markdown_table_are_right_aligned_between_the_first_and_the_last() -> None:
    rows = [{"a": "1", "b": "2", "c": "3", "d": "4"}, {"a": "5", "b": "6", "c": "7", "d": "8"}]
    assert markdown_table(rows) == [
        "| a | b | c | d |",
        "|---|--:|--:|---|",
        "| 1 | 2 | 3 | 4 |",
        "| 5 | 6 | 7 | 8 |",
    ]
    assert markdown_table([{"a": "1", "b": "2"}])[1] == "|---|---|"
    assert markdown_table([]) == []


def test_a_list_of_sets_has_its_rows_if_they_are_asked_for_and_ends_with_the_meaning_of_its_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_validations(ValidationReport([TIMES]), with_rows=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("set ")
    assert " ".join(lines[3:]) == (
        "Errors are projected / measured - 1 of test rows (* marks sets with fitted rows only): positive means that "
        "the projection is slower or larger. MAPE: mean absolute error; constant MFU and others: the MAPE of other "
        "methods on the same rows. skipped: rows whose source does not state a needed setting. "
        "in 90 %: measurements inside the projection's 90 % interval. "
        "order: mean rank correlation of schedules; groups in which each pair has the measured order."
    )
    print_validations(ValidationReport(ALL), with_rows=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in ("times   T", "bytes   T", "order   T")] == [
        "times   T", "bytes   T", "order   T",
    ]  # fmt: skip
    assert "times of all sets, by hardware" in lines
    print_validations(ValidationReport(ALL))
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[-4:]) == (
        "Errors are projected / measured - 1: positive means that the projection is slower. MAPE: mean absolute "
        "error. fitted: rows that constants were fitted on, in no error. skipped: rows that cannot be projected. "
        "more: --full (every set, by hardware) · ppsim validate SET (its rows)"
    )


def test_errors_of_memory_are_bytes_and_of_an_order_have_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    print_validations(ValidationReport([MEMORY]))
    assert (
        capsys.readouterr()
        .out.splitlines()[2]
        .startswith("test  1.00 GiB  2.00 GiB  +100.00 %             –  llama3-8b")
    )
    print_validations(ValidationReport([ORDER]))
    assert capsys.readouterr().out.splitlines()[2].split()[:7] == ["test", "1.00", "s", "1.50", "s", "–", "–"]


def test_rows_of_a_file_to_which_a_cluster_was_fitted_are_no_test(capsys: pytest.CaptureFixture[str]) -> None:
    made = PLAN.job
    assert made is not None
    constants = replace(made.cluster.constants, fitted_on=("other.csv, mine.csv",))
    fitted = replace(PLAN, job=replace(made, cluster=replace(made.cluster, constants=constants)))
    run_set = replace(ONLY_FITTED, name="folder/mine.csv", rows=[replace(row(2.0, 2.2), plan=fitted)])
    print_validations(ValidationReport([run_set]))
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "fitted the constants of dgx-h100 were fitted on rows of a file named mine.csv: errors of these rows are not a test"
        in text
    )


@pytest.mark.parametrize(
    ("within", "between", "cells"),
    [
        (0.03, 0.04, ["dense", "12", "3", "25.00 %", "3.00 %", "4.00 %", "7.50 %", "75.00 %"]),
        (None, None, ["dense", "12", "3", "25.00 %", "–", "–", "–", "75.00 %"]),
    ],
)
def test_a_class_of_jobs_has_errors_within_and_between_its_sources(
    within: float | None, between: float | None, cells: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The interval is ± 1.5 · √(3² + 4²) %."""
    classes = [SourceErrors("dense", 12, 3, 0.25, within, between, 0.75)]
    [cells_of_class] = source_rows(classes)
    assert [*cells_of_class.values()] == cells
    assert [*cells_of_class] == ["jobs", "rows", "sources", "MAPE", "within", "between", "±", "in 90 %"]
    print_source_errors(classes)
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[2:4]).startswith(" Each source of published runs is projected without the constants")
    assert " ".join(lines[-2:]).endswith(
        "Not left out: constants that all GPU types share (host_s, kernel_s, routing_host_s, jitter)."
    )


def test_constants_of_operators_come_first_and_nothing_found_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    operators = {
        "attention_s": Constant(value=0.002, sigma=0.0005, source="a microbenchmark"), "gemm": Constant(value=0.125, source="b"),
    }  # fmt: skip
    print_fitted(FitResult(replace(POSTERIOR, operators=operators), "dgx-h100", "runs.csv", []))
    assert capsys.readouterr().out.splitlines()[2:5] == [
        "attention_s  2.00 ms  25.00 %        –        –  a microbenchmark",
        "gemm           0.125   0.00 %        –        –  b",
        "kernel_s     30.0 µs  25.00 %  20.0 µs  50.00 %  a guess",
    ]
    one_row = replace(
        POSTERIOR, found=[], left=[], rows=POSTERIOR.rows[:1], before=[-0.2], after=[-0.01], outliers=[]
    )
    print_fitted(FitResult(one_row, "dgx-h100", "runs.csv", []))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "dgx-h100   fitted to 1 measured step of runs.csv", "no cluster constant: the rows do not determine any of them",
    ]  # fmt: skip
    assert not [line for line in lines if line.startswith(("at their priors", "priors", "far off", "skipped"))]


def test_priors_decide_if_there_are_fewer_rows_than_constants(capsys: pytest.CaptureFixture[str]) -> None:
    as_many = replace(POSTERIOR, left=[])  # two rows for two constants
    print_fitted(FitResult(as_many, "dgx-h100", "runs.csv", []))
    assert "\npriors" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "settings", "text"),
    [
        ({}, {}, "llama3-8b, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b"),
        ({"sequence_length": 1023}, {}, "llama3-8b, 16 GPUs, tp2 pp2, b 32/1, 1023, 1f1b"),
        ({"sequence_length": 1024}, {"recompute": "none"}, "llama3-8b, 16 GPUs, tp2 pp2, b 32/1, 1k, 1f1b"),
        ({"model_name": "gpt"}, {"layers": 32}, "gpt, 16 GPUs, tp2 pp2, b 32/1, 4k, 1f1b"),
    ],
)
def test_a_run_is_described_by_its_model_sizes_batch_length_and_schedule(
    changes: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    made = PLAN.job
    assert made is not None
    described = replace(row(2.0, 2.2), plan=replace(PLAN, job=replace(made, **changes)))
    assert describe_run(replace(described, case=case(settings=settings))) == text


def test_a_run_of_eight_bits_stages_and_experts_says_so_and_one_without_a_job_has_its_title() -> None:
    made = job("mixtral-8x7b", tp=2, dp=4, ep=2, etp=1, dtype="float8")
    alone = replace(row(2.0, 2.2), plan=ppsim.Plan(pp=1, job=made))
    assert describe_run(alone) == "mixtral-8x7b, 8 GPUs, tp2 ep2 etp1, b 16/1, 4k, fp8"
    by_profile = replace(row(2.0, 2.2), plan=ppsim.Plan(pp=2, vpp=1))
    assert describe_run(by_profile) == f"{by_profile.plan.source.name}, 1f1b"
    assert describe_run(replace(by_profile, case=case(title="T"))) == "T, 1f1b"


def test_a_skipped_run_is_described_by_its_title_and_the_sizes_that_are_not_one() -> None:
    skipped = case(
        metric="tokens_per_s", value=430, remarks="estimated", settings={"tp": 1, "cp": 2, "ep": 4, "vpp": 3}
    )
    assert cells_of_skipped(skipped, "there is no 'x': there are y") == {
        "use": "test", "published": "430 tokens per s", "run": "? GPUs, cp2 ep4 vpp3 (estimated)", "why": "there is no 'x'",
    }  # fmt: skip
    assert cells_of_skipped(case(use="fit", title="T"), "no x: did you mean z?")["why"] == "no x"
    assert cells_of_skipped(case(use="fit", title="T"), "")["use"] == "fitted"
