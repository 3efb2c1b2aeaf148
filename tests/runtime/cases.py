"""Small runs of torch's runtime that the tests here share."""

from pathlib import Path
from typing import Any

import ppsim
from ppsim.runtime.config import GPTShape, TrainConfig
from ppsim.schedule.grammar import format_table

BUILDERS = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv")


def table_of(name: str, *, p: int, m: int) -> ppsim.Schedule:
    vpp = 2 if name in ("interleaved-1f1b", "zbv") else None
    return ppsim.build(name, pp=p, vpp=vpp, microbatches=m)


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
