"""Write the profiles that carry a published source: `python scripts/make_published_profiles.py`.

The zero-bubble paper's Table 9 gives F, B (our I), W and transfer per rank and microbatch, for three numbers of
microbatches. Its first and last stage have one layer fewer, to compensate for embedding and head (§5.1). Therefore
a rank has (layers + 2) / p units of one layer each. The profiles use the time of a unit for layer, embedding and
head. Activation bytes are from Table 1.
"""

import csv
import statistics
from pathlib import Path
from typing import Any

from ppsim.base.file_schema import validated
from ppsim.base.files import to_json, write_atomically
from ppsim.costs.profile import FORMAT, Profile

ROOT = Path(__file__).parents[1]
PROFILES = ROOT / "profiles"
SEQUENCE_LENGTH = 1024

MODELS = {  # Table 3: layers, heads, hidden size, micro-batch
    "1.5B": (22, 24, 2304, 6),
    "6.2B": (30, 32, 4096, 3),
    "14.6B": (46, 40, 5120, 1),
    "28.3B": (62, 48, 6144, 1),
}


def quantity(milliseconds: list[float], units: int) -> dict[str, float]:
    """Return seconds per unit: the median over the numbers of microbatches, and the extremes."""
    values = sorted(value / 1e3 / units for value in milliseconds)
    return {key: round(value, 9) for key, value in zip(
        ("median", "low", "high"), (statistics.median(values), values[0], values[-1]), strict=True)}  # fmt: skip


def profile_of(name: str, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return the profile of one model from its rows of Table 9."""
    layers, heads, h, b = MODELS[name]
    s, pp = SEQUENCE_LENGTH, int(rows[0]["pp"])
    units = (layers + 2) // pp
    times = {
        f"{key}_s": quantity([float(row[f"{key}_ms"]) for row in rows], units)
        for key in ("forward", "backward_input", "backward_weight")
    }
    shape = {"micro_batch": b, "sequence_length": s, "dtype": "fp16"}
    hidden_bytes = 2 * s * b * h
    nothing = {"activation_bytes": 0, "activation_bytes_kept_for_weight": 0, "parameters": 0}
    layer = {
        "activation_bytes": s * b * (34 * h + 5 * heads * s),
        "activation_bytes_kept_for_weight": 32 * s * b * h,
        "parameters": 12 * h * h + 13 * h,
        "forward_flops": s * b * h * (24 * h + 4 * s),
    }
    return {
        "format": FORMAT,
        "name": f"zb-a100-{name.lower()}",
        "provenance": {
            "kind": "published",
            "source": f"Qi et al. 2024, arXiv 2401.10241v1, Table 9 ({name}, {pp} ranks)",
            "date": "2024-01",
            "device": {
                "name": "NVIDIA A100-SXM4-80GB",
                "kind": "cuda",
                "memory_bytes": 80 * 2**30,
                "peak_flops_per_s": {"fp16": 312e12, "bf16": 312e12},
            },
            "notes": [
                f"Per layer: Table 9's time of a rank over its {units} units; embedding and head count as one "
                "layer each, as the paper balances them (§5.1).",
                "Median and extremes are over the paper's three numbers of microbatches: "
                + ", ".join(row["microbatches"] for row in rows) + ".",
                "Activation bytes per layer: Table 1, sb(34h + 5as), of which W keeps 32sbh. Those of embedding "
                "and head, and their parameters, are not published and count as 0.",
                "The full backward was not published; B counts as I + W.",
                "peak_flops_per_s: data sheet, dense.",
            ],
        },
        "model": {"name": f"GPT {name}", "num_layers": layers, "hidden_size": h, "num_heads": heads},
        "measurements": [
            {"component": "embedding", "shape": shape, **times, **nothing, "output_bytes": hidden_bytes},
            {"component": "layer", "shape": shape, **times, **layer, "output_bytes": hidden_bytes},
            {"component": "head", "shape": shape, **times, **nothing, "output_bytes": 4},
        ],
        "transfers": [
            {"bytes": hidden_bytes, "seconds": quantity([float(row["transfer_ms"]) for row in rows], 1)}
        ],
    }  # fmt: skip


def profiles() -> dict[str, dict[str, Any]]:
    """Return every published profile, by name."""
    lines = (ROOT / "benchmarks" / "published" / "zb_paper.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    made = [profile_of(name, [row for row in rows if row["model"] == name]) for name in MODELS]
    return {profile["name"]: profile for profile in made}


def main() -> None:
    """Write the files."""
    for name, profile in profiles().items():
        validated(Profile, profile, name)
        write_atomically(PROFILES / f"{name}.json", to_json(profile))
        print(f"wrote {name}.json")


if __name__ == "__main__":
    main()
