"""Calibration run: short pipelines of the measured model, compared with their projection.

Two pipelines, with few and with more layers, separate the slow-down, which grows with the layers, from the overhead
per action.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.file_schema import validated
from ppsim.base.files import read_json, to_json, write_atomically
from ppsim.base.units import percent, seconds
from ppsim.catalog.build import build
from ppsim.costs.assemble_profile import threads_in_words
from ppsim.costs.profile import CalibrationRun, Profile, Shape
from ppsim.model.shapes import ModelShape
from ppsim.profiling.duration_estimate import assumed_rate
from ppsim.profiling.harness import forward_flops
from ppsim.profiling.measuring_progress import MeasuringProgress, Watch
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_table
from ppsim.projection.projection import Projection
from ppsim.runs.calibrate import calibrate
from ppsim.runs.run import Run
from ppsim.runs.timeline_import import ImportedRun, import_run, run_of
from ppsim.runtime.launch import launch_all
from ppsim.runtime.train_config import GPTShape, TrainConfig, TurnLimits, UserModel
from ppsim.schedule.grammar import format_table
from ppsim.schedule.option_types import Dtype
from ppsim.schedule.table import Schedule
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.simulate import durations_s, overheads_s
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.variation import relative_spread, simulate_samples

ModelOf = Callable[[int], GPTShape | UserModel]
"""Builds the model that the runtime trains, from its number of layers."""

FEW, MORE = 1, 3
"""Layers per stage of the two pipelines."""

_SCHEDULE, _MICROBATCHES = "1f1b", 4
"""Schedule of the calibration run, and its microbatches per rank: the defaults of `ppsim project`."""

_LONG_S = 20.0
"""If a step of each pipeline takes longer in total, one microbatch per rank is enough: overheads are negligible."""

_LEAST_TURNS, _TURNS = 2, 8
"""Minimum and maximum number of turns, which should fit into `_CALIBRATION_LIMIT_S`.

In a turn both pipelines run once, so that each turn samples the machine speed.
"""

_TURN_S, _CALIBRATION_LIMIT_S = 2.0, 20.0
_PATIENCE = 1.5
"""Factor by which turns may exceed `_CALIBRATION_LIMIT_S` on a machine that others use."""

_MOST_STEPS = 15
"""Maximum number of recorded steps per pipeline and turn. By projection, they must also fit into `_TURN_S`."""

_STARTED_S = 5.0
"""Seconds for a process to import torch and connect to the others."""

_HALVINGS = 25
"""Number of interval halvings in the search for the slow-down and the overhead per action."""

_CALM = 0.1
"""Maximum variation of the machine speed if nothing else keeps the cores busy."""

_FURTHEST = 2.0
"""Search range of the slow-down: this factor in both directions around the slow-down of the actions' medians."""


def run_calibration(
    path: Path, model: ModelShape, key: MeasurementKey, settings: MeasuringSettings, *, num_processes: int,
    say: Say = lambda message: None, watch: Watch = lambda pace: None,
) -> None:  # fmt: skip
    """Do a calibration run for the model of a profile file, and write the result into the file.

    A calibration run in the file is kept if its conditions were the same. Raises `RunFailed` if a rank fails.
    """
    content = read_json(path)
    how = {"num_processes": num_processes, "num_threads": settings.num_threads}
    there = content.get("rehearsal") or {}
    if how.items() <= there.items() and there.get("reference_ends_s"):  # else written by an older version
        return
    profile = validated(Profile, content | {"rehearsal": None}, str(path))
    rehearsal = rehearsal_of(
        profile,
        lambda num_layers: _gpt_of(model, key, num_layers),
        key,
        settings,
        num_processes=num_processes,
        say=say,
        watch=watch,
    )
    write_atomically(path, to_json(content | {"rehearsal": rehearsal}))


def expected_s(model: ModelShape, key: MeasurementKey, settings: MeasuringSettings, num_processes: int) -> float:
    layer, head = forward_flops(model, key)
    rate, _ = assumed_rate("cpu", key.dtype, num_threads=settings.num_threads)
    return _Turns.of([3 * (layers * layer + head) / rate for layers in (FEW, MORE)], num_processes).seconds


def rehearsal_of(
    profile: Profile,
    model_of: ModelOf,
    key: MeasurementKey,
    settings: MeasuringSettings,
    *,
    num_processes: int,
    say: Say,
    watch: Watch = lambda pace: None,
) -> dict[str, Any]:
    """Do a calibration run for a profile, and return it as fields of `CalibrationRun`; raises `RunFailed`."""
    conditions = f"{num_processes} processes at once, {threads_in_words(settings.num_threads)}"
    shape = profile.shape_at(micro_batch=key.micro_batch, sequence_length=key.sequence_length, tp=1, cp=1, ep=1)
    short = _table(num_processes, 1)
    steps_s = [_projected(profile, shape, short, layers).timeline.step_time_s for layers in (FEW, MORE)]
    turns = _Turns.of([step_s / (2 * num_processes - 1) for step_s in steps_s], num_processes)
    table = _table(num_processes, turns.microbatches)
    say(f"calibration run with {conditions}: about {seconds(turns.seconds)}")
    pace = MeasuringProgress(turns.most)

    def watched(done: int) -> None:
        pace.done(1)
        watch(pace)

    with tempfile.TemporaryDirectory(prefix="ppsim-rehearsal-") as folder:
        path = Path(folder) / "table.csv"
        path.write_text(format_table(table))
        configs = [
            TrainConfig(
                schedule=str(path), num_ranks=num_processes, model=model_of(layers * num_processes),
                layers_per_stage=[layers] * num_processes, micro_batch=key.micro_batch,
                num_steps=turns.num_steps, num_warm_up=turns.num_warm_up, dtype=cast(Dtype, key.dtype),
                recompute=cast(Any, key.recompute),
                num_threads=settings.num_threads, timeout_s=max(120.0, 2 * turns.seconds),
            )
            for layers in (FEW, MORE)
        ]  # fmt: skip
        results = launch_all(configs, quiet=True, turns=turns.turns, watch=watched)
    runs = [run_of(one, table, None, source="") for one in results]
    pair = [join_turns(runs[index::2]) for index in range(2)]
    reference_times_s = [np.median(run.reference_s, axis=0).tolist() for run in runs]
    rehearsal = CalibrationRun(
        num_processes=num_processes, num_threads=settings.num_threads,
        **fit_overheads(profile, shape, pair, reference_times_s=reference_times_s),
        reference_work=runs[0].reference_work,
    )  # fmt: skip
    say(
        f"calibration run with {conditions}: actions take {rehearsal.slowdown:.2f} times as long as with one "
        f"process, and vary by {percent(relative_spread(tuple(rehearsal.pass_factors or ())))}; host time per "
        f"action {seconds(rehearsal.action_overhead_s)}, fixed overhead per P2P transfer "
        f"{seconds(rehearsal.hop_overhead_s)}; the machine speed varied by {percent(rehearsal.pace_spread)} in "
        f"{len(runs)} runs"
    )
    if rehearsal.pace_spread > _CALM:
        load = f" (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)" if hasattr(os, "getloadavg") else ""
        say(
            f"other programs use this machine{load}: the error of a run can be as large as this variation; ppsim "
            f"compare prints the error at equal speed; measure again, with --start-over, when the machine is idle"
        )
    return asdict(rehearsal)


def fit_overheads(
    profile: Profile,
    shape: Shape,
    pair: Sequence[ImportedRun],
    *,
    reference_times_s: Sequence[Sequence[float]] = (),
) -> dict[str, Any]:
    """Return the constants fitted to measured pipelines with `FEW` and with `MORE` layers per stage.

    `reference_times_s` has reference times per run of a pipeline (window) and rank, alternately for few and for
    more layers. With the slow-down, the overhead per action and the measured variation of action times, both
    projected steps take as long as the measured steps.
    """
    paces: dict[str, Any] = {"reference_s": [], "reference_ends_s": None}
    if reference_times_s:
        ranks_s, paces = _paces(np.array(reference_times_s))
        pair = [import_run(one.run.at_pace(taken_s), 0) for one, taken_s in zip(pair, ranks_s, strict=True)]
    table = pair[0].timeline.graph.schedule
    overheads = calibrate([one.run for one in pair])
    hop_s = overheads.hop.value if overheads.hop else 0.0
    factors = overheads.spreads.factors or (1.0,)
    projected = [_projected(profile, shape, table, layers) for layers in (FEW, MORE)]
    pipelines = [
        _Pipeline(
            one.timeline, one.costs.replace(hop_overhead_s=hop_s), float(np.median(measured.step_times_s)),
            simulate_samples(one.timeline.graph, factors),
        )
        for one, measured in zip(projected, pair, strict=True)
    ]  # fmt: skip

    def errors(slowdown: float, action_s: float) -> list[float]:
        return [pipe.error(slowdown, action_s) for pipe in pipelines]

    def action_s(slowdown: float) -> float:
        """Overhead per action at which the errors of both pipelines cancel."""
        return _root(lambda one: sum(errors(slowdown, one)), 0.0, pipelines[-1].measured_s)

    def too_slow(slowdown: float) -> float:
        """Positive if the slow-down is too large.

        Then the longer pipeline's error exceeds the shorter one's, or both are too long even without overhead.
        """
        few, more = errors(slowdown, action_s(slowdown))
        return max(more - few, sum(errors(slowdown, 0.0)))

    grown, by_profile = _grown([one.costs for one in pair]), _grown([one.costs for one in projected])
    of_passes = grown / by_profile if grown > 0 and by_profile > 0 else 1.0
    slowdown = _root(too_slow, of_passes / _FURTHEST, of_passes * _FURTHEST)
    quartiles = [np.quantile(one.step_times_s, [0.25, 0.75]) for one in pair]
    spread = max(
        (upper - lower) / pipe.measured_s for (lower, upper), pipe in zip(quartiles, pipelines, strict=True)
    )
    return {
        "slowdown": slowdown, "action_overhead_s": action_s(slowdown), "hop_overhead_s": hop_s,
        "step_spread": float(spread), "pass_factors": list(factors), **paces,
    }  # fmt: skip


def _paces(reference_times_s: Floats) -> tuple[list[Floats], dict[str, Any]]:
    """Return the ranks' reference times at the median machine speed, and their entries in a profile.

    Windows with `FEW` and with `MORE` layers alternate. The ratio of their times is the mean of two medians: over
    changes from few to more layers, and over changes from more to few. A steady drift therefore cancels.
    """
    steps = (
        np.diff(np.log(reference_times_s), axis=0)
        * np.where(np.arange(len(reference_times_s) - 1) % 2, -1.0, 1.0)[:, None]
    )
    more = np.exp(np.mean([np.median(steps[first::2], axis=0) for first in range(min(len(steps), 2))], axis=0))
    as_few = reference_times_s / np.where(np.arange(len(reference_times_s)) % 2, more[:, None], 1.0).T
    few_s = np.median(as_few, axis=0)
    grown_s = float(np.mean(few_s * more - few_s)) / (MORE - FEW)
    layer_s = grown_s if grown_s > 0 else float(few_s.mean()) / FEW  # if noise hides the growth with the layers
    paces = as_few.sum(axis=1) / few_s.sum()
    return [few_s, few_s * more], {
        "reference_s": (layer_s * paces / np.median(paces)).tolist(),
        "reference_ends_s": (few_s[[0, -1]] - FEW * layer_s).tolist(),
    }


@dataclass(frozen=True)
class _Pipeline:
    """A projected pipeline, its measured step, and random factors per step and action."""

    timeline: Timeline
    costs: StageCosts
    measured_s: float
    factors: Floats

    @cached_property
    def _durations_s(self) -> Floats:
        return durations_s(self.timeline.graph, self.timeline.costs)

    def error(self, slowdown: float, action_s: float) -> float:
        graph = self.timeline.graph
        slower = np.where(np.arange(graph.num_nodes) < graph.num_actions, slowdown, 1.0)
        overheads = overheads_s(graph, self.costs.replace(action_overhead_s=action_s))
        steps = evaluate_many(graph, self._durations_s * slower * self.factors, overheads)
        return float(steps.step_time_s.mean()) / self.measured_s - 1


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of an increasing function, or the nearer end if there is none."""
    if rising(low) >= 0:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _projected(profile: Profile, shape: Shape, table: Schedule, layers: int) -> Projection:
    pp = table.num_ranks
    plan = Plan(
        pp=pp, profile=replace(profile, rehearsal=None), shape=shape, num_layers=layers * pp,
        split=[layers] * pp, pass_factors=(1.0,),
    )  # fmt: skip
    return project_table(plan, table)


def _table(num_processes: int, microbatches: int) -> Schedule:
    return build(_SCHEDULE, pp=num_processes, microbatches=microbatches * num_processes)


@dataclass(frozen=True)
class _Turns:
    """Number of turns of both pipelines, microbatches per rank, and steps per turn.

    Long steps have no warm-up: the reference work, which runs first, has touched all memory by then.
    """

    most: int
    microbatches: int
    num_steps: int
    num_warm_up: int
    seconds: float

    @classmethod
    def of(cls, passes_s: Sequence[float], num_processes: int) -> "_Turns":
        """`passes_s` has the seconds of F and B per microbatch, for each pipeline."""
        both_s = sum(passes_s)
        is_long = (_MICROBATCHES * num_processes + num_processes - 1) * both_s > _LONG_S
        microbatches = 1 if is_long else _MICROBATCHES
        step_s = (microbatches * num_processes + num_processes - 1) * both_s
        num_steps = min(_MOST_STEPS, max(1, int(_TURN_S / step_s)))
        turn_s = num_steps * step_s + (num_steps + 1) * both_s  # with the reference work around each step
        most = min(_TURNS, max(_LEAST_TURNS, int(_CALIBRATION_LIMIT_S / turn_s)))
        num_warm_up = 0 if is_long else 1
        return cls(most, microbatches, num_steps, num_warm_up, most * turn_s + num_warm_up * step_s + _STARTED_S)

    @property
    def turns(self) -> TurnLimits:
        return TurnLimits(self.most, min(_LEAST_TURNS, self.most), _PATIENCE * _CALIBRATION_LIMIT_S)


def _gpt_of(model: ModelShape, key: MeasurementKey, num_layers: int) -> GPTShape:
    layer = model.layer
    return GPTShape(num_layers, layer.hidden_size, layer.num_heads, key.sequence_length, model.vocab_size)


def join_turns(turns: Sequence[Run]) -> ImportedRun:
    start, end = (np.concatenate([getattr(turn, name) for turn in turns]) for name in ("start", "end"))
    references = [ranks for turn in turns for ranks in turn.reference_s]
    return import_run(replace(turns[0], start=start, end=end, reference_s=references, gaps_s=()), 0)


def _grown(costs: Sequence[StageCosts]) -> float:
    few, more = (float(np.sum(cost.forward_s) + np.sum(cast(Any, cost.backward_s))) for cost in costs)
    return more - few
