"""Time and memory of a step with an image encoder: placement, frozen weights, ranks that repeat its work."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.costs.encoder_costs import _embedding, _projector, encoder_estimate, encoder_place
from ppsim.costs.time_breakdown import NO_COST
from ppsim.errors import ConfigError
from ppsim.machine.kernels.times import memory_kernel_time
from ppsim.model.encoder import EncoderPart
from ppsim.model.pipeline_stages import Stage

FIRST = Stage((), embedding=True)
JOB = {"model": "qwen3-vl-8b", "stack": "plain", "gpus": 8, "pp": 2, "global_batch": 16, "seq_len": 2048}


def of_encoder(**options: object) -> object:
    return ppsim.job(**JOB | options).costs.encoders


def test_the_encoder_is_on_the_first_stage_and_shifts_layers_to_the_others() -> None:
    with_images, text = ppsim.project(**JOB), ppsim.project(**JOB, text_only=True)
    assert with_images.split[0] < text.split[0]
    assert with_images.report["iteration_time_s"] > text.report["iteration_time_s"]
    assert "image encoder: 27 layers on stage 0, 16 bits" in with_images.assumptions
    assert text.assumptions[0] == "text model only, image encoder of 0.6 B parameters left out (--text-only)"


def test_no_images_cost_memory_and_no_time_on_the_stage() -> None:
    none = of_encoder(image_tokens="0")
    assert none.forward.total_s == none.backward.total_s == 0
    made, text = (ppsim.job(**JOB, **one) for one in ({"image_tokens": "0"}, {"text_only": True}))
    assert made.model.parameters - text.model.parameters == sum(one.parameters for one in made.model.encoders)


def test_a_frozen_encoder_has_no_backward() -> None:
    whole, frozen = of_encoder(), of_encoder(freeze="encoder+projector")
    assert frozen.backward.total_s == 0
    assert frozen.forward.total_s == pytest.approx(whole.forward.total_s)
    with_projector = of_encoder(freeze="encoder")
    assert with_projector.backward_weight.total_s > 0
    assert 0 < with_projector.backward.total_s < whole.backward.total_s / 10


def test_the_model_flops_of_all_ranks_are_the_models() -> None:
    """Ideal seconds over the peak: ranks that repeat the work do not count it again."""
    for options in ({}, {"tp": 2}, {"cp": 2}, {"tp": 2, "cp": 2}):
        job = ppsim.job(**JOB | options)
        [encoder] = job.model.encoders
        estimate = job.costs.encoders
        ranks = job.layout.tp * job.layout.cp
        counted = ranks * (estimate.forward.ideal_s + estimate.backward.ideal_s)
        assert counted * job.cluster.device.peak("bfloat16") == pytest.approx(encoder.training_flops, rel=1e-9)
    repeated = of_encoder(cp=2).forward
    assert repeated.ideal_s + repeated.more_flops_s == pytest.approx(
        of_encoder().forward.ideal_s + of_encoder().forward.more_flops_s
    )


def test_eight_bits_are_the_decoders_alone() -> None:
    assert of_encoder(dtype="float8").forward.total_s == of_encoder().forward.total_s


def test_stages_of_their_own_balance_large_images() -> None:
    own = ppsim.project(**JOB | {"image_tokens": "8x256", "seq_len": 4096, "split": "v*27Et*6|t*30L"})
    apart = ppsim.project(**JOB | {"image_tokens": "8x256", "seq_len": 4096, "split": "v*27|Et*36L"})
    assert "image encoder: 27 layers on stage 0, 16 bits" in apart.assumptions
    assert apart.stage_cost_set.costs.transfer_s[0] == pytest.approx(
        own.stage_cost_set.costs.transfer_s[0] * 2, rel=0.2
    )


def test_the_stage_memory_has_the_parameters_and_the_saved_tensors() -> None:
    same = {"split": [18, 18]}
    first, other = (
        ppsim.project(**JOB | same | options).stage_cost_set.costs for options in ({}, {"text_only": True})
    )
    assert first.activation_bytes[0] > other.activation_bytes[0]
    assert first.activation_bytes[1] == other.activation_bytes[1]
    assert first.static_bytes[0] > other.static_bytes[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"image_tokens": "64", "text_only": True}, "leave out --image-tokens"),
        ({"image_tokens": "4096"}, "images and audio have 4096 tokens, more than the sequence of 2048"),
        ({"fully_shard": True}, "--fully-shard is not known with an encoder"),
        ({"tp": 32, "gpus": 64}, "tp must divide the heads"),
        ({"model": "llama3-8b", "stack": "plain", "image_tokens": "64"}, "this one has none"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.project(**JOB | options)


def test_a_recipe_trains_the_projector_on_one_small_image() -> None:
    """Megatron-Bridge 0.6 freezes language model and encoder of Qwen3-VL, and neither of Qwen3.5."""
    job = ppsim.project(recipe="qwen3-vl-30b-a3b/h100/bf16@26.08").plan.job
    assert (job.freeze, job.image_tokens) == ("embedding+norms+head+layers+encoder", "64")
    job = ppsim.project(recipe="qwen3.5-vl-35b-a3b/h100/bf16@26.08").plan.job
    assert (job.freeze, job.image_tokens) == ("", "64")
    assert replace(job, image_tokens="2x64").model.encoders[0].tokens == 128


@pytest.mark.parametrize(
    ("options", "without"),
    [
        ({"lora": "16"}, "encoder and projector frozen, without adapters"),
        ({"cuda_graphs": "attn"}, "as in Megatron-Bridge, without CUDA graphs"),
        ({"offload_modules": "core_attn"}, "as in Megatron-Bridge, without offload"),
    ],
)
def test_options_that_the_encoder_does_not_follow_are_named(options: dict[str, str], without: str) -> None:
    made = ppsim.project(model="qwen3-vl-8b", stack="plain", gpus=16, tp=2, pp=2, **options)
    assert any(line.startswith("image encoder: 27 layers") and line.endswith(without) for line in made.assumptions)


def test_the_tp_ranks_share_an_encoder_whose_cp_ranks_repeat_it() -> None:
    """The encoder is in 16 bits, without overlap, sequence parallelism or graphs of modules."""
    job = ppsim.job(
        **JOB | {"gpus": 16, "tp": 2, "cp": 2}, recompute="full", dtype="float8", overlap_tp=0.5,
    )  # fmt: skip
    place = job.costs.place
    own = encoder_place(job.model.encoders[0], place)
    assert own.layout == replace(place.layout, tp=2, cp=1, ep=1, etp=None, dp=4)
    assert own.execution == replace(
        place.execution, dtype="bfloat16", recompute="full", cuda_graphs="none", sequence_parallel=False,
        hidden_tp_forward=0.0, hidden_tp_backward=0.0, overlap_ep=0.0, hidden_cp=0.0, dropout=False,
    )  # fmt: skip
    assert encoder_place(replace(job.model.encoders[0], is_divided=False), place).layout.dp == 8


def test_passes_outside_the_layers_follow_the_trained_parts() -> None:
    """Ideal seconds over FLOPs, 2 per weight and patch or token: 2304 patches, 576 tokens, from 4 patches each.

    The patches need no gradient, and the projector (4 of two matrices) returns one if the encoder is trained.
    """
    embedding = 2 * 2304 * 1536 * 1152
    projector = 2 * 576 * 4 * (4608 * 4608 + 4608 * 4096)
    for freeze, inputs, weights in (
        ("", projector, embedding + projector), ("encoder", 0, projector),
        ("projector", projector, embedding), ("encoder+projector", 0, 0),
    ):  # fmt: skip
        job = ppsim.job(**JOB, freeze=freeze)
        without_layers = replace(job.model.encoders[0], layers=())
        outside = encoder_estimate(EncoderPart(without_layers, 0, 0), job.costs.place, micro_batch=1)
        passes = (outside.forward, outside.backward_input, outside.backward_weight)
        flops = [one.ideal_s * job.cluster.device.peak("bfloat16") for one in passes]
        assert flops == pytest.approx([embedding + projector, inputs, weights]), freeze


def test_tensor_parallel_ranks_sum_the_projectors_rows_forward_and_its_columns_backward() -> None:
    """The matrix that is divided by rows is summed in F, the one divided by columns in the I of a trained encoder."""
    job = ppsim.job(**JOB | {"gpus": 16, "tp": 2})
    encoder, place = job.model.encoders[0], job.costs.place
    part = EncoderPart(replace(encoder, layers=()), 0, 0)
    own = encoder_place(encoder, place)
    tokens, linears = encoder.images * encoder.num_tokens, part.own_projector(place.cut)
    assert {linear.split for linear in linears} == {"inputs", "outputs"}
    sent = {
        split: sum(
            own.seconds("all-reduce", float(tokens * getattr(linear, split_columns) * 2), "tp")
            for linear in linears
            if linear.split == split
        )
        for split, split_columns in (("inputs", "outputs"), ("outputs", "inputs"))
    }
    found = encoder_estimate(part, place, micro_batch=1)
    assert found.forward.tp_s == pytest.approx(sent["inputs"])
    assert found.backward_input.tp_s == pytest.approx(sent["outputs"])
    frozen = EncoderPart(replace(encoder, layers=(), trains_layers=False), 0, 0)
    assert encoder_estimate(frozen, place, micro_batch=1).backward_input.tp_s == 0
    assert encoder_estimate(part, place, micro_batch=0).forward.total_s == 0


def test_ends_of_an_encoder_read_and_write_what_they_norm_and_copy() -> None:
    """F passes twice over the projector's inputs and over its outputs, for the decoder, and once more; I three times."""
    job = ppsim.job(**JOB)
    [part] = job.model.encoder_parts
    own = encoder_place(part.encoder, job.place)
    linears = part.own_projector(job.place.cut)
    columns = sum(one.rows * one.inputs for one in linears) + 2 * linears[-1].outputs
    found = _projector(part, job.place, own, 7)
    for cost, passes in ((found.forward, 2), (found.backward_input, 3)):
        expected = memory_kernel_time(own.times, "norm", passes * columns * 7 * 2, launches=len(linears))
        assert cost.memory_s == pytest.approx(expected.memory_s)
    assert found.backward_weight.memory_s == 0
    added = memory_kernel_time(own.times, "elementwise", 3 * 7 * part.embedding[-1].outputs * 2).memory_s
    patches = _embedding(part, own, 7)
    assert [one.memory_s for one in (patches.forward, patches.backward_weight)] == pytest.approx([added, added])
    assert patches.backward_input.total_s == 0
    middle = EncoderPart(part.encoder, 1, 2)
    assert _projector(middle, job.place, own, 7) == _embedding(middle, own, 7) == NO_COST
