"""Objective of a search, and candidate tables; codes are explained in `ppsim.catalog.search.pipeline`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, get_args

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.base.numba_jit import Engine, run_kernel
from ppsim.catalog.search.anneal import DEADLOCK, AnnealParameters, anneal, empty_timing
from ppsim.catalog.search.pipeline import Codes, Counts, MemoryCaps, Pipeline, pipeline_of
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.bounds.lower import lower_bounds
from ppsim.simulation.bounds.problem import Criterion, Problem
from ppsim.simulation.memory_per_action import memory_changes, summed_by_rank

_OPS = np.array([Op.F, Op.I, Op.W], dtype=np.int8)
_KINDS = np.array([0, -1, 1, 2], dtype=np.int32)  # for F, B, I, W


@dataclass(frozen=True, eq=False)
class SearchTarget:
    """A problem with the criterion to minimise, and the arrays that the kernels need. Every backward is split."""

    problem: Problem
    criterion: Criterion = "step"
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        if self.criterion not in get_args(Criterion):
            raise ConfigError(f"criterion is {self.criterion!r}; choose one of {', '.join(get_args(Criterion))}")

    def minimising(self, criterion: Criterion) -> "SearchTarget":
        return replace(self, criterion=criterion)

    @property
    def num_actions(self) -> int:
        return 3 * self.problem.num_stages * self.problem.num_microbatches

    @cached_property
    def stages(self) -> Counts:
        stages: Counts = np.argsort(self.problem.stage_to_rank, kind="stable")
        return stages

    @cached_property
    def firsts(self) -> Counts:
        counts = np.bincount(self.problem.stage_to_rank, minlength=self.problem.num_ranks)
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    @cached_property
    def row_offsets(self) -> Counts:
        return 3 * self.problem.num_microbatches * self.firsts

    def per_rank(self, per_stage: Floats) -> Floats:
        sums = np.zeros(self.problem.num_ranks)
        np.add.at(sums, self.problem.stage_to_rank, per_stage)
        return sums

    @cached_property
    def least_cap(self) -> Floats:
        """Memory of one microbatch in all stages of a rank."""
        return self.per_rank(self.problem.activation)

    @cached_property
    def memory_changes(self) -> Floats:
        held, kept = np.tile(self.problem.activation, len(_OPS)), np.tile(self.problem.kept, len(_OPS))
        return memory_changes(np.repeat(_OPS, self.problem.num_stages), held, kept)

    @cached_property
    def tolerance_s(self) -> float:
        """Shorter differences are ignored, so that the order of additions and units do not change decisions."""
        problem = self.problem
        longest = (problem.forward_s, problem.input_s, problem.weight_s, problem.hop_s)
        return 1e-9 * max(float(seconds.max(initial=0.0)) for seconds in longest)

    @cached_property
    def first_start_s(self) -> Floats:
        return self.problem.reach_s[self.stages[self.firsts[:-1]]]

    @cached_property
    def handicap_s(self) -> Floats:
        return self.first_start_s if self.criterion == "span" else np.zeros(self.problem.num_ranks)

    @cached_property
    def work_s(self) -> Floats:
        problem = self.problem
        return problem.num_microbatches * self.per_rank(problem.forward_s + problem.input_s + problem.weight_s)

    @property
    def least_s(self) -> float:
        """Score of a table in which no rank idles after its start."""
        return float((self.work_s + self.first_start_s - self.handicap_s).max())

    @cached_property
    def bound_s(self) -> float:
        """Lower bound on the score, increased by slightly more than rounding errors."""
        return lower_bounds(self.problem).of(self.criterion) * (1 + 1e-12) + self.tolerance_s

    @property
    def head_s(self) -> Floats:
        """End of each rank if it never idled, relative to the earliest of these ends."""
        ends = self.work_s + self.first_start_s - self.handicap_s
        head: Floats = ends - ends.min()
        return head

    @cached_property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.problem, self.stages, self.firsts, tolerance_s=self.tolerance_s)

    @cached_property
    def shape_and_times(self) -> bytes:
        problem = self.problem
        times = (problem.stage_to_rank, problem.forward_s, problem.input_s, problem.weight_s, problem.hop_s)
        return b"".join([str(problem.num_microbatches).encode(), *(array.tobytes() for array in times)])

    @cached_property
    def memory(self) -> MemoryCaps:
        problem = self.problem
        return MemoryCaps(problem.activation, problem.kept, self.memory_changes, problem.cap)

    def run(
        self, kernel: Any, *, inputs: tuple[Any, ...] = (), outputs: tuple[Any, ...] = (), times: int = 1
    ) -> Any:
        """`times` estimates how often the kernel visits every action."""
        size = times * self.num_actions
        return run_kernel(kernel, inputs=(self.pipeline, *inputs), outputs=outputs, size=size, engine=self.engine)

    def timed(self, order: Codes) -> "Candidate | None":
        """Start each action as early as possible; None if the order deadlocks."""
        timing, none = empty_timing(self.pipeline), np.zeros(0, dtype=np.int64)
        rules = AnnealParameters(self.handicap_s, bound_s=0.0, heat_s=0.0, num_moves=0, reach=0)
        criterion_s = self.run(anneal, inputs=(self.memory, rules), outputs=(none, order, order, timing, none))
        return Candidate(self, order, timing.now_s) if criterion_s < DEADLOCK else None

    def order_of(self, schedule: Schedule) -> Codes:
        """The table must be compute-only, with split backwards in microbatch order."""
        codes: Codes = _KINDS[schedule.op] * np.int32(self.problem.num_stages) + schedule.stage
        return codes


@dataclass(frozen=True, eq=False)
class Candidate:
    """A table: the codes of all rows, and the end of each rank."""

    target: SearchTarget
    order: Codes
    end_s: Floats

    @cached_property
    def score_s(self) -> float:
        return float((self.end_s - self.target.handicap_s).max())

    @property
    def is_optimal(self) -> bool:
        return self.score_s <= self.target.bound_s

    @property
    def other_score_s(self) -> float:
        other = self.target.minimising("span" if self.target.criterion == "step" else "step")
        return float((self.end_s - other.handicap_s).max())

    @property
    def fits(self) -> bool:
        rows = self.target.row_offsets
        held = summed_by_rank(self.target.memory_changes[self.order], rows)
        return bool((np.maximum.reduceat(held, rows[:-1]) <= self.target.problem.cap).all())

    @property
    def passes(self) -> Codes:
        return self.order[self.order < 2 * self.target.problem.num_stages]

    def schedule(self, name: str) -> Schedule:
        problem = self.target.problem
        microbatch = np.zeros(len(self.order), dtype=np.int32)
        narrow = np.min_scalar_type(len(_KINDS) * problem.num_stages)  # numpy radix-sorts 16-bit integers
        by_code = np.argsort(self.order.astype(narrow), kind="stable")
        microbatch[by_code] = np.arange(len(self.order)) % problem.num_microbatches
        return Schedule.from_columns(
            _OPS[self.order // problem.num_stages], self.order % problem.num_stages, microbatch, None,
            self.target.row_offsets.copy(), stage_to_rank=problem.stage_to_rank,
            num_microbatches=problem.num_microbatches, name=name,
        )  # fmt: skip


def better(first: Candidate, second: Candidate) -> Candidate:
    """The lower score wins; ties go to the lower score by the other criterion, then to the first."""
    tolerance_s = first.target.tolerance_s
    if second.score_s < first.score_s - tolerance_s:
        return second
    if second.score_s <= first.score_s and second.other_score_s < first.other_score_s - tolerance_s:
        return second
    return first


def best_of(candidates: Iterable[Candidate]) -> Candidate:
    return reduce(better, candidates)
