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
from ppsim.tuning.space import configurations, space_for
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
