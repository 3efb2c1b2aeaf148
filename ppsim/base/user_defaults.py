"""Names and defaults of user options; help pages load nothing else."""

import re
from typing import Literal

Dispatcher = Literal["deepep", "hybridep", "alltoall", "allgather"]

FLEX: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Dispatchers of Megatron-LM's flex dispatcher, which also sends the routing weights in float32."""


def runs_deepep(name: str) -> bool:
    """Return whether DeepEP runs on a device or cluster: on Hopper, B200 and B300, not on GB200 and GB300.

    Source: training/flex_dispatcher_backend.py of Megatron-Bridge.

    >>> runs_deepep("gb200-nvl72"), runs_deepep("NVIDIA H100 SXM 80GB")
    (False, True)
    """
    return re.search(r"\bgb\d", name, re.IGNORECASE) is None


DISPATCHER_SMS: dict[Dispatcher, int] = {"deepep": 20, "hybridep": 16, "alltoall": 20, "allgather": 20}
"""SMs that exchange tokens. DeepEP and HybridEP: defaults of Megatron-LM 0.16 (`transformer_config.py`,
moe_deepep_num_sms and moe_hybridep_num_sms). Since 0.18, HybridEP without a value has 16 SMs for a dispatch and 32
for a combine in one NVLink domain, 8 for both across domains (DeepEP, branch hybrid-ep,
`csrc/hybrid_ep/config.cuh`). NCCL: assumed to be DeepEP's.
"""

CLUSTER = "dgx-h100"
