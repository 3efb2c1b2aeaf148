"""Every schedule ppsim can build: name → builder, constraints, closed forms, source. The one registry."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ppsim.errors import ConfigError
from ppsim.schedule.gpipe import gpipe
from ppsim.schedule.interleaved import interleaved_one_f_one_b
from ppsim.schedule.one_f_one_b import one_f_one_b
from ppsim.schedule.table import Schedule
from ppsim.schedule.v_shape import zbv
from ppsim.schedule.zero_bubble import zb_h1, zb_h2


@dataclass(frozen=True)
class Formula:
    """A closed form that is printed as it is evaluated, so that text and number cannot part.

    Symbols: p ranks, v stages a rank, m microbatches; F, I, W seconds per rank (all its stages together);
    c seconds per transfer between stages. `where` is the condition under which it holds.

    >>> Formula("(p - 1) * (F + I + W)")(p=4, m=8, F=1.0, I=1.0, W=1.0)
    9.0
    """

    text: str
    where: str = "True"

    def __call__(self, **symbols: float) -> float:
        """Return the value; `symbols` must hold every letter of the text."""
        return float(_evaluate(self.text, symbols))

    def holds(self, **symbols: float) -> bool:
        """Return whether the formula is exact for these symbols."""
        return bool(_evaluate(self.where, symbols))

    def __str__(self) -> str:
        return self.text if self.where == "True" else f"{self.text}   where {self.where}"


def _evaluate(expression: str, symbols: dict[str, float]) -> Any:
    return eval(expression, {"__builtins__": {"min": min, "max": max}}, symbols)


@dataclass(frozen=True)
class Entry:
    """One schedule: how to build it, what it demands and what is known of it.

    `stages_per_rank` is the demand on vpp: (least, most), most None for any. `bubble` is the idle time by step
    time, `span_bubble` by span: the longest rank from its first start to its last end. `peak_activations` counts
    microbatches of a whole rank.
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

    def why_not(self, *, pp: int, vpp: int, microbatches: int) -> str | None:
        """Return the sentence that says why this schedule cannot be built so, or None where it can."""
        del pp, microbatches  # every schedule of today takes any
        least, most = self.stages_per_rank
        if vpp < least or (most is not None and vpp > most):
            demand = f"exactly {least}" if least == most else f"at least {least}"
            nearest = least if vpp < least else most
            stages = "stage" if least == 1 else "stages"
            return f"{self.name} needs {demand} {stages} a rank: got vpp={vpp} (nearest: {nearest})"
        return None

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and texts of all that is known, for the terminal and the docs."""
        least, most = self.stages_per_rank
        stages = f"exactly {least}" if least == most else f"{least} or more"
        rows = [
            ("stages a rank", f"{stages}, {'looped' if self.placement == 'loop' else 'in a V'}"),
            ("backward", "split into I and W" if self.splits_backward else "full (B)"),
            ("microbatches", self.constraint),
        ]
        if self.bubble:
            rows.append(("bubble", str(self.bubble)))
        if self.span_bubble:
            rows.append(("bubble by span", str(self.span_bubble)))
        return [
            *rows,
            ("peak activations", f"{self.peak_activations}   microbatches of a whole rank"),
            ("messages", f"{self.messages}   a microbatch and direction"),
            ("source", self.source),
        ]


CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="gpipe",
            title="GPipe: all forwards, then all backwards",
            build=gpipe,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=False,
            bubble=Formula("(p - 1) * (F + I + W) + 2 * (p - 1) * c"),
            peak_activations=Formula("m"),
            messages=Formula("p - 1"),
            source="Huang et al. 2019 (arXiv 1811.06965), §2.3",
        ),
        Entry(
            name="1f1b",
            title="1F1B: one forward, one backward (PipeDream-Flush, DAPPLE)",
            build=one_f_one_b,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=False,
            bubble=Formula(
                "(p - 1) * (F + I + W) + (2 * (p - 1) * m / p + 2 * (p - 2)) * c",
                where="c == 0 or (p >= 2 and m % p == 0)",
            ),
            peak_activations=Formula("min(p, m)"),
            messages=Formula("p - 1"),
            source="Narayanan et al. 2021 (arXiv 2006.09503), §3.2; Fan et al. 2021 (arXiv 2007.01045)",
        ),
        Entry(
            name="interleaved-1f1b",
            title="Interleaved 1F1B: v stages a rank, looped, in groups of microbatches",
            build=interleaved_one_f_one_b,
            placement="loop",
            stages_per_rank=(2, None),
            splits_backward=False,
            bubble=Formula(
                "(p - 1) * (F + I + W) / v + 2 * (p * v - 1) * c",
                where="m % p == 0 and (c == 0 or c <= min(F, I + W) / v)",
            ),
            peak_activations=Formula("p + (p - 1) / v if m > p else m", where="m % p == 0"),
            messages=Formula("p * v - 1"),
            source="Narayanan et al. 2021 (arXiv 2104.04473), §2.2; group size as in Megatron-LM",
            constraint=(
                "any number of microbatches; --group-size N: p ≤ N ≤ m, the last group whole or at least p "
                "(default: the smallest such N, which is p where p divides m)"
            ),
        ),
        Entry(
            name="zb-h1",
            title="ZB-H1: backward split, a third of the bubble of 1F1B at its memory",
            build=zb_h1,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=True,
            bubble=Formula(
                "(p - 1) * (F + I - W) + 4 * (p - 1) * c",
                where="m >= p and (m > p or c == 0) and 2 * c <= W <= min(F, I)",
            ),
            peak_activations=Formula("min(p, m)"),
            messages=Formula("p - 1"),
            source="Qi et al. 2024 (arXiv 2401.10241), §2.1",
        ),
        Entry(
            name="zb-h2",
            title="ZB-H2: backward split, no bubble within a rank's span, twice the memory of 1F1B",
            build=zb_h2,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=True,
            span_bubble=Formula(
                "(p - 1) * (F + I - 2 * W + 2 * c)", where="m >= 2 * p - 1 and 2 * c <= W <= min(F, I)"
            ),
            peak_activations=Formula("min(2 * p - 1, m)"),
            messages=Formula("p - 1"),
            source="Qi et al. 2024 (arXiv 2401.10241), §2.2",
        ),
        Entry(
            name="zbv",
            title="ZB-V: backward split, two stages a rank in a V, no bubble within a rank's span",
            build=zbv,
            placement="v",
            stages_per_rank=(2, 2),
            splits_backward=True,
            span_bubble=Formula("0", where="F == I == W and c == 0 and m >= 2 * p - 1"),
            peak_activations=Formula("min(p, m)"),
            messages=Formula("2 * (p - 1)"),
            source="Qi et al. 2024 (arXiv 2401.10241), §6",
        ),
    )
}


def find(name: str) -> Entry:
    """Return the catalogue entry of that name; raises `ConfigError` with the close matches."""
    if name in CATALOG:
        return CATALOG[name]
    close = difflib.get_close_matches(name.lower(), CATALOG, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(CATALOG)}"
    raise ConfigError(f"unknown schedule '{name}': {hint}")


def build(
    name: str, *, pp: int, microbatches: int, vpp: int | None = None, group_size: int | None = None
) -> Schedule:
    """Return the table of a catalogue schedule for `pp` ranks and `microbatches` microbatches.

    `vpp` is the number of stages a rank; None takes the least that the schedule allows. `group_size` is for
    interleaved-1f1b only. Raises `ConfigError` naming the value that the schedule forbids and the nearest that
    it allows.

    >>> table = build("1f1b", pp=2, microbatches=2)
    >>> [str(action) for action in table]
    ['0F0', '0F1', '0B0', '0B1', '1F0', '1B0', '1F1', '1B1']
    """
    entry = find(name)
    if pp < 1:
        raise ConfigError(f"pp must be at least 1: got {pp}")
    if microbatches < 1:
        raise ConfigError(f"microbatches must be at least 1: got {microbatches}")
    if vpp is None:
        vpp = entry.stages_per_rank[0]
    if reason := entry.why_not(pp=pp, vpp=vpp, microbatches=microbatches):
        raise ConfigError(reason)
    if entry.build is interleaved_one_f_one_b:
        return interleaved_one_f_one_b(num_ranks=pp, vpp=vpp, num_microbatches=microbatches, group_size=group_size)
    if group_size is not None:
        raise ConfigError(f"group size is for interleaved-1f1b; {name} has none")
    return entry.build(num_ranks=pp, num_microbatches=microbatches)
