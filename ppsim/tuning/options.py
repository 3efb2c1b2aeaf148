"""Every option of a search, declared once: fixed options of the job, and ranges to try.

Imports nothing heavy, because help pages read it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.model.recompute import Recompute
from ppsim.projection.options import OVERHEADS, RUNTIME, SEQUENCE_PARALLEL, Runtime, StudyOptions

if TYPE_CHECKING:
    from ppsim.runs.calibrate import Calibration

_MANY = "N,N,…"

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "interleaved-zb", "zbv-fixed", "v-half-fixed")
"""Default schedules: patterns that are independent of costs and supported by runtimes."""


# fmt: off
class RangeOptions(TypedDict, total=False):
    """Ranges to try."""

    tp: Annotated[Sequence[int] | None, Option(
        "Tensor-parallel ranks to try. Default: what divides the model and a node.",
        metavar=_MANY, section="tried", also=("--tensor-model-parallel-size",),
    )]
    cp: Annotated[Sequence[int] | None, Option(
        "Context-parallel ranks to try. Default: 1,2,4,8 that leave 2,048 tokens or more.",
        metavar=_MANY, section="tried", also=("--context-parallel-size",),
    )]
    ep: Annotated[Sequence[int] | None, Option(
        "Expert-parallel ranks to try. Default: powers of two up to 64 that divide the experts.",
        metavar=_MANY, section="tried", also=("--expert-model-parallel-size",),
    )]
    dp: Annotated[Sequence[int] | None, Option(
        "Data-parallel replicas to allow; they are what the others leave. Default: any.",
        metavar=_MANY, section="tried",
    )]
    pp: Annotated[Sequence[int] | None, Option(
        "Pipeline ranks to try. Default: what divides the GPUs, up to the layers and two more.",
        metavar=_MANY, section="tried", also=("--pipeline-model-parallel-size",),
    )]
    vpp: Annotated[Sequence[int] | None, Option(
        "Stages a rank to try. Default: {default}, and on the best layouts all sizes that divide the layers.",
        metavar=_MANY, section="tried", default=(1, 2, 4, 8),
        also=("--num-virtual-stages-per-pipeline-rank",),
    )]
    micro_batch: Annotated[Sequence[int] | None, Option(
        "Sequences a microbatch to try. Default: {default}.",
        metavar=_MANY, section="tried", default=(1, 2, 4, 8),
    )]
    schedule: Annotated[Sequence[str] | None, Option(
        "Schedules to try, names from `ppsim schedules`; with auto, a table is searched for on the best three. "
        "Default: {default}, and on the best layouts zbv and v-half.",
        names="schedule", metavar="NAME,NAME,…", section="tried", default=SCHEDULES,
    )]
    recompute: Annotated[Sequence[Recompute] | None, Option(
        "What of a layer is computed again in its backward, to try, as project takes it. Default: {default}, with "
        "--fully-shard (as of --stack torchtitan) selective-op too, and on the best layouts modules and block/N.",
        metavar="KIND,…", section="tried", default=("none", "full"),
    )]
    zero: Annotated[Sequence[int] | None, Option(
        "ZeRO stages to try, each with every layout. Default: the job's own (1, or as --stack or --run-config has "
        "it), and 3 without a pipeline if that is 1 and the stack runs Megatron-FSDP.",
        metavar="0|1|2|3,…", section="tried",
    )]
    split: Annotated[Sequence[Literal["auto", "even"]] | None, Option(
        "Layer splits to try: auto (equal work per rank), even. Default: {default}.",
        metavar="KIND,…", section="tried", default=("auto", "even"),
    )]


class TuneOptions(StudyOptions, RangeOptions, total=False):
    """Options of a search; `ppsim tune --help` has the meaning and default of each."""

    stage_plan: Annotated[Literal["auto"] | None, Option(
        "auto: at the end, layers and recomputation of each stage are searched for on the best layouts, as `ppsim "
        "project --plan auto` does. Default: all stages of a configuration recompute the same.",
        flag="--plan", section="search", after="top",
    )]
    layers: Annotated[int | None, Option(
        "Layers of the model. Default: its own.",
        metavar="N", section="model", after="model", field="num_layers", also=("--num-layers",),
    )]
    seq_len: Annotated[int | None, Option(
        "Tokens a sequence. Default: the model's.",
        metavar="TOKENS", section="model", field="job.sequence_length", also=("--seq-length",),
    )]
    memory_limit: Annotated[str | float | None, Option(
        "Memory a GPU may use, as 80GiB or 80GB. Default: --memory-share of what it has.",
        metavar="SIZE", section="cluster",
    )]
    memory_share: Annotated[float | None, Option(
        "Part of a GPU's memory, 0 to 1, that a step may take; the rest is the allocator's. Default: 0.95.",
        metavar="PART", section="cluster",
    )]
    runtime: Annotated[Runtime | None, replace(RUNTIME, section="cluster")]
    overheads: Annotated["str | Path | Calibration | None", replace(OVERHEADS, section="cluster")]
    sequence_parallel: Annotated[bool | None, replace(SEQUENCE_PARALLEL, section="optimizer", after="overlap_dp")]
    top: Annotated[int | None, Option(
        "How many of the fastest to rank.", metavar="N", section="search", default=10, shown=True,
    )]
    jobs: Annotated[int | None, Option(
        "Processes to search with, -1 for one a core; more than one needs joblib. Default: {default}.",
        metavar="N", section="search", default=1,
    )]
    workers: Annotated[str | None, Option(
        "Who does the work: dask:tcp://HOST:PORT or ray:auto for a cluster's workers, processes:N as --jobs N. "
        "The answer is the same.",
        metavar="WHERE", section="search",
    )]
    resume: Annotated[str | Path | None, Option(
        "Keep the state of the search in a file, and go on from it where there is one.",
        metavar="FILE", section="search",
    )]
    search_time: Annotated[float | None, Option(
        "With auto: how long to search each. Default: {default} s.",
        metavar="SECONDS", section="search", default=10.0,
    )]
    seed: Annotated[int | None, Option(
        "With auto: seed of the search's random choices.",
        metavar="N", section="search", default=0, shown=True,
    )]
