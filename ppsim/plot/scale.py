"""Units of a picture's axes, and the heading of a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ppsim.base.units import percent, seconds
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.simulation.timeline import Timeline


@dataclass(frozen=True)
class AxisScale:
    """The unit of an axis: its size in seconds or bytes, and the decimals that distinguish neighbouring values."""

    unit: str
    size: float
    decimals: int = 0

    def value(self, amount: float) -> str:
        """Return an amount without the unit.

        >>> AxisScale("ms", 1e-3, 2).value(1.23456)
        '1234.56'
        """
        return f"{amount / self.size:.{self.decimals}f}"


def time_scale(longest_s: float) -> AxisScale:
    """Return the scale of a time axis: s from 10 s on, else ms; seven digits.

    >>> time_scale(3.25), time_scale(83.0)
    (AxisScale(unit='ms', size=0.001, decimals=3), AxisScale(unit='s', size=1.0, decimals=5))
    """
    unit, size = ("s", 1.0) if longest_s >= 10 else ("ms", 1e-3)
    digits = 1 + math.floor(math.log10(longest_s / size)) if longest_s > 0 else 1
    return AxisScale(unit, size, max(0, 7 - max(1, digits)))


def bytes_scale(largest: float) -> AxisScale:
    """Return the scale of a memory axis.

    >>> bytes_scale(80e9).unit
    'GiB'
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if largest >= size:
            return AxisScale(unit, float(size), 2)
    return AxisScale("B", 1.0)


def heading(timeline: Timeline, title: str) -> tuple[str, str]:
    """Return a picture's title and the facts after it."""
    schedule = timeline.schedule
    name = schedule.name or "table"
    facts = [
        *([] if title in (name, "") else [name]),
        f"pp {schedule.num_ranks}",
        f"vpp {schedule.vpp}",
        microbatches_in_words(schedule.num_microbatches, schedule.num_rounds),
        *([f"{schedule.num_replicas} replicas"] if schedule.num_replicas > 1 else []),
        *([f"{schedule.num_slices} slices each"] if schedule.num_slices > 1 else []),
        f"step {seconds(timeline.step_time_s)}",
        f"bubble {bubbles(timeline)}",
    ]
    return title or name, " · ".join(facts)


def bubbles(timeline: Timeline) -> str:
    """Bubble ratio by step time and, if it differs, by the per-rank span."""
    by_step, by_span = percent(timeline.bubble_ratio), percent(timeline.span_bubble_ratio)
    return by_step if by_span == by_step else f"{by_step}, per-rank span {by_span}"


def panel_prefixes(timelines: Sequence[Timeline], titles: Sequence[str]) -> list[str]:
    """Return prefixes for panel titles, empty for a single timeline."""
    names = [heading(timeline, title)[0] for timeline, title in zip(timelines, titles, strict=True)]
    return [f"{name}: " for name in names] if len(names) > 1 else [""]
