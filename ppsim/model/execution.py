"""Execution options of a microbatch: number formats, kernels, recomputation and overlap."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.number_formats import OPERAND_BYTES, activation_bytes, at_least_16_bits
from ppsim.base.user_defaults import DISPATCHER_SMS, FLEX, Dispatcher
from ppsim.model.cuda_graphs import CudaGraphs, cuda_graphs_of
from ppsim.model.recompute import Recompute, require_spelling

CrossEntropy: TypeAlias = Literal["fused", "compiled", "unfused", "chunked"]
"""Implementation of the cross-entropy loss.

fused: one kernel (TransformerEngine's), whose gradient replaces the logits, in their dtype. unfused: the float32
softmax is held until the gradient has the dtype of the logits. compiled: the same operators under torch.compile
(Megatron-LM's `--cross-entropy-fusion-impl native`), which copy the softmax in the backward; with FSDP2, torch's
loss, which has no float32 tensor. chunked: head and unfused loss, forward and backward, of one of `CHUNKS` parts of
the tokens after another (TorchTitan, components/loss.py: `ChunkedLossWrapper`, since 786e26f8 of April 2026, in all
configurations of 0.3).
"""

CHUNKS = 8
"""Parts of the tokens of a chunked loss (`ChunkedLossWrapper.Config.num_chunks`)."""


def moved_of_loss(loss: CrossEntropy, e: int, *, fills: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the bytes moved per logit and the number of kernels, in F and in I.

    - unfused: a float32 copy, maximum, difference, exponential, sum and quotient each pass over the logits (without
      the copy if they are in float32).
    - compiled: the kernels that torch.compile (2.13) generates for Megatron-LM's `fused_cross_entropy.py`. F:
      float32 copy and maximum, exponential and sum, quotient. I: a copy of the softmax minus one, and its product
      with the gradient, written twice.
    - chunked: as unfused, with the kernels of each part of the tokens.

    `fills`: deterministic mode fills the memory of the float32 copy and of the copy back first.
    """
    if loss == "fused":
        return (4 * e, 2), (2 * e, 1)
    if loss == "compiled":
        return (20 + e, 3), (16 + e, 3)
    forward, backward = (32, 12) if e == 2 else (26, 8)
    parts = CHUNKS if loss == "chunked" else 1
    return (forward + 4 * fills, parts * (8 + fills)), (backward + e * fills, parts * (3 + fills))


def held_in_backward(
    loss: CrossEntropy, e: int, *, is_torch: bool = False, tp: int = 1
) -> list[tuple[float, float, int]]:
    """Return the bytes held in the backward of the loss, and in the backward of the head if it needs others.

    They are per logit, of the logits and of their gradients, and per element of the head's input, of its gradient:
    a chunked loss adds it up in float32.

    `is_torch`: torch's own loss, used with FSDP2, adds two float32 tensors, the gradients of the log-softmax and of
    the logits, and with tensor parallelism an exponential (torch, distributed/tensor/parallel/loss.py:
    `_nll_loss_and_log_softmax_backward`). A chunked loss has all this for a part of the tokens.
    """
    wide, of_torch = max(e, 4), 8 if tp == 1 else 12
    if loss == "fused":
        return [(e, 0, 0)]
    if loss == "chunked":
        return [(0, (wide + of_torch) / CHUNKS, 4)]
    if loss == "compiled" and is_torch:
        return [(e, e, 0)]
    return [(wide, of_torch if is_torch else e + 4 * (loss == "compiled"), 0), (0, e, 0)]


Order = Literal["megatron", "megatron-delay-wgrad", "dualpipe", "best"]
"""Order of the operations of a forward and a backward that run together (`ppsim.costs.pair_overlap`)."""

ORDERS: tuple[Order, ...] = get_args(Order)

_HIDDEN = {"tp": ("hidden_tp_forward", "hidden_tp_backward"), "ep": ("overlap_ep",)}
"""The fields scaled by a cluster's `overlap` constant, per kind of communication."""


def hidden_tp_of(given: str | float) -> dict[str, float]:
    """Return the fields of `Execution` for --overlap-tp: one part for both passes, or FORWARD,BACKWARD.

    >>> hidden_tp_of("0.75,0.5"), hidden_tp_of(0.5)["hidden_tp_backward"]
    ({'hidden_tp_forward': 0.75, 'hidden_tp_backward': 0.5}, 0.5)
    """
    try:
        parts = [float(part) for part in str(given).split(",")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 2) or not all(0 <= part <= 1 for part in parts):
        raise ConfigError(f"--overlap-tp is '{given}': give a part from 0 to 1, or FORWARD,BACKWARD as 0.75,0.5")
    return {"hidden_tp_forward": parts[0], "hidden_tp_backward": parts[-1]}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution options of a microbatch.

    attention
        "fused-fp8" has both of its GEMMs in 8 bits (TransformerEngine's fp8_dot_product_attention); "unfused"
        writes all s × s scores to memory.
    sequence_parallel
        Korthikanti et al. 2022, arXiv 2205.05198.
    deterministic_mode
        Only kernels with a fixed summation order; the cross entropy is then not fused.
    compile
        True: torch.compile fuses the operators between the GEMMs of TorchTitan's blocks; False: each operator runs
        by itself; None: the kernels of Megatron-LM and TransformerEngine.
    context
        Exchange of keys and values among cp ranks; "all-gather" as in torch, which repeats keys and values for all
        query heads first.
    dispatcher_sms
        SMs that exchange tokens (Megatron-LM's moe_flex_dispatcher_num_sms). None: the dispatcher's default.
    expert_imbalance
        Tokens of the rank whose experts get the most, relative to the mean; all other ranks wait for this rank.
    expert_capacity
        Tokens to which each expert is padded or cut, relative to the mean; None: no limit.
    fused_experts
        Grouped GEMMs for a rank's experts, with activation, cast, biases and weighting fused (TransformerEngine's
        op fuser, cuDNN's grouped_gemm_glu and grouped_gemm_dglu), and dense MLPs whose activation casts its result
        (the same flag of Megatron-LM, `use_transformer_engine_op_fuser`).
    activation_func_fp8_input_store
        Gated activations save their inputs in 8 bits.
    legacy_grouped_gemm
        Experts' GEMMs by the grouped_gemm package, which on AMD GPUs calls hipBLAS per expert (Megatron-LM's
        moe_use_legacy_grouped_gemm).
    moe_permute_fusion
        TransformerEngine's fused kernels sort tokens by expert and sum their outputs. False: torch's gather and
        scatter-add (Megatron-LM, `moe/moe_utils.py`, permute and unpermute).
    expert_rank_capacity
        Buffer for the tokens of a rank's experts, relative to the mean (Megatron-LM's
        moe_expert_rank_capacity_factor). None: exact size, which the host reads.
    paged_stash
        Buffer for experts' saved activations, relative to the mean, in pages (Megatron-LM's moe_paged_stash and its
        buffer_size_factor_cuda). A stream of its own copies next to the following kernels (`moe/paged_stash.py`),
        so the copies take no time here.
    hidden_tp_forward, hidden_tp_backward, overlap_ep, hidden_cp
        Fraction of the communication overlapped with compute, 0 to 1, or for `overlap_ep` the name of an order of
        operations (`ppsim.costs.pair_overlap`). Megatron-LM overlaps an all-reduce of the backward with the weight
        gradient.
    compute_share
        Multiplier on GEMM and attention throughput, relative to the GPU type; None: the cluster's constants.
    fused_activation
        If false, SwiGLU also saves SiLU of the gate.
    gradient_placeholders
        TransformerEngine's weight-gradient fusion gives autograd an uninitialised tensor per weight shape
        (`get_dummy_wgrad`), and Megatron-LM one of the head's shape; torch's FSDP2 does not.
    weighted_output
        Routing weights multiply the experts' saved output instead of their activation (Megatron-LM until April
        2025, 26596307).
    norm_in_gemm
        TransformerEngine's `LayerNormLinear`, which torch.compile and eager blocks do not have.
    """

    dtype: str = "bfloat16"
    attention: Literal["fused", "fused-fp8", "unfused"] = "fused"
    recompute: Recompute = "none"
    cuda_graphs: CudaGraphs = "none"
    sequence_parallel: bool = False
    dropout: bool = False
    cross_entropy: CrossEntropy = "fused"
    deterministic_mode: bool = False
    compile: bool | None = None
    context: Literal["ring", "all-to-all", "all-gather"] = "ring"
    moe_dispatcher: Dispatcher = "deepep"
    dispatcher_sms: int | None = None
    expert_imbalance: float = 1.0
    expert_capacity: float | None = None
    fused_experts: bool = False
    activation_func_fp8_input_store: bool = False
    legacy_grouped_gemm: bool = False
    moe_permute_fusion: bool = True
    expert_rank_capacity: float | None = None
    paged_stash: float | None = None
    hidden_tp_forward: float = 0.0
    hidden_tp_backward: float = 0.0
    overlap_ep: float | Order = 0.0
    hidden_cp: float = 0.0
    compute_share: float | None = None
    fused_activation: bool = True
    gradient_placeholders: bool = True
    weighted_output: bool = False
    norm_in_gemm: bool = True

    @property
    def attention_dtype(self) -> Literal["float8", "mxfp8"] | None:
        """Format of attention's GEMMs in 8 bits.

        With GEMMs in MXFP8, attention is in MXFP8; otherwise it has one scale per tensor, with delayed scaling
        (TransformerEngine, `NVTE_DPA_FP8_RECIPE`).
        """
        if self.attention != "fused-fp8":
            return None
        return "mxfp8" if self.dtype == "mxfp8" else "float8"

    @property
    def overlap_tp(self) -> str:
        """Value of `--overlap-tp`: FORWARD,BACKWARD or one number for both."""
        return ",".join(
            repr(float(part)).removesuffix(".0")
            for part in dict.fromkeys((self.hidden_tp_forward, self.hidden_tp_backward))
        )

    @property
    def tp_overlap_text(self) -> str:
        parts = dict.fromkeys((self.hidden_tp_forward, self.hidden_tp_backward))
        if not any(parts):
            return "TP communication exposed"
        texts = [f"{100 * part:g} %" for part in parts]
        return (
            f"TP communication {texts[0]} hidden"
            if len(texts) == 1
            else (f"TP communication {texts[0]} (forward) and {texts[1]} (backward) hidden")
        )

    @property
    def num_dispatcher_sms(self) -> int:
        return self.dispatcher_sms or DISPATCHER_SMS[self.moe_dispatcher]

    @property
    def expert_load(self) -> float:
        """Tokens of the most loaded rank's experts, relative to the mean."""
        return self.expert_imbalance if self.expert_capacity is None else self.expert_capacity

    @property
    def is_dropless(self) -> bool:
        """True if the host must read the number of tokens of a rank's experts."""
        return self.expert_capacity is None and self.expert_rank_capacity is None

    @property
    def fp8_activation_inputs(self) -> tuple[str, ...]:
        """MLPs (fed: dense, shared, routed) whose gated activation saves its input in 8 bits, without a scale.

        Source: Megatron-LM at d98e8a64, core/fusions/fused_bias_swiglu.py: `fp8_input_store`. The op fuser's
        grouped kernels ignore the option (`moe/experts.py`).
        """
        if not self.activation_func_fp8_input_store:
            return ()
        return ("fed", "shared") if self.fused_experts else ("fed", "shared", "routed")

    @property
    def expert_buffer_factor(self) -> float:
        """Size of the buffer for experts' saved activations, relative to the mean."""
        return self.paged_stash or self.expert_rank_capacity or 1.0

    @property
    def element_bytes(self) -> int:
        """Bytes per element of activations and their messages."""
        return activation_bytes(self.dtype)

    @property
    def operand_bytes(self) -> float | None:
        """Bytes per element of a GEMM operand in 8 or 4 bits, with its part of a scale; None: it is not cast."""
        return OPERAND_BYTES.get(self.dtype)

    @property
    def fuses_norms(self) -> bool:
        """True if a norm can be a part of the GEMM that follows it."""
        return self.norm_in_gemm and self.compile is None

    @cached_property
    def saved_tensors(self) -> tuple[object, ...]:
        """The choices that determine the tensors of a layer, for caches."""
        return (
            self.dtype, self.attention, self.context, self.dropout, self.fused_activation, self.weighted_output,
            self.fuses_norms, self.fp8_activation_inputs, self.expert_buffer_factor,
        )  # fmt: skip

    def in_16_bits(self) -> "Execution":
        """Return the options of a layer that runs in 16 bits, with TransformerEngine's attention in 16 bits."""
        attention = "fused" if self.attention == "fused-fp8" else self.attention
        return replace(self, dtype=at_least_16_bits(self.dtype), attention=attention)

    def of_encoder(self, *, is_full: bool) -> "Execution":
        """Return the options of an encoder, which runs in 16 bits; `is_full`: it recomputes its layers."""
        return replace(
            self.in_16_bits(),
            recompute="full" if is_full else "none", sequence_parallel=False,
            hidden_tp_forward=0.0, hidden_tp_backward=0.0, overlap_ep=0.0, hidden_cp=0.0, dropout=False,
            cuda_graphs="full" if self.cuda_graphs == "full" else "none",
        )  # fmt: skip

    @property
    def gathered_share(self) -> float:
        """Message size of a gathered GEMM operand relative to activations: below 1 if it is cast before it is sent.

        TransformerEngine gathers quantized tensors (`module/_common.py` and `distributed.py`), and so does
        TorchAO's `Float8ColwiseParallel`, except for operands with a scale per row.
        """
        if self.dtype == "float8-row":
            return 1.0
        return (self.operand_bytes or self.element_bytes) / self.element_bytes

    def overlapping(self, times: Mapping[str, float]) -> "Execution":
        """Return a copy with hidden fractions of tp and ep communication multiplied by `times`, at most 1."""
        hidden = {
            name: min(1.0, times[kind] * getattr(self, name))
            for kind, names in _HIDDEN.items() if kind in times
            for name in names
            if not isinstance(getattr(self, name), str)
        }  # fmt: skip
        return replace(self, **hidden)

    @property
    def ep_order(self) -> Order | None:
        return self.overlap_ep if isinstance(self.overlap_ep, str) else None

    @property
    def hidden_ep(self) -> float:
        """The fraction is 0 if communication is hidden by pairs (`ep_order`)."""
        return 0.0 if isinstance(self.overlap_ep, str) else self.overlap_ep

    def __post_init__(self) -> None:
        require_spelling(self.recompute)
        if (word := cuda_graphs_of(self.cuda_graphs)) != self.cuda_graphs:
            raise ConfigError(f"--cuda-graphs '{self.cuda_graphs}' is spelled '{word}'")
        if self.attention == "fused-fp8" and self.operand_bytes is None:
            raise ConfigError(
                f"--attention fused-fp8 is for GEMMs in 8 or 4 bits: got --dtype {self.dtype} (give --dtype mxfp8, "
                "or --attention fused)"
            )
        if self.deterministic_mode and self.cross_entropy != "unfused":
            raise ConfigError(
                "deterministic mode has no fused cross entropy (Megatron-LM refuses both): "
                "give --cross-entropy unfused too"
            )
        if self.compile is False and self.hidden_tp_forward + self.hidden_tp_backward > 0:
            raise ConfigError(
                f"--overlap-tp {self.overlap_tp} is of products that torch.compile makes: give --compile, or "
                "--overlap-tp 0"
            )
        if not 1 <= self.expert_imbalance < float("inf"):
            raise ConfigError(f"--expert-imbalance is 1 (even) or more: got {self.expert_imbalance:g}")
        if self.expert_capacity is not None and not 0 < self.expert_capacity < float("inf"):
            raise ConfigError(f"--moe-expert-capacity-factor must be above 0: got {self.expert_capacity:g}")
        self._require_room()
        self._require_sms()
        for kind, names in (*_HIDDEN.items(), ("cp", ("hidden_cp",))):
            for hidden in (getattr(self, name) for name in names):
                if hidden not in ORDERS and not 0 <= hidden <= 1:
                    raise ConfigError(f"--overlap-{kind} is a part from 0 to 1: got {hidden}")
        if self.compute_share is not None and not 0 < self.compute_share < float("inf"):
            raise ConfigError(f"--compute-scale is a number above 0: got {self.compute_share:g}")

    def _require_room(self) -> None:
        """Raise `ConfigError` for expert buffers that Megatron-LM's `TransformerConfig` refuses."""
        room, stash = self.expert_rank_capacity, self.paged_stash
        for name, value in (("--moe-expert-rank-capacity-factor", room), ("--moe-paged-stash", stash)):
            if value is not None and not 1 <= value < float("inf"):
                raise ConfigError(f"{name} is 1 (as many as come where loads are even) or more: got {value:g}")
        if room is not None and not (self.fused_experts and self.moe_dispatcher == "hybridep"):
            raise ConfigError(
                f"--moe-expert-rank-capacity-factor {room:g} goes with --moe-dispatcher hybridep and "
                "--fused-experts"
            )
        if stash is not None and room is None:
            raise ConfigError(f"--moe-paged-stash {stash:g} goes with --moe-expert-rank-capacity-factor")

    def _require_sms(self) -> None:
        sms = self.dispatcher_sms
        if sms is None:
            return
        if sms < 1:
            raise ConfigError(f"--moe-flex-dispatcher-num-sms is 1 or more: got {sms}")
        if self.moe_dispatcher not in FLEX:
            raise ConfigError(
                f"--moe-flex-dispatcher-num-sms {sms} goes with --moe-dispatcher deepep or hybridep: got "
                f"{self.moe_dispatcher}"
            )
