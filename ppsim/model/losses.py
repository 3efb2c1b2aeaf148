"""Implementations of the cross-entropy loss."""

from typing import Literal, TypeAlias

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
