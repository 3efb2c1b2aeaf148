"""A measured step beside a projected one: where they part, in costs and in waits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.shown import Pictured, Shown
from ppsim.base.units import seconds, signed_percent
from ppsim.runs.calibrate import Calibration, calibration_to_json, with_overheads
from ppsim.runs.peaks import PeakError
from ppsim.runs.replays import Steps, median_gap_s, replayed_s, steps_of, waits_for_messages
from ppsim.runs.run import Run, costs_alone, pass_medians
from ppsim.schedule.graph import build_graph
from ppsim.simulation.engine import evaluate
from ppsim.simulation.explain import gaps
from ppsim.simulation.run import durations_s
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class OpError:
    """One kind of pass on one stage: median seconds measured and projected; the error is relative to measured."""

    op: str
    stage: int
    measured_s: float
    projected_s: float

    @property
    def error(self) -> float:
        """Projected over measured, minus one: negative is optimistic."""
        return self.projected_s / self.measured_s - 1 if self.measured_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it with its error."""
        return asdict(self) | {"error": self.error}


@dataclass(frozen=True, repr=False)
class Comparison(Shown, Pictured):
    """Measured against projected. Errors are signed: projected / measured − 1, negative where projected too fast.

    `replay_s` is the step time of the measured action times put through the simulator: what is left of the
    error then is not in the costs but in how ranks wait for each other. Where no transfer was recorded, what each
    action waited for is not known: all then wait `replay_gap_s`, the median, which is None otherwise. Where nobody
    knows what transfers take, each takes `replay_hop_s`, the mean of the waits for them: of waits that vary a step
    sums up many. `peaks` are there where both sides know bytes, `projected_costs` where those of the projection are
    known.

    >>> from ppsim import StageCosts, build, simulate
    >>> table = build("1f1b", pp=2, microbatches=2)
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> slow, fast = simulate(table, costs.replace(forward_s=2)), simulate(table, costs)
    >>> round(compare(slow, fast).step_error, 3)
    -0.25
    """

    measured: Timeline
    projected: Timeline
    step_error: float
    span_error: float
    replay_s: float
    replay_error: float
    ops: list[OpError]
    replay_gap_s: float | None = None
    replay_hop_s: float | None = None
    peaks: list[PeakError] = field(default_factory=list)
    projected_costs: StageCosts | None = None

    @property
    def brief(self) -> str:
        """What its line says."""
        measured, projected = seconds(self.measured.step_time_s), seconds(self.projected.step_time_s)
        return (
            f"measured {measured}, projected {projected} ({signed_percent(self.step_error)}), replayed "
            f"{signed_percent(self.replay_error)}"
        )

    @property
    def worst_stage(self) -> int:
        """The stage with the pass whose error is the largest."""
        return max(self.ops, key=lambda op: abs(op.error)).stage

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row a pass and stage, medians of both sides.

        Columns: op (F, B, I, W), stage, measured_s, projected_s, error (projected / measured − 1).

        >>> from ppsim import StageCosts, build, simulate
        >>> table = build("1f1b", pp=2, microbatches=2)
        >>> costs = StageCosts(forward_s=2, backward_input_s=1, backward_weight_s=1)
        >>> twice = costs.replace(forward_s=4)
        >>> compare(simulate(table, costs), simulate(table, twice)).to_frame()
          op  stage  measured_s  projected_s  error
        0  F      0         2.0          4.0    1.0
        1  F      1         2.0          4.0    1.0
        2  B      0         2.0          2.0    0.0
        3  B      1         2.0          2.0    0.0
        """
        import pandas

        return pandas.DataFrame([op.to_json() for op in self.ops])


def compare(measured: Timeline, projected: Timeline) -> Comparison:
    """Return where two timelines of one table differ; raises `ConfigError` where the tables do.

    So it does of a measured step that took no time: errors are relative to it.
    """
    if measured.schedule != projected.schedule:
        raise ConfigError(
            f"the two timelines run different tables: {_describe(measured)} and {_describe(projected)}"
        )
    if measured.step_time_s == 0:
        raise ConfigError("the measured step took 0 s: there is nothing to compare a projection with")
    gap = None if _has_transfers(measured) else median_gap_s(_steps(measured))
    hop = _mean_hop_s(measured) if gap is None else None
    if gap is not None:
        replayed = _replay_with_gap_s(measured, gap)
    else:
        replayed = replay_s(measured) if hop is None else _replay_with_hops_s(measured, hop)
    return Comparison(
        measured=measured,
        projected=projected,
        step_error=projected.step_time_s / measured.step_time_s - 1,
        span_error=projected.span_s / measured.span_s - 1,
        replay_s=replayed,
        replay_error=replayed / measured.step_time_s - 1,
        ops=_op_errors(measured, projected),
        replay_gap_s=gap,
        replay_hop_s=hop,
    )


def expected_costs(run: Run, constants: Mapping[str, float], line: tuple[float, float] | None = None) -> StageCosts:
    """Return the costs at which a run is simulated again, with overheads (`Calibration.on`).

    The medians of a run's own actions hold the slow-down beside transfers already. It is taken out of them where
    the times of the transfers are known; where they are not, it is left in and not added a second time.
    """
    constants, costs = dict(constants), run.costs
    if not run.has_own_costs and constants.get("overlap_slowdown"):
        if run.knows_transfers:
            costs = costs_alone(run, constants["overlap_slowdown"])
        else:
            constants["overlap_slowdown"] = 0.0
    return with_overheads(costs, constants, line, run.message_bytes)


def replay_s(measured: Timeline) -> float:
    """Return the step time of the measured table with every action taking what it took from when it could start.

    Transfers take what the costs say. Nothing else of the measurement goes in, so that the rest is what the
    simulator makes of dependencies, channels and order.
    """
    graph, num_actions = measured.graph, measured.num_actions
    waits = gaps(measured)
    durations = durations_s(graph, measured.costs)
    durations[:num_actions] = measured.end[:num_actions] - measured.start[:num_actions] + waits.overhead_s
    times = evaluate(graph, durations, np.zeros(graph.num_nodes))
    return float(times.end[:num_actions].max() - times.start[:num_actions].min())


def _has_transfers(measured: Timeline) -> bool:
    """Whether a transfer took any time: those that were not recorded are as long as nothing."""
    actions = measured.num_actions
    return bool(np.any(measured.end[actions:] > measured.start[actions:])) or not measured.graph.num_transfers


def _steps(measured: Timeline) -> Steps:
    actions = measured.num_actions
    return steps_of(measured.graph, measured.start[None, :actions], measured.end[None, :actions])


def _replay_with_gap_s(measured: Timeline, gap_s: float) -> float:
    """Every action takes what it took, a gap after the last thing that it needs: one number for all waits."""
    taken = _steps(measured).taken
    alone = Steps(taken, np.zeros_like(taken), np.full_like(taken, gap_s))
    return float(replayed_s(build_graph(measured.schedule), alone)[0])


def _mean_hop_s(measured: Timeline) -> float | None:
    """What messages of a measured step were waited for, None where the costs know, or nothing waited."""
    actions = measured.num_actions
    waits = waits_for_messages(measured.graph, measured.start[:actions], measured.end[:actions])
    if measured.origin != "measured" or measured.costs.transfer_s.any() or not waits.any():
        return None
    return float(waits[waits > 0].mean())


def _replay_with_hops_s(measured: Timeline, hop_s: float) -> float:
    """Every action takes what it took and starts as long as it did after its rank was free, every message alike."""
    steps, graph = _steps(measured), build_graph(measured.schedule)
    hops = np.zeros(graph.num_transfers)
    times = evaluate(
        graph, np.concatenate([steps.taken[0], hops + hop_s]), np.concatenate([steps.after_own[0], hops])
    )
    return float(times.end[: graph.num_actions].max() - times.start[: graph.num_actions].min())


def summary_of(comparison: Comparison, fitted: Calibration | None) -> dict[str, Any]:
    """Return a comparison as JSON; errors are signed, projected / measured − 1."""
    summary: dict[str, Any] = {
        "schedule": comparison.measured.schedule.name,
        "measured_step_time_s": comparison.measured.step_time_s,
        "projected_step_time_s": comparison.projected.step_time_s,
        "step_error": comparison.step_error,
        "span_error": comparison.span_error,
        "replay_s": comparison.replay_s,
        "replay_error": comparison.replay_error,
        "replay_gap_s": comparison.replay_gap_s,
        "replay_hop_s": comparison.replay_hop_s,
        "ops": [op.to_json() for op in comparison.ops],
        "peaks": [peak.to_json() for peak in comparison.peaks],
    }
    return summary | ({"fitted": calibration_to_json(fitted)} if fitted else {})


def _op_errors(measured: Timeline, projected: Timeline) -> list[OpError]:
    schedule = measured.schedule
    taken, expected = (
        pass_medians(schedule, (timeline.end - timeline.start)[: timeline.num_actions])
        for timeline in (measured, projected)
    )
    return [OpError(op.name, stage, taken[op, stage], expected[op, stage]) for op, stage in taken]


def _describe(timeline: Timeline) -> str:
    schedule = timeline.schedule
    return (
        f"{schedule.name or 'a table'} of {schedule.num_ranks} ranks, {schedule.num_stages} stages and "
        f"{schedule.num_microbatches} microbatches"
    )
