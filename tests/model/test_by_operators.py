"""`selective-op` beside torch's own selective checkpointing of a block as TorchTitan writes it: every byte and product."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.model.activations import layer_activations
from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.recompute import BY_OPERATORS, by_operators
from ppsim.model.registry import find_model
from ppsim.parallel.sizes import ParallelSizes

HIDDEN, HEADS, FFN, SEQUENCES, LENGTH = 256, 8, 768, 2, 64
SAVED = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation[None, :, None]).flatten(3).type_as(x)


class Block(nn.Module):
    """torchtitan/models/llama/model.py at 9dec370: `TransformerBlock`, `Attention`, `FeedForward`."""

    def __init__(self, num_kv_heads: int) -> None:
        super().__init__()
        self.size, self.repeats = HIDDEN // HEADS, HEADS // num_kv_heads
        of_keys = num_kv_heads * self.size
        sizes = {"wq": (HIDDEN, HIDDEN), "wk": (HIDDEN, of_keys), "wv": (HIDDEN, of_keys), "wo": (HIDDEN, HIDDEN)}
        sizes |= {"w1": (HIDDEN, FFN), "w2": (FFN, HIDDEN), "w3": (HIDDEN, FFN)}
        for name, (inputs, outputs) in sizes.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=False))
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def attention(self, x: Tensor, rotation: Tensor) -> Tensor:
        q, k, v = (one(x).view(*x.shape[:2], -1, self.size) for one in (self.wq, self.wk, self.wv))
        q, k = rotated(q, rotation), rotated(k, rotation)
        k, v = (one[:, :, :, None].expand(-1, -1, -1, self.repeats, -1).flatten(2, 3) for one in (k, v))
        heads = [one.transpose(1, 2) for one in (q, k, v)]
        found = functional.scaled_dot_product_attention(*heads, is_causal=True)
        attended: Tensor = self.wo(found.transpose(1, 2).contiguous().view(x.shape))
        return attended

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), rotation)
        y = self.ffn_norm(h)
        out: Tensor = h + self.w2(functional.silu(self.w1(y)) * self.w3(y))
        return out


MADE: list[Any] = []
"""The modes of each forward: torch.compile takes no function with a memory of its own."""


def contexts() -> Any:
    """parallelize_llama.py at 9dec370: `selective_checkpointing_context_fn`."""
    counts: dict[bool, int] = defaultdict(int)

    def policy(ctx: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_product = function == torch.ops.aten.mm.default
        counts[ctx.is_recompute] += is_product
        if function in SAVED and not (is_product and counts[ctx.is_recompute] % 2 == 0):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    MADE.append(create_selective_checkpoint_contexts(policy))
    return MADE[-1]


class Checkpointed:
    """A block under that policy, and what its forward holds for the backward."""

    def __init__(self, num_kv_heads: int, *, compiled: bool) -> None:
        torch.manual_seed(0)
        MADE.clear()
        self.backward_products = 0
        self.block = Block(num_kv_heads).to(torch.bfloat16)
        module: nn.Module = checkpoint_wrapper(self.block, context_fn=contexts, preserve_rng_state=False)
        if compiled:
            backend = aot_autograd(
                fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
                bw_compiler=self.counted,
                partition_fn=min_cut_rematerialization_partition,
            )
            module = torch.compile(module, backend=backend, fullgraph=True)
        x = torch.randn(SEQUENCES, LENGTH, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        half = HIDDEN // HEADS // 2
        rotation = torch.polar(torch.ones(LENGTH, half), torch.randn(LENGTH, half))
        known = {one.untyped_storage().data_ptr() for one in (*self.block.parameters(), rotation)}
        self.held: dict[int, int] = {x.untyped_storage().data_ptr(): x.nbytes}

        def packed(one: Tensor) -> Tensor:
            storage = one.untyped_storage()
            if storage.data_ptr() not in known:
                self.held[storage.data_ptr()] = storage.nbytes()
            return one

        # what a checkpoint saves of inputs goes through hooks of its own, and what its policy keeps through none
        with saved_tensors_hooks(packed, lambda one: one):
            out = module(x, rotation)
        for caching, _ in () if compiled else MADE:
            for one in tree_leaves([list(of_one.values()) for of_one in caching.storage.values()]):
                if isinstance(kept := getattr(one, "val", None), Tensor) and kept.is_floating_point():
                    packed(kept)
        out.sum().backward()

    def counted(self, graph: Any, _: Any) -> Any:
        self.backward_products += sum(node.target == torch.ops.aten.mm.default for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)


def layer(num_kv_heads: int) -> Layer:
    return Layer(HIDDEN, Attention(HEADS, num_kv_heads, HIDDEN // HEADS), FeedForward(FFN))


SETTINGS = MemorySettings(SEQUENCES, LENGTH)


@pytest.mark.torch
@pytest.mark.parametrize("num_kv_heads", [2, 8])
def test_a_compiled_layer_keeps_and_computes_again_what_torch_says_to_the_byte(num_kv_heads: int) -> None:
    one, torchs = layer(num_kv_heads), Checkpointed(num_kv_heads, compiled=True)
    assert sum(layer_activations(one, SETTINGS, BY_OPERATORS).values()) == sum(torchs.held.values())
    _, again = by_operators(one.linears(ParallelSizes()), ParallelSizes())
    assert torchs.backward_products == 2 * 7 + len(again) == 2 * 7 + 3


def test_an_eager_layer_holds_the_last_products_output_beside_that() -> None:
    """Seventh of seven products, it is kept though nothing needs it; torch.compile leaves it out."""
    kept = sum(layer_activations(layer(2), SETTINGS, BY_OPERATORS).values())
    assert sum(Checkpointed(2, compiled=False).held.values()) == kept + SEQUENCES * LENGTH * HIDDEN * 2


@pytest.mark.parametrize(("tp", "hidden_states"), [(1, 1.0), (8, 1 + 1 / 8)])
def test_an_eager_layer_also_holds_what_tp_ranks_scatter_of_that_output(tp: int, hidden_states: float) -> None:
    llama, cut = find_model("llama3-8b").layers[0], ParallelSizes(tp=tp)
    settings = [MemorySettings(1, 8192, cut, execution=Execution(compile=compiles)) for compiles in (False, True)]
    eager, compiled = (sum(layer_activations(llama, each, BY_OPERATORS).values()) for each in settings)
    assert eager - compiled == 8192 * llama.hidden_size * 2 * hidden_states


def test_it_lies_between_none_and_full_in_time_and_bytes() -> None:
    words = {"model": "llama3-8b", "gpus": 8, "pp": 1, "stack": "torchtitan", "cluster": "dgx-h100"}
    made = {one: ppsim.project(**words, recompute=one) for one in ("none", BY_OPERATORS, "full")}
    peaks = [one.timeline.memory.peak_bytes.max() for one in made.values()]
    steps = [one.iteration_time_s for one in made.values()]
    assert peaks[0] > peaks[1] > peaks[2]
    assert steps[0] < steps[1] < steps[2]


def test_a_split_backward_goes_through_no_selective_checkpoint_of_torch() -> None:
    words = {"model": "llama3-8b", "gpus": 8, "pp": 4, "recompute": BY_OPERATORS, "global_batch": 16}
    made = {one: ppsim.project(**words, schedule=one).runtime_error for one in ("1f1b", "zb-h1")}
    assert made["1f1b"] is None
    assert "goes through one backward only" in made["zb-h1"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"model": "mamba2-2.7b"}, "of layers with softmax attention and an MLP or experts: take full"),
        ({"attention": "unfused"}, "keeps what fused attention gives: give --attention fused"),
        ({"tp": 2, "sequence_parallel": False}, "keeps what tp ranks scatter: give --sequence-parallel, or tp 1"),
    ],
)
def test_where_its_operators_are_not_known_is_said(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.job(**{"model": "llama3-8b", "gpus": 8, "pp": 1, "recompute": BY_OPERATORS} | words)


def test_a_product_with_a_bias_is_kept_and_not_counted() -> None:
    one = layer(8)
    biased = replace(one, attention=replace(one.attention, qkv_bias=True))
    kept, again = by_operators(biased.linears(ParallelSizes()), ParallelSizes())
    assert [len(kept), len(again)] == [5, 1]


def test_of_latent_attention_and_experts_every_second_product_in_torchtitan_s_order_is_kept() -> None:
    """torchtitan/models/deepseek_v3/model/model.py and moe.py of v0.2.2: wq, wkv_a, wkv_b, wo, w1, w3, w2."""
    one = find_model("deepseek-v2-lite").layers[-1]
    kept, again = by_operators(one.linears(ParallelSizes(dp=8, ep=8)), ParallelSizes(dp=8, ep=8))
    assert [(matrix.name, matrix.kind) for matrix in kept] == [
        ("queries up", "dense"), ("keys and values up", "dense"), ("up", "shared"),
    ]  # fmt: skip
    assert [(matrix.name, matrix.kind) for matrix in again] == [
        ("keys and values down", "dense"), ("attention output", "dense"), ("up", "shared"),
    ]  # fmt: skip


def test_of_a_layer_with_experts_it_keeps_both_exchanges_and_no_product_of_routed_experts() -> None:
    """The all-to-alls write 6 rows of 2048 per token before and after 64 experts of 1408."""
    one, tokens = find_model("deepseek-v2-lite").layers[-1], 8 * 4096
    spread, alone = (
        layer_activations(one, MemorySettings(8, 4096, ParallelSizes(dp=ep, ep=ep)), BY_OPERATORS) for ep in (8, 1)
    )
    assert alone["experts"] == 2 * tokens * 2 * 1408
    assert spread["experts"] - alone["experts"] == 2 * tokens * 2 * 6 * 2048
    heads = 16 * (192 + 128 + 128 + 128)  # wq, wkv_b, and the core's output
    assert spread["attention"] == 2 * tokens * heads


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_models_with_experts_lie_between_none_and_full_too(model: str) -> None:
    words = {"model": model, "gpus": 8, "pp": 1, "ep": 8, "stack": "torchtitan", "cluster": "dgx-h100"}
    made = [ppsim.project(**words, recompute=one) for one in ("none", BY_OPERATORS, "full")]
    peaks = [one.timeline.memory.peak_bytes.max() for one in made]
    steps = [one.iteration_time_s for one in made]
    assert peaks[0] > peaks[1] > peaks[2]
    assert steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize("tp", [2, 4])
def test_a_tensor_parallel_rank_keeps_its_share_and_its_part_of_what_is_scattered(tp: int) -> None:
    llama = find_model("llama3-8b").layers[0]
    alone, rank = (
        layer_activations(llama, MemorySettings(1, 4096, ParallelSizes(tp=size)), BY_OPERATORS) for size in (1, tp)
    )
    scattered_bytes = 4096 * llama.hidden_size * 2 // tp
    assert rank["attention"] == alone["attention"] // tp + scattered_bytes
    assert rank["scores"] == alone["scores"] // tp
