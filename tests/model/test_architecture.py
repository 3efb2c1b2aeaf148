"""Parameters of models come out as published, to the last one where the publication has them all."""

from pathlib import Path

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import architecture as architecture_module
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.attention_base import Indexer
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.registry import NAMES, find_model
from ppsim.model.shapes import layer_forward_flops, layer_parameters, model_shape_of
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
