"""Settings and keys of measurements. Does not import torch."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from ppsim.model.measurement_key import describe_key
from ppsim.model.recompute import Recompute
from ppsim.model.shapes import ModelShape
from ppsim.schedule.option_types import Dtype

_RUNTIME_DTYPES = ("float32", "float64", "bfloat16")
"""Number formats in which the runtime's model can be trained on a CPU."""

LEAST_REPEATS = 5
"""Minimum number of repeats, however long they take: fewer give no useful quartiles."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class MeasuringSettings:
    """How to measure: device "cpu" or "cuda", measured and warm-up repeats, CPU threads.

    `component_s` limits the seconds per component, but not below `LEAST_REPEATS` repeats; `least_s` is the minimum
    time for all repeats. With `cuda_graphs`, I and W are not measured.
    """

    device: str = "cpu"
    num_repeats: int = 30
    num_warm_up: int = 5
    num_threads: int = 1
    component_s: float | None = None
    least_s: float = 0.0
    compiled: bool = False
    cuda_graphs: bool = False

    def of_many(self, count: int) -> "MeasuringSettings":
        component_s = None if self.component_s is None else self.component_s * count
        return replace(self, component_s=component_s, least_s=self.least_s * count)


@dataclass(frozen=True)
class MeasurementKey:
    """Key of a measurement; `micro_batch` is in sequences."""

    micro_batch: int
    sequence_length: int
    dtype: Dtype | Literal["fp8"]
    tp: int = 1
    cp: int = 1
    ep: int = 1
    recompute: Recompute = "none"

    def __str__(self) -> str:
        return describe_key(asdict(self))


def why_no_calibration_run(model: ModelShape, key: MeasurementKey, *, device: str, compiled: bool) -> str:
    """Return why the runtime cannot run a model as it was measured, "" if it can.

    >>> from ppsim.profiling.model_shapes import find_model
    >>> key = MeasurementKey(micro_batch=1, sequence_length=16, dtype="float32")
    >>> why_no_calibration_run(find_model("nano"), key, device="cpu", compiled=False)
    ''
    >>> why_no_calibration_run(find_model("moe-mini"), key, device="cpu", compiled=False)
    'the runtime trains GPTs, not moe'
    """
    if device != "cpu":
        return f"it takes a {device} device for each rank"
    if model.layer.kind != "gpt":
        return f"the runtime trains GPTs, not {model.layer.kind}"
    if (key.tp, key.cp, key.ep) != (1, 1, 1):
        return "the runtime cuts no layer"
    if key.recompute not in ("none", "full"):
        return f"the runtime recomputes all of a layer or nothing, not {key.recompute}"
    if key.dtype not in _RUNTIME_DTYPES or compiled:
        return f"the runtime trains {', '.join(_RUNTIME_DTYPES)} without torch.compile"
    return ""


def summarise_samples(samples: list[float]) -> dict[str, float]:
    """Return median and quartiles in the form of a profile file, limited to the range of the samples.

    >>> summarise_samples([5.0, 1.0, 3.0, 2.0, 4.0])
    {'median': 3.0, 'low': 1.5, 'high': 4.5}
    """
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    # With two or three samples the quartiles are extrapolated, possibly below 0, which a profile may not contain.
    return {"median": median, "low": max(low, min(samples)), "high": min(high, max(samples))}
