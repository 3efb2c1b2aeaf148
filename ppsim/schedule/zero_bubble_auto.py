"""Zero-bubble schedules fitted to the costs at hand and to a memory cap: ZB-1p, ZB-2p and what lies between.

The procedure is the heuristic of Qi et al. 2024 (arXiv 2401.10241, §3.1) with every cost an entry a stage; its
best run competes with other cheap tables and the best of all wins. The paper writes B for what torch and ppsim
call I. One chunk a rank, and every rank takes each kind of action in microbatch order, which loses nothing
(microbatches are alike); so a row is a word over F, I, W, and a candidate is `kinds`, p words of length 3m.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ppsim.compiling import Engine, run_kernel
from ppsim.errors import ConfigError
from ppsim.schedule import zero_bubble_kernels as kernels
from ppsim.schedule.placement import loop
from ppsim.schedule.table import NONE, Op, Schedule

Criterion = Literal["span", "step"]
Floats: TypeAlias = NDArray[np.float64]
Kinds: TypeAlias = NDArray[np.int8]

_F, _I, _W = 0, 1, 2  # the letters of a word; kernels write the digits
_OPS = np.array([Op.F, Op.I, Op.W], dtype=np.int8)

_PACES = (1.0, 1.25, 1.5, 2.0, 3.0)  # microbatches in flight, in parts of those that cover a round trip
_PARTS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)  # idle time allowed from the start, in parts of the best table's
_NUM_ROUNDS = 6  # of rescheduling by urgency


def zb_auto(
    *,
    num_ranks: int,
    num_microbatches: int,
    forward_s: float | Sequence[float] | Floats,
    backward_input_s: float | Sequence[float] | Floats,
    backward_weight_s: float | Sequence[float] | Floats,
    transfer_s: float | Sequence[float] | Floats = 0.0,
    activation: float | Sequence[float] | Floats = 1.0,
    activation_kept_for_weight: float | Sequence[float] | Floats | None = None,
    cap: float | Sequence[float] | Floats,
    criterion: Criterion = "step",
    engine: Engine = "auto",
) -> Schedule:
    """Return the best zero-bubble table found for these costs that never holds more than `cap` on any rank.

    Costs are seconds, a number for all or one entry a stage (`transfer_s`: one a hop, s to s+1 either way; an
    entry after the last hop is not used). F allocates `activation`; `activation_kept_for_weight` of it stays
    from the end of I to the end of W (None: all of it); `cap` is a number, or one a rank, in the same unit.
    `criterion` is what is minimised: "span", the longest rank from its own first start to its own last end (the
    papers'), or "step", first start to last end of all. Never worse, by it, than the published heuristic, nor
    than zb-h1 and zb-h2 where the cap admits them.

    Raises `ConfigError` for a cap smaller than one activation, naming the smallest feasible one, and for wrong
    costs. Source: arXiv 2401.10241, §3.1; the paper's ZB-1p has a cap of p activations, ZB-2p of 2p.

    >>> seconds = {"forward_s": [3, 5], "backward_input_s": [4, 6], "backward_weight_s": 2}
    >>> print(*zb_auto(num_ranks=2, num_microbatches=3, cap=2, **seconds).rows()[0])
    0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
    """
    problem = _Problem.of(
        num_ranks=num_ranks, num_microbatches=num_microbatches, forward_s=forward_s,
        backward_input_s=backward_input_s, backward_weight_s=backward_weight_s, transfer_s=transfer_s,
        activation=activation, kept=activation_kept_for_weight, cap=cap, criterion=criterion, engine=engine,
    )  # fmt: skip
    return _search(problem).schedule("zb-auto")


def zb_heuristic(
    *,
    num_ranks: int,
    num_microbatches: int,
    forward_s: float | Sequence[float] | Floats,
    backward_input_s: float | Sequence[float] | Floats,
    backward_weight_s: float | Sequence[float] | Floats,
    transfer_s: float | Sequence[float] | Floats = 0.0,
    activation: float | Sequence[float] | Floats = 1.0,
    activation_kept_for_weight: float | Sequence[float] | Floats | None = None,
    cap: float | Sequence[float] | Floats,
    engine: Engine = "auto",
) -> Schedule:
    """Return the table of the published heuristic alone: the best span of its eight runs; as `zb_auto` else.

    With equal stages it takes every decision as the authors' own code does.

    >>> zb_heuristic(num_ranks=2, num_microbatches=4, forward_s=1, backward_input_s=1, backward_weight_s=1, cap=2)
    Schedule('zb-heuristic', pp=2, vpp=1, microbatches=4, 24 actions)
    """
    problem = _Problem.of(
        num_ranks=num_ranks, num_microbatches=num_microbatches, forward_s=forward_s,
        backward_input_s=backward_input_s, backward_weight_s=backward_weight_s, transfer_s=transfer_s,
        activation=activation, kept=activation_kept_for_weight, cap=cap, criterion="span", engine=engine,
    )  # fmt: skip
    return _best(_published(problem), problem, break_ties=False).schedule("zb-heuristic")


@dataclass(frozen=True, eq=False)
class _Problem:
    """The arguments as arrays with one entry a stage, checked; `hop_s[s]` is the transfer between s and s+1."""

    num_ranks: int
    num_microbatches: int
    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    hop_s: Floats
    activation: Floats
    kept: Floats
    cap: Floats
    criterion: Criterion
    engine: Engine

    @classmethod
    def of(
        cls,
        *,
        num_ranks: int,
        num_microbatches: int,
        forward_s: Any,
        backward_input_s: Any,
        backward_weight_s: Any,
        transfer_s: Any,
        activation: Any,
        kept: Any,
        cap: Any,
        criterion: Criterion,
        engine: Engine,
    ) -> "_Problem":
        if num_ranks < 1 or num_microbatches < 1:
            raise ConfigError(
                f"num_ranks and num_microbatches must be at least 1: got {num_ranks} and {num_microbatches}"
            )
        if criterion not in get_args(Criterion):
            raise ConfigError(f"criterion is {criterion!r}; choose one of {', '.join(get_args(Criterion))}")
        problems: list[str] = []

        def per_stage(name: str, given: Any, lengths: tuple[int, ...]) -> Floats:
            values = np.atleast_1d(np.array(given, dtype=np.float64))
            if values.ndim != 1 or len(values) not in (1, *lengths):
                problems.append(f"{name} has {values.size} entries: give one number, or {lengths[0]}")
                return np.zeros(num_ranks)
            bad = values[np.isnan(values) | (values < 0) | (np.isinf(values) & (name != "cap"))]
            if len(bad):
                problems.append(f"{name} holds {bad[0]:g}; costs are finite and not negative")
                return np.zeros(num_ranks)
            if len(values) == 1:
                return np.repeat(values, num_ranks)
            return np.resize(values, num_ranks)  # the entry after the last hop is not used

        whole = (num_ranks,)
        arrays = {
            "forward_s": per_stage("forward_s", forward_s, whole),
            "input_s": per_stage("backward_input_s", backward_input_s, whole),
            "weight_s": per_stage("backward_weight_s", backward_weight_s, whole),
            "hop_s": per_stage("transfer_s", transfer_s, (max(num_ranks - 1, 1), num_ranks)),
            "activation": (allocated := per_stage("activation", activation, whole)),
            "kept": allocated if kept is None else per_stage("activation_kept_for_weight", kept, whole),
            "cap": (limit := per_stage("cap", cap, whole)),
        }
        if not problems and np.any(arrays["kept"] > allocated):
            stage = int(np.argmax(arrays["kept"] > allocated))
            problems.append(
                f"activation_kept_for_weight is {arrays['kept'][stage]:g} on stage {stage}, more than the "
                f"{allocated[stage]:g} activation it is part of"
            )
        if not problems and np.any(limit < allocated):
            rank = int(np.argmax(allocated - limit))
            problems.append(
                f"the cap of {limit[rank]:g} on rank {rank} holds no microbatch: one activation there is "
                f"{allocated[rank]:g} (smallest cap for all ranks: {allocated.max():g})"
            )
        if problems:
            raise ConfigError("zero-bubble costs are wrong: " + "\n  ".join(problems))
        return cls(
            num_ranks=num_ranks, num_microbatches=num_microbatches, criterion=criterion, engine=engine, **arrays
        )

    @property
    def costs(self) -> tuple[Any, ...]:
        """What every kernel takes first."""
        return (
            self.num_ranks, self.num_microbatches, self.forward_s, self.input_s, self.weight_s, self.hop_s,
            self.tolerance_s,
        )  # fmt: skip

    @property
    def limits(self) -> tuple[Any, ...]:
        """What the kernels that mind the memory take next; the cap is widened by less than a byte's rounding."""
        return (self.activation, self.kept, self.cap * (1 + 1e-12))

    @property
    def num_actions(self) -> int:
        return 3 * self.num_ranks * self.num_microbatches

    @property
    def tolerance_s(self) -> float:
        """Times closer than this are one: sums of floats in another order, or in other units, decide alike."""
        return 1e-9 * float(max(self.forward_s.max(), self.input_s.max(), self.weight_s.max(), self.hop_s.max()))

    @property
    def first_start_s(self) -> Floats:
        """When each rank's first forward starts, whatever the table."""
        return np.concatenate(([0.0], np.cumsum(self.forward_s[:-1] + self.hop_s[:-1])))

    @property
    def work_s(self) -> Floats:
        """Each rank's compute time."""
        return self.num_microbatches * (self.forward_s + self.input_s + self.weight_s)

    @property
    def least_s(self) -> float:
        """The criterion of a table in which no rank idles once it has started."""
        start = self.first_start_s if self.criterion == "step" else np.zeros(self.num_ranks)
        return float((self.work_s + start).max())

    def head_s(self, criterion: Criterion) -> Floats:
        """How much less idle time than the luckiest rank each rank can bear, by its work and its start."""
        ends = self.work_s + self.first_start_s if criterion == "step" else self.work_s
        head: Floats = ends - ends.min()
        return head

    def run(self, kernel: Any, *, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
        return run_kernel(
            kernel, inputs=(*self.costs, *inputs), outputs=outputs,
            size=16 * self.num_actions,  # some 16 candidates and more; one choice of engine for all
            engine=self.engine,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Candidate:
    """One table, p·3m letters, and when each rank ends."""

    problem: _Problem
    kinds: Kinds
    end_s: Floats

    @property
    def span_s(self) -> float:
        return float((self.end_s - self.problem.first_start_s).max())

    @property
    def step_s(self) -> float:
        return float(self.end_s.max())

    @property
    def scores(self) -> tuple[float, float]:
        """The criterion first, then the other."""
        return (self.span_s, self.step_s) if self.problem.criterion == "span" else (self.step_s, self.span_s)

    def schedule(self, name: str) -> Schedule:
        p, m = self.problem.num_ranks, self.problem.num_microbatches
        words = self.kinds.reshape(p, 3 * m)
        microbatch = np.zeros((p, 3 * m), dtype=np.int32)
        for kind in (_F, _I, _W):
            here = words == kind
            microbatch[here] = (np.cumsum(here, axis=1, dtype=np.int32) - 1)[here]
        return Schedule(
            op=_OPS[self.kinds],
            stage=np.repeat(np.arange(p, dtype=np.int32), 3 * m),
            microbatch=microbatch.reshape(-1),
            fused=np.full(3 * m * p, NONE, dtype=np.int32),
            rank_offsets=np.arange(p + 1, dtype=np.int64) * (3 * m),
            stage_to_rank=np.array(loop(p, p), dtype=np.int32),
            num_microbatches=m,
            name=name,
        )


def _best(candidates: Iterator[_Candidate], problem: _Problem, *, break_ties: bool = True) -> _Candidate:
    """The smallest criterion; among equals the smaller other criterion, then the first."""
    best = next(candidates)
    for candidate in candidates:
        best = _better(best, candidate, problem.tolerance_s, break_ties=break_ties)
    return best


def _better(first: _Candidate, second: _Candidate, tolerance_s: float, *, break_ties: bool = True) -> _Candidate:
    (score, other), (challenge, other_challenge) = first.scores, second.scores
    if challenge < score - tolerance_s:
        return second
    if break_ties and challenge <= score and other_challenge < other - tolerance_s:
        return second
    return first


def _search(problem: _Problem) -> _Candidate:
    """The best of all generators, then what the best known lets be tried: more idle time, other urgencies."""
    best = _best(chain(_published(problem), _patterns(problem), _listed(problem)), problem)
    head = problem.head_s(problem.criterion)
    for part in _PARTS:  # of the idle time that the worst rank has in the best table
        slack = head.max() + part * max(best.scores[0] - problem.least_s, 0.0)
        best = _best(chain([best], _runs(problem, head, slack=float(slack))), problem)
    for patient in (False, True):
        current = best
        for _ in range(_NUM_ROUNDS):
            current = _rescheduled(current, patient=patient)
            best = _better(best, current, problem.tolerance_s)
    return best


def _published(problem: _Problem) -> Iterator[_Candidate]:
    """The eight runs of the paper, in the order of the authors' code."""
    return _runs(problem, problem.head_s("span"))


def _runs(problem: _Problem, head: Floats, *, slack: float = 0.0) -> Iterator[_Candidate]:
    for keep_first_input_on_time in (True, False):
        for may_skip in (True, False):
            for greedy in (True, False):
                yield _run(problem, head, slack, keep_first_input_on_time, may_skip, greedy)


def _run(
    problem: _Problem, head: Floats, slack: float, keep_first_input_on_time: bool, may_skip: bool, greedy: bool
) -> _Candidate:
    p, cells = problem.num_ranks, problem.num_ranks * problem.num_microbatches
    kinds, end_s = np.zeros(problem.num_actions, dtype=np.int8), np.zeros(p)
    problem.run(
        kernels.heuristic,
        inputs=(*problem.limits, head, slack, keep_first_input_on_time, may_skip, greedy),
        outputs=(kinds, end_s, np.zeros(cells), np.zeros(cells), np.zeros((3 * p), dtype=np.int64),
                 np.zeros(p, dtype=np.int64)),
    )  # fmt: skip
    return _Candidate(problem, kinds, end_s)


def _patterns(problem: _Problem) -> Iterator[_Candidate]:
    """ZB-H1 and ZB-H2, and what is left of them where the cap cuts warm-up or puts fewer weights off."""
    ranks = np.arange(problem.num_ranks)
    activation, kept, cap = problem.limits
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(activation > 0, np.floor(cap / activation), np.inf)
    for pace in (1.0, 1.5, 2.0):
        warm_up = np.minimum(np.ceil(pace * (problem.num_ranks - 1 - ranks)), room - 1)
        left = np.maximum(cap - (warm_up + 1) * activation, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            put_off = np.where(kept > 0, np.floor(left / kept), np.inf)
        put_off = np.minimum(put_off, np.floor(pace * ranks))
        m = problem.num_microbatches
        words = [_word(m, int(min(warm, m)), int(min(off, m))) for warm, off in zip(warm_up, put_off, strict=True)]
        kinds = np.concatenate(words)
        end_s = np.zeros(problem.num_ranks)
        cells = problem.num_ranks * m
        finished = problem.run(
            kernels.timed,
            inputs=(kinds,),
            outputs=(end_s, np.zeros(cells), np.zeros(cells), np.zeros(3 * problem.num_ranks, dtype=np.int64)),
        )
        if finished:
            yield _Candidate(problem, kinds, end_s)


def _word(num_microbatches: int, num_warm_up: int, num_put_off: int) -> Kinds:
    """As in ppsim.schedule.zero_bubble: the warm-up; F, I and the W put off, while there are any; all other W."""
    steps = np.tile(np.array([_F, _I, _W], dtype=np.int8), (num_microbatches, 1))
    there = np.ones(steps.shape, dtype=bool)
    there[num_microbatches - num_warm_up :, _F] = False
    there[:num_put_off, _W] = False
    return np.concatenate([np.full(num_warm_up, _F, np.int8), steps[there], np.full(num_put_off, _W, np.int8)])


def _listed(problem: _Problem) -> Iterator[_Candidate]:
    """List scheduling, I before F before W, with so many microbatches in flight as cover the way there and back."""
    both = problem.forward_s + problem.input_s
    hops = np.concatenate((problem.hop_s[:-1], [0.0]))
    round_trip_s = np.cumsum((both + 2 * hops)[::-1])[::-1]
    cycle_s = max(float((both + problem.weight_s).max()), 1e-300)
    urgency = np.repeat([-2.0, -3.0, -1.0], problem.num_ranks * problem.num_microbatches)  # of F, I, W
    for pace in (*_PACES, np.inf):
        in_flight = np.ceil(pace * np.maximum(round_trip_s / cycle_s, 1.0) - 1e-9)
        for patient in (False, True):
            yield _list_scheduled(problem, urgency, in_flight, patient=patient)


def _rescheduled(candidate: _Candidate, *, patient: bool) -> _Candidate:
    """List scheduling by the latest start that each action may have for the candidate's own criterion to stand.

    Project scheduling calls it justification.
    """
    problem = candidate.problem
    p, cells = problem.num_ranks, problem.num_ranks * problem.num_microbatches
    begin = problem.first_start_s if problem.criterion == "span" else np.zeros(p)
    latest = np.zeros(3 * cells)
    undone = np.full(3 * p, problem.num_microbatches, dtype=np.int64)
    problem.run(
        kernels.latest_starts, inputs=(candidate.kinds,), outputs=(begin + candidate.scores[0], latest, undone)
    )
    assert not undone.any()
    return _list_scheduled(problem, latest, np.full(p, np.inf), patient=patient)


def _list_scheduled(problem: _Problem, urgency: Floats, in_flight: Floats, *, patient: bool) -> _Candidate:
    p, cells = problem.num_ranks, problem.num_ranks * problem.num_microbatches
    kinds, end_s = np.zeros(problem.num_actions, dtype=np.int8), np.zeros(p)
    done = np.zeros(3 * p, dtype=np.int64)
    problem.run(
        kernels.list_schedule,
        inputs=(*problem.limits, urgency, in_flight, patient),
        outputs=(kinds, end_s, np.zeros(cells), np.zeros(cells), done, np.zeros(p)),
    )
    assert (done == problem.num_microbatches).all()
    return _Candidate(problem, kinds, end_s)
