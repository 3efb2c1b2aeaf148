"""The searches take every decision as they took it when these tables were written.

A kernel that decides otherwise is seen here even where its tables are no slower. Where a change is meant, write them
anew, and say in the changelog what it gains: python -m tests.catalog.test_golden
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ppsim.catalog.published.controllable_memory import v_half_fixed, v_min_fixed, zbv_fixed
from ppsim.catalog.published.one_f_one_b import zb_h1, zb_h2
from ppsim.catalog.search import v_shape_search as v_shape
from ppsim.catalog.search.best_table import local_search
from ppsim.catalog.search.lists import list_schedules, rescheduled
from ppsim.catalog.search.repetition import repeat_window
from ppsim.catalog.search.target import Candidate, SearchTarget
from ppsim.schedule.placement import loop
from ppsim.schedule.placement import v_shape as v_placement
from ppsim.simulation.bounds.problem import Criterion, Problem

GOLDEN = Path(__file__).with_name("golden.json")
SHAPES = {  # ranks, stages per rank, microbatches, activations a rank may hold, criterion, seed of the costs
    "one stage": (4, 1, 8, 4.0, "step", 0),
    "one stage, little memory": (5, 1, 12, 3.0, "span", 0),
    "one stage, long": (3, 1, 20, 6.0, "step", 0),
    "a V": (4, 2, 9, 10.0, "step", 7),
    "a V, much memory": (4, 2, 11, 14.0, "span", 7),
    "a V, little memory": (3, 2, 12, 3.5, "span", 7),
    "three stages": (3, 3, 7, 7.0, "step", 0),
}


def target_of(name: str) -> SearchTarget:
    p, vpp, m, held, criterion, seed = SHAPES[name]
    dice = np.random.default_rng(seed)
    stages = p * vpp
    placement = v_placement(p, stages) if vpp == 2 else loop(p, stages)
    costs = {
        part: dice.integers(6, 15, stages) / 8 for part in ("forward_s", "backward_input_s", "backward_weight_s")
    }
    hops = dice.integers(0, 4, stages - 1) / 8
    problem = Problem.of(
        stage_to_rank=placement, num_microbatches=m, **costs, transfer_s=hops, cap=held,
        activation_kept_for_weight=0.375,
    )  # fmt: skip
    kind: Criterion = criterion
    return SearchTarget(problem, kind, "plain")


def made_by(name: str) -> Iterator[tuple[str, Iterable[Candidate]]]:
    target = target_of(name)
    vpp = SHAPES[name][1]
    if vpp == 1:
        yield "published", v_shape.published(target, (zb_h1, zb_h2))
    if vpp == 2:
        yield "published", v_shape.published(target, (zbv_fixed, v_half_fixed, v_min_fixed))
        yield "heuristic", v_shape.heuristic_runs(target)
        yield "blocks of cells", v_shape.blocks_of_cells(target)
        yield "repeated patterns", v_shape.repeated_patterns(target)
    yield "lists", list_schedules(target)
    first = next(iter(list_schedules(target)))
    yield "rescheduled", [rescheduled(first, patient=patient) for patient in (False, True)]
    yield "searched", islice(local_search(first, moves_a_round=150, seed=3), 4)
    if name.endswith("long"):
        short = replace(target, problem=replace(target.problem, num_microbatches=8))
        yield "repeated", filter(None, [repeat_window(next(iter(list_schedules(short))), target)])


def summary(candidates: Iterable[Candidate]) -> dict[str, object]:
    found = list(candidates)
    digest = hashlib.sha256(b"".join(one.order.astype(np.int32).tobytes() for one in found)).hexdigest()
    return {
        "tables": len(found),
        "least_s": min((one.score_s for one in found), default=None),
        "orders": digest[:16],
    }


def golden() -> dict[str, dict[str, dict[str, object]]]:
    return {name: {how: summary(those) for how, those in made_by(name)} for name in SHAPES}


@pytest.mark.parametrize("name", SHAPES)
def test_every_table_that_is_tried_is_the_one_it_was(name: str) -> None:
    made = {how: summary(those) for how, those in made_by(name)}
    assert made == json.loads(GOLDEN.read_text())[name]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n")
