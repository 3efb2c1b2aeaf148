"""The search space: the fixed inputs, the ranges, and all configurations that they allow."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options
from ppsim.catalog.build import find, schedule_named
from ppsim.costs.job import Job
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.parameters import require_division
from ppsim.model.recompute import BY_OPERATORS, Recompute
from ppsim.parallel.layer_partition import Split, why_no_split, without_search
from ppsim.parallel.layout import Layout, layout_on, require_devices
from ppsim.parallel.sizes import ParallelSizes
from ppsim.projection.changes import (
    LEAST_TOKENS,
    NO_CHANGE,
    PLAN_OPTIONS,
    SWITCHES,
    Change,
    changed_job,
    setting_of,
    settings_of,
)
from ppsim.projection.options import GPT, Runtime
from ppsim.projection.plan import AUTO, Plan, memory_limit_of
from ppsim.simulation.verdict import MemoryLimit, Word
from ppsim.trainers.stacks import base_of, stack_of
from ppsim.trainers.write_schedule import is_run_by
from ppsim.tuning.options import SCHEDULES, RangeOptions

_DEFAULTS = {name: word.option.default for name, word in declared_options(RangeOptions).items()}
_KEY = re.compile(
    r"tp(\d+) cp(\d+) ep(\d+) dp(\d+) pp(\d+) vpp(\d+) mb(\d+) (\S+) (\S+) (auto|even|searched)(?: zero(\d))?"
    r"((?: \w+=\S*)*)"
)
_SIZES = (1, 2, 4, 8)
_IN_KEY = ("tp", "cp", "ep", "dp", "pp", "vpp")
_MOST_EXPERT_RANKS = 64
_MOST_ZERO = 3
_WITH_ZERO_3 = ("plain", "megatron-bridge", "primus")
"""Stacks that can shard parameters (Megatron-FSDP) instead of their default, the distributed optimizer."""
PLANNED: Recompute = "auto"
"""The `recompute` value of a configuration with a plan per stage (`--plan auto`)."""


@dataclass(frozen=True, order=True)
class Configuration:
    """A parallel configuration; `dp` is the number of devices / (tp · cp · pp).

    - `split`: "auto" gives ranks equal work, "searched" is `--split auto` of `ppsim project`.
    - `switched`: further options that differ from the job of the search, as NAME=SETTING, sorted.
    """

    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    vpp: int
    micro_batch: int
    recompute: Recompute
    schedule: str
    split: Literal["auto", "even", "searched"]
    zero: int = 1
    switched: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """For example `tp8 cp1 ep1 dp8 pp16 vpp8 mb1 none interleaved-1f1b auto`.

        A ZeRO stage other than 1 and further options come last: `… 1f1b auto zero3 moe_dispatcher=alltoall`.
        """
        sizes = " ".join(f"{name}{getattr(self, name)}" for name in _IN_KEY)
        zero = "" if self.zero == 1 else f" zero{self.zero}"
        return f"{sizes} mb{self.micro_batch} {self.recompute} {self.schedule} {self.split}{zero}" + "".join(
            f" {text}" for text in self.switched
        )

    @classmethod
    def of_key(cls, key: str) -> "Configuration | None":
        """Return None for other texts.

        >>> Configuration.of_key("tp8 cp1 ep1 dp8 pp16 vpp8 mb1 none interleaved-1f1b auto zero3").zero
        3
        """
        if not (match := _KEY.fullmatch(key)):
            return None
        *sizes, recompute, schedule, split, zero, switched = match.groups()
        fields_of_key: Any = (*map(int, sizes), recompute, schedule, split, int(zero or 1), tuple(switched.split()))
        return cls(*fields_of_key)

    @classmethod
    def of_plan(cls, plan: Plan, question: "SearchProblem") -> "Configuration | None":
        """Return None for a plan of another number of GPUs or with a plan of each stage."""
        job, vpp = plan.job, plan.stages_per_rank
        if job is None or job.stage_plans or job.layout.num_devices != question.num_gpus:
            return None
        sizes = {name: getattr(job.layout, name) for name in _IN_KEY if name != "vpp"}
        configuration = cls(
            **sizes, vpp=vpp, micro_batch=job.micro_batch, recompute=job.execution.recompute,
            schedule=plan.schedule_name, split="even" if plan.layer_split_rule == "even" else "searched",
            zero=job.optimizer.zero_stage,
        )  # fmt: skip
        settings = settings_of(job)
        switches = {name: settings[name] for name in SWITCHES if name not in _FIELDS}
        return configuration.changed(switches, question.own_settings(configuration))

    @property
    def num_gpus(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def switches(self) -> dict[str, Any]:
        """Further options with their settings."""
        pairs = (text.split("=", 1) for text in self.switched)
        return {name: setting_of(name, text) for name, text in pairs}

    def changed(self, change: Change, own: Mapping[str, Any]) -> "Configuration":
        """Return the configuration with other options; `own` are the settings of the job of the search."""
        in_fields = {name: change[name] for name in change if name in _FIELDS}
        switches = self.switches | {name: change[name] for name in change if name not in _FIELDS}
        switched = tuple(sorted(f"{name}={setting}" for name, setting in switches.items() if setting != own[name]))
        return replace(self, **in_fields, switched=switched)


_FIELDS = {each.name for each in fields(Configuration)}


@dataclass(frozen=True, kw_only=True)
class SearchProblem:
    """Fixed inputs of a search: model, cluster, batch and everything in `job` that `Configuration` lacks.

    - `memory_limit_bytes`: usable memory per device; None: by the device's memory.
    - `sequence_parallel`: None means on if tp > 1; `etp`: None means tp.
    - `overheads`: (field of `Plan`, value) pairs from a calibration.
    - `by_pipeline`: options of the stack (`zero`, and fields of `Job`) that depend on whether pp is above 1.
    - `typed`: options of the user or of the file, which the stack does not set.
    - `trainer`: configurations that it runs rank first, "": all rank alike; `names_trainer`: the user named it.
    """

    job: Job
    num_gpus: int
    memory_limit_bytes: float | None = None
    sequence_parallel: bool | None = None
    etp: int | None = None
    runtime: Runtime = "torch"
    overheads: tuple[tuple[str, Any], ...] = ()
    calibration_file: str | None = None
    by_pipeline: Mapping[bool, Mapping[str, Any]] = field(default_factory=dict)
    typed: Mapping[str, Any] = field(default_factory=dict)
    trainer: str = ""
    names_trainer: bool = False

    def job_for(self, pp: int) -> Job:
        """Return `job` with what its stack sets with or without a pipeline."""
        changes = {name: setting for name, setting in self.by_pipeline.get(pp > 1, {}).items() if name != "zero"}
        return replace(self.job, **changes) if changes else self.job

    def zero_for(self, pp: int) -> int:
        return int(self.by_pipeline.get(pp > 1, {}).get("zero", self.job.optimizer.zero_stage))

    def is_elsewhere(self, configuration: Configuration) -> bool:
        """Whether only other trainers run the schedule."""
        return self.trainer != "" and configuration.pp > 1 and not is_run_by(self.trainer, configuration.schedule)

    @cached_property
    def memory_limit(self) -> MemoryLimit:
        given = self.memory_limit_bytes
        return memory_limit_of(self.job) if given is None else MemoryLimit.given(given)

    @cached_property
    def _limits(self) -> dict[bool, MemoryLimit]:
        given = self.memory_limit_bytes
        return {
            has_graphs: memory_limit_of(self.job, "layer" if has_graphs else "none")
            if given is None
            else self.memory_limit
            for has_graphs in (False, True)
        }

    def verdict(self, configuration: Configuration, peak_bytes: float) -> Word:
        """CUDA graphs need more memory to be free."""
        graphs = self.job.execution.cuda_graphs
        if configuration.switched:
            graphs = configuration.switches.get("cuda_graphs", graphs)
        return self._limits[graphs != "none"].word(peak_bytes)

    @property
    def memory_bound_bytes(self) -> float:
        return self.memory_limit.usable_bytes

    def job_of(self, configuration: Configuration) -> Job:
        """Raises `ConfigError` for an invalid combination."""
        return self.job_with(
            {name: getattr(configuration, name) for name in ("tp", "cp", "ep", "pp")},
            configuration.micro_batch, configuration.recompute, configuration.zero, configuration.switches,
        )  # fmt: skip

    def job_with(
        self, sizes: dict[str, int], micro_batch: int, recompute: Recompute, zero: int, switches: Change = NO_CHANGE
    ) -> Job:
        """Raises `ConfigError` for an invalid combination."""
        job = self.job_for(sizes["pp"])
        others = {name: setting for name, setting in switches.items() if name not in ("etp", "order")}
        settings = self._stack_changes(recompute, switches) | {
            "recompute": "none" if recompute == PLANNED else recompute,
            "sequence_parallel": self.sequence_parallel is not False,
            "zero": zero,
            "micro_batch": micro_batch,
        }
        return changed_job(job, settings | others, layout=self.layout(sizes, switches))

    @cached_property
    def _known_changes(self) -> dict[Any, dict[str, Any]]:
        return {}

    def _stack_changes(self, recompute: Recompute, switches: Change) -> dict[str, Any]:
        """Return settings of the stack that recomputation and switched options cancel, or bring."""
        key = recompute, tuple(switches.items())
        if key not in self._known_changes:
            conditions = {"recompute": None if recompute == PLANNED else recompute, **switches}
            before, after = (
                stack_of(
                    self.job.stack, {**self.typed, **given}, device=self.job.cluster.device.name,
                    has_experts=self.job.model.has_experts,
                ).options
                for given in ({}, conditions)
            )  # fmt: skip
            self._known_changes[key] = {
                name: after.get(name, PLAN_OPTIONS[name].option.default)
                for name in before.keys() | after.keys()
                if before.get(name) != after.get(name) and name not in (*self.typed, *conditions)
            }
        return self._known_changes[key]

    def layout(self, sizes: Mapping[str, int], switches: Change = NO_CHANGE) -> Layout:
        """Raises `ConfigError` for sizes that do not divide the GPUs."""
        order, etp = switches.get("order", self.job.layout.order), switches.get("etp", self.etp)
        biased = self.job.model.has_biased_experts
        if etp is None and sizes["tp"] > 1 and (sizes["ep"] > 1 or biased):
            dense = layout_on(self.num_gpus, **{**sizes, "ep": 1}, order=order)
            etp = 1 if dense.why_single_expert_ranks(sizes["ep"], biased=biased) else None
        return layout_on(self.num_gpus, **sizes, order=order, etp=etp)

    def own_settings(self, configuration: Configuration) -> dict[str, Any]:
        """Settings without switches, by option."""
        sp = self.sequence_parallel
        return settings_of(self.job_for(configuration.pp)) | {
            "etp": self.layout({name: getattr(configuration, name) for name in ("tp", "cp", "ep", "pp")}).expert_tp,
            "sequence_parallel": configuration.tp > 1 and sp is not False,
        }

    def plan_of(self, configuration: Configuration, *, job: Job | None = None, split: Split | None = None) -> Plan:
        is_planned = configuration.recompute == PLANNED
        return Plan(
            pp=configuration.pp,
            vpp=configuration.vpp,
            schedule=configuration.schedule,
            job=job or self.job_of(configuration),
            split=self._split(configuration, split),
            searches_stages=is_planned,
            runtime=self.runtime,
            memory_limit_bytes=self.memory_limit_bytes,
            **dict(self.overheads),
        )

    @staticmethod
    def _split(configuration: Configuration, split: Split | None) -> Split | None:
        if configuration.recompute == PLANNED:
            return None
        if configuration.split == "searched":
            return "auto"
        return without_search(configuration.split) if split is None else split

    def to_json(self) -> dict[str, Any]:
        job, execution = self.job, self.job.execution
        named = {
            "model": job.model_name,
            "num_layers": len(job.model.layers),
            "cluster": job.cluster.name,
            "gpus": self.num_gpus,
            "global_batch": job.global_batch,
            "sequence_length": job.length,
            "order": job.layout.order,
            "dtype": execution.dtype,
            "sequence_parallel": self.sequence_parallel,
            "optimizer": job.optimizer.name,
            "zero_stage": job.optimizer.zero_stage,
            "update": job.update,
            "overlap_grad_reduce": job.overlap_grad_reduce,
            "overlap_param_gather": job.overlap_param_gather,
            **{f"{'with' if key else 'without'}_pipeline": dict(one) for key, one in self.by_pipeline.items()},
            "runtime": self.runtime,
            "memory_limit_bytes": self.memory_bound_bytes,
        }
        return {
            **named,
            **({} if self.etp is None else {"etp": self.etp}),
            **({"trainer": self.trainer} if self.trainer else {}),
            **_unusual(job, named),
            **({"overheads": dict(self.overheads)} if self.overheads else {}),
        }


_DERIVED = ("name", "precision", "gradient_bytes", "vocab_multiple", "profile", "stage_plans")
"""Fields of a job that follow from other fields, or that a search does not take."""


def _unusual(job: Job, named: Collection[str]) -> dict[str, Any]:
    """Return fields that differ from their defaults, except `named` fields and those of `Configuration`."""
    usual = {*named, *_DERIVED, *(one.name for one in fields(Configuration))}
    unusual = {
        one.name: value
        for holder in (job.execution, job, job.optimizer, job.offload_rules)
        for one in fields(holder)
        if one.compare and one.default is not MISSING and one.name not in usual
        if (value := getattr(holder, one.name)) != one.default
    }
    sizes = {"hidden": job.model.hidden_size, "vocab": job.model.vocab_size} if job.model_name == GPT else {}
    return unusual | sizes


_OF_USERS = ("fixed", "start")


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The ranges that are searched. None means for `dp` no restriction, for `etp` the question's own.

    `zero` None: see `zero_stages`.

    `fixed` are the options that the user gave: ranges are not exceeded, other options are not switched. `start` is
    the plan of the user's configuration file.

    Raises `ConfigError` for an empty range, an impossible value, and schedules with several model replicas or
    slices.
    """

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    pp: tuple[int, ...]
    vpp: tuple[int, ...]
    micro_batch: tuple[int, ...]
    dp: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] = _DEFAULTS["recompute"]
    schedule: tuple[str, ...] = _DEFAULTS["schedule"]
    split: tuple[Literal["auto", "even"], ...] = _DEFAULTS["split"]
    fixed: frozenset[str] = frozenset()
    start: Configuration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", tuple(dict.fromkeys(map(schedule_named, self.schedule))))
        for one in fields(self):
            values = getattr(self, one.name) if one.name not in _OF_USERS else None
            if values is not None and not values:
                raise ConfigError(f"there must be at least one {one.name} to try")
            least = 0 if one.name == "zero" else 1
            if wrong := [value for value in values or () if isinstance(value, int) and value < least]:
                raise ConfigError(f"{one.name} must be at least {least}: got {wrong[0]}")
        if wrong := [stage for stage in self.zero or () if stage > _MOST_ZERO]:
            raise ConfigError(f"--zero takes stages 0 to {_MOST_ZERO}: got {wrong[0]} (nearest: {_MOST_ZERO})")
        for name in self.patterns:
            entry = find(name)
            if entry.num_replicas > 1 or entry.takes("num_slices"):
                what = (
                    "holds two replicas of the model" if entry.num_replicas > 1 else "cuts microbatches into slices"
                )
                raise ConfigError(
                    f"{name} {what}, which tune does not search; ppsim project --schedule {name} does"
                )
        if not self.patterns:
            raise ConfigError(
                f"auto improves on the best of other schedules: give some too, as {SCHEDULES[0]},auto"
            )

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self.schedule if name != AUTO)

    def allows(self, configuration: Configuration) -> bool:
        """Return whether a configuration is in the ranges of the user, and switches no option of the user."""
        switches = configuration.switches
        if any(switches[name] not in (getattr(self, name, None) or ()) for name in self.fixed & switches.keys()):
            return False
        sizes = vars(configuration) | {"split": "even" if configuration.split == "even" else "auto"}
        ranges = self.fixed & _FIELDS - ({"recompute"} if configuration.recompute == PLANNED else set())
        return all(sizes[name] in (getattr(self, name) or ()) for name in ranges)

    def to_json(self) -> dict[str, Any]:
        named = {name: values for name, values in asdict(self).items() if name not in _OF_USERS}
        return {name: values and list(values) for name, values in named.items() if values or name != "etp"}


def space_for(
    question: SearchProblem, *, fixed: Iterable[str] = (), start: Configuration | None = None, **given: Any
) -> SearchSpace:
    """Missing or None ranges get the defaults of `RangeOptions`, with the sizes of `start`.

    tp must also fit in the innermost network domain. If `--overlap-ep` names an order, ep is above 1 and the
    schedules have fused F/B pairs. With FSDP2, models without experts also try `selective-op`.
    """
    model, num_gpus, length = question.job.model, question.num_gpus, question.job.length
    require_devices(num_gpus)
    domain = question.job.cluster.domain_sizes(num_gpus)[0] or num_gpus
    experts = [layer.ffn.num_experts for layer in model.kinds if isinstance(layer.ffn, MixtureOfExperts)]
    divisors = [size for size in range(1, num_gpus + 1) if num_gpus % size == 0]
    powers = [2**power for power in range(_MOST_EXPERT_RANKS.bit_length())]
    defaults: dict[str, Any] = {
        "tp": [size for size in divisors if size <= domain and _divides(question, size)],
        "cp": [size for size in _SIZES if length % size == 0 and (size == 1 or length // size >= LEAST_TOKENS)],
        "ep": [size for size in powers if not experts or all(count % size == 0 for count in experts)],
        "pp": [size for size in divisors if size <= len(model.layers) + 2],
        "vpp": _DEFAULTS["vpp"],
        "micro_batch": _DEFAULTS["micro_batch"],
    }
    if question.job.fully_shard and not experts:
        defaults["recompute"] = ("none", BY_OPERATORS, "full")
    if not experts:
        defaults["ep"] = [1]
    if question.job.execution.ep_order:
        defaults["schedule"] = ("combined-1f1b", "dualpipev")
        defaults["ep"] = [size for size in defaults["ep"] if size > 1]
    for name in ("tp", "cp", "ep", "pp", "micro_batch") if start else ():
        defaults[name] = [*defaults[name], getattr(start, name)]
    ranges = {name: values for name, values in given.items() if values is not None}
    chosen = {name: values and tuple(dict.fromkeys(values)) for name, values in (defaults | ranges).items()}
    return SearchSpace(**chosen, fixed=frozenset([*fixed, *ranges]), start=start)


def zero_stages(question: SearchProblem, space: SearchSpace, pp: int) -> tuple[int, ...]:
    """The default is the job's own stage.

    Without a pipeline, ZeRO 3 is also tried if the job has Megatron-LM's distributed optimizer (ZeRO 1), because
    Megatron-FSDP can shard the same job. With a pipeline, DeepSpeed's PipelineEngine rejects ZeRO 2 and 3, and
    TorchTitan does not free the gathered parameters.
    """
    if space.zero is not None:
        return space.zero
    job = question.job
    own, execution = question.zero_for(pp), job.execution
    is_sharded = own == 1 and job.optimizer.name == "adam" and not job.fully_shard
    may_shard = is_sharded and base_of(job.stack) in _WITH_ZERO_3 and execution.cuda_graphs == "none"
    return (own, 3) if may_shard and pp == 1 else (own,)


def _divides(question: SearchProblem, tp: int) -> bool:
    try:
        require_division(question.job.model, ParallelSizes(tp=tp))
    except ConfigError:
        return False
    return True


class _Refusals:
    """Remembers the rejection that came after most passed checks; in a tie, the one nearest to a valid value."""

    def __init__(self) -> None:
        self.sentence, self._rank = "", (-1, 0)

    def note(self, depth: int, reason: object, *, off_by: int = 0) -> None:
        if (depth, -off_by) > self._rank:
            self.sentence, self._rank = str(reason), (depth, -off_by)


def configurations(question: SearchProblem, space: SearchSpace) -> list[Configuration]:
    """Return all configurations that model, devices, batch and schedules allow, before any memory check.

    With one pipeline rank, schedules do not differ, so only the first possible one is used. Raises `ConfigError` if
    there is no configuration.
    """
    refusals = _Refusals()
    listed = list(_configurations(question, space, refusals))
    if not listed:
        raise ConfigError(f"no configuration is possible: {refusals.sentence}")
    return listed


def _configurations(question: SearchProblem, space: SearchSpace, refusals: _Refusals) -> Iterator[Configuration]:
    num_layers, length = len(question.job.model.layers), question.job.length
    for pp, tp, cp, ep, etp in product(space.pp, space.tp, space.cp, space.ep, space.etp or (question.etp,)):
        sizes = {"tp": tp, "cp": cp, "ep": ep, "pp": pp}
        switches = {} if etp == question.etp else {"etp": etp}
        try:
            dp = question.layout(sizes, switches).dp
        except ConfigError as error:
            refusals.note(0 if question.num_gpus % (tp * cp * pp) else 1, error)
            continue
        if space.dp is not None and dp not in space.dp:
            refusals.note(
                1,
                f"dp is what tp {tp} · cp {cp} · pp {pp} leave of {question.num_gpus} devices: got "
                f"{', '.join(map(str, space.dp))} (nearest: {dp})",
                off_by=min(abs(one - dp) for one in space.dp),
            )
            continue
        if length % cp:
            refusals.note(2, f"cp must divide the sequence: got {cp} with {length}")
            continue
        for micro_batch in space.micro_batch:
            jobs: dict[tuple[Recompute, int], Job] = {}
            for recompute, zero in product(space.recompute, zero_stages(question, space, pp)):
                try:
                    jobs[recompute, zero] = question.job_with(sizes, micro_batch, recompute, zero, switches)
                except ConfigError as error:
                    refusals.note(2, error, off_by=micro_batch * dp)
            if not jobs:
                continue
            microbatches = next(iter(jobs.values())).num_microbatches
            for vpp, name in _schedules(space, pp, microbatches, num_layers, refusals):
                for (recompute, zero), split in product(jobs, sorted(space.split)):
                    if recompute == BY_OPERATORS and find(name).splits_backward:
                        continue  # torch's selective checkpoint supports a single backward pass only
                    yield Configuration(
                        tp, cp, ep, dp, pp, vpp, micro_batch, recompute, name, split, zero,
                        tuple(f"{option}={setting}" for option, setting in switches.items()),
                    )  # fmt: skip


def _schedules(
    space: SearchSpace, pp: int, microbatches: int, num_layers: int, refusals: _Refusals
) -> Iterator[tuple[int, str]]:
    for vpp, name in product(space.vpp, space.patterns):
        if reason := find(name).why_not(pp=pp, vpp=vpp, microbatches=microbatches):
            refusals.note(3, reason)
            continue
        if reason := why_no_split("even", num_layers, pp * vpp):
            refusals.note(4, reason)
            continue
        yield vpp, name
        if pp == 1:
            return
