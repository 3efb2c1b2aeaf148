"""Two timelines side by side: what cannot be compared is refused."""

from dataclasses import replace

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.runs.compare import compare, replay_s
from ppsim.schedule.graph import build_graph
from ppsim.simulation.engine import evaluate
from ppsim.simulation.timeline import Timeline

UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
TABLE = build("1f1b", pp=2, microbatches=4)


def test_a_step_of_half_the_time_is_fifty_percent_too_fast():
    half = StageCosts(forward_s=0.5, backward_input_s=0.5, backward_weight_s=0.5)
    found = compare(simulate(TABLE, UNIT), simulate(TABLE, half))
    assert (found.step_error, found.span_error, found.replay_error) == (-0.5, -0.5, 0.0)
    assert {op.error for op in found.ops} == {-0.5}


def test_a_replay_takes_the_mean_of_waits_that_vary():
    """1F1B on 4 ranks, passes off by 20 % and hops exponential: within 3 %, where without hops 15 % were missing."""
    table = build("1f1b", pp=4, microbatches=16)
    graph, random = build_graph(table), np.random.default_rng(0)
    durations = np.concatenate([random.lognormal(0, 0.2, len(table)), random.exponential(0.5, graph.num_transfers)])
    times = evaluate(graph, durations, np.zeros(graph.num_nodes))
    costs = UNIT.resolved_for(table)
    measured = Timeline(graph, times.start, times.end, times.blocker, costs, origin="measured")
    found = compare(measured, simulate(table, UNIT))
    assert abs(found.replay_error) < 0.03
    assert replay_s(measured) / measured.step_time_s < 0.85
    known = replace(measured, costs=UNIT.replace(transfer_s=0.5).resolved_for(table))
    assert compare(known, simulate(table, UNIT)).replay_hop_s is None


def test_two_tables_cannot_be_compared():
    other = build("1f1b", pp=2, microbatches=5)
    with pytest.raises(ConfigError, match=r"different tables: .* 4 microbatches\) and .* 5 microbatches\)"):
        compare(simulate(TABLE, UNIT), simulate(other, UNIT))


def test_a_measured_step_that_took_no_time_cannot_be_compared_with():
    nothing = StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    with pytest.raises(ConfigError, match="the measured step took 0 s"):
        compare(simulate(TABLE, nothing), simulate(TABLE, UNIT))
