"""The cost-aware zero-bubble scheduler: within its cap, never worse than what it starts from, optimal where provable."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.heuristics import zbv_heuristic
from ppsim import StageCosts, build, check, simulate
from ppsim.base.errors import ConfigError
from ppsim.catalog.build import find, optimise_entry
from ppsim.catalog.search import best_table as best_table_module
from ppsim.catalog.search.best_table import best_table
from ppsim.catalog.search.lists import list_schedules
from ppsim.catalog.search.target import SearchTarget
from ppsim.schedule.placement import loop
from ppsim.simulation.bounds.problem import Problem
from tests.defaults import number_defaults
from tests.exact import criterion_value_s, fits, starts_of
from tests.fitting import in_a_v, one_chunk

SCORES = {"span": "span_s", "step": "step_time_s"}
seconds = st.integers(0, 1000).map(lambda x: x / 100)


@st.composite
def problems(draw, per_rank=1):
    """Arguments of `one_chunk` (or `in_a_v`) with uneven stages, and the same costs for the simulator."""
    p, m = draw(st.integers(1, 6 // per_rank)), draw(st.integers(1, 12 // per_rank))

    def per_stage(values):
        return draw(st.lists(values, min_size=per_rank * p, max_size=per_rank * p))

    activation = per_stage(st.integers(1, 1000))
    kept = [draw(st.integers(0, size)) for size in activation]
    whole = np.array(activation) if per_rank == 1 else np.array(activation[:p]) + activation[: -p - 1 : -1]
    caps = [size * draw(st.integers(4, 8 * p + 4)) // 4 for size in whole.tolist()]
    timed = {
        "forward_s": per_stage(seconds.map(lambda x: x + 0.01)),
        "backward_input_s": per_stage(seconds),
        "backward_weight_s": per_stage(seconds),
        "transfer_s": per_stage(st.sampled_from([0.0, 0.1, 0.5, 2.0])),
    }
    arguments = {
        "num_ranks": p,
        "num_microbatches": m,
        "activation": activation,
        "activation_kept_for_weight": kept,
        "cap": caps,
        **timed,
    }
    return arguments, StageCosts(**timed, activation_bytes=activation, activation_bytes_kept_for_weight=kept)


@given(problems(), st.sampled_from(list(SCORES)))
@settings(deadline=None)
def test_it_runs_within_its_cap(problem, criterion):
    arguments, costs = problem
    table = best_table(one_chunk(**arguments), criterion=criterion)
    assert check(table).errors == []
    assert (simulate(table, costs).memory.peak_activation_bytes <= np.array(arguments["cap"])).all()


@given(problems(), st.sampled_from(list(SCORES)))
@settings(deadline=None)
def test_it_is_never_worse_than_zb_h1_and_zb_h2_where_the_cap_admits_them(problem, criterion):
    arguments, costs = problem
    for name in ("zb-h1", "zb-h2"):
        theirs = simulate(build(name, pp=arguments["num_ranks"], microbatches=arguments["num_microbatches"]), costs)
        caps = theirs.memory.peak_activation_bytes  # just enough for it
        ours = simulate(best_table(one_chunk(**(arguments | {"cap": caps})), criterion=criterion), costs)
        assert getattr(ours, SCORES[criterion]) <= getattr(theirs, SCORES[criterion]) * (1 + 1e-9)
        assert (ours.memory.peak_activation_bytes <= caps).all()


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("costs", [(1, 1, 1, 0), (3, 4, 2, 0), (297, 294, 199, 5), (3, 2.5, 0.7, 0.1)])
def test_with_a_cap_of_p_it_is_optimal_and_equal_to_zb_h1(p, costs):
    # The windows before the first and after the last input gradient on rank 0 bound the idle time of every
    # schedule that holds p microbatches from F to W (W ≤ F + 2c, m > p, W ≥ 2c).
    F, I, W, c = costs
    for m in (p + 1, 2 * p, 4 * p):
        for criterion, score in SCORES.items():
            problem = one_chunk(
                num_ranks=p, num_microbatches=m, forward_s=F, backward_input_s=I, backward_weight_s=W,
                transfer_s=c, cap=p,
            )  # fmt: skip
            table = best_table(problem, criterion=criterion)
            timeline = simulate(
                table,
                StageCosts(forward_s=F, backward_input_s=I, backward_weight_s=W, transfer_s=c, activation_bytes=1),
            )
            assert getattr(timeline, score) == pytest.approx(m * (F + I + W) + (p - 1) * (F + I - W + 4 * c))
            assert timeline.memory.peak_activation_bytes.max() <= p


@pytest.mark.search
@given(problems(), st.sampled_from(list(SCORES)))
@settings(deadline=None, max_examples=5)
def test_plain_and_compiled_give_the_same_table(problem, criterion):
    arguments, _ = problem
    tables = [
        best_table(one_chunk(**arguments), criterion=criterion, engine=engine) for engine in ("plain", "compiled")
    ]
    assert tables[0] == tables[1]


@given(problems(per_rank=2), st.sampled_from(list(SCORES)))
@settings(deadline=None, max_examples=25)
def test_in_a_v_it_runs_within_its_cap_and_never_behind_what_is_published(problem, criterion):
    arguments, costs = problem
    ours = best_table(in_a_v(**arguments), criterion=criterion)
    assert check(ours).errors == []
    timeline = simulate(ours, costs)
    assert (timeline.memory.peak_activation_bytes <= np.array(arguments["cap"]) + 1e-6).all()
    shape = {"pp": arguments["num_ranks"], "microbatches": arguments["num_microbatches"]}
    published = [build(name, **shape) for name in ("zbv-fixed", "v-half-fixed", "v-min-fixed")]
    if heuristic := zbv_heuristic(in_a_v(**arguments)):
        published.append(heuristic)
    for table in published:
        theirs = simulate(table, costs)
        if (theirs.memory.peak_activation_bytes <= arguments["cap"]).all():
            assert getattr(timeline, SCORES[criterion]) <= getattr(theirs, SCORES[criterion]) * (1 + 1e-9)


def test_in_a_v_plain_and_compiled_give_the_same_table():
    seconds = {
        "forward_s": [3, 2, 4, 3],
        "backward_input_s": [3, 3, 2, 5],
        "backward_weight_s": 1.5,
        "transfer_s": 0.3,
    }
    problem = in_a_v(num_ranks=2, num_microbatches=3, cap=4, **seconds)
    assert best_table(problem, engine="plain") == best_table(problem, engine="compiled")


def test_uneven_stages_gain_over_zb_h1():
    stages = [1.6, 1.0, 1.0, 1.0]
    seconds = {
        "forward_s": stages, "backward_input_s": stages, "backward_weight_s": [0.64, 0.4, 0.4, 0.4], "transfer_s": 0.2,
    }  # fmt: skip
    tables = (
        build("zb-h1", pp=4, microbatches=12),
        best_table(one_chunk(num_ranks=4, num_microbatches=12, cap=6, **seconds)),
    )
    zb_h1, ours = (simulate(table, StageCosts(**seconds, activation_bytes=1)) for table in tables)
    assert ours.step_time_s < 0.97 * zb_h1.step_time_s


def test_no_cap_is_a_cap_of_infinity():
    unit = {"forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}
    for place in (one_chunk, in_a_v):
        assert check(best_table(place(num_ranks=3, num_microbatches=5, cap=np.inf, **unit))).errors == []


@pytest.mark.parametrize("activation", [0, 1])
def test_costs_of_nothing_still_give_a_whole_table(activation):
    nothing = {"forward_s": 0, "backward_input_s": 0, "backward_weight_s": 0, "activation": activation, "cap": 2}
    for place in (one_chunk, in_a_v):
        assert check(best_table(place(num_ranks=3, num_microbatches=5, **nothing))).errors == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"cap": 0.5}, r"cap of 0.5 on rank 0 holds no microbatch.*\(smallest cap for all ranks: 1\)"),
        ({"cap": [4, 1], "activation": [1, 2]}, r"cap of 1 on rank 1 holds no microbatch: one needs 2 there .*ranks: 2\)"),
        ({"forward_s": [1, 2, 3]}, "forward_s has 3 entries: give one number, or 2"),
        ({"transfer_s": -1}, "transfer_s holds -1"),
        ({"activation_kept_for_weight": 2}, "activation_kept_for_weight is 2"),
        ({"num_microbatches": 0}, "num_microbatches"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_the_nearest_fix(changed, sentence):
    arguments = {
        "num_ranks": 2, "num_microbatches": 4, "forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1, "cap": 2,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=sentence):
        best_table(one_chunk(**(arguments | changed)))


def test_an_unknown_criterion_is_refused():
    problem = one_chunk(num_ranks=2, num_microbatches=4, forward_s=1, backward_input_s=1, backward_weight_s=1)
    with pytest.raises(ConfigError, match="criterion is 'time'; choose one of step, span"):
        best_table(problem, criterion="time")


@pytest.mark.parametrize("criterion", list(SCORES))
def test_with_three_stages_a_rank_and_little_memory_no_decision_ends_in_a_deadlock(criterion):
    # Forwards of the first stage must leave room for those of the last beside what the second holds.
    weights = [0.0] * 11 + [0.1]
    problem = Problem.of(
        stage_to_rank=loop(4, 12),
        num_microbatches=6,
        forward_s=0,
        backward_input_s=0,
        backward_weight_s=weights,
        cap=6,
    )
    assert check(best_table(problem, criterion=criterion)).errors == []


@st.composite
def looped(draw):
    """Problems of up to four stages per rank in a loop, from the least memory on."""
    p, vpp = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    times = {
        name: draw(st.lists(seconds, min_size=p * vpp, max_size=p * vpp))
        for name in ("forward_s", "backward_input_s", "backward_weight_s")
    }
    cap = draw(st.integers(vpp, 3 * vpp))
    return Problem.of(stage_to_rank=loop(p, p * vpp), num_microbatches=draw(st.integers(1, 6)), cap=cap, **times)


@given(looped(), st.sampled_from(list(SCORES)))
@settings(deadline=None, max_examples=40)
def test_with_several_stages_a_rank_it_runs_within_its_cap(problem, criterion):
    table = best_table(problem, criterion=criterion)
    assert check(table).errors == []
    assert fits(table, problem)


@given(
    st.one_of(
        looped(),
        problems().map(lambda drawn: one_chunk(**drawn[0])),
        problems(2).map(lambda drawn: in_a_v(**drawn[0])),
    )
)
@settings(deadline=None, max_examples=40)
def test_the_searches_kernel_times_and_holds_a_table_as_the_simulator_does(problem):
    for candidate in islice(list_schedules(SearchTarget(problem)), 4):
        table = candidate.schedule("candidate")
        starts = starts_of(table, problem)
        by_op = np.stack([problem.forward_s, problem.backward_s, problem.input_s, problem.weight_s])
        ends = starts + by_op[table.op, table.stage]
        again = candidate.target.timed(candidate.order)
        assert again is not None
        assert again.end_s.tolist() == ends[table.rank_offsets[1:] - 1].tolist()
        assert candidate.fits == fits(table, problem)
        for criterion in SCORES:
            timed = replace(again, target=again.target.minimising(criterion))
            assert timed.score_s == pytest.approx(criterion_value_s(table, problem, criterion), abs=1e-9)


@pytest.mark.parametrize(
    ("p", "m", "at_most"),
    [(16, 16, 278.5), pytest.param(16, 64, 857.5, marks=pytest.mark.long)],  # a projection has 284 and 860
)
@pytest.mark.search
def test_the_longer_search_improves_tables_of_more_than_768_actions(p, m, at_most):
    costs = StageCosts(forward_s=1.5, backward_input_s=2, backward_weight_s=1)
    shape = {"pp": p, "microbatches": m, "costs": costs}
    short = simulate(optimise_entry(find("v-min"), **shape)[0], costs).step_time_s
    table = optimise_entry(find("v-min"), **shape, is_thorough=True)[0]
    assert simulate(table, costs).step_time_s <= at_most < short


def test_what_is_left_out_in_catalog_best_table_has_these_values() -> None:
    assert number_defaults(best_table_module) == {
        "local_search": {"seed": 0},
        "best_table": {"is_thorough": False},
        "tables_without_end": {"seed": 0},
    }  # fmt: skip
