"""Runs that ran out of memory in public reports have no plain "fits", and runs that ran are not refused."""

from typing import Any

import pytest

import ppsim

BRIDGE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"
TITAN: dict[str, Any] = {
    "model": "deepseek-v2-lite", "cluster": "dgx-b200", "gpus": 8, "zero": 3, "fully_shard": True,
    "recompute": "none", "stack": "torchtitan", "pp": 1, "cross_entropy": "unfused",
}  # fmt: skip
"""https://github.com/pytorch/torchtitan/pull/1993, of 2025. TorchTitan computes the loss in chunks since April 2026."""

TITAN_929 = "https://github.com/pytorch/torchtitan/issues/929"

LLAMA: dict[str, Any] = {
    "model": "llama3-70b", "gpus": 32, "seq_len": 4096, "micro_batch": 1, "global_batch": 32, "recompute": "none",
    "cuda_graphs": "mlp", "stack": "megatron-bridge", "wgrad_deferral_limit": 22, "grad_reduce_in_bf16": True,
}  # fmt: skip
ON_H100 = LLAMA | {"dtype": "float8", "cluster": "dgx-h100", "tp": 4, "pp": 4, "sequence_parallel": True}
QWEN_VL = {"recipe": "qwen3.5-vl-35b-a3b/gb200/bf16@26.08", "global_batch": 480}

FAILED: dict[str, dict[str, Any]] = {
    f"{BRIDGE}/issues/4587: fails without expandable segments": {"recipe": "qwen3-30b-a3b/b300/mxfp8@26.06"},
    f"{BRIDGE}/pull/5499": {"recipe": "qwen3-30b-a3b/vr200/mxfp8@26.08"},
    f"{BRIDGE}/pull/3107: fails in 30 to 60 % of the runs": ON_H100 | {"vpp": 5},
    f"{BRIDGE}/pull/5489: micro-batch 3": QWEN_VL | {"micro_batch": 3},
    "torchtitan/pull/1993: local batch 8": TITAN | {"ep": 1, "seq_len": 4096, "micro_batch": 8, "global_batch": 64},
    "torchtitan/pull/1993: sequence 8192": TITAN | {"ep": 1, "seq_len": 8192, "micro_batch": 4, "global_batch": 32},
    "torchtitan/pull/1993: ep 8": TITAN | {"ep": 8, "seq_len": 4096, "micro_batch": 8, "global_batch": 64},
    f"{BRIDGE}/pull/2971: fails without expandable segments": LLAMA | {
        "dtype": "mxfp8", "cluster": "gb300-nvl72", "tp": 1, "pp": 2, "vpp": 20
    },
    "https://github.com/NVIDIA/Megatron-LM/issues/606": {
        "model": "llama2-7b", "cluster": "dgx-a100", "memory_limit": "39.4GiB", "gpus": 8, "tp": 1, "pp": 1, "zero": 0,
        "seq_len": 64, "micro_batch": 1, "global_batch": 8, "stack": "plain",
    },
}  # fmt: skip

LORA: dict[str, Any] = {
    "model": "llama2-70b", "lora": "16:linear_qkv+linear_proj", "gpus": 8, "pp": 1, "seq_len": 8192, "micro_batch": 1,
    "global_batch": 8, "dtype": "float8", "stack": "megatron-bridge",
}  # fmt: skip
"""MLPerf Training, llama2_70b_lora"""

RAN: dict[str, dict[str, Any]] = {
    "mlcommons/training_results_v5.1: AMD, one copy per weight": LORA | {
        "cluster": "mi325x-8", "weight_cache": "rowwise"
    },
    "mlcommons/training_results_v5.0: NVIDIA, activation inputs in 8 bits": LORA | {
        "cluster": "dgx-b200", "attention": "fused-fp8", "cross_entropy": "unfused", "activation_func_fp8_input_store": True
    },
    f"{BRIDGE}/pull/3107: 10 virtual stages": ON_H100 | {"vpp": 10},
    f"{BRIDGE}/pull/5489: micro-batch 2": QWEN_VL | {"micro_batch": 2},
    "torchtitan/pull/1993: local batch 6": TITAN | {"ep": 1, "seq_len": 4096, "micro_batch": 6, "global_batch": 48},
    "torchtitan/pull/1993: sequence 6144": TITAN | {"ep": 1, "seq_len": 6144, "micro_batch": 4, "global_batch": 32},
    TITAN_929: {
        "model": "llama3-8b", "cluster": "grand-teton", "gpus": 8, "zero": 3, "fully_shard": True, "seq_len": 8192,
        "micro_batch": 1, "global_batch": 8, "recompute": "selective-op", "stack": "torchtitan", "pp": 1,
        "cross_entropy": "unfused",
    },
    "https://github.com/NVIDIA-NeMo/Speech/issues/14850": {
        "model": "qwen3-30b-a3b", "cluster": "dgx-h100", "gpus": 16, "tp": 1, "pp": 2, "vpp": 24, "ep": 8, "etp": 1,
        "micro_batch": 1, "global_batch": 512, "seq_len": 4096, "stack": "megatron-bridge@none",
        "moe_dispatcher": "alltoall", "grad_reduce_in_bf16": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("source", FAILED)
def test_a_run_that_failed_has_no_plain_fits(source: str) -> None:
    verdict = ppsim.project(**FAILED[source]).verdict
    assert verdict is not None
    assert verdict.word in ("fits tightly", "does not fit")


@pytest.mark.parametrize("source", RAN)
def test_a_run_that_ran_is_not_refused(source: str) -> None:
    assert ppsim.project(**RAN[source]).fits is True


def test_a_run_before_the_loss_in_chunks_reserves_what_its_report_says() -> None:
    """47.65 GiB reserved, early in 2025: 1.03 × the tensors, below the ratio of the calibration rows."""
    made = ppsim.project(**RAN[TITAN_929])
    [reserved] = made.reserved_bytes
    assert reserved == pytest.approx(47.65 * 2**30, rel=0.09)
    assert made.to_json()["reserved_bytes"] == [reserved]


def test_reserved_memory_is_known_with_fsdp2_only() -> None:
    assert ppsim.project(**RAN[TITAN_929] | {"fully_shard": False}).reserved_bytes is None


@pytest.mark.parametrize(
    ("model", "micro_batch", "measured_gib"), [("llama3-8b", 32, 174.49), ("qwen3-8b", 16, 112.88)]
)
def test_memory_of_torchtitan_0_3_is_that_of_its_chunked_loss(
    model: str, micro_batch: int, measured_gib: float
) -> None:
    """torchtitan/components/quantization/nvfp4.md at b5bcd76: 4 GPUs with Blackwell, bfloat16, sequences of 2048."""
    options = {"model": model, "cluster": "gb200-nvl72", "gpus": 4, "pp": 1, "seq_len": 2048, "compile": True}
    options |= {"recompute": "selective-op", "stack": "torchtitan"}
    made = ppsim.project(**options, micro_batch=micro_batch, global_batch=4 * micro_batch)
    assert made.reserved_bytes[0] / 2**30 == pytest.approx(measured_gib, rel=0.07)


@pytest.mark.parametrize(("gpus", "measured_gib"), [(32, 47.96), (64, 46.97)])
def test_torchs_compiled_loss_has_no_float32_copy_of_the_logits(gpus: int, measured_gib: float) -> None:
    """Reserved by Llama 3.1 8B in float8 on H200 (TorchTitan, benchmarks, Trainy, June 2025)."""
    options = {
        "model": "llama3-8b",
        "cluster": "dgx-h200",
        "pp": 1,
        "seq_len": 8192,
        "micro_batch": 2,
        "compile": True,
    }
    options |= {"dtype": "float8", "recompute": "selective-op", "stack": "torchtitan", "cross_entropy": "compiled"}
    [reserved] = ppsim.project(**options, gpus=gpus, global_batch=2 * gpus).reserved_bytes
    assert reserved / 2**30 == pytest.approx(measured_gib, rel=0.06)
