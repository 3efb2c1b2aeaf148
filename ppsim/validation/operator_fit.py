"""Multipliers on the time of operators by kind, from the kernels, messages or passes of a recorded run.

Each multiplier is measured / projected seconds per step, over the recorded pipeline ranks. Projected seconds of a
kind are the increase of F + B if the kind takes twice the time. Recordings have

- kernels by name (Kineto, Nsight Systems). If the names do not separate expert or narrow GEMMs from the others, all
  GEMMs get one multiplier.
- messages with their sizes (Kineto). The shortest message of one operation, size and group counts, because longer
  ones wait for other ranks.
- passes (dumps of Primus, spans, timers of Megatron-LM), which give one multiplier for all kinds of kernels.
  Communication inside a pass is assumed to be as projected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.stage_cost_set import values_of_ranks
from ppsim.costs.time_breakdown import CostEstimate
from ppsim.machine import collectives
from ppsim.machine.cluster import Constant
from ppsim.machine.job_similarity import MEASURED_SPREAD
from ppsim.machine.kernels.data_sheet_times import at_least_16_bits
from ppsim.parallel.groups import GroupName, RankGroup
from ppsim.projection.plan import Plan
from ppsim.projection.project import assembled_of
from ppsim.runs.kernel_totals import KernelTotals

_LEAST_REPEATS = 2
_FACTORS = 0.05, 20.0
"""Range of plausible multipliers."""


@dataclass(frozen=True)
class RecordedTimes:
    """Times of a recorded step: `kernels` per process, or `passes_s`, the seconds of all F and B per pipeline rank.

    A single value of `passes_s` belongs to the rank with the longest passes.
    """

    source: str
    kernels: Sequence[KernelTotals] = ()
    passes_s: Sequence[float] = ()


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
        return sum(one.seconds.get(kind, 0.0) + gap_s * one.counts.get(kind, 0.0) for one in recorded.kernels)

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
        whole = sum(measured_s(name) for name in ("gemm", "narrow gemm", "experts"))
        times = whole / sum(projected[kind] for kind in of_gemms)
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
    seconds = [_computing_s(one) * plan.num_microbatches for one in assembled.parts]
    return [sum(mine) / table.num_replicas for mine in values_of_ranks(table, seconds)]


def _computing_s(one: CostEstimate) -> float:
    whole = one.forward + one.backward
    return whole.total_s - whole.communication_s - whole.host_s - whole.offload_s


def _by_messages(job: Job, recorded: RecordedTimes) -> Iterator[tuple[str, float]]:
    """Return multipliers of collectives whose group is known by its number of ranks."""
    shortest: dict[tuple[str, float, int], list[float]] = {}
    for one in recorded.kernels:
        for operation, size, ranks, seconds in one.messages:
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
        number * sum(mine)
        for mine in values_of_ranks(table, [(one.forward + one.backward).total_s for one in assembled.parts])
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
