"""What pictures show of a projection, and of a search."""

from collections.abc import Sequence
from typing import Any

from ppsim.base.units import count, percent, seconds, size
from ppsim.plot.pareto import SearchView
from ppsim.plot.view import View
from ppsim.projection.budget import loss_budget
from ppsim.projection.projection import Projection
from ppsim.tuning.command import command_of
from ppsim.tuning.search import Found, Tuned


def view_of(projection: Projection, title: str) -> View:
    """Return what a picture shows of a projection: its step, where an iteration's time goes, what it delivers."""
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


def search_view(tuned: Tuned) -> SearchView:
    """Return what a page shows of a search, each configuration with the command that projects it."""
    job = tuned.question.job

    def rows(found: Sequence[Found]) -> list[dict[str, Any]]:
        return [tuned.row(one) | {"command": command_of(tuned, one)} for one in found]

    return SearchView(
        f"{job.model_name} on {tuned.question.num_gpus} × {job.cluster.device.name}, {job.global_batch} sequences "
        f"of {job.length} tokens a step",
        tuned.counts["configurations"],
        tuned.question.memory_limit_bytes,
        rows(tuned.simulated),
        rows(tuned.best),
        rows(tuned.pareto),
    )
