"""Bytes per element in the number formats of GEMMs."""

OPERAND_BYTES = {
    "float8": 1.0, "float8-row": 1.0, "float8-block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "float4": 0.5,
    "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32,
}  # fmt: skip
"""Bytes per operand element including its scales: 4 bytes per 128 values, 1 per 32, 1 per 16 (NVFP4)."""


def at_least_16_bits(dtype: str) -> str:
    return dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16"


def activation_bytes(dtype: str) -> int:
    """Activations have 16 bits, except for 32-bit and 64-bit jobs."""
    return {"float32": 4, "tf32": 4, "float64": 8}.get(dtype, 2)
