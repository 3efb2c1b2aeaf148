"""Make profiles/kernels/<device>.npz from public measurements of kernels.

python scripts/make_kernel_tables.py --aiconfigurator FOLDER --aiter measured_gemm.csv [--to profiles/kernels]

FOLDER is the unpacked wheel aiconfigurator-core 0.12.0 (Apache-2.0). The CSV has the tuned GEMMs of ROCm/aiter
(MIT), one per line: gfx, num_cores, dtype, scaling, m, n, k, microseconds. Needs pandas and pyarrow. The format of
the files is described in `ppsim.machine.kernels.published_tables`. Cells without a measurement stay empty.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from ppsim.machine.devices import hardware
from ppsim.machine.kernels.published_tables import EMPTY, STEPS

NVIDIA = {
    "a100-80gb-sxm": ("a100_sxm", "sglang", "0.5.10"),
    "h100-sxm": ("h100_sxm", "trtllm", "1.3.0rc20"),
    "h200": ("h200_sxm", "trtllm", "1.3.0rc20"),
    "b200": ("b200_sxm", "trtllm", "1.3.0rc20"),
    "b300": ("b300_sxm", "trtllm", "1.3.0rc20"),
    "gb200": ("gb200", "trtllm", "1.3.0rc20"),
    "gb300": ("gb300", "trtllm", "1.3.0rc20"),
    "l40s": ("l40s", "trtllm", "1.3.0rc20"),
    "rtx-pro-6000": ("rtx_pro_6000_server", "trtllm", "1.3.0rc20"),
}
"""For each device: the folder, the framework whose kernels resemble training's most, and its version."""

MX = {"rtx-pro-6000": "float8"}
"""Devices whose MXFP8 GEMMs are closest to another number format than block-scaled FP8, and that format.

Their tensor cores do not scale blocks.
"""

AMD = {"mi300x": ("gfx942", 304), "mi355x": ("gfx950", 256)}

TYPES = {"bfloat16": "bfloat16", "fp8": "float8", "fp8_block": "float8-block", "nvfp4": "nvfp4"}
AMD_TYPES = {
    ("bfloat16", "row"): "bfloat16",
    ("float8", "row"): "float8",
    ("float8", "preshuffle"): "float8",
    ("float8", "block"): "float8-block",
    ("float4", "block"): "mxfp4",
}
OPERAND_BYTES = {"bfloat16": 2.0, "float8": 1.0, "float8-block": 1.0, "nvfp4": 0.5}

ROWS = [64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768]
SIZES = [
    256,
    512,
    768,
    1024,
    1536,
    2048,
    2560,
    3072,
    3584,
    4096,
    5120,
    6144,
    7168,
    8192,
    10240,
    12288,
    16384,
    51200,
    65536,
]
AMD_ROWS = [512, 1024, 2048, 4096, 8192, 16384, 32768]
AMD_SIZES = [256, 512, 1024, 2048, 4096, 8192, 16384]
LENGTHS = [512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384]
HEADS = [2**power for power in range(12)]
HEAD_SIZES = [64, 128, 192, 256]
EXPERT_ROWS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
EXPERT_COLUMNS = [256, 512, 1024, 2048, 4096, 8192, 16384]

NEAR = 0.5
"""Largest distance between a cell and a measured shape that counts for it, in doublings of m, n and k."""

NUM_LOCAL = 8
"""Minimum number of experts per rank: with fewer, launches dominate the measurement of grouped GEMMs."""

MOST_REMOVED = 0.6
"""Largest fraction of an MoE layer's time that is attributed to moving tokens instead of GEMMs."""


def encoded(rates: np.ndarray) -> np.ndarray:
    """Encode FLOP/s as integer steps of the logarithm; NaN becomes empty."""
    with np.errstate(invalid="ignore"):
        steps = np.round(STEPS * np.log(rates / 1e12))
    return np.where(np.isnan(steps), EMPTY, steps).astype(np.int16)


def on_grid(rows: pandas.DataFrame, axes: dict[str, list[int]]) -> np.ndarray:
    """Return the median rate of each exactly measured cell."""
    medians = rows.groupby(list(axes))["rate"].median()
    cells = pandas.MultiIndex.from_product(axes.values(), names=axes)
    return medians.reindex(cells).to_numpy(dtype=float).reshape([len(values) for values in axes.values()])


def near_grid(rows: pandas.DataFrame, axes: dict[str, list[int]]) -> np.ndarray:
    """Return the rate of each cell: mean of nearby measured shapes, weighted by the inverse squared distance."""
    there = np.log2(rows[list(axes)].to_numpy(dtype=float))
    rates = np.log(rows["rate"].to_numpy(dtype=float))
    cells = np.log2(np.stack(np.meshgrid(*axes.values(), indexing="ij"), axis=-1).astype(float))
    found = np.full(cells.shape[:-1], np.nan)
    for index in np.ndindex(found.shape):
        distance = np.linalg.norm(there - cells[index], axis=1)
        near = distance <= NEAR
        if near.any():
            found[index] = np.exp(np.average(rates[near], weights=1 / np.maximum(distance[near], 0.05) ** 2))
    return found


def products(table: pandas.DataFrame) -> dict[str, np.ndarray]:
    """Return the rates of GEMMs, one grid per number format."""
    table = table.assign(rate=2e3 * table.m * table.n * table.k / table.latency)
    axes = {"m": ROWS, "n": SIZES, "k": SIZES}
    return {
        f"product_{TYPES[name]}": encoded(on_grid(rows, axes))
        for name, rows in table.groupby("gemm_dtype")
        if name in TYPES
    } | {f"product_axis_{name}": np.array(values, np.int32) for name, values in axes.items()}


def attention(table: pandas.DataFrame) -> dict[str, np.ndarray]:
    """Return the rates of causal 16-bit attention, for any number of key and value heads."""
    table = table[(table.attn_dtype == "bfloat16") & (table.kv_cache_dtype == "bfloat16")]
    if "window_size" in table:
        table = table[table.window_size == 0]
    heads = table.batch_size * table.num_heads
    table = table.assign(heads=heads, rate=2e3 * heads * table.isl**2 * table.head_dim / table.latency)
    axes = {"head_dim": HEAD_SIZES, "isl": LENGTHS, "heads": HEADS}
    names = ("size", "length", "heads")
    return {"attention_bfloat16": encoded(on_grid(table, axes))} | {
        f"attention_axis_{name}": np.array(values, np.int32)
        for name, values in zip(names, axes.values(), strict=True)
    }


def experts(table: pandas.DataFrame, memory_bytes_per_s: float) -> dict[str, np.ndarray]:
    """Return the rates of grouped GEMMs of gated experts, without the time to permute, weight and activate.

    Bytes subtracted, for hidden size h and expert width f: per routed token, 2h bytes read and one operand of size
    h written before the experts, 2h read after them, 4f read and one operand of size f written by the activation;
    and per token, 4h at both ends.
    """
    table = table[
        (table.distribution == "balanced")
        & ~table.kernel_source.str.contains("nongated")
        & (table.num_experts // table.moe_ep_size >= NUM_LOCAL)
        & (table.moe_ep_size <= 4)
        & table.moe_dtype.isin(list(TYPES))
    ]
    pairs, h = table.num_tokens * table.topk / table.moe_ep_size, table.hidden_size
    f, operand = table.inter_size / table.moe_tp_size, table.moe_dtype.map(TYPES).map(OPERAND_BYTES)
    moved = pairs * (h * (4 + operand) + f * (4 + operand)) + 4.0 * table.num_tokens * h
    seconds = table.latency / 1e3
    left = np.maximum(seconds - moved / memory_bytes_per_s, (1 - MOST_REMOVED) * seconds)
    table = table.assign(
        rows=2.0 ** np.log2(table.num_tokens * table.topk / table.num_experts).round(),
        columns=2.0 ** np.log2(np.minimum(f, h)).round(),
        rate=6 * pairs * h * f / left,
    )
    axes = {"rows": EXPERT_ROWS, "columns": EXPERT_COLUMNS}
    return {f"grouped_{TYPES[name]}": encoded(on_grid(rows, axes)) for name, rows in table.groupby("moe_dtype")} | {
        f"grouped_axis_{name}": np.array(values, np.int32) for name, values in axes.items()
    }


def of_nvidia(folder: Path, device: str) -> dict[str, np.ndarray]:
    """Return a device's arrays from the unpacked wheel."""
    name, framework, version = NVIDIA[device]

    def read(kind: str, file: str) -> pandas.DataFrame:
        return pandas.read_parquet(
            next(folder.rglob(f"data/{name}/{kind}/{framework}/{version}/{file}_perf.parquet"))
        )

    gemm = read("gemm", "gemm")
    sheet = hardware("devices")[device]
    share = hardware("efficiency")[sheet["efficiency"]]["memory"]
    facts = {
        "device": str(gemm.device.iloc[0]),
        "source": f"aiconfigurator-core 0.12.0, systems/data/{name}, {framework} {version}: gemm, "
        "context_attention, moe",
        "stand_ins": {"float16": "bfloat16", "mxfp8": MX.get(device, "float8-block"), "mxfp4": "nvfp4"},
        "copyright": "Copyright (c) 2026 NVIDIA CORPORATION & AFFILIATES",
        "licence": "Apache-2.0",
        "notes": "8-bit and 4-bit products with the cast of their activations; attention forward only; grouped "
        "products: what moves tokens and activates is taken off a mixture's seconds",
    }
    return {
        **products(gemm),
        **attention(read("attention", "context_attention")),
        **experts(read("moe", "moe"), share * sheet["memory_bytes_per_s"]),
        "facts": np.array(json.dumps(facts)),
    }


def of_amd(rows: pandas.DataFrame, device: str) -> dict[str, np.ndarray]:
    """Return a device's arrays from the tuned GEMMs."""
    gfx, cores = AMD[device]
    here = rows[(rows.gfx == gfx) & (rows.num_cores == cores)]
    here = here.assign(rate=2e6 * here.m * here.n * here.k / here.microseconds)
    here = here.assign(type=[AMD_TYPES.get(pair) for pair in zip(here.dtype, here.scaling, strict=True)])
    axes = {"m": AMD_ROWS, "n": AMD_SIZES, "k": AMD_SIZES}
    found: dict[str, Any] = {
        f"product_{name}": encoded(near_grid(of_type, axes)) for name, of_type in here.groupby("type")
    }
    facts = {
        "stand_ins": {"float16": "bfloat16", "mxfp8": "float8"},
        "device": f"{gfx}, {cores} compute units",
        "source": "ROCm/aiter, aiter/configs: tuned products",
        "copyright": "Copyright (C) Advanced Micro Devices, Inc.",
        "licence": "MIT",
        "notes": f"each cell from the shapes within {NEAR} doublings of it; products only, without casts",
    }
    return found | {
        **{f"product_axis_{name}": np.array(values, np.int32) for name, values in axes.items()},
        "facts": np.array(json.dumps(facts)),
    }


def main() -> None:
    """Make all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aiconfigurator", type=Path, required=True)
    parser.add_argument("--aiter", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=Path("profiles/kernels"))
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    rows = pandas.read_csv(given.aiter)
    made = {device: of_nvidia(given.aiconfigurator, device) for device in NVIDIA}
    made |= {device: of_amd(rows, device) for device in AMD}
    for device, arrays in made.items():
        path = given.to / f"{device}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
