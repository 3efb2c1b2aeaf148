"""Gaps of schedules to the closed bounds, and to optima that CP-SAT proves.

python benchmarks/certificates.py --cases 200   (needs the extra dev)
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from published_tables import read

from ppsim.catalog.search.best_table import best_table, tables_without_end
from ppsim.catalog.search.target import SearchTarget
from ppsim.schedule.placement import loop, v_shape
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.lower import lower_bounds
from ppsim.simulation.bounds.problem import Criterion, Problem
from tests.exact import criterion_value_s, optimal

CRITERIA: tuple[Criterion, ...] = ("step", "span")
TIGHT = 1e-9

# A heuristic makes a table for a problem; it may stop at the goal, a lower bound in seconds.
Heuristic = Callable[[Problem, Criterion, float], Schedule]


def by_fitting(problem: Problem, criterion: Criterion, goal_s: float) -> Schedule:
    return best_table(problem, criterion=criterion)


def by_search(problem: Problem, criterion: Criterion, goal_s: float) -> Schedule:
    """Run `build auto` without its catalogue and without the exact solver, for up to SEARCH_S."""
    end = perf_counter() + SEARCH_S
    for candidate in tables_without_end(SearchTarget(problem, criterion)):
        if candidate.is_optimal or candidate.score_s <= goal_s * (1 + TIGHT) or perf_counter() > end:
            break
    return candidate.schedule("auto")


SEARCH_S = 10.0
HEURISTICS: dict[str, Heuristic] = {"fitted": by_fitting, "auto": by_search}


def published() -> None:
    """Print gaps for the costs of ZB Table 9 with caps of p and 2p activations, freed by W, or partly by I."""
    print(
        "Gap of the schedules found to the closed bound, on the costs of the zero-bubble paper's Table 9, in %:\n"
    )
    columns = [f"{cap}p {rule}, {criterion}" for cap in (1, 2) for rule in ("W frees all", "I frees part")
               for criterion in CRITERIA]  # fmt: skip
    print(f"| model | p | m | heuristic | {' | '.join(columns)} |")
    print("|---|--:|--:|---|" + "--:|" * len(columns))
    costs_of = {(row["model"], row["microbatches"]): row for row in read("zb_paper.csv")}
    for row in read("zb_paper_auto.csv"):
        profile = costs_of[row["model"], row["microbatches"]]
        p, hidden, heads = int(profile["pp"]), int(row["hidden"]), int(row["heads"])
        names = ("forward", "backward_input", "backward_weight", "transfer")
        seconds = {f"{name}_s": float(profile[f"{name}_ms"]) / 1e3 for name in names}
        for name, heuristic in HEURISTICS.items():
            gaps = []
            for cap in (1, 2):
                for activation, kept in ((1.0, 1.0), (34.0 * hidden + 5 * heads * 1024, 32.0 * hidden)):
                    problem = Problem.of(
                        stage_to_rank=loop(p, p), num_microbatches=int(row["microbatches"]), activation=activation,
                        activation_kept_for_weight=kept, cap=cap * p * activation, **seconds,
                    )  # fmt: skip
                    bounds = lower_bounds(problem)
                    for criterion in CRITERIA:
                        table = heuristic(problem, criterion, bounds.of(criterion))
                        gap = criterion_value_s(table, problem, criterion) / bounds.of(criterion) - 1
                        gaps.append(f"{100 * max(gap, 0.0):.4f}")
            print(f"| {row['model']} | {p} | {row['microbatches']} | {name} | {' | '.join(gaps)} |")


@dataclass
class Tally:
    """Gaps to the optimum in one group of cases: of the bound (below it) and of each heuristic (above it)."""

    num_open: int = 0
    seconds: list[float] = field(default_factory=list)
    until_found: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    above: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in HEURISTICS})

    def row(self, name: str) -> str:
        cells = [f"{len(self.bound)} ({self.num_open} open)", _gaps(self.bound)]
        cells += [_gaps(gaps) for gaps in self.above.values()]
        cells += [f"{np.median(some):.2f} / {max(some):.1f}" for some in (self.seconds, self.until_found) if some]
        return f"| {name} | {' | '.join(cells)} |"


def _gaps(gaps: list[float]) -> str:
    if not gaps:
        return "–"
    equal = sum(gap <= TIGHT for gap in gaps)
    return f"{equal} / {100 * np.mean(gaps):.2f} / {100 * max(gaps):.1f}"


CAPS: dict[str, Callable[[int, np.random.Generator], float]] = {
    "below p": lambda p, rng: float(rng.integers(1, max(p, 2))),
    "p": lambda p, rng: float(p),
    "p to 2p": lambda p, rng: float(rng.integers(p + 1, 2 * p + 1)),
    "none": lambda p, rng: float("inf"),
}


def random_problems(num_cases: int, chunks: int, seed: int) -> Iterator[tuple[str, Problem]]:
    """Yield problems of p ≤ 4 ranks and m ≤ 8 microbatches, with the group of each: placement and cap.

    Costs are integers from 1 to 9, transfers from 0 to 3. In every other case they are equal on all stages. In half
    of the cases, I frees a part of an activation.
    """
    rng = np.random.default_rng([seed, chunks])
    for case in range(num_cases):
        p = int(rng.integers(2, 5))
        m = int(rng.integers(p, 9))
        stages = chunks * p
        spread = 1 if case % 2 else stages

        def costs(low: int, high: int, spread: int = spread, stages: int = stages) -> list[float]:
            return np.resize(rng.integers(low, high + 1, size=spread), stages).astype(float).tolist()

        name = list(CAPS)[case // 2 % len(CAPS)]
        cap = max(CAPS[name](p, rng), 1.0) * chunks * 4
        yield name, Problem.of(
            stage_to_rank=loop(p, p) if chunks == 1 else v_shape(p, stages), num_microbatches=m,
            forward_s=costs(1, 9), backward_input_s=costs(1, 9), backward_weight_s=costs(1, 9),
            transfer_s=costs(0, 3), activation=4.0, activation_kept_for_weight=float(rng.choice([4, 4, 3, 2])),
            cap=cap,
        )  # fmt: skip


def certificates(num_cases: int, seed: int, time_limit_s: float) -> None:
    print(
        f"\nRandom costs, p ≤ 4, m ≤ 8, against optima that CP-SAT proves within {time_limit_s:g} s. Bound, "
        f"fitted, and auto within {SEARCH_S:g} s: number equal to the optimum / "
        f"mean / worst gap in %; caps in activations of a whole rank; seconds until the proof, and until auto is at the optimum, median / worst:\n"
    )
    columns = ["placement, cap, criterion", "proved", "bound", *HEURISTICS, "proof s", "auto s"]
    print(f"| {' | '.join(columns)} |\n|---|{'--:|' * (len(columns) - 1)}")
    misses: list[str] = []
    for chunks, placement in ((1, "one chunk"), (2, "V")):
        tallies: dict[tuple[str, Criterion], Tally] = {}
        for number, (cap, problem) in enumerate(random_problems(num_cases, chunks, seed)):
            for criterion in CRITERIA:
                tally = tallies.setdefault((cap, criterion), Tally())
                if miss := certify(problem, criterion, tally, time_limit_s):
                    misses.append(
                        f"{placement}, case {number}, {cap}, {criterion}, p {problem.num_ranks}, "
                        f"m {problem.num_microbatches}: {miss}"
                    )
        for (cap, criterion), tally in sorted(tallies.items(), key=lambda item: list(CAPS).index(item[0][0])):
            print(tally.row(f"{placement}, {cap}, {criterion}"), flush=True)
    if HEURISTICS:
        print("\nWhere auto misses a proved optimum:", "nowhere" if not misses else "\n")
    for miss in misses:
        print(f"- {miss}")


def certify(problem: Problem, criterion: Criterion, tally: Tally, time_limit_s: float) -> str | None:
    """Count one case; return the miss of auto, if there is one."""
    bound = lower_bounds(problem).of(criterion)
    began = perf_counter()
    best = optimal(
        problem, criterion=criterion, hint=best_table(problem, criterion=criterion), time_limit_s=time_limit_s
    )
    tally.seconds.append(perf_counter() - began)
    assert bound <= best.value_s * (1 + TIGHT), (problem, criterion, bound, best.value_s)
    if not best.is_optimal:
        tally.num_open += 1
        return None
    tally.bound.append(best.value_s / bound - 1)
    value = best.value_s
    began = perf_counter()
    for name, heuristic in HEURISTICS.items():
        began = perf_counter()
        value = criterion_value_s(heuristic(problem, criterion, best.value_s), problem, criterion)
        tally.above[name].append(value / best.value_s - 1)
    tally.until_found.append(perf_counter() - began)
    return f"{value:g} > {best.value_s:g}" if value > best.value_s * (1 + TIGHT) else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="random cost sets a placement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds a proof")
    parser.add_argument("--random-only", action="store_true", help="without the published costs")
    parser.add_argument(
        "--bounds-only", action="store_true", help="without the heuristics; no more than random costs"
    )
    options = parser.parse_args()
    if options.bounds_only:
        HEURISTICS.clear()
    elif not options.random_only:
        published()
    certificates(options.cases, options.seed, options.time_limit)
