"""What would make an infeasible search feasible."""

from typing import Any

import pytest

from ppsim.tuning import infeasible
from ppsim.tuning.space import space_for
from tests.tuning.questions import question


@pytest.mark.parametrize(
    ("needed", "tried", "sentence"),
    [(4, [4], "4 GPUs would fit"), (9, [4, 8, 16], "16 GPUs would fit"), (10**9, None, "nor up to {most} GPUs")],
)
def test_the_number_of_gpus_doubles_until_the_model_fits(
    monkeypatch: pytest.MonkeyPatch, needed: int, tried: list[int] | None, sentence: str
) -> None:
    asked, numbers = question(gpus=2, batch=64), []

    def fits(other: Any, _: Any) -> bool:
        numbers.append(other.num_gpus)
        return bool(other.num_gpus >= needed)

    monkeypatch.setattr(infeasible, "_fits", fits)
    most = 2 * 2**infeasible._MOST_DOUBLINGS
    assert sentence.format(most=most) in infeasible._what_would_fit(asked, space_for(asked))
    assert [number for number in numbers if number > 2] == (
        tried or [2 * 2**doublings for doublings in range(1, infeasible._MOST_DOUBLINGS + 1)]
    )
