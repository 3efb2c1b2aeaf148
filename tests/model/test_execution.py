"""Execution options: what they imply, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.user_defaults import DISPATCHER_SMS
from ppsim.model import execution as execution_module
from ppsim.model.execution import CrossEntropy, Execution, held_in_backward, hidden_tp_of, moved_of_loss
from tests.defaults import number_defaults


@pytest.mark.parametrize("given", ["", "0.5,0.5,0.5", "1.5", "0.5,-0.1", "2,0.5,0.5", "half", "nan"])
def test_hidden_parts_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(
        ConfigError, match=f"--overlap-tp is '{given}': give a part from 0 to 1, or FORWARD,BACKWARD"
    ):
        hidden_tp_of(given)


def test_one_hidden_part_is_of_both_passes() -> None:
    for given in (0, 1, "0.25"):
        made = hidden_tp_of(given)
        assert made == {"hidden_tp_forward": float(given), "hidden_tp_backward": float(given)}
    assert Execution(**hidden_tp_of("0.25,1")).overlap_tp == "0.25,1"
    assert Execution(**hidden_tp_of("0.5")).overlap_tp == "0.5"
    assert Execution().overlap_tp == "0"


def test_hidden_parts_are_percent_in_words() -> None:
    texts = [Execution(**hidden_tp_of(given)).tp_overlap_text for given in ("0", "0.5", "0,0.75")]
    assert texts == [
        "TP communication exposed",
        "TP communication 50 % hidden",
        "TP communication 0 % (forward) and 75 % (backward) hidden",
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": "fused-fp8"}, "--attention fused-fp8 is for GEMMs in 8 or 4 bits: got --dtype bfloat16"),
        ({"deterministic_mode": True}, "deterministic mode has no fused cross entropy"),
        ({"deterministic_mode": True, "cross_entropy": "compiled"}, "deterministic mode has no fused cross entropy"),
        ({"compile": False, "hidden_tp_backward": 0.5}, "--overlap-tp 0,0.5 is of products that torch.compile makes"),
        ({"expert_imbalance": 0.99}, r"--expert-imbalance is 1 \(even\) or more: got 0.99"),
        ({"expert_imbalance": float("inf")}, "--expert-imbalance is 1"),
        ({"expert_capacity": 0.0}, "--moe-expert-capacity-factor must be above 0: got 0"),
        ({"hidden_tp_forward": 1.01}, "--overlap-tp is a part from 0 to 1: got 1.01"),
        ({"hidden_cp": -0.5}, "--overlap-cp is a part from 0 to 1: got -0.5"),
        ({"overlap_ep": 2.0}, "--overlap-ep is a part from 0 to 1: got 2.0"),
        ({"compute_share": 0.0}, "--compute-scale is a number above 0: got 0"),
        ({"compute_share": float("inf")}, "--compute-scale is a number above 0: got inf"),
        ({"dispatcher_sms": 0}, "--moe-flex-dispatcher-num-sms is 1 or more: got 0"),
        ({"dispatcher_sms": 4, "moe_dispatcher": "alltoall"}, "goes with --moe-dispatcher deepep or hybridep: got all"),
        ({"expert_rank_capacity": 0.5}, "--moe-expert-rank-capacity-factor is 1 .* or more: got 0.5"),
        ({"expert_rank_capacity": 2.0, "fused_experts": True}, "goes with --moe-dispatcher hybridep and --fused-experts"),
        ({"expert_rank_capacity": 2.0, "moe_dispatcher": "hybridep"}, "goes with --moe-dispatcher hybridep and"),
        ({"paged_stash": 1.5}, "--moe-paged-stash 1.5 goes with --moe-expert-rank-capacity-factor"),
        ({"paged_stash": 0.9}, "--moe-paged-stash is 1 .* or more: got 0.9"),
    ],
)  # fmt: skip
def test_options_that_no_run_has_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Execution(**fields)


def test_limits_of_options_are_allowed() -> None:
    Execution(expert_imbalance=1.0, hidden_tp_forward=1.0, hidden_cp=1.0, overlap_ep=1.0, dispatcher_sms=1)
    Execution(expert_rank_capacity=1.0, paged_stash=1.0, fused_experts=True, moe_dispatcher="hybridep")
    Execution(deterministic_mode=True, cross_entropy="unfused", compile=False)
    Execution(attention="fused-fp8", dtype="mxfp8", overlap_ep="best", compile=True, hidden_tp_backward=0.5)


def test_attention_has_the_8_bits_of_the_products() -> None:
    formats = {
        dtype: Execution(attention="fused-fp8", dtype=dtype).attention_dtype
        for dtype in ("mxfp8", "float8", "nvfp4")
    }
    assert formats == {"mxfp8": "mxfp8", "float8": "float8", "nvfp4": "float8"}
    assert Execution(dtype="mxfp8").attention_dtype is None


def test_experts_load_and_buffers_follow_from_capacities() -> None:
    assert (Execution(expert_imbalance=1.5).expert_load, Execution(expert_imbalance=1.5).is_dropless) == (1.5, True)
    cut = Execution(expert_imbalance=1.5, expert_capacity=0.5)
    assert (cut.expert_load, cut.is_dropless, cut.expert_buffer_factor) == (0.5, False, 1.0)
    room = {"fused_experts": True, "moe_dispatcher": "hybridep", "expert_rank_capacity": 3.0}
    assert (Execution(**room).is_dropless, Execution(**room).expert_buffer_factor) == (False, 3.0)
    assert Execution(**room, paged_stash=2.0).expert_buffer_factor == 2.0


def test_saved_inputs_in_8_bits_are_of_all_mlps_that_the_op_fuser_does_not_run() -> None:
    assert Execution().fp8_activation_inputs == ()
    assert Execution(activation_func_fp8_input_store=True).fp8_activation_inputs == ("fed", "shared", "routed")
    fused = Execution(activation_func_fp8_input_store=True, fused_experts=True)
    assert fused.fp8_activation_inputs == ("fed", "shared")


def test_gathered_operands_have_the_bytes_of_their_cast_except_with_scales_by_row() -> None:
    shares = {
        dtype: Execution(dtype=dtype).gathered_share for dtype in ("float32", "bfloat16", "float8", "float8-row")
    }
    assert shares == {"float32": 1.0, "bfloat16": 1.0, "float8": 0.5, "float8-row": 1.0}


def test_a_cluster_multiplies_hidden_parts_up_to_1() -> None:
    times = {"tp": 1.5, "ep": 0.5}
    made = Execution(hidden_tp_forward=0.5, hidden_tp_backward=0.8, overlap_ep=0.5, hidden_cp=0.5).overlapping(
        times
    )
    assert (made.hidden_tp_forward, made.hidden_tp_backward) == (0.75, 1.0)
    assert (made.overlap_ep, made.hidden_cp, made.hidden_ep) == (0.25, 0.5, 0.25)
    pairs = Execution(overlap_ep="dualpipe").overlapping(times)
    assert (pairs.overlap_ep, pairs.ep_order, pairs.hidden_ep) == ("dualpipe", "dualpipe", 0.0)
    assert made.ep_order is None


def test_layers_and_encoders_in_16_bits_have_attention_in_16_bits() -> None:
    execution = Execution(dtype="mxfp8", attention="fused-fp8")
    for made in (execution.in_16_bits(), execution.of_encoder(is_full=True)):
        assert (made.dtype, made.attention) == ("bfloat16", "fused")
    assert Execution(attention="unfused").in_16_bits().attention == "unfused"


def test_what_is_left_out_in_model_execution_has_these_values() -> None:
    assert number_defaults(execution_module) == {
        "held_in_backward": {"is_torch": False, "tp": 1},
        "Execution": {"sequence_parallel": False, "dropout": False, "deterministic_mode": False, "expert_imbalance": 1.0, "fused_experts": False, "activation_func_fp8_input_store": False, "legacy_grouped_gemm": False, "moe_permute_fusion": True, "hidden_tp_forward": 0.0, "hidden_tp_backward": 0.0, "overlap_ep": 0.0, "hidden_cp": 0.0, "fused_activation": True, "gradient_placeholders": True, "weighted_output": False, "norm_in_gemm": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "e", "fills", "moved"),
    [
        ("fused", 3, False, ((12, 2), (6, 1))),
        ("fused", 3, True, ((12, 2), (6, 1))),
        ("compiled", 3, False, ((23, 3), (19, 3))),
        # float32 copy 4 + 2, maximum 4, difference 8, exponential 8, sum 4, quotient 8 less one pass of 6 = 32
        ("unfused", 2, False, ((32, 8), (12, 3))),
        ("unfused", 4, False, ((26, 8), (8, 3))),
        ("unfused", 2, True, ((36, 9), (14, 4))),
        ("unfused", 4, True, ((30, 9), (12, 4))),
        ("chunked", 2, False, ((32, 64), (12, 24))),
        ("chunked", 2, True, ((36, 72), (14, 32))),
    ],
)
def test_a_loss_moves_these_bytes_per_logit_in_so_many_kernels(
    loss: CrossEntropy, e: int, fills: bool, moved: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    assert moved_of_loss(loss, e, fills=fills) == moved


@pytest.mark.parametrize(
    ("loss", "e", "options", "held"),
    [
        ("fused", 2, {}, [(2, 0, 0)]),
        ("fused", 2, {"is_torch": True, "tp": 2}, [(2, 0, 0)]),
        ("chunked", 2, {}, [(0, (4 + 8) / 8, 4)]),
        ("chunked", 2, {"tp": 2}, [(0, (4 + 12) / 8, 4)]),
        ("chunked", 8, {}, [(0, (8 + 8) / 8, 4)]),
        ("compiled", 2, {"is_torch": True}, [(2, 2, 0)]),
        ("compiled", 2, {}, [(4, 2 + 4, 0), (0, 2, 0)]),
        ("unfused", 2, {}, [(4, 2, 0), (0, 2, 0)]),
        ("unfused", 4, {}, [(4, 4, 0), (0, 4, 0)]),
        ("unfused", 2, {"is_torch": True}, [(4, 8, 0), (0, 2, 0)]),
        ("unfused", 2, {"is_torch": True, "tp": 2}, [(4, 12, 0), (0, 2, 0)]),
    ],
)
def test_a_loss_holds_these_bytes_per_logit_in_its_backward_and_the_heads(
    loss: CrossEntropy, e: int, options: dict[str, Any], held: list[tuple[float, float, int]]
) -> None:
    assert held_in_backward(loss, e, **options) == held


def test_an_encoder_has_no_overlap_no_dropout_and_graphs_of_all_or_none() -> None:
    given = Execution(
        sequence_parallel=True, hidden_tp_forward=0.5, hidden_tp_backward=0.25, overlap_ep=0.5, hidden_cp=0.5,
        dropout=True, cuda_graphs="attn", recompute="mlp",
    )  # fmt: skip
    for is_full, graphs, recompute, kept in ((True, "attn", "full", "none"), (False, "full", "none", "full")):
        encoder = replace(given, cuda_graphs=graphs).of_encoder(is_full=is_full)
        assert encoder == Execution(recompute=recompute, cuda_graphs=kept)
    assert Execution(moe_dispatcher="deepep", dispatcher_sms=7).num_dispatcher_sms == 7
    assert [Execution(moe_dispatcher=kind).num_dispatcher_sms for kind in DISPATCHER_SMS] == list(
        DISPATCHER_SMS.values()
    )
    assert (Execution().element_bytes, Execution(dtype="float32").element_bytes, Execution().operand_bytes) == (
        2,
        4,
        None,
    )
    assert (Execution(dtype="float8").operand_bytes, Execution(dtype="mxfp8").operand_bytes) == (1, 1 + 1 / 32)
    fuses = [
        Execution().fuses_norms,
        Execution(norm_in_gemm=False).fuses_norms,
        Execution(compile=False).fuses_norms,
    ]
    assert fuses == [True, False, False]
