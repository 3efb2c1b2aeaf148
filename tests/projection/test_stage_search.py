"""`--plan auto`: against brute force, against plans with the same recomputation on every stage, and its lower bound."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.ledger import Ledger
from ppsim.costs.stage_options import FrontierPoint, LayerOption, StageOptions, _hull
from ppsim.errors import ConfigError, PpsimError
from ppsim.model.pipeline_stages import Stage, StagePlan
from ppsim.model.recompute import recompute_of
from ppsim.projection import stage_search
from ppsim.projection.stage_search import StageProgram, StageSearch, _fastest, _improved, _in_flight, program
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
        ("seq1f1b", 0, [[[1.25, 0]]]),  # five of four slices per microbatch
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


def trial_of(seconds: float, *peaks: float, counts: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(seconds=seconds, peak_bytes=np.array(peaks), counts=counts)


def test_a_plan_ranks_by_its_largest_excess_then_by_its_time() -> None:
    search: Any = SimpleNamespace(limit_bytes=100.0)
    search._over = lambda trial: StageSearch._over(search, trial)
    ranks = [
        StageSearch._rank_of(search, ((), trial))
        for trial in (trial_of(2.0, 70, 100), trial_of(3.0, 120, 104), trial_of(1.0, 99, 107))
    ]
    assert ranks == [(0.0, 2.0), (pytest.approx(20.0), 3.0), (pytest.approx(7.0), 1.0)]


def test_a_plan_is_simulated_once() -> None:
    simulated: list[Any] = []
    search: Any = SimpleNamespace(_trials={}, simulate=lambda *given: simulated.append(given) or len(simulated))
    full, none = StagePlan("full"), StagePlan("none")
    runs = [([2, 1], [full, none]), ((2, 1), (full, none)), ("even", [full, none]), ([1, 2], [full, none]),
            ("even", (full, none)), ([2, 1], [none, full])]  # fmt: skip
    assert [StageSearch._run(search, *run) for run in runs] == [1, 1, 2, 3, 2, 4]
    assert simulated == [runs[0], runs[2], runs[3], runs[5]]


def uniform_of(trials: dict[tuple[str, str], tuple[float, float]], *words: str, layers: int = 4) -> Any:
    """Return the recomputation of the best uniform plan, and those whose split was searched for.

    `trials` has the seconds and the excess of recomputations and splits, in a limit of 100 bytes. A search halves
    the excess, and makes a plan 0.5 s faster.
    """
    searched = []

    def run(split: str, plans: tuple[StagePlan, ...]) -> SimpleNamespace:
        assert len(plans) == 4
        if (plans[0].recompute, split) not in trials:
            raise PpsimError(f"{plans[0].recompute} {split}")
        seconds, over = trials[plans[0].recompute, split]
        return SimpleNamespace(seconds=seconds, over=over)

    def with_split(word: str) -> Any:
        searched.append(word)
        best = min((one for (text, _), one in trials.items() if text == word), key=lambda one: one[::-1])
        return word, SimpleNamespace(seconds=best[0] - 0.5, over=best[1] / 2)

    search: Any = SimpleNamespace(
        options=SimpleNamespace(useful_words=words), num_stages=4, limit_bytes=100.0, _run=run, _with_split=with_split,
        job=SimpleNamespace(model=SimpleNamespace(layers=range(layers))), _over=lambda trial: trial.over,
        _rank_of=lambda planned: (planned[1].over, planned[1].seconds),
    )  # fmt: skip
    return StageSearch._best_uniform(search)[0], searched


def test_the_split_is_searched_for_uniform_plans_that_fit_nearly_and_are_faster_than_all_that_fit() -> None:
    trials = {
        ("none", "balanced"): (1.0, 15.0), ("none", "even"): (0.9, 16.0), ("a", "even"): (2.0, 15.5), ("b", "even"): (3.0, 0.0),
        ("full", "balanced"): (5.0, 0.0), ("block/1", "balanced"): (3.5, 0.0), ("block/2", "even"): (2.5, 10.0),
    }  # fmt: skip
    assert uniform_of(trials, "none", "a", "b", "full", layers=10) == ("b", ["none", "block/2", "b"])


def test_at_most_four_splits_are_searched_for_and_the_split_of_the_best_uniform_plan() -> None:
    trials = {(word, "even"): (float(index), 1.0) for index, word in enumerate("abcde", start=1)}
    assert uniform_of(trials | {("f", "even"): (6.0, 0.0)}, *"fedcba") == ("f", ["a", "b", "c", "d", "f"])
    assert uniform_of({("a", "even"): (1.0, 99.0), ("b", "even"): (2.0, 98.0)}, *"ab") == ("b", ["b"])


def test_blocks_of_layers_are_uniform_plans_if_full_recomputation_is() -> None:
    block = {("block/1", "even"): (1.0, 0.0)}
    assert uniform_of(block | {("full", "even"): (2.0, 0.0)}, "full", layers=5)[0] == "block/1"
    assert uniform_of(block | {("none", "even"): (2.0, 0.0)}, "none", layers=5)[0] == "none"
    assert uniform_of(block | {("full", "even"): (2.0, 0.0)}, "full", layers=4)[0] == "full"
    with pytest.raises(PpsimError, match=r"^none balanced$"):
        uniform_of({}, "none", "full")


@pytest.mark.parametrize(("limit", "given"), [(64.0, 64.0), (float("inf"), None)])
def test_the_split_of_a_uniform_plan_is_searched_for_without_offloading(
    limit: float, given: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def best(simulate: Any, layer: Any, limit_bytes: float | None) -> Any:
        return simulate(None), simulate((2, 1)), layer, limit_bytes

    monkeypatch.setattr(stage_search, "SplitSearch", lambda *all_of: SimpleNamespace(best=lambda: best(*all_of)))
    monkeypatch.setattr(stage_search, "layer_costs_of", lambda ledger: ledger.job)
    job = replace(ppsim.job(**SMALL), offload_modules="core_attn")
    search: Any = SimpleNamespace(job=job, num_stages=2, limit_bytes=limit, _run=lambda *run: run)
    plans, (balanced, moved, searched, limit_bytes) = StageSearch._with_split(search, "full")
    assert plans == (StagePlan("full"),) * 2
    assert (balanced, moved) == (("balanced", plans), ((2, 1), plans))
    assert (searched.execution.recompute, searched.offload_modules) == ("full", "")
    assert limit_bytes == given


@pytest.mark.parametrize(
    ("peaks", "limits", "chosen"),
    [
        ([(110, 90), (105, 101), (100, 100), (1, 1)], [[100, 100], [90, 100], [85, 99]], 2),
        ([(130, 90), (120, 120), (125, 90), (140, 90), (1, 1)], [[100, 100], [70, 100], [50, 80], [25, 80]], 1),
    ],
)
def test_the_limit_of_a_rank_is_lowered_by_its_simulated_excess_for_another_attempt(
    peaks: list[tuple[int, int]], limits: list[list[float]], chosen: int
) -> None:
    """At most four; the plan with the smallest excess is returned."""
    tried: list[list[float]] = []
    attempts = iter(peaks)
    search: Any = SimpleNamespace(
        ranks=[[0], [1]], limit_bytes=100.0, plans_for=lambda counts, given: tried.append(given.tolist()) or len(tried),
        _run=lambda counts, plans: trial_of(float(plans), *next(attempts)),
    )  # fmt: skip
    search._rank_of = lambda planned: (max(0.0, planned[1].peak_bytes.max() - 100), planned[1].seconds)
    plans, trial = StageSearch._planned(search, (3, 4))
    assert tried == [[pytest.approx(limit) for limit in attempt] for attempt in limits]
    assert (plans, trial.peak_bytes.tolist()) == (chosen + 1, list(peaks[chosen]))


def test_plans_of_ranks_are_in_the_order_of_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_search, "stages_of", lambda model, counts: [f"{model} {one}" for one in counts])
    search: Any = SimpleNamespace(
        job=SimpleNamespace(model="m"), ranks=[[0, 3], [1, 2]], in_flight=["f0", "f1"], num_stages=4,
        of_rank=lambda stages, in_flight, limit: (0.0, [f"{stage} {in_flight} {limit}" for stage in stages]),
    )  # fmt: skip
    plans = StageSearch.plans_for(search, [2, 3, 5, 7], np.array([11.0, 13.0]))
    assert plans == ("m 2 f0 11.0", "m 3 f1 13.0", "m 5 f1 13.0", "m 7 f0 11.0")


@pytest.mark.parametrize(
    ("over", "seconds", "plans"), [(0.0, 4.5, [("s1", 1.0, "m"), ("s2", 3.5, "m")]), (6.0, np.inf, [("s1", 7.0, ""), ("s2", 7.0, "")])]
)  # fmt: skip
def test_a_rank_has_the_fastest_way_besides_transient_bytes_and_offload_buffers(
    over: float, seconds: float, plans: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no way fits, it has the one with the smallest excess, and takes infinitely long."""

    def points(*of_stages: float) -> list[FrontierPoint]:
        return [FrontierPoint(one, 0.0, ()) for one in of_stages]

    ways = {
        88.0: (points(2, 3), over),
        83.0: (points(1, 3.5), over),
        68.0: (points(7, 7), 4.0),
        63.0: (points(0, 0), 5.0),
    }
    monkeypatch.setattr(
        stage_search, "_Choices", lambda options, stage, allowed, offload: (stage, allowed, offload)
    )
    monkeypatch.setattr(stage_search, "plan_of", lambda layers, point, offload: (layers, point.seconds, offload))

    def fastest(choices: Any, in_flight: Any, room: float) -> Any:
        assert [stage.layers for stage, _, _ in choices] == ["s1", "s2"]
        assert {(allowed, offload == "m") for _, allowed, offload in choices} == {({88: "A", 83: "A", 68: "B", 63: "B"}[room], room in (83, 63))}  # fmt: skip
        return ways[room]

    monkeypatch.setattr(stage_search, "_fastest", fastest)
    stages: Any = [SimpleNamespace(layers="s1", buffer=2.0), SimpleNamespace(layers="s2", buffer=1.0)]
    options = SimpleNamespace(
        transients=lambda given: [(10.0, "A"), (30.0, "B")], offloads=["", "m"],
        buffers=lambda stage, offload: stage.buffer + 5 * (offload == "m"),
    )  # fmt: skip
    search: Any = SimpleNamespace(options=options)
    assert StageSearch.of_rank(search, stages, np.zeros(0), 100.0) == (seconds, plans)


@pytest.mark.parametrize(
    ("num_nodes", "fastest", "last"), [(1, 5, 6), (1, 99, 46), (10_000, 99, 38), (50_000, 99, 6), (10**9, 99, 6)]
)
def test_a_search_climbs_until_no_neighbour_is_better_or_it_has_tried_enough(
    num_nodes: int, fastest: int, last: int
) -> None:
    """Neighbours of n are n − 1 and n + 1. Of 0 to `last` and −1 there are 48, 40 or 8."""
    tried: list[int] = []
    over: set[bool] = set()

    def plan(at: int) -> Any:
        timeline = SimpleNamespace(graph=SimpleNamespace(num_nodes=num_nodes))
        return at, SimpleNamespace(seconds=abs(at - fastest), counts=(at,), step=SimpleNamespace(timeline=timeline))

    def neighbours(trial: Any, *, is_over: bool) -> Any:
        over.add(is_over)
        return [(trial.counts[0] - 1,), (trial.counts[0] + 1,)]

    def planned(counts: tuple[int]) -> Any:
        tried.append(counts[0])
        return plan(counts[0])

    search: Any = SimpleNamespace(
        _neighbours=neighbours, _planned=planned, _rank_of=lambda one: (float(num_nodes == 10_000), one[1].seconds)
    )
    assert StageSearch._climb(search, plan(0))[0] == min(fastest, last)
    assert tried == [-1, *range(1, last + 1)]
    assert over == {num_nodes == 10_000}


def test_memory_left_goes_to_the_stage_that_gains_most() -> None:
    """In 9 bytes; faster points of the first stage save 2 or 3 s, of the second 1 or 5 s."""
    choices: Any = choices_of([(1.0, 10), (2.0, 5), (4.0, 2)], [(1.0, 6), (5.0, 3), (6.0, 1)])

    def over(chosen: Any) -> float:
        return float(sum(choice.saved[at] for choice, at in zip(choices, chosen, strict=True))) - 9

    assert _improved([2, 2], choices, over) == [2, 0]
    assert _improved([1, 1], choices, over) == [1, 1]
    assert _improved([1, 2], choices, over) == [1, 1]


@pytest.mark.parametrize(("layers", "counts"), [(2, (0, 1, 1, 0)), (1, (1, 0, 0, 0))])
def test_inner_stages_have_a_layer_if_there_are_enough(layers: int, counts: tuple[int, ...]) -> None:
    """A layer takes 0.125 s on the first stage, 0.25 s on the last and 4 s between."""
    seconds = (0.125, 4.0, 4.0, 0.25)
    fastest = program(layers, 4, lambda stage, first, last: (last - first) * seconds[stage], num_microbatches=5)
    assert fastest is not None
    assert (fastest.counts, fastest.seconds) == (counts, 5 * max(np.array(counts) * seconds))


def test_no_more_neighbours_are_tried_at_once_than_are_left() -> None:
    """20 worse neighbours, of which a large table allows seven."""
    tried: list[int] = []

    def plan(at: int) -> Any:
        step = SimpleNamespace(timeline=SimpleNamespace(graph=SimpleNamespace(num_nodes=10**6)))
        return at, SimpleNamespace(seconds=at, counts=(at,), step=step)

    search: Any = SimpleNamespace(
        _neighbours=lambda trial, *, is_over: [(number,) for number in range(1, 21)], _rank_of=lambda one: (0.0, one[1].seconds),
        _planned=lambda counts: tried.append(counts[0]) or plan(counts[0]),
    )  # fmt: skip
    assert StageSearch._climb(search, plan(0))[0] == 0
    assert tried == [1, 2, 3, 4, 5, 6, 7]


def test_stages_of_a_rank_have_the_lowest_common_price_per_byte_at_which_they_fit() -> None:
    """In 20 GB. At 0.25 s per GB, the second stage is slower by 1 s for 4 GB; at 0.5, the first for 2 GB, and both fit.

    From the fewest bytes on, the first stage would gain most: 2 and 11 s.
    """
    giga = 1e9
    stages = choices_of(
        [(2.0, 12 * giga), (3.0, 10 * giga), (11.0, 6 * giga)],
        [(7.0, 13 * giga), (8.0, 9 * giga), (11.0, 6 * giga)],
    )
    for moments in ([[[1, 0], [1, 0]]], [[[1, 0], [1, 0]], [[0, 0], [1, 0]], [[0.5, 0], [0, 0]]]):
        points, over = _fastest(stages, np.array(moments, dtype=float), 20 * giga)  # type: ignore[arg-type]
        assert ([point.seconds for point in points], over) == ([3.0, 8.0], 0.0)
