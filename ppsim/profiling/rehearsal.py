"""What a run does to measured passes: short pipelines of the measured model, beside their projection.

A pass is measured alone and over and over. In a run it is called by the runtime, after a wait that has let caches
and clocks cool, beside as many processes as there are ranks. Two pipelines of the same model, of few layers and of
more, tell both apart: what grows with the layers is the slow-down, what does not is an action's overhead. Passes
vary in them as they will in a run, so that neither holds what the waits of varying passes for each other cost.
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
from ppsim.base.boundary import validated
from ppsim.base.files import read_json, to_json, write_whole
from ppsim.base.units import percent, seconds
from ppsim.catalog.build import build
from ppsim.costs.of_profile import threads
from ppsim.costs.profile import Profile, Rehearsal, Shape
from ppsim.model.shapes import ModelShape
from ppsim.profiling.expect import assumed_rate
from ppsim.profiling.harness import forward_flops
from ppsim.profiling.pace import Pace, Watch
from ppsim.profiling.settings import Key, Say, Settings
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_table
from ppsim.projection.projection import Projection
from ppsim.runs.calibrate import calibrate
from ppsim.runs.recorded import Measured, measured_in, run_of
from ppsim.runs.run import Run
from ppsim.runtime.config import GPTShape, OwnModel, TrainConfig, Turns
from ppsim.runtime.launch import launch_all
from ppsim.schedule.choices import Dtype
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Schedule
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.run import durations_s, overheads_s
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.variation import drawn_steps, relative_spread

ModelOf = Callable[[int], GPTShape | OwnModel]
"""What the runtime trains, by its number of layers."""

FEW, MORE = 1, 3
"""Layers a stage of the two pipelines."""

_SCHEDULE, _MICROBATCHES = "1f1b", 4
"""What is rehearsed, and of how many microbatches a rank: as `ppsim project` has it where nothing else is said."""

_LONG_S = 20.0
"""Of a step of each: from here on a microbatch a rank has to do, since what comes with a pass is nothing to it."""

_LEAST_TURNS, _TURNS = 2, 8
"""How often the two take turns, each a window of a pace that changes: as often as `_REHEARSED_S` allows."""

_TURN_S, _REHEARSED_S = 2.0, 20.0
_PATIENCE = 1.5
"""How much longer turns may take than that on a machine that others use."""

_MOST_STEPS = 15
"""Recorded steps of each pipeline in a turn: as many as projections have time for in `_TURN_S`, 1 at least."""

_STARTED_S = 5.0
"""What a process takes to import torch and to find the others."""

_HALVINGS = 25
"""Of the intervals in which the slow-down and an action's overhead are sought."""

_CALM = 0.1
"""What the pace varies by, at most, where nothing else keeps the cores busy."""

_FURTHEST = 2.0
"""The slow-down is at most so many times that of the passes' medians, and at least as small a part of it."""


def rehearse(
    path: Path, model: ModelShape, key: Key, settings: Settings, *, num_processes: int,
    say: Say = lambda message: None, watch: Watch = lambda pace: None,
) -> None:  # fmt: skip
    """Rehearse the model of a profile file with as many ranks, and write what was found into the file.

    A file that holds such a rehearsal already is left as it is. Raises `RunFailed` where a rank fails.
    """
    content = read_json(path)
    how = {"num_processes": num_processes, "num_threads": settings.num_threads}
    there = content.get("rehearsal") or {}
    if how.items() <= there.items() and there.get("reference_ends_s"):  # else of a version before
        return
    profile = validated(Profile, content | {"rehearsal": None}, str(path))
    found = rehearsal_of(
        profile,
        lambda num_layers: _gpt_of(model, key, num_layers),
        key,
        settings,
        num_processes=num_processes,
        say=say,
        watch=watch,
    )
    write_whole(path, to_json(content | {"rehearsal": found}))


def expected_s(model: ModelShape, key: Key, settings: Settings, num_processes: int) -> float:
    """Return what a rehearsal will take, by FLOPs as `ppsim.profiling.expect` has it."""
    layer, head = forward_flops(model, key)
    rate, _ = assumed_rate("cpu", key.dtype, num_threads=settings.num_threads)
    return _Turns.of([3 * (layers * layer + head) / rate for layers in (FEW, MORE)], num_processes).seconds


def rehearsal_of(
    profile: Profile,
    model_of: ModelOf,
    key: Key,
    settings: Settings,
    *,
    num_processes: int,
    say: Say,
    watch: Watch = lambda pace: None,
) -> dict[str, Any]:
    """Rehearse with as many ranks, and return what a profile file has of it, a `ppsim.costs.profile.Rehearsal`.

    `model_of` gives what the runtime trains, of as many layers as it is told; `watch` is called behind each turn.
    Raises `RunFailed` as `rehearse`.
    """
    conditions = f"{num_processes} processes at once, {threads(settings.num_threads)}"
    shape = profile.shape_at(micro_batch=key.micro_batch, sequence_length=key.sequence_length, tp=1, cp=1, ep=1)
    short = _table(num_processes, 1)
    steps_s = [_projected(profile, shape, short, layers).timeline.step_time_s for layers in (FEW, MORE)]
    turns = _Turns.of([step_s / (2 * num_processes - 1) for step_s in steps_s], num_processes)
    table = _table(num_processes, turns.microbatches)
    say(f"rehearsing with {conditions}: about {seconds(turns.seconds)}")
    pace = Pace(turns.most)

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
    pair = [joined(runs[index::2]) for index in range(2)]
    windows_s = [np.median(one.reference_s, axis=0).tolist() for one in runs]
    found = Rehearsal(
        num_processes=num_processes, num_threads=settings.num_threads,
        **told(profile, shape, pair, windows_s=windows_s), reference_work=runs[0].reference_work,
    )  # fmt: skip
    say(
        f"measured by one process, rehearsed with {conditions}: passes take {found.slowdown:.2f} times as long and "
        f"vary by {percent(relative_spread(tuple(found.pass_factors or ())))}, "
        f"{seconds(found.action_overhead_s)} an action and {seconds(found.hop_overhead_s)} a hop beside; this "
        f"machine's own pace varied by {percent(found.pace_spread)} in {len(runs)} windows"
    )
    if found.pace_spread > _CALM:
        load = f" (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)" if hasattr(os, "getloadavg") else ""
        say(
            f"others keep this machine busy{load}: a run comes no nearer to its projection than that; ppsim "
            f"compare says what the error is at equal pace; measure again, with --start-over, when it is idle"
        )
    return asdict(found)


def told(
    profile: Profile, shape: Shape, pair: Sequence[Measured], *, windows_s: Sequence[Sequence[float]] = ()
) -> dict[str, Any]:
    """Return what measured pipelines of `FEW` and of `MORE` layers a stage tell beside their profile.

    `shape` is the profile's at which they ran, `windows_s` what the reference took each rank in windows of theirs,
    of few and of more in turns: all steps are taken as at the pace of the median ones. Passes vary as they did;
    with the slow-down and the overhead of an action both steps are as long as measured, where an overhead of 0 or
    more makes them so.
    """
    paces: dict[str, Any] = {"reference_s": [], "reference_ends_s": None}
    if windows_s:
        ranks_s, paces = _paces(np.array(windows_s))
        pair = [measured_in(one.run.at_pace(taken_s), 0) for one, taken_s in zip(pair, ranks_s, strict=True)]
    table = pair[0].timeline.graph.schedule
    found = calibrate([one.run for one in pair])
    hop_s = found.hop.value if found.hop else 0.0
    factors = found.spreads.factors or (1.0,)
    projected = [_projected(profile, shape, table, layers) for layers in (FEW, MORE)]
    pipelines = [
        _Pipeline(
            one.timeline, one.costs.replace(hop_overhead_s=hop_s), float(np.median(measured.step_times_s)),
            drawn_steps(one.timeline.graph, factors),
        )
        for one, measured in zip(projected, pair, strict=True)
    ]  # fmt: skip

    def errors(slowdown: float, action_s: float) -> list[float]:
        return [pipe.error(slowdown, action_s) for pipe in pipelines]

    def action_s(slowdown: float) -> float:
        """What an action takes beside a pass, so that the errors of both cancel."""
        return _root(lambda one: sum(errors(slowdown, one)), 0.0, pipelines[-1].measured_s)

    def too_slow(slowdown: float) -> float:
        """How much more is wrong of the longer one, or of both where not even an overhead of 0 is short enough."""
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


def _paces(windows_s: Floats) -> tuple[list[Floats], dict[str, Any]]:
    """What the reference takes the ranks of both pipelines at the median pace, and what a profile has of it.

    Windows, the rows, are of `FEW` and of `MORE` in turns. How they differ is told by those next to each other, as
    much by those that begin with the one as with the other: so a pace that wanders evenly is in neither.
    """
    steps = np.diff(np.log(windows_s), axis=0) * np.where(np.arange(len(windows_s) - 1) % 2, -1.0, 1.0)[:, None]
    more = np.exp(np.mean([np.median(steps[first::2], axis=0) for first in range(min(len(steps), 2))], axis=0))
    as_few = windows_s / np.where(np.arange(len(windows_s)) % 2, more[:, None], 1.0).T
    few_s = np.median(as_few, axis=0)
    grown_s = float(np.mean(few_s * more - few_s)) / (MORE - FEW)
    layer_s = grown_s if grown_s > 0 else float(few_s.mean()) / FEW  # of passes that noise hides
    paces = as_few.sum(axis=1) / few_s.sum()
    return [few_s, few_s * more], {
        "reference_s": (layer_s * paces / np.median(paces)).tolist(),
        "reference_ends_s": (few_s[[0, -1]] - FEW * layer_s).tolist(),
    }


@dataclass(frozen=True)
class _Pipeline:
    """A pipeline as projected from a profile alone, its measured step, and factors of its passes, a row a step."""

    timeline: Timeline
    costs: StageCosts
    measured_s: float
    factors: Floats

    @cached_property
    def _durations_s(self) -> Floats:
        return durations_s(self.timeline.graph, self.timeline.costs)

    def error(self, slowdown: float, action_s: float) -> float:
        """The mean of the drawn steps over the measured one, minus one."""
        graph = self.timeline.graph
        slower = np.where(np.arange(graph.num_nodes) < graph.num_actions, slowdown, 1.0)
        overheads = overheads_s(graph, self.costs.replace(action_overhead_s=action_s))
        steps = evaluate_many(graph, self._durations_s * slower * self.factors, overheads)
        return float(steps.step_time_s.mean()) / self.measured_s - 1


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises crosses 0 between two numbers; the nearer of them where it does not."""
    if rising(low) >= 0:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _projected(profile: Profile, shape: Shape, table: Schedule, layers: int) -> Projection:
    """The projection of so many layers a stage, from passes as they were measured alone, which do not vary."""
    pp = table.num_ranks
    plan = Plan(
        pp=pp, profile=replace(profile, rehearsal=None), shape=shape, num_layers=layers * pp,
        split=[layers] * pp, pass_factors=(1.0,),
    )  # fmt: skip
    return project_table(plan, table)


def _table(num_processes: int, microbatches: int) -> Schedule:
    """What is rehearsed, of so many microbatches a rank."""
    return build(_SCHEDULE, pp=num_processes, microbatches=microbatches * num_processes)


@dataclass(frozen=True)
class _Turns:
    """How pipelines take turns: how often, microbatches a rank, steps of each, and what all take, in seconds.

    Before steps that take long nothing warms up but the reference, which has used all memory by then.
    """

    most: int
    microbatches: int
    num_steps: int
    num_warm_up: int
    seconds: float

    @classmethod
    def of(cls, passes_s: Sequence[float], num_processes: int) -> "_Turns":
        """Return those of pipelines whose F and B take the slowest rank so long."""
        both_s = sum(passes_s)
        is_long = (_MICROBATCHES * num_processes + num_processes - 1) * both_s > _LONG_S
        microbatches = 1 if is_long else _MICROBATCHES
        step_s = (microbatches * num_processes + num_processes - 1) * both_s
        num_steps = min(_MOST_STEPS, max(1, int(_TURN_S / step_s)))
        turn_s = num_steps * step_s + (num_steps + 1) * both_s  # with the reference, around each step
        most = min(_TURNS, max(_LEAST_TURNS, int(_REHEARSED_S / turn_s)))
        num_warm_up = 0 if is_long else 1
        return cls(most, microbatches, num_steps, num_warm_up, most * turn_s + num_warm_up * step_s + _STARTED_S)

    @property
    def turns(self) -> Turns:
        """As many, fewer where they take longer."""
        return Turns(self.most, min(_LEAST_TURNS, self.most), _PATIENCE * _REHEARSED_S)


def _gpt_of(model: ModelShape, key: Key, num_layers: int) -> GPTShape:
    layer = model.layer
    return GPTShape(num_layers, layer.hidden_size, layer.num_heads, key.sequence_length, model.vocab_size)


def joined(turns: Sequence[Run]) -> Measured:
    """Return the steps of several runs of one table as those of one run."""
    start, end = (np.concatenate([getattr(one, name) for one in turns]) for name in ("start", "end"))
    references = [ranks for one in turns for ranks in one.reference_s]
    return measured_in(replace(turns[0], start=start, end=end, reference_s=references, gaps_s=()), 0)


def _grown(costs: Sequence[StageCosts]) -> float:
    """By how much F and B of all stages take longer with `MORE` layers than with `FEW`."""
    few, more = (float(np.sum(one.forward_s) + np.sum(cast(Any, one.backward_s))) for one in costs)
    return more - few
