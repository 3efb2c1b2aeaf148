"""GPU hours and cost of a training step and of a run."""

from dataclasses import dataclass
from math import inf
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.units import count

_SECONDS_PER_HOUR, _HOURS_PER_DAY = 3600.0, 24.0


def amount(number: float) -> str:
    """Return hours or a cost with two decimals or a prefix.

    >>> amount(1.1), amount(61_400), amount(0.00152)
    ('1.10', '61.4 k', '0.00152')
    """
    return count(number) if number >= 1000 else f"{number:.2f}" if number >= 0.1 else f"{number:.3g}"


def require_training_tokens(tokens: float | None) -> None:
    if tokens is not None and not 0 < tokens < inf:
        raise ConfigError(f"--tokens must be more than 0: got {tokens:g}")


@dataclass(frozen=True)
class TrainingCost:
    """GPU hours of a step and, if its tokens are known, of a run; cost in the unit of the price.

    `price_per_gpu_hour` None: the cost is unknown, and the GPU hours stand for it.

    >>> TrainingCost(256, 15.7, price_per_gpu_hour=2.0, training_days=10.0).text
    '1.12 GPU hours and 2.23 per step; 10.0 days, 61.4 k GPU hours and 123 k per run'
    """

    num_gpus: int
    iteration_time_s: float
    price_per_gpu_hour: float | None = None
    training_days: float | None = None

    @property
    def gpu_hours_per_step(self) -> float:
        return self.num_gpus * self.iteration_time_s / _SECONDS_PER_HOUR

    @property
    def training_gpu_hours(self) -> float | None:
        return None if self.training_days is None else self.num_gpus * _HOURS_PER_DAY * self.training_days

    def to_json(self) -> dict[str, Any]:
        return {
            "gpu_hours_per_step": self.gpu_hours_per_step,
            "cost_per_step": self._cost(self.gpu_hours_per_step),
            "training_days": self.training_days,
            "training_gpu_hours": self.training_gpu_hours,
            "training_cost": self._cost(self.training_gpu_hours),
        }

    @property
    def text(self) -> str:
        text = f"{self._hours_and_cost(self.gpu_hours_per_step)} per step"
        if self.training_days is None or self.training_gpu_hours is None:
            return text
        return f"{text}; {self.training_days:.1f} days, {self._hours_and_cost(self.training_gpu_hours)} per run"

    def _hours_and_cost(self, hours: float) -> str:
        cost = self._cost(hours)
        return f"{amount(hours)} GPU hours" + ("" if cost is None else f" and {amount(cost)}")

    def _cost(self, hours: float | None) -> float | None:
        return None if hours is None or self.price_per_gpu_hour is None else hours * self.price_per_gpu_hour
