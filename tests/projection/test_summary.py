"""Spread of projections by GPU type and model."""

from dataclasses import replace
from math import exp, hypot
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds
from ppsim.costs.similar_jobs import features_of
from ppsim.machine.cluster import Constant, Constants
from ppsim.machine.job_similarity import MEASURED_SPREAD, SHARES, JobFeatures, MeasuredJob, correction_of
from ppsim.projection.error_classes import UNMEASURED_SPREAD, error_class_of
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.projection.summary import (
    ESTIMATE_SPREAD,
    EXPERTS_SPREAD,
    _by_stack,
    _useful,
    exposed_dp_s,
    fitted_spread,
    short_documents_share,
    slow_host_s,
    source_spread,
    spread_of,
)
from tests.projection.by_hand import MEASURED
from tests.projection.jobs import job


def plan_with(plan: Plan, **spreads: float | None) -> Plan:
    """The plan on a GPU type with these spreads of its calibration runs."""
    assert plan.job is not None
    cluster = plan.job.cluster
    efficiency = replace(cluster.device.efficiency, in_situ=None, **spreads)
    device = replace(cluster.device, efficiency=efficiency)
    return replace(plan, job=replace(plan.job, cluster=replace(cluster, device=device)))


@pytest.mark.parametrize(
    ("model", "prior", "calibrated"), [("llama3-8b", ESTIMATE_SPREAD, 0.01), ("mixtral-8x7b", EXPERTS_SPREAD, 0.02)]
)
def test_models_with_experts_have_a_spread_of_their_own(model: str, prior: float, calibrated: float) -> None:
    plan = ppsim.project(model=model, stack="plain", gpus=16, pp=2, memory_limit=None).plan
    assert spread_of(plan_with(plan, spread=0.01, experts_spread=0.02)) == calibrated
    assert spread_of(plan_with(plan, spread=None, experts_spread=None)) == prior


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"gpus": 16, "pp": 2}, "for trainers measured here"),
        (
            {"gpus": 16, "pp": 2, "stack": "deepspeed-2021"},
            "wider: fewer than five published dense runs with deepspeed-2021 on Hopper",
        ),
        (
            {"gpus": 8, "tp": 4, "global_batch": 16, "seq_len": 2048, "lora": 16},
            "the host may limit this eager step",
        ),
        (
            {"gpus": 8, "tp": 4, "global_batch": 16, "seq_len": 8192, "lora": 16, "cuda_graphs": "layer"},
            "wider: the sequences may be packed",
        ),
        (
            {"gpus": 8, "tp": 4, "global_batch": 16, "seq_len": 2048, "lora": 16, "cluster": "h20-8"},
            "wider: no published runs on NVIDIA H20; the host may limit this eager step",
        ),
        (
            {"gpus": 8, "lora": 16, "cluster": "mi300x-8", "stack": "primus", "cuda_graphs": "layer"},
            "wider: fewer than five published fine-tuning runs with primus on CDNA 3",
        ),
        ({"gpus": 8, "seq_len": 4096, "cluster": "mi300x-8", "recompute": "none"}, "for trainers measured here"),
        (
            {
                "gpus": 64,
                "cp": 2,
                "global_batch": 32,
                "seq_len": 8192,
                "cluster": "dgx-b200",
                "dtype": "float8",
                "cuda_graphs": "full",
            },
            "up to 246 ms if no data-parallel communication overlaps with compute",
        ),
    ],
)
def test_an_interval_says_for_which_runs_it_is(options, scope):
    answer = ppsim.project(model="llama3-8b", **options).summarise(with_advice=False)
    assert answer.interval_scope.startswith(scope)
    low_s, high_s = answer.iteration_time_interval_s
    is_wide = high_s / low_s > 2
    assert ("up to" in scope) == (answer.interval_scope.startswith(f"up to {seconds(high_s)} if"))
    assert is_wide == ("host" in scope or "published" in scope)


def test_an_interval_of_a_fitted_cluster_is_for_that_cluster(plan: Plan) -> None:
    assert plan.job is not None
    fitted = project(moved(plan, runs=(measured(features_of(plan.job)),)))
    assert fitted.summarise(with_advice=False).interval_scope == ""


def moved(plan: Plan, **constants: Constant) -> Plan:
    """Return the plan on a cluster with fitted constants."""
    assert plan.job is not None
    cluster = replace(plan.job.cluster, constants=Constants(**constants))
    return replace(plan, job=replace(plan.job, cluster=cluster))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(pp=2, job=job(tp=2, pp=2, layers=8))


def measured(features: JobFeatures) -> MeasuredJob:
    """Return a run that took as long as projected."""
    return MeasuredJob(**vars(features), times=1.0, spread=0.1)


def never(_: Plan) -> float:
    raise AssertionError("no iteration is needed")


def test_a_spread_of_fitted_runs_needs_runs(plan: Plan) -> None:
    assert fitted_spread(plan, 1.0, never, 0.1) is None
    assert fitted_spread(Plan(pp=2), 1.0, never, 0.1) is None


def test_a_fitted_run_of_the_same_job_leaves_the_spread_of_runs(plan: Plan) -> None:
    assert plan.job is not None
    own = measured(features_of(plan.job))
    same = moved(plan, runs=(own,))
    said = correction_of((own,), features_of(plan.job))
    found = fitted_spread(same, 1.0, never, 0.1)
    machine = SHARES.machine * 0.1
    assert found == pytest.approx(hypot(MEASURED_SPREAD, said.unknown * 0.1, (1 - said.weight) * machine))
    scaled = replace(same, job=replace(same.job, execution=replace(same.job.execution, compute_share=0.9)))
    assert fitted_spread(scaled, 1.0, never, 0.1) is None


def test_uncertain_constants_add_their_correlated_effects(plan: Plan) -> None:
    assert plan.job is not None
    other = replace(features_of(plan.job), model="other", gpus=4096, tp=8, pp=8)
    constants = {
        "compute_share": {"bfloat16": Constant(value=1.0, sigma=0.1)}, "jitter": Constant(value=0.1, sigma=0.01),
        "overlap": {"tp": Constant(value=0.5)}, "runs": (measured(other),),
    }  # fmt: skip
    effects = {"compute_share": 0.3, "jitter": 0.4}

    def seconds_of(moved_plan: Plan) -> float:
        assert moved_plan.job is not None
        found = moved_plan.job.cluster.constants
        [name] = [
            name for name, one, value in (
                ("compute_share", found.compute_share["bfloat16"], 1.0), ("jitter", found.jitter, 0.1),
            ) if one is not None and one.value != value
        ]  # fmt: skip
        of = found.compute_share["bfloat16"] if name == "compute_share" else found.jitter
        assert of is not None
        assert of.value == pytest.approx({"compute_share": exp(-0.1), "jitter": 0.1 * exp(-0.1)}[name])
        return 2.0 * exp(effects[name])

    said = correction_of(constants["runs"], features_of(plan.job))
    for correlation, machine in ((0.0, 0.5), (1.0, 0.7), (-1.0, 0.1)):
        fitted = moved(
            plan, **constants, correlation={"compute_share.bfloat16 jitter": correlation, "jitter gone": 0.9}
        )
        expected = hypot(MEASURED_SPREAD, said.unknown * 0.1, (1 - said.weight) * machine)
        assert fitted_spread(fitted, 2.0, seconds_of, 0.1) == pytest.approx(expected)


def test_a_slow_host_is_the_end_of_an_eager_interval(plan: Plan) -> None:
    def twice(slow: Plan) -> float:
        assert slow.job is not None
        assert slow.job.cluster.device.efficiency.host_s == 155e-6
        return 2.0

    assert slow_host_s(plan, 1.0, twice) == 2.0
    assert slow_host_s(plan, 2.0 / 1.05, twice) is None, "5 % do not matter"
    assert slow_host_s(plan, 2.0 / 1.06, twice) == 2.0
    own = plan.job
    assert own is not None
    for name, value in (("cuda_graphs", "layer"), ("compile", True)):
        other = replace(plan, job=replace(own, execution=replace(own.execution, **{name: value})))
        assert slow_host_s(other, 1.0, never) is None
    assert slow_host_s(replace(plan, is_recipe=True), 1.0, never) is None
    assert slow_host_s(replace(plan, measured=MEASURED), 1.0, never) is None
    assert slow_host_s(moved(plan, runs=(measured(features_of(own)),)), 1.0, never) is None
    assert slow_host_s(Plan(pp=2), 1.0, never) is None


def test_data_parallel_communication_without_overlap_is_the_end_of_an_interval(plan: Plan) -> None:
    def exposed(other: Plan) -> float:
        assert other.job is not None
        assert (other.job.overlap_grad_reduce, other.job.overlap_param_gather) == (False, False)
        return 2.0

    own = plan.job
    assert own is not None
    own = replace(own, layout=replace(own.layout, pp=1))
    pipeline, plan = plan, replace(plan, pp=1, job=own)
    assert exposed_dp_s(plan, 1.0, exposed) == 2.0
    assert exposed_dp_s(plan, 2.0 / 1.05, exposed) is None, "5 % do not matter"
    sharded = replace(own, optimizer=replace(own.optimizer, zero_stage=2))
    for other in (
        pipeline, replace(plan, job=sharded), replace(plan, measured=MEASURED), Plan(pp=1),
        moved(plan, runs=(measured(features_of(own)),)),
    ):  # fmt: skip
        assert exposed_dp_s(other, 1.0, never) is None


def test_packed_documents_of_unknown_length_lower_the_interval_of_a_fine_tuning(plan: Plan) -> None:
    def shorter(packed: Plan) -> float:
        assert packed.job is not None
        assert packed.job.document_length == 1
        return 0.8

    own = plan.job
    assert own is not None
    tuning = replace(plan, job=replace(own, lora="16"))
    assert short_documents_share(tuning, 1.0, shorter) == 0.8
    assert short_documents_share(tuning, 0.84, shorter) == 1.0, "5 % do not matter"
    for other in (
        plan, Plan(pp=2), replace(tuning, measured=MEASURED), moved(tuning, runs=(measured(features_of(own)),)),
        replace(tuning, job=replace(own, lora="16", document_length=512)),
    ):  # fmt: skip
        assert short_documents_share(other, 1.0, never) == 1.0


def test_a_source_never_seen_is_as_uncertain_as_its_class(plan: Plan) -> None:
    assert plan.job is not None
    found = error_class_of(plan.job)
    assert source_spread(plan) == max(spread_of(plan), UNMEASURED_SPREAD if found is None else found.spread)
    assert source_spread(Plan(pp=2)) == spread_of(Plan(pp=2)) == MEASURED_SPREAD
    assert spread_of(replace(plan, measured=MEASURED)) == MEASURED_SPREAD
    wide = plan_with(plan, spread=0.9, experts_spread=None)
    assert source_spread(wide) == 0.9
    unknown = replace(plan, job=replace(plan.job, stack="deepspeed-2021"))
    assert source_spread(unknown) == max(spread_of(unknown), UNMEASURED_SPREAD)


def changed(gain: float, **fields: Any) -> Any:
    """A projection with more throughput than one of 100 tokens/s."""
    given = {
        "is_too_large": False,
        "runtime_error": None,
        "tokens_per_s": 100 * (1 + gain),
        "iteration_time_s": 1.0,
    }
    return SimpleNamespace(**(given | fields))


def test_changes_that_gain_half_a_percent_are_useful() -> None:
    changes = [
        ("a", changed(0.1)), ("b", changed(0.004)), ("c", changed(0.2)), ("d", changed(0.3, is_too_large=True)),
        ("e", changed(0.4, runtime_error="no")), ("f", changed(0.1)), ("g", changed(0.00501)),
    ]  # fmt: skip
    assert [one.change for one in _useful(changed(0.0), changes)] == ["c", "a", "f", "g"]
    assert [one.throughput_gain for one in _useful(changed(0.0), changes)] == pytest.approx(
        [0.2, 0.1, 0.1, 0.00501]
    )
    failing = changed(0.0, runtime_error="no")
    assert _useful(failing, changes)[0].change == "e"


def test_every_change_that_makes_a_plan_fit_is_useful() -> None:
    found = _useful(
        changed(0.0, is_too_large=True), [("slow", changed(-0.5)), ("large", changed(1.0, is_too_large=True))]
    )
    assert [(one.change, one.makes_it_fit) for one in found] == [("slow", True)]


def test_without_tokens_times_are_compared() -> None:
    unknown = changed(0.0, tokens_per_s=None, iteration_time_s=3.0)
    [found] = _useful(unknown, [("a", changed(0.0, tokens_per_s=None, iteration_time_s=2.0))])
    assert found.throughput_gain == pytest.approx(0.5)


def test_stacks_are_compared_in_the_order_of_their_times(plan: Plan) -> None:
    others = {
        "torchtitan": replace(plan, seed=1),
        "primus": replace(plan, schedule="auto"),
        "megatron-bridge": replace(plan, seed=2),
    }
    own: Any = SimpleNamespace(plan=replace(plan, by_stack=others), iteration_time_s=2.0)

    def project(other: Plan) -> Any:
        if other.seed == 2:
            raise ConfigError("impossible")
        return SimpleNamespace(iteration_time_s=1.5)

    assert list(_by_stack(own, project).items()) == [("torchtitan", 1.5), ("plain", 2.0)]
    assert _by_stack(SimpleNamespace(plan=plan, iteration_time_s=2.0), project) == {}  # type: ignore[arg-type]


def test_a_calibration_run_has_the_spread_of_measurements_and_the_drift_of_the_machine() -> None:
    measured_here: Any = SimpleNamespace(job=None, rehearsal=SimpleNamespace(pace_drift=0.03))
    assert spread_of(measured_here) == hypot(MEASURED_SPREAD, 0.03) > MEASURED_SPREAD
    assert source_spread(measured_here) == spread_of(measured_here)


def test_short_documents_shorten_fine_tuning_alone_and_only_if_it_is_notable(plan: Plan) -> None:
    """A share of 0.95 or more is no matter, nor is one that the job refuses."""
    assert plan.job is not None
    tuned = replace(plan, job=replace(plan.job, freeze="embedding"))  # type: ignore[arg-type]

    def refused(other: Plan) -> float:
        raise ConfigError("no")

    def takes(share: float) -> float:
        return short_documents_share(tuned, 4.0, lambda other: 4.0 * share)

    assert (takes(0.5), takes(0.94), takes(0.95), takes(1.5)) == (0.5, 0.94, 1.0, 1.0)
    assert short_documents_share(tuned, 4.0, refused) == 1.0
    assert short_documents_share(plan, 4.0, lambda other: 2.0) == 1.0, "no fine-tuning"
    assert short_documents_share(Plan(pp=2), 4.0, lambda other: 2.0) == 1.0
    lengths: list[Any] = []
    short_documents_share(tuned, 4.0, lambda other: lengths.append(other.job.document_length) or 4.0)  # type: ignore[union-attr, func-returns-value]
    assert lengths == [1]
    packed = replace(tuned, job=replace(tuned.job, document_length=64))  # type: ignore[arg-type]
    assert short_documents_share(packed, 4.0, lambda other: 2.0) == 1.0
