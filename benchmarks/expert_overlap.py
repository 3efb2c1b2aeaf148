"""Errors of published runs with expert-parallel overlap.

    python benchmarks/expert_overlap.py

The first table has every row of the validation sets whose trainer overlapped the exchange of tokens. The second table
has published pairs of runs, with and without overlap: the ratio of their step times, measured and projected.

Errors are projected / measured - 1: a negative error means that the projection is too fast. Rows used for fitting a
constant are left out, and rows that ppsim cannot express completely.
"""

from typing import Any

import numpy as np

from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import PpsimError
from ppsim.base.units import percent, seconds, signed_percent
from ppsim.projection.project import outcome_of
from ppsim.results.text_layout import Page, TableLines
from ppsim.validation.project_case import measured_of, project_run
from ppsim.validation.published_runs import case_sets, cases_of

QWEN3 = {
    "model": "qwen3-30b-a3b", "cluster": "dgx-h100", "gpus": 16, "pp": 1, "ep": 16, "global_batch": 1024,
    "seq_len": 4096, "stack": "megatron-bridge@none",
}  # fmt: skip
PAIRS = {
    "Qwen3-30B-A3B, alltoall (Megatron-Bridge#3862)": (QWEN3 | {"moe_dispatcher": "alltoall"}, 41.25, 31.31),
    "Qwen3-30B-A3B, hybridep (Megatron-Bridge, 2026-07-25)": (
        QWEN3 | {"moe_dispatcher": "hybridep", "cuda_graphs": "moe_router+moe_preprocess"}, 24.7138, 20.992,
    ),
}  # fmt: skip
"""Options of `ppsim project`, and seconds per step without and with overlap."""


def published() -> list[dict[str, str]]:
    """Return a row per run with its error; then the means, total and by set."""
    rows: list[dict[str, str]] = []
    errors: dict[str, list[float]] = {}
    for name in case_sets():
        for case in cases_of(name):
            told, words = case.properties, case.settings
            if not words.get("overlap_ep") or told.use != "test" or case.is_memory or told.unexpressed:
                continue
            row = {
                "set": name, "model": told.title, "gpus": str(words["gpus"]),
                "dispatcher": words.get("moe_dispatcher", "deepep"), "overlap": str(words["overlap_ep"]),
            }  # fmt: skip
            try:
                plan = plan_of_keywords(case.options)
                error = project_run(case, plan) / measured_of(case, plan) - 1
            except PpsimError as refused:
                rows.append(row | {"error": str(refused).splitlines()[0][:60]})
                continue
            errors.setdefault(name, []).append(error)
            rows.append(row | {"error": signed_percent(error)})
    of_all = [error for found in errors.values() for error in found]
    totals = [("", "mean", signed_percent(np.mean(of_all))), ("", "mean absolute", percent(np.abs(of_all).mean()))]
    totals += [(name, "mean absolute", percent(np.abs(found).mean())) for name, found in errors.items()]
    blank = dict.fromkeys(("gpus", "dispatcher", "overlap"), "")
    rows += [{"set": name, "model": label, **blank, "error": value} for name, label, value in totals]
    return rows


def pairs() -> list[dict[str, str]]:
    rows = []
    for name, (words, without_s, with_s) in PAIRS.items():
        plain = predict_s(words)
        overlapped = predict_s(words | {"overlap_ep": "megatron"})
        rows.append(
            {
                "pair of runs": name, "without": f"{seconds(without_s)}, {seconds(plain)} projected",
                "with": f"{seconds(with_s)}, {seconds(overlapped)} projected",
                "ratio": f"{with_s / without_s:.3f}, {overlapped / plain:.3f} projected",
            }
        )  # fmt: skip
    return rows


def predict_s(words: dict[str, Any]) -> float:
    return outcome_of(plan_of_keywords(words))[0]


if __name__ == "__main__":
    Page().add(TableLines.of(published(), left=4), "", TableLines.of(pairs(), left=4))
