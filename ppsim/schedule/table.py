"""The schedule table: which actions each rank runs, in which order. Tables contain no durations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.display import HasRepr, load_function
from ppsim.base.errors import ScheduleError

if TYPE_CHECKING:
    import networkx
    import pandas


NONE = -1  # none: no microbatch, stage, fused group or action


class Op(IntEnum):
    """Kind of an action, named as in torch.distributed.pipelining.

    >>> import ppsim
    >>> [op.name for op in ppsim.Op if op.is_compute]
    ['F', 'B', 'I', 'W']
    """

    IDLE = -1
    F = 0
    B = 1
    I = 2
    W = 3
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    UNSHARD = 8
    RESHARD = 9
    REDUCE_GRAD = 10
    WAIT_SEND_F = 11
    WAIT_SEND_B = 12
    WAIT_REDUCE_GRAD = 13

    @property
    def is_compute(self) -> bool:
        return Op.F <= self <= Op.W

    @property
    def has_microbatch(self) -> bool:
        """False for IDLE and for ops on a whole stage (UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD)."""
        return self.is_compute or self in (
            Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B, Op.WAIT_SEND_F, Op.WAIT_SEND_B,
        )  # fmt: skip


class Action(NamedTuple):
    """One action of the table.

    >>> import ppsim
    >>> str(ppsim.Action(ppsim.Op.F, stage=3, microbatch=0))
    '3F0'
    """

    op: Op
    stage: int
    microbatch: int = NONE

    def __str__(self) -> str:
        if self.op is Op.IDLE:
            return ""
        return f"{self.stage}{self.op.name}{self.microbatch if self.op.has_microbatch else ''}"

    @property
    def matching_send(self) -> "Action":
        """Return the send of a receive: `1SEND_F0` for `2RECV_F0`."""
        sender = self.stage + (-1 if self.op is Op.RECV_F else 1)
        return Action(Op(self.op - 1), sender, self.microbatch)


IDLE = Action(Op.IDLE, NONE)


forward, backward, backward_input, backward_weight = (partial(Action, op) for op in (Op.F, Op.B, Op.I, Op.W))
"""Make an action from stage and microbatch. The previous stage waits for an I; no action waits for a W."""

Cell: TypeAlias = Action | tuple[Action, ...]
"""An action, or a tuple of fused actions whose results are sent together."""


@dataclass(frozen=True, eq=False, repr=False)
class Schedule(HasRepr):
    """An immutable schedule table with one row per rank.

    `op`, `stage`, `microbatch` and `fused` have one entry per action, ordered by rank and execution order; rank r's
    entries are `rank_offsets[r]:rank_offsets[r + 1]`. Idle slots are entries too (`Op.IDLE`), so that a table
    survives a round trip through its file. Entries of one rank with the same `fused` id ≥ 0 form a fused cell.

    The S stages are `num_replicas` (R) chains of S/R stages, each a whole model replica. Chain k starts at stage
    k·S/R and serves the microbatches b with ⌊b·R/m⌋ = k (m: `num_microbatches`). With `num_slices` (K)
    slices per microbatch, `microbatch` holds b·K + slice in token order. A step of `num_rounds` rounds (gradient
    accumulation steps) drains the pipeline after each round; each chain's microbatches are divided among the rounds
    in order.

    Raises `ScheduleError` for columns of different lengths, for fewer than 1 replica or slice, and for rounds that
    do not divide the microbatches. Other errors do not raise here, so that `ppsim.check` can explain them.

    >>> table = Schedule.from_rows([[Action(Op.F, 0, 0), Action(Op.B, 0, 0)]], name="one rank")
    >>> [str(action) for action in table]
    ['0F0', '0B0']
    """

    op: NDArray[np.int8]
    stage: Ints32
    microbatch: Ints32
    fused: Ints32
    rank_offsets: Ints64
    stage_to_rank: Ints32
    num_microbatches: int
    name: str = ""
    num_replicas: int = 1
    num_slices: int = 1
    num_rounds: int = 1

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.op, self.stage, self.microbatch, self.fused)}
        if lengths != {int(self.rank_offsets[-1])}:
            raise ScheduleError(f"the columns of a schedule must have one length, got {sorted(lengths)}")
        if self.num_replicas < 1 or self.num_slices < 1:
            raise ScheduleError(
                f"replicas and slices must be at least 1: got {self.num_replicas} and {self.num_slices}"
            )
        if self.num_rounds < 1 or (
            self.num_rounds > 1 and self.num_microbatches % (self.num_rounds * self.num_replicas)
        ):
            raise ScheduleError(
                f"{self.num_microbatches} microbatches cannot be divided into {self.num_rounds} rounds of "
                f"{self.num_replicas} model replicas"
            )
        for column in (self.op, self.stage, self.microbatch, self.fused, self.rank_offsets, self.stage_to_rank):
            column.flags.writeable = False

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[Cell]],
        *,
        stage_to_rank: Sequence[int] | None = None,
        num_microbatches: int | None = None,
        name: str = "",
        num_replicas: int = 1,
        num_slices: int = 1,
    ) -> "Schedule":
        """Row r of the table is `rows[r]`, a sequence of actions and of tuples of fused actions.

        By default, a stage belongs to the first rank that computes it, and the largest microbatch number is the
        last.

        >>> from ppsim import Action, Op, Schedule
        >>> rows = [[Action(Op.F, 0, 0), Action(Op.B, 0, 0)], [Action(Op.F, 1, 0), Action(Op.B, 1, 0)]]
        >>> Schedule.from_rows(rows).num_stages
        2
        """
        offsets, actions, fused, num_fused = [0], [], [], 0
        for row in rows:
            for cell in row:
                if isinstance(cell, Action):
                    actions.append(cell)
                    fused.append(NONE)
                else:
                    actions.extend(cell)
                    fused.extend([num_fused] * len(cell))
                    num_fused += 1
            offsets.append(len(actions))
        numbers = np.fromiter(chain.from_iterable(actions), dtype=np.int32, count=3 * len(actions))
        op, stage, microbatch = (numbers[column::3].copy() for column in range(3))
        return cls.from_columns(
            op, stage, microbatch, np.array(fused, dtype=np.int32), np.array(offsets),
            stage_to_rank=stage_to_rank, num_microbatches=num_microbatches, name=name,
            num_replicas=num_replicas, num_slices=num_slices,
        )  # fmt: skip

    @classmethod
    def from_columns(
        cls, op: NDArray[Any], stage: NDArray[Any], microbatch: NDArray[Any], fused: NDArray[Any] | None,
        rank_offsets: NDArray[Any],
        *,
        stage_to_rank: Sequence[int] | Ints32 | None = None,
        num_microbatches: int | None = None, num_slices: int = 1,
        **labels: Any,
    ) -> "Schedule":  # fmt: skip
        """Without `fused`, no actions are fused; defaults as in `from_rows`.

        >>> import numpy as np
        >>> columns = [np.array([0, 1], np.int8), *(np.array(two, np.int32) for two in ([0, 0], [0, 0], [-1, -1]))]
        >>> [str(action) for action in Schedule.from_columns(*columns, np.array([0, 2]), name="one rank")]
        ['0F0', '0B0']
        """
        if fused is None:
            fused = np.full(len(op), NONE)
        if stage_to_rank is None:
            stage_to_rank = _placement_of(op, stage, rank_offsets)
        if num_microbatches is None:
            num_microbatches = -(-(int(microbatch.max(initial=NONE)) + 1) // max(num_slices, 1))
        stage, microbatch, fused = (column.astype(np.int32, copy=False) for column in (stage, microbatch, fused))
        return cls(
            op.astype(np.int8, copy=False), stage, microbatch, fused, rank_offsets.astype(np.int64, copy=False),
            np.array(stage_to_rank, dtype=np.int32), num_microbatches, num_slices=num_slices, **labels,
        )  # fmt: skip

    @classmethod
    def outline(cls, stage_to_rank: Sequence[int], *, num_microbatches: int) -> "Schedule":
        """Return a table without actions, for calculations that do not depend on the order.

        >>> Schedule.outline([0, 1, 1, 0], num_microbatches=8).vpp
        2
        """
        rows: list[list[Cell]] = [[] for _ in range(max(stage_to_rank) + 1)]
        return cls.from_rows(rows, stage_to_rank=stage_to_rank, num_microbatches=num_microbatches)

    @property
    def num_ranks(self) -> int:
        return len(self.rank_offsets) - 1

    @property
    def num_stages(self) -> int:
        return len(self.stage_to_rank)

    @property
    def num_model_stages(self) -> int:
        """Length of a chain, S/R."""
        return self.num_stages // self.num_replicas

    @cached_property
    def model_stage(self) -> Ints32:
        return np.arange(self.num_stages, dtype=np.int32) % max(self.num_model_stages, 1)

    @property
    def num_units(self) -> int:
        """Number of values of `microbatch`: microbatches, or all their slices."""
        return self.num_microbatches * self.num_slices

    @cached_property
    def chain_of_unit(self) -> Ints32:
        """Chain that serves each microbatch or slice."""
        microbatch = np.arange(self.num_units, dtype=np.int64) // self.num_slices
        return (microbatch * self.num_replicas // max(self.num_microbatches, 1)).astype(np.int32)

    @cached_property
    def round_of_unit(self) -> Ints32:
        in_chain = self.num_units // self.num_replicas
        units = np.arange(self.num_units, dtype=np.int64)
        return (units % max(in_chain, 1) // max(in_chain // self.num_rounds, 1)).astype(np.int32)

    @property
    def num_actions(self) -> int:
        """Idle slots are included."""
        return len(self.op)

    @cached_property
    def vpp(self) -> int:
        """Largest number of stages per rank."""
        placed = self.stage_to_rank[self.stage_to_rank >= 0]
        return int(np.bincount(placed, minlength=1).max())

    @cached_property
    def rank(self) -> Ints32:
        return np.repeat(np.arange(self.num_ranks, dtype=np.int32), np.diff(self.rank_offsets))

    @cached_property
    def has_communication(self) -> bool:
        """True if there are entries other than F, B, I, W and idle slots."""
        return bool(np.any(self.op > Op.W))

    @cached_property
    def splits_backward(self) -> bool:
        return bool(np.any(self.op == Op.W))

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages on `rank` in ascending order; a stage's index in this list is its chunk.

        >>> import ppsim
        >>> ppsim.build("zbv", pp=4, microbatches=8).stages_of(0)
        [0, 7]
        """
        return list(self._stages.get(rank, ()))

    def entries_of(self, rank: int) -> range:
        """Return the indices of a rank's actions.

        >>> from ppsim import build
        >>> build("1f1b", pp=2, microbatches=4).entries_of(1)
        range(8, 16)
        """
        return range(int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1]))

    @cached_property
    def _stages(self) -> dict[int, list[int]]:
        stages: dict[int, list[int]] = {}
        for stage, rank in enumerate(self.stage_to_rank.tolist()):
            stages.setdefault(rank, []).append(stage)
        return stages

    def __len__(self) -> int:
        return self.num_actions

    @property
    def one_line(self) -> str:
        """One-line summary."""
        counts = {"pp": self.num_ranks, "vpp": self.vpp, "microbatches": self.num_microbatches}
        counts |= {"replicas": self.num_replicas} if self.num_replicas > 1 else {}
        counts |= {"slices": self.num_slices} if self.num_slices > 1 else {}
        counts |= {"rounds": self.num_rounds} if self.num_rounds > 1 else {}
        text = ", ".join(f"{name}={count}" for name, count in counts.items())
        return f"{self.name!r}, {text}, {self.num_actions} actions"

    def __iter__(self) -> Iterator[Action]:
        ops, stages, microbatches = self.op.tolist(), self.stage.tolist(), self.microbatch.tolist()
        for op, stage, microbatch in zip(ops, stages, microbatches, strict=True):
            yield Action(Op(op), stage, microbatch)

    def __getitem__(self, entry: int) -> Action:
        return Action(Op(int(self.op[entry])), int(self.stage[entry]), int(self.microbatch[entry]))

    def __eq__(self, other: object) -> bool:
        """Names may differ."""
        if not isinstance(other, Schedule):
            return NotImplemented
        counts = ("num_microbatches", "num_replicas", "num_slices", "num_rounds")
        return all(getattr(self, name) == getattr(other, name) for name in counts) and all(
            np.array_equal(a, b)
            for a, b in (
                (self.op, other.op), (self.stage, other.stage), (self.microbatch, other.microbatch),
                (_renumbered(self.fused), _renumbered(other.fused)),
                (self.rank_offsets, other.rank_offsets), (self.stage_to_rank, other.stage_to_rank),
            )
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> list[list[Cell]]:
        table: list[list[Cell]] = []
        actions, fused = list(self), self.fused.tolist()
        for begin, end in zip(self.rank_offsets[:-1].tolist(), self.rank_offsets[1:].tolist(), strict=True):
            row: list[Cell] = []
            entry = begin
            while entry < end:
                stop = entry + 1
                if fused[entry] == NONE:
                    row.append(actions[entry])
                else:
                    while stop < end and fused[stop] == fused[entry]:
                        stop += 1
                    row.append(tuple(actions[entry:stop]))
                entry = stop
            table.append(row)
        return table

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per entry, in table order.

        Columns: name (`3F0`, "" for an idle slot), rank, position (index on its rank), op, stage, microbatch (the
        running number of the slice in sliced tables), fused (id of the fused cell, or −1).

        >>> table = Schedule.from_rows([[Action(Op.F, 0, 0), Action(Op.B, 0, 0)]])
        >>> table.to_frame()[["name", "rank", "position", "op"]]
          name  rank  position op
        0  0F0     0         0  F
        1  0B0     0         1  B
        """
        import pandas

        return pandas.DataFrame(
            {
                "name": [str(action) for action in self],
                "rank": self.rank,
                "position": np.arange(len(self)) - self.rank_offsets[self.rank],
                "op": [Op(op).name for op in self.op],
                "stage": self.stage,
                "microbatch": self.microbatch,
                "fused": self.fused,
            }
        )

    def to_networkx(self) -> "networkx.DiGraph[str]":
        """Return the dependencies between actions and transfers as a networkx graph, without shared channels.

        An edge leads from a node to each node that waits for it. Node attributes: number (index in the arrays of a
        timeline), kind (F, B, I, W, SEND_F, SEND_B), rank, stage, microbatch; for a transfer also to_rank. Edge
        attribute: kind, either order (from the previous action on the rank) or message (to or from a transfer).
        Raises `ScheduleError` for a table that cannot run, `MissingExtra` if networkx is not installed.

        >>> import networkx, ppsim
        >>> graph = ppsim.build("1f1b", pp=2, microbatches=2).to_networkx()
        >>> networkx.dag_longest_path(graph)[:4], graph.edges["0F0", "0SEND_F0"]["kind"]
        (['0F0', '0SEND_F0', '1F0', '1B0'], 'message')
        """
        return load_function("ppsim.schedule.networks:network_of_table")(
            self
        )  # by name: that module imports this one

    def compute_only(self) -> "Schedule":
        keep = is_compute(self.op)
        return self if keep.all() else self.select(keep)

    def select(self, keep: NDArray[np.bool_]) -> "Schedule":
        """Keep the entries for which `keep` (one bool per entry) is true.

        >>> import ppsim
        >>> table = ppsim.build("1f1b", pp=2, microbatches=2)
        >>> [str(action) for action in table.select(table.op == ppsim.Op.F)]
        ['0F0', '0F1', '1F0', '1F1']
        """
        counts = np.concatenate(([0], np.cumsum(keep)))
        return self.scaled(keep, counts[self.rank_offsets])

    def scaled(self, entries: NDArray[Any], rank_offsets: Ints64 | None = None) -> "Schedule":
        """Return the table of `entries` in this order, by default with the same rank offsets.

        >>> import ppsim
        >>> table = ppsim.build("gpipe", pp=1, microbatches=2)
        >>> [str(action) for action in table], [str(action) for action in table.scaled([0, 2, 1, 3])]
        (['0F0', '0F1', '0B0', '0B1'], ['0F0', '0B0', '0F1', '0B1'])
        """
        return replace(
            self, op=self.op[entries], stage=self.stage[entries], microbatch=self.microbatch[entries],
            fused=self.fused[entries], rank_offsets=self.rank_offsets if rank_offsets is None else rank_offsets,
        )  # fmt: skip

    def named(self, name: str) -> "Schedule":
        """Return the same table with another name.

        >>> import ppsim
        >>> ppsim.build("1f1b", pp=2, microbatches=2).named("mine").name
        'mine'
        """
        return replace(self, name=name)


def is_compute(op: NDArray[np.int8]) -> NDArray[np.bool_]:
    are_passes: NDArray[np.bool_] = (op >= Op.F) & (op <= Op.W)
    return are_passes


def is_one_of(op: NDArray[np.int8], ops: Iterable[Op]) -> NDArray[np.bool_]:
    are_among: NDArray[np.bool_] = np.logical_or.reduce([op == one for one in ops])
    return are_among


def first_of_cell(schedule: Schedule) -> Ints32:
    entries = np.arange(len(schedule), dtype=np.int32)
    if not (joined := is_joined(schedule)).any():
        return entries
    joined = np.concatenate(([False], joined))
    return np.maximum.accumulate(np.where(joined, np.int32(0), entries))


def last_of_cell(schedule: Schedule) -> Ints32:
    """The results of a cell leave after its last entry."""
    entries = np.arange(len(schedule), dtype=np.int32)
    if not (joined := is_joined(schedule)).any():
        return entries
    joined = np.concatenate((joined, [False]))
    return np.minimum.accumulate(np.where(joined, np.int32(len(schedule)), entries)[::-1])[::-1]


def is_joined(schedule: Schedule) -> NDArray[np.bool_]:
    """Return, for each entry but the last, whether it and the next entry belong to one fused cell."""
    joined: NDArray[np.bool_] = (schedule.fused[1:] != NONE) & (schedule.fused[1:] == schedule.fused[:-1])
    return joined


def _placement_of(op: NDArray[np.int8], stage: Ints32, rank_offsets: Ints64) -> Ints32:
    placement = np.full(int(stage.max(initial=NONE)) + 1, NONE, dtype=np.int32)
    for rank in reversed(range(len(rank_offsets) - 1)):
        here = slice(rank_offsets[rank], rank_offsets[rank + 1])
        placement[stage[here][(op[here] >= Op.F) & (op[here] <= Op.W)]] = rank
    return placement


def _renumbered(fused: Ints32) -> Ints32:
    """Number fused ids in order of appearance."""
    changes = np.flatnonzero(np.diff(fused, prepend=NONE) != 0)
    ids = np.zeros(len(fused), dtype=np.int32)
    ids[changes] = 1
    return np.where(fused >= 0, np.cumsum(ids), NONE).astype(np.int32)


def fused_pairs(schedule: Schedule) -> tuple[Ints64, Ints64]:
    """Return the entries of the forwards and of the backwards.

    >>> import ppsim
    >>> forward, backward = fused_pairs(ppsim.build("combined-1f1b", pp=1, microbatches=3))
    >>> [f"{ppsim.build('combined-1f1b', pp=1, microbatches=3)[entry]}" for entry in (*forward, *backward)]
    ['0F1', '0F2', '0B0', '0B1']
    """
    fused, op = schedule.fused, schedule.op
    size = np.bincount(fused[fused != NONE], minlength=1)
    first = np.flatnonzero((fused[:-1] != NONE) & (fused[:-1] == fused[1:]))
    first = first[size[fused[first]] == 2]
    first = first[np.minimum(op[first], op[first + 1]) == Op.F]
    first = first[np.maximum(op[first], op[first + 1]) == Op.B]
    forward = np.where(op[first] == Op.F, first, first + 1)
    return forward, 2 * first + 1 - forward
