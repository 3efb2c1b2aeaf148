"""Implementations of the cross-entropy loss."""

from typing import Literal, TypeAlias

CrossEntropy: TypeAlias = Literal["fused", "compiled", "unfused"]
"""Implementation of the cross-entropy loss.

fused: one kernel (TransformerEngine's), whose gradient replaces the logits, in their dtype. unfused: the float32
softmax is held until the gradient has the dtype of the logits. compiled: the same operators under torch.compile
(Megatron-LM's `--cross-entropy-fusion-impl native`), which copy the softmax in the backward.
"""
