"""Defaults from a trainer's configuration (`--run-config`, `--recipe`)."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options, flag_of, require_tokens
from ppsim.model.offloading import OffloadRules
from ppsim.projection.options import GPT, JobOptions, SearchBaseOptions
from ppsim.trainers.same_settings import COUNTED_IN_SPLIT, MEGATRON_SPLIT, SAME_SETTING, each_setting

if TYPE_CHECKING:
    from ppsim.trainers.run_config import RunConfig

_OF_PIPELINES = ("split", *MEGATRON_SPLIT, "vpp", "group_size", "overlap_p2p", "schedule")
_OF_INTERLEAVING = ("group_size", "overlap_p2p")

_OFFLOADED = ("offload", "offload_modules", *(one.name for one in fields(OffloadRules)))
_NOT_SHARED = ("dp", "etp", "sequence_parallel", *_OFFLOADED)
_OF_SCRIPTS = ("set", "launch", "ignore")
_OF_STUDIES = {*declared_options(SearchBaseOptions), *_NOT_SHARED} - {"model", "run_config", "recipe", *_OF_SCRIPTS}
_ONLY_FOR_JOBS = [name for name in declared_options(JobOptions) if name in _OF_STUDIES]


def with_run_config(options: Mapping[str, Any], *, tried: Collection[str] = ()) -> dict[str, Any]:
    """Replace None by the settings and the model of `run_config` or `recipe`.

    A given option replaces only the same setting of the configuration. Options that a search has `tried` stay None.
    Raises `ConfigError` for a model or an "auto" that neither the file nor an option sets, and for a vpp of the
    file that is impossible with the given schedule or model.
    """
    filled = each_setting(options)
    require_tokens("seq_len", filled.get("seq_len"))
    config = read_source(filled)
    filled |= dict.fromkeys(("run_config", "recipe", *_OF_SCRIPTS))
    if config is None:
        return _with_stack(filled)
    if filled.get("job") is not None:
        raise ConfigError("the job says everything itself: leave out run_config, or give it to ppsim.job")
    from ppsim.trainers.read_recipe import require_accepted

    given = {name for name, value in filled.items() if value not in (None, {}, ())}
    left = config.replaced_by(given) | {*tried}
    taken = {name: value for name, value in config.options.items() if name in filled and name not in left}
    if "stack" in taken:
        from ppsim.trainers.stacks import without_recipes

        taken["stack"] = without_recipes(taken["stack"])
    filled |= taken | {"run_config": config}
    if not (tried or filled.get("gpus") or filled.get("dp")):
        filled |= _launched(config, filled)
    if config.recipe is not None:
        require_accepted(config.recipe, filled, {name: options[name] for name in given - {*tried}})
    _require_needed(config, given | {*tried})
    if config.local_batch is not None and "gradient_accumulation_steps" in filled:
        config.local_batch.fill(filled, given)
    if filled.get("model") is None:
        if config.model is None:
            hint = "" if "--model" in config.why_no_model else ": give --model"
            raise ConfigError(f"{config.why_no_model}{hint}")
        filled["model"] = config
    if "vpp" in filled and "vpp" not in left:
        filled["vpp"] = _stages_per_rank(config, filled, given)
    unused = [] if tried else _without_effect(filled)
    return _with_stack(filled | {word: None for word in unused if word in taken})


def names_trainer(options: Mapping[str, Any]) -> bool:
    """Return whether the user named a trainer."""
    return any(options.get(name) is not None for name in ("stack", "run_config", "recipe", "runtime"))


def _launched(config: "RunConfig", options: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of GPUs that the trainer's launcher starts by default, in multiples for larger sizes."""
    sizes = {name: options[name] for name in ("tp", "cp", "ep", "pp", "etp") if options.get(name)}
    if config.launcher_gpus == 1 or min(sizes.values(), default=1) < 1:
        return {}
    from ppsim.parallel.layout import assumed_replicas

    replicas = assumed_replicas(**sizes, multiple=config.launcher_gpus)
    number = replicas * math.prod(sizes.get(name, 1) for name in ("tp", "cp", "pp"))
    return {"gpus": number, "gpus_assumed": config.launcher_gpus}


def read_source(options: Mapping[str, Any]) -> "RunConfig | None":
    """Return the configuration of `recipe` or `run_config`; None if neither is given."""
    path, recipe = options.get("run_config"), options.get("recipe")
    of_script = {name: given for name in _OF_SCRIPTS if (given := options.get(name))}
    if path is not None and recipe is not None:
        raise ConfigError("--recipe and --run-config both name a trainer's configuration: give one of them")
    if path is None and of_script:
        raise ConfigError(f"--{next(iter(of_script))} is for a launch script: give --run-config")
    if recipe is not None:
        from ppsim.trainers.read_recipe import read_recipe

        return read_recipe(recipe)
    if path is None:
        return None
    from ppsim.trainers.read_config import read_run_config  # heavy import
    from ppsim.trainers.run_config import RunConfig

    if isinstance(path, RunConfig):
        return path
    variables = of_script.pop("set", None)
    return read_run_config(path, variables=variables, **of_script)


@contextmanager
def recipe_in_errors(config: "RunConfig | None", options: Mapping[str, Any]) -> Iterator[None]:
    """Name the recipe in a `ConfigError` if `options` change nothing of it."""
    try:
        yield
    except ConfigError as error:
        changes = {name for name, value in options.items() if value not in (None, {}, ())}
        if config is None or config.recipe is None or changes - {"run_config", "recipe", "memory_limit"}:
            raise
        raise ConfigError(f"recipe {config.recipe.name} cannot be projected as published: {error}") from None


def _require_needed(config: "RunConfig", given: Collection[str]) -> None:
    """Raise `ConfigError` for settings that the file leaves to the launch and that no option sets."""
    open_ = [one for word, one in config.needed.items() if not {word, *SAME_SETTING.get(word, ())} & {*given}]
    if open_:
        raise ConfigError(f"{config.source}: {'; '.join(f'{reason}: give {options}' for reason, options in open_)}")


def _stages_per_rank(config: "RunConfig", filled: Mapping[str, Any], given: Collection[str]) -> int | None:
    """The file's vpp is recomputed from its layers per virtual stage if model, layers or pp are given."""
    vpp: int | None = filled["vpp"]
    each, pp = config.layers_per_virtual_stage, filled["pp"] or 1
    if each is not None and {"model", "layers", "pp"}.intersection(given):
        from ppsim.api.model_traces import trace_if_unknown
        from ppsim.trainers.read_config import model_named  # heavy import

        if filled["model"] == GPT or filled["layers"]:
            layers = filled["layers"] or 0
        else:
            trace_if_unknown(filled["model"])
            layers = len(model_named(filled["model"]).layers)
        layers += sum(bool(filled.get(name)) for name in COUNTED_IN_SPLIT)
        vpp, rest = divmod(layers, pp * each)
        if rest:
            raise ConfigError(
                f"{config.source}: num_layers_per_virtual_pipeline_stage {each} does not divide {layers} layers on "
                f"pp {pp}: give --vpp"
            )
    if vpp and pp > 1 and "schedule" in given and filled["schedule"] not in ("auto", None):
        from ppsim.catalog.build import find

        entry = find(filled["schedule"])
        least, most = entry.stages_per_rank
        if not least <= vpp <= (most or vpp):
            raise ConfigError(
                f"{config.source} has vpp {vpp}, and {entry.name} takes {least}"
                f"{'' if most == least else ' or more' if most is None else f' to {most}'}: give --vpp"
            )
    return vpp


def _without_effect(options: Mapping[str, Any]) -> tuple[str, ...]:
    if options["pp"] in (None, 1):
        return _OF_PIPELINES
    has_chunks = (options.get("vpp") or 1) > 1 or options.get("split") is not None
    is_interleaved = has_chunks and options.get("schedule") in (None, "interleaved-1f1b", "combined-1f1b")
    return () if is_interleaved else _OF_INTERLEAVING


def require_no_job(options: Mapping[str, Any]) -> None:
    if wrong := [name for name in _ONLY_FOR_JOBS if options.get(name) is not None]:
        flag = flag_of(wrong[0])
        raise ConfigError(
            f"{flag} is for a --model on a --cluster: got {flag} {options[wrong[0]]} without --model; give --model "
            "too, a name of `ppsim models` or a file"
        )


def _with_stack(options: dict[str, Any]) -> dict[str, Any]:
    """Replace remaining None values by the defaults of the stack, for jobs only.

    `stack_basis` of the result is the reason for a default stack, `assumed` has sentences about the settings of the
    stack, `set_by_stack` their names.
    """
    if options.get("model") is None:
        return options
    if (calibration := options.get("calibration")) is not None:
        from ppsim.api.calibration import calibrated_cluster  # heavy import: readers of recordings

        options = options | {"cluster": calibrated_cluster(calibration, options.get("cluster"))}
    from ppsim.api.model_traces import trace_if_unknown
    from ppsim.machine.cluster_files import cluster_of
    from ppsim.trainers.read_config import model_named  # heavy import
    from ppsim.trainers.stacks import PLAIN, default_stack, stack_of

    name, model, cluster = options.get("stack"), options["model"], cluster_of(options.get("cluster"))
    trace_if_unknown(model)
    has_experts, basis = model != GPT and model_named(model).has_experts, ""
    if name is None and options.get("run_config") is not None:
        name = PLAIN
    elif name is None:
        given = [word for word in _MEASURED if options.get(word) is not None]
        is_fitted = cluster.constants.fitted_on
        fitted = f"cluster {cluster.name}, which was fitted to runs" if is_fitted else ""
        measured = flag_of(given[0]) if given else fitted
        if cluster.constants.stack and given in ([], ["calibration"]):
            name, basis = cluster.constants.stack, f"default with {measured}: the stack of its runs"
        else:
            name, basis = default_stack(cluster.device.generation, has_experts=has_experts, measured=measured)
    stack = stack_of(name, options, device=cluster.device.name, has_experts=has_experts)
    said = {word: value for word, value in stack.options.items() if options.get(word, "") is None}
    if stack.remark and options.get("run_config") is None:
        basis = f"{basis}; {stack.remark}" if basis else stack.remark
    filled = options | said | {"stack": stack.name, "stack_basis": basis}
    return filled | {"assumed": stack.sentences, "set_by_stack": tuple(said)}


_MEASURED = ("profile", "run", "forward_ms", "calibration")
"""Options with measured times, which depend on the stack of the measurement."""
