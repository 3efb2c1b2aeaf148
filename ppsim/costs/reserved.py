"""What torch's allocator reserves on each rank of a job, where every tensor of its step is known."""

from collections.abc import Sequence

from ppsim.base.errors import ConfigError
from ppsim.costs.assembled import of_ranks
from ppsim.costs.job import Job
from ppsim.model.fully_shard import Launch, Pass, replayed, why_no_replay
from ppsim.model.stages import stages_of_layout
from ppsim.schedule.table import Op, Schedule


def why_nothing_is_reserved(job: Job, schedule: Schedule) -> str | None:
    """Return the sentence that says why no replay of a job's tensors can be, or None."""
    if not job.settings.fully_shard:
        return "what an allocator reserves is known with --fully-shard among replicas only"
    if schedule.splits_backward or schedule.num_slices > 1 or schedule.num_replicas > 1 or job.offload:
        return f"what an allocator reserves is known for whole forwards and backwards: got {schedule.name}"
    return why_no_replay(job.model, job.settings)


def reserved_bytes(job: Job, schedule: Schedule, contents: Sequence[str]) -> list[int]:
    """Return the bytes that each rank's allocator has of its device; `contents` are the model's stages written out.

    Segments grow where one node has all ranks, as TorchTitan's own two scripts start such runs and larger ones.
    Raises `ConfigError` where `why_nothing_is_reserved` has a reason.
    """
    if reason := why_nothing_is_reserved(job, schedule):
        raise ConfigError(reason)
    launch = Launch(
        is_pipelined=schedule.num_ranks > 1,
        is_async=job.layout.tp > 1 and job.execution.hidden_tp_forward > 0,
        is_expandable=job.domain_sizes[0] in (None, job.layout.num_devices),
    )
    found, offsets = [], schedule.rank_offsets.tolist()
    for rank, mine in enumerate(of_ranks(schedule, stages_of_layout(job.model, contents))):
        here = slice(offsets[rank], offsets[rank + 1])
        places = {stage: place for place, stage in enumerate(schedule.stages_of(rank))}
        passes = [
            Pass(op == Op.F, places[stage], microbatch)
            for op, stage, microbatch in zip(
                schedule.op[here].tolist(),
                schedule.stage[here].tolist(),
                schedule.microbatch[here].tolist(),
                strict=True,
            )
        ]
        found.append(replayed(job.model, mine, job.settings, passes, launch).reserved)
    return found
