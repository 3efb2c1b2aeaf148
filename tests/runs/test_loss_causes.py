"""Each cause of a measured step removes its own waits and leaves those of other causes."""

from dataclasses import replace

import numpy as np

from benchmarks.made_steps import Made
from ppsim import build
from ppsim.runs.links import SlowPairs, input_times, links_of
from ppsim.runs.loss_causes import ActionSpeeds, cause_removals
from ppsim.runs.step_factors import StepFactors
from ppsim.runs.step_replay import steps_of


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
    excess = SlowPairs(np.zeros(actions), block_s, {"rank 0 → 1": (0.0, 0.005)})
    causes = {one.cause: one for one in cause_removals(paces, steps, start, excess, usual)}
    left = causes["gaps between passes"].without_others(steps).after_own
    assert (left[:, blocked] == 0.005).all()
    assert (np.delete(left, blocked, axis=1) == 0.0).all()
