"""Operators of every known layer form a graph: what one reads, another has written, with as many columns."""

from collections import Counter
from itertools import product

import pytest

from ppsim.model.architecture import Layer
from ppsim.model.blocks import has_norm_in_gemm, layer_input, operators_of
from ppsim.model.execution import Execution
from ppsim.model.operators import Operator, Tensor, tensors_of
from ppsim.model.registry import _told, find_model
from ppsim.parallel.sizes import ParallelSizes

Graph = tuple[tuple[Operator, ...], dict[str, Tensor]]
KERNELS = (Execution(), Execution(attention="unfused", dropout=True))


def layers() -> list[Layer]:
    """Return a layer of each kind of all models, by its matrices and parts."""
    found: dict[str, Layer] = {}
    for name in _told():
        for layer in find_model(name).kinds:
            key = (
                type(layer.attention).__name__,
                layer.norm,
                layer.streams,
                layer.num_norms,
                layer.summed_residuals,
            )
            names = tuple(one.name for one in layer.linears(ParallelSizes()))
            found.setdefault(repr((key, names, layer.conditioned)), layer)
    return list(found.values())


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return [
        (operators, tensors_of(operators, layer_input(layer)))
        for layer, tp, kernels in product(layers(), (1, 2), KERNELS)
        for operators in [operators_of(layer, ParallelSizes(tp=tp), kernels, 4096)]
    ]


def test_there_are_layers_of_many_kinds(graphs: list[Graph]) -> None:
    assert len(graphs) > 4 * 40


def test_operators_have_names_of_their_own(graphs: list[Graph]) -> None:
    assert not [
        name
        for operators, _ in graphs
        for name, count in Counter(one.name for one in operators).items()
        if count > 1
    ]


def test_what_an_operator_reads_was_written_before(graphs: list[Graph]) -> None:
    for operators, _ in graphs:
        written = {"x"}
        for one in operators:
            assert set(one.reads) <= written, one.name
            written |= {tensor.name for tensor in one.writes}


def test_saved_tensors_exist(graphs: list[Graph]) -> None:
    for operators, tensors in graphs:
        for one in operators:
            assert {*one.saved_for_i, *one.saved_for_w} <= tensors.keys(), one.name


def test_a_gemm_has_an_input_per_column_that_it_reads(graphs: list[Graph]) -> None:
    for operators, tensors in graphs:
        for one in operators:
            if one.weight is not None and one.weight.is_product and one.reads:
                assert tensors[one.reads[0]].columns == one.weight.inputs, one.name


def test_a_layer_ends_with_the_state_that_it_gives(graphs: list[Graph]) -> None:
    for operators, _ in graphs:
        assert operators[-1].writes[0].name in ("x1", "x2")


def norms(name: str, kernels: Execution) -> dict[str, str]:
    """Return the module of each norm of the last layer."""
    layer = find_model(name).layers[-1]
    operators = operators_of(layer, ParallelSizes(), kernels, 4096)
    return {one.name: one.module for one in operators if one.kind == "norm" and one.name.startswith("norm")}


def test_a_norm_is_fused_into_a_gemm_unless_it_stands_apart() -> None:
    fused = Execution()
    assert norms("llama3-8b", Execution(norm_in_gemm=False)) == {
        "norm1": "layernorm/attn_norm",
        "norm2": "layernorm/mlp_norm",
    }
    assert norms("llama3-8b", fused) == {"norm1": "qkv_linear", "norm2": "mlp"}
    assert norms("mixtral-8x7b", fused) == {"norm1": "qkv_linear", "norm2": "layernorm/mlp_norm"}
    assert norms("deepseek-v3", fused)["norm2"] == "layernorm/mlp_norm"
    streams = find_model("deepseek-v4-flash").layers[-1]
    assert (has_norm_in_gemm(streams, 1), has_norm_in_gemm(streams, 2)) == (False, False)


def test_sums_of_earlier_states_read_one_row_more_than_they_sum() -> None:
    layer = next(layer for name in _told() for layer in find_model(name).kinds if layer.summed_residuals)
    operators = operators_of(layer, ParallelSizes(), Execution(), 4096)
    assert layer.summed_residuals is not None
    sums = {one.name: one.columns for one in operators if one.kind == "weighted sum"}
    assert sums == {
        f"sum{half}": (rows + 1) * layer.hidden_size
        for half, rows in enumerate(layer.summed_residuals, start=1) if rows > 1
    }  # fmt: skip


@pytest.mark.parametrize(("name", "rotates"), [("llama3-8b", True), ("gpt2", False)])
def test_models_with_layer_norms_rotate_nothing(name: str, rotates: bool) -> None:
    """They add positions to the embedding."""
    operators = operators_of(find_model(name).layers[0], ParallelSizes(), Execution(), 1024)
    assert any("rotation" in one.kind for one in operators) == rotates
