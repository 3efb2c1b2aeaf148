"""All options of a search. Imports nothing heavy, because help pages read it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.model.recompute import Recompute
from ppsim.projection.options import CALIBRATION, RUNTIME, SEQUENCE_PARALLEL, Runtime, SearchBaseOptions

if TYPE_CHECKING:
    from ppsim.runs.calibrate import FittedOverheads

_MANY = "N,N,…"

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "interleaved-zb", "zbv-fixed", "v-half-fixed")
"""Default schedules: patterns that are independent of costs and supported by runtimes."""


# fmt: off
class RangeOptions(TypedDict, total=False):
    """Ranges to try."""

    tp: Annotated[Sequence[int] | None, Option(
        "Tensor-parallel sizes to try. [default: all that divide the model and a node]",
        metavar=_MANY, section="tried", also=("--tensor-model-parallel-size",),
    )]
    cp: Annotated[Sequence[int] | None, Option(
        "Context-parallel sizes to try. [default: those of 1,2,4,8 that leave at least 2,048 tokens per rank]",
        metavar=_MANY, section="tried", also=("--context-parallel-size",),
    )]
    ep: Annotated[Sequence[int] | None, Option(
        "Expert-parallel sizes to try. [default: powers of two up to 64 that divide the number of experts]",
        metavar=_MANY, section="tried", also=("--expert-model-parallel-size",),
    )]
    etp: Annotated[int | Sequence[int] | None, Option(
        "Tensor-parallel sizes of each expert to try. [default: tp, or 1 if ep needs it; on the best layouts also "
        "1, half and twice the size]",
        metavar=_MANY, section="tried", field="job.layout.etp", also=("--expert-tensor-parallel-size",),
    )]
    dp: Annotated[Sequence[int] | None, Option(
        "Data-parallel sizes to allow. They follow from --gpus and the other sizes. [default: any]",
        metavar=_MANY, section="tried",
    )]
    pp: Annotated[Sequence[int] | None, Option(
        "Pipeline sizes to try. [default: divisors of --gpus, up to the number of layers + 2]",
        metavar=_MANY, section="tried", also=("--pipeline-model-parallel-size",),
    )]
    vpp: Annotated[Sequence[int] | None, Option(
        "Stages per rank to try. [default: {default}; on the best layouts also all numbers that divide the "
        "layers]",
        metavar=_MANY, section="tried", default=(1, 2, 4, 8),
        also=("--num-virtual-stages-per-pipeline-rank",),
    )]
    micro_batch: Annotated[Sequence[int] | None, Option(
        "Microbatch sizes to try, in sequences. [default: {default}]",
        metavar=_MANY, section="tried", default=(1, 2, 4, 8),
    )]
    schedule: Annotated[Sequence[str] | None, Option(
        "Schedules to try, by name (`ppsim schedules`). auto also searches for a table on the best three layouts. "
        "any: the default schedules, ranked by time alone. [default: {default}; on the best layouts also zbv and "
        "v-half; those of the trainer rank first]",
        names="schedule", metavar="NAME,NAME,…", section="tried", default=SCHEDULES,
    )]
    recompute: Annotated[Sequence[Recompute] | None, Option(
        "Recomputation to try, with the values of `ppsim project --recompute`. [default: {default}; with "
        "--fully-shard (set by --stack torchtitan) also selective-op; on the best layouts also modules and "
        "block/N]",
        metavar="KIND,…", section="tried", default=("none", "full"),
    )]
    zero: Annotated[Sequence[int] | None, Option(
        "ZeRO stages to try, each with every layout. [default: 1, or the stage of --stack or --run-config; also 3 "
        "without a pipeline if this is 1 and the framework runs Megatron-FSDP]",
        metavar="0|1|2|3,…", section="tried",
    )]
    split: Annotated[Sequence[Literal["auto", "even"]] | None, Option(
        "Layer splits to try: auto (equal work per rank), even. [default: {default}]",
        metavar="KIND,…", section="tried", default=("auto", "even"),
    )]


class TuneOptions(SearchBaseOptions, RangeOptions, total=False):
    """Options of a search; `ppsim tune --help` has the meaning and default of each."""

    keep: Annotated[Sequence[str] | None, Option(
        "Options of --run-config or --recipe that the search does not change, by name, as tp,moe-dispatcher. "
        "[default: it changes all that are not typed, and starts from the file's values]",
        metavar="NAME,…", section="search", after="top",
    )]
    stage_plan: Annotated[Literal["auto"] | None, Option(
        "auto: at the end, also search layers and recomputation of each stage on the best layouts, as `ppsim "
        "project --plan auto`. [default: all stages of a configuration recompute the same]",
        flag="--plan", section="search", after="keep",
    )]
    layers: Annotated[int | None, Option(
        "Number of layers of the model. [default: the model's]",
        metavar="N", section="model", after="model", field="num_layers", also=("--num-layers",),
    )]
    seq_len: Annotated[int | None, Option(
        "Tokens per sequence. [default: the model's]",
        metavar="TOKENS", section="model", field="job.sequence_length", also=("--seq-length",),
    )]
    memory_limit: Annotated[str | float | None, Option(
        "Usable memory per GPU (80GiB or 80GB). [default: the device's memory minus 5 GiB]",
        metavar="SIZE", section="cluster",
    )]
    memory_share: Annotated[float | None, Option(
        "Fraction, 0 to 1, of the device's memory that a step may use, instead of --memory-limit.",
        metavar="PART", section="cluster",
    )]
    runtime: Annotated[Runtime | None, replace(RUNTIME, section="cluster")]
    calibration: Annotated["str | Path | FittedOverheads | None", replace(CALIBRATION, section="cluster")]
    sequence_parallel: Annotated[bool | None, replace(SEQUENCE_PARALLEL, section="optimizer", after="overlap_dp")]
    top: Annotated[int | None, Option(
        "Number of fastest configurations in the ranking.", metavar="N", section="search", default=10, shown=True,
    )]
    jobs: Annotated[int | None, Option(
        "Number of processes, -1 for one per core, with the same result. More than one requires joblib. [default: "
        "{default}]",
        metavar="N", section="search", default=1,
    )]
    resume: Annotated[str | Path | None, Option(
        "File to save the state of the search, and to resume it if the file exists.",
        metavar="FILE", section="search",
    )]
    search_time: Annotated[float | None, Option(
        "With --schedule auto, maximum search time per table. [default: {default}]",
        metavar="SECONDS", section="search", default=10.0,
    )]
    seed: Annotated[int | None, Option(
        "With --schedule auto, random seed of the search.",
        metavar="N", section="search", default=0, shown=True,
    )]
