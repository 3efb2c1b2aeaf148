"""Simulation of torch's caching allocator, by the rules of c10/cuda/CUDACachingAllocator.cpp.

Streams do not share blocks, nor do small tensors (up to 1 MiB) and larger ones.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

_UNIT = 512
_SMALL = 2**20
_PAGE = 20 * 2**20
_LARGE, _ROUND = 10 * 2**20, 2 * 2**20


@dataclass(frozen=True)
class AllocatorBlock:
    """A block in a stream's segment, in bytes."""

    stream: str
    begin: int
    size: int


@dataclass
class Segment:
    """The segments of a stream: one expandable, or several fixed. Sizes are in bytes.

    A request takes the smallest free block that is large enough. If there is none, it takes a new fixed segment, or
    the expandable segment grows: the request then takes the new memory and a free block just before it. A block is
    split if more than 1 MiB is left (512 bytes in expandable segments, and for small tensors). TorchTitan sets
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` on one node (`run_train.sh`) but not on several
    (`multinode_trainer.slurm`).
    """

    name: str
    is_expandable: bool = True
    page: int = _PAGE
    mapped: int = 0
    held: int = 0
    _top: int = 0
    _by_size: list[tuple[int, int]] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    _begins: dict[int, int] = field(default_factory=dict)

    def take(self, size: int) -> AllocatorBlock:
        index = bisect_left(self._by_size, (size, 0))
        if index < len(self._by_size):
            found, begin = self._by_size[index]
            self._forget(begin)
        elif not self.is_expandable:
            found = self.page if size < _LARGE else -(-size // _ROUND) * _ROUND
            begin = self._top
            # The gap of one unit prevents merging with the next segment.
            self.mapped, self._top = self.mapped + found, begin + found + _UNIT
        else:
            begin = self._begins.get(self.mapped, self.mapped)
            if begin < self.mapped:
                self._forget(begin)
            self.mapped = max(self.mapped, -(-(begin + size) // self.page) * self.page)
            found = self.mapped - begin
        if found - size > (_UNIT - 1 if self.is_expandable or self.page < _PAGE else _SMALL):
            self._remember(begin + size, found - size)
            found = size
        self.held += found
        return AllocatorBlock(self.name, begin, found)

    def give(self, block: AllocatorBlock) -> None:
        begin, end = block.begin, block.begin + block.size
        self.held -= block.size
        if begin in self._begins:
            before = self._begins[begin]
            self._forget(before)
            begin = before
        if end in self._sizes:
            end += self._forget(end)
        self._remember(begin, end - begin)

    def _remember(self, begin: int, size: int) -> None:
        insort(self._by_size, (size, begin))
        self._sizes[begin], self._begins[begin + size] = size, begin

    def _forget(self, begin: int) -> int:
        size = self._sizes.pop(begin)
        del self._begins[begin + size], self._by_size[bisect_left(self._by_size, (size, begin))]
        return size


class Allocator:
    """A device's memory under torch; reserved bytes never shrink.

    >>> memory = Allocator()
    >>> first, second = memory.make(40 * 2**20), memory.make(80 * 2**20)
    >>> memory.drop(first)
    >>> third = memory.make(60 * 2**20)  # it does not fit where the first one was
    >>> memory.allocated // 2**20, memory.peak_allocated // 2**20, memory.reserved // 2**20
    (140, 140, 180)
    """

    def __init__(self, *, is_expandable: bool = True) -> None:
        self._is_expandable = is_expandable
        self._segments: dict[str, Segment] = {}
        self.peak_allocated = 0
        self.allocated = 0

    @property
    def reserved(self) -> int:
        return sum(segment.mapped for segment in self._segments.values())

    def make(self, num_bytes: float, stream: str = "compute") -> AllocatorBlock | None:
        size = -(-int(num_bytes) // _UNIT) * _UNIT
        if not size:
            return None
        name, page = (stream, _PAGE) if size > _SMALL else (f"{stream}, small", _ROUND)
        block = self._segments.setdefault(name, Segment(name, self._is_expandable, page)).take(size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def drop(self, *blocks: AllocatorBlock | None) -> None:
        for block in blocks:
            if block is not None:
                self._segments[block.stream].give(block)
                self.allocated -= block.size
