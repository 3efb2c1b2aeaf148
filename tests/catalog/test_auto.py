"""`build auto`: within the memory, never behind the catalogue, at the optimum of small cases, honest about the rest."""

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import Op, StageCosts, build, check, simulate
from ppsim.base import numba_jit as compiling
from ppsim.base.errors import ConfigError, DoesNotFit, ScheduleError
from ppsim.catalog import auto
from ppsim.catalog import auto as auto_module
from ppsim.catalog import search_cache as answers
from ppsim.catalog.auto import optimise
from ppsim.catalog.build import TABLES, every_schedule, find, optimise_entry
from ppsim.catalog.search.best_table import SearchTimeout, tables_without_end
from ppsim.catalog.search.target import SearchTarget
from ppsim.schedule.analysis_cache import KEPT
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.placement import STYLES
from ppsim.simulation.bounds.for_table import bounds_of, problem_of
from tests.defaults import number_defaults
from tests.exact import optimal

UNIT = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=1)
SCORES = {"span": "span_s", "step": "step_time_s"}
tenths = st.integers(0, 40).map(lambda x: x / 10)


@st.composite
def searches(draw):
    """Arguments of `optimise` but for the time: any placement, uneven stages, overheads, channels, memory limits."""
    pp, vpp, m = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    placement = draw(st.sampled_from(list(STYLES)))

    def per_stage(values):
        return draw(st.lists(values, min_size=pp * vpp, max_size=pp * vpp))

    activation = per_stage(st.integers(1, 9))
    static = draw(st.lists(st.integers(0, 5), min_size=pp, max_size=pp))
    costs = StageCosts(
        forward_s=per_stage(tenths), backward_input_s=per_stage(tenths), backward_weight_s=per_stage(tenths),
        backward_s=per_stage(tenths) if draw(st.booleans()) else None,
        fused_s=per_stage(tenths) if draw(st.booleans()) else None,
        transfer_s=draw(st.sampled_from([0.0, 0.3, 2.0])), activation_bytes=activation, static_bytes=static,
        activation_bytes_kept_for_weight=[size // 2 for size in activation] if draw(st.booleans()) else None,
        action_overhead_s=draw(st.sampled_from([0.0, 0.25])), channel=draw(st.sampled_from(["ideal", "edge", "pair"])),
    )  # fmt: skip
    if draw(st.booleans()):
        costs = costs.with_torch_first_stage(num_stages=pp * vpp, num_ranks=pp)
    held = np.bincount(STYLES[placement](pp, pp * vpp), weights=activation) + static
    limit = draw(st.none() | st.sampled_from([1.0, 1.5, 2.0, 4.0]).map(lambda times: float(held.max() * times)))
    return {
        "pp": pp, "vpp": vpp, "microbatches": m, "costs": costs, "placement": placement, "memory_limit_bytes": limit,
        "criterion": draw(st.sampled_from(list(SCORES))),
    }  # fmt: skip


def catalogue_s(*, pp, vpp, microbatches, costs, placement, memory_limit_bytes, criterion, is_thorough=True):
    """The best of every schedule, as `build NAME` makes it, or as a projection, that runs and keeps the limit."""
    times = []
    for entry in every_schedule().values():
        if entry.num_replicas > 1 or entry.takes("num_slices"):
            continue
        if entry.why_not(pp=pp, vpp=vpp, microbatches=microbatches):
            continue
        given = {"pp": pp, "vpp": vpp, "microbatches": microbatches}
        given |= {"memory_limit_bytes": memory_limit_bytes} if entry.takes("memory_limit_bytes") else {}
        try:
            fitted = entry.takes("costs")
            table = (
                optimise_entry(entry, **given, costs=costs, is_thorough=is_thorough)[0]
                if fitted
                else build(entry, **given)
            )
            timeline = simulate(table, costs)
        except (DoesNotFit, ScheduleError):
            continue
        fits = memory_limit_bytes is None or timeline.memory.peak_bytes.max() <= memory_limit_bytes
        if fits and table.stage_to_rank.tolist() == STYLES[placement](pp, pp * vpp):
            times.append(getattr(timeline, SCORES[criterion]))
    return min(times, default=np.inf)


@given(arguments=searches())
@settings(deadline=None, max_examples=12)
@pytest.mark.long
def test_it_keeps_the_limit_and_lies_between_the_bound_and_the_catalogue(tmp_path_factory, arguments):
    with pytest.MonkeyPatch.context() as patch:  # what the search fits is not fitted again to compare it
        patch.setenv(answers.FOLDER, str(tmp_path_factory.mktemp("answers")))
        _require_between_bound_and_catalogue(arguments)


def _require_between_bound_and_catalogue(arguments):
    try:
        found = optimise(**arguments, max_rounds=2, time_limit_s=np.inf)
    except DoesNotFit as error:
        assert "runs on these channels" in str(error)
        assert arguments["costs"].channel != "ideal"
        return
    costs, limit = arguments["costs"], arguments["memory_limit_bytes"]
    assert check(found.schedule).errors == []
    timeline = simulate(found.schedule, costs)
    assert found.value_s == getattr(timeline, SCORES[arguments["criterion"]])
    if limit is not None:
        assert timeline.memory.peak_bytes.max() <= limit
    assert found.value_s <= catalogue_s(**arguments) * (1 + 1e-9)
    assert found.bound_s <= found.value_s * (1 + 1e-9)
    bounds = bounds_of(found.schedule, costs, memory_limit_bytes=limit)
    assert found.bound_s == pytest.approx(getattr(bounds, "step_s" if found.criterion == "step" else "span_s"))


EXACT = [
    pytest.param(placement, p, m, cap, criterion, marks=[pytest.mark.search] * ((placement, p) == ("v", 3)))
    for placement, p, m in (("loop", 2, 5), ("loop", 3, 6), ("loop", 4, 6), ("v", 2, 4), ("v", 3, 3), ("v", 3, 4))
    for cap, criterion in ((1.5, "step"), (3.0, "span"))
]


@pytest.mark.parametrize(("placement", "p", "m", "cap", "criterion"), EXACT)
def test_it_is_at_the_optimum_of_small_uneven_cases(placement, p, m, cap, criterion):
    chunks = 1 if placement == "loop" else 2
    dice = np.random.default_rng([p, m, chunks])
    forward, to_input, weight = dice.integers(1, 10, size=(3, chunks * p)).astype(float)
    costs = StageCosts(
        forward_s=forward, backward_input_s=to_input, backward_weight_s=weight, transfer_s=2, activation_bytes=1
    )
    problem = problem_of(STYLES[placement](p, chunks * p), m, costs, memory_limit_bytes=cap * chunks)
    best = optimal(problem, criterion=criterion, time_limit_s=20)
    assert best.is_optimal
    rounds = islice(tables_without_end(SearchTarget(problem, criterion)), 100)
    assert any(candidate.score_s <= best.value_s * (1 + 1e-9) for candidate in rounds)


def test_one_seed_gives_one_table():
    costs = UNIT.replace(forward_s=[3, 1, 2, 2, 4, 1, 2, 3], transfer_s=0.5)
    first, again = (
        optimise(pp=4, vpp=2, microbatches=5, costs=costs, max_rounds=4, time_limit_s=np.inf, seed=seed)
        for seed in (1, 1)
    )
    assert first.schedule == again.schedule


GAINS = {
    "slow ends in a loop of two chunks": ({"pp": 4, "vpp": 2, "microbatches": 8, "placement": "loop"}, 0.06, {
        "forward_s": [15, 10, 10, 10, 10, 10, 10, 15], "backward_input_s": [16.5, 11, 11, 11, 11, 11, 11, 16.5],
        "backward_weight_s": [12, 8, 8, 8, 8, 8, 8, 12], "transfer_s": 3, "activation_bytes": 1,
    }),
    "a V in little memory": ({"pp": 4, "vpp": 2, "microbatches": 5, "placement": "v", "memory_limit_bytes": 24.0}, 0.01, {
        "forward_s": [9, 2, 9, 3, 1, 1, 8, 4], "backward_input_s": [2, 8, 9, 8, 2, 5, 1, 8],
        "backward_weight_s": [9, 4, 3, 4, 5, 8, 9, 6], "transfer_s": [1, 1, 0, 0, 3, 1, 0, 0], "activation_bytes": 4,
        "activation_bytes_kept_for_weight": 3,
    }),
    "slow ends in one chunk and little memory": ({"pp": 4, "microbatches": 24, "memory_limit_bytes": 6.0}, 0.005, {
        "forward_s": [15, 10, 10, 15], "backward_input_s": [18, 10, 12, 16], "backward_weight_s": [12, 8, 8, 12],
        "transfer_s": 3, "activation_bytes": 2, "activation_bytes_kept_for_weight": 1,
    }),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.search] * ("little memory" in case)) for case in GAINS]
)
def test_uneven_stages_gain_over_every_schedule_of_a_projection(case):
    arguments, gain, seconds = GAINS[case]
    costs = StageCosts(**seconds)
    found = optimise(**arguments, costs=costs, max_rounds=5, time_limit_s=np.inf)
    asked = {"vpp": 1, "placement": "loop", "memory_limit_bytes": None, "criterion": "step"} | arguments
    catalogue = catalogue_s(**asked, costs=costs, is_thorough=False)
    assert found.start_s <= catalogue
    assert found.value_s < (1 - gain) * catalogue


def test_a_full_backward_is_taken_where_nobody_waits_for_the_gradient():
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, backward_s=1.5)
    found = optimise(pp=1, microbatches=3, costs=costs)
    assert found.value_s == found.bound_s == 7.5


def test_the_bound_knows_what_fused_pairs_save():
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, backward_s=1.5, fused_s=1.5)
    found = optimise(pp=2, vpp=2, microbatches=4, costs=costs, max_rounds=2)
    assert found.bound_s <= found.value_s < 4 * 2 * (1 + 1.5)  # a rank's work without pairs


def test_a_limit_of_whole_activations_holds_all_of_them():
    found = optimise(pp=3, microbatches=5, costs=UNIT, memory_limit_bytes=3.0)
    assert simulate(found.schedule, UNIT).memory.peak_bytes.max() == 3
    assert optimise(pp=3, microbatches=5, costs=UNIT, memory_limit_bytes=1.0).value_s > found.value_s
    table = build("zb-auto", pp=3, microbatches=5, costs=UNIT, memory_limit_bytes=3.0)
    assert simulate(table, UNIT).memory.peak_bytes.max() == 3


def test_three_chunks_one_rank_and_one_microbatch():
    assert optimise(pp=2, vpp=3, microbatches=1, costs=UNIT).is_optimal
    assert optimise(pp=1, vpp=3, microbatches=4, costs=UNIT).value_s == 36
    nothing = StageCosts(forward_s=0, backward_input_s=0, backward_weight_s=0)
    found = optimise(pp=2, vpp=2, microbatches=3, costs=nothing)
    assert (found.value_s, found.gap, found.is_optimal) == (0, 0, True)


def test_without_time_it_is_the_best_of_the_catalogue():
    costs = UNIT.replace(forward_s=[1, 2, 1, 1, 1, 1, 1, 2])
    found = optimise(pp=4, vpp=2, microbatches=6, costs=costs, time_limit_s=0, placement="loop")
    assert found.value_s == found.start_s
    named = build(found.started_from, pp=4, vpp=2, microbatches=6)
    assert simulate(named, costs).step_time_s == found.value_s


@pytest.mark.parametrize(("limit_s", "num_fits"), [(0.5, 1), (1.5, 2), (2.5, 3), (600, 3)])
def test_no_schedule_is_fitted_once_the_time_is_over_and_that_to_the_limit_first(monkeypatch, limit_s, num_fits):
    """Each takes a second here."""
    now, fits, fit = [0.0], [], auto.optimise_entry

    def fit_in_a_second(entry, **arguments):
        fits.append(entry.name)
        now[0] += 1
        return fit(entry, **arguments)

    monkeypatch.setattr(auto, "working_clock", lambda: now[0])
    monkeypatch.setattr(auto, "optimise_entry", fit_in_a_second)
    monkeypatch.setattr(auto._Search, "is_over", False)
    costs = UNIT.replace(forward_s=[1, 2, 1, 3], transfer_s=0.5)
    optimise(pp=4, microbatches=6, costs=costs, time_limit_s=limit_s, max_rounds=1)
    assert fits == ["zb-auto", "zb-1p", "zb-2p"][:num_fits]


def test_nothing_is_built_for_a_placement_that_is_not_searched(monkeypatch):
    """Where no looped table kept the limit, every schedule in a V was fitted without one, and thrown away."""
    made = []
    for name in ("build", "optimise_entry"):
        verb = getattr(auto, name)
        monkeypatch.setattr(auto, name, lambda one, verb=verb, **given: made.append(one) or verb(one, **given))
    costs = UNIT.replace(activation_bytes=1.0)
    shape = {"pp": 4, "vpp": 2, "microbatches": 8, "costs": costs, "memory_limit_bytes": 4.0, "max_rounds": 1}
    for placement in ("loop", "v"):
        made.clear()
        optimise(**shape, placement=placement, time_limit_s=np.inf)
        assert {entry.placement for entry in made} == {placement}


def test_a_fit_that_is_broken_off_hands_over_the_best_on_its_way(monkeypatch):
    """On a busy machine nothing was left of it, and the search ended at a published pattern."""
    costs = UNIT.replace(forward_s=[3, 1, 4, 1, 5, 9, 2, 6], transfer_s=0.5)
    shape = {"pp": 4, "microbatches": 6, "costs": costs}
    runs, run = [0], compiling._run

    def run_so_many(*arguments, **options):
        runs[0] += 1
        if runs[0] > 100:
            raise compiling.TimeIsUp
        return run(*arguments, **options)

    monkeypatch.setattr(compiling, "_run", run_so_many)
    with pytest.raises(SearchTimeout) as end:
        optimise_entry(find("v-flex"), **shape)
    monkeypatch.undo()
    patterns = [build(name, pp=4, microbatches=6) for name in ("zbv-fixed", "v-half-fixed", "v-min-fixed")]
    best, *others = (simulate(table, costs).step_time_s for table in end.value.tables)
    assert best < min(simulate(table, costs).step_time_s for table in patterns)
    assert len(others) == 2
    assert simulate(optimise_entry(find("v-flex"), **shape)[0], costs).step_time_s <= best


@pytest.mark.parametrize("limit_s", [30, 300, pytest.param(2000, marks=pytest.mark.search)])
def test_once_there_is_a_table_nothing_is_begun_that_would_outlast_the_limit(monkeypatch, limit_s):
    """Where every run of a kernel takes a second, as on a machine that others use too."""
    now, run = [0.0], compiling._run

    def run_in_a_second(*arguments, **options):
        now[0] += 1
        return run(*arguments, **options)

    for module in (auto, compiling):
        monkeypatch.setattr(module, "working_clock", lambda: now[0])
    monkeypatch.setattr(compiling, "_run", run_in_a_second)
    monkeypatch.setattr(compiling, "_PACE_S", {})
    monkeypatch.setattr(auto._Search, "is_over", False)
    TABLES.clear()
    KEPT.clear()
    costs = UNIT.replace(forward_s=[1, 2, 1, 3, 1, 2, 1, 1], transfer_s=0.5)
    optimise(pp=4, vpp=2, microbatches=6, costs=costs, time_limit_s=limit_s)
    assert now[0] <= limit_s + 20  # what it ended with is simulated, and of a second placement every pattern


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"pp": 0}, "pp must be at least 1: got 0"),
        ({"vpp": 0}, "vpp must be at least 1: got 0"),
        ({"microbatches": 0}, "microbatches must be at least 1: got 0"),
        ({"time_limit_s": -1.0}, "the time limit must be 0 s or more: got -1"),
        ({"time_limit_s": float("nan")}, "the time limit must be 0 s or more: got nan"),
        ({"seed": -1}, "seed must be 0 or more: got -1"),
        ({"max_rounds": -1}, "max_rounds must be 0 or more: got -1"),
        ({"placement": "w"}, "placement is 'w'; choose one of loop, v"),
        ({"criterion": "time"}, "criterion is 'time'; choose one of step, span"),
        ({"costs": UNIT.replace(forward_s=[1, 2, 3])}, "forward_s has 3 entries"),
        ({"costs": UNIT.replace(activation_bytes=0), "memory_limit_bytes": 9}, "needs costs with activation_bytes"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(changed, sentence):
    with pytest.raises(ConfigError, match=sentence):
        optimise(**({"pp": 2, "microbatches": 4, "costs": UNIT} | changed))


def test_a_limit_below_one_microbatch_does_not_fit_on_either_placement():
    with pytest.raises(DoesNotFit, match="rank 0 needs 2 B for one microbatch > 1 B"):
        optimise(pp=2, vpp=2, microbatches=4, costs=UNIT, memory_limit_bytes=1.0)


def test_what_is_left_out_in_catalog_auto_has_these_values() -> None:
    assert number_defaults(auto_module) == {
        "optimise": {"vpp": 1, "time_limit_s": 10.0, "seed": 0},
    }  # fmt: skip


def test_rounds_of_a_search_take_new_tables_and_report_the_best_time_and_the_bound(monkeypatch):
    """A table that a round repeats is not simulated again; the search ends at the bound, or with its rounds."""
    tables = [build(name, pp=2, microbatches=4) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")]
    first, second, third, fourth = (SimpleNamespace(schedule=lambda name, table=table: table) for table in tables)
    for rounds, max_rounds, bound_s, num_told in (
        ([first, first, second, third], 3, 0.0, 3), ([first, first], None, 0.0, 2), ([first, third, fourth], None, 13.0, 2),
    ):  # fmt: skip
        search, told, asked = auto._Search([0, 1], 4, UNIT, None, "step"), [], []
        search.bound_s = bound_s
        monkeypatch.setattr(
            auto,
            "tables_without_end",
            lambda *given, asked=asked, rounds=rounds, **more: asked.append(more) or iter(rounds),
        )
        search.run(np.inf, max_rounds, 7, lambda *seen, told=told: told.append(seen))
        assert asked == [{"start": None, "seed": 7}]
        best_s = [simulate(table, UNIT).step_time_s for table in tables]
        assert told[0] == (best_s[0], bound_s)
        assert len(told) == num_told
        assert search.start_s == best_s[0]
        assert search.value_s == told[-1][0] == min(told)[0]


def test_a_table_is_taken_if_it_runs_fits_and_is_faster():
    costs = UNIT.replace(channel="pair", receives="deferred")
    search = auto._Search([0, 1], 4, costs, 3.0, "step")
    gpipe, eager = build("gpipe", pp=2, microbatches=4), build("zb-h1", pp=2, microbatches=4)
    assert not search._take(gpipe), "it holds four activations"
    assert not search._take(build("1f1b", pp=2, microbatches=4)), "a deadlock on this network"
    assert (search.best, search.value_s) == (None, np.inf)
    search = auto._Search([0, 1], 4, UNIT, None, "step")
    assert search._take(gpipe)
    assert (search.best, search.value_s) == (gpipe, simulate(gpipe, UNIT).step_time_s)
    assert search._take(eager)
    assert not search._take(gpipe)
    assert not search._take(eager)
    assert (search.best, search.value_s) == (eager, simulate(eager, UNIT).step_time_s)
    spans = auto._Search([0, 1], 4, UNIT, None, "span")
    assert spans._take(eager)
    assert spans.value_s == simulate(eager, UNIT).span_s


def test_full_backwards_are_tried_where_they_are_faster_and_on_the_first_stage_alone(monkeypatch):
    costs = StageCosts(
        forward_s=1, backward_input_s=1, backward_weight_s=1, backward_s=[1.5, 2.5, 1.5], activation_bytes=1
    )
    search, taken = auto._Search([0, 1, 2], 3, costs, None, "step"), []
    assert search.is_joining_worth_it.tolist() == [True, False, True]
    monkeypatch.setattr(search, "_take", taken.append)
    table = parse_table("0F0,0I0,0W0\n1F0,1I0,1W0\n2F0,2I0,2W0\n")
    search._take_split_or_joined(table)
    assert taken[0] is table
    assert [sorted({*one.stage[one.op == Op.B].tolist()}) for one in taken] == [[], [0, 2], [0]]


@pytest.mark.parametrize(
    ("value_s", "bound_s", "gap", "proof"),
    [
        (5.0, 4.0, 0.25, "at most 25.00 % above the best possible"), (4.0, 4.0, 0.0, "optimal"),
        (4.0 * (1 + 5e-10), 4.0, pytest.approx(5e-10), "optimal"), (3.0, 4.0, 0.0, "optimal"), (1.0, 0.0, 0.0, "at most 0.00 % above the best possible"),
    ],
)  # fmt: skip
def test_a_table_at_the_bound_is_optimal_and_another_has_a_gap(value_s, bound_s, gap, proof):
    found = auto.OptimisedSchedule(
        build("1f1b", pp=2, microbatches=2), "step", value_s, bound_s, "1f1b", 9.0, "loop"
    )
    assert (found.gap, found.proof) == (gap, proof)


def test_a_search_asks_for_memory_for_three_actions_per_stage_and_microbatch(monkeypatch):
    asked = []
    monkeypatch.setattr(auto, "require_memory", asked.append)
    auto._require(pp=2, vpp=3, microbatches=5, placement="v")
    assert asked == [90]
