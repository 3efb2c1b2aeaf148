"""Check if a module's backward can be split as torch's runtime does."""

import torch
from torch import Tensor

from ppsim.profiling.failures import first_sentence, is_out_of_memory
from ppsim.profiling.measure import MeasuredModule

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_TOLERANCE_16_BIT = 5e-2
_NOISE, _OTHERS = 2.0, 3
"""Allowed distance of I and W's gradients from B's, relative to the largest distance of other runs of B, and number
of these runs."""


def why_not_split(subject: MeasuredModule) -> str | None:
    """Return the reason why I and W cannot replace B, as part of a sentence, or None if they can.

    I or W may raise (with reentrant checkpointing), or their gradients may differ from B's by more than other runs
    of B do. Runs of B differ because a GPU's atomic sums have no fixed order, which can change a router's choice.
    """
    if subject.is_first:
        return None
    x = subject.next_input()
    devices = {one.device.index or 0 for one in x if one.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        state = torch.random.get_rng_state()
        cuda_states = [torch.cuda.get_rng_state(device) for device in devices]

        def forward() -> tuple[tuple[Tensor, ...], Tensor]:
            torch.random.set_rng_state(state)
            for device, cuda_state in zip(devices, cuda_states, strict=True):
                torch.cuda.set_rng_state(cuda_state, device)
            leaves = tuple(one.detach().requires_grad_(one.requires_grad) for one in x)
            return leaves, subject.forward(leaves)

        def whole_gradients() -> dict[str, Tensor | None]:
            leaves, output = forward()
            return _taken_gradients(subject, subject.backward(leaves, output, subject.grad_of(output)))

        whole = whole_gradients()
        leaves, output = forward()
        grad = subject.grad_of(output)
        try:
            groups = subject.backward_input(leaves, output, grad)
            subject.backward_weight(leaves, output, grad, groups)
        except (RuntimeError, KeyError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            subject.module.zero_grad(set_to_none=True)
            return f"torch's split backward fails in it ({first_sentence(error)})"
        halves = _taken_gradients(subject, tuple(leaf.grad for leaf in leaves))
        differing = [name for name, one in whole.items() if not _is_near(one, halves.get(name))]
        others = [whole_gradients() for _ in range(_OTHERS)] if differing else []
    for name in differing:
        if not _is_near(whole[name], halves.get(name), *(other[name] for other in others)):
            return f"I and W give another gradient of {name} than B"
    return None


def _taken_gradients(subject: MeasuredModule, of_inputs: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
    gradients = {name: parameter.grad for name, parameter in subject.module.named_parameters()}
    gradients |= {f"input {index}": grad for index, grad in enumerate(of_inputs)}
    subject.module.zero_grad(set_to_none=True)
    return gradients


def _is_near(one: Tensor | None, other: Tensor | None, *alike: Tensor | None) -> bool:
    """Return whether two gradients differ by rounding only, or by at most `_NOISE` × their usual difference.

    The usual difference is the largest distance of `one` to the gradients `alike` of other runs.
    """
    if one is None or other is None:
        return one is other
    allowed = _TOLERANCE.get(one.dtype, _TOLERANCE_16_BIT) * _norm(one) + 1e-12
    allowed = max(allowed, *(_NOISE * _norm(one - like) for like in alike if like is not None), 0.0)
    return _norm(one - other) <= allowed


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.flatten(), dtype=torch.float64))
