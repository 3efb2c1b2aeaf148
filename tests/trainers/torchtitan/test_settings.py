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
