"""Detection of the attention kernel that torch chooses."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_FUSED = r"aten::_(?:scaled_dot_product_)?(flash|efficient|cudnn|fused)_attention\w*"


class _Fused(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if found := re.fullmatch(_FUSED, func._schema.name):
            self.names[found[1]] = None
        return func(*args, **(kwargs or {}))


def attention_in(forward: Callable[[], object]) -> str:
    """Return the fused attention kernels that a forward calls, or "math" if it uses separate GEMMs.

    >>> q = torch.randn(1, 2, 16, 8)
    >>> attention_in(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    'flash'
    """
    # Otherwise a compiled function that is first called in a dispatch mode would never be compiled.
    with torch.compiler.set_stance("force_eager"), _Fused() as fused:
        forward()
    return " + ".join(fused.names) or "math"
