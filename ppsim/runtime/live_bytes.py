"""Counts of the bytes that autograd saves for the backward while a rank trains."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class RankPeak(TypedDict):
    """Peak activation bytes of a rank in a step, and the action at the peak.

    `peak_allocated_bytes` excludes parameters, gradients and optimizer state; None on CPUs.
    """

    rank: int
    peak_activation_bytes: int
    peak_at: str
    peak_allocated_bytes: int | None


class SavedTensor:
    """A tensor saved for a backward; `on_release`, if set, is called when the tensor is released."""

    __slots__ = ("_tensor", "on_release")

    def __init__(self, tensor: Tensor) -> None:
        # Detached: a saved output would hold the autograd node that holds it, and would never be released.
        self._tensor = tensor.detach()
        self.on_release: Callable[[], None] | None = None
        if watch := _WATCH.get():
            watch(self)

    def __del__(self) -> None:
        if self.on_release is not None:
            self.on_release()

    def tensor(self) -> Tensor:
        return self._tensor


_WATCH: ContextVar[Callable[[SavedTensor], None] | None] = ContextVar("_WATCH", default=None)


@contextmanager
def watch_saved_tensors(watch: Callable[[SavedTensor], None]) -> Iterator[None]:
    """Call `watch` with each `SavedTensor` of the block.

    Torch's outer saved-tensor hooks do not see the tensors that inner hooks save.
    """
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


class LiveBytes:
    """Counts the bytes of the distinct storages that a rank's forwards save, without parameters and buffers.

    The caller sets `action`. Not counted, because autograd does not save them: temporary memory of an action,
    receive buffers, and, between I and W, the gradients that torch's split backward holds for W.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        static = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        self._static = {tensor.untyped_storage().data_ptr() for tensor in static}
        self._held: dict[int, list[int]] = {}
        self._released: deque[int] = deque()  # any thread that drops a tensor appends to it
        self._live = 0
        self.action = ""
        self.peak_bytes, self.peak_at = 0, ""

    @contextmanager
    def counting(self) -> Iterator[None]:
        with watch_saved_tensors(self._count), saved_tensors_hooks(SavedTensor, SavedTensor.tensor):
            yield

    @property
    def live_bytes(self) -> int:
        self._settle()
        return self._live

    def peak(self, rank: int, allocated_bytes: int | None = None) -> RankPeak:
        return RankPeak(
            rank=rank,
            peak_activation_bytes=self.peak_bytes,
            peak_at=self.peak_at,
            peak_allocated_bytes=allocated_bytes,
        )

    def _count(self, held: SavedTensor) -> None:
        storage = held.tensor().untyped_storage()
        pointer, size = storage.data_ptr(), storage.nbytes()
        if pointer in self._static:
            return
        self._settle()
        if pointer not in self._held:
            self._held[pointer] = [0, size]
            self._live += size
            if self._live > self.peak_bytes:
                self.peak_bytes, self.peak_at = self._live, self.action
        self._held[pointer][0] += 1
        held.on_release = partial(self._released.append, pointer)

    def _settle(self) -> None:
        while self._released:
            pointer = self._released.popleft()
            self._held[pointer][0] -= 1
            if not self._held[pointer][0]:
                self._live -= self._held.pop(pointer)[1]


class AllocatedPeak:
    """Peak of a CUDA device's allocator from now on, minus its current memory and these parameters' gradients."""

    def __init__(self, where: torch.device, parameters: Sequence[nn.Parameter]) -> None:
        self._where, self._parameters = where, parameters
        self._before = 0
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
            self._before = int(torch.cuda.memory_allocated(where))

    def bytes(self) -> int | None:
        if self._where.type != "cuda":
            return None
        gradients = sum(parameter.grad.nbytes for parameter in self._parameters if parameter.grad is not None)
        return int(torch.cuda.max_memory_allocated(self._where)) - self._before - gradients


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's values of the two names in malloc.h."""


def keep_freed_memory() -> None:
    """Make glibc serve all but the largest blocks from its heap, and never return the heap to the system.

    Otherwise memory that a backward frees is returned and obtained again, with thousands of page faults per action.
    Does nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, 1 << 25)  # glibc's maximum
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
