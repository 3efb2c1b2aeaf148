"""Kernel times from a small table of measured rates."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ppsim.machine.cluster import InSituRatio
from ppsim.machine.kernels.data_sheet_times import DataSheetTimes
from ppsim.machine.kernels.published_tables import (
    EMPTY,
    STEPS,
    KernelTable,
    RateGrid,
    TableTimes,
    _Grids,
    _place,
    expert_rate,
    fill_missing,
    kernel_times,
)
from ppsim.machine.kernels.times import AttentionCore
from tests.machine.kernels.test_data_sheet_times import DEVICE, SLOW_MEMORY


def grid(axes: list[list[float]], rates: Any) -> RateGrid:
    return RateGrid(tuple(tuple(np.log(axis).tolist()) for axis in axes), np.log(rates))


PRODUCTS = grid([[64, 256], [64, 256], [1, 4]], [[[2.0, 4.0], [6.0, 8.0]], [[10.0, 12.0], [14.0, 16.0]]])
"""Rates over m, n and k."""

GROUPED = grid([[16, 64], [32, 128]], [[3.0, 5.0], [7.0, 11.0]])
ATTENTION = grid([[64, 128], [256, 1024], [1, 8]], [[[2.0, 3.0], [5.0, 7.0]], [[11.0, 13.0], [17.0, 19.0]]])
TABLE = KernelTable(
    "chip", {"bfloat16": PRODUCTS, "float8": PRODUCTS}, {"bfloat16": ATTENTION}, {"bfloat16": GROUPED},
    {"mxfp8": "float8"}, {},
)  # fmt: skip
FACTORS = {"bfloat16": 1.5, "attention": 1.25, "float8": 1.75}


def table_times(
    dtype: str = "bfloat16", *, deterministic: bool = False, factors: Any = FACTORS, **changes: Any
) -> TableTimes:
    in_situ = InSituRatio(factors=factors, sigma=0.1, source="")
    device = replace(DEVICE, efficiency=replace(DEVICE.efficiency, in_situ=in_situ))
    return TableTimes(DataSheetTimes(device, dtype, deterministic), replace(TABLE, **changes))


def test_a_position_on_an_axis_is_an_index_and_the_part_of_its_interval() -> None:
    axis = [1.0, 3.0, 7.0]
    assert [_place(axis, at) for at in (0.5, 1.0, 2.5, 3.0, 4.0, 7.0, 9.0)] == [
        (0, 0.0), (0, 0.0), (0, 0.75), (1, 0.0), (1, 0.25), (2, 0.0), (2, 0.0),
    ]  # fmt: skip


def test_missing_points_are_weighted_by_inverse_squared_distance() -> None:
    """Distances 1 and 2 in the first axis, and 1 in the second: weights 1, 1/4 and 1."""
    steps = np.array([[EMPTY, 4 * STEPS], [1 * STEPS, EMPTY], [8 * STEPS, EMPTY]])
    filled = fill_missing(steps, [[0.0, 1.0, 2.0], [0.0, 1.0]]) - math.log(1e12)
    assert filled[0, 0] == pytest.approx((1 * 1 + 8 / 4 + 4) / (1 + 1 / 4 + 1))
    assert filled[2, 0] == pytest.approx(8.0)


def test_only_the_six_nearest_points_count() -> None:
    steps = np.array([[EMPTY, *[STEPS] * 6, 100 * STEPS]])
    assert fill_missing(steps, [[0.0], list(range(8))])[0, 0] == pytest.approx(1 + math.log(1e12))
    fewer = np.array([[EMPTY, *[STEPS] * 5, 100 * STEPS]])
    assert fill_missing(fewer, [[0.0], list(range(7))])[0, 0] > 2 + math.log(1e12)


def test_rates_of_nvfp4_do_not_fall_with_rows_and_others_may() -> None:
    falling = np.array([[3 * STEPS], [2 * STEPS], [5 * STEPS]])
    grids = _Grids({"nvfp4": falling, "float8": falling}, [(0.0, 1.0, 2.0), (0.0,)])
    rates = {name: (made.rates[:, 0] - math.log(1e12)).tolist() for name, made in grids.items()}
    assert rates == {"nvfp4": pytest.approx([3, 3, 5]), "float8": pytest.approx([3, 2, 5])}
    assert grids["nvfp4"] is grids["nvfp4"]
    assert (len(grids), list(grids), "float8" in grids, "float16" in grids) == (2, ["nvfp4", "float8"], True, False)


def test_a_gemm_takes_its_flops_at_the_rate_of_its_sizes_times_the_factor() -> None:
    """Between m 64 and 256, n 64, k 1: the mean of the logarithms of 2 and 10."""
    expected_s = 1.5 * 2 * 128 * 64 * 1 / math.sqrt(2 * 10)
    assert table_times().product_s("forward", 128, 64, 1) == pytest.approx(expected_s + 0.125)
    assert table_times("mxfp8").name == "float8"
    assert table_times("mxfp8").product_s("input", 64, 256, 4) == pytest.approx(1.75 * 2 * 64 * 256 * 4 / 8 + 0.125)
    bound = replace(table_times(), specified=replace(table_times().specified, device=replace(
        table_times().device, memory_bytes_per_s=SLOW_MEMORY.memory_bytes_per_s
    )))  # fmt: skip
    assert bound.product_s("weight", 64, 64, 1) == pytest.approx(
        bound.specified.memory_s("weight", 64, 64, 1) + 0.125
    )


def test_deterministic_gemms_fill_their_results() -> None:
    usual, filled = table_times(), table_times(deterministic=True)
    for groups in (1, 2):
        sizes = (2 * 64, 64, 4)
        more_s = filled.product_s("forward", *sizes, groups=groups) - usual.product_s(
            "forward", *sizes, groups=groups
        )
        assert more_s == pytest.approx(filled.specified.filled_s(2 * 64 * 64))


def test_experts_have_grouped_rates_of_their_rows_and_narrower_side() -> None:
    """Of 16 rows and 32 columns 3 FLOP/s; of 8 rows half of it; at most the rate of a GEMM of all rows."""
    assert expert_rate(GROUPED, 16, 32) == pytest.approx(3)
    assert expert_rate(GROUPED, 8, 32) == pytest.approx(1.5)
    assert expert_rate(GROUPED, 64, 32) == pytest.approx(7)
    fast = grid([[1, 2], [1, 2], [1, 2]], np.full((2, 2, 2), 1e3))
    times = table_times(products={"bfloat16": fast})
    assert times.product_s("forward", 3 * 16, 32, 99, groups=3) == pytest.approx(
        1.5 * 2 * 3 * 16 * 32 * 99 / 3 + 0.125
    )
    assert times.product_s("weight", 99, 128, 3 * 64, groups=3) == pytest.approx(
        1.5 * 2 * 3 * 64 * 99 * 128 / GROUPED.rate(64, 99) + 0.125
    )
    slow = table_times(products={"bfloat16": grid([[1, 2], [1, 2], [1, 2]], np.full((2, 2, 2), 0.5))})
    assert slow.product_s("forward", 3 * 16, 32, 99, groups=3) == pytest.approx(
        1.5 * 2 * 3 * 16 * 32 * 99 / 0.5 + 0.125
    )
    # Of two groups of 64 rows and 128 columns 11 FLOP/s, but of one GEMM of 128 rows less: between 4, 8, 12 and 16.
    together = (4 * 8 * 12 * 16) ** (1 / 4)
    assert table_times().product_s("forward", 2 * 64, 128, 128, groups=2) == pytest.approx(
        1.5 * 2 * 2 * 64 * 128 * 128 / together + 0.125
    )
    for side in (31, 33):
        by_sheet = times.specified.product_s("forward", 48, side, 99, groups=3)
        assert (times.product_s("forward", 48, side, 99, groups=3) == by_sheet) is (side == 31)
    assert times.most_expert_rows == 64


def test_attention_has_the_rate_of_its_sizes_and_the_ratio_of_its_passes() -> None:
    """Head size 96 between 64 and 128; 2 · 512 / 256 = 4 sequences of heads."""
    core = AttentionCore(heads=2, queries=512, keys=256, qk_size=128, v_size=64)
    forward_s = 1.25 * core.forward_flops / ATTENTION.rate(96, 256, 4)
    assert table_times().attention_s("forward", core) == pytest.approx(forward_s + 0.125)
    assert table_times().attention_s("backward", core) == pytest.approx(2.5 * forward_s * 0.4 / 0.3 + 0.125)
    deterministic = table_times(deterministic=True)
    assert deterministic.attention_s("forward", core) == deterministic.specified.attention_s("forward", core)


@pytest.mark.parametrize(
    ("dtype", "changes", "factors"),
    [
        ("bfloat16", {}, (1.5, 1.5, 1.25)),
        ("float8", {}, (1.75, None, 1.25)),
        ("mxfp8", {}, (1.75, None, 1.25)),
        ("float32", {}, (None, None, None)),
        ("bfloat16", {"attention": {}}, (1.5, 1.5, None)),
        ("bfloat16", {"deterministic": True}, (1.5, 1.5, None)),
        ("bfloat16", {"factors": {"float8": 2.0}}, (None, None, None)),
        ("mxfp8", {"factors": {"float8": 2.0, "mxfp8": 3.0}}, (3.0, None, None)),
    ],
)
def test_kernels_have_the_factor_of_their_dtype_or_its_stand_in(
    dtype: str, changes: dict[str, Any], factors: tuple[float | None, ...]
) -> None:
    times = table_times(dtype, **changes)
    assert (times.factor("products"), times.factor("experts"), times.factor("attention")) == factors
    assert times.is_measured("products") is (factors[0] is not None)
    assert (times.most_expert_rows is None) is (factors[1] is None)
    if factors[0] is None:
        assert times.product_s("forward", 64, 64, 4) == times.specified.product_s("forward", 64, 64, 4)


def test_other_kernels_and_peaks_are_of_the_data_sheet() -> None:
    times = table_times()
    assert times.moved_s("norm", 7, launches=3) == times.specified.moved_s("norm", 7, launches=3)
    assert times.moved_s("norm", 7) == times.specified.moved_s("norm", 7)
    assert (times.peak("products"), times.peak("attention")) == (100.0, 100.0)


def test_a_table_is_used_with_in_situ_factors_only() -> None:
    named = replace(DEVICE, kernels="gb300")
    in_situ = InSituRatio(factors=FACTORS, sigma=0.1, source="")
    both = replace(named, efficiency=replace(named.efficiency, in_situ=in_situ))
    assert isinstance(kernel_times(both, "bfloat16"), TableTimes)
    for device in (named, replace(both, kernels=None)):
        assert kernel_times(device, "float8", deterministic=True) == DataSheetTimes(
            device, "float8", deterministic=True
        )
    assert kernel_times(named, "float8") == DataSheetTimes(named, "float8", deterministic=False)
