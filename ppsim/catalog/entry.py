"""Description of a schedule in the catalogue: builder, constraints, closed forms, source."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from types import CodeType
from typing import Any, Literal

from ppsim.schedule.table import Schedule


@dataclass(frozen=True)
class Formula:
    """A closed form that is printed exactly as it is evaluated.

    Symbols: p ranks; v stages per rank; m microbatches; k slices per microbatch; F, I, W seconds per microbatch for
    all stages of a rank (of one model replica); FB seconds of a fused pair; c seconds per transfer between stages.
    `where` is the condition under which the formula is exact. `at_most` marks an upper bound on a value that
    depends on the costs.

    >>> Formula("(p - 1) * (F + I + W)")(p=4, m=8, F=1.0, I=1.0, W=1.0)
    9.0
    """

    text: str
    where: str = "True"
    at_most: bool = False

    def __call__(self, **symbols: float) -> float:
        return float(_evaluate(self.text, symbols))

    def holds(self, **symbols: float) -> bool:
        return bool(_evaluate(self.where, symbols))

    def __str__(self) -> str:
        text = f"at most {self.text}" if self.at_most else self.text
        return text if self.where == "True" else f"{text}   where {self.where}"


def _evaluate(expression: str, symbols: dict[str, float]) -> Any:
    return eval(_code(expression), {"__builtins__": {"min": min, "max": max}}, symbols)


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<formula>", "eval")


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule of the catalogue: how to build it, its constraints and its closed forms.

    `build` takes `num_ranks`, `num_microbatches` and any of the options `vpp`, `group_size`, `num_slices`, `costs`
    (arrays with one entry per stage), `memory_limit_bytes`, `evaluator` and `is_thorough`. `evaluator` is a
    function from a table to its seconds on the real network, or the criterion "step" or "span" on an ideal network.

    `stages_per_rank` is the smallest and largest vpp (None: no maximum). pp, vpp and the number of microbatches
    must be multiples of `ranks_by`, `stages_by` and `microbatches_by`; `least_microbatches` is a formula in p.
    `bubble` is the idle time within the step time, `span_bubble` within the span. `peak_activations` counts
    microbatches of a whole rank. `num_slices` is the default per microbatch. `published` names patterns that are
    candidates for an optimised schedule, `also` further names of the schedule.
    """

    name: str
    title: str
    build: Callable[..., Schedule]
    placement: Literal["loop", "v"]
    stages_per_rank: tuple[int, int | None]
    splits_backward: bool
    peak_activations: Formula
    messages: Formula
    source: str
    bubble: Formula | None = None
    span_bubble: Formula | None = None
    constraint: str = "any number of microbatches"
    least_microbatches: Formula = Formula("1")
    microbatches_by: int = 1
    ranks_by: int = 1
    stages_by: int = 1
    num_replicas: int = 1
    num_slices: int = 1
    not_in_torch: str | None = None
    published: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        return tuple(signature(self.build).parameters)

    @property
    def options(self) -> list[str]:
        own = ("num_ranks", "num_microbatches", "evaluator", "is_thorough")
        return [name for name in self._parameters if name not in own]

    def takes(self, option: str) -> bool:
        return option in self._parameters

    def num_actions(self, *, pp: int, vpp: int, microbatches: int) -> int:
        return (3 if self.splits_backward else 2) * pp * vpp * microbatches // self.num_replicas

    def why_not(self, *, pp: int, vpp: int, microbatches: int) -> str | None:
        least, most = self.stages_per_rank
        if vpp < least or (most is not None and vpp > most):
            demand = f"exactly {least}" if least == most else f"at least {least}"
            nearest = least if vpp < least else most
            stages = "stage" if least == 1 else "stages"
            return f"{self.name} needs {demand} {stages} per rank: got vpp={vpp} (nearest: {nearest})"
        if vpp % self.stages_by:
            return _not_a_multiple(self.name, "stages per rank", vpp, self.stages_by, f"vpp={vpp}", least)
        if pp % self.ranks_by:
            return _not_a_multiple(self.name, "ranks", pp, self.ranks_by, f"pp={pp}", self.ranks_by)
        fewest = round(self.least_microbatches(p=pp))
        if 1 <= microbatches < fewest:  # 0 or fewer is refused elsewhere
            return (
                f"{self.name} needs at least {self.least_microbatches} microbatches: got {microbatches} with "
                f"pp={pp} (nearest: {fewest})"
            )
        if microbatches % self.microbatches_by:
            got = f"{microbatches} with pp={pp}"
            return _not_a_multiple(self.name, "microbatches", microbatches, self.microbatches_by, got, fewest)
        return None

    @property
    def facts(self) -> list[tuple[str, str]]:
        least, most = self.stages_per_rank
        stages = f"exactly {least}" if least == most else f"{least} or more"
        stages += ", an even number" if self.stages_by == 2 else ""
        placement = "looped" if self.placement == "loop" else "in a V"
        if self.num_replicas > 1:
            placement = f"one of each of {self.num_replicas} replicas, down the ranks and back up"
        rows = [
            ("stages per rank", f"{stages}, {placement}"),
            ("backward", "split into I and W" if self.splits_backward else "full (B)"),
            ("microbatches", self.constraint),
        ]
        if self.ranks_by == 2:
            rows.append(("ranks", "an even number"))
        if self.num_slices > 1:
            rows.append(("slices", f"k of each microbatch's sequence (default: {self.num_slices})"))
        if self.not_in_torch:
            rows.append(("not in torch", self.not_in_torch))
        if self.bubble:
            rows.append(("bubble", str(self.bubble)))
        if self.span_bubble:
            rows.append(("bubble by span", str(self.span_bubble)))
        return [
            *rows,
            ("peak activations", f"{self.peak_activations}   microbatches of a whole rank"),
            ("messages", f"{self.messages}   per microbatch and direction"),
            ("source", self.source),
        ]


def _not_a_multiple(name: str, what: str, value: int, unit: int, got: str, least: int) -> str:
    below = value // unit * unit
    nearest = f"{below} or {below + unit}" if below >= least else str(below + unit)
    demand = f"an even number of {what}" if unit == 2 else f"a multiple of {unit} {what}"
    return f"{name} needs {demand}: got {got} (nearest: {nearest})"
