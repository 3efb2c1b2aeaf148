"""The relaxed wrap-around: what it drops, what it leaves alone, and what it refuses."""

import re

import numpy as np
import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.schedule.graph import build_graph
from ppsim.simulation.relaxed import without_wraparound
from tests.cli.running import ppsim as run

COSTS = ppsim.StageCosts(forward_s=0.010, backward_input_s=0.011, backward_weight_s=0.009, transfer_s=0.0005)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 10)])
def test_only_hops_between_the_ends_of_the_loop_are_dropped_and_each_groups_first_microbatch_is_kept(p, v, m):
    table = ppsim.build("interleaved-1f1b", pp=p, vpp=v, microbatches=m)
    strict = build_graph(table)
    relaxed = without_wraparound(strict)

    def waits(graph):
        return {
            (node, int(cause))
            for node in range(graph.num_nodes)
            for cause in graph.waits_for[graph.offsets[node] : graph.offsets[node + 1]]
        }

    dropped = waits(strict) - waits(relaxed)
    assert waits(relaxed) < waits(strict)
    made = [table[int(strict.source[transfer - strict.num_actions])] for _, transfer in dropped]
    assert {(action.op.name, action.stage, action.microbatch) for action in made} == {
        (op, stage, microbatch)
        for microbatch in range(m)
        if microbatch % p
        for op, stages in (("F", range(p - 1, p * v - 1, p)), ("B", range(p, p * v, p)))
        for stage in stages
    }


def test_without_a_second_chunk_nothing_changes():
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    one, other = (ppsim.simulate(table, COSTS, relaxed_wraparound=relaxed) for relaxed in (False, True))
    assert np.array_equal(one.start, other.start)


@pytest.mark.parametrize(
    ("name", "costs", "words"),
    [
        ("zbv", COSTS, "relaxed wrap-around is for looped placements"),
        ("interleaved-1f1b", COSTS.replace(channel="pair"), "on ideal channels: got overlap on channel pair"),
        ("interleaved-1f1b", COSTS.replace(communication="blocking"), "got blocking on channel ideal"),
    ],
)
def test_another_placement_or_network_is_refused(name, costs, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        ppsim.simulate(ppsim.build(name, pp=4, microbatches=8), costs, relaxed_wraparound=True)


def test_the_command_says_that_no_runtime_can_do_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("build", "interleaved-1f1b", "--pp", 8, "--vpp", 3, "--num-microbatches", 24, "-o", "T.csv")
    # Qi et al. 2024, Table 9, first row: seconds a rank, over three chunks.
    (tmp_path / "C.json").write_text(
        '{"forward_s": 0.006174, "backward_input_s": 0.006028666666666667, "backward_weight_s": 0.003112333333333333, '
        '"transfer_s": 0.000601}'
    )
    relaxed = run("simulate", "T.csv", "--costs", "C.json", "--relaxed-wraparound", "-o", "T.html")
    assert "10.55" in relaxed.stdout
    assert "no runtime can" in relaxed.stderr
    assert "relaxed wrap-around" in (tmp_path / "T.html").read_text()
    assert "10.90" in run("simulate", "T.csv", "--costs", "C.json").stdout
