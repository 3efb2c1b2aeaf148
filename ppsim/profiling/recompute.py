"""Recomputation of what is cheap to compute: it is not kept, but computed again where a backward asks for it.

Cheap are norms and activation functions. As Megatron Core does with `--recompute-modules layernorm moe_act`, the
output is discarded, so the product behind it keeps a recipe instead. Unlike torch's selective checkpointing, whose
cache can be emptied once only, a recipe can be followed any number of times: a split backward works.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ppsim.runtime.live_bytes import HeldTensor

Function = Callable[..., Tensor]
Cheaply = Callable[..., AbstractContextManager[Tensor]]
"""Called with a function and its inputs; what it yields is the function's result."""


@contextmanager
def plainly(function: Function, *inputs: Tensor) -> Iterator[Tensor]:
    """Yield the function's result, kept as torch keeps it."""
    yield function(*inputs)


@contextmanager
def again(function: Function, *inputs: Tensor) -> Iterator[Tensor]:
    """Yield the function's result; what is computed from it within keeps the inputs in its place.

    The result is computed again once a backward, or once for I and once for W. `function` is a module or has no
    parameters.
    """
    recipe = _Recipe(function, inputs)
    result: Tensor = _Again.apply(recipe, *inputs, *recipe.parameters)  # type: ignore[no-untyped-call]
    recipe.pointer = result.untyped_storage().data_ptr()
    token = _ACTIVE.set((*_ACTIVE.get(), recipe))
    try:
        with saved_tensors_hooks(_reference, lambda reference: reference.tensor()):
            yield result
    finally:
        _ACTIVE.reset(token)


class _Recipe:
    """How a tensor is computed. The last result is remembered until all that refer to it have asked."""

    def __init__(self, function: Function, inputs: tuple[Tensor, ...]) -> None:
        self.function = function
        self.parameters = tuple(function.parameters()) if isinstance(function, nn.Module) else ()
        self.pointer = 0
        self.num_references = 0
        self._inputs = [(_reference(one.detach()), one.requires_grad) for one in inputs]
        self._made: tuple[Tensor, list[Tensor]] | None = None
        self._num_asked = 0
        self._had_backward = False

    def tensor(self) -> Tensor:
        """The result for one that refers to it."""
        result, _ = self._result()
        self._asked()
        return result.detach()

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Gradients of inputs and parameters."""
        result, leaves = self._result()
        self._asked()
        if not self._had_backward:  # B or I: all that refer to it have asked before
            self._had_backward, self._num_asked, self._made = True, 0, None
        everything = (*leaves, *self.parameters)
        wanted = [one for one in everything if one.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, grad))
        return [next(found) if one.requires_grad else None for one in everything]

    def _asked(self) -> None:
        """In W, forget the result behind the last that asks: all that refer to it, and its parameters if any."""
        self._num_asked += 1
        if self._had_backward and self._num_asked == self.num_references + bool(self.parameters):
            self._num_asked, self._made = 0, None

    def _result(self) -> tuple[Tensor, list[Tensor]]:
        if self._made is None:
            leaves = [held.tensor().requires_grad_(has_grad) for held, has_grad in self._inputs]
            with torch.enable_grad():
                self._made = self.function(*leaves), leaves
        return self._made


class _View:
    """A part of what a recipe makes."""

    def __init__(self, recipe: _Recipe, tensor: Tensor) -> None:
        recipe.num_references += 1
        self._recipe = recipe
        self._geometry = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> Tensor:
        return self._recipe.tensor().as_strided(*self._geometry)


_ACTIVE: ContextVar[tuple[_Recipe, ...]] = ContextVar("_ACTIVE", default=())
"""The recipes of results that exist at the moment."""


def _reference(tensor: Tensor) -> HeldTensor | _View:
    """What is kept for a tensor: a recipe where there is one."""
    pointer = tensor.untyped_storage().data_ptr()
    for recipe in _ACTIVE.get():
        if pointer and recipe.pointer == pointer:
            return _View(recipe, tensor)
    return HeldTensor(tensor)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: _Recipe, *tensors: Tensor) -> Tensor:
        ctx.recipe = recipe
        return recipe.function(*tensors[: len(tensors) - len(recipe.parameters)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *ctx.recipe.backward(grad)
