"""Terminal output for simulated, measured and training steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent, seconds, signed_percent, size
from ppsim.results.text_layout import WIDTH, Page, TableLines, bold, facts, notable_items, painted, styled
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.bounds.problem import is_within
from ppsim.simulation.report import gap_of, report_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    from ppsim.plot.lanes import Lane

MOST_LINES = 16
"""Maximum number of rank lines of a drawing that was not requested."""

_WORDS = {Op.F: "F forward", Op.B: "B backward", Op.I: "I backward for inputs", Op.W: "W backward for weights"}
_LEAST_WIDTH = 40
_KINDS = (*_WORDS, Op.IDLE)
_ENOUGH = 0.95  # share of the busy time that needs readable labels; the rest may be too short for one
_LEAST_COLUMNS = 2  # a letter and a digit


@dataclass(frozen=True)
class TextBar:
    """Activity of a rank in some columns; `text` has one character per column; `chunk` is −1 if idle."""

    text: str
    op: Op
    chunk: int


@dataclass(frozen=True)
class TextTimeline:
    """A drawn step: one row per rank, split into strips of `num_columns` columns of `column_s` seconds.

    The ends of an action are rounded to the nearest column, so bars never overlap. `labelled` and `hidden` are
    fractions of the busy time: of bars that are wide enough for a label, and of actions that get no column. If
    `is_coarse`, a column shows the most frequent activity of its rank.
    """

    rows: Sequence[Sequence[TextBar]]
    num_columns: int
    num_strips: int
    column_s: float
    counted: Literal["microbatch", "slice"]
    labelled: float
    hidden: float
    is_coarse: bool = False

    @property
    def is_readable(self) -> bool:
        """Actions of negligible length may have no label."""
        return self.labelled >= _ENOUGH

    def strips(self) -> Iterator[tuple[str, list[list[TextBar]]]]:
        strip_s = self.column_s * self.num_columns
        for strip in range(self.num_strips):
            first = strip * self.num_columns
            rows = [list(_cut(row, first, first + self.num_columns)) for row in self.rows]
            yield f"{seconds(strip * strip_s)} to {seconds((strip + 1) * strip_s)}", rows

    def caption(self) -> str:
        ops = {bar.op for row in self.rows for bar in row}
        words = ", ".join(word for op, word in _WORDS.items() if op in ops)
        column = f"one column is {seconds(self.column_s)}"
        if self.is_coarse:
            return f"{column} and shows what its rank does for most of it: {words}; dots are idle"
        where = "" if self.is_readable else " where there is room"
        what = "the microbatch" if self.counted == "microbatch" else "the slice, counted through all microbatches"
        said = f"{column}; {words}, and {what}{where}; dots are idle"
        if self.hidden:
            said += f"; {percent(self.hidden)} of the busy time is in actions too short to be seen"
        return said


def draw(timeline: Timeline, *, width: int = WIDTH, most_lines: int = MOST_LINES) -> str:
    """Return a timeline in plain characters; raises `ConfigError` for a width below 40 columns.

    The drawing is to scale, with one row per rank. Microbatches are readable if the step fits in `most_lines` rank
    lines; otherwise the drawing is one coarser strip.

    >>> from ppsim import StageCosts, build, simulate
    >>> costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    >>> print(draw(simulate(build("1f1b", pp=2, microbatches=3), costs), width=66))
    rank  0 s to 12.0 s
       0  F0fffF1fff..........B0bbbbbbbbF2fffB1bbbbbbbb.....B2bbbbbbbb
       1  .....F0fffB0bbbbbbbbF1fffB1bbbbbbbbF2fffB2bbbbbbbb..........
    one column is 200 ms; F forward, B backward, and the microbatch;
    dots are idle
    """
    from click import unstyle

    return unstyle("\n".join(lines_of(drawing_of(timeline, width=width, most_lines=most_lines), width)))


def lines_of(drawing: TextTimeline, width: int) -> Iterator[str]:
    import textwrap

    margin = _margin(len(drawing.rows))
    for heading, rows in drawing.strips():
        yield f"{'rank'.rjust(margin - 2)}  {heading}"
        for rank, row in enumerate(rows):
            yield f"{str(rank).rjust(margin - 2)}  " + "".join(map(_shown, row))
    yield from textwrap.wrap(drawing.caption(), width)


def readable_drawing(
    timeline: Timeline, *, width: int = WIDTH, most_lines: int = MOST_LINES
) -> TextTimeline | None:
    """Return a drawing in as few strips as possible; None if it exceeds `most_lines`."""
    num_ranks = timeline.schedule.num_ranks
    num_columns, most_strips = width - _margin(num_ranks), most_lines // num_ranks
    fewest = _ENOUGH * _LEAST_COLUMNS * timeline.num_actions / num_ranks
    if width < _LEAST_WIDTH or fewest > most_strips * num_columns:
        return None  # decided before the layout, because a step may have millions of actions
    from ppsim.plot.lanes import compute_lanes

    lanes = compute_lanes(timeline)
    drawings = (_drawing(timeline, lanes, num_columns, strips) for strips in range(1, most_strips + 1))
    return next((drawing for drawing in drawings if drawing.is_readable), None)


def drawing_of(timeline: Timeline, *, width: int = WIDTH, most_lines: int = MOST_LINES) -> TextTimeline:
    """Return the readable drawing, or one in a single strip if there is none."""
    if width < _LEAST_WIDTH:
        raise ConfigError(f"a timeline needs a width of {_LEAST_WIDTH} or more: got {width}")
    num_columns = width - _margin(timeline.schedule.num_ranks)
    if found := readable_drawing(timeline, width=width, most_lines=most_lines):
        return found
    from ppsim.plot.lanes import compute_lanes

    lanes = compute_lanes(timeline)
    drawing = _drawing(timeline, lanes, num_columns, 1)
    if drawing.hidden <= 1 - _ENOUGH:
        return drawing
    return replace(drawing, rows=[_coarse(lane, num_columns) for lane in lanes], is_coarse=True)


def _margin(num_ranks: int) -> int:
    return max(len("rank"), len(str(num_ranks - 1))) + 2


def _drawing(timeline: Timeline, lanes: "Sequence[Lane]", num_columns: int, num_strips: int) -> TextTimeline:
    num_cells = num_columns * num_strips
    column_s = timeline.step_time_s / num_cells
    rows, labelled_s, hidden_s = [], 0.0, 0.0
    for lane in lanes:
        edges = np.rint(lane.edges / (column_s or 1.0)).astype(np.int64)
        columns, bars = np.diff(edges), []
        for cell in np.flatnonzero(columns).tolist():
            op, node, length = Op(int(lane.kind[cell])), int(lane.node[cell]), int(columns[cell])
            if node == NONE:
                bars.append(TextBar("." * length, op, NONE))
                continue
            label = f"{op.name}{timeline.schedule.microbatch[node]}"
            at = _place_of(label, length, num_columns - int(edges[cell]) % num_columns)
            text = (op.name if at is None else op.name.lower() * at + label).ljust(length, op.name.lower())
            bars.append(TextBar(text, op, int(lane.chunk[cell])))
            labelled_s += 0.0 if at is None else float(lane.durations_s[cell])
        hidden_s += float(lane.durations_s[(columns == 0) & ~lane.is_idle].sum())
        rows.append(bars)
    busy_s = float(timeline.busy_s.sum()) or 1.0
    counted: Literal["microbatch", "slice"] = "slice" if timeline.schedule.num_slices > 1 else "microbatch"
    return TextTimeline(rows, num_columns, num_strips, column_s, counted, labelled_s / busy_s, hidden_s / busy_s)


def _coarse(lane: "Lane", num_columns: int) -> list[TextBar]:
    at = np.linspace(lane.edges[0], lane.edges[-1], num_columns + 1)
    until = [np.append(0.0, np.cumsum(lane.durations_s * (lane.kind == op))) for op in _KINDS]
    inside = np.stack([np.diff(np.interp(at, lane.edges, sums)) for sums in until])
    most = [_KINDS[index] for index in inside.argmax(axis=0).tolist()]
    return [
        TextBar(("." if op is Op.IDLE else op.name) * len(list(run)), op, NONE if op is Op.IDLE else 0)
        for op, run in groupby(most)
    ]


def _place_of(label: str, length: int, left: int) -> int | None:
    """Return the position of a label in its bar: at the start, at the start of the next strip, or None.

    `left` is the number of columns up to the end of the strip.
    """
    if len(label) <= min(length, left):
        return 0
    return left if left + len(label) <= length else None


def _cut(row: Sequence[TextBar], first: int, end: int) -> Iterator[TextBar]:
    at = 0
    for bar in row:
        text = bar.text[max(first - at, 0) : max(end - at, 0)]
        at += len(bar.text)
        if text:
            yield TextBar(text, bar.op, bar.chunk)


def _shown(bar: TextBar) -> str:
    if bar.op is Op.IDLE:
        return styled(bar.text, 2)
    from ppsim.plot.palette import fill_of, text_on

    fill = fill_of(bar.op, chunk=bar.chunk)
    return painted(bar.text, ink=text_on(fill), fill=fill)


_NOTABLE = {"computes longest": "busy_s", "idles longest": "idle_s", "has the highest peak": "peak_bytes"}


_MOST_LINES = 48
"""Maximum number of rank lines of a requested drawing; with more, the drawing becomes coarse."""


def print_simulated(
    timeline: Timeline,
    *,
    costs: StageCosts | None = None,
    report: dict[str, Any] | None = None,
    with_rows: bool = False,
    with_timeline: bool | None = None,
) -> None:
    """If `report` is None, it is computed at the given `costs`."""
    if report is None:
        if costs is None:
            raise ConfigError("the report of a timeline has bounds at its costs: give them as costs=")
        report = report_of(timeline, costs)
    print_report(report, with_rows=with_rows)
    print_timeline(timeline, is_wanted=with_timeline)


def print_report(report: dict[str, Any], extra: Sequence[tuple[str, str]] = (), *, with_rows: bool = False) -> None:
    """Print a simulated or measured step; `extra` has additional lines as (label, text).

    Without `with_rows`, tables with more than `MOST_ROWS` rows are shortened.
    """
    out = Page()
    head = f"{report['schedule'] or 'table'}   pp {report['pp']}   vpp {report['vpp']}   "
    batch = microbatches_in_words(report["microbatches"], report.get("gradient_accumulation_steps", 1))
    out.add(bold(f"{head}{batch}"))
    rows = [
        ("step time", f"{seconds(report['step_time_s'])} (bubble {percent(report['bubble_ratio'])})"),
        *_iteration(report),
        *_span(report),
        *extra,
        ("lower bound", _bounds(report)),
        ("critical path", _shortened(report["critical_path"])),
    ]
    out.add(facts(rows), "")
    _add_ranks(out, report["ranks"], with_all=with_rows)


def _add_ranks(out: Page, ranks: Sequence[dict[str, Any]], *, with_all: bool) -> None:
    """Of many ranks, print the first, the last, the extremes and some in between."""
    causes = [
        cause for cause in ranks[0]["idle_by_cause_s"]
        if cause != "overhead" or any(rank["idle_by_cause_s"][cause] for rank in ranks)
    ]  # fmt: skip
    names = {cause: cause.replace("_", "-") for cause in causes}
    names |= {"exposed_communication": "comm", "waiting_compute": "waiting"}
    notable = {word: max(range(len(ranks)), key=lambda rank: ranks[rank][key]) for word, key in _NOTABLE.items()}
    shown = range(len(ranks)) if with_all else notable_items(len(ranks), notable.values())
    rows = [
        {
            "rank": str(rank["rank"]),
            "busy": seconds(rank["busy_s"]),
            "idle": seconds(rank["idle_s"]),
            **{names[cause]: seconds(rank["idle_by_cause_s"][cause]) for cause in causes},
            "peak": size(rank["peak_bytes"]) if rank["peak_bytes"] else "–",
            "at": rank["peak_at"],
        }
        for rank in (ranks[index] for index in shown)
    ]
    out.add(TableLines.of(rows))
    if len(shown) < len(ranks):
        said = ", ".join(f"rank {rank} {word}" for word, rank in notable.items())
        out.add(f"{len(shown)} of {len(ranks)} ranks: {said}. --rows prints all")


def print_several(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line for each table, by its name."""
    least_s = min(report["step_time_s"] for report in reports.values())
    rows = [
        {
            "table": name,
            "step time": seconds(report["step_time_s"]),
            "vs best": signed_percent(report["step_time_s"] / least_s - 1),
            "bubble": percent(report["bubble_ratio"]),
            "peak activations": size(max(rank["peak_activation_bytes"] for rank in report["ranks"])),
        }
        for name, report in reports.items()
    ]
    Page().add(TableLines.of(rows))


def print_timeline(timeline: Timeline, *, is_wanted: bool | None) -> None:
    """If `is_wanted` is None, draw the step only if a few lines suffice to read it."""
    if is_wanted is False:
        return
    out = Page()
    if is_wanted:
        drawing: TextTimeline | None = drawing_of(timeline, width=out.width, most_lines=_MOST_LINES)
    else:
        drawing = readable_drawing(timeline, width=out.width)
    if drawing is not None:
        out.add("", *lines_of(drawing, out.width))


def _iteration(report: dict[str, Any]) -> list[tuple[str, str]]:
    if not report["step_overhead_s"]:
        return []
    between = seconds(report["step_overhead_s"])
    return [("iteration", f"{seconds(report['iteration_time_s'])}, with {between} between steps")]


def _span(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The result is empty if the span equals the step time."""
    if _is_step(report):
        return []
    span = f"{seconds(report['span_s'])} (bubble {percent(report['span_bubble_ratio'])})"
    return [("per-rank span", f"{span}: step time if the optimizer does not synchronise ranks")]


def _is_step(report: dict[str, Any]) -> bool:
    return bool(report["span_s"] >= (1 - _VISIBLE) * report["step_time_s"])


_ROUNDING, _VISIBLE = 1e-9, 1e-3


def _bounds(report: dict[str, Any]) -> str:
    step, span = report["lower_bound_s"], report["span_lower_bound_s"]
    limit = report["memory_limit_bytes"]
    is_kept = limit is not None and is_within(max(rank["peak_bytes"] for rank in report["ranks"]), limit)
    within = f" within {size(limit)}" if is_kept else ""
    above = f"{percent(gap_of(report['step_time_s'], step))} above it"
    if (
        step > (1 + _ROUNDING) * report["step_time_s"]
    ):  # measured steps only, because their bound uses the medians over all steps
        above = "by the median passes of all steps: those of this one are faster"
    bound = f"{seconds(step)} for any schedule on this placement{within} ({above})"
    if _is_step(report):
        return bound
    return f"{bound}; per-rank span {seconds(span)} ({percent(gap_of(report['span_s'], span))} above it)"


def _shortened(path: Sequence[str]) -> str:
    shown = list(path) if len(path) <= 9 else [*path[:4], "…", *path[-4:]]
    return " → ".join(shown) + (f" ({len(path)} actions)" if len(path) > 9 else "")


def print_trained(trained: Any, *, with_rows: bool = False, with_timeline: bool | None = None) -> None:
    """Print a `ppsim.TrainResult`."""
    print_run(trained.report(), trained.facts, with_rows=with_rows)
    print_timeline(trained.timeline, is_wanted=with_timeline)


def print_run(report: dict[str, Any], run: dict[str, Any], *, with_rows: bool = False) -> None:
    steps = ", ".join(seconds(step) for step in run["step_times_s"])
    kind = "emulated" if run["emulated"] else "trained"
    sentence = f"{kind} on {run['device']} with torch {run['torch']}; steps took {steps}; the median one is shown"
    extra = [("run", sentence)]
    if not run["emulated"]:
        extra.append(("loss", " → ".join(f"{loss:.3f}" for loss in run["losses"])))
    if differences := run["differences"]:
        gradients = (
            f"gradients of {differences['num_parameters']} parameters at most {differences['gradient']:.1e} apart"
        )
        extra.append(("against one process", f"loss {differences['loss']:.1e}, {gradients} (relative)"))
    if run["memory"]:
        extra.append(("peak activations", _measured_peaks(run["memory"])))
    print_report(report, extra, with_rows=with_rows)


def _measured_peaks(memory: dict[str, Any]) -> str:
    peaks = ", ".join(
        f"rank {peak['rank']} {size(peak['peak_activation_bytes'])} at {peak['peak_at']}"
        + (f" ({size(allocated)} allocated)" if (allocated := peak["peak_allocated_bytes"]) is not None else "")
        for peak in memory["ranks"]
    )
    return f"measured: {peaks}"
