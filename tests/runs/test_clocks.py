"""Clocks of ranks that were shifted by known offsets are aligned again."""

from collections.abc import Sequence

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.runs import clocks as clocks_module
from ppsim.runs.clocks import _closed, _middles, _require_order, align_clocks
from ppsim.runs.run import Run, gaps_between
from tests.defaults import number_defaults

HOP_S, STEP_S = 0.125, 64.0
COSTS = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=HOP_S)
TIMELINE = simulate(build("1f1b", pp=3, microbatches=4), COSTS)
GRAPH = TIMELINE.graph
ACTIONS = GRAPH.num_actions
RANK = GRAPH.schedule.rank


def ran(
    offsets: Sequence[Sequence[float]], speeds: Sequence[float] = (0.0, 0.0, 0.0), *, knows: bool = True
) -> Run:
    """Return a run with a step per row of `offsets`: each rank's clock shows them more, and its speed more a second."""

    def on_clocks(times: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        steps = times[None, :] + STEP_S * np.arange(len(offsets))[:, None]
        return steps + np.array(offsets)[:, ranks] + np.array(speeds)[ranks] * steps

    starts, ends = np.append(RANK, RANK[GRAPH.source]), np.append(RANK, RANK[GRAPH.target])
    start, end = on_clocks(TIMELINE.start, starts), on_clocks(TIMELINE.end, ends)
    return Run("r", GRAPH, COSTS, start, end, knows_transfers=knows)


def shown(run: Run) -> np.ndarray:
    return run.start - run.start[:, :ACTIONS].min(axis=1, keepdims=True)


def test_ranks_of_one_clock_are_left_as_they_are() -> None:
    run = ran([(0.0, 3.0, 5.0)])
    assert align_clocks(run, [4, 4, 4], by_step=False) == (run, None)


@pytest.mark.parametrize("knows", [True, False])
def test_constant_offsets_are_removed_from_actions_and_transfers(*, knows: bool) -> None:
    """Messages go both ways and wait equally long, so the middle of the bounds is the offset."""
    plain, run = ran([(0.0, 0.0, 0.0)] * 2, knows=knows), ran([(0.0, 3.0, -5.0)] * 2, knows=knows)
    aligned, alignment = align_clocks(run, [0, 1, 2], by_step=False)
    assert aligned.start[:, :ACTIONS] == pytest.approx(plain.start[:, :ACTIONS], abs=1e-9)
    assert aligned.end[:, :ACTIONS] == pytest.approx(plain.end[:, :ACTIONS], abs=1e-9)
    if knows:
        assert aligned.end == pytest.approx(plain.end, abs=1e-9)
        assert aligned.start == pytest.approx(plain.start, abs=1e-9)
    assert list(aligned.gaps_s) == pytest.approx(gaps_between(GRAPH, plain.start, plain.end))
    assert (alignment.num_clocks, alignment.drift) == (3, 0.0)
    assert alignment.hop_s == pytest.approx(HOP_S)
    assert alignment.uncertainty_s == pytest.approx(HOP_S)  # of rank 2 next to rank 1


def test_clocks_that_restart_have_an_offset_a_step() -> None:
    plain, run = ran([(0.0, 0.0, 0.0)] * 2), ran([(0.0, 3.0, -5.0), (0.0, -2.0, 7.0)])
    aligned, _ = align_clocks(run, [0, 1, 2], by_step=True)
    assert aligned.start == pytest.approx(plain.start, abs=1e-9)
    assert list(aligned.gaps_s) == []
    with pytest.raises(ConfigError, match="cannot be aligned: whatever their offsets"):
        align_clocks(run, [0, 1, 2], by_step=False)


def test_ranks_of_a_host_share_its_offset() -> None:
    plain, run = ran([(0.0, 0.0, 0.0)]), ran([(0.0, 0.0, 9.0)])
    aligned, alignment = align_clocks(run, [7, 7, 2], by_step=False)
    by_first = aligned.start + plain.start.min() - aligned.start[:, :ACTIONS].min()
    assert by_first == pytest.approx(plain.start, abs=1e-9)
    assert alignment.num_clocks == 2
    assert alignment.uncertainty_s == pytest.approx(HOP_S)


@pytest.mark.parametrize("speed", [1e-4, -1.5e-4])
def test_a_clock_that_is_faster_is_slowed_and_one_that_is_wrong_is_refused(speed: float) -> None:
    steps = [(0.0, 3.0, -5.0)] * 60
    aligned, alignment = align_clocks(ran(steps, (0.0, speed, 0.0)), [0, 1, 2], by_step=False)
    assert alignment.drift == pytest.approx(abs(speed), rel=0.05)
    assert shown(aligned) == pytest.approx(shown(ran([(0.0, 0.0, 0.0)] * 60)), abs=0.03)
    with pytest.raises(ConfigError, match="the clocks of the ranks cannot be aligned"):
        align_clocks(ran(steps, (0.0, 10 * speed, 0.0)), [0, 1, 2], by_step=False)


def test_messages_in_one_direction_are_taken_for_immediate() -> None:
    timeline = simulate(build("gpipe", pp=2, microbatches=2), COSTS)
    graph = timeline.graph
    first = graph.schedule.rank == 0
    start, end = timeline.start[None].copy(), timeline.end[None].copy()
    start[0, : graph.num_actions][~first] += 4.0
    end[0, : graph.num_actions][~first] += 4.0
    aligned, alignment = align_clocks(Run("r", graph, COSTS, start, end), [0, 1], by_step=True)
    assert alignment.uncertainty_s == pytest.approx(HOP_S)
    assert aligned.start[0, : graph.num_actions] == pytest.approx(timeline.start[: graph.num_actions])


INF = np.inf


def test_bounds_follow_from_sums_of_bounds() -> None:
    bound = np.array([[0.0, 3.0, INF], [INF, 0.0, 4.0], [5.0, INF, 0.0]])
    closed = _closed(bound)
    assert closed.tolist() == [[0.0, 3.0, 7.0], [9.0, 0.0, 4.0], [5.0, 8.0, 0.0]]
    assert bound[0, 2] == INF, "the argument is left as it is"


@pytest.mark.parametrize(("missing", "rank"), [((0.0, 0.0, 0.0), None), ((0.0, 0.0, 1.0), 3), ((0.0, 2.0, 1.0), 1)])
def test_messages_that_arrive_before_they_are_sent_are_of_the_clock_with_most(
    missing: tuple[float, ...], rank: int | None
) -> None:
    """Ranks 1 and 2 have clock 1, rank 3 has clock 2."""
    closed = np.diag(-np.array(missing))
    if rank is None:
        _require_order(closed, np.array([0, 1, 1, 2]), "a")
        return
    with pytest.raises(
        ConfigError, match=rf"around rank {rank} messages arrive {max(missing):.2f} s before they are sent"
    ):
        _require_order(closed, np.array([0, 1, 1, 2]), "a")


def test_the_middle_of_bounds_is_the_offset_and_bounds_of_others_follow_from_it() -> None:
    """Clock 1 is 2 to 6 s behind clock 0, so 4 s. Clock 2 is at most 1 s ahead of clock 1: 3 to 5 s, so 4 s."""
    closed = np.array([[0.0, -2.0, INF], [6.0, 0.0, 1.0], [5.0, INF, 0.0]])
    offsets, widest = _middles(closed, "a")
    assert offsets.tolist() == [0.0, 4.0, 4.0]
    assert widest == 2.0
    late = np.array([[0.0, INF], [3.0, 0.0]])
    assert _middles(late, "a")[0].tolist() == [0.0, 3.0]
    assert _middles(late.T, "a")[0].tolist() == [0.0, -3.0]
    assert _middles(late, "a")[1] == INF
    with pytest.raises(ConfigError, match="a: the clock of rank 1 cannot be aligned: no message goes between it"):
        _middles(np.array([[0.0, INF], [INF, 0.0]]), "a")


def test_messages_may_arrive_two_microseconds_per_clock_too_early() -> None:
    _require_order(np.diag([0.0, -4e-6]), np.array([0, 1]), "a")
    with pytest.raises(ConfigError, match="around rank 1 messages arrive"):
        _require_order(np.diag([0.0, -4.1e-6]), np.array([0, 1]), "a")


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(clocks_module) == {"Alignment": {"drift": 0.0}}


def test_clocks_drift_by_at_most_a_fifth_of_a_thousandth() -> None:
    assert (clocks_module._SLACK_S, clocks_module._MOST_DRIFT) == (2e-6, 2e-4)
