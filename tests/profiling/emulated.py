"""What a GPU's allocator and clock tell, emulated on a CPU: enough to see what is counted and in which order."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Counting(TorchDispatchMode):
    """Counts the FLOPs of operators by torch's formulas.

    torch's own counter hooks modules as well, and the hooks refuse a split backward.
    """

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=found)
        return found


class Allocator(TorchDispatchMode):
    """Within, `torch.cuda`'s counters are those of the storages that operators make and that are still held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        for name, found in (
            ("memory_allocated", self._held),
            ("max_memory_allocated", lambda: self.peak),
            ("reset_peak_memory_stats", self._reset),
            ("synchronize", lambda device=None: None),
        ):
            monkeypatch.setattr(torch.cuda, name, found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one.data_ptr() for one in _storages_in((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        for storage in _storages_in(found):
            if storage.data_ptr() not in given:  # else a view, perhaps of what was there before
                self._storages[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self._held())
        return found

    def _held(self) -> int:
        self._storages = {at: one for at, one in self._storages.items() if not one[0].expired()}
        return sum(size for _, size in self._storages.values())

    def _reset(self) -> None:
        self.peak = self._held()


def _storages_in(what: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(what) if isinstance(one, Tensor)]
