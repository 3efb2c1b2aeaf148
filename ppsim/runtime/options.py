"""Options of `ppsim train`. Imports nothing heavy, because help pages read it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.schedule.choices import Dtype

if TYPE_CHECKING:
    from ppsim.simulation.stage_costs import StageCosts


DEFAULT_MODEL = "micro"
"""A model that trains in seconds, with actions of some milliseconds, so that call overheads are negligible."""

MODULE = Option(
    "A model of one's own: FILE.py is imported, which runs its code, and FUNCTION(layers of each stage) returns "
    "stages, inputs, targets and loss (docs/howto/own_model.md).",
    metavar="FILE.py:FUNCTION",
    section="model",
    after="model",
)


# fmt: off
class TrainOptions(TypedDict, total=False):
    """Options of `ppsim train`; its `--help` has their meanings and defaults."""

    nproc: Annotated[int | None, Option(
        "Processes to start, one a rank. Default: the table's ranks.", metavar="N", section="processes",
    )]
    partitions: Annotated[int | None, Option(
        "All N ranks in this process on one device instead, with a thread per rank. On CUDA with --emulate-costs "
        "only: spin kernels, one stream per rank.",
        metavar="N", section="processes",
    )]
    device: Annotated[Literal["cpu", "cuda"] | None, Option(
        "Where to compute.", section="processes", field="device", default="cpu", shown=True,
    )]
    threads: Annotated[int | None, Option(
        "CPU threads of a process.", metavar="N", section="processes", field="num_threads", default=1, shown=True,
    )]
    timeout: Annotated[float | None, Option(
        "How long a rank waits for another.",
        metavar="SECONDS", section="processes", field="timeout_s", default=120.0, shown=True,
    )]
    model: Annotated[Literal["nano", "micro", "mini", "gpt2"] | str | None, Option(
        "A GPT: nano for tests, with passes of 0.3 ms, micro of 10, mini of 50 on a core, or gpt2. Default: "
        f"{DEFAULT_MODEL}.",
        metavar="nano|micro|mini|gpt2", section="model",
    )]
    module: Annotated[str | None, MODULE]
    layers: Annotated[int | None, Option(
        "Layers, instead of the model's.", metavar="N", section="model", field="model.num_layers",
    )]
    hidden: Annotated[int | None, Option(
        "Hidden size, instead of the model's.", metavar="N", section="model", field="model.hidden_size",
    )]
    heads: Annotated[int | None, Option(
        "Attention heads, instead of the model's.", metavar="N", section="model", field="model.num_heads",
    )]
    seq_len: Annotated[int | None, Option(
        "Tokens a sequence, instead of the model's.",
        metavar="TOKENS", section="model", field="model.sequence_length",
    )]
    micro_batch: Annotated[int | None, Option(
        "Sequences a microbatch.", metavar="N", section="model", field="micro_batch", default=2, shown=True,
    )]
    dtype: Annotated[Dtype | None, Option(
        "Number format of weights and activations. Default: float32, with --module the module's own.",
        section="model", field="dtype",
    )]
    recompute: Annotated[str | None, Option(
        "Layers that keep their input alone and run again in the backward: none, full, block/N, uniform/N, full/N, "
        "full@IDS, or full*N, as `ppsim project` has them. Default: none.",
        metavar="none|full|block/N|…", section="model", field="recompute",
    )]
    stage_plan: Annotated[str | Path | None, Option(
        "Layers and recomputation of each stage, a file as `ppsim project --plan` has it. Default: --split and "
        "--recompute.",
        flag="--plan", metavar="FILE", section="model",
    )]
    split: Annotated[str | Sequence[int] | None, Option(
        "Layers a stage: even, or numbers as 2,3,3,2.",
        metavar="even|N,N,…", section="model", default="even", shown=True,
    )]
    seed: Annotated[int | None, Option(
        "Seed of the random weights and batches.",
        metavar="N", section="model", field="seed", default=0, shown=True,
    )]
    steps: Annotated[int | None, Option(
        "Recorded training steps.", metavar="N", section="run", field="num_steps", default=3, shown=True,
    )]
    warm_up: Annotated[int | None, Option(
        "Steps before them, not recorded.", metavar="N", section="run", field="num_warm_up", default=1, shown=True,
    )]
    learning_rate: Annotated[float | None, Option(
        "Learning rate of AdamW.", metavar="RATE", section="run", field="learning_rate", default=1e-3, shown=True,
    )]
    receives: Annotated[Literal["torch", "deferred"] | None, Option(
        "Where torch posts the receives of a compute-only table.",
        section="run", field="receives", default="torch", shown=True,
    )]
    emulate_costs: Annotated["str | Path | StageCosts | None", Option(
        "Wait as long as this costs file says instead of computing and transferring. Default: compute.",
        metavar="C.json", section="run", field="emulate_costs",
    )]
    straggling_steps: Annotated[Mapping[int, float] | None, Option(
        "With --emulate-costs, a recorded step that computes more slowly: 2:1.5 is step 2, of 0 and on, taking 1.5 "
        "times as long. May be repeated.",
        metavar="STEP:FACTOR", section="run", field="straggling_steps", flag="--straggling-step",
    )]
    verify: Annotated[bool | None, Option(
        "Compare loss and gradients of the first step with one process.",
        section="run", field="verify", default=False,
    )]
    trace: Annotated[str | Path | None, Option(
        "Write torch.profiler's trace of every rank to this folder.",
        metavar="FOLDER", section="run", field="trace",
    )]
