"""Which tensors of a list of operators stay from F to B, under checkpoints of both kinds."""

from dataclasses import replace

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import operators as operators_module
from ppsim.model.operators import (
    Checkpoint,
    Operator,
    Tensor,
    bytes_of,
    gathered_inputs,
    offload_groups,
    plan_of,
    saved,
    saved_for_weight,
    stored,
    sum_columns,
    summed_outputs,
)
from ppsim.model.weight_matrices import Side, WeightMatrix
from tests.defaults import number_defaults

X = Tensor("x", "own_tokens", 4, "norms")
LINEAR = WeightMatrix("up", "n", 4, (8,))
OPERATORS = (
    Operator("norm", "layernorm", ("x",), (Tensor("n", "own_tokens", 4, "mlp"),), saved_for_i=("x",)),
    Operator(
        "up", "mlp", ("n",), (Tensor("u", "tokens", 8, "mlp"),), saved_for_w=("n",), weight=LINEAR, quantized=True
    ),
    Operator("act", "mlp/mlp_act", ("u",), (Tensor("a", "tokens", 8, "mlp"),), saved_for_i=("u",)),
    Operator(
        "down", "mlp", ("a",), (Tensor("y", "own_tokens", 4, "mlp"),), saved_for_w=("a",), weight=LINEAR, quantized=True
    ),
)  # fmt: skip


def kept(*plan: Checkpoint, casts: bool = False) -> set[str]:
    return {one.name for one in saved(OPERATORS, X, plan, casts=casts)}


def test_a_forward_saves_inputs_of_norms_and_gemms_once() -> None:
    assert kept() == {"x", "n", "u", "a"}


def test_a_checkpoint_keeps_its_inputs_only() -> None:
    assert kept(Checkpoint(("up", "act", "down"))) == {"x", "n"}
    assert kept(Checkpoint(("norm", "up", "act", "down"))) == {"x"}


def test_a_checkpoint_keeps_an_output_that_an_operator_outside_saves() -> None:
    assert kept(Checkpoint(("up", "act"))) == {"x", "n", "a"}


def test_a_discarded_output_is_made_again_from_what_made_it() -> None:
    assert kept(Checkpoint(("act",), discards_output=True)) == {"x", "n", "u"}
    both = Checkpoint(("norm",), discards_output=True), Checkpoint(("up", "act", "down"))
    assert kept(*both) == {"x"}


def test_gemms_save_copies_in_8_bits_unless_the_original_is_discarded() -> None:
    assert kept(casts=True) == {"x", "n as operand", "u", "a as operand"}
    assert kept(Checkpoint(("act",), discards_output=True), casts=True) == {"x", "n as operand", "u"}


def test_what_only_offloaded_modules_save_can_go_to_the_host() -> None:
    """The norm and nothing else saves x; the activation, also inside mlp, saves u."""

    def gone(modules: str, *plan: Checkpoint) -> set[str]:
        return {one.name for group in offload_groups(OPERATORS, X, plan, modules) for one in group.freed}

    assert gone("layernorm") == {"x"}
    assert gone("mlp_act") == {"u"}
    assert gone("mlp") == {"n", "u", "a"}
    dropped = Checkpoint(("act",), discards_output=True)
    assert gone("mlp_act", dropped) == {"u"}
    assert gone("layernorm", Checkpoint(("norm",), discards_output=True)) == {"x"}


def test_a_storage_is_copied_for_each_operator_that_saves_it() -> None:
    """The view of a saves what down saves: two copies, and one storage that leaves with the last of its groups."""
    view = Operator("view", "view", ("a",), (Tensor("v", "tokens", 2, "mlp", storage="a"),), saved_for_i=("v",))
    [mlp] = offload_groups((*OPERATORS, view), X, (), "mlp")
    assert [one.name for one in mlp.copied] == ["n", "u", "a"]
    assert [one.name for one in mlp.freed] == ["n", "u"]
    mlp, other = offload_groups((*OPERATORS, view), X, (), "mlp+view")
    assert [[one.name for one in group.copied] for group in (mlp, other)] == [["n", "u", "a"], ["a"]]
    assert [[one.name for one in group.freed] for group in (mlp, other)] == [["n", "u"], ["a"]]


def test_what_a_plan_discards_later_is_copied_all_the_same() -> None:
    [mlp] = offload_groups(OPERATORS, X, (Checkpoint(("norm",), discards_output=True),), "mlp")
    assert [one.name for one in mlp.copied] == ["n", "u", "a"]
    assert [one.name for one in mlp.freed] == ["u", "a"]


def test_a_storage_counts_once_and_bytes_are_rows_times_columns_times_width() -> None:
    view = Operator("view", "", ("a",), (Tensor("v", "tokens", 2, "mlp", storage="a"),), saved_for_i=("v",))
    found = sum_columns(saved((*OPERATORS, view), X, ()))
    assert bytes_of(found, {"tokens": 10, "own_tokens": 5, "capacity": 0}, {"act": 2}) == {
        "norms": 5 * 4 * 2,
        "mlp": (5 * 4 + 10 * 8 + 10 * 8) * 2,
    }


def test_between_i_and_w_are_inputs_and_gradients_of_outputs() -> None:
    assert [one.name for one in saved_for_weight(OPERATORS, X)] == ["n", "u", "a", "y"]


def test_what_is_left_out_in_model_operators_has_these_values() -> None:
    assert number_defaults(operators_module) == {
        "Operator": {"quantized": False, "share": 1.0, "passes_gradient": False, "sublayer": 1, "trainable": True, "gives_gradient": True},
        "Checkpoint": {"discards_output": False},
        "stored": {"is_operand": False},
        "_Saved.need": {"is_operand": False, "is_input": False},
        "saved": {"casts": False},
        "offload_groups": {"casts": False},
    }  # fmt: skip


def test_a_plan_has_a_checkpoint_per_module_and_discards_outputs_of_some() -> None:
    names = ("norm", "up", "act", "down")
    assert plan_of(OPERATORS, "full") == (Checkpoint(names),)
    assert plan_of(OPERATORS, "mlp") == (Checkpoint(names[1:]),)
    assert plan_of(OPERATORS, "layernorm+mlp_act") == (
        Checkpoint(("norm",), discards_output=True), Checkpoint(("act",), discards_output=True),
    )  # fmt: skip
    assert plan_of(OPERATORS, "core_attn+moe") == (Checkpoint(()), Checkpoint(()))
    assert [one.discards_output for one in plan_of(OPERATORS, "core_attn+mhc+mla_up_proj+moe_act+shared_experts")] == [
        False, True, True, True, False,
    ]  # fmt: skip
    with pytest.raises(ConfigError):
        plan_of(OPERATORS, "block/2")


def linear(split: Side | None) -> WeightMatrix:
    return replace(LINEAR, split=split)


def test_ranks_gather_inputs_of_divided_outputs_and_sum_outputs_of_divided_inputs() -> None:
    """An input that two GEMMs read is gathered once; experts' outputs are not summed."""
    own, all_tokens, of_experts = (Tensor(name, rows, 8, "") for name, rows in (
        ("own", "own_tokens"), ("all", "tokens"), ("capacity", "capacity"),
    ))  # fmt: skip
    operators = [
        Operator("first", "", ("own",), (all_tokens,), weight=linear("outputs")),
        Operator("second", "", ("own",), (all_tokens,), weight=linear("outputs")),
        Operator("of all", "", ("all",), (all_tokens,), weight=linear("outputs")),
        Operator("written by none", "", ("own",), (), weight=linear("outputs")),
        Operator("third", "", ("own",), (own,), weight=linear("inputs")),
        Operator("of experts", "", ("own",), (of_experts,), weight=linear("inputs")),
        Operator("replicated", "", ("own",), (own,), weight=linear(None)),
        Operator("without output", "", ("own",), (), weight=linear("inputs")),
        Operator("table", "", (), (all_tokens,), kind="look up"),
        Operator("gate", "", (), (all_tokens,), kind="gate"),
    ]
    tensors = {one.name: one for one in (own, all_tokens, of_experts)}
    assert gathered_inputs(operators, tensors) == {"first": own}
    assert summed_outputs(operators) == {"third": own, "table": all_tokens}
    assert [one.rows for one in operators[2:6]] == ["tokens", "tokens", "own_tokens", "capacity"]
    assert [replace(operators[0], columns=columns).passed for columns in (None, 3.0)] == [8, 3]
    assert operators[3].passed == 0
    view = Tensor("view", "tokens", 2, "", storage="all")
    assert stored({**tensors, "view": view}, "view") == all_tokens
    assert stored({**tensors, "view": view}, "view", is_operand=True) == replace(
        all_tokens, name="all as operand", dtype="operand"
    )


def test_a_split_backward_holds_inputs_once_and_a_share_of_the_tokens() -> None:
    adapter = WeightMatrix("up, A", "n", 4, (2,), kind="adapter")
    operators = (
        OPERATORS[0],
        replace(OPERATORS[1], share=0.75),
        replace(OPERATORS[1], name="again", writes=(Tensor("v", "tokens", 3, "mlp", "f32"),)),
        replace(OPERATORS[2], reads=("u",)),
        replace(OPERATORS[3], trainable=False),
        Operator("A", "mlp", ("n",), (Tensor("wide", "tokens", 9, "mlp"),), saved_for_w=("n",), weight=adapter),
    )
    found = [(one.name, one.columns, one.dtype) for one in saved_for_weight(operators, X)]
    assert found == [("n", 3, "act"), ("u", 6, "act"), ("v", 3, "act"), ("wide", 2, "act")]


def test_the_input_of_a_checkpointed_layer_is_a_component_of_its_own() -> None:
    def components(*plan: Checkpoint) -> dict[str, str]:
        return {one.name: one.component for one in saved(OPERATORS, X, plan)}

    assert components() == {"x": "norms", "n": "mlp", "u": "mlp", "a": "mlp"}
    assert components(Checkpoint(("norm", "up", "act", "down"))) == {"x": "layer input"}
    assert components(Checkpoint(("up", "act", "down"))) == {"x": "norms", "n": "mlp"}
