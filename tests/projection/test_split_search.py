"""`--split auto`: the split with the shortest simulated iteration."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.stage_cost_set import LayerCosts
from ppsim.parallel.layer_balance import LinearFunctions, balance_ranks, move_layer, possible_moves
from ppsim.parallel.layer_partition import even_split
from ppsim.projection import split_search
from ppsim.projection.project import iteration_of
from ppsim.projection.split_search import SplitSearch
from tests.costs.profiles import profile
from tests.costs.test_chunk_costs import BESIDE, chunk, of_chunks

EXAMPLE = {
    "model": "llama2-7b", "stack": "plain", "layers": 9, "gpus": 24, "pp": 3, "vpp": 2, "schedule": "zbv-fixed", "micro_batch": 1,
    "global_batch": 96, "seq_len": 4096,
}  # fmt: skip
JOBS = {
    "V schedule": EXAMPLE,
    "data parallelism": {
        "model": "qwen2.5-7b", "stack": "plain", "layers": 8, "gpus": 8, "pp": 2, "vpp": 2, "schedule": "interleaved-1f1b",
        "micro_batch": 1, "global_batch": 8, "seq_len": 4096, "recompute": "full",
    },
    "gradients summed among replicas": {
        "model": "qwen2.5-7b", "stack": "plain", "layers": 6, "gpus": 16, "tp": 4, "pp": 4, "schedule": "chimera", "micro_batch": 2,
        "global_batch": 8, "seq_len": 2048, "zero": 0,
    },
    "ZeRO 3": {
        "model": "llama3.2-1b", "stack": "plain", "layers": 7, "gpus": 24, "pp": 3, "vpp": 2, "schedule": "hanayo", "micro_batch": 1,
        "global_batch": 144, "seq_len": 4096, "zero": 3,
    },
    "layers of two kinds": {
        "model": "deepseek-v2-lite", "stack": "plain", "layers": 10, "gpus": 48, "tp": 2, "pp": 3, "vpp": 2, "schedule": "1f1b-v",
        "micro_batch": 1, "global_batch": 144, "seq_len": 2048,
    },
    "two model replicas": {
        "model": "llama3.2-1b", "stack": "plain", "layers": 6, "gpus": 4, "pp": 4, "schedule": "dualpipe", "micro_batch": 2,
        "global_batch": 16, "seq_len": 4096,
    },
    "reduction that ends last": {
        "model": "llama3-8b", "stack": "plain", "layers": 6, "gpus": 4, "pp": 2, "schedule": "eager-1f1b", "micro_batch": 1,
        "global_batch": 4, "seq_len": 2048, "zero": 0, "recompute": "full",
    },
    "three chunks": {
        "model": "qwen2.5-7b", "stack": "plain", "layers": 9, "gpus": 12, "tp": 2, "pp": 2, "vpp": 3, "schedule": "interleaved-zb",
        "micro_batch": 2, "global_batch": 24, "seq_len": 4096,
    },
    "slices": {
        "model": "llama3-8b", "stack": "plain", "layers": 7, "gpus": 3, "pp": 3, "schedule": "seq1f1b", "slices": 2, "global_batch": 9,
        "seq_len": 4096,
    },
    "some splits do not fit": {
        "model": "llama2-70b", "stack": "plain", "layers": 6, "gpus": 8, "pp": 2, "schedule": "v-half-fixed", "global_batch": 32,
        "seq_len": 8192,
    },
    "hybrid whose middle layer is attention": {
        "model": "nemotron-3-nano-30b-a3b", "stack": "plain", "layers": 11, "gpus": 8, "pp": 2, "vpp": 2, "schedule": "zbv-fixed",
        "micro_batch": 1, "global_batch": 32, "seq_len": 4096,
    },
    "hybrid of attention, Mamba-2 and MLP": {
        "model": "nemotron-h-8b", "stack": "plain", "layers": 11, "gpus": 8, "pp": 2, "vpp": 2, "schedule": "interleaved-1f1b",
        "micro_batch": 1, "global_batch": 32, "seq_len": 4096,
    },
    "MTP": {
        "model": "deepseek-v3", "stack": "plain", "layers": 8, "gpus": 32, "ep": 8, "pp": 4, "global_batch": 64, "seq_len": 4096,
        "mtp_num_layers": 1,
    },
}  # fmt: skip


def of_measured_chunks(*contents, kinds="t" * 12, **words):
    """A plan for a profile of chunks, each measured 1 % too short or too long."""
    data = of_chunks(*contents, kinds=kinds)
    data["chunks"] = [chunk(one, factor=1.01 if index % 2 else 0.99) for index, one in enumerate(contents)]
    return {"profile": profile(data), "microbatches": 12, **words}


TWO_KINDS = {"kinds": "tttuuuuuuuuu", "pp": 2, "vpp": 2}
JOBS |= {
    "chunks": of_measured_chunks("Et", "t", "tt", "tttt", "tL", pp=4, schedule="1f1b"),
    "chunks of two kinds on a V": of_measured_chunks(
        "Et", "t", "u", "uuuu", "uL", **TWO_KINDS, schedule="zbv-fixed"
    ),
    "chunks of two kinds four moves away": of_measured_chunks(
        "Et", "t", "u", "uuuu", "uL", **TWO_KINDS, schedule="1f1b-v"
    ),
}


PLAIN = ("data parallelism", "some splits do not fit", "chunks")


def splits(layers, stages):
    for cuts in combinations(range(layers + 1), stages - 1):
        first, *inner, last = (after - before for before, after in pairwise((-1, *cuts, layers + 1)))
        yield (first - 1, *inner, last - 1) if inner or stages == 2 else None


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[pytest.mark.search] * (name not in PLAIN), id=name)
        for name, words in JOBS.items()
    ],
)
def test_auto_is_within_three_per_mille_of_the_fastest_split_that_fits_and_never_slower_than_even(words):
    made = ppsim.project(**words)
    plan, table, layers = made.plan, made.timeline.schedule, sum(made.split)
    found = {
        split: iteration_of(replace(plan, split=list(split)), table)
        for split in splits(layers, table.num_model_stages)
    }
    limit = np.inf if plan.memory_bound_bytes is None else plan.memory_bound_bytes
    fitting = {split: one for split, one in found.items() if one[1] <= limit} or found
    even = tuple(even_split(layers, table.num_model_stages))
    assert tuple(made.split) in fitting
    assert made.iteration_time_s <= min(seconds for seconds, _ in fitting.values()) * 1.003
    assert even not in fitting or made.iteration_time_s <= fitting[even][0]


@pytest.mark.parametrize(
    "words",
    [
        {"model": "llama3-405b", "stack": "plain", "gpus": 512, "tp": 8, "global_batch": 512, "schedule": "zb-h1"},
        {"model": "llama3-405b", "stack": "plain", "layers": 140, "gpus": 512, "tp": 8, "vpp": 2, "global_batch": 512,
         "schedule": "zbv-fixed"},
        {"model": "nemotron-h-56b", "stack": "plain", "gpus": 512, "tp": 8, "global_batch": 512},
    ],
)  # fmt: skip
@pytest.mark.slow
def test_of_64_ranks_auto_is_found_within_seconds_and_never_slower_than_even(words):
    ppsim.project(**words, pp=64, split="even")  # kernels are compiled before the clock starts
    begin = time.process_time()
    made = ppsim.project(**words, pp=64)
    assert time.process_time() - begin < 5
    even, limit = ppsim.project(**words, pp=64, split="even"), made.plan.memory_bound_bytes
    assert made.iteration_time_s <= even.iteration_time_s or even.timeline.memory.peak_bytes.max() > limit


def test_a_stage_with_layers_costs_more_than_its_layers():
    """It saves the fixed part of a stage to leave the last one to the head alone."""
    contents = ("Et", "Ettt", "t", "tt", "tttt", "ttL", "tL")
    data = of_chunks(*contents)
    data["chunks"] = [chunk(one) for one in contents]
    source = ppsim.project(
        profile=profile(data), pp=2, vpp=2, schedule="1f1b-v", microbatches=12
    ).plan.modelled_source
    assert source.layer_costs().fixed == pytest.approx(BESIDE)  # of a layer of 1 s


def test_the_v_schedule_of_the_issue_evens_ranks_not_stages():
    made = ppsim.project(**EXAMPLE)
    assert made.split == [2, 2, 1, 2, 1, 1]
    assert made.iteration_time_s < 0.885 * ppsim.project(**EXAMPLE, split=[1, 2, 2, 2, 1, 1]).iteration_time_s


def test_a_split_that_fits_is_preferred_to_a_faster_one_that_does_not():
    words = {"model": "llama3-8b", "stack": "plain", "gpus": 32, "tp": 2, "pp": 4, "global_batch": 128}
    usual = ppsim.project(**words)
    limit = float(usual.timeline.memory.peak_bytes.max()) - 1
    made = ppsim.project(**words, memory_limit=limit)
    assert made.timeline.memory.peak_bytes.max() <= limit
    assert made.iteration_time_s >= usual.iteration_time_s


def test_the_search_simulates_few_splits_and_finds_the_same_again(monkeypatch):
    tried, add = [], split_search.SplitSearch._add
    monkeypatch.setattr(
        split_search.SplitSearch, "_add", lambda self, trial: (tried.append(trial.counts), add(self, trial))[1]
    )
    words = {
        "model": "llama3-8b",
        "stack": "plain",
        "layers": 64,
        "gpus": 16,
        "pp": 16,
        "vpp": 4,
        "global_batch": 64,
    }
    first = ppsim.project(**words).split
    number = len(tried)
    assert number <= split_search._LEAST_TRIALS + 1  # the even one may come on top
    assert ppsim.project(**words).split == first
    assert tried[:number] == tried[number:]


def test_rounding_does_not_move_layers_between_equally_fast_splits(monkeypatch):
    splits = []
    for number in (0, 2):
        for module in ("job_cost_sources", "layer_costs"):
            monkeypatch.setattr(f"ppsim.costs.{module}.scale_of", lambda job, by=number: 1 + by * 2.0**-52)
        splits.append(
            ppsim.project(**JOBS["hybrid whose middle layer is attention"], split="auto").stage_cost_set.split
        )
    assert splits[0] == splits[1]


def test_a_straggler_does_not_move_layers():
    """The layers were placed before a GPU turned slow."""
    words = {"model": "llama3-8b", "stack": "plain", "gpus": 8, "pp": 4, "global_batch": 32}
    assert ppsim.project(**words, stragglers={1: 1.5}).split == ppsim.project(**words).split


def test_the_report_says_auto():
    assert "split 2×2, 1, 2, 2×1 (auto)" in "".join(ppsim.project(**EXAMPLE).assumptions)


def test_a_move_changes_functions_by_as_much_as_it_says():
    functions, counts = LinearFunctions([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 4), (2, 3, 2, 2)
    weights = np.array([[1.0, 4.0, 2.0, 8.0], [3.0, 0.0, 5.0, 1.0]])
    functions.add(weights, counts, weights @ functions.stage_costs(counts))
    giving, taking = possible_moves(counts)
    changes = functions.changes(counts, giving, taking)
    for index, move in enumerate(zip(giving.tolist(), taking.tolist(), strict=True)):
        after = functions.values(move_layer(counts, *move)) - functions.values(counts)
        assert changes[:, index] == pytest.approx(after)


def test_a_move_that_empties_or_fills_an_end_changes_the_fixed_part_of_the_stage():
    functions, counts = LinearFunctions([1.0] * 5, 3, fixed=0.5), (1, 4, 0)
    weights = np.array([[1.0, 4.0, 2.0]])
    functions.add(weights, counts, weights @ functions.stage_costs(counts))
    assert functions.stage_costs(counts).tolist() == [1.5, 4.5, 0.0]
    giving, taking = possible_moves(counts)
    changes = functions.changes(counts, giving, taking)
    for index, move in enumerate(zip(giving.tolist(), taking.tolist(), strict=True)):
        after = functions.values(move_layer(counts, *move)) - functions.values(counts)
        assert changes[:, index] == pytest.approx(after)


def test_ranks_are_balanced_and_inner_stages_keep_a_layer():
    stages = [[0, 5], [1, 4], [2, 3]]
    counts = balance_ranks([1, 2, 2, 2, 1, 1], [1.0] * 9, (0.0, 0.0), stages)
    assert [sum(counts[stage] for stage in mine) for mine in stages] == [3, 3, 3]
    assert balance_ranks([1, 1, 1, 1], [1.0] * 4, (0.0, 9.0), [[0, 3], [1, 2]]) == [0, 2, 2, 0]


@pytest.mark.long
def test_the_random_jobs_of_the_benchmark_are_near_the_best_of_all_splits(capsys, monkeypatch):
    """Ten of them; `benchmarks/splits.py` runs a hundred."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import splits as benchmark

    benchmark.main(10, 1)
    sys.modules.pop("splits", None)
    assert "within 0.3 % in 10 of 10" in capsys.readouterr().out.splitlines()[-2]


LAYERS = LayerCosts(work_s=np.ones(12), passes_s=np.zeros(4), exposed_s=np.zeros(4))
SECONDS, END_S = np.array([5.0, 3.0, 2.0, 7.0]), np.array([1.0, 0.0, 0.0, 4.0])


def search_of(
    monkeypatch: pytest.MonkeyPatch,
    start: tuple[int, ...],
    *,
    limit: float | None = None,
    num_nodes: int = 1,
    seconds: float = 1.0,
) -> tuple[SplitSearch, list[Any]]:
    """A search over four stages with 5, 3, 2 and 7 s per layer, 1 s before and 4 s after; a layer takes 10 bytes.

    The iteration takes as long as the busiest stage, times `seconds`. Also return the splits that were simulated.
    """
    simulated: list[Any] = []

    def simulate(counts: tuple[int, ...] | None) -> Any:
        simulated.append(counts)
        split = start if counts is None else counts
        of_stages = SECONDS * split + END_S
        graph = SimpleNamespace(graph=SimpleNamespace(num_nodes=num_nodes))
        return SimpleNamespace(
            counts=split, of_stages=of_stages, seconds=seconds * of_stages.max(), peak_bytes=10.0 * np.array(split),
            step=SimpleNamespace(timeline=graph),
        )  # fmt: skip

    monkeypatch.setattr(
        split_search, "rank_bounds", lambda trial, _: (np.diag(SECONDS), trial.counts, trial.of_stages)
    )
    monkeypatch.setattr(
        split_search, "path_weights", lambda trial, _: SECONDS * (np.arange(4) == trial.of_stages.argmax())
    )
    monkeypatch.setattr(split_search, "byte_weights", lambda trial, _: 10.0 * np.eye(4))
    return SplitSearch(simulate, LAYERS, limit), simulated


def test_a_search_begins_with_the_balanced_and_the_even_split(monkeypatch: pytest.MonkeyPatch) -> None:
    search, simulated = search_of(monkeypatch, (2, 4, 5, 1), limit=60.0)
    assert simulated == [None, (3, 3, 3, 3)]
    assert (len(search._seconds), len(search._bytes), search._limit) == (4 + 2, 8, 60 * (1 + 1e-12))
    assert search._tick_s == 12 * 1e-10  # 3 · 4 s
    search, simulated = search_of(monkeypatch, (3, 3, 3, 3), seconds=0.0)
    assert simulated == [None]
    assert (len(search._seconds), len(search._bytes), search._limit, search._tick_s) == (4 + 1, 0, np.inf, 1.0)


@pytest.mark.parametrize(("num_nodes", "most"), [(1, 24), (416, 24), (500, 20), (1_666, 6), (10**6, 6)])
def test_of_large_tables_fewer_splits_are_simulated(
    num_nodes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search_of(monkeypatch, (3, 3, 3, 3), num_nodes=num_nodes)[0]._most_trials == most


@pytest.mark.parametrize(("limit", "seconds"), [(None, 12), (40.0, 16), (30.0, 25), (20.0, 12)])
def test_a_search_finds_the_fastest_split_that_fits(
    limit: float | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(2, 4, 5, 1), (3, 4, 4, 1) and (3, 3, 3, 3). In 20 bytes no split fits, and the limit does not count."""
    search, _ = search_of(monkeypatch, (9, 1, 1, 1), limit=limit)
    assert search.best().seconds == seconds


def test_the_best_split_fits_best_then_is_fastest_then_most_even() -> None:
    def trial(counts: tuple[int, ...], seconds: float, *peaks: float) -> Any:
        return SimpleNamespace(counts=counts, seconds=seconds, peak_bytes=np.array(peaks))

    trials = [
        trial((4, 0), 4.0, 101, 90), trial((3, 1), 5.0, 100, 90), trial((2, 2), 5.0 * (1 + 9e-10), 90, 100), trial((1, 3), 5.0001, 1, 1),
    ]  # fmt: skip
    search = SplitSearch.__new__(SplitSearch)
    search._trials, search._limit = {one.counts: one for one in trials}, 100.0
    assert search._best is trials[2]
    search._limit = np.inf
    assert search._best is trials[0]
    search._trials, search._limit = {one.counts: one for one in trials[:3]}, 90.0
    assert search._best is trials[2]
    assert search._over(np.array([[95.0, 80.0], [92.0, 91.0]])).tolist() == [7.0, 1.0], "summed over ranks"


def neighbours_by_hand(search: SplitSearch, counts: tuple[int, ...], most: int) -> list[Any]:
    """All moves of a layer, evaluated one by one."""
    giving, taking = possible_moves(counts)
    moves = [move_layer(counts, *pair) for pair in zip(giving.tolist(), taking.tolist(), strict=True)]
    if len(moves) > most:
        is_over = bool(search._over(search._bytes.values(counts)))
        functions = search._bytes if is_over else search._seconds
        largest = int(functions.values(counts).argmax())
        moves.sort(key=lambda move: round(functions.values(move)[largest], 6))
        moves = moves[:most]
    ranks = [
        (float(search._over(search._bytes.values(move)).round()), round(search._seconds.values(move).max() / 0.5) * 0.5, index, move)
        for index, move in enumerate(moves)
    ]  # fmt: skip
    return [(over, seconds, move) for over, seconds, _, move in sorted(ranks)[:12]]


@pytest.mark.parametrize("limit", [35.0, 1e9])
@pytest.mark.parametrize("num_stages", [5, 18])
def test_neighbours_are_the_twelve_moves_with_the_lowest_bounds_up_to_a_tick(num_stages: int, limit: float) -> None:
    """Of 306 moves, only the 256 that lower the largest bound most are looked at; a tick is 0.5 s here."""
    dice = np.random.default_rng(3)
    counts = tuple(dice.integers(2, 6, num_stages).tolist())
    search = SplitSearch.__new__(SplitSearch)
    search._tick_s, search._limit = 0.5, limit
    search._seconds = LinearFunctions([1.0] * sum(counts), num_stages)
    search._bytes = LinearFunctions([1.0] * sum(counts), num_stages)
    for functions, size in ((search._seconds, 3), (search._bytes, num_stages)):
        weights = dice.integers(1, 40, (size, num_stages)) / 3
        functions.add(weights, counts, dice.integers(1, 60, size).astype(float))
    assert search._neighbours(counts) == neighbours_by_hand(search, counts, 256)


def lowest_of(bounds: Callable[[int], tuple[float, float]], enough: Any, *, ways: int = 1) -> tuple[Any, list[int]]:
    """Return the lowest split of numbers n with neighbours up to n ± `ways`, from 0, and the numbers looked around."""
    looked: list[int] = []

    def neighbours(counts: tuple[int, ...]) -> list[Any]:
        looked.append(counts[0])
        steps = [step for step in range(-ways, ways + 1) if step]
        return [(*bounds(counts[0] + step), (counts[0] + step,)) for step in steps if abs(counts[0] + step) <= 50]

    search: Any = SimpleNamespace(_trials={(0,): None}, _best=SimpleNamespace(counts=(0,)), _neighbours=neighbours)
    return SplitSearch._lowest(search, enough), looked


def test_a_search_looks_further_until_a_bound_is_low_enough() -> None:
    lowest, looked = lowest_of(lambda n: (0.0, 10.0 - n), (0.0, 5.0, ()))
    assert lowest == (0.0, 4.0, (6,))
    assert sorted(looked) == [*range(-5, 6)]


def test_a_search_gives_up_after_six_moves_without_progress() -> None:
    lowest, looked = lowest_of(lambda n: (0.0, 9.0 + abs(n)), (0.0, 5.0, ()))
    assert lowest == (0.0, 10.0, (-1,))
    assert sorted(looked) == [*range(-6, 7)]
    lowest, looked = lowest_of(lambda n: (0.0, 9.0 + n), (0.0, -99.0, ()))
    assert lowest == (0.0, -41.0, (-50,)), "with progress, it goes on to the end"


def test_a_search_looks_around_six_splits_at_once() -> None:
    _, looked = lowest_of(lambda n: (0.0, 9.0 + abs(n)), (0.0, 5.0, ()), ways=5)
    assert looked[:7] == [0, -1, 1, -2, 2, -3, 3]
    assert len(looked) == 1 + 6 * 6


def test_a_search_looks_for_a_split_that_fits_if_bounds_are_lower_but_none_fits() -> None:
    lowest, _ = lowest_of(lambda n: (float(max(0, 3 - n)), 9.0), (5.0, 99.0, ()))
    assert lowest == (0.0, 9.0, (3,))


@pytest.mark.parametrize(
    ("second", "number"), [((0.0, 9.996, (5,)), 3), ((0.0, 9.998, (5,)), 2), ((1.0, 1.0, (5,)), 2)]
)
def test_a_split_is_simulated_if_its_bound_is_three_in_ten_thousand_lower(second: Any, number: int) -> None:
    """The best takes 10 s and fits, and four may be simulated."""
    bounds = iter([(0.0, 9.0, (4,)), second, (0.0, 10.0, (6,))])
    enoughs: list[Any] = []
    best = SimpleNamespace(counts=(1,), seconds=10.0, peak_bytes=np.zeros(1))
    search: Any = SimpleNamespace(
        _trials={(1,): best}, _most_trials=4, _best=best, _over=lambda peak: peak.sum(), _simulate=lambda counts: counts,
        _lowest=lambda enough: enoughs.append(enough) or next(bounds),
    )  # fmt: skip
    search._add = lambda counts: search._trials.update({counts: best})
    SplitSearch._search(search)
    assert len(search._trials) == number
    assert enoughs[0] == (0.0, pytest.approx(10 * (1 - 3e-4), rel=1e-12), ())
