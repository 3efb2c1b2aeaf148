"""Measured peaks of Megatron-LM's functional tests: errors do not grow beyond today's."""

from collections import defaultdict

import pytest

from ppsim.validation.error_summary import CaseError, score_of

LARGE_GIB = 8.0
"""Below, a constant of 10 to 20 MiB, whose cause is not known, is a percent or two."""

BASELINE = {
    ("dense", "large"): (0.0012, 0.0032),
    ("dense", "small"): (0.0165, 0.2210),
    ("hybrid", "large"): (0.0526, 0.1041),
    ("hybrid", "small"): (0.0082, 0.0247),
    ("MoE", "large"): (0.0895, 0.1774),
    ("MoE", "small"): (0.0328, 0.1310),
}
"""Mean and largest absolute error by kind of model and size of the measured peak.

The largest error of hybrids is Nemotron 3.5 Lightning's: its router is not balanced, so that the peak grows from 144.9
GiB in iteration 2 to 161.1 GiB in iteration 17; 144.4 GiB are projected for a balanced one.
"""

MARGIN = 0.002


@pytest.fixture(scope="module")
def groups(validation_of) -> dict[tuple[str, str], list[CaseError]]:
    found = defaultdict(list)
    for row in validation_of("megatron-tests-memory").rows:
        found[kind_of(row), "large" if row.measured >= LARGE_GIB * 2**30 else "small"].append(row)
    return found


def kind_of(row: CaseError) -> str:
    layers = row.plan.job.model.kinds
    if any(layer.is_recurrent for layer in layers):
        return "hybrid"
    return "MoE" if any(layer.is_moe for layer in layers) else "dense"


@pytest.mark.slow
def test_every_row_is_projected_or_listed_with_its_reason(validation_of) -> None:
    found = validation_of("megatron-tests-memory")
    assert len(found.rows) + len(found.skipped) == 240
    assert sum(reason.startswith("not supported yet: ") for _, reason in found.skipped) == 4


@pytest.mark.parametrize("group", BASELINE)
@pytest.mark.slow
def test_errors_do_not_grow(groups, group: tuple[str, str]) -> None:
    score = score_of([row.error for row in groups[group]])
    mean_absolute, worst = BASELINE[group]
    assert score.mean_absolute <= mean_absolute + MARGIN
    assert abs(score.worst) <= worst + MARGIN
