"""A drawing in characters is the timeline, right to one column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.plot.lanes import compute_lanes
from ppsim.results.steps import draw, drawing_of, lines_of, readable_drawing
from ppsim.schedule.table import Op
from tests.strategies import costs_of, tables

COSTS = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


@st.composite
def timelines(draw_from):
    table = draw_from(tables())
    return simulate(table, draw_from(costs_of(table)))


@given(timelines(), st.integers(40, 160), st.integers(1, 60))
def test_every_row_is_as_wide_as_the_step(timeline, width, most_lines):
    drawing = drawing_of(timeline, width=width, most_lines=most_lines)
    whole = drawing.num_columns * drawing.num_strips
    assert [sum(len(bar.text) for bar in row) for row in drawing.rows] == [whole] * timeline.schedule.num_ranks
    assert drawing.column_s * whole == pytest.approx(timeline.step_time_s)
    for _, rows in drawing.strips():
        assert {sum(len(bar.text) for bar in row) for row in rows} == {drawing.num_columns}


@given(timelines(), st.integers(40, 160), st.integers(1, 60))
def test_no_line_is_wider_than_asked_for(timeline, width, most_lines):
    assert max(map(len, draw(timeline, width=width, most_lines=most_lines).splitlines())) <= width


@given(timelines(), st.integers(40, 160))
def test_bars_are_the_actions_in_their_order_each_long_as_it_takes_but_for_one_column(timeline, width):
    drawing = drawing_of(timeline, width=width, most_lines=60)
    if drawing.is_coarse:
        return
    for lane, row in zip(compute_lanes(timeline), drawing.rows, strict=True):
        edges = lane.edges / drawing.column_s
        shown = np.flatnonzero(np.diff(np.rint(edges)))
        assert [bar.op for bar in row] == [Op(kind) for kind in lane.kind[shown]]
        starts = np.cumsum([0, *(len(bar.text) for bar in row[:-1])])
        for bar, start, cell in zip(row, starts, shown, strict=True):
            assert abs(start - edges[cell]) <= 0.5 + 1e-6
            assert abs(len(bar.text) - (edges[cell + 1] - edges[cell])) <= 1 + 1e-6


@given(timelines())
def test_a_readable_drawing_has_the_microbatch_of_nearly_all_that_takes_time(timeline):
    drawing = readable_drawing(timeline, most_lines=48)
    if drawing is None:
        return
    written_s = 0.0
    for lane, row in zip(compute_lanes(timeline), drawing.rows, strict=True):
        shown = np.flatnonzero(np.diff(np.rint(lane.edges / drawing.column_s)))
        for bar, cell in zip(row, shown, strict=True):
            if bar.op is not Op.IDLE:
                label = f"{bar.op.name}{timeline.schedule.microbatch[lane.node[cell]]}"
                written_s += lane.durations_s[cell] if label in bar.text else 0.0
    assert written_s >= 0.95 * timeline.busy_s.sum()


def test_a_number_is_not_cut_where_a_strip_ends():
    """F10 that begins two columns before the end has its name in the next strip, not F1 here and 0 there."""
    timeline = simulate(build("1f1b", pp=2, microbatches=14), COSTS)
    drawing = drawing_of(timeline, width=66)
    assert drawing.num_strips > 1
    names = {f"{op}{microbatch}" for op in "FB" for microbatch in range(14)}
    for rank in (0, 1):
        bars = [bar for _, rows in drawing.strips() for bar in rows[rank] if bar.op is not Op.IDLE]
        labels = [label for bar in bars if len(label := bar.text.strip("fb")) > 1]
        assert len(labels) == len(set(labels)) > 25
        assert set(labels) <= names


def test_too_many_actions_for_letters_are_drawn_by_what_takes_most_of_a_column():
    """1F1B, where B takes two thirds of the steady state: forwards show in the warm-up only."""
    timeline = simulate(build("1f1b", pp=64, microbatches=128), COSTS)
    assert readable_drawing(timeline) is None
    drawing = drawing_of(timeline)
    assert drawing.is_coarse
    first, last = drawing.rows[0], drawing.rows[-1]
    assert [bar.op for bar in first] == [Op.F, Op.IDLE, Op.B]
    assert [bar.op for bar in last] == [Op.IDLE, Op.B, Op.IDLE]
    assert abs(len(first[0].text) - 64 / 191 * drawing.num_columns / 3) <= 1
    assert "shows what its rank does for most of it" in drawing.caption()


def test_actions_that_are_too_short_are_said_to_be_hidden():
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=0.001)
    drawing = drawing_of(simulate(build("zb-h1", pp=2, microbatches=4), costs))
    assert "W" not in {bar.op.name for row in drawing.rows for bar in row}
    assert "0.05 % of the busy time is in actions too short to be seen" in drawing.caption()


def test_numbers_of_a_table_with_slices_are_said_to_be_slices():
    table = build("seq1f1b", pp=2, microbatches=2, num_slices=3)
    drawing = drawing_of(simulate(table, COSTS))
    assert "and the slice, counted through all microbatches;" in drawing.caption()
    assert "F5" in {bar.text.strip("f") for bar in drawing.rows[0]}


def test_colours_are_those_of_the_palette_lighter_for_every_other_chunk(monkeypatch):
    from ppsim.plot.palette import COLOURS, fill_of

    timeline = simulate(build("interleaved-1f1b", pp=2, vpp=2, microbatches=4), COSTS)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    shown = "".join(lines_of(drawing_of(timeline), 100))
    for fill in (COLOURS[Op.F], COLOURS[Op.B], fill_of(Op.F, chunk=1)):
        assert ";48;2;" + ";".join(str(part) for part in bytes.fromhex(fill[1:])) + "m" in shown
    monkeypatch.delenv("COLORTERM")
    assert "\x1b[38;5;231;48;5;24m" in "".join(lines_of(drawing_of(timeline), 100)), "the nearest of 256"


def test_a_width_that_leaves_no_room_is_refused():
    timeline = simulate(build("1f1b", pp=2, microbatches=2), COSTS)
    with pytest.raises(ConfigError, match="a timeline needs a width of 40 or more: got 39"):
        draw(timeline, width=39)
    assert readable_drawing(timeline, width=39) is None


def test_the_hidden_share_is_that_of_actions_without_a_column_not_of_idle_time():
    """Rank 0 is idle most of the time; its backwards take 1/50 of a column."""
    costs = StageCosts(forward_s=[10.0, 0.02], backward_input_s=0.01, backward_weight_s=0.01)
    timeline = simulate(build("gpipe", pp=2, microbatches=4), costs)
    drawing = drawing_of(timeline, width=60, most_lines=2)
    busy_s = float(timeline.busy_s.sum())
    assert drawing.hidden == pytest.approx((busy_s - 40.0) / busy_s, abs=1e-6)
