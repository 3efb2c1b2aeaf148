"""Seconds of a stage that are no sums over its rows, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.costs import stage_rules
from ppsim.costs.job import Job
from ppsim.costs.stage_rules import accumulated, head_in_passes, with_held_cores, with_replicas
from ppsim.costs.time_breakdown import CostEstimate, TimeBreakdown
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import RankParameters, held_parameters
from ppsim.model.pipeline_stages import Stage
from tests.projection.jobs import job

COSTS = CostEstimate(TimeBreakdown(ideal_s=3.0), TimeBreakdown(ideal_s=5.0), TimeBreakdown(ideal_s=7.0))
WHOLE = replace(COSTS, whole_backward=TimeBreakdown(ideal_s=11.0))


def held(of: Job) -> RankParameters:
    return held_parameters(of.model, [Stage(of.model.layers[:2])], of.place.cut)


@pytest.mark.parametrize(
    ("optimizer", "moved"),
    [
        ({"zero_stage": 1}, 2 + 2 * 4),  # weights of 2 bytes, sums of 4
        ({"zero_stage": 2}, 2 + 4),
        ({"zero_stage": 1, "gradient_bytes": 2}, (1 - 1 / 4) * (2 + 2 * 2)),  # the first of four is the sum
        ({"zero_stage": 2, "gradient_bytes": 2}, 2 + 2),
    ],
)
def test_gradients_are_read_and_added_to_their_sum_or_copied(optimizer: dict[str, Any], moved: float) -> None:
    of = job(dp=2, global_batch=8, optimizer=Optimizer(**optimizer))
    assert of.num_microbatches == 4
    assert (of.optimizer.weight_bytes, of.optimizer.bytes_of_gradient) == (2, optimizer.get("gradient_bytes", 4))
    device, parameters = of.cluster.device, held(of)
    num_bytes = moved * (parameters.trained + parameters.trained_expert)
    found = accumulated(of, parameters)
    rate = device.memory_bytes_per_s * device.efficiency.memory
    assert found.backward_weight == TimeBreakdown(memory_s=pytest.approx(num_bytes / rate))
    assert found.forward == found.backward_input == TimeBreakdown()


def passes(monkeypatch: pytest.MonkeyPatch, gather_s: float, reduce_s: float, **fields: Any) -> CostEstimate:
    monkeypatch.setattr(stage_rules, "passes_s", lambda job, held: (gather_s, reduce_s))
    of = job(dp=2, optimizer=Optimizer(zero_stage=3), **fields)
    slowdown = of.place.collective_slowdown
    assert 0 < slowdown < 1
    costs = (fields and COSTS) or COSTS
    return with_replicas(of, held(of), costs)


def test_hidden_collectives_slow_the_compute_and_others_are_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    slowdown = job(dp=2).place.collective_slowdown
    hidden = passes(monkeypatch, 2.0, 4.0)
    assert hidden.forward == TimeBreakdown(ideal_s=3.0, matmul_loss_s=pytest.approx(2 * slowdown))
    assert hidden.backward_input == TimeBreakdown(ideal_s=5.0, matmul_loss_s=pytest.approx(2 * slowdown))
    assert hidden.backward_weight == TimeBreakdown(ideal_s=7.0, matmul_loss_s=pytest.approx(4 * slowdown))
    assert hidden.whole_backward == TimeBreakdown(ideal_s=12.0, matmul_loss_s=pytest.approx(6 * slowdown))
    shown = passes(monkeypatch, 2.0, 4.0, overlap_param_gather=False, overlap_grad_reduce=False)
    assert [one.dp_s for one in (shown.forward, shown.backward_input, shown.backward_weight)] == [2, 2, 4]
    assert shown.whole_backward == TimeBreakdown(ideal_s=12.0, dp_s=6.0)
    one = passes(monkeypatch, 2.0, 4.0, overlap_grad_reduce=False)
    assert (one.forward.dp_s, one.backward_weight.dp_s, one.whole_backward.dp_s) == (0, 4, 4)
    assert one.whole_backward.matmul_loss_s == pytest.approx(2 * slowdown)


def test_collectives_longer_than_compute_are_exposed_as_far_as_they_are_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = passes(monkeypatch, 30.0, 50.0)
    assert found.forward == TimeBreakdown(ideal_s=3.0, dp_s=27.0)
    assert found.backward_input == TimeBreakdown(ideal_s=5.0, dp_s=25.0)
    assert found.backward_weight == TimeBreakdown(ideal_s=7.0, dp_s=43.0)
    assert found.whole_backward == TimeBreakdown(ideal_s=12.0, dp_s=68.0)


def test_fsdp_copies_what_it_gathers_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_rules, "passes_s", lambda job, held: (0.0, 0.0))
    of = job(dp=2, optimizer=Optimizer(zero_stage=3), fully_shard=True)
    parameters, device = held(of), of.cluster.device
    num_bytes = 2 * of.settings.gathered_bytes * (parameters.dense + parameters.expert)
    copied_s = num_bytes / (device.memory_bytes_per_s * device.efficiency.memory)
    found = with_replicas(of, parameters, WHOLE)
    assert (found.forward.memory_s, found.backward_input.memory_s) == pytest.approx((copied_s, copied_s))
    assert found.backward_weight.memory_s == 0
    assert found.whole_backward == TimeBreakdown(ideal_s=11.0, memory_s=pytest.approx(copied_s))
    alone = job(dp=1, optimizer=Optimizer(zero_stage=3), fully_shard=True)
    assert with_replicas(alone, held(alone), COSTS).forward.memory_s == 0


def test_cores_that_collectives_hold_slow_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_rules, "slowed_s", lambda job, held, hidden: (8.0 * hidden, 20.0))
    of = job(dp=2, global_batch=8)
    found = with_held_cores(of, held(of), WHOLE, 0.5)
    assert found.forward == TimeBreakdown(ideal_s=3.0, matmul_loss_s=1.0)
    assert found.backward_input == COSTS.backward_input
    assert found.backward_weight == TimeBreakdown(ideal_s=7.0, matmul_loss_s=5.0)
    assert found.whole_backward == TimeBreakdown(ideal_s=11.0, matmul_loss_s=5.0)
    assert with_held_cores(of, held(of), COSTS, 0.5).whole_backward is None


@pytest.mark.parametrize(("limit", "share"), [(None, 1.0), (1, 1 - 1 / 8), (0, 0.0)])
def test_deferred_weight_gradients_leave_the_heads_passes(limit: int | None, share: float) -> None:
    of = job(pp=2, global_batch=8, wgrad_deferral_limit=limit)
    _, head = of.costs.ends
    found = head_in_passes(of)
    assert found.forward == head.forward
    assert found.backward_weight.total_s == pytest.approx(share * head.backward_weight.total_s)
