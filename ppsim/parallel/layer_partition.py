"""Number of layers per stage: given, even, or balanced by cost."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ppsim.base.arrays import distinct
from ppsim.base.errors import ConfigError
from ppsim.base.limits import MOST_LAYERS


def require_layers(num_layers: int, name: str = "num_layers") -> None:
    if num_layers < 1:
        raise ConfigError(f"{name} must be at least 1: got {num_layers}")
    if num_layers > MOST_LAYERS:
        raise ConfigError(f"{name} must be at most {MOST_LAYERS:,}: got {num_layers}")


def even_split(num_layers: int, num_stages: int) -> list[int]:
    """Return layers per stage; the end stages (embedding, head) get fewer.

    >>> even_split(30, 16)
    [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
    """
    least, extra = divmod(num_layers, num_stages)
    split = [least] * num_stages
    inner_first = sorted(range(num_stages), key=lambda stage: (-min(stage, num_stages - 1 - stage), stage))
    for stage in inner_first[:extra]:
        split[stage] += 1
    return split


@dataclass(frozen=True)
class MegatronSplit:
    """Megatron-LM's rule for layers per stage (`get_num_layers_to_build`): equal on all ranks.

    `counts_embedding` and `counts_loss` count each as a layer (`--account-for-embedding-in-pipeline-split`,
    `--account-for-loss-in-pipeline-split`). `first` and `last` set the layers of the first and the last rank
    (`--decoder-first-pipeline-num-layers`, `--decoder-last-…`); the other ranks share the rest equally.
    """

    counts_embedding: bool = False
    counts_loss: bool = False
    first: int | None = None
    last: int | None = None

    @property
    def is_plain(self) -> bool:
        """True without options; layers that do not divide are then split as evenly as possible."""
        return self == MegatronSplit()

    def layers_per_stage(self, num_layers: int, *, pp: int, vpp: int) -> list[int]:
        """Raises `ConfigError` if Megatron-LM refuses the split.

        >>> MegatronSplit(counts_embedding=True, counts_loss=True).layers_per_stage(30, pp=4, vpp=2)
        [3, 4, 4, 4, 4, 4, 4, 3]
        """
        if self.is_plain and num_layers % (pp * vpp):
            return even_split(num_layers, pp * vpp)
        if (self.counts_embedding or self.counts_loss) and not (self.first is None is self.last):
            raise ConfigError(
                "Megatron-LM counts embedding and loss as layers, or is told the layers of the first or the last "
                "rank: not both"
            )
        given = {rank: count for rank, count in ((0, self.first), (pp - 1, self.last)) if count is not None}
        rest, left = num_layers + self.counts_embedding + self.counts_loss - sum(given.values()), pp - len(given)
        if rest < 0 or (rest % left if left else rest):
            above = -rest % max(left, 1)
            near = " or ".join(str(num_layers + more) for more in (above - left, above) if num_layers + more > 0)
            raise ConfigError(
                f"Megatron-LM puts as many layers on each of {left} ranks: {rest} are left for them (nearest: "
                f"{near} layers in all, or a layout string for --split)"
            )
        of_ranks = [given.get(rank, rest // left if left else 0) for rank in range(pp)]
        for rank, count in enumerate(of_ranks):
            if count % vpp:
                raise ConfigError(
                    f"Megatron-LM divides the layers of a rank among its chunks: got {count} on rank {rank} with "
                    f"vpp {vpp} (a layout string for --split can)"
                )
        stages = [count // vpp for _ in range(vpp) for count in of_ranks]
        stages[0] -= self.counts_embedding
        stages[-1] -= self.counts_loss
        return stages

    def in_words(self, num_layers: int, *, pp: int, vpp: int) -> str:
        if self.is_plain and num_layers % (pp * vpp):
            return "even; Megatron-LM needs --pipeline-model-parallel-layout for it"
        counted = [name for name, on in (("embedding", self.counts_embedding), ("loss", self.counts_loss)) if on]
        parts = [f"{' and '.join(counted)} counted as layers"] if counted else []
        ends = (("first", self.first), ("last", self.last))
        parts += [f"{count} on the {name} rank" for name, count in ends if count is not None]
        return ", ".join(["Megatron-LM's rule: even", *parts])


class AutoSplit(tuple[int, ...]):
    """Layers per stage found by "auto"."""

    def __repr__(self) -> str:
        """Return a text that differs from the repr of the same layers given by the user."""
        return f"FoundSplit{super().__repr__()}"


Split: TypeAlias = Literal["auto", "balanced", "even"] | MegatronSplit | Sequence[int] | Sequence[str]
"""A rule, the number of layers per stage, or layout strings (`ppsim.trainers.megatron.write_schedule`).

"balanced" gives ranks equal work. "auto" starts from "balanced" and minimises the simulated iteration time.
"""


def without_search(split: Split) -> Split:
    """Return "balanced" for "auto": searching the fastest split for each of many plans takes too long."""
    return "balanced" if split == "auto" else split


def rule_of(split: Split, num_layers: int, *, pp: int, vpp: int) -> str:
    if isinstance(split, MegatronSplit):
        return split.in_words(num_layers, pp=pp, vpp=vpp)
    if isinstance(split, AutoSplit):
        return "auto"
    return split if isinstance(split, str) else "as given"


def balanced_split(
    num_layers: int, num_stages: int, *, layer_s: float, embedding_s: float, head_s: float
) -> list[int]:
    """Return the layers per stage that minimise the slowest stage, for F + B seconds of each component.

    Each layer goes to the stage with the lowest cost, which is optimal because layers are identical.

    >>> balanced_split(30, 8, layer_s=1.0, embedding_s=1.0, head_s=1.0)
    [3, 4, 4, 4, 4, 4, 4, 3]
    """
    return list(_balanced(num_layers, num_stages, layer_s, embedding_s, head_s))


@lru_cache(maxsize=256)
def _balanced(num_layers: int, num_stages: int, layer_s: float, embedding_s: float, head_s: float) -> list[int]:
    cost = [0.0] * num_stages
    cost[0] += embedding_s
    cost[-1] += head_s
    split = [0] * num_stages
    for _ in range(num_layers):
        stage = min(
            range(num_stages),
            key=lambda s: (round(cost[s] + layer_s, 12), -min(s, num_stages - 1 - s), s),
        )
        split[stage] += 1
        cost[stage] += layer_s
    return split


_TICKS = 2**30
"""Ticks of all costs together. Times in ticks and sums of their squares (up to 2**60) are exact, so the position
decides between equally good splits, not rounding."""

_IMPOSSIBLE = 2**61


def partition(costs: Sequence[float], num_stages: int) -> list[int]:
    """Divide a chain of items into consecutive non-empty stages so that the slowest stage is as fast as possible.

    The result is exact for costs in ticks, by dynamic programming over stage boundaries. Among optimal splits, it
    has the smallest sum of squares. Raises `ConfigError` for too few items and for invalid costs.

    >>> partition([1, 1, 1, 6, 1, 1], 3)
    [3, 1, 2]
    """
    if num_stages < 1:
        raise ConfigError(f"there must be at least 1 stage: got {num_stages}")
    if len(costs) < num_stages:
        raise ConfigError(f"{len(costs)} items are too few for {num_stages} stages: some would hold nothing")
    if not all(0 <= cost < float("inf") for cost in costs):
        raise ConfigError(f"costs must be finite and 0 or more: got {list(costs)}")
    costs_of_layers = np.asarray(costs, dtype=np.float64)
    ticks = np.rint(costs_of_layers * (_TICKS / (costs_of_layers.sum() or 1.0))).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(ticks)])
    taken = ends[None, :] - ends[:, None]  # [start, end]: cost of the items as one stage
    # Candidates for the slowest stage: at least the largest item, at most a fair share plus one item.
    most_item = taken.diagonal(1).max()
    possible = distinct(taken[(taken >= most_item) & (taken <= 1.001 * (most_item + ends[-1] / num_stages))])
    slowest = possible[bisect_left(possible, True, key=lambda most: _suffices(_farthest(taken, most), num_stages))]
    return _evenest(taken, num_stages, int(slowest) + len(costs))  # equal sums of rounded costs differ by less


def _farthest(taken: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Latest end of a stage that begins at each item."""
    farthest: npt.NDArray[np.int64] = np.count_nonzero(taken <= most, axis=1) - 1
    return farthest


def _suffices(farthest: npt.NDArray[np.int64], num_stages: int) -> bool:
    """Return whether `num_stages` stages suffice; if fewer do, some of them can be divided."""
    end = 0
    for _ in range(num_stages):
        end = int(farthest[end])
    return end == len(farthest) - 1


def _evenest(taken: npt.NDArray[np.int64], num_stages: int, most: int) -> list[int]:
    """Items per stage with the smallest sum of squares; in a tie, later stages are longer."""
    ends = np.arange(len(taken))
    longest = int((_farthest(taken, most) - ends).max())
    # [length, end]: start of a stage of this length, longest first, and the square of its cost.
    begins = ends[None, :] - np.arange(longest, 0, -1)[:, None]
    stage = taken[begins, ends[None, :]]
    squares = np.where((begins >= 0) & (stage <= most), stage**2, _IMPOSSIBLE)
    reached, came_from = np.where(ends == 0, 0, _IMPOSSIBLE), []
    for _ in range(num_stages):
        longer = np.minimum(reached[begins] + squares, _IMPOSSIBLE)
        best = longer.argmin(axis=0)
        came_from.append(begins[best, ends])
        reached = longer[best, ends]
    boundaries = [len(ends) - 1]
    for before in reversed(came_from):
        boundaries.append(int(before[boundaries[-1]]))
    return [end - start for end, start in pairwise(boundaries)][::-1]


@lru_cache(maxsize=256)
def _partitioned(costs: tuple[float, ...], num_stages: int) -> list[int]:
    return partition(costs, num_stages)


def layer_split(
    layer_s: Sequence[float], num_stages: int, *, embedding_s: float, head_s: float, mtp_s: float = 0.0
) -> list[int]:
    """Return the layers per stage that minimise the slowest stage, for F + B seconds of each single layer.

    >>> layer_split([1.0] * 3 + [2.0] * 5, 4, embedding_s=0.5, head_s=1.5)
    [3, 2, 2, 1]
    """
    if num_stages == 1:
        return [len(layer_s)]
    split = list(_partitioned((embedding_s, *layer_s, mtp_s + head_s), num_stages))
    split[0] -= 1
    split[-1] -= 1
    return split


def counts_of(split: Sequence[int] | Sequence[str]) -> list[int]:
    """`split` has numbers of layers or layout strings.

    >>> counts_of(["Ett", "tttL"])
    [2, 3]
    """
    return [stage.count("t") if isinstance(stage, str) else stage for stage in split]


def why_no_split(split: Split, num_layers: int, num_stages: int) -> str | None:
    """Rules give every stage except the first and the last at least one layer; given numbers may be 0."""
    if isinstance(split, str | MegatronSplit):
        if num_layers < num_stages - 2:
            return f"{num_layers} layers are too few for {num_stages} stages: some would hold nothing"
        return None
    if len(split) != num_stages:
        return f"the split has {len(split)} entries, but there are {num_stages} stages"
    return None


def given_split(split: Sequence[int], num_layers: int, num_stages: int) -> list[int]:
    if len(split) != num_stages:
        raise ConfigError(f"the split has {len(split)} entries, but there are {num_stages} stages")
    if any(layers < 0 for layers in split):
        raise ConfigError(f"the split holds {min(split)}; a stage has 0 layers or more")
    if sum(split) != num_layers:
        raise ConfigError(f"the split has {sum(split)} layers in all, but the model has {num_layers}")
    return list(split)


def split_layers(
    split: Split, num_layers: int, num_stages: int, *, pp: int, balanced: Callable[[], list[int]]
) -> list[int]:
    if reason := why_no_split(split, num_layers, num_stages):
        raise ConfigError(reason)
    if isinstance(split, MegatronSplit):
        return split.layers_per_stage(num_layers, pp=pp, vpp=num_stages // pp)
    if split == "even":
        return even_split(num_layers, num_stages)
    if split in ("auto", "balanced"):
        return balanced()
    return given_split(counts_of(split), num_layers, num_stages)
