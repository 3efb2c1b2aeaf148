"""Input of the simulator: seconds and bytes per stage, and properties of transfers."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats, Numbers
from ppsim.base.display import HasRepr
from ppsim.base.errors import CostsError
from ppsim.schedule.graph import CHANNELS, COMMUNICATIONS, EventGraph, build_graph
from ppsim.schedule.lowering import RECEIVES
from ppsim.schedule.option_types import Channel, Communication, Pairs, Receives
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.cost_arrays import CostArrays

OVERHEADS = (
    "action_overhead_s", "hop_overhead_s", "overlap_slowdown", "step_overhead_s", "first_pass_s", "last_pass_s",
)  # fmt: skip
"""Fields that `ppsim calibrate` fits."""

_CHOICES = {"communication": tuple(COMMUNICATIONS), "channel": tuple(CHANNELS), "receives": tuple(RECEIVES)}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageCosts(HasRepr):
    """Costs of one whole microbatch on each stage, in seconds and bytes.

    A per-stage field is a number or has one entry per stage, either of the table or of one model replica. If
    microbatches differ, per-stage fields except `fused_s` can be matrices of shape [stages, microbatches] or [1,
    microbatches].

    forward_s, backward_input_s, backward_weight_s, backward_s
        F, I, W and B (full backward; None: I + W). With `backward_s`, I and W are needed only for tables that have
        them.
    fused_s
        Fused forward and full backward: a number, one entry per stage of the forward, or a matrix [stages of
        forwards, stages of backwards]. The pair starts when all its inputs have arrived. If this is None, its parts
        run one after the other, each as soon as its own input has arrived. Other fused actions always take the sum
        of their parts.
    fused_activation_bytes
        Highest additional memory during such a pair (None: the activations of the forward).
    activation_bytes, activation_bytes_kept_for_weight
        Bytes that F allocates at its start, and the part that remains from I to the end of W (None: all).
    transfer_s
        P2P transfer between stages s and s+1 on different ranks, in either direction.
    communication
        `overlap`; `blocking`: the rank waits during transfers; `megatron`, `megatron-no-overlap`: calls of
        Megatron-LM's 1F1B loops.
    channel
        Transfers that share a queue: `ideal` none, `edge` directed pair of ranks, `pair` pair of ranks, `direction`
        downstream and upstream of a rank, `rank` all of a rank.
    receives
        Time of posting receives: `torch` one action ahead, `deferred` just before use, `ordered` in the sender's
        order.
    action_overhead_s, hop_overhead_s
        Host time before every compute action, and before a transfer that does not wait in a queue.
    message_overhead_s
        Time per message between ranks: on the sender before its next action, and on the receiver before the action
        that needs the message.
    overlap_slowdown
        Relative slowdown of compute that overlaps with a transfer of its rank.
    first_pass_s, last_pass_s
        Extra time of the first action of every rank (clocks, caches, data), and of the last action of the rank with
        the first stage.
    variation_s
        Time before every action that represents varying action times (set by projections).
    between_rounds_s
        Exposed gradient reduction and parameter all-gather before an accumulation round (set by projections).
    step_overhead_s
        Time between the timelines of two steps: optimizer, gradient norm, final reductions.
    static_bytes
        Per rank: parameters, gradients, optimizer state.
    update_bytes
        Per rank: bytes of the optimizer step beyond `static_bytes`, when there are no activations.
    microbatch_factors
        One multiplier per microbatch on seconds, activations and transfers (None: all 1).
    slow_links
        Rows [sending rank, receiving rank, s, s, s]: extra seconds of each transfer on the link, which the next
        transfer waits for; extra latency, which it does not wait for; seconds for which the sending rank blocks
        before the transfer, added to the action (None: no slow link).
    slice_time_shares, slice_token_shares
        Fraction of the time, and of activations and transfers, per slice of a microbatch (None: equal shares). The
        time saved by fusing scales with the smaller slice or microbatch of a pair.

    Raises `ConfigError` that lists all wrong fields.

    >>> costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=[0.5, 0.7])
    >>> costs.resolved(num_stages=2, num_ranks=2).backward_s
    array([1.5, 1.7])
    >>> longer = costs.replace(microbatch_factors=[1, 3]).resolved(num_stages=2, num_ranks=2)
    >>> longer.values("forward_s")
    array([[1., 3.],
           [1., 3.]])
    """

    forward_s: Numbers
    backward_input_s: Numbers | None = None
    backward_weight_s: Numbers | None = None
    backward_s: Numbers | None = None
    fused_s: Numbers | None = None
    fused_activation_bytes: Numbers | None = None
    activation_bytes: Numbers = 0.0
    activation_bytes_kept_for_weight: Numbers | None = None
    transfer_s: Numbers = 0.0
    communication: Communication = "overlap"
    channel: Channel = "ideal"
    receives: Receives = "torch"
    action_overhead_s: float = 0.0
    hop_overhead_s: float = 0.0
    message_overhead_s: float = 0.0
    overlap_slowdown: float = 0.0
    step_overhead_s: float = 0.0
    first_pass_s: float = 0.0
    last_pass_s: float = 0.0
    variation_s: float = 0.0
    between_rounds_s: float = 0.0
    static_bytes: Numbers = 0.0
    update_bytes: Numbers = 0.0
    microbatch_factors: Numbers | None = None
    slow_links: Numbers | None = None
    slice_time_shares: Numbers | None = None
    slice_token_shares: Numbers | None = None

    def __post_init__(self) -> None:
        self._require_right(_NUMBERS)

    def _require_right(self, changed: Collection[str]) -> None:
        problems = [
            problem
            for name in _NUMBERS
            if name in changed and (problem := _what_is_wrong(name, getattr(self, name)))
        ]
        missing = [name for name in _SPLIT if getattr(self, name) is None]
        if missing and (len(missing) == 1 or self.backward_s is None):
            problems += [f"{name}: missing (only backward_s can stand for both of I and W)" for name in missing]
        for name in _PER_SLICE:
            if not problems and (shares := getattr(self, name)) is not None and abs(np.sum(shares) - 1) > 1e-9:
                problems.append(f"{name} sum to {np.sum(shares):g}; the shares of a microbatch's slices sum to 1")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                problems.append(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if problems:
            raise CostsError("costs are wrong: " + "\n  ".join(problems))

    @property
    def pairs(self) -> Pairs:
        """How a fused cell waits: "whole" if it has its own cost, else "parts"."""
        return "parts" if self.fused_s is None else "whole"

    def graph(self, schedule: Schedule) -> EventGraph:
        """Return the event graph of a table with the communication, channel, receives and pairs of these costs.

        The times of slow links are from a recorded run. They include the wait for receives.

        >>> from ppsim import build
        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.graph(build("1f1b", pp=2, microbatches=2)).num_transfers
        4
        """
        return build_graph(
            schedule, communication=self.communication, channel=self.channel, receives=self.receives,
            pairs=self.pairs, waits_for_receives=self.slow_links is None,
        )  # fmt: skip

    @property
    def differ_by_microbatch(self) -> bool:
        """True if the costs differ by microbatch.

        >>> StageCosts(forward_s=[[1, 2]], backward_input_s=1, backward_weight_s=1).differ_by_microbatch
        True
        """
        return any(np.ndim(getattr(self, name)) == 2 for name in MATRICES) or self.microbatch_factors is not None

    def resolved_for(self, schedule: Schedule) -> CostArrays:
        """Return `resolved` for the dimensions of a table.

        >>> import ppsim
        >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.resolved_for(ppsim.build("1f1b", pp=2, microbatches=2)).backward_s
        array([2., 2.])
        """
        if self.backward_input_s is None:
            split = [np.flatnonzero(schedule.op == op) for op in (Op.I, Op.W)]
            if named := [str(schedule[int(entries[0])]) for entries in split if len(entries)]:
                self.require_parts(" and ".join(named))
        return self.resolved(
            num_stages=schedule.num_stages,
            num_ranks=schedule.num_ranks,
            num_replicas=schedule.num_replicas,
            num_slices=schedule.num_slices,
            num_microbatches=schedule.num_microbatches,
        )

    def require_parts(self, what: str) -> None:
        """Raise `ConfigError` if the costs have only full backwards.

        >>> StageCosts(forward_s=1, backward_input_s=None, backward_weight_s=None, backward_s=2).require_parts("T")
        Traceback (most recent call last):
        ppsim.base.errors.CostsError: costs lack backward_input_s and backward_weight_s, which T need
        """
        if self.backward_input_s is None:
            raise CostsError(f"costs lack backward_input_s and backward_weight_s, which {what} need")

    def resolved(
        self,
        *,
        num_stages: int,
        num_ranks: int,
        num_replicas: int = 1,
        num_slices: int = 1,
        num_microbatches: int | None = None,
    ) -> CostArrays:
        """Return arrays with one entry per stage and defaults filled in; without I and W, I is the whole backward.

        Raises `ConfigError` with every field of wrong length, or for another number of microbatches (None: any).

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=[1, 2])
        >>> costs.resolved(num_stages=2, num_ranks=2).backward_s
        array([2., 3.])
        """
        problems: list[str] = []
        factors = np.ones(1) if self.microbatch_factors is None else np.atleast_1d(self.microbatch_factors)
        columns = {"microbatch_factors": len(factors)} if self.microbatch_factors is not None else {}
        given = self._given(num_stages, num_replicas, problems)
        of_ranks: dict[str, Any] = {
            name: _entries(name, getattr(self, name), num_ranks, "rank", num_ranks, problems)[:, 0]
            for name in _PER_RANK
        }
        columns |= {name: values.shape[1] for name, values in given.items() if np.ndim(getattr(self, name)) == 2}
        time_shares, token_shares = (
            _shares(name, getattr(self, name), num_slices, problems) for name in _PER_SLICE
        )
        problems += _wrong_columns(columns, num_microbatches)
        if not problems:
            if self.microbatch_factors is not None:
                given = {name: values * factors for name, values in given.items()}
            problems += _kept_beyond(given)
        shape = num_stages, num_stages // num_replicas
        fused_s = _pair_matrix("fused_s", self.fused_s, *shape, problems)
        fused_bytes = _pair_matrix("fused_activation_bytes", self.fused_activation_bytes, *shape, problems)
        _refuse(problems)
        filled = _filled_in(given)
        of_all: dict[str, Any] = {name: _of_all(name, values) for name, values in filled.items()}
        of_all |= {name: getattr(self, name) for name in _OF_ALL_STAGES}
        return CostArrays(
            **of_all,
            fused_s=None if fused_s is None else fused_s * float(factors.mean()),
            fused_activation_bytes=None if fused_bytes is None else fused_bytes * float(factors.max()),
            **of_ranks,
            time_shares=time_shares,
            token_shares=token_shares,
            by_microbatch={name: values for name, values in filled.items() if values.shape[1] > 1},
        )

    def _given(self, num_stages: int, num_replicas: int, problems: list[str]) -> dict[str, Floats]:
        return {
            name: _entries(name, value, num_stages, "stage", num_stages // num_replicas, problems)
            for name in MATRICES
            if (value := getattr(self, name)) is not None
        }

    def replace(self, **changes: Any) -> "StageCosts":
        """Return the costs with some fields changed.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.replace(transfer_s=0.1).transfer_s
        0.1
        """
        changes = {
            name: value for name, value in changes.items() if not _is_same(value, getattr(self, name, changes))
        }
        if not changes:
            return self
        if changes.keys() - vars(self).keys():
            return replace(self, **changes)  # raises an error for unknown fields
        costs = copy(self)
        vars(costs).update(changes)
        costs._require_right(changes)
        return costs

    def scaled(self, times: float) -> "StageCosts":
        """Multiply all actions and transfers by `times`; fixed overheads do not change.

        >>> StageCosts(forward_s=1, backward_s=2, transfer_s=0.5).scaled(2).forward_s
        2.0
        """
        given = {name: getattr(self, name) for name in _SECONDS}
        longer = {name: np.multiply(value, times) for name, value in given.items() if value is not None}
        return self.replace(**{name: value if value.ndim else float(value) for name, value in longer.items()})

    def with_calls(self, communication: Communication) -> "StageCosts":
        """Set `communication`; Megatron-LM's calls block for `hop_overhead_s`, which moves into `transfer_s`.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, hop_overhead_s=0.1)
        >>> costs.with_calls("megatron").transfer_s
        0.1
        """
        if not communication.startswith("megatron"):
            return self.replace(communication=communication)
        longer = np.add(self.transfer_s, self.hop_overhead_s)
        transfer_s = longer if longer.ndim else float(longer)
        return self.replace(communication=communication, transfer_s=transfer_s, hop_overhead_s=0.0)

    def with_torch_first_stage(self, *, num_stages: int, num_ranks: int, num_replicas: int = 1) -> "StageCosts":
        """Return the costs as torch runs them: on a first stage, I does nothing and W is the whole backward.

        The first stage has no input to differentiate (torch.distributed.pipelining, `backward_one_chunk`).

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.with_torch_first_stage(num_stages=2, num_ranks=2).backward_weight_s
        array([2., 1.])
        """
        return self.on_stages(num_stages=num_stages, num_ranks=num_ranks, num_replicas=num_replicas, in_torch=True)

    def on_stages(
        self, *, num_stages: int, num_ranks: int, num_replicas: int = 1, in_torch: bool = False,
        factor: Floats | None = None,
    ) -> "StageCosts":  # fmt: skip
        """Multiply the actions of each stage by its entry of `factor`; `in_torch` applies `with_torch_first_stage`.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.on_stages(num_stages=2, num_ranks=2, factor=np.array([1.0, 1.5])).forward_s
        array([1. , 1.5])
        """
        in_torch = in_torch and self.backward_input_s is not None
        if factor is None and not in_torch:
            return self
        problems: list[str] = []
        given = self._given(num_stages, num_replicas, problems)
        fused_s = _pair_matrix("fused_s", self.fused_s, num_stages, num_stages // num_replicas, problems)
        _refuse(problems)
        costs = _filled_in(given)
        passes = {name: costs[name] for name in (_PASSES if factor is not None else _PASSES[1:])}
        if factor is not None:
            passes = {name: values * factor[:, None] for name, values in passes.items()}
        if in_torch:
            is_first = (np.arange(num_stages) % (num_stages // num_replicas) == 0)[:, None]
            passes["backward_input_s"] = np.where(is_first, 0.0, passes["backward_input_s"])
            passes["backward_weight_s"] = np.where(is_first, passes["backward_s"], passes["backward_weight_s"])
            kept = np.where(is_first, costs["activation_bytes"], costs["kept_bytes"])
            passes["activation_bytes_kept_for_weight"] = kept
        changed: dict[str, Any] = {
            name: values[:, 0] if values.shape[1] == 1 else values for name, values in passes.items()
        }
        if fused_s is not None and factor is not None:
            changed["fused_s"] = fused_s * factor[:, None]  # both stages of a pair are on one rank
        return self.replace(**changed)

    def plain(self, *, num_stages: int, num_ranks: int, num_replicas: int = 1) -> CostArrays:
        """Return `resolved` without slice shares and `microbatch_factors`.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, microbatch_factors=[1, 3])
        >>> costs.plain(num_stages=2, num_ranks=2).forward_s
        array([1., 1.])
        """
        return self.replace(slice_time_shares=None, slice_token_shares=None, microbatch_factors=None).resolved(
            num_stages=num_stages, num_ranks=num_ranks, num_replicas=num_replicas
        )

    def with_equal_microbatches(self) -> "StageCosts":
        """Replace the microbatches' seconds by their mean and their bytes by the maximum.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, microbatch_factors=[1, 3])
        >>> costs.with_equal_microbatches().forward_s
        array([2.])
        """
        if not self.differ_by_microbatch:
            return self
        factors = np.atleast_1d(1.0 if self.microbatch_factors is None else self.microbatch_factors)

        def of_all(name: str) -> Numbers | None:
            given = getattr(self, name)
            if given is None:
                return None
            return _of_all(name, _by_microbatch(given) * factors)

        pairs = {
            name: np.multiply(value, factor)
            for name, factor in zip(PAIRS, (factors.mean(), factors.max()), strict=True)
            if (value := getattr(self, name)) is not None
        }
        return self.replace(microbatch_factors=None, **pairs, **{name: of_all(name) for name in MATRICES})


_PASSES = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
_PER_SLICE = ("slice_time_shares", "slice_token_shares")
MATRICES = (
    "forward_s", "backward_input_s", "backward_weight_s", "backward_s", "activation_bytes",
    "activation_bytes_kept_for_weight", "transfer_s",
)  # fmt: skip
"""Fields per stage; each may be a matrix of shape [stages, microbatches]."""

PAIRS = ("fused_s", "fused_activation_bytes")
"""Fields per forward-backward pair; each may be a square matrix."""

_OF_ALL_STAGES = (
    "action_overhead_s", "hop_overhead_s", "variation_s", "first_pass_s", "last_pass_s", "between_rounds_s",
    "slow_links",
)  # fmt: skip
_LINK_COLUMNS = 5
_PER_RANK = ("static_bytes", "update_bytes")

_NUMBERS = (
    *MATRICES, *PAIRS, *_PER_RANK, *OVERHEADS, "message_overhead_s", "variation_s", "between_rounds_s",
    "microbatch_factors", "slow_links", *_PER_SLICE,
)  # fmt: skip
_SECONDS = ("forward_s", "backward_input_s", "backward_weight_s", "backward_s", "fused_s", "transfer_s")
_BYTES = ("activation_bytes", "activation_bytes_kept_for_weight", "kept_bytes")
_SPLIT = ("backward_input_s", "backward_weight_s")
_OPTIONAL = (
    *_SPLIT,
    "backward_s",
    *PAIRS,
    "activation_bytes_kept_for_weight",
    *_PER_SLICE,
    "microbatch_factors",
    "slow_links",
)


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and type(value) in (float, str) and value == other)


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise CostsError("costs do not match the schedule: " + "\n  ".join(problems))


def _what_is_wrong(name: str, value: Any) -> str | None:
    if (value is None and name in _OPTIONAL) or (type(value) is float and 0 <= value < np.inf):
        return None
    try:
        array = np.atleast_1d(np.array(value, dtype=np.float64))
    except (TypeError, ValueError):
        array = np.empty(0)
    if name in PAIRS and array.ndim == 2 and array.shape[0] != array.shape[1]:
        return f"{name} is {value!r}; a matrix has a row per forward's stage and a column per backward's stage"
    if name == "slow_links" and (array.ndim != 2 or array.shape[1] != _LINK_COLUMNS):
        return f"{name} is {value!r}; give rows of two ranks and three times"
    if array.ndim > 1 + (name in (*MATRICES, *PAIRS, "slow_links")) or not array.size:
        rows = ", or a list of such lists of one length, a row per stage" if name in MATRICES else ""
        return f"{name} is {value!r}; give a number or a list of numbers{rows}"
    bad = array[~np.isfinite(array) | (array < 0)]
    if len(bad):
        return f"{name} holds {bad[0]:g}; costs are finite and not negative"
    return None


def _of_all(name: str, values: Floats) -> Floats:
    if values.shape[1] == 1:
        return values[:, 0]
    means: Floats = values.max(axis=1) if name in _BYTES else values.mean(axis=1)
    return means


def _by_microbatch(value: Numbers) -> Floats:
    """Return an array [entries, microbatches]."""
    values = np.array(value, dtype=np.float64)
    return values if values.ndim == 2 else values.reshape(-1, 1)


def _entries(name: str, value: Any, length: int, unit: str, in_model: int, problems: list[str]) -> Floats:
    """Return an array [length, microbatches]."""
    values = _by_microbatch(value)
    if len(values) not in (1, in_model, length):
        of_model = f" or one each of the model's {in_model}" if in_model < length else ""
        problems.append(
            f"{name} has {len(values)} entries, but the schedule has {length} {unit}s "
            f"(give one number, or one per {unit}{of_model})"
        )
        return np.zeros((length, values.shape[1]))
    return values if len(values) == length else np.concatenate([values] * (length // len(values)))


def _pair_matrix(
    name: str, given: Numbers | None, num_stages: int, in_model: int, problems: list[str]
) -> Floats | None:
    if given is None:
        return None
    values = np.array(given, dtype=np.float64)
    if values.ndim < 2:
        rows = _entries(name, given, num_stages, "stage", in_model, problems)
        return np.repeat(rows[:, :1], num_stages, axis=1)
    if len(values) not in (in_model, num_stages):
        problems.append(f"{name} has {len(values)} rows, but the schedule has {num_stages} stages")
        return np.zeros((num_stages, num_stages))
    repeats = num_stages // len(values)
    return np.tile(values, (repeats, repeats))


def _filled_in(given: Mapping[str, Floats]) -> dict[str, Floats]:
    activation, input_s = given["activation_bytes"], given.get("backward_input_s", given.get("backward_s"))
    assert input_s is not None, "costs have I or B"
    weight_s = given.get("backward_weight_s", np.zeros((len(input_s), 1)))
    return {
        "forward_s": given["forward_s"],
        "backward_s": given.get("backward_s", input_s + weight_s),
        "backward_input_s": input_s,
        "backward_weight_s": weight_s,
        "activation_bytes": activation,
        "kept_bytes": given.get("activation_bytes_kept_for_weight", activation),
        "transfer_s": given["transfer_s"],
    }


def _wrong_columns(columns: Mapping[str, int], num_microbatches: int | None) -> list[str]:
    wanted = num_microbatches or max(columns.values(), default=1)
    return [
        f"{name} has {count} microbatches, but "
        + (f"the schedule has {wanted}" if num_microbatches else f"others have {wanted}")
        for name, count in columns.items()
        if count != wanted
    ]


def _kept_beyond(given: Mapping[str, Floats]) -> list[str]:
    activation = given["activation_bytes"]
    kept = given.get("activation_bytes_kept_for_weight", activation)
    if not (kept > activation).any():
        return []
    kept, activation = np.broadcast_arrays(kept, activation)
    stage, column = np.unravel_index(int(np.argmax(kept > activation)), kept.shape)
    return [
        f"activation_bytes_kept_for_weight is {kept[stage, column]:g} on stage {stage}, more than the "
        f"{activation[stage, column]:g} activation_bytes it is part of"
    ]


def _shares(name: str, value: Any, num_slices: int, problems: list[str]) -> Floats:
    if value is None:
        return np.full(num_slices, 1 / num_slices)
    values = np.atleast_1d(np.array(value, dtype=np.float64))
    if len(values) != num_slices:
        problems.append(f"{name} has {len(values)} entries, but the schedule has {num_slices} per microbatch")
    return values
