"""Disjoint partitions of a GPU's multiprocessors: green contexts of the CUDA driver, a stream each.

`torch.cuda.GreenContext` cannot give them: each one is the first group of a split of the whole device
(aten/src/ATen/cuda/CUDAGreenContext.cpp), so that two of them share multiprocessors, and that of torch 2.11 has no
stream of its own. The driver splits once into as many disjoint groups as there are ranks. Work that torch launches
on the streams made here runs on their multiprocessors only.

Structures and calls: cuda.h of CUDA 13.0, section "Green contexts".
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import ConfigError

_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, which is required
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, likewise
_CALLS = (
    "cuDeviceGet", "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate", "cuGreenCtxDestroy", "cuGreenCtxStreamCreate", "cuStreamDestroy_v2", "cuGetErrorString",
)  # fmt: skip


class _Multiprocessors(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint),
        ("smallest_partition", ctypes.c_uint),
        ("alignment", ctypes.c_uint),
        ("_rest", ctypes.c_ubyte * 36),
    )


class _Resource(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("_padding", ctypes.c_ubyte * 92), ("sm", _Multiprocessors))


@dataclass(frozen=True)
class Partition:
    """A part of the GPU: its number of multiprocessors, and the driver's handles of its context and stream."""

    num_multiprocessors: int
    context: ctypes.c_void_p
    stream: ctypes.c_void_p


def largest_partition(
    total: int, num_partitions: int, *, smallest: int, alignment: int, num_groups: Callable[[int], int]
) -> int | None:
    """Return the most multiprocessors that each of as many partitions can have; None where there are not enough.

    `num_groups` tells into how many groups of that size the driver splits the device: clusters and uneven
    processing clusters can make it fewer than the quotient.

    >>> largest_partition(132, 4, smallest=8, alignment=8, num_groups=lambda size: 132 // size)
    32
    >>> largest_partition(132, 17, smallest=8, alignment=8, num_groups=lambda size: 132 // size) is None
    True
    """
    smallest, alignment = max(smallest, 1), max(alignment, 1)
    size = total // num_partitions // alignment * alignment
    while size >= smallest:
        if num_groups(size) >= num_partitions:
            return size
        size -= alignment
    return None


def split_device(ordinal: int, device_name: str, num_partitions: int) -> list[Partition]:
    """Return disjoint partitions of one size, the largest there is; torch must have initialised the device.

    Raises `ConfigError` where the device has too few multiprocessors, naming how many it has, or where the driver
    knows no green contexts.
    """
    driver = _driver()
    device, whole = ctypes.c_int(), _Resource()
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), ordinal))
    _check(driver, driver.cuDeviceGetDevResource(device, ctypes.byref(whole), _SM))

    def num_groups(size: int) -> int:
        count = ctypes.c_uint(0)
        split = driver.cuDevSmResourceSplitByCount(
            None, ctypes.byref(count), ctypes.byref(whole), None, 0, ctypes.c_uint(size)
        )
        _check(driver, split)
        return count.value

    total, smallest = whole.sm.count, max(whole.sm.smallest_partition, 1)
    size = largest_partition(
        total, num_partitions, smallest=smallest, alignment=whole.sm.alignment, num_groups=num_groups
    )
    if size is None:
        raise ConfigError(
            f"--partitions {num_partitions}: the {total} multiprocessors of {device_name} make at most "
            f"{num_groups(smallest)} partitions of {smallest}"
        )
    groups, count = (_Resource * num_partitions)(), ctypes.c_uint(num_partitions)
    split = driver.cuDevSmResourceSplitByCount(
        groups, ctypes.byref(count), ctypes.byref(whole), None, 0, ctypes.c_uint(size)
    )
    _check(driver, split)
    return [_partition(driver, device, groups[index]) for index in range(num_partitions)]


def release(partitions: list[Partition]) -> None:
    """Destroy streams and contexts; nothing may be under way on them."""
    driver = _driver()
    for partition in partitions:
        _check(driver, driver.cuStreamDestroy_v2(partition.stream))
        _check(driver, driver.cuGreenCtxDestroy(partition.context))


def _partition(driver: Any, device: ctypes.c_int, group: Any) -> Partition:
    descriptor, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver, driver.cuDevResourceGenerateDesc(ctypes.byref(descriptor), ctypes.byref(group), 1))
    _check(driver, driver.cuGreenCtxCreate(ctypes.byref(context), descriptor, device, _DEFAULT_STREAM))
    _check(driver, driver.cuGreenCtxStreamCreate(ctypes.byref(stream), context, _NON_BLOCKING, 0))
    return Partition(group.sm.count, context, stream)


def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for name in _CALLS:
            getattr(driver, name)
    except (OSError, AttributeError) as error:
        raise ConfigError(f"this driver has no green contexts, which came with CUDA 12.5: {error}") from None
    return driver


def _check(driver: Any, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        reason = (text.value or b"").decode() or f"error {code}"
        raise ConfigError(f"the GPU cannot be cut into partitions: the driver says '{reason}'")
