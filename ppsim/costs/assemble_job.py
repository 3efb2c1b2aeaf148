"""Costs per stage and of the rest of the step, for a training job on a cluster and any schedule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.dp_and_optimizer import step_costs
from ppsim.costs.job import Job
from ppsim.costs.job_assumptions import assumptions_of
from ppsim.costs.job_plans import stages_with_plans
from ppsim.costs.ledger import Ledger
from ppsim.costs.pair_overlap import LayerTimes, pair_s
from ppsim.costs.stage_cost_set import StageCostSet, slice_costs, stages_of_ranks, values_of_ranks
from ppsim.costs.stage_memory import stage_memory
from ppsim.costs.time_breakdown import CostEstimate, work_of
from ppsim.machine import collectives
from ppsim.model.architecture import Layer
from ppsim.model.pipeline_stages import Stage, StagePlan, contents_of, stages_of, stages_of_layout
from ppsim.parallel.groups import tier_between
from ppsim.parallel.layer_balance import balance_ranks
from ppsim.parallel.layer_partition import MegatronSplit, Split, layer_split, split_layers, why_no_split
from ppsim.schedule.table import NONE, Schedule
from ppsim.simulation.memory_per_action import memory_changes
from ppsim.simulation.stage_costs import StageCosts


def assemble_job(
    job: Job,
    schedule: Schedule,
    *,
    split: Split = "auto",
    ledger: Ledger | None = None,
    plans: Sequence[StagePlan] | None = None,
) -> StageCostSet:
    """Return the costs of a job for a schedule's placement of stages.

    Static bytes include the transient memory at the peak. `ledger`: sums for other splits of the same job. Raises
    `ConfigError` for a split that does not fit, `ScheduleError` if the schedule splits a backward that was only
    measured whole.
    """
    ranks = stages_of_ranks(schedule)
    stages = stages_of_split(job, schedule.num_model_stages, split, ranks)
    stages = stages_with_plans(job, stages, ranks, plans)
    _require_backwards(job, schedule)
    _require_pairs(job, schedule)
    ledger = ledger or Ledger(job)
    by_layer = job.offload > 0 and _max_in_flight(schedule) <= 1
    memory = stage_memory(ledger, stages, values_of_ranks(schedule, range(len(stages))), by_layer=by_layer)
    costs = memory.costs(ledger, stages)
    hop_s, hops = _hops(job, schedule, stages)
    pairs_s, pair_host_s = _pairs_s(job, schedule, stages, costs, ledger)
    stage_costs = _stage_costs(costs).replace(
        fused_s=pairs_s,
        fused_activation_bytes=memory.pair_bytes,
        activation_bytes=memory.activation_bytes[0],
        activation_bytes_kept_for_weight=memory.activation_bytes[1],
        transfer_s=hop_s,
        static_bytes=memory.static_bytes,
        update_bytes=memory.update_bytes,
    )
    stage_costs, slices = slice_costs(stage_costs, schedule, job.length, job.model.hidden_size, "time")
    return StageCostSet(
        stage_costs,
        [len(stage.layers) for stage in stages],
        _forward_flops(job),
        [*assumptions_of(job, schedule, stages, split, hops, ledger.lines), *slices],
        step_costs=step_costs(job, schedule, stages, ledger),
        parts=costs,
        contents=contents_of(stages),
        stages=stages,
        offloads=memory.offloads,
        layer_times=list(map(ledger.layer_times, stages)) if job.execution.ep_order else [],
        pair_host_s=pair_host_s,
    )


def _forward_flops(job: Job) -> float:
    """A third of the model FLOPs of training on a microbatch, per tensor- and context-parallel rank."""
    tokens = job.micro_batch * job.length / (job.layout.tp * job.layout.cp)
    return job.model.training_flops(job.length, causal=True) / 3 * tokens


def _max_in_flight(schedule: Schedule) -> float:
    """Return the most microbatches in flight if the model is one stage, otherwise infinity."""
    if schedule.num_stages > 1:
        return math.inf
    one = np.full(len(schedule), 1 / schedule.num_slices)
    return float(np.cumsum(memory_changes(schedule.op, one, one)).max(initial=0.0))


def _require_backwards(job: Job, schedule: Schedule) -> None:
    if not schedule.splits_backward:
        return
    measured = job.costs.measured()
    if measured and (unsplit := measured.whole_backwards(job.costs.bases)):
        raise ScheduleError(
            f"{schedule.name} splits the backward, which cannot be done to the {' and the '.join(unsplit)} of "
            f"profile {measured.profile.name}: only B was measured"
        )
    if job.offloads:
        raise ScheduleError(
            f"{schedule.name} splits the backward, and ppsim cannot offload activations between I and W: "
            f"leave out {'--offload' if job.offload else '--offload-modules'}"
        )


def _require_pairs(job: Job, schedule: Schedule) -> None:
    order = job.execution.ep_order
    if order is None or not schedule.num_actions:
        return
    if job.layout.ep == 1:
        raise ScheduleError(f"--overlap-ep {order} overlaps the exchange of tokens, which needs --ep above 1")
    is_megatron = order.startswith("megatron")
    if is_megatron and (reason := _why_not_in_megatron(job)):
        raise ScheduleError(f"--overlap-ep {order} does not go with {reason}, as in Megatron-LM")
    if job.profile is not None and any(cost.times is None for cost in job.costs.layers().values()):
        raise ConfigError(
            f"--overlap-ep {order} needs the times of experts, which profile {job.profile.name} does not have: "
            "give --overlap-ep PART, or leave out --profile"
        )
    if schedule.num_microbatches > 1 and not (schedule.fused != NONE).any():
        raise ScheduleError(
            f"{schedule.name} has no pairs of a forward and a backward, which --overlap-ep {order} needs: give "
            "--schedule combined-1f1b, dualpipev or dualpipe, or --overlap-ep PART"
        )
    if is_megatron and schedule.num_ranks > 1 and schedule.vpp == 1:
        raise ScheduleError(
            f"--overlap-ep {order} with --pp above 1 needs virtual stages, as Megatron-LM does: give --vpp 2"
        )


def _why_not_in_megatron(job: Job) -> str | None:
    """Megatron-Core's rules for `--overlap-moe-expert-parallel-comm` (core/transformer/transformer_config.py)."""
    execution = job.execution
    words = {
        part
        for word in job.recompute_options_of_layers
        for part in word.replace("*", "+").replace("/", "+").split("+")
    }
    if words & {"full", "uniform", "block"}:
        return "full recomputation (give --recompute none, or modules such as layernorm+moe_act)"
    if "moe" in words:
        return "--recompute moe (moe_act, layernorm and core_attn do)"
    if execution.dtype == "float32":
        return "--dtype float32 (bfloat16 does)"
    if execution.moe_dispatcher == "allgather":
        return "--moe-dispatcher allgather (alltoall does)"
    if len(job.model.mtp) > 1:
        return "more than one layer of multi-token prediction"
    if graphs := {"moe", "mlp"} & set(execution.cuda_graphs.split("+")):
        return f"--cuda-graphs {'+'.join(sorted(graphs))} (attn+moe_router do)"
    return None


def _pairs_s(
    job: Job, schedule: Schedule, stages: Sequence[Stage], costs: Sequence[CostEstimate], ledger: Ledger
) -> tuple[Floats, Floats] | tuple[None, None]:
    """Seconds of a forward of each stage (row) that runs together with a backward of each stage (column).

    The second matrix has the part of these seconds in which the device waits for kernel launches.
    """
    order, slowdown = job.execution.ep_order, job.place.dispatch_slowdown
    if order is None or not (schedule.fused != NONE).any():
        return None, None
    layers = list(map(ledger.layer_times, stages))
    of_device = [[replace(layer, launches=(0.0, 0.0), waits=(0.0, 0.0)) for layer in of] for of in layers]
    pairs_s = np.array([[cost.forward.total_s + other.backward.total_s for other in costs] for cost in costs])
    host_s = np.array([[cost.forward.host_s + other.backward.host_s for other in costs] for cost in costs])
    stages_of_ranks = values_of_ranks(schedule, range(len(stages)))
    # Model replicas: two ranks have the same stages.
    for one, other in dict.fromkeys(
        pair for stages_of_rank in stages_of_ranks for pair in product(stages_of_rank, stages_of_rank)
    ):
        together_s = pair_s(layers[one], layers[other], order, slowdown=slowdown)
        pairs_s[one, other] += together_s - _apart_s(layers[one], layers[other])
        host_s[one, other] += together_s - pair_s(of_device[one], of_device[other], order, slowdown=slowdown)
        host_s[one, other] -= sum(layer.waits[0] for layer in layers[one])
        host_s[one, other] -= sum(layer.waits[1] for layer in layers[other])
    return pairs_s, host_s


def _apart_s(forward: Sequence[LayerTimes], backward: Sequence[LayerTimes]) -> float:
    return sum(layer.forward_s for layer in forward) + sum(layer.backward_s for layer in backward)


def _stage_costs(costs: Sequence[CostEstimate]) -> StageCosts:
    is_measured = any(cost.whole_backward for cost in costs)
    return StageCosts(
        forward_s=[cost.forward.total_s for cost in costs],
        backward_input_s=[cost.backward_input.total_s for cost in costs],
        backward_weight_s=[cost.backward_weight.total_s for cost in costs],
        backward_s=[cost.backward.total_s for cost in costs] if is_measured else None,
    )


def layers_per_stage(
    job: Job, num_stages: int, split: Split, stages_of_ranks: Sequence[Sequence[int]]
) -> list[int]:
    return split_layers(
        split, len(job.model.layers), num_stages, pp=job.layout.pp,
        balanced=lambda: _balanced(job, num_stages, stages_of_ranks),
    )  # fmt: skip


def stages_of_split(
    job: Job, num_stages: int, split: Split, stages_of_ranks: Sequence[Sequence[int]]
) -> list[Stage]:
    """Return the stages without plans; raises `ConfigError` for a split that the model does not have."""
    contents = [] if isinstance(split, str | MegatronSplit) else [part for part in split if isinstance(part, str)]
    if contents and not why_no_split(split, len(job.model.layers), num_stages):
        return stages_of_layout(job.model, contents)
    return stages_of(job.model, layers_per_stage(job, num_stages, split, stages_of_ranks))


def seconds_of_layers(job: Job, seconds_of: Callable[[Layer], float]) -> list[float]:
    layers = job.model.layers
    by_layer = {id(layer): seconds_of(layer) for layer in {id(one): one for one in layers}.values()}
    return [by_layer[id(layer)] for layer in layers]


def _balanced(job: Job, num_stages: int, stages_of_ranks: Sequence[Sequence[int]]) -> list[int]:
    costs = job.costs
    layers = seconds_of_layers(job, lambda kind: work_of(costs.layer(kind)))
    embedding, head = (work_of(end) for end in costs.ends)
    embedding += work_of(costs.encoders)
    head *= 1 + len(job.model.mtp)
    mtp = sum(work_of(costs.mtp(layer)) for layer in job.model.mtp)
    counts = layer_split(layers, num_stages, embedding_s=embedding, head_s=head, mtp_s=mtp)
    return balance_ranks(counts, layers, (embedding, mtp + head), stages_of_ranks)


def _hops(job: Job, schedule: Schedule, stages: Sequence[Stage]) -> tuple[list[float], dict[str, float]]:
    """Seconds of the P2P transfer after each stage, and of a transfer over each link by name.

    After multi-token prediction layers, the hidden states of all predicted tokens go on to the head together.
    """
    layout, cluster = job.layout, job.cluster
    tokens = job.micro_batch * job.length // layout.cp
    gathers = job.scatter_gather and not job.execution.sequence_parallel
    divisor = layout.tp if gathers else job.settings.cut.norm_divisor
    ranks, by_link, hops = schedule.stage_to_rank.tolist(), dict[str, float](), []
    for stage, here in enumerate(ranks):
        is_last = (stage + 1) % schedule.num_model_stages == 0
        there = here if is_last else ranks[stage + 1]
        link = cluster.tiers[tier_between(layout, job.place.domain_sizes, here, there)].p2p_link
        before = stages[: stage % len(stages) + 1]
        tokens_ahead = 1 + sum(len(one.mtp) for one in before)
        last = next((one.layers[-1] for one in reversed(before) if one.layers), None)
        columns = last.residual_size if last else job.model.residual_size
        num_bytes = tokens * columns * float(job.execution.element_bytes)
        gathered_s = job.place.seconds("all-gather", num_bytes, "tp") if gathers else 0.0
        own = _encoded_bytes(job, stages, stage % len(stages))
        hop_s = collectives.point_to_point_s(tokens_ahead * num_bytes / divisor, link) + tokens_ahead * gathered_s
        hops.append(hop_s if own is None else collectives.point_to_point_s(own, link))
        if here != there:
            by_link[link.name] = hops[-1]
    return hops, by_link


def _encoded_bytes(job: Job, stages: Sequence[Stage], at: int) -> float | None:
    if any(stage.embedding for stage in stages[: at + 1]):
        return None
    sent = 0
    for part in (part for stage in stages[: at + 1] for part in stage.encoder_parts(job.model)):
        encoder = part.encoder
        if part.is_last:
            outputs = encoder.projector[-1].outputs
            sent += encoder.tokens * sum(one.outputs for one in encoder.projector if one.outputs == outputs)
        elif part is (stages[at].encoder_parts(job.model) or (None,))[-1]:
            sent += encoder.images * encoder.rows * encoder.layers[0].hidden_size
    return float(job.micro_batch * sent * job.execution.element_bytes)
