"""What a page says of a projection: what was projected, on what, what was assumed and what to change."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.api.views import difference_views, expert_messages, view_of
from ppsim.base.errors import ConfigError
from ppsim.plot.html import timeline_html
from ppsim.projection.difference import PlanDifference
from ppsim.schedule.table import Op
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
