"""Options of a plan with their defaults, and rows of its stages."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.cost_sources import RunCosts
from ppsim.projection.plan_description import _limits, options_of, sizes_of, stage_rows
from tests.projection.by_hand import by_hand


def test_options_have_the_shape_of_the_table() -> None:
    made = by_hand(stragglers=((1, 1.5),))
    options = options_of(made.plan, made.timeline.schedule, made.num_gpus)
    assert (options["vpp"], options["microbatches"], options["slices"]) == (1, 4, 1)
    assert (options["schedule"], options["split"], options["runtime"]) == ("1f1b", "auto", "torch")
    assert "model" not in options
    assert all(isinstance(one, str | int | float) and one != "" for one in options.values())
    megatron = by_hand(runtime="megatron")
    assert options_of(megatron.plan, megatron.timeline.schedule, 2)["split"] == "megatron"
    assert options_of(replace(made.plan, split=(1, 2)), made.timeline.schedule, 2)["split"] == "(1, 2)"


def test_a_model_adds_its_options() -> None:
    made = ppsim.project(model="llama3-8b", stack="plain", gpus=8, tp=2, pp=2, seq_len=1024)
    options = options_of(made.plan, made.timeline.schedule, made.num_gpus)
    assert (options["model"], options["gpus"], options["seq_len"], options["stack"]) == (
        "llama3-8b",
        8,
        1024,
        "plain",
    )
    assert (options["cluster"], options["tp"], options["dp"]) == ("dgx-h100", 2, 2)


def limits(busy_s: list[float], peaks: list[float], bound: float | None) -> list[list[str]]:
    plan: Any = SimpleNamespace(memory_bound_bytes=bound)
    timeline: Any = SimpleNamespace(busy_s=np.array(busy_s), memory=SimpleNamespace(peak_bytes=np.array(peaks)))
    return [_limits(plan, timeline, rank) for rank in range(len(busy_s))]


def test_a_rank_is_limited_above_95_percent() -> None:
    assert limits([1.0, 0.95, 0.94], [95.0, 94.0, 100.0], 100.0) == [["compute", "memory"], ["compute"], ["memory"]]
    assert limits([1.0, 0.5], [100.0, 100.0], None) == [["compute"], []]


def test_a_row_has_the_times_of_its_stage() -> None:
    made = ppsim.project(
        model="llama3-8b",
        stack="plain",
        gpus=2,
        pp=2,
        vpp=2,
        seq_len=1024,
        split=(4, 12, 12, 4),
        recompute="block/2",
    )
    rows = stage_rows(made.plan, made.timeline, made.costs, made.split)
    costs = made.costs.resolved_for(made.timeline.schedule)
    assert [row["stage"] for row in rows] == [0, 1, 2, 3]
    assert [row["rank"] for row in rows] == [0, 1, 0, 1]
    assert [row["layers"] for row in rows] == [4, 12, 12, 4]
    assert [row["forward_s"] for row in rows] == pytest.approx(list(costs.forward_s))
    assert [row["backward_s"] for row in rows] == pytest.approx(list(costs.backward_s))
    assert [row["activation_bytes"] for row in rows] == pytest.approx(list(costs.activation_bytes))
    assert {row["recompute"] for row in rows} == {"block/2"}
    by_hand_rows = by_hand()
    assert stage_rows(by_hand_rows.plan, by_hand_rows.timeline, by_hand_rows.costs, [1, 1]) == []


def test_layers_by_number_are_those_of_the_stage() -> None:
    made = ppsim.project(
        model="llama3-8b", stack="plain", gpus=2, pp=2, seq_len=1024, split=(16, 16), recompute="full@0-1,20"
    )
    rows = stage_rows(made.plan, made.timeline, made.costs, made.split)
    assert [row["recompute"] for row in rows] == ["full*2", "none*4,full*1"], (
        "layer 20 is the fifth of the second stage"
    )


def test_sizes_of_a_known_model_are_those_in_which_it_differs() -> None:
    usual = ppsim.job(model="llama3-8b", gpus=8)
    assert not any(sizes_of(usual).values())
    assert sizes_of(replace(usual, model=usual.model.with_layers(8)))["layers"] == 8
    predicting = ppsim.job(model="deepseek-v3", gpus=64, ep=8)
    assert not any(sizes_of(predicting).values())
    without = sizes_of(replace(predicting, model=replace(predicting.model, mtp=())))
    assert (without["mtp"], without["mtp_num_layers"], without["layers"]) == (False, None, None)
    twice = sizes_of(replace(predicting, model=replace(predicting.model, mtp=predicting.model.mtp * 2)))
    assert (twice["mtp"], twice["mtp_num_layers"], twice["mtp_use_repeated_layer"]) == (None, 2, None)
    repeated = sizes_of(replace(predicting, model=replace(predicting.model, repeats_mtp=True)))
    assert repeated["mtp_use_repeated_layer"] is True


def test_sizes_of_a_gpt_are_all_that_it_was_given() -> None:
    given = {"model": "gpt", "gpus": 8, "layers": 6, "hidden": 512, "heads": 8, "vocab": 1024, "seq_len": 256}
    expected = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 1024, "kv_heads": None, "tied_embeddings": None}
    assert sizes_of(ppsim.job(**given)) == expected
    assert sizes_of(ppsim.job(**given, kv_heads=2))["kv_heads"] == 2
    assert sizes_of(ppsim.job(**given, tied_embeddings=False))["tied_embeddings"] is False


def test_a_recorded_run_and_its_slow_ranks_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = object.__new__(RunCosts)
    vars(measured)["source"] = "run.json"
    monkeypatch.setattr(RunCosts, "faults", {"slow rank 1": "+5 %", "slow link": "1 ms"})
    plan: Any = replace(by_hand().plan)
    vars(plan)["measured"] = measured
    options = options_of(plan, by_hand().timeline.schedule, 2)
    assert (options["run"], options["slow"]) == ("run.json", "slow rank 1, slow link")


def test_a_gpt_may_have_a_single_layer() -> None:
    made = ppsim.job(model="gpt", layers=1, hidden=256, heads=8, kv_heads=2, vocab=1000, seq_len=128)
    sizes = sizes_of(made)
    assert (sizes["layers"], sizes["heads"], sizes["kv_heads"], sizes["tied_embeddings"]) == (1, 8, 2, None)
