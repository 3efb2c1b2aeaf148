"""The models known by name, each with the publication of its sizes. `ppsim profile` has those that it can build."""

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from ppsim.base.errors import ConfigError
from ppsim.base.names import Names
from ppsim.model.architecture import Layer, Model
from ppsim.model.diffusion import DIFFUSION
from ppsim.model.families import FAMILIES
from ppsim.model.halves import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.hybrid import windowed

_GPT3 = "Brown et al. 2020, arXiv 2005.14165, Table 2.1 (vocabulary of GPT-2)"
_MEGATRON = "Narayanan et al. 2021, arXiv 2104.04473, Table 1 (vocabulary 51,200, §5.1)"
_KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, Table 3"
_LLAMA1 = "Touvron et al. 2023, arXiv 2302.13971, Table 2; feed-forward of the released weights"
_LLAMA2 = "Touvron et al. 2023, arXiv 2307.09288, Table 1; sizes of the released config.json"
_LLAMA3 = "Grattafiori et al. 2024, arXiv 2407.21783, Table 3"
_LLAMA32 = "config.json of meta-llama/Llama-3.2-1B and -3B"
_QWEN25 = "Qwen Team 2024, arXiv 2412.15115, Table 1; sizes of the released config.json"
_QWEN3 = "Qwen Team 2025, arXiv 2505.09388, Tables 1 and 2; sizes of the released config.json"


def gpt(
    num_layers: int,
    hidden: int,
    heads: int,
    *,
    head_size: int | None = None,
    vocab: int = 50257,
    sequence_length: int = 2048,
    source: str = "",
) -> Model:
    """Return a GPT: LayerNorm, biases, GELU of four times the width, learned positions, tied embeddings."""
    attention = Attention(heads, heads, head_size or hidden // heads, qkv_bias=True, out_bias=True)
    layer = Layer(hidden, attention, FeedForward(4 * hidden, gated=False, bias=True), "layernorm")
    return Model(
        (layer,) * num_layers, vocab, sequence_length,
        tied_embeddings=True, learned_positions=sequence_length, source=source,
    )  # fmt: skip


def _llama(
    num_layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, *, vocab: int, length: int, source: str
) -> Model:
    layer = Layer(hidden, Attention(heads, kv_heads, hidden // heads), FeedForward(ffn))
    return Model((layer,) * num_layers, vocab, length, source=source)


def _qwen(
    num_layers: int, hidden: int, heads: int, kv_heads: int, ffn: FeedForward | MixtureOfExperts, *, version: str,
    tied: bool = False, vocab: int = 151936,
) -> Model:  # fmt: skip
    two = version == "2.5"
    attention = Attention(heads, kv_heads, hidden // heads if two else 128, qkv_bias=two, qk_norm=not two)
    return Model(
        (Layer(hidden, attention, ffn),) * num_layers, vocab, 4096,
        tied_embeddings=tied, source=_QWEN25 if two else _QWEN3,
    )  # fmt: skip


def _mixtral(num_layers: int, hidden: int, heads: int, ffn: int, *, vocab: int, length: int, source: str) -> Model:
    layer = Layer(hidden, Attention(heads, 8, 128), MixtureOfExperts(FeedForward(ffn), 8, 2))
    return Model((layer,) * num_layers, vocab, length, source=source)


def _nemotron4(num_layers: int, hidden: int, heads: int, source: str) -> Model:
    """LayerNorm, squared ReLU of four times the width, no biases in the projections, grouped queries."""
    layer = Layer(hidden, Attention(heads, 8, hidden // heads), FeedForward(4 * hidden, gated=False), "layernorm")
    return Model((layer,) * num_layers, 256000, 4096, source=source)


def _mistral() -> Model:
    """A llama of which every layer sees 4,096 tokens."""
    source = "Jiang et al. 2023, arXiv 2310.06825, Table 1"
    model = _llama(32, 4096, 32, 8, 14336, vocab=32000, length=8192, source=source)
    return replace(model, layers=tuple(windowed(model.layers[0], 4096, [True] * 32)))


def _qwen2_moe() -> Model:
    experts = MixtureOfExperts(FeedForward(2560), 64, 8, shared_size=20480, shared_gate=True)
    layer = Layer(3584, Attention(28, 4, 128, qkv_bias=True), experts)
    return Model((layer,) * 28, 151936, 4096, source="Qwen Team 2024, arXiv 2407.10671, Table 1")


def _deepseek_v3() -> Model:
    attention = LatentAttention(
        128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_size=128, qk_rope_head_size=64, v_head_size=128
    )
    experts = MixtureOfExperts(FeedForward(2048), 256, 8, shared_size=2048, router_bias=True)
    dense, sparse = Layer(7168, attention, FeedForward(18432)), Layer(7168, attention, experts)
    return Model(
        (dense,) * 3 + (sparse,) * 58, 129280, 4096, mtp=(sparse,),
        source="DeepSeek-AI 2024, arXiv 2412.19437, §4.2; dense width of the released config.json",
    )  # fmt: skip


def _grok1() -> Model:
    """GELU-gated experts of width ⌊8·h·2/3⌋ raised to a multiple of 8, four norms a layer, tied embeddings."""
    layer = Layer(6144, Attention(48, 8, 128), MixtureOfExperts(FeedForward(32768), 8, 2), num_norms=4)
    return Model(
        (layer,) * 64, 131072, 8192, tied_embeddings=True, source="xai-org/grok-1, README.md, run.py and model.py"
    )


_MAKE: dict[str, Callable[[], Model]] = {
    "gpt2": lambda: gpt(12, 768, 12, sequence_length=1024, source="Radford et al. 2019; its hparams.json"),
    # GPT-3's dense and sparse attention alternate; here all is dense.
    # The table's 24 heads of 128 (1.3B) and width 5140 (13B) do not go with its other columns: 16 heads, 5120.
    "gpt3-125m": lambda: gpt(12, 768, 12, source=_GPT3),
    "gpt3-350m": lambda: gpt(24, 1024, 16, source=_GPT3),
    "gpt3-760m": lambda: gpt(24, 1536, 16, source=_GPT3),
    "gpt3-1.3b": lambda: gpt(24, 2048, 16, source=_GPT3),
    "gpt3-2.7b": lambda: gpt(32, 2560, 32, source=_GPT3),
    "gpt3-6.7b": lambda: gpt(32, 4096, 32, source=_GPT3),
    "gpt3-13b": lambda: gpt(40, 5120, 40, source=_GPT3),
    "gpt3-175b": lambda: gpt(96, 12288, 96, source=_GPT3),
    "megatron-1.7b": lambda: gpt(24, 2304, 24, vocab=51200, source=_MEGATRON),
    "megatron-3.6b": lambda: gpt(30, 3072, 32, vocab=51200, source=_MEGATRON),
    "megatron-7.5b": lambda: gpt(36, 4096, 32, vocab=51200, source=_MEGATRON),
    "megatron-18b": lambda: gpt(40, 6144, 48, vocab=51200, source=_MEGATRON),
    "megatron-22b": lambda: gpt(48, 6144, 64, vocab=51200, source=_KORTHIKANTI),
    "megatron-39b": lambda: gpt(48, 8192, 64, vocab=51200, source=_MEGATRON),
    "megatron-76b": lambda: gpt(60, 10240, 80, vocab=51200, source=_MEGATRON),
    "megatron-145b": lambda: gpt(80, 12288, 96, vocab=51200, source=_MEGATRON),
    "megatron-310b": lambda: gpt(96, 16384, 128, vocab=51200, source=_MEGATRON),
    "megatron-530b": lambda: gpt(105, 20480, 128, vocab=51200, source=_MEGATRON),
    "megatron-1t": lambda: gpt(128, 25600, 160, vocab=51200, source=_MEGATRON),
    "llama-7b": lambda: _llama(32, 4096, 32, 32, 11008, vocab=32000, length=2048, source=_LLAMA1),
    "llama-13b": lambda: _llama(40, 5120, 40, 40, 13824, vocab=32000, length=2048, source=_LLAMA1),
    "llama-33b": lambda: _llama(60, 6656, 52, 52, 17920, vocab=32000, length=2048, source=_LLAMA1),
    "llama-65b": lambda: _llama(80, 8192, 64, 64, 22016, vocab=32000, length=2048, source=_LLAMA1),
    "llama2-7b": lambda: _llama(32, 4096, 32, 32, 11008, vocab=32000, length=4096, source=_LLAMA2),
    "llama2-13b": lambda: _llama(40, 5120, 40, 40, 13824, vocab=32000, length=4096, source=_LLAMA2),
    "llama2-70b": lambda: _llama(80, 8192, 64, 8, 28672, vocab=32000, length=4096, source=_LLAMA2),
    "llama3-8b": lambda: _llama(32, 4096, 32, 8, 14336, vocab=128256, length=8192, source=_LLAMA3),
    "llama3-70b": lambda: _llama(80, 8192, 64, 8, 28672, vocab=128256, length=8192, source=_LLAMA3),
    "llama3-405b": lambda: _llama(126, 16384, 128, 8, 53248, vocab=128256, length=8192, source=_LLAMA3),
    "llama3.2-1b": lambda: replace(
        _llama(16, 2048, 32, 8, 8192, vocab=128256, length=8192, source=_LLAMA32), tied_embeddings=True
    ),
    "llama3.2-3b": lambda: replace(
        _llama(28, 3072, 24, 8, 8192, vocab=128256, length=8192, source=_LLAMA32), tied_embeddings=True
    ),
    "mixtral-8x7b": lambda: _mixtral(
        32, 4096, 32, 14336, vocab=32000, length=4096, source="Jiang et al. 2024, arXiv 2401.04088, Table 1"
    ),
    "mixtral-8x22b": lambda: _mixtral(
        56, 6144, 48, 16384, vocab=32768, length=4096, source="config.json of mistralai/Mixtral-8x22B-v0.3"
    ),
    "qwen2.5-0.5b": lambda: _qwen(24, 896, 14, 2, FeedForward(4864), version="2.5", tied=True),
    "qwen2.5-1.5b": lambda: _qwen(28, 1536, 12, 2, FeedForward(8960), version="2.5", tied=True),
    "qwen2.5-7b": lambda: _qwen(28, 3584, 28, 4, FeedForward(18944), version="2.5", vocab=152064),
    "qwen2.5-14b": lambda: _qwen(48, 5120, 40, 8, FeedForward(13824), version="2.5", vocab=152064),
    "qwen2.5-32b": lambda: _qwen(64, 5120, 40, 8, FeedForward(27648), version="2.5", vocab=152064),
    "qwen2.5-72b": lambda: _qwen(80, 8192, 64, 8, FeedForward(29568), version="2.5", vocab=152064),
    "qwen3-0.6b": lambda: _qwen(28, 1024, 16, 8, FeedForward(3072), version="3", tied=True),
    "qwen3-1.7b": lambda: _qwen(28, 2048, 16, 8, FeedForward(6144), version="3", tied=True),
    "qwen3-4b": lambda: _qwen(36, 2560, 32, 8, FeedForward(9728), version="3", tied=True),
    "qwen3-8b": lambda: _qwen(36, 4096, 32, 8, FeedForward(12288), version="3"),
    "qwen3-14b": lambda: _qwen(40, 5120, 40, 8, FeedForward(17408), version="3"),
    "qwen3-32b": lambda: _qwen(64, 5120, 64, 8, FeedForward(25600), version="3"),
    "qwen3-30b-a3b": lambda: _qwen(48, 2048, 32, 4, MixtureOfExperts(FeedForward(768), 128, 8), version="3"),
    "qwen3-235b-a22b": lambda: _qwen(94, 4096, 64, 4, MixtureOfExperts(FeedForward(1536), 128, 8), version="3"),
    "deepseek-v3": _deepseek_v3,
    "nemotron4-15b": lambda: _nemotron4(32, 6144, 48, "Parmar et al. 2024, arXiv 2402.16819, Table 1"),
    "nemotron4-340b": lambda: _nemotron4(96, 18432, 96, "NVIDIA 2024, arXiv 2406.11704, Table 1"),
    "grok-1": _grok1,
    "mistral-7b": _mistral,
    "qwen2-57b-a14b": _qwen2_moe,
    **FAMILIES,
    **DIFFUSION,
}  # fmt: skip

ALIASES = MappingProxyType(
    {
        # later training of the same sizes
        **{f"llama3.1-{size}": f"llama3-{size}" for size in ("8b", "70b", "405b")},
        "llama3.3-70b": "llama3-70b",
        **dict.fromkeys(("deepseek-v3.1", "deepseek-v3-671b", "deepseek-r1"), "deepseek-v3"),
        # other words for the same
        **dict.fromkeys(("deepseek-16b", "deepseek-v2-16b"), "deepseek-v2-lite"),
        **dict.fromkeys(("deepseek-236b", "deepseek-v2-236b"), "deepseek-v2"),
        "deepseek-671b": "deepseek-v3",
        "kimi-k2-1t": "kimi-k2",
        "grok1-314b": "grok-1",
        "gpt-175b": "gpt3-175b",
        "mt-nlg-530b": "megatron-530b",
        **dict.fromkeys(("flux.1", "flux", "flux-dev", "flux1-dev"), "flux.1-dev"),
        **dict.fromkeys(("flux-schnell", "flux1-schnell"), "flux.1-schnell"),
        **dict.fromkeys(("stable-diffusion-3-medium", "sd3-2b"), "sd3-medium"),
        "qwen3-next": "qwen3-next-80b-a3b",
        "llama4-scout-17b-16e": "llama4-scout",
        "llama4-maverick-17b-128e": "llama4-maverick",
        "nemotron-3-nano": "nemotron-3-nano-30b-a3b",
        "nemotron-3-super": "nemotron-3-super-120b-a12b",
    }
)
NAMES: tuple[str, ...] = tuple(_MAKE)

_LEFT_OUT = re.compile(
    r"-(base|instruct|chat|it|pt|hf|thinking|preview|pretrained|bf16|fp16|fp8|nvfp4|mxfp4|\d+k|\d{4}|v0\.\d)$"
)
"""Ends of names that tell of training, a type of numbers, or a date, and not of sizes."""


def find_model(name: str) -> Model:
    """Return a model by name, as people write it; raises `ConfigError` with the close matches.

    Capitals, dashes, the organisation before a slash, and ends that don't tell of sizes make no difference.

    >>> find_model("llama3-8b").parameters
    8030261248
    >>> find_model("meta-llama/Llama-3.1-8B-Instruct") is find_model("llama3-8b")
    True
    """
    if (known := _NAMES.find(name)) is None:
        raise ConfigError(_NAMES.unknown(name))
    return _made(known)


def plain_model(name: str) -> str:
    """Return a model's name without what makes no difference."""
    text = re.sub(r"[\s_-]+", "-", name.rsplit("/", 1)[-1].lower())
    text = re.sub(r"^(meta|nvidia)-", "", text)
    while (shorter := _LEFT_OUT.sub("", text)) != text:
        text = shorter
    return text.replace("-", "")


_NAMES = Names("model", NAMES, also=ALIASES, plain_of=plain_model)


def close_names(name: str, known: tuple[str, ...]) -> str:
    """Return the end of a sentence about an unknown name: the close matches, or all there are."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"


@cache
def _made(name: str) -> Model:
    return _MAKE[name]()
