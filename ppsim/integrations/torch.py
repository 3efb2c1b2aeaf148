"""Run a table with torch.distributed.pipelining in a user's training script; needs torch 2.13 or newer."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.profiler import record_function

from ppsim.base.errors import ConfigError
from ppsim.integrations.stages import Table, problems_of_stages, read
from ppsim.runtime.torch_private import require_torch, schedule_runtime
from ppsim.trainers.torch.write_schedule import torch_csv, why_not_loaded


def stages_of(
    schedule: Table, build: Callable[[int], torch.nn.Module], device: torch.device | str, *, group: Any = None
) -> list[PipelineStage]:
    """Return this rank's stages; `build(stage)` returns the module of a stage, which is moved to `device`.

    Raises `ConfigError` if the size of `group` (None: all ranks) is not the table's number of ranks.
    """
    table, rank, size = read(schedule), dist.get_rank(group), dist.get_world_size(group)
    if size != table.num_ranks:
        raise ConfigError(f"the table has {table.num_ranks} ranks: got a group of {size}")
    on = torch.device(device)
    return [PipelineStage(build(s).to(on), s, table.num_stages, on, group=group) for s in table.stages_of(rank)]


@contextmanager
def named_passes(stages: Sequence[PipelineStage]) -> Iterator[None]:
    """Name the actions of stages for torch.profiler, as torch's pipeline runtime does: `PP:0F3`, `PP:0B3`.

    Use it around `step()` of torch's `Schedule1F1B`, which names no actions. `ppsim read` can then read the trace.
    """
    methods = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}
    for stage, (method, letter) in product(stages, methods.items()):
        setattr(stage, method, _named(getattr(stage, method), f"PP:{stage.stage_index}", letter))
    try:
        yield
    finally:
        for stage, method in product(stages, methods):
            delattr(stage, method)  # uncovers the method of the class


def _named(method: Callable[..., Any], prefix: str, letter: str) -> Callable[..., Any]:
    def run(microbatch: int, *args: Any, **options: Any) -> Any:
        kind = "I" if letter == "B" and not options.get("full_backward", True) else letter
        with record_function(f"{prefix}{kind}{microbatch}"):
            return method(microbatch, *args, **options)

    return run


def load(
    schedule: Table,
    stages: Sequence[PipelineStage],
    loss_fn: Callable[..., torch.Tensor],
    n_microbatches: int,
    *,
    defer_receives: bool = False,
) -> Any:
    """Return torch's runtime for a table over this rank's stages, ready to `step()`.

    The rank of stage 0 gives `step` the whole batch, the rank of the last stage gives it `target=` (and `losses=`).
    Gradients are of the mean loss over the microbatches. Raises `ConfigError` before anything starts if the stages
    or microbatches differ from the table, or if this torch version cannot run it.
    """
    require_torch()
    table = read(schedule)
    if problems := problems_of_stages(table, stages, n_microbatches):
        raise ConfigError("; ".join(problems))
    if reason := why_not_loaded(table, torch.__version__):
        raise ConfigError(reason)
    text = torch_csv(table, with_communication=table.has_communication)
    runtime = schedule_runtime(list(stages), n_microbatches, loss_fn, defer_receives=defer_receives)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_text(text)
        runtime._load_csv(str(path), format="compute_comms" if table.has_communication else "compute_only")
    return runtime
