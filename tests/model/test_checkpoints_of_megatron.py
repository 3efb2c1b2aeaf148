"""Checkpoints of block/N and uniform/N against the blocks that megatron-core builds and runs on a CPU."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from ppsim.model.recompute import plan_of_stage, recompute_of

NUM_CASES = 200
HIDDEN = 2

pytestmark = pytest.mark.filterwarnings("ignore")


class Case(NamedTuple):
    """One configuration; `ends`: the decoder layers of the first and last pipeline stage if those are uneven."""

    num_layers: int
    pp: int
    vpp: int
    method: str
    number: int
    ends: tuple[int, int] | None


class Chunk(NamedTuple):
    """Layers of a model chunk, layers of each checkpoint, and how often each layer runs in a forward and backward."""

    num_layers: int
    checkpoints: list[int]
    runs: list[int]


def counts_of_ppsim(case: Case, num_layers: int) -> list[int]:
    """The layers of each checkpoint of a model chunk with `num_layers` layers."""
    plan = plan_of_stage(recompute_of(f"{case.method}/{case.number}"), num_layers)
    whole = [one for one in plan if one.recompute == "full"]
    return [layers for one in whole for layers in ([one.layers] if one.joined else [1] * one.layers)]


@pytest.fixture(scope="module")
def block() -> Any:
    return pytest.importorskip(
        "megatron.core.transformer.transformer_block", reason="megatron-core is not installed"
    )


@pytest.fixture
def layer_spec(block: Any) -> Any:
    """A layer of one scale in place of attention and MLP."""
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import BaseTransformerLayer

    class CountedLayer(nn.Module, BaseTransformerLayer):
        def __init__(self, config: Any, layer_number: int, **others: Any) -> None:
            super().__init__()
            self.layer_number, self.runs = layer_number, 0
            self.scale = nn.Parameter(torch.ones(config.hidden_size))

        def forward(self, hidden_states: torch.Tensor, **others: Any) -> tuple[torch.Tensor, None]:
            self.runs += 1
            return hidden_states * self.scale, None

    return ModuleSpec(module=CountedLayer)


def cases() -> Iterator[Case]:
    draw = random.Random(0)
    for _ in range(NUM_CASES):
        pp, vpp, of_chunk = draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 3]), draw.randint(1, 8)
        vpp, ends = (1 if pp == 1 else vpp), None
        num_layers = pp * vpp * of_chunk
        if pp > 2 and draw.random() < 0.3:
            ends = vpp * draw.randint(1, 5), vpp * draw.randint(1, 5)
            num_layers = (pp - 2) * vpp * of_chunk + sum(ends)
        chunks = {of_chunk, *(layers // vpp for layers in ends or ())}
        method, number = draw.choice(["block", "uniform"]), draw.randint(1, 10)
        if method == "uniform":  # megatron-core's loop runs past the last layer unless N divides all chunks
            number = draw.choice([n for n in range(1, of_chunk + 1) if all(size % n == 0 for size in chunks)])
        yield Case(num_layers, pp, vpp, method, number, ends)


def config_of(case: Case) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    first, last = case.ends or (None, None)
    return TransformerConfig(
        num_layers=case.num_layers,
        hidden_size=HIDDEN,
        num_attention_heads=1,
        pipeline_model_parallel_size=case.pp,
        virtual_pipeline_model_parallel_size=case.vpp if case.vpp > 1 else None,
        pipeline_dtype=torch.float32,
        num_layers_in_first_pipeline_stage=first,
        num_layers_in_last_pipeline_stage=last,
        recompute_granularity="full",
        recompute_method=case.method,
        recompute_num_layers=case.number,
    )


def chunks_of_megatron(case: Case, block: Any, layer_spec: Any, patch: pytest.MonkeyPatch) -> Iterator[Chunk]:
    """Each model chunk of each pipeline rank: build megatron-core's block, run its forward and backward, and count."""
    config, made = config_of(case), []

    def checkpoint(forward: Any, distribute: bool, *given: Any) -> Any:
        """`CheckpointFunction` without its states of CUDA's random numbers."""
        before = sum(layer.runs for layer in chunk.layers)
        result = torch.utils.checkpoint.checkpoint(forward, *given, use_reentrant=True)
        made.append(sum(layer.runs for layer in chunk.layers) - before)
        return result

    patch.setattr(block.tensor_parallel, "checkpoint", checkpoint)
    for rank in range(case.pp):
        patch.setattr(block, "get_pg_rank", lambda group, rank=rank: rank)
        for vp_stage in range(case.vpp):
            made.clear()
            chunk = block.TransformerBlock(
                config, layer_spec, post_layer_norm=False, pg_collection=SimpleNamespace(tp=None, pp=None),
                vp_stage=vp_stage if case.vpp > 1 else None,
            )  # fmt: skip
            chunk(torch.ones(1, 1, HIDDEN, requires_grad=True), attention_mask=None).sum().backward()
            yield Chunk(len(chunk.layers), list(made), [layer.runs for layer in chunk.layers])


@pytest.mark.oracle
def test_checkpoints_of_every_model_chunk_are_those_of_megatron_core_in_200_random_cases(
    block: Any, layer_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case in cases():
        chunks = list(chunks_of_megatron(case, block, layer_spec, monkeypatch))
        assert sum(chunk.num_layers for chunk in chunks) == case.num_layers
        for chunk in chunks:
            sizes = counts_of_ppsim(case, chunk.num_layers)
            assert sizes == chunk.checkpoints, case
            recomputed = sum(sizes)
            assert chunk.runs == [2] * recomputed + [1] * (chunk.num_layers - recomputed), case


def test_megatron_core_refuses_uniform_checkpoints_that_do_not_divide_a_chunk(
    block: Any, layer_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(5, 1, 1, "uniform", 2, None)
    with pytest.raises(IndexError):
        list(chunks_of_megatron(case, block, layer_spec, monkeypatch))
