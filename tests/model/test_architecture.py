"""Parameters of models come out as published, to the last one where the publication has them all."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import architecture as architecture_module
from ppsim.model.architecture import End, Layer, Model, norm_parameters
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
from ppsim.model.attention_base import Indexer
from ppsim.model.conditioning import Conditioning, Patches
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.registry import NAMES, find_model
from ppsim.model.shapes import layer_forward_flops, layer_parameters, model_shape_of
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes
from ppsim.profiling.model_shapes import MODELS
from tests.defaults import number_defaults

SAFETENSORS = "elements of the tensors of the released checkpoint"
BUILT = (
    "parameters of the class in transformers 5.23 built of the released sizes, and its router's balancing biases"
)
EXACT = {
    "gpt2": (124_439_808, "openai-community/gpt2 without its attention masks"),
    "llama-7b": (6_738_415_616, SAFETENSORS),
    "llama-13b": (13_015_864_320, SAFETENSORS),
    "llama-65b": (65_285_660_672, SAFETENSORS),
    "llama2-7b": (6_738_415_616, SAFETENSORS),
    "llama2-13b": (13_015_864_320, SAFETENSORS),
    "llama2-70b": (68_976_648_192, SAFETENSORS),
    "llama3-8b": (8_030_261_248, SAFETENSORS),
    "llama3-70b": (70_553_706_496, SAFETENSORS),
    "llama3-405b": (405_853_388_800, SAFETENSORS),
    "mixtral-8x7b": (46_702_792_704, SAFETENSORS),
    "mixtral-8x22b": (140_630_071_296, SAFETENSORS),
    "mixtral-8x22b-g8t8": (
        140_630_071_296 + 56 * 6144 * (64 - 8),
        "those of 8x22B and wider routers: arXiv 2504.14960, section 4.1, cuts each expert in eight",
    ),
    "qwen2.5-0.5b": (494_032_768, SAFETENSORS),
    "qwen2.5-1.5b": (1_543_714_304, SAFETENSORS),
    "qwen2.5-7b": (7_615_616_512, SAFETENSORS),
    "qwen2.5-14b": (14_770_033_664, SAFETENSORS),
    "qwen2.5-32b": (32_763_876_352, SAFETENSORS),
    "qwen2.5-72b": (72_706_203_648, SAFETENSORS),
    "qwen3-0.6b": (596_049_920, "with the tied head once; the checkpoint stores it twice, 751,632,384"),
    "qwen3-8b": (8_190_735_360, SAFETENSORS),
    "qwen3-14b": (14_768_307_200, SAFETENSORS),
    "qwen3-32b": (32_762_123_264, SAFETENSORS),
    "qwen3-30b-a3b": (30_532_122_624, SAFETENSORS),
    "qwen3-235b-a22b": (235_093_634_560, SAFETENSORS),
    "deepseek-v3": (
        671_026_419_200,
        "tensors of the checkpoint's main model, router biases included, FP8 scales not",
    ),
    "llama3.2-1b": (1_235_814_400, SAFETENSORS),
    "llama3.2-3b": (3_212_749_824, SAFETENSORS),
    "mistral-7b": (7_241_732_096, SAFETENSORS),
    "qwen3-1.7b": (1_720_574_976, BUILT),
    "qwen3-4b": (4_022_468_096, SAFETENSORS),
    "qwen2-57b-a14b": (57_408_658_944, BUILT),
    "qwen3-next-80b-a3b": (79_674_391_296, BUILT),
    "deepseek-v2-lite": (15_706_484_224, SAFETENSORS),
    "deepseek-v2": (235_741_434_880, SAFETENSORS),
    "deepseek-v4-flash": (284_332_240_471, BUILT),
    "deepseek-v4-pro": (1_572_997_201_763, BUILT),
    "kimi-k2": (1_026_408_232_448, BUILT),
    "kimi-linear-48b-a3b": (49_122_681_728, SAFETENSORS),
    "lfm2-350m": (354_483_968, "LiquidAI/LFM2-2.6B-Exp, README.md, table of properties"),
    "lfm2-700m": (742_489_344, "LiquidAI/LFM2-2.6B-Exp, README.md, table of properties"),
    "lfm2-1.2b": (1_170_340_608, "LiquidAI/LFM2-2.6B-Exp, README.md, table of properties"),
    "gpt-oss-20b": (20_914_757_184, f"20.91B: arXiv 2508.10925, Table 1; {BUILT}"),
    "gpt-oss-120b": (116_829_156_672, f"116.83B: arXiv 2508.10925, Table 1; {BUILT}"),
    "llama4-scout": (107_769_861_120, f"its text model alone; {BUILT}"),
    "llama4-maverick": (400_711_848_960, f"its text model alone; {BUILT}"),
    "gemma2-2b": (2_614_341_888, SAFETENSORS),
    "gemma2-9b": (9_241_705_984, SAFETENSORS),
    "gemma2-27b": (27_227_128_320, SAFETENSORS),
    "gemma3-1b": (999_885_952, SAFETENSORS),
    "gemma3-4b": (3_880_263_168, f"its text model alone; {BUILT}"),
    "gemma3-12b": (11_766_034_176, f"its text model alone; {BUILT}"),
    "gemma3-27b": (27_009_346_304, f"its text model alone; {BUILT}"),
    "gemma4-31b": (30_697_345_280, f"its text model alone; {BUILT}"),
    "gemma4-26b-a4b": (25_233_141_760, f"its text model alone; {BUILT}"),
    "qwen3-omni-30b-a3b": (31_719_205_488, f"its thinker with both encoders; {BUILT}"),
    "mamba2-130m": (128_989_632, BUILT),
    "mamba2-370m": (368_346_624, BUILT),
    "mamba2-780m": (780_161_280, BUILT),
    "mamba2-1.3b": (1_343_757_312, BUILT),
    "mamba2-2.7b": (2_702_599_680, BUILT),
    "nemotron-h-4b": (4_489_223_040, BUILT),
    "nemotron-h-8b": (8_100_852_736, BUILT),
    "nemotron-h-47b": (46_791_554_816, BUILT),
    "nemotron-h-56b": (56_324_350_464, BUILT),
    "nemotron-nano-9b-v2": (8_888_227_328, BUILT),
    "nemotron-nano-12b-v2": (12_310_001_152, BUILT),
    "nemotron-3-nano-30b-a3b": (31_577_940_288, BUILT),
    "nemotron-3-super-120b-a12b": (120_668_707_840, BUILT),
    "qwen2.5-3b": (3_085_938_688, BUILT),
    "mamba-370m": (368_314_880, BUILT),
    "deepseek-r1-distill-qwen-1.5b": (1_777_088_000, BUILT),
    "qwen3-coder-480b-a35b": (480_154_875_392, BUILT),
    "qwen3.5-27b": (26_895_998_464, f"its text model alone; {BUILT}"),
    "qwen3.5-35b-a3b": (34_660_610_688, f"its text model alone; {BUILT}"),
    "qwen3.5-122b-a10b": (122_111_526_912, f"its text model alone; {BUILT}"),
    "qwen3.5-397b-a17b": (396_346_350_336, f"its text model alone; {BUILT}"),
    "qwen3-vl-2b": (2_127_532_032, f"with its image encoder; {BUILT}"),
    "qwen3-vl-4b": (4_437_815_808, f"with its image encoder; {BUILT}"),
    "qwen3-vl-8b": (8_767_123_696, f"with its image encoder; {BUILT}"),
    "qwen3-vl-32b": (33_357_390_064, f"with its image encoder; {BUILT}"),
    "qwen3-vl-30b-a3b": (31_070_754_032, f"with its image encoder; {BUILT}"),
    "qwen3-vl-235b-a22b": (235_670_022_896, f"with its image encoder; {BUILT}"),
    "qwen3.5-vl-27b": (27_356_728_560, f"with its image encoder; {BUILT}"),
    "qwen3.5-vl-35b-a3b": (35_107_181_936, f"with its image encoder; {BUILT}"),
    "qwen3.5-vl-122b-a10b": (122_562_817_776, f"with its image encoder; {BUILT}"),
    "qwen3.5-vl-397b-a17b": (396_802_360_816, f"with its image encoder; {BUILT}"),
    "glm-4.5": (352_797_829_024, BUILT),
    "glm-4.5-air": (106_852_251_264, BUILT),
    "glm-4.7-flash": (29_943_393_920, BUILT),
    "glm-5": (743_911_218_432, BUILT),
    "deepseek-v3.2": (671_877_944_064, BUILT),
    "moonlight-16b-a3b": (15_960_110_208, BUILT),
    "minimax-m2.5": (228_689_764_864, BUILT),
    "mimo-7b": (7_622_619_136, f"Qwen2ForCausalLM, whose layers it has; {BUILT}"),
    "olmo-2-1b": (1_484_916_736, BUILT),
    "olmo-2-7b": (7_298_617_344, BUILT),
    "olmo-2-13b": (13_716_198_400, BUILT),
    "olmo-2-32b": (32_234_279_936, BUILT),
    "olmo-3-7b": (7_298_617_344, BUILT),
    "olmo-3-32b": (32_234_279_936, BUILT),
    "olmoe-1b-7b": (6_919_161_856, BUILT),
    "phi-4": (14_659_507_200, BUILT),
    "phi-4-mini": (3_836_021_760, BUILT),
    "seed-oss-36b": (36_151_104_512, BUILT),
    "ling-mini-2.0": (16_255_643_392, f"Glm4MoeForCausalLM, whose layers it has; {BUILT}"),
    "sarvam-30b": (32_152_650_368, f"Glm4MoeForCausalLM, whose layers it has; {BUILT}"),
    "sarvam-105b": (106_031_767_424, f"DeepseekV3ForCausalLM, whose layers it has; {BUILT}"),
    "ernie-4.5-0.3b": (360_748_032, BUILT),
    "ernie-4.5-21b-a3b": (21_825_437_888, BUILT),
    "exaone-4.0-1.2b": (1_279_391_488, BUILT),
    "exaone-4.0-32b": (32_003_216_384, BUILT),
    "hunyuan-a13b": (80_393_183_232, BUILT),
    "hy3": (295_033_543_488, BUILT),
    "ministral-3-3b": (3_429_006_336, f"its text model alone; {BUILT}"),
    "ministral-3-8b": (8_489_553_920, f"its text model alone; {BUILT}"),
    "nemotron-3-ultra-550b-a55b": (549_308_993_536, BUILT),
    "grok-2": (269_515_497_472, "tensors of the checkpoint: huggingface.co/xai-org/grok-2, discussion 6"),
    "mimo-v2-flash": (308_778_780_864, BUILT),
    "step-3.5-flash": (196_956_130_368, f"its text model alone; {BUILT}"),
    "minimax-m3": (426_174_572_928, f"its text model alone; {BUILT}"),
    "glm-5.2": (743_377_019_904, BUILT),
    "nemotron-3.5-lightning-30b-a3b": (31_577_940_288, BUILT),
    "granite-4.0-micro": (3_402_836_480, BUILT),
    "granite-4.0-h-micro": (3_191_396_096, BUILT),
    "granite-4.0-h-tiny": (6_939_037_248, BUILT),
    "granite-4.0-h-small": (32_207_337_984, BUILT),
    "ministral-3-14b": (13_506_073_600, f"its text model alone; {BUILT}"),
    "k-exaone-236b-a23b": (236_571_156_352, BUILT),
    "ernie-4.5-300b-a47b": (298_636_913_856, f"{BUILT}; none of the latter"),
    "flux.1-dev": (11_901_408_320, "diffusers 0.35.2, FluxTransformer2DModel of the released config.json"),
    "flux.1-schnell": (11_891_178_560, "the same without guidance"),
    "sd3-medium": (2_028_328_000, "diffusers 0.35.2, SD3Transformer2DModel of the released config.json"),
    "dit-xl-2": (675_129_632, "facebookresearch/DiT, DiT_XL_2, with its sines of positions"),
}
# The publication's number, in billions, and its digits, of models whose exact number is only transformers'.
TOTALS = [
    ("qwen3-coder-480b-a35b", 480, 0, "its name"),
    ("qwen3.5-27b", 27, 0, "its name"),
    ("qwen3.5-35b-a3b", 35, 0, "its name"),
    ("qwen3.5-122b-a10b", 122, 0, "its name"),
    ("glm-4.7-flash", 30, 0, "Megatron-Bridge 067f987, docs/models/glm/glm47.md"),
    ("glm-5", 744, 0, "Primus fd1eeab, primus/configs/models/megatron/glm5.yaml"),
    ("moonlight-16b-a3b", 16, 0, "Megatron-Bridge 067f987, docs/models/moonlight/moonlight.md"),
    ("minimax-m2.5", 229, 0, "Primus fd1eeab, primus/configs/models/megatron/minimax_m2.5.yaml"),
    ("olmoe-1b-7b", 7, 0, "Megatron-Bridge 067f987, docs/models/olmoe/olmoe.md"),
    ("olmo-2-7b", 7, 0, "its name"),
    ("olmo-2-32b", 32, 0, "its name"),
    ("seed-oss-36b", 36, 0, "ByteDance-Seed/seed-oss 02d7aaa, README.md"),
    ("ling-mini-2.0", 16, 0, "inclusionAI/Ling-V2 af8837e, README.md"),
    ("exaone-4.0-32b", 32, 0, "huggingface/transformers 16ea78c, docs/source/en/model_doc/exaone4.md"),
    ("hunyuan-a13b", 80, 0, "Tencent-Hunyuan/Hunyuan-A13B 2798f3c, README.md"),
    ("hy3", 295, 0, "its model card"),
    ("grok-2", 270, 0, "Primus fd1eeab, primus/configs/models/megatron/grok2.yaml"),
    ("mamba-370m", 0.37, 2, "its name"),
    ("mimo-v2-flash", 309, 0, "XiaomiMiMo/MiMo-V2-Flash, README.md"),
    ("granite-4.0-h-tiny", 7, 0, "its model card, table of architectures"),
    ("granite-4.0-h-small", 32, 0, "its model card, table of architectures"),
    ("granite-4.0-micro", 3, 0, "its model card, table of architectures"),
    ("granite-4.0-h-micro", 3, 0, "its model card, table of architectures"),
    ("ministral-3-14b", 13.5, 1, "its model card: 13.5B and 0.4B of the image encoder"),
]
# What is published, in billions, and the digits it is published with.
ROUNDED = {
    "gpt3-125m": (0.125, 3, "arXiv 2005.14165, Table 2.1"),
    "gpt3-760m": (0.760, 2, "arXiv 2005.14165, Table 2.1"),
    "gpt3-1.3b": (1.3, 1, "arXiv 2005.14165, Table 2.1"),
    "gpt3-2.7b": (2.7, 1, "arXiv 2005.14165, Table 2.1"),
    "gpt3-6.7b": (6.7, 1, "arXiv 2005.14165, Table 2.1"),
    "gpt3-13b": (13, 0, "arXiv 2005.14165, Table 2.1"),
    "gpt3-175b": (174.6, 1, "174,600M: arXiv 2005.14165, Table D.1"),
    "llama-33b": (32.5, 1, "arXiv 2302.13971, Table 2"),
    "megatron-1.7b": (1.7, 1, "arXiv 2104.04473, Table 1"),
    "megatron-3.6b": (3.6, 1, "arXiv 2104.04473, Table 1"),
    "megatron-7.5b": (7.5, 1, "arXiv 2104.04473, Table 1"),
    "megatron-18b": (18.4, 1, "arXiv 2104.04473, Table 1"),
    "megatron-22b": (22, 0, "arXiv 2205.05198, Table 3"),
    "megatron-39b": (39.1, 1, "arXiv 2104.04473, Table 1"),
    "megatron-76b": (76.1, 1, "arXiv 2104.04473, Table 1"),
    "megatron-145b": (145.6, 1, "arXiv 2104.04473, Table 1"),
    "megatron-310b": (310.1, 1, "arXiv 2104.04473, Table 1"),
    "megatron-530b": (529.6, 1, "arXiv 2104.04473, Table 1"),
    "megatron-1t": (1008.0, 1, "arXiv 2104.04473, Table 1"),
    "nemotron4-340b": (341.0, 1, "9.4 + 331.6: arXiv 2406.11704, Table 1"),
    "lfm2-8b-a1b": (8.3, 1, "arXiv 2511.23404, abstract"),
    "falcon-h1-0.5b": (0.5, 1, "arXiv 2507.22448, abstract"),
    "falcon-h1-34b": (34, 0, "arXiv 2507.22448, abstract"),
    "dit-s-2": (0.033, 3, "arXiv 2212.09748, Table 1"),
    "dit-l-2": (0.458, 3, "arXiv 2212.09748, Table 1"),
}
# Published more coarsely than sizes and rounding give; the difference is bounded, and said.
NEAR = {
    "kimi-k3": (2.8e12, 0.01, "AMD-AGI/Primus fd1eeab, primus/configs/models/megatron/kimi_k3.yaml: ~2.8 T"),
    **dict.fromkeys(
        ("zebra-llama-300m-gdn", "zebra-llama-300m-kda"), (0.3e9, 0.03, "Primus fd1eeab, its preset: ~300M")
    ),
    **{
        f"zebra-llama-{name}": (count, 0.0, "the same arguments read as Megatron-LM's; no number is published")
        for name, count in (
            ("300m-mamba", 356_733_952),
            ("300m-gdn-mla", 309_280_624),
            ("1b", 1_438_816_256),
            ("1b-gdn", 1_203_441_152),
            ("1b-kda", 1_175_153_920),
            ("3b", 3_973_791_056),
            ("8b", 9_110_693_632),
        )
    },
    "gpt3-350m": (0.350e9, 0.02, "arXiv 2005.14165, Table 2.1: 355.9M; Table D.1 has 356M"),
    "dit-b-2": (0.130e9, 0.005, "arXiv 2212.09748, Table 1: 130M, and 130.5M here"),
    "nemotron4-15b": (15.7e9, 0.005, "3.2 + 12.5: arXiv 2402.16819, Table 1; its embeddings may be padded"),
    "grok-1": (314e9, 0.006, "xai-org/grok-1, README.md: it is 314.9e9 here without the embedding"),
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_those_of_the_checkpoint(name: str) -> None:
    assert find_model(name).parameters == EXACT[name][0], EXACT[name][1]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_are_the_published_number_at_its_rounding(name: str) -> None:
    published, digits, source = ROUNDED[name]
    assert round(find_model(name).parameters / 1e9, digits) == published, source


@pytest.mark.parametrize(("name", "published", "digits", "source"), TOTALS)
def test_parameters_of_transformers_are_those_of_the_publication(name, published, digits, source) -> None:
    assert round(find_model(name).parameters / 1e9, digits) == published, source


@pytest.mark.parametrize(
    ("name", "billions", "digits", "source"),
    [
        (
            "glm-4.5",
            355,
            0,
            "Megatron-Bridge 067f987, docs/models/glm/glm45.md; with its layer for a further token",
        ),
        ("glm-4.5-air", 106, 0, "Megatron-Bridge 067f987, docs/models/glm/glm45.md"),
        ("sarvam-30b", 30, 0, "Megatron-Bridge 067f987, docs/models/sarvam/sarvam.md"),
    ],
)
def test_parameters_without_embedding_and_head(name, billions, digits, source) -> None:
    model = find_model(name)
    further = model.mtp_parameters if name == "glm-4.5" else 0
    assert round((model.parameters - tables(model) + further) / 1e9, digits) == billions, source


@pytest.mark.parametrize(
    ("name", "billions", "digits", "source"),
    [
        ("glm-4.5", 32, 0, "Megatron-Bridge 067f987, docs/models/glm/glm45.md"),
        ("glm-4.5-air", 12, 0, "Megatron-Bridge 067f987, docs/models/glm/glm45.md"),
        ("glm-4.7-flash", 3, 0, "Megatron-Bridge 067f987, docs/models/glm/glm47.md"),
        ("glm-5", 40, 0, "Primus fd1eeab, primus/configs/models/megatron/glm5.yaml"),
        ("sarvam-105b", 10.3, 1, "Megatron-Bridge 067f987, docs/models/sarvam/sarvam.md"),
        ("minimax-m3", 23.5, 1, "~23B: Megatron-Bridge 067f987, docs/models/minimax/minimax-m3.md"),
        ("ling-mini-2.0", 0.789, 3, "inclusionAI/Ling-V2 af8837e, README.md: 789M without embeddings"),
    ],
)
def test_active_parameters_without_embedding_and_head(name, billions, digits, source) -> None:
    model = find_model(name)
    assert round((model.active_parameters - tables(model)) / 1e9, digits) == billions, source


def tables(model: Model) -> int:
    """Weights of an embedding and a head that are not tied."""
    return 2 * model.vocab_size * model.hidden_size


@pytest.mark.parametrize("name", NEAR)
def test_parameters_are_near_a_coarse_publication(name: str) -> None:
    published, tolerance, source = NEAR[name]
    assert find_model(name).parameters == pytest.approx(published, rel=tolerance), source


def test_every_model_is_checked_and_has_a_source() -> None:
    assert {*EXACT, *ROUNDED, *NEAR} == set(NAMES)
    assert all(find_model(name).source for name in NAMES)
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"to the last one for {len(EXACT)} of {len(NAMES)} names" in page


@pytest.mark.parametrize(
    ("name", "billions", "digits", "source"),
    [
        ("mixtral-8x7b", 13, 0, "arXiv 2401.04088, abstract"),
        ("mixtral-8x22b", 39, 0, "release of Mixtral 8x22B: 39B active of 141B"),
        ("qwen3-235b-a22b", 22, 0, "arXiv 2505.09388, Table 2"),
        ("qwen3-30b-a3b", 3, 0, "arXiv 2505.09388, Table 2"),
        ("llama3-405b", 406, 0, "dense: all of them"),
        ("llama4-scout", 17, 0, "its model card: 17B active of 109B with images"),
        ("llama4-maverick", 17, 0, "its model card: 17B active of 400B"),
        ("nemotron-3-nano-30b-a3b", 3.6, 1, "arXiv 2512.20848, §2: 3.6B with embeddings"),
        ("qwen3-coder-480b-a35b", 35, 0, "its name"),
        ("qwen3.5-35b-a3b", 3, 0, "its name"),
        ("qwen3.5-122b-a10b", 10, 0, "its name"),
        ("qwen3.5-397b-a17b", 17, 0, "its name"),
        ("moonlight-16b-a3b", 3, 0, "Megatron-Bridge 067f987, docs/models/moonlight/moonlight.md"),
        ("olmoe-1b-7b", 1.3, 1, "Megatron-Bridge 067f987, docs/models/olmoe/olmoe.md"),
        ("ling-mini-2.0", 1.4, 1, "inclusionAI/Ling-V2 af8837e, README.md"),
        ("ernie-4.5-21b-a3b", 3, 0, "its name"),
        ("hunyuan-a13b", 13, 0, "Tencent-Hunyuan/Hunyuan-A13B 2798f3c, README.md"),
        ("hy3", 21, 0, "its model card"),
        ("grok-2", 115, 0, "huggingface.co/xai-org/grok-2, discussion 6"),
        ("mimo-v2-flash", 15, 0, "XiaomiMiMo/MiMo-V2-Flash, README.md"),
        ("granite-4.0-h-small", 9, 0, "its model card, table of architectures"),
        ("granite-4.0-h-tiny", 1, 0, "its model card, table of architectures"),
        ("ernie-4.5-300b-a47b", 47, 0, "its name"),
    ],
)
def test_active_parameters_are_as_published(name: str, billions: float, digits: int, source: str) -> None:
    assert round(find_model(name).active_parameters / 1e9, digits) == billions, source


@pytest.mark.parametrize(
    ("name", "billions", "digits", "source"),
    [
        ("gpt-oss-20b", 3.61, 2, "arXiv 2508.10925, Table 1"),
        ("gpt-oss-120b", 5.13, 2, "arXiv 2508.10925, Table 1"),
        ("nemotron-3-nano-30b-a3b", 3.2, 1, "arXiv 2512.20848, §2"),
        ("nemotron-3-super-120b-a12b", 12, 0, "its model card"),
        ("kimi-k2", 32, 0, "arXiv 2507.20534, abstract"),
        ("kimi-linear-48b-a3b", 3, 0, "arXiv 2510.26692, abstract"),
        ("deepseek-v2", 21, 0, "arXiv 2405.04434, abstract"),
        ("deepseek-v4-flash", 13, 0, "arXiv 2606.19348, abstract"),
        ("deepseek-v4-pro", 49, 0, "arXiv 2606.19348, abstract"),
        ("minimax-m2.5", 10, 0, "Primus fd1eeab, primus/configs/models/megatron/minimax_m2.5.yaml"),
        ("nemotron-3-ultra-550b-a55b", 55, 0, "its name"),
        ("kimi-k3", 104, 0, "AMD-AGI/Primus fd1eeab, kimi_k3.yaml: ~104 B"),
        ("k-exaone-236b-a23b", 23, 0, "its name"),
        ("nemotron-3.5-lightning-30b-a3b", 3, 0, "its name"),
        ("step-3.5-flash", 11, 0, "stepfun-ai/Step-3.5-Flash, README.md"),
    ],
)
def test_active_parameters_without_the_input_embedding(name, billions, digits, source) -> None:
    model = find_model(name)
    assert round((model.active_parameters - model.embedding_parameters) / 1e9, digits) == billions, source


def test_deepseek_v3_activates_37_billion_without_its_input_embedding() -> None:
    """37B: arXiv 2412.19437, abstract; 38 would be with the embedding. 11.5B: its README_WEIGHTS.md, of the layer."""
    model = find_model("deepseek-v3")
    assert round((model.active_parameters - model.embedding_parameters) / 1e9) == 37
    assert round(model.mtp[0].parameters / 1e9, 1) == 11.5
    assert model.mtp_parameters - model.mtp[0].parameters == 2 * 7168**2 + 3 * 7168
    assert [layer.is_moe for layer in model.layers] == [False] * 3 + [True] * 58


def test_flops_of_gpt_are_megatrons_formula() -> None:
    """arXiv 2104.04473, eq. 3 without recomputation (72 for 96): 72·B·s·l·h²(1 + s/(6h) + V/(12lh))."""
    model = find_model("megatron-145b")
    layers, h, s, vocab = 80, 12288, 2048, 51200
    formula = 72 * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert model.training_flops() == pytest.approx(formula, rel=1e-12)
    scores = 3 * layers * 4 * s * h
    assert model.training_flops() - model.training_flops(causal=True) == pytest.approx(scores / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "length", "tokens_per_s", "tflops", "causal"),
    [
        ("kimi-k2", 4096, 5072, 1037, True),
        ("nemotron-3-nano-30b-a3b", 8192, 14890, 331, False),
        ("nemotron-3-nano-30b-a3b", 8192, 37664, 839, False),
    ],
)
def test_flops_a_token_are_those_that_nvidia_counts(name, length, tokens_per_s, tflops, causal) -> None:
    """Megatron-Bridge's performance summary 26.02.01 has both tokens and model FLOPs a second of a GPU.

    Its scan is 7 FLOPs a number of the state and token, here it is that of the chunks; hybrids count all scores.
    """
    counted = 1e12 * tflops / tokens_per_s
    assert find_model(name).training_flops(length, causal=causal) == pytest.approx(counted, rel=0.015)


def test_nvidia_counts_two_of_the_three_matrices_of_gpt_oss_experts() -> None:
    """Its 373 TFLOP/s of 13,722 tokens a second are ours less a third of the experts, all scores counted."""
    model = find_model("gpt-oss-120b")
    third = 36 * 4 * 2880 * 2880
    assert model.training_flops(4096) - 6 * third == pytest.approx(1e12 * 373 / 13722, rel=0.015)


def test_deepseek_v3_takes_the_flops_of_its_weights_and_scores() -> None:
    """Written out from arXiv 2412.19437, §4.2: MLA's up- and down-projections, 9 experts per token, two heads."""
    model, h, n = find_model("deepseek-v3"), 7168, 128
    mla = h * 1536 + 1536 * n * 192 + h * (512 + 64) + 512 * n * 256 + n * 128 * h
    moe = h * 256 + 9 * 3 * h * 2048
    weights = 62 * mla + 3 * 3 * h * 18432 + 59 * moe + 2 * h * 129280 + 2 * h * h
    assert model.training_flops(4096) == pytest.approx(6 * weights + 3 * 62 * 2 * 4096 * n * 320, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if model_shape_of(find_model(name))])
def test_profiled_shapes_are_the_same_models(name: str) -> None:
    """Parameters and FLOPs of a layer agree between the model and what `ppsim profile` builds of it."""
    layer, shape = find_model(name).layers[0], MODELS[name].layer
    assert layer_parameters(shape) == layer.parameters
    flops = layer_forward_flops(shape, micro_batch=1, sequence_length=512)
    assert flops == 512 * layer.forward_flops(512)


def test_models_that_profile_cannot_build_are_not_offered_as_others() -> None:
    for name in ("qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "deepseek-v3", "grok-1", "nemotron4-15b"):
        assert model_shape_of(find_model(name)) is None
        assert name not in MODELS


def test_sparse_attention_scores_the_chosen_keys_and_the_indexer_all() -> None:
    """V3.2 compared with V3: a query attends to 2,048 keys, and the indexer scores all."""
    sparse, dense = find_model("deepseek-v3.2"), find_model("deepseek-v3")
    indexer = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    assert sparse.parameters - dense.parameters == 61 * indexer
    s, k, n, layers = 8192, 2048, 128, 62  # with the layer for a further token
    chosen = k - k * (k - 1) / (2 * s)
    per_key, scored = 2 * n * (192 + 128), s * 64 * 128
    more = layers * 3 * (2 * (indexer - 2 * 128) + (chosen - s / 2) * per_key + scored)
    found = [model.training_flops(s, causal=True) for model in (sparse, dense)]
    assert found[0] - found[1] == pytest.approx(more, rel=1e-12)
    assert sparse.training_flops(2048, causal=True) > dense.training_flops(2048, causal=True)


def test_a_model_cut_or_stretched_keeps_its_first_layers() -> None:
    model = find_model("deepseek-v3")
    assert [layer.is_moe for layer in model.with_layers(5).layers] == [False] * 3 + [True] * 2
    assert len(model.with_layers(64).layers) == 64


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama3.1-70b", "llama3-70b"),
        ("llama3-70B", "llama3-70b"),
        ("meta-llama/Llama-3.1-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "qwen3-next-80b-a3b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("deepseek-ai/DeepSeek-V4-Flash-Base", "deepseek-v4-flash"),
        ("DeepSeek V4 Pro", "deepseek-v4-pro"),
        ("openai/GPT-OSS-120B", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("Kimi_K2", "kimi-k2"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2"),
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
        ("Nemotron-4-340B-Base", "nemotron4-340b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
        ("google/gemma-4-26B-A4B-it", "gemma4-26b-a4b"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "qwen3-omni-30b-a3b"),
        ("GPT-3 175B", "gpt3-175b"),
    ],
)
def test_names_are_found_as_people_write_them(written: str, name: str) -> None:
    assert find_model(written) is find_model(name)


IDS = {
    "deepseek-r1-distill-qwen-1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3-Base",
    "deepseek-v3.2": "deepseek-ai/DeepSeek-V3.2-Exp",
    "dit-xl-2": "facebook/DiT-XL-2-256",
    "ernie-4.5-0.3b": "baidu/ERNIE-4.5-0.3B-PT",
    "ernie-4.5-21b-a3b": "baidu/ERNIE-4.5-21B-A3B-Base-PT",
    "exaone-4.0-32b": "LGAI-EXAONE/EXAONE-4.0-32B",
    "falcon-h1-34b": "tiiuae/Falcon-H1-34B-Base",
    "flux.1-dev": "black-forest-labs/FLUX.1-dev",
    "gemma2-9b": "google/gemma-2-9b-it",
    "glm-4.5": "zai-org/GLM-4.7",
    "glm-4.5-air": "zai-org/GLM-4.5-Air-Base",
    "glm-4.7-flash": "zai-org/GLM-4.7-Flash",
    "glm-5": "zai-org/GLM-5.1",
    "gpt2": "openai-community/gpt2",
    "grok-2": "xai-org/grok-2",
    "hunyuan-a13b": "tencent/Hunyuan-A13B-Instruct",
    "hy3": "tencent/Hy3-preview",
    "kimi-k2": "moonshotai/Kimi-K2.5",
    "lfm2-8b-a1b": "LiquidAI/LFM2-8B-A1B",
    "ling-mini-2.0": "inclusionAI/Ling-mini-base-2.0",
    "llama-33b": "huggyllama/llama-30b",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama3-70b": "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF",
    "llama3-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "mamba2-2.7b": "state-spaces/mamba2-2.7b",
    "mimo-7b": "XiaomiMiMo/MiMo-7B-RL",
    "minimax-m2.5": "MiniMaxAI/MiniMax-M2",
    "ministral-3-8b": "mistralai/Ministral-3-8B-Reasoning-2512",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "moonlight-16b-a3b": "moonshotai/Moonlight-16B-A3B-Instruct",
    "nemotron-3-ultra-550b-a55b": "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "olmo-2-1b": "allenai/OLMo-2-0425-1B",
    "olmo-2-32b": "allenai/OLMo-2-0325-32B-Instruct",
    "olmo-3-32b": "allenai/Olmo-3-1125-32B",
    "olmo-3-7b": "allenai/Olmo-3-7B-Think",
    "olmoe-1b-7b": "allenai/OLMoE-1B-7B-0125",
    "phi-4": "microsoft/phi-4",
    "phi-4-mini": "microsoft/Phi-4-mini-instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "qwen3-coder-480b-a35b": "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
    "sarvam-105b": "sarvamai/sarvam-105b",
    "sd3-medium": "stabilityai/stable-diffusion-3-medium-diffusers",
    "seed-oss-36b": "ByteDance-Seed/Seed-OSS-36B-Instruct",
}


@pytest.mark.parametrize("name", IDS)
def test_an_id_of_hugging_face_is_found(name: str) -> None:
    assert find_model(IDS[name]) is find_model(name)


def test_no_two_names_are_the_same_without_dashes_and_ends() -> None:
    assert len({id(find_model(name.upper())) for name in NAMES}) == len(NAMES)


WRONG = {
    "name": (lambda: find_model("lama3-8b"), "unknown model 'lama3-8b': did you mean llama3-8b"),
    "name of an organisation": (
        lambda: find_model("Qwen/Qwen3-31B-A3B"),
        "unknown model 'Qwen/Qwen3-31B-A3B' (nearest: qwen3-30b-a3b, qwen3.5-35b-a3b, qwen3-vl-30b-a3b): give its "
        "config.json instead, from https://huggingface.co/Qwen/Qwen3-31B-A3B/raw/main/config.json or "
        "`hf download Qwen/Qwen3-31B-A3B config.json`",
    ),
    "choice without a latent": (
        lambda: LatentAttention(8, None, 64, 32, 32, 32, num_keys=8, indexer=Indexer(1, 8, 8)),
        "an indexer reads the latent of queries: q_lora_rank is missing",
    ),
    "cp of sparse attention": (
        lambda: find_model("glm-5").layers[0].attention.require_division(ParallelSizes(cp=2)),
        "context parallelism is not known with sparse latent attention: got cp 2",
    ),
    "window": (lambda: Attention(1, 1, 8, window=0), "window must be at least 1: got 0"),
    "latent of experts": (
        lambda: MixtureOfExperts(FeedForward(8), 4, 1, latent_size=0),
        "latent_size must be at least 1: got 0",
    ),
    "no heads": (lambda: Attention(0, 1, 64), "num_heads must be at least 1: got 0"),
    "groups": (lambda: Attention(6, 4, 64), "multiple of the key/value heads: got 6 and 4"),
    "latent": (lambda: LatentAttention(8, 0, 64, 32, 32, 32), "q_lora_rank must be at least 1, or null: got 0"),
    "experts": (lambda: MixtureOfExperts(FeedForward(8), 4, 5), "got 5 of 4"),
    "no layers": (lambda: Model((), 100, 100), "num_layers must be at least 1: got 0"),
    "cut": (lambda: find_model("gpt2").with_layers(0), "num_layers must be at least 1: got 0"),
    "length": (lambda: find_model("gpt2").training_flops(0), "sequence_length must be at least 1: got 0"),
    "vocabulary": (lambda: Model((Layer(8, Attention(1, 1, 8), FeedForward(8)),), 0, 8), "vocab_size must be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_said_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        make()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("trained", "has_backward"), [("encoder", True), ("projector", True), ("embedding", True), ("head", False)]
)
def test_frozen_layers_pass_gradients_to_what_is_trained_before_them(trained: str, has_backward: bool) -> None:
    frozen = {"embedding", "head", "norms", "layers", "encoder", "projector"} - {trained}
    model = find_model("qwen3-vl-8b").with_fine_tuning(fine_tuning_of("", "+".join(sorted(frozen))))
    assert {layer.has_backward for layer in model.layers} == {has_backward}


def test_the_rule_of_thumb_is_six_flops_per_parameter_that_a_token_uses() -> None:
    """Six of Mixtral's eight experts, of 3 × 4096 × 14336 parameters in 32 layers, are unused."""
    model = find_model("mixtral-8x7b")
    assert model.rule_of_thumb_flops() == 6 * (model.parameters - 32 * 6 * 3 * 4096 * 14336)


def test_what_is_left_out_in_model_architecture_has_these_values() -> None:
    assert number_defaults(architecture_module) == {
        "Layer": {"num_norms": 2, "streams": 1, "in_16_bits": False},
        "Layer.forward_flops": {"causal": False},
        "Layer.left_out_flops": {"causal": False},
        "Model": {"tied_embeddings": False, "learned_positions": 0, "final_norm": True, "repeats_mtp": False},
        "Model.outside_weights": {"tp": 1},
        "Model.outside_parameters": {"tp": 1},
        "Model.training_flops": {"causal": False},
        "mtp_linears": {"tp": 1},
    }  # fmt: skip


GROUPED = Attention(12, 6, 10)
LATENTS = LatentAttention(6, 18, 22, 10, 4, 7)
EXPERTS = MixtureOfExperts(FeedForward(26), 8, 3)
REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (GROUPED, {"num_heads": 6}, {"num_heads": 0}),
    (GROUPED, {"num_kv_heads": 1}, {"num_kv_heads": 0}),
    (GROUPED, {"num_kv_heads": 12}, {"num_kv_heads": 5}),
    (GROUPED, {"head_size": 1}, {"head_size": 0}),
    (GROUPED, {"window": 1}, {"window": 0}),
    (GROUPED, {"value_size": 1}, {"value_size": 0}),
    (LATENTS, {"num_heads": 1}, {"num_heads": 0}),
    (LATENTS, {"kv_lora_rank": 1}, {"kv_lora_rank": 0}),
    (LATENTS, {"qk_nope_head_size": 1}, {"qk_nope_head_size": 0}),
    (LATENTS, {"qk_rope_head_size": 1}, {"qk_rope_head_size": 0}),
    (LATENTS, {"v_head_size": 1}, {"v_head_size": 0}),
    (LATENTS, {"num_keys": 1}, {"num_keys": 0}),
    (LATENTS, {"q_lora_rank": 1}, {"q_lora_rank": 0}),
    (LATENTS, {"indexer": Indexer(4, 8, 24)}, {"indexer": Indexer(4, 8, 24), "q_lora_rank": None}),
    (Indexer(4, 8, 24), {"num_heads": 1, "head_size": 1, "num_keys": 1, "block": 1}, {"num_heads": 0}),
    (Indexer(4, 8, 24), {}, {"head_size": 0}),
    (Indexer(4, 8, 24), {}, {"num_keys": 0}),
    (Indexer(4, 8, 24), {}, {"block": 0}),
    (FeedForward(26), {"size": 1}, {"size": 0}),
    (EXPERTS, {"latent_size": 1}, {"latent_size": 0}),
    (EXPERTS, {"num_experts": 10_000}, {"num_experts": 10_001}),
    (EXPERTS, {"experts_per_token": 1}, {"experts_per_token": 0}),
    (EXPERTS, {"experts_per_token": 8}, {"experts_per_token": 9}),
    (Model((Layer(36, GROUPED, FeedForward(46)),), 70, 50), {"vocab_size": 1}, {"vocab_size": 0}),
    (Model((Layer(36, GROUPED, FeedForward(46)),), 70, 50), {"sequence_length": 1}, {"sequence_length": 0}),
    (Model((Layer(36, GROUPED, FeedForward(46)),), 70, 50), {}, {"layers": ()}),
]


@pytest.mark.parametrize(("part", "allowed", "refused"), REFUSED, ids=str)
def test_sizes_below_their_least_are_refused(part: Any, allowed: dict[str, Any], refused: dict[str, Any]) -> None:
    replace(part, **allowed)
    with pytest.raises(ConfigError):
        replace(part, **refused)


@pytest.mark.parametrize(
    ("mixer", "allowed", "refused"),
    [
        (GROUPED, {"tp": 12}, {"tp": 5}),
        (replace(GROUPED, num_heads=24), {"tp": 12}, {"tp": 8}),
        (replace(GROUPED, indexer=Indexer(4, 8, 24, block=4)), {"cp": 1}, {"cp": 2}),
        (GROUPED, {"cp": 2}, {"tp": 7}),
        (replace(LATENTS, num_keys=40), {"tp": 6}, {"cp": 2}),
        (LATENTS, {"cp": 2}, {"tp": 4}),
    ],
    ids=str,
)
def test_ranks_that_cannot_divide_a_mixer_are_refused(
    mixer: Any, allowed: dict[str, int], refused: dict[str, int]
) -> None:
    mixer.require_division(ParallelSizes(**allowed))
    with pytest.raises(ConfigError):
        mixer.require_division(ParallelSizes(**refused))


def in_window(window: int, length: int) -> float:
    return sum(min(query, window) for query in range(1, length + 1)) / length


def test_queries_see_the_keys_of_their_window_chunk_or_choice() -> None:
    """And FLOPs per token: 2 per key and column of queries and values, twice if masked scores count."""
    for mixer, keys, width in (
        (GROUPED, 25, 12 * 20),
        (replace(GROUPED, value_size=14), 25, 12 * 24),
        (replace(GROUPED, window=50), 25, 12 * 20),
        (replace(GROUPED, window=8), in_window(8, 50), 12 * 20),
        (replace(GROUPED, window=8, is_chunked=True), 4, 12 * 20),
        (LATENTS, 25, 6 * 21),
        (replace(LATENTS, num_keys=50), 25, 6 * 21),
        (replace(LATENTS, num_keys=8), in_window(8, 50), 6 * 21),
    ):
        assert mixer.keys_per_query(50) == pytest.approx(keys)
        assert mixer.core_flops(50, causal=True) == pytest.approx(2 * keys * width)
        assert mixer.core_flops(50, causal=False) == pytest.approx(4 * keys * width)
    images = replace(GROUPED, is_causal=False, window=8)
    assert (images.keys_per_query(50), replace(images, window=None).keys_per_query(50)) == (8, 50)
    assert images.core_flops(50, causal=False) == images.core_flops(50, causal=True) == 2 * 8 * 240
    assert (GROUPED.unmasked_keys(50), GROUPED.inner_size, GROUPED.divided) == (50, 120, {"heads": 12})


def test_an_indexer_scores_all_keys_and_chooses_some() -> None:
    """Blocks of 4: a query at position t sees 5 blocks before its own and its part of this one."""
    plain, blocks = Indexer(4, 8, 24), Indexer(3, 8, 24, block=4)
    assert (plain.columns, plain.indices, blocks.columns, blocks.indices) == (32, 24, 24, 3 * 24 / 4)
    assert [one.keys_per_query(24) for one in (plain, blocks)] == [12, 12]
    assert plain.keys_per_query(48) == pytest.approx(in_window(24, 48))
    seen = [t + 1 if t < 24 else 5 * 4 + t % 4 + 1 for t in range(48)]
    assert blocks.keys_per_query(48) == pytest.approx(sum(seen) / 48)
    for mixer, width in ((GROUPED, 240), (LATENTS, 126)):
        chosen = replace(mixer, indexer=plain)
        keys = plain.keys_per_query(48) if mixer is GROUPED else 24
        for causal, times in ((True, 1), (False, 2)):
            assert chosen.core_flops(48, causal=causal) == pytest.approx(times * (2 * keys * width + 32 * 48))
    assert replace(GROUPED, indexer=plain).keys_per_query(48) == plain.keys_per_query(48)
    assert mixer.choice_flops(48, causal=False) == 0


def test_norms_of_mixers_have_a_weight_per_column_of_their_heads_or_latents() -> None:
    assert [
        one.norm_parameters
        for one in (
            GROUPED, replace(GROUPED, qk_norm=True), replace(GROUPED, qk_norm=True, joint_norm=True),
            replace(GROUPED, indexer=Indexer(4, 9, 24)), LATENTS, replace(LATENTS, q_lora_rank=None),
            replace(LATENTS, indexer=Indexer(4, 9, 24)),
        )
    ] == [0, 2 * 10, 18 * 10, 2 * 9, 40, 22, 40 + 18]  # fmt: skip
    assert [replace(GROUPED, num_heads=24).kv_heads_per_rank(tp) for tp in (1, 2, 6, 12)] == [6, 3, 1, 1]
    assert NoAttention().kv_heads_per_rank(2) == 0
    assert NoAttention().linears(36, 1) == NoFeedForward().linears(36, 1) == []


def matrices(linears: Sequence[WeightMatrix]) -> list[str]:
    return [
        f"{one.name} <- {one.reads} {one.inputs}·{one.columns} {one.kind} {one.split} {one.count} {one.biased}"
        for one in linears
    ]


def test_a_rank_has_these_matrices_of_experts_and_mixers() -> None:
    wide = MixtureOfExperts(
        FeedForward(26, bias=True), 8, 3, shared_size=34, router_bias=True, shared_gate=True, latent_size=16,
        latent_norm=True,
    )  # fmt: skip
    assert matrices(wide.linears(38, ParallelSizes(tp=2, dp=4, ep=4, etp=2))) == [
        "router <- feed-forward input 38·(8,) router None 1 True",
        "latent down <- feed-forward input 38·(16,) latent None 1 False",
        "up <- routed tokens 16·(13, 13) routed outputs 2 True",
        "down <- routed activation 13·(16,) routed inputs 2 True",
        "norm of combined <- experts' output 1·(16,) vector None 1 False",
        "latent up <- experts' output 16·(38,) latent None 1 False",
        "up <- feed-forward input 38·(17, 17) shared outputs 1 True",
        "down <- shared activation 17·(38,) shared inputs 1 True",
        "shared gate <- feed-forward input 38·(1,) gate None 1 False",
    ]
    assert matrices(FeedForward(26, gated=False).linears(38, 2)) == [
        "up <- feed-forward input 38·(13,) dense outputs 1 False", "down <- dense activation 13·(38,) dense inputs 1 False",
    ]  # fmt: skip
    every = replace(
        GROUPED, gated=True, sinks=True, qkv_bias=True, out_bias=True, indexer=Indexer(4, 8, 24, block=3)
    )
    assert matrices(every.linears(36, 2)) == [
        "queries, keys, values <- attention input 36·(60, 60, 30, 30) dense outputs 1 True",
        "sinks <- scores 1·(6,) vector outputs 1 False",
        "indexer's queries up <- attention input 36·(32,) dense None 1 False",
        "indexer's keys <- attention input 36·(8,) dense None 1 False",
        "attention output <- heads 60·(36,) dense inputs 1 True",
    ]
    latent = replace(LATENTS, gated=True, num_keys=24, indexer=Indexer(4, 8, 24))
    assert matrices(latent.linears(38, 2)) == [
        "queries down <- attention input 38·(18,) dense None 1 False",
        "queries up <- latent of queries 18·(42,) dense outputs 1 False",
        "keys and values down <- attention input 38·(22, 4) dense None 1 False",
        "keys and values up <- latent 22·(30, 21) dense outputs 1 False",
        "output gate <- attention input 38·(21,) dense outputs 1 False",
        "indexer's queries up <- latent of queries 18·(32,) dense None 1 False",
        "indexer's keys <- attention input 38·(8,) dense None 1 False",
        "indexer's weights <- attention input 38·(4,) dense None 1 False",
        "attention output <- heads 21·(38,) dense inputs 1 False",
    ]
    assert matrices(replace(LATENTS, q_lora_rank=None).linears(38, 1))[0] == (
        "queries up <- attention input 38·(84,) dense outputs 1 False"
    )


LAYER = Layer(36, GROUPED, FeedForward(46))
WEIGHTS = 36 * 240 + 120 * 36 + 3 * 36 * 46
SPARSE = Layer(36, GROUPED, MixtureOfExperts(FeedForward(26), 8, 3, shared_size=34, shared_gate=True))
OF_ATTENTION, EXPERT = 36 * 240 + 120 * 36, 3 * 36 * 26
OUTSIDE = 36 * 8 + 3 * 36 * 34 + 36
"""Router, shared expert and its gate."""


def test_a_layer_counts_its_parameters_and_flops() -> None:
    """FLOPs: 2 per weight that a token meets, and the scores of 25 keys in 240 columns."""
    assert (LAYER.parameters, LAYER.active_parameters) == (WEIGHTS + 72, WEIGHTS + 72)
    assert LAYER.forward_flops(50, causal=True) == 2 * WEIGHTS + 2 * 25 * 240
    assert LAYER.forward_flops(50) == 2 * WEIGHTS + 4 * 25 * 240
    assert (LAYER.expert_width, LAYER.experts_per_token, LAYER.num_sublayers, LAYER.residual_size) == (36, 0, 2, 36)
    assert (SPARSE.parameters, SPARSE.expert_parameters) == (OF_ATTENTION + OUTSIDE + 8 * EXPERT + 72, 8 * EXPERT)
    assert SPARSE.active_parameters == OF_ATTENTION + OUTSIDE + 3 * EXPERT + 72
    assert SPARSE.weights_per_token == OF_ATTENTION + OUTSIDE + 3 * EXPERT
    latent = replace(SPARSE, ffn=replace(SPARSE.ffn, latent_size=16))
    assert (latent.expert_width, SPARSE.expert_width, SPARSE.experts_per_token) == (16, 36, 3)
    assert replace(LAYER, streams=3).residual_size == 108
    assert replace(LAYER, summed_residuals=(2, 5)).residual_size == 180
    # Per mixer and three streams: 108 · 15 weights with 15 biases, and three scales.
    assert replace(LAYER, streams=3).parameters == LAYER.parameters + 2 * (108 * 15 + 15 + 3)
    assert replace(LAYER, streams=3).forward_flops(50) == LAYER.forward_flops(50) + 2 * 2 * 108 * 15
    assert replace(LAYER, summed_residuals=(1, 2)).parameters == LAYER.parameters + 2 * 72
    assert [norm_parameters(norm, 36) for norm in ("layernorm", "rmsnorm", "plain")] == [72, 36, 0]
    text = replace(LAYER, attention=replace(GROUPED, qk_norm=True), conditioned=Conditioning(6, 0.25))
    assert (text.norm_parameters, replace(text, conditioned=Conditioning(6)).norm_parameters) == (72 + 40, 72 + 20)
    mixer_only = replace(LAYER, ffn=NoFeedForward())
    assert (mixer_only.num_sublayers, replace(LAYER, attention=NoAttention()).num_sublayers) == (1, 1)
    assert (mixer_only.has_feed_forward, mixer_only.has_mixer, mixer_only.is_moe, SPARSE.is_moe) == (
        False,
        True,
        False,
        True,
    )


def test_frozen_weights_save_gradients_of_weights_or_the_backward() -> None:
    model = Model((LAYER, LAYER), 70, 50)
    frozen = model.with_fine_tuning(fine_tuning_of("", "embedding+layers@0+mlp"))
    first, second = frozen.layers
    assert (first.has_backward, second.has_backward, second.has_trained_weights, first.has_trained_weights) == (
        False, True, True, False,
    )  # fmt: skip
    assert first.left_out_flops(50) == 2 * first.forward_flops(50)
    assert first.left_out_flops(50, causal=True) == 2 * first.forward_flops(50, causal=True)
    assert second.frozen_weights_per_token == 3 * 36 * 46
    assert second.left_out_flops(50) == 2 * 3 * 36 * 46
    assert LAYER.left_out_flops(50) == 0
    assert frozen.training_flops() == model.training_flops() - 2 * first.forward_flops(50) - 2 * 3 * 36 * 46
    head = model.with_fine_tuning(fine_tuning_of("", "head"))
    assert head.training_flops() == model.training_flops() - 2 * 36 * 70
    only_head = model.with_fine_tuning(fine_tuning_of("", "embedding+layers+norms"))
    assert not only_head.head_gives_gradient
    saved = 2 * 2 * LAYER.forward_flops(50) + 2 * 36 * 70
    assert only_head.training_flops() == model.training_flops() - saved
    norms = model.with_fine_tuning(fine_tuning_of("", "norms"))
    assert (norms.layers[0].trains_norms, LAYER.trains_norms, norms.head_gives_gradient) == (False, True, True)


def outside(model: Model, end: End) -> dict[str, int]:
    return {one.name: one.weights + one.biases for one in model.outside_weights(end)}


def test_a_model_counts_what_is_outside_its_layers() -> None:
    model = Model((LAYER, LAYER), 70, 50, learned_positions=51, projected_size=20, mtp=(LAYER,), extra=(5, 7, 11))
    assert outside(model, "embedding") == {"projection": 20 * 36 + 5, "positions": 51 * 36}
    assert outside(model, "head") == {"final norm": 36, "others": 20 * 36 + 7}
    assert outside(model, "mtp") == {"projection of two tokens": 72 * 36, "norms and joining": 3 * 36}
    assert outside(model, "conditions") == {}
    assert (model.table(10), model.embedding_parameters) == (200, 70 * 20 + 20 * 36 + 5 + 51 * 36)
    assert model.head_parameters == 70 * 20 + 36 + 20 * 36 + 7
    layers = 2 * LAYER.parameters
    assert model.parameters == model.embedding_parameters + layers + model.head_parameters
    assert replace(model, tied_embeddings=True).parameters == model.parameters - 70 * 20
    assert model.mtp_parameters == LAYER.parameters + 72 * 36 + 3 * 36
    twice = replace(model, mtp=(LAYER, replace(LAYER, norm="layernorm")))
    assert replace(twice, repeats_mtp=True).mtp_parameters == model.mtp_parameters
    assert twice.mtp_parameters == 2 * model.mtp_parameters + 72
    assert model.head_forward_flops() == 2 * 11 + 2 * 20 * (36 + 70)
    assert replace(model, projected_size=None).head_forward_flops() == 2 * 11 + 2 * 36 * 70
    forward = 3 * LAYER.forward_flops(50) + 2 * model.head_forward_flops() + 2 * 72 * 36
    assert model.training_flops() == 3 * forward
    assert model.training_flops(40, causal=True) == 3 * (
        3 * LAYER.forward_flops(40, causal=True) + 2 * model.head_forward_flops() + 2 * 72 * 36
    )
    assert model.rule_of_thumb_flops() == 6 * model.active_parameters == 6 * model.parameters
    sparse = Model((LAYER, SPARSE), 70, 50)
    assert sparse.active_parameters == sparse.parameters - 5 * EXPERT
    streams = Model((replace(LAYER, streams=3),), 70, 50, mtp=(replace(LAYER, streams=3),), final_norm=False)
    joining = 3 * (3 * 36 + 1) + 1
    assert outside(streams, "head") == {"final norm": 0, "others": joining}
    assert outside(streams, "mtp") == {
        "projection of the token": 36 * 36, "projection of streams": 36 * 36, "norms and joining": 3 * 36 + joining,
    }  # fmt: skip
    mtp = 2 * (36 * 36 + 3 * 36 * 36)
    assert streams.training_flops() == 3 * (2 * streams.layers[0].forward_flops(50) + 2 * 2 * 36 * 70 + mtp)
    assert (streams.residual_size, streams.streams) == (108, 3)
    sums = Model((LAYER, replace(LAYER, summed_residuals=(2, 3))), 70, 50)
    assert outside(sums, "head") == {"final norm": 36, "others": 72}
    layer_norms = Model((replace(LAYER, norm="layernorm"),), 70, 50)
    assert outside(layer_norms, "head") == {"final norm": 72, "others": 0}
    images = Model((LAYER,), 70, 50, patches=Patches(((5, 1.0),), (11, 13), 17, classes=19))
    assert outside(images, "embedding") == {"embedding 1": 5 * 36 + 36, "positions": 0}
    assert outside(images, "conditions") == {
        "embedder 0": (12 + 19) * 36, "embedder 1": 37 * 36, "embedder 2": 14 * 36, "embedder 3": 37 * 36,
    }  # fmt: skip
    assert outside(images, "head") == {"output": 2 * 36 * 37 + 37 * 17}
    assert (images.table(10), images.embedding_parameters) == (
        0,
        6 * 36 + sum(outside(images, "conditions").values()),
    )


def test_layers_are_added_removed_and_given_16_bits() -> None:
    other = replace(LAYER, norm="layernorm")
    model = Model((LAYER, LAYER, other), 70, 50, mtp=(LAYER,))
    assert [model.with_layers(number).layers for number in (1, 3, 5)] == [
        (LAYER,), (LAYER, LAYER, other), (LAYER, LAYER, other, other, other),
    ]  # fmt: skip
    with pytest.raises(ConfigError):
        model.with_layers(0)
    for at_start, at_end, wide in ((1, 0, [1, 0, 0]), (0, 2, [0, 1, 1]), (2, 2, [1, 1, 1])):
        found = model.with_layers_in_16_bits(at_start, at_end)
        assert [layer.in_16_bits for layer in found.layers] == [bool(one) for one in wide]
    assert model.with_layers_in_16_bits(0, 0) is model
    assert model.kinds == (LAYER, other)
    assert model.without_encoders() is model
    assert (model.has_experts, Model((LAYER, SPARSE), 70, 50).has_experts, model.norm) == (False, True, "rmsnorm")
    biased = replace(SPARSE, ffn=replace(SPARSE.ffn, expert=FeedForward(26, bias=True)))
    assert [Model((LAYER, one), 70, 50).has_biased_experts for one in (SPARSE, biased)] == [False, True]
