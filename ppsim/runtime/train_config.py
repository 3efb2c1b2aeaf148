"""Configuration of a training run; imports no torch, for the command line and the launcher."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.model.recompute import LayerPlan, Recompute
from ppsim.model.shapes import LayerShape
from ppsim.schedule.option_types import Dtype, Receives


@dataclass(frozen=True)
class GPTShape:
    """A GPT: pre-norm blocks with causal attention and a 4× GELU feed-forward, learned positions, untied head."""

    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int
    vocab_size: int = 256  # the corpus is bytes

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "sequence_length", "vocab_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1: got {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"the hidden size must be a multiple of the heads: got {self.hidden_size} and {self.num_heads}"
            )
        if self.vocab_size < 256:
            raise ConfigError(f"vocab_size must be at least 256, one token a byte: got {self.vocab_size}")

    @property
    def layer(self) -> LayerShape:
        return LayerShape(
            "gpt",
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_size=self.hidden_size // self.num_heads,
            ffn_size=4 * self.hidden_size,
        )


MODELS = {
    "nano": GPTShape(num_layers=4, hidden_size=64, num_heads=4, sequence_length=64),
    "micro": GPTShape(num_layers=4, hidden_size=256, num_heads=4, sequence_length=128),
    "mini": GPTShape(num_layers=8, hidden_size=256, num_heads=4, sequence_length=256),
    "gpt2": GPTShape(num_layers=12, hidden_size=768, num_heads=12, sequence_length=1024, vocab_size=50257),
}


@dataclass(frozen=True)
class StageBoundary:
    """Form of a microbatch between two stages, before the first or after the last; `dtype` is torch's name."""

    shape: list[int]
    dtype: str
    num_bytes: int


@dataclass(frozen=True)
class UserModel:
    """A user's model; `boundaries` has one entry more than there are stages."""

    module: str
    num_layers: int
    boundaries: list[StageBoundary]


@dataclass(frozen=True)
class TurnLimits:
    """Limits of the number of turns: up to `most` within `limit_s` seconds, but at least `least`.

    A turn executes every run once.
    """

    most: int = 1
    least: int = 1
    limit_s: float = 0.0

    def go_on(self, done: int, elapsed_s: float) -> bool:
        """Return whether to do another turn, if it takes the mean time of the finished turns.

        >>> turns = TurnLimits(most=8, least=2, limit_s=10.0)
        >>> [turns.go_on(*one) for one in ((1, 60.0), (2, 6.0), (2, 7.0), (8, 1.0))]
        [True, True, False, False]
        """
        return done < self.most and (done < self.least or elapsed_s * (done + 1) / done <= self.limit_s)


ONCE = TurnLimits()


@dataclass(frozen=True)
class TrainConfig:
    """One run: the table, the model, and how to run it.

    `emulate_costs` is a `--costs` file. `straggling_steps` has numbers of steps, counted after the warm-up, and the
    factors by which their emulated actions are slower. `num_steps` does not include `num_warm_up`. `timeout_s`
    limits every wait of one rank for another. `trace` is a folder.
    """

    schedule: str
    num_ranks: int
    model: GPTShape | UserModel
    layers_per_stage: list[int]
    micro_batch: int = 2
    num_steps: int = 3
    num_warm_up: int = 1
    dtype: Dtype = "float32"
    recompute: Recompute = "none"
    layer_plans: list[list[LayerPlan]] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    learning_rate: float = 1e-3
    seed: int = 0
    num_threads: int = 1
    receives: Receives = "torch"
    emulate_costs: str | None = None
    verify: bool = False
    straggling_steps: tuple[tuple[int, float], ...] = ()
    timeout_s: float = 120.0
    trace: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < float("inf"):
            raise ConfigError(f"--learning-rate must be a number from 0 on: got {self.learning_rate:g} (as 0.001)")

    def plan_of(self, stage: int) -> Sequence[LayerPlan]:
        plain = LayerPlan(self.layers_per_stage[stage], self.recompute)
        return [plain] if self.layer_plans is None else self.layer_plans[stage]

    def require_finite(self, losses: Sequence[float | None]) -> None:
        """Raise `ConfigError` if the loss of a step is not finite, because run files cannot store it."""
        if wrong := [step for step, loss in enumerate(losses, 1) if loss is not None and not isfinite(loss)]:
            also = "--dtype bfloat16 or float32, or " if self.dtype == "float16" else ""
            raise ConfigError(
                f"the loss of step {wrong[0]} is {losses[wrong[0] - 1]:g}: --learning-rate {self.learning_rate:g} "
                f"is too much in {self.dtype}: give {also}a smaller one"
            )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TrainConfig":
        plans = data.get("layer_plans")
        data = data | {"layer_plans": plans and [[LayerPlan(*one) for one in stage] for stage in plans]}
        model = data["model"]
        if "module" not in model:
            return cls(**(data | {"model": GPTShape(**model)}))
        boundaries = [StageBoundary(**one) for one in model["boundaries"]]
        return cls(**(data | {"model": UserModel(**(model | {"boundaries": boundaries}))}))


def word_of(folder: Path, rank: int) -> Path:
    """Return the file that a rank writes at its end: null or the rank's error, as JSON."""
    return folder / f"rank{rank}.json"


def turns_of(folder: Path) -> Path:
    """Return the file in which rank 0 writes the number of finished turns."""
    return folder / "turns.txt"
