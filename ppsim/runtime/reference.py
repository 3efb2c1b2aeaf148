"""At which pace a CPU runs just now: the seconds of a little work that is the same in every run of every model.

Machines that others use too give now more, now less, in minutes by tens of percent. What the same work takes
between the steps of two runs tells their paces apart from all else in which the runs differ.
"""

import time

import torch
from torch import nn

from ppsim.runtime.config import MODELS
from ppsim.runtime.gpt import Block

_LAYERS, _IN_FLIGHT = 2, 2
"""As on a rank of a small pipeline, so that caches hold as little of it: together they take some milliseconds."""


class Reference:
    """Layers of nano and their own microbatches; the numbers are drawn beside torch's, which stay as they are."""

    def __init__(self) -> None:
        shape = MODELS["nano"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._layers = nn.Sequential(*(Block(shape.layer) for _ in range(_LAYERS)))
            like = (_IN_FLIGHT, 2, shape.sequence_length, shape.hidden_size)
            self._inputs, self._gradients = torch.randn(like), torch.randn(like)

    def seconds(self) -> float:
        """Do F of all microbatches, then their B, and return what it took."""
        begin = time.perf_counter()
        outputs = [self._layers(one.detach().requires_grad_()) for one in self._inputs]
        for output, gradient in zip(outputs, self._gradients, strict=True):
            output.backward(gradient)
        return time.perf_counter() - begin
