"""Slopes of the bounds from a simulated split."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim import build
from ppsim.costs.stage_cost_set import LayerCosts
from ppsim.parallel.layer_partition import AutoSplit
from ppsim.projection import project, split_bounds
from ppsim.projection.plan import Plan
from ppsim.projection.split_bounds import (
    SimulatedSplit,
    _chain,
    _end,
    _hidden,
    _mean,
    _shared,
    byte_weights,
    path_weights,
    rank_bounds,
    slopes,
)
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.table import Schedule
from ppsim.simulation.step import StepActivity
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


PASSES_S = np.array([3.0, 11.0, 5.0, 7.0])  # F, B, I, W of a layer: B takes less than I and W together
LAYER = LayerCosts(
    work_s=np.array([1.0, 3.0]), passes_s=PASSES_S, exposed_s=PASSES_S, reduce_s=0.5, optimizer_s=13.0,
    static_bytes=100.0, activation_bytes=8.0,
)  # fmt: skip
CHAINS = (
    "0F0,3F1,3B1,0B0\n1F0,2F1,1B0,2B1\n"  # two model replicas: rank 0 has stages 0 and 1 of the model, rank 1 too
)
SLICES = "0F0,0F1,0I1,0I0,0W1,0W0\n1F0,1F1,1B1,1B0\n"  # one microbatch in two slices


def trial_of(schedule: Schedule, *, around: Any = None, pieces: Any = (), **timeline: Any) -> Any:
    seconds = np.ones(schedule.num_stages)
    costs = SimpleNamespace(backward_input_s=seconds, backward_weight_s=seconds)
    step = SimpleNamespace(timeline=SimpleNamespace(schedule=schedule, costs=costs, **timeline), pieces=pieces)
    return SimpleNamespace(counts=(4, 16), stage_cost_set=SimpleNamespace(parts=(), step_costs=around), step=step)


def test_a_pass_with_exposed_collectives_grows_by_them_and_a_full_backward_by_its_halves() -> None:
    """Stage 0 waits in F and W, stage 1 nowhere, and each model replica has both."""
    trial = trial_of(parse_table(CHAINS, num_replicas=2))
    assert slopes(trial, LAYER).tolist() == [[one] * 4 for one in (3.0, 11.0, 5.0, 7.0)]
    waits, none = SimpleNamespace(dp_s=0.25), SimpleNamespace(dp_s=0.0)
    trial.stage_cost_set.parts = [
        SimpleNamespace(forward=waits, backward=none, backward_input=none, backward_weight=waits),
        SimpleNamespace(forward=none, backward=none, backward_input=none, backward_weight=none),
    ]
    assert slopes(trial, LAYER).tolist() == [[one] * 4 for one in (3.0, 11.0, 5.0, 7.0)]
    longer = LayerCosts(LAYER.work_s, PASSES_S, np.array([17.0, 19.0, 23.0, 29.0]))
    assert slopes(trial, longer).tolist() == [
        [17.0, 3.0, 17.0, 3.0], [34.0, 12.0, 34.0, 12.0], [5.0] * 4, [29.0, 7.0, 29.0, 7.0],
    ]  # fmt: skip


def test_a_stage_without_input_gradient_grows_by_its_whole_backward_in_w() -> None:
    trial = trial_of(parse_table(CHAINS, num_replicas=2))
    trial.step.timeline.costs = SimpleNamespace(
        backward_input_s=np.array([0.0, 1.0, 0.0, 1.0]), backward_weight_s=np.array([1.0, 1.0, 0.0, 0.0])
    )
    assert slopes(trial, LAYER).tolist() == [
        [3.0] * 4, [11.0] * 4, [0.0, 5.0, 5.0, 5.0], [11.0, 7.0, 7.0, 7.0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shape", "weights"),
    [
        (CHAINS, {"num_replicas": 2}, [[7.0, 7.0], [7.0, 7.0]]),  # (3 + 11) / 2 per microbatch and stage
        (SLICES, {"num_slices": 2}, [[7.5, 0.0], [0.0, 7.0]]),  # (3 + 5 + 7) / 2, in two halves
    ],
)
def test_a_rank_works_longer_by_the_passes_of_its_stages(
    text: str, shape: dict[str, int], weights: list[list[float]]
) -> None:
    """Per second of the mean layer, which takes 2 s."""
    trial = trial_of(parse_table(text, **shape), busy_s=np.array([31.0, 37.0]))
    per_rank, counts, busy_s = rank_bounds(trial, LAYER)
    assert (per_rank.tolist(), counts, busy_s.tolist()) == (weights, (4, 16), [31.0, 37.0])


@pytest.mark.parametrize(
    ("text", "shape", "peak_at", "weights"),
    [
        (CHAINS, {"num_replicas": 2}, [1, 7], [[108.0, 108.0], [100.0, 100.0]]),
        (CHAINS, {"num_replicas": 2}, [0, 6], [[108.0, 100.0], [108.0, 100.0]]),  # before 2B1
        (SLICES, {"num_slices": 2}, [3, 6], [[108.0, 0.0], [0.0, 104.0]]),  # I frees nothing
        (SLICES, {"num_slices": 2}, [4, 7], [[104.0, 0.0], [0.0, 108.0]]),
        (SLICES, {"num_slices": 2}, [5, 8], [[100.0, 0.0], [0.0, 104.0]]),
    ],
)
def test_a_layer_takes_its_static_bytes_and_the_activations_in_flight_at_the_peak(
    text: str, shape: dict[str, int], peak_at: list[int], weights: list[list[float]]
) -> None:
    """100 bytes on each rank that has the stage, and 8 per microbatch."""
    schedule = parse_table(text, **shape)
    trial = trial_of(schedule, memory=SimpleNamespace(peak_at=np.array(peak_at)))
    assert byte_weights(trial, LAYER).tolist() == weights


@pytest.mark.parametrize(
    ("text", "shape", "causes", "update", "seconds"),
    [
        # 1B0 ← 1B1 ← 1F1 ← its transfer ← 0F1 ← 0F0, in halves: 3 s on stage 0, 1.5 + 11 s on stage 1
        (SLICES, {"num_slices": 2}, {9: 8, 8: 7, 7: 10, 10: 1, 1: 0}, "synchronised", [1 + 3, 2 + 12.5 + 13]),
        (SLICES, {"num_slices": 2}, {9: 8, 8: 7, 7: 10, 10: 1, 1: 0}, "post-validated", [1 + 3 + 13, 2 + 12.5]),
        # 2B1 ← 1B0 ← its transfer ← 0F0: stages 2 and 0 are stage 0 of the model
        (CHAINS, {"num_replicas": 2}, {7: 6, 6: 8, 8: 0}, "synchronised", [1 + 3 + 4 + 11 + 13, 2 + 11 + 8 + 13]),
    ],
)  # fmt: skip
def test_a_step_grows_by_the_passes_of_its_longest_path_and_the_slowest_optimizer(
    text: str, shape: dict[str, int], causes: dict[int, int], update: str, seconds: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On stages, 1, 2, 4 and 8 s follow; data-parallel stragglers take half as long again; the mean layer, 2 s."""
    schedule = parse_table(text, **shape)
    blocker = np.full(12, -1)
    blocker[list(causes)] = list(causes.values())
    around = SimpleNamespace(update=update, optimizer_s=np.array([1.0, 3.0]), straggling=0.5)
    trial = trial_of(schedule, around=around, blocker=blocker, num_actions=len(schedule))
    after_s = np.array([1.0, 2.0, 4.0, 8.0])[: schedule.num_stages]
    monkeypatch.setattr(split_bounds, "_end", lambda *_: (0, next(iter(causes)), after_s.copy()))
    assert path_weights(trial, LAYER) == pytest.approx(np.array(seconds) * 1.5 / 2)


LOOP = "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n"
LATE = [(0, "gather", 0, 7.0, 99.0), (1, "reduce", 3, 5.0, 9.0), (1, "reduce", 1, 9.0, 14.0)]


@pytest.mark.parametrize(
    ("pieces", "overlap", "expected"),
    [
        ([], True, (0, 3, [0.0, 0.0, 0.0, 0.0])),
        ([(0, "reduce", 0, 8.0, 10.0)], True, (0, 3, [0.0, 0.0, 0.0, 0.0])),
        ([(0, "reduce", 0, 8.0, 10.5)], False, (0, 3, [0.5, 0.0, 0.0, 0.0])),
        (LATE, False, (1, 7, [0.0, 0.5, 0.0, 0.5])),
        (LATE, True, (1, 6, [0.0, 0.5, 0.0, 0.5 - 0.75 * 11])),  # 3 of 4 buckets hide in 3B0
        (LATE[2:], True, (1, 7, [0.0, 0.5, 0.0, 0.0])),  # one bucket hides nothing
    ],
)  # fmt: skip
def test_the_last_rank_ends_with_its_last_action_or_with_the_reductions_after_it(
    pieces: list[tuple[int, str, int, float, float]], overlap: bool, expected: tuple[int, int, list[float]]
) -> None:
    """Rank 0 computes until 10 s, rank 1 until 8 s; a layer more on a stage reduces 0.5 s longer."""
    around = SimpleNamespace(
        sharing=(), update="synchronised", overlap_reduce=overlap, num_buckets=np.array([1, 1, 1, 4])
    )
    trial = trial_of(
        parse_table(LOOP), around=around, pieces=[StepActivity(*piece) for piece in pieces],  # type: ignore[arg-type]
        rank_end_s=np.array([10.0, 8.0]), start=np.array([0.0, 2, 4, 7, 1, 3, 4.25, 6]),
        end=np.array([1.0, 3, 6, 10, 2, 4, 5, 8]),
    )  # fmt: skip
    rank, node, added_s = _end(trial, LAYER, slopes(trial, LAYER))
    assert (rank, node, added_s.tolist()) == expected


@pytest.mark.parametrize(("begins", "last"), [([0.0, 0.5], 1), ([0.0, 4.0], 0)])
def test_without_synchronisation_the_last_rank_is_that_of_the_longest_span(begins: list[float], last: int) -> None:
    """Ranks end at 10 + 1 and 8 + 5 s with their optimizers."""
    around = SimpleNamespace(sharing=(), update="post-validated", optimizer_s=np.array([1.0, 5.0]))
    trial = trial_of(parse_table(LOOP), around=around, rank_begin_s=np.array(begins))
    assert _shared(trial, np.array([10.0, 8.0]))[0] == last


@pytest.mark.parametrize(("counts", "added_s"), [((0, 16), 0.25), ((0, 0), 0.0)])
def test_gradients_of_a_stage_without_layers_say_nothing_about_a_layer(
    counts: tuple[int, int], added_s: float
) -> None:
    """Ranks 1 and 2 add 4 s for the 16 layers of stage 1, if it has any."""
    ranks = np.array([0, 1, 3, 2])
    schedule = SimpleNamespace(num_ranks=4, num_stages=4, num_model_stages=2, stage_to_rank=ranks)
    groups = [SimpleNamespace(ranks=(0, 3), seconds=2.0), SimpleNamespace(ranks=(1, 2), seconds=4.0)]
    around = SimpleNamespace(sharing=groups, update="synchronised")
    trial = trial_of(schedule, around=around)  # type: ignore[arg-type]
    trial.counts = counts
    assert _shared(trial, np.ones(4))[1].tolist() == [0.0, added_s, 0.0, 0.0]
