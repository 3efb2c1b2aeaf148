"""Names of kinds of kernels and of operators."""

from typing import Literal

Form = Literal["forward", "input", "weight"]
"""Operand layouts of the GEMMs of a linear layer with weight [out, in]: "forward" x Wᵀ (m tokens, n out, k in),
"input" dy W (m tokens, n in, k out), "weight" dyᵀ x (m out, n in, k tokens).
"""

Kernels = Literal["products", "experts", "attention"]

MemoryKernel = Literal["copy", "elementwise", "norm"]

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
OPERATORS = ("gemm-DTYPE", "experts-DTYPE", "attention", "memory", "optimizer", *COLLECTIVES)
"""Kinds of operators whose time can be corrected; "memory" has norms, elementwise kernels and copies."""


def is_operator(name: str) -> bool:
    kind, _, dtype = name.partition("-")
    return name in OPERATORS[2:] or (kind in ("gemm", "experts") and bool(dtype))
