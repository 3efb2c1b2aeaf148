"""Models whose layers differ, or whose parts are newer, by the sizes that their families differ in."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ppsim.model.architecture import Layer, Model
from ppsim.model.halves import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.hybrid import Halves, windowed
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba

_GPT_OSS = "OpenAI 2025, arXiv 2508.10925, Table 1; sizes of the released config.json"
_LLAMA4 = "text_config of the config.json of meta-llama/Llama-4-{}"
_GEMMA2 = "Gemma Team 2024, arXiv 2408.00118, Table 1; sizes of the released config.json"
_GEMMA3 = "Gemma Team 2025, arXiv 2503.19786, §2; text_config of the released config.json"
_MAMBA2 = "config.json of state-spaces/mamba2-*; its vocabulary of 50,277 padded to 50,288"
_NEMOTRON_H = "NVIDIA 2025, arXiv 2504.03624, Table 1; sizes of Megatron-Bridge's recipes"
_NANO2 = "NVIDIA 2025, arXiv 2508.14444, §2; sizes of Megatron-Bridge's recipes"
_NEMOTRON3 = "NVIDIA 2025, arXiv 2512.20848; sizes of the released config.json"
_H8 = "M-M-M-M" + "*-M-M-M-M-M" * 4 + "-"


def deepseek(
    num_layers: int,
    hidden: int,
    heads: int,
    dense: int,
    experts: MixtureOfExperts,
    *,
    q_lora_rank: int | None = 1536,
    num_dense: int = 1,
    vocab: int = 102400,
) -> Model:
    """Return latent attention of DeepSeek's head sizes over `num_dense` dense layers, then experts."""
    attention = LatentAttention(
        heads, q_lora_rank, kv_lora_rank=512, qk_nope_head_size=128, qk_rope_head_size=64, v_head_size=128
    )
    first, sparse = Layer(hidden, attention, FeedForward(dense)), Layer(hidden, attention, experts)
    layers = (first,) * num_dense + (sparse,) * (num_layers - num_dense)
    return Model(layers, vocab, 4096)


def gpt_oss(num_layers: int, num_experts: int) -> Model:
    """Return gpt-oss: sinks, every other layer with a window of 128, biases everywhere, experts alone."""
    attention = Attention(64, 8, 64, qkv_bias=True, out_bias=True, sinks=True)
    experts = MixtureOfExperts(FeedForward(2880, bias=True), num_experts, 4, router_bias=True)
    layers = windowed(Layer(2880, attention, experts), 128, [layer % 2 == 0 for layer in range(num_layers)])
    return Model(tuple(layers), 201_088, 4096)


def llama4(num_experts: int, *, every: int) -> Model:
    """Return Llama 4's text model: an expert a token and a shared one, in one layer of `every`.

    Three layers of four see their chunk of 8,192 tokens.
    """
    experts = MixtureOfExperts(FeedForward(8192), num_experts, 1, shared_size=8192)
    sparse = Layer(5120, Attention(40, 8, 128), experts)
    dense = replace(sparse, ffn=FeedForward(16384))
    are_chunked = [(layer + 1) % 4 != 0 for layer in range(48)]
    of_kind = [windowed(kind, 8192, are_chunked, is_chunked=True) for kind in (dense, sparse)]
    layers = tuple(of_kind[(layer + 1) % every == 0][layer] for layer in range(48))
    return Model(layers, 202_048, 8192)


def gemma(
    version: int,
    num_layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    ffn: int,
    *,
    window: int,
    vocab: int = 262_208,
) -> Model:
    """Return Gemma 2 (every other layer with a window) or 3 (five of six; norms of queries and keys), text only.

    `heads`: of queries, of keys and values, and the size of one.
    """
    attention = Attention(*heads, qk_norm=version == 3)
    layer, every = Layer(hidden, attention, FeedForward(ffn), num_norms=4), 2 if version == 2 else 6
    layers = windowed(layer, window, [(one + 1) % every != 0 for one in range(num_layers)])
    return Model(tuple(layers), vocab, 8192, tied_embeddings=True)


def qwen3_next() -> Model:
    """Return Qwen3-Next-80B-A3B: three layers of four are gated delta nets, the fourth gated attention."""
    delta = GatedDeltaNet(16, 32, 128, 128)
    attention = Attention(16, 2, 256, qk_norm=True, gated=True)
    experts = MixtureOfExperts(FeedForward(512), 512, 10, shared_size=512, shared_gate=True)
    layer = Layer(2048, attention, experts)
    layers = tuple(layer if (one + 1) % 4 == 0 else replace(layer, attention=delta) for one in range(48))
    return Model(layers, 151_936, 4096)


def kimi_linear() -> Model:
    """Return Kimi-Linear-48B-A3B: latent attention in layers 4, 8, … 24 and 27, the delta rule in the others."""
    delta = KimiDeltaAttention(32, 32, 128, 128)
    attention = LatentAttention(
        32, None, kv_lora_rank=512, qk_nope_head_size=128, qk_rope_head_size=64, v_head_size=128
    )
    experts = MixtureOfExperts(FeedForward(1024), 256, 8, shared_size=1024, router_bias=True)
    dense, attends = FeedForward(9216), (*range(4, 25, 4), 27)
    layers = tuple(
        Layer(2304, attention if number in attends else delta, experts if number > 1 else dense)
        for number in range(1, 28)
    )
    return Model(layers, 163_840, 4096)


def nemotron_h(
    pattern: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    mamba: Mamba,
    *,
    dense: int | None = None,
    experts: MixtureOfExperts | None = None,
    mtp: str = "",
) -> Model:
    """Return a Nemotron hybrid: Mamba-2, attention without positions, squared ReLU; one half a layer."""
    parts = Halves(
        hidden, mamba=mamba, attention=Attention(heads, kv_heads, 128),
        dense=FeedForward(dense, gated=False) if dense else None, experts=experts,
    )  # fmt: skip
    further = (parts.whole(mtp),) if mtp else ()
    return Model(parts.layers(pattern), 131_072, 8192, mtp=further)


def mamba2(num_layers: int, hidden: int, heads: int, *, vocab: int) -> Model:
    """Return a pure Mamba-2: one mixer a layer, tied embeddings."""
    layer = Halves(hidden, mamba=Mamba(heads, 64, 128)).of_letter("M", "M")
    return Model((layer,) * num_layers, vocab, 2048, tied_embeddings=True)


def _mamba(heads: int, *, head: int = 64, state: int = 128) -> Mamba:
    """A mixer as all of Nemotron's: 8 groups, chunks of 128."""
    return Mamba(heads, head, state, num_groups=8, chunk_size=128)


def _relu2_experts(
    size: int, count: int, top_k: int, *, shared: int, latent: int | None = None
) -> MixtureOfExperts:
    expert = FeedForward(size, gated=False)
    return MixtureOfExperts(expert, count, top_k, shared_size=shared, router_bias=True, latent_size=latent)


def _from(source: str, model: Model) -> Model:
    return replace(model, source=source)


FAMILIES: Mapping[str, Callable[[], Model]] = MappingProxyType(
    {
        "qwen3-next-80b-a3b": lambda: _from("config.json of Qwen/Qwen3-Next-80B-A3B-Instruct", qwen3_next()),
        "deepseek-v2-lite": lambda: _from(
            "DeepSeek-AI 2024, arXiv 2405.04434, Appendix B; sizes of the released config.json",
            deepseek(
                27, 2048, 16, 10944, MixtureOfExperts(FeedForward(1408), 64, 6, shared_size=2816), q_lora_rank=None
            ),
        ),
        "deepseek-v2": lambda: _from(
            "DeepSeek-AI 2024, arXiv 2405.04434, §3.1.2; sizes of the released config.json",
            deepseek(60, 5120, 128, 12288, MixtureOfExperts(FeedForward(1536), 160, 6, shared_size=3072)),
        ),
        "kimi-k2": lambda: _from(
            "Kimi Team 2025, arXiv 2507.20534, Table 2; sizes of the released config.json",
            deepseek(
                61,
                7168,
                64,
                18432,
                MixtureOfExperts(FeedForward(2048), 384, 8, shared_size=2048, router_bias=True),
                vocab=163840,
            ),
        ),
        "gpt-oss-20b": lambda: _from(_GPT_OSS, gpt_oss(24, 32)),
        "gpt-oss-120b": lambda: _from(_GPT_OSS, gpt_oss(36, 128)),
        "kimi-linear-48b-a3b": lambda: _from(
            "config.json of moonshotai/Kimi-Linear-48B-A3B-Instruct", kimi_linear()
        ),
        "llama4-scout": lambda: _from(_LLAMA4.format("Scout-17B-16E"), llama4(16, every=1)),
        "llama4-maverick": lambda: _from(_LLAMA4.format("Maverick-17B-128E"), llama4(128, every=2)),
        "gemma2-2b": lambda: _from(_GEMMA2, gemma(2, 26, 2304, (8, 4, 256), 9216, window=4096, vocab=256000)),
        "gemma2-9b": lambda: _from(_GEMMA2, gemma(2, 42, 3584, (16, 8, 256), 14336, window=4096, vocab=256000)),
        "gemma2-27b": lambda: _from(_GEMMA2, gemma(2, 46, 4608, (32, 16, 128), 36864, window=4096, vocab=256000)),
        "gemma3-1b": lambda: _from(_GEMMA3, gemma(3, 26, 1152, (4, 1, 256), 6912, window=512, vocab=262144)),
        "gemma3-4b": lambda: _from(_GEMMA3, gemma(3, 34, 2560, (8, 4, 256), 10240, window=1024)),
        "gemma3-12b": lambda: _from(_GEMMA3, gemma(3, 48, 3840, (16, 8, 256), 15360, window=1024)),
        "gemma3-27b": lambda: _from(_GEMMA3, gemma(3, 62, 5376, (32, 16, 128), 21504, window=1024)),
        "mamba2-130m": lambda: _from(_MAMBA2, mamba2(24, 768, 24, vocab=50288)),
        "mamba2-370m": lambda: _from(_MAMBA2, mamba2(48, 1024, 32, vocab=50288)),
        "mamba2-780m": lambda: _from(_MAMBA2, mamba2(48, 1536, 48, vocab=50288)),
        "mamba2-1.3b": lambda: _from(_MAMBA2, mamba2(48, 2048, 64, vocab=50288)),
        "mamba2-2.7b": lambda: _from(_MAMBA2, mamba2(64, 2560, 80, vocab=50288)),
        "nemotron-h-4b": lambda: _from(_NEMOTRON_H, nemotron_h(_H8, 3072, 32, 8, _mamba(112), dense=12288)),
        "nemotron-h-8b": lambda: _from(_NEMOTRON_H, nemotron_h(_H8, 4096, 32, 8, _mamba(128), dense=21504)),
        "nemotron-h-47b": lambda: _from(
            _NEMOTRON_H,
            nemotron_h(
                "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-",
                8192,
                64,
                8,
                _mamba(256, state=256),
                dense=30720,
            ),
        ),
        "nemotron-h-56b": lambda: _from(
            _NEMOTRON_H,
            nemotron_h("M-M-M-M" + "*-M-M-M-M-M" * 10 + "-", 8192, 64, 8, _mamba(256, state=256), dense=32768),
        ),
        "nemotron-nano-9b-v2": lambda: _from(
            _NANO2,
            nemotron_h(
                "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
                4480,
                40,
                8,
                _mamba(128, head=80),
                dense=15680,
            ),
        ),
        "nemotron-nano-12b-v2": lambda: _from(
            _NANO2, nemotron_h("M-M-M-M" + "*-M-M-M-M" * 6 + "-", 5120, 40, 8, _mamba(128, head=80), dense=20480)
        ),
        "nemotron-3-nano-30b-a3b": lambda: _from(
            _NEMOTRON3,
            nemotron_h(
                "MEMEM" + "*EMEMEM" * 4 + "*EMEMEMEM*EMEMEMEME",
                2688,
                32,
                2,
                _mamba(64),
                experts=_relu2_experts(1856, 128, 6, shared=3712),
            ),
        ),
        "nemotron-3-super-120b-a12b": lambda: _from(
            _NEMOTRON3,
            nemotron_h(
                "MEMEMEM*EMEMEMEM*EMEMEMEM" + "*EMEMEMEMEM" * 4 + "*EMEMEMEM*EMEMEMEME",
                4096,
                32,
                2,
                _mamba(128),
                experts=_relu2_experts(2688, 512, 22, shared=5376, latent=1024),
                mtp="*E",
            ),
        ),
    }
)
"""Names of these models, for the table of `ppsim.model.names`."""
