"""Errors of sources of published runs that the projection never saw.

Each source is projected without the constants that were fitted to its runs, with the spread of the other sources of
its class (`ppsim.projection.error_classes`). Not left out: constants shared by all GPU types (host_s, kernel_s,
routing_host_s, jitter).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Any

import numpy as np

from ppsim.machine.cluster import Cluster, Efficiency
from ppsim.machine.cluster_files import load_cluster
from ppsim.projection.error_classes import SPREADS_OF_90, UNMEASURED_SPREAD, error_class_of, spread_of_source
from ppsim.projection.loss_breakdown import interval_by_spread
from ppsim.validation.error_summary import CaseError, SetValidation
from ppsim.validation.project_case import PlanOf, project_run
from ppsim.validation.published_runs import PublishedRun, case_sets

IN_SITU_PRIOR, EXPERTS_PRIOR = 1.1, 1.1
MATMUL_PRIORS = {
    "a100": {"bfloat16": 0.72, "float16": 0.72},
    "b200": {"float8": 0.52},
    "h100-500w": {"bfloat16": 0.56, "float8": 0.57, "float8-row": 0.45},
}
"""Values before the fit, from isolated GEMMs or another type (machine/data/efficiency.toml)."""


@dataclass(frozen=True)
class SourceErrors:
    """Errors of a class of jobs whose sources were left out one after another.

    `within` and `between`: standard deviations of log(projected / measured) within and between sources.
    `coverage`: fraction of times inside their 90 % intervals, mean over sources of equal weight.
    """

    name: str
    num_rows: int
    num_sources: int
    mean_absolute: float
    within: float | None
    between: float | None
    coverage: float

    @property
    def half_width(self) -> float | None:
        """Half-width of the 90 % interval of a new source in log(time); None for all classes together."""
        within, between = self.within, self.between
        return None if within is None or between is None else SPREADS_OF_90 * hypot(within, between)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "half_width": self.half_width}


def source_of(name: str, case: PublishedRun) -> str:
    """A set is a source, and so is each submitter of MLPerf v5.1."""
    return case.properties.table.partition("/")[0] if name.startswith("mlperf-v51") else name


def leave_source_out(sets: Sequence[SetValidation], plan_of: PlanOf) -> list[SourceErrors]:
    """Return the errors per class, and of all classes together (last).

    Without its only source, a GPU type has no published runs, so that its rows have the interval of other trainers.
    """
    runs: dict[str, dict[str, list[CaseError]]] = defaultdict(lambda: defaultdict(list))
    fitted: dict[str, set[str]] = defaultdict(set)
    sources_on: dict[str, set[str]] = defaultdict(set)
    rows = [
        (name, source_of(name, row.case), row, row.plan.job.cluster) for name, row in _rows(sets) if row.plan.job
    ]
    for _, source, row, cluster in rows:
        sources_on[cluster.device.efficiency_class].add(source)
        if row.case.properties.use == "fit":
            fitted[source] |= {cluster.name, cluster.device.efficiency_class}
    for name, source, row, cluster in rows:
        is_alone = len(sources_on[cluster.device.efficiency_class]) == 1
        if row.case.properties.use != "fit":
            runs["other trainers" if is_alone else _class_of(name, row)][source].append(row)
    classes, covered = [], []
    for name, sources in sorted(runs.items()):
        logs = {source: [log_error(row, fitted[source], plan_of) for row in sources[source]] for source in sources}
        inside = []
        for source, of_source in sources.items():
            others = [logs[other] for other in sources if other != source]
            is_known = others and name != "other trainers"
            spread = spread_of_source(*spreads_of(others)) if is_known else UNMEASURED_SPREAD
            pairs = zip(of_source, logs[source], strict=True)
            inside.append(np.mean([_is_inside(row, log_of, spread) for row, log_of in pairs]))
        covered += inside
        every = [log_of for errors in logs.values() for log_of in errors]
        absolute = float(np.mean(np.abs(np.expm1(every))))
        spreads = spreads_of(list(logs.values()))
        classes.append(SourceErrors(name, len(every), len(logs), absolute, *spreads, float(np.mean(inside))))
    num_rows = sum(each.num_rows for each in classes)
    absolute = sum(each.num_rows * each.mean_absolute for each in classes) / num_rows
    every_class = SourceErrors("all classes", num_rows, len(covered), absolute, None, None, float(np.mean(covered)))
    return [*classes, every_class]


def _rows(sets: Sequence[SetValidation]) -> Iterator[tuple[str, CaseError]]:
    """Yield times by the model of a job, with the name of their set."""
    for case_set in sets:
        properties = case_set.properties
        if not properties.order_only and properties.section not in ("measured costs", "memory"):
            yield from ((case_set.name, row) for row in case_set.rows if row.plan.job and not row.case.is_memory)


def _class_of(name: str, row: CaseError) -> str:
    assert row.plan.job is not None
    if case_sets()[name].section == "functional runs":
        return "functional runs"
    error_class = error_class_of(row.plan.job)
    return error_class.name if error_class else "other trainers"


def log_error(row: CaseError, fitted: set[str], plan_of: PlanOf) -> float:
    """Return log(projected / measured) without the constants of the clusters and GPU types in `fitted`."""
    assert row.plan.job is not None
    cluster = row.plan.job.cluster
    if not fitted & {cluster.name, cluster.device.efficiency_class}:
        return log(1 + row.error)
    return log(project_run(row.case, plan_of({**row.case.options, "cluster": unfitted(cluster)})) / row.measured)


def unfitted(cluster: Cluster) -> Cluster:
    base = load_cluster(cluster.base) if cluster.base and cluster.constants.fitted_on else cluster
    device = base.device
    return replace(base, device=replace(device, efficiency=_unfitted(device.efficiency, device.efficiency_class)))


def _unfitted(efficiency: Efficiency, name: str) -> Efficiency:
    fitted, in_situ = efficiency.fitted, efficiency.in_situ
    dtypes = {constant.removeprefix("in_situ ") for constant in fitted if constant.startswith("in_situ ")}
    if in_situ is not None:
        factors = {of: IN_SITU_PRIOR if of in dtypes else factor for of, factor in in_situ.factors.items()}
        in_situ = replace(in_situ, factors=factors)
    return replace(
        efficiency,
        in_situ=in_situ,
        experts=EXPERTS_PRIOR if "experts" in fitted else efficiency.experts,
        matmul={**efficiency.matmul, **MATMUL_PRIORS.get(name, {})},
    )


def spreads_of(sources: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the standard deviations within sources (pooled) and of their means around 0 (equal weights).

    >>> spreads_of([[0.1, 0.1], [-0.1, -0.1]])
    (0.0, 0.1)
    """
    squares = sum(float(np.var(of)) * len(of) for of in sources)
    within = squares / max(1, sum(len(of) - 1 for of in sources))
    between = float(np.mean([np.mean(of) ** 2 - within / len(of) for of in sources]))
    return sqrt(within), round(sqrt(max(between, 0.0)), 12)


def _is_inside(row: CaseError, log_of: float, spread: float) -> bool:
    projected = row.measured * exp(log_of)
    low, high = interval_by_spread(projected, spread)
    return low <= row.measured <= max(high, row.longest_s)
