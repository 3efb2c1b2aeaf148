"""The fullest moment of a layer's backward, against sums by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from ppsim.base.files import read_json
from ppsim.model.activations import layer_activations, layer_backward
from ppsim.model.backward import forward_peak
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.operators import Checkpoint, OffloadGroup, Operator, Tensor
from ppsim.model.registry import find_model
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes

ROOT = Path(__file__).parents[2]
TOKENS = 4096


def peak(name: str, recompute: str = "none", cut: ParallelSizes | None = None) -> float:
    """Bytes a token, of the model's last layer in 16 bits."""
    layer = find_model(name).layers[-1]
    return layer_backward(layer, MemorySettings(1, TOKENS, cut or ParallelSizes()), recompute) / TOKENS


def test_a_dense_layer_is_fullest_when_the_gradient_of_gate_and_up_is_made() -> None:
    """Gradients of the activation f and of gate and up 2f; the down projection's input f has just gone."""
    f = 14336
    assert peak("llama3-8b") == 2 * (f + 2 * f - f)


def test_experts_are_fullest_at_their_down_projection() -> None:
    """For each of 8 pairs the gradients of the output h and of the activation f, and no saved tensor is gone.

    The shared expert went before: what it saved, 3f, is gone, and the gradient of its input, h, is there.
    """
    h, f = 7168, 2048
    assert peak("deepseek-v3", cut=ParallelSizes(dp=8, ep=8)) == 2 * (8 * (h + f) + h - 3 * f)


def test_a_full_checkpoint_adds_all_that_it_dropped() -> None:
    layer = find_model("llama3-8b").layers[-1]
    kept = [
        sum(layer_activations(layer, MemorySettings(1, TOKENS), how).values()) / TOKENS for how in ("none", "full")
    ]
    assert peak("llama3-8b", "full") == peak("llama3-8b") + kept[0] - kept[1]


def test_a_dropped_activation_is_made_again_before_it_is_used() -> None:
    """Gradients of the activation f and of gate and up 2f; the recomputed activation f lives until its own backward."""
    f = 14336
    assert peak("llama3-8b", "mlp_act") == 2 * (f + 2 * f + f)


def test_peaks_of_18_layers_are_those_measured_on_an_h200() -> None:
    """Two layers under eight plans of recomputation each, and frozen weights, by benchmarks/layer_peaks.py."""
    rows = read_json(ROOT / "benchmarks" / "recorded" / "h200_layer_peaks.json")["rows"]
    assert len(rows) == 18
    tunings = {
        "all": None, "frozen": fine_tuning_of("", "attention+mlp+norms"),
        "lora": fine_tuning_of("16:linear_proj+linear_fc2", ""),
    }  # fmt: skip
    kernels = Execution(
        fused_activation=False, gradient_placeholders=False, compile=False, weighted_output=True, norm_in_gemm=False
    )
    for row in rows:
        ep = 8 if row["model"] == "mixtral-8x7b" else 1
        model = find_model(row["model"]).with_fine_tuning(tunings[row["training"]])
        layer, cut = model.layers[-1], ParallelSizes(dp=ep, ep=ep)
        settings = MemorySettings(1, TOKENS, cut, execution=kernels)
        saved = sum(layer_activations(layer, settings, row["recompute"]).values())
        assert saved == pytest.approx(row["saved_bytes"] + row["input_bytes"], rel=5e-4), row
        projected = layer_backward(layer, settings, row["recompute"])
        assert projected == pytest.approx(row["backward_bytes"], rel=5e-4), row


@pytest.mark.parametrize("tp", [2, 8])
def test_sequence_parallel_ranks_gather_inputs_and_gradients(tp: int) -> None:
    """When gate and up go backward: their gradient 2f/t, the gathered input h and its gradient h, own part h/t."""
    f, h = 28672, 8192
    up = 2 * f / tp + 2 * h + h / tp - 2 * f / tp - f / tp
    act = 3 * f / tp - f / tp
    down = f / tp + h
    assert peak("llama3-70b", cut=ParallelSizes(tp=tp, sequence_parallel=True)) == 2 * max(up, act, down)


X = Tensor("x", "own_tokens", 4, "")
LINEAR = WeightMatrix("up", "n", 4, (8,))
OPERATORS = (
    Operator("norm", "layernorm", ("x",), (Tensor("n", "own_tokens", 4, ""),), saved_for_i=("x",)),
    Operator("up", "mlp", ("n",), (Tensor("u", "own_tokens", 8, ""),), saved_for_w=("n",), weight=LINEAR, quantized=True),
    Operator("act", "mlp/mlp_act", ("u",), (Tensor("a", "own_tokens", 8, ""),), saved_for_i=("u",)),
    Operator("down", "mlp", ("a",), (Tensor("y", "own_tokens", 4, ""),), saved_for_w=("a",), weight=LINEAR, quantized=True),
)  # fmt: skip


def of_forward(*plan: Checkpoint, module: str = "", casts: bool = False) -> float:
    """Peak beyond what stays, in columns; `module` offloads u."""
    u = OPERATORS[1].writes
    groups = [OffloadGroup(module, u, u)] if module else []
    return forward_peak(OPERATORS, X, plan, lambda tensor: tensor.columns, groups, casts=casts)


def test_a_forward_holds_more_than_it_saves_by_hand() -> None:
    """x 4, n 4, u 8 and a 8 columns stay; the output y has 4."""
    assert of_forward() == 4
    assert of_forward(module="mlp") == 8 + 4, "u leaves after the last operator of its module"
    assert of_forward(module="mlp_act") == (4 + 4 + 8 + 8) - (4 + 4 + 8), "u leaves after the activation"
    whole = Checkpoint(("norm", "up", "act", "down"))
    assert of_forward(whole) == (4 + 8 + 8) - 4, "x, u and a at the activation, of which x stays"
    # Copies of n and a as operands stay in their place; a itself is there until down has run.
    assert of_forward(casts=True) == 8 + 4
    split = tuple(
        replace(one, weight=replace(LINEAR, split=split)) if one.weight else one
        for one, split in zip(OPERATORS, (None, "outputs", None, "inputs"), strict=True)
    )

    def size(tensor: Tensor) -> float:
        return tensor.columns * (3 if tensor.rows == "tokens" else 1)

    # The gathered output of down, three times y, or the gathered input of up, three times n.
    assert forward_peak(split, X, (), size, [], casts=False) == 4 + 12
