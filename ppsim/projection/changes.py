"""Options that change a plan, but not the mathematics of training: tried by the advice and by `ppsim tune`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ppsim.base.errors import PpsimError
from ppsim.base.option_declarations import command_arguments, declared_options, option_values
from ppsim.base.user_defaults import runs_deepep
from ppsim.model.recompute import BY_OPERATORS, MODULES
from ppsim.projection.options import PlanOptions
from ppsim.projection.plan import Plan
from ppsim.trainers.stacks import base_of, stacks
from ppsim.trainers.write_schedule import is_run_by

if TYPE_CHECKING:
    from ppsim.costs.job import Job

Change: TypeAlias = Mapping[str, Any]
"""Options with their new settings."""

NO_CHANGE: Change = MappingProxyType({})

Projected = TypeVar("Projected")

PLAN_OPTIONS = declared_options(PlanOptions)

_CHEAP = ("moe_act", "layernorm", "mla_up_proj")
"""Modules that take little time to recompute; also tried in combination. No trainer supports mlp_act."""

_EXPENSIVE = ("core_attn", "mlp", "moe")
_OFFLOADED = (
    "core_attn", "attn_proj", "core_attn+attn_proj", "expert_fc1", "moe_act", "expert_fc1+moe_act",
    "core_attn+expert_fc1+moe_act",
)  # fmt: skip
LEAST_TOKENS = 2048
"""Minimum tokens of a sequence per context-parallel rank; splitting further is unusual."""


def _neighbours(name: str) -> "Callable[[Job], Iterable[int]]":
    return lambda job: (2 * getattr(job.layout, name), getattr(job.layout, name) // 2)


def _sequence_parallel(job: "Job") -> Iterable[bool]:
    """Megatron-LM refuses tensor-parallel layers beside experts without it."""
    if job.layout.tp == 1:
        return ()
    return (True,) if job.model.has_experts else (True, False)


def _expert_tensor_parallel(job: "Job") -> Iterable[int]:
    etp = job.layout.expert_tp
    return dict.fromkeys((1, job.layout.tp, 2 * etp, etp // 2)) if job.model.has_experts else ()


def _context_parallel(job: "Job") -> Iterator[int]:
    cp = job.layout.cp
    return (size for size in (2 * cp, cp // 2) if size < cp or job.length // size >= LEAST_TOKENS)


def _runs_torch(job: "Job") -> bool:
    return job.fully_shard or job.execution.compile is not None


def recomputed_modules(job: "Job") -> list[str]:
    """Return values of `recompute` by module that change a layer's memory, one for each amount of memory."""
    from ppsim.costs.job_plans import recomputing  # heavy imports: every tensor of a model
    from ppsim.model.memory_rows import kept_of_layer

    if _runs_torch(job):
        return [BY_OPERATORS]

    def kept(recompute: str) -> tuple[int, ...]:
        settings = recomputing(job, recompute).settings
        return tuple(sum(kept_of_layer(layer, settings, recompute).values()) for layer in job.model.kinds)

    by_memory = {kept("none"): "none"}
    combined: list[str] = []
    for module in (*_CHEAP, *_EXPENSIVE):
        with suppress(PpsimError):
            by_memory.setdefault(kept(module), module)
            if module in _CHEAP:
                combined.append(module)
                joined = "+".join(name for name in MODULES if name in combined)
                by_memory.setdefault(kept(joined), joined)
    return list(by_memory.values())[1:]


def _zero_stages(job: "Job") -> tuple[int, ...]:
    """Return the stages that frameworks have with and without a pipeline.

    DeepSpeed's PipelineEngine rejects ZeRO 2 and 3, Megatron-FSDP shards without a pipeline, and TorchTitan's
    pipeline does not free the gathered parameters.
    """
    layout, execution = job.layout, job.execution
    if layout.dp * layout.cp == 1 or job.optimizer.name != "adam":
        return ()
    if job.fully_shard:
        return (2, 3) if layout.pp == 1 else ()
    return (0, 1, 2, 3) if layout.pp == 1 and execution.cuda_graphs == "none" else (0, 1)


def _instances(job: "Job") -> tuple[int, ...]:
    """Optimizer state sharded by all data-parallel ranks, or by the ranks of an innermost network domain."""
    layout, domain = job.layout, job.place.domain_sizes[0]
    replicas, per_domain = layout.dp * layout.cp, (domain or layout.num_devices) // (layout.tp * layout.cp)
    per_domain *= layout.cp
    is_divided = job.optimizer.zero_stage and 1 < per_domain < replicas and replicas % per_domain == 0
    return (1, replicas // per_domain) if is_divided else (1,)


def _dispatchers(job: "Job") -> tuple[str, ...]:
    if job.layout.ep == 1 or job.execution.fused_experts:
        return ()
    return ("alltoall", "deepep") if runs_deepep(job.cluster.device.name) else ("alltoall",)


def _orders(job: "Job") -> tuple[str, ...]:
    layout = job.layout
    return ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp") if layout.pp > 1 and layout.dp > 1 else ()


def _graphs(job: "Job") -> tuple[str, ...]:
    if job.cluster.device.generation.startswith("CDNA"):
        return ()
    return ("none", "attn+moe_router+moe_preprocess" if job.model.has_experts else "layer")


def _offload_modules(job: "Job") -> tuple[str, ...]:
    is_moved = job.offload or job.execution.cuda_graphs != "none"
    return () if is_moved else ("", *(_OFFLOADED if job.model.has_experts else _OFFLOADED[:3]))


def _offloaded(job: "Job") -> tuple[float, ...]:
    return () if job.offload_modules or job.execution.cuda_graphs != "none" else (0.0, 0.25, 0.5)


def _exchanges(job: "Job") -> tuple[str, ...]:
    """torch's context parallelism has no exchange of heads."""
    if job.layout.cp == 1:
        return ()
    return ("ring", "all-gather") if job.fully_shard else ("ring", "all-to-all", "all-gather")


def _expert_overlap(job: "Job") -> tuple[Any, ...]:
    return (0, "megatron") if job.layout.ep > 1 else ()


@dataclass(frozen=True)
class Switch:
    """An option of a job with the settings to try; the job's own setting may be among them.

    - `stacks`: "all", "current" (no software of past years), "megatron" (current, Megatron-Core), "torch" (FSDP2).
    - `saves_memory`: settings that differ from `fastest` save memory, and never time.
    """

    settings: "Callable[[Job], Iterable[Any]]"
    stacks: str = "all"
    fastest: Any = None
    saves_memory: bool = False


SWITCHES = {
    "micro_batch": Switch(lambda job: (2 * job.micro_batch, job.micro_batch // 2)),
    "tp": Switch(_neighbours("tp")),
    "cp": Switch(_context_parallel),
    "pp": Switch(_neighbours("pp")),
    "ep": Switch(lambda job: _neighbours("ep")(job) if job.model.has_experts else ()),
    "etp": Switch(_expert_tensor_parallel, "megatron"),
    "recompute": Switch(lambda job: ("none", *recomputed_modules(job), "full"), fastest="none", saves_memory=True),
    "zero": Switch(_zero_stages),
    "num_distributed_optimizer_instances": Switch(_instances, "current"),
    "offload_modules": Switch(_offload_modules, "megatron", fastest="", saves_memory=True),
    "offload": Switch(_offloaded, "megatron", fastest=0.0, saves_memory=True),
    "optimizer_offload_fraction": Switch(lambda job: (0.0, 1.0), "megatron", fastest=0.0, saves_memory=True),
    "moe_dispatcher": Switch(_dispatchers, "current"),
    "overlap_ep": Switch(_expert_overlap, "megatron"),
    "order": Switch(_orders, "megatron"),
    "context": Switch(_exchanges, "current"),
    "sequence_parallel": Switch(_sequence_parallel, "current"),
    "cuda_graphs": Switch(_graphs, "megatron"),
    "compile": Switch(lambda job: (True, False), "torch"),
    "overlap_grad_reduce": Switch(lambda job: (True,), "current"),
    "overlap_param_gather": Switch(lambda job: (True,) if job.optimizer.zero_stage else (), "current"),
    "attention": Switch(lambda job: ("fused",) if job.execution.attention == "unfused" else (), "current"),
    "cross_entropy": Switch(lambda job: ("fused",), "megatron"),
    "gradient_accumulation_fusion": Switch(lambda job: (True,), "megatron"),
    "moe_permute_fusion": Switch(lambda job: (True,) if job.model.has_experts else (), "megatron"),
}
"""Options that a user of a stack can switch. Schedules and layers per stage are in `changes`."""

SCHEDULES = {
    1: ("1f1b", "zb-h1", "zb-h2"),
    2: ("interleaved-1f1b", "zbv-fixed", "interleaved-zb"),
    4: ("interleaved-1f1b",),
}
"""Schedules by stages per rank: available in runtimes, and built without a search."""

_TO_MEMORY = {1: ("zb-auto",), 2: ("v-flex",)}
"""Schedules whose search respects the memory limit."""

_MOST_SEARCHED = 4_000
"""Number of actions up to which a search of `_TO_MEMORY` takes about 1 s."""


def can_switch(job: "Job", name: str) -> bool:
    """Return whether the stack of a job has an option of `SWITCHES`."""
    is_current = not stacks()[base_of(job.stack)].ended
    return SWITCHES[name].stacks in (
        "all",
        *(["current", "torch" if _runs_torch(job) else "megatron"] if is_current else []),
    )


def change_text(change: Change) -> str:
    """Return a change as options of a command.

    >>> change_text({"tp": 2, "dp": 4}), change_text({"sequence_parallel": False})
    ('--tp 2 --dp 4', '--no-sequence-parallel')
    """
    return " ".join(
        text for name, setting in change.items() for text in command_arguments(PLAN_OPTIONS[name], setting)
    )


def setting_of(name: str, text: str) -> Any:
    """Read the text of an option's setting.

    >>> setting_of("etp", "2"), setting_of("compile", "False"), setting_of("order", "tp-cp-ep-pp-dp")
    (2, False, 'tp-cp-ep-pp-dp')
    """
    kinds = PLAN_OPTIONS[name].kinds
    if bool in kinds:
        return text == "True"
    for kind in {int, float}.intersection(kinds):
        with suppress(ValueError):
            return kind(text)
    return text


def settings_of(job: "Job") -> dict[str, Any]:
    """Return the settings of a job by option."""
    return option_values(PLAN_OPTIONS, SimpleNamespace(job=job)) | {"etp": job.layout.expert_tp}


def changed_job(job: "Job", change: Change, **fields: Any) -> "Job":
    """Return the job with other settings and fields; raises `ConfigError` for an impossible combination."""
    settings = dict(change)
    if "tp" in change:
        keeps = job.execution.sequence_parallel or job.layout.tp == 1
        settings.setdefault("sequence_parallel", keeps)
    parts: dict[str, dict[str, Any]] = {}
    if hidden := settings.pop("overlap_tp", None):
        from ppsim.model.execution import hidden_tp_of  # heavy import

        parts["execution"] = dict(hidden_tp_of(hidden))
    for name, setting in settings.items():
        holder, _, field = (PLAN_OPTIONS[name].option.field or "").removeprefix("job.").rpartition(".")
        parts.setdefault(holder, {})[field] = setting
    own = fields | parts.pop("", {}) | ({"stage_plans": ()} if "recompute" in change else {})
    if "moe_dispatcher" in change:
        parts["execution"]["dispatcher_sms"] = None
    return replace(job, **own, **{holder: replace(getattr(job, holder), **new) for holder, new in parts.items()})


def changed_plan(plan: Plan, change: Change) -> Plan:
    """Return the plan with other settings; raises `ConfigError` for an impossible combination."""
    of_plan = {name: setting for name, setting in change.items() if name in _OF_PLANS}
    of_job = {name: setting for name, setting in change.items() if name not in _OF_PLANS}
    if {"schedule", "pp"} & change.keys():
        of_plan |= {"split": plan.split if isinstance(plan.split, str) else None}
    if "schedule" in change:
        of_plan |= {"group_size": None, "num_slices": None}
    if plan.job is not None and of_job:
        of_plan |= {"job": changed_job(plan.job, of_job), "pp": change.get("pp", plan.pp)}
    return replace(plan, **of_plan)


_OF_PLANS = ("schedule", "vpp", "gradient_accumulation_steps", "split")


def changes_of_job(job: "Job", *, saving: bool = False) -> Iterator[Change]:
    """Yield single switches; with `saving`, also those that save memory, and no time."""
    own = settings_of(job)
    for name, switch in SWITCHES.items():
        if not can_switch(job, name) or (switch.saves_memory and not saving and own[name] == switch.fastest):
            continue
        for setting in switch.settings(job):
            if setting == own[name] or (setting == 0 and name in _SIZES):
                continue
            if name not in ("tp", "cp", "pp"):
                yield {name: setting}
            elif (replicas := job.layout.dp * own[name]) % setting == 0:
                yield {name: setting, "dp": replicas // setting}


_SIZES = ("micro_batch", "tp", "cp", "pp", "ep", "etp")


def changes(plan: Plan, *, saving: bool = False) -> Iterator[Change]:
    """Yield single changes of a plan; with `saving`, also those that save memory, and no time."""
    trainer, vpp = plan.trainer, plan.vpp or 1
    is_limited = trainer != "" and is_run_by(trainer, plan.schedule_name)
    for stages, names in SCHEDULES.items():
        is_searched = saving and 3 * plan.pp * stages * plan.num_microbatches <= _MOST_SEARCHED
        for name in (*names, *(_TO_MEMORY.get(stages, ()) if is_searched else ())):
            is_other = (name, stages) != (plan.schedule_name, vpp) and plan.pp > 1
            if is_other and (not is_limited or is_run_by(trainer, name)):
                yield {"schedule": name} | ({"vpp": stages} if stages != vpp else {})
    if plan.gradient_accumulation_steps > 1 and plan.pp > 1:
        yield {"gradient_accumulation_steps": 1}
    if plan.job is None or plan.measured is not None:
        return
    if plan.pp * vpp > 1 and plan.layer_split_rule != "auto":
        yield {"split": "auto"}
    for change in changes_of_job(plan.job, saving=saving):
        if "pp" in change and plan.stragglers:
            continue
        yield {**change, **(_schedule_of_overlap(plan, change) if "overlap_ep" in change else {})}


def _schedule_of_overlap(plan: Plan, change: Change) -> Change:
    """Overlapped experts need pairs of a forward and a backward pass, and several stages per rank in a pipeline."""
    vpp = plan.vpp or 1
    if not change["overlap_ep"]:
        return {"schedule": "interleaved-1f1b" if vpp > 1 else "1f1b"}
    return {"schedule": "combined-1f1b"} | ({"vpp": 2} if plan.pp > 1 and vpp == 1 else {})


def projected_changes(
    plan: Plan, project: Callable[[Plan], Projected], *, is_too_large: bool = False, together: Change | None = None
) -> Iterator[tuple[str, Projected]]:
    """Project each change, together with other settings; those that cannot be projected are skipped."""
    base = changed_plan(plan, together) if together else plan
    for change in changes(base, saving=is_too_large):
        if not together or not together.keys() & change.keys():
            with suppress(PpsimError):
                yield change_text({**(together or {}), **change}), project(changed_plan(base, change))
