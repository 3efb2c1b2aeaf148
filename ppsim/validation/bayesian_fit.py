"""Bayesian fit of a cluster's and its jobs' constants to measured steps, with uncertainties.

Maximum a posteriori estimate with log-normal priors. The remaining errors of jobs are a Gaussian process
(`ppsim.machine.job_similarity`). Laplace's approximation gives the uncertainty (Tierney and Kadane 1986,
section 2). Logarithms of constants are normally distributed around the cluster's values or, for values that the
cluster lacks, around values of the GPU type.

Recorded runs give multipliers on the time of operators by kind: measured / projected seconds per step, over the
recorded pipeline ranks. Projected seconds of a kind are the increase of F + B if the kind takes twice the time.
Recordings have

- kernels by name (Kineto, Nsight Systems). If the names do not separate expert or narrow GEMMs from the others, all
  GEMMs get one multiplier.
- messages with their sizes (Kineto). The shortest message of one operation, size and group counts, because longer
  ones wait for other ranks.
- passes (dumps of Primus, spans, timers of Megatron-LM), which give one multiplier for all kinds of kernels.
  Communication inside a pass is assumed to be as projected.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.number_formats import at_least_16_bits
from ppsim.base.units import signed_percent
from ppsim.costs.job import Job
from ppsim.costs.similar_jobs import features_of
from ppsim.costs.stage_cost_set import values_of_ranks
from ppsim.costs.time_breakdown import CostEstimate
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster, Constant, Constants
from ppsim.machine.job_similarity import MEASURED_SPREAD, SHARES, USUAL, MeasuredJob, job_covariance
from ppsim.parallel.groups import GroupName, RankGroup
from ppsim.projection.plan import Plan
from ppsim.projection.project import assembled_of
from ppsim.projection.summary import (
    EAGER_LAUNCH_S,
    ESTIMATE_SPREAD,
    slow_host_s,
    spread_of,
    with_launches_of,
)
from ppsim.validation.project_case import PlanOf, measured_of, project_run
from ppsim.validation.published_runs import PublishedRun, RecordedTimes

_LEAST_REPEATS = 2
_FACTORS = 0.05, 20.0
"""Range of plausible multipliers."""


def operator_constants(plan: Plan, recorded: RecordedTimes) -> dict[str, Constant]:
    """Names are as in `Constants.named`; raises `ConfigError` if ranks do not match."""
    assert plan.job is not None
    multipliers = dict((_by_kernels if recorded.kernels else _by_passes)(plan, plan.job, recorded))
    return {
        f"operator_time.{kind}": _constant(kind, before * times, recorded.source)
        for kind, times in multipliers.items() if (before := _before(plan.job, kind))
    }  # fmt: skip


def _before(job: Job, kind: str) -> float:
    return job.cluster.device.efficiency.operator_time.get(kind, 1.0)


def _constant(kind: str, value: float, source: str) -> Constant:
    least, most = _FACTORS
    if not least < value < most:
        raise ConfigError(
            f"{source}: {kind} takes {value:.3g} times the projected time, so this is the recording of another "
            "job: check --run-config and --cluster"
        )
    value = float(f"{value:.4g}")
    return Constant(value=value, sigma=float(f"{MEASURED_SPREAD * value:.4g}"), source=f"operators of {source}")


def _by_kernels(plan: Plan, job: Job, recorded: RecordedTimes) -> Iterator[tuple[str, float]]:
    num_ranks = len(recorded.kernels)
    if num_ranks not in (1, plan.pp) or (num_ranks == 1 and plan.pp > 1):
        raise ConfigError(
            f"{recorded.source} has kernels of {num_ranks} ranks, and the pipeline has {plan.pp}: give one "
            "recording of each pipeline rank"
        )
    gap_s = job.cluster.device.efficiency.kernel_s  # a projected kernel lasts until the next one starts

    def measured_s(kind: str) -> float:
        return sum(
            kernel.seconds.get(kind, 0.0) + gap_s * kernel.counts.get(kind, 0.0) for kernel in recorded.kernels
        )

    busy = _busy_s(plan)
    projected = {kind: _projected_s(plan, job, kind, busy) for kind in _kinds(job)}
    for kind in ("attention", "memory"):
        if projected[kind] and measured_s(kind):
            yield kind, measured_s(kind) / projected[kind]
    optimizer_s = np.broadcast_to(assembled_of(plan)[1].step_costs.optimizer_s, plan.pp).sum()
    if optimizer_s and measured_s("optimizer"):
        yield "optimizer", measured_s("optimizer") / float(optimizer_s)
    dtype = job.execution.dtype
    wide = at_least_16_bits(dtype)
    of_gemms = {f"gemm-{wide}": "gemm"} | ({f"gemm-{dtype}": "narrow gemm"} if dtype != wide else {})
    of_gemms |= {f"experts-{dtype}": "experts"}
    of_gemms = {kind: name for kind, name in of_gemms.items() if projected[kind]}
    if not all(measured_s(name) for name in of_gemms.values()):  # kernel names do not separate the kinds of GEMMs
        gemms_s = sum(measured_s(name) for name in ("gemm", "narrow gemm", "experts"))
        times = gemms_s / sum(projected[kind] for kind in of_gemms)
        yield from ((kind, times) for kind in of_gemms if times)
    else:
        yield from ((kind, measured_s(name) / projected[kind]) for kind, name in of_gemms.items())
    yield from _by_messages(job, recorded)


def _kinds(job: Job) -> list[str]:
    dtype = job.execution.dtype
    wide = at_least_16_bits(dtype)
    return list(dict.fromkeys((f"gemm-{wide}", f"gemm-{dtype}", f"experts-{dtype}", "attention", "memory")))


def _projected_s(plan: Plan, job: Job, kind: str, busy: Sequence[float]) -> float:
    cluster = job.cluster
    twice = cluster.with_constants(
        cluster.constants.having({f"operator_time.{kind}": Constant(value=2 * _before(job, kind))})
    )
    slower = replace(plan, job=replace(job, cluster=twice))
    return sum(after - before for after, before in zip(_busy_s(slower), busy, strict=True))


def _busy_s(plan: Plan) -> list[float]:
    """Communication and waits for the host are excluded."""
    table, assembled = assembled_of(plan)
    seconds = [_computing_s(part) * plan.num_microbatches for part in assembled.parts]
    return [sum(of_rank) / table.num_replicas for of_rank in values_of_ranks(table, seconds)]


def _computing_s(one: CostEstimate) -> float:
    passes = one.forward + one.backward
    return passes.total_s - passes.communication_s - passes.host_s - passes.offload_s


def _by_messages(job: Job, recorded: RecordedTimes) -> Iterator[tuple[str, float]]:
    """Return multipliers of collectives whose group is known by its number of ranks."""
    shortest: dict[tuple[str, float, int], list[float]] = {}
    for kernel in recorded.kernels:
        for operation, size, ranks, seconds in kernel.messages:
            shortest.setdefault((operation, size, ranks), []).append(seconds)
    groups: dict[int, set[RankGroup]] = {}
    for name in cast(tuple[GroupName, ...], get_args(GroupName)):
        groups.setdefault(job.place.ranks(name).num_ranks, set()).add(job.place.ranks(name))
    totals: dict[str, tuple[float, float]] = {}
    for (operation, size, ranks), taken in shortest.items():
        if len(taken) >= _LEAST_REPEATS and len(groups.get(ranks, ())) == 1:
            [group] = groups[ranks]
            projected_s = collectives.seconds(cast(collectives.Operation, operation), size, group, job.cluster)
            measured, projected = totals.get(operation, (0.0, 0.0))
            totals[operation] = measured + min(taken), projected + projected_s
    yield from ((operation, measured / projected) for operation, (measured, projected) in totals.items())


def _by_passes(plan: Plan, job: Job, recorded: RecordedTimes) -> Iterator[tuple[str, float]]:
    table, assembled = assembled_of(plan)
    number = plan.num_microbatches / table.num_replicas
    whole = [
        number * sum(of_rank)
        for of_rank in values_of_ranks(table, [(part.forward + part.backward).total_s for part in assembled.parts])
    ]
    busy = _busy_s(plan)
    kinds = [kind for kind in _kinds(job) if _projected_s(plan, job, kind, busy)]
    if len(recorded.passes_s) == len(whole):
        others, measured = sum(whole) - sum(busy), sum(recorded.passes_s)
    elif len(recorded.passes_s) == 1:  # the rank with the longest passes
        longest = max(range(len(whole)), key=whole.__getitem__)
        others, measured, busy = whole[longest] - busy[longest], recorded.passes_s[0], [busy[longest]]
    else:
        raise ConfigError(
            f"{recorded.source} has passes of {len(recorded.passes_s)} ranks, and the pipeline has {plan.pp}"
        )
    yield from ((kind, max(measured - others, 0.0) / sum(busy)) for kind in kinds)


MOST = 3.0 / SHARES.machine
"""Maximum prior deviations of a constant: 3 spreads of its GPU type. Larger deviations have other causes."""


@dataclass(frozen=True)
class Prior:
    """`name` is as in `Constants.named`, `spread` is the standard deviation of the logarithm."""

    name: str
    median: float
    spread: float
    reason: str

    def value(self, deviations: float) -> float:
        """Deviations are limited to `MOST`, and link efficiencies to 1."""
        found = self.median * math.exp(self.spread * max(-MOST, min(MOST, deviations)))
        return min(found, 1.0) if self.name.startswith("link_efficiency.") else found


_LINK_SPREAD, _LINK_REASON = (
    0.15,
    "in a node within 7 % of published NCCL bandwidths; assumed between nodes, where jobs share links",
)
_OVERLAP_SPREAD, _OVERLAP_REASON = 0.25, "frameworks hide a half to seven eighths of this communication"
_OF_PLAIN = {
    "kernel_s": (0.35, "2 to 20 µs, depending on the GPU type"),
    "launch_s": (1.2, "time of a kernel launch; up to some tenths of a millisecond with loops in Python"),
    "routing_host_s": (0.5, "measured values: 2 to 6 ms per layer"),
    "jitter": (0.5, "fitted values of two models on one cluster: 0.015 and 0.038"),
    "overlap_slowdown": (0.3, "known within a seventh for the cluster of the zero-bubble paper"),
}
_REST_SPREAD, _REST_MEDIAN = 1.2, 0.01

REST = "rest"
"""Name of the extra step time of a job, followed by a dot and the job's number."""


def priors_of(cluster: Cluster, plans: Sequence[Plan]) -> list[Prior]:
    """Return the priors of the cluster's constants; the spread is from an earlier fit if the cluster has one.

    Otherwise the spread is `SHARES.machine` times the spread of the GPU type, because the latter also contains
    differences between jobs. GPU types have no `launch_s`; the median of `launch_s` is their `host_s`.
    """
    known = {
        name: one.sigma / one.value for name, one in cluster.constants.named.items() if one.sigma and one.value
    }
    return [
        Prior(name, median, known.get(name, SHARES.machine * spread), "an earlier fit" if name in known else reason)
        for name, median, spread, reason in _candidates(cluster, plans)
        if median > 0
    ]


def rest_of(job: int, plans: Sequence[Plan], shortest_s: float) -> Prior:
    """The median is the option of the jobs (`--extra-step-time`), else 1 % of the shortest step."""
    given_s = max((plan.job.rest_s for plan in plans if plan.job), default=0.0)
    median = given_s or _REST_MEDIAN * shortest_s
    return Prior(f"{REST}.{job}", median, _REST_SPREAD, "--extra-step-time if given, else 1 % of a step")


def _candidates(cluster: Cluster, plans: Sequence[Plan]) -> Iterator[tuple[str, float, float, str]]:
    constants, gets = cluster.constants, cluster.device.efficiency
    for dtype in dict.fromkeys(plan.job.execution.dtype for plan in plans if plan.job):
        known = constants.compute_share.get(dtype)
        by_table = gets.in_situ is not None and dtype in gets.in_situ.factors
        spread = gets.in_situ.sigma if gets.in_situ and by_table else ESTIMATE_SPREAD
        reason = "factor of the GPU type for training steps" if by_table else "error of estimates from data sheets"
        yield f"compute_share.{dtype}", known.value if known else 1.0, spread, reason
    for tier in cluster.tiers:
        yield f"link_efficiency.{tier.name}", tier.link.efficiency, _LINK_SPREAD, _LINK_REASON
    for kind in ("tp", "ep"):
        known = constants.overlap.get(kind)
        yield f"overlap.{kind}", known.value if known else 1.0, _OVERLAP_SPREAD, _OVERLAP_REASON
    for name, prior in _OF_PLAIN.items():
        own = getattr(constants, name)
        of_class = gets.host_s if name == "launch_s" else getattr(gets, name, 0.0)
        yield name, own.value if own else of_class, *prior


MOVED = 0.99
"""A constant counts as determined by the rows if posterior / prior standard deviation is below this."""

ADDED = 0.9
"""Threshold, like `MOVED`, for constants that are absent without a fit."""

_ROUNDS, _HALVINGS, _DONE, _NEAR, _STEP = 8, 6, 0.02, 0.3, 0.05
"""Gauss-Newton: maximum steps, and halvings per step. In prior sigmas: step at which to stop, step below which
the slopes are reused, and finite difference for the slopes.
"""

OUTLIER = 2.0
"""Standard deviations beyond which a row is reported as doubtful; beyond the same deviation from similar runs,
its loss is linear.
"""

_ROUNDS_OF_WEIGHTS, _SAME = 5, 0.1
"""Maximum number of reweightings, and relative change of weights at which to stop."""


@dataclass(frozen=True)
class MeasuredStep:
    """`name` is its place in a file ("runs.csv, row 3")."""

    case: PublishedRun
    plan: Plan
    measured_s: float
    name: str


@dataclass(frozen=True)
class ConstantEstimate:
    """`spread` is the standard deviation of the logarithm of the value."""

    prior: Prior
    value: float
    spread: float

    @property
    def moved(self) -> bool:
        return self.spread < MOVED * self.prior.spread


@dataclass(frozen=True)
class OutlierRow:
    """A row whose `error` is `times` the spread of its GPU type; the error is attributed to its job."""

    row: str
    error: float
    times: float

    def __str__(self) -> str:
        off = f"{self.row} by {signed_percent(self.error)}, {self.times:.1f} × the usual error of its GPU type"
        return f"{off}: specific to its job, with little effect on other jobs"


@dataclass(frozen=True)
class Posterior:
    """Result of a fit for a cluster and its jobs.

    - `found`: constants determined by the rows; `left`: constants that stay at their priors.
    - `runs`: runs of an earlier fit, then the rows, each with its time relative to the constants.
    - `before`, `after`: signed errors of the rows.
    - `jobs`: the model of each job; `rest` constants are numbered by this list.
    """

    cluster: Cluster
    rows: Sequence[MeasuredStep]
    found: list[ConstantEstimate]
    left: list[ConstantEstimate]
    correlation: Floats
    runs: tuple[MeasuredJob, ...]
    before: list[float]
    after: list[float]
    jobs: list[Any]
    outliers: list[OutlierRow]
    operators: Mapping[str, Constant] = field(default_factory=dict)

    def constants(self, source: str) -> Constants:
        indices = [index for index, one in enumerate(self.found) if not one.prior.name.startswith(REST)]
        names = [self.found[index].prior.name for index in indices]
        estimates = {
            one.prior.name: Constant(
                value=_rounded(one.value), sigma=_rounded(one.value * one.spread), source=_origin(one)
            )
            for one in (self.found[index] for index in indices)
        }
        pairs = {
            f"{names[a]} {names[b]}": round(float(self.correlation[indices[a], indices[b]]), 3)
            for a in range(len(indices)) for b in range(a)
        }  # fmt: skip
        stacks = {row.plan.job.stack for row in self.rows if row.plan.job}
        return replace(
            self.cluster.constants.having(estimates), runs=self.runs, fitted_on=(source,), correlation=pairs,
            stack=stacks.pop() if len(stacks) == 1 else "",
        )  # fmt: skip

    def rest_s(self, plan: Plan) -> float | None:
        names = {
            f"{REST}.{number}" for number, model in enumerate(self.jobs) if plan.job and model == plan.job.model
        }
        return next((_rounded(one.value) for one in self.found if one.prior.name in names), None)


def _origin(estimate: ConstantEstimate) -> str:
    prior = estimate.prior
    return f"fit, from {prior.median:.3g} within {100 * prior.spread:.0f} % ({prior.reason})"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def rows_of(
    cases: Sequence[PublishedRun], plan_of: PlanOf, source: str
) -> tuple[list[MeasuredStep], list[tuple[PublishedRun, str]]]:
    rows, refused = [], []
    for number, case in enumerate(cases, start=1):
        try:
            if case.properties.unexpressed:
                raise ConfigError(case.properties.unexpressed)
            if case.is_memory:
                raise ConfigError("memory tells nothing of times")
            plan = plan_of(case.options)
            if plan.job is None:
                raise ConfigError("without a model, costs are measured and no cluster's")
            rows.append(MeasuredStep(case, plan, measured_of(case, plan), f"{source}, row {case.number or number}"))
        except PpsimError as error:
            refused.append((case, str(error).splitlines()[0]))
    return rows, refused


def fit_rows(rows: Sequence[MeasuredStep], plan_of: PlanOf) -> Posterior:
    if not rows:
        raise ConfigError("there is no row to fit on")
    clusters = {row.plan.job.cluster.name: row.plan.job.cluster for row in rows if row.plan.job}
    if len(clusters) > 1:
        raise ConfigError(f"rows are of {len(clusters)} clusters, {', '.join(clusters)}: name one by --cluster")
    (cluster,) = clusters.values()
    before = _logs(rows)
    if operators := _operators(rows) or _launching(rows):
        cluster = cluster.with_constants(cluster.constants.having(operators))
        rows = [replace(row, plan=plan_of(_with_cluster(row, cluster))) for row in rows]
    plans = [row.plan for row in rows]
    jobs: list[Any] = []
    for plan in plans:
        if plan.job and plan.job.model not in jobs:
            jobs.append(plan.job.model)
    asked = [
        one for one in priors_of(cluster, plans)
        if any(_may_depend(row, one.name, ()) for row in rows) and not _is_measured(one.name, operators)
    ]  # fmt: skip
    for number, model in enumerate(jobs):
        ran = [row for row in rows if row.plan.job and row.plan.job.model == model]
        if len(ran) > 1:  # one step cannot separate extra time from a rate
            asked.append(rest_of(number, [row.plan for row in ran], min(row.measured_s for row in ran)))
    question = FitProblem(cluster, rows, jobs, plan_of)
    solved = question.solved(asked)
    if untold := _undetermined(
        asked, solved, cluster
    ):  # otherwise the rates would compensate for the removed constants
        without = {one.prior for one in untold}
        asked = [one for one in asked if one not in without]
        solved = question.solved(asked)
    places = [index for index, spread in enumerate(solved.spreads) if spread < MOVED]
    told = [
        ConstantEstimate(prior, prior.value(at) if index in places else prior.median, prior.spread * spread)
        for index, (prior, at, spread) in enumerate(zip(asked, solved.at, solved.spreads, strict=True))
    ]
    fits, left = (
        [one for index, one in enumerate(told) if (index in places) == is_told] for is_told in (True, False)
    )
    machine, at = [asked[index] for index in places], solved.at[places]
    runs = question.runs(machine, at, solved.sigmas)
    return Posterior(
        cluster, rows, fits, [*left, *untold], solved.correlation[np.ix_(places, places)], runs,
        np.expm1(before).tolist(), np.expm1(question.logs(machine, at, runs=runs)).tolist(), jobs,
        _doubts(rows, _logs(rows) if operators else before), operators,
    )  # fmt: skip


def _logs(rows: Sequence[MeasuredStep]) -> list[float]:
    return [math.log(project_run(row.case, row.plan) / row.measured_s) for row in rows]


def _operators(rows: Sequence[MeasuredStep]) -> dict[str, Constant]:
    """For a kind of operator in several runs, the constant is the geometric mean."""
    by_name: dict[str, list[Constant]] = {}
    for row in rows:
        for name, one in operator_constants(row.plan, row.case.recorded).items() if row.case.recorded else ():
            by_name.setdefault(name, []).append(one)
    seconds = {}
    for name, ones in by_name.items():
        value = _rounded(math.exp(sum(math.log(one.value) for one in ones) / len(ones)))
        seconds[name] = Constant(value=value, sigma=_rounded(MEASURED_SPREAD * value), source=ones[-1].source)
    return seconds


def _launching(rows: Sequence[MeasuredStep]) -> dict[str, Constant]:
    """Return the host's time per launch of eager steps that it limits: the geometric mean of such rows.

    They take longer than projected, beyond `OUTLIER`, and at most the time with `EAGER_LAUNCH_S` per launch.
    """
    logs = [log for row in rows if (log := _log_of_launch(row)) is not None]
    if not logs:
        return {}
    launch_s, spread = math.exp(sum(logs) / len(logs)), max(spread_of(row.plan) for row in rows)
    source = "fit of eager steps that kernel launches limit"
    return {"host_s": Constant(value=_rounded(launch_s), sigma=_rounded(spread * launch_s), source=source)}


def _log_of_launch(row: MeasuredStep) -> float | None:
    def seconds_of(plan: Plan) -> float:
        return project_run(row.case, plan)

    projected_s, job = seconds_of(row.plan), row.plan.job
    slow_s = slow_host_s(row.plan, projected_s, seconds_of)
    least_s = projected_s * math.exp(OUTLIER * spread_of(row.plan))
    if job is None or slow_s is None or not least_s < row.measured_s <= slow_s:
        return None
    low, high = math.log(job.cluster.device.efficiency.host_s), math.log(EAGER_LAUNCH_S)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_short = seconds_of(with_launches_of(row.plan, math.exp(middle))) < row.measured_s
        low, high = (middle, high) if is_short else (low, middle)
    return (low + high) / 2


_BISECTIONS = 10
"""Up to 0.1 % of the step."""


def _is_measured(name: str, operators: Mapping[str, Constant]) -> bool:
    """Measured GEMMs contain the effect of the rate of their dtype."""
    kind, _, dtype = name.partition(".")
    return kind == "compute_share" and any(
        f"operator_time.{one}-{dtype}" in operators for one in ("gemm", "experts")
    )


def _with_cluster(row: MeasuredStep, cluster: Cluster) -> dict[str, Any]:
    job = row.plan.job
    stack = {"stack": job.stack} if job and job.stack_basis else {}
    return {**row.case.options, **stack, "cluster": cluster}


def _undetermined(asked: Sequence[Prior], solved: "_Solved", cluster: Cluster) -> list[ConstantEstimate]:
    """Return extra step times, and new launch times, that the rows cannot separate from a rate."""
    nothing = ("launch_s",) if cluster.constants.launch_s is None else ()
    return [
        ConstantEstimate(one, one.median, one.spread * spread)
        for one, spread in zip(asked, solved.spreads, strict=True)
        if spread > ADDED and (one.name.startswith(REST) or one.name in nothing)
    ]


def _doubts(rows: Sequence[MeasuredStep], logs: Sequence[float]) -> list[OutlierRow]:
    doubts = [
        OutlierRow(row.name, float(np.expm1(log)), abs(log) / spread_of(row.plan))
        for row, log in zip(rows, logs, strict=True)
    ]
    return [one for one in doubts if one.times > OUTLIER]


@dataclass(frozen=True)
class _Solved:
    """Posterior deviations are in prior sigmas; `sigmas` are the deviations of the runs."""

    at: Floats
    spreads: Floats
    correlation: Floats
    sigmas: Floats


@dataclass(frozen=True)
class FitProblem:
    """Rows of a cluster and the models of their jobs."""

    cluster: Cluster
    rows: Sequence[MeasuredStep]
    jobs: Sequence[Any]
    plan_of: PlanOf

    @property
    def earlier(self) -> tuple[MeasuredJob, ...]:
        return self.cluster.constants.runs

    def logs(
        self,
        priors: Sequence[Prior],
        at: Floats,
        only: Sequence[int] | None = None,
        runs: tuple[MeasuredJob, ...] = (),
    ) -> Floats:
        """Return log(projected / measured) per row, for constants `at` prior sigmas from their medians.

        `only` restricts the rows (others are 0); `runs` are the cluster's measured runs.
        """
        values = {prior.name: prior.value(one) for prior, one in zip(priors, at.tolist(), strict=True)}
        machine = {name: Constant(value=value) for name, value in values.items() if not name.startswith(REST)}
        cluster = self.cluster.with_constants(replace(self.cluster.constants.having(machine), runs=runs))
        logs = np.zeros(len(self.rows))
        for index in range(len(self.rows)) if only is None else only:
            row = self.rows[index]
            options = _with_cluster(row, cluster)
            if (rest := values.get(self._rest(row))) is not None:
                options["rest"] = rest
            logs[index] = np.log(project_run(row.case, self.plan_of(options)) / row.measured_s)
        return logs

    def runs(self, priors: Sequence[Prior], at: Floats, sigmas: Floats) -> tuple[MeasuredJob, ...]:
        rests = {prior.name: prior.value(there) for prior, there in zip(priors, at.tolist(), strict=True)}
        recorded = list(self.earlier)
        for row, log, sigma in zip(self.rows, self.logs(priors, at), sigmas[: len(self.rows)], strict=True):
            job = row.plan.job
            assert job is not None
            projected, rest = row.measured_s * math.exp(log), rests.get(self._rest(row), job.rest_s)
            rest = min(rest, row.measured_s / 2)  # a step shorter than its rest would be negative
            times = _rounded((row.measured_s - rest) / (projected - rest))
            spread = _rounded(spread_of(row.plan))
            recorded.append(
                MeasuredJob(**vars(features_of(job)), times=times, sigma=_rounded(sigma), spread=spread)
            )
        return tuple(recorded)

    def _rest(self, row: MeasuredStep) -> str:
        return f"{REST}.{self.jobs.index(row.plan.job.model if row.plan.job else None)}"

    def slopes(self, priors: Sequence[Prior], at: Floats, now: Floats) -> Floats:
        """Return the derivatives of `logs`, shape [rows, constants]."""
        slopes = np.zeros((len(self.rows), len(priors)))
        for column, prior in enumerate(priors):
            moved = at.copy()
            moved[column] += _STEP * (-1 if prior.value(at[column] + _STEP) == prior.value(at[column]) else 1)
            only = [index for index, row in enumerate(self.rows) if _may_depend(row, prior.name, self.jobs)]
            there = self.logs(priors, moved, only)
            slopes[only, column] = (there[only] - now[only]) / (moved[column] - at[column])
        return slopes

    def solved(self, priors: Sequence[Prior]) -> _Solved:
        """Outliers have reduced weight: runs with a large error, or with a much larger error than similar runs."""
        jobs = [*(features_of(row.plan.job) for row in self.rows if row.plan.job), *self.earlier]
        spreads = np.array(
            [*map(spread_of, (row.plan for row in self.rows)), *(run.spread for run in self.earlier)]
        )
        common = np.outer(spreads, spreads) * job_covariance(jobs, jobs)
        known = np.array([MEASURED_SPREAD] * len(self.rows) + [run.sigma for run in self.earlier])
        sigmas, state = known, _State(np.zeros(len(priors)), self.logs(priors, np.zeros(len(priors))))
        past: Floats = np.array([-math.log(run.times) for run in self.earlier])
        weights: Floats = np.zeros(0)
        for _ in range(_ROUNDS_OF_WEIGHTS):
            errors, last = np.concatenate([state.errors, past]), weights
            own = sigmas**2 * np.linalg.solve(common + np.diag(sigmas**2), errors)
            sigmas, usual = known / np.sqrt(_usual(own / known, OUTLIER)), _usual(errors / spreads, USUAL)
            weights = np.concatenate([sigmas, usual])
            if len(last) and np.allclose(weights, last, rtol=_SAME):
                break
            root: Floats = np.sqrt(usual)
            information: Floats = np.asarray(
                np.linalg.inv(common + np.diag(sigmas**2)) * np.outer(root, root), float
            )
            state = self._most_probable(priors, state, information, past)
        slopes = np.zeros((len(self.rows), 0)) if state.slopes is None else state.slopes
        of_rows = information[: len(self.rows), : len(self.rows)]
        covariance = np.linalg.inv(slopes.T @ of_rows @ slopes + np.eye(len(priors)))
        deviations = np.sqrt(np.diag(covariance))
        return _Solved(state.at, deviations, covariance / np.outer(deviations, deviations), sigmas)

    def _most_probable(
        self, priors: Sequence[Prior], state: "_State", information: Floats, past: Floats
    ) -> "_State":
        """Gauss-Newton with step halving until the probability increases; `past` are errors of earlier runs."""
        of_rows = information[: len(self.rows), : len(self.rows)]
        push = information[: len(self.rows), len(self.rows) :] @ past

        def cost(at: Floats, errors: Floats) -> float:
            return float(errors @ of_rows @ errors + 2 * errors @ push + at @ at)

        at, errors, slopes = state.at, state.errors, state.slopes
        for _ in range(_ROUNDS if priors else 0):
            if slopes is None:
                slopes = self.slopes(priors, at, errors)
            step = np.linalg.solve(
                slopes.T @ of_rows @ slopes + np.eye(len(at)), -slopes.T @ (of_rows @ errors + push) - at
            )  # fmt: skip
            for _ in range(_HALVINGS):
                tried = self.logs(priors, at + step)
                if cost(at + step, tried) <= cost(at, errors):
                    break
                step = step / 2
            else:
                break
            at, errors = at + step, tried
            size = float(np.max(np.abs(step)))
            if size < _DONE:
                break
            slopes = slopes if size < _NEAR else None
        return _State(at, errors, self.slopes(priors, at, errors) if slopes is None else slopes)


def _usual(deviations: Floats, most: float) -> Floats:
    """Huber weights (Huber 1964): 1 up to `most` deviations, then inversely proportional to the deviation."""
    weights: Floats = np.minimum(1.0, most / np.maximum(np.abs(deviations), 1e-12))
    return weights


@dataclass(frozen=True)
class _State:
    """Constants in prior sigmas, errors of rows, and slopes if still valid."""

    at: Floats
    errors: Floats
    slopes: Floats | None = None


def _may_depend(row: MeasuredStep, name: str, jobs: Sequence[Any]) -> bool:
    """If False, the slope is zero, and its computation is skipped."""
    job = row.plan.job
    assert job is not None
    kind, _, of = name.partition(".")
    if kind == "compute_share":
        return of == job.execution.dtype
    if kind == REST:
        return bool(jobs[int(of)] == job.model)
    if name == "overlap.tp":
        return job.layout.tp > 1 and max(job.execution.hidden_tp_forward, job.execution.hidden_tp_backward) > 0
    if name == "overlap.ep":
        return job.layout.ep > 1 and job.execution.hidden_ep > 0
    if name == "routing_host_s":
        return job.model.has_experts
    return True


def fitted_plan_of(posteriors: Mapping[str, Posterior], plan_of: PlanOf) -> PlanOf:
    clusters = {
        name: posterior.cluster.with_constants(posterior.constants("the rows fitted on"))
        for name, posterior in posteriors.items()
    }

    def fitted(options: Mapping[str, Any]) -> Plan:
        plan = plan_of(options)
        name = plan.job.cluster.name if plan.job else ""
        if name not in posteriors:
            return plan
        changed: dict[str, Any] = {"cluster": clusters[name]}
        if (rest := posteriors[name].rest_s(plan)) is not None:
            changed["rest"] = rest
        return plan_of({**options, **changed})

    return fitted
