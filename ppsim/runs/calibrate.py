"""Fit overheads, transfer times and the slow-down by transfers to measured steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.arrays import Floats, Ints32, Ints64
from ppsim.base.display import Printable
from ppsim.base.errors import ConfigError
from ppsim.base.units import percent, seconds, size
from ppsim.runs.links import SlowPairs, input_times, slow_links_of
from ppsim.runs.run import Run, passes_of, unslowed_costs
from ppsim.runs.spreads import TimeSpreads, ends_of, spreads_of
from ppsim.schedule.blocking_calls import megatron_calls
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.option_types import Communication
from ppsim.schedule.table import Schedule, last_of_cell
from ppsim.simulation.engine import blockers_of
from ppsim.simulation.overlap import evaluate_slowed, overlapped_fraction
from ppsim.simulation.simulate import durations_s, overheads_s, simulate, simulate_graph
from ppsim.simulation.stage_costs import OVERHEADS, StageCosts
from ppsim.simulation.variation import with_variation

if TYPE_CHECKING:
    import pandas

_LEAST_SPREAD = 0.1
"""A pair of actions is used for the slow-down if their overlapped fractions differ by at least this."""

_LEAST_PAIRS = 4
_DEVIATIONS = 5
_DEVIATIONS_OF_NONE = 3


@dataclass(frozen=True)
class FittedConstant:
    """A fitted constant: the median of the steps' medians, which stragglers do not affect.

    `quartiles` are over all samples, `deviation` is the standard error of the median.
    """

    value: float
    quartiles: tuple[float, float]
    num_samples: int
    deviation: float = 0.0


@dataclass(frozen=True)
class TransferTime:
    """Time of P2P transfers of one message size (None: unknown), from the end of the sending action."""

    message_bytes: float | None
    seconds: FittedConstant


@dataclass(frozen=True)
class Residual:
    """Median step of a run against its simulation with the constants (`error`) and without (`error_without`).

    The simulation with the constants adds the excess times of `slow_links`. No constant includes them, because a
    projection has no slow links.
    """

    source: str
    measured_step_s: float
    projected_step_s: float
    error: float
    error_without: float
    slow_links: tuple[str, ...] = ()
    note: str = ""


_CONSTANTS = dict(zip(OVERHEADS, ("action", "hop", "slowdown", "step", "first_pass", "last_pass"), strict=True))


@dataclass(frozen=True, repr=False)
class FittedOverheads(Printable):
    """The fitted constants, None if not fitted; `not_fitted` gives the reason per constant.

    `hop` is the transfer time beyond the runs' costs or, with `communication` "megatron", the time of a blocking
    call.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=2, microbatches=4)
    >>> costs = ppsim.StageCosts(forward_s=0.002, backward_input_s=0.002, backward_weight_s=0.002)
    >>> found = ppsim.calibrate(ppsim.train(table, partitions=2, emulate_costs=costs))
    >>> list(found.fits)
    ['action_overhead_s', 'hop_overhead_s', 'overlap_slowdown', 'step_overhead_s', 'first_pass_s', 'last_pass_s']
    """

    action: FittedConstant | None
    hop: FittedConstant | None
    slowdown: FittedConstant | None
    step: FittedConstant | None
    hops: list[TransferTime]
    latency_s: float | None
    bandwidth_bytes_per_s: float | None
    residuals: list[Residual] = field(default_factory=list)
    spreads: TimeSpreads = field(default_factory=TimeSpreads)
    not_fitted: dict[str, str] = field(default_factory=dict)
    first_pass: FittedConstant | None = None
    last_pass: FittedConstant | None = None
    communication: Communication = "overlap"
    fitted_runs: tuple[str, ...] = ()

    @property
    def one_line(self) -> str:
        fits = [f"{name} {fit.value:.4g}" for name, fit in self.fits.items() if fit is not None]
        return ", ".join([*fits, *(f"no {name}" for name in self.not_fitted)])

    @property
    def fits(self) -> dict[str, FittedConstant | None]:
        """The constants by their field of `StageCosts`."""
        return {name: getattr(self, constant) for name, constant in _CONSTANTS.items()}

    def on(self, costs: StageCosts, message_bytes: float | None) -> StageCosts:
        """Return `costs` with the constants, and with the latency and bandwidth of transfers if `line` is known.

        Without `message_bytes`, transfers do not change.

        >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> found = FittedOverheads(FittedConstant(0.1, (0.1, 0.1), 8), None, None, None, [], None, None)
        >>> found.on(costs, None).action_overhead_s
        0.1
        """
        fits = {name: fit.value for name, fit in self.fits.items() if fit is not None}
        return with_overheads(costs, fits, self.line, message_bytes)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a table with one row per fitted constant; the quartiles are over all samples.

        >>> FittedOverheads(FittedConstant(1e-4, (9e-5, 2e-4), 8), None, None, None, [], None, None).to_frame()
                            value  lower_quartile  upper_quartile  num_samples
        action_overhead_s  0.0001         0.00009          0.0002            8
        """
        import pandas

        rows = {
            name: [fit.value, *fit.quartiles, fit.num_samples] for name, fit in self.fits.items() if fit is not None
        }
        columns = ["value", "lower_quartile", "upper_quartile", "num_samples"]
        return pandas.DataFrame.from_dict(rows, orient="index", columns=columns)

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: fit and fit.value for name, fit in self.fits.items()},
            "latency_s": self.latency_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "action_spread": self.spreads.action,
            "rank_spread": self.spreads.rank,
            "pass_factors": self.spreads.factors,
            "communication": self.communication,
            "not_fitted": self.not_fitted,
            "samples": {name: _samples_to_json(fit) for name, fit in self.fits.items() if fit},
            "hops": [
                {"message_bytes": hop.message_bytes, "hop_s": hop.seconds.value, **_samples_to_json(hop.seconds)}
                for hop in self.hops
            ],
            "residuals": [asdict(residual) for residual in self.residuals],
            "fitted_runs": list(self.fitted_runs),
        }

    @property
    def line(self) -> tuple[float, float] | None:
        """Latency (s) and bandwidth (bytes/s) of transfers."""
        if self.latency_s is None or self.bandwidth_bytes_per_s is None:
            return None
        return self.latency_s, self.bandwidth_bytes_per_s


def with_overheads(
    costs: StageCosts, constants: Mapping[str, float], line: tuple[float, float] | None, message_bytes: float | None
) -> StageCosts:
    costs = costs.replace(**constants)
    if line is None or message_bytes is None:
        return costs
    return costs.replace(hop_overhead_s=line[0], transfer_s=message_bytes / line[1])


def calibrate(runs: Sequence[Run]) -> FittedOverheads:
    """Fit the constants to runs.

    Slow-down: two actions of one kind and stage in one step take d₁ and d₂ seconds, with fractions f₁ and f₂
    overlapped with transfers. The constant is the median of ``(d₂ − d₁) / (d₁·f₂ − d₂·f₁)``, weighted by f₂ − f₁.

    Host time is the interval between the ends of two actions of a rank, minus the second action's cost, if that
    action waited only for the first. Transfers are fitted to actions that waited only for a message. Latency and
    bandwidth are the line through the medians of each message size.

    First and last pass are the excess of each rank's first action, and of the last action of the first stage's
    rank, over the median of their kind and stage.

    With Megatron-LM's blocking calls, waits with two calls are one call longer than waits with one call; the
    remaining time is host time. Waits without a call are not used, because on the last rank they include the
    computation of the loss.
    """
    not_fitted: dict[str, str] = {}
    slowdown = _fit_slowdown(runs, not_fitted)
    factor = slowdown.value if slowdown else 0.0
    communication = runs[0].communication
    if communication == "overlap":
        action, hop_samples = _fit_action(runs, factor)
        hop, hops, line = _fit_hops(runs, hop_samples, action.value, not_fitted)
    else:
        action, hop = _fit_calls(runs, not_fitted)
        hops, line = [], None
    first, last = _fit_ends(runs, factor, not_fitted)
    step = _fit([np.array([gap]) for run in runs for gap in run.gaps_s])
    if step is None:
        not_fitted["step_overhead_s"] = "the time from one step to the next is not recorded"
    elif step.value < 0:
        not_fitted["step_overhead_s"] = "a step starts on one rank before the previous step has ended on all ranks"
        step = None
    latency_s, bandwidth = line or (None, None)
    overheads = FittedOverheads(
        action, hop, slowdown, step, hops, latency_s, bandwidth, spreads=spreads_of(runs, factor),
        not_fitted=not_fitted, first_pass=first, last_pass=last, communication=communication,
        fitted_runs=tuple(run.fingerprint for run in runs),
    )  # fmt: skip
    overheads.residuals.extend(_residual(run, run, overheads) for run in runs)
    return overheads


_LEAST_HARM = 2e-3
"""A constant is dropped if the replay's error falls by more than this fraction of a step without it."""


def calibrate_tested(runs: Sequence[Run]) -> FittedOverheads:
    """Fit the constants, and drop those with which the replay of other steps is worse.

    The constants of every second step are tested on the steps between, and the other way round. The constant that
    adds most to the mean error is dropped, as long as this error falls by more than the standard error of the
    measured medians. Raises `ConfigError` for a run of one step.
    """
    if short := [run.source for run in runs if len(run.start) < 2]:
        raise ConfigError(f"{short[0]} has one step: to fit overheads and to test them, there must be two")
    halves = [[run.steps_from(first) for run in runs] for first in range(2)]
    fits = [calibrate(half) for half in halves]

    def error_without(*names: str) -> float:
        tests = zip(halves[::-1], halves, [reduce(_without, names, fit) for fit in fits], strict=True)
        return float(np.mean([
            abs(_residual(*pair, fit).error) for test, half, fit in tests for pair in zip(test, half, strict=True)
        ]))  # fmt: skip

    medians = [_fit([*run.step_times_s[:, None]]) for half in halves for run in half]
    harm = max(_LEAST_HARM, float(np.mean([fit.deviation / fit.value for fit in medians if fit and fit.value])))
    dropped: list[str] = []
    fitted, error = calibrate(runs), error_without()
    names = [*(name for name, fit in fitted.fits.items() if fit and fit.value and name != "step_overhead_s")]
    names += ["pass_factors"] * bool(fitted.spreads.factors)
    while names:
        errors = {name: error_without(*dropped, name) for name in names}
        worst = min(errors, key=lambda name: errors[name])
        if errors[worst] > error - harm:
            break
        fitted.not_fitted[worst] = (
            f"dropped, because the replay of other steps is off by {percent(error)} with it, and by "
            f"{percent(errors[worst])} without it"
        )
        fitted, error = _without(fitted, worst), errors[worst]
        names.remove(worst)
        dropped.append(worst)
    return replace(fitted, residuals=[_residual(run, run, fitted) for run in runs])


def _without(overheads: FittedOverheads, name: str) -> FittedOverheads:
    """Drop a constant of `fits`, or the variation of action times ("pass_factors")."""
    if name == "pass_factors":
        return replace(overheads, spreads=replace(overheads.spreads, factors=None))
    if name == "hop_overhead_s":
        return replace(overheads, hop=None, latency_s=None, bandwidth_bytes_per_s=None)
    dropped: dict[str, Any] = {_CONSTANTS[name]: None}
    return replace(overheads, **dropped)


def _base(run: Run, slowdown: float) -> StageCosts:
    return run.costs if run.has_own_costs else unslowed_costs(run, slowdown)


def _fit_calls(runs: Sequence[Run], not_fitted: dict[str, str]) -> tuple[FittedConstant, FittedConstant | None]:
    by_calls: dict[int, list[Floats]] = {}
    for run in runs:
        for number, waits in waits_by_calls(run).items():
            by_calls.setdefault(number, []).extend(waits)
    fits = {number: fit for number, waits in by_calls.items() if number > 0 and (fit := _fit(waits))}
    one = fits.get(1, FittedConstant(0.0, (0.0, 0.0), 0))
    if not {1, 2} <= fits.keys():
        not_fitted["hop_overhead_s"] = "no rank waits in two consecutive calls; with three ranks or more, some do"
        return one, None
    two = fits[2]
    deviation = math.hypot(one.deviation, two.deviation)
    call = max(two.value - one.value, 0.0)
    around_call = (two.quartiles[0] - one.value, two.quartiles[1] - one.value)
    around_host = (one.quartiles[0] - call, one.quartiles[1] - call)
    host = FittedConstant(
        max(one.value - call, 0.0), around_host, one.num_samples, math.hypot(deviation, one.deviation)
    )
    return host, FittedConstant(call, around_call, two.num_samples, deviation)


_LEAST_PASSES = 4
"""With fewer actions of a kind and stage, a slow first action cannot be detected."""


def _fit_ends(
    runs: Sequence[Run], slowdown: float, not_fitted: dict[str, str]
) -> tuple[FittedConstant | None, FittedConstant | None]:
    firsts: list[Floats] = []
    lasts: list[Floats] = []
    for run in runs:
        schedule, taken = run.graph.schedule, run.alone(slowdown * run.knows_transfers)
        usual = np.full(len(schedule), np.nan)
        for _, chosen in passes_of(schedule):
            if chosen.sum() >= _LEAST_PASSES:
                usual[chosen] = np.median(taken[:, chosen])
        of_ranks, last = ends_of(schedule)
        beyond = taken - usual
        firsts += list(beyond[:, of_ranks[~np.isnan(usual[of_ranks])]])
        lasts += list(beyond[:, [last]]) if not np.isnan(usual[last]) else []
    return _beyond("first_pass_s", firsts, not_fitted), _beyond("last_pass_s", lasts, not_fitted)


def _beyond(name: str, samples: Sequence[Floats], not_fitted: dict[str, str]) -> FittedConstant | None:
    """Fit a constant; its value is 0 if noise explains the samples."""
    fit = _fit(samples)
    if fit is None:
        not_fitted[name] = f"no kind of action runs {_LEAST_PASSES} times per step on a stage"
    elif fit.value <= _DEVIATIONS_OF_NONE * fit.deviation:
        return replace(fit, value=0.0)
    return fit


def _fit_slowdown(runs: Sequence[Run], not_fitted: dict[str, str]) -> FittedConstant | None:
    timed = [run for run in runs if run.knows_transfers]
    samples: list[Floats] = []
    weights: list[Floats] = []
    for run in timed:
        for start, end in zip(run.start, run.end, strict=True):
            _slowdown_samples(run.graph, start, end, samples, weights)
    number = sum(map(len, samples))
    if number < _LEAST_PAIRS:
        not_fitted["overlap_slowdown"] = (
            f"{number or 'no'} pairs of actions of one kind and stage differ in their overlap with transfers"
            if timed
            else "the times of transfers are unknown, only the waits for them are known"
        )
        return None
    value, weight = np.concatenate(samples), np.concatenate(weights)
    low, middle, high = (_weighted_quantile(value, weight, part) for part in (0.25, 0.5, 0.75))
    return FittedConstant(max(middle, 0.0), (low, high), number, 1.25 * (high - low) / 1.35 / math.sqrt(number))


def _slowdown_samples(
    graph: EventGraph, start: Floats, end: Floats, samples: list[Floats], weights: list[Floats]
) -> None:
    """Pair actions of each kind and stage, sorted by overlapped fraction: number k with number k + n/2."""
    schedule, actions = graph.schedule, graph.num_actions
    fraction, taken = overlapped_fraction(graph, start, end), (end - start)[:actions]
    slice_index = schedule.microbatch % schedule.num_slices
    key = np.stack([schedule.op, schedule.stage, slice_index, schedule.fused >= 0])
    order = np.lexsort((fraction, *key))
    bounds = np.flatnonzero(np.any(np.diff(key[:, order], axis=1), axis=0)) + 1
    for group in np.split(order, bounds):
        half = len(group) // 2
        if half == 0:
            continue
        low, high = group[:half], group[-half:]
        divisor = taken[low] * fraction[high] - taken[high] * fraction[low]
        apart = fraction[high] - fraction[low]
        tells = (apart >= _LEAST_SPREAD) & (divisor > 0)
        samples.append((taken[high] - taken[low])[tells] / divisor[tells])
        weights.append(apart[tells])


def _weighted_quantile(values: Floats, weights: Floats, part: float) -> float:
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(share, part * share[-1])])


@dataclass(frozen=True)
class _HopSamples:
    """Transfers of one step; `whole_s` includes the host time of the waiting action."""

    whole_s: Floats
    cost_s: Floats
    message_bytes: Floats | None


def _fit_action(runs: Sequence[Run], factor: float) -> tuple[FittedConstant, list[_HopSamples]]:
    samples, hops = [], []
    for run in runs:
        graph, actions, links = run.graph, run.graph.num_actions, _slow_links(run)
        cost = durations_s(graph, _base(run, factor).resolved_for(graph.schedule))
        maker, sizes = last_of_cell(graph.schedule)[graph.source], run.bytes_of_transfers
        for step, (start, end) in enumerate(zip(run.start, run.end, strict=True)):
            alone = (end - start)[:actions]
            if run.has_own_costs:
                alone = cost[:actions] * (1 + factor * overlapped_fraction(graph, start, end))
            blocker = blockers_of(graph, end)
            entries = np.flatnonzero(blocker[:actions] >= 0)
            cause = blocker[entries]
            by_action = cause < actions
            block = links.block_s if links else np.zeros(actions)
            samples.append((end[entries] - end[cause] - alone[entries] - block[entries])[by_action])
            waiting, transfer = entries[~by_action], cause[~by_action] - actions
            only_waited = _only_waited(graph, end, blocker, waiting, transfer, end[maker[transfer]])
            waiting, transfer = waiting[only_waited], transfer[only_waited]
            whole = end[waiting] - end[maker[transfer]] - alone[waiting]
            whole = whole - (links.transit_s[step, waiting] if links else 0.0)
            hops.append(_HopSamples(whole, cost[actions + transfer], None if sizes is None else sizes[transfer]))
    fit = _fit(samples, at_least=0.0)
    assert fit is not None  # the last stage's first backward waits only for its own forward
    return fit, hops


def _only_waited(
    graph: EventGraph, end: Floats, blocker: Ints32, waiting: Any, transfer: Any, produced_s: Floats
) -> Any:
    is_first = np.isin(waiting, graph.schedule.rank_offsets[:-1])
    cause = blocker[graph.num_actions + transfer]
    return (is_first | (produced_s > end[waiting - 1])) & (end[cause] <= produced_s)


def _fit_hops(
    runs: Sequence[Run], samples: Sequence[_HopSamples], action_s: float, not_fitted: dict[str, str]
) -> tuple[FittedConstant | None, list[TransferTime], tuple[float, float] | None]:
    beyond = _fit([sample.whole_s - action_s - sample.cost_s for sample in samples], at_least=0.0)
    if beyond is None:
        why = "no action of the measured step waits for a message"
        if not any(run.graph.num_transfers for run in runs):
            why = "the table sends nothing between ranks"
        not_fitted["hop_overhead_s"] = not_fitted["transfer"] = why
        return None, [], None
    hops = []
    sized = [sample for sample in samples if sample.message_bytes is not None]
    unsized = _fit([sample.whole_s - action_s for sample in samples if sample.message_bytes is None])
    if unsized is not None and unsized.value >= 0:  # below 0, busy hosts hide the transfers
        hops.append(TransferTime(None, unsized))
    for num_bytes in np.unique(np.concatenate([one.message_bytes for one in sized])) if sized else ():
        fit = _fit([(one.whole_s - action_s)[one.message_bytes == num_bytes] for one in sized])
        assert fit is not None
        hops.append(TransferTime(float(num_bytes), fit))
    known = [hop for hop in hops if hop.message_bytes is not None]
    if len(known) < 2:
        at = f", {seconds(known[0].seconds.value)} for {size(known[0].message_bytes or 0)}" if known else ""
        not_fitted["transfer"] = f"messages of one size{at}: latency and bandwidth cannot be distinguished"
        if not known:
            not_fitted["transfer"] = "the message size is unknown"
        return beyond, hops, None
    sizes = np.array([hop.message_bytes for hop in known])
    medians = np.array([hop.seconds.value for hop in known])
    weights = np.sqrt([hop.seconds.num_samples for hop in known])
    if medians[-1] - medians[0] <= _DEVIATIONS * math.hypot(
        known[0].seconds.deviation, known[-1].seconds.deviation
    ):
        not_fitted["transfer"] = (
            f"a transfer of {size(sizes[-1])} takes {seconds(medians[-1])}, one of {size(sizes[0])} "
            f"{seconds(medians[0])}: the difference is within their spread"
        )
        return beyond, hops, None
    slope, latency = np.polyfit(sizes, medians, 1, w=weights)
    return beyond, hops, (max(float(latency), 0.0), float(1 / slope))


def _fit(by_step: Sequence[Floats], *, at_least: float = -np.inf) -> FittedConstant | None:
    by_step = [samples for samples in by_step if len(samples)]
    if not by_step:
        return None
    medians = np.array([np.median(samples) for samples in by_step])
    value = float(np.median(medians))
    low, high = np.quantile(np.concatenate(by_step), [0.25, 0.75])
    number = sum(map(len, by_step))
    below, above = np.quantile(np.concatenate([one - np.median(one) for one in by_step]), [0.25, 0.75])
    within = (above - below) / 1.35 / math.sqrt(number)
    between = 1.48 * np.median(np.abs(medians - value)) / math.sqrt(len(medians))
    return FittedConstant(
        max(value, at_least), (float(low), float(high)), number, float(1.25 * max(within, between))
    )


def _slow_links(run: Run) -> SlowPairs | None:
    """Return the slow pairs of ranks, None if there are none.

    Also None for blocking calls, at which all ranks wait, and for known transfer times, because the simulation then
    includes the queues of transfers.
    """
    if run.communication != "overlap" or run.knows_transfers:
        return None
    actions = run.graph.num_actions
    slow_links = slow_links_of(run.graph, run.start[:, :actions], run.end[:, :actions])
    return slow_links if slow_links.named else None


def _residual(run: Run, fitted: Run, overheads: FittedOverheads) -> Residual:
    """Compare steps with their simulation by the costs of the steps of the fit."""
    measured, slow = float(np.median(run.step_times_s)), _slow_links(fitted)
    base = _base(fitted, overheads.slowdown.value if overheads.slowdown else 0.0)
    without = simulate_graph(run.graph, run.costs).step_time_s
    costs = overheads.on(base, run.message_bytes).with_calls(run.communication)
    costs = with_variation(run.graph.schedule, costs, overheads.spreads.factors)
    projected = _with_slow_links(run, costs, slow) if slow else simulate(run.graph.schedule, costs).step_time_s
    sentences = tuple(slow.told) if slow else ()
    return Residual(run.source, measured, projected, projected / measured - 1, without / measured - 1, sentences)


def _with_slow_links(run: Run, costs: StageCosts, slow: SlowPairs) -> float:
    graph = build_graph(run.graph.schedule)
    durations, waits = durations_s(graph, costs.resolved_for(graph.schedule)), overheads_s(graph, costs)
    durations[graph.num_actions :] += np.median(slow.transit_s, axis=0)[graph.target]
    waits[: graph.num_actions] += slow.block_s
    times = evaluate_slowed(graph, durations, waits, costs.overlap_slowdown)
    return float(times.end.max() - times.start[: graph.num_actions].min())


def _samples_to_json(fit: FittedConstant) -> dict[str, Any]:
    return {"num": fit.num_samples, "quartiles": list(fit.quartiles), "deviation": fit.deviation}


def num_calls_before(schedule: Schedule, *, overlap: bool) -> Ints64:
    """Count the Megatron-LM calls at which a rank blocks between an action of a table and the one before it.

    A rank's first action has one of another rank before it: its number means nothing. In 1F1B a rank
    blocks twice (send, then receive) between two warm-up forwards.

    >>> from ppsim import build
    >>> num_calls_before(build("1f1b", pp=3, microbatches=3), overlap=True)[:3].tolist()
    [0, 1, 1]
    """
    calls = {
        (int(after), int(turn))
        for ends in megatron_calls(schedule, *transfers_of(schedule), overlap=overlap)
        for after, turn, holds in zip(*ends.columns, strict=True)
        if holds and after >= 0
    }
    before = np.zeros(len(schedule) + 1, dtype=np.int64)
    for after, _ in calls:
        before[after + 1] += 1
    return before[:-1]


def waits_by_calls(run: Run) -> dict[int, list[Floats]]:
    """Return the waits before actions whose input was ready.

    Keys are numbers of calls before an action; each list has one array per step.
    """
    schedule, actions = run.graph.schedule, run.graph.num_actions
    begin, end = run.start[:, :actions], run.end[:, :actions]
    before, produced_s, _ = input_times(run.graph, end)
    calls = num_calls_before(schedule, overlap=run.communication == "megatron")
    is_first = np.isin(np.arange(actions), schedule.rank_offsets[:-1])
    return {
        int(number): [
            wait[(calls == number) & ~is_first & there]
            for wait, there in zip(begin - before, produced_s <= before, strict=True)
        ]
        for number in np.unique(calls[~is_first])
    }  # fmt: skip
