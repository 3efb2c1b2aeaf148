"""What kinds of kernels there are, by name."""

from typing import Literal

Form = Literal["forward", "input", "weight"]
"""How the operands of a product lie, as a linear layer of weight [out, in] has them: "forward" x Wᵀ (m tokens, n
out, k in), "input" dy W (m tokens, n in, k out), "weight" dyᵀ x (m out, n in, k tokens)."""

Kernels = Literal["products", "experts", "attention"]
"""Kinds of kernels that compute: products, those of several experts in one launch, and attention."""

MemoryKernel = Literal["copy", "elementwise", "norm"]
