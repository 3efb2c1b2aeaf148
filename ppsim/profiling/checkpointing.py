"""Recomputation of cheap operations (norms, activation functions): the output is discarded, and computed again.

As in Megatron Core with `--recompute-modules layernorm moe_act`, the GEMM after the operation saves a recipe
(function and inputs) in place of the output. torch's selective checkpointing cannot do this, because its cache can
be emptied only once, and a split backward (I, then W) needs it twice.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ppsim.runtime.live_bytes import SavedTensor

Function = Callable[..., Tensor]
Cheaply = Callable[..., AbstractContextManager[Tensor]]
"""Takes a function and its inputs; returns a context manager that yields the function's result."""


@contextmanager
def save_as_usual(function: Function, *inputs: Tensor) -> Iterator[Tensor]:
    yield function(*inputs)


@contextmanager
def recompute_result(function: Function, *inputs: Tensor) -> Iterator[Tensor]:
    """Yield the function's result; operations on it within the block save the inputs in its place.

    `function` is a module, or has no parameters.
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
    """How to compute a tensor; the last result is cached until all references have asked for it."""

    def __init__(self, function: Function, inputs: tuple[Tensor, ...]) -> None:
        self.function = function
        self.parameters = tuple(function.parameters()) if isinstance(function, nn.Module) else ()
        self.pointer = 0
        self.num_references = 0
        self._inputs = [(_reference(tensor.detach()), tensor.requires_grad) for tensor in inputs]
        self._made: tuple[Tensor, list[Tensor]] | None = None
        self._num_asked = 0
        self._had_backward = False

    def tensor(self) -> Tensor:
        result, _ = self._result()
        self._asked()
        return result.detach()

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        result, leaves = self._result()
        self._asked()
        if not self._had_backward:  # in B or I: all references have asked already
            self._had_backward, self._num_asked, self._made = True, 0, None
        everything = (*leaves, *self.parameters)
        wanted = [tensor for tensor in everything if tensor.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, grad))
        return [next(found) if one.requires_grad else None for one in everything]

    def _asked(self) -> None:
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
    def __init__(self, recipe: _Recipe, tensor: Tensor) -> None:
        recipe.num_references += 1
        self._recipe = recipe
        self._geometry = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> Tensor:
        return self._recipe.tensor().as_strided(*self._geometry)


_ACTIVE: ContextVar[tuple[_Recipe, ...]] = ContextVar("_ACTIVE", default=())
"""The recipes of results that exist at the moment."""


def _reference(tensor: Tensor) -> SavedTensor | _View:
    pointer = tensor.untyped_storage().data_ptr()
    for recipe in _ACTIVE.get():
        if pointer and recipe.pointer == pointer:
            return _View(recipe, tensor)
    return SavedTensor(tensor)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: _Recipe, *tensors: Tensor) -> Tensor:
        ctx.recipe = recipe
        return recipe.function(*tensors[: len(tensors) - len(recipe.parameters)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *ctx.recipe.backward(grad)
