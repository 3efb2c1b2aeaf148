"""A split backward is compared with the whole one: as near as three other whole ones are, and no farther."""

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ppsim.profiling.harness import why_not_split
from ppsim.profiling.measure import MeasuredModule


class Noisy(torch.autograd.Function):
    """Its backward is off by a draw of its own, as atomic sums in any order are; more so in calls of `more`."""

    calls = 0
    more = -1

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        Noisy.calls += 1
        noise = torch.randn(grad.shape, generator=torch.Generator().manual_seed(Noisy.calls)) * grad.norm()
        return grad + noise * (0.5 if Noisy.calls == Noisy.more else 0.02)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(Noisy.apply(x))  # type: ignore[no-untyped-call]
        return found


@pytest.mark.parametrize(("more", "reason"), [(-1, None), (2, "I and W give another gradient of input 0 than B")])
def test_noise_that_whole_backwards_have_too_is_no_reason(more: int, reason: str | None) -> None:
    Noisy.calls, Noisy.more = 0, more
    assert why_not_split(MeasuredModule(Layer(), [torch.randn(4, 8)])) == reason
    assert Noisy.calls == 5
