"""Names and defaults of user options; help pages load nothing else."""

from typing import Literal

Dispatcher = Literal["deepep", "hybridep", "alltoall", "allgather"]

FLEX: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Dispatchers of Megatron-LM's flex dispatcher, which also sends the routing weights in float32."""

CLUSTER = "dgx-h100"

MEMORY_SHARE = 0.95
