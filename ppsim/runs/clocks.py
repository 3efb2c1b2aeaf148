"""Align the clocks of ranks by their messages: no action may start before its input has been made.

A message ready at eₐ (clock of a) and used at s_b (clock of b) bounds the offsets: oₐ − o_b ≤ s_b − eₐ. As in the
Network Time Protocol, the result is the middle of the remaining range.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds
from ppsim.runs.run import Run, gaps_between
from ppsim.schedule.table import last_of_cell

_SLACK_S = 2e-6
"""Seconds per clock by which a message may seem to arrive before it was sent, due to the clocks' resolution."""

_MOST_DRIFT = 2e-4
"""Largest relative difference of two clocks' speeds. Quartz oscillators differ by less than 1e-4."""


@dataclass(frozen=True)
class Alignment:
    """Result of a clock alignment.

    `uncertainty_s` is half of the widest range that the messages allow for a clock's offset to the first clock,
    given the offsets of the clocks before it; infinite with messages in one direction only. `hop_s` is the shortest
    P2P transfer between two clocks. `drift` is the largest relative difference of the clocks' speeds, 0 if constant
    offsets align them.
    """

    num_clocks: int
    uncertainty_s: float
    hop_s: float
    drift: float = 0.0


def align_clocks(run: Run, clocks: Sequence[int], *, by_step: bool) -> tuple[Run, Alignment | None]:
    """Return a run with all ranks on one clock, and the alignment (None if they already share a clock).

    `clocks` has the number of each rank's clock. With `by_step`, clocks restart in every step. Raises `ConfigError`
    if messages do not determine the offsets.
    """
    clock_of_rank = np.unique(np.array(clocks), return_inverse=True)[1]
    num_clocks = int(clock_of_rank.max()) + 1
    if num_clocks == 1:
        return run, None
    graph, actions, drift = run.graph, run.graph.num_actions, 0.0
    bounds = _bounds(run, clock_of_rank)
    if not by_step:
        if _closed(bounds.min(axis=0)).diagonal().min() < -_SLACK_S * num_clocks:
            run, drift = _without_drift(run, clock_of_rank, bounds)
            bounds = _bounds(run, clock_of_rank)
        bounds = bounds.min(axis=0, keepdims=True)
    offsets = np.zeros((len(bounds), num_clocks))
    widths, hops = np.zeros(len(bounds)), np.zeros(len(bounds))
    for step, bound in enumerate(bounds):
        closed = _closed(bound)
        _require_order(closed, clock_of_rank, run.source)
        offsets[step], widths[step] = _middles(closed, run.source)
        sure = np.isfinite(bound) & ~np.eye(num_clocks, dtype=bool)
        hops[step] = (bound - offsets[step][:, None] + offsets[step][None, :])[sure].min()
    shift = offsets[:, clock_of_rank[graph.schedule.rank]]
    start, end = run.start.copy(), run.end.copy()
    start[:, :actions] += shift
    end[:, :actions] += shift
    known = run.knows_transfers
    made = last_of_cell(graph.schedule)[graph.source]
    sent = shift[:, graph.source] if known else end[:, made] - start[:, actions:]
    start[:, actions:] += sent
    end[:, actions:] += shift[:, graph.target] if known else end[:, made] - end[:, actions:]
    moved = replace(run, start=start, end=end, gaps_s=() if by_step else gaps_between(graph, start, end))
    return moved, Alignment(num_clocks, float(widths.max()), float(np.median(hops)), drift)


def _bounds(run: Run, clock_of_rank: Ints64) -> Floats:
    """Upper bounds of offset(clock a) − offset(clock b) from the messages of each step, [steps, a, b]."""
    graph, num_clocks = run.graph, int(clock_of_rank.max()) + 1
    clock = clock_of_rank[graph.schedule.rank]
    made = last_of_cell(graph.schedule)[graph.source]
    bounds = np.full((len(run.start), num_clocks, num_clocks), np.inf)
    bounds[:, range(num_clocks), range(num_clocks)] = 0.0
    for bound, start, end in zip(bounds, run.start, run.end, strict=True):
        np.minimum.at(bound, (clock[graph.source], clock[graph.target]), start[graph.target] - end[made])
    return bounds


def _without_drift(run: Run, clock_of_rank: Ints64, bounds: Floats) -> tuple[Run, float]:
    """Return a run whose clocks have the speed of the first clock, and the largest difference of their speeds.

    The middle of two clocks' bounds follows their offset from step to step. Each clock is compared with one before
    it that it has messages with. A difference that no real clock has is left.
    """
    graph, half = run.graph, len(run.start) // 2
    begin = run.start[:, : graph.num_actions].min(axis=1)
    finite = np.where(np.isfinite(bounds), bounds, np.nan)
    middles = (finite - finite.transpose(0, 2, 1)) / 2
    changes = (middles[-half:] - middles[:half]) / (begin[-half:] - begin[:half])[:, None, None]
    speeds = np.zeros(len(bounds[0]))
    for clock in range(1, len(speeds)):
        slopes = np.median(changes[:, :clock, clock], axis=0) if half else np.full(clock, np.nan)
        nearest = int(np.argmax(np.isfinite(slopes)))
        speeds[clock] = speeds[nearest] - slopes[nearest]
    if not np.abs(speeds).max() <= _MOST_DRIFT:
        return run, 0.0
    of_action = speeds[clock_of_rank[graph.schedule.rank]]
    starts, ends = (np.append(of_action, of_action[its]) for its in (graph.source, graph.target))
    start, end = (times + speed * (times - begin[0]) for times, speed in ((run.start, starts), (run.end, ends)))
    return replace(run, start=start, end=end), float(np.ptp(speeds))


def _closed(bound: Floats) -> Floats:
    """Return the bounds that follow from sums of bounds; a negative diagonal means that they contradict."""
    closed = bound.copy()
    for middle in range(len(closed)):
        np.minimum(closed, closed[:, middle, None] + closed[None, middle], out=closed)
    return closed


def _require_order(closed: Floats, clock_of_rank: Ints64, source: str) -> None:
    missing = -float(closed.diagonal().min())
    if missing > _SLACK_S * len(closed):
        worst = int(np.argmin(closed.diagonal()))
        ranks = np.flatnonzero(clock_of_rank == worst).tolist()
        raise ConfigError(
            f"{source}: the clocks of the ranks cannot be aligned: whatever their offsets, around rank {ranks[0]} "
            f"messages arrive {seconds(missing)} before they are sent: recordings of two runs, of different steps, "
            f"or of another table than it seems (--schedule says which)"
        )


def _middles(closed: Floats, source: str) -> tuple[Floats, float]:
    offsets, widest = np.zeros(len(closed)), 0.0
    closed = closed.copy()
    for clock in range(1, len(closed)):
        most, least = closed[clock, 0], -closed[0, clock]
        if np.isinf(most) and np.isinf(least):
            raise ConfigError(
                f"{source}: the clock of rank {clock} cannot be aligned: no message goes between it and the others"
            )
        # With messages in one direction only, assume that the fastest one took no time.
        middle = most if np.isinf(least) else least if np.isinf(most) else (most + least) / 2
        widest = max(widest, (most - least) / 2 if np.isfinite(most - least) else np.inf)
        offsets[clock] = middle
        closed[clock, 0], closed[0, clock] = middle, -middle
        for fixed in (clock, 0):
            np.minimum(closed, closed[:, fixed, None] + closed[None, fixed], out=closed)
    return offsets, float(widest)
