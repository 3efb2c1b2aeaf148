"""`--plan auto`: against brute force, against plans with the same recomputation on every stage, and its lower bound."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ppsim
from ppsim.costs.ledger import Ledger
from ppsim.costs.stage_options import FrontierPoint, LayerOption, StageOptions, _hull
from ppsim.errors import ConfigError, PpsimError
from ppsim.model.pipeline_stages import Stage, StagePlan
from ppsim.model.recompute import recompute_of
from ppsim.projection import stage_search
from ppsim.projection.stage_search import StageProgram, StageSearch, _fastest, _in_flight, program
from tests.cli.running import ppsim as command

TIGHT = {
    "model": "llama3-70b",
    "stack": "plain",
    "gpus": 64,
    "tp": 4,
    "pp": 4,
    "global_batch": 128,
    "micro_batch": 2,
}
SMALL = {"model": "llama3-8b", "stack": "plain", "gpus": 8, "pp": 4, "tp": 1, "global_batch": 16, "layers": 12}


class Case:
    """Layers and stages at random: seconds rise with the layers; some numbers of layers do not fit (infinite)."""

    def __init__(self, draw: random.Random) -> None:
        self.num_stages, self.num_layers = draw.randint(2, 4), draw.randint(4, 9)
        self.weights = [draw.uniform(0.5, 2) for _ in range(self.num_layers)]
        self.ends = [draw.uniform(0, 2) for _ in range(self.num_stages)]
        self.most = [draw.randint(2, self.num_layers) for _ in range(self.num_stages)]

    def seconds(self, stage: int, first: int, last: int) -> float:
        took = self.ends[stage] + sum(self.weights[first:last]) * (1 + 0.1 * (last - first) * (stage == 0))
        return took if last - first <= self.most[stage] else float("inf")

    def busiest(self, counts: tuple[int, ...]) -> float:
        borders = [0, *itertools.accumulate(counts)]
        return max(self.seconds(stage, *borders[stage : stage + 2]) for stage in range(self.num_stages))

    def brute_force(self) -> float:
        of_stages = itertools.product(range(self.num_layers + 1), repeat=self.num_stages)
        return min(self.busiest(one) for one in of_stages if sum(one) == self.num_layers and all(one[1:-1]))


def test_the_dynamic_program_is_the_optimum_of_200_small_cases() -> None:
    draw = random.Random(1)
    for _ in range(200):
        case = Case(draw)
        best = case.brute_force()
        found = program(case.num_layers, case.num_stages, case.seconds)
        if best == float("inf"):
            assert found is None
        else:
            assert found is not None
            assert found.seconds == pytest.approx(best)
            assert case.busiest(found.counts) == pytest.approx(best)


def test_a_stage_has_the_fewest_seconds_for_its_bytes() -> None:
    """Of all words for each of three layers, none has both fewer bytes and fewer seconds than the frontier."""
    options = StageOptions(Ledger(ppsim.job(**SMALL)), splits_backward=False)
    layer = options.job.model.layers[0]
    words = frozenset(options.useful_words)
    points = options.frontier(Stage((layer,) * 3), words, "")
    ways = [options._way(layer, word, "") for word in options.words]
    for some in itertools.combinations_with_replacement(ways, 3):
        seconds, saved = sum(one.seconds for one in some), sum(one.saved_bytes for one in some)
        fitting = [one for one in points if one.saved_bytes <= saved * (1 + 1e-9)]
        # a word off the convex hull may be a little better for few layers
        assert min(one.seconds for one in fitting) <= seconds + 0.2 * options._way(layer, "full", "").seconds
    assert points == sorted(points)
    assert all(a.saved_bytes > b.saved_bytes for a, b in itertools.pairwise(points))


def test_ways_off_the_hull_are_left_out() -> None:
    ways = [
        LayerOption("none", 1.0, 10.0, 0),
        LayerOption("a", 1.5, 8.0, 0),
        LayerOption("b", 1.6, 4.0, 0),
        LayerOption("full", 2.0, 1.0, 0),
    ]
    assert [way.recompute for way in _hull(ways)] == ["none", "full"] or [way.recompute for way in _hull(ways)] == [
        "none",
        "b",
        "full",
    ]
    assert "a" not in [way.recompute for way in _hull(ways)]


@pytest.mark.parametrize(
    ("schedule", "rank", "moments"),
    [
        ("1f1b", 0, [[[2, 0]]]),
        ("1f1b", 1, [[[1, 0]]]),
        ("gpipe", 1, [[[4, 0]]]),
        ("zb-h1", 0, [[[1, 1]], [[2, 0]]]),
        ("interleaved-1f1b", 1, [[[2, 0], [1, 0]], [[3, 0], [0, 0]]]),  # F1 F1 F3 B3 F3 B3 F1 B1 …
    ],
)
def test_the_moments_in_flight_are_those_that_no_other_exceeds(schedule: str, rank: int, moments: list) -> None:
    """Of each stage of a rank: the microbatches between F and its backward, and those between I and W."""
    table = ppsim.build(schedule, pp=2, microbatches=4)
    assert _in_flight(table, rank).tolist() == moments


def choices_of(*stages: list[tuple[float, float]]) -> list[SimpleNamespace]:
    """Each stage has points of (seconds, saved bytes), and keeps half of these bytes between I and W."""
    return [
        SimpleNamespace(
            points=[FrontierPoint(seconds, saved, ()) for seconds, saved in points],
            seconds=np.array([seconds for seconds, _ in points]),
            saved=np.array([saved for _, saved in points]),
            kept=np.array([saved / 2 for _, saved in points]),
        )
        for points in stages
    ]


@pytest.mark.parametrize(
    ("in_flight", "room", "expected"),
    [
        ([[[2, 0]]], 20, ([1.0], 0)),
        ([[[2, 0]]], 19.9, ([2.0], 0)),
        ([[[2, 0]]], 10, ([2.0], 0)),
        ([[[2, 1]]], 12, ([4.0], 0)),
        ([[[2, 0]], [[1, 4]]], 14.9, ([4.0], 0)),
        ([[[2, 0]]], 1, ([4.0], 3)),
        ([[[1, 0], [1, 0]]], 16, ([1.0, 1.0], 0)),
        ([[[1, 0], [1, 0]]], 15, ([1.0, 1.5], 0)),
        ([[[1, 0], [1, 0]]], 13, ([1.0, 1.5], 0)),
        ([[[1, 0], [1, 0]]], 11, ([2.0, 1.0], 0)),
        ([[[1, 0], [1, 0]]], 4, ([4.0, 1.5], 1)),
    ],
)  # fmt: skip
def test_a_rank_has_the_fastest_ways_that_fit(
    in_flight: list, room: float, expected: tuple[list[float], float]
) -> None:
    """The first stage saves 10, 5 or 2 bytes in 1, 2 or 4 s, the second 6 or 3 in 1 or 1.5 s."""
    stages = choices_of([(1.0, 10), (2.0, 5), (4.0, 2)], [(1.0, 6), (1.5, 3)])
    points, over = _fastest(stages[: len(in_flight[0])], np.array(in_flight, dtype=float), room)
    assert ([point.seconds for point in points], over) == expected


def test_a_layer_moves_from_the_busiest_rank_to_the_least_busy_first() -> None:
    """A stage with one layer gives none; if the limit is exceeded, memory counts instead of time."""
    search = SimpleNamespace(num_stages=3, schedule=ppsim.build("1f1b", pp=3, microbatches=3))
    trial = SimpleNamespace(
        counts=(2, 1, 3), peak_bytes=np.array([3, 1, 2]),
        step=SimpleNamespace(timeline=SimpleNamespace(busy_s=np.array([2.0, 3.0, 1.0]))),
    )  # fmt: skip
    neighbours = StageSearch._neighbours
    assert list(neighbours(search, trial, is_over=False)) == [(1, 1, 4), (1, 2, 3), (3, 1, 2), (2, 2, 2)]
    assert list(neighbours(search, trial, is_over=True)) == [(1, 2, 3), (1, 1, 4), (2, 2, 2), (3, 1, 2)]


@pytest.mark.parametrize(
    "words",
    [
        TIGHT,
        *(
            pytest.param(TIGHT | more, marks=pytest.mark.search)
            for more in ({"vpp": 5}, {"schedule": "zb-h1"}, {"schedule": "zbv-fixed"})
        ),
        pytest.param(
            {
                "model": "deepseek-v2-lite",
                "stack": "plain",
                "gpus": 16,
                "pp": 4,
                "ep": 4,
                "global_batch": 64,
                "memory_limit": "40GiB",
            },
            marks=pytest.mark.search,
        ),
    ],
    ids=["1f1b", "interleaved", "zb-h1", "zbv", "experts"],
)
def test_no_plan_with_the_same_recomputation_on_every_stage_is_faster(words) -> None:
    made = ppsim.project(**words, stage_plan="auto")
    assert made.memory_error is None
    for recompute in (
        "none",
        "core_attn",
        "mlp",
        "moe",
        "moe_act",
        "layernorm",
        "full",
        "block/2",
        "block/5",
        "block/12",
    ):
        for split in ("auto", "even"):
            try:
                other = ppsim.project(**words, recompute=recompute, split=split)
            except ConfigError:
                continue
            if other.memory_error is None:
                assert made.iteration_time_s <= other.iteration_time_s * (1 + 1e-9), (recompute, split)


def test_the_best_number_of_recomputed_layers_per_stage_is_found() -> None:
    """With `--recompute full` stages may recompute whole layers only; brute force over all N per stage, even layers."""
    job = TIGHT | {"pp": 2, "tp": 8, "layers": 16, "global_batch": 32}
    plain = ppsim.project(**job, split=[8, 8]).plan
    found = []
    for numbers in itertools.product(range(9), repeat=2):
        stages = tuple(StagePlan(recompute_of(f"block/{number}")) for number in numbers)
        other = ppsim.project(replace(plain, job=replace(plain.job, stage_plans=stages)))
        found.append((float(other.timeline.memory.peak_bytes.max()), other.iteration_time_s))
    limit = sorted(found)[len(found) // 2][0]
    made = ppsim.project(**job, recompute="full", stage_plan="auto", memory_limit=limit)
    assert made.iteration_time_s <= 1.0001 * min(seconds for peak, seconds in found if peak <= limit)
    assert made.timeline.memory.peak_bytes.max() <= limit


def test_the_result_is_a_plan_that_can_be_written_and_read(tmp_path) -> None:
    line = "project --model llama3-70b --gpus 64 --tp 4 --pp 4 --global-batch-size 128 --micro-batch-size 2 --stack plain"
    out = tmp_path / "plan.toml"
    text = " ".join(command(*line.split(), "--plan", "auto", "--full", "-o", str(out)).stdout.split())
    assert "plan: layers and recomputation of each stage searched for" in text
    assert "(work of the busiest rank)" in text
    found, again = (ppsim.project(**TIGHT, stage_plan=one) for one in ("auto", str(out)))
    assert again.iteration_time_s == found.iteration_time_s
    assert again.split == found.split


def test_stages_offload_what_the_job_allows() -> None:
    made = ppsim.project(**TIGHT, stage_plan="auto", offload_modules="core_attn+attn_proj")
    without = ppsim.project(**TIGHT, stage_plan="auto")
    assert any(row["offload_modules"] for row in made.stages)
    assert made.iteration_time_s <= without.iteration_time_s
    assert made.memory_error is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"pp": 4}, "--plan auto needs a model on a cluster"),
        ({**TIGHT, "split": "even"}, "--plan auto finds the layers of each stage: leave out --split"),
        (
            {**TIGHT, "lengths": [8192] * 8},
            "--plan auto finds the layers of each stage: leave out --sequence-lengths",
        ),
    ],
)
def test_what_a_search_does_not_take_is_refused(words, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.project(**words, stage_plan="auto")


def test_a_job_that_no_plan_can_run_gets_the_reason() -> None:
    words = {"model": "llama3-8b", "stack": "plain", "gpus": 4, "pp": 2, "schedule": "zb-h1", "offload": 0.5}
    with pytest.raises(PpsimError, match="zb-h1 splits the backward"):
        ppsim.project(**words, stage_plan="auto")


def test_equal_stages_are_looked_at_once_and_the_ends_apart() -> None:
    """Seconds of a stage: its layers, 10 more with the embedding and 5 with the head. Six equal layers on 4 ranks."""
    looked: list[Stage] = []

    def of_rank(stages: list[Stage], in_flight: np.ndarray, limit: float) -> tuple[float, list]:
        looked.extend(stages)
        return len(stages[0].layers) + 10.0 * stages[0].embedding + 5.0 * stages[0].head, []

    layer = ppsim.job(**SMALL).model.layers[0]
    held = [np.full((1, 1, 2), number) for number in (2.0, 1.0, 1.0, 1.0)]
    search = SimpleNamespace(
        job=SimpleNamespace(model=SimpleNamespace(layers=(layer,) * 6, mtp=())), num_stages=4, of_rank=of_rank,
        ranks=[[0], [1], [2], [3]], in_flight=held, limit_bytes=1.0, schedule=SimpleNamespace(num_replicas=1, num_microbatches=8),
    )  # fmt: skip
    stage_program = StageProgram(search)
    assert stage_program.applies
    seconds = stage_program._seconds(6, 4)
    assert [seconds(0, 0, 2), seconds(1, 2, 4), seconds(2, 0, 2), seconds(3, 4, 6)] == [12.0, 2.0, 2.0, 7.0]
    assert len(looked) == 3, "the two inner stages are equal"
    found = stage_program.best()
    assert (found.counts[0], sum(found.counts), found.seconds) == (0, 6, 8 * 10.0)
    for changed in ({"ranks": [[0, 1], [2, 3]]}, {"schedule": SimpleNamespace(num_replicas=2)}):
        assert not StageProgram(SimpleNamespace(**vars(search) | changed)).applies


@pytest.mark.parametrize(
    ("over", "found", "expected"),
    [(0.0, None, (3.0, "full", None)), (0.5, SimpleNamespace(counts=(1, 2), seconds=2.0), (None, "", 2.0))],
)
def test_a_uniform_plan_beyond_the_memory_is_no_comparison(over: float, found, expected, monkeypatch) -> None:
    monkeypatch.setattr(
        stage_search, "StageProgram", lambda search: SimpleNamespace(applies=True, best=lambda: found)
    )
    uniform = (StagePlan("full"),) * 2, SimpleNamespace(counts=(2, 1), seconds=3.0)
    planned = {(2, 1): (4.0, "a"), (1, 2): (2.5, "b")}
    search = SimpleNamespace(
        _best_uniform=lambda: uniform, _climb=lambda start: start, _rank_of=lambda plan: (over * (plan is uniform), plan[1].seconds),
        _planned=lambda counts: (planned[counts][1], SimpleNamespace(counts=counts, seconds=planned[counts][0])),
    )  # fmt: skip
    result = StageSearch.best(search)
    assert (result.uniform_s, result.uniform, result.busiest_s) == expected
    assert result.plans == ("b" if found else uniform[0])
