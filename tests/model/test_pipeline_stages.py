"""Stages of a model: their contents, plans of recomputation, and layouts."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.encoder import EncoderPart
from ppsim.model.pipeline_stages import (
    Stage,
    StagePlan,
    contents_of,
    layers_of,
    plans_of_stages,
    stages_of,
    stages_of_layout,
)
from ppsim.model.recompute import LayerPlan
from ppsim.model.registry import find_model

A, B, C, D, E, F = (
    replace(find_model("gpt2").layers[0], hidden_size=768 * factor) for factor in (1, 2, 3, 4, 5, 6)
)
MODEL = replace(find_model("gpt2"), layers=(A, B, C, D), mtp=(E, F))


def test_layers_of_a_stage_have_the_options_of_its_plan_and_further_tokens_of_the_job() -> None:
    stage = Stage((A, B, C), mtp=(E, F), plan=(LayerPlan(2, "full"), LayerPlan(1, "mlp")))
    assert [(layers, one.recompute) for layers, one in stage.planned("none")] == [((A, B), "full"), ((C,), "mlp")]
    assert stage.recomputed("core_attn") == [
        (A, "full"), (B, "full"), (C, "mlp"), (E, "core_attn"), (F, "core_attn"),
    ]  # fmt: skip
    assert Stage((A, B)).recomputed("block/1") == [(A, "full"), (B, "none")]


def test_stages_with_equal_contents_have_equal_keys() -> None:
    stage = Stage((A, B), embedding=True, mtp=(E,))
    assert stage.key == Stage((A, B), embedding=True, mtp=(E,)).key
    changes: list[dict[str, Any]] = [
        {"layers": (B, A)}, {"embedding": False}, {"head": True}, {"mtp": (F,)}, {"plan": (LayerPlan(2, "full"),)},
        {"offload_modules": "core_attn"}, {"encoder": ()},
    ]  # fmt: skip
    assert all(replace(stage, **change).key != stage.key for change in changes)


def test_a_plan_of_a_stage_counts_earlier_layers_of_the_model_and_of_the_rank() -> None:
    """full@3 names a layer of the model; full/3 recomputes every third layer of a rank."""
    by_number = plans_of_stages([2, 3], ["full@3", "full@3"], [[0], [1]])
    assert [[(one.layers, one.recompute) for one in plan] for plan in by_number] == [
        [(2, "none")], [(1, "none"), (1, "full"), (1, "none")],
    ]  # fmt: skip
    in_turn = plans_of_stages([2, 1, 2, 2], ["full/3"] * 4, [[0, 2], [1, 3]])
    assert [[(one.layers, one.recompute) for one in plan] for plan in in_turn] == [
        [(2, "none")], [(1, "none")], [(1, "full"), (1, "none")], [(1, "none"), (1, "full")],
    ]  # fmt: skip
    alone = plans_of_stages([2], ["full/2"], [])
    assert [(one.layers, one.recompute) for one in alone[0]] == [(1, "none"), (1, "full")], "of no rank"
    replica = plans_of_stages([2, 1], ["full/3"] * 2, [[0, 1], [1, 0]])
    assert [[one.recompute for one in plan] for plan in replica] == [["none"], ["full"]]


def test_a_split_has_all_layers_between_embedding_and_head() -> None:
    first, empty, last = stages_of(MODEL, [1, 0, 3])
    assert (first.layers, first.embedding, first.head, first.mtp) == ((A,), True, False, ())
    assert (empty.layers, empty.embedding, empty.head) == ((), False, False)
    assert (last.layers, last.embedding, last.head, last.mtp) == ((B, C, D), False, True, (E, F))
    assert layers_of([first, empty, last]) == [A, B, C, D, E, F]
    for split, number in (([5, -1], 4), ([2, 3], 5), ([3], 3)):
        with pytest.raises(ConfigError, match=f"has {number} layers in all, but the model has 4"):
            stages_of(MODEL, split)


def test_a_layout_is_read_as_it_is_written() -> None:
    layout = ["Et", "ttm", "tmL"]
    stages = stages_of_layout(MODEL, layout)
    assert [stage.layers for stage in stages] == [(A,), (B, C), (D,)]
    assert [stage.mtp for stage in stages] == [(), (E,), (F,)]
    assert [(stage.embedding, stage.head) for stage in stages] == [(True, False), (False, False), (False, True)]
    assert contents_of(stages) == layout
    for wrong, text in (
        (["Ettt", "mmL"], "3 layers, but the model has 4"),
        (["Etttt", "mL"], "1 multi-token-prediction layers, but the model has 2"),
        (["vEtttt", "mmL"], "1 encoder layers, but the model has 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            stages_of_layout(MODEL, wrong)


def test_encoders_are_on_the_stage_of_the_embedding_or_where_the_layout_has_them() -> None:
    model = find_model("qwen3-vl-8b").with_layers(2)
    [encoder] = model.encoders
    assert len(encoder.layers) == 27
    usual = stages_of(model, [1, 1])
    assert [stage.encoder for stage in usual] == [None, None]
    assert [stage.encoder_parts(model) for stage in usual] == [model.encoder_parts, ()]
    layout = ["v" * 20, "v" * 7 + "Et", "tL"]
    placed = stages_of_layout(model, layout)
    assert [stage.encoder for stage in placed] == [
        (EncoderPart(encoder, 0, 20),), (EncoderPart(encoder, 20, 27),), (),
    ]  # fmt: skip
    assert placed[1].encoder_parts(model) == (EncoderPart(encoder, 20, 27),)
    assert contents_of(placed) == layout
    assert placed[0].key != replace(placed[0], encoder=(EncoderPart(encoder, 0, 19),)).key


def test_a_stage_recomputes_and_offloads_nothing_by_default() -> None:
    assert StagePlan() == StagePlan("none", "")
    assert Stage(()) == Stage((), False, False, (), (), None, None)
