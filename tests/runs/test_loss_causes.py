"""Each cause of a measured step removes its own waits and leaves those of other causes."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.made_steps import Made
from ppsim import Op, build
from ppsim.runs.links import SlowPairs, input_times, links_of
from ppsim.runs.loss_causes import ActionSpeeds, cause_removals
from ppsim.runs.step_factors import StepFactors
from ppsim.runs.step_replay import MeasuredSteps, steps_of
from ppsim.schedule.graph import build_graph


def test_gaps_between_passes_leave_the_wait_for_which_a_slow_link_blocks_the_rank() -> None:
    made = Made(build("1f1b", pp=2, microbatches=4), seed=1, num_steps=3)
    run, actions = made.run(), len(made.table)
    start, end = run.start[:, :actions], run.end[:, :actions]
    usual = links_of(made.graph, start, *input_times(made.graph, end)[:2])
    steps = steps_of(made.graph, start, end, usual)
    blocked = 5
    block_s = np.where(np.arange(actions) == blocked, 0.005, 0.0)
    steps = replace(steps, after_own=np.full_like(steps.after_own, 1e-4) + block_s)
    paces = ActionSpeeds(made.table, StepFactors(made.table, steps.taken, float(run.step_times_s.mean())))
    excess = SlowPairs(np.zeros((1, actions)), block_s, {"rank 0 → 1": (0.0, 0.005, 0.0)})
    causes = {one.cause: one for one in cause_removals(paces, steps, start, excess, usual)}
    left = causes["gaps between passes"].without_others(steps).after_own
    assert (left[:, blocked] == 0.005).all()
    assert (np.delete(left, blocked, axis=1) == 0.0).all()


@pytest.mark.parametrize(
    ("slow", "words"), [((1.5, 1.5), "+50.00 %"), ((1.0, 1.5), "forward +0.00 %, backward +50.00 %")]
)
def test_a_rank_that_is_slow_in_one_pass_only_is_a_slow_rank(slow: tuple[float, float], words: str) -> None:
    table = build("zbv", pp=3, microbatches=4)
    usual = np.where(table.op == Op.F, 2.0, 1.0)
    factors = np.where(table.rank == 1, np.where(table.op == Op.F, *slow), 1.0)
    paces = ActionSpeeds(table, StepFactors(table, np.stack([usual * factors] * 3), 50.0))
    expected = [[1.0, factor, 1.0] for factor in slow]
    assert paces.of_ranks == pytest.approx(np.array(expected))
    none = np.zeros((3, len(table)))
    steps = MeasuredSteps(paces.factors.taken, none, none)
    links = links_of(build_graph(table), none, none, none)
    removals = cause_removals(paces, steps, none, SlowPairs(none, none[0], {}), links)
    slow_ranks = removals[-2]
    assert (slow_ranks.cause, slow_ranks.detail) == ("slow ranks", f"rank 1: {words}")
    assert slow_ranks.without(steps).taken == pytest.approx(np.stack([usual] * 3)), (
        "nothing is left for uneven stages"
    )


@pytest.mark.parametrize(
    ("stage_factors", "slow"),
    [
        ([1.0, 1.0, 1.5, 1.1], [1.0, 1.0, 1.5, 1.0]),  # the last stage may have the head
        ([1.0, 1.0, 1.04, 1.0], [1.0, 1.0, 1.0, 1.0]),
        ([1.1, 1.2, 1.3, 1.4], [1.0, 1.0, 1.0, 1.0]),  # no usual time
    ],
)
def test_with_one_stage_per_rank_an_inner_rank_beyond_the_usual_time_is_slow(
    stage_factors: list[float], slow: list[float]
) -> None:
    table = build("1f1b", pp=4, microbatches=4)
    taken = np.broadcast_to(np.array(stage_factors)[table.stage], (3, len(table)))
    paces = ActionSpeeds(table, StepFactors(table, taken, 50.0))
    assert paces.slow_ranks == pytest.approx(np.array([slow, slow]))


def test_two_ranks_have_no_inner_rank() -> None:
    table = build("1f1b", pp=2, microbatches=4)
    taken = np.broadcast_to(np.where(table.rank == 1, 2.0, 1.0), (3, len(table)))
    assert (ActionSpeeds(table, StepFactors(table, taken, 50.0)).slow_ranks == 1).all()
