"""Training runs with torch."""

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ppsim.api.keyword_options import accept_options
from ppsim.api.option_values import parse_split
from ppsim.api.run_result import RunResult
from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors, to_json, write_atomically
from ppsim.base.name_lookup import NameLookup
from ppsim.base.option_declarations import declared_options, field_values, flag_of, require_least, with_defaults
from ppsim.catalog.build import build
from ppsim.model.pipeline_stages import plans_of_stages
from ppsim.model.recompute import LayerPlan, is_by_stage, recompute_of, require_layers, words_of_layers
from ppsim.parallel.layer_partition import counts_of, even_split, given_split
from ppsim.runs.timeline_import import ImportedRun, import_result, require_agreement
from ppsim.runtime.launch import is_worker, launch, require_device, require_extra
from ppsim.runtime.options import DEFAULT_MODEL, TrainOptions
from ppsim.runtime.train_config import MODELS, GPTShape, TrainConfig, UserModel
from ppsim.schedule.check import compute_for
from ppsim.schedule.grammar import format_table, read_schedule
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Schedule
from ppsim.simulation.cost_files import costs_to_json, message_bytes_in, read_costs
from ppsim.simulation.stage_costs import StageCosts
from ppsim.trainers.torch.write_schedule import why_not_loaded

_WORDS = declared_options(TrainOptions)


@dataclass(frozen=True, repr=False)
class TrainResult(RunResult):
    """A training run: its recorded steps, the timeline of the median step, losses and metadata.

    `facts` is the part `run` of the output of `ppsim train --json`.

    >>> import ppsim
    >>> run = ppsim.train(ppsim.build("zb-h1", pp=2, microbatches=2), model="nano", partitions=2, steps=2)
    >>> len(run.step_times_s), run.losses[-1] < run.losses[0]
    (2, True)
    """

    config: TrainConfig

    @property
    def losses(self) -> list[float]:
        """Warm-up steps are included."""
        return list(self.facts["losses"])

    @property
    def title(self) -> str:
        return f"{self.timeline.schedule.name}, measured"


@accept_options(TrainOptions)
def train(table: Schedule | str | Path, **options: Unpack[TrainOptions]) -> TrainResult:
    """Execute a schedule with torch, and return losses and the measured timeline.

    Options and defaults are as for `ppsim train`. `module` names the function that makes a user's own model
    (docs/howto/own_model.md). `table` (the schedule) and `emulate_costs` may be files. With `emulate_costs`, ranks
    wait for these times instead of computing. `partitions` runs all ranks in this process.

    Raises `MissingExtra` without torch, `ConfigError` for invalid options, `RunFailed` if a rank fails or `verify`
    finds a difference.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=2, microbatches=2)
    >>> run = ppsim.train(table, model="nano", partitions=2, steps=1)
    >>> run.timeline.origin, len(run.losses)
    ('measured', 2)
    """
    require_extra("ppsim train")
    if is_worker():
        raise ConfigError("ppsim.train starts the ranks itself: under torchrun, use `python -m ppsim train`")
    given = with_defaults(_WORDS, options)
    with as_files(table, given["emulate_costs"]) as (schedule, costs):
        trained = train_from(given | {"schedule": schedule, "emulate_costs": costs})
    assert trained is not None, "only a worker of torchrun has no result"
    require_verified(trained)
    return trained


@contextmanager
def as_files(table: Schedule | str | Path, costs: Any) -> Iterator[tuple[str, str | None]]:
    """Objects are written to a temporary folder, because the processes of a run read files."""
    with tempfile.TemporaryDirectory(prefix="ppsim-") as folder:
        if isinstance(table, Schedule):
            path = Path(folder) / f"{table.name or 'table'}.csv"
            write_atomically(path, format_table(table))
        else:
            path = Path(table)
        if isinstance(costs, StageCosts):
            costs_path = Path(folder) / "costs.json"
            write_atomically(costs_path, to_json(costs_to_json(costs)))
            costs = costs_path
        yield str(path), None if costs is None else str(costs)


def table_from(
    schedule: str | None, *, pp: int | None, vpp: int | None, microbatches: int | None
) -> Schedule | str:
    if pp is None:
        if schedule is None:
            raise ConfigError("--schedule T.csv must be given, or --pp N with a schedule's name")
        if vpp is not None or microbatches is not None:
            raise ConfigError(
                f"--vpp and --num-microbatches are for --pp, which builds a table: leave them out for {schedule}"
            )
        return schedule
    if schedule is not None and schedule.endswith(".csv"):
        raise ConfigError(f"{schedule} says how many ranks it has: leave out --pp, or name a schedule")
    name = schedule or ("1f1b" if vpp in (None, 1) else "interleaved-1f1b")
    return build(name, pp=pp, vpp=vpp, microbatches=4 * pp if microbatches is None else microbatches)


def require_verified(trained: TrainResult) -> None:
    require_agreement(trained.facts["differences"], trained.config.dtype)


def train_from(options: Mapping[str, Any]) -> TrainResult | None:
    """Return None in torchrun workers other than the first; a difference that `verify` finds raises no error."""
    if options["trace"] is not None and not Path(options["trace"]).is_dir():
        raise ConfigError(f"--trace {options['trace']}: there is no such folder; make it first")
    table = read_schedule(options["schedule"])
    with prefix_errors(options["schedule"]):
        compute_for("ppsim train", table)
        build_graph(table)
    if options["partitions"] is not None:
        _check_partitions(table, options)
    elif reason := why_not_loaded(table, version("torch")):
        raise ConfigError(f"{options['schedule']}: {reason}")
    config = _train_config(table, options)
    costs = _emulated(config, table)
    if options["partitions"] is not None:
        from ppsim.runtime.partitions import run_partitions

        result: dict[str, Any] | None = run_partitions(config)
    elif is_worker():
        from ppsim.runtime.worker import run_all

        results = run_all([config])
        result = results[0] if results else None
    else:
        result = launch(config)
    if result is None:
        return None
    measured = import_result(result, table, costs, message_bytes=_message_bytes(config))
    return TrainResult(measured, _facts(config, result, measured), config)


def _emulated(config: TrainConfig, table: Schedule) -> StageCosts | None:
    if config.emulate_costs is None:
        return None
    given = read_costs(config.emulate_costs)
    with prefix_errors(config.emulate_costs):
        given.resolved_for(table)
    if "transfer_s" in given.resolved_for(table).by_microbatch and np.any(given.transfer_s):
        raise ConfigError(
            f"{config.emulate_costs}: transfers that differ by microbatch cannot be emulated, since a hop takes as "
            f"long for each: give one number per stage"
        )
    costs = given.with_torch_first_stage(num_stages=table.num_stages, num_ranks=table.num_ranks)
    build_graph(table, channel=costs.channel, receives=config.receives)
    return costs


def _check_partitions(table: Schedule, options: Mapping[str, Any]) -> None:
    if options["nproc"] is not None or is_worker():
        raise ConfigError("--partitions runs all ranks in one process: leave out --nproc and torchrun")
    if options["trace"] is not None:
        raise ConfigError("--trace is for the ranks of torch's runtime, which --partitions does without")
    from ppsim.runtime.partitions import check_partitions

    costs = read_costs(options["emulate_costs"]) if options["emulate_costs"] else None
    check_partitions(table, options["schedule"], options["partitions"], options["device"], costs)


def _train_config(table: Schedule, options: Mapping[str, Any]) -> TrainConfig:
    nproc = table.num_ranks if options["nproc"] is None else options["nproc"]
    if nproc != table.num_ranks:
        raise ConfigError(f"{options['schedule']} has {table.num_ranks} ranks: got --nproc {nproc}")
    if options["steps"] < 1 or options["warm_up"] < 0:
        raise ConfigError(
            f"--steps must be at least 1, --warm-up not negative: got {options['steps']} and {options['warm_up']}"
        )
    if not 0 < options["timeout"] <= threading.TIMEOUT_MAX:
        raise ConfigError(
            f"--timeout must be more than 0 and at most {threading.TIMEOUT_MAX:g} seconds: got "
            f"{options['timeout']:g}"
        )
    for option in ("micro_batch", "threads"):
        require_least(option, options[option])
    for name in ("recompute", "stage_plan"):
        if options[name] not in (None, "none") and options["emulate_costs"] is not None:
            flag = _WORDS[name].flag
            raise ConfigError(f"--emulate-costs waits as long as it says, recomputation and all: leave out {flag}")
    require_device(options["device"])
    trace = None if options["trace"] is None else str(options["trace"])
    given = {**options, "straggling_steps": _straggling(options), "trace": trace}
    if options["module"] is None:
        shape = _shape(options)
        layers, given["recompute"], plans = _planned(shape.num_layers, table, options)
        model: GPTShape | UserModel = shape
    else:
        model, layers, given["dtype"] = _own_model(table, options)
        plans = None
    return TrainConfig(
        schedule=options["schedule"],
        num_ranks=table.num_ranks,
        model=model,
        layers_per_stage=layers,
        layer_plans=plans,
        **field_values(_WORDS, given),
    )


def _straggling(options: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    steps: Mapping[int, float] = options["straggling_steps"] or {}
    if steps and options["emulate_costs"] is None:
        raise ConfigError("--straggling-step is for --emulate-costs: steps that compute take what they take")
    for step, factor in steps.items():
        if not (0 <= step < options["steps"] and 0 < factor < float("inf")):
            raise ConfigError(
                f"--straggling-step names one of the {options['steps']} recorded steps, from 0 on, and a factor "
                f"above 0: got {step}:{factor:g}"
            )
    return tuple(steps.items())


def _planned(
    num_layers: int, table: Schedule, options: Mapping[str, Any]
) -> tuple[list[int], str, list[list[LayerPlan]] | None]:
    text = recompute_of(options["recompute"] or "none")
    texts = [text] * table.num_stages
    if options["stage_plan"] is None:
        layers = _layers(num_layers, table, options)
        if not is_by_stage(text):
            _require_whole_layers([text])
            return layers, text, None
    else:
        from ppsim.api.plan_file import read_stages

        file = read_stages(options["stage_plan"])
        asked = None if isinstance(split := parse_split(options["split"]), str) else split
        if len(file.stages) != table.num_stages:
            raise ConfigError(f"{file.path} has {len(file.stages)} stages, but the table has {table.num_stages}")
        layers = _layers(num_layers, table, dict(options) | {"split": file.split(asked) or options["split"]})
        texts = [text if stage.recompute is None else stage.recompute for stage in file.stages]
        if offloaded := [at for at, stage in enumerate(file.stages) if stage.offload_modules]:
            raise ConfigError(
                f"{file.path}: train offloads nothing: leave out offload_modules of stage {offloaded[0]}"
            )
        text = f"by {file.path.name}"
    _require_whole_layers([word for one in texts for word in words_of_layers(one)])
    for one in texts:
        require_layers(one, num_layers)
    stages = plans_of_stages(layers, texts, [table.stages_of(rank) for rank in range(table.num_ranks)])
    return layers, text, [list(stage) for stage in stages]


def _require_whole_layers(words: Sequence[str]) -> None:
    """The GPT of a run has no modules that can be recomputed alone."""
    if wrong := [word for word in words if word not in ("none", "full")]:
        raise ConfigError(f"train recomputes whole layers: got recompute {wrong[0]} (nearest: full)")


def _layers(num_layers: int, table: Schedule, options: Mapping[str, Any]) -> list[int]:
    split, num_stages = parse_split(options["split"]), table.num_stages
    layers = even_split(num_layers, num_stages) if isinstance(split, str) else (
        given_split(counts_of(split), num_layers, num_stages)
    )  # fmt: skip
    empty = [stage for stage in range(1, num_stages - 1) if layers[stage] == 0]
    if empty and not options["emulate_costs"]:
        raise ConfigError(
            f"stage {empty[0]} would hold no layer: {num_layers} layers for {num_stages} stages "
            f"(--layers {num_stages} gives each one)"
        )
    return layers


def _shape(options: Mapping[str, Any]) -> GPTShape:
    name = options["model"] or DEFAULT_MODEL
    names = NameLookup("model", MODELS)
    if (full_name := names.find(name)) is None:
        raise ConfigError(names.unknown(name))
    return replace(MODELS[full_name], **field_values(_WORDS, options, "model"))


_OF_GPTS = ("model", "hidden", "heads", "seq_len", "dtype", "recompute", "stage_plan")
"""Options of the GPT, which do not apply to --module."""


def _own_model(table: Schedule, options: Mapping[str, Any]) -> tuple[UserModel, list[int], str]:
    """The model is tested with one microbatch."""
    from ppsim.runtime.user_model import check_user_model, function_of, limit_time

    if wrong := [name for name in _OF_GPTS if options[name] is not None]:
        raise ConfigError(f"--module says what is trained: leave out {flag_of(wrong[0])}")
    if options["emulate_costs"] is not None:
        raise ConfigError("--emulate-costs waits instead of computing, so that no --module is run: leave one out")
    with limit_time(options["module"], options["timeout"]):
        function = function_of(options["module"])
        num_layers = function.num_layers(options["layers"])
        layers = _layers(num_layers, table, options)
        boundaries, dtype = check_user_model(
            function, layers, micro_batch=options["micro_batch"], seed=options["seed"], device=options["device"],
            splits=table.splits_backward,
        )  # fmt: skip
    return UserModel(function.where, num_layers, boundaries), layers, dtype


def _message_bytes(config: TrainConfig) -> float | None:
    if config.emulate_costs is not None:
        return message_bytes_in(config.emulate_costs)
    if isinstance(config.model, UserModel):
        return max((float(boundary.num_bytes) for boundary in config.model.boundaries[1:-1]), default=None)
    element = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}[config.dtype]
    return config.micro_batch * config.model.sequence_length * config.model.hidden_size * element


def _facts(config: TrainConfig, result: dict[str, Any], measured: ImportedRun) -> dict[str, Any]:
    return {
        "torch": result["torch"],
        "device": config.device,
        "emulated": config.emulate_costs is not None,
        "num_warm_up": config.num_warm_up,
        "step_times_s": measured.step_times_s,
        "between_steps_s": list(measured.run.gaps_s),
        "optimizer_s": result["optimizer_s"][config.num_warm_up :],
        "chosen_step": measured.chosen_step,
        "losses": result["losses"],
        "differences": result["differences"],
        "memory": result["memory"],
        **{name: result[name] for name in ("attention", "partitions") if name in result},
    }
