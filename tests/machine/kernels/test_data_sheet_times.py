"""Kernel times from a data sheet with small numbers, by their formulas."""

from dataclasses import replace
from typing import Any, Literal

import pytest

from ppsim.machine.cluster import Device, Efficiency
from ppsim.machine.kernels.data_sheet_times import DataSheetTimes
from ppsim.machine.kernels.names import Form
from ppsim.machine.kernels.times import AttentionCore
from tests.defaults import field_defaults, parameter_defaults

CLASS = Efficiency(
    matmul={"bfloat16": 0.8, "float8": 0.6}, wave_tail=0.5, depth_tail=3.0, attention_forward=0.4,
    attention_backward=0.3, memory=0.9, optimizer=0.7, kernel_s=0.125, host_s=2.0, scan_flops_per_s=1e9, source="",
)  # fmt: skip
DEVICE = Device(
    name="chip", efficiency_class="class", num_cores=2, memory_bytes=1000, memory_bytes_per_s=1e12,
    peak_flops_per_s={"bfloat16": 100.0, "float8": 170.0, "float32": 50.0}, efficiency=CLASS, source="",
)  # fmt: skip
SLOW_MEMORY = replace(DEVICE, memory_bytes_per_s=1e-3)


def times(dtype: str = "bfloat16", device: Device = DEVICE, **changes: Any) -> DataSheetTimes:
    own = replace(device, efficiency=replace(device.efficiency, **changes))
    return DataSheetTimes(own, dtype)


@pytest.mark.parametrize(("dtype", "rate"), [("bfloat16", 0.8 * 100), ("float8", 0.6 * 170)])
def test_a_gemm_loses_half_a_wave_of_tiles_and_three_of_its_depth(dtype: str, rate: float) -> None:
    """256 × 384 outputs are 6 tiles of 128 × 128, or 3 waves on 2 cores."""
    expected_s = 2 * 256 * 384 * 5 / rate * (1 + 0.5 / 3) * (1 + 3 / 5) + 0.125
    assert times(dtype).product_s("forward", 256, 384, 5) == pytest.approx(expected_s)


@pytest.mark.parametrize(("form", "m", "k"), [("forward", 4 * 256, 5), ("weight", 256, 4 * 5)])
def test_groups_of_a_gemm_fill_waves_together(form: Form, m: int, k: int) -> None:
    """4 groups of 6 tiles are 12 waves."""
    expected_s = 4 * 2 * 256 * 384 * 5 / 80 * (1 + 0.5 / 12) * (1 + 3 / 5) + 0.125
    assert times().product_s(form, m, 384, k, groups=4) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("dtype", "form", "operand", "result"),
    [
        ("bfloat16", "forward", 2, 2),
        ("bfloat16", "input", 2, 2),
        ("bfloat16", "weight", 2, 8),  # read and written in float32
        ("float8", "forward", 1, 2),
        ("float8", "weight", 1, 8),
        ("float32", "forward", 4, 4),
    ],
)
def test_a_gemm_takes_at_least_the_time_of_its_operands_and_result(
    dtype: str, form: Form, operand: int, result: int
) -> None:
    num_bytes = operand * (3 * 7 + 7 * 5) + result * 3 * 5
    expected_s = num_bytes / (1e-3 * 0.9)
    assert times(dtype, SLOW_MEMORY).memory_s(form, 3, 5, 7) == pytest.approx(expected_s)
    assert times(dtype, SLOW_MEMORY).product_s(form, 3, 5, 7) == pytest.approx(expected_s + 0.125)
    m, k = (3, 2 * 7) if form == "weight" else (2 * 3, 7)
    assert times(dtype, SLOW_MEMORY).memory_s(form, m, 5, k, groups=2) == pytest.approx(2 * expected_s)


def test_deterministic_results_are_filled_before_they_are_written() -> None:
    plain, filled = (DataSheetTimes(SLOW_MEMORY, "bfloat16", deterministic) for deterministic in (False, True))
    assert plain.filled_s(11) == 0
    assert filled.filled_s(11) == pytest.approx(2 * 11 / (1e-3 * 0.9) + 0.125)
    more_s = filled.product_s("forward", 2 * 3, 5, 7, groups=2) - plain.product_s("forward", 2 * 3, 5, 7, groups=2)
    assert more_s == pytest.approx(filled.filled_s(2 * 3 * 5))


CORE = AttentionCore(heads=6, queries=128, keys=7, qk_size=3, v_size=5)
"""3 waves of tiles with 128 queries on 2 cores."""


@pytest.mark.parametrize(("part", "flops", "share"), [("forward", 1.0, 0.4), ("backward", 2.5, 0.3)])
def test_attention_has_the_share_of_its_pass_in_16_bits(
    part: Literal["forward", "backward"], flops: float, share: float
) -> None:
    expected_s = flops * CORE.forward_flops * (1 + 0.5 / 3) / (share * 100)
    for dtype in ("bfloat16", "float8"):
        assert times(dtype).attention_s(part, CORE) == pytest.approx(expected_s + 0.125)
    in_turn = DataSheetTimes(DEVICE, "bfloat16", deterministic=True).attention_s(part, CORE)
    slower = 1.0 if part == "forward" else 1 / (1 - 0.379)
    assert in_turn == pytest.approx(slower * expected_s + 0.125)


def test_parts_without_a_mask_have_their_own_share() -> None:
    core = replace(CORE, unmasked=0.25)
    whole_s = CORE.forward_flops * (1 + 0.5 / 3) / 100
    unmasked = {"forward": 0.2, "backward": 0.6}
    found = [times(unmasked_attention=unmasked).attention_s(part, core) for part in ("forward", "backward")]
    expected = [whole_s * (0.75 / 0.4 + 0.25 / 0.2), 2.5 * whole_s * (0.75 / 0.3 + 0.25 / 0.6)]
    assert found == pytest.approx([seconds + 0.125 for seconds in expected])
    kernel = {"forward": 0.1, "backward": 0.05}
    own = replace(DEVICE, efficiency=replace(CLASS, unmasked_attention=unmasked, deterministic_attention=kernel))
    deterministic = DataSheetTimes(own, "bfloat16", deterministic=True)
    assert deterministic.attention_s("forward", core) == pytest.approx(whole_s / 0.1 + 0.125)
    assert deterministic.attention_s("backward", core) == pytest.approx(2.5 * whole_s / 0.05 + 0.125)


def test_kernels_bound_by_memory_take_their_bytes_and_launches() -> None:
    assert times(device=SLOW_MEMORY).moved_s("norm", 9, launches=3) == pytest.approx(9 / (1e-3 * 0.9) + 3 * 0.125)
    assert times(device=SLOW_MEMORY).moved_s("copy", 9) == pytest.approx(9 / (1e-3 * 0.9) + 0.125)


def test_nothing_of_a_data_sheet_is_measured_and_attention_has_the_peak_of_16_bits() -> None:
    assert (times("float8").peak("products"), times("float8").peak("attention")) == (170.0, 100.0)
    assert times("float32").peak("attention") == 50.0
    assert not times().is_measured("products")
    assert field_defaults(DataSheetTimes) == {"deterministic": False}
    for function in (DataSheetTimes.product_s, DataSheetTimes.memory_s):
        assert parameter_defaults(function) == {"groups": 1}
