"""One stage of the model as the executor calls it: F, B, I and W by microbatch, split by torch's own functions."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

from ppsim.schedule.table import Op


class StageRunner(Protocol):
    """What runs an action."""

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        """Run F, B, I or W; return what the neighbour needs, None where there is none or nothing to hand over."""


class ModelStage:
    """Layers of a model; `loss` is that of the last stage, None elsewhere.

    On the first stage I does nothing and W is the whole backward, as in torch's runtime. Gradients add up in the
    parameters over the microbatches; who ends the step divides them. `losses` holds the loss of each microbatch on
    the last stage.
    """

    def __init__(
        self, module: nn.Module, *, is_first: bool, loss: Callable[[Tensor, Tensor], Tensor] | None
    ) -> None:
        self.module, self._is_first, self._loss = module, is_first, loss
        self._inputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._forwarded: dict[int, tuple[Tensor, Tensor]] = {}
        self._split: dict[int, Any] = {}
        self.losses: dict[int, Tensor] = {}

    def begin_step(self, inputs: list[Tensor], targets: list[Tensor]) -> None:
        """Take the step's microbatches: for a GPT int64 [batch, sequence] each."""
        self._inputs, self._targets, self.losses = inputs, targets, {}

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        """Run one pass of a microbatch; `received` is the activation before, or the gradient behind this stage."""
        if op is Op.F:
            return self._forward(microbatch, received)
        if op is Op.B:
            x, output = self._forwarded.pop(microbatch)
            return stage_backward(output, received, (x,))[0]
        if op is Op.I:
            return self._backward_input(microbatch, received)
        self._backward_weight(microbatch)
        return None

    def _forward(self, microbatch: int, received: Tensor | None) -> Tensor | None:
        x = self._inputs[microbatch] if received is None else received.requires_grad_()
        output: Tensor = self.module(x)
        if self._loss is not None:
            output = self._loss(output, self._targets[microbatch])
            self.losses[microbatch] = output.detach()
        self._forwarded[microbatch] = x, output
        return None if self._loss is not None else output.detach()

    def _backward_input(self, microbatch: int, grad: Tensor | None) -> Tensor | None:
        x, output = self._forwarded.pop(microbatch)
        if self._is_first:
            self._split[microbatch] = x, output, grad
            return None
        grads = None if grad is None else [grad]
        (grad_of_x,), groups = stage_backward_input([output], grads, [x], self.module.parameters())
        self._split[microbatch] = groups
        return grad_of_x

    def _backward_weight(self, microbatch: int) -> None:
        if self._is_first:
            x, output, grad = self._split.pop(microbatch)
            stage_backward(output, grad, (x,))
        else:
            stage_backward_weight(self.module.parameters(), self._split.pop(microbatch))


class SpinningStage:
    """Takes the given seconds for each pass and microbatch, `factor` times, and hands nothing over."""

    def __init__(self, seconds: Mapping[tuple[str, int], float], spin: Callable[[float], None]) -> None:
        self._seconds, self._spin = seconds, spin
        self.factor = 1.0

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        """Spin."""
        del received
        self._spin(self._seconds[op.name, microbatch] * self.factor)
        return None
