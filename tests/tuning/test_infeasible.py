"""What would make an infeasible search feasible."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from ppsim.tuning import infeasible
from ppsim.tuning.space import space_for
from tests.tuning.questions import question


@pytest.mark.parametrize(
    ("needed", "tried", "sentence"),
    [(4, [4], "4 GPUs would fit"), (9, [4, 8, 16], "16 GPUs would fit"), (10**9, None, "nor up to 256 GPUs")],
)
def test_the_number_of_gpus_doubles_until_the_model_fits(
    monkeypatch: pytest.MonkeyPatch, needed: int, tried: list[int] | None, sentence: str
) -> None:
    asked, numbers = question(gpus=2, batch=64), []

    def fits(other: Any, _: Any) -> bool:
        numbers.append(other.num_gpus)
        return bool(other.num_gpus >= needed)

    monkeypatch.setattr(infeasible, "_fits", fits)
    assert sentence in infeasible._what_would_fit(asked, space_for(asked))
    assert [number for number in numbers if number > 2] == (tried or [4, 8, 16, 32, 64, 128, 256])


def bounds_of(*sizes: tuple[float, float]) -> list[Any]:
    """Return configurations with their least bytes and, as candidate, their exact bytes."""
    return [SimpleNamespace(least_bytes=least, candidate=exact) for least, exact in sizes]


@pytest.mark.parametrize(
    ("sizes", "enough", "smallest", "examined"),
    [
        ([(3, 9), (1, 8), (2, 7)], 0.0, 7, [8, 7, 9]),
        ([(7, 9), (1, 8), (2, 7)], 0.0, 7, [8, 7]),
        ([(6, 9), (1, 8), (2, 7)], 7.0, 7, [8, 7]),
        ([(6, 9), (1, 8), (2, 7)], 8.0, 8, [8]),
        ([(1, 8), (1, 7)], 0.0, 7, [7, 8]),
        ([(2, 8), (1, 8)], 0.0, 8, [8, 8]),
    ],
)
def test_the_smallest_configuration_is_found_by_bounds_until_one_is_small_enough(
    sizes: Any, enough: float, smallest: float, examined: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(infeasible, "task_of", lambda outlooks, one: one.candidate)
    monkeypatch.setattr(infeasible, "exact_peak_bytes", lambda task: seen.append(task) or task)
    nothing: Any = None
    best, least = infeasible._smallest(nothing, bounds_of(*sizes), enough)
    assert (best.candidate, least, seen) == (smallest, smallest, examined)
    assert best.least_bytes == min(bound for bound, exact in sizes if exact == smallest), "the first in a tie"
    best, least = infeasible._smallest(nothing, bounds_of((0.1, 0.7), (0.2, 0.5)))
    assert least == 0.5, "by default, all are compared"


def test_a_space_fits_if_a_configuration_holds_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = SimpleNamespace(memory_bound_bytes=100.0)
    limit = 100.0 * CAP_ROUNDING
    found: list[Any] = []
    monkeypatch.setattr(infeasible, "BoundsCalculator", lambda question: SimpleNamespace(of=lambda one: one))
    monkeypatch.setattr(infeasible, "task_of", lambda outlooks, one: one.candidate)
    monkeypatch.setattr(infeasible, "exact_peak_bytes", lambda task: task)
    monkeypatch.setattr(infeasible, "configurations", lambda question, space: found)
    nothing: Any = None
    for sizes, fits in (
        ([], False), ([(limit, limit)], True), ([(1, limit * (1 + 1e-12))], False), ([(limit * (1 + 1e-12), 1)], False),
        ([(1, 999), (2, 3)], True),
    ):  # fmt: skip
        found[:] = bounds_of(*sizes)
        assert infeasible._fits(asked, nothing) is fits, sizes

    def refused(question: Any, space: Any) -> None:
        raise ConfigError("no configuration")

    monkeypatch.setattr(infeasible, "configurations", refused)
    assert infeasible._fits(asked, nothing) is False


def test_the_message_has_the_smallest_configuration_and_the_missing_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question(gpus=2, batch=64, limit_gib=70.0)
    smallest = SimpleNamespace(tp=2, cp=3, pp=4, vpp=5, micro_batch=6, recompute="full", schedule="1f1b")
    monkeypatch.setattr(infeasible, "_smallest", lambda *_: (SimpleNamespace(candidate=smallest), 81.0 * 2**30))
    monkeypatch.setattr(infeasible, "_what_would_fit", lambda *_: "4 GPUs would fit")
    nothing: Any = None
    assert infeasible.infeasible_message(asked, nothing, nothing, nothing) == (
        "llama3-8b does not fit on 2 GPUs: the smallest configuration (tp 2, cp 3, pp 4, vpp 5, micro-batch 6, recompute "
        "full, 1f1b) needs 81.0 GiB per GPU, 11.0 GiB more than the limit of 70.0 GiB; 4 GPUs would fit"
    )
