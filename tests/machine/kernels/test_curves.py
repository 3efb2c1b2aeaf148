"""Performance curves: rates between measured sizes, weighted by inverse squared distance in powers of two."""

from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.machine.kernels.curves import ELEMENT_BYTES, Curves
from ppsim.machine.kernels.microbenchmarks import (
    AttentionTime,
    DeviceMicrobenchmarks,
    GemmTime,
    MeasuredTime,
    MemoryKernelTime,
)
from ppsim.machine.kernels.times import AttentionCore


def seconds(value: float) -> MeasuredTime:
    return MeasuredTime(median=value, low=value / 2, high=value * 2)


def gemm(form: Any, m: int, n: int, k: int, took_s: float, *, groups: int = 1, dtype: str = "bfloat16") -> GemmTime:
    return GemmTime(form=form, m=m, n=n, k=k, groups=groups, dtype=dtype, seconds=seconds(took_s))


ATTENTION = [
    AttentionTime(
        micro_batch=2, num_heads=heads, num_kv_heads=1, sequence_length=length, head_size=16, dtype="bfloat16",
        forward_s=seconds(forward_s), backward_s=seconds(3 * forward_s),
    )
    for heads, length, forward_s in ((2, 64, 1e-3), (8, 256, 2e-3))
]  # fmt: skip
MEMORY = [
    MemoryKernelTime(kernel=kernel, bytes=num_bytes, dtype="bfloat16", seconds=seconds(took_s))
    for kernel, num_bytes, took_s in (("norm", 16, 1e-3), ("norm", 256, 4e-3), ("norm", 1024, 8e-3), ("copy", 8, 5e-3))
]  # fmt: skip


def curves(*products: GemmTime, **others: Any) -> Curves:
    given = {"products": list(products), "attention": ATTENTION, "memory": MEMORY} | others
    return Curves(DeviceMicrobenchmarks(**given), "bfloat16")


PRODUCTS = (gemm("forward", 4, 8, 16, 1e-6), gemm("forward", 64, 8, 16, 4e-6))
RATES = (2 * 4 * 8 * 16 / 1e-6, 2 * 64 * 8 * 16 / 4e-6)


@pytest.mark.parametrize(
    ("m", "n", "k", "shares"),
    [
        (4, 8, 16, (1, 0)),  # measured
        (16, 8, 16, (0.5, 0.5)),  # two doublings from each
        (8, 8, 16, (0.9, 0.1)),  # one and three doublings: weights 1 and 1/9
        (4, 8, 64, (20 / 24, 4 / 24)),  # squares 4 and 20
        (4, 32, 16, (20 / 24, 4 / 24)),
    ],
)
def test_a_rate_lies_between_the_nearest_sizes(m: int, n: int, k: int, shares: tuple[float, float]) -> None:
    rate = sum(share * rate for share, rate in zip(shares, RATES, strict=True))
    assert curves(*PRODUCTS).product_s("forward", m, n, k) == pytest.approx(2 * m * n * k / rate)


def test_only_the_four_nearest_sizes_count() -> None:
    near = [gemm("forward", 2**power, 8, 16, 2**power * 1e-6) for power in (2, 3, 5, 6)]  # 256 M FLOP/s each
    far = gemm("forward", 2**7, 8, 16, 1e-9)
    rate = 2 * 8 * 16 / 1e-6
    assert curves(*near, far).product_s("forward", 16, 8, 16) == pytest.approx(2 * 16 * 8 * 16 / rate)
    assert curves(*near[:3], far).product_s("forward", 16, 8, 16) < 16e-6


def test_no_gemm_is_faster_than_the_fastest_of_its_form() -> None:
    times = curves(*PRODUCTS, gemm("input", 4, 8, 16, 1e-9))
    assert times.product_s("forward", 1, 1, 1) == 1e-6
    assert times.product_s("input", 1, 1, 1) == 1e-9
    assert times.product_s("weight", 1, 1, 1) == 1e-9  # not measured: all forms


def test_grouped_gemms_that_were_not_measured_run_one_after_the_other() -> None:
    times = curves(*PRODUCTS, gemm("weight", 4, 8, 16, 3e-6))
    assert times.product_s("forward", 12, 8, 16, groups=3) == pytest.approx(3 * 1e-6)
    assert times.product_s("weight", 4, 8, 48, groups=3) == pytest.approx(3 * 3e-6)
    assert times.product_s("forward", 2, 8, 16, groups=3) == pytest.approx(3 * times.product_s("forward", 1, 8, 16))
    assert times.product_s("weight", 4, 8, 2, groups=3) == pytest.approx(3 * times.product_s("weight", 4, 8, 1))


def test_grouped_gemms_go_by_the_rows_of_a_group() -> None:
    times = curves(*PRODUCTS, gemm("forward", 8, 8, 16, 7e-6, groups=2))
    assert times.product_s("forward", 8, 8, 16, groups=2) == pytest.approx(7e-6)
    assert times.product_s("forward", 24, 8, 16, groups=6) == pytest.approx(3 * 7e-6)
    assert times.product_s("forward", 4, 8, 16) == 1e-6
    shallow = curves(*PRODUCTS, gemm("weight", 4, 8, 1, 3e-6), gemm("weight", 4, 8, 2, 5e-6))
    assert shallow.product_s("weight", 4, 8, 2, groups=3) == pytest.approx(3 * 3e-6), "one token at least"
    several = curves(gemm("forward", 8, 8, 16, 7e-6, groups=2), gemm("forward", 96, 8, 16, 9e-6, groups=3))
    assert several.product_s("forward", 32, 8, 16, groups=8) == pytest.approx(4 * 7e-6)
    assert several.product_s("forward", 192, 8, 16, groups=6) == pytest.approx(2 * 9e-6)


def flops(heads: int, length: int) -> float:
    return (
        2 * 2 * heads * length**2 * 16
    )  # of batches of two: a multiply-add each of scores and values, half masked


def test_attention_lies_between_the_nearest_cores() -> None:
    times, rates = curves(*PRODUCTS), (flops(2, 64) / 1e-3, flops(8, 256) / 2e-3)
    assert times.attention_s("forward", AttentionCore(4, 64, 64, 16, 16)) == pytest.approx(1e-3)
    assert times.attention_s("backward", AttentionCore(16, 256, 256, 16, 16)) == pytest.approx(6e-3)
    # 128 keys and 4 heads: squares 1 and 5
    core = AttentionCore(4, 1024, 128, 16, 16)
    expected = core.forward_flops / (rates[0] * 5 / 6 + rates[1] / 6)
    assert times.attention_s("forward", core) == pytest.approx(expected)
    assert times.attention_s("backward", core) == pytest.approx(3 * expected)
    # mean head size 16, 64 keys and 16 heads: squares 4 and 4
    assert times.attention_s("forward", AttentionCore(16, 1024, 64, 8, 24)) == pytest.approx(
        2 * 16 * 1024 * 64 * 32 / 2 / (rates[0] / 2 + rates[1] / 2)
    )
    assert times.attention_s("forward", AttentionCore(1, 1, 1, 1, 1)) == 1e-3
    assert times.attention_s("backward", AttentionCore(1, 1, 1, 1, 1)) == 3e-3


@pytest.mark.parametrize(
    ("num_bytes", "expected_s"),
    [
        (0, 0.0), (1, 1e-3), (16, 1e-3), (64, 2e-3), (256, 4e-3), (512, 4e-3 * 2**0.5), (1024, 8e-3), (4096, 32e-3),
    ],
)  # fmt: skip
def test_moved_bytes_are_interpolated_and_beyond_the_largest_at_its_bandwidth(
    num_bytes: int, expected_s: float
) -> None:
    times = curves(*PRODUCTS)
    assert times.moved_s("norm", num_bytes) == pytest.approx(expected_s)
    assert times.moved_s("norm", num_bytes, launches=7) == pytest.approx(expected_s)


def test_kernels_that_were_not_measured_take_the_time_of_all() -> None:
    times = curves(*PRODUCTS)
    assert times.moved_s("copy", 1) == times.moved_s("elementwise", 1) == 5e-3
    assert times.moved_s("copy", 16) == pytest.approx(10e-3)
    assert times.moved_s("elementwise", 16) == pytest.approx(1e-3)


def test_the_peak_is_the_largest_rate_of_the_dtype_and_all_kernels_are_measured() -> None:
    times = curves(*PRODUCTS, gemm("input", 4, 8, 16, 1e-12, dtype="float32"))
    assert times.peak("products") == times.peak("attention") == pytest.approx(max(RATES))
    assert times.is_measured("experts") is times.is_measured("attention") is True
    assert times.element_bytes == 2
    assert ELEMENT_BYTES == {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@pytest.mark.parametrize(
    ("dtype", "changed", "sentence"),
    [
        ("float8", {}, "shapes in float8 are not estimated: only in float64, float32, bfloat16, float16"),
        ("float16", {}, r"the device facts have no products in float16 \(there is: bfloat16\)"),
        ("bfloat16", {"attention": []}, "the device facts have no attention in bfloat16"),
        ("bfloat16", {"memory": []}, "the device facts have no memory in bfloat16"),
    ],
)
def test_a_dtype_that_was_not_measured_is_refused(dtype: str, changed: dict[str, Any], sentence: str) -> None:
    given = {"products": list(PRODUCTS), "attention": ATTENTION, "memory": MEMORY} | changed
    with pytest.raises(ConfigError, match=sentence):
        Curves(DeviceMicrobenchmarks(**given), dtype)
