"""The search: each configuration has a lower bound, and only possible winners are simulated.

Configurations that fit rank before those that fit tightly, and the fastest of each come first. A configuration is
excluded if its bound ranks after the last of the requested best, and a configuration found earlier is at least as
fast as the bound with no more memory. So the result is the same as in an exhaustive search.
"""

import pickle
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ppsim.base.arrays import pareto_front
from ppsim.base.display import Drawable, Printable
from ppsim.base.errors import ConfigError, DoesNotFit, ScheduleError
from ppsim.base.files import require_writable, to_json, write_atomically
from ppsim.base.parallel import in_processes
from ppsim.base.units import seconds
from ppsim.projection.changes import change_text
from ppsim.projection.cost import TrainingCost
from ppsim.projection.plan import AUTO
from ppsim.projection.project import project
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from ppsim.simulation.verdict import Word
from ppsim.trainers.write_schedule import trainers_text
from ppsim.tuning.command_line import command_of
from ppsim.tuning.configurations import read_configurations
from ppsim.tuning.evaluate import LAST, EvaluationResult, Front, Rank, evaluate, rank_of, task_of
from ppsim.tuning.infeasible import infeasible_message
from ppsim.tuning.lower_bounds import ConfigurationBounds, bounds_calculator
from ppsim.tuning.refine import Refinement, RefineState, refine
from ppsim.tuning.resume_file import read_state, state_to_json
from ppsim.tuning.space import Configuration, SearchProblem, SearchSpace, configurations, space_for

if TYPE_CHECKING:
    import pandas

_BATCH = 48
"""Minimum batch size; between batches, bounds are compared with the best results."""

_MOST_BATCHES = 50
"""Maximum number of batches, so that batches of a large space keep many workers busy."""

_SEARCHED = 3
"""Number of best configurations for which a schedule is searched, if "auto" is among the schedules."""

Counted: TypeAlias = Callable[[int, int, float | None], None]
"""Progress callback: (decided configurations, all configurations, best iteration so far in seconds or None)."""


@dataclass(frozen=True)
class FoundConfiguration:
    """A configuration that fits; `peak_bytes` is of the rank with the highest peak."""

    candidate: Configuration
    iteration_time_s: float
    peak_bytes: float
    verdict: Word = "fits"


@dataclass(frozen=True, repr=False)
class TuneResult(Printable, Drawable):
    """The best configurations and the Pareto set of iteration time and memory, fastest first.

    In the best, configurations that fit come before those that fit tightly. The best are of the trainer of the
    question, unless none of its configurations fits.

    `simulated` are all that fit and were simulated. `counts` has the number of configurations by outcome,
    `verdicts` the outcomes by key.

    >>> import ppsim
    >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
    >>> found.best[0].candidate.key, len(found.pareto)
    ('tp1 cp1 ep1 dp2 pp1 vpp1 mb8 none 1f1b auto zero3', 4)
    """

    question: SearchProblem
    space: SearchSpace
    best: list[FoundConfiguration]
    pareto: list[FoundConfiguration]
    simulated: list[FoundConfiguration]
    counts: dict[str, int]
    verdicts: dict[str, EvaluationResult]
    seed: int

    @property
    def one_line(self) -> str:
        """One-line description."""
        job, best = (
            self.question.job,
            f"best {self.best[0].candidate.key} with {seconds(self.best[0].iteration_time_s)}",
        )
        return f"{job.model_name} on {self.question.num_gpus} × {job.cluster.device.name}: {best}"

    def tokens_per_s(self, configuration: FoundConfiguration) -> float:
        """Return the tokens per second of a configuration.

        >>> import ppsim
        >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
        >>> round(found.tokens_per_s(found.best[0]), -3)
        601000.0
        """
        return self.question.job.tokens_per_step / configuration.iteration_time_s

    def utilization(self, configuration: FoundConfiguration) -> float:
        """Return the model FLOPs utilization, relative to the dense peak of the dtype.

        >>> import ppsim
        >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
        >>> round(found.utilization(found.best[0]), 3)
        0.242
        """
        job = self.question.job
        peak = job.cluster.device.peak(job.execution.dtype) * self.question.num_gpus
        return job.model.training_flops(job.length, causal=True) * self.tokens_per_s(configuration) / peak

    @property
    def elsewhere(self) -> list[FoundConfiguration]:
        """Faster configurations than the best that only other trainers run."""
        is_elsewhere, best_s = self.question.is_elsewhere, self.best[0].iteration_time_s
        return [one for one in self.simulated if one.iteration_time_s < best_s and is_elsewhere(one.candidate)]

    def rows(self) -> list[dict[str, Any]]:
        answers = dict.fromkeys([*self.best, *self.pareto])
        rows = [
            self.row(configuration)
            | {
                "pareto": configuration in self.pareto,
                "command": command_of(self.question, configuration.candidate),
            }
            for configuration in answers
        ]
        return sorted(rows, key=lambda row: (row["elsewhere"], row["verdict"] != "fits", row["iteration_time_s"]))

    def to_frame(self) -> "pandas.DataFrame":
        """Return the best and the Pareto set as a pandas DataFrame: first what fits, then what fits tightly.

        The fastest of each come first. Columns: tp, cp, ep, dp, pp, vpp, micro_batch, recompute, schedule, split,
        zero, switched (further options that the search changed), runs_in (trainers, as in `ppsim export --to`),
        elsewhere (whether the trainer of the question is none of them), iteration_time_s, tokens_per_s,
        model_flops_utilization, peak_bytes (rank with the highest peak), headroom_bytes (to the memory limit),
        verdict ("fits" or "fits tightly"), gpu_hours_per_step, cost_per_step (None without a price), pareto
        (whether it is in the set), command (of `ppsim project`).

        >>> import ppsim
        >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
        >>> found.to_frame()[["tp", "dp", "zero", "schedule"]].head(2)
           tp  dp  zero schedule
        0   1   2     3     1f1b
        1   1   2     2     1f1b
        """
        import pandas

        return pandas.DataFrame(self.rows())

    def configurations(self) -> "pandas.DataFrame":
        """Return all configurations that fit and were simulated, as `ppsim.plot.pareto_figure` draws them.

        >>> import ppsim
        >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
        >>> found.configurations()["iteration_time_s"].is_monotonic_increasing
        True
        """
        return read_configurations(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Include the outcomes from which a search can resume."""
        return {
            **state_to_json(self.question, self.space, self.seed, self.verdicts),
            "counts": self.counts,
            "best": [self.row(configuration) for configuration in self.best],
            "pareto": [self.row(configuration) for configuration in self.pareto],
        }

    def row(self, configuration: FoundConfiguration) -> dict[str, Any]:
        """Return the sizes and results of a configuration.

        >>> import ppsim
        >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1, 2], pp=[1], micro_batch=[8])
        >>> found.row(found.best[0])["schedule"]
        '1f1b'
        """
        return {
            **vars(configuration.candidate),
            "switched": change_text(configuration.candidate.switches),
            "runs_in": trainers_text(configuration.candidate.schedule, configuration.candidate.recompute),
            "elsewhere": self.question.is_elsewhere(configuration.candidate),
            "iteration_time_s": configuration.iteration_time_s,
            "tokens_per_s": self.tokens_per_s(configuration),
            "model_flops_utilization": self.utilization(configuration),
            "peak_bytes": configuration.peak_bytes,
            "headroom_bytes": self.question.memory_bound_bytes - configuration.peak_bytes,
            "verdict": configuration.verdict,
            **{
                name: cost for name, cost in self.cost(configuration).to_json().items() if name.endswith("per_step")
            },
        }

    def cost(self, configuration: FoundConfiguration) -> TrainingCost:
        """Return the GPU hours and the cost of a step.

        >>> import ppsim
        >>> found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1], pp=[1], micro_batch=[8], price=3600)
        >>> found.cost(found.best[0]).text
        '1.52e-05 GPU hours and 0.0545 per step'
        """
        price = self.question.job.cluster.price_per_gpu_hour
        return TrainingCost(self.question.num_gpus, configuration.iteration_time_s, price)


def tune(  # noqa: PLR0913
    question: SearchProblem,
    space: SearchSpace | None = None,
    *,
    top: int = 10,
    processes: int = 1,
    seed: int = 0,
    search_s: float = 10.0,
    state: str | Path | None = None,
    refined: Collection[Refinement] = (),
    progress: Counted = lambda decided, total, best_s: None,
) -> TuneResult:
    """Return the `top` fastest configurations of a space that fit in memory, and the Pareto set.

    - `processes`: of this machine, −1 for one per core.
    - `state`: a file that is rewritten after every batch; if it exists, the search resumes from it.
    - `search_s`, `seed`: if "auto" is among the schedules, this process searches a schedule for the three best
      configurations, `search_s` seconds each.
    - `refined`: choices that `ppsim.tuning.refine` tries on the best layouts, beyond the space.

    Raises `ConfigError` for a space without configurations and for the state of another question; `DoesNotFit`,
    with the missing bytes and changes that would fit; `MissingExtra` and `RunFailed` as in `ppsim.base.parallel`.

    >>> from ppsim.machine.cluster_files import load_cluster
    >>> from ppsim.model.registry import read_model
    >>> from ppsim.parallel.layout import Layout
    >>> from ppsim.costs.job import Job
    >>> job = Job(
    ...     model=read_model("gpt2"), model_name="gpt2", cluster=load_cluster("dgx-h100"), layout=Layout(),
    ...     global_batch=16,
    ... )
    >>> tune(SearchProblem(job=job, num_gpus=2, memory_limit_bytes=80e9), top=1).best[0].candidate.dp
    2
    """
    if top < 1:
        raise ConfigError(f"top must be at least 1: got {top}")
    space = space or space_for(question)
    if state is not None:
        require_writable(state)
    verdicts = read_state(state, question, space, seed)
    search = _Search(question, space, top, seed, verdicts, processes)
    return _searched(search, search_s, state, refined, progress)


def _searched(
    search: "_Search",
    search_s: float,
    state: str | Path | None,
    refined: Collection[Refinement],
    progress: Counted,
) -> TuneResult:
    def report() -> None:
        if state is not None:
            write_atomically(state, to_json(search.tuned().to_json()))
        progress(search.num_decided, search.num_configurations, search.best_s)

    search.screen()
    progress(0, search.num_configurations, None)
    while batch := search.next_batch():
        front, slowest = search.front, search.slowest
        tasks = [(search.pickled, looks, front, slowest) for looks in batch]
        for verdicts in in_processes(_evaluated, tasks, search.processes):
            search.verdicts.update(verdicts)
        report()
    if refined:
        search.refine(refined)
    if search.best_s is None:
        raise DoesNotFit(
            infeasible_message(search.question, search.space, bounds_calculator(search.pickled), search.all)
        )
    if AUTO in search.space.schedule:
        search.search_tables(search_s, report)
    report()
    return search.tuned()


def _screened(question: bytes, candidates: list[Configuration]) -> list[ConfigurationBounds]:
    outlooks = bounds_calculator(question)
    return [outlooks.of(candidate) for candidate in candidates]


def _evaluated(
    question: bytes, looks: list[ConfigurationBounds], front: Front, slowest: Rank
) -> list[tuple[str, EvaluationResult]]:
    outlooks = bounds_calculator(question)
    return evaluate([task_of(outlooks, look) for look in looks], front=front, slowest=slowest)


class _Search:
    """State of a search."""

    def __init__(
        self,
        question: SearchProblem,
        space: SearchSpace,
        top: int,
        seed: int,
        verdicts: dict[str, EvaluationResult],
        processes: int,
    ) -> None:
        self.processes = processes
        self.question, self.space, self.top, self.seed, self.verdicts = question, space, top, seed, verdicts
        self.pickled = pickle.dumps(question)

    def screen(self) -> None:
        """Set `open` to the configurations that could fit, fastest bound first."""
        possible = configurations(self.question, self.space)
        together: dict[tuple[int, ...], list[Configuration]] = {}
        for one in possible:
            together.setdefault((one.tp, one.cp, one.ep, one.micro_batch), []).append(one)
        groups = list(together.values())
        screened = in_processes(_screened, [(self.pickled, group) for group in groups], self.processes)
        looks = {
            one: look for group, found in zip(groups, screened, strict=True)
            for one, look in zip(group, found, strict=True)
        }  # fmt: skip
        self.all = _distinct(looks[one] for one in possible)
        self.num_configurations = len(self.all)
        self.by_key = {one.candidate.key: one.candidate for one in self.all}
        searched = self.by_key.values() if AUTO in self.space.schedule else ()
        self.known = self.by_key | {(other := replace(one, schedule=AUTO)).key: other for one in searched}
        self.known |= self._refined_before()
        if unknown := next((key for key in self.verdicts if key not in self.known), None):
            raise ConfigError(
                f"the file of --resume has a verdict for '{unknown}', which is not a configuration of this search; "
                "give another file, or remove it"
            )
        limit = self.question.memory_bound_bytes * CAP_ROUNDING
        self.open = sorted(
            (one for one in self.all if one.least_bytes <= limit), key=lambda one: (one.bound_s, one.candidate)
        )
        self.num_too_large = len(self.all) - len(self.open)
        self.batch = max(_BATCH, len(self.open) // _MOST_BATCHES)

    @property
    def found(self) -> list[FoundConfiguration]:
        """The best first."""
        verdict = self.question.verdict
        fitting = [
            FoundConfiguration(
                self.known[key], one.iteration_time_s, one.peak_bytes, verdict(self.known[key], one.peak_bytes)
            )
            for key, one in self.verdicts.items()
            if one.status == "fits"
        ]
        return sorted(fitting, key=lambda one: (self._rank(one), one.peak_bytes, one.candidate))

    def _rank(self, one: FoundConfiguration) -> Rank:
        return rank_of(self.question, one.candidate, one.peak_bytes, one.iteration_time_s)

    @property
    def front(self) -> Front:
        return [(one.iteration_time_s, one.peak_bytes) for one in pareto_of(self.found)]

    @property
    def slowest(self) -> Rank:
        """The place of the last of the best; the last place of all until `top` configurations are found."""
        best = self.found
        return self._rank(best[self.top - 1]) if len(best) >= self.top else LAST

    @property
    def best_s(self) -> float | None:
        best = self.found
        return best[0].iteration_time_s if best else None

    @property
    def num_decided(self) -> int:
        """Evaluated or excluded configurations."""
        return self.num_configurations - len(self.open)

    def next_batch(self) -> list[list[ConfigurationBounds]]:
        """Return groups with the same schedule, longest work first; empty at the end."""
        front, slowest = np.array(self.front).reshape(-1, 2), self.slowest
        waiting = [one for one in self.open if one.candidate.key not in self.verdicts]
        bounds = np.array([[one.bound_s, one.least_bytes] for one in waiting]).reshape(-1, 2)
        is_dominated = np.any(np.all(front[None, :, :] <= bounds[:, None, :], axis=2), axis=1)
        self.open = [
            one
            for one, dominated in zip(waiting, is_dominated.tolist(), strict=True)
            if not (dominated and rank_of(self.question, one.candidate, one.least_bytes, one.bound_s) > slowest)
        ]
        groups: dict[tuple[int, str, int, int], list[ConfigurationBounds]] = {}
        for look in self.open[: self.batch]:
            one = look.candidate
            shape = (one.pp * one.vpp, one.schedule, one.pp, one.dp * one.micro_batch)
            groups.setdefault(shape, []).append(look)

        def work(shape: tuple[int, str, int, int]) -> float:
            num_stages, _, _, sequences = shape
            return len(groups[shape]) * num_stages / sequences

        return [groups[shape] for shape in sorted(groups, key=lambda shape: (-work(shape), shape))]

    def _refined_before(self) -> dict[str, Configuration]:
        """Refinements that an earlier run of this search added, by key."""
        read = map(Configuration.of_key, self.verdicts.keys() - self.known)
        return {each.key: each for each in read if each and each.num_gpus == self.question.num_gpus}

    def refine(self, what: Collection[Refinement]) -> None:
        state = RefineState(bounds_calculator(self.pickled), self.space, self.verdicts, self.known)
        refine(state, self.all, what)

    def search_tables(self, search_s: float, report: Callable[[], None]) -> None:
        shapes = dict.fromkeys(replace(one.candidate, schedule=AUTO) for one in self.found)
        for configuration in list(shapes)[:_SEARCHED]:
            if configuration.key in self.verdicts:
                continue
            self.known[configuration.key] = configuration
            plan = replace(self.question.plan_of(configuration), search_time_s=search_s, seed=self.seed)
            try:
                projected = project(plan)
            except ScheduleError:
                self.verdicts[configuration.key] = EvaluationResult("does not fit", np.inf)
            else:
                peak = float(projected.timeline.memory.peak_bytes.max())
                is_too_large = projected.fits is False
                self.verdicts[configuration.key] = (
                    EvaluationResult("does not fit", peak)
                    if is_too_large
                    else EvaluationResult("fits", peak, projected.iteration_time_s)
                )
            report()

    def tuned(self) -> TuneResult:
        simulated = self.found
        statuses = [verdict.status for verdict in self.verdicts.values()]
        # Dominated configurations count as excluded by bounds. Refinements and found tables are not in the space.
        num_evaluated = sum(key in self.by_key for key in self.verdicts) - statuses.count("dominated")
        counts = {
            "configurations": self.num_configurations + len(self.verdicts.keys() - self.by_key.keys()),
            "too_large_without_a_table": self.num_too_large,
            "too_large_by_their_table": statuses.count("does not fit"),
            "cannot_run": statuses.count("not possible"),
            "simulated": statuses.count("fits"),
            "left_out_by_bounds": self.num_decided - self.num_too_large - num_evaluated,
        }
        own = [one for one in simulated if not self.question.is_elsewhere(one.candidate)] or simulated
        best, front, verdicts = _without_worse_variants(own)[: self.top], pareto_of(simulated), dict(self.verdicts)
        return TuneResult(self.question, self.space, best, front, simulated, counts, verdicts, self.seed)


def _without_worse_variants(ranked: Iterable[FoundConfiguration]) -> list[FoundConfiguration]:
    """Drop configurations whose switched options or searched split neither save time nor memory."""
    smallest: dict[Configuration, float] = {}
    left = []
    for ranking in ranked:
        candidate = ranking.candidate
        split = "auto" if candidate.split == "searched" else candidate.split
        base = replace(candidate, switched=(), split=split)
        if ranking.peak_bytes < smallest.get(base, float("inf")):
            smallest[base] = ranking.peak_bytes
            left.append(ranking)
    return left


def pareto_of(found: Iterable[FoundConfiguration]) -> list[FoundConfiguration]:
    return pareto_front(found, lambda one: (one.iteration_time_s, one.peak_bytes))


def _distinct(outlooks: Iterable[ConfigurationBounds]) -> list[ConfigurationBounds]:
    """Drop even splits that equal the balanced split."""
    seen: dict[tuple[Configuration, tuple[int, ...]], ConfigurationBounds] = {}
    for outlook in outlooks:
        seen.setdefault((replace(outlook.candidate, split="auto"), outlook.counts), outlook)
    return list(seen.values())
