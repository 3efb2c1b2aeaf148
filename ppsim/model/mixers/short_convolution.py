"""The gated short convolution of LFM2 (Liquid AI 2025, arXiv 2511.23404).

Shapes and saved tensors as in transformers 4.57.1 (`modeling_lfm2.py`, `Lfm2ShortConv`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import FeedForward
from ppsim.model.config_parts import Part, Reader, attention_of, decoder_of, experts_of, layers_of
from ppsim.model.execution import Execution
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.mixer import Mixer, gemm, output
from ppsim.model.operators import Operator, Tensor
from ppsim.model.weight_matrices import WeightMatrix, of_columns, out_of_heads
from ppsim.parallel.sizes import ParallelSizes, require_positive


@dataclass(frozen=True)
class ShortConvolution(Mixer):
    """A causal convolution of `kernel` tokens per channel, between two gates."""

    channels: int
    kernel: int = 3
    bias: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "channels", "kernel")

    @property
    def divided(self) -> dict[str, int]:
        return {"channels of the convolution": self.channels}

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """FLOPs of convolutions are not counted, as in other mixers."""
        return 0.0

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        if sizes.cp > 1:
            raise ConfigError(
                f"context parallelism of a short convolution is not known: got cp {sizes.cp} (nearest: 1)"
            )

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        width = self.channels // tp
        return [
            WeightMatrix("gates, values", "attention input", h, (width,) * 3, split="outputs", biased=self.bias),
            of_columns("convolution", "gated values", (width,), inputs=self.kernel, biased=self.bias),
            out_of_heads(width, h, biased=self.bias),
        ]

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        inwards, _, out = self.linears(h, sizes.tp)
        tensors = {
            name: Tensor(name, "tokens", out.inputs, "attention")
            for name in ("B", "C", "value", "gated", "conv", "y")
        }
        yield gemm(inwards, "attn", "n1", (tensors["B"], tensors["C"], tensors["value"]))
        yield Operator("first gate", "attn", ("B", "value"), (tensors["gated"],), ("B", "value"), kind="gate")
        yield Operator("convolution", "attn", ("gated",), (tensors["conv"],), ("gated",), kind="convolution")
        yield Operator("second gate", "attn", ("C", "conv"), (tensors["y"],), ("C", "conv"), kind="gate")
        yield output(out, "y", h)


def _feed_forward(fields: ConfigFields) -> FeedForward:
    size = fields.count("block_ff_dim", "intermediate_size", default=12_288)
    if not any(fields.is_word("block_ffn_dim_multiplier", allowed) for allowed in (1, None)):
        fields.refuse("block_ffn_dim_multiplier", "is 1 in every release: other factors are not known")
    multiple = fields.count("block_multiple_of", default=256)
    adjusted = -(-(2 * size // 3) // multiple) * multiple
    return FeedForward(adjusted if fields.flag("block_auto_adjust_ff_dim", default=True) else size)


def _lfm2(fields: ConfigFields, parts: Part | Sequence[Part]) -> Model:
    number, attends = fields.num_layers(), fields.layers("full_attn_idxs")
    convolves = fields.words("layer_types", {"conv": True, "full_attention": False}, number)
    convolves = convolves or [bool(attends) and layer not in attends for layer in range(number)]
    kernel, bias = fields.count("conv_L_cache", default=3), fields.flag("conv_bias", default=False)
    mixer = ShortConvolution(fields.count("hidden_size"), kernel, bias)
    attention = attention_of(fields, qk_norm=True, qkv_bias=False)
    layers = layers_of(fields, [mixer if one else attention for one in convolves], parts)
    return decoder_of(fields, layers, tied=fields.flag("tie_embedding", default=True), length=128_000)


def _experts(fields: ConfigFields) -> list[Part]:
    expert, dense = (FeedForward(fields.count(f"{name}intermediate_size")) for name in ("moe_", ""))
    bias = fields.flag("use_expert_bias", default=True)
    experts = experts_of(fields, ("num_experts",), expert, router_bias=bias)
    first = fields.number("num_dense_layers", default=2)
    return [dense if layer < first else experts for layer in range(fields.num_layers())]


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "lfm2": lambda fields: _lfm2(fields, _feed_forward(fields)),
        "lfm2_moe": lambda fields: _lfm2(fields, _experts(fields)),
    }
)
