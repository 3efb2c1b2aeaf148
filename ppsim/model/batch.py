"""Shape of a microbatch, and implementation choices."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.model.recompute import Recompute, recomputes, require_spelling
from ppsim.parallel.sizes import ParallelSizes, require_positive

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


@dataclass(frozen=True)
class KernelChoice:
    """Implementation choices that affect saved tensors.

    - `flash_attention`: save the log-sum-exp instead of the scores (Dao et al. 2022, arXiv 2205.14135).
    - `fused_activation`: if false, SwiGLU also saves SiLU of the gate.
    - `cp_communication`: "a2a" also holds attention's output in the layout before the exchange; "p2p" (ring) does
      not.
    - `gradient_placeholders`: TransformerEngine's weight-gradient fusion gives autograd an uninitialised tensor per
      weight shape (`get_dummy_wgrad`), and Megatron-LM one of the head's shape.
    - `input_bytes`: bytes per element of a saved GEMM input in 8 or 4 bits, with its part of a scale; None: the
      input is saved as it is.
    - `expert_buffer_factor`: size of the buffer for experts' saved tensors, relative to the size for even loads.
    - `eager`: `selective-op` also holds tensors that the backward does not need (torch, utils/checkpoint.py:
      `_CachingTorchDispatchMode`).
    - `fp8_activation_inputs`: MLPs (fed: dense, shared, routed) whose gated activation saves its input in 8 bits,
      without a scale (Megatron-LM at d98e8a64, core/fusions/fused_bias_swiglu.py: `fp8_input_store`).
    - `weighted_output`: routing weights multiply the experts' saved output instead of their activation (Megatron-LM
      until April 2025, 26596307).
    """

    flash_attention: bool = True
    dropout: bool = False
    fused_activation: bool = True
    cross_entropy: CrossEntropy = "fused"
    cp_communication: Literal["p2p", "a2a"] = "p2p"
    gradient_placeholders: bool = True
    input_bytes: float | None = None
    expert_buffer_factor: float = 1.0
    eager: bool = False
    fp8_activation_inputs: tuple[str, ...] = ()
    weighted_output: bool = False
    norm_in_gemm: bool = True

    def of_layer(self, *, in_16_bits: bool) -> "KernelChoice":
        return replace(self, input_bytes=None) if in_16_bits and self.input_bytes is not None else self


@dataclass(frozen=True)
class Batch:
    """Shape of a microbatch, and its recomputation."""

    micro_batch: int
    sequence_length: int
    element_bytes: int = 2
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        require_positive(self, "micro_batch", "sequence_length", "element_bytes")
        require_spelling(self.recompute)

    def recomputes(self, module: str) -> bool:
        return recomputes(self.recompute, module)

    def tokens(self, cut: ParallelSizes) -> int:
        """Return the tokens on a context-parallel rank."""
        if self.sequence_length % cut.cp:
            raise ConfigError(f"cp must divide the sequence length: got {cut.cp} with {self.sequence_length}")
        return self.micro_batch * self.sequence_length // cut.cp
