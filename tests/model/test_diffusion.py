"""Diffusion transformers: parameters as published, tokens of two streams, conditional embedders on every stage."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.catalog.build import build
from ppsim.costs.dp_and_optimizer import step_costs
from ppsim.errors import ConfigError
from ppsim.model import diffusion as diffusion_module
from ppsim.model.activations import layer_activations, weight_gradient_bytes
from ppsim.model.config import model_from
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.registry import find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults

FLUX = find_model("flux.1-dev")
JOB = {"model": "flux.1-dev", "gpus": 8, "pp": 4, "global_batch": 32, "stack": "plain"}
SPLITS = {1: [13, 14, 15, 15], 2: [6, 7, 7, 7, 7, 7, 8, 8]}


def test_a_token_is_multiplied_by_the_matrices_of_its_stream_and_sees_all_others() -> None:
    """Both kinds of layers have 12h² weights for a token; scores are not halved, causal or not."""
    h, s = FLUX.hidden_size, FLUX.sequence_length
    for layer in FLUX.kinds:
        assert layer.weights_per_token == pytest.approx(12 * h * h)
        assert layer.forward_flops(s, causal=True) == pytest.approx(24 * h * h + 4 * s * h)
        assert layer.forward_flops(s, causal=False) == layer.forward_flops(s, causal=True)


def test_text_ends_in_the_last_layer_of_stable_diffusion_3() -> None:
    """It lacks the text's output projection, MLP and four of six vectors of the modulation, each with biases."""
    layers, h = find_model("sd3-medium").layers, 1536
    output, mlp, modulation = h * h + h, 2 * 4 * h * h + 5 * h, 4 * (h * h + h)
    assert {layer.parameters for layer in layers[:-1]} == {layers[-1].parameters + output + mlp + modulation}


def test_every_stage_has_the_conditional_embedders_and_one_the_projections() -> None:
    cut, h = ParallelSizes(), FLUX.hidden_size
    stages = stages_of(FLUX, [19, 10, 10, 18])
    held = [held_parameters(FLUX, [stage], cut).dense for stage in stages]
    conditional = 2 * (256 * h + h + h * h + h) + (768 * h + h + h * h + h)
    assert sum(held) == FLUX.parameters + 3 * conditional
    assert held_parameters(FLUX, stages, cut).dense == FLUX.parameters + 3 * conditional  # chunks of one rank, too
    projections = (64 + 1) * h + (4096 + 1) * h
    assert held[0] == 19 * FLUX.layers[0].parameters + conditional + projections


def test_a_modulated_layer_keeps_two_hidden_states_a_norm_more() -> None:
    batch, kept = (1, FLUX.sequence_length), []
    for layer in FLUX.kinds:
        found = layer_activations(layer, MemorySettings(*batch))
        kept.append(found["modulation"] / (2 * FLUX.sequence_length * FLUX.hidden_size))
    assert kept == [4, 2]
    double, single = (weight_gradient_bytes(layer, MemorySettings(*batch)) for layer in FLUX.kinds)
    assert double == pytest.approx(single, rel=1e-6)


def test_gradients_of_conditional_embedders_go_over_pp_and_vpp_ranks() -> None:
    """One sum over all pipeline ranks, whatever their chunks are; without a pipeline there is none."""
    size = FLUX.outside_parameters("conditions")
    found = []
    for vpp in (1, 2):
        job = ppsim.job(**JOB)
        table = build("1f1b" if vpp == 1 else "interleaved-1f1b", pp=4, vpp=vpp, microbatches=16)
        [sharing] = step_costs(job, table, stages_of(job.model, SPLITS[vpp])).sharing
        assert sharing.ranks == (0, 1, 2, 3)
        found.append(sharing.seconds)
    link = ppsim.job(**JOB).cluster.tiers[0].link
    assert found[0] == found[1] > 1.5 * 4 * size * 3 / 4 / link.bytes_per_s
    alone = ppsim.job(**JOB | {"pp": 1})
    table = build("1f1b", pp=1, microbatches=4)
    assert step_costs(alone, table, stages_of(alone.model, [57])).sharing == ()


def test_two_streams_take_as_long_as_one_of_all_tokens() -> None:
    """Of Flux a layer of two streams has the FLOPs of one of one, and more matrices and modulation."""
    job = ppsim.job(**JOB)
    double, single = (job.costs.layer(layer).forward.total_s for layer in FLUX.kinds)
    assert single < double < 1.35 * single


def test_a_projection_goes_through_pipelines_and_tensor_parallel_ranks() -> None:
    whole = ppsim.project(**JOB | {"pp": 1}).iteration_time_s
    for words in ({}, {"vpp": 2}, {"tp": 2}, {"cp": 2}, {"recompute": "full"}, {"cuda_graphs": "layer"}):
        assert 0.8 * whole < ppsim.project(**JOB | words).iteration_time_s < 3 * whole
    with pytest.raises(ConfigError, match="tp must divide the heads: got 16 with 24"):
        ppsim.project(**JOB | {"gpus": 64, "tp": 16})


CONFIGS = {
    "flux.1-dev": {
        "_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0.dev0", "attention_head_dim": 128,
        "guidance_embeds": True, "in_channels": 64, "joint_attention_dim": 4096, "num_attention_heads": 24,
        "num_layers": 19, "num_single_layers": 38, "patch_size": 1, "pooled_projection_dim": 768,
    },
    "sd3-medium": {
        "_class_name": "SD3Transformer2DModel", "_diffusers_version": "0.29.0.dev0", "attention_head_dim": 64,
        "caption_projection_dim": 1536, "in_channels": 16, "joint_attention_dim": 4096, "num_attention_heads": 24,
        "num_layers": 24, "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 2048,
        "pos_embed_max_size": 192, "sample_size": 128,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_released_config_is_read_as_the_model_of_that_name(name: str) -> None:
    assert replace(model_from(CONFIGS[name]), source=find_model(name).source) == find_model(name)
    with pytest.raises(ConfigError, match="unknown field 'qk_norm'"):
        model_from(CONFIGS[name] | {"qk_norm": "rms_norm"})


@pytest.mark.parametrize(
    ("name", "field", "number"),
    [("sd3-medium", "out_channels", 8), ("sd3-medium", "caption_projection_dim", 1535)],
)
def test_widths_that_do_not_belong_together_are_refused(name: str, field: str, number: int) -> None:
    with pytest.raises(ConfigError):
        model_from(CONFIGS[name] | {field: number})


def test_what_is_left_out_in_model_diffusion_has_these_values() -> None:
    assert number_defaults(diffusion_module) == {
        "_attention": {"qk_norm": False},
    }  # fmt: skip
