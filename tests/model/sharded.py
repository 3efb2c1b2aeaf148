"""What a rank holds under torch's fully_shard, as the tests of its replay ask for it."""

from dataclasses import replace

from ppsim.model.batch import Batch, KernelChoice
from ppsim.model.optimizer import Optimizer
from ppsim.model.rank_memory import MemorySettings
from ppsim.parallel.sizes import ParallelSizes


def settings(**changes) -> MemorySettings:
    made = MemorySettings(
        Batch(1, 8192, recompute="full"),
        ParallelSizes(dp=8),
        Optimizer(zero_stage=3),
        KernelChoice(cross_entropy="unfused"),
    )
    return replace(made, fully_shard=True, **changes)
