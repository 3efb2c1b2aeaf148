"""The command `tune`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from ppsim.api.output_formats import SCALING, SEARCH, SearchFileContent
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import Option, command_arguments, declared_options
from ppsim.base.write_outputs import write
from ppsim.cli.click_options import OneOrSeveral, Several, command_with
from ppsim.cli.common import (
    check_outputs,
    full_option,
    json_option,
    output_option_of,
    print_message,
    print_result,
    print_trainer_lines,
    run_config_of,
    scaling_of,
    to_config_option,
    trainer_lines,
    with_command_line,
)
from ppsim.projection.options import TOKENS, PlanOptions
from ppsim.results.progress import searching_layouts
from ppsim.trainers import ConfigTarget
from ppsim.tuning.options import RangeOptions, TuneOptions

if TYPE_CHECKING:
    from ppsim.trainers.run_config import RunConfig
    from ppsim.tuning.search import TuneResult

_SECTIONS = {
    "model": "Model and batch",
    "cluster": "Cluster",
    "tried": "Search ranges",
    "optimizer": "Optimizer and parallelism (the same for all configurations)",
    "search": "Search",
}


_COMMON = (
    "model", "cluster", "gpus", "global_batch", "seq_len", "dtype", "tp", "pp", "vpp", "cp", "ep", "dp",
    "micro_batch", "schedule", "recompute", "zero", "stack", "run_config", "recipe", "to_config", "memory_limit",
    "top", "resume", "outputs", "as_json", "full",
)  # fmt: skip


_REMOVED = {"--workers": "for one search, give --jobs N; for many jobs on Dask or Ray: ppsim sweep"}


class TuneCommandOptions(TuneOptions, total=False):
    """The options of the command, which also compares numbers of GPUs."""

    tokens: Annotated[float | None, TOKENS]
    minimise: Annotated[
        Literal["time", "cost"] | None,
        Option(
            "Order of several numbers of GPUs: by iteration time, or by cost (without --price: GPU hours). "
            "[default: as given]",
            metavar="time|cost", section="cluster",
        ),
    ]  # fmt: skip
    deadline: Annotated[
        float | None,
        Option(
            "Days in which --tokens are to be trained: name the fewest of several numbers of GPUs that meet it, or "
            "exit with 1.",
            metavar="DAYS", section="cluster",
        ),
    ]  # fmt: skip


@command_with(
    TuneCommandOptions, _SECTIONS, common=_COMMON, removed=_REMOVED,
    gpus={"type": OneOrSeveral(click.INT), "metavar": "N[,N,…]"},
)  # fmt: skip
@to_config_option
@json_option
@full_option
@output_option_of(".json answer, .csv/.md table, .html/.svg/.pdf/.png iteration time over memory")
def tune(
    outputs: tuple[str, ...],
    as_json: bool,
    full: bool,
    to_config: ConfigTarget | None,
    tokens: float | None,
    minimise: str | None,
    deadline: float | None,
    **options: Any,
) -> None:
    """Search for the fastest training configurations of a model on N GPUs: layout, schedule and microbatch size.

    \b
      ppsim tune --model llama2-7b --gpus 8 --global-batch-size 64 -o tune.svg
      ppsim tune --recipe llama3-8b/h100/fp8/8gpu@26.08
      ppsim tune --model llama3-8b --gpus 64,128 --global-batch-size 512 --price 2

    Prints the fastest configurations, and the Pareto set of time and memory. Global batch, sequence length and
    dtype do not change.

    The search computes a lower bound of time and memory for each configuration, and simulates those that could be
    among the fastest or in the Pareto set. The result is the same as from simulating all. On the best layouts, the
    search then tries other recomputation, stages per rank and cost-optimised schedules, unless you give their
    ranges.

    Megatron-LM's names of these options are accepted too, for example --tensor-model-parallel-size for --tp.
    """
    from ppsim.api.tune import CHANGED, kept_options, search_of

    numbers = options["gpus"] if isinstance(options["gpus"], Several) else None
    is_compared = numbers is not None or deadline is not None or minimise is not None or tokens is not None
    check_outputs(outputs, SCALING if is_compared else SEARCH, beside=options["resume"])
    _require_comparable(is_compared, tokens, deadline, options, to_config)
    if numbers is not None:
        options["gpus"] = numbers[0]
    config = options["run_config"] = run_config_of(options)
    kept = set(kept_options(options["keep"] or ()))
    started = [name for name in config.options if name in CHANGED and options.get(name) is None] if config else []
    if started := [name for name in started if name not in kept]:
        print_message(f"  the search starts from: {', '.join(started).replace('_', '-')} (--keep NAME keeps one)")
    if is_compared:
        _compare_numbers(
            numbers or [options["gpus"]], options, outputs, tokens, minimise, deadline, as_json=as_json
        )
        return
    search = search_of(options)
    if not sys.stderr.isatty():
        print_message("finding a lower bound of each configuration, then simulating those that may be best")
    with searching_layouts() as show:
        tuned = search(progress=show)
    write(outputs, SEARCH, with_command_line(SearchFileContent(tuned)), announce=print_message)
    lines = trainer_lines(tuned, to_config, options)
    of_recipe = _of_recipe(config, options)
    print_result(tuned, as_json, content=lambda: tuned.to_json() | lines | of_recipe, full=full)
    if of_recipe and not as_json:
        from ppsim.results.catalogues import print_improvement

        print_improvement(
            config.recipe, of_recipe["recipe_iteration_time_s"], tuned.best[0].iteration_time_s,
            _why_longer(config, tuned, of_recipe["recipe_peak_bytes"]),
        )  # fmt: skip
    print_trainer_lines(lines, to_config, as_json=as_json)


def _require_comparable(
    is_compared: bool, tokens: float | None, deadline: float | None, options: Mapping[str, Any], to_config: Any
) -> None:
    if deadline is not None and tokens is None:
        raise ConfigError("--deadline needs --tokens, the number of tokens to train")
    from ppsim.projection.cost import require_training_tokens

    require_training_tokens(tokens)
    if deadline is not None and not deadline > 0:
        raise ConfigError(f"--deadline must be more than 0 days: got {deadline:g}")
    named = {"--resume": options["resume"], "--to-config": to_config}
    if is_compared and (wrong := [flag for flag, given in named.items() if given is not None]):
        raise ConfigError(f"{wrong[0]} is for one search: leave out --tokens, --minimise and lists of --gpus")


def _compare_numbers(
    numbers: Sequence[int], options: dict[str, Any], outputs: tuple[str, ...], tokens: float | None,
    minimise: str | None, deadline: float | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Search each number of GPUs, and print one table with the best configuration of each."""
    from ppsim.api.tune import row_of_search, search_of
    from ppsim.projection.scaling import ERROR

    scaling = scaling_of(
        "gpus", numbers, lambda number: row_of_search(search_of(options | {"gpus": number})(), tokens)
    )
    key = "gpu_hours_per_step" if minimise == "cost" else "iteration_time_s"
    rows = sorted(scaling.rows, key=lambda row: (ERROR in row, row.get(key, 0.0))) if minimise else scaling.rows
    scaling = replace(scaling, rows=rows, deadline_days=deadline)
    print_result(scaling, as_json)
    write(outputs, SCALING, scaling, announce=print_message)
    if not scaling.possible or (deadline is not None and scaling.in_time is None):
        raise click.exceptions.Exit(1)


def _of_recipe(config: "RunConfig | None", options: Mapping[str, Any]) -> dict[str, float]:
    """Project the recipe with the user's options, except the layout."""
    if config is None or config.recipe is None:
        return {}
    from ppsim.api.tune import plan_of_file
    from ppsim.projection.project import outcome_of

    try:
        iteration_s, peak_bytes = outcome_of(plan_of_file(options))
        return {"recipe_iteration_time_s": iteration_s, "recipe_peak_bytes": peak_bytes}
    except ConfigError as error:
        print_message(f"  the recipe itself is not possible with these options: {error}")
        return {}


def _why_longer(config: "RunConfig", tuned: "TuneResult", peak_bytes: float) -> list[str]:
    """Return why a recipe may be faster than all configurations of a search: its memory, and other options."""
    verdict = tuned.question.memory_limit.word(peak_bytes)
    from ppsim.projection.changes import SWITCHES

    declarations, ranges = declared_options(PlanOptions), declared_options(RangeOptions)

    def is_tried(name: str, setting: Any) -> bool:
        if name not in ranges:
            return name in declared_options(TuneOptions) or name in SWITCHES
        in_space = getattr(tuned.space, name) or ()
        return setting in in_space or any(getattr(one.candidate, name) == setting for one in tuned.simulated)

    settings = {name: setting for name, setting in config.options.items() if name in declarations}
    others = [name for name, setting in settings.items() if not is_tried(name, setting)]
    texts = [text for name in others for text in command_arguments(declarations[name], settings[name])]
    reasons = [f"the search does not try {' '.join(texts)}"] if texts else []
    return reasons if verdict == "fits" else [f"the recipe {verdict}", *reasons]
