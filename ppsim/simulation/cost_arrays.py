"""Costs as arrays for the stages of one schedule, made by `StageCosts.resolved`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Ints32, Numbers
from ppsim.schedule.table import Op

_PASSES = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
assert (Op.F, Op.B, Op.I, Op.W) == (0, 1, 2, 3)  # indices into `_PASSES`
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class CostArrays:
    """`StageCosts` for one schedule, as float64 arrays with one entry per stage.

    `static_bytes` and `update_bytes` are per rank; `time_shares` and `token_shares` are per slice. `fused_s` and
    `fused_activation_bytes` have the shape [stages of forwards, stages of backwards]. If microbatches differ, the
    fields hold seconds of the mean microbatch and bytes of the largest one; `by_microbatch` holds matrices [stages,
    microbatches].
    """

    forward_s: Floats
    backward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    activation_bytes: Floats
    kept_bytes: Floats
    transfer_s: Floats
    static_bytes: Floats
    update_bytes: Floats
    fused_s: Floats | None
    time_shares: Floats
    token_shares: Floats
    action_overhead_s: float
    hop_overhead_s: float
    first_pass_s: float = 0.0
    last_pass_s: float = 0.0
    variation_s: float = 0.0
    between_rounds_s: float = 0.0
    slow_links: Numbers | None = None
    by_microbatch: Mapping[str, Floats] = field(default_factory=dict)
    fused_activation_bytes: Floats | None = None

    def values(self, name: str) -> Floats:
        """The result has shape [stages, microbatches], or [stages, 1] if microbatches do not differ."""
        of_stages: Floats = self.by_microbatch.get(name, getattr(self, name)[:, None])
        return of_stages

    def of(self, name: str, stage: Ints32, microbatch: Ints32) -> Floats:
        """`microbatch` counts whole microbatches, not slices."""
        if name in self.by_microbatch:
            return self.by_microbatch[name][stage, microbatch]
        of_stages: Floats = getattr(self, name)[stage]
        return of_stages

    def of_passes(self, op: NDArray[np.int8], stage: Ints32, microbatch: Ints32) -> Floats:
        if not self.by_microbatch:
            return self.mean_passes(op, stage)
        seconds: Floats = np.choose(op, [self.of(name, stage, microbatch) for name in _PASSES])
        return seconds

    def mean_passes(self, op: NDArray[np.int8], stage: Ints32) -> Floats:
        by_op = np.concatenate([getattr(self, name) for name in _PASSES])
        cells = np.multiply(op, len(self.forward_s), dtype=np.int32)
        cells += stage
        seconds: Floats = by_op[cells]
        return seconds

    def least(self) -> "CostArrays":
        """Return costs that are equal for all microbatches: the minimum of each stage."""
        if not self.by_microbatch:
            return self
        smallest: dict[str, Any] = {name: values.min(axis=1) for name, values in self.by_microbatch.items()}
        if self.fused_s is not None:
            parts = [name for name in ("forward_s", "backward_s") if name in smallest]
            ratios = [smallest[name] / np.maximum(getattr(self, name), _TINY) for name in parts]
            smallest["fused_s"] = self.fused_s * float(np.min(ratios, initial=1.0))
        return replace(self, **smallest, by_microbatch={})
