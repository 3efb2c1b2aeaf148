"""The table of TorchTitan's settings: each row is needed to read and to write."""

import contextlib
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import given_options
from ppsim.model.recompute import BY_OPERATORS
from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.setting import read_rows, write_rows
from ppsim.trainers.torchtitan.settings import SETTINGS, layers_of_stages, module_names

PLAN: dict[str, Any] = {
    "tp": 2, "pp": 4, "cp": 2, "ep": 2, "etp": 1, "gpus": 64, "seq_len": 4096, "micro_batch": 2, "global_batch": 64, "zero": 1,
    "num_distributed_optimizer_instances": 2, "schedule": "zbv-fixed", "split": [3, 4, 4, 4, 4, 5, 4, 4], "vpp": 2,
    "recompute": "full", "sequence_parallel": False, "dtype": "float8", "fp8_param_gather": True, "compile": True, "overlap_tp": "0.5,0.5",
}  # fmt: skip


def written(rows: Any, release: str) -> dict[str, Any]:
    return write_rows(rows, {**PLAN, "release": release, "entry": {}})


def read(rows: Any, release: str) -> dict[str, Any]:
    arguments = Arguments(written(SETTINGS, release) | {"nproc_per_node": 8, "nnodes": 8}, "F")
    options = given_options(read_rows(rows, arguments, {"model": find_model("llama3-8b")}))
    return {name: option for name, option in options.items() if name not in ("model", "batch")}


@pytest.mark.parametrize("release", ["0.2", "main"])
def test_a_plan_is_read_back(release: str) -> None:
    again = read(SETTINGS, release)
    other = {"gpus", "dtype", "fp8_param_gather"} if release == "main" else {"gpus", "sequence_parallel"}
    assert {name: option for name, option in PLAN.items() if again.get(name) != option}.keys() == other | {
        "overlap_tp"
    }
    assert (again["dp"], again["overlap_tp"]) == (4, "0.5")


@pytest.mark.parametrize("row", range(len(SETTINGS)), ids=lambda row: "+".join(SETTINGS[row].options))
def test_without_a_row_of_the_table_its_options_are_neither_read_nor_written(row: int) -> None:
    rows = SETTINGS[:row] + SETTINGS[row + 1 :]
    with contextlib.suppress(KeyError):  # a later row needs the option
        assert any(read(rows, release) != read(SETTINGS, release) for release in ("0.2", "main"))
    is_written = any(written(rows, release) != written(SETTINGS, release) for release in ("0.2", "main"))
    assert is_written is ("runtime" not in SETTINGS[row].options)


def read_row(option: str, values: dict[str, Any], **known: Any) -> tuple[dict[str, Any], list[str]]:
    """Return what the row of an option reads, and what it notes."""
    row = next(row for row in SETTINGS if option in row.options)
    arguments = Arguments(values, "F")
    return dict(row.read(arguments, known)), arguments.assumed


TP_HIDDEN = "asynchronous tensor parallelism: 50 % of TP communication is hidden"


@pytest.mark.parametrize(
    ("values", "is_compiled", "loss", "notes"),
    [
        ({}, False, "unfused", []),
        ({"compile.enable": True}, True, "compiled", []),
        ({"training.compile": True}, True, "compiled", []),
        ({"compile.enable": True, "compile.components": ["loss"]}, False, "compiled", []),
        ({"compile.enable": True, "compile.components": ["model"], "module": "m"}, True, None, []),
        ({"compile.enable": True, "parallelism.enable_async_tensor_parallel": True}, True, "compiled", [TP_HIDDEN]),
        (
            {"compile.enable_async_tensor_parallel": True},
            True, "unfused", [TP_HIDDEN, "compile.enable: asynchronous tensor parallelism asks for it"],
        ),
    ],
)  # fmt: skip
def test_asynchronous_tensor_parallelism_compiles_the_model(
    values: dict[str, Any], *, is_compiled: bool, loss: str | None, notes: list[str]
) -> None:
    overlap = {"overlap_tp": "0.5"} if notes else {}
    assert read_row("compile", values) == ({"compile": is_compiled, "cross_entropy": loss} | overlap, notes)


@pytest.mark.parametrize(
    ("mode", "option", "recompute", "notes"),
    [
        ("full", "op", "full", []),
        ("none", "2", "none", []),
        ("selective", "2", "full/2", []),
        ("memory_budget", "op", "none", ["activation_checkpoint.mode memory_budget: as none, the compiler's choice is not known"]),
    ],
)  # fmt: skip
def test_recomputation_is_of_all_layers_of_every_kth_or_of_none(
    mode: str, option: str, recompute: str, notes: list[str]
) -> None:
    values = {"activation_checkpoint.mode": mode, "activation_checkpoint.selective_ac_option": option}
    assert read_row("recompute", values) == ({"recompute": recompute}, notes)


def test_selective_recomputation_is_by_operators_unless_a_number_is_given() -> None:
    assert read_row("recompute", {})[0] == {"recompute": BY_OPERATORS}


@pytest.mark.parametrize(
    ("values", "dtype", "gathers"),
    [
        ({}, "bfloat16", None),
        ({"model.converters": ["mx"]}, "mxfp8", None),
        ({"model.converters": ["float8"]}, "float8", False),
        ({"model.converters": ["float8"], "float8.enable_fsdp_float8_all_gather": True}, "float8", True),
        ({"model.converters": ["float8"], "quantize.linear.float8.recipe_name": "rowwise_gw"}, "float8-row", None),
        ({"model.converters": ["mx"], "float8.enable_fsdp_float8_all_gather": True}, "mxfp8", None),
    ],
)
def test_converters_are_dtypes(values: dict[str, Any], dtype: str, *, gathers: bool | None) -> None:
    assert read_row("dtype", values) == ({"dtype": dtype, "fp8_param_gather": gathers}, [])


def test_converters_of_some_layers_are_noted_and_adapters_refused() -> None:
    values = {"model.converters": ["float8"], "quantize.first_layers_only": True}
    assert read_row("dtype", values)[1] == ["float8: in all layers; the registry keeps the last 15 % in bfloat16"]
    with pytest.raises(ConfigError, match=r"F: model\.converters \['lora'\] trains only some of the weights"):
        read_row("dtype", {"model.converters": ["lora"]})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"micro_batch": 1, "microbatches": 8}),
        ({"training.local_batch_size": 12}, {"micro_batch": 1, "microbatches": 12}),
        ({"training.batch_size": 6}, {"micro_batch": 1, "microbatches": 6}),
        ({"parallelism.pipeline_parallel_microbatch_size": 16}, {"micro_batch": 16, "microbatches": 1}),
        ({"training.num_tokens_per_train_step": 65536}, {"micro_batch": 4, "global_batch": 16}),
        ({"training.num_tokens_per_train_step": -1, "training.global_batch_size": 32}, {"global_batch": 32}),
        (
            {"training.num_tokens_per_microbatch_per_dp_rank": 8192, "parallelism.num_pp_microbatches": 6},
            {"micro_batch": 2, "microbatches": 6},
        ),
        ({"parallelism.num_pp_microbatches": 6}, {"micro_batch": 4, "microbatches": 6}),  # 16384 tokens
    ],
)
def test_a_batch_is_of_sequences_or_of_tokens(values: dict[str, int], expected: dict[str, int]) -> None:
    words, _ = read_row("micro_batch", values, seq_len=4096, pp=2, dp=None, gpus=None)
    assert {name: words.get(name) for name in expected} == expected


def test_tokens_are_whole_sequences() -> None:
    with pytest.raises(ConfigError, match="F: 5000 tokens are no multiple of max_context_length 4096"):
        read_row(
            "micro_batch", {"training.num_tokens_per_train_step": 5000}, seq_len=4096, pp=2, dp=None, gpus=None
        )


def test_the_first_stages_get_the_remainder_and_the_ends_fewer_layers() -> None:
    assert layers_of_stages(30, 4, 2, 1) == [7, 8, 8, 7]  # 33 = 9 + 8 + 8 + 8
    assert layers_of_stages(4, 4, 1, 0) == [1, 1, 1, 1]
    assert layers_of_stages(3, 4, 0, 0) is None
    assert layers_of_stages(5, 4, 2, 0) is None  # the first would have none left


def test_modules_of_a_stage_are_its_layers_and_the_ends() -> None:
    names = module_names([1, 2, 1, 0], 2, "head", above="m.")
    assert names == [
        ["m.tok_embeddings", "m.layers.0"],
        ["m.layers.1", "m.layers.2"],
        ["m.layers.3"],
        ["m.norm", "head"],
    ]
    for impossible in ("balanced", [2, 1, 1], [1, 0, 1, 2]):
        assert module_names(impossible, 2, "head") is None


def read_all(values: dict[str, Any], model: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return the options that differ from a file of the same degrees alone, and all notes."""
    arguments = Arguments(values, "F")
    options = read_rows(SETTINGS, arguments, {"model": None if model is None else find_model(model)})
    usual = read_rows(SETTINGS, Arguments({}, "F"), {"model": None})
    ours = {name: value for name, value in options.items() if value != usual.get(name)}
    return {name: value for name, value in ours.items() if name not in ("model", "batch")}, arguments.assumed


P, T, C = "parallelism.", "training.", "activation_checkpoint."
TP, PP, EP = (f"{P}{kind}_parallel_degree" for kind in ("tensor", "pipeline", "expert"))
SHARD, COPIES, RESHARDS = (
    f"{P}{name}"
    for name in ("data_parallel_shard_degree", "data_parallel_replicate_degree", "fsdp_reshard_after_forward")
)
SCHEDULE, PARTS = f"{P}pipeline_parallel_schedule", f"{P}module_fqns_per_model_part"
PIPED = {"zero": 1, "schedule": "1f1b"}


def test_a_file_without_settings_has_torchtitans_defaults() -> None:
    options = read_rows(SETTINGS, Arguments({}, "F"), {"model": None})
    assert given_options({name: value for name, value in options.items() if name != "batch"}) == {
        "pp": 1, "seq_len": 2048, "zero": 3, "micro_batch": 8, "microbatches": 1, "compile": False, "cross_entropy": "unfused",
        "dtype": "bfloat16", "recompute": BY_OPERATORS, "runtime": "torch", "stack": "torchtitan",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "options", "notes"),
    [
        ({TP: 3, f"{P}context_parallel_degree": 5, EP: 1}, {"tp": 3, "cp": 5, "ep": 1}, []),
        ({f"{T}seq_len": 96}, {"seq_len": 96}, []),
        ({f"{T}max_context_length": 4096}, {"seq_len": 4096, "micro_batch": 4}, []),
        ({f"{P}enable_sequence_parallel": False}, {"sequence_parallel": False}, []),
        ({f"{P}enable_sequence_parallel": True}, {}, []),
        ({TP: 2, EP: 4}, {"tp": 2, "ep": 4, "etp": 1}, []),
        ({TP: 2, EP: 4, f"{P}expert_tensor_parallel_degree": 2}, {"tp": 2, "ep": 4}, []),
        ({EP: 4}, {"ep": 4}, []),
        ({EP: 1, f"{P}expert_tensor_parallel_degree": 2}, {"ep": 1}, []),
        # sharding
        ({SHARD: 1}, {"zero": 0, "dp": 1}, []),
        ({SHARD: 1, COPIES: 3}, {"zero": 0, "dp": 3}, []),
        ({SHARD: 4, COPIES: 3}, {"dp": 12, "num_distributed_optimizer_instances": 3}, []),
        ({SHARD: 4, COPIES: 1}, {"dp": 4}, []),
        ({SHARD: -1, "nproc_per_node": 8, "nnodes": 3}, {"gpus": 24}, []),
        ({SHARD: 2, "nproc_per_node": 8, "nnodes": 3}, {"dp": 2}, []),
        ({RESHARDS: "never"}, {"zero": 2}, []),
        ({RESHARDS: "always"}, {}, []),
        ({RESHARDS: "frob"}, {}, []),
        ({PP: 2, RESHARDS: "never"}, PIPED | {"pp": 2}, []),
        ({PP: 2, RESHARDS: "always"}, {"pp": 2, "schedule": "1f1b"}, []),
        ({PP: 2}, PIPED | {"pp": 2}, []),
        # schedules
        ({SCHEDULE: "GPipe"}, {}, []),
        ({PP: 2, SCHEDULE: "ScheduleGPipe"}, PIPED | {"pp": 2, "schedule": "gpipe"}, []),
        ({PP: 2, SCHEDULE: "interleaved_1f1b"}, PIPED | {"pp": 2, "schedule": "interleaved-1f1b"}, []),
        ({PP: 2, SCHEDULE: "DualPipeV", EP: 2}, PIPED | {"pp": 2, "ep": 2, "schedule": "dualpipev", "overlap_ep": "dualpipe"}, []),
        ({PP: 2, SCHEDULE: "DualPipeV", EP: 1}, PIPED | {"pp": 2, "ep": 1, "schedule": "dualpipev"}, []),
        ({PP: 2, SCHEDULE: "1F1B", EP: 2}, PIPED | {"pp": 2, "ep": 2}, []),
        ({PP: 2, SCHEDULE: "Frob"}, {"pp": 2, "zero": 1}, ["schedule Frob is not known: that of --schedule"]),
        # stages
        ({PP: 2, PARTS: [["tok_embeddings", "layers.0"], ["model.layers.1", "layers.2", "norm"]] * 2},
         PIPED | {"pp": 2, "split": [1, 2, 1, 2], "vpp": 2}, []),
        ({PP: 2, PARTS: "tok_embeddings,layers.0 layers.1,xlayers.2,layers.3x"}, PIPED | {"pp": 2, "split": [1, 1], "vpp": 1}, []),
        ({PARTS: [["layers.0"]]}, {}, []),
        # batches
        ({f"{P}pipeline_parallel_microbatch_size": 3, f"{T}local_batch_size": 12, PP: 2}, PIPED | {
            "pp": 2, "micro_batch": 3, "microbatches": 4}, []),
        ({f"{P}pipeline_parallel_microbatch_size": 3, f"{T}local_batch_size": 12}, {"micro_batch": 12}, []),
        ({f"{T}local_batch_size": 5, f"{T}batch_size": 6}, {"micro_batch": 5}, []),
        ({f"{T}local_batch_size": 4, f"{T}global_batch_size": 24, SHARD: 2}, {
            "dp": 2, "micro_batch": 4, "global_batch": 24, "gradient_accumulation_steps": 3}, []),
        ({f"{T}local_batch_size": 4, f"{T}global_batch_size": 24, "nproc_per_node": 6}, {
            "gpus": 6, "micro_batch": 4, "global_batch": 24}, []),
        ({f"{T}local_batch_size": 4, f"{T}global_batch_size": 25, SHARD: 2}, {
            "dp": 2, "micro_batch": 4, "global_batch": 25}, []),
        ({f"{T}max_context_length": 1024, f"{T}local_batch_size": 5, f"{P}num_pp_microbatches": 3, PP: 2}, PIPED | {
            "pp": 2, "seq_len": 1024, "micro_batch": 5, "microbatches": 3}, []),
        # recomputation
        ({f"{C}mode": "selective", f"{C}selective_ac_option": 3}, {"recompute": "full/3"}, []),
        ({f"{C}mode": "full"}, {"recompute": "full"}, []),
        ({f"{C}mode": "none"}, {"recompute": "none"}, []),
    ],
)  # fmt: skip
def test_settings_are_read_as_exactly_these_options(
    values: dict[str, Any], options: dict[str, Any], notes: list[str]
) -> None:
    of_round = (
        {"micro_batch": 1, "microbatches": 8} if PP in values else {}
    )  # 8 sequences in one microbatch without
    assert read_all(values) == (of_round | options, notes)


LESS = f"{P}pipeline_parallel_{{}}_stage_less_layers"
EACH = f"{P}pipeline_parallel_layers_per_stage"
RULE = "layers per stage: as --split chooses; TorchTitan's own rule is --split "


@pytest.mark.parametrize(
    ("values", "vpp", "notes"),
    [
        ({PP: 1, EACH: 4}, None, []),
        ({PP: 4, SCHEDULE: "1F1B"}, None, [RULE + "8,9,8,7"]),
        ({PP: 4, SCHEDULE: "GPipe"}, None, [RULE + "8,9,8,7"]),
        ({PP: 2, SCHEDULE: "ZBVZeroBubble"}, None, [RULE + "8,9,8,7"]),
        ({PP: 4, LESS.format("first"): 3, LESS.format("last"): 0}, None, [RULE + "6,9,9,8"]),
        ({PP: 4, LESS.format("first"): 0, LESS.format("last"): 9}, None, [RULE + "11,10,10,1"]),
        ({PP: 4, LESS.format("first"): 0, LESS.format("last"): 20}, None, []),  # refused
        ({PP: 4, EACH: 9}, 1, [RULE + "8,9,8,7"]),
        ({PP: 4, EACH: 5}, None, [
            "pipeline_parallel_layers_per_stage 5: ignored, because 7 stages are not a multiple of pp 4"]),
        ({PP: 2, EACH: 6}, 3, [RULE + "5,6,6,6,5,4"]),
        ({PP: 2, EACH: 9, PARTS: [["layers.0"], ["layers.1"]] * 2}, 2, []),
        ({PP: 4, SCHEDULE: "Frob"}, None, ["schedule Frob is not known: that of --schedule"]),
    ],
)  # fmt: skip
def test_layers_of_stages_follow_torchtitans_rule(
    values: dict[str, Any], vpp: int | None, notes: list[str]
) -> None:
    """Llama 3 8B has 32 layers; embedding and head count as one each by default."""
    found, noted = read_all(values, "llama3-8b")
    assert (found.get("vpp"), noted) == (vpp, notes)


def settings_of(release: str, entry: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    usual = {
        "gpus": 1,
        "micro_batch": 3,
        "global_batch": 12,
        "seq_len": 10,
        "recompute": "full",
        "dtype": "bfloat16",
    }
    return write_rows(SETTINGS, usual | options | {"release": release, "entry": entry or {}})


USUAL = {
    f"{T}seq_len": 10, SHARD: 1, COPIES: 1, f"{T}local_batch_size": 3, f"{T}global_batch_size": 12, f"{C}mode": "full",
}  # fmt: skip
PP_2 = {
    PP: 2, SCHEDULE: "1F1B", f"{P}pipeline_parallel_microbatch_size": 3, f"{T}local_batch_size": 12, SHARD: -1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"zero": 0}, {}),
        ({}, {}),  # ZeRO 1 needs a pipeline
        ({"tp": 2, "gpus": 2}, {TP: 2}),
        ({"sequence_parallel": False}, {f"{P}enable_sequence_parallel": False}),
        ({"sequence_parallel": True}, {}),
        ({"ep": 2, "etp": 2, "gpus": 6}, {EP: 2, COPIES: 6}),
        ({"gpus": 12, "zero": 3}, {SHARD: 12}),
        ({"gpus": 12, "zero": 3, "num_distributed_optimizer_instances": 3}, {SHARD: 4, COPIES: 3}),
        ({"gpus": 12, "zero": 2}, {SHARD: 12, RESHARDS: "never"}),
        ({"gpus": 1, "zero": 2}, {SHARD: -1, RESHARDS: "never"}),
        ({"gpus": 12, "tp": 2, "cp": 3, "zero": 3}, {TP: 2, f"{P}context_parallel_degree": 3, SHARD: 2}),
        ({"gpus": 2, "pp": 2, "zero": 1}, PP_2),
        ({"gpus": 2, "pp": 2}, PP_2),
        ({"gpus": 2, "pp": 2, "zero": 0}, PP_2 | {SHARD: 1}),
        ({"gpus": 4, "pp": 2, "zero": 3}, PP_2 | {SHARD: 2, RESHARDS: "always", f"{T}local_batch_size": 6}),
        ({"gpus": 4, "pp": 2, "gradient_accumulation_steps": 2}, PP_2 | {SHARD: 2, f"{T}local_batch_size": 3}),
        ({"gpus": 2, "pp": 2, "vpp": 2}, PP_2 | {SCHEDULE: "Interleaved1F1B"}),
        ({"gpus": 2, "pp": 2, "vpp": 1, "schedule": "gpipe"}, PP_2 | {SCHEDULE: "GPipe"}),
        ({"gpus": 2, "pp": 2, "split": [1, 2]}, PP_2 | {
            PARTS: [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "norm", "lm_head"]]}),
        ({"split": [3]}, {}),
        ({"compile": True}, {"compile.enable": True}),
        ({"compile": True, "overlap_tp": "0.5,0.5"}, {"compile.enable": True, "compile.enable_async_tensor_parallel": True}),
        ({"compile": False, "overlap_tp": "0.5,0.5"}, {}),
        ({"compile": True, "overlap_tp": "0,0.5"}, {"compile.enable": True}),
        ({"dtype": "float8"}, {}),
        ({"recompute": "none"}, {f"{C}mode": "none"}),
        ({"recompute": "full/2"}, {f"{C}mode": "none"}),
        ({"recompute": BY_OPERATORS}, {f"{C}mode": "selective"}),
    ],
)  # fmt: skip
def test_options_are_written_as_exactly_these_settings(options: dict[str, Any], settings: dict[str, Any]) -> None:
    assert settings_of("0.3", **options) == USUAL | settings


@pytest.mark.parametrize(
    ("release", "entry", "options", "settings"),
    [
        ("0.2", {}, {"sequence_parallel": False}, {}),
        ("0.2", {}, {"ep": 2, "etp": 2, "gpus": 6}, {EP: 2, COPIES: 6, f"{P}expert_tensor_parallel_degree": 2}),
        ("0.2", {}, {"ep": 1, "etp": 2}, {EP: 1}),
        ("0.2", {}, {"gpus": 2, "pp": 2, "split": [1, 1]}, PP_2 | {
            PARTS: [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]}),
        ("0.2", {}, {"recompute": "full/2"}, {f"{C}mode": "selective", f"{C}selective_ac_option": "2"}),
        ("0.2", {}, {"recompute": BY_OPERATORS}, {f"{C}mode": "selective", f"{C}selective_ac_option": "op"}),
        ("0.2", {}, {"recompute": "moe"}, {f"{C}mode": "none"}),
        ("0.2", {}, {"dtype": "float8"}, {"model.converters": ["float8"]}),
        ("0.2", {}, {"dtype": "float8", "fp8_param_gather": True}, {
            "model.converters": ["float8"], "quantize.linear.float8.enable_fsdp_float8_all_gather": True}),
        ("0.2", {}, {"dtype": "float8-row", "fp8_param_gather": True}, {
            "model.converters": ["float8"], "quantize.linear.float8.recipe_name": "rowwise"}),
        ("0.2", {}, {"dtype": "mxfp8", "fp8_param_gather": True}, {"model.converters": ["mx"]}),
        ("0.2", {}, {"dtype": "nvfp4"}, {}),
        ("0.2", {}, {"compile": True, "overlap_tp": "0.5,0.5"}, {
            "compile.enable": True, f"{P}enable_async_tensor_parallel": True}),
        ("0.3", {f"{P}enable_sequence_parallel": False}, {}, {f"{P}enable_sequence_parallel": True}),
        ("0.3", {"compile.enable": True}, {}, {"compile.enable": False}),
        ("0.3", {"compile.enable": True, "compile.components": ["loss"]}, {"compile": True}, {
            "compile.enable": True, "compile.components": ["model", "loss"]}),
        ("0.3", {"compile.components": ["loss"]}, {}, {}),
    ],
)  # fmt: skip
def test_releases_and_entries_have_settings_of_their_own(
    release: str, entry: dict[str, Any], options: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert settings_of(release, entry, **options) == USUAL | settings


def test_the_main_branch_counts_tokens() -> None:
    assert settings_of("main", gpus=4, pp=2, zero=1) == {
        f"{T}max_context_length": 10, PP: 2, SHARD: 2, COPIES: 1, SCHEDULE: "1F1B", f"{P}num_pp_microbatches": 2,
        f"{T}num_tokens_per_microbatch_per_dp_rank": 30, f"{T}num_tokens_per_train_step": 120, f"{C}mode": "full",
    }  # fmt: skip
    assert f"{P}num_pp_microbatches" not in settings_of("main")


@pytest.mark.parametrize("name", [SHARD, COPIES, f"{T}global_batch_size", f"{T}num_tokens_per_train_step"])
def test_minus_1_leaves_a_number_to_torchtitan_and_less_is_refused(name: str) -> None:
    assert read_all({name: -1})[1] == []
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of -1 or more: got -2"):
        read_all({name: -2})


@pytest.mark.parametrize("name", [TP, PP, EP, f"{T}seq_len", f"{T}local_batch_size", EACH])
def test_other_numbers_are_1_or_more(name: str) -> None:
    read_all({name: 1})
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of 1 or more: got 0"):
        read_all({name: 0})
