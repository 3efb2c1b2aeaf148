"""Peaks of a device's allocator, and the heap of the C library."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from ppsim.runtime import live_bytes
from ppsim.runtime.live_bytes import AllocatedPeak, keep_freed_memory


def test_a_peak_is_above_the_memory_before_without_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    cuda = SimpleNamespace(
        reset_peak_memory_stats=calls.append,
        memory_allocated=lambda where: 1000,
        max_memory_allocated=lambda where: 9500,
    )
    monkeypatch.setattr(live_bytes.torch, "cuda", cuda)
    gradients = [
        SimpleNamespace(grad=SimpleNamespace(nbytes=30)),
        SimpleNamespace(grad=None),
        SimpleNamespace(grad=SimpleNamespace(nbytes=200)),
    ]
    where: Any = SimpleNamespace(type="cuda")
    assert AllocatedPeak(where, gradients).bytes() == 9500 - 1000 - 230  # type: ignore[arg-type]
    assert calls == [where]
    host: Any = SimpleNamespace(type="cpu")
    assert AllocatedPeak(host, gradients).bytes() is None  # type: ignore[arg-type]
    assert calls == [where]


def test_the_heap_keeps_blocks_up_to_32_mib_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: calls.append(given))
    monkeypatch.setattr(live_bytes.ctypes, "CDLL", lambda name: library)
    keep_freed_memory()
    assert calls == [(-3, 32 * 2**20), (-1, 2**31 - 1)]
    monkeypatch.setattr(live_bytes.ctypes, "CDLL", lambda name: SimpleNamespace())
    keep_freed_memory()
    assert len(calls) == 2
