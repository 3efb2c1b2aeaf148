"""MFU of a pass: FLOPs by formula, the peak by data sheet, and what cannot be."""

import pytest

from ppsim.costs.utilization import implausible, pass_flops, peak_of, utilization
from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.machine.devices import data_sheet, hardware
from ppsim.model import shapes
from ppsim.model.shapes import LayerShape

SIZES = {"kind": "llama", "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_size": 16, "ffn_size": 176}
SHAPE = {"micro_batch": 2, "sequence_length": 32, "dtype": "bfloat16", "tp": 2}
MODEL = {"layer_sizes": SIZES}


def part(component="layer", **seconds):
    times = {f"{name}_s": {"median": value} for name, value in seconds.items()}
    return {"component": component, "shape": SHAPE, "forward_flops": 1e6, **times}


def profile(*measurements, peak=None, products=()):
    device = {"name": "a device", "peak_flops_per_s": {"bfloat16": peak} if peak else {}}
    return {"provenance": {"device": device}, "model": MODEL, "measurements": list(measurements),
            "device_facts": {"products": list(products)}}  # fmt: skip


def test_a_backward_is_two_forwards_and_the_sum_of_its_halves():
    for component in ("layer", "head"):
        flops = pass_flops(MODEL, part(component))
        assert flops["B"] == 2 * flops["F"]
        assert flops["B"] == flops["I"] + flops["W"]


def test_attention_has_no_weights_all_its_backward_is_in_i():
    """W is the forward's products with weights; I those, and twice the causal half of the scores."""
    shard = LayerShape(**SIZES).shard(tp=2)
    sizes = {"micro_batch": 2, "sequence_length": 32}
    causal = shapes.layer_forward_flops(shard, **sizes, causal=True)
    scores = 2 * 2 * 32**2 * shard.num_heads * shard.head_size
    flops = pass_flops(MODEL, part())
    assert flops == {"F": causal, "B": 2 * causal, "I": causal + scores, "W": causal - scores}


def test_without_the_sizes_of_a_layer_its_halves_are_not_told_apart():
    assert pass_flops({}, part()) == {"F": 1e6, "B": 2e6, "I": None, "W": None}


def test_mfu_is_flops_by_time_by_peak():
    found = utilization(profile(peak=1e9), part("head", forward=0.002, backward=0.004))
    assert found == {"F": 0.5, "B": 0.5, "I": None, "W": None}
    assert utilization(profile(), part("head", forward=0.002))["F"] is None


def test_where_no_data_sheet_is_known_the_best_product_stands_for_the_peak_and_is_called_so():
    product = {"m": 10, "n": 10, "k": 10, "dtype": "bfloat16", "seconds": {"median": 1e-6}}
    slower = product | {"seconds": {"median": 1e-5}}
    rate, what = peak_of(profile(products=[slower, product]), "bfloat16")
    assert rate == pytest.approx(2e9)
    assert what == "the best product measured, no data sheet being known"
    assert peak_of(profile(peak=5e9, products=[product]), "bfloat16") == (5e9, "the data sheet's peak")
    assert peak_of(profile(products=[product]), "float32") is None


def test_more_than_the_peak_is_called_implausible():
    found = implausible(profile(part("head", forward=0.0005, backward=0.004), peak=1e9))
    assert found == [
        "head at micro-batch 2, sequence length 32, bfloat16, tp 2: F 200 % of the data sheet's peak: this "
        "measurement is implausible, measure again on a quiet device"
    ]
    assert implausible(profile(part("head", forward=0.001, backward=0.004), peak=1e9)) == []


# As torch names them, with the dense bfloat16 peak of the data sheets in TFLOP/s.
DEVICES = {
    "NVIDIA A100-SXM4-80GB": 312, "NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H100 NVL": 835.5, "NVIDIA H200": 989.4, "NVIDIA H100 96GB HBM2e": 989.4, "NVIDIA B200": 2250, "NVIDIA GB200": 2500,
    "AMD Instinct MI300X": 1307.4, "AMD Instinct MI325X": 1307.4, "AMD Instinct MI355X": 2516.6, "NVIDIA H200 NVL": 835.5,
    "NVIDIA B300 SXM6 AC": 2250, "NVIDIA GB300": 2500, "NVIDIA L40S": 362.05,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 500, "NVIDIA GH200 480GB": 989.4, "NVIDIA H20": 148,
    "AMD Instinct MI350X": 2306.9, "NVIDIA VR200": 4000, "NVIDIA R100": 4000,
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
def test_devices_are_found_by_the_name_that_torch_gives_them(name):
    assert data_sheet(name).flops_per_s["bfloat16"] / 1e12 == DEVICES[name]


def test_a_device_that_is_not_in_the_table_has_no_peak():
    assert data_sheet("AMD EPYC") is None
    assert data_sheet("NVIDIA L4") is None
    assert all(device["source"] for device in hardware("devices").values())


@pytest.mark.parametrize("name", packaged_clusters())
def test_a_device_has_one_peak_whether_measured_or_projected(name):
    """One table: by the name that torch gives a device, and by the cluster that it is in."""
    device = load_cluster(name).device
    torch_name = next(one for one in DEVICES if device.source.startswith(data_sheet(one).source))
    assert data_sheet(torch_name).flops_per_s == device.peak_flops_per_s


def test_a_profiles_peak_is_found_by_any_name_of_its_type():
    for name in ("fp8", "float8", "float8_e4m3fn"):
        measured = profile() | {"provenance": {"device": {"peak_flops_per_s": {name: 2e15}}}}
        assert peak_of(measured, "fp8") == peak_of(measured, "float8") == (2e15, "the data sheet's peak")
