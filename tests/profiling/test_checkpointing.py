"""Selective recomputation and context parallelism: bytes, FLOPs and gradients, for every layer kind."""

import re
from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ppsim.model import shapes
from ppsim.profiling import checkpointing
from ppsim.profiling.checkpointing import recompute_result, save_as_usual
from ppsim.profiling.harness import why_not_split
from ppsim.profiling.layers import AttentionCoreModule, build_layer
from ppsim.profiling.measure import MeasuredModule, measure
from ppsim.runtime.live_bytes import SavedTensor, watch_saved_tensors
from tests.profiling.once import ONCE

from .test_layers import BATCH, LAYERS, SEQUENCE, SHARDS, shard_of

KINDS = ("gpt", "llama", "moe", "moe, shared")
CHEAP, PARTS = "layernorm+mlp_act+moe_act", "core_attn+mlp+moe"
RECOMPUTE = ("none", CHEAP, "core_attn", "shared_experts", PARTS, "full")
CPS = (1, 2)


def every_fifth(*ranges: Any) -> list[Any]:
    """All combinations, of which plain `pytest` runs every fifth."""
    return [
        pytest.param(*one, marks=[pytest.mark.torch] * (index % 5 > 0))
        for index, one in enumerate(product(*ranges))
    ]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Flops(TorchDispatchMode):
    """By the formulas of torch's counter, which itself refuses an autograd.grad within a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if count := flop_registry.get(function._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=found)
        return found


def built(case: str, recompute: str, cp: int, dtype: torch.dtype = torch.float32) -> MeasuredModule:
    torch.manual_seed(0)
    layer = build_layer(shard_of(case), SEQUENCE, recompute=recompute, cp=cp).to(dtype)  # type: ignore[arg-type]
    return MeasuredModule(layer, [torch.randn(BATCH, SEQUENCE // cp, 64, dtype=dtype)])


@pytest.mark.parametrize(("case", "recompute", "cp"), every_fifth(KINDS, RECOMPUTE, CPS))
def test_forward_and_backward_flops_are_those_that_torch_counts(case: str, recompute: str, cp: int) -> None:
    """Norms and activations repeat no product; the whole layer repeats its forward, but for its last product."""
    subject, shape = built(case, recompute, cp), LAYERS[case]
    sizes = {"micro_batch": BATCH, "sequence_length": SEQUENCE, "cp": cp}
    whole, half = (shapes.layer_forward_flops(shape, **sizes, causal=causal) for causal in (False, True))
    forward = whole - 2 * (whole - half) * (1 - shapes.scores_in_prefix(cp))
    with sdpa_kernel(SDPBackend.MATH):
        with Flops() as counter:
            x = subject.next_input()
            output = subject.forward(x)
        assert counter.total == pytest.approx(forward, rel=0.01)
        with Flops() as counter:
            subject.backward(x, output, torch.ones_like(output))
    tokens, shared = 2 * BATCH * SEQUENCE // cp, 3 * shape.shared_ffn_size
    mixture = shape.num_experts + 3 * shape.ffn_size * shape.experts_per_token + shared
    columns = {"gpt": 2 * shape.ffn_size, "llama": 3 * shape.ffn_size, "moe": mixture}[shape.kind]
    again = {
        "none": 0.0, CHEAP: 0.0, "full": forward,
        "core_attn": 2 * (whole - half) * shapes.scores_in_prefix(cp),
        "shared_experts": tokens * shape.hidden_size * shared,
    }  # fmt: skip
    again[PARTS] = again["core_attn"] + tokens * shape.hidden_size * columns
    # torch's checkpoint stops before the last product of what it repeats: nothing keeps its result.
    assert (
        0.5 * again[recompute] <= (counter.total - 2 * forward) * 1.01 <= 1.02 * again[recompute] + 0.02 * forward
    )


@pytest.mark.parametrize(("cp", "dtype"), [(1, torch.float32), (1, torch.bfloat16), (2, torch.bfloat16)])
@pytest.mark.parametrize(("case", "recompute"), every_fifth(SHARDS, RECOMPUTE))
def test_saved_bytes_are_those_of_the_formula(case: str, recompute: str, cp: int, dtype: torch.dtype) -> None:
    formula = shapes.layer_activation_bytes(
        shard_of(case), micro_batch=BATCH, sequence_length=SEQUENCE, dtype=str(dtype).removeprefix("torch."),
        recompute=recompute, fused_norm=False, cp=cp,  # type: ignore[arg-type]
    )  # fmt: skip
    [passes] = measure([built(case, recompute, cp, dtype)], ONCE)
    assert passes.activation_bytes == pytest.approx(formula, rel=0.02)


@pytest.mark.parametrize(("case", "recompute", "cp"), every_fifth(KINDS, RECOMPUTE, CPS))
def test_the_backward_of_every_kind_can_be_split(case: str, recompute: str, cp: int) -> None:
    assert why_not_split(built(case, recompute, cp)) is None


@pytest.mark.parametrize(("case", "recompute", "cp"), every_fifth(KINDS, RECOMPUTE[1:-1], CPS))
def test_recomputing_changes_no_gradient(case: str, recompute: str, cp: int) -> None:
    plain, selective = (built(case, one, cp, torch.float64) for one in ("none", recompute))
    state = plain.module.state_dict()
    inner = {re.sub(r"layer\.", "", name): name for name in selective.module.state_dict()}
    selective.module.load_state_dict({inner[name]: value for name, value in state.items()})
    for one, other in zip(plain.module.buffers(), selective.module.buffers(), strict=True):
        other.copy_(one)
    found: list[list[Tensor]] = []
    for subject in (plain, selective):
        (x,) = subject.next_input()
        output = subject.forward((x,))
        output.square().sum().backward()
        assert x.grad is not None
        found.append([output, x.grad, *(one.grad for one in subject.module.parameters() if one.grad is not None)])
    assert len(found[0]) == 2 + len(list(plain.module.parameters()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


class Counted(nn.Module):
    """A norm, and two products of it; counts how often the norm is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.calls = 0
        self.norm.register_forward_hook(self._count)

    def _count(self, *unused: Any) -> None:
        self.calls += 1

    def forward(self, x: Tensor) -> Tensor:
        with recompute_result(self.norm, x) as normed:
            return self.one(normed) + self.other(normed)


def test_it_is_computed_again_once_a_backward_and_once_for_each_half() -> None:
    module = Counted()
    subject = MeasuredModule(module, [torch.randn(4, 8)])
    for repeat in range(1, 3):
        x = subject.next_input()
        output = subject.forward(x)
        subject.backward(x, output, torch.ones_like(output))
        assert module.calls == 2 * repeat
    module.calls = 0
    x = subject.next_input()
    output = subject.forward(x)
    grad = torch.ones_like(output)
    groups = subject.backward_input(x, output, grad)
    assert module.calls == 2
    subject.backward_weight(x, output, grad, groups)
    assert module.calls == 3  # for both products and the norm's own weight


def test_what_can_be_computed_again_is_not_kept() -> None:
    """Of a norm and two products of it, 4 × 8 floats: the norm's input."""
    [passes] = measure([MeasuredModule(Counted(), [torch.randn(4, 8)])], ONCE)
    assert passes.activation_bytes == 4 * 8 * 4
    kept: list[int] = []
    x = torch.randn(4, 8, requires_grad=True)
    with watch_saved_tensors(lambda held: kept.append(held.tensor().data_ptr())):
        Counted()(x)
    assert x.data_ptr() in kept


class Sums:
    """Counts the calls of a function of two tensors; it has no parameters."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        self.calls += 1
        return first.exp() + 2 * second


def test_views_of_a_result_are_taken_of_the_recomputed_one_and_inputs_without_gradients_get_none() -> None:
    """Three GEMMs save the result, its transpose and a part of it: one recomputation for all of them."""
    sums = Sums()
    first, second = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    weight = torch.randn(4, 4, requires_grad=True)

    def output_of(summed: Tensor) -> Tensor:
        return (summed @ weight).sum() + (summed.T @ weight).sum() + (summed[1:, 2:] @ weight[:2]).sum()

    expected = torch.autograd.grad(output_of(first.exp() + 2 * second), (first, weight))
    with recompute_result(sums, first, second) as summed:
        assert torch.equal(summed, first.exp() + 2 * second)
        output = output_of(summed)
        (recipe,) = checkpointing._ACTIVE.get()
    assert checkpointing._ACTIVE.get() == ()
    gradients = torch.autograd.grad(output, (first, weight), retain_graph=True)
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference)
    assert sums.calls == 2
    for calls in (3, 4):  # the three references of W share a result, which is released then
        (gradient,) = torch.autograd.grad(output, (weight,), retain_graph=True)
        torch.testing.assert_close(gradient, expected[1])
        assert (sums.calls, recipe._made) == (calls, None)


def test_a_result_of_a_module_is_released_after_its_references_and_its_parameters() -> None:
    norm, inputs = nn.LayerNorm(4), torch.randn(3, 4, requires_grad=True)
    first, second = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    with recompute_result(norm, inputs) as normed:
        (recipe,) = checkpointing._ACTIVE.get()
        output = (normed @ first).sum() + (normed @ second).sum()
    torch.autograd.grad(output, (inputs,), retain_graph=True)
    for _ in range(2):
        torch.autograd.grad(output, (first, second, norm.weight), retain_graph=True)
        assert recipe._made is None


def test_a_result_of_a_result_is_recomputed_from_the_first_input() -> None:
    inner, outer = nn.LayerNorm(8), nn.LayerNorm(8)
    inputs = torch.randn(3, 8, requires_grad=True)
    held: list[int] = []
    with (
        watch_saved_tensors(lambda saved: held.append(saved.tensor().data_ptr())),
        recompute_result(inner, inputs) as first,
        recompute_result(outer, first) as second,
    ):
        output = (second * first).sum()
    assert set(held) == {inputs.data_ptr()}
    expected = torch.autograd.grad(
        (outer(inner(inputs)) * inner(inputs)).sum(), (inputs, *inner.parameters(), *outer.parameters())
    )
    output.backward()
    gradients = (inputs.grad, *(parameter.grad for parameter in (*inner.parameters(), *outer.parameters())))
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_only_tensors_in_the_memory_of_a_result_are_recomputed() -> None:
    with recompute_result(torch.exp, torch.ones(3, requires_grad=True)) as powers:
        assert isinstance(checkpointing._reference(powers.detach()[1:]), checkpointing._View)
        assert isinstance(checkpointing._reference(torch.ones(3)), SavedTensor)
    assert isinstance(checkpointing._reference(powers.detach()), SavedTensor)
    with recompute_result(torch.exp, torch.ones(0, requires_grad=True)):
        assert isinstance(checkpointing._reference(torch.ones(0)), SavedTensor), "all empty tensors are at 0"


def test_without_recomputation_a_result_is_saved() -> None:
    inputs = torch.randn(3, requires_grad=True)
    with save_as_usual(torch.add, inputs, torch.ones(3)) as output:
        assert torch.equal(output, inputs + 1)


def test_a_context_parallel_rank_attends_as_the_whole_sequence_does_where_its_keys_are_its_own() -> None:
    """Rank 0 of 2 has chunks 0 and 3: with the peers' keys in place, its rows of the whole attention."""
    shape = LAYERS["llama"]
    layer = build_layer(shape, SEQUENCE, cp=2)
    core, chunk = layer.attention.core, SEQUENCE // 4
    q = torch.randn(BATCH, 4, SEQUENCE, 16)
    k = torch.randn(BATCH, 2, SEQUENCE, 16)
    with AttentionCoreModule(shape).attended(q, k, k) as whole:
        expected = torch.cat((whole[:, :chunk], whole[:, -chunk:]), dim=1)
    core.peers = k.transpose(1, 2)[:, chunk:-chunk]
    core.peers.expand = lambda *sizes: core.peers  # type: ignore[method-assign]
    own = [torch.cat((one[:, :, :chunk], one[:, :, -chunk:]), dim=2) for one in (q, k)]
    with core.attended(own[0], own[1], own[1]) as found:
        torch.testing.assert_close(found, expected)


def test_its_positions_are_those_of_its_chunks() -> None:
    whole, part = (build_layer(LAYERS["llama"], SEQUENCE, cp=cp).attention for cp in (1, 3))
    chunk = SEQUENCE // 6
    torch.testing.assert_close(part.cos, torch.cat((whole.cos[:chunk], whole.cos[-chunk:])))


def test_every_rank_has_as_many_scores() -> None:
    """Chunks i and 2·cp − 1 − i see i + 1 and 2·cp − i chunks: the sum over all ranks is that of the whole."""
    for cp in (2, 4, 8):
        chunks = [(rank + 1) + (2 * cp - rank) for rank in range(cp)]
        assert set(chunks) == {2 * cp + 1}
        assert shapes.scores_in_prefix(cp) * (2 * cp) ** 2 / cp == pytest.approx(chunks[0])


@pytest.mark.parametrize(("length", "cp", "sentence"), [(100, 3, "divisible by 6"), (4, 4, "nearest: 8")])
def test_a_sequence_that_cannot_be_cut_is_refused(length: int, cp: int, sentence: str) -> None:
    assert sentence in str(shapes.why_no_context_parallel(length, cp))
    assert shapes.why_no_context_parallel(48, 3) is None
