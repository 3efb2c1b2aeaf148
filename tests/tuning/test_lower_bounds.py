"""A bound is admissible: no configuration is faster, or holds less, than its outlook says."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.catalog.build import CATALOG, find
from ppsim.costs.similar_jobs import features_of
from ppsim.machine.job_similarity import MeasuredJob
from ppsim.projection.project import iteration_of, project, table_of
from ppsim.tuning import lower_bounds
from ppsim.tuning.evaluate import exact_peak_bytes, task_of
from ppsim.tuning.lower_bounds import BoundsCalculator
from ppsim.tuning.space import Configuration, configurations, space_for
from tests.tuning.questions import question

EVERY = [
    name for name, entry in CATALOG.items()
    if entry.num_replicas == 1 and not entry.takes("num_slices") and not entry.takes("costs")
]  # fmt: skip
QUESTIONS = {
    "dense": lambda **drawn: question("llama3-8b", layers=10, gpus=8, batch=16, length=4096, **drawn),
    "tied": lambda **drawn: question("gpt2", gpus=8, batch=16, length=1024, **drawn),
    "experts": lambda **drawn: question("mixtral-8x7b", layers=6, gpus=8, batch=16, length=4096, **drawn),
    "latent attention, dense layers first": lambda **drawn: question(
        "deepseek-v3", layers=8, gpus=8, batch=16, length=4096, **drawn
    ),
}


@given(st.data())
@pytest.mark.search
def test_neither_time_nor_bytes_are_below_the_outlook(data):
    asked = QUESTIONS[data.draw(st.sampled_from(sorted(QUESTIONS)))](
        limit_gib=1e6, zero=data.draw(st.integers(0, 3)), overlap_grad_reduce=data.draw(st.booleans()),
        overlap_param_gather=data.draw(st.booleans()),
        update=data.draw(st.sampled_from(["synchronised", "post-validated"])),
        runtime=data.draw(st.sampled_from(["torch", "megatron", "ideal"])),
    )  # fmt: skip
    cluster, times = asked.job.cluster, data.draw(st.sampled_from([0.7, 1.0, 1.4]))
    runs = (MeasuredJob(**vars(features_of(asked.job)), times=times, spread=0.3),)
    asked = replace(
        asked, job=replace(asked.job, cluster=cluster.with_constants(replace(cluster.constants, runs=runs)))
    )
    if data.draw(st.booleans()):
        asked = replace(asked, overheads=(("hop_overhead_s", 1e-5), ("bandwidth_bytes_per_s", 1e13)))
    if data.draw(st.booleans()):
        optimizer = replace(asked.job.optimizer, grad_reduce_in_bf16=True)
        asked = replace(asked, job=replace(asked.job, optimizer=optimizer))
    space = space_for(
        asked, schedule=EVERY, tp=[1, 2], recompute=["none", "core_attn", "layernorm", "full"], vpp=[1, 2, 4]
    )
    candidate = data.draw(st.sampled_from(configurations(asked, space)))
    calculator = BoundsCalculator(asked)
    look = calculator.of(candidate)
    plan = asked.plan_of(candidate)
    table, _ = table_of(plan, find(candidate.schedule))
    iteration_time_s, peak = iteration_of(plan, table)
    assert look.bound_s <= iteration_time_s
    assert look.least_bytes <= peak * (1 + 1e-12)
    assert exact_peak_bytes(task_of(calculator, look)) == pytest.approx(peak, rel=1e-12)


def test_the_bound_of_gpipe_without_queues_is_met_but_for_norm_and_optimizer():
    """The longest rank's m·(F + B), and the ways to it and from it; the rank of the longest F is not that of B."""
    asked = question(gpus=8, batch=64, runtime="ideal", limit_gib=1e6)
    space = space_for(asked, tp=[1], cp=[1], pp=[4], vpp=[1], micro_batch=[1], schedule=["gpipe"], split=["auto"])
    candidate = configurations(asked, space)[0]
    found = project(asked.plan_of(candidate))
    behind = found.step.exposed_s["norm"] + found.step.exposed_s["optimizer"]
    bound_s = BoundsCalculator(asked).of(candidate).bound_s
    assert 0.97 * (found.iteration_time_s - behind) <= bound_s <= found.iteration_time_s - behind


def test_a_plan_with_shared_costs_is_the_plan():
    asked = question("mixtral-8x7b", layers=6, gpus=8, batch=16, length=4096, limit_gib=1e6)
    outlooks = BoundsCalculator(asked)
    for candidate in configurations(asked, space_for(asked))[::97]:
        shared, alone = outlooks.plan(outlooks.of(candidate)), asked.plan_of(candidate)
        table, _ = table_of(alone, find(candidate.schedule))
        assert iteration_of(shared, table) == iteration_of(alone, table)


def test_what_does_not_fit_has_no_bound():
    asked = question(limit_gib=1.0)
    looks = [BoundsCalculator(asked).of(candidate) for candidate in configurations(asked, space_for(asked))[::50]]
    assert all(np.isinf(look.bound_s) for look in looks)


@pytest.mark.parametrize(("overlap", "reduced_s"), [(True, 200.0), (False, 600.0)])
def test_of_the_reductions_of_a_rank_the_bound_has_the_shortest_if_they_overlap_and_all_if_not(
    monkeypatch, overlap, reduced_s
):
    """Rank 1 has stages 1 and 3. It computes two microbatches of F, I and W, a second each."""
    ones, reduce_s = np.ones(4), np.array([100.0, 200.0, 300.0, 400.0])
    monkeypatch.setattr(lower_bounds._Stages, "seconds", lambda _: np.array([ones, ones, ones]))
    monkeypatch.setattr(lower_bounds, "_exposed_per_step_s", lambda *_: (np.zeros(4), reduce_s))
    asked = question(
        layers=8, gpus=16, batch=16, limit_gib=1e6, overlap_grad_reduce=overlap, update="post-validated"
    )
    space = space_for(
        asked, tp=[1], cp=[1], pp=[2], vpp=[2], micro_batch=[1], schedule=["interleaved-1f1b"], recompute=["none"],
        split=["even"],
    )  # fmt: skip
    candidate = configurations(asked, space)[0]
    bound_s = BoundsCalculator(asked).of(candidate).bound_s
    assert bound_s == pytest.approx(2 * 2 * 3.0 + reduced_s + asked.plan_of(candidate).job.rest_s)


def test_the_gain_of_a_forward_is_the_most_that_a_pair_on_its_rank_saves(monkeypatch):
    """F and B take 1 and 2 s per layer, and a pair the longer of both; rank 0 has stages 0 (one layer) and 3 (two)."""
    layer = SimpleNamespace(forward_s=1.0, backward_s=2.0)
    layers = {0: [layer], 1: [layer], 2: [], 3: [layer, layer]}
    monkeypatch.setattr(lower_bounds, "pair_s", lambda f, b, *_, **__: float(max(len(f), 2 * len(b))))
    job = SimpleNamespace(
        execution=SimpleNamespace(ep_order="megatron"), place=SimpleNamespace(dispatch_slowdown=0.0)
    )
    found = SimpleNamespace(
        stages=[0, 1, 2, 3], ranks=np.array([[0, 3], [1, 2]]), ledger=SimpleNamespace(layer_times=layers.get)
    )
    # stage 3: 2 + 4 s alone, 4 s as a pair with itself; stage 2 has no layer with experts
    assert lower_bounds._most_gained_s(job, found).tolist() == [1.0, 1.0, 0.0, 2.0]
    job.execution.ep_order = None
    assert lower_bounds._most_gained_s(job, found).tolist() == [0.0] * 4


F_S, I_S, W_S = np.array([3.0, 5.0]), np.array([7.0, 11.0]), np.array([13.0, 17.0])
"""Seconds of F, I and W of two stages."""


@pytest.mark.parametrize(
    ("fields", "expected_s"),
    [
        # begins are 1 and 40 s, gathers; work of rank 1 is 5 · (5 + 11 + 17 - 0.125), and its gradients end 39.5 s
        # later: 20 s of B on stage 0, 0.5 s of a hop, 19 s of the reduction
        ({}, 40 + 164.375 + 39.5 - 0.25),
        ({"schedule": "zb-h1"}, 40 + 164.375 + 23),
        ({"schedule": "zb-h1", "number": 1, "reduce": 190}, 40 + 15.875 + 0.5 + 20 + 190 - 0.25),
        (
            {"runtime": "ideal", "schedule": "zb-h1", "number": 1, "reduce": 190},
            40 + 15.875 + 7.5 + 13 + 190 - 0.25,
        ),
        ({"overheads": (("bandwidth_bytes_per_s", 1.0),)}, 40 + 164.375 + 39 - 0.25),
        ({"overheads": (("hop_overhead_s", 1.0),)}, 40 + 164.375 + 39.5 - 0.25),
        ({"update": "post-validated"}, 164.375 + 23),
    ],
)
def test_a_bound_is_the_way_to_a_rank_its_work_and_the_way_back(
    monkeypatch: pytest.MonkeyPatch, fields: dict, expected_s: float
) -> None:
    given = {
        "runtime": "torch",
        "schedule": "1f1b",
        "number": 5,
        "overheads": (),
        "update": "synchronised",
    } | fields
    gather, reduce = np.array([1.0, 40.0]), np.array([given.get("reduce", 19.0), 23.0])
    monkeypatch.setattr(lower_bounds, "_exposed_per_step_s", lambda *_: (gather, reduce))
    monkeypatch.setattr(lower_bounds, "_most_gained_s", lambda *_: np.array([0.25, 0.125]))
    monkeypatch.setattr(lower_bounds, "_hop_s", lambda _: 0.5)
    job = SimpleNamespace(
        num_microbatches=given["number"], overlap_grad_reduce=True, update=given["update"], rest_s=0.75
    )
    found = SimpleNamespace(ranks=np.array([[0], [1]]), seconds=lambda: np.array([F_S, I_S, W_S]))
    calculator = BoundsCalculator(SimpleNamespace(runtime=given["runtime"], overheads=given["overheads"]))  # type: ignore[arg-type]
    configuration = SimpleNamespace(schedule=given["schedule"], pp=2, vpp=1)
    bound_s = calculator._bound_s(job, configuration, found)  # type: ignore[arg-type]
    assert bound_s == pytest.approx(expected_s + 0.75, rel=2e-9)
    assert bound_s < expected_s + 0.75, "the simulator may round"


def test_on_a_v_the_way_through_all_stages_may_be_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One microbatch: rank 0 has the first and the last stage; only the middle of the V stays on a rank."""
    zero = np.zeros(4)
    monkeypatch.setattr(lower_bounds, "_exposed_per_step_s", lambda *_: (zero, np.array([6.0, 0, 0, 0])))
    monkeypatch.setattr(lower_bounds, "_most_gained_s", lambda *_: np.array([0.25, 0, 0.5, 0]))
    monkeypatch.setattr(lower_bounds, "_hop_s", lambda _: 10.0)
    forward, inputs, weights = (np.array(one) for one in ([1.0, 2, 3, 4], [5.0, 6, 7, 8], [9.0, 10, 11, 12]))
    job = SimpleNamespace(num_microbatches=1, overlap_grad_reduce=True, update="synchronised", rest_s=0.0)
    found = SimpleNamespace(ranks=np.array([[0, 3], [1, 2]]), seconds=lambda: np.array([forward, inputs, weights]))
    calculator = BoundsCalculator(SimpleNamespace(runtime="ideal", overheads=()))  # type: ignore[arg-type]
    configuration = SimpleNamespace(schedule="1f1b-v", pp=2, vpp=2)
    down_s = (1 + 10) + 2 + (3 + 10) + 4
    up_s = 20 + (18 + 10) + 16 + (14 + 10) + 6
    bound_s = calculator._bound_s(job, configuration, found)  # type: ignore[arg-type]
    assert bound_s == pytest.approx(down_s + up_s - 2 * 0.75)


def test_searched_splits_have_the_mean_work_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_bounds, "_most_gained_s", lambda *_: np.array([0.25, 0.5]))
    stages = SimpleNamespace(ranks=np.array([[0], [1]]), seconds=lambda: np.array([F_S, I_S, W_S]))
    calculator = BoundsCalculator(SimpleNamespace(runtime="ideal", overheads=()))  # type: ignore[arg-type]
    bound_s = calculator._bound_of_splits_s(SimpleNamespace(num_microbatches=6), stages)  # type: ignore[arg-type]
    assert bound_s == pytest.approx(6 * (56 - 0.75) / 2)
    assert bound_s < 6 * (56 - 0.75) / 2, "the simulator may round"


def test_all_buckets_but_one_of_an_overlapped_collective_are_hidden() -> None:
    first, last = (
        SimpleNamespace(num_buckets=4, per_step_s=(8.0, 12.0)),
        SimpleNamespace(num_buckets=2, per_step_s=(6.0, 10.0)),
    )
    ledger = SimpleNamespace(stages=lambda _: [first, last, first])
    for gathers, reduces, expected in (
        (True, False, ([2.0, 3.0, 2.0], [12.0, 10.0, 12.0])), (False, True, ([8.0, 6.0, 8.0], [3.0, 5.0, 3.0])),
    ):  # fmt: skip
        job = SimpleNamespace(overlap_param_gather=gathers, overlap_grad_reduce=reduces)
        found = lower_bounds._exposed_per_step_s(job, SimpleNamespace(ledger=ledger, stages=[]))  # type: ignore[arg-type]
        assert tuple(one.tolist() for one in found) == expected


@pytest.mark.parametrize(
    ("scatters", "num_bytes"), [(True, 3 * 2048 // 4 * 6 * 2 / 8), (False, 3 * 2048 // 4 * 6 * 2 / 5)]
)
def test_a_hop_sends_the_states_of_a_rank_over_the_fastest_link_that_it_crosses(
    monkeypatch: pytest.MonkeyPatch, scatters: bool, num_bytes: float
) -> None:
    job = SimpleNamespace(
        layout=SimpleNamespace(cp=4, tp=8), cluster=SimpleNamespace(tiers=[SimpleNamespace(p2p_link=n) for n in (1, 2, 4)]),
        micro_batch=3, length=2048, model=SimpleNamespace(residual_size=6), scatter_gather=scatters,
        execution=SimpleNamespace(element_bytes=2), settings=SimpleNamespace(cut=SimpleNamespace(norm_divisor=5)),
        place=SimpleNamespace(domain_sizes="sizes"),
    )  # fmt: skip
    monkeypatch.setattr(
        lower_bounds,
        "hop_tiers",
        lambda layout, sizes: [2, 1, 2] if (layout, sizes) == (job.layout, "sizes") else [],
    )
    monkeypatch.setattr(lower_bounds.collectives, "point_to_point_s", lambda size, link: size * link)
    assert lower_bounds._hop_s(job) == 2 * num_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "order", "update", "least"),
    [
        ("gpipe", None, (0.0, 0.0), 100 + 6 * 7),  # all six forwards, of the smallest stage
        ("zb-h1", None, (0.0, 0.0), 100 + 2 * 3),  # W keeps 3 bytes until it ends
        ("gpipe", "megatron", (0.0, 0.0), 100 + 5 * 7),
        ("gpipe", None, (0.0, 43.0), 110 + 43),
    ],
)
def test_a_rank_holds_its_static_bytes_and_the_update_or_microbatches(
    schedule: str, order: str | None, update: tuple[float, float], least: float
) -> None:
    memory = SimpleNamespace(
        static_bytes=np.array([100.0, 110.0]), activation_bytes=(np.array([9.0, 7.0]), np.array([4.0, 3.0])),
        update_bytes=np.array(update),
    )  # fmt: skip
    stages = SimpleNamespace(memory=memory, ranks=np.array([[0], [1]]))
    configuration = SimpleNamespace(schedule=schedule, pp=2, vpp=1)
    job = SimpleNamespace(num_microbatches=6, execution=SimpleNamespace(ep_order=order))
    found = lower_bounds._least_bytes(configuration, job, stages)  # type: ignore[arg-type]
    assert found == max(least, 110 + 7, 100 + 9)


def test_stages_of_ranks_and_boundaries_follow_the_placement() -> None:
    assert lower_bounds._stages_of_ranks("loop", 3, 2).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert lower_bounds._stages_of_ranks("v", 3, 2).tolist() == [[0, 5], [1, 4], [2, 3]]
    assert lower_bounds._changes_rank("v", 3, 2).tolist() == [True, True, False, True, True]
    assert lower_bounds._changes_rank("loop", 3, 2).all()
    assert lower_bounds._sums(np.array([2.0, 3.0])).tolist() == [0.0, 2.0, 5.0]


def test_the_weights_part_of_a_backward_is_what_its_inputs_leave() -> None:
    total = {name: SimpleNamespace(total_s=number) for name, number in (("f", 3.0), ("b", 11.0), ("i", 4.0))}
    cost = SimpleNamespace(forward=total["f"], backward=total["b"], backward_input=total["i"])
    assert lower_bounds._passes_s(cost) == (3.0, 4.0, 7.0)  # type: ignore[arg-type]


def test_the_first_stage_of_torch_keeps_all_bytes_until_its_weights_gradients() -> None:
    for runtime, is_kept in (("torch", True), ("ideal", False)):
        asked = question(layers=8, gpus=16, batch=16, limit_gib=1e6, runtime=runtime)
        space = space_for(
            asked, tp=[1], cp=[1], pp=[4], vpp=[1], micro_batch=[1], schedule=["zb-h1"], recompute=["none"],
            split=["even"],
        )  # fmt: skip
        whole, for_weight = BoundsCalculator(asked).of(configurations(asked, space)[0]).memory.activation_bytes
        assert (for_weight[0] == whole[0]) == is_kept
        assert (for_weight[1:] < whole[1:]).all()


def test_bounds_of_searched_splits_and_of_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a scale below 1 is applied. A searched split may hold fewer bytes than an even one."""
    asked = question("gpt2", gpus=2, batch=4, length=1024, limit_gib=1e-3)
    even = Configuration(1, 1, 1, 1, 2, 1, 1, "none", "1f1b", "even")
    searched = replace(even, split="searched")
    monkeypatch.setattr(BoundsCalculator, "_bound_of_splits_s", lambda *_: 7.0)
    monkeypatch.setattr(BoundsCalculator, "_bound_s", lambda *_: 5.0)
    for scale, factor in ((0.5, 0.5), (3.0, 1.0)):
        monkeypatch.setattr(lower_bounds, "scale_of", lambda job, scale=scale: scale)
        calculator = BoundsCalculator(asked)
        bounds = calculator.of(searched)
        assert (bounds.bound_s, bounds.least_bytes, bounds.candidate) == (7.0 * factor, 0.0, searched)
        assert calculator.of(even).bound_s == np.inf
        assert calculator.of(even, is_limited=False).bound_s == 5.0 * factor
    least = calculator.of(even).least_bytes
    just = BoundsCalculator(replace(asked, memory_limit_bytes=least))
    assert just.of(even).bound_s == 5.0
    assert just.counts(even) == just.of(even).counts == (6, 6)
    plan = just.plan(just.of(even))
    assert (plan.split, plan.pp, plan.job) == ([6, 6], 2, just.plan_of(even).job)
