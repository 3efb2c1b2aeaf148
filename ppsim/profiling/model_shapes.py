"""The models that `ppsim profile --model` knows by name. Does not need torch."""

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import NameLookup
from ppsim.model.registry import NAMES, aliases, plain_model
from ppsim.model.registry import find_model as model_by_name
from ppsim.model.shapes import LayerShape, ModelShape, model_shape_of
from ppsim.runtime.train_config import MODELS as GPTS
from ppsim.runtime.train_config import GPTShape


def of_gpt(shape: GPTShape) -> ModelShape:
    return ModelShape(
        shape.layer,
        num_layers=shape.num_layers,
        vocab_size=shape.vocab_size,
        sequence_length=shape.sequence_length,
    )


MODELS: dict[str, ModelShape] = {
    **{name: of_gpt(shape) for name, shape in GPTS.items()},
    # Tiny models for a CPU: complete, but not to scale.
    "llama-mini": ModelShape(
        LayerShape("llama", hidden_size=128, num_heads=4, num_kv_heads=2, head_size=32, ffn_size=352),
        num_layers=4, vocab_size=512, sequence_length=128,
    ),
    "moe-mini": ModelShape(
        LayerShape("moe", hidden_size=128, num_heads=4, num_kv_heads=2, head_size=32, ffn_size=96,
                   num_experts=8, experts_per_token=2, shared_ffn_size=96),
        num_layers=4, vocab_size=512, sequence_length=128,
    ),
    **{name: shape for name in NAMES if (shape := model_shape_of(model_by_name(name))) is not None},
    # MoE layer of DeepSeek-AI 2024, arXiv 2412.19437, §4.2. Simplifications: plain attention with 128 heads of size
    # 128 instead of latent attention (MLA); a router without groups and bias, and with a softmax of the top 8
    # instead of a sigmoid; MoE layers for the first three layers, which are dense in the original; no multi-token
    # prediction.
    "deepseek-v3-like": ModelShape(
        LayerShape("moe", hidden_size=7168, num_heads=128, num_kv_heads=128, head_size=128, ffn_size=2048,
                   num_experts=256, experts_per_token=8, shared_ffn_size=2048),
        num_layers=61, vocab_size=129280, sequence_length=4096,
    ),
}  # fmt: skip


def find_model(name: str) -> ModelShape:
    """Raise `ConfigError` with the close matches for an unknown name."""
    also = {word: known for word, known in aliases().items() if known in MODELS}
    names = NameLookup("model", MODELS, also=also, plain_of=plain_model)
    if (known := names.find(name)) is None:
        raise ConfigError(names.unknown(name))
    return MODELS[known]
