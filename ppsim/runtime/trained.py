"""The model that a run trains: what the processes and the partitions of a run ask of it, whoever made it."""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor, nn

from ppsim.runtime.config import OwnModel, TrainConfig
from ppsim.runtime.gpt import GPT
from ppsim.runtime.own_model import OwnStages


class RunModel(Protocol):
    """Stages, data and loss."""

    def stages(self, wanted: Collection[int]) -> dict[int, nn.Module]:
        """Return these stages by index; each call, in any process, makes the same weights."""

    def boundary(self, stage: int) -> Tensor:
        """Return a tensor like what a microbatch is before a stage, or, for one more, behind the last."""

    def batch(self, step: int, num_microbatches: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, to be cut along their first dimension; alike in every process."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a microbatch, one number."""


class TrainedModel(RunModel, Protocol):
    """One that computes."""

    def unsplit(self) -> tuple[nn.Module, list[list[nn.Parameter]]]:
        """Return the model in one piece with the weights of the stages, and which of its parameters each stage has.

        They are in the order of `stage.parameters()`.
        """


def model_of(config: TrainConfig) -> TrainedModel:
    """Return the model of a run."""
    return OwnStages(config) if isinstance(config.model, OwnModel) else GPT(config)
