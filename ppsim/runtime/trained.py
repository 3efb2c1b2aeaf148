"""Interface to the model that `ppsim train` trains: ppsim's GPT or a user's model."""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor, nn

from ppsim.runtime.gpt import GPT
from ppsim.runtime.train_config import TrainConfig, UserModel
from ppsim.runtime.user_model import UserModelStages


class RunModel(Protocol):
    """Stages, data and loss of a model."""

    def stages(self, wanted: Collection[int]) -> dict[int, nn.Module]:
        """Return the stages by index; each call, in any process, creates the same weights."""

    def boundary(self, stage: int) -> Tensor:
        """Return a tensor shaped like a microbatch's input of `stage`, or the output of the last stage."""

    def batch(self, step: int, num_microbatches: int) -> tuple[Tensor, Tensor]:
        """Return a step's inputs and targets, equal in every process; dimension 0 is divided later."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a microbatch, a scalar."""


class TrainedModel(RunModel, Protocol):
    """A model with real layers."""

    def unsplit(self) -> tuple[nn.Module, list[list[nn.Parameter]]]:
        """Return the whole model with the weights of the stages, and its parameters per stage."""


def model_of(config: TrainConfig) -> TrainedModel:
    return UserModelStages(config) if isinstance(config.model, UserModel) else GPT(config)
