"""The private names of torch.distributed.pipelining that ppsim uses.

`_PipelineScheduleRuntime` and its `_load_csv` "will most likely get renamed" (torch's source says). A torch version
with other names then fails here, and not in the middle of a run.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.pipelining.schedules
from torch.utils._python_dispatch import TorchDispatchMode

from ppsim.base.errors import ConfigError

schedules: Any = torch.distributed.pipelining.schedules
"""The recorder and the emulated network replace some globals of this module."""

OLDEST = (2, 13)
NEEDED = ("_PipelineScheduleRuntime", "record_function", "_wait_batch_p2p", "_batch_p2p")


def require_torch() -> None:
    """Raise `ConfigError` if this torch is too old for the split backward or lacks a required name."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise ConfigError(
            f"torch {torch.__version__} is too old to execute tables: it gives wrong gradients for a split "
            f"backward (need {OLDEST[0]}.{OLDEST[1]} or newer)"
        )
    missing = [name for name in NEEDED if not hasattr(schedules, name)]
    if missing:
        raise ConfigError(
            f"torch {torch.__version__} has no {', '.join(missing)} in torch.distributed.pipelining.schedules; "
            f"this ppsim was made for torch 2.13"
        )


def schedule_runtime(stages: list[Any], num_microbatches: int, loss_fn: Any, *, defer_receives: bool) -> Any:
    """Return torch's runtime for tables, which needs sorted stages."""
    stages = sorted(stages, key=lambda stage: stage.stage_index)
    return schedules._PipelineScheduleRuntime(
        stages, num_microbatches, loss_fn=loss_fn, defer_pp_recv=defer_receives
    )


_FUSED = r"aten::_(?:scaled_dot_product_)?(flash|efficient|cudnn|fused)_attention\w*"


class _Fused(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if match := re.fullmatch(_FUSED, func._schema.name):
            self.names[match[1]] = None
        return func(*args, **(kwargs or {}))


def attention_in(forward: Callable[[], object]) -> str:
    """Return the fused attention kernels that a forward calls, or "math" if it uses separate GEMMs.

    >>> q = torch.randn(1, 2, 16, 8)
    >>> attention_in(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    'flash'
    """
    # Otherwise a compiled function that is first called in a dispatch mode would never be compiled.
    with torch.compiler.set_stance("force_eager"), _Fused() as fused:
        forward()
    return " + ".join(fused.names) or "math"
