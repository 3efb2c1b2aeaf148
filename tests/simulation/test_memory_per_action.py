"""Bytes of each action, of a rank's peak, and of pairs, on two ranks with two stages."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.simulation import memory_per_action as memory_module
from ppsim.simulation.memory_per_action import (
    added_bytes,
    bytes_at_peak,
    memory_of,
    memory_per_action,
    slice_shares,
)

F, B, I, W = range(4)
SCHEDULE: Any = SimpleNamespace(
    op=np.array([F, F, B, I, W, F, I, W], np.int8), stage=np.array([0, 1, 1, 0, 0, 1, 1, 1]),
    microbatch=np.array([0, 1, 1, 0, 0, 3, 3, 3]), rank_offsets=np.array([0, 5, 8]), num_slices=1, num_stages=2,
)  # fmt: skip
ACTIVATION, KEPT = np.array([10.0, 40.0]), np.array([3.0, 16.0])
ADDED = [10, 40, -40, -7, -3, 40, -24, -16]


def costs(**fields: object) -> Any:
    given = {"by_microbatch": {}, "activation_bytes": ACTIVATION, "kept_bytes": KEPT, "fused_activation_bytes": None,
             "update_bytes": np.array([60.0, 5.0]), "static_bytes": np.array([100.0, 200.0]),
             "time_shares": np.array([0.25, 0.75]), "token_shares": np.array([0.4, 0.6])}  # fmt: skip
    return SimpleNamespace(**(given | fields))


def test_memory_is_the_sum_of_a_ranks_actions_and_frees_after_them() -> None:
    during, after = memory_per_action(SCHEDULE, ACTIVATION, KEPT)
    assert after.tolist() == [10, 50, 10, 3, 0, 40, 16, 0]
    assert during.tolist() == [10, 50, 50, 10, 3, 40, 40, 16]
    halves = memory_per_action(SCHEDULE, ACTIVATION, KEPT, 0.5)
    assert [one.tolist() for one in halves] == [(during / 2).tolist(), (after / 2).tolist()]


def test_bytes_of_an_action_are_its_stages_slices_and_microbatchs() -> None:
    assert added_bytes(SCHEDULE, costs()).tolist() == ADDED
    assert slice_shares(SCHEDULE, costs()) == (SCHEDULE.microbatch, 1.0, 1.0)
    sliced = SimpleNamespace(**vars(SCHEDULE) | {"num_slices": 2})
    microbatch, times, tokens = slice_shares(sliced, costs())
    assert microbatch.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert times.tolist() == [0.25, 0.75, 0.75, 0.25, 0.25, 0.75, 0.75, 0.75]
    shares = [0.4, 0.6, 0.6, 0.4, 0.4, 0.6, 0.6, 0.6]
    assert tokens.tolist() == shares
    assert added_bytes(sliced, costs()) == pytest.approx(np.multiply(ADDED, shares))

    def of(name: str, stage: Any, microbatch: Any) -> Any:
        return {"activation_bytes": ACTIVATION, "kept_bytes": KEPT}[name][stage] * (microbatch + 1)

    assert added_bytes(SCHEDULE, costs(by_microbatch={"kept_bytes": 1}, of=of)).tolist() == [
        10, 80, -80, -7, -3, 160, -96, -64,
    ]  # fmt: skip
    assert added_bytes(SCHEDULE, costs(by_microbatch={"forward_s": 1}, of=of)).tolist() == ADDED
    assert added_bytes(sliced, costs(by_microbatch={"activation_bytes": 1}, of=of)) == pytest.approx(
        np.multiply(ADDED, shares) * [1, 1, 1, 1, 1, 2, 2, 2]
    )


def test_a_peak_has_the_static_bytes_and_the_larger_of_activations_and_update() -> None:
    made = memory_of(SCHEDULE, costs())
    assert made.peak_at.tolist() == [1, 5]
    assert made.peak_activation_bytes.tolist() == [50, 40]
    assert made.peak_bytes.tolist() == [160, 240]
    assert [bytes_at_peak(SCHEDULE, costs(), made, rank)[0].tolist() for rank in (0, 1)] == [[10, 40], [0, 40]]
    freeing: Any = SimpleNamespace(peak_at=np.array([3, 6]))
    held = [bytes_at_peak(SCHEDULE, costs(), freeing, rank) for rank in (0, 1)]
    assert [(bytes_.tolist(), of_pair) for bytes_, of_pair in held] == [([10, 0], 0.0), ([0, 40], 0.0)]


def test_a_pair_of_a_forward_and_a_backward_has_its_own_bytes_on_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the backward is first, and first of its rank."""
    monkeypatch.setattr(memory_module, "fused_pairs", lambda _: (np.array([2, 5]), np.array([1, 6])))
    schedule = SimpleNamespace(**vars(SCHEDULE) | {"stage": np.array([0, 1, 0, 0, 0, 1, 0, 1])})
    fused = costs(fused_activation_bytes=np.array([[31.0, 77.0], [9.0, 55.0]]))
    made = memory_of(schedule, fused)
    assert made.during[[1, 2, 5, 6]].tolist() == [87, 87, 9, 9]
    assert made.during[[0, 3, 4]].tolist() == memory_of(schedule, costs()).during[[0, 3, 4]].tolist()
    for peak in (1, 2):
        held, of_pair = bytes_at_peak(schedule, fused, SimpleNamespace(peak_at=np.array([peak, 5])), 0)
        assert (held.tolist(), of_pair) == ([10, 0], 77.0)
    for peak, expected in ((0, [10, 0]), (3, [0, 40])):
        held, of_pair = bytes_at_peak(schedule, fused, SimpleNamespace(peak_at=np.array([peak, 5])), 0)
        assert (held.tolist(), of_pair) == (expected, 0.0)
