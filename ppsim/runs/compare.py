"""Compare a measured with a projected step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from ppsim.base.display import Drawable, Printable
from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds, signed_percent
from ppsim.runs.calibrate import FittedOverheads, with_overheads
from ppsim.runs.peaks import PeakError
from ppsim.runs.run import ReferenceSpeed, Run, pass_medians, table_in_words, unslowed_costs
from ppsim.runs.step_replay import MeasuredSteps, median_gap_s, replayed_step_s, steps_of, waits_for_messages
from ppsim.schedule.graph import build_graph
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.idle_causes import gaps
from ppsim.simulation.simulate import durations_s
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class OpError:
    """Measured and projected median time of one kind of action on one stage."""

    op: str
    stage: int
    measured_s: float
    projected_s: float

    @property
    def error(self) -> float:
        return self.projected_s / self.measured_s - 1 if self.measured_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"error": self.error}


@dataclass(frozen=True, repr=False)
class Comparison(Printable, Drawable):
    """A measured step against a projected step.

    Errors are projected / measured − 1, negative if the projection is too fast. The replay is the simulator's step
    with the measured action times; its error comes from waits, not from costs.

    `replay_gap_s`
        Median gap before an action. If no transfer was recorded, the replay uses this gap before every action.
    `replay_hop_s`
        Mean transit time of messages that an action waited for. If transfer times are unknown, the replay uses this
        time for all messages. A step adds up many waits, hence the mean.
    `pace`
        Machine speed during the run relative to profiling (0.9: 10 % slower), if both used the same reference work.
    `overheads_fitted_on_this_run`
        True if the projection's overheads were fitted on the measured run: the errors then test nothing.
    `between_s`
        Mean measured and projected time between two steps.
    `note`
        A sentence or question on ranks that were not recorded.

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
    iteration_time_interval_s: tuple[float, float] | None = None
    pace: float | None = None
    reference_works: tuple[str, str] | None = None
    overheads_fitted_on_this_run: bool = False
    between_s: tuple[float, float] | None = None
    note: str = ""

    @property
    def periods_s(self) -> tuple[float, float] | None:
        """Measured and projected time from one step's start to the next start."""
        if self.between_s is None:
            return None
        measured, projected = self.between_s
        return self.measured.step_time_s + measured, self.projected.step_time_s + projected

    @property
    def inside_interval(self) -> bool | None:
        if self.iteration_time_interval_s is None:
            return None
        low, high = self.iteration_time_interval_s
        return low <= self.measured.step_time_s <= high

    @property
    def error_at_pace(self) -> float | None:
        return None if self.pace is None else (1 + self.step_error) / self.pace - 1

    @property
    def told(self) -> list[str]:
        sentences = []
        if self.iteration_time_interval_s is not None:
            low, high = map(seconds, self.iteration_time_interval_s)
            where = "inside" if self.inside_interval else "outside"
            sentences.append(f"the measured step is {where} the projection's 90 % interval ({low} to {high})")
        if self.pace is not None:
            sentences.append(
                f"machine speed during the run: {self.pace:.2f} × the speed during profiling (reference work: F "
                f"and B of each rank's stages)"
            )
        elif self.reference_works is not None:
            profiled, run = (work or "unknown (an older version of ppsim)" for work in self.reference_works)
            sentences.append(
                f"no error at equal speed: the reference work of the profile is {profiled}, of the run {run}"
            )
        return sentences

    @property
    def warnings(self) -> list[str]:
        fitted = "the overheads were fitted on this run, so the errors below are not a test of the projection"
        return [*[fitted] * self.overheads_fitted_on_this_run, *[self.note] * bool(self.note)]

    @property
    def one_line(self) -> str:
        measured, projected = seconds(self.measured.step_time_s), seconds(self.projected.step_time_s)
        at_pace = f", at equal speed {signed_percent(self.error_at_pace)}" if self.error_at_pace is not None else ""
        return (
            f"measured {measured}, projected {projected} ({signed_percent(self.step_error)}{at_pace}), replayed "
            f"{signed_percent(self.replay_error)}"
            + (", overheads fitted on this run" if self.overheads_fitted_on_this_run else "")
        )

    @property
    def worst_stage(self) -> int:
        return max(self.ops, key=lambda op: abs(op.error)).stage

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per kind of action and stage, with measured and projected medians.

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
    """Compare timelines of one table; raises `ConfigError` if the tables differ or the measured step took 0 s."""
    if measured.schedule != projected.schedule:
        ours, theirs = table_in_words(measured.schedule), table_in_words(projected.schedule)
        raise ConfigError(f"the two timelines run different tables: ({ours}) and ({theirs})")
    if measured.step_time_s == 0:
        raise ConfigError("the measured step took 0 s: there is nothing to compare a projection with")
    replayed, gap, hop = _replayed(measured)
    return Comparison(
        measured, projected, step_error=projected.step_time_s / measured.step_time_s - 1,
        span_error=projected.span_s / measured.span_s - 1, replay_s=replayed,
        replay_error=replayed / measured.step_time_s - 1, ops=_op_errors(measured, projected),
        replay_gap_s=gap, replay_hop_s=hop,
    )  # fmt: skip


class MachineSpeed(TypedDict, total=False):
    """Fields of `Comparison` on machine speed; unknown fields are missing."""

    pace: float
    reference_works: tuple[str, str]


def pace_of(run: Run, reference: ReferenceSpeed | None) -> MachineSpeed:
    if reference is None or not run.reference_s:
        return {}
    if reference.work != run.reference_work or not reference.work:
        return {"reference_works": (reference.work, run.reference_work)}
    expected_s = reference.ranks_s(run.graph.schedule, run.reference_layers)
    return {"pace": float(np.median(run.at_pace(expected_s).step_times_s) / np.median(run.step_times_s))}


def expected_costs(run: Run, constants: Mapping[str, float], line: tuple[float, float] | None = None) -> StageCosts:
    """Return the costs, with overheads, at which a run is simulated again.

    Measured medians already include the slow-down by overlapped transfers. It is removed from the medians or, if
    transfers are unknown, not applied a second time.
    """
    constants, costs = dict(constants), run.costs
    if not run.has_own_costs and constants.get("overlap_slowdown"):
        if run.knows_transfers:
            costs = unslowed_costs(run, constants["overlap_slowdown"])
        else:
            constants["overlap_slowdown"] = 0.0
    return with_overheads(costs, constants, line, run.message_bytes)


def replay_s(measured: Timeline) -> float:
    graph, num_actions = measured.graph, measured.num_actions
    durations = durations_s(graph, measured.costs)
    durations[:num_actions] = (measured.end - measured.start)[:num_actions] + gaps(measured).overhead_s
    return float(evaluate_many(graph, durations, np.zeros(graph.num_nodes)).step_time_s[0])


def _replayed(measured: Timeline) -> tuple[float, float | None, float | None]:
    """Return the replayed step time, and the gap or message time that replaces unrecorded times."""
    graph, actions = measured.graph, measured.num_actions
    start, end = measured.start[None, :actions], measured.end[None, :actions]
    steps = steps_of(graph, start, end)
    if graph.num_transfers and not np.any(measured.end[actions:] > measured.start[actions:]):
        # Transfers that were not recorded have length 0.
        gap = median_gap_s(steps)
        steps = MeasuredSteps(steps.taken, np.zeros_like(start), np.full_like(start, gap))
        return float(replayed_step_s(build_graph(measured.schedule), steps)[0]), gap, None
    waits = waits_for_messages(graph, start[0], end[0])
    if measured.origin != "measured" or measured.costs.transfer_s.any() or not waits.any():
        return replay_s(measured), None, None
    hop = float(steps.hop[0][waits > 0].mean())
    steps = MeasuredSteps(steps.taken, np.full_like(start, hop), steps.after_own)
    return float(replayed_step_s(build_graph(measured.schedule), steps)[0]), None, hop


_SUMMARY = (
    "step_error", "span_error", "replay_s", "replay_error", "replay_gap_s", "replay_hop_s", "pace", "error_at_pace",
    "overheads_fitted_on_this_run", "inside_interval",
)  # fmt: skip


def summary_of(comparison: Comparison, fitted: FittedOverheads | None) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "schedule": comparison.measured.schedule.name,
        "measured_step_time_s": comparison.measured.step_time_s,
        "projected_step_time_s": comparison.projected.step_time_s,
        **{name: getattr(comparison, name) for name in _SUMMARY},
        "periods_s": comparison.periods_s and list(comparison.periods_s),
        "reference_works": comparison.reference_works and list(comparison.reference_works),
        "projected_interval_s": comparison.iteration_time_interval_s and list(comparison.iteration_time_interval_s),
        "ops": [op.to_json() for op in comparison.ops],
        "peaks": [peak.to_json() for peak in comparison.peaks],
    }
    return summary | ({"fitted": fitted.to_json()} if fitted else {})


def _op_errors(measured: Timeline, projected: Timeline) -> list[OpError]:
    taken, expected = (
        pass_medians(one.schedule, (one.end - one.start)[: one.num_actions]) for one in (measured, projected)
    )
    return [OpError(op.name, stage, taken[op, stage], expected[op, stage]) for op, stage in taken]
