"""Outcomes of configurations: too large, dominated, impossible, or simulated."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.base.errors import ScheduleError
from ppsim.tuning import evaluate as module
from ppsim.tuning.evaluate import (
    LAST,
    EvaluationResult,
    EvaluationTask,
    evaluate,
    exact_peak_bytes,
    is_dominated,
    rank_of,
    simulate,
    table_at,
)


class Limit:
    """A limit of 10 bytes."""

    def holds(self, peak: float) -> bool:
        return peak <= 10


def plan_with(**fields: Any) -> Any:
    given = {
        "memory_limit": Limit(),
        "split": "even",
        "schedule_name": "1f1b",
        "pp": 2,
        "vpp": 1,
        "num_microbatches": 4,
    }
    return SimpleNamespace(**given | fields)


def task(key: str, bound_s: float, held: float, *, fits_tightly: bool = False, **fields: Any) -> EvaluationTask:
    memory: Any = SimpleNamespace(
        activation_bytes=np.zeros((2, 2)),
        pair_bytes=None,
        static_bytes=np.array([held, held - 1]),
        update_bytes=0.0,
    )
    return EvaluationTask(
        key, plan_with(**fields), bound_s, memory, lambda peak, seconds: (False, fits_tightly, seconds)
    )


def test_memory_is_static_and_activations_in_flight_on_the_rank_with_most() -> None:
    """Rank 0 of 1f1b holds two microbatches of 3 bytes, rank 1 one of 5."""
    memory: Any = SimpleNamespace(
        activation_bytes=np.array([[3.0, 5.0], [0.0, 0.0]]), pair_bytes=None, static_bytes=np.array([20.0, 20.5]),
        update_bytes=0.0,
    )  # fmt: skip
    made = EvaluationTask("a", plan_with(), 1.0, memory, lambda held, seconds: LAST)
    assert exact_peak_bytes(made) == 26.0
    memory.static_bytes = np.array([20.0, 21.5])
    assert exact_peak_bytes(made) == 26.5


def test_a_configuration_is_simulated_if_it_fits_and_no_other_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[float] = []

    def iteration_of(plan: Any, table: Any) -> tuple[float, float]:
        simulated.append(plan.seconds)
        if plan.seconds == 7:
            raise ScheduleError("its transfers deadlock")
        return plan.seconds, plan.peak

    monkeypatch.setattr(module, "iteration_of", iteration_of)
    front = [(4.0, 6.0)]
    tasks = [
        task("too large", 1.0, 11.0),
        task("dominated", 4.0, 6.0),
        task("may be among the best", 3.9, 6.0, seconds=5.0, peak=6.0),
        task("holds less", 4.0, 5.9, seconds=6.0, peak=5.9),
        task("impossible", 3.0, 6.0, seconds=7, peak=6.0),
        task("searched", 9.0, 99.0, split="auto", seconds=8.0, peak=10.5),
        task("without a limit after the search", 9.0, 99.0, split="auto", seconds=9.0, peak=10.0),
    ]
    assert evaluate(tasks, front=front, slowest=(False, False, 3.95)) == [
        ("too large", EvaluationResult("does not fit", 11.0)),
        ("dominated", EvaluationResult("dominated", 6.0)),
        ("may be among the best", EvaluationResult("fits", 6.0, 5.0)),
        ("holds less", EvaluationResult("fits", 5.9, 6.0)),
        ("impossible", EvaluationResult("not possible", float("inf"))),
        ("searched", EvaluationResult("does not fit", 10.5, 8.0)),
        ("without a limit after the search", EvaluationResult("fits", 10.0, 9.0)),
    ]
    assert simulated == [5.0, 6.0, 7, 8.0, 9.0]
    slow = task("dominated, but may rank", 4.0, 6.0, seconds=5.0, peak=6.0)
    assert evaluate([slow], front=front)[0][1].status == "fits"
    assert evaluate([slow], front=front, slowest=(False, False, 4.0))[0][1].status == "fits"
    tight = task("dominated", 4.0, 6.0, fits_tightly=True, seconds=5.0, peak=6.0)
    assert evaluate([tight], front=front, slowest=(False, False, 4.0))[0][1].status == "dominated"
    assert simulate(plan_with(memory_limit=None, seconds=5.0, peak=99.0), None) == EvaluationResult(
        "fits", 99.0, 5.0
    )  # type: ignore[arg-type]
    assert EvaluationResult("does not fit", 1.0).iteration_time_s == float("inf")


@pytest.mark.parametrize(
    ("bound_s", "held", "expected"),
    [(4.0, 6.0, True), (1.9, 9.0, False), (5.0, 5.9, False), (2.0, 8.0, True), (2.0, 7.9, False)],
)
def test_a_front_dominates_what_is_neither_faster_nor_smaller(bound_s: float, held: float, expected: bool) -> None:
    assert is_dominated(bound_s, held, [(4.0, 6.0), (2.0, 8.0)]) is expected
    assert not is_dominated(bound_s, held, [])


def test_other_trainers_and_tight_configurations_rank_last() -> None:
    question: Any = SimpleNamespace(
        is_elsewhere=lambda one: one == "zb-h1", verdict=lambda one, peak: "fits" if peak < 9 else "fits tightly"
    )
    places = [rank_of(question, one, peak, 3.0) for one, peak in (("1f1b", 8), ("1f1b", 9), ("zb-h1", 8))]  # type: ignore[arg-type]
    assert places == sorted(places) == [(False, False, 3.0), (False, True, 3.0), (True, False, 3.0)]
    assert LAST > (True, True, 1e300)


def test_a_table_is_built_or_fitted_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_at(plan_with(schedule_name="interleaved-1f1b", vpp=2))
    assert (table.name, table.num_ranks, table.vpp, table.num_microbatches) == ("interleaved-1f1b", 2, 2, 4)
    monkeypatch.setattr(module, "table_of", lambda plan, entry: (f"fitted {entry.name}", "note"))
    assert table_at(plan_with(schedule_name="zb-auto")) == "fitted zb-auto"  # type: ignore[comparison-overlap]
    assert table_at(plan_with(schedule_name="zbv")) == "fitted zbv"  # type: ignore[comparison-overlap]
    assert table_at(plan_with(schedule_name="v-flex")) == "fitted v-flex"  # type: ignore[comparison-overlap]
