"""The shape of a microbatch, and the choices of an implementation that decide which tensors a forward saves."""

from dataclasses import dataclass
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.model.losses import CrossEntropy
from ppsim.model.recompute import Recompute, recomputes, require_spelling
from ppsim.parallel.sizes import Cut, require_positive


@dataclass(frozen=True)
class KernelChoice:
    """What the implementation keeps.

    `flash_attention`: the log-sum-exp of the scores instead of the scores (Dao et al. 2022, arXiv 2205.14135).
    `dropout`: masks of 1 byte an element. `fused_activation`: SwiGLU keeps gate and up, and its product, not also
    SiLU of the gate. `cp_communication`: "a2a" holds attention's output a second time, in the layout before the
    exchange; "p2p" (ring) does not. `gradient_placeholders`: TransformerEngine's weight-gradient fusion hands
    autograd an uninitialised tensor of each weight's shape, kept once a shape (`get_dummy_wgrad`), and Megatron-LM
    one of the head's.

    `input_bytes`: what a product keeps of an element of its input for its weight's gradient, in 8 or 4 bits with
    its part of a scale; None: the input as it is. `weight_copy_bytes`: what TransformerEngine holds beside each
    weight of a product in 8 or 4 bits, by rows and by columns, from a step's first microbatch on. `expert_room`:
    what there is room for of what experts keep, of the mean. `eager`: `selective-op` also holds what nothing in the
    backward needs, as compiled blocks do not: the last product's output, where its turn is to be kept, and what is
    scattered of it (torch, utils/checkpoint.py: `_CachingTorchDispatchMode`).
    `weighted_output`: routing weights multiply the experts' output, which is saved for it, not their activation
    (Megatron-LM until April 2025, 26596307). `norm_in_gemm`: see `ppsim.model.blocks.has_norm_in_gemm`.
    """

    flash_attention: bool = True
    dropout: bool = False
    fused_activation: bool = True
    cross_entropy: CrossEntropy = "fused"
    cp_communication: Literal["p2p", "a2a"] = "p2p"
    gradient_placeholders: bool = True
    input_bytes: float | None = None
    weight_copy_bytes: float = 0.0
    expert_room: float = 1.0
    eager: bool = False
    weighted_output: bool = False
    norm_in_gemm: bool = True


@dataclass(frozen=True)
class Batch:
    """The shape of a microbatch, and what is recomputed of it, as `ppsim.model.recompute` has it."""

    micro_batch: int
    sequence_length: int
    element_bytes: int = 2
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        require_positive(self, "micro_batch", "sequence_length", "element_bytes")
        require_spelling(self.recompute)

    def recomputes(self, module: str) -> bool:
        """Whether a module is recomputed by itself."""
        return recomputes(self.recompute, module)

    def tokens(self, cut: Cut) -> int:
        """Tokens on a context-parallel rank."""
        if self.sequence_length % cut.cp:
            raise ConfigError(f"cp must divide the sequence length: got {cut.cp} with {self.sequence_length}")
        return self.micro_batch * self.sequence_length // cut.cp
