"""What is found of a table is found once, whoever asks, and is the same as if it were found anew."""

from dataclasses import replace

import numpy as np
import pytest

import ppsim
from ppsim.base.errors import ScheduleError
from ppsim.base.lru_cache import LRUCache
from ppsim.costs import cost_sources as sources
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.schedule import analysis_cache as analysis_cache_module
from ppsim.schedule import analysis_cache as of_tables
from ppsim.schedule import graph as graphs
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from tests.defaults import number_defaults


@pytest.fixture
def fresh(monkeypatch):
    """What a process keeps when it begins: nothing."""
    found = LRUCache(100_000)
    monkeypatch.setattr(of_tables, "KEPT", found)
    return found


def test_a_graph_is_built_once_for_a_table_and_a_network(fresh, monkeypatch):
    built = []
    build = graphs._in_order
    monkeypatch.setattr(graphs, "_in_order", lambda *given: built.append(1) or build(*given))
    plan = Plan(pp=4, vpp=2, microbatches=16)
    first = project(plan)
    for factor in (1.0, 1.1, 1.2):  # other costs, the same shape
        project(replace(plan, stragglers=((1, factor),)))
    assert len(built) == 1
    slower = project(replace(plan, channel="rank"))
    assert len(built) == 2
    assert slower.timeline.step_time_s > first.timeline.step_time_s


def test_other_channels_lower_a_table_once(fresh, monkeypatch):
    lowered = []
    lower = graphs.lowered_messages
    monkeypatch.setattr(graphs, "lowered_messages", lambda *given: lowered.append(1) or lower(*given))
    made = project(Plan(pp=4, vpp=2, microbatches=16))
    assert None not in made.step_time_by_channel_s.values()
    assert len(lowered) == 1


def test_where_only_ranks_are_slower_a_profile_is_not_asked_again_and_costs_become_arrays_once(fresh, monkeypatch):
    asked, resolved = [], []
    assemble, resolve = sources.assemble, StageCosts.resolved
    monkeypatch.setattr(sources, "assemble", lambda *given, **more: asked.append(1) or assemble(*given, **more))
    monkeypatch.setattr(StageCosts, "resolved", lambda self, **shape: resolved.append(1) or resolve(self, **shape))
    plan = Plan(pp=4, vpp=2, microbatches=16, split="even")
    once = project(plan)
    twice = project(replace(plan, stragglers=((0, 2.0), (1, 2.0), (2, 2.0), (3, 2.0))))
    assert len(asked) == 1
    assert len(resolved) == 2
    assert twice.timeline.busy_s == pytest.approx(2 * once.timeline.busy_s)
    project(replace(plan, transfer_s=0.001))
    assert len(asked) == 2


@pytest.mark.parametrize("channel", ["ideal", "pair"])
def test_a_kept_graph_is_the_graph_that_would_be_built(channel):
    table = ppsim.build("zbv", pp=4, microbatches=8)
    twice = [build_graph(table, channel=channel) for _ in range(2)]
    anew = build_graph(table.named("another"), channel=channel)
    assert twice[0] is twice[1]
    assert anew is not twice[0]
    for column in ("source", "target", "offsets", "waits_for", "order"):
        np.testing.assert_array_equal(getattr(anew, column), getattr(twice[0], column))


def test_tables_of_equal_cells_but_another_object_share_nothing(fresh):
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    other = table.named("another")
    assert build_graph(table).schedule is table
    assert build_graph(other).schedule is other


def test_a_broken_table_is_refused_every_time():
    table = ppsim.build("1f1b", pp=2, microbatches=2)
    broken = table.select(np.arange(len(table)) != 2)
    for _ in range(2):
        with pytest.raises(ScheduleError, match="missing"):
            build_graph(broken) and ppsim.simulate(broken, ppsim.StageCosts(forward_s=1, backward_s=1))


def test_what_is_kept_is_bounded_and_nothing_large_drives_out_the_rest():
    kept = LRUCache(1000)
    for key in range(100):
        kept.get(key, size=100, make=lambda: None)
    assert sum(key in kept for key in range(100)) == 10
    kept.get("large", size=900, make=lambda: None)
    assert "large" not in kept
    assert 99 in kept


def test_tables_are_kept_by_shape_and_shared():
    one, same = (ppsim.build("zbv", pp=4, microbatches=8) for _ in range(2))
    assert one is same
    assert ppsim.build("zbv", pp=4, microbatches=12) is not one
    assert isinstance(one, Schedule)
    with pytest.raises(ValueError, match="read-only"):
        one.stage[0] = 3


def test_what_is_left_out_in_schedule_analysis_cache_has_these_values() -> None:
    assert number_defaults(analysis_cache_module) == {
        "cached": {"part": 1.0},
    }  # fmt: skip
