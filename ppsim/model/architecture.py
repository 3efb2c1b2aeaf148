"""A whole model: layers, embedding, head and multi-token prediction, with the published parameter counts and FLOPs.

Letters: h hidden size, n query heads, g key/value heads, d head size, f feed-forward columns, E experts, k experts
per token, V vocabulary, s sequence length.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.model.adapters import trained_matrices
from ppsim.model.attention_and_mlp import FeedForward, MixtureOfExperts, NoAttention, NoFeedForward
from ppsim.model.conditioning import Conditioning, Patches
from ppsim.model.encoder import Encoder, EncoderPart, parse_images
from ppsim.model.fine_tuning import DEFAULT_MODULES, FineTuning, LayerTraining, group_of, lora_module_of
from ppsim.model.hyper_connections import joining_parameters, mixing_operators
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import Recurrent
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.layer_partition import require_layers
from ppsim.parallel.sizes import ParallelSizes, require_positive

Norm = Literal["layernorm", "rmsnorm", "plain"]
""""plain" is a LayerNorm without weights, which a condition modulates instead."""


End = Literal["embedding", "mtp", "head", "conditions"]
"""A part of a model outside its layers; mtp: what multi-token prediction adds to its layer, except an embedding."""


@dataclass(frozen=True)
class Layer:
    """One layer: norms, a token mixer such as attention, and a dense MLP or a mixture of experts.

    - `attention`, `ffn`: layers of hybrids have one of the two, and `NoAttention` or `NoFeedForward` for the other.
    - `streams`: number of residual streams.
    - `summed_residuals`: for token and channel mixer, the number of hidden states (of this and earlier layers) in
      the weighted sum that the mixer reads (attention residuals of Kimi K3; its modeling_kimi_linear.py). None: a
      mixer reads the residual alone.
    - `training`: None if all weights are trained.
    - `in_16_bits`: GEMMs have 16 bits, also if other layers have 8 or 4.
    - `lists`: cache for `ppsim.model.blocks` and `ppsim.model.activations`.
    """

    hidden_size: int
    attention: Mixer
    ffn: FeedForward | MixtureOfExperts
    norm: Norm = "rmsnorm"
    num_norms: int = 2
    conditioned: Conditioning | None = None
    streams: int = 1
    summed_residuals: tuple[int, int] | None = None
    training: LayerTraining | None = None
    in_16_bits: bool = False

    @property
    def residual_size(self) -> int:
        """Columns per token sent to the next layer: h per residual stream, or per state in `summed_residuals`."""
        return self.hidden_size * (self.summed_residuals[1] if self.summed_residuals else self.streams)

    @property
    def is_moe(self) -> bool:
        return isinstance(self.ffn, MixtureOfExperts)

    @property
    def has_mixer(self) -> bool:
        return not isinstance(self.attention, NoAttention)

    @property
    def is_recurrent(self) -> bool:
        return any(isinstance(part, Recurrent) for part in self.attention.parts)

    @property
    def has_feed_forward(self) -> bool:
        return not isinstance(self.ffn, NoFeedForward)

    @property
    def num_sublayers(self) -> int:
        return self.has_mixer + self.has_feed_forward

    @property
    def has_backward(self) -> bool:
        return self.training is None or self.training.has_backward

    @property
    def has_trained_weights(self) -> bool:
        return self.trains_norms or any(linear.trainable for linear in self.all_linears)

    @property
    def trains_norms(self) -> bool:
        return self.training is None or self.training.trains("norms")

    @property
    def expert_width(self) -> int:
        """Columns per token sent to a routed expert."""
        return (self.ffn.latent_size if isinstance(self.ffn, MixtureOfExperts) else None) or self.hidden_size

    @property
    def experts_per_token(self) -> int:
        return self.ffn.experts_per_token if isinstance(self.ffn, MixtureOfExperts) else 0

    def linears(self, sizes: ParallelSizes) -> tuple[WeightMatrix, ...]:
        """Every matrix of the layer on one rank, in forward order."""
        key = sizes.tp, sizes.expert_tp, sizes.ep
        if key not in self._linears_of:
            h, ffn = self.hidden_size, self.ffn
            of_ffn = ffn.linears(h, sizes.tp) if isinstance(ffn, FeedForward) else ffn.linears(h, sizes)
            matrices = [*self.attention.linears(h, sizes.tp), *of_ffn]
            if self.conditioned:
                matrices = self.conditioned.linears(h, sizes.tp, matrices)
            matrices += mixing_operators(self.streams, h, self.num_sublayers) if self.streams > 1 else ()
            matrices += [_weighing(h)] * self.num_sublayers if self.summed_residuals else ()
            if self.training:
                matrices = list(
                    trained_matrices(matrices, self.attention.linears(h, sizes.tp), self.training, sizes)
                )
            self._linears_of[key] = tuple(matrices)
        return self._linears_of[key]

    @cached_property
    def _linears_of(self) -> dict[tuple[int, int, int], tuple[WeightMatrix, ...]]:
        """Cache, because a search asks for the same divisions repeatedly."""
        return {}

    @cached_property
    def lists(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def all_linears(self) -> tuple[WeightMatrix, ...]:
        return self.linears(ParallelSizes())

    @property
    def norm_parameters(self) -> int:
        has_streams = self.conditioned is not None and self.conditioned.text > 0
        of_heads = (1 + has_streams) * self.attention.norm_parameters
        return self.num_norms * norm_parameters(self.norm, self.hidden_size) + of_heads

    @property
    def expert_parameters(self) -> int:
        return sum(linear.weights + linear.biases for linear in self.all_linears if linear.kind == "routed")

    @property
    def parameters(self) -> int:
        return sum(linear.weights + linear.biases for linear in self.all_linears) + self.norm_parameters

    @property
    def active_parameters(self) -> int:
        ffn = self.ffn
        if not isinstance(ffn, MixtureOfExperts):
            return self.parameters
        unused = ffn.num_experts - ffn.experts_per_token
        return self.parameters - self.expert_parameters // ffn.num_experts * unused

    @cached_property
    def weights_per_token(self) -> float:
        """Mean number of weights that multiply a token: of k experts, and of its own stream (text or image)."""
        return sum(
            self._weights_a_token(linear)
            for linear in self.all_linears
            if linear.kind not in ("vector", "condition")
        )

    @cached_property
    def frozen_weights_per_token(self) -> float:
        return sum(
            self._weights_a_token(linear)
            for linear in self.all_linears
            if not linear.trainable and linear.kind not in ("vector", "condition")
        )

    def _weights_a_token(self, one: WeightMatrix) -> float:
        return one.size * (self.experts_per_token if one.kind in ("routed", "routed adapter") else one.rows)

    def forward_flops(self, sequence_length: int, *, causal: bool = False) -> float:
        """FLOPs per token: 2 per weight of a GEMM, and the mixer's core, with half the scores if `causal`.

        Norms, activations, rotations and convolutions are not counted.
        """
        return 2.0 * self.weights_per_token + self.attention.core_flops(sequence_length, causal=causal)

    def left_out_flops(self, sequence_length: int, *, causal: bool = False) -> float:
        """Training FLOPs per token that frozen weights save: weight gradients, or the whole backward."""
        if not self.has_backward:
            return 2.0 * self.forward_flops(sequence_length, causal=causal)
        return 2.0 * self.frozen_weights_per_token


@dataclass(frozen=True)
class Model:
    """Layers in order between an embedding and a head of `vocab_size`.

    - `projected_size`: width of an embedding narrower than the layers, with a projection in and out (OPT-350m).
    - `mtp`: multi-token prediction layers (DeepSeek-AI 2024, arXiv 2412.19437, §2.2); `repeats_mtp`: all are one
      layer that runs again (Megatron-LM's mtp_use_repeated_layer).
    - `patches`: of a diffusion transformer; `vocab_size` is then its output size.
    - `left_out`: sentence about parts of the published model that are ignored.
    - `notes`: assumptions, such as how the model was traced.
    - `extra`: for a traced model, parameters before its layers, after its layers, and after its layers in GEMMs.
    - `fine_tuning`: None if all weights are trained.
    """

    layers: tuple[Layer, ...]
    vocab_size: int
    sequence_length: int
    tied_embeddings: bool = False
    learned_positions: int = 0
    final_norm: bool = True
    projected_size: int | None = None
    mtp: tuple[Layer, ...] = ()
    repeats_mtp: bool = False
    source: str = ""
    patches: Patches | None = None
    left_out: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    extra: tuple[int, int, int] = (0, 0, 0)
    fine_tuning: FineTuning | None = None
    encoders: tuple[Encoder, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "sequence_length")
        require_layers(len(self.layers))

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        return tuple(dict.fromkeys((*self.layers, *self.mtp)))

    @cached_property
    def has_experts(self) -> bool:
        return any(layer.is_moe for layer in self.kinds)

    @cached_property
    def has_biased_experts(self) -> bool:
        return any(layer.ffn.expert.bias for layer in self.kinds if isinstance(layer.ffn, MixtureOfExperts))

    @property
    def hidden_size(self) -> int:
        return self.layers[0].hidden_size

    @property
    def streams(self) -> int:
        return self.layers[0].streams

    @property
    def residual_size(self) -> int:
        return self.streams * self.hidden_size

    @property
    def norm(self) -> Norm:
        return self.layers[0].norm

    def table(self, vocab_size: int) -> int:
        return 0 if self.patches else vocab_size * (self.projected_size or self.hidden_size)

    def outside_weights(self, end: End, tp: int = 1) -> list[WeightMatrix]:
        """Weights of a part outside the layers, on a rank, without the table of the vocabulary."""
        h, patches = self.hidden_size, self.patches
        projection = (self.projected_size or 0) * h
        if end == "conditions":
            return patches.condition_linears(h) if patches else []
        if end == "embedding":
            first = patches.linears(h) if patches else [_outside("projection", projection + self.extra[0])]
            return [*first, _outside("positions", self.learned_positions * h)]
        if end == "mtp":
            own = 3 * norm_parameters(self.norm, h) + joining_parameters(self.streams, h)
            return [*mtp_linears(self.mtp[0], tp), _outside("norms and joining", own)]
        if patches:
            return [_outside("output", patches.head_parameters(h))]
        others = joining_parameters(self.streams, h) + projection + self.extra[1]
        others += _weighing(h).weights if self.layers[-1].summed_residuals else 0
        norm = self.final_norm * norm_parameters(self.norm, h)
        return [_outside("final norm", norm), _outside("others", others)]

    def outside_parameters(self, end: End, tp: int = 1) -> int:
        return sum(matrix.weights + matrix.biases for matrix in self.outside_weights(end, tp))

    @property
    def embedding_parameters(self) -> int:
        own = self.outside_parameters("embedding") + self.outside_parameters("conditions")
        return self.table(self.vocab_size) + own

    @property
    def head_parameters(self) -> int:
        return self.table(self.vocab_size) + self.outside_parameters("head")

    @property
    def parameters(self) -> int:
        """All parameters as published: tied ones once, without multi-token prediction."""
        head = self.outside_parameters("head") if self.tied_embeddings else self.head_parameters
        encoders = sum(encoder.parameters for encoder in self.encoders)
        return encoders + self.embedding_parameters + sum(layer.parameters for layer in self.layers) + head

    @cached_property
    def encoder_parts(self) -> tuple[EncoderPart, ...]:
        return tuple(EncoderPart(encoder, 0, len(encoder.layers)) for encoder in self.encoders)

    def with_images(self, text: str) -> "Model":
        images = [encoder for encoder in self.encoders if encoder.kind == "image"]
        if not images:
            raise ConfigError("--image-tokens is for a model with an image encoder, and this one has none")
        given = parse_images(text)
        encoders = (one.with_images(*given) if one in images else one for one in self.encoders)
        return replace(self, encoders=tuple(encoders))

    def without_encoders(self) -> "Model":
        if not self.encoders:
            return self
        left_out = " and ".join(
            f"{encoder.kind} encoder of {encoder.parameters / 1e9:.1f} B" for encoder in self.encoders
        )
        return replace(self, encoders=(), left_out=f"text model only, {left_out} parameters left out (--text-only)")

    @property
    def active_parameters(self) -> int:
        return self.parameters - sum(layer.parameters - layer.active_parameters for layer in self.layers)

    @property
    def mtp_parameters(self) -> int:
        return sum(layer.parameters + self.outside_parameters("mtp") for layer in self.distinct(self.mtp))

    def distinct(self, mtp: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return mtp[:1] if self.repeats_mtp else mtp

    def head_forward_flops(self) -> float:
        """FLOPs per token of the projection to the vocabulary."""
        h, width = self.hidden_size, self.projected_size
        return 2.0 * self.extra[2] + 2.0 * (self.vocab_size * h if width is None else width * (h + self.vocab_size))

    def training_flops(self, sequence_length: int | None = None, *, causal: bool = False) -> float:
        """Training FLOPs per token: three times the forward's GEMMs, including multi-token prediction.

        Attention counts all s × s scores unless `causal`. Recomputation is not counted. With fine-tuning, a frozen
        GEMM counts two times its forward, as in Megatron-Bridge (training/utils/flop_utils.py at 067f987d, for
        LoRA), and a layer before the first trained weight one time.

        >>> from ppsim.model.registry import find_model
        >>> round(find_model("gpt3-175b").training_flops() / 1e12, 3)  # 6 × 175e9, and attention's 12·96·12288·2048
        1.076
        """
        length = self.sequence_length if sequence_length is None else sequence_length
        if length < 1:
            raise ConfigError(f"sequence_length must be at least 1: got {length}")
        forward = sum(layer.forward_flops(length, causal=causal) for layer in (*self.layers, *self.mtp))
        forward += (1 + len(self.mtp)) * self.head_forward_flops()
        forward += sum(2.0 * linear.size * linear.rows for layer in self.mtp for linear in mtp_linears(layer))
        encoders = sum(encoder.training_flops for encoder in self.encoders) / length
        return 3.0 * forward + encoders - self._left_out_flops(length, causal=causal)

    def _left_out_flops(self, length: int, *, causal: bool) -> float:
        if self.fine_tuning is None:
            return 0.0
        layers = sum(layer.left_out_flops(length, causal=causal) for layer in (*self.layers, *self.mtp))
        heads = (not self.trains("head")) + (not self.head_gives_gradient)
        of_mtp = sum(2.0 * linear.size * linear.rows for layer in self.mtp for linear in mtp_linears(layer))
        return layers + heads * (1 + len(self.mtp)) * self.head_forward_flops() + (not self.trains("mtp")) * of_mtp

    def trains(self, word: str) -> bool:
        """`word`: embedding, head, norms or mtp. If embedding and head are tied, freezing one freezes both."""
        words = ("embedding", "head") if self.tied_embeddings and word in ("embedding", "head") else (word,)
        return self.fine_tuning is None or all(map(self.fine_tuning.trains, words))

    @property
    def head_gives_gradient(self) -> bool:
        return self.trains("norms") or self.layers[-1].has_backward

    def with_fine_tuning(self, tuning: FineTuning | None) -> "Model":
        """Set the trained weights; raises `ConfigError` if the model lacks a module or nothing is trained.

        >>> from ppsim.model.registry import find_model
        >>> model = find_model("llama3-8b").with_fine_tuning(FineTuning(16, ("linear_qkv",)))
        >>> sum(one.weights for one in model.kinds[0].all_linears if one.trainable) == 16 * (4096 + 6144)
        True
        """
        if tuning == self.fine_tuning:
            return self
        if tuning is None:
            layers, mtp = ([replace(one, training=None) for one in of] for of in (self.layers, self.mtp))
            encoders = tuple(one.with_training(None) for one in self.encoders)
            return replace(self, layers=tuple(layers), mtp=tuple(mtp), encoders=encoders, fine_tuning=None)
        base = self.with_fine_tuning(None)
        _require_parts(base, tuning)
        trained_layers: dict[tuple[int, LayerTraining], Layer] = {}
        encoders = tuple(encoder.with_training(tuning) for encoder in base.encoders)
        has_backward = replace(base, fine_tuning=tuning).trains("embedding")
        has_backward = has_backward or any(one.trains_layers or one.trains_projector for one in encoders)
        layers = []
        for number, layer in enumerate((*base.layers, *base.mtp)):
            training = tuning.of_layer(number)
            trained = replace(layer, training=training)
            has_backward = has_backward or trained.has_trained_weights
            key = id(layer), training._replace(has_backward=has_backward)
            layers.append(trained_layers.setdefault(key, replace(layer, training=key[1])))
        number = len(base.layers)
        tuned = replace(base, layers=tuple(layers[:number]), mtp=tuple(layers[number:]), encoders=encoders)
        tuned = replace(tuned, fine_tuning=tuning)
        if not (tuned.trains("head") or tuned.head_gives_gradient):
            raise ConfigError("--freeze leaves no weight to train: leave out one of its words")
        return tuned

    def rule_of_thumb_flops(self) -> float:
        """6N per token, with N the parameters used by one token (Kaplan et al. 2020, arXiv 2001.08361)."""
        return 6.0 * self.active_parameters

    def with_layers_in_16_bits(self, at_start: int, at_end: int) -> "Model":
        """Give 16 bits to the GEMMs of the first and last layers (Megatron-LM's `first_last_layers_bf16`).

        >>> from ppsim.model.registry import find_model
        >>> model = find_model("llama3-8b").with_layers_in_16_bits(1, 2)
        >>> [number for number, layer in enumerate(model.layers) if layer.in_16_bits]
        [0, 30, 31]
        """
        number = len(self.layers)
        wide = [at < at_start or at >= number - at_end for at in range(number)]
        if wide == [layer.in_16_bits for layer in self.layers]:
            return self
        keys = list(zip(self.layers, wide, strict=True))
        layers = {(layer, in_16_bits): replace(layer, in_16_bits=in_16_bits) for layer, in_16_bits in keys}
        return replace(self, layers=tuple(layers[key] for key in keys))

    def with_layers(self, num_layers: int) -> "Model":
        require_layers(num_layers)
        more = (self.layers[-1],) * max(0, num_layers - len(self.layers))
        return replace(self, layers=self.layers[:num_layers] + more)


def _require_parts(model: Model, tuning: FineTuning) -> None:
    if model.patches:
        raise ConfigError("--lora and --freeze are for language models: leave them out for a diffusion model")
    modules, groups = set[str](), {"embedding", "norms", "head", "layers"}
    for layer in model.kinds:
        mixer = layer.attention.linears(layer.hidden_size, 1)
        modules |= {name for linear in layer.all_linears if (name := lora_module_of(linear, mixer))}
        groups |= {group_of(one, 1 if one in mixer else 2) for one in layer.all_linears}
    # A model may lack some of the default modules: latent attention has no linear_qkv.
    wanted = (
        set(tuning.modules) if tuning.modules != DEFAULT_MODULES or not modules & set(DEFAULT_MODULES) else set()
    )
    if missing := [name for name in tuning.modules if name in wanted - modules]:
        raise ConfigError(f"--lora: the model has no {missing[0]}, only {', '.join(sorted(modules))}")
    groups |= {"encoder", "projector"} if model.encoders else set()
    if wrong := sorted(tuning.frozen - groups):
        raise ConfigError(f"--freeze: the model has no {wrong[0]}, only {', '.join(sorted(groups))}")
    if tuning.layers and max(tuning.layers) >= len(model.layers):
        raise ConfigError(
            f"--freeze has layer {max(tuning.layers)}, but the last of the model is {len(model.layers) - 1}"
        )


def _weighing(h: int) -> WeightMatrix:
    """Parameters that compute the weight of a residual in a sum: a norm and a projection to one number."""
    return WeightMatrix("weights of residuals", "residuals", 1, (h, h), kind="vector")


def _outside(name: str, number: int) -> WeightMatrix:
    """Weights that are in no GEMM."""
    return WeightMatrix(name, "", 1, (number,), "vector")


def norm_parameters(norm: Norm, h: int) -> int:
    return {"layernorm": 2 * h, "rmsnorm": h, "plain": 0}[norm]


def mtp_linears(layer: Layer, tp: int = 1) -> list[WeightMatrix]:
    """Projection before a multi-token prediction layer.

    With residual streams, the embedding has a projection, and all streams share a second projection.
    """
    h, out = layer.hidden_size, (layer.hidden_size // tp,)
    if layer.streams == 1:
        return [WeightMatrix("projection of two tokens", "both in a row", 2 * h, out, split="outputs")]
    streams = WeightMatrix("projection of streams", "streams", h, out, split="outputs", rows=layer.streams)
    return [WeightMatrix("projection of the token", "embedding", h, out, split="outputs"), streams]
