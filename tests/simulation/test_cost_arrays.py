"""Costs of each stage as arrays, for all microbatches or for each."""

from typing import Any

import numpy as np

from ppsim.schedule.table import Op
from ppsim.simulation.cost_arrays import CostArrays

NAMES = (
    "forward_s", "backward_s", "backward_input_s", "backward_weight_s", "activation_bytes", "kept_bytes", "transfer_s", "static_bytes",
    "update_bytes",
)  # fmt: skip


def arrays(**fields: Any) -> CostArrays:
    """Two stages: forwards of 2 and 3 s, backwards of 5 and 7 s, in halves of 11 and 13, and 17 and 19 s."""
    given: dict[str, Any] = dict.fromkeys(NAMES, np.zeros(2)) | {
        "forward_s": np.array([2.0, 3.0]), "backward_s": np.array([5.0, 7.0]), "backward_input_s": np.array([11.0, 13.0]),
        "backward_weight_s": np.array([17.0, 19.0]), "fused_s": None, "time_shares": np.ones(1), "token_shares": np.ones(1),
        "action_overhead_s": 0.0, "hop_overhead_s": 0.0,
    }  # fmt: skip
    return CostArrays(**given | fields)


OPS, STAGES = np.array([Op.F, Op.B, Op.I, Op.W, Op.F], np.int8), np.array([1, 0, 0, 1, 0], np.int32)
MICROBATCHES = np.array([0, 0, 1, 2, 2], np.int32)
FORWARDS = {"forward_s": np.array([[2.0, 4.0, 6.0], [3.0, 6.0, 9.0]])}


def test_further_overheads_are_nothing_if_they_are_not_given() -> None:
    costs = arrays()
    assert (costs.first_pass_s, costs.last_pass_s, costs.variation_s, costs.between_rounds_s) == (0, 0, 0, 0)
    assert (costs.slow_links, costs.by_microbatch, costs.fused_activation_bytes) == (None, {}, None)


def test_an_action_has_the_seconds_of_its_kind_stage_and_microbatch() -> None:
    assert arrays().of_passes(OPS, STAGES, MICROBATCHES).tolist() == [3, 5, 11, 19, 2]
    own = arrays(by_microbatch=FORWARDS)
    assert own.mean_passes(OPS, STAGES).tolist() == [3, 5, 11, 19, 2]
    assert own.of_passes(OPS, STAGES, MICROBATCHES).tolist() == [3, 5, 11, 19, 6]
    assert own.of("forward_s", STAGES, MICROBATCHES).tolist() == [3, 2, 4, 9, 6]
    assert own.of("backward_s", STAGES, MICROBATCHES).tolist() == [7, 5, 5, 7, 5]
    assert own.values("forward_s").tolist() == [[2, 4, 6], [3, 6, 9]]
    assert own.values("backward_s").tolist() == [[5], [7]]


def test_the_least_costs_are_those_of_the_smallest_microbatch_of_each_stage() -> None:
    """A pair shrinks as its part that shrinks most: to a half here."""
    plain = arrays()
    assert plain.least() is plain
    least = arrays(by_microbatch={"forward_s": np.array([[1.0, 4.0], [9.0, 3.0]])}).least()
    assert (least.forward_s.tolist(), least.backward_s.tolist(), least.by_microbatch) == ([1, 3], [5, 7], {})
    pairs = arrays(fused_s=np.full((2, 2), 8.0), by_microbatch={"forward_s": np.array([[1.0, 4.0], [9.0, 3.0]])})
    assert pairs.least().fused_s.tolist() == [[4.0] * 2] * 2  # type: ignore[union-attr]
    longer = arrays(fused_s=np.full((2, 2), 8.0), by_microbatch={"transfer_s": np.array([[1.0, 4.0], [9.0, 3.0]])})
    assert longer.least().fused_s.tolist() == [[8.0] * 2] * 2  # type: ignore[union-attr]
