"""Schedules that are fitted to the costs: `project` and `build` hand them over."""

from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.base.errors import ConfigError, Deadlock
from ppsim.catalog import build as build_module
from ppsim.catalog import cost_optimised as cost_optimised_module
from ppsim.catalog.auto import optimise
from ppsim.catalog.build import find, optimise_entry
from ppsim.catalog.published import one_f_one_b as one_f_one_b_module
from tests.cli.running import ppsim as run
from tests.defaults import number_defaults

UNEVEN = ppsim.StageCosts(
    forward_s=[1.6, 1.0, 1.0, 1.0], backward_input_s=[1.6, 1.0, 1.0, 1.0], backward_weight_s=[1.2, 0.8, 0.8, 0.8],
    activation_bytes=1.0,
)  # fmt: skip


def test_a_table_for_uneven_stages_is_no_slower_there_than_one_for_equal_stages():
    fitted = ppsim.build("zb-2p", pp=4, microbatches=12, costs=UNEVEN)
    plain = ppsim.build("zb-2p", pp=4, microbatches=12)
    assert fitted.name == plain.name == "zb-2p"
    assert ppsim.simulate(fitted, UNEVEN).step_time_s <= ppsim.simulate(plain, UNEVEN).step_time_s


@pytest.mark.parametrize(("name", "per_rank"), [("zb-1p", 1), ("zb-2p", 2)])
def test_no_rank_holds_more_than_its_cap(name, per_rank):
    costs = UNEVEN.replace(activation_bytes=[3.0, 1.0, 2.0, 1.0])
    timeline = ppsim.simulate(ppsim.build(name, pp=4, microbatches=12, costs=costs), costs)
    cap = per_rank * 4 * np.array([3.0, 1.0, 2.0, 1.0])
    assert (timeline.memory.peak_activation_bytes <= cap).all()


def test_project_fits_the_table_to_the_stages_of_the_layout():
    made = ppsim.project(pp=4, schedule="zb-1p", runtime="ideal", split=[10, 7, 7, 6])
    again = ppsim.build("zb-1p", pp=4, microbatches=16, costs=made.costs)
    assert made.timeline.schedule == again


def test_costs_are_refused_where_they_change_nothing(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="1f1b is the same at any costs"):
        ppsim.build("1f1b", pp=4, microbatches=8, costs=UNEVEN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "C.json").write_text('{"forward_s": [1, 2], "backward_input_s": 1, "backward_weight_s": 1}')
    run("build", "zb-2p", "--pp", 2, "--num-microbatches", 4, "--costs", "C.json", "-o", "T.csv")
    assert "complete, ordered" in run("check", "T.csv").stdout
    assert (
        "forward_s has 2 entries"
        in run("build", "zb-1p", "--pp", 3, "--num-microbatches", 4, "--costs", "C.json", code=2).stderr
    )


@pytest.mark.parametrize("limit", [3.0, 5.5, 8.0, 24.0])
def test_zb_auto_keeps_to_the_memory_limit_and_is_no_slower_with_more_of_it(limit):
    costs = UNEVEN.replace(static_bytes=[1.0, 0.5, 0.5, 1.5])

    def timeline(limit):
        table = ppsim.build("zb-auto", pp=4, microbatches=12, costs=costs, memory_limit_bytes=limit)
        return ppsim.simulate(table, costs)

    assert (timeline(limit).memory.peak_bytes <= limit).all()
    assert timeline(100.0).step_time_s <= timeline(limit).step_time_s


def test_project_gives_zb_auto_the_memory_that_is_left():
    limit = 45 * 2.0**30
    made = ppsim.project(pp=8, schedule="zb-auto", memory_limit=limit)
    assert made.timeline.memory.peak_bytes.max() <= limit
    assert made.timeline.step_time_s <= ppsim.project(pp=8, schedule="zb-1p").timeline.step_time_s


def test_project_auto_takes_the_placement_that_fits_where_the_other_has_no_table():
    # In a loop none of the catalogue keeps to 20 GiB; in a V some do.
    limit = 20 * 2.0**30
    made = ppsim.project(
        pp=8, vpp=2, microbatches=8, schedule="auto", memory_limit=limit, search_time=0.0, runtime="ideal"
    )
    assert made.timeline.memory.peak_bytes.max() <= limit
    assert made.timeline.schedule.stage_to_rank.tolist() == [*range(8), *reversed(range(8))]


@pytest.mark.search
def test_a_limit_below_one_microbatch_does_not_fit(tmp_path, monkeypatch):
    result = run("project", "--pp", 8, "--schedule", "zb-auto", "--memory-limit", "10GiB", code=1)
    assert result.stdout.startswith("DOES NOT FIT: rank ")
    assert "10.0 GiB usable" in result.stdout.splitlines()[0]
    listed = run("project", "--pp", 8, "--schedule", "all", "--memory-limit", "30GiB").stdout
    assert "zb-auto" in listed
    monkeypatch.chdir(tmp_path)
    wrong = run("build", "1f1b", "--pp", 2, "--num-microbatches", 4, "--memory-limit", "1GiB", code=2)
    assert "--memory-limit is for a schedule that fits into it" in wrong.stderr


# --- overheads, and networks that queue ---


@pytest.mark.parametrize("part", [0.25, 0.5, pytest.param(1.0, marks=pytest.mark.search)])
@pytest.mark.parametrize("name", ["v-flex", "zb-1p"])
def test_latency_of_a_hop_is_fitted_as_time_of_a_transfer_is(name, part):
    """Calibrated hops delay as transfers do on an ideal network: the same table, the same step."""
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, activation_bytes=1.0)
    latency, transfer = costs.replace(hop_overhead_s=part), costs.replace(transfer_s=part)
    tables = [ppsim.build(name, pp=8, microbatches=24, costs=one) for one in (latency, transfer)]
    assert tables[0] == tables[1]
    assert ppsim.simulate(tables[0], latency).step_time_s == ppsim.simulate(tables[1], transfer).step_time_s


def test_host_time_before_actions_is_fitted_as_longer_actions_are():
    """A host that takes half a forward before each action makes F, I and W alike."""
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=2.0, backward_weight_s=0.5, activation_bytes=1.0)
    longer = costs.replace(forward_s=1.5, backward_input_s=2.5, backward_weight_s=1.0)
    hosted, lengthened = (
        ppsim.build("zb-2p", pp=4, microbatches=12, costs=one)
        for one in (costs.replace(action_overhead_s=0.5), longer)
    )
    assert hosted == lengthened


def queued(name, channel, seed):
    """Costs of stages a little apart on a network that queues, and how many stages `name` wants."""
    random, num_stages = np.random.default_rng(seed), 4 if name.startswith("zb-") else 8
    return ppsim.StageCosts(
        forward_s=1 + 0.1 * random.random(num_stages), backward_input_s=1.1 + 0.1 * random.random(num_stages),
        backward_weight_s=0.8, activation_bytes=1.0, transfer_s=0.2, channel=channel,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "channel"),
    [
        (name, channel)
        if (name, channel) in (("zb-1p", "pair"), ("v-half", "rank"))
        else pytest.param(name, channel, marks=pytest.mark.search)
        for name in ("zb-1p", "zb-auto", "zbv", "v-flex", "v-half")
        for channel in ("pair", "direction", "rank")
    ],
)
def test_a_fitted_table_is_the_fastest_on_the_channels_it_will_run_on(name, channel):
    """Neither the table for an ideal network nor a published pattern is faster there."""
    for seed in range(3):
        costs = queued(name, channel, seed)
        others = [ppsim.build(name, pp=4, microbatches=8, costs=costs.replace(channel="ideal"))]
        others += [ppsim.build(other, pp=4, microbatches=8) for other in find(name).published]
        found = ppsim.simulate(ppsim.build(name, pp=4, microbatches=8, costs=costs), costs).step_time_s
        assert found <= min(step_or_never(table, costs) for table in others) * (1 + 1e-12)


def test_a_pattern_that_ends_a_rounding_error_sooner_does_not_suit_the_network_better():
    """Qi et al. 2024 (arXiv 2401.10241), Table 4: 6.2B on 8 ranks, 32 microbatches of 3."""
    costs = ppsim.StageCosts(
        forward_s=0.029802, backward_input_s=0.029428, backward_weight_s=0.01953, transfer_s=0.000577
    )
    table, note = optimise_entry(find("zb-2p"), pp=8, microbatches=32, costs=costs)
    pattern = ppsim.build("zb-h2", pp=8, microbatches=32)
    times = [ppsim.simulate(one, costs).step_time_s for one in (table, pattern)]
    assert times[0] == pytest.approx(times[1], rel=1e-12)
    assert note == "schedule: fitted to the costs of every stage"


@pytest.mark.parametrize(
    ("name", "channel", "gain"),
    [("zb-1p", "rank", 0.05), ("zbv", "direction", 0.04), ("zbv", "rank", 0.05), ("v-flex", "pair", 0.04)],
)
def test_what_idles_least_on_an_ideal_network_may_queue_longest_on_another(name, channel, gain):
    """The table that is chosen there is faster than the one fitted to an ideal network, by percents."""
    costs = queued(name, channel, seed=1)
    ideal = ppsim.build(name, pp=4, microbatches=12, costs=costs.replace(channel="ideal"))
    chosen = ppsim.build(name, pp=4, microbatches=12, costs=costs)
    assert step_or_never(chosen, costs) < step_or_never(ideal, costs) * (1 - gain)


@pytest.mark.parametrize(
    "channel", [pytest.param("direction", marks=pytest.mark.long), pytest.param("rank", marks=pytest.mark.search)]
)
def test_a_search_judges_its_tables_on_the_channels_too(channel):
    """`build auto` is never behind any entry of the catalogue there, fitted ones included as `build` fits them."""
    costs = queued("zbv", channel, seed=1)
    found = optimise(pp=4, vpp=2, microbatches=8, costs=costs, placement="v", max_rounds=2, time_limit_s=np.inf)
    assert found.value_s == ppsim.simulate(found.schedule, costs).step_time_s
    for name in ("zbv", "v-half", "zbv-fixed", "v-half-fixed", "v-flex"):
        shape = {"pp": 4, "microbatches": 8}
        table = ppsim.build(name, **shape, **({"costs": costs} if find(name).takes("costs") else {}))
        assert found.value_s <= step_or_never(table, costs) * (1 + 1e-9)


def step_or_never(table, costs):
    try:
        return ppsim.simulate(table, costs).step_time_s
    except Deadlock:
        return float("inf")


def test_a_small_table_does_not_ask_how_much_memory_is_free(monkeypatch) -> None:
    monkeypatch.setattr("ppsim.base.limits.free_bytes", lambda: 0)
    ppsim.build("1f1b", pp=4, microbatches=8)
    with pytest.raises(ConfigError, match="and 0 B of memory are free on this machine"):
        ppsim.build("1f1b", pp=4, microbatches=1_000_000)


def test_what_is_left_out_in_catalog_build_has_these_values() -> None:
    assert number_defaults(build_module) == {
        "optimise_entry": {"is_thorough": False},
        "_made": {"is_thorough": False},
    }  # fmt: skip


def test_what_is_left_out_in_catalog_cost_optimised_has_these_values() -> None:
    assert number_defaults(cost_optimised_module) == {
        "_fitted": {"is_thorough": False},
        "_to_limit": {"is_thorough": False},
    }  # fmt: skip


def test_what_is_left_out_in_catalog_one_f_one_b_has_these_values() -> None:
    assert number_defaults(one_f_one_b_module) == {
        "_by_turns": {"splits": False},
        "split_row": {"num_put_off": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "times", "name", "note"),
    [
        ({"channel": "edge"}, {"fitted": 5.0, "zb-h1": 4.0, "zb-h2": 4.5}, "zb-auto", "schedule: that of zb-h1, which these channels suit better"),
        ({"microbatch_factors": [1, 2, 1]}, {"fitted": 5.0, "zb-h1": 4.5, "zb-h2": 4.0}, "zb-auto",
         "schedule: that of zb-h2, which these microbatches suit better"),
        ({}, {"fitted": 4.0, "zb-h1": 5.0, "zb-h2": 6.0}, "fitted", "schedule: fitted to the costs of every stage, 20.00 % below zb-h1"),
        ({}, {"fitted": 4.0, "zb-h1": 4.0, "zb-h2": 4.0}, "fitted", "schedule: fitted to the costs of every stage"),
        ({}, {"fitted": 4.0, "zb-h1": 4.0 * (1 - 5e-13), "zb-h2": 6.0}, "fitted", "schedule: fitted to the costs of every stage"),
        ({}, {"fitted": 4.0, "zb-h1": np.inf, "zb-h2": np.inf}, "fitted", "schedule: fitted to the costs of every stage"),
        ({"microbatch_factors": [1, 2, 1]}, {"fitted": 4.0, "zb-h1": 5.0, "zb-h2": 5.0}, "fitted",
         "schedule: fitted to the costs of every stage, their mean microbatch and the largest one's bytes; the step is at each "
         "one's own, 20.00 % below zb-h1"),
    ],
)  # fmt: skip
def test_the_faster_of_a_fitted_table_and_the_published_patterns_is_built_and_its_origin_said(
    fields: dict[str, Any], times: dict[str, float], name: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1).replace(**fields)
    fitted = ppsim.build("zb-h1", pp=2, microbatches=3).named("fitted")
    asked: list[Any] = []
    monkeypatch.setattr(build_module, "_answered", lambda entry, **options: asked.append(options) or fitted)
    monkeypatch.setattr(
        "ppsim.catalog.search.best_table.TableEvaluator.__call__", lambda self, table, limit=None: times[table.name]
    )
    table, sentence = optimise_entry(find("zb-auto"), costs=costs, pp=2, vpp=1, microbatches=3)
    assert (table.name, sentence) == (name, note)
    is_ideal = not fields
    assert (asked[0]["evaluator"] == "step") == is_ideal
