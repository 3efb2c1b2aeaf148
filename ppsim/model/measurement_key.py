"""Kind and description of a layer's measurement, independent of the layer classes."""

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["gpt", "llama", "moe"]


def describe_key(shape: Mapping[str, Any]) -> str:
    """Missing sizes are 1, missing recomputation is none.

    >>> describe_key({"micro_batch": 1, "sequence_length": 4096, "dtype": "bfloat16", "tp": 8, "recompute": "full"})
    'micro-batch 1, sequence length 4096, bfloat16, tp 8, recompute full'
    """
    cuts = [f"{name} {shape[name]}" for name in ("tp", "cp", "ep") if shape.get(name, 1) > 1]
    recompute = shape.get("recompute", "none")
    parts = [f"micro-batch {shape['micro_batch']}", f"sequence length {shape['sequence_length']}", shape["dtype"]]
    return ", ".join([*parts, *cuts, *([f"recompute {recompute}"] if recompute != "none" else [])])
