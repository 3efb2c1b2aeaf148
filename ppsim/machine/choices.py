"""Names and defaults of user options, in a separate module so that help pages load nothing else."""

from typing import Literal

Dispatcher = Literal["deepep", "hybridep", "alltoall", "allgather"]
"""See `ppsim.machine.dispatch`."""

FLEX: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Dispatchers of Megatron-LM's flex dispatcher, which also sends the routing weights in float32."""

CLUSTER = "dgx-h100"

MEMORY_SHARE = 0.95
