"""torch executes our tables: loss and gradients are those of one process without pipelining."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

from ppsim.runs.timeline_import import TOLERANCE, import_result
from ppsim.runtime.launch import launch_all
from tests.runtime.cases import BUILDERS, config_of, sizes_of, table_of

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
EVERY_THIRD = BUILDERS if IS_LONG else BUILDERS[::3]
TWO_RANKS = [(name, 2, sizes_of(name, 2)[-1], "float64") for name in BUILDERS]
SINGLE = [(*case[:3], "float32") for case in TWO_RANKS if case[0] in ("1f1b", "zbv-fixed")]
OTHERS = [
    (name, p, m, "float64")
    for p in (2, 4)
    for name in EVERY_THIRD
    for m in (sizes_of(name, p)[:-1] if p == 2 else sizes_of(name, p)[None if IS_LONG else -1 :])
]
CASES = [*TWO_RANKS, *SINGLE, *(pytest.param(case, marks=pytest.mark.torch) for case in OTHERS)]
"""Every table of two ranks in float64, whose tolerance is the narrow one, and two in float32 as well.

Shorter ones, and those of four ranks, of every third schedule; with `HYPOTHESIS_PROFILE=long` of all.
"""


@pytest.fixture(scope="module")
def result_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """Return the function from a case to its result; all cases of a number of ranks with the same mark are one launch."""

    @cache
    def results(p: int, is_marked: bool) -> dict[Any, Any]:
        folder = tmp_path_factory.mktemp("tables")
        cases = [case for case in (OTHERS if is_marked else TWO_RANKS + SINGLE) if case[1] == p]
        configs = [
            config_of(table_of(name, p=p, m=m), folder, dtype=dtype, verify=True) for name, p, m, dtype in cases
        ]
        return dict(zip(cases, launch_all(configs), strict=True))

    return lambda case: results(case[1], case in OTHERS)[case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_loss_and_gradients_are_those_of_one_process(result_of: Callable[[Any], Any], case: Any) -> None:
    found, limit = result_of(case)["differences"], TOLERANCE[case[-1]]
    assert found["loss"] <= limit
    assert found["gradient"] <= limit
    num_stages = table_of(*case[:1], p=case[1], m=case[2]).num_stages
    assert found["num_parameters"] == 12 * num_stages + 2 + 3  # per block; embedding; norm and head


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_the_measured_timeline_holds_every_action_in_the_order_of_the_table(
    result_of: Callable[[Any], Any], case: Any
) -> None:
    name, p, m, _ = case
    table = table_of(name, p=p, m=m)
    timeline = import_result(result_of(case), table, None).timeline
    assert timeline.schedule == table
    actions = slice(0, timeline.num_actions)
    assert (timeline.end[actions] >= timeline.start[actions]).all()
    for rank in range(p):
        entries = slice(*table.rank_offsets[rank : rank + 2])
        assert (timeline.start[entries][1:] >= timeline.end[entries][:-1]).all()
