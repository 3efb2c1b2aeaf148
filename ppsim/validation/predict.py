"""A case → what ppsim projects for it, from the same job that a user would ask for."""

from collections import Counter

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.catalog.build import build, find
from ppsim.costs.job import Job
from ppsim.costs.of_job import assemble_job, peak_memory
from ppsim.costs.place import Execution
from ppsim.layout.layout import layout_on
from ppsim.layout.split import Split
from ppsim.machine.files import load_cluster
from ppsim.model.memory import Optimizer
from ppsim.model.recompute import recompute_of
from ppsim.schedule.table import Op
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import simulate_step
from ppsim.simulation.step_costs import StepCosts
from ppsim.simulation.timeline import Timeline
from ppsim.validation.cases import Case
from ppsim.validation.flops import flops_a_token
from ppsim.validation.machines import Machine, on_machine


def predict(case: Case, machine: Machine | None) -> float:
    """Return the seconds of a step, or the bytes of the fullest rank, that ppsim says for a case.

    The seconds are those that `project` has for the same job, without what else a projection looks into. Raises
    `ConfigError` for a case that cannot be expressed.
    """
    if case.unexpressed:
        raise ConfigError(case.unexpressed)
    if case.forward_ms is not None:
        return _measured_costs_s(case, machine)
    job = job_of(case, machine)
    entry = find(case.schedule)
    table = build(entry, pp=case.pp, vpp=case.vpp, microbatches=job.num_microbatches)
    assembled = assemble_job(job, table, split=split_of(case))
    costs = _with_launches(assembled.costs, machine).replace(channel=case.channel)
    step = simulate_step(table, costs, assembled.around)
    return _fullest_rank(job, step.timeline, assembled.split) if case.is_memory else step.time_s


def flops_of(case: Case) -> float:
    """Return the model FLOPs of a step."""
    return flops_a_token(case.architecture, case.seq_len, "causal") * case.global_batch * case.seq_len


def job_of(case: Case, machine: Machine | None) -> Job:
    """Return the job of a case whose costs are estimated, with the constants of its class of machines."""
    return Job(
        model=case.architecture,
        model_name=case.title,
        cluster=on_machine(load_cluster(case.cluster), machine, case.device_dtype),
        layout=layout_on(case.gpus, tp=case.tp, cp=case.cp, ep=case.ep, etp=case.etp, pp=case.pp),
        global_batch=case.global_batch,
        micro_batch=case.micro_batch,
        sequence_length=case.seq_len,
        execution=Execution(
            dtype=case.device_dtype,
            attention=case.attention,
            recompute=recompute_of(case.recompute),
            sequence_parallel=case.sequence_parallel and case.tp > 1,
            dropout=case.dropout,
            fused_cross_entropy=case.fused_cross_entropy,
            context=case.context,
            hidden_tp_forward=case.hidden_tp,
            hidden_tp_backward=case.hidden_tp_backward,
            hidden_ep=case.hidden_ep,
        ),
        optimizer=Optimizer(precision="fp16" if case.dtype == "float16" else "bf16", zero_stage=case.zero_stage),
        overlap=case.overlap,
        rest_s=machine.rest_s if machine else 0.0,
        scatter_gather=case.scatter_gather,
        offload=case.offload,
    )


def split_of(case: Case) -> Split:
    """Return how layers are divided among stages: "auto", "even", or as many as the case says."""
    if case.split == "auto" or case.split == "even":
        return case.split
    return [int(count) for count in case.split.split(",")]


def _measured_costs_s(case: Case, machine: Machine | None) -> float:
    """A step of costs that were measured of a rank: `vpp` equal stages of it, transfers between any two."""
    costs = StageCosts(
        forward_s=(case.forward_ms or 0.0) / 1e3 / case.vpp,
        backward_input_s=(case.backward_input_ms or 0.0) / 1e3 / case.vpp,
        backward_weight_s=(case.backward_weight_ms or 0.0) / 1e3 / case.vpp,
        transfer_s=case.transfer_ms / 1e3,
        activation_bytes=1.0,
    )
    entry = find(case.schedule)
    microbatches = case.global_batch * case.pp * case.tp // (case.micro_batch * case.gpus)
    fitted_to = costs if entry.takes("costs") else None
    table = build(entry, pp=case.pp, vpp=case.vpp, microbatches=microbatches, costs=fitted_to)
    charged = _with_launches(costs, machine).replace(channel=case.channel)
    around = StepCosts(update=case.update, rest_s=machine.rest_s if machine else 0.0)
    return simulate_step(table, charged, around).time_s


def _with_launches(costs: StageCosts, machine: Machine | None) -> StageCosts:
    """Host time of one launch before every action, and of two before every transfer."""
    launch_s = machine.launch_s if machine else 0.0
    return costs.replace(action_overhead_s=launch_s, hop_overhead_s=2 * launch_s)


def _fullest_rank(job: Job, timeline: Timeline, split: list[int]) -> float:
    """Bytes of the fullest rank, each at its own peak of microbatches in flight, transients included."""
    schedule, found = timeline.schedule, []
    for rank in range(schedule.num_ranks):
        here = slice(int(schedule.rank_offsets[rank]), int(timeline.memory.peak_at[rank]) + 1)
        ops, stages = schedule.op[here], schedule.stage[here]
        held = Counter(stages[ops == Op.F].tolist())
        held.subtract(stages[np.isin(ops, (Op.B, Op.W))].tolist())
        in_flight = [float(held[stage]) for stage in schedule.stages_of(rank)]
        found.append(peak_memory(job, schedule, split, rank, in_flight).total)
    return float(max(found))
