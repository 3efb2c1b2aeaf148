"""List scheduling: paces of large and small tables, and rounds of rescheduling."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.catalog.search import lists
from ppsim.catalog.search.lists import improve_by_rescheduling, list_schedules
from ppsim.catalog.search.target import SearchTarget
from ppsim.simulation.bounds.problem import Problem

TARGET = SearchTarget(
    Problem.of(
        stage_to_rank=[0, 1], num_microbatches=2, forward_s=[1, 2], backward_input_s=[3, 4], backward_weight_s=[2, 2],
        transfer_s=1.5, cap=2,
    )
)  # fmt: skip


@pytest.mark.parametrize(("most", "paces"), [(12, [1.0, 1.25, 1.5, 2.0, 3.0, np.inf]), (11, [1.0, 2.0])])
def test_stages_have_as_many_microbatches_in_flight_as_cover_their_round_trip_times_a_pace(
    most: int, paces: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip takes 4 + 3 + 6 s from stage 0 and 6 s from stage 1; a rank works 6 or 8 s per microbatch."""
    asked: list[Any] = []

    def scheduled(target: Any, urgency: Any, in_flight: Any, *, patient: bool) -> Any:
        asked.append((urgency.tolist(), in_flight.tolist(), patient))
        return patient

    monkeypatch.setattr(lists, "_MANY_ACTIONS", most)
    monkeypatch.setattr(lists, "list_scheduled", scheduled)
    assert list(list_schedules(TARGET)) == [False, True] * len(paces)
    urgency = [-2, -2, -2.25, -2.25, -3, -3, -3.25, -3.25, -1, -1, -1.25, -1.25]  # F, I, W; the later stage first
    assert asked == [
        (urgency, np.ceil([pace * 13 / 8, pace]).tolist(), patient) for pace in paces for patient in (False, True)
    ]


def test_rescheduling_goes_on_from_its_last_table_first_impatiently_then_patiently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second table is worse than the first, the third better; patient ones are worse than the best."""
    calls: list[Any] = []
    scores = iter([8.0, 9.0, 6.0, 7.0, 7.5, 7.25])

    def candidate(score_s: float, *, is_optimal: bool = False) -> Any:
        target = SimpleNamespace(tolerance_s=0.0)
        return SimpleNamespace(score_s=score_s, other_score_s=0.0, is_optimal=is_optimal, target=target)

    def again(current: Any, *, patient: bool) -> Any:
        calls.append((current.score_s, patient))
        score_s = next(scores)
        return candidate(score_s, is_optimal=score_s <= 1.0)

    monkeypatch.setattr(lists, "rescheduled", again)
    assert improve_by_rescheduling(candidate(10.0), num_rounds=3).score_s == 6.0
    assert calls == [(10.0, False), (8.0, False), (9.0, False), (6.0, True), (7.0, True), (7.5, True)]
    calls.clear()
    scores = iter([5.0, 1.0])
    assert improve_by_rescheduling(candidate(10.0), num_rounds=3).score_s == 1.0
    assert calls == [(10.0, False), (5.0, False)]


def test_limits_of_list_scheduling() -> None:
    assert (lists._MANY_ACTIONS, lists.NEVER) == (200_000, 1e300)
