"""Conversion of a plan into a trainer's configuration."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import CannotRun, ConfigError, PpsimError
from ppsim.base.option_declarations import command_arguments, declared_options, given_options, option_values
from ppsim.catalog.build import find
from ppsim.costs.job import Job
from ppsim.costs.similar_jobs import scale_of
from ppsim.machine.cluster_files import packaged_clusters
from ppsim.parallel.layer_partition import MegatronSplit, even_split
from ppsim.projection.options import PlanOptions
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.plan_description import sizes_of
from ppsim.projection.project import project
from ppsim.projection.projection import Projection
from ppsim.simulation.stage_costs import OVERHEADS
from ppsim.trainers import ConfigTarget
from ppsim.trainers.megatron.write_model import model_arguments, without_source
from ppsim.trainers.megatron.write_schedule import layout_string, parse_layout
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.write_config import WrittenPlan, files_of

if TYPE_CHECKING:
    from ppsim.tuning.search import TuneResult

WORDS = declared_options(PlanOptions)
MODEL = tuple(
    name for name, word in WORDS.items()
    if name == "layers" or (word.option.section == "model" and word.option.field is None)
)  # fmt: skip
"""Options of the model's sizes, its configuration and its recipe."""
_MEASURED = ("forward_ms", "backward_input_ms", "backward_weight_ms", "transfer_ms", "activation_memory")
RULE = tuple(name for name, word in WORDS.items() if (word.option.field or "").startswith("split."))
"""Options of Megatron-LM's rule of layers per stage, redundant with split."""
_SAID_OTHERWISE = ("dp", "microbatches", *RULE)
"""Options that are redundant with gpus, global_batch and split."""
_OVERHEADS = (
    *OVERHEADS, "message_overhead_s", "pass_factors", "action_spread", "rank_spread", "bandwidth_bytes_per_s",
)  # fmt: skip
_TYPED = (
    "cluster", "profile", "lengths", "calibration", "launch_ms", "memory_limit", "stage_plan", "run", *_MEASURED,
)  # fmt: skip
"""Options returned as the user typed them: file names, and numbers that a plan contains in other units."""


def job_of(plan: Plan) -> Job:
    if plan.job is None:
        raise ConfigError("a trainer's configuration has a model: give --model")
    return plan.job


def options_of_plan(plan: Plan, split: Sequence[int], *, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of a plan with a job by name, None if not set.

    `split` are the layers per stage of the plan's projection. `given` are the options as the user typed them.
    """
    job, values = job_of(plan), option_values(WORDS, plan)
    execution, layout = job.execution, _layout(plan)
    options = (
        values | dict.fromkeys((*_SAID_OTHERWISE, *MODEL)) | given_options({name: values[name] for name in RULE})
    )
    options |= given_options(sizes_of(job)) | _measured(plan)
    options |= {
        "model": job.model_name,
        "cluster": job.cluster.name,
        "split": layout or list(split),
        "overlap_tp": ",".join(map(str, _tp_overlap(job))) or None,
        "launch_ms": None if job.launch_s is None else _milliseconds(job.launch_s),
        "stragglers": dict(plan.stragglers) or None,
        "sequence_parallel": execution.sequence_parallel if job.layout.tp > 1 else None,
        "profile": None if job.profile is None else job.profile.name,
        **_resolved(plan, job),
    }
    if given.get("calibration") is not None:
        options["launch_ms"] = None  # overheads include launches
        if job.cluster.name not in packaged_clusters():
            options["cluster"] = None  # the calibration contains it
    typed = given_options({name: given.get(name) for name in _TYPED})
    if typed.get("stage_plan") == AUTO:  # no option can express its result
        del typed["stage_plan"]
    return options | typed


def marks_of(plan: Plan, split: Sequence[int] | None = None) -> dict[str, Any]:
    """Return a comparable value per option: two plans differ in the options with different values."""
    job = job_of(plan)
    marks = option_values(WORDS, plan) | dict.fromkeys((*_SAID_OTHERWISE, *MODEL, *_MEASURED))
    return marks | {
        "model": (without_source(job.model.with_fine_tuning(None)), scale_of(job)),
        "cluster": job.cluster,
        "split": _stages(plan, job, split),
        "overlap_tp": _tp_overlap(job),
        "launch_ms": job.launch_s,
        "profile": job.profile,
        "stage_plan": job.stage_plans,
        "forward_ms": plan.measured,
        "calibration": (*(getattr(plan, name) for name in _OVERHEADS), job.cluster.constants),
        **_resolved(plan, job),
    }


_IN_MARKS = ("model", "model_name", "sequence_length", "layout", "execution", "weight_cache")
"""Fields of a job with an option for each value."""
_OF_STAGES = "the plan of each stage (write it with -o plan.toml, and give --plan plan.toml)"


def inexpressible_differences(plan: Plan, read: Plan) -> list[str]:
    """Return the differences in fields that can be set in Python only."""
    differences = []
    for one, other, said in (
        (plan, read, ("job", "split", "vpp", "schedule", "num_slices", "search_s", "seed")),
        (job_of(plan), job_of(read), _IN_MARKS),
    ):
        for field in fields(one):
            value = getattr(one, field.name)
            if field.compare and field.name not in said and value != getattr(other, field.name):
                text = field.name if is_dataclass(value) else f"{field.name} {value}"
                differences.append(_OF_STAGES if field.name == "stage_plans" else text)
    return differences


def _tp_overlap(job: Job) -> tuple[float, ...]:
    execution = job.execution  # what tensor-parallel ranks of experts exchange is always exposed
    return (execution.hidden_tp_forward, execution.hidden_tp_backward) if job.layout.tp > 1 else ()


def _weight_cache(job: Job) -> str | None:
    return job.weight_cache or ("none" if job.optimizer.zero_stage == 3 else None)


def _resolved(plan: Plan, job: Job) -> dict[str, Any]:
    """Return the options whose values a plan has in another form than their own field."""
    is_auto = plan.schedule == AUTO
    takes_slices = not is_auto and find(plan.schedule_name).takes("num_slices")
    return {
        "gpus": job.layout.num_devices,
        "etp": job.layout.expert_tp,
        "seq_len": job.length,
        "vpp": plan.stages_per_rank,
        "schedule": plan.schedule_name,
        "weight_cache": _weight_cache(job),
        "lengths": plan.lengths,
        "slices": plan.num_slices if takes_slices else None,
        "seed": plan.seed if is_auto or plan.lengths else None,
        "search_time": plan.search_time_s if is_auto else None,
    }


def _measured(plan: Plan) -> dict[str, Any]:
    if plan.measured is None:
        return dict.fromkeys(_MEASURED)
    costs = plan.measured
    seconds = (costs.forward_s, costs.backward_input_s, costs.backward_weight_s, costs.transfer_s)
    measured: dict[str, Any] = dict(zip(_MEASURED, map(_milliseconds, seconds), strict=False))
    return measured | {"activation_memory": costs.activation_bytes}


def _milliseconds(seconds: Any) -> Any:
    """Return milliseconds that convert back to exactly these seconds."""
    if isinstance(seconds, Sequence):
        return [_milliseconds(one) for one in seconds]
    near = 1e3 * seconds
    candidates = (near, math.nextafter(near, 0), math.nextafter(near, math.inf))
    return next((candidate for candidate in candidates if candidate / 1e3 == seconds), near)


def _stages(plan: Plan, job: Job, split: Sequence[int] | None) -> Any:
    how, vpp, num_layers = plan.layer_split_rule, plan.stages_per_rank, len(job.model.layers)
    if plan.pp * vpp == 1:
        return "all"
    if layout := _layout(plan):
        return parse_layout(layout)
    layers: Any = split
    if layers is None and isinstance(how, MegatronSplit):
        layers = how.layers_per_stage(num_layers, pp=plan.pp, vpp=_model_stages(plan, vpp) // plan.pp)
    elif layers is None:
        layers = even_split(num_layers, _model_stages(plan, vpp)) if how == "even" else how
    return (
        layers
        if isinstance(layers, str)
        else parse_layout(layout_string(layers, num_mtp_layers=len(job.model.mtp)))
    )


def _layout(plan: Plan) -> str | None:
    how = plan.layer_split_rule
    if isinstance(how, str | MegatronSplit) or not isinstance(how[0], str):
        return None
    return layout_string([str(one) for one in how])


def _model_stages(plan: Plan, vpp: int) -> int:
    num_replicas = 1 if plan.schedule == AUTO else find(plan.schedule_name).num_replicas
    return plan.pp * vpp // num_replicas


def trainer_options(
    result: "Projection | TuneResult", trainer: ConfigTarget, *, given: Mapping[str, Any] | None = None
) -> str:
    """Return a projection's plan, or the best configuration of a search, as a trainer's configuration.

    `trainer` is megatron (Megatron-LM 0.19 and newer), megatron@0.16, primus, torchtitan (TorchTitan 0.3),
    torchtitan@0.2, torchtitan@main or automodel (NeMo AutoModel). Settings that the trainer cannot express become
    comments with options of `ppsim project`. Reading the text with `run_config` and adding these options gives a
    plan with the same time and memory. `given` are the original options: comments use their file names, and a
    Megatron-LM command in `run_config` keeps all arguments that the plan does not change. Raises `ConfigError` for
    a plan without a model or an unknown trainer, and `CannotRun` for a plan that Megatron-LM or AutoModel refuses.

    >>> import ppsim
    >>> made = ppsim.project(model="llama3-8b", gpus=16, tp=2, pp=4, microbatches=8, cross_entropy="compiled")
    >>> print(ppsim.trainer_options(made, "megatron"))  # doctest: +ELLIPSIS
    # not expressible: --stack megatron-bridge
    # Megatron-LM. Add your own data, tokenizer, learning rate and checkpoints.
    torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py \\
    ...
    """
    plan = _plan_of(result)
    projection = result if isinstance(result, Projection) else project(plan)
    if not isinstance(result, Projection):
        given = {"calibration": result.question.calibration_file} | dict(given or {})
    written = _written(plan, projection.split, given or {})
    own = _own_plan((given or {}).get("run_config")) if trainer.startswith("megatron") else None
    options = []
    for text in files_of(written, trainer, own):
        comments = _Comments(plan, written.words, marks_of(plan, projection.split)).of(_read(text))
        options.append((len(comments), "\n".join([*comments, text])))
    return min(options)[1]


def _plan_of(answer: "Projection | TuneResult") -> Plan:
    return answer.plan if isinstance(answer, Projection) else answer.question.plan_of(answer.best[0].candidate)


def refusal_of(answer: "Projection | TuneResult") -> str | None:
    """Return why Megatron-LM, if it is the plan's trainer, cannot run the plan; None if it can.

    Megatron-Bridge, with the same rules, has layers that Megatron-LM lacks. No rule depends on a stage's layers.
    """
    plan = _plan_of(answer)
    job = plan.job
    if job is None or plan.trainer != "megatron" or model_arguments(job.model, job.length) is None:
        return None
    layers = even_split(len(job.model.layers), plan.pp * plan.stages_per_rank)
    try:
        _written(plan, layers, {}).arguments("")
    except CannotRun as error:
        return str(error)
    return None


def _written(plan: Plan, split: Sequence[int], given: Mapping[str, Any]) -> WrittenPlan:
    job = job_of(plan)
    layout = layout_string(split, num_mtp_layers=len(job.model.mtp))
    model = job.model.with_fine_tuning(None).with_layers_in_16_bits(0, 0)
    return WrittenPlan(options_of_plan(plan, split, given=given), model, layout)


def _own_plan(file: str | Path | RunConfig | None) -> tuple[RunConfig, WrittenPlan] | None:
    """Return a Megatron-LM command with its own plan; None for other files, and for a command without a plan."""
    config = read_run_config(file) if isinstance(file, str | Path) else file
    if config is None or not config.flags:
        return None
    try:
        projection = project(plan_of_keywords({"run_config": replace(config, typed={})}))
        return config, _written(projection.plan, projection.split, {})
    except PpsimError:
        return None


def _read(text: str) -> RunConfig:
    with TemporaryDirectory() as folder:
        path = Path(folder, "config")
        path.write_text(text, encoding="utf-8")
        return read_run_config(path)


class _Comments:
    """Options of a plan that a configuration cannot express.

    Options are added in several rounds until the configuration with them gives the same plan, because an added
    option may replace some of the file's settings. Then options that are not necessary are removed.
    """

    def __init__(self, plan: Plan, options: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
        job = job_of(plan)
        self._plan, self._marks = plan, marks
        self._words = given_options({name: value for name, value in options.items() if name not in RULE})
        self._values = self._words | given_options({"cluster": job.cluster, "profile": job.profile})

    def of(self, config: RunConfig) -> list[str]:
        added: list[str] = []
        while more := [
            name for name in self._differing(config, added) if name in self._words and name not in added
        ]:
            added += more
        added = self._needed(config, added, sorted(added, key="stack".__eq__))
        texts = (
            text for name in WORDS if name in added for text in command_arguments(WORDS[name], self._words[name])
        )
        others = inexpressible_differences(self._plan, self._plan_of(config, added))
        return [
            *(f"# not expressible: {text}" for text in texts),
            *(f"# not expressible by any option: {one}" for one in others),
        ]

    def _needed(
        self, config: RunConfig, added: list[str], tried: list[str], *, is_needed: bool = False
    ) -> list[str]:
        """Return `added` without the options of `tried` that are not necessary.

        Removes all of `tried` at once, otherwise one half after the other. If `is_needed`, removing all is known to
        change the plan.
        """
        others = [name for name in added if name not in tried]
        if not is_needed and not self._differing(config, others):
            return others
        if len(tried) < 2:
            return added
        half = len(tried) // 2
        left = self._needed(config, added, tried[:half])
        is_first_removed = len(left) == len(added) - half
        return self._needed(config, left, tried[half:], is_needed=is_first_removed)

    def _plan_of(self, config: RunConfig, added: Iterable[str]) -> Plan:
        return plan_of_keywords({name: self._values[name] for name in added} | {"run_config": config})

    def _differing(self, config: RunConfig, added: Iterable[str]) -> list[str]:
        try:
            read = self._plan_of(config, added)
            marks = marks_of(read)
        except ConfigError:
            return list(self._words)
        names = [name for name, mark in self._marks.items() if marks[name] != mark]
        return [*names, *(MODEL if "model" in names else ())]
