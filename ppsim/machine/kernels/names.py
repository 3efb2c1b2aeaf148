"""Names of kinds of kernels."""

from typing import Literal

Form = Literal["forward", "input", "weight"]
"""Operand layouts of the GEMMs of a linear layer with weight [out, in]: "forward" x Wᵀ (m tokens, n out, k in),
"input" dy W (m tokens, n in, k out), "weight" dyᵀ x (m out, n in, k tokens)."""

Kernels = Literal["products", "experts", "attention"]
"""Compute-bound kernels: GEMMs, grouped GEMMs of several experts, and attention."""

MemoryKernel = Literal["copy", "elementwise", "norm"]
