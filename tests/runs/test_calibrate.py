"""What was put into a step is what calibration finds, through noise, warm-up and stragglers."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_steps import Made, made
from ppsim import StageCosts, build
from ppsim.base.errors import ConfigError
from ppsim.runs import calibrate as calibrate_module
from ppsim.runs.calibrate import FittedConstant, calibrate, calibrate_tested
from ppsim.runs.compare import expected_costs
from ppsim.runs.links import pairs_of
from ppsim.runs.run import Run, median_costs, unslowed_costs
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import NONE
from ppsim.simulation.bounds.for_table import bounds_of
from ppsim.simulation.engine import evaluate
from ppsim.simulation.overlap import evaluate_slowed, overlapped_fraction
from ppsim.simulation.simulate import durations_s, overheads_s, simulate, simulate_graph
from ppsim.simulation.variation import with_variation
from tests.defaults import number_defaults

COSTS = StageCosts(forward_s=20e-3, backward_input_s=20e-3, backward_weight_s=14e-3)
SIZES = (2e6, 16e6)


def run_of(
    name="interleaved-1f1b", *, pp=4, vpp=2, microbatches=8, action=0.0, hop=0.0, bandwidth=1e10, slowdown=0.0, gap=0.0,
    size=SIZES[0], noise=0.0, steps=5, straggler=False, seed=0, costs=COSTS, **facts,
):  # fmt: skip
    """A run simulated with overheads; `noise` is the relative deviation of each action, 50 × it that of its
    host time and of latencies, `straggler` one step 3 × as long."""
    table = build(name, pp=pp, vpp=vpp, microbatches=microbatches)
    graph = build_graph(table)
    real = costs.replace(action_overhead_s=action, hop_overhead_s=hop, transfer_s=size / bandwidth)
    dice = np.random.default_rng(seed)
    starts, ends = [], []
    for step in range(steps):
        duration = durations_s(graph, real.resolved_for(table))
        duration[: graph.num_actions] *= dice.lognormal(0.0, noise, graph.num_actions) if noise else 1.0
        overhead = overheads_s(graph, real)
        if noise:
            overhead *= dice.lognormal(0.0, 50 * noise, graph.num_nodes)
        times = evaluate_slowed(graph, duration, overhead, slowdown)
        factor = 3.0 if straggler and step == 1 else 1.0
        starts.append(times.start * factor)
        ends.append(times.end * factor)
    gaps = [gap * (4.0 if straggler and step == 1 else 1.0) for step in range(steps - 1)]
    return Run(
        "run", graph, costs, np.stack(starts), np.stack(ends), gaps,
        **({"message_bytes": size, "has_own_costs": False, "knows_transfers": True} | facts),
    )  # fmt: skip


@settings(max_examples=25)
@given(
    st.floats(5e-5, 2e-3), st.floats(1e-4, 3e-3), st.floats(2e9, 4e10), st.floats(0.02, 0.4), st.floats(1e-3, 0.2),
    st.sampled_from(["1f1b", "interleaved-1f1b", "zb-h1", "gpipe"]), st.integers(0, 1000),
)  # fmt: skip
def test_every_constant_is_found_again_through_noise_and_a_straggler(
    action, hop, bandwidth, slowdown, gap, name, seed
):
    """Actions deviate by 0.2 %, host times and latencies by 10 %, one step in five takes three times as long."""
    given_ = {"action": action, "hop": hop, "bandwidth": bandwidth, "slowdown": slowdown, "gap": gap}
    shape = {"vpp": 2 if name == "interleaved-1f1b" else 1, "microbatches": 8}
    runs = [
        run_of(name, **given_, **shape, size=size, noise=2e-3, straggler=True, seed=seed + place)
        for place, size in enumerate(SIZES)
    ]
    found = calibrate(runs)
    assert found.action.value == pytest.approx(action, rel=0.05)
    assert found.step.value == pytest.approx(gap)
    hops = [hop + size / bandwidth for size in SIZES]
    assert [one.seconds.value for one in found.hops] == pytest.approx(hops, rel=0.16, abs=0.15 * action)
    if found.line is not None:
        latency, rate = found.line
        assert [latency + size / rate for size in SIZES] == pytest.approx([one.seconds.value for one in found.hops])
        # Medians of hops with a tenth of noise: their difference is told no better where the latency is most of them.
        between = max(SIZES) - min(SIZES)
        assert between / rate == pytest.approx(between / bandwidth, rel=0.5, abs=0.15 * hop)
    else:
        assert "is within their spread" in found.not_fitted["transfer"]
    if found.slowdown is not None:
        # Two actions' noise over the least difference of fractions, and the median of n of them within 4 deviations.
        deviation = 2e-3 * 2**0.5 / 0.1 * 1.25 / found.slowdown.num_samples**0.5
        assert found.slowdown.value == pytest.approx(slowdown, abs=0.005 + 4 * deviation)
    else:
        assert "overlap_slowdown" in found.not_fitted


def test_without_noise_the_constants_are_exact():
    found = calibrate([run_of(action=1e-3, hop=2e-3, slowdown=0.25, gap=0.05, size=size) for size in SIZES])
    assert found.slowdown.value == pytest.approx(0.25, rel=1e-2)
    assert found.action.value == pytest.approx(1e-3, rel=1e-6)
    assert found.line == pytest.approx((2e-3, 1e10), rel=1e-6)
    assert found.step.value == 0.05
    assert found.not_fitted == {}
    assert [residual.error for residual in found.residuals] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert all(residual.error_without < -0.02 for residual in found.residuals)


def test_messages_of_one_size_tell_the_hop_and_say_that_they_tell_no_more():
    found = calibrate([run_of(action=1e-3, hop=2e-3)])
    assert found.line is None
    assert found.hop.value == pytest.approx(2e-3 + SIZES[0] / 1e10)
    assert "messages of one size, 2.20 ms for 1.91 MiB" in found.not_fitted["transfer"]
    assert "cannot be distinguished" in found.not_fitted["transfer"]


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
def test_a_slow_link_is_in_the_simulation_of_its_run_and_in_no_constant(name):
    """10 to 30 ms more between two ranks, in passes of 20 and 40 ms: without it the simulation is 10 % too short."""
    table = build(name, pp=4, microbatches=8)
    plain = calibrate([made(table, 3, []).run()])
    found = calibrate([made(table, 3, ["slow links"]).run()])
    assert found.hop.value == pytest.approx(plain.hop.value, abs=1e-4)
    assert found.action.value == pytest.approx(plain.action.value, abs=1e-4)
    assert abs(found.residuals[0].error) < 0.01
    assert {link.split(":")[0] for link in found.residuals[0].slow_links} == {"rank 1 → 2", "rank 2 → 1"}
    assert plain.residuals[0].slow_links == ()


def test_the_transfer_time_of_given_costs_is_no_overhead():
    costs = COSTS.replace(transfer_s=SIZES[0] / 1e10)
    found = calibrate([run_of(hop=2e-3, costs=costs, has_own_costs=True)])
    assert found.hop.value == pytest.approx(2e-3)
    assert found.hops[0].seconds.value == pytest.approx(2e-3 + SIZES[0] / 1e10)


def test_host_time_is_counted_from_given_costs_and_not_from_those_the_run_shows():
    """Actions that all take 1 ms longer than they should have that as overhead, where it is known what they should."""
    longer = COSTS.replace(forward_s=21e-3, backward_input_s=21e-3)
    run = run_of(costs=longer, action=1e-3)
    assert calibrate([run]).action.value == pytest.approx(1e-3)
    assert calibrate([replace(run, costs=COSTS, has_own_costs=True)]).action.value == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"knows_transfers": False}, "the times of transfers are unknown"),
        ({"bandwidth": 1e15}, "pairs of actions of one kind and stage differ"),
    ],
)
def test_a_slow_down_that_cannot_be_seen_is_not_fitted_and_said(facts, why):
    found = calibrate([run_of(slowdown=0.25, **facts)])
    assert found.slowdown is None
    assert why in found.not_fitted["overlap_slowdown"]


def test_what_one_rank_and_one_step_cannot_tell_is_said():
    found = calibrate([run_of("gpipe", pp=1, vpp=1, action=1e-3, steps=1)])
    assert found.hop is None
    assert (
        found.not_fitted["hop_overhead_s"]
        == found.not_fitted["transfer"]
        == "the table sends nothing between ranks"
    )
    assert found.not_fitted["step_overhead_s"] == "the time from one step to the next is not recorded"
    assert found.action.value == pytest.approx(1e-3)


def test_steps_that_overlap_have_nothing_between_them_that_could_be_fitted():
    found = calibrate([replace(run_of(), gaps_s=[-0.01, -0.02, 0.5])])
    assert found.step is None
    assert "before the previous step has ended on all ranks" in found.not_fitted["step_overhead_s"]


def test_a_hop_that_takes_no_longer_with_more_bytes_tells_no_bandwidth():
    runs = [run_of(hop=2e-3, bandwidth=1e18, size=size) for size in SIZES]
    runs[1] = replace(runs[1], end=runs[0].end, start=runs[0].start)
    assert "the difference is within their spread" in calibrate(runs).not_fitted["transfer"]


def test_the_medians_of_a_run_come_without_what_transfers_added():
    run = run_of(slowdown=0.3, bandwidth=5e8)
    assert unslowed_costs(run, 0.3).forward_s == pytest.approx([20e-3] * 8, rel=1e-4)
    assert np.median(unslowed_costs(run, 0.0).forward_s) > 21e-3


def test_a_slow_down_in_the_medians_is_not_added_again():
    """Where the run knows its transfers it is taken out of the medians, else left in them."""
    run = run_of(slowdown=0.3, bandwidth=5e8)
    run = replace(run, costs=unslowed_costs(run, 0.0))
    for knows in (True, False):
        costs = expected_costs(replace(run, knows_transfers=knows), {"overlap_slowdown": 0.3}, (0.0, 5e8))
        step = simulate_graph(run.graph, costs).step_time_s
        assert step == pytest.approx(run.step_times_s[0], rel=0.03)


def brute_force_fraction(graph, start, end):
    ranks, actions = graph.schedule.rank, graph.num_actions
    fractions = []
    for action in range(actions):
        cuts = {start[action], end[action]}
        mine = [
            (start[actions + k], end[actions + k])
            for k in range(graph.num_transfers)
            if ranks[action] in (ranks[graph.source[k]], ranks[graph.target[k]])
        ]
        cuts |= {cut for span in mine for cut in span if start[action] < cut < end[action]}
        cuts = sorted(cuts)
        busy = sum(
            high - low
            for low, high in pairwise(cuts)
            if any(begin <= low and high <= finish for begin, finish in mine)
        )
        fractions.append(busy / (end[action] - start[action]))
    return fractions


@given(st.integers(0, 10_000), st.sampled_from(["1f1b", "zb-h1", "gpipe"]))
def test_the_fraction_beside_transfers_counts_every_moment_once(seed, name):
    graph = build_graph(build(name, pp=3, microbatches=3))
    dice = np.random.default_rng(seed)
    start = dice.integers(0, 40, graph.num_nodes).astype(float)
    end = start + dice.integers(1, 12, graph.num_nodes)
    assert overlapped_fraction(graph, start, end) == pytest.approx(brute_force_fraction(graph, start, end))


def test_no_slow_down_gives_the_same_bits():
    run = run_of(bandwidth=5e8)
    costs = COSTS.replace(transfer_s=4e-3)
    duration, overhead = (
        durations_s(run.graph, costs.resolved_for(run.graph.schedule)),
        overheads_s(run.graph, costs),
    )
    plain, slowed = evaluate(run.graph, duration, overhead), evaluate_slowed(run.graph, duration, overhead, 0.0)
    assert np.array_equal(plain.end, slowed.end)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_every_action_is_as_much_longer_as_it_is_beside_transfers(name):
    table = build(name, pp=4, microbatches=8)
    costs = COSTS.replace(transfer_s=4e-3, overlap_slowdown=0.2)
    timeline = simulate_graph(build_graph(table), costs)
    taken = (timeline.end - timeline.start)[: timeline.num_actions]
    alone = durations_s(timeline.graph, timeline.costs)[: timeline.num_actions]
    fraction = overlapped_fraction(timeline.graph, timeline.start, timeline.end)
    assert fraction.max() > 0.1
    assert np.median(np.abs(taken - alone * (1 + 0.2 * fraction))) < 1e-4 * alone.max()
    assert np.abs(taken - alone * (1 + 0.2 * fraction)).max() < 1e-2 * alone.max()


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zbv", 2), ("zb-h1", 1)])
def test_the_bound_of_a_measured_step_has_its_backwards_in_it(name, vpp):
    """Costs of a run of equal stages: no less than the work of a rank, no more than the step."""
    run = run_of(name, pp=4, vpp=vpp)
    costs = median_costs(run.graph, (run.end - run.start)[:, : run.graph.num_actions])
    bound = bounds_of(run.graph.schedule, costs).step_s
    work = 8 * vpp * (20e-3 + 20e-3 + 14e-3)
    assert work <= bound * (1 + 1e-9)
    assert bound <= run.step_times_s[0] * (1 + 1e-9)


def test_slow_first_and_last_passes_are_found_again_and_none_is_told_as_none():
    """1F1B on 4 ranks; the first action of each 3 ms longer, the last of the first stage's 5 ms, 1 % of noise."""
    costs = COSTS.replace(first_pass_s=3e-3, last_pass_s=5e-3)
    for real, expected in ((costs, (3e-3, 5e-3)), (COSTS, (0.0, 0.0))):
        run = run_of("1f1b", pp=4, vpp=1, costs=real, action=1e-3, noise=1e-3, steps=9)
        found = calibrate([replace(run, costs=unslowed_costs(run, 0.0))])
        assert (found.first_pass.value, found.last_pass.value) == pytest.approx(expected, rel=0.02)
        assert abs(found.residuals[0].error) < 0.002
    assert "runs 4 times" in calibrate([run_of("1f1b", pp=2, vpp=1, microbatches=3)]).not_fitted["first_pass_s"]


def test_blocking_calls_and_the_host_are_told_apart_in_a_run_by_megatrons_loop_and_predict_interleaved():
    """1F1B of 4 ranks at 0.6 ms a call and 0.3 ms per action, 1 % of noise: interleaved comes out within 1 %."""
    costs = COSTS.replace(communication="megatron", action_overhead_s=0.3e-3, transfer_s=0.6e-3, first_pass_s=2e-3)
    run, other = (megatron_run(name, vpp, costs) for name, vpp in (("1f1b", 1), ("interleaved-1f1b", 2)))
    found = calibrate([run])
    assert found.action.value == pytest.approx(0.3e-3, rel=0.05)
    assert found.hop.value == pytest.approx(0.6e-3, rel=0.05)
    assert found.communication == "megatron"
    expected = found.on(COSTS, None).with_calls("megatron")
    table = other.graph.schedule
    assert simulate(table, with_variation(table, expected, found.spreads.factors)).step_time_s == pytest.approx(
        float(np.median(other.step_times_s)), rel=0.01
    )
    two = calibrate([megatron_run("1f1b", 1, costs, pp=2)])
    assert two.hop is None
    assert "two consecutive calls" in two.not_fitted["hop_overhead_s"]


def megatron_run(name, vpp, costs, pp=4, steps=9, noise=0.01):
    table = build(name, pp=pp, vpp=vpp, microbatches=8)
    graph, plain = build_graph(table, communication="megatron"), build_graph(table)
    random, actions = np.random.default_rng(3), len(table)
    starts, ends = np.zeros((2, steps, plain.num_nodes))
    for step in range(steps):
        durations = durations_s(graph, costs.resolved_for(table))
        durations[:actions] *= random.normal(1, noise, actions)
        times = evaluate(graph, durations, overheads_s(graph, costs))
        starts[step, :actions], ends[step, :actions] = times.start[:actions], times.end[:actions]
    medians = median_costs(plain, (ends - starts)[:, :actions])
    return Run("run", plain, medians, starts, ends, has_own_costs=False, communication="megatron")


def test_the_spreads_of_actions_and_ranks_that_were_put_in_are_found():
    forward = [0.02, 0.02, 0.0204, 0.0196, 0.02, 0.02]
    costs = COSTS.replace(forward_s=forward, backward_input_s=forward, backward_weight_s=0.0)
    found = calibrate([run_of("1f1b", pp=6, vpp=1, microbatches=64, noise=0.02, costs=costs)]).spreads
    assert found.action == pytest.approx(0.02, rel=0.1)
    assert found.rank == pytest.approx(1.48 * 0.01, rel=0.4)  # of −2, 0, 0 and 2 %, the median distance is 1 %
    still = calibrate([run_of("1f1b", pp=4, vpp=1)]).spreads
    assert still.action == pytest.approx(0.0, abs=1e-9)
    assert still.rank is None  # two ranks in the middle


def test_a_constant_is_the_median_of_the_steps_medians_with_the_larger_of_two_deviations() -> None:
    steps = [np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([]), np.array([2.0, 3.0, 4.0, 5.0, 6.0])]
    found = calibrate_module._fit(steps)
    assert found is not None
    assert (found.value, found.num_samples) == (3.5, 10)
    assert found.quartiles == (2.25, 4.75)
    assert found.deviation == pytest.approx(1.25 * 1.48 * 0.5 / math.sqrt(2))  # between the steps
    within = calibrate_module._fit(steps[:1])
    assert within is not None
    assert within.deviation == pytest.approx(
        1.25 * 2 / 1.35 / math.sqrt(5)
    )  # the quartiles of one step are 2 apart
    assert calibrate_module._fit([np.array([])]) is None
    lifted = calibrate_module._fit(steps, at_least=10.0)
    assert lifted is not None
    assert lifted.value == 10.0


def test_the_time_of_a_call_is_the_difference_of_waits_in_two_calls_and_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fitted(waits: dict[int, float]) -> tuple[Any, Any, dict[str, str]]:
        by_calls = {number: [np.full(4, seconds)] for number, seconds in waits.items()}
        monkeypatch.setattr(calibrate_module, "waits_by_calls", lambda run: by_calls)
        not_fitted: dict[str, str] = {}
        return *calibrate_module._fit_calls([None], not_fitted), not_fitted  # type: ignore[list-item]

    host, call, not_fitted = fitted({0: 9.0, 1: 3.0, 2: 5.0})
    assert (host.value, host.quartiles, host.num_samples) == (1.0, (1.0, 1.0), 4)
    assert (call.value, call.quartiles, call.num_samples) == (2.0, (2.0, 2.0), 4)
    assert not_fitted == {}
    host, call, _ = fitted({1: 3.0, 2: 1.0})
    assert (host.value, call.value) == (3.0, 0.0)
    assert fitted({2: 5.0})[:2] == (FittedConstant(0.0, (0.0, 0.0), 0), None)
    host, call, not_fitted = fitted({0: 9.0, 1: 3.0})
    assert (host.value, call) == (3.0, None)
    assert list(not_fitted) == ["hop_overhead_s"]
    host, call, _ = fitted({0: 9.0})
    assert (host, call) == (FittedConstant(0.0, (0.0, 0.0), 0), None)


def test_no_transfer_takes_less_than_no_time() -> None:
    """Hosts that are busy before every action but those that wait for a message: a transfer would take −4.9 ms."""
    steps = Made(build("1f1b", pp=2, microbatches=6), seed=1, num_steps=4)
    steps.gap[:] = np.where(pairs_of(steps.graph).taken >= 0, 0.0, 5e-3)
    found = calibrate([steps.run()])
    assert found.hops == []
    assert found.not_fitted["transfer"] == "the message size is unknown"


@pytest.mark.parametrize(
    ("name", "cause", "dropped"),
    [
        ("zb-h1", "falling microbatches", {"pass_factors", "last_pass_s", "action_overhead_s"}),
        ("1f1b", "drift over the step", {"pass_factors"}),
        ("gpipe", "uneven microbatches", {"first_pass_s"}),
    ],
)
def test_constants_that_make_the_replay_of_other_steps_worse_are_dropped_and_named(name, cause, dropped):
    run = made(build(name, pp=4, microbatches=8), 3, [cause]).run()
    worse, found = calibrate([run]), calibrate_tested([run])
    reasons = {
        constant for constant, why in found.not_fitted.items() if why.startswith("dropped, because the replay")
    }
    assert dropped <= reasons
    assert all(found.fits[constant] is None for constant in reasons & found.fits.keys())
    assert ("pass_factors" in reasons) == (found.spreads.factors is None)
    error, all_taken = (abs(one.residuals[0].error) for one in (found, worse))
    assert error < min(all_taken - 5e-3, abs(found.residuals[0].error_without) + 2e-3)


def test_constants_that_explain_the_other_steps_are_all_taken():
    runs = [run_of(action=1e-3, hop=2e-3, slowdown=0.25, gap=0.05, size=size, noise=1e-3) for size in SIZES]
    found, plain = calibrate_tested(runs), calibrate(runs)
    assert found == plain
    assert not any("dropped" in why for why in found.not_fitted.values())


def test_one_step_is_not_enough_to_fit_and_to_test():
    with pytest.raises(ConfigError, match="run has one step: to fit overheads and to test them, there must be two"):
        calibrate_tested([run_of(), run_of(steps=1)])


def test_a_constant_of_every_second_step_is_dropped():
    """Transfers take 6 ms more in every second step: the constants of one half are wrong for the other."""
    slow, fast = run_of(hop=6e-3, steps=8), run_of(steps=8)
    mixed = [(slow, fast)[step % 2] for step in range(8)]
    starts, ends = (np.stack([getattr(run, name)[0] for run in mixed]) for name in ("start", "end"))
    found = calibrate_tested([replace(slow, start=starts, end=ends)])
    assert found.hop is None
    assert found.not_fitted["hop_overhead_s"].startswith("dropped, because the replay of other steps is off by")
    assert calibrate_tested([slow]).hop.value > 6e-3


def test_limits_of_a_calibration() -> None:
    names = ("_LEAST_SPREAD", "_LEAST_PAIRS", "_DEVIATIONS", "_DEVIATIONS_OF_NONE", "_LEAST_HARM", "_LEAST_PASSES")
    assert [getattr(calibrate_module, name) for name in names] == [0.1, 4, 5, 3, 2e-3, 4]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 3.0), (0.625, 3.0), (0.63, 7.0), (1.0, 7.0)]
)
def test_a_weighted_quantile_is_the_first_value_with_enough_weight(part: float, expected: float) -> None:
    """Of 8: 2 for 1, 3 for 3 and 3 for 7."""
    values, weights = np.array([7.0, 1.0, 3.0]), np.array([3.0, 2.0, 3.0])
    assert calibrate_module._weighted_quantile(values, weights, part) == expected


def test_an_excess_within_three_deviations_is_none() -> None:
    """The quartiles of 16 samples are 1.35 apart: 1.25 / 4 is the deviation of their median."""
    not_fitted: dict[str, str] = {}
    around = np.repeat([-0.675, 0.0, 0.675], [5, 6, 5])
    for seconds, expected in ((1.0, 1.0), (0.9, 0.0)):
        fit = calibrate_module._beyond("first_pass_s", [seconds + around], not_fitted)
        assert fit is not None
        assert (fit.value, fit.deviation) == (pytest.approx(expected), pytest.approx(1.25 / 4))
    assert not_fitted == {}
    assert calibrate_module._beyond("first_pass_s", [], not_fitted) is None
    assert not_fitted == {"first_pass_s": "no kind of action runs 4 times per step on a stage"}


def hops_of(*samples: tuple[float, float | None], spread_s: float = 0.0) -> list[Any]:
    """Return samples of transfers, each with its seconds and bytes, four times around them."""
    offsets = spread_s * np.array([-1.0, 0.0, 0.0, 1.0])
    return [
        calibrate_module._HopSamples(
            0.5 + seconds + offsets, np.full(4, 0.25), None if size is None else np.full(4, size)
        )
        for seconds, size in samples
    ]


def test_transfers_of_two_sizes_have_a_latency_and_a_bandwidth() -> None:
    """2 s and 5 s for 10 and 40 bytes, after 0.5 s of the host: 1 s and 10 bytes/s; costs of 0.25 s are known."""
    not_fitted: dict[str, str] = {}
    beyond, hops, line = calibrate_module._fit_hops([], hops_of((2.0, 10.0), (5.0, 40.0)), 0.5, not_fitted)
    assert beyond is not None
    assert beyond.value == 3.5 - 0.25
    assert [(hop.message_bytes, hop.seconds.value, hop.seconds.num_samples) for hop in hops] == [
        (10.0, 2.0, 4), (40.0, 5.0, 4),
    ]  # fmt: skip
    assert line == pytest.approx((1.0, 10.0))
    assert not_fitted == {}
    fast = calibrate_module._fit_hops([], hops_of((2.0, 10.0), (9.0, 40.0)), 0.5, not_fitted)[2]
    assert fast == pytest.approx((0.0, 30 / 7)), "a latency is not negative"


def test_transfers_whose_times_do_not_differ_clearly_have_no_bandwidth() -> None:
    """Quartiles of ±1 s around the median are half a deviation each: 1.25 · 0.5 / 1.35 / 2 s of the median."""
    deviation = 1.25 * 0.5 / 1.35 / 2
    for seconds, has_line in ((2 + 5 * math.hypot(deviation, deviation) + 0.01, True), (2 + 5 * deviation, False)):
        not_fitted: dict[str, str] = {}
        samples = hops_of((2.0, 10.0), (seconds, 40.0), spread_s=1.0)
        line = calibrate_module._fit_hops([], samples, 0.5, not_fitted)[2]
        assert (line is not None, "transfer" not in not_fitted) == (has_line, has_line)


@pytest.mark.parametrize(
    ("samples", "sizes", "sentence"),
    [
        (hops_of((2.0, 10.0), (3.0, 10.0)), [10.0], "messages of one size, 2.50 s for 10 B: latency and bandwidth"),
        (hops_of((2.0, None)), [None], "the message size is unknown"),
        (hops_of((0.0, None)), [None], "the message size is unknown"),
        (hops_of((-0.1, None)), [], "the message size is unknown"),
        (hops_of((-0.1, None), (2.0, 10.0)), [10.0], "messages of one size, 2.00 s"),
    ],
)
def test_transfers_of_one_size_or_an_unknown_size_have_no_bandwidth(
    samples: list[Any], sizes: list[float | None], sentence: str
) -> None:
    not_fitted: dict[str, str] = {}
    _, hops, line = calibrate_module._fit_hops([], samples, 0.5, not_fitted)
    assert ([hop.message_bytes for hop in hops], line) == (sizes, None)
    assert not_fitted["transfer"].startswith(sentence)


@pytest.mark.parametrize(
    ("num_transfers", "sentence"),
    [(0, "the table sends nothing between ranks"), (1, "no action of the measured step waits for a message")],
)
def test_without_a_transfer_the_reason_is_said(num_transfers: int, sentence: str) -> None:
    not_fitted: dict[str, str] = {}
    runs: Any = [type("OwnRun", (), {"graph": type("Graph", (), {"num_transfers": num_transfers})})]
    assert calibrate_module._fit_hops(runs, [], 0.5, not_fitted) == (None, [], None)
    assert not_fitted == dict.fromkeys(("hop_overhead_s", "transfer"), sentence)


def test_a_line_of_transfers_replaces_the_overhead_and_the_time_of_a_message() -> None:
    costs = calibrate_module.with_overheads(
        COSTS, {"hop_overhead_s": 9.0, "action_overhead_s": 3.0}, (2.0, 5.0), 40.0
    )
    assert (costs.hop_overhead_s, costs.transfer_s, costs.action_overhead_s) == (2.0, 8.0, 3.0)
    for line, message_bytes in ((None, 40.0), ((2.0, 5.0), None)):
        plain = calibrate_module.with_overheads(COSTS, {"hop_overhead_s": 9.0}, line, message_bytes)
        assert (plain.hop_overhead_s, plain.transfer_s) == (9.0, COSTS.transfer_s)


@pytest.mark.parametrize(
    ("latency_s", "bandwidth", "line"), [(2.0, 5.0, (2.0, 5.0)), (None, 5.0, None), (2.0, None, None)]
)
def test_latency_and_bandwidth_are_known_together(
    latency_s: float | None, bandwidth: float | None, line: tuple[float, float] | None
) -> None:
    overheads = calibrate_module.FittedOverheads(None, None, None, None, [], latency_s, bandwidth)
    assert overheads.line == line


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(calibrate_module) == {
        "FittedConstant": {"deviation": 0.0},
        "_fit": {"at_least": float("-inf")},
    }


@pytest.mark.parametrize("communication", ["overlap", "megatron"])
def test_waits_are_grouped_by_calls_without_first_actions_and_late_inputs(
    communication: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of three actions, which begin 1 to 6 s after the rank was free; the fifth one's input is late."""
    produced_s = np.array([[0.0, 10.0, 0.0, 0.0, 10.1, 9.0]])
    monkeypatch.setattr(
        calibrate_module,
        "input_times",
        lambda graph, end: (np.full((2, 6), 10.0), np.tile(produced_s, (2, 1)), None),
    )
    asked: list[bool] = []
    monkeypatch.setattr(
        calibrate_module, "num_calls_before",
        lambda schedule, *, overlap: asked.append(overlap) or np.array([5, 1, 2, 7, 1, 1]),
    )  # fmt: skip
    schedule = SimpleNamespace(rank_offsets=np.array([0, 3, 6]))
    start = np.array([[11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 99.0], [10.5, 11.0, 11.5, 12.0, 12.5, 13.0, 99.0]])
    run: Any = SimpleNamespace(
        graph=SimpleNamespace(schedule=schedule, num_actions=6),
        start=start,
        end=start + 1,
        communication=communication,
    )
    waits = calibrate_module.waits_by_calls(run)
    assert {calls: [step.tolist() for step in steps] for calls, steps in waits.items()} == {
        1: [[2.0, 6.0], [1.0, 3.0]], 2: [[3.0], [1.5]],
    }  # fmt: skip
    assert asked == [communication == "megatron"]


def test_a_transfer_counts_if_its_message_was_sent_while_its_receiver_was_free() -> None:
    """Entries 1 and 3 begin ranks; 4 waits after entry 3, and 5 after entry 4; transfers follow six actions."""
    graph: Any = SimpleNamespace(num_actions=6, schedule=SimpleNamespace(rank_offsets=np.array([1, 3, 6])))
    end = np.array([9.0, 9.0, 9.0, 2.0, 5.0, 9.0])
    blocker = np.array([NONE] * 6 + [3, 3, 4, 0])
    waiting, transfer = np.array([1, 4, 4, 5]), np.array([0, 0, 1, 2])
    for produced_s, expected in (
        ([2.0, 2.5, 2.0, 5.5], [True, True, False, True]),
        ([1.9, 2.0, 2.1, 4.9], [False, False, True, False]),
    ):
        counted = calibrate_module._only_waited(graph, end, blocker, waiting, transfer, np.array(produced_s))
        assert counted.tolist() == expected


@pytest.mark.parametrize(
    ("fields", "has_links"),
    [
        ({}, True), ({"communication": "megatron"}, False), ({"knows_transfers": True}, False), ({"named": {}}, False),
    ],
)  # fmt: skip
def test_links_are_slow_only_if_transfers_overlap_and_are_not_known(
    fields: dict[str, Any], has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"communication": "overlap", "knows_transfers": False, "named": {"rank 0 → 1": 1.0}, **fields}
    monkeypatch.setattr(
        calibrate_module, "slow_links_of",
        lambda graph, start, end: SimpleNamespace(named=given["named"], times=(start.tolist(), end.tolist())),
    )  # fmt: skip
    run: Any = SimpleNamespace(
        graph=SimpleNamespace(num_actions=1), start=np.array([[1.0, 2.0]]), end=np.array([[3.0, 4.0]]),
        communication=given["communication"], knows_transfers=given["knows_transfers"],
    )  # fmt: skip
    links: Any = calibrate_module._slow_links(run)
    assert (links is not None) is has_links
    if links:
        assert links.times == ([[1.0]], [[3.0]])


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("action_overhead_s", {"action": None}),
        ("hop_overhead_s", {"hop": None, "latency_s": None, "bandwidth_bytes_per_s": None}),
        ("last_pass_s", {"last_pass": None}),
    ],
)
def test_a_constant_that_is_dropped_is_not_fitted(name: str, changed: dict[str, None]) -> None:
    fit = FittedConstant(1.0, (1.0, 1.0), 4)
    spreads = calibrate_module.TimeSpreads(0.1, 0.2, (0.9, 1.1))
    overheads = calibrate_module.FittedOverheads(
        fit, fit, fit, fit, [], 2.0, 3.0, spreads=spreads, first_pass=fit, last_pass=fit
    )
    assert calibrate_module._without(overheads, name) == replace(overheads, **changed)
    varied = calibrate_module._without(overheads, "pass_factors")
    assert varied == replace(overheads, spreads=replace(spreads, factors=None))
