"""Which fill a cell has, and which fills a legend explains."""

from dataclasses import replace

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import palette
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.lanes import compute_lanes, transfer_lanes
from ppsim.schedule.table import Op

COSTS = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=0.25)
PLAIN, CHUNKS = (
    simulate(build(name, pp=2, microbatches=4), COSTS.replace(transfer_s=size))
    for name, size in (("1f1b", 0.0), ("interleaved-1f1b", 0.25))
)


def test_each_group_of_fills_begins_where_its_index_says() -> None:
    colours, kinds = ActionColours.colours, (Op.F, Op.B, Op.I, Op.W)
    assert list(colours[: ActionColours.transfer]) == [
        palette.fill_of(op, chunk=chunk) for op in kinds for chunk in (0, 1)
    ]
    assert list(colours[ActionColours.transfer : ActionColours.causes]) == [
        palette.COLOURS[Op.SEND_F], palette.BLANK, palette.COLOURS[Op.IDLE],
    ]  # fmt: skip
    assert list(colours[ActionColours.causes : ActionColours.beside]) == list(palette.CAUSE_COLOURS.values())
    assert list(colours[ActionColours.beside : ActionColours.microbatches]) == list(palette.BESIDE_COLOURS.values())
    assert list(colours[ActionColours.microbatches : ActionColours.errors]) == list(palette.MICROBATCHES)
    assert list(colours[ActionColours.errors :]) == list(palette.ERRORS)


def test_a_cell_has_the_fill_of_its_kind_and_of_every_other_chunk() -> None:
    fills = fills_of([PLAIN, CHUNKS])
    assert fills.num_chunks == 2
    lane = compute_lanes(CHUNKS)[0]
    found = [fills.colours[index] for index in fills.index_of(lane).tolist()]
    for colour, kind, chunk, is_idle in zip(
        found, lane.kind.tolist(), lane.chunk.tolist(), lane.is_idle.tolist(), strict=True
    ):
        assert colour == (palette.COLOURS[Op.IDLE] if is_idle else palette.fill_of(Op(kind), chunk=chunk))
    assert {palette.fill_of(op, chunk=chunk) for op in (Op.F, Op.B) for chunk in (0, 1)} <= set(found)
    third = replace(lane, chunk=lane.chunk + 2)
    assert (fills.index_of(third) == fills.index_of(lane)).all()


def test_a_lane_of_transfers_is_blank_between_them() -> None:
    fills, lane = fills_of([CHUNKS]), transfer_lanes(CHUNKS)[0]
    found = [fills.colours[index] for index in fills.index_of(lane).tolist()]
    assert found == [palette.BLANK if is_idle else palette.COLOURS[Op.SEND_F] for is_idle in lane.is_idle.tolist()]


@pytest.mark.parametrize(
    ("timelines", "names"),
    [
        ([PLAIN], ["F", "B", "idle"]),
        ([CHUNKS], ["F", "B", "lighter", "transfer", "idle"]),
        ([PLAIN, CHUNKS], ["F", "B", "lighter", "transfer", "idle"]),
    ],
)
def test_a_legend_has_what_is_drawn(timelines: list, names: list[str]) -> None:
    colours = {
        "F": palette.fill_of(Op.F, chunk=0), "B": palette.fill_of(Op.B, chunk=0), "lighter": palette.fill_of(Op.F, chunk=1),
        "transfer": palette.COLOURS[Op.SEND_F], "idle": palette.COLOURS[Op.IDLE],
    }  # fmt: skip
    fills = fills_of(timelines)
    assert [colour for _, colour in fills.legend(timelines)] == [colours[name] for name in names]
    swatches = [tuple(found) for _, found in fills.swatches(timelines)]
    chunks = (0, 1) if "lighter" in names else (0,)
    expected = [tuple(palette.fill_of(op, chunk=chunk) for chunk in chunks) for op in (Op.F, Op.B)]
    expected += [(colours["transfer"],)] if "transfer" in names else []
    assert swatches == [*expected, ("var(--idle)",), *([()] if "lighter" in names else [])]
