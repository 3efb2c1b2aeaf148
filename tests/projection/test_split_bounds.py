"""Slopes of the bounds from a simulated split."""

from types import SimpleNamespace

import numpy as np
import pytest

from ppsim import build
from ppsim.parallel.layer_partition import AutoSplit
from ppsim.projection import project
from ppsim.projection.plan import Plan
from ppsim.projection.split_bounds import (
    SimulatedSplit,
    _chain,
    _hidden,
    _mean,
    _shared,
    byte_weights,
    path_weights,
    rank_bounds,
)
from tests.projection.jobs import job


def hidden_s(pass_s: float, reduce_s: float, num_buckets: int) -> float:
    """Hidden seconds of a reduction in buckets: all but the last, as long as the backward lasts."""
    return (1 - 1 / num_buckets) * min(pass_s, reduce_s)


@pytest.mark.parametrize(("pass_s", "reduce_s"), [(2.0, 5.0), (5.0, 2.0)])
def test_one_more_layer_hides_as_much_as_the_shorter_of_backward_and_reduction_grows(
    pass_s: float, reduce_s: float
) -> None:
    trial = SimpleNamespace(
        stage_cost_set=SimpleNamespace(step_costs=SimpleNamespace(num_buckets=np.array([1, 4]))),
        step=SimpleNamespace(timeline=SimpleNamespace(schedule=SimpleNamespace(num_stages=2))),
    )
    grown_s = hidden_s(pass_s + 0.3, reduce_s + 0.1, 4) - hidden_s(pass_s, reduce_s, 4)
    assert _hidden(trial, 1, reduce_s, 0.1, pass_s, 0.3) == pytest.approx(grown_s)  # type: ignore[arg-type]
    assert _hidden(trial, 0, reduce_s, 0.1, pass_s, 0.3) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "dp", "counts"),
    [
        ("1f1b", 1, (7, 7, 7, 11)),
        ("1f1b", 4, (7, 11, 7, 7)),
        ("zb-h1", 4, (7, 11, 7, 7)),
        ("dual-pipe", 4, (11, 7, 7, 7)),  # two ranks hold a stage, and add its gradients
    ],
)
def test_a_layer_more_on_the_fullest_stage_takes_the_weights_of_time_and_bytes(
    name: str, dp: int, counts: tuple[int, ...]
) -> None:
    """The path through the schedule stays, and the simulation of the moved layer agrees with its bounds."""
    schedule = build(name, pp=4, microbatches=8)
    plan = Plan(pp=4, job=job(pp=4, dp=dp))
    layer = plan.modelled_source.layer_costs()

    def trial(split: tuple[int, ...]) -> SimulatedSplit:
        return project._trial(plan, schedule, project._assembled(plan, schedule, AutoSplit(split)))

    before = trial(counts)
    least, fullest = counts.index(min(counts)), counts.index(max(counts))
    moved = tuple(count + (stage == fullest) - (stage == least) for stage, count in enumerate(counts))
    after = trial(moved)
    seconds = path_weights(before, layer) * layer.work_s.mean()
    assert after.seconds - before.seconds == pytest.approx(seconds[fullest] - seconds[least], rel=0.015)
    added = byte_weights(before, layer)
    assert after.peak_bytes - before.peak_bytes == pytest.approx(added[:, fullest] - added[:, least], rel=1e-3)
    work, split, busy_s = rank_bounds(before, layer)
    change_s = (work[:, fullest] - work[:, least]) * layer.work_s.mean()
    assert split == counts
    assert after.step.timeline.busy_s - busy_s == pytest.approx(change_s, rel=0.02)


@pytest.mark.parametrize(
    ("pieces", "number"),
    [
        ([(0, 1), (1, 2), (3, 4), (4, 5)], 2),
        ([(0, 1), (0.5, 2)], 2),
        ([(0, 1), (1.1, 2)], 1),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2), (2, 3)], 3),
    ],
)
def test_the_last_reductions_are_those_without_a_gap(pieces: list[tuple[float, float]], number: int) -> None:
    made = [SimpleNamespace(start_s=start, end_s=end) for start, end in pieces]
    assert _chain(made) == made[-number:]  # type: ignore[arg-type]


def test_a_layer_without_work_has_weights_of_seconds() -> None:
    assert _mean(SimpleNamespace(work_s=np.array([1.0, 3.0]))) == 2.0  # type: ignore[arg-type]
    assert _mean(SimpleNamespace(work_s=np.zeros(2))) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "update", "origin", "added"),
    [
        ([1.0, 2.0, 3.0, 4.0], "synchronised", 2, [0.0, 0.25]),
        ([5.5, 2.0, 3.0, 4.0], "synchronised", 0, [0.25, 0.0]),
        ([1.0, 7.0, 3.0, 4.0], "synchronised", 1, [0.0, 0.25]),
        ([1.0, 2.0, 3.0, 4.0], "post-validated", 3, [0.25, 0.0]),
    ],
)
def test_ranks_that_share_a_stage_end_after_the_last_of_them(
    ends: list[float], update: str, origin: int, added: list[float]
) -> None:
    """Ranks 0 and 3 add 2 s for the 4 layers of stage 0, ranks 1 and 2 add 4 s for 16: a layer has the smaller share.

    The optimizer takes 9 s on rank 0, if it does not wait for all.
    """
    ranks = np.array([0, 1, 3, 2])
    schedule = SimpleNamespace(num_ranks=4, num_stages=4, num_model_stages=2, stage_to_rank=ranks)
    groups = [SimpleNamespace(ranks=(0, 3), seconds=2.0), SimpleNamespace(ranks=(1, 2), seconds=4.0)]
    around = SimpleNamespace(sharing=groups, update=update, optimizer_s=np.array([9.0, 0, 0, 0]))
    trial = SimpleNamespace(
        counts=(4, 16), stage_cost_set=SimpleNamespace(step_costs=around),
        step=SimpleNamespace(timeline=SimpleNamespace(schedule=schedule, rank_begin_s=np.zeros(4))),
    )  # fmt: skip
    found, seconds = _shared(trial, np.array(ends))  # type: ignore[arg-type]
    assert (found, seconds.tolist()) == (origin, [*added, 0.0, 0.0])
    groups.insert(0, SimpleNamespace(ranks=(0, 1), seconds=0.0))  # tied embeddings, which no layer makes longer
    found, seconds = _shared(trial, np.array([1.0, 1.0, 3.0, 4.0]))  # type: ignore[arg-type]
    assert (found, seconds.tolist()) == (
        (3, [0.25, 0, 0, 0]) if update == "post-validated" else (2, [0, 0.25, 0, 0])
    )
