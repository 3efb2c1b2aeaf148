"""Finding out which attention torch picks leaves compiled functions compiled, and context parallelism a mask."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias

from ppsim.model.shapes import LayerShape
from ppsim.profiling.checkpointing import save_as_usual
from ppsim.profiling.layers import ContextCore
from ppsim.runtime.torch_private import attention_in


def test_a_function_that_is_called_where_operators_are_watched_is_still_compiled_afterwards() -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    largest = torch.compile(lambda x, factor: x.abs().amax() * factor, backend=backend, dynamic=False)
    largest(torch.ones(4, 8), 1.0)
    assert attention_in(lambda: largest(torch.ones(4, 16), 1.0)) == "math"
    largest(torch.ones(4, 4), 2.0)
    assert len(compiled) == 2


def test_the_mask_that_a_gpus_kernel_knows_by_name_can_be_used_where_operators_are_watched() -> None:
    """It is made before: torch cannot make this kind of tensor there. It is the mask that a CPU has in numbers."""
    shape = LayerShape("gpt", hidden_size=32, num_heads=2, num_kv_heads=2, head_size=16, ffn_size=64)
    core = ContextCore(shape, 16, 2, cheaply=save_as_usual)
    q, own = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)

    def attended(q: Tensor) -> Tensor:
        with core.attended(q, own, own) as found:
            return found

    expected = attended(q)
    mask = core.named_mask
    assert isinstance(mask, CausalBias)
    core.mask = mask._materialize()  # type: ignore[no-untyped-call]
    assert attention_in(lambda: attended(q)) in ("flash", "fused", "flash + fused", "math", "flash + math")
    assert attended(q) == pytest.approx(expected, abs=1e-6)
