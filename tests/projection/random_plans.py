"""Random plans: options of `ppsim.project` over models, clusters, schedules and profiles."""

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import ppsim
from ppsim.base.errors import PpsimError
from ppsim.catalog.build import every_schedule, find
from ppsim.projection.loss_breakdown import IDEAL, loss_budget
from ppsim.projection.project import iteration_of
from ppsim.projection.projection import Projection
from ppsim.tuning.evaluate import exact_peak_bytes, table_at, task_of
from ppsim.tuning.lower_bounds import BoundsCalculator
from ppsim.tuning.space import Configuration, SearchProblem

_MODELS = (
    "llama3-8b", "llama2-7b", "gpt3-175b", "qwen2.5-0.5b", "qwen3-vl-4b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v3",
    "qwen3-30b-a3b", "gemma2-9b",
)  # fmt: skip
_WITH_EXPERTS = ("mixtral-8x7b", "gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b")
_CLUSTERS = ("dgx-h100", "dgx-a100", "dgx-b200", "mi300x-8")
_LENGTHS = (512, 1024, 2048, 3072, 4096)


COSTLY: dict[str, tuple[Any, ...]] = {
    "dtype": ("float8", "mxfp8", "float16"),
    "recompute": ("full", "mlp", "core_attn", "block/1", "uniform/2", "full/2", "full@0-3", "mlp*1,full*1,none*N"),
    "zero": (0, 2, 3),
    "fully_shard": (True,),
    "num_distributed_optimizer_instances": (2,),
    "optimizer": ("muon",),
    "layer_wise": (True,),
    "fp8_param_gather": (True,),
    "grad_reduce_in_bf16": (True,),
    "optimizer_offload_fraction": (0.5,),
    "gradient_accumulation_fusion": (False,),
    "wgrad_deferral_limit": (0, 2),
    "sequence_parallel": (False,),
    "offload_modules": ("core_attn", "mlp_norm+attn_proj"),
    "stack": ("plain", "torchtitan", "megatron-bridge"),
    "optimizer_sync": ("post-validated",),
    "overlap_dp": (False,),
    "overlap_tp": (0.5,),
    "overlap_cp": (0.5,),
    "attention": ("unfused",),
    "cross_entropy": ("unfused", "compiled", "chunked"),
    "cuda_graphs": ("full", "layer", "attn"),
    "launch_ms": (0.05,),
    "extra_step_time": (0.05,),
    "offload": (0.5,),
    "lora": (16,),
    "freeze": ("embedding+attention", "layers@0-3+embedding"),
}
"""Options that change the seconds or bytes of a job, and their values (N: the number of the other stages)."""


def random_projections(seed: int, count: int) -> Iterator[tuple[dict[str, Any], Projection]]:
    """Yield `count` sets of options with their projections; options that ppsim refuses are drawn again."""
    draw = random.Random(seed)
    while count:
        options = random_options(draw)
        with suppress(PpsimError):
            made = ppsim.project(**options)
            yield options, made
            count -= 1


def random_options(draw: random.Random) -> dict[str, Any]:
    name = draw.choice(sorted(set(every_schedule()) - {"zb-auto"}))
    entry, pp = find(name), draw.choice((2, 3, 4, 6, 8))
    vpp = draw.choice((2, 3)) if entry.stages_per_rank[1] is None and draw.random() < 0.5 else None
    options = {"schedule": name, "pp": pp, "vpp": vpp, "runtime": draw.choice(("torch", "megatron", "ideal"))}
    stages = pp * (vpp or entry.stages_per_rank[0])
    options |= _of_profile(draw, pp) if draw.random() < 0.15 else _of_job(draw, pp, stages)
    if draw.random() < 0.2:
        options["stragglers"] = {draw.randrange(pp): draw.choice((1.2, 2.0))}
    if draw.random() < 0.3:
        options["channel"] = draw.choice(("ideal", "edge", "pair", "direction", "rank"))
    if draw.random() < 0.2:
        options["receives"] = draw.choice(("deferred", "ordered"))
    if draw.random() < 0.2:
        options["sequence_lengths"] = draw.sample(_LENGTHS[:-1], 3)
    if draw.random() < 0.2:
        options["split"] = draw.choice(("even", "megatron"))
    if draw.random() < 0.15:
        options["gradient_accumulation_steps"] = 2
    return {key: value for key, value in options.items() if value is not None}


def _of_profile(draw: random.Random, pp: int) -> dict[str, Any]:
    return {"microbatches": pp * draw.choice((1, 2, 4))}


def _of_job(draw: random.Random, pp: int, stages: int) -> dict[str, Any]:
    model = draw.choice(_MODELS)
    tp, cp, dp, micro_batch = (draw.choice(one) for one in ((1, 2, 4), (1, 1, 2), (1, 2, 4), (1, 1, 2)))
    options = {
        name: draw.choice(values)
        for name, values in COSTLY.items()
        if draw.random() < max(0.12, 0.06 * len(values))
    }
    if str(options.get("recompute")).endswith("N"):
        options["recompute"] = options["recompute"][:-1] + str(stages - 2)
    if model in _WITH_EXPERTS:
        options["ep"] = draw.choice((1, 2))
        if draw.random() < 0.1:
            options["etp"] = 1
        if options["ep"] > 1 and draw.random() < 0.4:
            options["overlap_ep"] = draw.choice((0.5, "megatron", "dualpipe", "best"))
        if draw.random() < 0.3:
            options["expert_imbalance"] = 1.3
    if model == "deepseek-v3":
        options["layers"] = 24
    return options | {
        "model": model, "cluster": draw.choice(_CLUSTERS), "tp": tp, "cp": cp, "dp": dp, "seq_len": 4096,
        "micro_batch_size": micro_batch, "global_batch_size": micro_batch * dp * pp * draw.choice((1, 2, 4)),
    }  # fmt: skip


_CLOSE = 1e-9
_NEVER_SLOWER = (
    ("ideal", "edge"),
    ("edge", "pair"),
    ("pair", "rank"),
    ("edge", "direction"),
    ("direction", "rank"),
)
"""Pairs of channels: the first shares only queues that the second shares too."""


def contradictions(made: Projection) -> list[str]:
    """Return the numbers of one answer that contradict each other."""
    checks = (_of_shares, _of_channels, _of_ranks, _of_summary, _of_memory, _of_search)
    return [text for check in checks for text, is_wrong in check(made) if is_wrong]


def wrong_sums(made: Projection) -> list[str]:
    """Return the sums over stages and ranks that differ from the simulation, and bounds of `tune` that do not hold."""
    return [text for check in (_of_memory, _of_search) for text, is_wrong in check(made) if is_wrong]


def _differs(one: float, other: float) -> bool:
    return abs(one - other) > _CLOSE * max(abs(one), abs(other))


def _of_shares(made: Projection) -> Iterator[tuple[str, bool]]:
    shares, whole_s = loss_budget(made), made.iteration_time_s
    for name, value in shares.items():
        yield f"{name} {value / whole_s:.3%}", value < -1e-12 * whole_s
    yield f"shares add to {sum(shares.values()) / whole_s:.6%}", _differs(sum(shares.values()), whole_s)
    if made.model_flops_utilization is not None:
        ideal_s = made.model_flops_utilization * whole_s
        yield f"model FLOPs at peak {shares[IDEAL]}, MFU × iteration {ideal_s}", _differs(shares[IDEAL], ideal_s)


def _of_channels(made: Projection) -> Iterator[tuple[str, bool]]:
    steps = made.step_time_by_channel_s
    for fewer, more in _NEVER_SLOWER:
        fewer_s, more_s = steps[fewer], steps[more]
        if more_s is not None:
            text = f"{fewer} {fewer_s}, {more} {more_s}"
            yield text, fewer_s is None or fewer_s > more_s * (1 + _CLOSE)


def _of_ranks(made: Projection) -> Iterator[tuple[str, bool]]:
    report, step_s = made.report, made.timeline.step_time_s
    ranks = report["ranks"]
    for row in ranks:
        idle_s = sum(row["idle_by_cause_s"].values())
        yield f"rank {row['rank']}: busy + idle", _differs(row["busy_s"] + idle_s, step_s)
        yield f"rank {row['rank']}: idle below 0", min(row["idle_by_cause_s"].values()) < -_CLOSE * step_s
    busy = sum(row["busy_s"] for row in ranks) / len(ranks) / step_s
    yield f"busy {busy} and bubble {report['bubble_ratio']}", abs(busy + report["bubble_ratio"] - 1) > _CLOSE
    yield "peak of ranks", max(row["peak_bytes"] for row in ranks) != made.timeline.memory.peak_bytes.max()
    yield "lower bound", report["lower_bound_s"] > step_s * (1 + _CLOSE)
    yield "lower bound of the span", report["span_lower_bound_s"] > report["span_s"] * (1 + _CLOSE)


def _of_summary(made: Projection) -> Iterator[tuple[str, bool]]:
    summary, whole_s, job = made.summarise(with_advice=False), made.iteration_time_s, made.plan.job
    low, high = summary.iteration_time_interval_s
    yield f"interval {low} to {high} of {whole_s}", not low <= whole_s <= high
    for name, gain in summary.gain_per_percent.items():
        yield f"gain of {name} {gain}", not -_CLOSE <= gain <= 0.01 + _CLOSE
    exposed_s = sum(made.step.exposed_s.values())
    if job is None or job.update == "synchronised":
        step_s = made.timeline.step_time_s + exposed_s + made.costs.step_overhead_s
        yield f"step and exposed times {step_s} of {whole_s}", _differs(step_s, whole_s)
    if job is not None and made.plan.lengths is None:
        tokens = (made.tokens_per_s or 0.0) * whole_s
        yield f"tokens {tokens} of {job.tokens_per_step}", _differs(tokens, job.tokens_per_step)
    json = made.to_json()
    yield "iteration of JSON", json["iteration_time_s"] != whole_s
    yield "step of JSON", json["step_time_s"] != made.timeline.step_time_s


def _of_memory(made: Projection) -> Iterator[tuple[str, bool]]:
    components, peak = made.peak_components_bytes, float(made.timeline.memory.peak_bytes.max())
    if components is None:
        return
    total = sum(components.values())
    yield f"components {total} of {peak}", abs(total - peak) > max(16.0, _CLOSE * peak)
    yield "components of JSON", made.to_json()["peak_components_bytes"] != components
    negative = {name: size for name, size in components.items() if size < 0 and name not in _FREED}
    yield f"components below 0: {negative}", bool(negative)


_FREED = ("offloaded to the host", "graph buffers")
"""Components that other components count already."""


def _of_search(made: Projection) -> Iterator[tuple[str, bool]]:
    """Bounds and peak of `tune` for the configuration, with its own split."""
    plan, job = made.plan, made.plan.job
    if made.timeline.schedule.num_replicas > 1 or made.timeline.schedule.num_slices > 1:  # not in `tune`
        return
    if job is None or plan.stragglers or plan.lengths is not None or plan.gradient_accumulation_steps > 1:
        return
    layout, entry = job.layout, find(plan.schedule_name)
    question = SearchProblem(
        job=job, num_gpus=layout.num_devices, memory_limit_bytes=1e18, etp=layout.etp, runtime=plan.runtime,
        sequence_parallel=job.execution.sequence_parallel,
    )  # fmt: skip
    configuration = Configuration(
        layout.tp, layout.cp, layout.ep, layout.dp, layout.pp, made.timeline.schedule.vpp, job.micro_batch,
        job.execution.recompute, entry.name, "auto", job.optimizer.zero_stage,
    )  # fmt: skip
    calculator = BoundsCalculator(question)
    try:
        bounds = calculator.of(configuration)
        task = task_of(calculator, bounds)
        time_s, peak = iteration_of(task.plan, table_at(task.plan))
    except PpsimError:  # its messages wait for each other, or the plan needs other numbers of layers
        return
    yield f"bound {bounds.bound_s} of {time_s} s", bounds.bound_s > time_s * (1 + _CLOSE)
    yield f"bound {bounds.least_bytes} of {peak} bytes", bounds.least_bytes > peak * (1 + _CLOSE)
    yield f"peak {exact_peak_bytes(task)} of {peak} bytes", _differs(exact_peak_bytes(task), peak)
