"""A profile's times in a job: taken where it has the shape, estimated by its facts, else left to the specifications."""

from dataclasses import asdict, replace

import pytest

from ppsim import build, load_profile
from ppsim.base.errors import ScheduleError
from ppsim.base.file_schema import validated
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.estimate import estimated
from ppsim.costs.profile import Profile
from ppsim.costs.profile_costs import INTERPOLATED, MEASURED, ProfileCosts, _backward_s, _measured
from ppsim.costs.time_breakdown import BASIS, CostEstimate, TimeBreakdown
from ppsim.machine import collectives
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.shapes import shape_of
from ppsim.parallel.groups import group
from ppsim.projection.loss_breakdown import loss_budget
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from tests.costs.profiles import component, quantity
from tests.costs.test_estimate import facts
from tests.projection.jobs import job

TABLE = build("1f1b", pp=2, microbatches=8)
SPLIT = build("zb-h1", pp=2, microbatches=8)
TIMES = {"forward": 0.010, "backward_input": 0.011, "backward_weight": 0.008, "backward": 0.018}


def measured_profile(
    *, with_facts: bool = False, whole: bool = False, alone: bool = False, factor: float = 1.0, **shape: object
) -> Profile:
    """A profile of Llama-3-8B's layer, embedding and head at sequences of 4096, in bfloat16."""
    model = job().model
    key = {"micro_batch": 1, "sequence_length": 4096, "dtype": "bfloat16"} | shape
    times = {name: factor * value for name, value in TIMES.items()}
    parts = [
        component(name, **times, activation=100, kept=50) | {"shape": key}
        for name in ("embedding", "layer", "head")
    ]
    if whole:
        parts = [part | {"backward_input_s": None, "backward_weight_s": None} for part in parts]
    if alone:
        one = {name: quantity(1.5 * parts[1][name]["median"]) for name in parts[1] if name.endswith("_s")}
        parts[1] = parts[1] | {"alone": one | {"num_in_row": 4}}
    layer = shape_of(model.layers[0])
    assert layer is not None
    packaged = load_profile("cpu-gpt-mini")
    data = {
        "format": "ppsim-profile/1",
        "name": "llama-on-something",
        "provenance": asdict(packaged.provenance),
        "model": {
            "name": "Llama 3 8B", "num_layers": 32, "hidden_size": model.hidden_size, "num_heads": 32,
            "vocab_size": model.vocab_size, "layer_sizes": {name: size for name, size in asdict(layer).items() if name != "num_local_experts"},
        },
        "measurements": parts,
    }  # fmt: skip
    if with_facts:
        data["device_facts"] = facts()
    return validated(Profile, data, "test")


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16"])
def test_a_shape_has_the_dtype_by_the_name_of_the_profile(dtype: str) -> None:
    profile, wanted = measured_profile(dtype=dtype), measured_profile().measurements[0].shape
    assert ProfileCosts.at(profile, wanted).shape.dtype == dtype
    other = replace(wanted, dtype="float32")
    assert ProfileCosts.at(profile, other).shape.dtype == "float32"


def test_measured_times_stand_where_the_profile_has_the_shape() -> None:
    made = assemble_job(job(pp=2, profile=measured_profile()), SPLIT)
    layers = made.split
    for stage in range(2):
        part = made.parts[stage]
        num = layers[stage] + 1  # the embedding or the head
        assert part.forward.total_s == pytest.approx(num * 0.010)
        assert part.backward_input.total_s == pytest.approx(num * 0.011)
        assert part.backward_weight.total_s == pytest.approx(num * 0.008)
        assert part.backward.total_s == pytest.approx(num * 0.018)
        assert made.costs.backward_s[stage] == pytest.approx(num * 0.018)
    assert "layer, embedding, head: measured; profile llama-on-something" in made.assumptions[0]
    by_specifications = assemble_job(job(pp=2), SPLIT, split=layers)
    for one, other in zip(made.parts, by_specifications.parts, strict=True):
        assert one.forward.ideal_s == other.forward.ideal_s


def test_collectives_are_the_clusters() -> None:
    tp = {"tp": 4, "pp": 2}
    made = assemble_job(job(**tp, profile=measured_profile(tp=4)), TABLE, split="even")
    other = assemble_job(job(**tp), TABLE, split="even")
    for one, spec in zip(made.parts, other.parts, strict=True):
        assert one.forward.tp_s == spec.forward.tp_s > 0
        assert one.backward.tp_s == spec.backward.tp_s > 0
    assert made.costs.transfer_s == other.costs.transfer_s


@pytest.mark.parametrize(("zero_stage", "passes"), [(2, 0), (3, 1)])
def test_a_backward_measured_whole_waits_for_its_parameters_and_its_gradients(zero_stage: int, passes: int) -> None:
    """Without overlap all of both. With overlap, the part that is longer than the backward. Seconds by hand."""
    sizes = {
        "pp": 2,
        "dp": 64,
        "optimizer": Optimizer(zero_stage=zero_stage),
        "profile": measured_profile(factor=0.05),
    }
    behind, beside = (
        assemble_job(job(**sizes, overlap_grad_reduce=one, overlap_param_gather=one), TABLE, split="even")
        for one in (False, True)
    )
    one = job(**sizes)
    ranks = group(one.layout, "dp-cp", one.cluster.domain_sizes(128))
    for stage, held in enumerate(stages_of(one.model, behind.split)):
        number = held_parameters(one.model, [held], one.settings.cut, vocab_multiple=128).dense
        gather_s = passes * collectives.seconds("all-gather", 2 * number, ranks, one.cluster)
        reduce_s = collectives.seconds("reduce-scatter", 4 * number, ranks, one.cluster)
        part, hidden = behind.parts[stage], beside.parts[stage]
        compute_s = (behind.split[stage] + 1) * 0.05 * TIMES["backward"]
        assert part.forward.dp_s == pytest.approx(gather_s)
        assert part.backward_input.dp_s == pytest.approx(gather_s)
        assert part.backward_weight.dp_s == pytest.approx(reduce_s)
        assert part.backward.dp_s == pytest.approx(gather_s + reduce_s) != 0
        assert part.backward.total_s == pytest.approx(compute_s + gather_s + reduce_s)
        assert hidden.backward.total_s == pytest.approx(max(compute_s, gather_s + reduce_s))
        assert hidden.backward.dp_s > 0


def test_a_backward_measured_whole_copies_what_fsdp_gathers_as_a_forward_does() -> None:
    """Written and read in bfloat16, once per pass: 4 bytes per parameter of the stage."""
    sizes = {"pp": 2, "dp": 64, "optimizer": Optimizer(zero_stage=3), "fully_shard": True}
    one = job(**sizes, profile=measured_profile())
    made = assemble_job(one, TABLE, split="even")
    for held, part in zip(stages_of(one.model, made.split), made.parts, strict=True):
        number = held_parameters(one.model, [held], one.settings.cut, vocab_multiple=one.vocab_multiple).dense
        assert part.forward.memory_s == pytest.approx(4 * number / (3.35e12 * 0.7), rel=0.01)
        assert part.backward.memory_s == pytest.approx(part.forward.memory_s)


def test_the_budget_of_measured_costs_sums_and_names_what_it_cannot_tell_apart() -> None:
    for schedule in ("1f1b", "zb-h1", "dualpipev"):
        made = project(Plan(pp=2, schedule=schedule, job=job(pp=2, profile=measured_profile())))
        budget = loss_budget(made)
        assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
        assert budget["measured kernels below peak"] > 0
        assert "GEMMs below peak" not in budget
        assert abs(budget.get("slow ranks", 0.0)) < 1e-9 * made.iteration_time_s


def test_measured_costs_narrow_the_interval() -> None:
    known = project(Plan(pp=2, job=job(pp=2, profile=measured_profile()))).summarise(with_advice=False)
    guessed = project(Plan(pp=2, job=job(pp=2))).summarise(with_advice=False)
    assert "2.00 % common" in known.interval_basis
    assert "10.01 % common" in guessed.interval_basis
    width = [high / low for low, high in (known.iteration_time_interval_s, guessed.iteration_time_interval_s)]
    assert width[0] < width[1]


def test_what_a_stage_takes_beside_its_layers_is_taken_once_a_stage() -> None:
    """Alone 1.5 times the mean of 4 in a row: a + b = 1.5, a + 4b = 4, so that a = 2/3 and b = 5/6."""
    profile = measured_profile(alone=True)
    made = assemble_job(job(pp=2, profile=profile), TABLE, split="even")
    assert made.parts[0].forward.total_s == pytest.approx(0.010 * (2 / 3 + made.split[0] * 5 / 6 + 1))


def test_another_shape_is_left_to_the_specifications_and_said() -> None:
    one = job(pp=2, sequence_length=2048, profile=measured_profile())
    assert [basis for _, basis in one.costs.bases] == [BASIS] * 3
    made, plain = assemble_job(one, TABLE), assemble_job(replace(one, profile=None), TABLE)
    assert made.costs.forward_s == plain.costs.forward_s
    assert (
        "estimated from specifications (the profile has no such component at micro-batch 1" in made.assumptions[0]
    )


def test_another_models_layers_are_left_to_the_specifications() -> None:
    one = job("llama3-70b", pp=2, sequence_length=4096, profile=measured_profile())
    assert [basis for _, basis in one.costs.bases] == [BASIS] * 3
    published = job("llama3-8b", pp=2, profile=load_profile("zb-a100-6.2b"))
    assert "does not say what sizes its layer has" in assemble_job(published, TABLE).assumptions[0]


def test_a_backward_of_which_only_the_whole_was_measured_is_not_split() -> None:
    one = job(pp=2, profile=measured_profile(whole=True))
    assert assemble_job(one, TABLE).parts[0].backward.total_s > 0
    with pytest.raises(ScheduleError, match=r"zb-h1 splits the backward, .* embedding and the layer and the head"):
        assemble_job(one, SPLIT)


def test_recomputation_that_was_measured_is_told_apart() -> None:
    one = job(pp=2, recompute="full", profile=measured_profile(recompute="full"))
    made = assemble_job(one, TABLE)
    part = made.parts[1].backward
    assert part.total_s == pytest.approx((made.split[1] + 1) * 0.018)
    assert part.recompute_s > 0


def test_a_jobs_recomputation_is_the_profiles_in_time_and_in_bytes() -> None:
    """Times of norms and activations recomputed go with the bytes that are left of them, and with no others."""
    words = "layernorm+mlp_act"
    profile = measured_profile(recompute=words)
    none, same, core = (job(pp=2, recompute=how, profile=profile) for how in ("none", words, "core_attn"))
    assert [one.costs.bases[0][1] for one in (none, same, core)] == [BASIS, MEASURED, BASIS]
    kept = [assemble_job(one, TABLE, split="even").costs.activation_bytes[1] for one in (none, same, core)]
    layers, tokens = 16, 4096
    assert kept[0] - kept[1] == layers * tokens * 2 * (2 * 4096 + 14336)
    assert kept[0] - kept[2] == layers * tokens * 4 * 32
    part = assemble_job(same, TABLE, split="even").parts[1].backward
    assert part.total_s == pytest.approx((layers + 1) * 0.018)
    assert 0 < part.recompute_s < assemble_job(core, TABLE, split="even").parts[1].backward.total_s


def test_a_head_is_never_recomputed() -> None:
    one = job(tp=2, pp=2, recompute="full", profile=measured_profile(tp=2, recompute="full"))
    assert one.costs.ends[1].backward.recompute_s == 0 < one.costs.layer(one.model.layers[0]).backward.recompute_s


def test_with_device_facts_another_shape_is_estimated_by_them() -> None:
    """The numbers are those of `ppsim.costs.estimate`; where there is nothing alike, the specifications'."""
    profile = measured_profile(with_facts=True)
    one = job(pp=2, sequence_length=2048, profile=profile)
    assert [basis for _, basis in one.costs.bases] == [INTERPOLATED] * 3
    assert one.costs.measured() is not None
    part = estimated("layer", profile, one.costs.measured().shape)
    layer = one.costs.layer(one.model.layers[0])
    assert layer.forward.total_s == pytest.approx(part.forward_s.median)
    assert layer.forward.total_s < 0.010
    made = assemble_job(one, TABLE)
    assert "layer, embedding, head: interpolated by the profile's device facts" in made.assumptions[0]
    recomputed = job(pp=2, sequence_length=2048, recompute="full", profile=profile)
    assert [basis for _, basis in recomputed.costs.bases] == [BASIS] * 3


@pytest.mark.parametrize(
    ("seconds", "again_s", "communicated_s", "loss_s", "recompute_s"),
    [
        (10.0, 0.0, 0.0, 10 - 2, 0.0),
        (10.0, 3.0, 0.5, 10 - 2 - 3, 3 + 0.5),
        (10.0, 9.0, 0.5, 0.0, 8 + 0.5),  # no more again than what is left of the measured time
        (1.0, 3.0, 0.5, 1 - 2, 0.5),
    ],
)
def test_measured_seconds_replace_estimated_compute_and_keep_communication(
    seconds: float, again_s: float, communicated_s: float, loss_s: float, recompute_s: float
) -> None:
    spec = TimeBreakdown(
        ideal_s=2.0, more_flops_s=3.0, matmul_loss_s=5.0, attention_loss_s=7.0, memory_s=11.0, host_s=13.0,
        recompute_s=17.0, tp_s=19.0, ep_s=23.0, cp_s=29.0, dp_s=31.0,
    )  # fmt: skip
    assert _measured(spec, seconds, again_s, communicated_s) == TimeBreakdown(
        ideal_s=2.0, measured_loss_s=loss_s, recompute_s=recompute_s, tp_s=19.0, ep_s=23.0, cp_s=29.0, dp_s=31.0
    )


def test_a_backward_is_measured_whole_or_the_sum_of_its_halves() -> None:
    halves = {"backward_s": 0.0, "backward_input_s": 2.0, "backward_weight_s": 3.0}
    assert _backward_s(halves) == 5.0
    assert _backward_s(halves | {"backward_s": 4.0}) == 4.0


@pytest.mark.parametrize(("recompute", "again_s"), [("none", 0.003), ("full", 0.010)])
def test_a_measured_backward_contains_recomputed_compute_and_no_repeated_messages(
    recompute: str, again_s: float
) -> None:
    """Of 5 ms of estimated recomputation, 2 ms are messages; with full recomputation, a measured forward repeats."""
    profile = measured_profile(recompute=recompute)
    own = job()
    spec = CostEstimate(TimeBreakdown(), TimeBreakdown(recompute_s=0.005), TimeBreakdown(), sent_again_s=0.002)
    measured = ProfileCosts.at(profile, profile.measurements[1].shape)
    cost, fixed = measured.layer(own.model.layers[0], spec)
    for part, seconds in ((cost.backward, TIMES["backward"]), (cost.backward_input, TIMES["backward_input"])):
        assert part.recompute_s == pytest.approx(again_s + 0.002)
        assert part.measured_loss_s == pytest.approx(seconds - again_s)
    assert (cost.forward.total_s, cost.backward_weight.total_s) == (TIMES["forward"], TIMES["backward_weight"])
    assert fixed.forward.total_s == fixed.backward.total_s == 0
