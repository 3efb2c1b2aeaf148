"""Options of `ppsim profile`. Imports nothing heavy, because help pages read it."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.model.recompute import MEANING, Recompute
from ppsim.runtime.options import DEFAULT_MODEL
from ppsim.schedule.choices import Dtype

_MANY = "N,N,…"

OF_MODELS = ("model", "hidden", "heads", "seq_len", "tp", "cp", "ep", "recompute", "dtype", "optimizer", "compile")
"""Options that define the measured shapes of a model; not allowed with `module`, which defines them itself."""


# fmt: off
class ProfileOptions(TypedDict, total=False):
    """Options of `ppsim profile`; its `--help` has their meanings and defaults."""

    model: Annotated[str | None, Option(
        "nano, micro, mini, llama-mini, moe-mini, deepseek-v3-like, or one of `ppsim models` whose layers are "
        "GPT's, Llama's or Mixtral's: gpt2, gpt3-175b, llama3-8b, mixtral-8x7b … Default: {default}.",
        metavar="NAME", section="what", default=DEFAULT_MODEL,
    )]
    module: Annotated[str | None, Option(
        "A model of one's own: FILE.py is imported, which runs its code, and FUNCTION(layers of each stage) "
        "returns stages, inputs, targets and loss (docs/howto/own_model.md); FUNCTION() one layer and its inputs.",
        metavar="FILE.py:FUNCTION", section="what",
    )]
    layers: Annotated[int | None, Option(
        "Layers, instead of the model's.", metavar="N", section="what",
    )]
    hidden: Annotated[int | None, Option(
        "Hidden size, instead of the model's; of a GPT.", metavar="N", section="what",
    )]
    heads: Annotated[int | None, Option(
        "Attention heads, instead of the model's; of a GPT.", metavar="N", section="what",
    )]
    optimizer: Annotated[Sequence[str] | None, Option(
        "Optimizers whose step is measured: adamw, muon (a layer's matrices; AdamW for the rest). Default: adamw.",
        metavar="NAME,NAME,…|none", section="what",
    )]
    facts: Annotated[bool | None, Option(
        "Measure the device too: products of matrices, attention, memory, copies. Shapes can be estimated then.",
        section="what",
    )]
    compile: Annotated[bool | None, Option("Measure what torch.compile makes of the modules.", section="what")]
    cuda_graphs: Annotated[bool | None, Option(
        "Measure F and B by replay of CUDA graphs; I and W are left out.", section="what",
    )]
    micro_batch: Annotated[int | Sequence[int] | None, Option(
        "Sequences a microbatch, one or several. Default: 2.", metavar=_MANY, section="shapes",
    )]
    seq_len: Annotated[int | Sequence[int] | None, Option(
        "Tokens a sequence, one or several. Default: the model's.", metavar=_MANY, section="shapes",
    )]
    tp: Annotated[int | Sequence[int] | None, Option(
        "Tensor-parallel ranks, of which one's part is measured. Default: 1.", metavar=_MANY, section="shapes",
    )]
    cp: Annotated[int | Sequence[int] | None, Option(
        "Context-parallel ranks, of which one's part of each sequence is measured: two of 2·cp chunks, whose "
        "queries see the keys of the whole causal prefix. Default: 1.",
        metavar=_MANY, section="shapes",
    )]
    ep: Annotated[int | Sequence[int] | None, Option(
        "Expert-parallel ranks, of which one's part is measured. Default: 1.", metavar=_MANY, section="shapes",
    )]
    recompute: Annotated[Recompute | None, Option(
        MEANING + " Default: none.", metavar="none|full|MODULE+MODULE…", section="shapes",
    )]
    dtype: Annotated[Dtype | Literal["fp8"] | None, Option(
        "Number format of weights and activations; fp8: bfloat16, with products of linear layers in 8 bit. "
        "Default: {default}.",
        section="shapes", default="float32",
    )]
    device: Annotated[Literal["cpu", "cuda"] | None, Option(
        "Where to compute. Default: cpu, or the suite's.", section="device",
    )]
    threads: Annotated[int | None, Option(
        "CPU threads of a process.", metavar="N|all", section="device", default=1, shown=True,
    )]
    pp: Annotated[int | None, Option(
        "Ranks of the run to come, as many processes on this CPU: few steps of small pipelines are run, so that "
        "projections know what passes take beside each other, an action and a hop. 1: none. With --module, each "
        "stage of such a pipeline is measured too, on any device. Default: 2 on a CPU where its runtime trains the "
        "model, 1 with --repeats or --module.",
        metavar="N", section="device",
    )]
    repeats: Annotated[int | None, Option(
        "Measurements of each pass. Default: the suite's, or as many as take a second, 5 to 30, and again up to "
        "four seconds while the median is not sure to half a percent.",
        metavar="N", section="device",
    )]
    warm_up: Annotated[int | None, Option(
        "Passes run before, not measured. Default: 5, or the suite's.", metavar="N", section="device",
    )]
    start_over: Annotated[bool | None, Option("Forget the shapes that the file holds already.", section="going on")]
    time_limit: Annotated[float | None, Option(
        "Begin no further shape after it; repeated, it goes on.", metavar="SECONDS", section="going on",
    )]
