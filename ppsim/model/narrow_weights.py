"""Bytes of GEMM weights in 8 or 4 bits."""

from dataclasses import dataclass
from typing import Literal

WeightCache = Literal["none", "rowwise", "all"]


@dataclass(frozen=True)
class NarrowWeights:
    """Weights of the GEMMs inside layers in 8 or 4 bits. Embedding, head, router and norms always have 16 or more.

    - `operand_bytes`: bytes per weight of one copy, with its part of a scale.
    - `copies`: whole copies between two passes, one by rows and one by columns (TransformerEngine, module/base.py:
      `get_weight_workspace`); 0: each microbatch casts the weights again.
    - `is_primary`: there is no 16-bit weight (Megatron-LM's `fp8_param_gather` and `fp4_param_gather`); with FSDP2,
      weights are gathered in `operand_bytes` (TorchTitan's `enable_fsdp_float8_all_gather`).
    - `is_transposable`: the copy by columns is made from the copy by rows. MXFP8 has other scales for each.
    """

    operand_bytes: float
    copies: int
    is_primary: bool = False
    is_transposable: bool = True

    @property
    def bytes_of_copies(self) -> float:
        return self.copies * self.operand_bytes

    @property
    def sharded_bytes(self) -> float:
        """Bytes per primary weight that the data-parallel ranks share in ZeRO 3.

        Megatron-FSDP shards both copies of MXFP8 (param_and_grad_buffer.py at d98e8a64: `transpose_weight_buffer`).
        """
        return self.operand_bytes if self.is_transposable else 2 * self.operand_bytes

    def gathered_bytes(self, zero_stage: int) -> float:
        """Bytes per primary weight in an all-gather.

        ZeRO 3 gathers the copy that the pass reads. Otherwise MXFP8 weights are gathered in 16 bits, in the buffer
        of gradients (Megatron-LM, core/distributed/param_and_grad_buffer.py at d98e8a64: `shared_buffer`).
        """
        return self.operand_bytes if self.is_transposable or zero_stage == 3 else 2.0
