"""Megatron-LM's arguments for a schedule table that its loops can run, and its pipeline layout string.

`validate_args` of Megatron-LM accepts one of three ways to assign layers to stages: a layout string, layers per
chunk, or chunks per rank.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.limits import short_text
from ppsim.catalog.published.interleaved import (
    combined_one_f_one_b,
    interleaved_one_f_one_b,
    legal_group_sizes,
)
from ppsim.catalog.published.one_f_one_b import one_f_one_b
from ppsim.parallel.layer_partition import MegatronSplit
from ppsim.schedule.check import compute_for
from ppsim.schedule.grammar import format_cell
from ppsim.schedule.placement import loop
from ppsim.schedule.table import NONE, Op, Schedule

_KINDS = {"E": "embedding", "t": "decoder layer", "m": "multi-token-prediction layer", "L": "loss"}

LayersBy = Literal["layout", "counts"]
"""A layout string can express every split."""

WHO_ELSE = "torch runs such tables, Primus those in a loop or a V: --to torch, --to primus"


def megatron_arguments(
    schedule: Schedule,
    *,
    layers_per_stage: Sequence[int] | Sequence[str] | None = None,
    layers_by: LayersBy = "layout",
    overlap_p2p: bool = True,
) -> dict[str, Any]:
    """Return the arguments with which Megatron-LM runs exactly this order, free of conflicts between arguments.

    `layers_per_stage` (one entry per stage) adds the layer split, as a layout string. With `layers_by` "counts", it
    becomes `--num-layers-per-virtual-pipeline-stage`, `--account-for-…-in-pipeline-split`, or the numbers of layers
    on the first and last rank. Raises `ScheduleError` if Megatron-LM's loops cannot run the table, and
    `ConfigError` for a split that counts or a layout cannot express.
    """
    compute = compute_for("Megatron-LM", schedule)
    p, v, m = compute.num_ranks, compute.vpp, compute.num_microbatches
    if compute.stage_to_rank.tolist() != loop(p, compute.num_stages):
        raise ScheduleError(
            f"Megatron-LM places stage s on rank s mod pp; this table places them otherwise ({WHO_ELSE})"
        )
    if ((compute.op == Op.I) | (compute.op == Op.W)).any():
        raise ScheduleError(
            f"Megatron-LM's loops have no split backward (I and W); this table has one ({WHO_ELSE})"
        )
    is_combined = bool((compute.fused != NONE).any())
    if is_combined and p == v == 1:
        theirs = combined_one_f_one_b(num_ranks=1, vpp=1, num_microbatches=m)
        _require_equal(compute, theirs, "combined 1F1B")
    elif v == 1:
        _require_equal(compute, one_f_one_b(num_ranks=p, num_microbatches=m), "1F1B")
    else:
        _require_interleaving(p, m, overlap_p2p)
    arguments = {"pipeline-model-parallel-size": p} | _where_layers_are(layers_per_stage, p, v, layers_by)
    if v > 1:
        arguments["microbatch-group-size-per-virtual-pipeline-stage"] = _group_size(compute, p, v, m)
        arguments |= {} if overlap_p2p else {"no-overlap-p2p-communication": True}
    if is_combined:
        arguments["overlap-moe-expert-parallel-comm"] = True
    return {"arguments": arguments, "num_microbatches": m}


def _require_interleaving(p: int, m: int, overlap_p2p: bool) -> None:
    least = 2 if overlap_p2p else 3
    if p < least:
        how = "" if overlap_p2p else " where transfers do not overlap"
        raise ScheduleError(f"Megatron-LM interleaves on {least} or more ranks{how}: got {p}")
    if m < p:
        raise ScheduleError(f"Megatron-LM interleaves groups of pp or more microbatches: got {m} for pp {p}")


def _where_layers_are(
    layers: Sequence[int] | Sequence[str] | None, p: int, v: int, layers_by: LayersBy
) -> dict[str, Any]:
    if layers is None:
        return {"num-virtual-stages-per-pipeline-rank": v} if v > 1 else {}
    if len(layers) != p * v:
        raise ConfigError(f"the split has {len(layers)} entries, but there are {p * v} stages")
    counts = [count for count in layers if isinstance(count, int)]
    if layers_by == "counts":
        if len(counts) < len(layers):
            raise ConfigError("a layout is no count of layers: give layers per stage, as 7,8,8,7")
        return _layer_counts(counts, p, v)
    if counts and min(counts) < 0:
        raise ConfigError(f"the split gives a stage {min(counts)} layers")
    text = layout_string(layers)
    _require_layout(text, parse_layout(text), p)
    return {"pipeline-model-parallel-layout": text}


def _layer_counts(layers: Sequence[int], p: int, v: int) -> dict[str, Any]:
    for split in _rules(layers, p, v):
        try:
            if split.layers_per_stage(sum(layers), pp=p, vpp=v) != list(layers):
                continue
        except ConfigError:
            continue
        ends = {"decoder-first-pipeline-num-layers": split.first, "decoder-last-pipeline-num-layers": split.last}
        arguments: dict[str, Any] = {name: count for name, count in ends.items() if count is not None}
        counted = {"embedding": split.counts_embedding, "loss": split.counts_loss}
        arguments |= {f"account-for-{name}-in-pipeline-split": True for name, on in counted.items() if on}
        if v == 1:
            return arguments
        if any(count is not None for count in ends.values()):  # excludes a number of layers per chunk
            return {"num-virtual-stages-per-pipeline-rank": v} | arguments
        return {"num-layers-per-virtual-pipeline-stage": layers[0] + split.counts_embedding} | arguments
    raise ConfigError(f"no arguments but a layout put {', '.join(map(str, layers))} layers on the stages")


def _rules(layers: Sequence[int], p: int, v: int) -> Iterator[MegatronSplit]:
    if min(layers) < 1:  # an empty stage needs a layout
        return
    if sum(layers) % (p * v) == 0:
        yield MegatronSplit()
    for embedding, loss in ((True, True), (True, False), (False, True)):
        yield MegatronSplit(counts_embedding=embedding, counts_loss=loss)
    first, last = v * layers[0], v * layers[p - 1]
    for ends in ((first, None), (None, last), (first, last)) if p > 1 else ():
        yield MegatronSplit(first=ends[0], last=ends[1])


def _group_size(compute: Schedule, p: int, v: int, m: int) -> int:
    """Return the group size: the number of rank 0's forward passes before its second chunk."""
    forwards = compute.stage[: compute.rank_offsets[1]][compute.op[: compute.rank_offsets[1]] == Op.F]
    size, legal = int(np.argmax(forwards != forwards[0])), legal_group_sizes(p, m)
    if size not in legal:
        size = legal[0]
    is_combined = bool((compute.fused != NONE).any())
    loop_of = combined_one_f_one_b if is_combined else interleaved_one_f_one_b
    theirs = loop_of(num_ranks=p, vpp=v, num_microbatches=m, group_size=size)
    _require_equal(compute, theirs, "combined 1F1B" if is_combined else "interleaved 1F1B")
    return size


def _require_equal(compute: Schedule, theirs: Schedule, name: str) -> None:
    for rank, rows in enumerate(zip(compute.rows(), theirs.rows(), strict=True)):
        for position, (mine, other) in enumerate(zip(*rows, strict=False)):  # fused cells may end a row early
            if mine != other:
                raise ScheduleError(
                    f"Megatron-LM has only {name} for this placement; rank {rank} differs from it at position "
                    f"{position}: {format_cell(mine)} where Megatron-LM runs {format_cell(other)}"
                )


def layout_string(layers_per_stage: Sequence[int] | Sequence[str], *, num_mtp_layers: int = 0) -> str:
    """The embedding is on the first stage, multi-token prediction and the loss are on the last.

    >>> layout_string([1, 2, 2, 1])
    'Et|tt|tt|tL'
    >>> layout_string([7, 8], num_mtp_layers=1)
    'Et*7|t*8mL'
    """
    if contents := [stage for stage in layers_per_stage if isinstance(stage, str)]:
        return format_layout(contents)
    contents = ["t" * layers for layers in layers_per_stage if isinstance(layers, int)]
    contents[0] = "E" + contents[0]
    contents[-1] += "m" * num_mtp_layers + "L"
    return format_layout(contents)


def format_layout(contents: Sequence[str]) -> str:
    """More than three equal letters become `*n`.

    >>> format_layout(["Ettt", "tttttt", "m", "L"])
    'Ettt|t*6|m|L'
    """
    return "|".join(re.sub(r"(.)\1{3,}", lambda run: f"{run[1]}*{len(run[0])}", content) for content in contents)


def parse_layout(text: str) -> list[str]:
    """Return the content of each stage, written out as one string of E, t, m and L per stage.

    `|` ends a stage, `*n` repeats a letter or a group in parentheses, commas are ignored. This is the syntax of
    Megatron-core's `PipelineParallelLayerLayout`, which has no nested groups and no blanks.

    >>> parse_layout("Et*3|(tt|)*2,m|L")
    ['Ettt', 'tt', 'tt', 'm', 'L']
    """
    stages = _expand(text).split("|")
    layout = "".join(stages)
    if layout.count("E") != 1 or not re.match(r"v*(\|v+)*\|?E", "|".join(stages)):
        raise ConfigError(
            f"the layout {short_text(text)} must hold one E, at the start of its first stage "
            "or behind all layers of encoders (v)"
        )
    if "v" in layout.partition("E")[2]:
        raise ConfigError(f"the layout {short_text(text)} has a layer of an encoder (v) behind the embedding (E)")
    if layout.count("L") != 1 or not stages[-1].endswith("L"):
        raise ConfigError(f"the layout {short_text(text)} must hold one L, at the end of its last stage")
    if "t" in layout.partition("m")[2]:
        raise ConfigError(
            f"the layout {short_text(text)} has a decoder layer (t) behind one that predicts more tokens (m)"
        )
    if sum("m" in stage for stage in stages) > 1:
        raise ConfigError(
            f"the layout {short_text(text)} must hold all layers that predict more tokens (m) in one stage"
        )
    return stages


def _require_layout(text: str, stages: Sequence[str], p: int) -> None:
    """Multi-token prediction must be in the last chunk of one of the p ranks."""
    (index_of_mtp,) = [index for index, stage in enumerate(stages) if "m" in stage] or [len(stages) - 1]
    if index_of_mtp < len(stages) - p:
        raise ConfigError(
            f"the layout {short_text(text)} must hold the layers that predict more tokens (m) in the last chunk "
            f"of a rank, one of the last {p} stages: got stage {index_of_mtp}"
        )


_LONGEST = 100_000


def _expand(text: str) -> str:
    """Expand repetitions as Megatron-core does: groups first, then letters, without nesting."""
    plain = text.replace(",", "")
    for repeated in (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)"):
        length = len(plain)
        for what, times in re.findall(repeated, plain):
            length += len(what) * (int(times) if len(times) < 7 else _LONGEST)
        if length > _LONGEST:
            raise ConfigError(f"the layout {short_text(text)} is too long: it has more than {_LONGEST:,} letters")
        plain = re.sub(repeated, lambda match: match[1] * int(match[2]), plain)
    if wrong := re.search(r"[^vEtmL|]", plain):
        letters = ", ".join(f"{letter} ({kind})" for letter, kind in _KINDS.items())
        raise ConfigError(
            f"the layout {short_text(text)} holds '{wrong[0]}' where only {letters}, |, *n and (…)*n may stand"
        )
    return plain
