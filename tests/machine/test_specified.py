"""Kernels: never above the data sheet, longer for more work, near the class's share where they are large."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.machine.kernels.data_sheet_times import DataSheetTimes
from ppsim.machine.kernels.published_tables import kernel_times
from ppsim.machine.kernels.times import AttentionCore, attention_time, gemm_time, memory_kernel_time, of_one_group

A100 = load_cluster("dgx-a100").device
DEVICES = [load_cluster(name).device for name in packaged_clusters()]
SIZE = st.integers(1, 50_000)


def matmul(device, rows, columns, depth, *, dtype, groups=1):
    return gemm_time(DataSheetTimes(device, dtype), "forward", groups * rows, columns, depth, groups=groups)


@given(rows=SIZE, columns=SIZE, depth=SIZE, device=st.sampled_from(DEVICES))
def test_a_product_stays_below_peak_and_bandwidth(rows, columns, depth, device):
    product = matmul(device, rows, columns, depth, dtype="bfloat16")
    assert product.matmul_ideal_s == pytest.approx(2 * rows * columns * depth / device.peak("bfloat16"))
    assert product.matmul_s > product.matmul_ideal_s
    moved = 2 * (rows * depth + depth * columns + rows * columns)
    assert product.matmul_s > moved / device.memory_bytes_per_s


@given(sizes=st.tuples(SIZE, SIZE, SIZE), grown=st.integers(0, 2), by=st.integers(1, 9))
def test_a_larger_product_takes_longer_and_gets_more_of_the_peak(sizes, grown, by):
    names = ("rows", "columns", "depth")
    small = dict(zip(names, sizes, strict=True))
    large = small | {names[grown]: small[names[grown]] * by}
    one, other = (matmul(A100, **shape, dtype="float16") for shape in (small, large))
    assert other.matmul_s >= one.matmul_s * (1 - 1e-12)
    assert other.matmul_ideal_s / other.matmul_s >= one.matmul_ideal_s / one.matmul_s * (1 - 1e-9)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_a_large_product_gets_the_share_of_its_class(device, dtype):
    if dtype in device.peak_flops_per_s:
        product = matmul(device, rows=2**16, columns=2**16, depth=2**16, dtype=dtype)
        share = product.matmul_ideal_s / product.matmul_s
        assert share == pytest.approx(device.efficiency.matmul[dtype], rel=0.01)


def test_many_small_products_in_one_launch_are_faster_than_one_by_one():
    shape = {"rows": 512, "columns": 1024, "depth": 2048, "dtype": "float16"}
    assert matmul(A100, **shape, groups=16).matmul_s < 16 * matmul(A100, **shape).matmul_s


def test_kernels_bound_by_memory_pass_over_it_at_the_share_of_their_class():
    took = memory_kernel_time(DataSheetTimes(A100, "float16"), "copy", 1e9).memory_s
    assert took == pytest.approx(
        1e9 / (A100.memory_bytes_per_s * A100.efficiency.memory) + A100.efficiency.kernel_s
    )
    assert memory_kernel_time(DataSheetTimes(A100, "float16"), "copy", 0).count == 0


@given(heads=st.integers(1, 512), length=st.integers(64, 131072))
def test_attention_stays_below_peak_and_its_backward_costs_more(heads, length):
    core = AttentionCore(heads, length, length, 128, 128)
    forward, backward = attention_time(DataSheetTimes(A100, "float16"), core)
    assert forward.attention_s > forward.attention_ideal_s
    assert backward.attention_s > max(backward.attention_ideal_s, forward.attention_s)


def test_eight_bits_speed_products_up_and_leave_attention_as_it_is():
    h100 = load_cluster("dgx-h100").device
    shape = {"rows": 8192, "columns": 8192, "depth": 8192}
    assert matmul(h100, **shape, dtype="float8").matmul_s < 0.7 * matmul(h100, **shape, dtype="bfloat16").matmul_s
    core = AttentionCore(64, 4096, 4096, 128, 128)
    eight, sixteen = (attention_time(DataSheetTimes(h100, dtype), core) for dtype in ("float8", "bfloat16"))
    assert eight == sixteen


def test_the_gradient_of_a_weight_is_read_and_written_in_float32():
    """A product of one row of depth is bound by its result: 8 bytes an element for 2."""
    free = replace(A100, efficiency=replace(A100.efficiency, kernel_s=0.0))
    free = replace(free, efficiency=replace(free.efficiency, depth_tail=0.0))
    forward, weight = (
        DataSheetTimes(free, "float16").product_s(form, 2**15, 2**15, 1) for form in ("forward", "weight")
    )
    assert weight == pytest.approx(8 * 2**30 / (A100.memory_bytes_per_s * A100.efficiency.memory), rel=1e-3)
    assert forward == pytest.approx(weight / 4, rel=1e-3)


def test_groups_share_the_tokens_whichever_side_they_are_on():
    assert of_one_group("forward", 512, 64, 32, 4) == of_one_group("input", 512, 64, 32, 4) == (128, 64, 32)
    assert of_one_group("weight", 64, 32, 512, 4) == (64, 32, 128)


@pytest.mark.parametrize("name", ["grand-teton", "dgx-h100"])
def test_a_scale_a_row_saves_half_of_what_one_a_tensor_saves(name):
    """Of Llama 3 8B a step took 1/5760, 1/6424 and 1/7186 s per token (torchtitan, commit 7a04053)."""
    device = load_cluster(name).device
    seconds = {of: 1 / (share * device.peak(of)) for of, share in device.efficiency.matmul.items()}
    saved = (1 / 5760 - 1 / 6424) / (1 / 5760 - 1 / 7186)
    expected = seconds["bfloat16"] - saved * (seconds["bfloat16"] - seconds["float8"])
    assert seconds["float8-row"] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "gb200-nvl72"])
def test_deterministic_products_fill_what_they_write_and_attention_adds_in_turn(name):
    """Results are filled by a kernel of their own; a backward gets 1 - 0.379 of its rate, on Blackwell another kernel
    is all there is, slower either way."""
    device = load_cluster(name).device
    usual, one_order = (kernel_times(device, "bfloat16", deterministic=mode) for mode in (False, True))
    assert one_order.product_s("weight", 4096, 1024, 8192) == pytest.approx(
        usual.product_s("weight", 4096, 1024, 8192) + usual.moved_s("copy", 2 * 4096 * 1024)
    )
    core = AttentionCore(32, 8192, 8192, 128, 128)
    forward, backward = (
        one_order.attention_s(part, core) / DataSheetTimes(device, "bfloat16").attention_s(part, core)
        for part in ("forward", "backward")
    )
    if device.efficiency.deterministic_attention is None:
        assert (forward, backward) == pytest.approx((1.0, 1 / 0.621), rel=0.01)
    else:
        assert forward > 2
        assert backward > 4
    assert not one_order.is_measured("attention")


def test_keys_of_other_context_parallel_ranks_go_at_the_rate_without_masks():
    """FlashAttention-2 on H100, heads of 128: 284.1 and 287.1 TFLOP/s masked, 335.6 and 290.6 not."""
    device = load_cluster("grand-teton").device
    free = replace(device, efficiency=replace(device.efficiency, kernel_s=0.0, wave_tail=0.0))
    own = AttentionCore(32, 32768, 131072, 128, 128)
    for part, times, rates in (("forward", 1.0, (284.1e12, 335.6e12)), ("backward", 2.5, (287.1e12, 290.6e12))):
        for unmasked in (0.0, 0.75, 1.0):
            took = DataSheetTimes(free, "float8").attention_s(part, replace(own, unmasked=unmasked))
            expected = times * own.forward_flops * ((1 - unmasked) / rates[0] + unmasked / rates[1])
            assert took == pytest.approx(expected, rel=0.005)
    one_order = DataSheetTimes(free, "bfloat16", deterministic=True)
    assert one_order.attention_s("backward", replace(own, unmasked=1.0)) == one_order.attention_s("backward", own)
    other = DataSheetTimes(load_cluster("dgx-h100").device, "bfloat16")
    assert other.attention_s("forward", replace(own, unmasked=1.0)) == other.attention_s("forward", own)
    half = DataSheetTimes(free.computing_at(0.5), "float8")
    assert half.attention_s("forward", replace(own, unmasked=1.0)) == pytest.approx(
        2 * DataSheetTimes(free, "float8").attention_s("forward", replace(own, unmasked=1.0))
    )
