"""Search for the best configurations."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from ppsim.api.keyword_options import accept_options
from ppsim.api.option_values import parse_size
from ppsim.api.parse_job import job_of_options
from ppsim.api.trainer_configuration import names_trainer, with_run_config
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.name_lookup import NameLookup
from ppsim.base.option_declarations import declared_options, flag_of, with_defaults
from ppsim.model.recompute import recompute_of, require_enough_layers
from ppsim.projection.changes import SWITCHES
from ppsim.projection.options import ANY, JobOptions, PlanOptions, SearchBaseOptions
from ppsim.projection.plan import Plan
from ppsim.projection.scaling import row_of_plan
from ppsim.results.progress import searching_layouts
from ppsim.trainers.same_settings import each_setting
from ppsim.trainers.stacks import stack_of, trainer_of
from ppsim.tuning import search
from ppsim.tuning.command_line import command_of
from ppsim.tuning.options import RangeOptions, TuneOptions
from ppsim.tuning.refine import REFINEMENTS
from ppsim.tuning.search import Counted, TuneResult
from ppsim.tuning.space import Configuration, SearchProblem, space_for

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.trainers.recipe_table import Recipe

_WORDS, _RANGES = declared_options(TuneOptions), declared_options(RangeOptions)
_OF_JOBS = [name for name in declared_options(JobOptions) if name in _WORDS and name not in _RANGES]
_OF_FILES = ("zero", "etp")
"""Ranges whose single value, of a configuration or the user, is that of all configurations."""

_SPLITS = get_args(_RANGES["split"].listed)


@accept_options(TuneOptions)
def tune(*, progress: Counted | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Return the best layouts, schedules and batches for a model on a number of GPUs.

    Options and defaults are as for `ppsim tune`; `model`, `gpus` and `global_batch` are required. Ranges to try
    (tp, cp, ep, etp, dp, pp, vpp, micro_batch, schedule, recompute, zero, split) are lists. On a terminal
    and in a notebook, a bar shows the progress. `progress` is called instead, with the number of decided
    configurations, the number of all, and the best iteration so far in seconds.

    Raises `ConfigError` for an empty search, `DoesNotFit` with the missing bytes and changes that would fit, and
    `RunFailed` if a process is lost.

    >>> import ppsim
    >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
    >>> found.best[0].candidate.dp
    2
    """
    searched = search_of(options)
    if progress is not None:
        return searched(progress=progress)
    with searching_layouts() as show:
        return searched(progress=show)


COMMAND = "command"


def row_of_search(tuned: TuneResult, tokens: float | None) -> dict[str, Any]:
    """Return the row of the best configuration, as of its projection, with the command that projects it."""
    best = tuned.best[0]
    row = row_of_plan(tuned.question.plan_of(best.candidate), tokens)
    return row | {"configuration": best.candidate.key, COMMAND: command_of(tuned.question, best.candidate)}


def search_of(options: Mapping[str, Any]) -> Callable[..., TuneResult]:
    """Return the search, not started, as a function of the `progress` of `tune`."""
    if isinstance(options["etp"], int):
        options = {**options, "etp": [options["etp"]]}
    names, typed = options["schedule"], dict(options)
    options = with_run_config(typed, tried=_RANGES.keys() - _OF_FILES)
    config = options["run_config"]
    options["schedule"] = None if names is None or list(names) == [ANY] else names
    if config and config.recipe:
        _require_schedules(config.recipe, options)
    given, own = with_defaults(_WORDS, options), dict(config.options) if config else {}
    given["zero"] = options["zero"] if typed["zero"] is None else options["zero"][0]
    given["etp"] = options["etp"] if typed["etp"] is None else min(options["etp"])
    set_by_user = {name for name, setting in each_setting(typed).items() if setting is not None}
    fixed = set_by_user & SWITCHES.keys()
    ranges = {name: _listed(name, typed[name]) for name in _RANGES} | {"schedule": options["schedule"]}
    if unknown := [one for one in ranges["split"] or () if one not in _SPLITS]:
        raise ConfigError(
            f"--split is '{','.join(ranges['split'] or ())}': {unknown[0]} is none of {', '.join(_SPLITS)}"
        )
    question = _question(given | {name: options[name] for name in ("stack_basis", "assumed") if name in options})
    if options["calibration"]:
        question = _calibrated(question, options)
    decided = set_by_user | own.keys()
    question = replace(
        question,
        by_pipeline=_by_pipeline(question.job, typed, decided),
        typed={name: given[name] for name in decided & given.keys() - _RANGES.keys()},
    )
    if names is None:
        trainer = trainer_of(question.job.stack, question.runtime)
        question = replace(question, trainer=trainer, names_trainer=names_trainer(typed))
    start = _start(question, typed) if config else None
    for name in kept_options(typed["keep"] or ()):
        if name in _RANGES and ranges[name] is None:
            if (setting := own.get(name, getattr(start, name, None))) is None:
                source = f"{config.source} does not set it" if config else "no configuration sets it"
                raise ConfigError(f"--keep {name}: {source}; give {flag_of(name)} a value")
            ranges[name] = ["auto" if setting == "searched" else setting]
        fixed.add(name)
    if ranges["recompute"] is not None:
        ranges["recompute"] = [recompute_of(one) for one in ranges["recompute"]]
        for recompute in ranges["recompute"]:
            require_enough_layers(recompute, len(question.job.model.layers))
    if ranges["etp"] and not question.job.model.has_experts:
        raise ConfigError(f"--etp is for a model with experts: {question.job.model_name} has none")
    return partial(
        search.tune,
        question,
        space_for(question, fixed=fixed, start=start, **ranges),
        top=given["top"],
        processes=1 if options["jobs"] is None else options["jobs"],
        seed=given["seed"],
        search_s=given["search_time"],
        state=given["resume"],
        refined=(*REFINEMENTS, "plan") if options["stage_plan"] else REFINEMENTS,
    )


CHANGED = tuple(dict.fromkeys([*_RANGES, *SWITCHES]))
"""Options that the search may change."""


def kept_options(names: Sequence[str]) -> Iterator[str]:
    """Yield the names in the code of options that the search may change; raises `ConfigError` for others."""
    keywords = {word.keyword: name for name, word in declared_options(PlanOptions).items()}
    for text in names:
        keyword = text.strip().removeprefix("--").replace("-", "_")
        name = keywords.get(keyword, keyword)
        if name not in CHANGED:
            hint = NameLookup("option", CHANGED).hint(name)
            raise ConfigError(f"--keep {text} is no option that tune changes: {hint}")
        yield name


def _start(question: SearchProblem, typed: Mapping[str, Any]) -> Configuration | None:
    """Return the plan of the configuration file with the user's options; None if it is not possible."""
    with suppress(PpsimError):
        return Configuration.of_plan(plan_of_file(typed), question)
    return None


def plan_of_file(typed: Mapping[str, Any]) -> Plan:
    """Return the plan of a trainer's configuration with the user's options, except the layout."""
    from ppsim.api.project import plan_of_keywords  # heavy import

    return plan_of_keywords({name: typed[name] for name in _SHARED if typed.get(name) is not None})


_SHARED = declared_options(SearchBaseOptions)


def _by_pipeline(job: "Job", typed: Mapping[str, Any], decided: Collection[str]) -> dict[bool, dict[str, Any]]:
    """Return options of the stack that differ with and without a pipeline, unless they are typed or in the file."""
    has_experts = job.model.has_experts
    without, within = (
        stack_of(job.stack, {**typed, "pp": pp}, device=job.cluster.device.name, has_experts=has_experts).options
        for pp in (1, 2)
    )
    names = [name for name in _OF_PIPELINES if without.get(name) != within.get(name) and name not in decided]
    stacks = {False: without, True: within} if names else {}
    return {key: {name: stack[name] for name in names if name in stack} for key, stack in stacks.items()}


_OF_PIPELINES = ("zero", "overlap_grad_reduce", "overlap_param_gather")


def _require_schedules(recipe: "Recipe", options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if the trainer of the recipe refuses a schedule."""
    from ppsim.trainers.read_recipe import require_accepted  # heavy import

    for name in _listed("schedule", options["schedule"]) or ():
        require_accepted(recipe, {**options, "schedule": name}, {"schedule": name})


def _calibrated(question: SearchProblem, options: Mapping[str, Any]) -> SearchProblem:
    from ppsim.api.calibration import plan_fields_of  # heavy import

    given = options["calibration"]
    overheads = plan_fields_of(given, options)
    return replace(
        question,
        job=replace(question.job, launch_s=0.0) if overheads else question.job,
        runtime=overheads.pop("runtime", question.runtime),
        overheads=tuple(overheads.items()),
        calibration_file=str(given) if isinstance(given, str | Path) else "calibration.json",
    )


def _listed(name: str, given: Any) -> list[Any] | None:
    if isinstance(given, str | int):
        raise ConfigError(f"{name} is a list of what to try: got {given!r} (nearest: [{given!r}])")
    return None if given is None else list(given)


def _question(options: Mapping[str, Any]) -> SearchProblem:
    for name in ("model", "gpus", "global_batch"):
        if options[name] is None:
            raise ConfigError(f"{flag_of(name)} must be given: tune searches the layout for it")
    if options["gpus"] < 1 or options["global_batch"] < 1:
        raise ConfigError(
            f"--gpus and --global-batch-size are at least 1: got {options['gpus']} and {options['global_batch']}"
        )
    instances = "num_distributed_optimizer_instances"  # depends on the data-parallel ranks of a configuration
    decided = {name: options[name] for name in _OF_JOBS if name not in ("gpus", instances)}
    decided["zero"] = options["zero"]
    about = {name: options[name] for name in ("stack_basis", "assumed") if name in options}
    job = job_of_options(
        dict.fromkeys(declared_options(JobOptions)) | decided | about | {"sequence_parallel": False}
    )
    assert job is not None
    if options[instances]:
        job = replace(job, optimizer=replace(job.optimizer, **{instances: options[instances]}))
    devices = job.cluster.num_devices
    if devices is not None and options["gpus"] > devices:
        raise ConfigError(f"--gpus is {options['gpus']}, but the cluster has {devices} devices")
    limit, share = parse_size(options["memory_limit"]), options["memory_share"]
    if limit is not None and share is not None:
        raise ConfigError("--memory-limit and --memory-share say the same twice: give one of them")
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"--memory-share is a part above 0, up to 1: got {share:g}")
    return SearchProblem(
        job=replace(job, gpus_assumed=0),
        num_gpus=options["gpus"],
        memory_limit_bytes=limit if share is None else share * job.cluster.device.memory_bytes,
        sequence_parallel=options["sequence_parallel"],
        etp=options["etp"],
        runtime=options["runtime"],
    )
