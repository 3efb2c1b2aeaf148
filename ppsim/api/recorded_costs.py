"""Costs and overheads of a recorded run, for a projection of another schedule, vpp or split of its job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ppsim.api.read import missing_ranks_note, open_run_if_path
from ppsim.api.run_result import RunResult
from ppsim.api.schedule_detection import detect_schedule
from ppsim.base.errors import ConfigError
from ppsim.costs.cost_sources import Measured, RunCosts
from ppsim.parallel.layer_partition import Split
from ppsim.runs.calibrate import FittedOverheads, calibrate
from ppsim.runs.loss_attribution import lasting_faults
from ppsim.runs.run import Run, unslowed_costs
from ppsim.schedule.table import fused_pairs


@dataclass(frozen=True)
class RecordedCosts:
    """Costs per stage and overheads of a run."""

    costs: RunCosts
    overheads: FittedOverheads

    @property
    def schedule(self) -> str:
        """Raises `ConfigError` if the schedule is not in the catalogue."""
        detected = detect_schedule(self.costs.table)
        if not detected.names:
            raise ConfigError(f"{self.costs.source} ran {detected.sentence}: give --schedule")
        return detected.names[0]


def recorded_costs(
    path: str | Path | RunResult,
    activation_bytes: Measured | None = None,
    split: Split = "even",
    without: Sequence[str] = (),
) -> RecordedCosts:
    """Return the medians per stage and the overheads of a run, or of one in a file or folder.

    Slow ranks and links stay, except those in `without`. `activation_bytes` are per microbatch, of each rank or of
    each recorded stage. Raises `ConfigError` for an unknown cause in `without`, and for slices of sequences or
    pairs of a forward and a backward, because their actions have no times of their own.
    """
    opened = open_run_if_path(path)
    run = opened.measured.run
    source = str(path) if isinstance(path, str | Path) else run.source
    table = run.graph.schedule.compute_only()
    if table.num_slices > 1:
        raise ConfigError(f"{source} ran slices of sequences: --run needs whole microbatches per action")
    if len(fused_pairs(table)[0]):
        raise ConfigError(f"{source} ran pairs of a forward and a backward, whose times are not known apart")
    overheads = calibrate([run])
    costs = replace(
        _stage_costs(run, overheads, source), activation_bytes=activation_bytes, split=split,
        note=missing_ranks_note(opened),
    )  # fmt: skip
    return RecordedCosts(costs.without(without), overheads)


def _stage_costs(run: Run, overheads: FittedOverheads, source: str) -> RunCosts:
    """Costs are means over model replicas."""
    table = run.graph.schedule.compute_only()
    slowdown = overheads.slowdown.value if overheads.slowdown else 0.0
    stage_costs = (run.costs if run.has_own_costs else unslowed_costs(run, slowdown)).resolved_for(table)
    names = ("forward_s", "backward_input_s", "backward_weight_s", "backward_s")
    factors, slow_links = lasting_faults(run)
    forward, inputs, weights, backward = (
        np.bincount(
            table.model_stage,
            weights=getattr(stage_costs, name) / factors[int(name != names[0]), table.stage_to_rank],
        )
        / table.num_replicas
        for name in names
    )
    if not table.splits_backward:
        inputs = weights = backward / 2
    hops = np.asarray(stage_costs.transfer_s)[: table.num_model_stages]
    return RunCosts(
        forward_s=tuple(forward.tolist()),
        backward_input_s=tuple(inputs.tolist()),
        backward_weight_s=tuple(weights.tolist()),
        transfer_s=tuple(hops.tolist()),
        table=table,
        source=source,
        splits_backward=table.splits_backward,
        knows_gaps=overheads.step is not None,
        slow_ranks=tuple(
            (rank, *factors[:, rank].tolist()) for rank in np.flatnonzero(factors.max(axis=0) > 1).tolist()
        ),
        slow_links=slow_links,
    )
