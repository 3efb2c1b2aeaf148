"""Every matrix of a layer, in numbers: parameters, FLOPs, what W reads, products, as they were before one list had them."""

import pytest

from ppsim.model import weight_matrices as weight_matrices_module
from ppsim.model.activations import weight_gradient_bytes
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import Stage
from ppsim.model.registry import find_model
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults

LAYERS = {
    name: find_model(name).layers[-1]
    for name in ("gpt3-13b", "llama3-8b", "qwen2.5-7b", "qwen3-32b", "mixtral-8x7b", "deepseek-v3")
} | {
    "qwen2-moe": Layer(
        2048,
        Attention(16, 16, 128, qkv_bias=True),
        MixtureOfExperts(FeedForward(1408), 60, 4, shared_size=5632, shared_gate=True),
    ),
    "deepseek-v2-lite": Layer(
        2048,
        LatentAttention(16, None, 512, 128, 64, 128),
        MixtureOfExperts(FeedForward(1408), 64, 6, shared_size=2816),
    ),
}

WHOLE = {  # parameters, those that a token takes, those of experts; FLOPs of a token at 4096, and causal
    "gpt3-13b": (314_639_360, 314_639_360, 0, 713_031_680, 671_088_640),
    "llama3-8b": (218_112_000, 218_112_000, 0, 503_316_480, 469_762_048),
    "qwen2.5-7b": (233_057_792, 233_057_792, 0, 524_812_288, 495_452_160),
    "qwen3-32b": (487_598_336, 487_598_336, 0, 1_109_393_408, 1_042_284_544),
    "mixtral-8x7b": (1_451_270_144, 394_305_536, 1_409_286_144, 855_703_552, 822_149_120),
    "qwen2-moe": (570_560_512, 86_118_400, 519_045_120, 205_770_752, 188_993_536),
    "deepseek-v2-lite": (584_847_872, 83_104_256, 553_648_128, 208_142_336, 187_170_816),
    "deepseek-v3": (11_507_286_272, 585_318_656, 11_274_289_152, 1_506_148_352, 1_338_376_192),
}

CUTS = {
    "whole": ParallelSizes(),
    "tp4": ParallelSizes(tp=4),
    "tp4-no-sp": ParallelSizes(tp=4, sequence_parallel=False),
    "tp16": ParallelSizes(tp=16),
    "tp2-cp2-ep4": ParallelSizes(tp=2, cp=2, dp=4, ep=4),
    "tp4-ep4-etp1": ParallelSizes(tp=4, dp=8, ep=4, etp=1),
    "tp4-ep4-etp2": ParallelSizes(tp=4, dp=8, ep=4, etp=2),
}

ON_A_RANK = {  # dense parameters, experts', those in dense matrices; bytes that W reads of 2 × 4096 tokens
    ("gpt3-13b", "whole"): (314_639_360, 0, 314_572_800, 1_342_177_280),
    ("gpt3-13b", "tp4"): (78_682_880, 0, 78_643_200, 335_544_320),
    ("gpt3-13b", "tp4-no-sp"): (78_682_880, 0, 78_643_200, 587_202_560),
    ("llama3-8b", "whole"): (218_112_000, 0, 218_103_808, 1_140_850_688),
    ("llama3-8b", "tp4"): (54_534_144, 0, 54_525_952, 285_212_672),
    ("llama3-8b", "tp4-no-sp"): (54_534_144, 0, 54_525_952, 486_539_264),
    ("llama3-8b", "tp16"): (14_163_968, 0, 14_155_776, 73_400_320),
    ("qwen2.5-7b", "whole"): (233_057_792, 0, 233_046_016, 1_300_234_240),
    ("qwen2.5-7b", "tp4"): (58_269_824, 0, 58_261_504, 325_058_560),
    ("qwen2.5-7b", "tp4-no-sp"): (58_269_824, 0, 58_261_504, 501_219_328),
    ("qwen3-32b", "whole"): (487_598_336, 0, 487_587_840, 1_895_825_408),
    ("qwen3-32b", "tp4"): (121_907_456, 0, 121_896_960, 473_956_352),
    ("qwen3-32b", "tp4-no-sp"): (121_907_456, 0, 121_896_960, 725_614_592),
    ("mixtral-8x7b", "whole"): (41_984_000, 1_409_286_144, 41_943_040, 2_046_951_424),
    ("mixtral-8x7b", "tp4"): (10_526_720, 352_321_536, 10_485_760, 713_064_448),
    ("mixtral-8x7b", "tp4-no-sp"): (10_526_720, 352_321_536, 10_485_760, 2_726_428_672),
    ("mixtral-8x7b", "tp2-cp2-ep4"): (21_012_480, 176_160_768, 20_971_520, 578_846_720),
    ("mixtral-8x7b", "tp4-ep4-etp1"): (10_526_720, 352_321_536, 10_485_760, 511_737_856),
    ("mixtral-8x7b", "tp4-ep4-etp2"): (10_526_720, 176_160_768, 10_485_760, 578_846_720),
    ("qwen2-moe", "whole"): (51_515_392, 519_045_120, 51_380_224, 1_091_502_080),
    ("qwen2-moe", "tp4"): (12_975_616, 129_761_280, 12_845_056, 474_202_112),
    ("qwen2-moe", "tp4-no-sp"): (12_975_616, 129_761_280, 12_845_056, 1_588_527_104),
    ("qwen2-moe", "tp2-cp2-ep4"): (25_822_208, 64_880_640, 25_690_112, 339_984_384),
    ("qwen2-moe", "tp4-ep4-etp1"): (12_975_616, 129_761_280, 12_845_056, 272_875_520),
    ("qwen2-moe", "tp4-ep4-etp2"): (12_975_616, 64_880_640, 12_845_056, 339_984_384),
    ("deepseek-v2-lite", "whole"): (31_199_744, 553_648_128, 31_064_064, 1_260_388_352),
    ("deepseek-v2-lite", "tp4"): (8_786_432, 138_412_032, 8_650_752, 617_086_976),
    ("deepseek-v2-lite", "tp4-no-sp"): (8_786_432, 138_412_032, 8_650_752, 2_251_292_672),
    ("deepseek-v2-lite", "tp2-cp2-ep4"): (16_257_536, 69_206_016, 16_121_856, 415_760_384),
    ("deepseek-v2-lite", "tp4-ep4-etp1"): (8_786_432, 138_412_032, 8_650_752, 315_097_088),
    ("deepseek-v2-lite", "tp4-ep4-etp2"): (8_786_432, 69_206_016, 8_650_752, 415_760_384),
    ("deepseek-v3", "whole"): (232_997_120, 11_274_289_152, 231_145_472, 4_535_091_200),
    ("deepseek-v3", "tp4"): (70_992_128, 2_818_572_288, 69_140_480, 2_543_058_944),
    ("deepseek-v3", "tp4-no-sp"): (70_992_128, 2_818_572_288, 69_140_480, 9_190_768_640),
    ("deepseek-v3", "tp2-cp2-ep4"): (124_993_792, 1_409_286_144, 123_142_144, 1_603_534_848),
    ("deepseek-v3", "tp4-ep4-etp1"): (70_992_128, 2_818_572_288, 69_140_480, 1_133_772_800),
    ("deepseek-v3", "tp4-ep4-etp2"): (70_992_128, 1_409_286_144, 69_140_480, 1_603_534_848),
}

PRODUCTS = {  # tp, ep: (columns, depth) over all tokens; over those of each expert; experts
    ("gpt3-13b", 1, 1): (((15360, 5120), (5120, 5120), (20480, 5120), (5120, 20480)), (), 0),
    ("gpt3-13b", 4, 1): (((3840, 5120), (5120, 1280), (5120, 5120), (5120, 5120)), (), 0),
    ("llama3-8b", 1, 1): (((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)), (), 0),
    ("llama3-8b", 4, 1): (((1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584)), (), 0),
    ("qwen2.5-7b", 1, 1): (((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)), (), 0),
    ("qwen2.5-7b", 4, 1): (((1152, 3584), (3584, 896), (9472, 3584), (3584, 4736)), (), 0),
    ("qwen3-32b", 1, 1): (((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)), (), 0),
    ("qwen3-32b", 4, 1): (((2560, 5120), (5120, 2048), (12800, 5120), (5120, 6400)), (), 0),
    ("mixtral-8x7b", 1, 1): (((6144, 4096), (4096, 4096), (8, 4096)), ((28672, 4096), (4096, 14336)), 8),
    ("mixtral-8x7b", 4, 1): (((1536, 4096), (4096, 1024), (8, 4096)), ((7168, 4096), (4096, 3584)), 8),
    ("mixtral-8x7b", 2, 4): (((3072, 4096), (4096, 2048), (8, 4096)), ((14336, 4096), (4096, 7168)), 2),
    ("qwen2-moe", 1, 1): (((6144, 2048), (2048, 2048), (60, 2048), (11264, 2048), (2048, 5632)), ((2816, 2048), (2048, 1408)), 60),
    ("qwen2-moe", 4, 1): (((1536, 2048), (2048, 512), (60, 2048), (2816, 2048), (2048, 1408)), ((704, 2048), (2048, 352)), 60),
    ("qwen2-moe", 2, 4): (((3072, 2048), (2048, 1024), (60, 2048), (5632, 2048), (2048, 2816)), ((1408, 2048), (2048, 704)), 15),
    ("deepseek-v2-lite", 1, 1): (((3072, 2048), (576, 2048), (4096, 512), (2048, 2048), (64, 2048), (5632, 2048), (2048, 2816)), ((2816, 2048), (2048, 1408)), 64),
    ("deepseek-v2-lite", 4, 1): (((768, 2048), (576, 2048), (1024, 512), (2048, 512), (64, 2048), (1408, 2048), (2048, 704)), ((704, 2048), (2048, 352)), 64),
    ("deepseek-v2-lite", 2, 4): (((1536, 2048), (576, 2048), (2048, 512), (2048, 1024), (64, 2048), (2816, 2048), (2048, 1408)), ((1408, 2048), (2048, 704)), 16),
    ("deepseek-v3", 1, 1): (((1536, 7168), (24576, 1536), (576, 7168), (32768, 512), (7168, 16384), (256, 7168), (4096, 7168), (7168, 2048)), ((4096, 7168), (7168, 2048)), 256),
    ("deepseek-v3", 4, 1): (((1536, 7168), (6144, 1536), (576, 7168), (8192, 512), (7168, 4096), (256, 7168), (1024, 7168), (7168, 512)), ((1024, 7168), (7168, 512)), 256),
    ("deepseek-v3", 2, 4): (((1536, 7168), (12288, 1536), (576, 7168), (16384, 512), (7168, 8192), (256, 7168), (2048, 7168), (7168, 1024)), ((2048, 7168), (7168, 1024)), 64),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_layer_has_these_parameters_and_flops(name):
    layer = LAYERS[name]
    flops = layer.forward_flops(4096), layer.forward_flops(4096, causal=True)
    assert (layer.parameters, layer.active_parameters, layer.expert_parameters, *flops) == WHOLE[name]


@pytest.mark.parametrize(("name", "cut"), ON_A_RANK)
def test_a_rank_holds_these_parameters_and_w_reads_these_bytes(name, cut):
    layer = LAYERS[name]
    held = held_parameters(Model((layer,), 1, 1), [Stage((layer,))], CUTS[cut])
    kept = weight_gradient_bytes(layer, MemorySettings(2, 4096, CUTS[cut]))
    assert (held.dense, held.expert, held.matrices, kept) == ON_A_RANK[name, cut]


@pytest.mark.parametrize(("name", "tp", "ep"), PRODUCTS)
def test_a_rank_computes_these_products(name, tp, ep):
    linears = LAYERS[name].linears(ParallelSizes(tp=tp, dp=ep, ep=ep))
    dense = tuple((one.outputs, one.inputs) for one in linears if one.is_product and one.kind != "routed")
    routed = tuple((one.outputs, one.inputs) for one in linears if one.kind == "routed")
    counts = {one.count for one in linears if one.kind == "routed"} or {0}
    assert (dense, routed, *counts) == PRODUCTS[name, tp, ep]


def test_gpt_oss_has_biases_of_router_and_experts_a_sink_a_head_and_a_window_in_every_other_layer() -> None:
    """The tensors of its checkpoint (openai/gpt-oss-120b), on one of two ranks with 16 of the 128 experts."""
    model = find_model("gpt-oss-120b")
    found = model.layers[0].linears(ParallelSizes(tp=2, dp=8, ep=8, etp=1))
    assert {one.name: (one.inputs, one.outputs, one.biases) for one in found} == {
        "queries, keys, values": (2880, (32 + 2 * 4) * 64, (32 + 2 * 4) * 64),
        "sinks": (1, 32, 0),
        "attention output": (32 * 64, 2880, 2880),
        "router": (2880, 128, 128),
        "up": (2880, 2 * 2880, 16 * 2 * 2880),
        "down": (2880, 2880, 16 * 2880),
    }
    assert [layer.attention.window for layer in model.layers] == [128, None] * 18
    weights = 2880 * (64 + 16) * 64 + 64 * 64 * 2880 + 2880 * 128 + 4 * 3 * 2880**2
    for layer, keys in zip(model.layers, (128 - 128 * 127 / 8192, 2048), strict=False):
        assert layer.forward_flops(4096, causal=True) == 2 * weights + 2 * keys * 2 * 64 * 64


def in_words(matrix: WeightMatrix) -> str:
    """Return all fields of a matrix that is whole on a rank."""
    sizes = f"{matrix.inputs} -> {' + '.join(map(str, matrix.columns))}"
    more = (
        matrix.kind if matrix.kind != "dense" else "", f"{matrix.count} x" if matrix.count > 1 else "",
        f"by {matrix.split}" if matrix.split else "", "bias" if matrix.biased else "",
        f"{matrix.groups} groups" if matrix.groups > 1 else "",
    )  # fmt: skip
    return ", ".join([f"{matrix.name} of {matrix.reads}: {sizes}", *filter(None, more)])


MATRICES = {
    ("gpt2", 0): [
        "queries, keys, values of attention input: 768 -> 768 + 768 + 768, by outputs, bias",
        "attention output of heads: 768 -> 768, by inputs, bias",
        "up of feed-forward input: 768 -> 3072, by outputs, bias",
        "down of dense activation: 3072 -> 768, by inputs, bias",
    ],
    ("deepseek-v3.2", -1): [
        "queries down of attention input: 7168 -> 1536",
        "queries up of latent of queries: 1536 -> 24576, by outputs",
        "keys and values down of attention input: 7168 -> 512 + 64",
        "keys and values up of latent: 512 -> 16384 + 16384, by outputs",
        "indexer's queries up of latent of queries: 1536 -> 8192",
        "indexer's keys of attention input: 7168 -> 128",
        "indexer's weights of attention input: 7168 -> 64",
        "attention output of heads: 16384 -> 7168, by inputs",
        "router of feed-forward input: 7168 -> 256, router, bias",
        "up of routed tokens: 7168 -> 2048 + 2048, routed, 256 x, by outputs",
        "down of routed activation: 2048 -> 7168, routed, 256 x, by inputs",
        "up of feed-forward input: 7168 -> 2048 + 2048, shared, by outputs",
        "down of shared activation: 2048 -> 7168, shared, by inputs",
    ],
    ("qwen3-next-80b-a3b", 0): [
        "queries, keys, values, gates of attention input: 2048 -> 2048 + 2048 + 4096 + 4096 + 32 + 32, by outputs",
        "convolution of queries, keys, values: 4 -> 2048 + 2048 + 4096, vector, by outputs",
        "decay, bias of time step of gates: 1 -> 32 + 32, vector, by outputs",
        "attention output of heads: 4096 -> 2048, by inputs",
        "router of feed-forward input: 2048 -> 512, router",
        "up of routed tokens: 2048 -> 512 + 512, routed, 512 x, by outputs",
        "down of routed activation: 512 -> 2048, routed, 512 x, by inputs",
        "up of feed-forward input: 2048 -> 512 + 512, shared, by outputs",
        "down of shared activation: 512 -> 2048, shared, by inputs",
        "shared gate of feed-forward input: 2048 -> 1, gate",
    ],
    ("qwen3-next-80b-a3b", 3): [
        "queries, keys, values of attention input: 2048 -> 4096 + 4096 + 512 + 512, by outputs",
        "attention output of heads: 4096 -> 2048, by inputs",
        "router of feed-forward input: 2048 -> 512, router",
        "up of routed tokens: 2048 -> 512 + 512, routed, 512 x, by outputs",
        "down of routed activation: 512 -> 2048, routed, 512 x, by inputs",
        "up of feed-forward input: 2048 -> 512 + 512, shared, by outputs",
        "down of shared activation: 512 -> 2048, shared, by inputs",
        "shared gate of feed-forward input: 2048 -> 1, gate",
    ],
    ("deepseek-v4-flash", 2): [
        "queries down of attention input: 4096 -> 1024",
        "queries up of latent of queries: 1024 -> 32768",
        "keys and values up of attention input: 4096 -> 512",
        "compressed keys and weights of attention input: 4096 -> 1024 + 1024",
        "places of keys in a block of keys: 4 -> 1024, vector, by outputs",
        "compressed indexer's keys and weights of attention input: 4096 -> 256 + 256",
        "places of indexer's keys in a block of indexer's keys: 4 -> 256, vector, by outputs",
        "indexer's queries up of latent of queries: 1024 -> 8192",
        "indexer's weights of attention input: 4096 -> 64",
        "sinks of scores: 1 -> 64, vector, by outputs",
        "heads down of heads: 32768 -> 8192, 8 groups",
        "attention output of narrow heads: 8192 -> 4096",
        "router of feed-forward input: 4096 -> 256, router",
        "up of routed tokens: 4096 -> 2048 + 2048, routed, 256 x, by outputs",
        "down of routed activation: 2048 -> 4096, routed, 256 x, by inputs",
        "up of feed-forward input: 4096 -> 2048 + 2048, shared, by outputs",
        "down of shared activation: 2048 -> 4096, shared, by inputs",
        "mixing of streams: 16384 -> 24, streams, bias",
        "scales of mixing of streams: 1 -> 1 + 1 + 1, vector, by outputs",
        "mixing of streams: 16384 -> 24, streams, bias",
        "scales of mixing of streams: 1 -> 1 + 1 + 1, vector, by outputs",
    ],
    ("kimi-linear-48b-a3b", 0): [
        "queries, keys, values, strength of attention input: 2304 -> 4096 + 4096 + 4096 + 32, by outputs",
        "decay and gate down of attention input: 2304 -> 128 + 128",
        "decay up of narrow decay: 128 -> 4096, by outputs",
        "gate up of narrow gate: 128 -> 4096, by outputs",
        "convolution of queries, keys, values: 4 -> 4096 + 4096 + 4096, vector, by outputs",
        "rate and bias of decay of decay: 1 -> 32 + 4096, vector, by outputs",
        "attention output of heads: 4096 -> 2304, by inputs",
        "up of feed-forward input: 2304 -> 9216 + 9216, by outputs",
        "down of dense activation: 9216 -> 2304, by inputs",
    ],
    ("nemotron-3-nano-30b-a3b", 0): [
        "gate, x, B, C, time step of attention input: 2688 -> 4096 + 4096 + 1024 + 1024 + 64, by outputs",
        "convolution of x, B, C: 4 -> 4096 + 1024 + 1024, vector, by outputs, bias",
        "decay, skip, bias of time step of x: 1 -> 64 + 64 + 64, vector, by outputs",
        "gated norm of heads: 1 -> 4096, vector, by outputs",
        "attention output of heads: 4096 -> 2688, by inputs",
    ],
}
"""By the sizes of the releases: attention of all kinds with an indexer, experts, a delta rule, Mamba, several streams."""


@pytest.mark.parametrize(("name", "number"), MATRICES)
def test_a_layer_has_these_matrices(name: str, number: int) -> None:
    assert [in_words(one) for one in find_model(name).layers[number].all_linears] == MATRICES[name, number]


def test_what_is_left_out_in_model_weight_matrices_has_these_values() -> None:
    assert number_defaults(weight_matrices_module) == {
        "WeightMatrix": {"count": 1, "biased": False, "rows": 1.0, "groups": 1, "trainable": True},
        "of_columns": {"inputs": 1, "biased": False},
        "out_of_heads": {"biased": False},
    }  # fmt: skip
