"""Compare published memory per rank with ppsim's projection: signed errors.

python benchmarks/memory_errors.py
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import ppsim
from ppsim import Op
from ppsim.model.architecture import Model
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.optimizer import Optimizer as Adam
from ppsim.model.pipeline_stages import Stage, stages_of
from ppsim.model.rank_memory import RankMemory, rank_memory
from ppsim.model.registry import find_model, gpt
from ppsim.parallel.sizes import ParallelSizes

FILE = Path(__file__).parent / "published" / "memory.csv"
PAPER = Execution(attention="unfused", dropout=True, cross_entropy="unfused", gradient_placeholders=False)
"""Assumptions of the papers of 2022 and 2023: attention scores and dropout masks stay in memory."""


@dataclass(frozen=True)
class Case:
    row: dict[str, str]
    published: float
    ours: float

    @property
    def error(self) -> float:
        return self.ours / self.published - 1


def cases() -> Iterator[Case]:
    lines = FILE.read_text().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        unit = 2**30 if row["unit"] == "GiB" else 1e9
        yield Case(row, float(row["value"]), OURS[row["set"]](row) / unit)


def simumax(row: dict[str, str]) -> float:
    """Return the highest peak of all ranks, with Megatron-LM's defaults and context parallelism by all-to-all."""
    model, pp = find_model("llama3-70b").with_layers(int(row["layers"])), int(row["pp"])
    settings = MemorySettings(
        int(row["micro_batch"]),
        int(row["seq_len"]),
        ParallelSizes(tp=int(row["tp"]), cp=int(row["cp"]), dp=int(row["dp"])),
        execution=Execution(context="all-to-all"),
        vocab_multiple=128,
    )
    stages = stages_of(model, [len(model.layers) // pp] * pp)
    flights = [[stage] for stage in range(pp, 0, -1)]
    ranks = [rank_memory(model, [stage], settings, in_flight=n) for stage, n in zip(stages, flights, strict=True)]
    return max(rank.total for rank in ranks)


def korthikanti(row: dict[str, str]) -> float:
    """Return the first rank's bytes: fp16, float32 gradients, unsharded state; layers in flight as in §4.2.3."""
    pp, vpp, layers = int(row["pp"]), int(row["vpp"]), int(row["layers"])
    model = gpt(layers, int(row["hidden"]), int(row["heads"]), vocab=51200)
    parallel = row["recompute"] == "selective + SP"
    settings = MemorySettings(
        int(row["micro_batch"]),
        int(row["seq_len"]),
        ParallelSizes(tp=int(row["tp"]), sequence_parallel=parallel),
        Adam("fp16", zero_stage=0, gradient_bytes=4),
        replace(PAPER, recompute="core_attn" if parallel else "none"),
        workspace_bytes=0,
    )
    stage = Stage(model.layers[: layers // pp])  # the figure excludes embedding and head
    in_flight = pp * (1 + (pp - 1) / (pp * vpp)) if vpp > 1 else pp
    found = rank_memory(model, [stage], settings, in_flight=[in_flight])
    return found.activations if row["quantity"] == "activations" else found.static


def zero_bubble(row: dict[str, str]) -> float:
    """Return the highest peak of all ranks: the end stages have one layer fewer; fp16 as in Megatron-LM."""
    pp, layers = int(row["pp"]), int(row["layers"])
    model = gpt(layers, int(row["hidden"]), int(row["heads"]), sequence_length=int(row["seq_len"]))
    settings = MemorySettings(
        int(row["micro_batch"]),
        int(row["seq_len"]),
        ParallelSizes(),
        Adam("fp16", zero_stage=0),
        PAPER,
        vocab_multiple=128,
    )
    if row["schedule"] == "1F1B-I":
        return max(rank.total for rank in _interleaved(model, pp, (layers + 2) // pp, settings))
    inner = (layers + 2) // pp
    stages = stages_of(model, [inner - 1, *[inner] * (pp - 2), inner - 1])
    flights = {"1F1B": [pp - rank for rank in range(pp)], "ZB-1p": [pp] * pp, "ZB-2p": [2 * pp] * pp}[
        row["schedule"]
    ]
    ranks = [rank_memory(model, [stage], settings, in_flight=[n]) for stage, n in zip(stages, flights, strict=True)]
    return max(rank.total for rank in ranks)


def _interleaved(model: Model, pp: int, vpp: int, settings: MemorySettings) -> Iterator[RankMemory]:
    """Yield each rank of interleaved 1F1B at its peak, with one layer per stage and none on the end stages."""
    stages = stages_of(model, [0, *[1] * (pp * vpp - 2), 0])
    table = ppsim.build("interleaved-1f1b", pp=pp, vpp=vpp, microbatches=3 * pp)
    for actions in table.rows():
        held: dict[int, int] = {}
        peak: dict[int, int] = {}
        for action in actions:
            held[action.stage] = held.get(action.stage, 0) + (1 if action.op == Op.F else -1)
            if _layers(held, stages) > _layers(peak, stages):
                peak = dict(held)
        chunks = sorted(peak)
        yield rank_memory(
            model, [stages[chunk] for chunk in chunks], settings, in_flight=[peak[chunk] for chunk in chunks]
        )


def _layers(held: dict[int, int], stages: list[Stage]) -> int:
    return sum(number * len(stages[stage].layers) for stage, number in held.items())


OURS = {"simumax": simumax, "korthikanti": korthikanti, "zero-bubble": zero_bubble}


def main() -> None:
    print("| set | case | quantity | published | ours | error |")
    print("|---|---|---|--:|--:|--:|")
    for case in cases():
        row = case.row
        cuts = " ".join(f"{name} {row[name]}" for name in ("tp", "cp", "pp", "dp") if row[name] not in ("", "1"))
        batch = f"batch {row['global_batch']}" if row["set"] == "simumax" else row["schedule"]
        recompute = row["recompute"] if row["set"] == "korthikanti" and row["quantity"] == "activations" else ""
        what = ", ".join(filter(None, [row["model"], f"seq {row['seq_len']}", cuts, batch, recompute]))
        print(
            f"| {row['set']} | {what} | {row['quantity']} | {case.published:.2f} {row['unit']} "
            f"| {case.ours:.2f} | {100 * case.error:+.2f} % |"
        )
    print()
    for name in OURS:
        errors = [case.error for case in cases() if case.row["set"] == name]
        mean, worst = sum(map(abs, errors)) / len(errors), max(errors, key=abs)
        print(f"{name}: {len(errors)} rows, mean absolute error {100 * mean:.2f} %, worst {100 * worst:+.2f} %")


if __name__ == "__main__":
    main()
