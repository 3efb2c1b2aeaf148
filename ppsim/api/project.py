"""Projections of a plan."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ppsim.api.keyword_options import accept_options, option_types, require_valid_options
from ppsim.api.option_values import parse_size, parse_split
from ppsim.api.trainer_configuration import names_trainer, recipe_in_errors, require_no_job, with_run_config
from ppsim.base.errors import ConfigError, PpsimError, require_kind
from ppsim.base.option_declarations import declared_options, field_values, require_least
from ppsim.costs.cost_sources import RankCosts
from ppsim.costs.profile import DEFAULT, Profile, Shape, profile_of
from ppsim.model.recompute import require_of_layer
from ppsim.parallel.layer_partition import MegatronSplit, Split, require_layers
from ppsim.projection import project as planning
from ppsim.projection.lengths import read_lengths
from ppsim.projection.options import JobOptions, PlanOptions
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.projection import Projection, Projections
from ppsim.trainers.same_settings import MEGATRON_SPLIT
from ppsim.trainers.stacks import NEAREST, base_of, measured_stacks

if TYPE_CHECKING:
    from ppsim.api.plan_file import StagesFile
    from ppsim.api.recorded_costs import RecordedCosts
    from ppsim.costs.job import Job
    from ppsim.trainers.run_config import RunConfig

_WORDS = declared_options(PlanOptions)
_OF_JOBS = tuple(name for name in declared_options(JobOptions) if name != "pp")


@accept_options(PlanOptions)
def project(plan: Plan | None = None, **options: Unpack[PlanOptions]) -> Projection:
    """Project a step: time, throughput, bubble, memory per rank, and explanations.

    Options and defaults are as for `ppsim project`. With a `model` (or a `job` of `ppsim.job`), costs are estimated
    for a cluster, or read from a `profile` for measured layers and shapes, and the whole step is projected. Without
    a model, one pipeline of the ranks of a profile is projected. `stragglers` maps ranks to factors of their
    compute time. `plan` is a complete `Plan`, given instead of options. `.summary` of the result has the interval,
    the loss budget and the advice.

    Raises `ConfigError` if schedule or costs are invalid, `Deadlock` if the schedule cannot run with the runtime's
    P2P serialization. A plan that does not fit in memory is projected too: see `.fits` and `.verdict`.

    >>> import ppsim
    >>> made = ppsim.project(model="llama3-70b", gpus=256, tp=8, pp=4, vpp=5, global_batch=512)
    >>> made.num_gpus, made.timeline.schedule.name
    (256, 'interleaved-1f1b')
    """
    return planning.project(_plan(plan, options))


@accept_options(PlanOptions)
def project_all(
    plan: Plan | None = None,
    *,
    schedules: Sequence[str] | None = None,
    announce: Callable[[str], None] = lambda name: None,
    **options: Unpack[PlanOptions],
) -> Projections:
    """Project every schedule, or `schedules`, for one plan.

    The fastest that fits in memory is first, then those that fit tightly; schedules that do not fit are last.
    Without `schedules`, the schedules of the plan's trainer come before all others. The result has the reasons
    against impossible schedules. `plan` and the options are as for `ppsim.project`, without `schedule`.

    >>> import ppsim
    >>> found = ppsim.project_all(pp=4, microbatches=8)
    >>> found.to_frame()["schedule"][0]
    'zbv'
    """
    if options.get("schedule") is not None:
        raise ConfigError("schedule is for ppsim.project: project_all tries every one, or those in schedules")
    return planning.project_all(_plan(plan, options), schedules, announce=announce)


def _plan(plan: Plan | None, options: Mapping[str, Any]) -> Plan:
    if plan is None:
        return plan_of_options(options)
    if given := [name for name, value in options.items() if value is not None]:
        raise ConfigError(
            f"a plan says everything itself: leave out {given[0]}, or change it by dataclasses.replace"
        )
    require_kind("plan", plan, Plan, "a ppsim.Plan")
    return plan


def plan_of_options(options: Mapping[str, Any]) -> Plan:
    """Raises `ConfigError` for contradictory options, like `job_of_options`."""
    plan = _plan_alone(options)
    is_assumed = plan.job is not None and plan.job.gpus_assumed and options.get("job") is None
    on_gpus = partial(_on_gpus, options) if is_assumed else None
    return replace(plan, by_stack=_by_stack(plan, options), on_gpus=on_gpus)


def _on_gpus(options: Mapping[str, Any], number: int) -> Plan:
    return _plan_alone({**options, "gpus": number})


def _plan_alone(options: Mapping[str, Any]) -> Plan:
    """Return the plan without its alternatives."""
    filled = with_run_config(options)
    with recipe_in_errors(filled["run_config"], options):
        config = filled["run_config"]
        is_recipe = config is not None and config.recipe is not None
        return replace(_plan_of(filled), names_trainer=names_trainer(options), is_recipe=is_recipe)


def _plan_of(options: dict[str, Any]) -> Plan:
    recorded = _recorded(options)
    job = _job(options)
    measured = _measured(options) if recorded is None else recorded.costs
    is_by_hand = measured is not None and job is None and options["profile"] is None
    if is_by_hand:
        _require_no_model_options(options)
    profile = None if job or is_by_hand else profile_of(options["profile"] or DEFAULT)
    pp = job.layout.pp if job and options["pp"] is None else options["pp"]
    if pp is None:
        raise ConfigError("--pp must be given: the number of pipeline ranks (1: no pipeline)")
    require_least("vpp", options["vpp"])
    if options["layers"] is not None:
        require_layers(options["layers"], "--layers")
    if options["schedule"] != AUTO and options["search_time"] is not None:
        raise ConfigError("--search-time is for --schedule auto")
    if options["schedule"] != AUTO and options["seed"] is not None and options["lengths"] is None:
        raise ConfigError("--seed is for --schedule auto and for --sequence-lengths")
    shape = None
    if profile is not None:
        profile, shape = _at_shape(profile, options)
    overheads = _overheads(options, recorded, job)
    if overheads:
        options["runtime"] = overheads.pop("runtime", options["runtime"])
        job = replace(job, launch_s=0.0) if job else None
    elif profile is not None and (calibration := profile.rehearsal) and pp > 1:
        overheads = {
            "action_overhead_s": calibration.action_overhead_s,
            "hop_overhead_s": calibration.hop_overhead_s,
        }
        if calibration.pass_factors and calibration.num_processes == pp:
            overheads["pass_factors"] = tuple(calibration.pass_factors)
    of_profile = {"microbatches": None, "layers": None} if job else {}
    read = {
        "split": _split(options),
        "lengths": _lengths(options["lengths"]),
        "stragglers": tuple((options["stragglers"] or {}).items()),
        "transfer_ms": None if measured else _hop_s(options["transfer_ms"]),
        "memory_limit": parse_size(options["memory_limit"]),
    }
    stages = _stages_file(options, job)
    if stages is not None:
        read["split"] = stages.split(read["split"])
    counted = stages.stages if stages is not None else read["split"]
    if options["vpp"] is None and isinstance(counted, list) and len(counted) % pp == 0:
        options["vpp"] = len(counted) // pp
    fields = field_values(_WORDS, {**options, **of_profile, **read})
    fields["searches_stages"] = options["stage_plan"] == AUTO
    plan = Plan(pp=pp, job=job, profile=profile, shape=shape, measured=measured, **fields, **overheads)
    if stages is not None and job is not None:
        stages.require_fit(plan, job, plan.stages_per_rank)
        plan = replace(plan, job=stages.applied_to(job))
    if options["run_config"] is not None:
        _require_split_of(options["run_config"], plan, options)
    return plan


def _by_stack(plan: Plan, asked: Mapping[str, Any]) -> dict[str, Plan]:
    """Return the plan with each other stack, if the stack was selected by its error on measured runs."""
    job = plan.job
    if job is None or NEAREST not in job.stack_basis or plan.schedule == AUTO or plan.searches_stages:
        return {}
    plans: dict[str, Plan] = {}
    for name in measured_stacks(job.cluster.device.generation, has_experts=job.model.has_experts):
        if name != base_of(job.stack):
            with suppress(PpsimError):
                other = _plan_alone({**asked, "stack": name})
                plans[other.job.stack_name if other.job else name] = other
    return plans


def _overheads(options: Mapping[str, Any], recorded: "RecordedCosts | None", job: "Job | None") -> dict[str, Any]:
    given = options["calibration"] or (recorded.overheads if recorded else None)
    if given is None:
        return {}
    from ppsim.api.calibration import plan_fields_of  # heavy import

    plan_fields = plan_fields_of(given, options)
    if not plan_fields and job is None:
        raise ConfigError(f"{given} has constants of a cluster, which change the estimate of a --model: give one")
    return plan_fields


def _recorded(options: dict[str, Any]) -> "RecordedCosts | None":
    """Fill in the options that the recorded run determines and the user did not set."""
    if options["run"] is None:
        if options["without"] is not None:
            raise ConfigError("--without removes a cause from a recorded run: give --run")
        return None
    if given := [name for name in (*_OF_RANKS, "transfer_ms", "profile") if options[name] is not None]:
        raise ConfigError(f"{_WORDS[given[0]].flag} and --run are both measured costs: give one of them")
    from ppsim.api.recorded_costs import recorded_costs  # heavy import: readers of recordings

    activation_bytes = _numbers("activation_memory", options["activation_memory"], parse_size)
    recorded = recorded_costs(
        options["run"], activation_bytes, _split_of(options["run_config"]) or "even", options["without"] or ()
    )
    table = recorded.costs.table
    if options["schedule"] is None and options["vpp"] is None:
        options["schedule"], options["vpp"] = recorded.schedule, table.vpp
    if options["pp"] is None:
        options["pp"] = table.num_ranks
    if options["microbatches"] is None and options["global_batch"] is None and options.get("job") is None:
        options["microbatches"] = table.num_microbatches
    return recorded


def _require_split_of(config: "RunConfig", plan: Plan, options: Mapping[str, Any]) -> None:
    names = ("split", *MEGATRON_SPLIT)
    kept = [
        name for name in names if options[name] not in (None, False) and options[name] == config.options.get(name)
    ]
    if not kept or plan.job is None:
        return
    from ppsim.catalog.build import find
    from ppsim.costs.assemble_job import stages_of_split  # heavy import

    entry, vpp = find(plan.schedule_name) if plan.schedule != AUTO else None, plan.stages_per_rank
    try:
        num_stages = plan.pp * vpp // (entry.num_replicas if entry else 1)
        stages_of_split(plan.job, num_stages, plan.layer_split_rule, [[stage] for stage in range(num_stages)])
    except ConfigError as error:
        raise ConfigError(
            f"{error}; {', '.join(_WORDS[name].flag for name in kept)} is from {config.source}: replace it, as by "
            "--split even"
        ) from None


def _stages_file(options: Mapping[str, Any], job: "Job | None") -> "StagesFile | None":
    given = options["stage_plan"]
    if given is None or given == AUTO:
        return None
    if job is None:
        raise ConfigError(f"--plan {given} is of the stages of a model: give --model")
    from ppsim.api.plan_file import read_stages

    return read_stages(given)


_OF_MODELS = ("layers", "seq_len", "micro_batch", "tp", "cp", "ep", "recompute", "split", "lengths")


def _require_no_model_options(options: Mapping[str, Any]) -> None:
    megatron = [name for name, word in _WORDS.items() if (word.option.field or "").startswith("split.")]
    if wrong := [name for name in (*_OF_MODELS, *megatron) if options[name] is not None]:
        costs, give = _without_model(options)
        raise ConfigError(
            f"{_WORDS[wrong[0]].flag} {options[wrong[0]]} is of a model, and {costs} none: give {give} too, "
            "or leave it out"
        )
    if options["memory_limit"] is not None and options["activation_memory"] is None:
        costs, give = _without_model(options)
        raise ConfigError(
            f"--memory-limit {options['memory_limit']} cannot be checked: {costs} no bytes; give "
            f"--activation-memory, {give} too"
        )


def _without_model(options: Mapping[str, Any]) -> tuple[str, str]:
    if options["run"] is not None:
        return "a recorded run has", "--model or --run-config"
    return "times given by hand have", "--model or --profile"


def _at_shape(profile: Profile, options: Mapping[str, Any]) -> tuple[Profile, Shape]:
    """Measurements that the profile lacks are estimated."""
    wanted: dict[str, Any] = {name: options[name] for name in ("micro_batch", "tp", "cp", "ep")}
    wanted["sequence_length"] = options["seq_len"]
    wanted["recompute"] = None if options["recompute"] is None else require_of_layer(options["recompute"])
    try:
        return profile, profile.shape_at(**wanted)
    except ConfigError:
        from ppsim.costs.estimate import with_estimates  # heavy import

        try:
            return with_estimates(profile, **wanted)
        except ConfigError as error:
            if options["profile"] is not None:
                raise
            raise ConfigError(f"no --model was given, so the default profile is projected: {error}") from None


def _lengths(given: str | Path | Sequence[int] | None) -> tuple[int, ...] | None:
    if given is None or isinstance(given, str | Path):
        return None if given is None else read_lengths(given)
    if not given or any(not isinstance(tokens, int) or tokens < 1 for tokens in given):
        raise ConfigError("lengths are the tokens of sequences: give at least one, each a whole number from 1 on")
    return tuple(given)


def plan_of_keywords(options: Mapping[str, Any]) -> Plan:
    require_valid_options(PlanOptions, options, "project")
    return plan_of_options(dict.fromkeys(option_types(PlanOptions)) | dict(options))


def _split(options: Mapping[str, Any]) -> Split | None:
    given, split = field_values(_WORDS, options, "split"), options["split"]
    if given and split not in (None, "megatron"):
        name = next(name for name, word in _WORDS.items() if word.option.field == f"split.{next(iter(given))}")
        raise ConfigError(f"{_WORDS[name].flag} is of Megatron-LM's own rule: leave out --split {split}")
    return MegatronSplit(**given) if given or split == "megatron" else None if split is None else parse_split(split)


def _split_of(config: "RunConfig | None") -> Split | None:
    options = dict.fromkeys(("split", *MEGATRON_SPLIT))
    return None if config is None else _split(options | {name: config.options.get(name) for name in options})


def _job(options: Mapping[str, Any]) -> "Job | None":
    job: Job | None = options.get("job")
    if job and (wrong := [name for name in _OF_JOBS if options[name] is not None]):
        raise ConfigError(f"the job says everything itself: leave out {wrong[0]}, or give it to ppsim.job")
    if options["model"] is not None:
        from ppsim.api.parse_job import job_of_options  # heavy import

        job = job_of_options(options)
    else:
        require_no_job(options)
    if job and options["transfer_ms"] is not None and options["forward_ms"] is None:
        raise ConfigError(
            "--transfer-ms is for one pipeline of a profile: with --model, hops are the cluster's links"
        )
    return job


_OF_RANKS = ("forward_ms", "backward_input_ms", "backward_weight_ms")


def _measured(options: Mapping[str, Any]) -> RankCosts | None:
    given = [name for name in _OF_RANKS if options[name] is not None]
    if not given:
        if options["activation_memory"] is not None:
            raise ConfigError("--activation-memory is of a rank that was measured: it needs --forward-ms too")
        return None
    if missing := [_WORDS[name].flag for name in _OF_RANKS if name not in given]:
        raise ConfigError(f"{_WORDS[given[0]].flag} needs {' and '.join(missing)} too")
    forward, inputs, weights, hop = (_numbers(name, options[name]) for name in (*_OF_RANKS, "transfer_ms"))
    return RankCosts(
        forward, inputs, weights, hop, _numbers("activation_memory", options["activation_memory"], parse_size)
    )


def _hop_s(given: Any) -> float | None:
    transfers_s = None if given is None else _numbers("transfer_ms", given)
    if isinstance(transfers_s, tuple):
        raise ConfigError(
            f"--transfer-ms has {len(transfers_s)} values: one behind each stage needs --forward-ms too"
        )
    if transfers_s is not None and transfers_s < 0:
        raise ConfigError(f"--transfer-ms must not be negative: got {1e3 * transfers_s:g}")
    return transfers_s


def _seconds(text: Any) -> float:
    return float(text) / 1e3


def _numbers(name: str, given: Any, read: Callable[[Any], float | None] = _seconds) -> Any:
    """Return a number, or a tuple with a number per stage; in seconds unless `read` differs."""
    if given is None:
        return None if name == "activation_memory" else 0.0
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    try:
        numbers = tuple(read(part.strip() if isinstance(part, str) else part) for part in parts)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{_WORDS[name].flag} is '{given}': give milliseconds as 12.5, or one per stage as 10,12,12,14"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers
