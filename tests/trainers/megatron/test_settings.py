"""The table of Megatron-LM's arguments: each row is needed to read and to write."""

import contextlib
from typing import Any

import pytest

from ppsim.base.option_declarations import given_options
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron import settings
from ppsim.trainers.megatron.settings import SETTINGS, read_settings, write_settings
from tests.trainers.test_write_config import OPTIONS_OF_MEGATRON

EXAMPLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *((options, {"bf16": True} | arguments) for options, arguments in OPTIONS_OF_MEGATRON),
    ({"micro_batch": 2, "global_batch": 64, "seq_len": 4096, "group_size": 4}, {
        "micro_batch_size": 2, "global_batch_size": 64, "seq_length": 4096, "microbatch_group_size_per_vp_stage": 4,
    }),
    ({"pp": 2} | (split := {"decoder_last_pipeline_num_layers": 3, "account_for_embedding_in_pipeline_split": True,
      "account_for_loss_in_pipeline_split": True}), {"pipeline_model_parallel_size": 2} | split),
    ({"pp": 2, "vpp": 2, "overlap_p2p": False}, {
        "pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2, "overlap_p2p_comm": False,
    }),
    ({"optimizer": "muon", "layer_wise": True, "use_layer_wise_param_layout": False}, {
        "optimizer": "muon", "use_distributed_optimizer": True, "use_layer_wise_param_layout": False,
    }),
    ({"gradient_accumulation_fusion": False, "activation_func_fp8_input_store": True}, {
        "gradient_accumulation_fusion": False, "activation_func_fp8_input_store": True,
    }),
    ({"zero": 1, "overlap_grad_reduce": True, "overlap_param_gather": True}, {
        "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    }),
    ({"zero": 3, "outer_dp_sharding_strategy": "optim"}, {
        "use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "outer_dp_sharding_strategy": "optim",
    }),
    ({"schedule": "zbv"}, {"patch_primus_pipeline": True, "pp_algorithm": "zbv-formatted"}),
    ({"recompute": "full@0,2"}, {"recompute_granularity": "full", "recompute_layer_ids": "0,2"}),
    ({}, {"world_size": 8, "moe_router_force_load_balancing": True, "scatter_gather_tensors_in_pipeline": False}),
]  # fmt: skip
ONLY_READ = {("gpus",), ("runtime",), ("scatter_gather",), ("expert_imbalance",)}
"""ppsim writes the number of GPUs in the launcher's options, and models the others without advising them."""


def read() -> list[dict[str, Any]]:
    return [
        given_options(read_settings(Arguments({"num_experts": 8} | arguments, "F"), None))
        for _, arguments in EXAMPLES
    ]


def written() -> list[dict[str, Any]]:
    return [write_settings(options, of_primus=True) for options, _ in EXAMPLES]


BEFORE = (read(), written())


@pytest.mark.parametrize("row", range(len(SETTINGS)), ids=lambda row: "+".join(SETTINGS[row].options))
def test_without_a_row_of_the_table_its_options_are_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr(settings, "SETTINGS", SETTINGS[:row] + SETTINGS[row + 1 :])
    with contextlib.suppress(KeyError):  # a later row needs the option
        assert read() != BEFORE[0]
    assert (written() == BEFORE[1]) is (SETTINGS[row].options in ONLY_READ)


def test_settings_of_experts_are_neither_read_nor_written_for_dense_models() -> None:
    experts = {"expert_tensor_parallel_size", "use_transformer_engine_op_fuser"}
    for options, arguments in EXAMPLES:
        whole, dense = (write_settings(options, has_experts=has_experts) for has_experts in (True, False))
        of_experts = {name for name in whole if name.startswith("moe_")} | (experts & whole.keys())
        assert whole.keys() - dense.keys() == of_experts
        read = given_options(read_settings(Arguments({"num_experts": 0} | arguments, "F"), None))
        assert not [name for name in read if name.startswith("moe_") or name in ("etp", "fused_experts")]


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        ({}, "cross_entropy", "unfused"),
        ({"cross_entropy_loss_fusion": False}, "cross_entropy", "unfused"),
        ({"cross_entropy_loss_fusion": True}, "cross_entropy", "compiled"),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"}, "cross_entropy", "compiled"),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, "cross_entropy", "fused"),
        ({}, "order", None),
        ({"use_tp_pp_dp_mapping": False}, "order", None),
        ({"use_tp_pp_dp_mapping": True}, "order", "tp-cp-ep-pp-dp"),
        ({"scatter_gather_tensors_in_pipeline": False}, "scatter_gather", False),
    ],
)
def test_the_last_case_whose_arguments_all_have_their_values_is_read(
    arguments: dict[str, Any], option: str, value: object
) -> None:
    assert read_settings(Arguments(arguments, "F"), None).get(option) == value


@pytest.mark.parametrize(
    ("arguments", "room", "buffer"),
    [
        ({}, None, None),
        ({"moe_paged_stash_buffer_size_factor_cuda": 1.5}, None, None),
        ({"moe_paged_stash": True}, None, 1.1),
        (
            {"moe_paged_stash": True, "moe_paged_stash_buffer_size_factor_cuda": 1.5, "moe_expert_rank_capacity_factor": 2.0},
            2.0,
            1.5,
        ),
    ],
)  # fmt: skip
def test_a_stash_has_its_buffer_only_where_it_is_on(
    arguments: dict[str, Any], room: float | None, buffer: float | None
) -> None:
    given = Arguments({"num_experts": 8, "bf16": True} | arguments, "F")
    found = read_settings(given, None)
    assert (found.get("moe_expert_rank_capacity_factor"), found.get("moe_paged_stash")) == (room, buffer)
