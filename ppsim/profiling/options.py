"""Options of `ppsim profile`. Imports nothing heavy, because help pages read it."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.model.recompute import MEANING, Recompute
from ppsim.runtime.options import DEFAULT_MODEL
from ppsim.schedule.option_types import Dtype

_MANY = "N,N,…"

OF_MODELS = ("model", "hidden", "heads", "seq_len", "tp", "cp", "ep", "recompute", "dtype", "optimizer", "compile")
"""Options that define the measured shapes of a model; not allowed with `module`, which defines them itself."""


# fmt: off
class ProfileOptions(TypedDict, total=False):
    """Options of `ppsim profile`; its `--help` has their meanings and defaults."""

    model: Annotated[str | None, Option(
        "Model whose layers are measured: nano, micro, mini, llama-mini, moe-mini, deepseek-v3-like, or a model of "
        "`ppsim models` with the layers of GPT, Llama or Mixtral (gpt2, gpt3-175b, llama3-8b, mixtral-8x7b, …). "
        "[default: {default}]",
        metavar="NAME", section="what", default=DEFAULT_MODEL,
    )]
    module: Annotated[str | None, Option(
        "Your own model. FILE.py is imported, which runs its code. FUNCTION(layers of each stage) returns stages, "
        "inputs, targets and loss (docs/howto/own_model.md), FUNCTION() returns one layer and its inputs.",
        metavar="FILE.py:FUNCTION", section="what",
    )]
    layers: Annotated[int | None, Option(
        "Number of layers, instead of the model's.", metavar="N", section="what",
    )]
    hidden: Annotated[int | None, Option(
        "Hidden size, instead of the model's (GPT only).", metavar="N", section="what",
    )]
    heads: Annotated[int | None, Option(
        "Number of attention heads, instead of the model's (GPT only).", metavar="N", section="what",
    )]
    optimizer: Annotated[Sequence[str] | None, Option(
        "Optimizers whose step is measured: adamw, muon (for the matrices of a layer, AdamW for the rest). "
        "[default: adamw]",
        metavar="NAME,NAME,…|none", section="what",
    )]
    facts: Annotated[bool | None, Option(
        "Also run device microbenchmarks: GEMMs, attention, memory, copies. Shapes that were not measured can then "
        "be estimated.",
        section="what",
    )]
    compile: Annotated[bool | None, Option("Measure the modules as compiled by torch.compile.", section="what")]
    cuda_graphs: Annotated[bool | None, Option(
        "Measure F and B as replays of CUDA graphs. I and W are not measured.", section="what",
    )]
    micro_batch: Annotated[int | Sequence[int] | None, Option(
        "Microbatch sizes in sequences, one or several. [default: 2]", metavar=_MANY, section="shapes",
    )]
    seq_len: Annotated[int | Sequence[int] | None, Option(
        "Sequence lengths in tokens, one or several. [default: the model's]", metavar=_MANY, section="shapes",
    )]
    tp: Annotated[int | Sequence[int] | None, Option(
        "Tensor-parallel sizes. The part of one rank is measured. [default: 1]", metavar=_MANY, section="shapes",
    )]
    cp: Annotated[int | Sequence[int] | None, Option(
        "Context-parallel sizes. One rank's part of each sequence is measured: two of 2·cp chunks, whose queries "
        "attend to the keys of the whole causal prefix. [default: 1]",
        metavar=_MANY, section="shapes",
    )]
    ep: Annotated[int | Sequence[int] | None, Option(
        "Expert-parallel sizes. The part of one rank is measured. [default: 1]", metavar=_MANY, section="shapes",
    )]
    recompute: Annotated[Recompute | None, Option(
        MEANING + " [default: none]", metavar="none|full|MODULE+MODULE…", section="shapes",
    )]
    dtype: Annotated[Dtype | Literal["fp8"] | None, Option(
        "Number format of weights and activations. With fp8, linear layers run 8-bit GEMMs and the rest is "
        "bfloat16. [default: {default}]",
        section="shapes", default="float32",
    )]
    device: Annotated[Literal["cpu", "cuda"] | None, Option(
        "Device to measure on. [default: cpu, or the suite's]", section="device",
    )]
    threads: Annotated[int | None, Option(
        "CPU threads per process.", metavar="N|all", section="device", default=1, shown=True,
    )]
    pp: Annotated[int | None, Option(
        "Pipeline ranks of the calibration run. This many processes on this CPU run a few steps of small "
        "pipelines, to measure the slowdown by concurrent ranks and the overheads per action and P2P transfer. "
        "1: no calibration run. With --module, each stage of such a pipeline is measured too, on any device. "
        "[default: 2 on a CPU if its runtime can train the model, 1 with --repeats or --module]",
        metavar="N", section="device",
    )]
    repeats: Annotated[int | None, Option(
        "Measurements of each pass. [default: the suite's, else as many as take 1 s (5 to 30), continued up to 4 s "
        "until the median is known to 0.5 %]",
        metavar="N", section="device",
    )]
    warm_up: Annotated[int | None, Option(
        "Unmeasured repetitions of each pass before the measurement. [default: 5, or the suite's]",
        metavar="N", section="device",
    )]
    start_over: Annotated[bool | None, Option("Discard the measurements already in the file.", section="going on")]
    time_limit: Annotated[float | None, Option(
        "Time after which no further shape is started. The same command continues later. [default: none]",
        metavar="SECONDS", section="going on",
    )]
