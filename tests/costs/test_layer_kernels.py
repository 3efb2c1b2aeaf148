"""FLOPs and bytes of eager torch's kernels, counted by hand."""

from typing import Any

import pytest

from ppsim.costs.layer_kernels import _accumulation, _embedding, _forward_elements, _head, _layer, _linears
from ppsim.costs.profile import Shape
from ppsim.model.shapes import LayerShape, ModelShape
from tests.costs.counted import CountedKernels

H, F, VOCAB, TOKENS = 64, 96, 1000, 256


class Curves(CountedKernels):
    element_bytes = 2


TIMES: Any = Curves()
SIZES = {"hidden_size": H, "num_heads": 8, "num_kv_heads": 2, "head_size": 16, "ffn_size": F}
LLAMA = LayerShape("llama", **SIZES)
MOE = LayerShape("moe", **SIZES, num_experts=8, experts_per_token=2, shared_ffn_size=32)


def elements(layer: LayerShape) -> dict[str, int]:
    """Return the elements per token by kind of kernel."""
    found: dict[str, int] = {}
    for kernel, count in _forward_elements(layer):
        found[kernel] = found.get(kernel, 0) + count
    return found


def test_kernels_between_gemms_read_and_write_columns() -> None:
    queries, keys = 8 * 16, 2 * 16
    norms, residuals = 2 * 2 * H, 2 * 3 * H
    gpt = LayerShape("gpt", **(SIZES | {"num_kv_heads": 8}))
    assert elements(gpt) == {"norm": norms, "elementwise": residuals + 2 * F, "copy": 2 * queries}
    rotary = {"copy": 3 * (queries + keys), "elementwise": 7 * (queries + keys)}
    assert elements(LLAMA) == {
        "norm": norms, "elementwise": residuals + rotary["elementwise"] + 5 * F, "copy": 2 * queries + rotary["copy"],
    }  # fmt: skip
    assert elements(MOE) == {
        "norm": norms,
        "elementwise": residuals + rotary["elementwise"] + 2 * 5 * F + 2 * 3 * H + 5 * 32,
        "copy": 2 * queries + rotary["copy"] + 2 * 2 * 2 * H,
    }


def test_a_layer_has_its_gemms_attention_and_traffic() -> None:
    shape = Shape(micro_batch=2, sequence_length=128, dtype="bfloat16")
    linears = _linears(LLAMA)
    weights = H * (128 + 2 * 32) + 128 * H + 3 * H * F
    assert sum(one.weights for one in linears) == weights
    assert len(linears) == 4 + 3, "queries, keys, values, output, and three of the MLP"
    kernels = _layer(LLAMA, linears, shape, TIMES)
    assert kernels.forward.matmul_s == kernels.backward_weight.matmul_s == 2 * TOKENS * weights
    causal = 2 * 8 * 128 * 128 * 32
    assert (kernels.forward.attention_s, kernels.backward_input.attention_s) == (causal, 2.5 * causal)
    moved = TOKENS * 2 * sum(elements(LLAMA).values())
    assert (kernels.forward.memory_s, kernels.backward_input.memory_s) == (moved, 2 * moved)
    assert kernels.backward_weight.memory_s == 3 * weights * 2


def test_a_gpt_layer_has_one_matrix_of_queries_keys_and_values() -> None:
    assert len(_linears(LayerShape("gpt", **(SIZES | {"num_kv_heads": 8})))) == 4


def test_an_embedding_reads_and_writes_rows_and_its_gradient_the_whole_table() -> None:
    model = ModelShape(LLAMA, num_layers=2, vocab_size=VOCAB, sequence_length=128)
    kernels = _embedding(model, TOKENS, TIMES)
    rows, table = 2 * TOKENS * H * 2, model.whole.embedding_parameters * 2
    assert kernels.forward.memory_s == rows
    assert kernels.backward_weight.memory_s == rows + table + 3 * table
    assert kernels.backward_input.memory_s == 0


@pytest.mark.parametrize(("element_bytes", "cast"), [(2, 6), (4, 0)])
def test_a_head_casts_its_logits_to_32_bits(element_bytes: int, cast: int) -> None:
    times: Any = Curves()
    times.element_bytes = element_bytes
    model = ModelShape(LLAMA, num_layers=2, vocab_size=VOCAB, sequence_length=128)
    kernels = _head(model, TOKENS, times)
    moved = 2 * TOKENS * H * element_bytes + TOKENS * VOCAB * (2 * 4 + cast)
    assert kernels.forward.matmul_s == 2 * TOKENS * H * VOCAB
    assert (kernels.forward.memory_s, kernels.backward_input.memory_s) == (moved, 2 * moved)
    assert kernels.backward_weight.memory_s == 3 * H * VOCAB * element_bytes
    assert _accumulation([], times).backward_weight.memory_s == 0
