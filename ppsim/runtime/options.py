"""Options of `ppsim train`. Imports nothing heavy, because help pages read it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.schedule.option_types import Dtype

if TYPE_CHECKING:
    from ppsim.simulation.stage_costs import StageCosts


DEFAULT_MODEL = "micro"
"""A model that trains in seconds, with actions of some milliseconds, so that call overheads are negligible."""

MODULE = Option(
    "Your own model. FILE.py is imported, which runs its code. FUNCTION(layers of each stage) returns stages, "
    "inputs, targets and loss (docs/howto/own_model.md).",
    metavar="FILE.py:FUNCTION",
    section="model",
    after="model",
)


# fmt: off
class TrainOptions(TypedDict, total=False):
    """Options of `ppsim train`; its `--help` has their meanings and defaults."""

    nproc: Annotated[int | None, Option(
        "Number of processes to start, one per rank. [default: the ranks of the table]",
        metavar="N", section="processes",
    )]
    partitions: Annotated[int | None, Option(
        "Run all N ranks as threads of this process, on one device. On CUDA this requires --emulate-costs, and "
        "each rank runs spin kernels on its own stream.",
        metavar="N", section="processes",
    )]
    device: Annotated[Literal["cpu", "cuda"] | None, Option(
        "Device to run on.", section="processes", field="device", default="cpu", shown=True,
    )]
    threads: Annotated[int | None, Option(
        "CPU threads per process.", metavar="N", section="processes", field="num_threads", default=1, shown=True,
    )]
    timeout: Annotated[float | None, Option(
        "Maximum time that a rank waits for another, and that --module takes to build and try its stages.",
        metavar="SECONDS", section="processes", field="timeout_s", default=120.0, shown=True,
    )]
    model: Annotated[Literal["nano", "micro", "mini", "gpt2"] | str | None, Option(
        "GPT to train: nano (for tests, 0.3 ms per pass on one core), micro (10 ms), mini (50 ms) or gpt2. "
        f"[default: {DEFAULT_MODEL}]",
        metavar="nano|micro|mini|gpt2", section="model",
    )]
    module: Annotated[str | None, MODULE]
    layers: Annotated[int | None, Option(
        "Number of layers, instead of the model's.", metavar="N", section="model", field="model.num_layers",
    )]
    hidden: Annotated[int | None, Option(
        "Hidden size, instead of the model's.", metavar="N", section="model", field="model.hidden_size",
    )]
    heads: Annotated[int | None, Option(
        "Number of attention heads, instead of the model's.", metavar="N", section="model", field="model.num_heads",
    )]
    seq_len: Annotated[int | None, Option(
        "Tokens per sequence, instead of the model's.",
        metavar="TOKENS", section="model", field="model.sequence_length",
    )]
    micro_batch: Annotated[int | None, Option(
        "Sequences per microbatch.", metavar="N", section="model", field="micro_batch", default=2, shown=True,
    )]
    dtype: Annotated[Dtype | None, Option(
        "Number format of weights and activations. [default: float32, with --module the module's own]",
        section="model", field="dtype",
    )]
    recompute: Annotated[str | None, Option(
        "Recomputation of whole layers: none, full, block/N, uniform/N, full/N, full@IDS or full*N, as for `ppsim "
        "project`. [default: none]",
        metavar="none|full|block/N|…", section="model", field="recompute",
    )]
    stage_plan: Annotated[str | Path | None, Option(
        "Layers and recomputation of each stage, a file as for `ppsim project --plan`. [default: --split and "
        "--recompute]",
        flag="--plan", metavar="FILE", section="model",
    )]
    split: Annotated[str | Sequence[int] | None, Option(
        "Layers per stage: even, or numbers (2,3,3,2).",
        metavar="even|N,N,…", section="model", default="even", shown=True,
    )]
    seed: Annotated[int | None, Option(
        "Random seed of weights and batches.",
        metavar="N", section="model", field="seed", default=0, shown=True,
    )]
    steps: Annotated[int | None, Option(
        "Number of recorded training steps.", metavar="N", section="run", field="num_steps", default=3, shown=True,
    )]
    warm_up: Annotated[int | None, Option(
        "Number of unrecorded steps before them.",
        metavar="N", section="run", field="num_warm_up", default=1, shown=True,
    )]
    learning_rate: Annotated[float | None, Option(
        "Learning rate of AdamW.", metavar="RATE", section="run", field="learning_rate", default=1e-3, shown=True,
    )]
    receives: Annotated[Literal["torch", "deferred"] | None, Option(
        "When receives of a compute-only table are posted: as early as torch does (torch), or just before use "
        "(deferred).",
        section="run", field="receives", default="torch", shown=True,
    )]
    emulate_costs: Annotated["str | Path | StageCosts | None", Option(
        "Costs file. Ranks wait for its times instead of computing and transferring. [default: none]",
        metavar="C.json", section="run", field="emulate_costs",
    )]
    straggling_steps: Annotated[Mapping[int, float] | None, Option(
        "With --emulate-costs, a slow recorded step: with 2:1.5, compute in step 2 (counted from 0) takes 1.5 × as "
        "long. May be repeated.",
        metavar="STEP:FACTOR", section="run", field="straggling_steps", flag="--straggling-step",
    )]
    verify: Annotated[bool | None, Option(
        "Compare loss and gradients of the first step with a run in one process.",
        section="run", field="verify", default=False,
    )]
    trace: Annotated[str | Path | None, Option(
        "Folder for the torch.profiler trace of every rank.",
        metavar="FOLDER", section="run", field="trace",
    )]
