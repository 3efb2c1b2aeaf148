"""Linear layers with GEMMs in 8-bit floating point: e4m3 in the forward, e5m2 for gradients.

Saved tensors stay in bfloat16 and are cast again, as in torchao's Float8Linear, with one dynamic scale per tensor
(Micikevicius et al. 2022, arXiv 2209.05433). Only gradient GEMMs accumulate in float32, as in Transformer Engine.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ppsim.base.errors import ConfigError
from ppsim.profiling.timing import first_sentence

_FORWARD, _GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
Cast = Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor]]
"""Casts a tensor to an 8-bit type; returns it contiguous, with the scale that converts it back."""

_MOST_CASTS = 1000
_ALIGNED = 16
"""Sizes of an 8-bit GEMM must be multiples of this."""


def require_float8(device: torch.device, num_tokens: int) -> None:
    """Raise `ConfigError` if the device or torch has no 8-bit GEMMs, or not for this number of tokens."""
    if num_tokens % _ALIGNED:
        raise ConfigError(f"fp8 needs a multiple of {_ALIGNED} tokens per microbatch and rank: got {num_tokens}")
    try:
        tiny = torch.ones(_ALIGNED, _ALIGNED, device=device, dtype=torch.bfloat16)
        for kind in (_FORWARD, _GRADIENT):
            _product(*cast_plainly(tiny, kind), *cast_plainly(tiny, _FORWARD), is_fast=False)
    except (RuntimeError, ValueError, AttributeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"fp8 products do not run with torch {torch.__version__} on {device}: {reason}"
        ) from error


@cache
def fused_cast(device: str, *, compiled: bool = False) -> tuple[Cast, str]:
    """Return the cast to use on a device, and a sentence that describes it.

    On a GPU torch.compile fuses casts, because separate operators take longer than the GEMMs.
    """
    if compiled:
        return cast_plainly, "fp8: casts in what torch.compile makes of a layer."
    if device != "cuda":
        return cast_plainly, "fp8: casts by torch's operators, one after the other."
    import torch._dynamo.config

    # Compile a cast for each type, layout and size, because a cast for any size takes twice as long on an H100.
    # After its default limit of 8 compilations, torch would silently fall back to separate operators.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _MOST_CASTS
    fused: Cast = torch.compile(cast_plainly, dynamic=False)
    try:
        fused(torch.ones(_ALIGNED, _ALIGNED, device=device, dtype=torch.bfloat16), _FORWARD)
    except Exception as error:  # anything may go wrong in the compiler
        reason = first_sentence(error)
        return cast_plainly, f"fp8: casts by torch's operators, since torch.compile fails ({reason})."
    return fused, "fp8: casts by torch.compile."


def to_float8(module: nn.Module, cast: Cast) -> nn.Module:
    """Replace the linear layers whose sizes allow it, except routers and experts in grouped GEMMs."""
    for name, child in module.named_children():
        if type(child) is nn.Linear and name != "router" and not _odd_sizes(child):
            replaced = Float8Linear(child.in_features, child.out_features, bias=child.bias is not None)
            replaced.weight, replaced.bias, replaced.cast = child.weight, child.bias, cast
            setattr(module, name, replaced)
        else:
            to_float8(child, cast)
    return module


class Float8Linear(nn.Linear):
    """x·Wᵀ + bias of bfloat16 tensors, with all three GEMMs in 8 bit; its backward can be split."""

    cast: Cast

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        product: Tensor = _OfInput.apply(rows, self.weight.detach(), self.cast)  # type: ignore[no-untyped-call]
        weighed = _OfWeight.apply(self.weight, rows.detach(), self.cast)  # type: ignore[no-untyped-call]
        product = _Both.apply(product, weighed).view(*x.shape[:-1], -1)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


# A Python autograd function computes all of its gradients or none, so I and W need two functions.
class _OfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cast: Cast) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.cast = cast
        # Detached, because torch.compile would compile another cast for a tensor with a gradient.
        return _product(*cast(x.detach(), _FORWARD), *cast(weight, _FORWARD), is_fast=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        halves = *ctx.cast(grad, _GRADIENT), *ctx.cast(weight.t(), _FORWARD)
        return _product(*halves, is_fast=False), None, None


class _OfWeight(torch.autograd.Function):
    """A branch of the graph with value 0 that carries only the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Tensor, cast: Cast) -> Tensor:
        ctx.save_for_backward(x)
        ctx.cast = cast
        return weight.new_zeros(()).expand(x.shape[0], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        halves = *ctx.cast(grad.t(), _GRADIENT), *ctx.cast(x.t(), _FORWARD)
        return _product(*halves, is_fast=False), None, None


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Tensor, weighed: Tensor) -> Tensor:
        return product.view_as(product)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad


def cast_plainly(tensor: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cast with one scale per tensor, by separate torch operators; return values and scale."""
    largest = torch.finfo(kind).max
    scale = tensor.abs().amax().float().clamp(min=1e-12) / largest
    return (tensor / scale).clamp(-largest, largest).to(kind).contiguous(), scale


def _product(left: Tensor, left_scale: Tensor, right: Tensor, right_scale: Tensor, *, is_fast: bool) -> Tensor:
    """Return left·rightᵀ in bfloat16; both operands are contiguous in the summed dimension."""
    product: Tensor = torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16, use_fast_accum=is_fast
    )
    return product


def _odd_sizes(linear: nn.Linear) -> bool:
    return bool(linear.in_features % _ALIGNED or linear.out_features % _ALIGNED)
