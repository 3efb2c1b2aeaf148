"""What pictures show of a projection."""

from typing import TYPE_CHECKING

from ppsim.base.units import count, percent, seconds, size

if TYPE_CHECKING:
    from ppsim.projection.projection import Projection
from ppsim.plot.view import View


def view_of(projection: "Projection", title: str) -> View:
    """Return what a picture shows of a projection: its step, where an iteration's time goes, what it delivers."""
    from ppsim.projection.budget import loss_budget

    limit = projection.plan.memory_bound_bytes
    peak = float(projection.timeline.memory.peak_bytes.max())
    utilization = projection.model_flops_utilization
    facts = [
        ("iteration", seconds(projection.iteration_s)),
        ("throughput", f"{count(projection.tokens_per_s)} tokens/s on {projection.num_gpus} GPUs"),
        *([("MFU", percent(utilization))] if utilization is not None else []),
        ("memory", f"{size(peak)} on the fullest rank" + (f" of {size(limit)}" if limit is not None else "")),
    ]
    return View(projection.timeline, title, projection.step.pieces, loss_budget(projection), facts)
