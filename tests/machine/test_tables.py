"""Tables of measured kernels: read as stored, used where a class has a factor, named in what a projection assumes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.base.files import data_folder
from ppsim.catalog.build import build, find
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.job import Job
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.devices import hardware
from ppsim.machine.kernels.data_sheet_times import DataSheetTimes
from ppsim.machine.kernels.published_tables import (
    EMPTY,
    STEPS,
    RateGrid,
    TableTimes,
    expert_rate,
    fill_missing,
    kernel_table,
    kernel_times,
)
from ppsim.machine.kernels.times import AttentionCore
from ppsim.model.execution import Execution
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.registry import find_model
from ppsim.parallel.layout import layout_on
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.projection.summary import ESTIMATE_SPREAD, _spreads
from ppsim.simulation.step import simulate_step
from tests.model.stages import stage_activations
from tests.projection.jobs import job

WITH_TABLES = {name: one for name, one in hardware("devices").items() if "kernels" in one}
GB300 = load_cluster("gb300-nvl72").device
SIZES = st.integers(256, 40_000)


@pytest.mark.parametrize("name", sorted({one["kernels"] for one in WITH_TABLES.values()}))
def test_a_table_is_small_says_where_it_is_from_and_has_no_rate_above_the_peak(name):
    """B300, whose data sheet has 14 PFLOP/s in 4 bits, gets 5; nothing is more than the sheet allows."""
    table, path = kernel_table(name), data_folder("profiles") / "kernels" / f"{name}.npz"
    assert path.stat().st_size < 36 * 1024
    assert table.provenance["licence"] in ("Apache-2.0", "MIT")
    assert all(table.provenance[key] for key in ("source", "copyright", "device", "notes"))
    device = next(
        load_cluster(cluster).device
        for cluster in ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300", "gb200-nvl72", "gb300-nvl72",
                        "l40s-8", "rtx-pro-6000-8", "mi300x-8", "mi355x-8")
        if load_cluster(cluster).device.kernels == name
    )  # fmt: skip
    for dtype, grid in table.products.items():
        assert math.log(device.peak(dtype) / 100) < grid.rates.max() <= math.log(device.peak(dtype))


def test_a_rate_is_a_cells_there_between_two_between_them_and_the_outermosts_beyond():
    grid = RateGrid(
        ((math.log(1.0), math.log(4.0)), (math.log(1.0), math.log(2.0))), np.log([[1.0, 2.0], [4.0, 8.0]])
    )
    assert grid.rate(1, 1) == pytest.approx(1)
    assert grid.rate(4, 2) == pytest.approx(8)
    assert grid.rate(2, 1) == pytest.approx(2)
    assert grid.rate(2, 2**0.5) == pytest.approx(2 * 2**0.5)
    assert grid.rate(64, 0.1) == pytest.approx(4)


def test_a_cell_that_nobody_measured_has_the_mean_of_its_neighbours():
    steps = np.array([[0, EMPTY, 2 * STEPS]])
    assert fill_missing(steps, [[0.0], [0.0, 1.0, 2.0]]) - math.log(1e12) == pytest.approx(
        np.array([[0.0, 1.0, 2.0]])
    )


def test_the_grid_of_gb300_is_the_source_at_a_shape():
    """8192 x 16384 x 6144 in NVFP4 took 0.323 ms: 5107 TFLOP/s (aiconfigurator-core 0.12.0)."""
    assert kernel_table("gb300").products["nvfp4"].rate(8192, 16384, 6144) == pytest.approx(5107e12, rel=2e-3)


@given(m=SIZES, n=SIZES, k=SIZES, form=st.sampled_from(["forward", "input", "weight"]))
def test_a_product_takes_its_flops_at_the_tables_rate_times_the_factor(m, n, k, form):
    times = kernel_times(GB300, "float8")
    rate = kernel_table("gb300").products["float8"].rate(m, n, k)
    least = times.specified.memory_s(form, m, n, k)
    factor = GB300.efficiency.in_situ.factors["float8"]
    expected = max(factor * 2 * m * n * k / rate, least) + GB300.efficiency.kernel_s
    assert times.product_s(form, m, n, k) == pytest.approx(expected)


def test_a_product_is_never_faster_than_memory_however_narrow():
    """A router's 8 columns: the table's rate at 256 would read its input at 100 TB/s."""
    times = kernel_times(GB300, "bfloat16")
    assert times.product_s("forward", 65536, 1, 4096) > 2 * 65536 * 4096 / 8e12


def test_experts_share_tokens_and_few_rows_have_few_flops():
    times, grid = kernel_times(GB300, "bfloat16"), kernel_table("gb300").grouped["bfloat16"]
    took = times.product_s("forward", 8 * 2048, 1024, 4096, groups=8) - GB300.efficiency.kernel_s
    assert took == pytest.approx(1.1 * 2 * 8 * 2048 * 1024 * 4096 / grid.rate(2048, 1024))
    assert times.product_s("weight", 1024, 4096, 8 * 2048, groups=8) - GB300.efficiency.kernel_s == pytest.approx(
        took
    )
    assert expert_rate(grid, 4, 2048) == pytest.approx(grid.rate(16, 2048) / 4)
    assert times.most_expert_rows == 4096
    narrow = {"m": 8 * 1024, "n": 128, "k": 4096, "groups": 8}
    assert times.product_s("forward", **narrow) == times.specified.product_s("forward", **narrow)


def test_experts_are_no_faster_than_one_product_of_all_their_rows():
    """The rates of mixtures are what is left of fused kernels, more than products of any size reach alone."""
    times, table = kernel_times(GB300, "bfloat16"), kernel_table("gb300")
    alone = times.product_s("forward", 8 * 4096, 2048, 4096)
    assert table.grouped["bfloat16"].rate(4096, 2048) > table.products["bfloat16"].rate(8 * 4096, 2048, 4096)
    assert times.product_s("forward", 8 * 4096, 2048, 4096, groups=8) == pytest.approx(alone)


def test_attention_goes_by_sequences_and_its_backward_by_the_classs_ratio():
    times, kernel_s = kernel_times(GB300, "bfloat16"), GB300.efficiency.kernel_s
    core = AttentionCore(64, 8192, 8192, 128, 128)
    rate = kernel_table("gb300").attention["bfloat16"].rate(128, 8192, 64)
    forward, backward = (times.attention_s(part, core) - kernel_s for part in ("forward", "backward"))
    efficiency = GB300.efficiency
    assert forward == pytest.approx(efficiency.in_situ.factors["attention"] * core.forward_flops / rate)
    share = efficiency.attention_backward / efficiency.attention_forward
    assert backward == pytest.approx(2.5 / share * forward)


@pytest.mark.parametrize(
    ("cluster", "forward_ms", "backward_ms"), [("gb200-nvl72", 1.397, 4.127), ("gb300-nvl72", 1.185, 3.832)]
)
def test_attention_of_blackwell_takes_what_cudnn_does_and_a_tenth_more_in_a_run(cluster, forward_ms, backward_ms):
    """cuDNN 9.22, causal, two sequences of 8192 tokens with 64 heads of 128 (NVIDIA/cudnn-frontend at 3929da2)."""
    times = kernel_times(load_cluster(cluster).device, "bfloat16")
    core = AttentionCore(2 * 64, 8192, 8192, 128, 128)
    for part, measured_ms in (("forward", forward_ms), ("backward", backward_ms)):
        assert times.attention_s(part, core) == pytest.approx(1.1e-3 * measured_ms, rel=0.1)


def test_a_table_is_in_use_where_the_class_has_a_factor_for_the_type():
    """B200's products in 8 bits are by its data sheet, which runs are nearer to; no raw table is used there."""
    b200 = load_cluster("dgx-b200").device
    shape = ("forward", 8192, 8192, 8192)
    for dtype in ("float8", "mxfp8"):
        times = kernel_times(b200, dtype)
        assert not times.is_measured("products")
        assert times.product_s(*shape) == DataSheetTimes(b200, dtype).product_s(*shape)
    assert kernel_times(b200, "bfloat16").is_measured("products")
    assert kernel_times(b200, "nvfp4").is_measured("products")
    assert all(factor >= 1.2 for factor in b200.efficiency.in_situ.factors.values())
    assert isinstance(kernel_times(load_cluster("dgx-a100").device, "bfloat16"), DataSheetTimes)
    h100 = load_cluster("dgx-h100").device
    known = {
        dtype: kernel_times(h100, dtype).is_measured("products") for dtype in ("bfloat16", "float16", "float8")
    }
    assert known == {"bfloat16": True, "float16": True, "float8": False}
    assert not kernel_times(h100, "bfloat16").is_measured("attention")


def test_a_type_that_nobody_measured_is_by_its_stand_in():
    """MXFP8 scales blocks in hardware on Blackwell; AMD's kernels for blocks of 128 do it in software."""
    for cluster, name in (("gb300-nvl72", "float8-block"), ("mi355x-8", "float8")):
        times = kernel_times(load_cluster(cluster).device, "mxfp8")
        assert isinstance(times, TableTimes)
        assert times.name == name


def of_405b(cluster: str, dtype: str, *, tp: int, vpp: int, cp: int, hidden: float = 0.75) -> float:
    """Tokens a second and GPU of Llama-3.1-405B on 256 devices, pp 8, 1536 sequences of 8192 tokens."""
    one = Job(
        model=find_model("llama3-405b"), model_name="llama3-405b", cluster=load_cluster(cluster),
        layout=layout_on(256, tp=tp, cp=cp, pp=8), global_batch=1536, sequence_length=8192,
        execution=Execution(dtype=dtype, sequence_parallel=True, cross_entropy="fused",
                            hidden_tp_forward=hidden, hidden_tp_backward=hidden),
    )  # fmt: skip
    table = build(find("interleaved-1f1b"), pp=8, vpp=vpp, microbatches=one.num_microbatches)
    made = assemble_job(one, table)
    return one.tokens_per_step / simulate_step(table, made.costs, made.step_costs).time_s / 256


@pytest.mark.parametrize(
    ("dtype", "tp", "cp", "hidden", "published"),
    [("nvfp4", 4, 1, 0.33, 1333), ("mxfp8", 2, 2, 0.75, 931), ("float8", 4, 1, 0.75, 988)],
)
def test_gb300_is_within_10_percent_of_published_runs_with_nothing_fitted_on_it(dtype, tp, cp, hidden, published):
    """NVIDIA Megatron-Bridge performance summary 26.02; NVFP4 runs hide tensor-parallel communication of B only."""
    assert of_405b("gb300-nvl72", dtype, tp=tp, vpp=4, cp=cp, hidden=hidden) == pytest.approx(published, rel=0.10)


def test_shares_of_a_step_sum_to_one_and_are_said_with_where_the_table_is_stretched():
    one = job("mixtral-8x7b", cluster="gb300-nvl72", dtype="mxfp8", ep=8, dp=8, micro_batch=4, sequence_length=8192)
    assert sum(one.costs.shares.values()) == pytest.approx(1)
    assert 0.4 < one.costs.shares["table"] < 0.95
    assert one.costs.shares["profile"] == 0
    lines = assemble_job(one, build(find("1f1b"), pp=1, microbatches=one.num_microbatches)).assumptions
    text = "\n".join(lines)
    assert f"kernels: {100 * one.costs.shares['table']:.0f} % of F and B from the table of gb300" in text
    assert "multiplied by 1.1 for a training step (error 8.00 %)" in text
    assert "GEMMs in mxfp8: rates of float8-block" in text
    assert "experts: measured up to 4096 rows each; 65536 rows run at the rate of 4096" in text
    assert "estimated from specifications and measured kernels" in lines[0]
    measured = job("mixtral-8x7b", cluster="gb300-nvl72", dtype="float8-block", ep=8, dp=8, micro_batch=4)
    told = assemble_job(measured, build(find("1f1b"), pp=1, microbatches=measured.num_microbatches)).assumptions
    assert any(line.startswith("kernels: ") for line in told)
    assert not any(line.startswith("GEMMs in ") for line in told)
    by_sheet = job("llama3-8b", cluster="dgx-a100")
    assert by_sheet.costs.shares["table"] == 0
    assert "kernels: " not in "\n".join(
        assemble_job(by_sheet, build(find("1f1b"), pp=1, microbatches=4)).assumptions
    )


def test_a_projection_by_tables_is_as_unsure_as_their_factors():
    """What runs of a class said goes before; without any, what all classes' runs said, or more by the table's factor."""
    spreads = {
        cluster: _spreads(project(Plan(pp=1, job=job("llama3-8b", cluster=cluster))))[0]
        for cluster in ("gb300-nvl72", "dgx-a100", "h100-pcie-8")
    }
    for cluster in ("gb300-nvl72", "dgx-a100"):
        assert spreads[cluster] == load_cluster(cluster).device.efficiency.spread
    in_situ = load_cluster("h100-pcie-8").device.efficiency.in_situ
    assert spreads["h100-pcie-8"] == in_situ.sigma > ESTIMATE_SPREAD


def test_8_bits_keep_casts_of_inputs_and_copies_of_weights():
    """Of a Llama layer's tokens: both norms' outputs in 1 byte for 2, attention's output once more, the activation in 1.

    Weights inside layers by rows and by columns on H100; on GB300, which multiplies either way, once.
    """
    h, f, tokens = 4096, 14336, 4096
    [stage] = stages_of(find_model("llama3-8b").with_layers(1), [1])
    kept = {
        dtype: sum(stage_activations(one.model, stage, one.settings).values())
        for dtype in ("bfloat16", "float8", "nvfp4")
        for one in [job("llama3-8b", layers=1, cluster="gb300-nvl72", dtype=dtype)]
    }
    assert kept["bfloat16"] - kept["float8"] == tokens * (2 * h - h + f)
    assert kept["bfloat16"] - kept["nvfp4"] == tokens * ((2 - 0.5625) * (2 * h + f) - 0.5625 * h)
    copies = {
        (cluster, dtype): job("llama3-8b", cluster=cluster, dtype=dtype).settings.narrow.bytes_of_copies
        for cluster, dtype in (("dgx-h100", "float8"), ("gb300-nvl72", "float8"), ("gb300-nvl72", "mxfp8"))
    }
    assert copies == {("dgx-h100", "float8"): 2, ("gb300-nvl72", "float8"): 1, ("gb300-nvl72", "mxfp8"): 2.0625}


def test_a_device_of_ones_own_has_no_table():
    own = replace(GB300, kernels=None)
    assert kernel_times(own, "bfloat16") == DataSheetTimes(own, "bfloat16")


def test_rates_of_nvfp4_do_not_fall_with_rows():
    """Those of isolated GEMMs do on GB300; other formats keep their measured rates."""
    products = kernel_table("gb300").products
    assert (np.diff(products["nvfp4"].rates, axis=0) >= 0).all()
    assert (np.diff(products["bfloat16"].rates, axis=0) < 0).any()
