"""Bytes per element of the number formats."""

import pytest

from ppsim.base.number_formats import OPERAND_BYTES, activation_bytes, at_least_16_bits


def test_operands_of_8_or_4_bits_have_scales() -> None:
    """One float32 per 128 values, one byte per 32 values (MX formats), one byte per 16 values (NVFP4)."""
    assert OPERAND_BYTES == {
        "float8": 1, "float8-row": 1, "float8-block": 132 / 128, "mxfp8": 33 / 32, "float4": 1 / 2, "nvfp4": 9 / 16,
        "mxfp4": 17 / 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "num_bytes"), [("float32", 4), ("tf32", 4), ("float64", 8), ("bfloat16", 2), ("float8", 2)]
)
def test_activations_have_16_bits_except_for_jobs_of_32_or_64_bits(dtype: str, num_bytes: int) -> None:
    assert activation_bytes(dtype) == num_bytes


def test_formats_of_fewer_bits_become_bfloat16() -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        assert at_least_16_bits(dtype) == dtype
    assert at_least_16_bits("float8") == at_least_16_bits("float64") == "bfloat16"
