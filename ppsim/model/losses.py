"""How the loss of a language model is computed."""

from typing import Literal, TypeAlias

CrossEntropy: TypeAlias = Literal["fused", "compiled", "unfused"]
"""How the loss is computed.

fused: one kernel (TransformerEngine's), whose gradient takes the place of the logits, in their type. unfused: the
softmax stays in float32 until its gradient is in the type of the logits. compiled: the same operators under
torch.compile (Megatron-LM's `--cross-entropy-fusion-impl native`), which copy the softmax in their backward.
"""
