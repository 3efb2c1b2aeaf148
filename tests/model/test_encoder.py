"""Image and audio encoders: parameters by transformers' classes, FLOPs by torch's count and Megatron-Bridge's formula."""

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from ppsim.errors import ConfigError
from ppsim.model import encoder as encoder_module
from ppsim.model.architecture import Model
from ppsim.model.config import model_from
from ppsim.model.encoder import Encoder, image_tokens_of, parse_images
from ppsim.model.encoder_readers import READERS
from ppsim.model.fine_tuning import fine_tuning_of, freeze_of
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.memory_rows import encoder_activations
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import contents_of, stages_of, stages_of_layout
from ppsim.model.rank_memory import rank_memory
from ppsim.model.registry import find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults
from tests.model.stages import stage_activations

SIGLIP = {
    "hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "num_attention_heads": 16,
    "image_size": 896, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
OF_LLAMA = {
    "hidden_size": 1408, "image_size": 336, "vision_output_dim": 4096, "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}  # fmt: skip
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("Gemma3", {"vision_config": SIGLIP}),
    "gemma4": (
        "Gemma4",
        {"text_config": {"hidden_size_per_layer_input": 0}, "vision_config": {"hidden_size": 768}},
    ),
    "glm4v_moe": ("Glm4vMoe", {"text_config": {"head_dim": 128}}),
    "kimi_k25": ("Kimi_K25", {}),
    "llama4": ("Llama4", {"vision_config": OF_LLAMA}),
    "mistral3": ("Mistral3", {}),
    "qwen2_5_vl": ("Qwen2_5_VL", {}),
    "qwen2_audio": ("Qwen2Audio", {}),
    "qwen3_5": ("Qwen3_5", {}),
    "qwen3_5_moe": ("Qwen3_5Moe", {}),
    "qwen3_vl": ("Qwen3VL", {}),
    "qwen3_vl_moe": ("Qwen3VLMoe", {}),
}
"""Class of transformers by model_type, and sizes of a release if the defaults of the class are others."""


def gemma(**vision: Any) -> dict[str, Any]:
    """A small text model with the encoder of Gemma 3."""
    text = {"hidden_size": 640, "num_hidden_layers": 4, "intermediate_size": 2048, "head_dim": 256}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512, "vocab_size": 1000}
    return {"model_type": "gemma3", "text_config": text, "vision_config": SIGLIP | vision}


def qwen(**changes: Any) -> Encoder:
    [encoder] = find_model("qwen3-vl-8b").encoders
    return replace(encoder, **changes)


@pytest.mark.parametrize("kind", CLASSES)
def test_parameters_are_those_of_transformers(kind: str) -> None:
    """All sizes of the encoder are the defaults of the class, or a release's; the text model has four layers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, given = CLASSES[kind]
    text = given.get("text_config", {}) | {"num_hidden_layers": 4}
    config = transformers.AutoConfig.for_model(kind, **given | {"text_config": text})
    with torch.device("meta"):
        whole = getattr(transformers, f"{name}ForConditionalGeneration")._from_config(config)
    of_text = "language_model", "lm_head"
    counted = sum(
        one.numel() for name, one in whole.named_parameters() if not any(part in name for part in of_text)
    )
    [encoder] = model_from(json.loads(config.to_json_string(use_diff=False))).encoders
    assert encoder.parameters == counted


@pytest.mark.parametrize(("kind", "name"), [("qwen2_5_omni", "Qwen2_5Omni"), ("qwen3_omni_moe", "Qwen3OmniMoe")])
def test_a_thinker_has_the_parameters_of_transformers(kind: str, name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    text = {"num_hidden_layers": 2, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4}
    text |= {"head_dim": 128} if kind == "qwen3_omni_moe" else {}
    thinker = {
        "text_config": text,
        "vision_config": {"out_hidden_size": 2048},
        "audio_config": {"output_dim": 2048},
    }
    config = transformers.AutoConfig.for_model(kind, thinker_config=thinker)
    with torch.device("meta"):
        whole = getattr(transformers, f"{name}ThinkerForConditionalGeneration")._from_config(config.thinker_config)
    model = model_from(json.loads(config.to_json_string(use_diff=False)))
    assert [one.kind for one in model.encoders] == ["image", "audio"]
    assert not any(one.is_divided for one in model.encoders), "Megatron-Bridge: the class of transformers"
    assert model.parameters == sum(one.numel() for one in whole.parameters())


def test_flops_are_those_of_megatron_bridge() -> None:
    """training/utils/flop_utils.py at 067f987d, `vit_flops_from_patch_stats`; it leaves out the patch embedding."""
    encoder, h, f, depth, merge, out, mergers = qwen(), 1152, 4304, 27, 4, 4096, 4
    patches = encoder.tokens * merge
    layers = depth * ((8 * h**2 + 4 * h * f) * patches + 4 * h * patches**2)
    wide = merge * h
    merged = mergers * encoder.tokens * (2 * wide * wide + 2 * wide * out)
    embedding = 2 * patches * 3 * 2 * 16**2 * h
    assert encoder.training_flops == 3 * (layers + merged) + 2 * embedding
    four = encoder.with_images(4, encoder.num_tokens // 4)
    quarter = 3 * depth * 4 * h * patches**2 * 3 / 4  # of the scores, which are within an image
    assert encoder.training_flops - four.training_flops == pytest.approx(quarter)


def test_flops_are_those_that_torch_counts() -> None:
    """Forward of transformers' Qwen2.5-VL encoder, with windows, for one image of 16 × 16 patches."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {"depth": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 80}
    sizes |= {"fullatt_block_indexes": [1], "window_size": 112, "patch_size": 14}
    config = transformers.AutoConfig.for_model("qwen2_5_vl", vision_config=sizes).vision_config
    config._attn_implementation = "eager"
    made = transformers.models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        made(torch.zeros(256, 3 * 2 * 14**2), grid_thw=torch.tensor([[1, 16, 16]]))
    data = {"model_type": "qwen2_5_vl", "text_config": text_of_qwen(80), "vision_config": sizes}
    [encoder] = model_from(data).with_images("64").encoders
    assert encoder.forward_flops == counter.get_total_flops()


def text_of_qwen(hidden: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "vocab_size": 100, "max_position_embeddings": 1024,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "images", "tokens"), [("256", 1, 256), ("1024", 4, 256), ("2x256", 2, 256), ("0", 0, 256)]
)
def test_images_of_one_size(text: str, images: int, tokens: int) -> None:
    [encoder] = model_from(gemma()).with_images(text).encoders
    assert (encoder.images, encoder.num_tokens) == (images, tokens)
    assert (encoder.training_flops == 0) == (images == 0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: model_from(gemma()).with_images("300"), "give a multiple of 256, got 300"),
        (lambda: model_from(gemma()).with_images("2x128"), "give a multiple of 256, got 128"),
        (lambda: find_model("llama3-8b").with_images("64"), "this one has none"),
        (lambda: find_model("qwen3-vl-8b").with_images("many"), "--image-tokens is 'many'"),
        (lambda: model_from(gemma(vision_use_head=True)), "vision_use_head true is not known"),
        (lambda: model_from(gemma(patch_shape=3)), "unknown field 'patch_shape'"),
        (lambda: find_model("llama3-8b").with_fine_tuning(fine_tuning_of("", "encoder")), "no encoder"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


def tuned(freeze: str) -> Model:
    return find_model("qwen3-vl-8b").with_fine_tuning(fine_tuning_of("", freeze_of(freeze)))


def test_frozen_parameters_and_flops() -> None:
    """A frozen encoder has its forward only; a trained projector behind it adds its weight gradient."""
    [whole], [frozen] = find_model("qwen3-vl-8b").encoders, tuned("encoder").encoders
    projector = sum(one.weights + one.biases for one in whole.projector) + whole.own[1]
    held = held_parameters(tuned("encoder"), stages_of(tuned("encoder"), [36]), ParallelSizes())
    assert held.frozen == whole.parameters - projector
    merged = 2 * whole.tokens * sum(one.size for one in whole.projector)
    assert frozen.training_flops == frozen.forward_flops + merged
    [both] = tuned("encoder+projector").encoders
    assert both.training_flops == both.forward_flops == whole.forward_flops


def test_only_the_projector_is_trained_and_gives_all_layers_a_backward() -> None:
    """The settings of Megatron-Bridge's recipes of Qwen3-VL at 067f987d."""
    model = tuned("embedding+layers+norms+head+encoder")
    held = held_parameters(model, stages_of(model, [36]), ParallelSizes())
    [encoder] = model.encoders
    assert held.trained == sum(one.weights + one.biases for one in encoder.projector) + encoder.own[1]
    assert all(layer.has_backward for layer in model.layers)
    assert not any(layer.has_backward for layer in encoder.layers)
    with pytest.raises(ConfigError, match="no weight to train"):
        tuned("embedding+layers+norms+head+encoder+projector")


def test_saved_bytes_of_a_layer_are_34_per_element() -> None:
    """Per patch and column 34 bytes in 16 bits without dropout masks, scores and biases: Korthikanti et al. 2022,
    arXiv 2205.05198, §4.1, less the dropout masks (1 + 1) and with an MLP of 4304 = 3.736 h instead of 4 h columns.
    """
    model, settings = find_model("qwen3-vl-8b"), MemorySettings(1, 1024)
    [part] = model.encoder_parts
    [encoder] = model.encoders
    per_layer = encoder.rows * 2 * (2 + 2 + 3 + 1 + 2 * 4304 / 1152) * 1152 + 4 * 16 * encoder.rows
    around = encoder.tokens * 2 * (4 * 1536 + 4 * (2 * 4608 + 4608) + 3 * (4096))
    assert encoder_activations(part, settings) == pytest.approx(27 * per_layer + around, rel=2e-3)
    frozen = tuned("encoder+projector")
    assert encoder_activations(frozen.encoder_parts[0], settings) == 0


def test_ranks_divide_the_encoder_of_qwen_and_repeat_the_one_of_gemma() -> None:
    for model, share in ((find_model("qwen3-vl-8b"), 4), (model_from(gemma()), 1)):
        [part] = model.encoder_parts
        [encoder] = model.encoders
        matrices = sum(one.weights for layer in encoder.layers for one in layer.all_linears)
        matrices += sum(one.weights for one in encoder.projector if one.split)
        biases = part.held(ParallelSizes())[0] - matrices
        divided = part.held(ParallelSizes(tp=4))[0]
        assert matrices / share <= divided <= matrices / share + biases
    settings = MemorySettings(1, 1024, ParallelSizes(tp=32))
    with pytest.raises(ConfigError, match="the image encoder: tp must divide the heads: got 32 with 16"):
        rank_memory(find_model("qwen3-vl-8b"), [], settings, in_flight=[])


LAYOUTS = ["v*27|Et*18|t*18L", "v*10|v*17Et*18|t*18L", "v*27Et*12|t*12|t*12L", "Et*18|t*18L"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stages_hold_the_encoder_once(layout: str) -> None:
    from ppsim.trainers.megatron.write_schedule import format_layout, parse_layout

    model, settings = find_model("qwen3-vl-8b"), MemorySettings(1, 1024, optimizer=Optimizer())
    stages = stages_of_layout(model, parse_layout(layout))
    assert format_layout(contents_of(stages)) == layout
    whole = held_parameters(model, stages_of(model, [36]), ParallelSizes()).dense
    assert sum(held_parameters(model, [stage], ParallelSizes()).dense for stage in stages) == whole
    saved = [stage_activations(model, stage, settings).get("encoder", 0) for stage in stages]
    assert sum(saved) == encoder_activations(model.encoder_parts[0], settings)
    ends = [*accumulate(content.count("v") for content in parse_layout(layout))]
    assert [one[1:] for stage in stages for one in stage.encoder_parts(model)][-1][1] == (ends[-1] or 27)


@pytest.mark.parametrize("layout", ["Et*18|v*27t*18L", "v*27t*18|Et*18L", "vEt|tL|v"])
def test_an_encoder_behind_the_embedding_is_refused(layout: str) -> None:
    from ppsim.trainers.megatron.write_schedule import parse_layout

    with pytest.raises(ConfigError, match="v"):
        parse_layout(layout)


def test_a_layout_without_all_layers_of_the_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="the layout has 3 encoder layers, but the model has 27"):
        stages_of_layout(find_model("qwen3-vl-8b"), ["vvvE" + 36 * "t" + "L"])


SIZES_OF_CLASSES: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    ("qwen2_5_vl", "vision"): ({
        "hidden_size": 1280, "depth": 32, "spatial_merge_size": 2, "temporal_patch_size": 2, "patch_size": 14,
        "num_heads": 16, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "intermediate_size": 3420,
        "out_hidden_size": 2048, "in_channels": 3,
    }, {}, (9 * 9, 4)),
    ("glm4v_moe", "vision"): ({
        "hidden_size": 1536, "out_hidden_size": 4096, "num_heads": 12, "depth": 24, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "intermediate_size": 13696, "attention_bias": False, "image_size": 336,
        "patch_size": 14, "in_channels": 3,
    }, {}, (24 * 24 // 4, 4)),
    ("llama4", "vision"): ({
        "hidden_size": 768, "num_attention_heads": 16, "intermediate_size": 5632, "image_size": 448,
        "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096, "projector_output_dim": 4096,
        "vision_output_dim": 7680, "num_hidden_layers": 34, "num_channels": 3,
    }, {}, (32 * 32 // 4, 4)),
    ("gemma3", "vision"): ({
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224,
        "patch_size": 16, "num_hidden_layers": 12, "vision_use_head": False, "num_channels": 3,
    }, {"mm_tokens_per_image": 256}, (256, 0)),
    ("gemma4", "vision"): ({
        "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
        "intermediate_size": 3072, "position_embedding_size": 10240, "num_hidden_layers": 16, "patch_size": 16,
        "pooling_kernel_size": 3,
    }, {"vision_soft_tokens_per_image": 280}, (280, 9)),
    ("mistral3", "vision"): ({
        "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "image_size": 1540,
        "patch_size": 14, "num_hidden_layers": 24,
    }, {"spatial_merge_size": 2, "multimodal_projector_bias": False}, (55 * 55, 4)),
    ("kimi_vl", "vision"): ({
        "hidden_size": 1152, "num_attention_heads": 16, "intermediate_size": 4304, "num_hidden_layers": 27,
        "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2], "patch_size": 14,
    }, {}, (64 * 64 // 4, 4)),
    ("qwen2_audio", "audio"): ({
        "d_model": 1280, "encoder_attention_heads": 20, "max_source_positions": 1500, "num_mel_bins": 128,
        "encoder_ffn_dim": 5120, "encoder_layers": 32,
    }, {}, (750, 2)),
    ("qwen2_5_omni_thinker", "audio"): ({
        "d_model": 1280, "encoder_attention_heads": 20, "max_source_positions": 1500, "num_mel_bins": 128,
        "encoder_ffn_dim": 5120, "encoder_layers": 32, "n_window": 100, "output_dim": 3584,
    }, {}, (750, 2)),
    ("qwen3_omni_moe_thinker", "audio"): ({
        "d_model": 1280, "encoder_attention_heads": 20, "downsample_hidden_size": 480, "num_mel_bins": 128,
        "n_window": 50, "n_window_infer": 800, "encoder_ffn_dim": 5120, "encoder_layers": 32, "output_dim": 3584,
    }, {}, (30 * 13, 1)),
}  # fmt: skip
"""Defaults of the classes of transformers; tokens per image or clip, and rows of the encoder per token."""


@pytest.mark.parametrize(("family", "kind"), SIZES_OF_CLASSES)
def test_a_missing_field_of_an_encoder_has_the_default_of_its_class(family: str, kind: str) -> None:
    sizes, top, (num_tokens, merge) = SIZES_OF_CLASSES[family, kind]
    read = READERS[family, kind]
    kinds = f"{family}.{kind}", family
    missing, given = ([ConfigFields(of, "config.json", *kinds) for of in both] for both in (({}, {}), (sizes, top)))
    found = read(*missing, 2048)
    assert found == read(*given, 2048)
    assert (found.num_tokens, found.merge) == (num_tokens, merge)


@pytest.mark.parametrize(("family", "kind"), SIZES_OF_CLASSES)
def test_each_size_of_an_encoder_changes_it(family: str, kind: str) -> None:
    """So that the comparison of defaults above cannot pass because a field is not read."""
    sizes, top, _ = SIZES_OF_CLASSES[family, kind]

    def read(**other: Any) -> Encoder:
        encoder, whole = ({name: other.get(name, size) for name, size in of.items()} for of in (sizes, top))
        return READERS[family, kind](ConfigFields(encoder, "config.json"), ConfigFields(whole, "config.json"), 2048)

    for name, size in (sizes | top).items():
        if type(size) is int and "heads" not in name:
            assert read(**{name: 2 * size}) != read(), name


def encoder_of_class(family: str, kind: str) -> Encoder:
    return READERS[family, kind](
        *(ConfigFields(of, "config.json") for of in SIZES_OF_CLASSES[family, kind][:2]), 2048
    )


def test_convolutions_multiply_all_frames_of_a_clip() -> None:
    """30 s are 3000 frames of 128 mels.

    Whisper's two convolutions of width 3 read each frame, and each second. Qwen3-Omni's three of 3 × 3, with 480
    channels, halve both sides of 30 chunks of 128 mels × 100 frames, and a matrix follows.
    """
    whisper = 3000 * (3 * 128 * 1280) + 1500 * (3 * 1280 * 1280)
    omni = 30 * (64 * 50 * 9 * 480 + (32 * 25 + 16 * 13) * 9 * 480 * 480 + 13 * 480 * 16 * 1280)
    for family, multiplied in (
        ("qwen2_audio", whisper), ("qwen2_5_omni_thinker", whisper), ("qwen3_omni_moe_thinker", omni),
    ):  # fmt: skip
        encoder = encoder_of_class(family, "audio")
        without_input_gradients = 3 * encoder.forward_flops - encoder.training_flops
        assert without_input_gradients == 2 * multiplied, family


def test_which_encoders_are_divided_have_windows_or_a_class_token() -> None:
    encoders = {(family, kind): encoder_of_class(family, kind) for family, kind in SIZES_OF_CLASSES}
    fixed = {"gemma3 vision", "llama4 vision", *(f"{family} audio" for family, kind in READERS if kind == "audio")}
    assert {f"{family} {kind}" for (family, kind), one in encoders.items() if one.is_fixed} == fixed
    assert {family for (family, _), one in encoders.items() if one.more_rows} == {"llama4"}
    windows = {family: {layer.attention.window for layer in one.layers} for (family, _), one in encoders.items()}
    assert {family: window for family, window in windows.items() if window != {None}} == {
        "qwen2_5_vl": {None, 64}, "qwen2_5_omni_thinker": {100}, "qwen3_omni_moe_thinker": {8 * 13},
    }  # fmt: skip
    assert not any(layer.attention.is_causal for one in encoders.values() for layer in one.layers)


def test_a_rank_holds_frozen_and_trained_parameters_of_an_encoder() -> None:
    """Qwen3-VL 8B: four mergers of two biased matrices, with norms of 2 · 1152 + 3 · 2 · 4608 weights.

    Two tensor-parallel ranks divide the outputs of the first and the inputs of the second matrix.
    """
    norms = 2 * 1152 + 3 * 2 * 4608
    projector = 4 * (4608 * 4608 + 4608 + 4608 * 4096 + 4096) + norms
    divided = 4 * (4608 * 2304 + 2304 + 2304 * 4096 + 4096) + norms
    for freeze, trains_encoder, trains_projector in (
        ("embedding", True, True), ("encoder", False, True), ("projector", True, False),
        ("encoder+projector", False, False),
    ):  # fmt: skip
        [part] = find_model("qwen3-vl-8b").with_fine_tuning(fine_tuning_of("", freeze)).encoder_parts
        for tp, of_projector in ((1, projector), (2, divided)):
            held, frozen = part.held(ParallelSizes(tp=tp))
            of_layers = held - of_projector
            assert frozen == (not trains_encoder) * of_layers + (not trains_projector) * of_projector
        first, rest = (part._replace(first=begin, last=end) for begin, end in ((0, 9), (9, 27)))
        whole = part.held(ParallelSizes())
        assert tuple(map(sum, zip(first.held(ParallelSizes()), rest.held(ParallelSizes()), strict=True))) == whole
    assert whole[0] == 576_388_336


def test_an_encoder_says_its_images_rows_and_size() -> None:
    start, of_one = "image encoder of 0.6 B parameters", "576 tokens of 2304 rows per sequence"
    end = "part of the sequence"
    assert qwen().sentence == f"{start}: {of_one} (num_position_embeddings 2304), {end}"
    assert qwen(images=3, more_rows=5, source="as told").sentence == (
        f"{start}: 3 × 576 tokens of 2309 rows per sequence (as told), {end}"
    )
    for images, tokens in ((0, 7), (7, 0), (0, None)):
        none = qwen().with_images(images, tokens)
        assert (none.images, none.num_tokens, none.source) == (0, 576, "--image-tokens 0")
        assert none.sentence == f"{start}: encodes nothing (--image-tokens 0)"


@pytest.mark.parametrize(
    ("is_fixed", "images", "tokens", "expected"),
    [
        (False, 1152, None, (1, 1152)),
        (False, 3, 100, (3, 100)),
        (True, 1152, None, (2, 576)),
        (True, 576, None, (1, 576)),
        (True, 5, 576, (5, 576)),
        (True, 288, None, "a multiple of 576, got 288"),
        (True, 1153, None, "a multiple of 576, got 1153"),
    ],
)
def test_a_number_alone_is_of_one_image_or_of_as_many_as_a_fixed_size_allows(
    is_fixed: bool, images: int, tokens: int | None, expected: Any
) -> None:
    encoder = qwen(is_fixed=is_fixed)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            encoder.with_images(images, tokens)
    else:
        made = encoder.with_images(images, tokens)
        assert (made.images, made.num_tokens, made.source) == (*expected, "--image-tokens")


@pytest.mark.parametrize(
    ("text", "parsed", "normal"),
    [
        ("576", (576, None), "576"),
        (" 04×256 ", (4, 256), "4x256"),
        ("4x016", (4, 16), "4x16"),
        ("0", (0, None), "0"),
        ("0x16", (0, 16), "0"),
        ("3x0", (3, 0), "0"),
        ("999999999x999999999", (999_999_999, 999_999_999), "999999999x999999999"),
        ("1000000000", None, None),
        ("4x1000000000", None, None),
        ("4x", None, None),
        ("4x5x6", None, None),
        ("-4", None, None),
    ],
)
def test_image_tokens_are_a_number_or_two(text: str, parsed: Any, normal: str | None) -> None:
    assert image_tokens_of("") == ""
    if parsed is None:
        with pytest.raises(ConfigError, match="--image-tokens is"):
            image_tokens_of(text)
    else:
        assert (parse_images(text), image_tokens_of(text)) == (parsed, normal)


def test_an_encoder_that_is_not_divided_is_repeated_on_all_ranks() -> None:
    sizes = ParallelSizes(tp=4, cp=2, dp=3)
    for is_divided, cut in ((True, ParallelSizes(tp=4, dp=6)), (False, ParallelSizes(tp=1, dp=24))):
        assert qwen(is_divided=is_divided).cut(sizes) == replace(cut, sequence_parallel=False)


def test_flops_of_an_encoder_are_of_its_images_and_what_is_trained() -> None:
    """Three images of 5 tokens, of 4 patches and a class token each; one matrix before and one after the layers."""
    matrix, after = qwen().embedding[0], qwen().projector[0]
    layer = qwen().layers[0]
    encoder = qwen(
        images=3, num_tokens=5, more_rows=1, layers=(layer,) * 2, embedding=(matrix,), projector=(after,)
    )
    of_layers = 3 * 21 * 2 * layer.forward_flops(21)
    patches, merged = 2 * 15 * 4 * matrix.size * matrix.rows, 2 * 15 * after.size * after.rows
    assert encoder.forward_flops == of_layers + patches + merged
    for layers, projector, flops in (
        (True, True, 3 * of_layers + 2 * patches + 3 * merged), (True, False, 3 * of_layers + 2 * patches + 2 * merged),
        (False, True, of_layers + patches + 2 * merged), (False, False, of_layers + patches + merged),
    ):  # fmt: skip
        assert replace(encoder, trains_layers=layers, trains_projector=projector).training_flops == flops


def test_what_is_left_out_in_model_encoder_has_these_values() -> None:
    assert number_defaults(encoder_module) == {
        "Encoder": {"images": 1, "is_fixed": False, "more_rows": 0, "is_divided": False, "trains_layers": True, "trains_projector": True},
    }  # fmt: skip
