"""Tables found for two chunks per rank in a V, compared with published ones at the same costs and memory.

python benchmarks/grids.py           summary of all rows of benchmarks/published for a V
python benchmarks/grids.py --rows    the same, and every row of every grid
python benchmarks/grids.py --only v-min --pp 8   only rows of these grids with this number of ranks, and their gaps
"""

import argparse
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

import numpy as np
from heuristics import zbv_heuristic
from published_tables import read

import ppsim
from ppsim.catalog.search.best_table import best_table
from ppsim.schedule.placement import v_shape
from ppsim.simulation.bounds.lower import lower_bounds
from ppsim.simulation.bounds.problem import Criterion, Problem

TIGHT = 1e-9
PRIMUS_FIXED = {"v-half": "v-half-fixed", "v-min": "v-min-fixed", "zbv-formatted": "zbv-fixed"}


@dataclass(frozen=True)
class Case:
    """One published table: costs per rank (half per chunk, except for the transfer), memory and time."""

    pp: int
    microbatches: int
    costs: tuple[float, float, float, float]
    cap: float
    kept: float
    criterion: Criterion
    theirs: float

    @property
    def stage_costs(self) -> ppsim.StageCosts:
        forward, to_input, weight, transfer = self.costs
        return ppsim.StageCosts(
            forward_s=forward / 2, backward_input_s=to_input / 2, backward_weight_s=weight / 2, transfer_s=transfer,
            activation_bytes=0.5, activation_bytes_kept_for_weight=self.kept / 2,
        )  # fmt: skip

    @property
    def problem(self) -> Problem:
        costs = self.stage_costs
        return Problem.of(
            stage_to_rank=v_shape(self.pp, 2 * self.pp), num_microbatches=self.microbatches, cap=self.cap,
            forward_s=costs.forward_s, backward_input_s=costs.backward_input_s,
            backward_weight_s=costs.backward_weight_s, transfer_s=costs.transfer_s, activation=0.5,
            activation_kept_for_weight=self.kept / 2,
        )  # fmt: skip

    def bubble_of(self, seconds: float) -> float:
        return 1 - self.microbatches * sum(self.costs[:3]) / seconds

    def __str__(self) -> str:
        costs = "/".join(f"{cost:g}" for cost in self.costs)
        return f"p {self.pp}, m {self.microbatches}, {costs}, cap {self.cap:g}, kept {self.kept:g}"


@dataclass(frozen=True)
class Found:
    """The table found for a case, simulated."""

    case: Case
    ours: float
    bound: float
    wall_s: float

    @classmethod
    def of(cls, case: Case) -> "Found":
        problem = case.problem
        began = perf_counter()
        table = best_table(problem, criterion=case.criterion, is_thorough=True)
        wall_s = perf_counter() - began
        timeline = ppsim.simulate(table, case.stage_costs)
        assert timeline.memory.peak_activation_bytes.max() <= case.cap * (1 + TIGHT), case
        ours, bound = value(timeline, case.criterion), lower_bounds(problem).of(case.criterion)
        return cls(case, ours, bound, wall_s)

    @property
    def change(self) -> float:
        """Ours / published − 1: negative is faster."""
        return self.ours / self.case.theirs - 1

    @property
    def above_bound(self) -> float:
        return self.ours / self.bound - 1

    def __str__(self) -> str:
        gaps = f"{percent(self.change)}; {percent(self.above_bound)}"
        return f"{self.case}: {self.case.theirs:.10g} → {self.ours:.10g} ({gaps})"


def value(timeline: ppsim.Timeline, criterion: Criterion) -> float:
    return timeline.step_time_s if criterion == "step" else timeline.span_s


class Summary:
    """A line of the summary: better, equal, worse; by how much; and the gap to the bound."""

    HEAD: ClassVar = (
        "rows", "better", "equal", "worse", "mean", "best", "worst row", "proven optimal", "above bound, mean / most",
        "s a table, mean / most",
    )  # fmt: skip

    def __init__(self, name: str, found: list[Found]) -> None:
        changes = np.array([one.change for one in found])
        above, seconds = ([getattr(one, key) for one in found] for key in ("above_bound", "wall_s"))
        cells = [
            len(found), int((changes < -TIGHT).sum()), int((abs(changes) <= TIGHT).sum()), int((changes > TIGHT).sum()),
            percent(changes.mean()), percent(changes.min()), percent(changes.max()),
            sum(gap <= TIGHT for gap in above), f"{percent(np.mean(above))} / {percent(max(above))}",
            f"{np.mean(seconds):.2f} / {max(seconds):.2f}",
        ]  # fmt: skip
        self.line = f"| {name} | {' | '.join(map(str, cells))} |"


def by_gap(found: dict[str, list[Found]]) -> None:
    """Print how many tables of each grid are proved to be within 1, 3 and 5 % of the optimum, and the worst."""
    print("\nRows within so much above the bound, and the worst:\n")
    print("| grid | rows | 1 % | 3 % | 5 % | worst |\n|---|--:|--:|--:|--:|--:|")
    everything = [one for group in found.values() for one in group]
    for name, group in [*found.items(), ("all", everything)]:
        gaps = np.array([one.above_bound for one in group])
        counts = " | ".join(str(int((gaps <= most).sum())) for most in (0.01, 0.03, 0.05))
        print(f"| {name} | {len(group)} | {counts} | {percent(gaps.max())} |")


def percent(part: float) -> str:
    rounded = round(100 * float(part), 2)
    return f"{rounded:+.2f} %" if rounded else "0"


def searches() -> dict[str, list[Case]]:
    """Return the authors' runs of their ZB-V heuristic (by span) and V-Flex search (by step), grouped by memory."""
    groups: dict[str, list[Case]] = {}
    for row in read("v_searches.csv"):
        criterion: Criterion = "span" if row["algorithm"] == "zb-v" else "step"
        case = case_of(row, cap=float(row["cap"]), kept=float(row["kept"]), criterion=criterion)
        freed = "" if case.kept == 1 else ", I frees part"
        groups.setdefault(f"{row['algorithm']}, cap {case.cap / case.pp:g}p{freed}, {criterion}", []).append(case)
    return dict(sorted(groups.items()))


def patterns() -> dict[str, list[Case]]:
    """Return V-Half and V-Min as published, each in its own peak memory."""
    groups: dict[str, list[Case]] = {}
    for row in read("v_patterns.csv"):
        if row["algorithm"] in ("v-half-fixed", "v-min-fixed"):
            case = case_of(row | {"step": row["step_time"]}, cap=float(row["peak"]), kept=1.0, criterion="step")
            groups.setdefault(f"{row['algorithm'].removesuffix('-fixed')}, its own peak, step", []).append(case)
    return groups


def case_of(row: dict[str, str], *, cap: float, kept: float, criterion: Criterion) -> Case:
    forward, to_input, weight, transfer = (
        float(row[key]) for key in ("forward", "backward_input", "backward_weight", "transfer")
    )
    return Case(
        int(row["pp"]), int(row["microbatches"]), (forward, to_input, weight, transfer), cap, kept, criterion,
        float(row[criterion]),
    )  # fmt: skip


def primus() -> dict[str, list[Case]]:
    """Return Primus' tables for a V, each in its own peak memory; its f, b, w are our F, I, W per rank."""
    groups: dict[str, list[Case]] = {}
    for row in read("primus_grid.csv"):
        if row["algorithm"] in PRIMUS_FIXED:
            case = Case(
                int(row["pp"]), int(row["microbatches"]), (float(row["f"]), float(row["b"]), float(row["w"]), 0.0),
                float(row["max_memory_fraction"]), 1.0, "step", float(row["step_time"]),
            )  # fmt: skip
            groups.setdefault(row["algorithm"], []).append(case)
    return groups


def by_shape(found: dict[str, list[Found]]) -> None:
    """Print, by ranks and microbatches, rows better / rows, mean and best change."""
    print("\nThe same by p and m: rows better / rows, mean change, best change:\n")
    print(f"| p | m | {' | '.join(found)} |\n|--:|--:|{'--:|' * len(found)}")
    for p, m in sorted({(one.case.pp, one.case.microbatches) for group in found.values() for one in group}):
        cells = []
        for group in found.values():
            changes = np.array([one.change for one in group if (one.case.pp, one.case.microbatches) == (p, m)])
            better = f"{(changes < -TIGHT).sum()} / {len(changes)}"
            cells.append(f"{better}, {percent(changes.mean())}, {percent(changes.min())}" if len(changes) else "–")
        print(f"| {p} | {m} | {' | '.join(cells)} |")


def zbv_alone(groups: dict[str, list[Case]]) -> None:
    print("\nThe ZB-V heuristic alone, ours beside the authors' runs: largest relative difference of their span:\n")
    print("| grid | rows | largest difference | s a table, mean / most |\n|---|--:|--:|--:|")
    for name, cases in groups.items():
        if not name.startswith("zb-v"):
            continue
        apart, seconds = [], []
        for case in cases:
            began = perf_counter()
            table = zbv_heuristic(case.problem)
            seconds.append(perf_counter() - began)
            assert table is not None
            apart.append(abs(ppsim.simulate(table, case.stage_costs).span_s / case.theirs - 1))
        print(f"| {name} | {len(cases)} | {max(apart):.1e} | {np.mean(seconds):.4f} / {max(seconds):.4f} |")


def primus_patterns(groups: dict[str, list[Case]]) -> None:
    print("\nPrimus' tables for a V beside our builder of the same pattern, both cost sets:\n")
    print("| its algorithm | ours | rows | equal step time | largest relative difference |\n|---|---|--:|--:|--:|")
    for name, cases in groups.items():
        apart = []
        for case in cases:
            table = ppsim.build(PRIMUS_FIXED[name], pp=case.pp, microbatches=case.microbatches)
            apart.append(abs(ppsim.simulate(table, case.stage_costs).step_time_s / case.theirs - 1))
        equal = sum(one <= TIGHT for one in apart)
        print(f"| {name} | {PRIMUS_FIXED[name]} | {len(cases)} | {equal} | {max(apart):.1e} |")


def primus_rows(groups: dict[str, list[Found]]) -> None:
    print(
        "\nPrimus' tables at F 12, I 14, W 8: their bubble / ours / the least that the bound allows, in their memory:\n"
    )
    print("| p | m | " + " | ".join(groups) + " |\n|--:|--:|" + "--:|" * len(groups))
    cells: dict[tuple[int, int], dict[str, str]] = {}
    for name, found in groups.items():
        for one in found:
            if one.case.costs[:3] == (12, 14, 8):
                bubbles = (one.case.bubble_of(seconds) for seconds in (one.case.theirs, one.ours, one.bound))
                text = " / ".join(f"{100 * bubble:.2f} %" for bubble in bubbles)
                cells.setdefault((one.case.pp, one.case.microbatches), {})[name] = f"{text} ({one.case.cap:g})"
    for (p, m), by_name in sorted(cells.items()):
        print(f"| {p} | {m} | " + " | ".join(by_name.get(name, "–") for name in groups) + " |")


def print_rows(name: str, found: list[Found]) -> None:
    print(f"\n{name}: published → ours (change; above the bound)")
    print(*found, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row too")
    parser.add_argument("--only", default="", help="a word of the grids' names: print their rows alone")
    parser.add_argument("--pp", type=int, help="ranks of the rows that are so printed")
    options = parser.parse_args()
    best_table(next(iter(patterns().values()))[0].problem)  # compile
    began = perf_counter()
    of_primus = primus()
    grids = (
        searches() | patterns() | {f"Primus {name}, its own peak, step": cases for name, cases in of_primus.items()}
    )
    if options.only or options.pp:
        asked = {
            name: [case for case in cases if options.pp in (None, case.pp)]
            for name, cases in grids.items()
            if options.only in name
        }
        found = {name: [Found.of(case) for case in cases] for name, cases in asked.items() if cases}
        if not found:
            parser.error(f"no rows of p {options.pp} in grids with {options.only!r}; grids: {'; '.join(grids)}")
        for name, group in found.items():
            print_rows(name, group)
        by_gap(found)
        sys.exit()
    found = {name: [Found.of(case) for case in cases] for name, cases in grids.items()}
    print("Found (`fitted`) / published − 1 at the same costs within the same memory; negative is faster:\n")
    print(f"| grid, memory, criterion | {' | '.join(Summary.HEAD)} |\n|---|{'--:|' * len(Summary.HEAD)}")
    for name, group in found.items():
        print(Summary(name, group).line)
    by_gap({name: group for name, group in found.items() if not name.startswith("Primus")})
    worse = [one for group in found.values() for one in group if one.change > TIGHT]
    print(f"\nworse rows: {len(worse)}", *worse, sep="\n  ")
    by_shape({name: group for name, group in found.items() if not name.startswith("Primus")})
    print(f"\nwall time of all: {perf_counter() - began:.0f} s")
    zbv_alone(grids)
    primus_patterns(of_primus)
    primus_rows({name: found[f"Primus {name}, its own peak, step"] for name in of_primus})
    if options.rows:
        for name, group in found.items():
            print_rows(name, group)
