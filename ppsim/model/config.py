"""Models from a Hugging Face config.json.

Every field is either read, or known to change neither parameters nor matrix products, or refused: a new field might
be a new kind of layer.
"""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import naming, read_json
from ppsim.layout.split import require_layers
from ppsim.model.architecture import Attention, FeedForward, LatentAttention, Layer, MixtureOfExperts, Model, Norm
from ppsim.model.names import close_names, find_model

_HARMLESS = frozenset(
    {
        "activation_function", "architectures", "attention_dropout", "attn_implementation", "attn_pdrop",
        "auto_map", "aux_loss_alpha", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout",
        "dropout", "dtype", "embd_pdrop", "eos_token_id", "ep_size", "gradient_checkpointing", "hidden_act",
        "hidden_dropout", "id2label", "init_std", "initializer_range", "is_decoder", "is_encoder_decoder",
        "label2id", "layer_norm_elementwise_affine", "layer_norm_eps", "layer_norm_epsilon", "layer_types",
        "layerdrop", "max_window_layers", "n_ctx", "n_group", "name_or_path", "norm_eps", "norm_topk_prob",
        "original_max_position_embeddings", "output_attentions", "output_hidden_states",
        "output_router_logits", "pad_token_id", "partial_rotary_factor", "prefix", "pretraining_tp",
        "problem_type", "quantization_config", "reorder_and_upcast_attn", "resid_pdrop", "return_dict",
        "rms_norm_eps", "rope_interleave", "rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base",
        "rotary_pct", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise",
        "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "scoring_func", "seq_aux", "sliding_window",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
        "summary_use_proj", "task_specific_params", "tokenizer_class", "topk_group", "topk_method",
        "torch_dtype", "transformers_version", "use_cache", "use_parallel_residual", "use_sliding_window",
    }
)  # fmt: skip


_LARGEST = 10**9


class _Fields:
    """A config's fields, which remembers those that were read."""

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self._data, self._where = data, where
        self.seen = {"model_type"}

    def count(self, name: str, *others: str, default: int | None = None) -> int:
        """A whole number of 1 or more, under any of these names."""
        return self._whole(1, name, *others, default=default)

    def num_layers(self, name: str = "num_hidden_layers", *others: str) -> int:
        """How many layers there are."""
        value = self.count(name, *others)
        require_layers(value, name)
        return value

    def optional(self, name: str) -> int | None:
        """A whole number of 1 or more, or None where it is not there or null."""
        self.seen.add(name)
        return None if self._data.get(name) is None else self.count(name)

    def number(self, name: str, default: int) -> int:
        """A whole number of 0 or more."""
        return self._whole(0, name, default=default)

    def _whole(self, least: int, name: str, *others: str, default: int | None) -> int:
        value = self._get(name, *others, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{self._where}: {name} must be a whole number of {least} or more: got {value!r}")
        if value > _LARGEST:
            raise ConfigError(
                f"{self._where}: {name} must be at most {_LARGEST:,}: got a number of {len(str(value))} digits"
            )
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default=default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}: {name} must be true or false: got {value!r}")
        return value

    def layers(self, name: str) -> set[int]:
        """A list of layers."""
        value = self._get(name, default=())
        if not isinstance(value, list | tuple) or not all(isinstance(layer, int) for layer in value):
            raise ConfigError(f"{self._where}: {name} must be a list of layers: got {value!r}")
        return set(value)

    def refuse(self, name: str, sentence: str) -> None:
        """Raise with the sentence about a field."""
        raise ConfigError(f"{self._where}: {name} {sentence}")

    def _get(self, name: str, *others: str, default: Any) -> Any:
        self.seen.update((name, *others))
        for known in (name, *others):
            if self._data.get(known) is not None:
                return self._data[known]
        if default is None:
            near = difflib.get_close_matches(name, [key for key in self._data if key not in self.seen], n=1)
            hint = f" (is '{near[0]}' meant?)" if near else ""
            raise ConfigError(f"{self._where}: {name} is missing{hint}")
        return default

    def require_all_known(self) -> None:
        """Raise for the first field that was neither read nor is known to be harmless."""
        for name in self._data:
            if name in self.seen or name in _HARMLESS or name.startswith("_"):
                continue
            near = difflib.get_close_matches(name, sorted(self.seen), n=1)
            hint = f"is '{near[0]}' meant?" if near else "remove it if it changes no weights"
            raise ConfigError(f"{self._where}: unknown field '{name}' ({hint})")


def read_model(name_or_path: str | Path) -> Model:
    """Return a model by name, or from a config.json; raises `ConfigError` naming what is wrong with either."""
    text = str(name_or_path)
    if text.endswith(".json") or "/" in text:
        return model_from(read_json(text), text)
    return find_model(text)


def model_from(data: Any, where: str = "config.json") -> Model:
    """Return the model of a config.json's content.

    Raises `ConfigError` in one sentence for an unknown `model_type`, a field that is missing, has no meaning, is
    contradicted by another, or is unknown and so might change the weights.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a config.json holds an object, this one a {type(data).__name__}")
    kind = data.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: model_type is missing; there are {', '.join(_READERS)}")
    if kind not in _READERS:
        raise ConfigError(f"{where}: unknown model_type '{kind}': {close_names(kind, tuple(_READERS))}")
    fields = _Fields(data, where)
    with naming(where):
        model = _READERS[kind](fields)
    fields.require_all_known()
    return model


def _attention(fields: _Fields, hidden: int, **of_family: bool) -> Attention:
    heads = fields.count("num_attention_heads")
    given = fields.optional("head_dim")
    if given is None and hidden % heads:
        fields.refuse(
            "hidden_size", f"{hidden} is no multiple of num_attention_heads {heads}, and head_dim is not given"
        )
    kv_heads = fields.optional("num_key_value_heads") or heads
    return Attention(heads, kv_heads, given or hidden // heads, **of_family)


def _decoder(fields: _Fields, layers: Iterable[Layer], *, tied: bool = False, mtp: tuple[Layer, ...] = ()) -> Model:
    return Model(
        tuple(layers),
        fields.count("vocab_size"),
        fields.count("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings", default=tied),
        mtp=mtp,
        source="config.json",
    )


def _llama(fields: _Fields) -> Model:
    """llama and mistral: biases where the file says so."""
    hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias", default=False)
    ffn = FeedForward(fields.count("intermediate_size"), bias=fields.flag("mlp_bias", default=False))
    layer = Layer(hidden, _attention(fields, hidden, qkv_bias=bias, out_bias=bias), ffn)
    return _decoder(fields, [layer] * fields.num_layers())


def _qwen2(fields: _Fields) -> Model:
    hidden = fields.count("hidden_size")
    layer = Layer(hidden, _attention(fields, hidden, qkv_bias=True), FeedForward(fields.count("intermediate_size")))
    return _decoder(fields, [layer] * fields.num_layers())


def _qwen3(fields: _Fields) -> Model:
    hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias", default=False)
    attention = _attention(fields, hidden, qkv_bias=bias, out_bias=bias, qk_norm=True)
    layer = Layer(hidden, attention, FeedForward(fields.count("intermediate_size")))
    return _decoder(fields, [layer] * fields.num_layers())


def _mixtral(fields: _Fields) -> Model:
    hidden = fields.count("hidden_size")
    expert = FeedForward(fields.count("intermediate_size"))
    experts = MixtureOfExperts(expert, fields.count("num_local_experts"), fields.count("num_experts_per_tok"))
    layer = Layer(hidden, _attention(fields, hidden), experts)
    return _decoder(fields, [layer] * fields.num_layers())


def _qwen_moe(fields: _Fields, *, version: int) -> Model:
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    if version == 2:
        attention = _attention(fields, hidden, qkv_bias=True)
        shared = fields.number("shared_expert_intermediate_size", default=0)
    else:
        bias, shared = fields.flag("attention_bias", default=False), 0
        attention = _attention(fields, hidden, qkv_bias=bias, out_bias=bias, qk_norm=True)
    experts = MixtureOfExperts(
        FeedForward(fields.count("moe_intermediate_size")),
        fields.count("num_experts", "num_local_experts"),
        fields.count("num_experts_per_tok"),
        shared_size=shared,
        shared_gate=shared > 0,
    )
    dense = FeedForward(fields.count("intermediate_size"))
    step, only_dense = fields.count("decoder_sparse_step", default=1), fields.layers("mlp_only_layers")
    parts = [
        dense if layer in only_dense or (layer + 1) % step else experts for layer in range(num_layers)
    ]  # the rule of transformers' Qwen2MoeDecoderLayer
    return _decoder(fields, [Layer(hidden, attention, part) for part in parts])


def _deepseek(fields: _Fields, *, version: int) -> Model:
    """V2 and V3: latent attention; the first layers dense, one MoE layer in `moe_layer_freq` behind them."""
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    attention = LatentAttention(
        fields.count("num_attention_heads"),
        q_lora_rank=fields.optional("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_size=fields.count("qk_nope_head_dim"),
        qk_rope_head_size=fields.count("qk_rope_head_dim"),
        v_head_size=fields.count("v_head_dim"),
    )
    fields.seen.update(("num_key_value_heads", "qk_head_dim", "head_dim"))  # of the latent: they follow
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", "true is not known with latent attention; it is false in every release")
    expert = FeedForward(fields.count("moe_intermediate_size"))
    experts = MixtureOfExperts(
        expert,
        fields.count("n_routed_experts"),
        fields.count("num_experts_per_tok"),
        shared_size=expert.size * fields.number("n_shared_experts", default=0),
        router_bias=version == 3,
    )
    dense = FeedForward(fields.count("intermediate_size"))
    first, every = fields.number("first_k_dense_replace", default=0), fields.count("moe_layer_freq", default=1)
    if first > num_layers:
        fields.refuse("first_k_dense_replace", f"{first} is more than num_hidden_layers {num_layers}")
    parts = [experts if layer >= first and layer % every == 0 else dense for layer in range(num_layers)]
    num_mtp = fields.number("num_nextn_predict_layers", default=0)
    require_layers(num_layers + num_mtp, "num_hidden_layers + num_nextn_predict_layers")
    mtp = (Layer(hidden, attention, experts),) * num_mtp
    return _decoder(fields, [Layer(hidden, attention, part) for part in parts], mtp=mtp)


def _gpt2(fields: _Fields) -> Model:
    hidden, heads = fields.count("n_embd", "hidden_size"), fields.count("n_head", "num_attention_heads")
    if hidden % heads:
        fields.refuse("n_embd", f"{hidden} is no multiple of n_head {heads}")
    positions = fields.count("n_positions", "max_position_embeddings")
    ffn = FeedForward(fields.optional("n_inner") or 4 * hidden, gated=False, bias=True)
    layer = Layer(hidden, Attention(heads, heads, hidden // heads, qkv_bias=True, out_bias=True), ffn, "layernorm")
    return Model(
        (layer,) * fields.num_layers("n_layer", "num_hidden_layers"), fields.count("vocab_size"), positions,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True), learned_positions=positions,
        source="config.json",
    )  # fmt: skip


def _gpt_neox(fields: _Fields) -> Model:
    hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias", default=True)
    ffn = FeedForward(fields.count("intermediate_size"), gated=False, bias=True)
    layer = Layer(hidden, _attention(fields, hidden, qkv_bias=bias, out_bias=bias), ffn, "layernorm")
    return _decoder(fields, [layer] * fields.num_layers())


def _opt(fields: _Fields) -> Model:
    """OPT: two more positions than the sequence; OPT-350m's narrower embedding and norms behind the parts."""
    hidden, bias = fields.count("hidden_size"), fields.flag("enable_bias", default=True)
    norm: Norm = "layernorm"
    layer = Layer(
        hidden,
        _attention(fields, hidden, qkv_bias=bias, out_bias=bias),
        FeedForward(fields.count("ffn_dim"), gated=False, bias=bias),
        norm,
    )
    width, length = fields.optional("word_embed_proj_dim"), fields.count("max_position_embeddings")
    before = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    return Model(
        (layer,) * fields.num_layers(), fields.count("vocab_size"), length,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True), learned_positions=length + 2,
        final_norm=before and not removed, projected_size=width if width != hidden else None, source="config.json",
    )  # fmt: skip


def _nemotron(fields: _Fields) -> Model:
    hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias", default=False)
    ffn = FeedForward(fields.count("intermediate_size"), gated=False, bias=fields.flag("mlp_bias", default=False))
    layer = Layer(hidden, _attention(fields, hidden, qkv_bias=bias, out_bias=bias), ffn, "layernorm")
    return _decoder(fields, [layer] * fields.num_layers())


_READERS: MappingProxyType[str, Callable[[_Fields], Model]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _llama,
        "mixtral": _mixtral,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen2_moe": lambda fields: _qwen_moe(fields, version=2),
        "qwen3_moe": lambda fields: _qwen_moe(fields, version=3),
        "deepseek_v2": lambda fields: _deepseek(fields, version=2),
        "deepseek_v3": lambda fields: _deepseek(fields, version=3),
        "kimi_k2": lambda fields: _deepseek(fields, version=3),
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "opt": _opt,
        "nemotron": _nemotron,
    }
)
