"""What one more layer adds to its stage and rank."""

from dataclasses import replace

import numpy as np
import pytest

from ppsim.costs import layer_costs
from ppsim.costs.layer_costs import layer_costs_of
from ppsim.costs.ledger import Ledger
from ppsim.costs.time_breakdown import CostEstimate, TimeBreakdown
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import stages_of
from tests.projection.jobs import job

LAYER = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096


def test_a_layer_more_costs_what_a_stage_with_one_more_has() -> None:
    """Its passes and bytes are those of a middle stage by layer; its optimizer state is Adam's, and not the ends'."""
    of = job(layers=8, pp=4)
    found, ledger = layer_costs_of(Ledger(of)), Ledger(of)
    middle = ledger.stages(stages_of(of.model, [1, 3, 3, 1]))[1].costs
    passes = middle.forward, middle.backward, middle.backward_input, middle.backward_weight
    assert found.passes_s == pytest.approx([one.total_s / 3 for one in passes])
    assert found.work_s == pytest.approx([(middle.forward.total_s + middle.backward.total_s) / 3] * 8)
    assert found.static_bytes == pytest.approx((2 + 4 + 12) * LAYER)
    assert found.fixed == 0


@pytest.mark.parametrize(
    ("zero", "gather", "reduce", "seen"),
    [
        (1, True, True, "F B I W"),
        (2, False, False, "F B+r I W+r"),
        (2, False, True, "F r I r"),
        (3, False, False, "F+g B+g+r I+g W+r"),
        (3, False, True, "F+g g+r I+g r"),
        (3, True, True, "g g+r g r"),
    ],
)
def test_collectives_of_zero_are_seen_in_each_pass_that_has_them_and_hide_its_compute(
    monkeypatch: pytest.MonkeyPatch, zero: int, gather: bool, reduce: bool, seen: str
) -> None:
    """Forward and backward for inputs gather, whole backward and that for weights reduce."""
    times = {2: (0.0, 1e-3), 3: (1e-2, 1e-3)}.get(zero, (0.0, 0.0))
    monkeypatch.setattr(
        layer_costs, "passes_s", lambda _, held: tuple(second * held.dense / LAYER for second in times)
    )
    of = job(
        layers=4,
        dp=2,
        optimizer=Optimizer(zero_stage=zero),
        overlap_param_gather=gather,
        overlap_grad_reduce=reduce,
    )
    found = layer_costs_of(Ledger(of))
    seconds = dict(zip("FBIW", found.passes_s, strict=True)) | {"g": times[0], "r": times[1]}
    assert found.exposed_s == pytest.approx([sum(seconds[one] for one in cell.split("+")) for cell in seen.split()])


def test_layers_of_two_kinds_count_by_their_number_and_keep_their_own_work() -> None:
    """DeepSeek-V2-Lite's first layer is dense."""
    of = job("deepseek-v2-lite", layers=4, ep=1)
    found = layer_costs_of(Ledger(of))
    dense, routed = (
        layer_costs_of(Ledger(replace(of, model=replace(of.model, layers=(of.model.layers[kind],) * 4))))
        for kind in (0, 1)
    )
    assert found.work_s == pytest.approx([dense.work_s[0], *[routed.work_s[0]] * 3])
    for name in ("passes_s", "exposed_s", "reduce_s", "optimizer_s", "static_bytes", "activation_bytes"):
        one, other = getattr(dense, name), getattr(routed, name)
        assert np.asarray(getattr(found, name)) == pytest.approx(np.asarray(one + 3 * other) / 4), name


def test_the_fixed_time_of_a_stage_counts_as_layers_of_forward_and_backward() -> None:
    of = job(layers=2)
    seconds = (TimeBreakdown(memory_s=time) for time in (0.03, 0.05, 0.07))
    vars(of.costs)["outside_layers"] = CostEstimate(*seconds)
    costs = layer_costs_of(Ledger(of))
    assert costs.passes_s == pytest.approx(layer_costs_of(Ledger(job(layers=2))).passes_s)
    forward, backward, *_ = costs.passes_s
    assert costs.fixed == pytest.approx(0.15 / (forward + backward))
