"""Options of layers and frontiers of stages, on numbers and on a small model."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.costs import stage_options
from ppsim.costs.ledger import Ledger
from ppsim.costs.stage_options import FrontierPoint, LayerOption, StageOptions, _hull, _order, _pruned, plan_of
from ppsim.costs.time_breakdown import work_of
from ppsim.model.memory_rows import kept_of_layer
from ppsim.model.pipeline_stages import Stage
from ppsim.model.recompute import BY_OPERATORS
from tests.projection.jobs import job


def way(name: str, seconds: float, saved: float) -> LayerOption:
    return LayerOption(name, seconds, saved, 0.0)


@pytest.mark.parametrize(
    ("ways", "convex", "all_of_them"),
    [
        ([("a", 1, 9), ("b", 2, 9), ("c", 2, 10)], "a", "a"),
        ([("a", 1, 9), ("b", 1, 8)], "b", "b"),
        # From a to c, a second saves 4; from a to b, 1 for the first second, and 7 for the next.
        ([("a", 1, 9), ("b", 2, 8), ("c", 3, 1)], "ac", "abc"),
        ([("a", 1, 9), ("b", 2, 4), ("c", 3, 1)], "abc", "abc"),
        ([("a", 1, 9), ("b", 2, 5), ("c", 3, 1)], "ac", "abc"),  # on the line
        ([("d", 6, 0), ("c", 3, 1), ("a", 1, 9), ("b", 2, 8)], "acd", "abcd"),
        ([], "", ""),
    ],
)
def test_ways_that_no_other_beats_or_no_mix_of_two(
    ways: list[tuple[str, float, float]], convex: str, all_of_them: str
) -> None:
    given = [way(*one) for one in ways]
    assert "".join(one.recompute for one in _hull(given)) == convex
    assert "".join(one.recompute for one in _hull(given, is_convex=False)) == all_of_them


def test_of_points_with_fewer_bytes_for_more_seconds_at_most_128_remain() -> None:
    points = [FrontierPoint(float(at), float(1000 - at), (str(at),)) for at in range(255)]
    kept = _pruned(reversed(points))
    assert [point.seconds for point in kept] == [float(2 * at) for at in range(128)]
    assert _pruned(points[:128]) == points[:128]
    assert len(_pruned(points[:129])) == 128
    worse = FrontierPoint(3.0, 998.0, ())
    assert worse not in _pruned([*points[:9], worse])
    assert stage_options._MOST_POINTS == 128


def test_full_recomputation_comes_first_and_none_last() -> None:
    assert sorted(["none", "moe", "full", "mlp"], key=_order) == ["full", "mlp", "moe", "none"]
    assert [_order(word)[0] for word in ("full", "mlp", "none")] == [0, 1, 2]


def test_a_plan_has_runs_of_layers_of_their_own_kinds() -> None:
    dense, experts = object(), object()
    point = FrontierPoint(1.0, 2.0, ("full", "full", "none", "moe"))
    layers: Any = [dense, dense, experts, dense]
    plan = plan_of(layers, point, "core_attn")
    assert (plan.recompute, plan.offload_modules) == ("full*2,moe*1", "core_attn")


def options(*, splits_backward: bool = False, **fields: Any) -> StageOptions:
    return StageOptions(Ledger(job("llama3-8b", layers=4, **fields)), splits_backward)


def test_words_are_nothing_modules_their_unions_and_everything() -> None:
    words = options().words
    assert (words[0], words[-1]) == ("none", "full")
    assert "mlp_act" not in words
    assert {"core_attn", "mlp", "layernorm"} <= set(words)
    unions = [word for word in words if "+" in word]
    assert [word.count("+") for word in unions] == list(range(1, len(unions) + 1))
    assert options(recompute="mlp").words == ["none", "mlp"]
    assert not {"moe", "mhc", "mla_up_proj"} & set(words)


@pytest.mark.parametrize(
    ("splits_backward", "words"), [(False, ["none", BY_OPERATORS, "full"]), (True, ["none", "full"])]
)
def test_torchs_blocks_are_recomputed_by_operators_unless_backwards_are_split(
    splits_backward: bool, words: list[str]
) -> None:
    made = job("llama3-8b", layers=4)
    in_torch = replace(made, execution=replace(made.execution, compile=False))
    assert StageOptions(Ledger(in_torch), splits_backward).words == words


def test_a_way_has_the_seconds_and_saved_bytes_of_its_layer() -> None:
    found = options(allocator_slack=1.25)
    layer = found.job.model.layers[0]
    for word in ("none", "mlp", "full"):
        one = found._way(layer, word, "")
        assert one.seconds == pytest.approx(work_of(found.job.costs.layer(layer, word)))
        saved = sum(kept_of_layer(layer, found.job.settings, word).values())
        assert (one.saved_bytes, one.buffer_bytes) == (pytest.approx(1.25 * saved), 0.0)


def test_a_frontier_begins_with_no_recomputation_and_ends_with_the_fewest_bytes() -> None:
    found = options()
    stage = Stage(found.job.model.layers[:3], embedding=True)
    allowed = frozenset(found.words)
    points = found.frontier(stage, allowed, "")
    assert points[0].words == ("none",) * 3
    assert points[-1].words == ("full",) * 3
    seconds, saved = zip(*(point[:2] for point in points), strict=True)
    assert list(seconds) == sorted(seconds)
    assert list(saved) == sorted(saved, reverse=True)
    layer, (outside_s, outside_bytes) = found.job.model.layers[0], found._ends(stage)
    embedding, _ = found.job.costs.ends
    assert outside_s == pytest.approx(work_of(embedding) + work_of(found.job.costs.outside_layers))
    for point, word in ((points[0], "none"), (points[-1], "full")):
        one = found._way(layer, word, "")
        assert point.seconds == pytest.approx(outside_s + 3 * one.seconds)
        assert point.saved_bytes == pytest.approx(outside_bytes + 3 * one.saved_bytes)
    only = found.frontier(stage, frozenset(["mlp"]), "")
    assert [point.words for point in only] == [("mlp",) * 3]
    assert found.frontier(stage, allowed, "") is points


def test_options_that_need_more_memory_than_others_are_of_higher_levels() -> None:
    found = options()
    stages = [Stage(found.job.model.layers[:2], embedding=True)]
    levels = found.transients(stages)
    assert [level for level, _ in levels] == sorted({found._static(stages, word) for word in found.useful_words})
    assert levels[-1][1] == frozenset(found.useful_words)
    for level, words in levels:
        assert words == {word for word in found.useful_words if found._static(stages, word) <= level}


def test_offloading_is_an_option_if_the_job_has_modules_and_full_backwards() -> None:
    assert options().offloads == [""]
    assert options(offload_modules="core_attn").offloads == ["", "core_attn"]
    assert options(offload_modules="core_attn", splits_backward=True).offloads == [""]
    found = options(offload_modules="core_attn")
    layer = found.job.model.layers[0]
    usual, gone = (found._way(layer, "none", offload) for offload in ("", "core_attn"))
    assert gone.saved_bytes < usual.saved_bytes
    assert gone.buffer_bytes > 0
    stage = Stage(found.job.model.layers[:2])
    assert (found.buffers(stage, ""), found.buffers(stage, "core_attn")) == (0.0, gone.buffer_bytes)
    assert found.buffers(Stage(()), "core_attn") == 0.0


def test_the_ends_of_a_stage_have_its_further_tokens_and_a_pass_of_the_head_for_each() -> None:
    found = StageOptions(Ledger(job("mimo-7b", layers=2)), False)
    costs, model = found.job.costs, found.job.model
    embedding, head = (work_of(end) for end in costs.ends)
    [further] = model.mtp
    last_s, last_bytes = found._ends(Stage((), head=True, mtp=model.mtp))
    assert last_s == pytest.approx(2 * head + work_of(costs.mtp(further)))
    assert last_bytes > found._ends(Stage((), head=True))[1]
    assert found._ends(Stage((), embedding=True))[0] == pytest.approx(embedding)
    assert found._ends(Stage(()))[0] == 0


@pytest.mark.parametrize(("layers", "is_convex"), [(4, False), (5, True)])
def test_a_few_layers_per_rank_may_have_any_way_that_no_other_beats(layers: int, is_convex: bool) -> None:
    found = StageOptions(Ledger(job("llama3-8b", layers=layers)), False)
    ways = [way("a", 1, 9), way("b", 2, 8), way("c", 3, 1)]
    assert found._useful(ways) == _hull(ways, is_convex=is_convex)
    assert _hull(ways, is_convex=True) != _hull(ways, is_convex=False)
