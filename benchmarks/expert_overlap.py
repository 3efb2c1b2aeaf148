"""Published runs with expert-parallel overlap: projected with a hidden fraction, and with Megatron-LM's order.

    python benchmarks/expert_overlap.py

The first table has every row of the validation sets whose trainer overlapped the exchange of tokens. `part` is the
error with the hidden fraction of the row (0.9 or 1), `order` the error with the order of operations of
`--overlap-ep megatron` (`dualpipe` on DualPipe) and a schedule with pairs. The second table has published pairs of
runs, with and without overlap: the ratio of their step times, measured and projected.

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
    "seq_len": 4096, "stack": "megatron-bridge",
}  # fmt: skip
PAIRS = {
    "Qwen3-30B-A3B, alltoall (Megatron-Bridge#3862)": (QWEN3 | {"moe_dispatcher": "alltoall"}, 41.25, 31.31),
    "Qwen3-30B-A3B, hybridep (Megatron-Bridge, 2026-07-25)": (
        QWEN3 | {"moe_dispatcher": "hybridep", "cuda_graphs": "moe_router+moe_preprocess"}, 24.7138, 20.992,
    ),
}  # fmt: skip
"""Options of `ppsim project`, and seconds per step without and with overlap."""


def in_order(words: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a row with pairs of a forward and a backward pass instead of a hidden fraction."""
    if words["schedule"] == "dualpipe":
        return words | {"overlap_ep": "dualpipe"}
    return words | {"overlap_ep": "megatron", "schedule": "combined-1f1b"}


def published() -> list[dict[str, str]]:
    """Return a row per run with its errors by hidden fraction and by order; then the means, total and by set."""
    rows, errors, sets = [], [], []
    for name in case_sets():
        for case in cases_of(name):
            if (
                not case.options.get("overlap_ep")
                or case.properties.use != "test"
                or case.is_memory
                or case.properties.unexpressed
            ):
                continue
            words = dict(case.options)
            row = {
                "set": name,
                "model": case.properties.title,
                "gpus": str(words["gpus"]),
                "dispatcher": words.get("moe_dispatcher", "deepep"),
            }
            try:
                found = []
                for options in (words, in_order(words)):
                    plan = plan_of_keywords(options)
                    found.append(project_run(case, plan) / measured_of(case, plan) - 1)
            except PpsimError as error:
                rows.append(row | {"part": "–", "order": str(error).splitlines()[0][:60]})
                continue
            errors.append(found)
            sets.append(name)
            rows.append(row | {"part": signed_percent(found[0]), "order": signed_percent(found[1])})
    mean, absolute = np.mean(errors, axis=0), np.abs(errors).mean(axis=0)
    for label, values, text in (("mean", mean, signed_percent), ("mean absolute", absolute, percent)):
        summed = {"part": text(values[0]), "order": text(values[1])}
        rows.append({"set": "", "model": label, "gpus": "", "dispatcher": ""} | summed)
    for name in dict.fromkeys(sets):
        of_set = np.abs([found for one, found in zip(sets, errors, strict=True) if one == name]).mean(axis=0)
        summed = {"part": percent(of_set[0]), "order": percent(of_set[1])}
        rows.append({"set": name, "model": "mean absolute", "gpus": "", "dispatcher": ""} | summed)
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
