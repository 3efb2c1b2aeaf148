"""Transfers wait where Megatron-LM's own loops wait: its real code tells where that is."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ppsim import Op, StageCosts, build, simulate
from ppsim.errors import ScheduleError
from ppsim.schedule import blocking_calls as blocking_calls_module
from ppsim.schedule.blocking_calls import has_megatron_loop, megatron_calls
from ppsim.schedule.dependencies import transfers_of
from tests.defaults import number_defaults
from tests.trainers.trainer_code import require_megatron

SHAPES = [
    (p, v, m, overlap)
    for p, v, m in (
        (2, 1, 1), (2, 1, 5), (4, 1, 2), (4, 1, 8), (2, 2, 2), (2, 2, 6), (2, 3, 4), (4, 2, 4), (4, 2, 8), (4, 3, 16)
    )
    for overlap in ((False, True) if v > 1 else (False,))
]  # fmt: skip
COSTS = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=0.25)


def table_of(p: int, v: int, m: int):
    return build("1f1b" if v == 1 else "interleaved-1f1b", pp=p, vpp=v, microbatches=m)


def sequences_of(table, overlap):
    """Each rank's passes and calls, as the recorded loops write them down."""
    source, target = transfers_of(table)
    names = [("send_next", "recv_prev"), ("send_prev", "recv_next")]
    calls = {}
    for side, (ends, entries) in enumerate(
        zip(megatron_calls(table, source, target, overlap=overlap), (source, target), strict=True)
    ):
        for k, entry in enumerate(entries):
            place = int(table.rank[entry]), int(ends.after[k]), int(ends.turn[k])
            name = names[int(table.op[source[k]] != Op.F)][side]
            calls.setdefault(place, []).append((name, bool(ends.holds[k])))
    found = []
    for rank in range(table.num_ranks):
        row = []
        for entry in (-1, *range(table.rank_offsets[rank], table.rank_offsets[rank + 1])):
            if entry >= 0:
                row.append(Op(table.op[entry]).name)
            for turn in (0, 1):
                for waits in (True, False):
                    done = [name for name, holds in calls.get((rank, entry, turn), []) if holds == waits]
                    if done:
                        row.append({"does": sorted(done), "waits": waits})
        found.append(row)
    return found


@pytest.fixture(scope="module")
def recorded():
    require_megatron()
    script = Path(__file__).with_name("megatron_loops.py")
    done = subprocess.run(
        [sys.executable, script], input=json.dumps(SHAPES), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(SHAPES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.oracle
def test_calls_are_those_of_megatron_cores_loops(shape, recorded):
    *size, overlap = shape
    for rank, (ours, theirs) in enumerate(
        zip(sequences_of(table_of(*size), overlap), recorded[shape], strict=True)
    ):
        assert ours == theirs, f"rank {rank}"


def test_single_sends_and_receives_of_the_warm_up_add_up_and_the_combined_ones_run_together():
    # By hand, F 1, B 2, hop 0.25: rank 0 sends F0 and F1 one after the other, then sends F2 and receives B0 at once.
    timeline = simulate(build("1f1b", pp=2, microbatches=3), COSTS.replace(communication="megatron"))
    start = {timeline.name_of(node): timeline.start[node] for node in range(timeline.num_actions)}
    assert start["0F1"] == 1.25  # stands still until F0 is sent
    assert start["1F0"] == 1.25
    assert start["1F1"] == start["0B0"] == 4.5  # one call behind 1B0: sends its gradient, receives F1
    assert timeline.step_time_s == 3 * 3 + 1 + 2 + 4 * 0.25  # every hop but those of combined calls adds up


def test_interleaved_stands_still_without_overlap_and_loses_less_with_it():
    table = table_of(4, 2, 16)
    steps = {
        way: simulate(table, COSTS.replace(communication=way, channel="edge")).step_time_s
        for way in ("overlap", "megatron", "megatron-no-overlap")
    }
    assert steps["overlap"] <= steps["megatron"] < steps["megatron-no-overlap"]


@pytest.mark.parametrize("name", ["zb-h1", "zbv-fixed", "gpipe"])
def test_tables_that_megatron_lm_has_no_loop_for_are_refused(name):
    with pytest.raises(ScheduleError, match="it runs 1f1b and interleaved-1f1b"):
        simulate(build(name, pp=4, microbatches=8), COSTS.replace(communication="megatron"))


def test_a_message_takes_time_of_the_rank_that_sends_and_of_the_one_that_receives():
    table = build("1f1b", pp=2, microbatches=2)
    timeline = simulate(table, COSTS.replace(message_overhead_s=0.5, hop_overhead_s=0.0))
    start = {timeline.name_of(node): timeline.start[node] for node in range(timeline.num_actions)}
    assert start["0F1"] == 1.5  # behind the sending of F0
    assert start["1F0"] == 1.0 + 0.25 + 0.5  # before the taking of F0
    gaps = np.diff(sorted(start.values()))
    assert gaps.min() >= 0


def test_what_is_left_out_in_schedule_blocking_calls_has_these_values() -> None:
    assert number_defaults(blocking_calls_module) == {
        "MessageEnds.of": {"turn": 0, "holds": True},
    }  # fmt: skip


def test_megatron_has_loops_for_1f1b_and_interleaved_1f1b_alone() -> None:
    tables = {name: build(name, pp=2, vpp=vpp, microbatches=4) for name, vpp in (("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("gpipe", 1))}  # fmt: skip
    assert {name: has_megatron_loop(table) for name, table in tables.items()} == {
        "1f1b": True, "interleaved-1f1b": True, "zb-h1": False, "gpipe": False,
    }  # fmt: skip
