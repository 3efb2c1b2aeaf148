"""State file from which a search resumes."""

import math
from os.path import exists
from pathlib import Path
from typing import Any, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.tuning.evaluate import EvaluationResult, Status
from ppsim.tuning.space import SearchProblem, SearchSpace

FORMAT = "ppsim-tune/1"
_MOST = 1e30  # seconds or bytes; larger values are invalid


def state_to_json(
    question: SearchProblem, space: SearchSpace, seed: int, verdicts: dict[str, EvaluationResult]
) -> dict[str, Any]:
    """Unknown times and sizes are null."""
    return {
        "format": FORMAT,
        "question": question.to_json(),
        "space": space.to_json(),
        "seed": seed,
        "verdicts": {
            key: [verdict.status, _finite(verdict.peak_bytes), _finite(verdict.iteration_time_s)]
            for key, verdict in verdicts.items()
        },
    }


def read_state(
    path: str | Path | None, question: SearchProblem, space: SearchSpace, seed: int
) -> dict[str, EvaluationResult]:
    """Raises `ConfigError` for a file that is no state, and for the state of another search."""
    if path is None or not exists(path):
        return {}
    state = read_json(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ConfigError(f"{path} is no state of ppsim tune (format {FORMAT}); give another file, or remove it")
    wanted = state_to_json(question, space, seed, {})
    for part in ("question", "space"):
        there = state.get(part)
        for name, value in wanted[part].items():
            other = there.get(name) if isinstance(there, dict) else None
            if other != value:
                raise ConfigError(
                    f"{path} is of another search: {name} is {other} there and {value} here; give another file, or "
                    "remove it"
                )
    return verdicts_in(state, path)


def verdicts_in(state: dict[str, Any], source: str | Path) -> dict[str, EvaluationResult]:
    """Raises `ConfigError` if the outcomes are invalid."""
    try:
        return {
            key: _outcome(status, _number(peak), _number(iteration))
            for key, (status, peak, iteration) in state["verdicts"].items()
        }
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        raise ConfigError(f"{source} is wrong: its verdicts are not those of ppsim tune; remove it") from None


def _outcome(status: Any, peak_bytes: float, iteration_time_s: float) -> EvaluationResult:
    """Raises `ValueError` for an unknown status, and for "fits" without a peak and a time."""
    if status not in get_args(Status):
        raise ValueError(f"no verdict: {status}")
    if status == "fits" and not math.isfinite(peak_bytes + iteration_time_s):
        raise ValueError("fits, but without a peak or a time")
    return EvaluationResult(status, peak_bytes, iteration_time_s)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    if value is None:
        return math.inf
    if not 0 < (number := float(value)) < _MOST:
        raise ValueError(f"no time or size: {number:g}")
    return number
