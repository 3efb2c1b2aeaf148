"""Numbers of the page, decoded as its script does, are those of the timeline."""

import base64
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import palette
from ppsim.plot.lanes import HALF_HEIGHT
from ppsim.plot.picture import BUSY, ActionErrors, PackedNumbers, Picture, _row_px, picture_of, tick_of
from ppsim.plot.plot_model import TimelineView
from ppsim.plot.scale import time_scale
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.table import NONE
from ppsim.simulation.idle_causes import CAUSES
from ppsim.simulation.step import StepActivity
from ppsim.simulation.timeline import Timeline

COSTS = StageCosts(
    forward_s=[1.0, 2.0], backward_input_s=1.5, backward_weight_s=1.5, transfer_s=0.25, activation_bytes=2.0**30,
    static_bytes=[2.0**31, 2.0**30],
)  # fmt: skip
TABLE = build("1f1b", pp=2, microbatches=3)


def timeline(costs: StageCosts = COSTS) -> Timeline:
    return simulate(TABLE, costs)


def view(of: Timeline, title: str = "", pieces: tuple[StepActivity, ...] = ()) -> TimelineView:
    return TimelineView(of, title, pieces)


def decoded(numbers: PackedNumbers) -> Any:
    """Return a function from a row's address to its numbers; a packed stream can be read once."""
    raw = zlib.decompress(base64.b64decode(numbers.packed()))

    def read(row: dict[str, Any]) -> np.ndarray:
        kind = np.dtype(row["type"])
        size = row["length"] * kind.itemsize
        planes = np.frombuffer(raw[row["at"] : row["at"] + size], dtype=np.uint8).reshape(
            kind.itemsize, row["length"]
        )
        values = np.ascontiguousarray(planes.T).view(kind)[:, 0]
        if row["how"] == "sum":
            return np.cumsum(values.astype(np.float64))
        return np.arange(len(values)) - values if row["how"] == "back" else values

    return read


def test_rows_are_read_back_in_their_narrowest_type() -> None:
    numbers = PackedNumbers(0.5)
    small, wide, widest = np.array([-128, 127]), np.array([-129, 0, 3]), np.array([2**31 - 1, -(2**31)])
    rows = [numbers.add(one) for one in (small, wide, widest)]
    rows += [numbers.add_times(np.array([1.0, 1.5, 4.0])), numbers.add_rising(np.array([3, 4, 9]))]
    rows += [numbers.add_back(np.array([-1, 0, 0, 2])), numbers.add(np.array([0.25, 0.5], dtype=np.float32))]
    assert [row["type"] for row in rows[:3]] == ["i1", "i2", "i4"]
    assert [row["at"] for row in rows[:4]] == [0, 2, 8, 16]
    read = decoded(numbers)
    assert [read(row).tolist() for row in rows[:3]] == [small.tolist(), wide.tolist(), widest.tolist()]
    assert read(rows[3]).tolist() == [2, 3, 8], "ticks of half a second"
    assert read(rows[4]).tolist() == [3, 4, 9]
    assert read(rows[5]).tolist() == [0, 0, 0, 2], "an entry without one refers to itself"
    assert read(rows[6]).tolist() == [0.25, 0.5]


@pytest.mark.parametrize(("longest_s", "tick_s"), [(9.99, 1e-12), (10.0, 1e-11), (0.5, 1e-13), (0.0, 1.0)])
def test_a_tick_leaves_12_digits(longest_s: float, tick_s: float) -> None:
    assert tick_of(longest_s) == pytest.approx(tick_s)


@pytest.mark.parametrize(("ranks", "px"), [(1, 34), (8, 34), (10, 30), (30, 11), (128, 11), (129, 6), (60, 11)])
def test_rows_of_few_ranks_are_high(ranks: int, px: float) -> None:
    assert _row_px(ranks) == px


@pytest.fixture
def picture() -> Picture:
    return picture_of([view(timeline(), "plan")], memory_limit_bytes=8 * 2.0**30)


def panel(picture: Picture, kind: str) -> dict[str, Any]:
    [found] = [one for one in picture.data["panels"] if one["kind"] == kind]
    return dict(found)


def test_a_plan_has_the_columns_of_its_table(picture: Picture) -> None:
    [plan] = picture.data["plans"]
    made = timeline()
    read, told = decoded(picture.drawn), decoded(picture.told)
    assert read(plan["op"]).tolist() == TABLE.op.tolist()
    assert read(plan["stage"]).tolist() == TABLE.stage.tolist()
    assert read(plan["microbatch"]).tolist() == TABLE.microbatch.tolist()
    assert read(plan["source"]).tolist() == made.graph.source.tolist()
    assert read(plan["target"]).tolist() == made.graph.target.tolist()
    assert (plan["numActions"], plan["numMicrobatches"], plan["numStages"], plan["numSlices"]) == (12, 3, 2, 1)
    assert (plan["rankOffsets"], plan["chunks"], plan["numRounds"]) == ([0, 6, 12], [0, 0], 1)
    blocker = np.where(made.blocker < 0, np.arange(len(made.blocker)), made.blocker)
    assert told(plan["blocker"]).tolist() == blocker.tolist()
    static = np.array([2.0**31, 2.0**30])[TABLE.rank]
    assert told(plan["held"]).tolist() == (made.memory.during + static).tolist()


def test_cells_have_the_times_and_causes_of_the_timeline(picture: Picture) -> None:
    found, made, data = panel(picture, "compute"), timeline(), picture.data
    read = decoded(picture.drawn)
    seconds = read(found["edges"]) * data["tick"] * data["unitSeconds"]
    first = found["rows"][0]["cells"]
    edges, rank_1 = seconds[: first + 1], seconds[first + 1 :]
    assert (edges[0], edges[-1]) == pytest.approx((0.0, made.step_time_s))
    assert (rank_1[0], rank_1[-1]) == pytest.approx((0.0, made.step_time_s))
    causes = read(found["causes"])
    assert len(causes) == sum(row["cells"] for row in found["rows"])
    assert (causes == BUSY).sum() == 12
    assert float(np.diff(edges)[causes[:first] == BUSY].sum()) == pytest.approx(float(made.busy_s[0]))
    assert [row["middle"] for row in found["rows"]] == [0, 1]
    assert found["rows"][0]["typical"] * data["unitSeconds"] == pytest.approx(2.0), "median of 1 s and 3 s"
    assert (found["heightPx"], found["numRanks"]) == (2 * 34, 2)
    [path] = found["paths"]
    assert set(read(path["rank"]).tolist()) == {0, 1}
    assert read(path["x"])[-1] * data["tick"] * data["unitSeconds"] == pytest.approx(made.step_time_s)


def test_memory_is_drawn_up_to_its_limit(picture: Picture) -> None:
    found, read = panel(picture, "memory"), decoded(picture.drawn)
    assert (found["limit"], found["unit"]) == ([8.0, "limit 8.00 GiB"], "GiB")
    assert found["top"] == pytest.approx(1.06 * 8)
    assert [line["rank"] for line in found["lines"]] == [0, 1]
    assert max(read(found["lines"][0]["y"])) == pytest.approx(2 + 2), "2 GiB, and two microbatches in flight"
    unlimited = panel(picture_of([view(timeline(), "plan")]), "memory")
    assert unlimited["limit"] is None
    assert unlimited["top"] == pytest.approx(1.06 * 4)


def test_transfers_are_a_panel_if_they_take_time() -> None:
    found = panel(picture_of([view(timeline(), "plan")]), "transfers")
    step_s = timeline().step_time_s
    assert found["caption"][1].endswith(f"a rank's are under way {100 * 6 * 0.25 / 2 / step_s:.2f} % of the step")
    without = picture_of([view(timeline(COSTS.replace(transfer_s=0.0)), "plan")])
    assert [one["kind"] for one in without.data["panels"]] == ["compute", "memory"]


def piece(kind: str, rank: int, start_s: float, end_s: float, **fields: Any) -> StepActivity:
    given = {"kind": kind, "rank": rank, "stage": -1, "start_s": start_s, "end_s": end_s}
    return StepActivity(**(given | fields))


def test_work_beside_the_pipeline_is_drawn_in_order_without_overlap() -> None:
    made = timeline()
    kinds = list(palette.BESIDE_COLOURS)
    own = [kind for kind in kinds if kind not in palette.MESSAGES][:2]
    pieces = (
        piece(own[1], 0, 3.0, 5.0, stage=1), piece(own[0], 0, 1.0, 4.0), piece(own[0], 0, 4.5, 4.75),
        piece(own[0], 1, 0.0, 1.0, told="all"),
    )  # fmt: skip
    picture = picture_of([view(made, "plan", pieces)])
    found, data = panel(picture, "beside"), picture.data
    fills = data["fills"]
    seconds = decoded(picture.drawn)(found["edges"]) * data["tick"] * data["unitSeconds"]
    assert seconds.tolist() == pytest.approx([0.0, 1.0, 4.0, 5.0, 0.0, 1.0])
    assert [row["cells"] for row in found["rows"]] == [3, 1]
    idle = fills["transfer"] + 1
    first = int(next(name for name, title in found["titles"].items() if title == palette.BESIDE_TITLES[own[0]]))
    second = int(next(name for name, title in found["titles"].items() if title == palette.BESIDE_TITLES[own[1]]))
    assert found["fill"] == [idle, first, second, first]
    assert [found["texts"][told] for told in found["told"]] == ["", "all stages of the rank", "stage 1", "all"]
    assert found["heightPx"] == 2 * 24


def test_messages_of_experts_say_their_exposed_part() -> None:
    exposed, hidden = (
        next(kind for kind in palette.MESSAGES if (kind == "exposed") == is_so) for is_so in (True, False)
    )
    pieces = (piece(exposed, 0, 0.0, 1.0), piece(hidden, 0, 1.0, 4.0))
    picture = picture_of([view(timeline(), "plan", pieces)])
    assert panel(picture, "messages")["caption"][1].endswith("messages of experts, 25.00 % exposed")
    assert [one["kind"] for one in picture.data["panels"]] == ["compute", "messages", "transfers", "memory"]


def errors(scale: list[float]) -> ActionErrors:
    slow = COSTS.replace(forward_s=[one * factor for one, factor in zip([1.0, 2.0], scale, strict=True)])
    return ActionErrors(timeline(), timeline(slow))


def test_errors_are_of_each_actions_duration() -> None:
    found = errors([1.5, 1.0])
    forward_0 = (TABLE.op == 0) & (TABLE.stage == 0)
    assert found.of_action == pytest.approx(np.where(forward_0, 0.5, 0.0))
    assert found.behind_s[0] == pytest.approx(0.5)
    assert (found.measured_s[0], found.projected_s[0]) == (1.0, 1.5)
    nothing = ActionErrors(timeline(COSTS.replace(forward_s=0.0)), timeline())
    assert nothing.of_action[0] == 0


@pytest.mark.parametrize(("part", "limit"), [(0.0, 0.02), (0.019, 0.02), (0.04, 0.05), (0.3, 0.5), (3.0, 1.0)])
def test_a_limit_contains_three_of_four_errors(part: float, limit: float) -> None:
    every = COSTS.replace(
        forward_s=[1 + part, 2 * (1 + part)], backward_input_s=1.5 * (1 + part), backward_weight_s=1.5 * (1 + part)
    )
    assert ActionErrors(timeline(), timeline(every)).limit == limit


def test_compared_timelines_share_a_panel() -> None:
    compared = errors([1.5, 1.0])
    picture = picture_of([view(compared.measured, "run"), view(compared.projected, "plan")], errors=compared)
    found = panel(picture, "compute")
    assert [row["middle"] for row in found["rows"]] == pytest.approx([-0.215, 0.785, 0.215, 1.215])
    assert [row["plan"] for row in found["rows"]] == [0, 0, 1, 1]
    assert found["caption"][0] == "1f1b"
    assert found["caption"][1].startswith("in each row run above, plan below · step ")
    assert found["heightPx"] == pytest.approx(1.6 * 34 * 2)
    assert [path["offset"] for path in found["paths"]] == pytest.approx([-0.215 + 0.12, 0.215 + 0.12])
    told = decoded(picture.told)
    assert told(picture.data["errors"]["ofAction"]).tolist() == pytest.approx(compared.of_action.tolist())
    assert told(picture.data["errors"]["behind"]).tolist() == pytest.approx(compared.behind_s.tolist())
    assert picture.data["errors"]["limit"] == compared.limit
    assert replace(compared).limit == compared.limit


def test_colours_of_microbatches_and_errors_follow_each_other(picture: Picture) -> None:
    fills = picture.data["fills"]
    assert fills["errors"][0] == fills["microbatches"][1] + 1
    assert fills["errors"][1] == len(fills["colours"]) - 1 == len(fills["inks"]) - 1
    assert picture.data["range"][0] == 0
    assert picture.data["range"][1] * picture.data["unitSeconds"] == pytest.approx(timeline().step_time_s)


def test_a_page_has_its_scale_titles_causes_and_kinds_of_cells(picture: Picture) -> None:
    data = picture.data
    assert (data["unit"], data["unitSeconds"], data["decimals"]) == (
        "s",
        1.0,
        time_scale(timeline().step_time_s).decimals,
    )
    assert data["tick"] == pytest.approx(tick_of(timeline().step_time_s))
    assert data["titles"] == ["plan"]
    assert data["causes"] == list(palette.CAUSE_TITLES.values())[: len(data["causes"])]
    assert len(data["causes"]) == len(CAUSES)
    assert data["errors"] is None
    assert [one["kind"] for one in data["panels"]] == ["compute", "transfers", "memory"]
    fills = data["fills"]
    assert fills["inks"] == [palette.text_on(colour) for colour in fills["colours"]]
    assert fills["microbatches"][0] < fills["microbatches"][1] < fills["errors"][0]
    assert fills["transfer"] != fills["causes"]


def test_a_plan_of_two_replicas_in_slices_names_its_own_stages_and_needs() -> None:
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    for name, stages, model_stages, slices, units, needs in (
        ("chimera", 4, 2, 1, 4, 2), ("seq1f1b", 2, 2, 4, 16, 3), ("1f1b", 2, 2, 1, 4, 2),
    ):  # fmt: skip
        table = build(name, pp=2, microbatches=4)
        picture = picture_of([view(simulate(table, costs), "plan")])
        [plan] = picture.data["plans"]
        assert (plan["numStages"], plan["numModelStages"], plan["numSlices"]) == (stages, model_stages, slices), (
            name
        )
        assert plan["numMicrobatches"] == units
        assert len(plan["needs"]) == needs
        assert plan["held"] is None
        own = dependencies(table).own
        read = decoded(picture.told)(plan["needs"][0])
        assert read.tolist() == np.where(own == NONE, np.arange(len(own)), own).tolist()


def test_transfers_of_a_rank_are_rows_that_are_high_enough_for_the_thinnest(picture: Picture) -> None:
    found, read = panel(picture, "transfers"), decoded(picture.drawn)
    assert found["heightPx"] == 2 * 48, "two ranks"
    assert found["caption"] == ("", found["caption"][1])
    assert found["caption"][1].startswith("transfers, by sending rank; a rank's are under way ")
    assert {row["plan"] for row in found["rows"]} == {0}
    assert {row["rank"] for row in found["rows"]} == {0, 1}
    nodes = read(found["nodes"])
    assert sorted(nodes.tolist()) == list(range(12, 18)), "three forwards and three backwards"
    assert (read(found["causes"]) == BUSY).sum() == 6
    for ranks, height in ((16, 16 * 6.25), (32, 32 * 5)):
        made = simulate(
            build("1f1b", pp=ranks, microbatches=2), COSTS.replace(forward_s=1.0, static_bytes=0.0, channel="rank")
        )
        wide = panel(picture_of([view(made)]), "transfers")
        thinnest = min(row["half"] for row in wide["rows"])
        assert wide["heightPx"] == pytest.approx(max(height, ranks * min(48, 6 * HALF_HEIGHT / thinnest)))


def test_lines_of_memory_are_of_each_rank_in_its_colour(picture: Picture) -> None:
    found, read = panel(picture, "memory"), decoded(picture.drawn)
    made, data = timeline(), picture.data
    assert (found["heightPx"], found["numRanks"], found["rows"], found["plan"]) == (170, 0, [], 0)
    assert [line["colour"] for line in found["lines"]] == [palette.rank_colour(rank, 2) for rank in (0, 1)]
    assert len({line["colour"] for line in found["lines"]}) == 2
    for rank, line in enumerate(found["lines"]):
        assert max(read(line["y"])) == pytest.approx(made.memory.peak_bytes[rank] / 2**30)
        at = read(line["x"]) * data["tick"] * data["unitSeconds"]
        assert (min(at), max(at)) == pytest.approx((0, made.step_time_s))
    above = panel(picture_of([view(timeline(), "plan")], memory_limit_bytes=2.0**30), "memory")
    assert above["top"] == pytest.approx(1.06 * 4), "more is held than the limit"
    assert above["limit"][0] == 1.0


def test_pieces_that_are_hidden_or_have_no_length_are_left_out_and_equal_texts_are_kept_once() -> None:
    own = next(kind for kind in palette.BESIDE_COLOURS if kind not in palette.MESSAGES)
    pieces = (
        piece(own, 1, 2.0, 2.5, told="a"), piece(own, 1, 3.0, 3.0), piece(own, 1, 2.25, 2.5, told="b"),
        piece(own, 1, 2.25, 2.75, told="a"),
    )  # fmt: skip
    for ranks, height in ((2, 2 * 24), (10, 10 * 10), (30, 30 * 5)):
        costs = COSTS.replace(forward_s=1.0, static_bytes=0.0)
        made = simulate(build("1f1b", pp=ranks, microbatches=2), costs)
        picture = picture_of([view(made, "plan", pieces)])
        found, data = panel(picture, "beside"), picture.data
        assert found["heightPx"] == pytest.approx(height)
        assert found["caption"] == ("", "beside the pipeline: collectives of data parallelism, optimizer")
        assert [row["cells"] for row in found["rows"]] == [0, 3, *[0] * (ranks - 2)]
        seconds = decoded(picture.drawn)(found["edges"]) * data["tick"] * data["unitSeconds"]
        assert seconds.tolist() == pytest.approx([0.0, 0.0, 2.0, 2.5, 2.75, *[0.0] * (ranks - 2)])
        assert [found["texts"][told] for told in found["told"]] == ["", "a", "a"]
        assert found["texts"] == ["", "a"]
        assert list(found["titles"].values()) == [palette.BESIDE_TITLES[kind] for kind in palette.BESIDE_COLOURS]


def test_messages_and_collectives_are_panels_of_their_own() -> None:
    message, own = (
        palette.MESSAGES[0],
        next(kind for kind in palette.BESIDE_COLOURS if kind not in palette.MESSAGES),
    )
    pieces = (piece(message, 0, 0.0, 1.0), piece(own, 0, 1.0, 4.0))
    picture = picture_of([view(timeline(), "plan", pieces)])
    kinds = [one["kind"] for one in picture.data["panels"]]
    assert kinds == ["compute", "messages", "transfers", "beside", "memory"]
    for kind in ("messages", "beside"):
        assert [row["cells"] for row in panel(picture, kind)["rows"]] == [1 + (kind == "beside"), 0]


def test_a_comparison_says_both_steps_and_their_difference() -> None:
    compared = errors([1.5, 1.25])
    first, second = compared.measured.step_time_s, compared.projected.step_time_s
    picture = picture_of([view(compared.measured, "run"), view(compared.projected, "plan")], errors=compared)
    assert panel(picture, "compute")["caption"][1] == (
        f"in each row run above, plan below · step {first:.1f} s run, {second:.1f} s plan "
        f"(+{100 * (second / first - 1):.2f} %)"
    )
    assert [row["half"] for row in panel(picture, "compute")["rows"]] == [0.2] * 4
    told = decoded(picture.told)
    given = picture.data["errors"]
    assert told(given["measured"]).tolist() == compared.measured_s.tolist()
    assert told(given["projected"]).tolist() == compared.projected_s.tolist()
    captions = [one["caption"][1] for one in picture.data["panels"] if one["kind"] == "transfers"]
    assert len(captions) == 2
    assert captions[0] != captions[1]


def test_a_page_begins_with_the_first_and_ends_with_the_last_piece_in_its_unit() -> None:
    """Times are milliseconds: a gather begins 1 ms before the pipeline, a reduction ends 2 ms after it."""
    fast = timeline(StageCosts(forward_s=1e-3, backward_input_s=1.5e-3, backward_weight_s=1.5e-3))
    begin_s, end_s = fast.begin_s, fast.begin_s + fast.step_time_s
    gather, reduction = piece("gather", 0, begin_s - 1e-3, begin_s), piece("reduce", 1, end_s, end_s + 2e-3)
    page = picture_of([view(fast), view(fast, pieces=(gather, reduction))]).data
    assert (page["unit"], page["unitSeconds"]) == ("ms", 1e-3)
    assert page["range"] == pytest.approx([-1.0, 1e3 * fast.step_time_s + 2.0])
    assert page["tick"] == pytest.approx(1e-11), "of 19 ms"
