"""Constraints, closed forms and facts of a schedule of the catalogue."""

from typing import Any

import pytest

from ppsim.catalog import entry as entry_module
from ppsim.catalog.entry import Formula, ScheduleEntry, _not_a_multiple
from ppsim.schedule.table import Schedule
from tests.defaults import number_defaults


def built(num_ranks: int, num_microbatches: int, vpp: int, costs: Any = None) -> Schedule:
    raise AssertionError("no table is built")


def entry(**fields: Any) -> ScheduleEntry:
    given = {
        "name": "own", "title": "own", "build": built, "placement": "loop", "stages_per_rank": (1, 1),
        "splits_backward": False, "peak_activations": Formula("p"), "messages": Formula("p - 1"), "source": "here",
    }  # fmt: skip
    return ScheduleEntry(**(given | fields))


def test_a_formula_is_evaluated_as_it_is_printed() -> None:
    formula = Formula("min(p, m) * F", where="m >= p", at_most=True)
    assert (formula(p=2, m=8, F=1.5), formula.holds(p=2, m=8), formula.holds(p=8, m=2)) == (3.0, True, False)
    assert str(formula) == "at most min(p, m) * F   where m >= p"
    assert str(Formula("p")) == "p"
    with pytest.raises(NameError):
        Formula("open('x')")()


def test_options_are_the_parameters_of_the_builder() -> None:
    assert entry().options == ["vpp", "costs"]
    assert (entry().takes("costs"), entry().takes("group_size")) == (True, False)


@pytest.mark.parametrize(
    ("fields", "shape", "reason"),
    [
        ({}, {}, None),
        ({}, {"vpp": 2}, "own needs exactly 1 stage per rank: got vpp=2 (nearest: 1)"),
        ({"stages_per_rank": (2, 2)}, {"vpp": 1}, "own needs exactly 2 stages per rank: got vpp=1 (nearest: 2)"),
        ({"stages_per_rank": (2, None)}, {"vpp": 1}, "own needs at least 2 stages per rank: got vpp=1 (nearest: 2)"),
        ({"stages_per_rank": (2, None)}, {"vpp": 7}, None),
        (
            {"stages_per_rank": (2, None), "stages_by": 2}, {"vpp": 3},
            "own needs an even number of stages per rank: got vpp=3 (nearest: 2 or 4)",
        ),
        ({"ranks_by": 2}, {"pp": 3}, "own needs an even number of ranks: got pp=3 (nearest: 2 or 4)"),
        ({"ranks_by": 2}, {"pp": 1}, "own needs an even number of ranks: got pp=1 (nearest: 2)"),
        (
            {"least_microbatches": Formula("2 * p")}, {"microbatches": 7},
            "own needs at least 2 * p microbatches: got 7 with pp=4 (nearest: 8)",
        ),
        ({"least_microbatches": Formula("2 * p")}, {"microbatches": 8}, None),
        ({"least_microbatches": Formula("2 * p")}, {"microbatches": 0}, None),
        ({"least_microbatches": Formula("2 * p")}, {"microbatches": 1}, "own needs at least 2 * p microbatches: got 1 with pp=4 (nearest: 8)"),
        (
            {"microbatches_by": 3}, {"microbatches": 8},
            "own needs a multiple of 3 microbatches: got 8 with pp=4 (nearest: 6 or 9)",
        ),
    ],
)  # fmt: skip
def test_a_shape_is_possible_or_has_a_reason(
    fields: dict[str, Any], shape: dict[str, int], reason: str | None
) -> None:
    assert entry(**fields).why_not(**({"pp": 4, "vpp": 1, "microbatches": 8} | shape)) == reason


def test_the_nearest_multiple_is_not_below_the_least() -> None:
    assert _not_a_multiple("own", "ranks", 5, 4, "pp=5", 4).endswith("got pp=5 (nearest: 4 or 8)")
    assert _not_a_multiple("own", "ranks", 5, 4, "pp=5", 5).endswith("(nearest: 8)")


def test_a_split_backward_has_a_third_action_and_replicas_share_microbatches() -> None:
    shape = {"pp": 4, "vpp": 2, "microbatches": 6}
    assert entry().num_actions(**shape) == 2 * 4 * 2 * 6
    assert entry(splits_backward=True).num_actions(**shape) == 3 * 4 * 2 * 6
    assert entry(num_replicas=2).num_actions(**shape) == 4 * 2 * 6


def test_facts_follow_from_the_fields() -> None:
    assert entry().facts == [
        ("stages per rank", "exactly 1, looped"), ("backward", "full (B)"),
        ("microbatches", "any number of microbatches"), ("peak activations", "p   microbatches of a whole rank"),
        ("messages", "p - 1   per microbatch and direction"), ("source", "here"),
    ]  # fmt: skip
    more = dict(
        entry(
            placement="v", stages_per_rank=(2, None), stages_by=2, splits_backward=True, ranks_by=2, num_slices=4,
            not_in_torch="no slices", bubble=Formula("F"), span_bubble=Formula("W"), constraint="an even number",
        ).facts
    )  # fmt: skip
    assert more["stages per rank"] == "2 or more, an even number, in a V"
    assert more["backward"] == "split into I and W"
    assert (more["ranks"], more["microbatches"]) == ("an even number", "an even number")
    assert more["slices"] == "k of each microbatch's sequence (default: 4)"
    assert (more["not in torch"], more["bubble"], more["bubble by span"]) == ("no slices", "F", "W")
    replicas = dict(entry(num_replicas=2).facts)
    assert replicas["stages per rank"] == "exactly 1, one of each of 2 replicas, down the ranks and back up"


def test_what_is_left_out_in_catalog_entry_has_these_values() -> None:
    assert number_defaults(entry_module) == {
        "Formula": {"at_most": False},
        "ScheduleEntry": {"microbatches_by": 1, "ranks_by": 1, "stages_by": 1, "num_replicas": 1, "num_slices": 1},
    }  # fmt: skip
