"""What the simulator eats: seconds and bytes per stage, and how transfers behave."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats, Numbers
from ppsim.base.errors import CostsError
from ppsim.base.shown import InBrief
from ppsim.schedule.choices import Channel, Communication, Pairs, Receives
from ppsim.schedule.graph import CHANNELS, COMMUNICATIONS
from ppsim.schedule.lowering import RECEIVES
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.cost_arrays import CostArrays

OVERHEADS = (
    "action_overhead_s", "hop_overhead_s", "overlap_slowdown", "step_overhead_s", "first_pass_s", "last_pass_s",
)  # fmt: skip
"""What `ppsim calibrate` fits."""

_CHOICES = {"communication": tuple(COMMUNICATIONS), "channel": tuple(CHANNELS), "receives": tuple(RECEIVES)}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageCosts(InBrief):
    """The costs of one whole microbatch on each stage, in seconds and bytes.

    Every per-stage field is a number, taken for all stages, or a sequence with one entry a stage; where a table
    holds replicas of the model, one entry a stage of the model, taken for every replica, will do as well.
    `static_bytes` is likewise per rank. Where microbatches differ, every per-stage field but `fused_s` may be a
    matrix of shape [stages, microbatches], one row of which is taken for all stages.

    forward_s, backward_input_s, backward_weight_s
        F, I and W. Both of I and W None: for tables without them, with `backward_s`.
    backward_s
        B, the full backward. None: I + W (a measured B is not quite that).
    fused_s
        F & B, a cell in which a forward is fused with a full backward: a number, one entry per stage of the
        forward, or a square matrix with a row per stage of the forward and a column per stage of the backward.
        None: its parts run one after the other, each as soon as its own input is there. Given, it takes this long
        instead, of which its parts get shares by their own costs, and no fused cell starts before all of its
        inputs are there. A cell that fuses anything else always takes the sum of its parts.
    fused_activation_bytes
        Activations that such a pair holds, at its most, beyond those held before it, in the shapes of `fused_s`.
        None: all that the forward allocates. Less if the backward frees a layer's before the forward allocates the
        next layer's.
    activation_bytes, activation_bytes_kept_for_weight
        What F allocates at its start; what of it stays after I until the end of W (None: all of it). B frees
        everything at its end.
    transfer_s
        The hop between a stage and the next, either way, where they are on different ranks; entry s belongs to
        the hop between stages s and s+1 (the last is not used).
    communication, channel, receives
        How transfers wait: see `ppsim.schedule.graph`.
    action_overhead_s, hop_overhead_s
        Host time before every compute action, and before a transfer that follows its content (in a queue the
        one behind is handed over while the one ahead is under way), on top of the costs.
    message_overhead_s
        What a message between ranks takes of the sending rank, before its next action, and of the receiving rank,
        before the action that takes it, on top of the costs.
    overlap_slowdown
        How much longer compute takes beside a transfer of its rank, as a part of its own time: 0.1 makes an
        action of which half is beside transfers 5 % longer. See `ppsim.simulation.overlap`.
    first_pass_s, last_pass_s
        What the first action of every rank takes beyond its cost (clocks, caches, data), and the last of the rank
        with the first stage.
    variation_s
        Before every action, what makes a step of passes at their medians as long as one of passes that vary is on
        average (`ppsim.simulation.variation`).
    between_rounds_s
        From the last end to the next start of a rank that begins a round (`ppsim.schedule.rounds`): gradients
        reduced and parameters gathered, so far as they are exposed (`ppsim.simulation.step.between_rounds_s`).
    step_overhead_s
        From the last end of a step to the first start of the next: optimizer, gradient norm, final reductions. No
        part of the timeline; the report adds it to the step as iteration time.
    static_bytes
        Per rank: parameters, gradients, optimizer state.
    microbatch_factors
        One entry a microbatch: so many times the seconds, activations and transfers above it takes. None: all are
        alike. What fusing saves is saved on the smaller microbatch of the two.
    slice_time_shares, slice_token_shares
        For a table that cuts microbatches into slices: what of a microbatch's time, and of its activations and
        transfers, each slice takes, one entry a slice that sum to 1 (None: equal shares). What fusing saves
        is saved on the smaller of the two slices. See `ppsim.parallel.sequence_slices` for causal attention.

    Raises `ConfigError` for a negative or non-finite number or an unknown choice, all at once.

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
    microbatch_factors: Numbers | None = None
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
            if not problems and (shares := getattr(self, name)) is not None and not _is_whole(shares):
                problems.append(f"{name} sum to {np.sum(shares):g}; the shares of a microbatch's slices sum to 1")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                problems.append(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if problems:
            raise CostsError("costs are wrong: " + "\n  ".join(problems))

    @property
    def pairs(self) -> Pairs:
        """How a fused cell waits: as one where it has a cost of its own, in parts where it has none."""
        return "parts" if self.fused_s is None else "whole"

    @property
    def differ_by_microbatch(self) -> bool:
        """Whether the costs name each microbatch.

        >>> StageCosts(forward_s=[[1, 2]], backward_input_s=1, backward_weight_s=1).differ_by_microbatch
        True
        """
        return any(np.ndim(getattr(self, name)) == 2 for name in MATRICES) or self.microbatch_factors is not None

    def resolved_for(self, schedule: Schedule) -> CostArrays:
        """Return `resolved` for the stages, ranks, replicas and slices of a table.

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
        """Raise `ConfigError` for costs of full backwards only, where `what` needs those of I and W.

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
        """Return arrays with one entry a stage (a rank for `static_bytes`), B and what W keeps filled in.

        Where I and W are not known, I is the whole backward. Raises `ConfigError` naming every field whose length
        fits neither, and for costs of another number of microbatches than `num_microbatches` (None: any).

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=[1, 2])
        >>> costs.resolved(num_stages=2, num_ranks=2).backward_s
        array([2., 3.])
        """
        problems: list[str] = []
        factors = np.ones(1) if self.microbatch_factors is None else np.atleast_1d(self.microbatch_factors)
        columns = {"microbatch_factors": len(factors)} if self.microbatch_factors is not None else {}
        given, static_bytes = self._given(num_stages, num_ranks, num_replicas, problems)
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
        found = _filled_in(given)
        of_all: dict[str, Any] = {name: _of_all(name, values) for name, values in found.items()}
        return CostArrays(
            **of_all,
            fused_s=None if fused_s is None else fused_s * float(factors.mean()),
            fused_activation_bytes=None if fused_bytes is None else fused_bytes * float(factors.max()),
            static_bytes=static_bytes,
            time_shares=time_shares,
            token_shares=token_shares,
            action_overhead_s=self.action_overhead_s,
            hop_overhead_s=self.hop_overhead_s,
            variation_s=self.variation_s,
            first_pass_s=self.first_pass_s,
            last_pass_s=self.last_pass_s,
            between_rounds_s=self.between_rounds_s,
            by_microbatch={name: values for name, values in found.items() if values.shape[1] > 1},
        )

    def _given(
        self, num_stages: int, num_ranks: int, num_replicas: int, problems: list[str]
    ) -> tuple[dict[str, Floats], Floats]:
        """What is not None of stages, in the shape [stages, microbatches], and the static bytes of ranks."""
        given = {
            name: _entries(name, value, num_stages, "stage", num_stages // num_replicas, problems)
            for name in MATRICES
            if (value := getattr(self, name)) is not None
        }
        return given, _entries("static_bytes", self.static_bytes, num_ranks, "rank", num_ranks, problems)[:, 0]

    def replace(self, **changes: Any) -> "StageCosts":
        """Return the same costs with some fields changed.

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
            return replace(self, **changes)  # which says what is wrong
        costs = copy(self)
        vars(costs).update(changes)
        costs._require_right(changes)
        return costs

    def taking(self, times: float) -> "StageCosts":
        """Return the costs with passes and transfers so many times as long; fixed overheads stay.

        >>> StageCosts(forward_s=1, backward_s=2, transfer_s=0.5).taking(2).forward_s
        2.0
        """
        given = {name: getattr(self, name) for name in _SECONDS}
        longer = {name: np.multiply(value, times) for name, value in given.items() if value is not None}
        return self.replace(**{name: value if value.ndim else float(value) for name, value in longer.items()})

    def with_calls(self, communication: Communication) -> "StageCosts":
        """Return the costs with such communication; at Megatron-LM's calls ranks stand still for a hop's latency.

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
        """Return what torch makes of these costs: on a first stage, I does nothing and W is the whole backward.

        There is no input to differentiate (torch.distributed.pipelining, `backward_one_chunk`); the activation
        stays whole until the end of W. Every replica has a first stage.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.with_torch_first_stage(num_stages=2, num_ranks=2).backward_weight_s
        array([2., 1.])
        """
        return self.on_stages(num_stages=num_stages, num_ranks=num_ranks, num_replicas=num_replicas, in_torch=True)

    def on_stages(
        self, *, num_stages: int, num_ranks: int, num_replicas: int = 1, in_torch: bool = False,
        factor: Floats | None = None,
    ) -> "StageCosts":  # fmt: skip
        """Return the costs with passes `factor` times as long, which has one entry a stage, and as torch runs them.

        `in_torch` is `with_torch_first_stage`, which leaves costs alone that know no I and W.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> costs.on_stages(num_stages=2, num_ranks=2, factor=np.array([1.0, 1.5])).forward_s
        array([1. , 1.5])
        """
        in_torch = in_torch and self.backward_input_s is not None
        if factor is None and not in_torch:
            return self
        problems: list[str] = []
        given, _ = self._given(num_stages, num_ranks, num_replicas, problems)
        fused_s = _pair_matrix("fused_s", self.fused_s, num_stages, num_stages // num_replicas, problems)
        _refuse(problems)
        costs = _filled_in(given)
        found = {name: costs[name] for name in (_PASSES if factor is not None else _PASSES[1:])}
        if factor is not None:
            found = {name: values * factor[:, None] for name, values in found.items()}
        if in_torch:
            is_first = (np.arange(num_stages) % (num_stages // num_replicas) == 0)[:, None]
            found["backward_input_s"] = np.where(is_first, 0.0, found["backward_input_s"])
            found["backward_weight_s"] = np.where(is_first, found["backward_s"], found["backward_weight_s"])
            kept = np.where(is_first, costs["activation_bytes"], costs["kept_bytes"])
            found["activation_bytes_kept_for_weight"] = kept
        changed: dict[str, Any] = {name: as_given(values) for name, values in found.items()}
        if fused_s is not None and factor is not None:
            changed["fused_s"] = fused_s * factor[:, None]  # both stages of a pair are on one rank
        return self.replace(**changed)

    def plain(self, *, num_stages: int, num_ranks: int, num_replicas: int = 1) -> CostArrays:
        """Return `resolved` without what slices share and `microbatch_factors` multiply: as the fields have it.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, microbatch_factors=[1, 3])
        >>> costs.plain(num_stages=2, num_ranks=2).forward_s
        array([1., 1.])
        """
        return self.replace(slice_time_shares=None, slice_token_shares=None, microbatch_factors=None).resolved(
            num_stages=num_stages, num_ranks=num_ranks, num_replicas=num_replicas
        )

    def alike(self) -> "StageCosts":
        """Return the costs of microbatches that are all alike: the mean of seconds, the most of bytes.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, microbatch_factors=[1, 3])
        >>> costs.alike().forward_s
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
"""Fields per stage; each may differ by microbatch as a matrix of shape [stages, microbatches]."""

PAIRS = ("fused_s", "fused_activation_bytes")
"""Fields per pair of a forward and a backward; each may be a square matrix."""

_NUMBERS = (
    *MATRICES, *PAIRS, "static_bytes", *OVERHEADS, "message_overhead_s", "variation_s", "between_rounds_s",
    "microbatch_factors", *_PER_SLICE,
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
)


def _is_same(value: Any, other: Any) -> bool:
    """Whether it is the same object, or as long as anybody can tell: a plain number or word."""
    return value is other or (type(value) is type(other) and type(value) in (float, str) and value == other)


def _refuse(problems: Sequence[str]) -> None:
    """Raise `CostsError` where there are any."""
    if problems:
        raise CostsError("costs do not match the schedule: " + "\n  ".join(problems))


def _is_whole(shares: Any) -> bool:
    return abs(float(np.sum(shares)) - 1) <= 1e-9


def _what_is_wrong(name: str, value: Any) -> str | None:
    if (value is None and name in _OPTIONAL) or (type(value) is float and 0 <= value < np.inf):
        return None
    try:
        array = np.atleast_1d(np.array(value, dtype=np.float64))
    except (TypeError, ValueError):
        array = np.empty(0)
    if name in PAIRS and array.ndim == 2 and array.shape[0] != array.shape[1]:
        return f"{name} is {value!r}; a matrix has a row per forward's stage and a column per backward's stage"
    if array.ndim > 1 + (name in (*MATRICES, *PAIRS)) or not array.size:
        rows = ", or a list of such lists of one length, a row a stage" if name in MATRICES else ""
        return f"{name} is {value!r}; give a number or a list of numbers{rows}"
    bad = array[~np.isfinite(array) | (array < 0)]
    if len(bad):
        return f"{name} holds {bad[0]:g}; costs are finite and not negative"
    return None


def as_given(values: Floats) -> Floats:
    """Return an array of shape [stages, microbatches] as `StageCosts` takes it: of one column, that column."""
    return values[:, 0] if values.shape[1] == 1 else values


def _of_all(name: str, values: Floats) -> Floats:
    """Of all microbatches: the mean of seconds, the most of bytes."""
    if values.shape[1] == 1:
        return values[:, 0]
    found: Floats = values.max(axis=1) if name in _BYTES else values.mean(axis=1)
    return found


def _by_microbatch(value: Numbers) -> Floats:
    """A field in the shape [its entries, microbatches], the latter 1 where it is no matrix."""
    values = np.array(value, dtype=np.float64)
    return values if values.ndim == 2 else values.reshape(-1, 1)


def _entries(name: str, value: Any, length: int, unit: str, in_model: int, problems: list[str]) -> Floats:
    """The values in the shape [length, microbatches], the latter 1 where the field is no matrix."""
    values = _by_microbatch(value)
    if len(values) not in (1, in_model, length):
        of_model = f" or one each of the model's {in_model}" if in_model < length else ""
        problems.append(
            f"{name} has {len(values)} entries, but the schedule has {length} {unit}s "
            f"(give one number, or one a {unit}{of_model})"
        )
        return np.zeros((length, values.shape[1]))
    return values if len(values) == length else np.concatenate([values] * (length // len(values)))


def _pair_matrix(
    name: str, given: Numbers | None, num_stages: int, in_model: int, problems: list[str]
) -> Floats | None:
    """The values of pairs in the shape [stages of forwards, stages of backwards], the same for every replica."""
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
    """The fields of `CostArrays`, with B, I, W and what W keeps where they are not given."""
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
    """What is wrong with how many microbatches the fields name."""
    wanted = num_microbatches or max(columns.values(), default=1)
    return [
        f"{name} has {count} microbatches, but "
        + (f"the schedule has {wanted}" if num_microbatches else f"others have {wanted}")
        for name, count in columns.items()
        if count != wanted
    ]


def _kept_beyond(given: Mapping[str, Floats]) -> list[str]:
    """What is wrong where more is kept for W than there is."""
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
        problems.append(f"{name} has {len(values)} entries, but the schedule has {num_slices} a microbatch")
    return values
