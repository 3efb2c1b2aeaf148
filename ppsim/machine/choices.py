"""Names that a user chooses by, apart from what they stand for: help pages read them and load nothing else."""

from typing import Literal

Dispatcher = Literal["deepep", "hybridep", "alltoall", "allgather"]
"""How tokens are sent to their experts: see `ppsim.machine.dispatch`."""

FLEX: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Those of Megatron-LM's flex dispatcher, which send the weights of tokens along in float32."""

CLUSTER = "dgx-h100"
"""The cluster where nobody names one."""

MEMORY_SHARE = 0.95
"""The part of a device's memory that a step may take unless somebody says another."""
