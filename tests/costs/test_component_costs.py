"""Costs of the parts of a model, each found once, and their sources."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from ppsim.costs import component_costs
from ppsim.costs.component_costs import ComponentCosts
from ppsim.costs.profile import Shape
from ppsim.costs.time_breakdown import BASIS, NO_COST, CostEstimate, TimeBreakdown, work_of
from ppsim.model.stage_rows import Row
from ppsim.parallel.layout import Layout
from tests.costs.test_profile_costs import measured_profile
from tests.projection.jobs import job


def test_sources_of_the_whole_model_have_fractions_of_its_forward_and_backward() -> None:
    """Three layers, one of them of a further token, which takes the projection and the embedding once more."""
    own = job("mimo-7b", layers=2, tp=2)
    costs, [further] = own.costs, own.model.mtp
    embedding, head = costs.ends
    parts = [embedding, head, head, *map(costs.layer, own.model.layers), costs.mtp(further)]
    seconds = sum(map(work_of, parts))
    sent_s = sum(part.forward.communication_s + part.backward.communication_s for part in parts)
    table_s = sum(part.known.table_s for part in parts)
    assert costs.shares["links"] == pytest.approx(sent_s / seconds)
    assert costs.shares["table"] == pytest.approx(table_s / seconds)
    assert 0 < sent_s < seconds
    assert costs.shares["profile"] == 0
    assert costs.shares["data sheet"] == pytest.approx(1 - (sent_s + table_s) / seconds)


def test_a_further_token_has_a_layer_a_projection_and_a_look_up() -> None:
    own = job("mimo-7b", layers=2)
    [further] = own.model.mtp
    parts = own.costs.layer(further), own.costs._end("mtp"), own.costs._end("embedding")
    assert work_of(own.costs.mtp(further)) == pytest.approx(sum(map(work_of, parts)))
    [cost] = own.costs.in_order(Row("mtp", (further,)))
    assert work_of(cost) == work_of(own.costs.mtp(further))


def test_kinds_of_layers_are_numbered_in_their_order() -> None:
    assert [name for name, _ in job(layers=2).costs.bases] == ["layer", "embedding", "head"]
    assert job("deepseek-v2-lite", layers=4).costs.bases == [
        (name, BASIS) for name in ("layers of kind 1", "layers of kind 2", "embedding", "head")
    ]


def test_a_profile_is_asked_for_the_shape_of_a_rank() -> None:
    own = job(dtype="float16")
    context = replace(own.place, layout=Layout(tp=2, cp=4, dp=8, ep=16))
    costs = ComponentCosts(own.model, context, micro_batch=3, sequence_length=4096, profile=measured_profile())
    wanted: dict[str, Any] = {
        "micro_batch": 3, "sequence_length": 4096, "dtype": "float16", "tp": 2, "cp": 4, "ep": 16,
    }  # fmt: skip
    for recompute in ("none", "full"):
        measured = costs.measured(recompute)
        assert measured is not None
        assert measured.shape == Shape(**wanted, recompute=recompute)
        assert costs.measured(recompute) is measured
    assert costs.measured() is costs.measured("none")
    assert own.costs.measured() is None


@pytest.mark.parametrize(("etp", "is_known"), [(None, True), (2, True), (1, False)])
def test_a_profile_has_experts_that_tensor_parallel_ranks_divide(
    monkeypatch: pytest.MonkeyPatch, etp: int | None, is_known: bool
) -> None:
    own = job("mixtral-8x7b", layers=2, tp=2, dp=2, etp=etp, profile=measured_profile())
    measured = CostEstimate(TimeBreakdown(memory_s=1.0), TimeBreakdown(), TimeBreakdown())
    monkeypatch.setattr(
        component_costs.ProfileCosts, "layer", lambda *_: (measured, replace(measured, basis="fixed"))
    )
    costs = own.costs
    assert (costs.layer(own.model.layers[0]) is measured) is is_known
    assert costs.outside_layers.forward.total_s == (1.0 if is_known else 0.0)


def test_costs_of_encoders_are_not_sent_to_another_process() -> None:
    """They are found by ids, which belong to a process."""
    own = job("qwen3-vl-8b", layers=2)
    [part] = own.model.encoder_parts
    assert work_of(own.costs.encoders) == pytest.approx(work_of(own.costs.encoder(part)))
    assert own.costs.encoder(part) is own.costs.encoder(part)
    assert pickle.loads(pickle.dumps(own.costs))._encoders == {}
    assert job(layers=2).costs.encoders == NO_COST
