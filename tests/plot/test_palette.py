"""Colours that can touch stay apart: for normal sight, and for those who lack one of the three cones.

A blindness is simulated twice, and the smaller distance counts: by Machado, Oliveira and Fernandes 2009 (severity 1),
and by Viénot, Brettel and Mollon 1999 (the red and the green cone) or Brettel, Viénot and Mollon 1997 (the blue one).
All work on linear sRGB; distances are those of CIELAB under D65 (CIE76).
"""

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import palette
from ppsim.plot import palette as palette_module
from ppsim.plot.action_colours import KINDS, fills_of
from ppsim.plot.lanes import compute_lanes
from ppsim.schedule.table import NONE, Op
from tests.defaults import number_defaults

LEAST = 12.0
MATRICES = [  # protan, deutan, tritan; then protan, deutan
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
]
# Brettel's two half planes for the blue cone, and the normal of the plane between them.
TRITAN = [
    [[1.01277, 0.13548, -0.14826], [-0.01243, 0.86812, 0.14431], [0.07589, 0.80500, 0.11911]],
    [[0.93678, 0.18979, -0.12657], [0.06154, 0.81526, 0.12320], [-0.37562, 1.12767, 0.24796]],
]
BETWEEN = [0.03901, -0.02788, -0.01113]
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)

KIND_FILLS = {f"{op.name} {chunk}": palette.fill_of(op, chunk=chunk) for op in KINDS for chunk in (0, 1)}
WHITE, IDLE = {"white": palette.BLANK}, {"idle": palette.COLOURS[Op.IDLE]}
MICROBATCHES, ERRORS = (
    {f"{name} {step}": colour for step, colour in enumerate(ramp)}
    for name, ramp in (
        ("microbatch", palette.MICROBATCHES),
        ("error", palette.ERRORS),
    )
)
BESIDE = palette.BESIDE_COLOURS
TOUCHING = {  # an idle cell is grey or in the colour of its cause, never both in one picture
    "kinds and idle": KIND_FILLS | IDLE | WHITE,
    "kinds and causes": KIND_FILLS | palette.CAUSE_COLOURS | WHITE,
    "beside the pipeline": {name: colour for name, colour in BESIDE.items() if name not in palette.MESSAGES}
    | WHITE,
    "messages of experts": {name: BESIDE[name] for name in palette.MESSAGES} | WHITE,
    "transfers": {"transfer": palette.COLOURS[Op.SEND_F]} | WHITE,
    "starts of transfers": {"start": palette.TRANSFER_START} | WHITE,
}


def seen(colours):
    """Return CIELAB by sight, colour and coordinate."""
    values = np.array([[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in colours]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    first, second = (linear @ np.transpose(plane) for plane in TRITAN)
    tritan = np.where((linear @ np.array(BETWEEN) >= 0)[:, None], first, second)
    sights = np.array([linear, *(linear @ np.transpose(matrix) for matrix in MATRICES), tritan])
    share = np.clip(sights, 0, 1) @ XYZ.T / XYZ.sum(axis=1)
    root = np.where(share > (6 / 29) ** 3, np.cbrt(share), share / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def distances(colours, others):
    """Return the smallest distance over all sights of every colour from every other."""
    return np.linalg.norm(seen(colours)[:, :, None] - seen(others)[:, None], axis=-1).min(axis=0)


def too_close(colours, others):
    apart = distances(list(colours.values()), list(others.values()))
    return {
        (one, other): round(float(apart[row, column]), 2)
        for row, one in enumerate(colours)
        for column, other in enumerate(others)
        if one != other and apart[row, column] < LEAST
    }


def test_distances_are_those_of_known_colours():
    assert distances(["#000000"], ["#FFFFFF"])[0, 0] == pytest.approx(100, abs=0.1)
    lab = seen(["#FF0000"])[0, 0]
    assert lab == pytest.approx([53.24, 80.09, 67.20], abs=0.05)
    assert distances(["#808080"], ["#808080"])[0, 0] == 0
    for sight in seen(["#808080"]):  # who lacks a cone sees grey as grey
        assert sight[0] == pytest.approx([53.59, 0, 0], abs=0.1)
    assert distances(["#D00000"], ["#487000"])[0, 0] < LEAST < np.linalg.norm(lab - seen(["#487000"])[0, 0])


@pytest.mark.parametrize("row", TOUCHING)
def test_any_two_colours_that_can_touch_in_a_row_are_told_apart_by_every_sight(row):
    assert too_close(TOUCHING[row], TOUCHING[row]) == {}


@pytest.mark.parametrize("scale", [MICROBATCHES, ERRORS], ids=["microbatches", "errors"])
def test_no_colour_of_a_scale_looks_like_idling_or_like_nothing(scale):
    assert too_close(scale, IDLE | palette.CAUSE_COLOURS | WHITE) == {}


def test_microbatches_grow_lighter_for_every_sight():
    assert (np.diff(seen(MICROBATCHES.values())[..., 0]) > 1).all()


@pytest.mark.parametrize(
    ("name", "pp", "vpp"), [("1f1b", 4, 1), ("interleaved-1f1b", 4, 2), ("zbv", 4, 2), ("zb-h1", 4, 1)]
)
@pytest.mark.parametrize("with_causes", [False, True])
def test_cells_that_touch_have_one_fill_or_two_that_are_told_apart(name, pp, vpp, with_causes):
    costs = StageCosts(forward_s=1.0, backward_input_s=1.1, backward_weight_s=0.7, transfer_s=0.2)
    timeline = simulate(build(name, pp=pp, vpp=vpp, microbatches=8), costs)
    fills = fills_of([timeline])
    touching = set()
    for lane in compute_lanes(timeline, by_cause=True):
        index = fills.index_of(lane)
        index = np.where(lane.cause != NONE, fills.causes + lane.cause, index) if with_causes else index
        touching |= {(min(pair), max(pair)) for pair in zip(index[:-1].tolist(), index[1:].tolist(), strict=True)}
    different = [(fills.colours[one], fills.colours[other]) for one, other in touching if one != other]
    assert len(different) >= 3
    assert min(distances([one], [other])[0, 0] for one, other in different) >= LEAST


def test_what_is_left_out_in_plot_palette_has_these_values() -> None:
    assert number_defaults(palette_module) == {
        "fill_of": {"chunk": 0},
    }  # fmt: skip
