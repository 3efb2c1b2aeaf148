"""Parts of an iteration, sensitivities and intervals, of times by hand."""

from math import exp
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.time_breakdown import TimeBreakdown
from ppsim.projection import loss_breakdown
from ppsim.projection.loss_breakdown import _of_pairs, interval, interval_by_spread, loss_budget, sensitivities
from ppsim.simulation.simulate import simulate_graph
from tests.projection.by_hand import by_hand, free


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, {"compute": 12, "pipeline bubble": 3, "exposed P2P": 1.5}),
        ({"runtime": "ideal"}, {"compute": 12, "pipeline bubble": 3, "exposed P2P": 1.0}),
        # Rank 1 has 24 s of compute, the mean is 18 s. The bubble of rank 1 is the first forward and last backward of rank 0.
        (
            {"stragglers": ((1, 2.0),)},
            {"compute": 18, "stage imbalance": 6, "pipeline bubble": 3, "exposed P2P": 0.5},
        ),
        ({"step_overhead_s": 2.0}, {"compute": 12, "pipeline bubble": 3, "exposed P2P": 1.5, "host": 2.0}),
        ({"schedule": "zb-h1", "runtime": "ideal"}, {"compute": 12, "pipeline bubble": 1, "exposed P2P": 1.0}),
    ],
)
def test_parts_of_an_iteration_add_up(fields: dict[str, Any], parts: dict[str, float]) -> None:
    made = by_hand(**fields)
    assert loss_budget(made) == pytest.approx(parts)
    assert made.iteration_time_s == pytest.approx(sum(parts.values()))


def test_overheads_without_transfers_are_the_hosts() -> None:
    # Of 10 actions on the longest path, the first starts the step. The first of each rank takes 1 s more.
    made = free(action_overhead_s=0.5, first_pass_s=1.0, last_pass_s=3.0, runtime="ideal")
    assert loss_budget(made) == pytest.approx({"compute": 12, "pipeline bubble": 3, "host": 9 * 0.5 + 2 * 1 + 3})


def test_variation_is_a_part_of_its_own() -> None:
    parts = loss_budget(by_hand(action_spread=0.1))
    assert list(parts) == ["compute", "pipeline bubble", "exposed P2P", "passes that vary"]
    assert 0 < parts["passes that vary"] < 0.1 * 12
    slower = loss_budget(by_hand(overlap_slowdown=0.5))
    assert list(slower)[-1] == "slower next to P2P"
    assert 0 < slower["slower next to P2P"] < 0.5 * 12


def test_one_percent_of_compute_is_one_percent_of_a_step_of_compute() -> None:
    found = sensitivities(free(runtime="ideal"))
    assert found["compute of all stages"] == pytest.approx(0.01)
    assert found["data parallelism"] == found["optimizer"] == 0
    # 12 of the 15 s are on the path through one rank; a forward and a backward, 3 s, are of the other.
    assert found["compute of stage 0"] + found["compute of stage 1"] <= 0.01 + 1e-12
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_transfers_are_a_hundredth_of_the_exposed_ones() -> None:
    made = by_hand(runtime="ideal")
    found = sensitivities(made)
    assert found["transfers"] == pytest.approx(0.01 * 1.0 / 16)
    assert found["compute of all stages"] == pytest.approx(0.01 * 15 / 16)


def test_an_interval_without_variation_is_of_its_spread() -> None:
    made = free(runtime="ideal")
    low_s, high_s = interval(made, spread=0.1, jitter=0.0)
    assert (low_s, high_s) == pytest.approx((15 * exp(-0.1645), 15 * exp(0.1645)), rel=1e-4)
    assert interval_by_spread(15, 0.1) == pytest.approx((low_s, high_s))
    assert interval(made, spread=0.0, jitter=0.0) == pytest.approx((15, 15))


def test_random_times_widen_an_interval_and_the_step() -> None:
    made = free(runtime="ideal")
    low_s, high_s = interval(made, spread=0.0, jitter=0.1)
    middle_s = (low_s * high_s) ** 0.5
    assert 15 < middle_s < 16.5, "waits for late actions"
    # Of 10 independent actions on the path: about 0.1 · √(2 · (4 · 1² + 4 · 2²) / 20) / 15 s.
    assert 0.02 < np.log(high_s / low_s) / 2 / 1.645 < 0.06
    of_ranks = interval(made, spread=0.0, jitter=0.0, rank_spread=0.1)
    assert np.log(of_ranks[1] / of_ranks[0]) > np.log(high_s / low_s), "a rank's actions vary together"
    assert np.log(of_ranks[1] / of_ranks[0]) / 2 / 1.645 < 0.11, "a step varies no more than a rank"
    assert interval(made, spread=0.0, jitter=0.1, seed=1) != (low_s, high_s)


def test_variation_in_the_step_is_not_counted_twice() -> None:
    plain, varied = free(runtime="ideal"), free(runtime="ideal", action_spread=0.1)
    assert varied.iteration_time_s > plain.iteration_time_s
    assert interval(varied, spread=0.0, jitter=0.1) == pytest.approx(interval(plain, spread=0.0, jitter=0.1))


def test_parts_of_a_models_compute_are_its_kernels() -> None:
    made = ppsim.project(model="llama3-8b", stack="plain", gpus=16, tp=2, pp=2, recompute="full", seq_len=4096)
    parts = loss_budget(made)
    assert sum(parts.values()) == pytest.approx(made.iteration_time_s)
    assert min(parts.values()) >= 0
    assert parts["model FLOPs at peak"] == pytest.approx(made.model_flops_utilization * made.iteration_time_s)
    assert parts["recomputation"] > 0
    assert parts["TP communication"] > 0


def test_a_measured_model_has_its_ideal_time_and_the_rest() -> None:
    made = ppsim.project(pp=4, microbatches=8)
    parts = loss_budget(made)
    assert parts["model FLOPs at peak"] == pytest.approx(made.model_flops_utilization * made.iteration_time_s)
    assert parts["model FLOPs at peak"] + parts["compute below peak"] + parts.get(
        "slow ranks", 0.0
    ) == pytest.approx(made.timeline.busy_s.mean())


def test_a_pair_has_the_messages_and_launches_that_its_compute_does_not_hide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pair (0, 1) occurs twice on 4 ranks: 10 s, of which 6 are compute and 1 is for launches, so 3 s of messages.

    One after another the passes have 2 + 3 s of messages and 1 + 1 s of launches.
    """
    forward, backward = np.array([0, 0]), np.array([1, 1])
    monkeypatch.setattr(loss_breakdown, "fused_pairs", lambda table: (forward, backward))
    table = SimpleNamespace(model_stage=np.array([0, 1]), stage=np.array([0, 1]), num_ranks=4)
    passes = [
        SimpleNamespace(
            forward=TimeBreakdown(ideal_s=2.0, ep_s=2.0, host_s=1.0), backward=TimeBreakdown(ideal_s=50.0)
        ),
        SimpleNamespace(
            forward=TimeBreakdown(ideal_s=60.0), backward=TimeBreakdown(memory_s=4.0, ep_s=3.0, host_s=1.0)
        ),
    ]
    costs = SimpleNamespace(fused_s=[[0.0, 10.0], [0.0, 0.0]])
    assembled = SimpleNamespace(parts=passes, costs=costs, pair_host_s=[[0.0, 1.0], [0.0, 0.0]])
    assert _of_pairs(table, assembled) == TimeBreakdown(ep_s=2 * (3 - 5) / 4, host_s=2 * (1 - 2) / 4)  # type: ignore[arg-type]
    assembled.pair_host_s = None
    assert _of_pairs(table, assembled) == TimeBreakdown()  # type: ignore[arg-type]


def test_parts_without_a_common_optimizer_are_means_of_the_ranks_own_periods() -> None:
    """Rank 1 computes twice as long as rank 0; reductions take 1 s on rank 0 and 3 s on rank 1."""
    made = by_hand(stragglers=((1, 2.0),), runtime="ideal")
    timeline = made.timeline
    kinds = ("deferred", "gather", "reduce", "share", "norm", "optimizer")
    exposed = {kind: np.array([1.0, 3.0]) * (kind == "reduce") for kind in kinds}
    alone = SimpleNamespace(timeline=timeline, costs=made.costs, step=SimpleNamespace(exposed_by_rank_s=exposed))
    parts = loss_breakdown._of_rank_periods(alone, timeline)  # type: ignore[arg-type]
    spans_s = timeline.rank_end_s - timeline.rank_begin_s
    periods_s = spans_s + np.array([1.0, 3.0])
    assert parts["stage imbalance"] == pytest.approx(periods_s.max() - periods_s.mean())
    assert parts["pipeline bubble"] + parts["exposed P2P"] == pytest.approx((spans_s - timeline.busy_s).mean())
    assert (parts["data parallelism"], parts["optimizer"], parts["deferred weight gradients"]) == (2.0, 0.0, 0.0)
    assert (parts["host"], parts["passes that vary"], parts["slower next to P2P"]) == (0, 0, 0)


def test_forwards_that_wait_for_gathered_parameters_are_data_parallelism() -> None:
    """Stage 1 gets its first microbatch after 1.25 s, and its parameters after 7 s. The compute is 15 s long."""
    made = by_hand(runtime="ideal")
    graph = made.timeline.graph
    timeline = simulate_graph(graph, made.costs, ready_s=np.array([0.0, 7.0]))
    exposed = {"gather": 0.5, "reduce": 0.25, "share": 0.125, "norm": 3.0, "optimizer": 4.0, "deferred": 6.0}
    waiting = SimpleNamespace(timeline=timeline, costs=made.costs, step=SimpleNamespace(exposed_s=exposed))
    alone = simulate_graph(graph, made.costs.replace(transfer_s=0.0))
    parts = loss_breakdown._of_step_time(waiting, alone)  # type: ignore[arg-type]
    assert {name: value for name, value in parts.items() if value} == pytest.approx(
        {
            "pipeline bubble": 3.0, "exposed P2P": 1.0, "data parallelism": 7 - 1.25 + 0.875, "optimizer": 7.0,
            "deferred weight gradients": 6.0,
        }
    )  # fmt: skip


def test_the_gap_between_rounds_is_data_parallelism_although_no_rank_waits_for_the_update() -> None:
    made = ppsim.project(
        model="llama3-8b", gpus=8, pp=2, stack="plain", global_batch=64, gradient_accumulation_steps=2, micro_batch=1,
        overlap_dp=False, schedule="zb-h1", update="post-validated",
    )  # fmt: skip
    parts, between_s = loss_budget(made), made.costs.between_rounds_s
    assert sum(parts.values()) == pytest.approx(made.iteration_time_s)
    assert parts["data parallelism"] > between_s / 2, "on one of two ranks, and the end of the step"
    assert parts["exposed P2P"] < between_s / 10
