"""The quantities of a projection, each declared once for JSON, tables, cards, pages and the reference of keys."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ppsim.base.units import count, percent, seconds, size

View = Literal["json", "columns", "throughput", "card", "page", "sweep"]
Unit = Literal["", "s", "bytes", "ratio", "tokens/s", "tokens/s per GPU", "FLOP/s", "FLOP/s per GPU"]


@dataclass(frozen=True)
class ReportedQuantity:
    """One number of a `Projection`; `of` returns it in `unit`, or None if it is unknown.

    Views: `json` is `Projection.to_json`, `columns` is `Projections.to_frame`, `throughput` a line of the terminal
    output, `card` the notebook card, `page` the head of an HTML timeline, `sweep` a row of `ppsim sweep`.
    """

    key: str
    label: str
    unit: Unit
    meaning: str
    of: Callable[[Any], float | None]
    views: tuple[View, ...] = ("json",)


def _per_gpu(of: Callable[[Any], float | None]) -> Callable[[Any], float | None]:
    def value(one: Any) -> float | None:
        total = of(one)
        return None if total is None else total / one.num_gpus

    return value


def _peak(one: Any) -> float | None:
    return float(one.timeline.memory.peak_bytes.max()) if one.plan.knows_memory else None


QUANTITIES = (
    ReportedQuantity(
        "iteration_time_s", "iteration", "s",
        "time of a training step: the pipeline, data parallelism, the optimizer and the time between steps",
        lambda one: one.iteration_time_s, ("json", "columns", "card", "page"),
    ),
    ReportedQuantity(
        "step_time_s", "step time", "s", "time of the pipeline, from the first start to the last end of all ranks",
        lambda one: one.timeline.step_time_s, ("json", "columns"),
    ),
    ReportedQuantity(
        "tokens_per_s", "throughput", "tokens/s", "tokens of all data-parallel ranks per second of iteration time",
        lambda one: one.tokens_per_s, ("json", "columns", "throughput", "card", "page", "sweep"),
    ),
    ReportedQuantity(
        "tokens_per_s_per_gpu", "throughput per GPU", "tokens/s per GPU", "tokens_per_s over num_gpus",
        _per_gpu(lambda one: one.tokens_per_s), ("json", "throughput", "sweep"),
    ),
    ReportedQuantity(
        "model_flops_utilization", "MFU", "ratio",
        "model FLOPs (causal half of attention, no recomputation) per second, divided by peak_flops_per_s",
        lambda one: one.model_flops_utilization, ("json", "columns", "page", "sweep"),
    ),
    ReportedQuantity(
        "peak_flops_per_s", "peak", "FLOP/s", "peak of a GPU for the number format, by its data sheet",
        lambda one: one.peak_flops_per_s,
    ),
    ReportedQuantity(
        "model_flops_per_s_per_gpu", "model FLOP/s", "FLOP/s per GPU",
        "model FLOPs per second and GPU, the number that Megatron-LM logs as throughput per GPU",
        lambda one: None if not one.peak_flops_per_s or one.model_flops_utilization is None
        else one.model_flops_utilization * one.peak_flops_per_s,
        ("json", "columns", "throughput", "page"),
    ),
    ReportedQuantity(
        "bubble_ratio", "bubble", "ratio", "idle part of step_time_s, mean over ranks",
        lambda one: one.timeline.bubble_ratio, ("json", "columns", "card", "sweep"),
    ),
    ReportedQuantity(
        "span_bubble_ratio", "span bubble", "ratio",
        "idle part of the longest time of a rank from its own first start to its own last end",
        lambda one: one.timeline.span_bubble_ratio, ("json", "columns"),
    ),
    ReportedQuantity(
        "peak_bytes", "peak memory", "bytes", "highest memory of all ranks; None if no bytes are known",
        _peak, ("json", "columns", "card", "sweep"),
    ),
    ReportedQuantity("num_gpus", "GPUs", "", "number of GPUs", lambda one: one.num_gpus, ("json", "sweep")),
)  # fmt: skip


def values(one: Any, view: View) -> dict[str, float | None]:
    return {quantity.key: quantity.of(one) for quantity in QUANTITIES if view in quantity.views}


_TEXT: dict[Unit, Callable[[float], str]] = {"": "{:,.0f}".format, "s": seconds, "bytes": size, "ratio": percent}


def texts_of(projection: Any, view: View) -> dict[str, str]:
    """Return the known quantities of a view by label."""
    texts = ((quantity, quantity.of(projection)) for quantity in QUANTITIES if view in quantity.views)
    return {one.label: _text(value, one.unit) for one, value in texts if value is not None}


def _text(value: float, unit: Unit) -> str:
    if unit in _TEXT:
        return _TEXT[unit](value)
    return f"{count(value)}{'' if unit.startswith('FLOP') else ' '}{unit}"
