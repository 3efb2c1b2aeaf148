"""A pair of a forward and a backward takes the time of its operations on two streams, in a named order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs import pair_overlap
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.pair_overlap import (
    LayerTimes,
    PairMessage,
    StageBytes,
    pair_bytes,
    pair_messages,
    pair_s,
)
from ppsim.model.execution import ORDERS, Order
from tests.defaults import field_defaults

times = st.floats(0.05, 4.0)


@st.composite
def layers(draw: st.DrawFn) -> LayerTimes:
    three = st.tuples(times, times, times)
    return LayerTimes(draw(three), draw(three), draw(st.sampled_from([0.0]) | times))


def alone_s(forward: list[LayerTimes], backward: list[LayerTimes]) -> float:
    return sum(one.forward_s for one in forward) + sum(one.backward_s for one in backward)


@given(st.lists(layers(), max_size=4), st.lists(layers(), max_size=4), st.sampled_from(ORDERS))
def test_a_pair_takes_no_less_than_either_stream_and_no_more_than_one_after_the_other(forward, backward, order):
    took = pair_s(forward, backward, order)
    messages = sum(2 * one.exchange_s for one in (*forward, *backward))
    whole = alone_s(forward, backward)
    assert max(messages, whole - messages) - 1e-9 <= took <= whole + 1e-9


@given(st.lists(layers(), min_size=1, max_size=4), st.floats(0, 0.5))
def test_orders_with_less_waiting_are_not_slower(both, slowdown):
    took = {order: pair_s(both, both, order, slowdown=slowdown) for order in ORDERS}
    if slowdown == 0:
        assert took["dualpipe"] <= took["megatron"] + 1e-9
        assert took["megatron-delay-wgrad"] == took["dualpipe"]
        assert took["best"] <= took["dualpipe"] + 1e-9 or len(both) > 3  # all orders are tried on three pairs


def test_the_phases_of_megatron_are_the_longer_stream_of_each():
    one = LayerTimes((3.0, 4.0, 2.0), (1.0, 2.0, 1.5), 1.75)
    # Phases: attention forward | combine backward; experts I, W, F | dispatch F, dispatch B (which waits for W); …
    assert pair_s([one], [one], "megatron") == pytest.approx(
        max(3, 1.75) + max(2 + 1.5 + 1, 2 + 1.5 + 1.75) + max(4 + 2, 1.75)
    )


def test_delayed_weight_gradients_run_next_to_the_messages_of_their_backward():
    one = LayerTimes((3.0, 4.0, 2.0), (1.0, 2.0, 1.5), 1.75)
    # Of two pairs: dispatch B waits for I alone, and the second combine B runs next to W.
    assert pair_s([one], [one], "megatron-delay-wgrad") == pytest.approx(3 + (2 + 1.5 + 1) + max(4 + 2, 1.75))
    whole, delayed = (pair_s([one] * 2, [one] * 2, order) for order in ("megatron", "megatron-delay-wgrad"))
    assert whole == pytest.approx(2 * pair_s([one], [one], "megatron"))
    assert delayed == pytest.approx(2 * 13.5)


def test_experts_wait_for_a_dispatch_that_is_longer_than_the_compute_beside_it():
    one = LayerTimes((1.0, 1.0, 0.0), (1.0, 1.0, 0.0), 5.0)
    # combine B 5, dispatch F 5 and dispatch B 5, experts F behind the first of them, combine F 5
    assert pair_s([one], [one], "megatron") == pytest.approx(5 + 10 + 5)


def test_compute_is_slower_while_a_message_holds_multiprocessors():
    one = LayerTimes((2.0, 2.0, 2.0), (2.0, 2.0, 2.0), 1.0)
    free, held = (pair_s([one], [one], "megatron", slowdown=part) for part in (0.0, 0.25))
    assert held - free == pytest.approx(0.25 * 4.0)  # beside each of four messages a quarter is lost


@given(st.lists(layers(), max_size=3), st.lists(layers(), max_size=3), st.sampled_from(ORDERS), st.floats(0, 0.5))
def test_the_messages_of_a_pair_are_whole_in_order_and_end_with_it(forward, backward, order, slowdown):
    found = pair_messages(forward, backward, order, slowdown=slowdown)
    took = {}
    for one in found:
        took[one.operation, one.layer] = took.get((one.operation, one.layer), 0.0) + one.end_s - one.start_s
    expected = {
        (f"{name} F", place): one.exchange_s
        for place, one in enumerate(forward)
        for name in ("dispatch", "combine")
    }
    expected |= {
        (f"{name} B", place): one.exchange_s
        for place, one in enumerate(backward)
        for name in ("dispatch", "combine")
    }
    assert took == pytest.approx({name: lasts for name, lasts in expected.items() if lasts})
    assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairwise(found))
    assert not found or found[-1].end_s <= pair_s(forward, backward, order, slowdown=slowdown) + 1e-9


def test_a_message_is_hidden_as_long_as_compute_runs_next_to_it():
    one = LayerTimes((1.0, 1.0, 0.0), (1.0, 1.0, 0.0), 3.0)
    assert pair_messages([one], [one], "dualpipe")[:2] == [
        PairMessage("combine B", 0, 0.0, 1.0, ("before F",)),
        PairMessage("combine B", 0, 1.0, 3.0),
    ]


def test_messages_are_in_the_named_order_or_in_the_best() -> None:
    forward = LayerTimes((3.0, 0.0, 0.0), (1.0, 0.0, 0.0), 4.0)
    backward = LayerTimes((0.0, 3.0, 4.0), (0.0, 1.0, 3.0), 5.0)

    def begins(order: Order) -> dict[str, float]:
        messages = pair_messages([forward], [backward], order)
        return {message.operation: message.start_s for message in reversed(messages)}  # the first part of each

    assert begins("dualpipe") == {"combine B": 0.0, "dispatch F": 5.0, "dispatch B": 9.0, "combine F": 14.0}
    assert pair_s([forward], [backward], "dualpipe") == 21.0  # before I follows dispatch B: 14 + 3 + 4
    assert begins("best") == {"combine B": 0.0, "dispatch B": 6.0, "dispatch F": 11.0, "combine F": 16.0}
    assert pair_s([forward], [backward], "best") == 20.0


def test_layers_that_one_of_the_two_has_left_run_alone():
    one, dense = LayerTimes((1, 1, 1), (1, 1, 1), 1.0), LayerTimes((1, 1, 1), (1, 1, 1))
    for order in ORDERS:
        assert pair_s([one, dense], [one], order) == pair_s([one], [one], order) + dense.forward_s
        assert pair_s([one], [], order) == one.forward_s


def test_a_pair_takes_no_less_than_its_launches():
    one = LayerTimes((1, 1, 1), (1, 1, 1), 1.0, launches=(6.0, 7.0), waits=(2.0, 1.0))
    assert pair_s([one], [one], "best") == 13.0


def optimum(forward: LayerTimes, backward: LayerTimes, count: int) -> float:
    """The least seconds of `count` equal pairs of layers, by CP-SAT; a unit is a hundredth of a second."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    model, machines = cp_model.CpModel(), ([], [])
    ends = []

    def placed(seconds: float, machine: int, *after):
        size = round(100 * seconds)
        start = model.new_int_var(0, 10**6, "")
        machines[machine].append(model.new_fixed_size_interval_var(start, size, ""))
        for one in after:
            model.add(start >= one)
        ends.append(start + size)
        return start + size

    down, up = 0, 0
    for _ in range(count):
        for seconds, machine in (
            (forward.before[0], 0), (forward.exchange_s, 1), (forward.experts[0], 0), (forward.exchange_s, 1),
        ):  # fmt: skip
            down = placed(seconds, machine, down)
        up = placed(backward.exchange_s, 1, up)
        up = placed(backward.experts[1], 0, up)
        placed(backward.experts[2], 0, up)
        up = placed(backward.exchange_s, 1, up)
        up = placed(backward.before[1], 0, up)
        placed(backward.before[2], 0, up)
    for machine in machines:
        model.add_no_overlap(machine)
    last = model.new_int_var(0, 10**6, "")
    model.add_max_equality(last, ends)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 20
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / 100


CASES = [
    (LayerTimes((3.0, 3.0, 1.5), (2.0, 2.0, 2.0), 1.0), 2),
    (LayerTimes((2.0, 2.0, 1.0), (3.0, 3.0, 3.0), 2.5), 1),
    (LayerTimes((4.0, 5.0, 2.0), (1.0, 1.0, 1.0), 3.0), 1),
    (LayerTimes((1.0, 1.2, 0.8), (1.5, 1.5, 1.5), 1.5), 2),
    (LayerTimes((2.0, 2.5, 1.5), (1.0, 1.0, 1.0), 0.5), 2),
]


@pytest.mark.parametrize(("layer", "count"), CASES)
def test_best_is_within_a_hundredth_of_the_optimum(layer, count):
    assert pair_s([layer] * count, [layer] * count, "best") <= 1.01 * optimum(layer, layer, count) + 0.01


MOE = {
    "model": "qwen3-30b-a3b",
    "stack": "plain",
    "cluster": "h100",
    "gpus": 16,
    "ep": 8,
    "global_batch": 128,
    "seq_len": 4096,
}


def test_overlap_makes_a_step_shorter_by_no_more_than_its_exchange():
    """If the token counts are fixed: the host does not wait for the router then."""
    fixed = MOE | {"pp": 2, "vpp": 2, "moe_expert_capacity_factor": 1.0}
    alone = ppsim.project(**fixed)
    for order in ORDERS:
        made = ppsim.project(**fixed, overlap_ep=order)
        assert made.timeline.schedule.name == "combined-1f1b"
        assert made.iteration_time_s < alone.iteration_time_s
        budget = made.summarise(with_advice=False).time_breakdown_s
        assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
        assert (
            0
            <= budget["EP communication"]
            < alone.summarise(with_advice=False).time_breakdown_s["EP communication"]
        )


def test_overlap_makes_a_step_longer_if_the_host_limits_it():
    """As published for B200 and MXFP8: 20.1 s with overlap, 16.9 s without (Megatron-Bridge#1760)."""
    job = {
        "model": "qwen3-235b-a22b",
        "stack": "plain",
        "cluster": "dgx-b200",
        "gpus": 64,
        "pp": 8,
        "ep": 8,
        "dtype": "mxfp8",
    }
    job |= {"global_batch": 1024, "seq_len": 4096, "stack": "megatron-bridge@25.11", "moe_dispatcher": "alltoall"}
    alone, overlapped = ppsim.project(**job), ppsim.project(**job, vpp=4, overlap_ep="megatron-delay-wgrad")
    assert overlapped.iteration_time_s / alone.iteration_time_s == pytest.approx(20.1 / 16.9, rel=0.05)
    advice = {one.change: one.throughput_gain for one in overlapped.summary.advice}
    assert advice["--overlap-ep 0 --schedule interleaved-1f1b"] > 0.1


def test_causes_of_a_step_with_pairs_are_those_of_its_pairs():
    """The bubble is that of the schedule: at most (pp - 1) + 1 of vpp x m. The host has what it slows pairs down."""
    job = MOE | {"pp": 2, "vpp": 2, "global_batch": 256}
    graphs = {"moe_dispatcher": "hybridep", "cuda_graphs": "moe_router+moe_preprocess"}
    parts = {
        name: ppsim.project(**job, **options).summarise(with_advice=False).time_breakdown_s
        for name, options in (
            ("alone", {}), ("slowed", {"overlap_ep": "megatron"}), ("hidden", graphs | {"overlap_ep": "megatron"}),
        )
    }  # fmt: skip
    for name in ("slowed", "hidden"):
        assert 0 < parts[name]["pipeline bubble"] < 2 / (2 * 32) * sum(parts[name].values())
        assert parts[name]["stage imbalance"] > 0
    assert parts["slowed"]["host"] > 1.2 * parts["alone"]["host"]
    for name in ("slowed", "hidden"):
        assert parts[name]["EP communication"] < 0.5 * parts["alone"]["EP communication"]


@pytest.mark.parametrize(
    ("dispatcher", "default", "words", "sms"),
    [("deepep", 20, {}, 20), ("hybridep", 16, {}, 16), ("deepep", 20, {"moe_flex_dispatcher_num_sms": 66}, 66)],
)
def test_compute_of_a_pair_is_slower_by_the_sms_of_the_dispatcher(dispatcher, default, words, sms):
    """The slowdown is the dispatcher's share of an H100's 132 SMs."""
    large = MOE | {"micro_batch": 4, "moe_dispatcher": dispatcher, "pp": 2}
    made, usual = (
        ppsim.project(
            **large, **more, vpp=2, overlap_ep="megatron", overlap_grad_reduce=False, overlap_param_gather=False
        )
        for more in (words, {})
    )
    layers = made.stage_cost_set.layer_times[2]  # layers only, no embedding and no head
    together_s = pair_s(layers, layers, "megatron", slowdown=sms / 132)
    assert made.stage_cost_set.costs.fused_s[2][2] == pytest.approx(together_s, rel=1e-4)
    assert pair_s(layers, layers, "megatron", slowdown=(sms + 4) / 132) > 1.001 * together_s
    whole, half = (
        ppsim.project(**large, **words, overlap_ep=part).summary.time_breakdown_s["EP communication"]
        for part in (0.0, 0.5)
    )
    assert half == pytest.approx(whole * (1 - (1 - sms / 132) / 2))
    assert (made.iteration_time_s > usual.iteration_time_s) is (sms > default)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"moe_flex_dispatcher_num_sms": 0}, "--moe-flex-dispatcher-num-sms is 1 or more: got 0"),
        ({"moe_flex_dispatcher_num_sms": 133}, "num-sms 133 exceeds the 132 SMs of NVIDIA H100"),
        (
            {"moe_flex_dispatcher_num_sms": 24, "moe_dispatcher": "alltoall"},
            "24 goes with --moe-dispatcher deepep or hybridep: got alltoall",
        ),
    ],
)
def test_an_impossible_number_of_sms_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        ppsim.job(**MOE, pp=2, **words)


def test_one_more_chunk_is_in_flight():
    """The step holds p + p / v microbatches of activations instead of p + (p − 1) / v."""
    plain, paired = (
        ppsim.build(name, pp=4, vpp=2, microbatches=16) for name in ("interleaved-1f1b", "combined-1f1b")
    )
    costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=0.5)
    peaks = [ppsim.simulate(table, costs).memory.peak_bytes.max() for table in (plain, paired)]
    assert peaks == [5.5, 6.0]


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b", "overlap_ep": "megatron"}, ScheduleError, "--schedule combined-1f1b"),
        ({"pp": 2, "vpp": 1, "overlap_ep": "megatron"}, ScheduleError, "virtual stages"),
        ({"pp": 2, "vpp": 2, "overlap_ep": "megatron", "recompute": "full"}, ScheduleError, "full recomputation"),
        ({"pp": 2, "vpp": 2, "overlap_ep": "tessera"}, ConfigError, "give megatron, megatron-delay-wgrad, dualpipe, best, or a part"),
        ({"pp": 2, "vpp": 2, "overlap_ep": "best", "ep": 1, "tp": 8}, ScheduleError, "--ep above 1"),
    ],
)  # fmt: skip
def test_what_cannot_overlap_is_refused_with_the_nearest_fix(fields, error, said):
    with pytest.raises(error, match=said):
        ppsim.project(**MOE | fields)


def test_a_partition_made_for_serial_costs_is_better_without_overlap_and_worse_with_it():
    """Tessera's finding (OSDI 2026), on a model of token mixers and experts of unequal cost."""
    job = {
        "model": "nemotron-3-nano-30b-a3b", "stack": "plain", "cluster": "h100", "gpus": 64, "pp": 4, "vpp": 4, "ep": 16,
        "global_batch": 512, "seq_len": 4096,
    }  # fmt: skip
    overlap = {"overlap_ep": "megatron"}
    serial, aware = ppsim.project(**job), ppsim.project(**job, **overlap)
    assert serial.split != aware.split
    assert ppsim.project(**job, split=list(aware.split)).iteration_time_s > serial.iteration_time_s
    assert ppsim.project(**job, **overlap, split=list(serial.split)).iteration_time_s > aware.iteration_time_s


def test_what_pairs_save_beyond_messages_is_time_of_the_host():
    made = ppsim.project(
        model="nemotron-3-nano-30b-a3b", stack="plain", cluster="h100", gpus=64, pp=4, vpp=2, ep=16, global_batch=256, seq_len=4096,
        overlap_ep="megatron",
    )  # fmt: skip
    budget = made.summarise(with_advice=False).time_breakdown_s
    assert min(budget.get("EP communication", 0.0), budget["host"]) >= -1e-9
    assert sum(budget.values()) == pytest.approx(made.iteration_time_s)


def held_by_a_pair(forward: StageBytes, backward: StageBytes) -> float:
    """The peak of the bytes held during a pair, walked layer by layer."""
    live = peak = 0.0
    one, other = forward.whole / forward.num_layers, backward.whole / backward.num_layers
    before, first = forward.before / forward.num_layers, backward.before / backward.num_layers
    num_pairs = min(forward.num_layers, backward.num_layers)
    for change in [before, first - other, one - before, -first] * num_pairs:
        live += change
        peak = max(peak, live)
    left = (forward.num_layers - num_pairs) * one - (backward.num_layers - num_pairs) * other
    return max(peak, live + left)


@pytest.mark.parametrize("forward", [StageBytes(20, 6, 2), StageBytes(30, 3, 3), StageBytes(9, 8, 1)])
@pytest.mark.parametrize("backward", [StageBytes(16, 4, 2), StageBytes(60, 40, 3), StageBytes(7, 1, 1)])
def test_the_bytes_of_a_pair_are_those_of_its_layers_one_after_another(
    forward: StageBytes, backward: StageBytes
) -> None:
    assert pair_bytes(forward, backward) == pytest.approx(held_by_a_pair(forward, backward))


def test_a_forward_without_a_pair_holds_all_of_its_bytes() -> None:
    assert pair_bytes(StageBytes(20, 6, 2), StageBytes(0, 0, 0)) == 20


def test_two_model_replicas_hide_the_messages_of_a_pair_once():
    job = ppsim.job(
        model="qwen3-30b-a3b", layers=8, gpus=16, pp=2, ep=8, global_batch=64, seq_len=4096, overlap_ep="dualpipe",
        moe_dispatcher="hybridep", stack="plain",
    )  # fmt: skip
    table = ppsim.build("dualpipe", pp=2, microbatches=8)
    found = assemble_job(job, table, split="even")
    (one, other), costs = found.layer_times, found.parts
    apart_s = costs[0].forward.total_s + costs[1].backward.total_s
    hidden_s = alone_s(one, other) - pair_s(one, other, "dualpipe", slowdown=job.place.dispatch_slowdown)
    assert found.costs.fused_s[0][1] == pytest.approx(apart_s - hidden_s)


def test_a_layer_without_exchanges_waits_for_nothing() -> None:
    assert field_defaults(pair_overlap.LayerTimes) == {
        "exchange_s": 0.0,
        "launches": (0.0, 0.0),
        "waits": (0.0, 0.0),
    }


def test_messages_of_a_pair_that_waits_for_launches_are_stretched_to_them() -> None:
    def of(**launches: tuple[float, float]) -> pair_overlap.LayerTimes:
        return pair_overlap.LayerTimes((2.0, 3.0, 1.0), (5.0, 7.0, 4.0), 1.5, **launches)

    usual = pair_overlap.pair_messages([of()], [of()], "dualpipe")
    together_s = pair_overlap.pair_s([of()], [of()], "dualpipe")
    slow = of(launches=(together_s, 2 * together_s))
    assert pair_overlap.pair_s([slow], [slow], "dualpipe") == pytest.approx(3 * together_s)
    stretched = pair_overlap.pair_messages([slow], [slow], "dualpipe")
    assert [(one.operation, one.layer, one.next_to) for one in stretched] == [
        (one.operation, one.layer, one.next_to) for one in usual
    ]
    for name in ("start_s", "end_s"):
        assert [getattr(one, name) for one in stretched] == pytest.approx([3 * getattr(one, name) for one in usual])
    assert len(usual) >= 4


def test_layers_that_have_no_partner_run_alone_behind_the_pairs() -> None:
    one = pair_overlap.LayerTimes((2.0, 3.0, 1.0), (5.0, 7.0, 4.0), 1.5)
    alone = pair_overlap.pair_messages([one], [], "dualpipe")
    assert [(each.operation, each.layer, each.start_s, each.end_s) for each in alone] == [
        ("dispatch F", 0, 2.0, 3.5), ("combine F", 0, 8.5, 10.0),
    ]  # fmt: skip
    alone = pair_overlap.pair_messages([], [one, one], "dualpipe")
    assert [(each.operation, each.layer, each.start_s) for each in alone] == [
        ("combine B", 1, 0.0), ("dispatch B", 1, 12.5), ("combine B", 0, 18.0), ("dispatch B", 0, 30.5),
    ]  # fmt: skip
    assert pair_overlap.pair_s([one], [], "dualpipe") == one.forward_s == 10.0
    assert pair_overlap.pair_s([], [one, one], "dualpipe") == 2 * one.backward_s == 36.0
