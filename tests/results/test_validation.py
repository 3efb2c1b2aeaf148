"""Text of validations and fits, of few rows whose errors are known."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.machine.cluster_files import load_cluster
from ppsim.results.validation import (
    markdown,
    markdown_table,
    print_after_fits,
    print_fits,
    print_fitted,
    print_validations,
)
from ppsim.validation.bayesian_fit import ConstantEstimate, MeasuredStep, OutlierRow, Posterior, Prior
from ppsim.validation.error_summary import CaseError, SetValidation
from ppsim.validation.fit_result import AfterFit, AfterFits, FitResult, FittedCluster
from ppsim.validation.published_runs import CaseSet, PublishedRun, RowProperties
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
