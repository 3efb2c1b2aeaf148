"""What `--to-config` prints is read back as the same plan, by `--run-config` and the options of its comments."""

import os
import random
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api.project import plan_of_keywords, plan_of_options
from ppsim.api.to_config import (
    _Comments,
    _milliseconds,
    _stages,
    _weight_cache,
    inexpressible_differences,
    refusal_of,
)
from ppsim.base.errors import PpsimError
from ppsim.base.option_declarations import allowed_values, declared_options
from ppsim.catalog.build import CATALOG
from ppsim.cli.click_options import options_in
from ppsim.cli.project import project as command
from ppsim.machine.cluster_files import packaged_clusters
from ppsim.model.pipeline_stages import StagePlan
from ppsim.projection.options import PlanOptions
from ppsim.trainers import ConfigTarget
from ppsim.trainers.megatron.write_schedule import layout_string, parse_layout
from ppsim.trainers.stacks import stacks

NUM_PLANS = int(
    os.environ.get("PPSIM_ROUND_TRIPS", "40" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "8")
)
"""Random plans per trainer."""

MODELS = (
    "gpt2", "gpt3-2.7b", "llama2-7b", "llama3-8b", "llama3-70b", "llama3-405b", "mixtral-8x7b", "qwen2.5-7b",
    "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gemma2-2b", "nemotron-h-8b",
    "mamba2-1.3b", "qwen3-next-80b-a3b", "llama4-scout", "mistral-7b", "deepseek-v4-flash",
)  # fmt: skip
SCHEDULES = ("1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zbv-fixed", "v-half-fixed", "v-min-fixed", "dualpipev",
             "looped-bfs", "interleaved-zb", "seq1f1b", "eager-1f1b", "dualpipe")  # fmt: skip

WORDS = declared_options(PlanOptions)
VALUES: dict[str, tuple[Any, ...]] = {
    "bucket_size": (10**6, 10**9), "document_length": (256, 700),
    "wgrad_deferral_limit": (0, 2), "num_distributed_optimizer_instances": (1, 2), "offload_modules": ("core_attn+attn_proj", "qkv_linear", "none"),
    "min_offloaded_tensor_size": (0, 2**22), "activation_offload_fraction": (0.5, 0.75), "max_inflight_offloads": (0, 2),
    "optimizer_offload_fraction": (0.5, 1.0),
    "num_layers_at_start_in_bf16": (0, 1), "num_layers_at_end_in_bf16": (0, 2),
    "cluster": tuple(packaged_clusters()),
    "order": ("tp-cp-ep-pp-dp", "tp-cp-ep-dp-pp"),
    "mtp_num_layers": (0, 1, 2),
    "lora": (4, 16, "8:linear_qkv", "32:linear_proj+linear_fc1+linear_fc2"),
    "freeze": ("embedding", "norms+head", "attention+layers@0-3", "layers@1,3"),
    "image_tokens": ("64", "2x64", "0"),
    "overlap_tp": ("0.5", "0.5,0.5", "0.25,0.75", "0"),
    "overlap_ep": (0.9, 0.3), "overlap_cp": (0.4,), "compute_share": ("0.9", "bfloat16:0.97,float8:1.2"),
    "cuda_graphs": ("layer", "full", "attn", "attn+mlp", "attn+moe_router"),
    "recompute": ("none", "full", "full/2", "selective", "core_attn+mlp", "layernorm+moe_act", "mla_up_proj", "moe",
                  "mlp_act", "selective-op", "block/1", "uniform/2", "full@0,2-3", "full*1"),
    "launch_ms": (0.01, 0.0037), "rest": (0.1, 0.025), "expert_imbalance": (1.2, 1.0),
    "moe_expert_capacity_factor": (1.0, 1.25), "moe_expert_rank_capacity_factor": (1.5,), "moe_paged_stash": (1.1, 1.3), "moe_flex_dispatcher_num_sms": (8, 24),
    "micro_batch": (1, 2, 3), "offload": (0.5, 0.1), "tp": (1, 2, 4), "cp": (1, 2), "ep": (1, 2, 4), "etp": (1, 2),
    "pp": (1, 2, 4), "vpp": (1, 2, 3), "layers": (8, 11, 16), "seq_len": (512, 1024, 2048),
    "schedule": SCHEDULES, "gradient_accumulation_steps": (1, 2), "group_size": (2, 4, 8), "slices": (2, 4),
    "split": ("auto", "even", "megatron", "numbers", "layout"),
    "decoder_first_pipeline_num_layers": (1, 2), "decoder_last_pipeline_num_layers": (1, 2),
    "stragglers": ({0: 1.2}, {0: 1.1, 1: 1.3}), "lengths": ("lengths.txt",), "seed": (3,),
    "memory_limit": ("800GiB", "900GB"), "microbatches": (4, 8, 12), "global_batch": (16, 32, 48), "dp": (1, 2, 4),
    "gpus": (4, 8, 16, 32), "forward_ms": (12.7,), "activation_memory": ("2GiB",),
    "hidden": (1024,), "heads": (16,), "vocab": (32000,), "kv_heads": (8,),
    "stack": (*stacks(), "megatron-bridge@26.02", "megatron-bridge@none"),
    "calibration": ("overheads.json",), "model": (*MODELS, "gpt"),
}  # fmt: skip
"""Values to draw of an option that is neither a choice nor a flag."""
ELSEWHERE = {
    "run_config", "set", "launch", "ignore", "recipe", "job",  # what is tested, a recipe (below), and Python's
    "profile",  # a profile of a job needs the job's model and shape
    "backward_input_ms", "backward_weight_ms", "transfer_ms",  # with forward_ms
    "stage_plan",  # a file; tests/api/test_stage_plans.py
    "run", "without",  # a recording; tests/api/test_recorded_costs.py
    "search_time",  # a search ends by the clock
    "price",  # of no trainer
}  # fmt: skip
_ROOM = {"moe_expert_rank_capacity_factor": 1.5, "moe_dispatcher": "hybridep", "fused_experts": True}
NEEDED: dict[str, dict[str, Any]] = {
    "moe_expert_rank_capacity_factor": _ROOM | {"model": "qwen3-30b-a3b"},
    "moe_paged_stash": _ROOM | {"model": "deepseek-v3"},
    "moe_flex_dispatcher_num_sms": {"model": "mixtral-8x7b", "moe_dispatcher": "hybridep"},
    "fused_experts": {"model": "mixtral-8x7b"}, "mtp_use_repeated_layer": {"model": "deepseek-v3"},
    "mtp_num_layers": {"model": "deepseek-v3"}, "image_tokens": {"model": "qwen3-vl-8b", "text_only": None}, "seed": {"lengths": "lengths.txt"},
    "deterministic_mode": {"cross_entropy": "unfused"}, "activation_memory": {"forward_ms": 12.7},
    "slices": {"schedule": "seq1f1b", "vpp": 1}, "ep": {"dp": 4, "model": "mixtral-8x7b"}, "group_size": {"schedule": None, "vpp": 2, "microbatches": 8, "pp": 4, "global_batch": None},
    "decoder_last_pipeline_num_layers": {"layers": None},
    **{name: {"offload_modules": "core_attn+attn_proj"}
       for name in ("min_offloaded_tensor_size", "activation_offload_fraction", "max_inflight_offloads")},
    "overlap_cpu_optimizer_d2h_h2d": {"optimizer_offload_fraction": 0.5},
    "outer_dp_sharding_strategy": {"zero": 3, "pp": 1},
    "activation_func_fp8_input_store": {"model": "llama3-8b"},
}  # fmt: skip
"""Options without which another is refused."""
ALWAYS = ("model", "pp", "tp", "seq_len", "schedule", "vpp")

OVERHEADS = '{"action_overhead_s": 3e-5, "hop_overhead_s": 2e-5, "action_spread": 0.01, "rank_spread": 0.02}'


def values_of(name: str) -> tuple[Any, ...]:
    """Return the values to draw of an option: of one that has none here, the test of options says so."""
    if name in VALUES:
        return VALUES[name]
    word = WORDS[name]
    return (
        (True, *([False] if word.option.has_no else []))
        if bool in word.kinds
        else tuple(allowed_values(word.kinds))
    )


def drawn(draw: random.Random, folder: Path) -> dict[str, Any]:
    """Return the options of a random plan, which may be none."""
    words: dict[str, Any] = {name: draw.choice(values_of(name)) for name in ALWAYS}
    words |= {"layers": draw.choice(VALUES["layers"])} if draw.random() < 0.7 else {}
    if draw.random() < 0.4:
        words |= {"schedule": None}
    others = sorted(
        set(WORDS) - ELSEWHERE - set(words) - {"hidden", "heads", "vocab", "kv_heads", "tied_embeddings"}
    )
    for name in draw.sample(others, draw.randint(0, 8)):
        words[name] = draw.choice(values_of(name))
    for name, needed in NEEDED.items():
        if words.get(name):
            words |= needed
    if words["model"] == "gpt":
        words |= {"hidden": 1024, "heads": 16, "layers": 12, "tied_embeddings": draw.choice((True, False, None))}
        words |= {"kv_heads": draw.choice((None, 8)), "vocab": draw.choice((None, 32000))}
    if words.get("forward_ms"):
        words |= {"backward_input_ms": 11.3, "backward_weight_ms": 9.1, "transfer_ms": draw.choice((None, 0.3))}
    for name in ("lengths", "calibration"):
        words |= {name: folder / words[name]} if words.get(name) else {}
    if words.get("split") in ("numbers", "layout"):
        counts = [draw.randint(1, 3) for _ in range(words["pp"] * words["vpp"])]
        words["layers"] = sum(counts)
        stages = ["t" * count for count in counts]
        words["split"] = counts if words["split"] == "numbers" else "E" + "|".join(stages) + "L"
    return words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = random.Random(1)
    (tmp_path / "lengths.txt").write_text("\n".join(str(draw.randint(100, 500)) for _ in range(40)))
    (tmp_path / "overheads.json").write_text(OVERHEADS)
    return tmp_path


def read_back(text: str, path: Path) -> ppsim.Projection:
    """Project a configuration as a user does: by its file, and by the options of its comments."""
    path.write_text(text)
    said = [line.removeprefix("# not expressible: ") for line in text.splitlines() if line.startswith("# not expr")]
    arguments = ["--run-config", str(path), *(one for line in said for one in shlex.split(line))]
    return ppsim.project(plan_of_options({"job": None} | options_in(command, PlanOptions, arguments)))


@pytest.mark.parametrize(
    "trainer",
    ["megatron", "megatron@0.16", "primus", "torchtitan", "torchtitan@0.2", "torchtitan@main", "automodel"],
)
def test_a_configuration_with_the_options_of_its_comments_gives_an_equal_plan(
    trainer: ConfigTarget, folder: Path
) -> None:
    draw = random.Random(f"round trips of {trainer}")
    done = tried = 0
    while done < NUM_PLANS:
        tried += 1
        words = drawn(draw, folder)
        try:
            made = ppsim.project(**words)
            text = ppsim.trainer_options(made, trainer, given=words)
        except PpsimError:  # also a plan that Megatron-LM cannot run
            continue
        again = read_back(text, folder / "train")
        peaks = [one.timeline.memory.peak_bytes.max() for one in (made, again)]
        assert again.iteration_time_s == pytest.approx(made.iteration_time_s, rel=1e-12), (words, text)
        assert peaks[1] == pytest.approx(peaks[0], rel=1e-12), (words, text)
        done += 1
    assert done > tried / 30  # most draws that are refused tell nothing


def test_overlap_of_tensor_parallel_experts_is_written_without_other_tensor_parallelism(tmp_path: Path) -> None:
    made = ppsim.project(
        model="qwen3-30b-a3b", gpus=8, pp=4, tp=1, etp=2, microbatches=8, overlap_tp="0.5", seq_len=1024
    )
    again = read_back(ppsim.trainer_options(made, "torchtitan"), tmp_path / "train")
    assert again.iteration_time_s == pytest.approx(made.iteration_time_s, rel=1e-12)


def test_a_default_plan_with_tensor_parallel_experts_only_is_one_of_megatron_lm() -> None:
    made = ppsim.project(model="mixtral-8x7b", gpus=64, tp=1, etp=2, ep=8, pp=4)
    assert made.plan.job.execution.overlap_tp != "0"
    assert refusal_of(made) is None
    assert "--tp-comm-overlap" not in ppsim.trainer_options(made, "megatron")


def test_every_option_is_drawn_or_tested_elsewhere() -> None:
    assert not [name for name in WORDS if name not in ELSEWHERE and not values_of(name)]
    assert set(SCHEDULES) <= set(CATALOG)


@pytest.mark.parametrize(
    "trainer", ["primus", *(pytest.param(name, marks=pytest.mark.search) for name in ("megatron", "torchtitan"))]
)
def test_the_best_of_a_search_is_read_back_as_an_equal_plan(trainer: ConfigTarget, tmp_path: Path) -> None:
    ranges: dict[str, Any] = {"tp": [2], "pp": [4], "vpp": [1, 2], "micro_batch": [1]}
    ranges |= {"schedule": ["1f1b", "interleaved-1f1b", "zbv-fixed"]}
    found = ppsim.tune(model="llama3-8b", gpus=16, global_batch=32, seq_len=2048, **ranges)
    text = ppsim.trainer_options(found, trainer)
    assert "--memory-limit" not in text
    again = read_back(text, tmp_path / "train")
    assert again.iteration_time_s == pytest.approx(found.best[0].iteration_time_s, rel=1e-12)


def test_a_setting_that_no_option_says_is_a_comment_of_its_own() -> None:
    made = ppsim.project(
        model="llama3-8b", gpus=8, pp=8, runtime="megatron", stack="plain", cross_entropy="compiled"
    )
    job = made.plan.job
    assert job is not None
    other = ppsim.project(replace(made.plan, job=replace(job, vocab_multiple=1)))
    text = ppsim.trainer_options(other, "megatron")
    assert text.splitlines()[0] == "# not expressible by any option: vocab_multiple 1"


def test_schedule_auto_is_a_comment_with_its_search() -> None:
    made = ppsim.project(model="llama3-8b", gpus=4, pp=4, runtime="megatron", schedule="auto", search_time=0.01)
    text = ppsim.trainer_options(made, "megatron")
    assert {"# not expressible: --schedule auto", "# not expressible: --search-time 0.01"} <= set(text.splitlines())


def test_options_of_files_are_comments_with_the_names_of_the_files(folder: Path) -> None:
    words: dict[str, Any] = {"model": "gpt2", "gpus": 2, "pp": 2, "lengths": folder / "lengths.txt"}
    text = ppsim.trainer_options(ppsim.project(**words), "megatron", given=words)
    assert f"# not expressible: --sequence-lengths {folder / 'lengths.txt'}" in text.splitlines()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"overlap_tp": "0.5", "sequence_parallel": False},
            "overlap of TP communication needs sequence parallelism",
        ),
        ({"stack": "plain", "overlap_tp": "0.5", "sequence_parallel": False}, None),
        ({}, None),
    ],
)
def test_a_plan_that_its_own_trainer_refuses_has_the_reason(options, reason) -> None:
    made = ppsim.project(model="llama3-8b", gpus=8, tp=2, pp=2, **options)
    assert str(refusal_of(made)).startswith(f"Megatron-LM cannot run this: {reason}" if reason else "None")


def test_experts_with_biases_are_not_divided_by_default() -> None:
    made = ppsim.project(model="gpt-oss-20b", gpus=8, tp=2, ep=4, pp=1)
    assert made.plan.job.layout.expert_tp == 1
    assert refusal_of(made) is None
    found = ppsim.tune(model="gpt-oss-20b", gpus=8, global_batch=8, tp=[2], ep=[4], pp=[1], micro_batch=[1], top=1)
    assert found.question.job_of(replace(found.best[0].candidate, switched=())).layout.expert_tp == 1


@pytest.mark.parametrize(
    ("cache", "zero_stage", "expected"),
    [(None, 3, "none"), (None, 2, None), ("last-microbatch", 3, "last-microbatch")],
)
def test_zero_3_without_copies_of_weights_says_so(cache, zero_stage, expected) -> None:
    job = SimpleNamespace(weight_cache=cache, optimizer=SimpleNamespace(zero_stage=zero_stage))
    assert _weight_cache(job) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.1, 0.0003, 1.1, 0.07, 3.3e-5, 12.345678])
def test_milliseconds_are_those_seconds_again(seconds: float) -> None:
    milliseconds = _milliseconds(seconds)
    assert milliseconds / 1e3 == seconds
    assert milliseconds == pytest.approx(1e3 * seconds)
    assert _milliseconds([seconds, 2.0]) == [milliseconds, 2000.0]


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"split": "even"}, [3, 3, 3, 3]), ({"split": "even", "vpp": 2}, [1, 1, 2, 2, 2, 2, 1, 1]),
        ({"split": "even", "schedule": "dualpipe", "microbatches": 8}, [3, 3, 3, 3]), ({"split": [2, 4, 4, 2]}, [2, 4, 4, 2]),
        ({"split": "megatron", "decoder_first_pipeline_num_layers": None}, [3, 3, 3, 3]),
        ({"decoder_first_pipeline_num_layers": 6}, [6, 2, 2, 2]),
    ],
)  # fmt: skip
def test_splits_are_compared_by_the_layers_of_each_stage(options: dict[str, Any], layers: list[int]) -> None:
    given = {"model": "gpt2", "gpus": 4, "pp": 4, "stack": "plain"} | options
    plan = plan_of_keywords({name: value for name, value in given.items() if value is not None})
    assert _stages(plan, plan.job, None) == parse_layout(layout_string(layers))  # type: ignore[arg-type]
    assert _stages(plan, plan.job, [1, 5, 5, 1]) == parse_layout(layout_string([1, 5, 5, 1]))  # type: ignore[arg-type]


def test_a_plan_without_a_pipeline_has_all_layers_on_one_stage_and_auto_is_no_split() -> None:
    for options, stages in (({"pp": 1}, "all"), ({"pp": 2}, "auto")):
        plan = plan_of_keywords({"model": "gpt2", "gpus": 4, "stack": "plain", **options})
        assert _stages(plan, plan.job, None) == stages  # type: ignore[arg-type]


@pytest.mark.parametrize("needed", ["", "a", "bd", "abcde", "e"])
def test_options_that_change_nothing_are_left_out_of_the_comments(needed: str) -> None:
    """All at once if none is necessary, otherwise half by half."""
    asked: list[str] = []

    def differing(config: Any, added: Any) -> list[str]:
        asked.append("".join(added))
        return sorted(set(needed) - set(added))

    comments: Any = SimpleNamespace(_differing=differing)
    comments._needed = lambda *given, **more: _Comments._needed(comments, *given, **more)
    assert "".join(comments._needed(None, [*"abcde"], [*"abcde"])) == needed
    assert asked[0] == ""
    assert len(asked) <= 9
    assert len(set(asked)) == len(asked), "no set is tried twice"


def test_the_differences_of_fields_without_an_option_are_named() -> None:
    plan = plan_of_keywords({"model": "gpt2", "gpus": 4, "pp": 2, "stack": "plain"})
    assert plan.job is not None
    assert inexpressible_differences(plan, replace(plan, seed=3, vpp=2)) == []
    assert inexpressible_differences(replace(plan, first_pass_s=0.5), plan) == ["first_pass_s 0.5"]
    changed = replace(plan.job, stage_plans=(StagePlan("full"), StagePlan("none")))
    [text] = inexpressible_differences(replace(plan, job=changed), plan)
    assert text.startswith("the plan of each stage (write it with -o plan.toml")
