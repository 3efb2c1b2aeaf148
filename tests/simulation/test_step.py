"""A step around its pipeline: closed forms of what is exposed, and what holds for any table."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim import StageCosts, build
from ppsim.base.errors import ConfigError
from ppsim.schedule.rounds import repeat_rounds
from ppsim.simulation import step as step_module
from ppsim.simulation.idle_causes import idle_by_cause_s
from ppsim.simulation.step import SharedGradients, StepCosts, between_rounds_s, simulate_step
from tests.defaults import field_defaults

ONE = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


def test_with_nothing_around_it_a_step_is_its_pipeline() -> None:
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    step = simulate_step(table, ONE, StepCosts())
    assert step.time_s == step.timeline.step_time_s == 33.0
    assert not step.pieces
    assert set(step.exposed_s.values()) == {0.0}


def test_1f1b_hides_the_reduction_of_all_ranks_but_the_first() -> None:
    """Rank r is done r backwards before rank 0: a reduction of 2 there hides from rank 1 on (B = 2)."""
    step = simulate_step(ppsim.build("1f1b", pp=4, microbatches=8), ONE, StepCosts(reduce_s=2.0))
    assert step.time_s == 33.0 + 2.0
    assert step.exposed_s["reduce"] == 2.0
    only_last = simulate_step(
        ppsim.build("1f1b", pp=4, microbatches=8), ONE, StepCosts(reduce_s=[0, 2.0, 4.0, 6.0])
    )
    assert only_last.time_s == 33.0


def test_deferred_weight_gradients_of_the_last_rank_are_hidden_by_the_cool_down() -> None:
    """Rank 3 is done 3 backwards of 2 before rank 0. What remains is exposed, and a reduction does not wait for it."""
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    for deferred_s, exposed_s in ((6.0, 0.0), (7.5, 1.5)):
        step = simulate_step(table, ONE, StepCosts(deferred_s=[0, 0, 0, deferred_s]))
        assert step.time_s == 33.0 + exposed_s
        assert step.exposed_s.get("deferred", 0.0) == exposed_s
        piece = next(one for one in step.pieces if one.kind == "deferred")
        assert (piece.rank, piece.start_s, piece.end_s) == (3, 27.0, 27.0 + deferred_s)
    twice = simulate_step(table, ONE.scaled(2.0), StepCosts(deferred_s=[0, 0, 0, 7.5]).scaled(2.0))
    assert twice.time_s == 2 * 34.5


def test_buckets_are_reduced_within_the_last_backward() -> None:
    """Of k buckets reduced in R beside a backward of d, R − min(d, R)(1 − 1/k) is left behind it."""
    table = ppsim.build("1f1b", pp=1, microbatches=3)
    for reduce_s, k, left in ((4.0, 1, 4.0), (4.0, 2, 3.0), (4.0, 4, 2.5), (1.0, 4, 0.25)):
        step = simulate_step(table, ONE, StepCosts(reduce_s=reduce_s, num_buckets=k))
        assert step.exposed_s["reduce"] == pytest.approx(left)
    unhidden = simulate_step(table, ONE, StepCosts(reduce_s=4.0, num_buckets=4, overlap_reduce=False))
    assert unhidden.exposed_s["reduce"] == 4.0


def test_a_forward_starts_with_its_first_bucket_gathered() -> None:
    """Of k buckets gathered in G before a forward of f, G − min(f, G)(1 − 1/k) passes before it starts."""
    table = ppsim.build("1f1b", pp=1, microbatches=3)
    for gather_s, k, waited in ((3.0, 1, 3.0), (3.0, 2, 2.5), (0.5, 5, 0.1)):
        step = simulate_step(table, ONE, StepCosts(gather_s=gather_s, num_buckets=k))
        assert step.exposed_s["gather"] == pytest.approx(waited)


def test_interleaving_overlaps_the_reduction_of_the_later_chunk_with_the_backwards_of_the_earlier() -> None:
    """Of two chunks per rank, only that of the first chunk's gradients is left behind the last backward."""
    table = ppsim.build("interleaved-1f1b", pp=2, vpp=2, microbatches=8)
    both = simulate_step(table, ONE, StepCosts(reduce_s=1.0))
    neither = simulate_step(table, ONE, StepCosts(reduce_s=1.0, overlap_reduce=False))
    assert both.exposed_s["reduce"] == 1.0
    assert neither.exposed_s["reduce"] == 2.0


def test_gathering_holds_back_the_first_forward_of_each_stage_alone() -> None:
    """Rank r gathers from 0 on, beside the pipeline: only rank 0's gathering is seen, g, when g ≤ F."""
    step = simulate_step(ppsim.build("1f1b", pp=4, microbatches=8), ONE, StepCosts(gather_s=0.5))
    assert step.time_s == 33.5
    assert step.exposed_s["gather"] == 0.5
    slow = simulate_step(ppsim.build("1f1b", pp=2, microbatches=4), ONE, StepCosts(gather_s=[0.0, 3.0]))
    assert slow.time_s == 15.0 + 2.0, "stage 1 could have started at 1"
    assert idle_by_cause_s(slow.timeline)["exposed_communication"][1] == pytest.approx(3.0)


def test_post_validated_ranks_wait_for_nobody() -> None:
    """ZB-H2's span is m(F + I + W) + (p − 1)F less what its ranks start apart; no norm is waited for."""
    table = ppsim.build("zb-h2", pp=4, microbatches=12)
    waits = simulate_step(table, ONE, StepCosts(optimizer_s=1.0, norm_s=0.5))
    goes_on = simulate_step(table, ONE, StepCosts(optimizer_s=1.0, norm_s=0.5, update="post-validated"))
    assert waits.time_s == waits.timeline.step_time_s + 1.5
    assert goes_on.time_s == goes_on.timeline.span_s + 1.0
    assert goes_on.exposed_s["norm"] == 0.0


@pytest.mark.parametrize("update", ["synchronised", "post-validated"])
def test_what_is_seen_of_gathering_is_the_same_in_either_kind_of_update(update: str) -> None:
    """On one rank of two stages G₀ − min(G₀, F)(1 − 1/k) with overlap, or G₀ + G₁ − F if that is more; else G₀ + G₁."""
    table = ppsim.build("interleaved-1f1b", pp=1, vpp=2, microbatches=4)
    for gather_s, buckets, overlap, seen in (
        ([2.0, 0.5], 1, True, 2.0),
        ([2.0, 0.5], 4, True, 2.0 - 0.75),
        ([2.0, 0.5], 4, False, 2.5),
        ([0.5, 9.0], 1, True, 0.5 + 9.0 - 1.0),
    ):
        around = StepCosts(gather_s=gather_s, num_buckets=buckets, overlap_gather=overlap, update=update)
        assert simulate_step(table, ONE, around).time_s == pytest.approx(4 * 2 * 3.0 + seen)


def test_a_late_rank_gathers_before_its_first_forward_arrives() -> None:
    """Post-validated, the step is the longest rank's, from where it must begin to gather: here rank 0's 33, not more."""
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    for gather_s, seen in (([0, 0, 0, 3.0], 0.0), ([0, 0, 0, 5.0], 2.0), ([0.5, 0, 0, 0], 0.5)):
        step = simulate_step(table, ONE, StepCosts(gather_s=gather_s, update="post-validated"))
        assert step.time_s == 33.0 + seen


def test_tied_embeddings_wait_for_both_ends() -> None:
    step = simulate_step(
        ppsim.build("1f1b", pp=4, microbatches=8),
        ONE,
        StepCosts(sharing=(SharedGradients((0, 3), 0.25),), rest_s=1.0),
    )
    assert [(piece.rank, piece.start_s, piece.end_s) for piece in step.pieces] == [
        (0, 33.0, 33.25),
        (3, 33.0, 33.25),
    ]
    assert step.time_s == 33.0 + 0.25 + 1.0
    assert step.exposed_s["share"] == 0.25
    assert step.exposed_s["rest"] == 1.0


times = st.floats(0.0, 3.0)


@given(
    name=st.sampled_from(["1f1b", "zb-h1", "interleaved-1f1b", "zbv-fixed", "zb-h2"]), pp=st.integers(1, 4),
    gathers=st.lists(times, min_size=8, max_size=8), reduces=st.lists(times, min_size=8, max_size=8), norm=times,
    buckets=st.integers(1, 5), overlaps=st.tuples(st.booleans(), st.booleans()), optimizer=times, host=st.sampled_from([0.0, 0.25, 2.0]),
)  # fmt: skip
def test_post_validated_is_never_slower_than_synchronised(
    name: str, pp: int, gathers: list[float], reduces: list[float], norm: float, buckets: int,
    overlaps: tuple[bool, bool], optimizer: float, host: float,
) -> None:  # fmt: skip
    """No rank waits for another, so that each is done no later; alone, a rank waits for nobody in either."""
    table = ppsim.build(name, pp=pp, vpp=2 if name in ("interleaved-1f1b", "zbv-fixed") else None, microbatches=8)
    around = StepCosts(
        gather_s=gathers[: table.num_stages], reduce_s=reduces[: table.num_stages], norm_s=norm, num_buckets=buckets,
        overlap_gather=overlaps[0], overlap_reduce=overlaps[1], optimizer_s=np.arange(pp) * optimizer,
    )  # fmt: skip
    waiting, going_on = (
        simulate_step(table, ONE.replace(action_overhead_s=host), StepCosts(**{**vars(around), "update": update}))
        for update in ("synchronised", "post-validated")
    )
    assert going_on.time_s <= waiting.time_s - norm + 1e-9
    assert going_on.time_s >= going_on.timeline.span_s - 1e-9
    if pp == 1:
        assert going_on.time_s == pytest.approx(waiting.time_s - norm)


@given(
    name=st.sampled_from(["1f1b", "zb-h1", "interleaved-1f1b", "zbv-fixed", "chimera"]),
    pp=st.sampled_from([2, 4]), gather=times, reduce=times, norm=times, optimizer=times, rest=times,
    share=times, overlaps=st.tuples(st.booleans(), st.booleans()), update=st.sampled_from(["synchronised", "post-validated"]),
)  # fmt: skip
def test_parts_sum_to_the_step_and_none_is_negative(
    name: str, pp: int, gather: float, reduce: float, norm: float, optimizer: float, rest: float, share: float,
    overlaps: tuple[bool, bool], update: str,
) -> None:  # fmt: skip
    vpp = 2 if name in ("interleaved-1f1b", "zbv-fixed") else None
    table = ppsim.build(name, pp=pp, vpp=vpp, microbatches=8)
    around = StepCosts(
        gather_s=gather, reduce_s=reduce, norm_s=norm, optimizer_s=np.arange(pp) * optimizer, rest_s=rest,
        sharing=(SharedGradients((0, pp - 1), share),), overlap_gather=overlaps[0], overlap_reduce=overlaps[1],
        update=update,
    )  # fmt: skip
    step = simulate_step(table, ONE, around)
    timeline = step.timeline
    assert min(step.exposed_s.values()) >= 0
    if update == "synchronised":
        assert step.time_s == pytest.approx(timeline.step_time_s + sum(step.exposed_s.values()))
    else:
        assert (
            step.time_s
            <= simulate_step(table, ONE, StepCosts(**{**vars(around), "update": "synchronised"})).time_s + 1e-9
        )
    assert all(piece.end_s >= piece.start_s for piece in step.pieces)
    for rank in range(pp):
        mine = sorted((piece.start_s, piece.end_s) for piece in step.pieces if piece.rank == rank)
        assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in pairwise(mine))


def test_times_that_do_not_fit_the_table_are_refused() -> None:
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    with pytest.raises(ConfigError, match="reduce_s has 3 entries, but the schedule has 4 stages"):
        simulate_step(table, ONE, StepCosts(reduce_s=[1.0, 1.0, 1.0]))
    with pytest.raises(ConfigError, match="optimizer_s holds -1; times are not negative"):
        simulate_step(table, ONE, StepCosts(optimizer_s=-1.0))


def test_a_slow_rank_adds_its_share_of_the_busiest_rank_not_of_the_mean() -> None:
    """Two stages, 3 microbatches of F + B: 9 s of compute on rank 0 and 18 s on rank 1."""
    twice = ppsim.StageCosts(forward_s=[1.0, 2.0], backward_input_s=[1.0, 2.0], backward_weight_s=[1.0, 2.0])
    table = ppsim.build("1f1b", pp=2, microbatches=3)
    usual, slow = (simulate_step(table, twice, StepCosts(slow_rank=part)) for part in (0.0, 0.1))
    assert slow.exposed_s["slow rank"] == pytest.approx(1.8)
    assert slow.time_s == pytest.approx(usual.time_s + 1.8)


@pytest.mark.parametrize("update", ["synchronised", "post-validated"])
def test_host_time_before_the_first_forward_is_no_time_of_gathering(update: str) -> None:
    """A rank gathers for 2 s; the first 0.25 s are the host's, which the pipeline would take without gathering."""
    table, costs = ppsim.build("1f1b", pp=1, microbatches=3), ONE.replace(action_overhead_s=0.25)
    step = simulate_step(table, costs, StepCosts(gather_s=2.0, update=update))
    assert step.exposed_s["gather"] == pytest.approx(2.0 - 0.25)


def test_a_step_without_further_costs_hides_what_it_has() -> None:
    defaults = field_defaults(StepCosts)
    kept = {"num_buckets": 1.0, "overlap_gather": True, "overlap_reduce": True, "update": "synchronised"}
    assert {name: value for name, value in defaults.items() if value != 0.0} == kept
    assert len(defaults) == 13


def test_scaled_costs_of_a_step_leave_the_host_and_stragglers() -> None:
    costs = StepCosts(
        gather_s=[1.0, 2.0], reduce_s=3.0, deferred_s=5.0, norm_s=7.0, optimizer_s=[11.0, 13.0], rest_s=17.0,
        straggling=0.25, slow_rank=0.5, deferred_ideal_s=19.0, sharing=(SharedGradients((0, 1), 23.0),),
    )  # fmt: skip
    found = costs.scaled(2.0)
    assert np.asarray(found.gather_s).tolist() == [2.0, 4.0]
    assert np.asarray(found.optimizer_s).tolist() == [22.0, 26.0]
    assert (float(found.reduce_s), float(found.deferred_s), found.norm_s) == (6.0, 10.0, 14.0)
    assert (found.rest_s, found.straggling, found.slow_rank, found.deferred_ideal_s) == (17.0, 0.25, 0.5, 19.0)
    assert found.sharing == (SharedGradients((0, 1), 46.0),)


@pytest.mark.parametrize(
    ("rounds", "costs", "seconds"),
    [
        (1, {"gather_s": 1.0, "reduce_s": 2.0}, 0.0), (2, {}, 0.0), (2, {"gather_s": 1.0, "reduce_s": 2.0}, 3.0),
        (2, {"gather_s": 1.0}, 1.0), (2, {"reduce_s": 2.0}, 2.0), (3, {"gather_s": 1.0, "reduce_s": 2.0}, 3.0),
    ],
)  # fmt: skip
def test_rounds_wait_for_reductions_and_gathers_between_them(
    rounds: int, costs: dict[str, float], seconds: float
) -> None:
    table = (
        repeat_rounds(build("1f1b", pp=2, microbatches=4), rounds)
        if rounds > 1
        else build("1f1b", pp=2, microbatches=4)
    )
    unit = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    assert between_rounds_s(table, unit, StepCosts(**costs)) == seconds


def test_gathers_of_a_rank_follow_each_other_in_buckets() -> None:
    """Rank 0 gathers stages 0 and 2: 3 s in 3 buckets, then 4 s in one; forwards of 1 s need only a first bucket."""
    table, pieces = build("interleaved-1f1b", pp=2, vpp=2, microbatches=2), []
    gather_s, buckets = np.array([3.0, 5.0, 4.0, 6.0]), np.array([3.0, 5.0, 1.0, 2.0])
    found = step_module._gathered(table, gather_s, buckets, np.ones(4), pieces, overlap=True)
    assert found.tolist() == pytest.approx([3 - 2 / 3, 5 - 4 / 5, 7.0, 11 - 1 / 2])
    assert [(one.rank, one.kind, one.stage, one.start_s, one.end_s) for one in pieces] == [
        (0, "gather", 0, 0.0, 3.0), (0, "gather", 2, 3.0, 7.0), (1, "gather", 1, 0.0, 5.0), (1, "gather", 3, 5.0, 11.0),
    ]  # fmt: skip
    found = step_module._gathered(table, gather_s, buckets, np.ones(4), [], overlap=False)
    assert found.tolist() == [7.0, 11.0, 7.0, 11.0]
    long = step_module._gathered(table, gather_s, buckets, np.full(4, 90.0), [], overlap=True)
    assert long.tolist() == pytest.approx([3 - 2, 5 - 4, 7.0, 11 - 3])


def test_gradients_are_shared_when_the_last_of_a_group_is_reduced() -> None:
    pieces: list[Any] = []
    groups = (SharedGradients((0, 2), 5.0), SharedGradients((1, 2), 7.0))
    found = step_module._shared(np.array([1.0, 2.0, 4.0]), groups, pieces)
    assert found.tolist() == [9.0, 16.0, 16.0]
    assert [(one.rank, one.kind, one.stage, one.start_s, one.end_s) for one in pieces] == [
        (0, "share", -1, 4.0, 9.0), (2, "share", -1, 4.0, 9.0), (1, "share", -1, 9.0, 16.0), (2, "share", -1, 9.0, 16.0),
    ]  # fmt: skip


def test_everything_around_the_pipeline_of_one_rank_by_hand() -> None:
    """12 s of two microbatches, then 5 s of deferred W next to 2 s of reduction, 7 s of the norm, 11 s of Adam."""
    unit = StageCosts(forward_s=1.0, backward_input_s=2.0, backward_weight_s=3.0)
    around = StepCosts(
        gather_s=0.5, reduce_s=2.0, overlap_reduce=False, deferred_s=5.0, norm_s=7.0, optimizer_s=11.0, rest_s=13.0,
        straggling=0.25, slow_rank=0.5,
    )  # fmt: skip
    found = simulate_step(build("1f1b", pp=1, microbatches=2), unit, around)
    assert found.timeline.step_time_s == 12
    assert found.exposed_s == {
        "gather": 0.5, "deferred": 5.0, "reduce": 0.0, "share": 0.0, "norm": 7.0, "optimizer": 11.0, "rest": 13.0,
        "stragglers": 3.0, "slow rank": 6.0,
    }  # fmt: skip
    assert found.time_s == 0.5 + 12 + 5 + 7 + 11 + 13 + 3 + 6
    assert [(one.rank, one.kind, one.stage, one.start_s, one.end_s) for one in found.pieces] == [
        (0, "gather", 0, 0.0, 0.5), (0, "reduce", 0, 12.5, 14.5), (0, "deferred", -1, 12.5, 17.5), (0, "norm", -1, 17.5, 24.5),
        (0, "optimizer", -1, 24.5, 35.5),
    ]  # fmt: skip
    assert {name: seconds.tolist() for name, seconds in found.exposed_by_rank_s.items()} == {
        "gather": [0.5], "deferred": [5.0], "reduce": [0.0], "share": [0.0], "norm": [7.0], "optimizer": [11.0],
    }  # fmt: skip


def test_each_round_reduces_its_own_gradients_and_gathers_again() -> None:
    unit = StageCosts(forward_s=1.0, backward_input_s=2.0, backward_weight_s=3.0)
    table = repeat_rounds(build("1f1b", pp=1, microbatches=2), 2)
    around = StepCosts(gather_s=0.5, reduce_s=2.0, overlap_reduce=False)
    found = simulate_step(table, unit, around)
    reduces = [(one.start_s, one.end_s) for one in found.pieces if one.kind == "reduce"]
    gathers = [(one.start_s, one.end_s) for one in found.pieces if one.kind == "gather"]
    assert (reduces, gathers) == ([(12.5, 14.5), (24.5, 26.5)], [(0.0, 0.5), (14.5, 15.0)])


@pytest.mark.parametrize(
    ("reduce_s", "between_s"), [([0.0, 2.0], 0.0), ([0.0, 3.0], 0.0), ([0.0, 4.0], 1.0), ([2.0, 0.0], 2.0)]
)
def test_rounds_wait_for_the_rank_that_takes_longest(reduce_s: list[float], between_s: float) -> None:
    """A round takes 15 s on rank 0 and 12 s on rank 1; a reduction there matters from 3 s on."""
    table = repeat_rounds(build("1f1b", pp=2, microbatches=4), 2)
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    assert between_rounds_s(table, costs, StepCosts(reduce_s=reduce_s, overlap_reduce=False)) == between_s
