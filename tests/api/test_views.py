"""What a page says of a projection: what was projected, on what, what was assumed and what to change."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import ppsim
from ppsim.api.views import (
    _advice,
    _without_weights,
    bound_of,
    difference_views,
    expert_messages,
    search_view,
    view_of,
)
from ppsim.base.errors import ConfigError
from ppsim.costs.pair_overlap import LayerTimes, PairMessage
from ppsim.plot.html import timeline_html
from ppsim.plot.pareto_page import SearchView
from ppsim.projection.difference import PlanDifference
from ppsim.projection.loss_breakdown import loss_budget
from ppsim.projection.options import GPT
from ppsim.schedule.table import Op
from tests.projection.by_hand import by_hand, free
from tests.projection.jobs import job


def test_the_page_of_a_job_names_model_cluster_layout_and_schedule():
    projection = ppsim.project(pp=2, job=job(tp=2, dp=4, pp=2))
    view = view_of(projection, "zz")
    assert view.about == [
        ("model", "llama3-8b"),
        ("cluster", "16 × NVIDIA H100 SXM (dgx-h100)"),
        ("layout", "tp 2 · dp 4 · pp 2"),
        ("schedule", "1f1b, 8 microbatches; 32 sequences of 4096 tokens, micro-batch 1"),
    ]
    page = timeline_html([view])
    assert "<title>llama3-8b on 16 × NVIDIA H100 SXM (dgx-h100), tp 2 · dp 4 · pp 2: zz</title>" in page
    assert page.index("<dt>cluster</dt><dd>16 × NVIDIA") < page.index('id="controls"')


def test_what_to_change_points_to_the_search_of_the_same_model_on_as_many_gpus():
    projection = ppsim.project(pp=2, job=job(tp=2, dp=4, pp=2))
    line = view_of(projection, "", projection.summary).notes["To change"][-1]
    command = "ppsim tune --model llama3-8b --cluster dgx-h100 --gpus 16 --global-batch-size 32 --seq-len 4096"
    assert line == f"further away than one step: {command} tries every layout, micro-batch and schedule"
    by_profile = ppsim.project(pp=4, microbatches=8)
    assert "ppsim tune" not in str(view_of(by_profile, "", by_profile.summary).notes)


def test_the_page_of_a_profile_names_what_was_measured():
    view = view_of(ppsim.project(pp=4, vpp=2), "")
    assert dict(view.about)["cluster"] == "4 × NVIDIA A100-SXM4-80GB (profile zb-a100-6.2b)"
    assert dict(view.about)["schedule"] == "interleaved-1f1b, vpp 2, 16 microbatches; micro-batch 3 of 1024 tokens"


def test_a_page_has_the_bound_every_assumption_and_what_to_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    projection = ppsim.project(pp=4, microbatches=8)
    ppsim.save(projection, "a.html")
    text = (tmp_path / "a.html").read_text()
    gap = 100 * (projection.timeline.step_time_s / projection.report["lower_bound_s"] - 1)
    assert f"for any schedule on this placement; the step is {gap:.2f} % above it" in text
    assert "<li><b>--schedule zbv-fixed --vpp 2</b>: +" in text
    for line in projection.assumptions:
        label, _, words = line.partition(": ")
        assert f"<b>{label}</b>: {words[:30]}" in text or f"<li>{line[:30]}" in text
    several = timeline_html([view_of(projection, "a"), view_of(projection, "b")])
    assert several.count("<dt>model</dt>") == 1
    assert several.count("<h3>Assumed</h3>") == 2
    assert "To change" not in several


MOE = {
    "model": "qwen3-30b-a3b",
    "stack": "plain",
    "cluster": "h100",
    "gpus": 16,
    "ep": 8,
    "global_batch": 128,
    "seq_len": 4096,
    "pp": 2,
    "vpp": 2,
}


def test_exposed_messages_of_a_step_are_what_its_passes_take_beyond_compute():
    """On a timeline: all messages of all passes, and none outside of its pass."""
    made = ppsim.project(**MOE, overlap_ep="megatron")
    table, timeline = made.timeline.schedule, made.timeline
    pieces = expert_messages(made)
    assert {piece.kind for piece in pieces} == {"hidden", "exposed"}
    passes = {rank: timeline.end[: len(table)][table.rank == rank].max() for rank in range(2)}
    assert all(piece.end_s <= passes[piece.rank] + 1e-9 for piece in pieces)
    for rank, begin, end in zip(table.rank, timeline.start, timeline.end, strict=False):
        assert any(piece.rank == rank and begin <= piece.start_s < end for piece in pieces), "paired or not"
    layers = made.stage_cost_set.layer_times
    stages = table.stage[(table.op == Op.F) | (table.op == Op.B)].tolist()
    alone_s = sum(2 * layer.exchange_s for stage in stages for layer in layers[stage])
    whole_s = sum(piece.end_s - piece.start_s for piece in pieces)
    assert alone_s <= whole_s * (1 + 1e-9)  # launches stretch them
    assert whole_s < 2 * alone_s
    assert not expert_messages(ppsim.project(**MOE))


def test_all_messages_are_shown_up_to_a_limit_and_none_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    projection = ppsim.project(**MOE, overlap_ep="megatron")
    number = len(expert_messages(projection))
    monkeypatch.setattr("ppsim.api.views.MOST_SHOWN", number)
    assert len(expert_messages(projection)) == number
    monkeypatch.setattr("ppsim.api.views.MOST_SHOWN", number - 1)
    assert expert_messages(projection) == []


def test_a_difference_is_two_timelines_with_their_own_causes():
    first, second = (ppsim.project(pp=2, microbatches=number).timeline for number in (4, 8))
    both = PlanDifference(
        ("a", "b"),
        ("", ""),
        (1.0, 2.0),
        (None, None),
        (None, None),
        {"bubble": (0.25, 0.5)},
        {},
        {},
        (first, second),
    )
    views = difference_views(both)
    assert [(view.timeline, view.title, view.time_breakdown_s) for view in views] == [
        (first, "a", {"bubble": 0.25}),
        (second, "b", {"bubble": 0.5}),
    ]
    with pytest.raises(ConfigError, match="a or b is of --json, which has no timeline"):
        difference_views(replace(both, timelines=None))


LAYER = LayerTimes((0.25, 0.125, 0.5), (0.0625, 0.03125, 0.25), 0.015625)
"""Alone its forward takes 0.34375 s, its backward 0.9375 s, and 0.1875 s without weight gradients."""
MESSAGE = PairMessage("dispatch F", 3, 0.5, 0.75, ("experts I", "before W"))
ALONE = PairMessage("combine B", 4, 0.25, 0.375, ())


def with_messages(monkeypatch: pytest.MonkeyPatch, schedule: str, **costs: float) -> tuple[list[str], list[tuple]]:
    """Return the texts of all pieces of two ranks, and the pairs whose messages were asked for.

    F, I and W of each stage take a second, and are started as if; both stages have a layer.
    """
    made, asked = free(schedule=schedule), []

    def messages(forward, backward, order, *, slowdown):
        asked.append((list(forward), list(backward)))
        assert (order, slowdown) == ("dualpipe", 0.125)
        return [MESSAGE] if forward else [ALONE]

    monkeypatch.setattr("ppsim.api.views.pair_messages", messages)
    execution = SimpleNamespace(ep_order="dualpipe")
    own = SimpleNamespace(execution=execution, place=SimpleNamespace(dispatch_slowdown=0.125))
    projection = replace(
        made, plan=SimpleNamespace(job=own), costs=made.costs.replace(**costs),
        stage_cost_set=SimpleNamespace(layer_times=[[LAYER], [LAYER, LAYER]]),
    )  # fmt: skip
    pieces = expert_messages(projection)
    return [
        f"{one.rank} {one.stage} {one.kind} {one.start_s:.6g} {one.end_s:.6g} {one.told}" for one in pieces
    ], asked


def test_messages_of_passes_alone_follow_what_a_stage_does_beside_its_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first stage embeds before its layers; the last has the gradient of the loss before them."""
    texts, asked = with_messages(monkeypatch, "1f1b")
    text = "dispatch F, layer 3 of stage"
    begin = 1 - 0.34375
    assert [one for one in texts if one.startswith("0 ")][:2] == [
        f"0 0 hidden {begin + 0.5:.6g} {begin + 0.75:.6g} {text} 0, next to experts I, before W",
        f"0 0 hidden {1 + begin + 0.5:.6g} {1 + begin + 0.75:.6g} {text} 0, next to experts I, before W",
    ]
    first = [one for one in texts if one.startswith("1 ")]
    begin = 2 + 2 - 2 * 0.9375
    assert first[0].startswith("1 1 hidden 1.5 1.75 ")
    assert f"1 1 exposed {begin + 0.25:.6g} {begin + 0.375:.6g} combine B, layer 4 of stage 1" in first
    assert sorted(asked, key=str) == sorted(
        [([LAYER], []), ([LAYER, LAYER], []), ([], [LAYER]), ([], [LAYER, LAYER])], key=str
    )
    assert len(texts) == 16


def test_messages_of_input_gradients_have_no_weight_gradients_and_w_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts, asked = with_messages(monkeypatch, "zb-h1")
    inputs = LayerTimes((0.25, 0.125, 0.0), (0.0625, 0.03125, 0.0), 0.015625)
    assert ([], [inputs, inputs]) in asked
    assert ([], [LAYER]) not in asked
    begin = 2 + 1 - 2 * 0.1875
    assert f"1 1 exposed {begin + 0.25:.6g} {begin + 0.375:.6g} combine B, layer 4 of stage 1" in texts
    assert len(texts) == 16, "of F and I only"


def test_messages_are_stretched_with_their_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that costs half as much as it took; its embedding takes nothing more."""
    texts, _ = with_messages(monkeypatch, "1f1b", forward_s=0.5)
    begin = 0.5 - 0.34375
    assert texts[0].startswith(f"0 0 hidden {2 * (begin + 0.5):.6g} {2 * (begin + 0.75):.6g} ")
    texts, _ = with_messages(monkeypatch, "1f1b", forward_s=0.25)
    assert texts[0].startswith("0 0 hidden 2 3 "), "the layers begin no earlier than the pass"


def test_weights_gradients_are_left_out_of_both_parts_of_a_layer() -> None:
    layer = replace(LAYER, launches=(3.0, 5.0), waits=(7.0, 9.0))
    assert _without_weights(layer) == LayerTimes(
        (0.25, 0.125, 0.0), (0.0625, 0.03125, 0.0), 0.015625, (3.0, 5.0), (7.0, 9.0)
    )


def test_a_plan_of_times_by_hand_names_its_source_and_schedule() -> None:
    made = by_hand(schedule="interleaved-1f1b", vpp=2)
    view = view_of(made, "title")
    assert view.about == [
        ("model", "times given by hand"), ("layout", "pp 2"), ("schedule", "interleaved-1f1b, vpp 2, 4 microbatches"),
    ]  # fmt: skip
    assert (view.subject, view.title, view.timeline) == ("times given by hand", "title", made.timeline)
    assert view.verdict is made.verdict
    assert view.notes == {"To change": [], "Assumed": made.assumptions}
    assert view.time_breakdown_s == loss_budget(made)
    assert [name for name, _ in view.facts][-1] == "lower bound"
    answer = SimpleNamespace(iteration_time_interval_s=(1.5, 2.5), advice=[])
    assert dict(view_of(made, "", answer).facts)["iteration"].endswith("; 90 % interval 1.50 s to 2.50 s")
    assert "interval" not in dict(view.facts)["iteration"]


def test_a_bound_is_said_with_the_gap_of_the_step() -> None:
    name, text = bound_of({"lower_bound_s": 4.0, "step_time_s": 5.0})
    assert name == "lower bound"
    assert text == "4.00 s for any schedule on this placement; the step is 25.00 % above it"


def test_advice_without_a_change_says_that_none_was_found() -> None:
    made = by_hand()
    change = SimpleNamespace(change="--tp 2", effect="faster")
    assert _advice(SimpleNamespace(advice=[]), made) == ["no change that was tried gains half a percent"]
    assert _advice(SimpleNamespace(advice=[change]), made) == ["--tp 2: faster"]
    gpt = replace(made, plan=SimpleNamespace(job=SimpleNamespace(model_name=GPT)))
    assert _advice(SimpleNamespace(advice=[change]), gpt) == ["--tp 2: faster"]


def test_a_search_is_shown_with_its_rows_and_their_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ppsim.api.views.command_of", lambda question, candidate: f"{question.num_gpus} {candidate}"
    )
    device = SimpleNamespace(device=SimpleNamespace(name="GPU"))
    question = SimpleNamespace(
        job=SimpleNamespace(model_name="m", cluster=device, global_batch=24, length=512), num_gpus=48,
        memory_bound_bytes=7.0, memory_limit=SimpleNamespace(tight_notes=["a", "b"]),
    )  # fmt: skip
    one, two, three = (SimpleNamespace(candidate=name) for name in ("x", "y", "z"))
    tuned = SimpleNamespace(
        question=question, counts={"configurations": 99}, simulated=[one, two, three], best=[two], pareto=[three, two],
        row=lambda found: {"name": found.candidate},
    )  # fmt: skip
    view = search_view(tuned)
    rows = {name: {"name": name, "command": f"48 {name}"} for name in "xyz"}
    assert vars(view) == vars(
        SearchView(
            "m on 48 × GPU, 24 sequences of 512 tokens per step", 99, 7.0,
            [rows["x"], rows["y"], rows["z"]], [rows["y"]], [rows["z"], rows["y"]], "a; b",
        )
    )  # fmt: skip
