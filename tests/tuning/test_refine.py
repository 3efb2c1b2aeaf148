"""The best rows are refined: less recomputation than full where memory is short, other stages, fitted schedules."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.projection.plan import memory_limit_of
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from ppsim.simulation.verdict import MemoryLimit
from ppsim.tuning import refine as refine_module
from ppsim.tuning.command_line import command_of
from ppsim.tuning.evaluate import EvaluationResult
from ppsim.tuning.lower_bounds import BoundsCalculator
from ppsim.tuning.refine import (
    RefineState,
    _descent,
    _fastest_too_large,
    _first_of_layouts,
    _microbatches,
    _of_fitted,
    _of_other_stages,
    _with_fewest_layers,
    layout_of,
    least_recomputed,
    refine,
)
from ppsim.tuning.search import tune
from ppsim.tuning.space import Configuration, configurations, space_for
from tests.tuning.questions import question

TIGHT = {"tp": [4], "cp": [1], "pp": [4], "vpp": [1], "micro_batch": [1], "schedule": ["1f1b"], "zero": [1]}


def test_without_a_list_recomputation_is_refined_to_within_1_percent_of_all_numbers_of_layers() -> None:
    job = {"model": "llama3-70b", "stack": "plain", "cluster": "dgx-h100", "gpus": 64, "global_batch": 128}
    every = []
    for number in range(21):
        made = ppsim.project(
            **job, tp=4, pp=4, micro_batch=1, schedule="1f1b", split="even", recompute=f"block/{number}",
            memory_limit=0.95 * 85520809984,
        )  # fmt: skip
        if made.fits:
            every.append(made.iteration_time_s)
    found = ppsim.tune(**job, **TIGHT, split=["even"], memory_limit=0.95 * 85520809984)
    assert found.best[0].iteration_time_s <= 1.01 * min(every)
    assert found.best[0].iteration_time_s < 0.95 * max(every)


def test_a_list_of_the_user_is_tried_exactly() -> None:
    found = ppsim.tune(
        model="llama3-70b", stack="plain", gpus=64, global_batch=128, tp=[4], cp=[1], pp=[4], micro_batch=[1],
        recompute=["none", "full"], vpp=[1, 2], schedule=["1f1b", "zbv-fixed"], split=["even"],
    )  # fmt: skip
    assert {one.candidate.split for one in found.simulated} == {"even"}
    assert {one.candidate.recompute for one in found.simulated} <= {"none", "full"}
    assert {one.candidate.vpp for one in found.simulated} <= {1, 2}
    assert {one.candidate.schedule for one in found.simulated} <= {"1f1b", "zbv-fixed"}


EXPERTS = {
    "model": "gpt-oss-20b", "cluster": "dgx-h100", "stack": "plain", "gpus": 16, "global_batch": 64, "seq_len": 4096,
    "tp": [1], "cp": [1], "ep": [8], "pp": [1], "vpp": [1], "micro_batch": [1], "schedule": ["1f1b"], "zero": [1],
    "recompute": ["none"], "split": ["even"], "cuda_graphs": "none",
}  # fmt: skip


def test_options_that_are_not_given_are_switched_if_this_is_faster() -> None:
    """With experts on 16 GPUs, alltoall is faster than the default dispatcher."""
    given = ppsim.tune(**EXPERTS, moe_dispatcher="deepep")
    assert [one.candidate.switches.get("moe_dispatcher") for one in given.simulated] == [None] * len(
        given.simulated
    )
    found = ppsim.tune(**EXPERTS)
    assert found.best[0].candidate.switches["moe_dispatcher"] == "alltoall"
    assert found.best[0].iteration_time_s < given.best[0].iteration_time_s
    assert "--moe-dispatcher alltoall" in command_of(found.question, found.best[0].candidate)
    row = found.to_frame().iloc[0]
    assert (row["switched"], row["command"]) == (
        "--moe-dispatcher alltoall",
        command_of(found.question, found.best[0].candidate),
    )
    assert row["headroom_bytes"] == found.question.memory_bound_bytes - row["peak_bytes"] > 0


def test_cuda_graphs_need_more_free_memory_to_fit() -> None:
    asked = replace(question(gpus=8, batch=16), memory_limit_bytes=None)
    first = configurations(asked, space_for(asked, cp=[1]))[0]
    peak_bytes = memory_limit_of(asked.job, "layer").safe_bytes + 1
    assert asked.verdict(first, peak_bytes) == "fits"
    assert asked.verdict(replace(first, switched=("cuda_graphs=layer",)), peak_bytes) == "fits tightly"


def test_variants_that_save_neither_time_nor_memory_are_no_rows() -> None:
    found = ppsim.tune(**EXPERTS)
    bases = [replace(one.candidate, switched=()) for one in found.best]
    smaller = [one.peak_bytes for one in found.best if replace(one.candidate, switched=()) == bases[0]]
    assert smaller == sorted(smaller, reverse=True)
    assert len(found.simulated) > len(found.best)


def test_a_search_starts_from_a_plan_and_may_leave_it() -> None:
    asked = question("gpt2", gpus=2, batch=24, length=1024)
    start = Configuration(
        1, 1, 1, 2, 1, 1, 12, "none", "1f1b", "searched", 1, ("gradient_accumulation_fusion=False",)
    )
    space = space_for(asked, start=start)
    assert 12 in space.micro_batch
    found = tune(asked, replace(space, tp=(1,), cp=(1,), pp=(1,)), refined=["switches"])
    assert start.key in found.verdicts
    assert found.best[0].candidate.switched == ()


@pytest.mark.slow
def test_stages_per_rank_beyond_the_ranges_and_fitted_schedules_are_tried_on_the_best() -> None:
    asked = question("mixtral-8x7b", layers=12, gpus=8, batch=32, length=4096)
    space = space_for(asked, tp=[2], cp=[1], pp=[2], micro_batch=[1], zero=[1])
    plain = tune(asked, space)
    found = tune(asked, space, refined=["vpp", "schedule"])
    more = {one.candidate for one in found.simulated} - {one.candidate for one in plain.simulated}
    assert {one.vpp for one in more} & {3, 6}
    assert found.best[0].iteration_time_s <= plain.best[0].iteration_time_s
    for row in found.simulated[:3]:
        assert row.peak_bytes <= asked.memory_limit_bytes


@pytest.mark.parametrize(
    ("schedule", "batch", "is_tried"), [("v-half", 8, True), ("zbv-fixed", 8, False), ("v-half", 4096, False)]
)
def test_v_flex_is_tried_where_a_schedule_fitted_to_the_costs_is_best(
    schedule, batch, is_tried, monkeypatch
) -> None:
    """Not if its search takes long."""
    asked = question("gpt2", gpus=2, batch=batch, length=1024)
    space = space_for(asked, tp=[1], cp=[1], pp=[2], vpp=[2], micro_batch=[1])
    best = replace(configurations(asked, space)[0], schedule=schedule)
    state = RefineState(
        BoundsCalculator(asked), space, {best.key: EvaluationResult("fits", 1.0, 10.0)}, {best.key: best}
    )
    tried = []
    monkeypatch.setattr(state, "try_all", lambda candidates: tried.extend(one.schedule for one in candidates))
    refine(state, [], ["schedule"])
    assert ("v-flex" in tried) == is_tried


@pytest.mark.search
def test_a_refined_search_goes_on_from_its_file(tmp_path) -> None:
    asked, path = question("gpt2", gpus=2, batch=8, length=1024, limit_gib=4.0), tmp_path / "state.json"
    space = space_for(asked, tp=[1], cp=[1], micro_batch=[1])
    found = tune(asked, space, state=path, refined=["recompute", "vpp", "schedule"])
    assert json.loads(path.read_text())["verdicts"].keys() == found.verdicts.keys()
    again = tune(asked, space, state=path, refined=["recompute", "vpp", "schedule"])
    assert again.best == found.best


def test_a_verdict_of_a_layout_that_the_space_does_not_have_is_refused(tmp_path) -> None:
    asked, path = question("gpt2", gpus=2, batch=8, length=1024), tmp_path / "state.json"
    tune(asked, state=path)
    state = json.loads(path.read_text())
    state["verdicts"]["tp7 cp1 ep1 dp1 pp1 vpp1 mb1 none 1f1b auto"] = ["fits", 1.0, 1.0]
    path.write_text(json.dumps(state))
    with pytest.raises(PpsimError, match=re.escape("a verdict for 'tp7 cp1")):
        tune(asked, state=path)


def test_the_key_of_a_configuration_is_read_back() -> None:
    asked = question(gpus=8, batch=16)
    for one in configurations(asked, space_for(asked, cp=[1])):
        assert Configuration.of_key(one.key) == one
    switched = replace(one, zero=3, switched=("etp=1", "offload_modules=", "overlap_ep=megatron"))
    assert Configuration.of_key(switched.key) == switched
    assert switched.switches == {"etp": 1, "offload_modules": "", "overlap_ep": "megatron"}
    assert Configuration.of_key("tp1 pp1") is None


@pytest.mark.slow
def test_plans_of_each_stage_are_rows_if_they_are_faster() -> None:
    """A job that fits with recomputation only: the first row has a plan, and its command gives its time.

    A given limit, as large as the default one, has no plans that fit tightly.
    """
    job = {"model": "llama3-70b", "stack": "plain", "gpus": 64, "global_batch": 128, "tp": [4], "pp": [4], "cp": [1], "micro_batch": [2],
           "schedule": ["1f1b"], "vpp": [1], "zero": [1], "memory_limit": 79_671_643_341.0}  # fmt: skip
    without, found = ppsim.tune(**job), ppsim.tune(**job, stage_plan="auto")
    assert found.best[0].candidate.recompute == "auto"
    assert found.best[0].iteration_time_s < without.best[0].iteration_time_s * 0.999
    assert "--plan auto" in command_of(found.question, found.best[0].candidate)
    made = ppsim.project(model="llama3-70b", stack="plain", gpus=64, global_batch=128, tp=4, pp=4, micro_batch=2, stage_plan="auto",
                         memory_limit=found.question.memory_limit_bytes)  # fmt: skip
    assert made.iteration_time_s == pytest.approx(found.best[0].iteration_time_s)


def test_a_configuration_is_tried_if_its_bounds_beat_the_best_and_it_is_no_repetition() -> None:
    """The best takes 10 s. An even split is left out if the automatic one has the same layers per stage."""

    def outlook(one: Configuration) -> SimpleNamespace:
        bound_s = bounds[one.micro_batch]
        return SimpleNamespace(candidate=one, least_bytes=1.0, bound_s=bound_s, counts=counts[one.split])

    asked = question(gpus=8, batch=16)
    first = configurations(asked, space_for(asked, cp=[1]))[0]
    bounds, counts = {1: 9.0, 2: 10.0, 4: 11.0}, {"even": (4, 4), "auto": (5, 3)}
    outlooks = SimpleNamespace(question=asked, of=outlook, counts=lambda one: counts[one.split])
    best = EvaluationResult("fits", 1.0, 10.0)
    state = RefineState(outlooks, space_for(asked, split=["auto", "even"]), {"best": best}, {"best": first})

    def is_tried(micro_batch: int, split: str) -> bool:
        return state.look(replace(first, micro_batch=micro_batch, split=split)) is not None

    assert [is_tried(number, "auto") for number in bounds] == [True, False, False]
    assert is_tried(1, "even")
    counts["auto"] = (4, 4)
    assert not is_tried(1, "even")
    state.note(replace(first, micro_batch=1, split="auto"), EvaluationResult("fits", 1.0, 12.0))
    assert not is_tried(1, "auto")


def test_a_configuration_that_fits_tightly_is_tried_if_it_may_be_faster_than_all() -> None:
    limit = MemoryLimit(usable_bytes=100.0, safe_bytes=80.0)
    asked = question(gpus=8, batch=16)
    slow, fast, other = configurations(asked, space_for(asked, tp=[1, 2, 4], cp=[1], pp=[1], micro_batch=[1]))[:3]
    limited = SimpleNamespace(
        memory_limit=limit, is_elsewhere=lambda one: False, verdict=lambda one, peak_bytes: limit.word(peak_bytes)
    )
    outlooks = SimpleNamespace(question=limited)
    verdicts = {
        slow.key: EvaluationResult("fits", 50.0, 10.0),
        fast.key: EvaluationResult("fits", 90.0, 8.0),
        other.key: EvaluationResult("does not fit", 200.0),
    }
    state = RefineState(outlooks, space_for(asked), verdicts, {one.key: one for one in (slow, fast, other)})
    assert [
        state.may_win(SimpleNamespace(candidate=slow, least_bytes=50.0, bound_s=bound_s)) for bound_s in (9.0, 10.0)
    ] == [
        True,
        False,
    ]
    assert [
        state.may_win(SimpleNamespace(candidate=slow, least_bytes=90.0, bound_s=bound_s)) for bound_s in (7.0, 9.0)
    ] == [
        True,
        False,
    ]
    assert state.fastest(1) == [slow, fast]


def test_a_configuration_of_the_trainer_is_tried_if_it_may_be_faster_than_those_of_the_trainer() -> None:
    asked = replace(question(gpus=8, batch=16, runtime="megatron"), trainer="megatron")
    ranges = {"tp": [1], "cp": [1], "pp": [4], "vpp": [2], "micro_batch": [1]}
    own, elsewhere = (
        configurations(asked, space_for(asked, schedule=[name], **ranges))[0]
        for name in ("interleaved-1f1b", "zbv-fixed")
    )
    verdicts = {
        own.key: EvaluationResult("fits", 50.0, 10.0),
        elsewhere.key: EvaluationResult("fits", 50.0, 8.0),
    }
    outlooks = SimpleNamespace(question=asked)
    state = RefineState(outlooks, space_for(asked), verdicts, {one.key: one for one in (own, elsewhere)})

    def may_win(one: Configuration, bound_s: float) -> bool:
        return state.may_win(SimpleNamespace(candidate=one, least_bytes=50.0, bound_s=bound_s))

    assert [may_win(own, 9.0), may_win(own, 11.0)] == [True, False]
    assert [may_win(elsewhere, 7.0), may_win(elsewhere, 9.0)] == [True, False]
    assert state.fastest(1)[0] == own


def test_all_layouts_that_fit_only_with_recomputation_have_a_bound_of_their_time() -> None:
    """Full recomputation takes 4 s more per layout; the layouts need the same share of the memory that it saves."""
    asked = question(gpus=8, batch=16)
    first = configurations(asked, space_for(asked, cp=[1]))[0]
    looks = [
        SimpleNamespace(
            candidate=replace(first, dp=dp, recompute=recompute), bound_s=4.0 * dp, least_bytes=num_bytes
        )
        for dp in range(1, 16) for recompute, num_bytes in (("none", 9.0), ("full", 1.0))
    ]  # fmt: skip
    tight = least_recomputed(looks, {}, 5.0)
    assert [(bound_s, one.dp, one.recompute) for bound_s, one in tight] == [
        (3.0 * dp, dp, "none") for dp in range(1, 16)
    ]
    assert least_recomputed(looks, {}, 9.0) == []


def fake_search(**fields: Any) -> Any:
    """A refinement whose parts are given by name."""
    search = object.__new__(RefineState)
    vars(search).update(fields)
    return search


def layout(**sizes: Any) -> Configuration:
    """1f1b with tp 2, cp 3, ep 5, dp 7, pp 4, micro-batch 6 and ZeRO 1, except `sizes`."""
    return replace(Configuration(2, 3, 5, 7, 4, 1, 6, "none", "1f1b", "even"), **sizes)


def test_a_layout_is_all_sizes_but_stages_per_rank() -> None:
    assert layout_of(layout()) == (2, 3, 5, 7, 4, 6, 1)
    ordered = [(1, layout()), (2, layout(vpp=2)), (3, layout(tp=1)), (4, layout(zero=3)), (5, layout(cp=1))]
    assert _first_of_layouts(ordered, 3) == [layout(), layout(tp=1), layout(zero=3)]
    assert _first_of_layouts(ordered, 9) == [layout(), layout(tp=1), layout(zero=3), layout(cp=1)]


def of_job(layers: int, batch: int, **fields: Any) -> Any:
    job = SimpleNamespace(global_batch=batch, model=SimpleNamespace(layers=[None] * layers))
    return fake_search(outlooks=SimpleNamespace(question=SimpleNamespace(job=job)), **fields)


def test_microbatches_are_the_batch_by_its_parallel_parts() -> None:
    assert _microbatches(of_job(30, 420), layout()) == 10


@pytest.mark.parametrize(
    ("layers", "pp", "vpp"),
    [(24, 4, {2, 3, 6}), (22, 4, {2, 3, 6}), (24, 1, set()), (64, 4, {2, 4, 8, 16}), (23, 4, set())],
)
def test_other_stages_divide_the_layers_or_two_more(layers: int, pp: int, vpp: set[int]) -> None:
    """The ends may be empty, as with 22 layers on 24 stages."""
    search = of_job(
        layers, 7 * 6 * 8, space=SimpleNamespace(patterns=("interleaved-1f1b", "zbv"), split=("even", "auto"))
    )
    tried = list(_of_other_stages(search, layout(pp=pp)))
    wide = [one for one in tried if one.schedule == "interleaved-1f1b"]
    assert {one.vpp for one in wide} == vpp
    assert {one.split for one in wide} == ({"even", "auto"} if vpp else set())
    assert {one.vpp for one in tried if one.schedule == "zbv"} == vpp & {2}


@pytest.mark.parametrize(("pp", "layers", "names"), [(4, 8, ["zbv", "v-half"]), (1, 8, []), (4, 5, [])])
def test_fitted_schedules_need_two_stages_on_each_rank(pp: int, layers: int, names: list[str]) -> None:
    tried = list(_of_fitted(of_job(layers, 7 * 6 * 8), layout(pp=pp, vpp=3)))
    assert [(one.schedule, one.vpp) for one in tried] == [(name, 2) for name in names]


def look_of(candidate: Configuration, bound_s: float, least_bytes: float = 0.0) -> Any:
    return SimpleNamespace(candidate=candidate, bound_s=bound_s, least_bytes=least_bytes)


@pytest.mark.parametrize("has_fitting", [False, True])
def test_layouts_that_do_not_fit_are_ordered_by_time_or_if_nothing_fits_by_bytes(has_fitting: bool) -> None:
    one, two, three, four = (layout(tp=number) for number in (1, 2, 4, 8))
    outlooks = SimpleNamespace(
        of=lambda candidate, *, is_limited: look_of(candidate, is_limited or 9.0 - candidate.tp)
    )
    verdicts = {three.key: EvaluationResult("does not fit", 5.0)}
    if has_fitting:
        verdicts[four.key] = EvaluationResult("fits", 1.0, 1.0)
    search = fake_search(outlooks=outlooks, verdicts=verdicts, limit=MemoryLimit.given(100.0))
    looks = [
        look_of(two, 1.0, 130.0),
        look_of(one, 1.0, 120.0),
        look_of(three, 1.0, 60.0),
        look_of(four, 1.0, 100.0),
    ]
    expected = [three, two, one] if has_fitting else [three, one, two]
    assert _fastest_too_large(search, looks) == expected


def test_a_descent_switches_what_lowers_the_bound_by_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "abcde"
    steps = [replace(layout(), switched=(f"{name}=on",)) for name in names]
    bounds = dict(zip(steps, (8.0, 7.0, 6.995, 9.0, 5.0), strict=True)) | {layout(): 10.0}
    following = {
        layout(): [steps[0], steps[3]],
        steps[0]: [steps[1], steps[3]],
        steps[1]: [steps[2]],
        steps[2]: [steps[4]],
    }
    monkeypatch.setattr(refine_module, "_switched", lambda search, start: following[start])
    outlooks = SimpleNamespace(of=lambda candidate: look_of(candidate, bounds.get(candidate, 9.0)))
    search = fake_search(outlooks=outlooks, space=SimpleNamespace(allows=lambda candidate: True))
    assert list(_descent(search, layout())) == steps[:2], "the third gains 0.7 per mille"
    other_size = replace(steps[0], tp=1)
    assert refine_module._bounds(search, layout(), other_size) is None
    assert refine_module._bounds(search, layout(), replace(steps[0], zero=3)).candidate.zero == 3
    assert refine_module._bounds(search, layout(), layout(vpp=2)) is None, "nothing is switched"
    search.space = SimpleNamespace(allows=lambda candidate: False)
    assert refine_module._bounds(search, layout(), steps[0]) is None


def test_blocks_are_the_fewest_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of 14 - N for block/N, at least 12 - N by the bounds; 20 layers on four ranks are five of each."""
    outlooks = SimpleNamespace(
        of=lambda candidate: look_of(candidate, 0.0, 12.0 - int(candidate.recompute.removeprefix("block/"))),
        question=of_job(20, 1).outlooks.question,
    )  # fmt: skip
    monkeypatch.setattr(refine_module, "task_of", lambda outlooks, look: look)
    monkeypatch.setattr(refine_module, "exact_peak_bytes", lambda look: look.least_bytes + 2)
    search = fake_search(outlooks=outlooks)
    for limit_bytes, expected in ((13.0, ["block/1"]), (12.5, ["block/2"]), (10.0, ["block/4"]), (9.0, [])):
        assert [one.recompute for one in _with_fewest_layers(search, layout(), limit_bytes)] == expected


def test_each_layout_has_the_three_configurations_that_need_least_recomputation() -> None:
    """Full recomputation leaves 1 byte of a limit of 5: 9 bytes need half of its time, and 13 need two thirds."""
    numbers = {1: (8.0, 9.0), 2: (7.9, 13.0), 3: (7.6, float("inf")), 4: (8.2, 9.0)}
    looks = [
        look_of(layout(vpp=vpp, recompute=recompute), full_s if recompute == "full" else 1.0, num_bytes)
        for vpp, (full_s, _) in numbers.items() for recompute, num_bytes in (("none", 9.0), ("full", 1.0))
    ]  # fmt: skip
    verdicts = {layout(vpp=vpp).key: EvaluationResult("does not fit", held) for vpp, (_, held) in numbers.items()}
    assert least_recomputed(looks, verdicts, 5.0) == [
        (6.0, layout(vpp=1)), (pytest.approx(6.15), layout(vpp=4)), (pytest.approx(5.925), layout(vpp=2)),
    ]  # fmt: skip
    assert least_recomputed(looks, verdicts, 0.5) == [], "full recomputation does not fit"
    assert len(least_recomputed(looks, verdicts, 1.0)) == 3, "full recomputation just fits"
    smaller = {layout(vpp=1).key: EvaluationResult("fits", 5.0, 1.0)}
    assert [one.vpp for _, one in least_recomputed(looks[:2], smaller, 5.0)] == [1], "bounds of 9 bytes do not fit"


def test_the_forty_fastest_bounds_are_evaluated_if_they_may_win(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []

    def evaluate(tasks: list[Configuration], *, front: tuple[()]) -> list[tuple[str, EvaluationResult]]:
        assert front == ()
        evaluated.append(tasks[0].dp)
        if tasks[0].dp == 5:
            raise ConfigError("a link has no bandwidth")
        return [(tasks[0].key, EvaluationResult("fits", 3.0, 7.0))]

    monkeypatch.setattr(refine_module, "task_of", lambda outlooks, look: look.candidate)
    monkeypatch.setattr(refine_module, "evaluate", evaluate)
    noted: list[tuple[int, str]] = []
    search = fake_search(
        outlooks=None, look=lambda one: None if one.dp == 6 else look_of(one, 100.0 - one.dp),
        may_win=lambda look: look.candidate.dp != 7,
        note=lambda one, outcome: noted.append((one.dp, outcome.status)),
    )  # fmt: skip
    search.try_all(layout(dp=dp) for dp in [*range(1, 9), *range(1, 9)])
    assert evaluated == [8, 5, 4, 3, 2, 1]
    assert noted == [(dp, "fits") for dp in (8, 4, 3, 2, 1)]
    evaluated.clear()
    search.try_all(layout(dp=dp) for dp in range(10, 60))
    assert evaluated == list(range(59, 19, -1))


def test_the_fastest_of_all_and_of_those_that_fit_are_listed_once() -> None:
    """Each layout has its first configuration; switched options and searched splits are listed on request."""
    limited = SimpleNamespace(
        is_elsewhere=lambda one: False, verdict=lambda one, peak_bytes: "fits" if peak_bytes < 5 else "fits tightly"
    )
    tight, slow, later = layout(tp=1), layout(tp=2), layout(tp=2, vpp=2)
    switched, searched = layout(tp=4, switched=("offload=0.5",)), layout(tp=8, split="searched")
    numbers = {tight: (6.0, 2.0), slow: (4.0, 5.0), later: (4.0, 7.0), switched: (4.0, 3.0), searched: (4.0, 4.0)}
    search = fake_search(
        outlooks=SimpleNamespace(question=limited), known={one.key: one for one in numbers},
        verdicts={one.key: EvaluationResult("fits", *of_one) for one, of_one in numbers.items()},
    )  # fmt: skip
    search.known["too large"] = layout(tp=16)
    search.verdicts["too large"] = EvaluationResult("does not fit", 1.0)
    assert search.fastest(1) == [slow, tight]
    assert search.fastest(9) == [slow, tight]
    assert search.fastest(1, switched=True) == [switched, tight]
    assert search.fastest(2, searched=True) == [searched, slow, tight]
    assert search.fastest(9, switched=True, searched=True) == [switched, searched, slow, tight]


def test_options_are_switched_on_the_best_until_none_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, bool]] = []

    def switched(search: RefineState, start: Configuration, *, saving: bool = False) -> list[Configuration]:
        calls.append((start.dp, saving))
        return []

    monkeypatch.setattr(refine_module, "_switched", switched)
    asked: list[tuple[int, bool]] = []
    best = iter([[layout(dp=2), layout(dp=3)], [layout(dp=3), layout(dp=4)], [layout(dp=2)], [layout(dp=99)]])

    def fastest(number: int, *, switched: bool) -> list[Configuration]:
        asked.append((number, switched))
        return next(best)

    search = fake_search(try_all=list, fastest=fastest)
    refine_module._switch(search, [layout(dp=1), layout(dp=2)], [layout(dp=7), layout(dp=8)])
    assert calls == [(7, True), (8, True), *((dp, False) for dp in (1, 2, 3, 4))]
    assert asked == [(3, True)] * 3
    endless = iter(range(10, 99))
    search.fastest = lambda number, *, switched: [layout(dp=next(endless))]
    calls.clear()
    refine_module._switch(search, [], [])
    assert [dp for dp, _ in calls] == list(range(10, 22)), "twelve switches in succession"


@pytest.mark.parametrize(
    ("before", "seconds", "peak", "fits", "is_noted"),
    [
        (("fits", 3.0, 10.0), 9.98, 4.0, True, True),
        (("fits", 3.0, 10.0), 9.995, 4.0, True, False),
        (("fits", 3.0, 10.0), 9.98, 4.0, None, True),
        (("fits", 3.0, 10.0), 9.98, 4.0, False, False),
        (("fits", 3.0, 10.0), 5.0, 6.0, True, False),
        (("fits", 6.0, 10.0), 12.0, 4.0, True, True),
        (("does not fit", 9.0, 1.0), 12.0, 6.0, True, True),
        (None, 12.0, 6.0, True, True),
        (None, 0.0, 6.0, True, False),
    ],
)
def test_a_plan_of_each_stage_is_a_row_if_it_ranks_a_thousandth_before_the_configuration(
    before: tuple[Any, ...] | None, seconds: float, peak: float, fits: bool | None, is_noted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """More than 5 bytes fit tightly. A time of zero stands for a schedule that cannot run."""

    def project_table(plan: str, table: str) -> Any:
        assert (plan, table) == ("plan auto auto", "table of plan auto auto")
        if not seconds:
            raise PpsimError("its transfers deadlock")
        memory = SimpleNamespace(peak_bytes=np.array([1.0, peak]))
        return SimpleNamespace(timeline=SimpleNamespace(memory=memory), iteration_time_s=seconds, fits=fits)

    monkeypatch.setattr(refine_module, "table_at", lambda plan: f"table of {plan}")
    monkeypatch.setattr(refine_module, "project_table", project_table)
    asked = SimpleNamespace(
        plan_of=lambda one: f"plan {one.recompute} {one.split}", is_elsewhere=lambda one: False,
        verdict=lambda one, peak_bytes: "fits" if peak_bytes < 5 else "fits tightly",
    )  # fmt: skip
    verdicts = {} if before is None else {layout().key: EvaluationResult(*before)}
    noted: list[Any] = []
    search = fake_search(
        outlooks=SimpleNamespace(question=asked), verdicts=verdicts, note=lambda *given: noted.append(given)
    )
    refine_module._try_plan(search, layout())
    planned = layout(recompute="auto", split="auto")
    assert noted == [(planned, EvaluationResult("fits", peak, seconds))] * is_noted
    noted.clear()
    refine_module._try_plan(search, layout(pp=1))
    search.verdicts[planned.key] = EvaluationResult("fits", 99.0, 99.0)
    refine_module._try_plan(search, layout())
    assert noted == []


def refinements_of(monkeypatch: pytest.MonkeyPatch, choice: Any) -> list[Any]:
    """Return the calls of a refinement, of configurations by `dp`; 80 bytes fit, and 100 fit tightly."""
    calls: list[Any] = []
    tight = {80.0: [(5.0, layout(dp=1)), (9.0, layout(dp=2))], 100.0: [(7.5, layout(dp=3)), (8.5, layout(dp=4))]}

    def fastest(number: int, **options: bool) -> list[Configuration]:
        calls.append((number, options))
        return [layout(dp=50 + number), layout(dp=60 + number, pp=1)]

    def tried(candidates: Any) -> None:
        calls.append([(one.dp, one.recompute, one.split, one.vpp) for one in candidates])

    search = fake_search(
        limit=MemoryLimit(usable_bytes=100.0, safe_bytes=80.0), space=SimpleNamespace(start=layout(dp=99)), verdicts={},
        outlooks=SimpleNamespace(question=SimpleNamespace(job="job", is_elsewhere=lambda one: one.dp == 2)),
        best_s=[[6.0, 8.0], [9.5, 9.5]], fastest=fastest, try_all=tried,
    )  # fmt: skip
    by_limit = {limit * CAP_ROUNDING: rows for limit, rows in tight.items()}
    monkeypatch.setattr(refine_module, "least_recomputed", lambda looks, verdicts, limit: by_limit[limit])
    monkeypatch.setattr(refine_module, "recomputed_modules", lambda job: ["mlp", "core_attn"])
    monkeypatch.setattr(
        refine_module,
        "_with_fewest_layers",
        lambda search, one, limit: [replace(one, recompute=f"block/{limit:g}")],
    )
    monkeypatch.setattr(refine_module, "_of_other_stages", lambda search, one: [replace(one, vpp=7)])
    monkeypatch.setattr(refine_module, "_try_plan", lambda search, one: calls.append(one.dp))
    monkeypatch.setattr(refine_module, "_descent", lambda search, one: [replace(one, vpp=5)])
    monkeypatch.setattr(refine_module, "_fits_tightly", lambda search, one: one.dp < 60)
    monkeypatch.setattr(
        refine_module, "_switch",
        lambda search, start, large: calls.append(([one.dp for one in start], [one.dp for one in large])),
    )  # fmt: skip
    looks: Any = [look_of(layout(dp=dp), bound_s) for dp, bound_s in ((21, 3.0), (22, 2.0), (23, float("inf")))]
    refine(search, looks, [choice])
    assert calls[0] == [(99, "none", "even", 1)], "the plan of the user"
    return calls[1:]


def test_recomputation_is_tried_if_its_bound_beats_the_best_of_the_same_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert refinements_of(monkeypatch, "recompute") == [
        call for dp, limit in ((1, 80), (2, 80), (3, 100))
        for call in ([(dp, "mlp", "even", 1), (dp, "core_attn", "even", 1)], [(dp, f"block/{limit}", "even", 1)])
    ]  # fmt: skip


def test_stages_splits_options_and_plans_are_tried_on_the_best_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {choice: refinements_of(monkeypatch, choice) for choice in ("vpp", "split", "plan", "switches")}
    assert calls["vpp"] == [(10, {}), [(60, "none", "even", 7), (70, "none", "even", 7)]]
    assert calls["split"] == [(3, {"switched": True}), [(53, "none", "searched", 1)]]
    assert calls["plan"] == [(3, {"switched": True, "searched": True}), 53, 63, 1, 2]
    assert calls["switches"] == [
        (16, {}), [(dp, "none", "even", 5) for dp in (66, 76, 22, 21)], (8, {}), ([99], [1, 2, 3, 4, 58]),
    ]  # fmt: skip
