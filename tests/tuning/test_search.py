"""The search is no slower than trying everything, goes on where it stopped, and says why nothing fits."""

import itertools
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.base.errors import ConfigError, DoesNotFit, PpsimError, ScheduleError
from ppsim.catalog.build import find
from ppsim.projection.project import iteration_of, project, table_of
from ppsim.tuning import search
from ppsim.tuning.evaluate import EvaluationResult
from ppsim.tuning.search import tune
from ppsim.tuning.space import Configuration, configurations, space_for
from tests.defaults import number_defaults
from tests.tuning.questions import question


def exhaustive(asked, space):
    """(seconds, bytes) of every configuration that fits, by projecting each by itself."""
    found = []
    for candidate in configurations(asked, space):
        plan = asked.plan_of(candidate)
        try:
            table, _ = table_of(plan, find(candidate.schedule))
            iteration_time_s, peak = iteration_of(plan, table)
        except PpsimError:
            continue
        if peak <= asked.memory_limit_bytes:
            found.append((iteration_time_s, peak))
    return sorted(set(found))


def pareto(points):
    front = []
    for iteration_time_s, peak in points:
        if not front or peak < front[-1][1]:
            front.append((iteration_time_s, peak))
    return front


@pytest.mark.parametrize(
    ("asked", "ranges"),
    [
        pytest.param(
            question(gpus=8, batch=16, limit_gib=40.0), {"cp": [1], "micro_batch": [1, 2], "vpp": [1, 2]},
            marks=pytest.mark.search,
        ),
        pytest.param(
            question("mixtral-8x7b", layers=8, gpus=8, batch=8, length=4096, limit_gib=60.0),
            {"cp": [1], "tp": [1, 2], "micro_batch": [1], "vpp": [1, 2]}, marks=pytest.mark.search,
        ),
        (question("gpt2", gpus=4, batch=4, length=1024, limit_gib=4.0), {}),
    ],
    ids=["dense", "experts", "tied"],
)  # fmt: skip
def test_best_and_pareto_set_are_those_of_trying_everything(asked, ranges):
    space = space_for(asked, **ranges)
    points = exhaustive(asked, space)
    found = tune(asked, space, top=5)
    assert found.best[0].iteration_time_s == points[0][0]
    assert {(one.iteration_time_s, one.peak_bytes) for one in found.best} <= set(points)
    assert max(one.iteration_time_s for one in found.best) <= points[min(4, len(points) - 1)][0]
    assert [(one.iteration_time_s, one.peak_bytes) for one in found.pareto] == pareto(points)
    assert found.counts["simulated"] < len(points) or len(points) < 60
    assert sum(found.counts.values()) == 2 * found.counts["configurations"]


def test_the_best_is_what_project_says_of_it():
    asked = question(gpus=8, batch=16)
    found = tune(asked, space_for(asked, cp=[1], micro_batch=[1]), top=1)
    best = found.best[0]
    made = project(asked.plan_of(best.candidate))
    assert made.iteration_time_s == best.iteration_time_s
    assert made.timeline.memory.peak_bytes.max() == best.peak_bytes
    assert made.tokens_per_s == pytest.approx(found.tokens_per_s(best))
    assert made.model_flops_utilization == pytest.approx(found.utilization(best))


def test_fitted_schedules_are_searched_too():
    asked = question("gpt2", gpus=2, batch=4, length=1024)
    one = {"pp": [2], "tp": [1], "cp": [1], "micro_batch": [1], "recompute": ["none"]}
    found = tune(asked, space_for(asked, schedule=["1f1b", "zb-1p"], **one))
    assert {one.candidate.schedule for one in found.best} == {"1f1b", "zb-1p"}
    zb = next(one for one in found.best if one.candidate.schedule == "zb-1p")
    assert project(asked.plan_of(zb.candidate)).iteration_time_s == zb.iteration_time_s


def test_auto_improves_on_the_best_or_leaves_it():
    asked = question("gpt2", gpus=2, batch=4, length=1024)
    one = {"pp": [2], "tp": [1], "cp": [1], "micro_batch": [1], "vpp": [1]}
    found = tune(asked, space_for(asked, schedule=["1f1b", "auto"], **one), search_s=0.2)
    alone = tune(asked, space_for(asked, schedule=["1f1b"], **one))
    searched = [one for one in found.best if one.candidate.schedule == "auto"]
    assert len(searched) == len({(one.candidate.recompute, one.candidate.split) for one in searched}) > 0
    assert found.best[0].iteration_time_s <= alone.best[0].iteration_time_s


class Killed(Exception):
    pass


def test_a_killed_search_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "_BATCH", 8)
    asked, state = question("gpt2", gpus=4, batch=8, length=1024, limit_gib=4.0), tmp_path / "tune.json"
    whole = tune(asked)
    found, num_kills = None, 0
    while found is None:
        calls = itertools.count()

        def stop_at_the_third(decided, total, best_s, calls=calls):
            if next(calls) == 2 and decided < total:
                raise Killed

        before = len(json.loads(state.read_text())["verdicts"]) if state.exists() else 0
        try:
            found = tune(asked, state=state, progress=stop_at_the_third)
        except Killed:
            num_kills += 1
            assert len(json.loads(state.read_text())["verdicts"]) > before
    assert num_kills > 2
    assert found.to_json() == whole.to_json() == json.loads(state.read_text())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "is no state of ppsim tune"),
        ("[]", "is no state of ppsim tune"),
        ('{"format": "ppsim-tune/1", "question": 3}', "is of another search: model is None there and gpt2 here"),
    ],
)
def test_a_state_that_is_none_is_refused(tmp_path, content, words):
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        tune(question("gpt2", gpus=2, batch=4, length=1024), state=path)


def test_the_state_of_another_question_is_refused(tmp_path):
    path = tmp_path / "state.json"
    tune(question("gpt2", gpus=2, batch=4, length=1024), state=path)
    with pytest.raises(ConfigError, match="is of another search: global_batch is 4 there and 8 here"):
        tune(question("gpt2", gpus=2, batch=8, length=1024), state=path)


@pytest.mark.slow
def test_a_model_that_fits_nowhere_says_by_how_much_and_what_would_fit():
    asked = question("llama3-8b", gpus=2, batch=8, limit_gib=30.0)
    with pytest.raises(DoesNotFit) as refused:
        tune(asked)
    text = str(refused.value)
    assert "llama3-8b does not fit on 2 GPUs: the smallest configuration (tp" in text
    number = int(text.split("; ")[1].split(" GPUs would fit")[0])
    assert tune(question("llama3-8b", gpus=number, batch=8, limit_gib=30.0)).best
    with pytest.raises(DoesNotFit):
        tune(question("llama3-8b", gpus=number // 2, batch=8, limit_gib=30.0))


def test_recomputation_is_named_where_it_would_do():
    asked = question("llama3-8b", gpus=4, batch=2, length=65536)
    with pytest.raises(DoesNotFit, match="--recompute full would fit"):
        tune(asked, space_for(asked, recompute=["none"], cp=[1]))
    assert tune(asked, space_for(asked, recompute=["full"], cp=[1])).best


def candidate_of(name, **sizes):
    given = {"pp": 2, "vpp": 1, "schedule": "1f1b", "dp": 1, "micro_batch": 1, "key": name} | sizes
    return SimpleNamespace(**given)


def bounds_of(name, bound_s, least_bytes, **sizes):
    return SimpleNamespace(candidate=candidate_of(name, **sizes), bound_s=bound_s, least_bytes=least_bytes)


def test_a_batch_has_what_no_result_dominates_in_groups_of_equal_shape_the_longest_work_first(monkeypatch):
    """(4 s, 6 B) dominates what takes as long or longer with as much memory or more, unless it ranks as high."""
    ranks = {"may rank": 1.0}
    monkeypatch.setattr(search, "rank_of", lambda question, one, peak, seconds: ranks.get(one.key, 9.0))
    open_ones = [
        bounds_of("dominated", 4.0, 6.0), bounds_of("may rank", 4.0, 6.0), bounds_of("faster", 3.9, 7.0, pp=4),
        bounds_of("smaller", 5.0, 5.9, vpp=2), bounds_of("evaluated", 1.0, 1.0), bounds_of("alike", 3.0, 7.0, pp=4),
        bounds_of("larger batch", 3.0, 7.0, dp=2), bounds_of("later", 3.0, 7.0),
    ]  # fmt: skip
    made = object.__new__(search._Search)
    vars(made).update(open=open_ones, verdicts={"evaluated": 1}, question=None)
    for name, value in {"front": [(4.0, 6.0)], "slowest": 5.0, "batch": 5, "num_configurations": 20}.items():
        monkeypatch.setattr(search._Search, name, value, raising=False)
    groups = [[one.candidate.key for one in group] for group in made.next_batch()]
    assert groups == [["faster", "alike"], ["smaller"], ["may rank"], ["larger batch"]]
    assert [one.candidate.key for one in made.open] == [
        "may rank",
        "faster",
        "smaller",
        "alike",
        "larger batch",
        "later",
    ]
    assert made.num_decided == 14
    made.open = []
    assert made.next_batch() == []


def found(seconds, peak, **fields):
    usual = {"tp": 2, "cp": 1, "ep": 1, "dp": 4, "pp": 2, "vpp": 1, "micro_batch": 1, "recompute": "none",
             "schedule": "1f1b", "split": "auto"}  # fmt: skip
    return search.FoundConfiguration(Configuration(**usual | fields), seconds, peak)


def test_variants_that_save_neither_time_nor_memory_are_dropped():
    first, larger, equal, smaller = (
        found(seconds, peak, **fields)
        for seconds, peak, fields in (
            (1.0, 5.0, {"split": "searched"}), (2.0, 6.0, {}), (3.0, 5.0, {"switched": ("offload=0.25",)}),
            (4.0, 4.0, {"switched": ("offload=0.5",)}),
        )
    )  # fmt: skip
    even, other = found(2.5, 9.0, split="even"), found(2.5, 9.0, zero=3)
    assert search._without_worse_variants([first, larger, even, other, equal, smaller]) == [
        first,
        even,
        other,
        smaller,
    ]


def test_equal_splits_are_tried_once():
    looks = [
        SimpleNamespace(candidate=found(1.0, 1.0, split=split).candidate, counts=counts)
        for split, counts in (("auto", (4, 4)), ("even", (4, 4)), ("even", (3, 5)), ("searched", (4, 4)))
    ]
    assert search._distinct(looks) == [looks[0], looks[2]]


@dataclass(frozen=True)
class Searched:
    """A plan of a data-parallel size, whose schedule is searched."""

    dp: int
    search_time_s: float = 0.0
    seed: int = 0


def test_tables_are_searched_for_the_three_best_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of dp 1 is known; dp 2 fits, dp 3 does not, and dp 4 has no table."""
    plans: list[Searched] = []

    def project_of(plan: Searched) -> Any:
        plans.append(plan)
        if plan.dp == 4:
            raise ScheduleError("the memory is too small for any table")
        memory = SimpleNamespace(peak_bytes=np.array([6.0, 7.0, 5.0]))
        fits = {2: None, 3: False}[plan.dp]
        return SimpleNamespace(timeline=SimpleNamespace(memory=memory), iteration_time_s=1.5, fits=fits)

    monkeypatch.setattr(search, "project", project_of)

    def searched_for(sizes: list[int]) -> dict[int, EvaluationResult]:
        best = [found(1.0, 1.0, dp=dp, schedule=name) for dp in sizes for name in ("1f1b", "zb-h1")]
        monkeypatch.setattr(search._Search, "found", best)
        own = found(1.0, 1.0, dp=1, schedule="auto").candidate
        state = object.__new__(search._Search)
        asked = SimpleNamespace(plan_of=lambda one: Searched(one.dp))
        reports: list[int] = []
        vars(state).update(question=asked, seed=7, known={}, verdicts={own.key: "known"})
        state.search_tables(2.5, lambda: reports.append(len(state.verdicts)))
        assert state.verdicts.pop(own.key) == "known"
        assert reports == [2, 3, 4][: len(state.verdicts)]
        assert state.known.keys() == state.verdicts.keys()
        assert all((state.known[key].key, state.known[key].schedule) == (key, "auto") for key in state.known)
        return {state.known[key].dp: outcome for key, outcome in state.verdicts.items()}

    assert searched_for([1, 2, 3, 4]) == {
        2: EvaluationResult("fits", 7.0, 1.5), 3: EvaluationResult("does not fit", 7.0),
    }  # fmt: skip
    assert searched_for([4, 2, 3]) == {
        4: EvaluationResult("does not fit", np.inf), 2: EvaluationResult("fits", 7.0, 1.5),
        3: EvaluationResult("does not fit", 7.0),
    }  # fmt: skip
    assert plans[0] == Searched(2, 2.5, 7)


def test_a_search_refuses_an_empty_ranking() -> None:
    for top in (0, -1):
        with pytest.raises(ConfigError, match=f"top must be at least 1: got {top}"):
            tune(question("gpt2", gpus=2, batch=4, length=1024), top=top)


def test_a_search_ranks_ten_in_one_process_and_searches_a_table_for_ten_seconds() -> None:
    assert number_defaults(search)["tune"] == {"top": 10, "processes": 1, "seed": 0, "search_s": 10.0}
