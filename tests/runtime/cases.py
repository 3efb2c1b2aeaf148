"""Small runs of torch's runtime that the tests here share."""

from pathlib import Path
from typing import Any

import ppsim
from ppsim.catalog.build import CATALOG
from ppsim.runtime.train_config import GPTShape, TrainConfig
from ppsim.schedule.grammar import format_table

BUILDERS = tuple(name for name, entry in CATALOG.items() if entry.not_in_torch is None)


def sizes_of(name: str, p: int) -> list[int]:
    """The numbers of microbatches p, 2p and 3p, as far as the schedule takes them."""
    entry = CATALOG[name]
    vpp = entry.stages_per_rank[0]
    return [m for m in (p, 2 * p, 3 * p) if entry.why_not(pp=p, vpp=vpp, microbatches=m) is None]


def table_of(name: str, *, p: int, m: int) -> ppsim.Schedule:
    return ppsim.build(name, pp=p, microbatches=m)


def config_of(table: ppsim.Schedule, folder: Path, **fields: Any) -> TrainConfig:
    """A GPT of one tiny layer a stage, over a table written to `folder`."""
    path = folder / f"{table.name}_{table.num_ranks}_{table.num_microbatches}.csv"
    path.write_text(format_table(table))
    return TrainConfig(
        schedule=str(path),
        num_ranks=table.num_ranks,
        model=GPTShape(num_layers=table.num_stages, hidden_size=32, num_heads=2, sequence_length=16),
        layers_per_stage=[1] * table.num_stages,
        micro_batch=1,
        **{"num_steps": 1, "num_warm_up": 0, "timeout_s": 60.0, **fields},
    )


def stage_of(*, num_ranks: int, num_stages: int) -> Any:
    """A stage of rank 0 for torch's loader and generators, which read no more of it: without a model or processes."""
    from torch.distributed.pipelining import PipelineStage

    stage = object.__new__(PipelineStage)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, num_ranks, num_stages, None
    return stage
