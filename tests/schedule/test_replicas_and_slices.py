"""Tables of several chains of stages, and of microbatches in slices: what depends on what, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given

from ppsim import Op, Schedule, build, check
from ppsim.base.errors import ScheduleError
from ppsim.catalog.published.greedy import greedy
from ppsim.schedule.check import validate
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.grammar import format_table, parse_table, read_schedule
from ppsim.schedule.lowering import lower
from ppsim.schedule.placement import v_shape
from tests.strategies import tables

CHAINS = "0F0,3F1,3B1,0B0\n1F0,2F1,1B0,2B1\n"  # stages 0, 1 run microbatch 0; stages 2, 3 microbatch 1
SLICED = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"  # one microbatch in two slices


def waits_of(table, column):
    needed = getattr(dependencies(table), column).tolist()
    return {str(table[entry]): str(table[cause]) for entry, cause in enumerate(needed) if cause >= 0}


def test_neighbours_are_those_of_one_chain():
    table = parse_table(CHAINS, num_replicas=2)
    assert waits_of(table, "neighbour") == {"1F0": "0F0", "3F1": "2F1", "0B0": "1B0", "2B1": "3B1"}
    assert check(table).errors == []


def test_a_slice_goes_forward_after_the_one_before_and_backward_after_the_one_behind():
    table = parse_table(SLICED, num_slices=2)
    assert waits_of(table, "slice") == {"0F1": "0F0", "0B0": "0B1", "1F1": "1F0", "1B0": "1B1"}
    assert waits_of(parse_table(SLICED), "slice") == {}
    assert (table.num_microbatches, table.num_units) == (1, 2)
    assert check(table).errors == []


@given(tables())
def test_a_microbatch_visits_the_stages_of_its_chain_only_and_shares_differ_by_one_at_most(table):
    compute = table.compute_only()
    assert (compute.stage // table.num_model_stages == table.chain_of_unit[compute.microbatch]).all()
    served = [(table.chain_of_unit == chain).sum() // table.num_slices for chain in range(table.num_replicas)]
    assert sum(served) == table.num_microbatches
    assert max(served) - min(served) <= 1
    needs = dependencies(table).neighbour
    crossing = needs >= 0
    assert (
        table.stage[needs[crossing]] // table.num_model_stages == (table.stage // table.num_model_stages)[crossing]
    ).all()


@pytest.mark.parametrize("m", [3, 5, 8, 11])
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_any_number_of_microbatches_can_be_shared_out(num_replicas, m):
    table = greedy(stage_to_rank=v_shape(4, 4 * num_replicas), num_microbatches=m, num_replicas=num_replicas)
    assert check(table).errors == []
    assert [int((table.chain_of_unit == chain).sum()) for chain in range(num_replicas)] == [
        -(-(chain + 1) * m // num_replicas) + chain * m // -num_replicas for chain in range(num_replicas)
    ]


@pytest.mark.parametrize(
    ("text", "counts", "rule", "words"),
    [
        (CHAINS, {}, "replicas", "a table of 2 replicas: each chain of 2 stages runs microbatches of its own; read it as such"),
        (CHAINS, {"num_replicas": 3}, "replicas", "4 stages cannot be divided into 3 model replicas of equal length"),
        (CHAINS, {"num_replicas": 4}, "replicas", "2 microbatches leave a chain of 4 without any"),
        ("0F0,0B0,1F1,1B1\n", {"num_replicas": 2}, None, ""),
        ("0F1,0B1,1F0,1B0\n", {"num_replicas": 2}, "replicas", "0F1 crosses over: stage 0 belongs to chain 0, microbatch 1 to chain 1"),
        (CHAINS.replace("1F0,", ""), {"num_replicas": 2}, "complete", "1F0 is missing; stage 1 is on rank 1"),
        (CHAINS.replace(",3B1", ""), {"num_replicas": 2}, "complete", "3B1 is missing (or 3I1 and 3W1); stage 3 is on rank 0"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n", {"num_slices": 2}, "order", "rank 0 runs 0B0 before 0B1, which it needs"),
        ("0F1,0F0,0B1,0B0\n1F0,1F1,1B1,1B0\n", {"num_slices": 2}, "order", "rank 0 runs 0F1 before 0F0, which it needs"),
        (SLICED, {"num_slices": 3}, "microbatch-ids", "microbatch 2 occurs nowhere; with 2 as the largest, microbatches must be numbered 0 … 2 in 3 slices"),
        # Of three microbatches, two chains take two and one.
        ("0F0,0B0,1F2,1F1,1B1,1B2\n", {"num_replicas": 2}, "replicas", "1F1 crosses over"),
        ("0F0,0F1,0B0,0B1,1F3,1F2,1B2,1B3\n", {"num_replicas": 2}, "loss-order", "the last stage forwards microbatch 3 before 2"),
    ],
)  # fmt: skip
def test_what_breaks_a_chain_or_the_order_of_slices_is_named(text, counts, rule, words):
    errors = check(parse_table(text, **counts)).errors
    assert [error.rule for error in errors[:1]] == ([rule] if rule else [])
    assert not rule or words in errors[0].message


def test_a_replica_read_as_one_chain_is_not_taken_for_an_incomplete_table():
    table = build("dualpipe", pp=4, microbatches=8)
    with pytest.raises(ScheduleError, match=r"a table of 2 replicas.*--replicas 2.*torch, which holds one chain"):
        validate(parse_table(format_table(table)))
    assert parse_table(format_table(table), num_replicas=2) == table
    assert replace(table, num_replicas=1) != table


def test_torch_is_said_to_hold_neither_and_its_other_warnings_are_left_out():
    for name, words in (
        ("dualpipe", "this table has 2 replicas of the model"),
        ("seq1f1b", "cuts each into 4 slices"),
    ):
        (warning,) = check(build(name, pp=4, microbatches=8)).findings
        assert (warning.severity, warning.rule) == ("warning", "torch")
        assert words in warning.message


@given(tables())
def test_each_stage_reduces_its_gradients_once_behind_its_last_weight_gradient(table):
    lowered = lower(table)
    for stage in range(table.num_stages):
        of_stage = lowered.op[lowered.stage == stage]
        (place,) = (of_stage == Op.REDUCE_GRAD).nonzero()[0]
        assert not {Op.B, Op.W} & {Op(op) for op in of_stage[place:].tolist()}


def test_a_table_says_how_many_replicas_and_slices_it_holds():
    assert repr(build("dualpipe", pp=2, microbatches=4)) == (
        "Schedule('dualpipe', pp=2, vpp=2, microbatches=4, replicas=2, 18 actions)"
    )
    assert "microbatches=2, slices=4, " in repr(build("seq1f1b", pp=2, microbatches=2))


@pytest.mark.parametrize("counts", [{"num_replicas": 0}, {"num_slices": 0}])
def test_no_replica_and_no_slice_are_refused(counts):
    with pytest.raises(ScheduleError, match="replicas and slices must be at least 1"):
        parse_table(CHAINS, **counts)


def test_rows_may_hold_more_units_than_the_microbatches_named():
    table = Schedule.from_rows(parse_table(SLICED).rows(), num_microbatches=1)
    assert check(table).errors[0].message == "microbatch 1 is one too many: there are 1, numbered from 0"


def test_a_csv_of_slices_names_their_number_and_an_option_that_differs_is_refused(tmp_path):
    table = build("seq1f1b", pp=2, microbatches=3, num_slices=2)
    path = tmp_path / "T.csv"
    path.write_text(format_table(table))
    assert path.read_text().startswith("# slices 2\n0F0,")
    assert read_schedule(path) == read_schedule(path, num_slices=2) == table
    with pytest.raises(ScheduleError, match=r"T\.csv is a table of 2 slices per microbatch: got 4"):
        read_schedule(path, num_slices=4)
    rows = format_table(table).split("\n", 1)[1]
    assert parse_table(rows, num_slices=2) == table
    assert parse_table(rows).num_microbatches == 6
    with pytest.raises(ScheduleError, match=r"row 2 \(rank 0\), column 1: '0X0' is no action"):
        parse_table("# slices 2\n0X0\n")
    with pytest.raises(ScheduleError, match=r"row 1 \(rank 0\), column 1: '# slices 0' is no action"):
        parse_table("# slices 0\n0F0,0B0\n")
