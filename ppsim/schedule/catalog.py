"""Every schedule ppsim can build: name → builder, constraints, closed forms, source. The one registry."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol

from ppsim.errors import ConfigError
from ppsim.schedule.controllable_memory import one_f_one_b_v, v_half, v_min
from ppsim.schedule.dual_pipe_v import dual_pipe_v
from ppsim.schedule.eager_one_f_one_b import eager_one_f_one_b
from ppsim.schedule.gis import gis, gis_h
from ppsim.schedule.gpipe import gpipe
from ppsim.schedule.interleaved import interleaved_one_f_one_b
from ppsim.schedule.interleaved_zero_bubble import interleaved_zero_bubble
from ppsim.schedule.looped_bfs import looped_bfs
from ppsim.schedule.one_f_one_b import one_f_one_b
from ppsim.schedule.table import Schedule
from ppsim.schedule.v_shape import zbv
from ppsim.schedule.zero_bubble import zb_h1, zb_h2
from ppsim.schedule.zero_bubble_capped import zb_1p, zb_2p, zb_to_limit


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


class Costs(Protocol):
    """What a schedule can be fitted to: `ppsim.StageCosts`."""

    def resolved(self, *, num_stages: int, num_ranks: int) -> Any:
        """Return arrays with one entry a stage."""


@dataclass(frozen=True)
class Entry:
    """One schedule: how to build it, what it demands and what is known of it.

    `stages_per_rank` is the demand on vpp: (least, most), most None for any; where it is None, `build` takes a
    `vpp`. `bubble` is the idle time by step time, `span_bubble` by span: the longest rank from its first start to
    its last end. `peak_activations` counts microbatches of a whole rank. `least_microbatches` is in terms of p.
    A schedule that `fits_costs` is laid out for them: its `build` takes `costs`, arrays of one entry a stage;
    one that `fits_memory` takes `memory_limit_bytes` as well.
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
    fits_costs: bool = False
    fits_memory: bool = False

    def why_not(self, *, pp: int, vpp: int, microbatches: int) -> str | None:
        """Return the sentence that says why this schedule cannot be built so, or None where it can."""
        least, most = self.stages_per_rank
        if vpp < least or (most is not None and vpp > most):
            demand = f"exactly {least}" if least == most else f"at least {least}"
            nearest = least if vpp < least else most
            stages = "stage" if least == 1 else "stages"
            return f"{self.name} needs {demand} {stages} a rank: got vpp={vpp} (nearest: {nearest})"
        fewest = round(self.least_microbatches(p=pp))
        if 1 <= microbatches < fewest:  # none at all is no question of the schedule
            return (
                f"{self.name} needs at least {self.least_microbatches} microbatches: got {microbatches} with "
                f"pp={pp} (nearest: {fewest})"
            )
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
            name="eager-1f1b",
            title="Eager 1F1B: forwards run ahead by a round trip, so that transfers are hidden",
            build=eager_one_f_one_b,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=False,
            bubble=Formula("(p - 1) * (F + I + W) + 2 * (p - 1) * c", where="2 * c <= F + I + W"),
            peak_activations=Formula("min(2 * p - 1, m)"),
            messages=Formula("p - 1"),
            source="Zhuang et al. 2023",
        ),
        Entry(
            name="looped-bfs",
            title="Looped BFS: v stages a rank, looped, all microbatches through one chunk, then the next",
            build=looped_bfs,
            placement="loop",
            stages_per_rank=(2, None),
            splits_backward=False,
            bubble=Formula(
                "(p - 1) * (F + I + W) / v + 2 * (p - 1) * c", where="(m - p) * min(F, I + W) / v >= p * c"
            ),
            peak_activations=Formula("m"),
            messages=Formula("p * v - 1"),
            source="Lamy-Poirier, MLSys 2023; order of the backwards as in torch",
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
            name="zb-1p",
            title="ZB-1p: zero bubble fitted to the costs of every stage, with the memory of 1F1B",
            build=zb_1p,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=True,
            peak_activations=Formula("min(p, m)"),
            messages=Formula("p - 1"),
            source="Qi et al. 2024 (arXiv 2401.10241), §3.1; a cost a stage, more candidates: ppsim",
            fits_costs=True,
        ),
        Entry(
            name="zb-2p",
            title="ZB-2p: zero bubble fitted to the costs of every stage, with twice the memory of 1F1B",
            build=zb_2p,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=True,
            peak_activations=Formula("min(2 * p, m)", where="False"),
            messages=Formula("p - 1"),
            source="Qi et al. 2024 (arXiv 2401.10241), §3.1; a cost a stage, more candidates: ppsim",
            fits_costs=True,
        ),
        Entry(
            name="zb-auto",
            title="Zero bubble fitted to the costs of every stage and to whatever memory is left",
            build=zb_to_limit,
            placement="loop",
            stages_per_rank=(1, 1),
            splits_backward=True,
            peak_activations=Formula("m", where="False"),
            messages=Formula("p - 1"),
            source="Qi et al. 2024 (arXiv 2401.10241), §3.1; a cost a stage, more candidates: ppsim",
            fits_costs=True,
            fits_memory=True,
        ),
        Entry(
            name="interleaved-zb",
            title="Interleaved ZB-H1: v stages a rank, looped, backward split",
            build=interleaved_zero_bubble,
            placement="loop",
            stages_per_rank=(2, None),
            splits_backward=True,
            bubble=Formula(
                "(p - 1) * (F + I - W) / v + ((v + 3) * p - 4) * c",
                where="m % p == 0 and W <= min(F, I) and (c == 0 or (p >= 2 and m > p and 2 * c <= W / v))",
            ),
            peak_activations=Formula("p", where="m % p == 0"),
            messages=Formula("p * v - 1"),
            source="ScheduleInterleavedZeroBubble of torch 2.13, after Qi et al. 2024 (arXiv 2401.10241), §2.1",
        ),
        Entry(
            name="gis",
            title="GIS: v stages a rank, looped, backward split, the memory of 1F1B",
            build=gis,
            placement="loop",
            stages_per_rank=(2, None),
            splits_backward=True,
            bubble=Formula("(p - 1) * (F + I) / v", where="m % p == 0 and c == 0 and W <= min(F, I)"),
            peak_activations=Formula("p", where="m % p == 0"),
            messages=Formula("p * v - 1"),
            source="PipeOffload (arXiv 2503.01328), Table 1",
        ),
        Entry(
            name="gis-h",
            title="GIS-H: GIS in groups of p/2 microbatches, (v + 1)/(2v) of the memory of 1F1B",
            build=gis_h,
            placement="loop",
            stages_per_rank=(2, None),
            splits_backward=True,
            bubble=Formula(
                "((p - 1) * (F + I) + (v - 1) * p / 2 * (F + I - W)) / v",
                where="p % 2 == 0 and m % p == 0 and c == 0 and W <= min(F, I)",
            ),
            peak_activations=Formula("p * (v + 1) / (2 * v)", where="p % 2 == 0 and m % p == 0"),
            messages=Formula("p * v - 1"),
            source="PipeOffload (arXiv 2503.01328), Table 1",
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
        Entry(
            name="v-half",
            title="V-Half: backward split, two stages a rank in a V, half the memory of 1F1B; fixed pattern",
            build=v_half,
            placement="v",
            stages_per_rank=(2, 2),
            splits_backward=True,
            bubble=Formula(
                "(3 * p - (4 if p % 2 else 7)) * F / 2", where="F == I == W and c == 0 and p >= 3 and m >= 2 * p"
            ),
            peak_activations=Formula("min((p + 2) // 2, m)"),
            messages=Formula("2 * (p - 1)"),
            source="Qi et al. 2024 (arXiv 2405.15362), §3; order of warm-up and cool-down as in the authors' code",
        ),
        Entry(
            name="v-min",
            title="V-Min: backward split, two stages a rank in a V, a third of the memory of 1F1B; fixed pattern",
            build=v_min,
            placement="v",
            stages_per_rank=(2, 2),
            splits_backward=True,
            bubble=Formula(
                "(4 * p - (5 if p % 3 else 7)) * F / 2", where="F == I == W and c == 0 and p >= 2 and m > p"
            ),
            peak_activations=Formula("min((p + 4) // 3, m)"),
            messages=Formula("2 * (p - 1)"),
            source="Qi et al. 2024 (arXiv 2405.15362), §3; order of warm-up and cool-down as in the authors' code",
        ),
        Entry(
            name="1f1b-v",
            title="1F1B-V: two stages a rank in a V, two thirds of the memory of 1F1B; fixed pattern",
            build=one_f_one_b_v,
            placement="v",
            stages_per_rank=(2, 2),
            splits_backward=False,
            bubble=Formula(
                "(5 * p - (5 if p % 3 == 1 else 7)) * F / 2",
                where="F == I == W and c == 0 and p % 3 and p >= 4 and m >= p",
            ),
            peak_activations=Formula("min((2 * p + 3) // 3, m)"),
            messages=Formula("2 * (p - 1)"),
            source="Qi et al. 2024 (arXiv 2405.15362); start cells and warm-up as in the authors' code",
        ),
        Entry(
            name="dualpipev",
            title="DualPipeV: two stages a rank in a V, a forward fused with a backward of the other stage",
            build=dual_pipe_v,
            placement="v",
            stages_per_rank=(2, 2),
            splits_backward=True,
            bubble=Formula(
                "(p - 1) * (2 * F + I - W) / 2 + (2 * (p - 1) * m / p + 2 * (p - 2)) * c",
                where="W <= I <= F and (c == 0 or (p >= 2 and m % p == 0 and 4 * (p - 1) * c <= I))",
            ),
            peak_activations=Formula("p + 1 / 2"),
            messages=Formula("2 * (p - 1)"),
            source="github.com/deepseek-ai/DualPipe (arXiv 2412.19437, §3.2.1), cut in half; a pair is F, then B",
            constraint="at least 2 * p microbatches, one for each stage",
            least_microbatches=Formula("2 * p"),
        ),
    )
}


PLUGINS = "ppsim.schedules"
"""The entry-point group in which other packages register an `Entry`, or a function that returns one."""


def every_schedule() -> dict[str, Entry]:
    """Return the catalogue and, behind it, the schedules that installed packages register.

    Raises `ConfigError` for an entry point that cannot be loaded or takes a name of the catalogue.
    """
    found = dict(CATALOG)
    for point in entry_points(group=PLUGINS):
        try:
            loaded = point.load()
            entry = loaded if isinstance(loaded, Entry) else loaded()
        except Exception as error:
            raise ConfigError(f"cannot load schedule '{point.name}' from {point.value}: {error}") from error
        if not isinstance(entry, Entry):
            raise ConfigError(f"schedule '{point.name}' from {point.value} is no ppsim.schedule.catalog.Entry")
        if entry.name in found:
            raise ConfigError(f"schedule '{entry.name}' from {point.value} takes a name that is taken already")
        found[entry.name] = entry
    return found


def find(name: str) -> Entry:
    """Return the schedule of that name; raises `ConfigError` with the close matches."""
    if name in CATALOG:
        return CATALOG[name]
    everything = every_schedule()
    if name in everything:
        return everything[name]
    close = difflib.get_close_matches(name.lower(), everything, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(everything)}"
    raise ConfigError(f"unknown schedule '{name}': {hint}")


def build(
    name: str,
    *,
    pp: int,
    microbatches: int,
    vpp: int | None = None,
    group_size: int | None = None,
    costs: Costs | None = None,
    memory_limit_bytes: float | None = None,
) -> Schedule:
    """Return the table of a catalogue schedule for `pp` ranks and `microbatches` microbatches.

    `vpp` is the number of stages a rank; None takes the least that the schedule allows. `group_size` is for
    interleaved-1f1b only. `costs` (a `StageCosts`) are for a schedule that is fitted to them; without, F, I and W
    take one unit each. `memory_limit_bytes` (a rank, static bytes included) is for one that fits into it. Raises
    `ConfigError` naming the value that the schedule forbids and the nearest that it allows.

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
    if costs is not None and not entry.fits_costs:
        raise ConfigError(f"{name} is the same at any costs; costs are for one that is fitted to them")
    if entry.fits_costs:
        arrays = None if costs is None else costs.resolved(num_stages=pp * vpp, num_ranks=pp)
        limit = {"memory_limit_bytes": memory_limit_bytes} if entry.fits_memory else {}
        return entry.build(num_ranks=pp, num_microbatches=microbatches, costs=arrays, **limit)
    if entry.stages_per_rank[1] is None:
        return entry.build(num_ranks=pp, vpp=vpp, num_microbatches=microbatches)
    return entry.build(num_ranks=pp, num_microbatches=microbatches)
