"""Can this module's backward be split as torch's runtime splits it? Tried, and compared with the whole backward."""

import torch
from torch import Tensor

from ppsim.profiling.failures import first_sentence, is_out_of_memory
from ppsim.profiling.measure import Module

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_TOLERANCE_16_BIT = 5e-2


def why_not_split(subject: Module) -> str | None:
    """Return why I and W cannot stand in for B, as a part of a sentence, or None where they can.

    Both run once from the same state of the random numbers. Split backward is out of the question where it raises
    (reentrant checkpointing does) or gives other gradients of parameters or inputs than B does.
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

        leaves, output = forward()
        whole = _taken_gradients(subject, subject.backward(leaves, output, subject.grad_of(output)))
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
    for name, one in whole.items():
        other = halves.get(name)
        if (one is None) != (other is None) or (
            one is not None and other is not None and not _are_close(one, other)
        ):
            return f"I and W give another gradient of {name} than B"
    return None


def _taken_gradients(subject: Module, of_inputs: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
    gradients = {name: parameter.grad for name, parameter in subject.module.named_parameters()}
    gradients |= {f"input {index}": grad for index, grad in enumerate(of_inputs)}
    subject.module.zero_grad(set_to_none=True)
    return gradients


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients agree as rounding allows: by the norm of their difference."""
    tolerance = _TOLERANCE.get(one.dtype, _TOLERANCE_16_BIT)
    difference = torch.linalg.vector_norm((one - other).flatten(), dtype=torch.float64)
    scale = torch.linalg.vector_norm(one.flatten(), dtype=torch.float64)
    return bool(difference <= tolerance * scale + 1e-12)
