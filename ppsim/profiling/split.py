"""Can this module's backward be split as torch's runtime splits it? Tried, and compared with the whole backward."""

import torch
from torch import Tensor

from ppsim.profiling.failures import first_sentence, is_out_of_memory
from ppsim.profiling.measure import Module

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_TOLERANCE_16_BIT = 5e-2
_NOISE, _OTHERS = 2.0, 3
"""How many times as far as one of three other whole backwards the split one may be from the first."""


def why_not_split(subject: Module) -> str | None:
    """Return why I and W cannot stand in for B, as a part of a sentence, or None where they can.

    Both run once from the same state of the random numbers. Split backward is out of the question where it raises
    (reentrant checkpointing does) or gives other gradients of parameters or inputs than B does, farther off than
    other Bs are: atomic sums, which a GPU does in any order, change what a router picks.
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


def _taken_gradients(subject: Module, of_inputs: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
    gradients = {name: parameter.grad for name, parameter in subject.module.named_parameters()}
    gradients |= {f"input {index}": grad for index, grad in enumerate(of_inputs)}
    subject.module.zero_grad(set_to_none=True)
    return gradients


def _is_near(one: Tensor | None, other: Tensor | None, *alike: Tensor | None) -> bool:
    """Whether two gradients differ by no more than rounding does, or than `one` from one of its kind, twice.

    By the norm of the difference. None is near to None alone.
    """
    if one is None or other is None:
        return one is other
    allowed = _TOLERANCE.get(one.dtype, _TOLERANCE_16_BIT) * _norm(one) + 1e-12
    allowed = max(allowed, *(_NOISE * _norm(one - like) for like in alike if like is not None), 0.0)
    return _norm(one - other) <= allowed


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.flatten(), dtype=torch.float64))
