"""Comparison of loss and gradients of a pipelined step with a single process without pipelining."""

from typing import TypedDict

import torch
from torch import Tensor

from ppsim.runtime.train_config import TrainConfig
from ppsim.runtime.trained import model_of
from ppsim.schedule.table import Schedule


class Differences(TypedDict):
    """Relative difference of the mean loss, and the largest relative difference of a parameter's gradient.

    A gradient a of the pipeline differs from the gradient b of the single process by max |a − b| / max |b|.
    """

    loss: float
    gradient: float
    num_parameters: int


def differences(
    config: TrainConfig,
    table: Schedule,
    inputs: Tensor,
    targets: Tensor,
    losses: list[Tensor],
    gradients: dict[int, list[Tensor | None]],
) -> Differences:
    """Run the whole model in this process, and compare its losses and gradients with the pipeline's.

    Each microbatch of the whole model is weighted 1/m, as torch's runtime scales its gradients. A gradient that
    only the pipeline or only the whole model has counts as an infinite difference. Raises the errors of
    `TrainedModel.unsplit`.
    """
    model = model_of(config)
    whole, parameters = model.unsplit()
    whole.to(inputs.device)
    reference = []
    for x, y in zip(inputs.chunk(table.num_microbatches), targets.chunk(table.num_microbatches), strict=True):
        loss = model.loss(whole(x), y)
        (loss / table.num_microbatches).backward()
        reference.append(loss.detach())

    worst, count = 0.0, 0
    for stage_index, found in gradients.items():
        for gradient, parameter in zip(found, parameters[stage_index], strict=True):
            if parameter.grad is not None or gradient is not None:
                worst = max(worst, _relative(gradient, parameter.grad))
                count += 1
    loss_difference = 0.0
    if losses:
        loss_difference = _relative(torch.stack(losses).mean(), torch.stack(reference).mean())
    return Differences(loss=loss_difference, gradient=worst, num_parameters=count)


def _relative(gradient: Tensor | None, expected: Tensor | None) -> float:
    if gradient is None or expected is None or not torch.isfinite(gradient).all():
        return float("inf")
    scale = float(expected.abs().max())
    return float((gradient - expected).abs().max()) / scale if scale else float(gradient.abs().max())
