"""Reader of Primus' `dump_pp_data` folders (AMD-AGI/Primus, megatron/core/pipeline_parallel patches).

`pp_rank_R.json` has, for each iteration, lists of times in ms between CUDA events, from the rank's own start of the
step. `memory` is the maximum that the allocator has reserved so far, in GiB. Sends and receives are not recorded. A
fused forward and backward pass is in both lists, with the same start.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from os.path import isdir
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.runs.traces import CellRange, RankTrace, RunRecordings, require_as_many_steps, with_common_steps
from ppsim.schedule.grammar import MOST
from ppsim.schedule.table import NONE, Action, Op

_FILE = re.compile(r"pp_rank_(\d+)\.json")
_GIB = 2**30
_LONGEST_MS = 1e12
_NUMBERS = ("pp_size", "vp_size", "vpp_size", "num_mbs", "micro_batches")


def is_dump(folder: Path) -> bool:
    return isdir(folder) and any(_FILE.fullmatch(file.name) for file in folder.iterdir())


def read_dump(folder: Path, *, num_ranks: int | None = None) -> RunRecordings:
    """`num_ranks` is as for `align_ranks`."""
    files = {int(found[1]): file for file in folder.iterdir() if (found := _FILE.fullmatch(file.name))}
    config = _config(folder)
    of_job = config.get("pp_size") or max(files) + 1
    missing = next((rank for rank in range(of_job) if rank not in files), None)
    if missing is not None and num_ranks is None:
        raise ConfigError(
            f"{folder} lacks pp_rank_{missing}.json: give all, or explain --ranks {of_job} without it"
        )
    if num_ranks is not None and num_ranks < (config.get("pp_size") or 0):
        raise ConfigError(f"--ranks {num_ranks}: {folder}/config.json says pp_size {of_job}")
    if beyond := sorted(set(files) - set(range(of_job))):
        raise ConfigError(f"{folder} holds pp_rank_{beyond[0]}.json, and its config.json says pp_size {of_job}")
    iterations = {rank: _iterations(files[rank]) for rank in sorted(files)}
    split = any("wgrad_start" in one for found in iterations.values() for one in found.values())
    traces = with_common_steps([_trace(str(files[rank]), rank, found, split) for rank, found in iterations.items()])
    traces = [replace(trace, num_ranks=config.get("pp_size")) for trace in traces]
    require_as_many_steps(traces)
    _require_one_run(traces, config)
    held = [max(_memory(one) for one in found.values()) for found in iterations.values()]
    return RunRecordings(
        str(folder), traces, kind="Primus' dump_pp_data", passes_by="CUDA events around each pass", clocks="step",
        vpp=config.get("vp_size") or config.get("vpp_size") or 1,
        reserved_bytes=[one * _GIB for one in held] if all(held) else None,
    )  # fmt: skip


def _memory(iteration: dict[str, Any]) -> float:
    held = iteration.get("memory")
    return float(held) if isinstance(held, int | float) and 0 <= held < MOST else 0.0


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no configuration of dump_pp_data")
    numbers = {name: value for name, value in content.items() if value is not None}
    config = {name: numbers[name] for name in _NUMBERS if name in numbers}
    if odd := [name for name, value in config.items() if type(value) is not int or not 0 <= value < MOST]:
        raise ConfigError(f"{path}: {odd[0]} is {json.dumps(numbers[odd[0]])}: it must be a whole number")
    return config


def _iterations(path: Path) -> dict[str, dict[str, Any]]:
    content = read_json(path)
    if not isinstance(content, dict) or not content or not all(isinstance(one, dict) for one in content.values()):
        raise ConfigError(f"{path} is no file of dump_pp_data: it must map iterations to lists of times")
    return content


_LISTS: Mapping[str, Op] = {"fwd": Op.F, "bwd": Op.B, "wgrad": Op.W}


def _trace(source: str, rank: int, iterations: Mapping[str, dict[str, Any]], is_split: bool) -> RankTrace:
    steps = []
    names = sorted(iterations, key=lambda name: (len(name), name))
    for name, lists in zip(names, map(iterations.__getitem__, names), strict=True):
        step: list[CellRange] = []
        for kind, op in _LISTS.items():
            step += _passes(f"{source}: iteration {name}", lists, kind, Op.I if is_split and op is Op.B else op)
        steps.append(_one_by_one(sorted(step, key=lambda cell: cell.begin), source))
    numbers = [int(name) for name in names if name.isdecimal()]
    return RankTrace(source, rank, host=source, on_device=False, steps=steps, numbers=numbers)


def _passes(where: str, lists: dict[str, Any], kind: str, op: Op) -> list[CellRange]:
    columns = [lists.get(f"{kind}_{name}") for name in ("start", "end", "minibatch", "chunk")]
    starts = columns[0] if isinstance(columns[0], list) else []
    columns[2:] = [[None] * len(starts) if column is None else column for column in columns[2:]]
    columns[:2] = [[] if column is None else column for column in columns[:2]]
    if not all(isinstance(column, list) and len(column) == len(starts) for column in columns):
        raise ConfigError(f"{where}: the lists {kind}_start, {kind}_end and others beside them differ in length")
    passes = []
    for index, (start, end, microbatch, chunk) in enumerate(zip(*columns, strict=True)):
        if not all(isinstance(time, int | float) for time in (start, end)) or not 0 <= start <= end < _LONGEST_MS:
            raise ConfigError(f"{where}: {kind}_start and {kind}_end of entry {index} are no times: {start}, {end}")
        for number in (microbatch, chunk):
            if number is not None and not (type(number) is int and 0 <= number < MOST):
                raise ConfigError(f"{where}: {kind}_minibatch and {kind}_chunk of entry {index} hold {number!r}")
        action = Action(op, NONE, NONE if microbatch is None else microbatch)
        passes.append(CellRange(start / 1e3, end / 1e3, action, chunk=chunk))
    return passes


def _one_by_one(step: list[CellRange], source: str) -> list[CellRange]:
    """Raise `ConfigError` for a fused pair, whose parts were not timed."""
    if any(
        (one.begin, one.end) == (other.begin, other.end) for one, other in pairwise(step) if one.end > one.begin
    ):
        raise ConfigError(
            f"{source} holds forwards and backwards that ran as one (overlap_moe_expert_parallel_comm): the dump "
            f"does not tell how long each took; trace such a run with torch.profiler"
        )
    return step


def _require_one_run(traces: list[RankTrace], config: Mapping[str, int]) -> None:
    num = config.get("num_mbs") or config.get("micro_batches")
    passes = {trace.source: sum(cell.cell.op is Op.F for cell in trace.steps[0]) for trace in traces}  # type: ignore[union-attr]
    wanted = num * (config.get("vp_size") or config.get("vpp_size") or 1) if num else passes[traces[0].source]
    for source, number in passes.items():
        if number != wanted:
            raise ConfigError(
                f"{source} has {number} forwards an iteration, where "
                f"{'config.json says' if num else traces[0].source + ' has'} {wanted}: files of two runs, or a "
                f"dump of another shape"
            )
