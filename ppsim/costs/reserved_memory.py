"""Peak memory of a rank by component, and the memory that torch's allocator reserves."""

from collections.abc import Sequence

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.stage_cost_set import StageCostSet, values_of_ranks
from ppsim.model.fully_shard import LaunchSettings, MicrobatchPass, replay_memory, why_no_replay
from ppsim.model.pipeline_stages import stages_of_layout
from ppsim.model.rank_memory import rank_memory, update_memory
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.memory_per_action import RankMemoryUse


def components_at_peak(
    job: Job,
    schedule: Schedule,
    assembled: StageCostSet,
    memory: RankMemoryUse,
    rank: int,
    *,
    of_tokens: Floats | None = None,
) -> dict[str, int]:
    """Return the bytes of a rank at its peak, by component of `ppsim.model.rank_memory`.

    `of_tokens` has the tokens of each microbatch as a fraction of the job's microbatch. Raises `ConfigError` if
    activations are offloaded, because no component contains them.
    """
    if job.offloads:
        raise ConfigError("what a rank holds by component is known without offloading only")
    costs, first = assembled.costs.resolved_for(schedule), int(schedule.rank_offsets[rank])
    mine = values_of_ranks(schedule, stages_of_layout(job.model, assembled.contents))[rank]
    if costs.update_bytes[rank] > memory.peak_activation_bytes[rank]:
        return dict(update_memory(job.model, mine, job.settings).components)
    whole_microbatches = np.ones(schedule.num_microbatches) if of_tokens is None else of_tokens
    in_flight = dict.fromkeys(schedule.stages_of(rank), 0.0)
    for action in range(first, int(memory.peak_at[rank]) + 1):
        stage, op = int(schedule.stage[action]), int(schedule.op[action])
        microbatch, place = divmod(int(schedule.microbatch[action]), schedule.num_slices)
        whole, for_weight = (float(values[stage]) for values in (costs.activation_bytes, costs.kept_bytes))
        waits = for_weight / whole if whole else 0.0
        freed = {Op.F: -1.0, Op.B: 1.0, Op.I: 1 - waits, Op.W: waits}[Op(op)]
        if freed < 0 or action < memory.peak_at[rank]:
            in_flight[stage] -= freed * float(costs.token_shares[place] * whole_microbatches[microbatch])
    held = [max(0.0, number) for number in in_flight.values()]
    return dict(rank_memory(job.model, mine, job.settings, in_flight=held).components)


def why_nothing_is_reserved(job: Job, schedule: Schedule) -> str | None:
    if not job.settings.fully_shard:
        return "what an allocator reserves is known with --fully-shard among replicas only"
    if schedule.splits_backward or schedule.num_slices > 1 or schedule.num_replicas > 1 or job.offloads:
        return f"what an allocator reserves is known for whole forwards and backwards: got {schedule.name}"
    return why_no_replay(job.model, job.settings)


def reserved_bytes(job: Job, schedule: Schedule, contents: Sequence[str]) -> list[int]:
    """Return the bytes that each rank's allocator reserves; `contents` are layout strings.

    Expandable segments are assumed only if all ranks are on one node, as in TorchTitan's two launch scripts. Raises
    `ConfigError` if `why_nothing_is_reserved` returns a reason.
    """
    if reason := why_nothing_is_reserved(job, schedule):
        raise ConfigError(reason)
    launch = LaunchSettings(
        is_pipelined=schedule.num_ranks > 1,
        is_async=job.layout.tp > 1 and job.execution.hidden_tp_forward > 0,
        is_expandable=job.domain_sizes[0] in (None, job.layout.num_devices),
        num_rounds=schedule.num_rounds,
    )
    found, offsets = [], schedule.rank_offsets.tolist()
    for rank, mine in enumerate(values_of_ranks(schedule, stages_of_layout(job.model, contents))):
        here = slice(offsets[rank], offsets[rank + 1])
        places = {stage: place for place, stage in enumerate(schedule.stages_of(rank))}
        passes = [
            MicrobatchPass(op == Op.F, places[stage], microbatch)
            for op, stage, microbatch in zip(
                schedule.op[here].tolist(),
                schedule.stage[here].tolist(),
                schedule.microbatch[here].tolist(),
                strict=True,
            )
        ]
        found.append(replay_memory(job.model, mine, job.settings, passes, launch).reserved)
    return found
