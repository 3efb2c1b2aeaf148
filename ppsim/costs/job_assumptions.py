"""Sentences about what the costs of a training job assume."""

from collections.abc import Sequence
from dataclasses import replace

from ppsim.base.units import count, percent, seconds
from ppsim.costs.job import Job
from ppsim.costs.job_description import dp_overlap_text, stack_description
from ppsim.costs.offload import HOST_EFFICIENCY
from ppsim.costs.similar_jobs import scale_of
from ppsim.costs.stage_cost_set import (
    short_counts,
)
from ppsim.costs.time_breakdown import BASIS
from ppsim.machine.kernels.corrected import Corrected
from ppsim.machine.kernels.published_tables import TableTimes
from ppsim.model.execution import CHUNKS
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import Stage, stages_of
from ppsim.model.recompute import BY_OPERATORS
from ppsim.parallel.groups import GroupName
from ppsim.parallel.layer_partition import Split, rule_of
from ppsim.parallel.sizes import ParallelSizes
from ppsim.schedule.table import Schedule

_COMMUNICATION: dict[GroupName, str] = {"tp": "tp_s", "cp": "cp_s", "ep": "ep_s"}


def _straddling(job: Job) -> list[str]:
    inside = replace(job.cluster, tiers=(replace(job.cluster.tiers[0], num_devices=None),))
    together, lines = replace(job, cluster=inside, profile=None), []
    for name, part in _COMMUNICATION.items():
        if not job.place.ranks(name).tier:
            continue

        def of_layer(one: Job, part: str = part) -> float:
            passes = (getattr(costs.forward + costs.backward, part) for costs in one.costs.layers().values())
            return float(max(passes))

        tier, size = job.cluster.tiers[0], job.place.domain_sizes[0]
        lines.append(
            f"{name} {getattr(job.layout, name)} spans several {tier.name}s of {size} GPUs: "
            f"{seconds(of_layer(job))} of communication per layer and microbatch, {seconds(of_layer(together))} "
            f"within one {tier.name}"
        )
    return lines


def _recomputed(job: Job) -> str:
    of_stages = dict.fromkeys(plan.recompute for plan in job.stage_plans)
    return "by the plan of each stage" if len(of_stages) > 1 else "".join(of_stages) or job.execution.recompute


_OTHERS = ("operator_time", "link_efficiency", "overlap", "routing_host_s", "jitter")
"""Constants of a cluster that share one line of the assumptions."""


def _documents(job: Job) -> list[str]:
    if job.document_length is None and not job.model.fine_tuning:
        return []
    kind, length = (
        ("whole sequences", job.length) if job.document_length is None else ("documents", job.document_length)
    )
    return [f"attention: over {kind} of {length} tokens (--document-length)"]


def _fine_tuning(job: Job) -> list[str]:
    tuning, model = job.model.fine_tuning, job.model
    if tuning is None:
        return []
    held = held_parameters(model, stages_of(model, [len(model.layers)]), ParallelSizes())
    trained, held_in_all = held.trained + held.trained_expert, held.dense + held.expert
    how = f"LoRA of rank {tuning.rank} on {', '.join(tuning.modules)}" if tuning.rank else f"{job.freeze} frozen"
    lines = [
        f"fine-tuning: {how}; {count(trained)} of {count(held_in_all)} parameters are trained",
        "model FLOPs: frozen GEMMs count twice (forward and input gradient), trained ones three times",
    ]
    number = sum(not layer.has_backward for layer in model.layers)
    if number:
        lines.append(
            f"backward: none in the first {number} layers, since no weight is trained up to there; runtimes that "
            "ask for the gradient of every received tensor compute their input gradients"
        )
    return lines


def _executed(job: Job) -> list[str]:
    execution, constants, lines = job.execution, job.cluster.constants, []
    hidden = {"ep": execution.hidden_ep, "cp": execution.hidden_cp}
    if order := execution.ep_order:
        lines.append(f"expert-parallel overlap: each pair of a forward and a backward, in the order of {order}")
    if any(hidden.values()):
        lines.append(
            "communication hidden by compute: "
            + ", ".join(f"{percent(part)} of {name}" for name, part in hidden.items() if part)
        )
    lines += [*_fine_tuning(job), *_documents(job)]
    if not job.gradient_accumulation_fusion:
        lines.append("gradients: accumulated by separate kernels (no gradient accumulation fusion)")
    if not execution.moe_permute_fusion:
        lines.append("experts: tokens permuted by torch's gather and scatter-add (no permutation fusion)")
    if execution.cross_entropy != "fused":
        parts = f" of one of {CHUNKS} parts at a time" if execution.cross_entropy == "chunked" else ""
        lines.append(f"cross entropy: {execution.cross_entropy}, with a float32 copy of the logits{parts}")
    if execution.cuda_graphs != "none":
        shared = ", each with its own buffers" if not job.cuda_graph_reuse else ""
        lines.append(f"CUDA graphs: {execution.cuda_graphs}{shared}")
    if execution.context != "ring" and job.layout.cp > 1:
        of = "heads" if execution.context == "all-to-all" else "keys and values of every query head"
        lines.append(f"context parallelism: an {execution.context} of {of}")
    share = execution.compute_share or getattr(constants.compute_share.get(execution.dtype), "value", 1.0)
    if share != 1:
        whose = "--compute-scale" if execution.compute_share else job.cluster.name
        lines.append(f"GEMMs and attention: {share:g} × the rate of their GPU type ({whose})")
    if constants.kernel_s:
        lines.append(f"kernels: {seconds(constants.kernel_s.value)} between two kernels ({job.cluster.name})")
    if (scale := scale_of(job)) != 1:
        lines.append(f"this job: {scale:.4g} × the sum of its parts ({job.cluster.name})")
    others = [
        f"{name} {one.value:.3g}" for name, one in constants.named.items() if name.partition(".")[0] in _OTHERS
    ]
    if others:
        lines.append(f"constants of {job.cluster.name}: {', '.join(others)}")
    if job.rest_s:
        lines.append(f"extra time per step: {seconds(job.rest_s)} (--extra-step-time)")
    if job.scatter_gather and not execution.sequence_parallel and job.layout.tp > 1:
        lines.append("P2P transfers: each tp rank sends its part, the receivers all-gather it")
    return lines


def _kernels(job: Job) -> list[str]:
    times, shares = (
        job.place.times,
        {name: f"{100 * share:.0f} %" for name, share in job.costs.shares.items() if share},
    )
    times = times.source if isinstance(times, Corrected) else times
    if "table" not in shares or not isinstance(times, TableTimes):
        return []
    names = (name for name in ("data sheet", "profile", "links") if name in shares)
    others = ", ".join(f"{shares[name]} from the {name}" for name in names)
    factor = times.factor("products")
    longer = "" if factor is None else f", multiplied by {factor:g} for a training step"
    lines = [
        f"kernels: {shares['table']} of F and B from the table of {times.table.name} "
        f"({times.table.provenance['source']}){longer} (error {percent(times.in_situ.sigma)})"
        f"{others and '; '}{others}"
    ]
    if factor is not None and times.name != job.execution.dtype:
        lines.append(f"GEMMs in {job.execution.dtype}: rates of {times.name}, the nearest dtype that was measured")
    rows, most = _expert_rows(job), times.most_expert_rows
    if most is not None and rows > most:
        lines.append(f"experts: measured up to {most:g} rows each; {rows:.0f} rows run at the rate of {most:g}")
    return lines


def _expert_rows(job: Job) -> float:
    tokens = job.place.tokens(job.micro_batch, job.length) / job.settings.cut.tp
    kinds = (layer for layer in job.model.kinds if layer.is_moe)
    return max(
        (tokens * layer.experts_per_token * job.settings.cut.expert_tp / linear.count
         for layer in kinds for linear in layer.linears(job.settings.cut) if linear.kind == "routed"), default=0.0,
    )  # fmt: skip


def _encoders(job: Job, stages: Sequence[Stage]) -> list[str]:
    lines = []
    for encoder in job.model.encoders:
        held = [
            str(at)
            for at, stage in enumerate(stages)
            if any(part.encoder is encoder for part in stage.encoder_parts(job.model))
        ]
        tp, cp = job.layout.tp, job.layout.cp
        divided = f"divided over {tp} tp ranks" if encoder.is_divided else "whole on every tp rank"
        how = f", {divided}, as in Megatron-Bridge" if tp > 1 else ""
        how += ", repeated by every cp rank" if cp > 1 else ""
        frozen = [
            word for word, trains in (("encoder", encoder.trains_layers), ("projector", encoder.trains_projector))
            if not trains
        ]  # fmt: skip
        how += f", {' and '.join(frozen)} frozen" if frozen else ""
        without = [
            word for word, is_given in (
                ("adapters", job.lora), ("CUDA graphs", job.place.execution.cuda_graphs not in ("none", "full")),
                ("offload", job.offloads),
            ) if is_given
        ]  # fmt: skip
        how += f", without {' and '.join(without)}" if without else ""
        lines.append(
            f"{encoder.kind} encoder: {len(encoder.layers)} layers on stage {', '.join(held)}, 16 bits{how}"
        )
    return lines


def assumptions_of(
    job: Job,
    schedule: Schedule,
    stages: Sequence[Stage],
    split: Split,
    hops: dict[str, float],
    known: dict[str, list[str]],
) -> list[str]:
    layout, execution, optimizer = job.layout, job.execution, job.optimizer
    counts = [len(stage.layers) for stage in stages]
    embedded = next((at for at, stage in enumerate(stages) if stage.embedding), 0)
    vpp = len(counts) // layout.pp
    how = rule_of(split, len(job.model.layers), pp=layout.pp, vpp=vpp)
    etp = "" if layout.etp is None else f", etp {layout.etp}"
    sp = ", sequence parallel" if execution.sequence_parallel else ""
    crossed = ", ".join(f"{seconds(value)} over {name}" for name, value in hops.items()) or "none"
    estimated = f"{BASIS} and measured kernels" if job.costs.shares["table"] else BASIS
    measured = job.costs.measured()
    basis = measured.sentence(job.costs.bases) if measured else estimated
    lines = [
        f"costs: {basis}, {job.cluster.device.name} ({job.cluster.name})",
        f"model: {job.model_name}, {len(job.model.layers)} layers, split {short_counts(counts)} ({how}), embedding "
        f"on stage {embedded}, head and loss on the last",
        *_encoders(job, stages),
        f"stack: {stack_description(job)} ({job.stack_basis or '--stack'})",
        f"layout: tp {layout.tp}{sp}, cp {layout.cp}, ep {layout.ep}{etp}, dp {layout.dp}, pp {layout.pp}, ranks "
        f"placed {layout.order}",
        f"batch: {job.global_batch} sequences of {job.length} tokens, micro-batch {job.micro_batch}",
        f"numbers: {execution.dtype}, recompute {_recomputed(job)}, {execution.attention} attention",
        *_executed(job),
        f"optimizer: {optimizer.name}, ZeRO stage {optimizer.zero_stage}, {optimizer.bytes_of_gradient}-byte "
        f"gradients, {optimizer.exp_avg_dtype} moments, {job.update}"
        + ", by whole layers" * optimizer.layer_wise
        + (f", {percent(optimizer.offload_fraction)} on the host" if optimizer.offload_fraction else ""),
        f"transfers: {crossed}",
        f"data parallelism: {dp_overlap_text(job)}",
        "memory: by formula; static bytes include the transients of an action, "
        + (
            f"all × {job.allocator_slack:g} of allocator slack" if job.allocator_slack > 1 else "no allocator slack"
        ),
    ]
    if "kernels" not in known:
        known["kernels"] = [*_kernels(job), *_straddling(job)]
    lines += known["kernels"]
    if job.offloads:
        modules = dict.fromkeys(plan.offload_modules for plan in job.stage_plans if plan.offload_modules)
        what = percent(job.offload) if job.offload else f"what {' or '.join(modules) or job.offload_modules} saves"
        lines.append(
            f"offload: {what} of the activations to the host, overlapped with compute, at "
            f"{percent(HOST_EFFICIENCY)} of the link's rate (assumed)"
        )
    if schedule.num_replicas > 1:
        lines.append(f"replicas: {schedule.num_replicas} on each pipeline, each with all of the model")
    if schedule.splits_backward and {BY_OPERATORS, "full"} & set(job.recompute_options_of_layers):
        lines.append("recomputed layers: W keeps no more memory than their forward did")
    return lines
