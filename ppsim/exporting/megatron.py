"""Megatron-LM's arguments for a table, as far as its two loops can run it; and its pipeline layout string.

Megatron-LM reads no table: it has 1F1B and interleaved 1F1B, the latter with a microbatch group size
(`get_schedule_table`), and a layout string that says which layers a stage holds.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.catalog.published.interleaved import interleaved_one_f_one_b, legal_group_sizes
from ppsim.catalog.published.one_f_one_b import one_f_one_b
from ppsim.schedule.check import require_one_chain, validate
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Op, Schedule

_KINDS = {"E": "embedding", "t": "decoder layer", "m": "multi-token-prediction layer", "L": "loss"}


def megatron_arguments(
    schedule: Schedule, *, layers_per_stage: Sequence[int] | Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the arguments with which Megatron-LM runs this very order.

    `layers_per_stage` (one entry a stage) adds the layout string. Raises `ScheduleError` naming what its loops
    cannot do: replicas, slices, a V placement, a split backward, or the first action that differs from theirs.
    """
    validate(schedule)
    require_one_chain(schedule, runtime="Megatron-LM")
    compute = schedule.compute_only()
    p, v, m = compute.num_ranks, compute.vpp, compute.num_microbatches
    if compute.stage_to_rank.tolist() != loop(p, compute.num_stages):
        raise ScheduleError("Megatron-LM places stage s on rank s mod pp; this table places them otherwise")
    if ((compute.op == Op.I) | (compute.op == Op.W)).any():
        raise ScheduleError("Megatron-LM's loops have no split backward (I and W); this table has one")
    arguments: dict[str, Any] = {"pipeline-model-parallel-size": p}
    if v == 1:
        _require_equal(compute, one_f_one_b(num_ranks=p, num_microbatches=m), "1F1B")
    else:
        arguments["num-virtual-stages-per-pipeline-rank"] = v
        arguments["microbatch-group-size-per-virtual-pipeline-stage"] = _group_size(compute, p, v, m)
    if layers_per_stage is not None:
        if len(layers_per_stage) != compute.num_stages:
            raise ConfigError(
                f"the split has {len(layers_per_stage)} entries, but there are {compute.num_stages} stages"
            )
        arguments["pipeline-model-parallel-layout"] = layout_string(layers_per_stage)
    return {"arguments": arguments, "num_microbatches": m}


def _group_size(compute: Schedule, p: int, v: int, m: int) -> int:
    """The group size with which Megatron-LM runs this order: what rank 0 forwards before its second chunk."""
    forwards = compute.stage[: compute.rank_offsets[1]][compute.op[: compute.rank_offsets[1]] == Op.F]
    size, legal = int(np.argmax(forwards != forwards[0])), legal_group_sizes(p, m)
    if size not in legal:
        size = legal[0]
    theirs = interleaved_one_f_one_b(num_ranks=p, vpp=v, num_microbatches=m, group_size=size)
    _require_equal(compute, theirs, "interleaved 1F1B")
    return size


def _require_equal(compute: Schedule, theirs: Schedule, name: str) -> None:
    found = _first_difference(compute, theirs)
    if found is not None:
        rank, position = found
        entry = int(compute.rank_offsets[rank]) + position
        raise ScheduleError(
            f"Megatron-LM has only {name} for this placement; rank {rank} differs from it at position "
            f"{position}: {compute[entry]} where Megatron-LM runs {theirs[entry]}"
        )


def _first_difference(ours: Schedule, theirs: Schedule) -> tuple[int, int] | None:
    for rank, (mine, other) in enumerate(zip(ours.rows(), theirs.rows(), strict=True)):
        for position, (a, b) in enumerate(zip(mine, other, strict=False)):
            if a != b:
                return rank, position
    return None


def layout_string(layers_per_stage: Sequence[int] | Sequence[str], *, num_mtp_layers: int = 0) -> str:
    """Return the layout with the embedding on the first stage, multi-token prediction and the loss on the last.

    What is written out already, as `parse_layout` gives it, stays as it is.

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
    """Return the layout of stages written out, as `parse_layout` gives them: more than three alike by `*n`.

    >>> format_layout(["Ettt", "tttttt", "m", "L"])
    'Ettt|t*6|m|L'
    """
    return "|".join(re.sub(r"(.)\1{3,}", lambda run: f"{run[1]}*{len(run[0])}", content) for content in contents)


def parse_layout(text: str) -> list[str]:
    """Return what each stage holds, written out: one string of E, t, m and L a stage.

    `ppsim.model.stages.stages_of_layout` makes a model's stages of it.

    `|` ends a stage, `*n` repeats a letter or a group in parentheses, commas and blanks mean nothing. Raises
    `ConfigError` naming the place and what is wrong with it.

    >>> parse_layout("Et*3|(tt|)*2,m|L")
    ['Ettt', 'tt', 'tt', 'm', 'L']
    """
    stages = _expand(text).split("|")
    whole = "".join(stages)
    if whole.count("E") != 1 or not stages[0].startswith("E"):
        raise ConfigError(f"the layout '{text}' must hold one E, at the start of its first stage")
    if whole.count("L") != 1 or not stages[-1].endswith("L"):
        raise ConfigError(f"the layout '{text}' must hold one L, at the end of its last stage")
    return stages


_LONGEST = 100_000


def _expand(text: str) -> str:
    plain = re.sub(r"[\s,]", "", text)
    innermost = re.compile(r"\(([^()]*)\)(?:\*(\d+))?|([EtmL|])\*(\d+)")
    while match := innermost.search(plain):
        group, group_times, letter, letter_times = match.groups()
        what, times = (letter, int(letter_times)) if letter else (group, int(group_times or 1))
        if len(plain) + len(what) * times > _LONGEST:
            raise ConfigError(
                f"the layout '{text}' is too long: *{times} makes more than {_LONGEST:,} letters of it"
            )
        repeated = what * times
        plain = plain[: match.start()] + repeated + plain[match.end() :]
    if wrong := re.search(r"[^EtmL|]", plain):
        letters = ", ".join(f"{letter} ({kind})" for letter, kind in _KINDS.items())
        raise ConfigError(f"the layout '{text}' holds '{wrong[0]}' where only {letters}, |, *n and (…) may stand")
    return plain
