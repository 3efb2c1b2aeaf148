"""Layer kinds: formulas against torch's own counters, gradients against a plain computation, shards."""

import copy
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ppsim.base.errors import ConfigError
from ppsim.model import shapes
from ppsim.model.shapes import LayerShape, ModelShape
from ppsim.profiling import layers
from ppsim.profiling.layers import Experts, build_embedding, build_head, build_layer
from ppsim.profiling.measure import MeasuredModule, measure
from ppsim.profiling.model_shapes import MODELS, find_model
from ppsim.runtime.gpt import loss_of
from tests.defaults import number_defaults
from tests.profiling.once import ONCE

CPU = torch.device("cpu")
BATCH, SEQUENCE = 2, 48
LAYERS = {
    "gpt": LayerShape("gpt", hidden_size=64, num_heads=4, num_kv_heads=4, head_size=16, ffn_size=256),
    "llama": LayerShape("llama", hidden_size=64, num_heads=4, num_kv_heads=2, head_size=16, ffn_size=176),
    "wide heads": LayerShape("llama", hidden_size=64, num_heads=4, num_kv_heads=4, head_size=32, ffn_size=96),
    "moe": LayerShape("moe", hidden_size=64, num_heads=4, num_kv_heads=2, head_size=16, ffn_size=48,
                      num_experts=8, experts_per_token=2),
    "moe, shared": LayerShape("moe", hidden_size=64, num_heads=4, num_kv_heads=4, head_size=16, ffn_size=32,
                              num_experts=16, experts_per_token=4, shared_ffn_size=64),
}  # fmt: skip
SHARDS = {
    **{name: (name, 1, 1) for name in LAYERS},
    "gpt, tp 2": ("gpt", 2, 1),
    "llama, tp 2": ("llama", 2, 1),
    "moe, ep 4": ("moe", 1, 4),
    "moe, shared, tp 2, ep 8": ("moe, shared", 2, 8),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def shard_of(case: str) -> LayerShape:
    name, tp, ep = SHARDS[case]
    return LAYERS[name].shard(tp=tp, ep=ep)


def built(shape: LayerShape, dtype: torch.dtype = torch.float32, **fields: str) -> MeasuredModule:
    torch.manual_seed(0)
    layer = build_layer(shape, SEQUENCE, **fields).to(dtype)  # type: ignore[arg-type]
    return MeasuredModule(layer, [torch.randn(BATCH, SEQUENCE, shape.hidden_size, dtype=dtype)])


def saved_bytes(subject: MeasuredModule) -> int:
    return measure([subject], ONCE)[0].activation_bytes


def counted_flops(module: nn.Module, x: torch.Tensor) -> int:
    """By torch's counter, which knows the products of unfused attention only."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops()


@pytest.mark.parametrize("case", SHARDS)
def test_flops_and_parameters_are_those_that_torch_counts(case: str) -> None:
    shape, subject = shard_of(case), built(shard_of(case))
    formula = shapes.layer_forward_flops(shape, micro_batch=BATCH, sequence_length=SEQUENCE)
    assert counted_flops(subject.module, *subject.next_input()) == pytest.approx(formula, rel=0.01)
    parameters = sum(parameter.numel() for parameter in subject.module.parameters())
    assert parameters == shapes.layer_parameters(shape)


def test_causal_attention_needs_half_of_the_scores() -> None:
    shape, sizes = LAYERS["llama"], {"micro_batch": BATCH, "sequence_length": SEQUENCE}
    whole = shapes.layer_forward_flops(shape, **sizes)
    half = shapes.layer_forward_flops(shape, **sizes, causal=True)
    assert whole - half == 2 * BATCH * SEQUENCE**2 * shape.num_heads * shape.head_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_embedding_and_head_are_those_of_the_formulas(kind: str, dtype: torch.dtype) -> None:
    model = ModelShape(LAYERS[kind], num_layers=1, vocab_size=300, sequence_length=SEQUENCE)
    sizes = {"micro_batch": BATCH, "sequence_length": SEQUENCE}
    tokens = torch.randint(0, 300, (BATCH, SEQUENCE))
    hidden = torch.randn(BATCH, SEQUENCE, 64, dtype=dtype)
    embedding, head = build_embedding(model).to(dtype), build_head(model).to(dtype)
    assert sum(one.numel() for one in embedding.parameters()) == model.whole.embedding_parameters
    assert embedding(tokens).shape == hidden.shape
    assert sum(one.numel() for one in head.parameters()) == model.whole.head_parameters
    assert counted_flops(head, hidden) == pytest.approx(shapes.head_forward_flops(model, **sizes), rel=0.01)
    formula = shapes.head_activation_bytes(
        model, **sizes, dtype=str(dtype).removeprefix("torch."), fused_norm=False
    )
    saved = saved_bytes(MeasuredModule(head, [hidden], loss=lambda logits: loss_of(logits, tokens)))
    assert saved == pytest.approx(formula, rel=0.02)


def test_experts_give_what_a_plain_loop_over_tokens_gives() -> None:
    """Output, and gradients of input, router and experts, in double precision."""
    shape = LAYERS["moe"]
    torch.manual_seed(1)
    experts = Experts(shape).double()
    x = torch.randn(3, 5, shape.hidden_size, dtype=torch.float64, requires_grad=True)

    def plainly(module: Experts, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for token in x.flatten(0, 1):
            logits, chosen = module.router(token).topk(shape.experts_per_token)
            row = torch.zeros_like(token)
            for weight, expert in zip(logits.float().softmax(-1).double(), chosen.tolist(), strict=True):
                inner = functional.silu(token @ module.gate[expert]) * (token @ module.up[expert])
                row = row + weight * (inner @ module.down[expert])
            rows.append(row)
        return torch.stack(rows).view_as(x)

    again, x_again = copy.deepcopy(experts), x.detach().clone().requires_grad_(True)
    output, expected = experts(x), plainly(again, x_again)
    torch.testing.assert_close(output, expected)
    sensitivity = torch.randn_like(output)
    output.backward(sensitivity)
    expected.backward(sensitivity)
    torch.testing.assert_close(x.grad, x_again.grad)
    for one, other in zip(experts.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_an_expert_without_tokens_gets_a_gradient_of_zero() -> None:
    shape = LAYERS["moe"]
    experts = Experts(shape)
    nn.init.zeros_(experts.router.weight)
    experts.router.weight.data[:2] = 1.0
    experts(torch.ones(1, 4, shape.hidden_size)).sum().backward()
    assert experts.gate.grad is not None
    assert experts.gate.grad[:2].abs().sum() > 0
    assert experts.gate.grad[2:].abs().sum() == 0


@pytest.mark.parametrize("case", LAYERS)
def test_no_forward_on_a_gpu_waits_for_the_host(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors without values: an operator that must see one on the host raises. A GPU has grouped products."""
    monkeypatch.setattr(layers, "grouped_mm", lambda rows, weights, counts: rows @ weights[0] + 0 * counts.sum())
    with FakeTensorMode():
        layer = build_layer(LAYERS[case], SEQUENCE)
        subject = MeasuredModule(layer, [torch.randn(BATCH, SEQUENCE, LAYERS[case].hidden_size)])
        x = subject.next_input()
        subject.backward(x, output := subject.forward(x), torch.empty_like(output))
        assert output.shape == x[0].shape


def test_rotary_positions_make_scores_depend_on_the_distance_only() -> None:
    layer = build_layer(LAYERS["llama"], SEQUENCE)
    heads = torch.randn(16).expand(1, 1, SEQUENCE, 16)
    rotated = layer.attention._rotated(heads)[0, 0]
    scores = rotated @ rotated.T
    for distance in (1, 5):
        torch.testing.assert_close(scores.diagonal(distance), scores[0, distance].expand(SEQUENCE - distance))


def test_shards_of_all_ranks_make_the_layer() -> None:
    """Norms and router are on every rank; everything else is divided."""
    shape = find_model("deepseek-v3-like").layer
    shard = shape.shard(tp=8, ep=64)
    assert (shard.num_heads, shard.num_kv_heads, shard.ffn_size, shard.local_experts) == (16, 16, 256, 4)
    replicated = 2 * shape.hidden_size + shape.hidden_size * shape.num_experts
    attention = 4 * shape.hidden_size * shape.num_heads * shape.head_size
    shared = 3 * shape.hidden_size * shape.shared_ffn_size
    experts = shapes.layer_parameters(shape) - replicated - attention - shared
    assert shapes.layer_parameters(shard) == replicated + (attention + shared) // 8 + experts // (8 * 64)


# Billions of parameters, as published.
PUBLISHED = {"llama3-8b": 8.03, "llama3-70b": 70.6, "llama3-405b": 405.9, "mixtral-8x7b": 46.7}


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_models_have_the_parameters_that_were_published(name: str) -> None:
    model = MODELS[name]
    total = model.num_layers * shapes.layer_parameters(model.layer)
    total += model.whole.embedding_parameters + model.whole.head_parameters
    assert total / 1e9 == pytest.approx(PUBLISHED[name], rel=0.003)


WRONG = {
    "tp of kv heads": (lambda: LAYERS["llama"].shard(tp=4), "got 4 with 2"),
    "ep of dense": (lambda: LAYERS["llama"].shard(ep=2), "a llama layer has no experts to divide: got ep 2"),
    "ep of experts": (lambda: LAYERS["moe"].shard(ep=3), "got 3 with 8"),
    "no tp": (lambda: LAYERS["gpt"].shard(tp=0), "got 0"),
    "a name": (lambda: find_model("llama-8b"), "unknown model 'llama-8b': did you mean llama3-8b"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_said_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(ConfigError) as error:
        make()
    assert sentence in str(error.value)


def attended(heads: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of [sequence, heads, head size] with its scores in memory."""
    num, size = heads.shape[0], heads.shape[-1]
    group = heads.shape[1] // keys.shape[1]
    keys, values = (one.repeat_interleave(group, dim=1) for one in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", heads, keys) / size**0.5
    scores = scores.masked_fill(torch.ones(num, num, dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)


def turned(heads: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of columns, as complex numbers, by position / 500,000^(2 i / head size)."""
    first, second = heads.chunk(2, dim=-1)
    size, positions = heads.shape[-1], torch.arange(heads.shape[0])
    angles = positions[:, None] * 500_000.0 ** (-2 * torch.arange(size // 2) / size)
    both = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((both.real, both.imag), dim=-1)


def llama_by_hand(layer: nn.Module, x: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    """The output of a layer of Llama or of Mixtral with a shared expert, without batches."""

    def normed(norm: nn.Module, of: torch.Tensor) -> torch.Tensor:
        return of / (of.square().mean(-1, keepdim=True) + torch.finfo(of.dtype).eps).sqrt() * norm.weight

    def gated(part: nn.Module, of: torch.Tensor) -> torch.Tensor:
        return part.down(torch.sigmoid(part.gate(of)) * part.gate(of) * part.up(of))

    a, h = layer.attention, normed(layer.norm_1, x)
    q, k, v = (of(h).unflatten(-1, (count, -1)) for of, count in ((a.q, heads), (a.k, kv_heads), (a.v, kv_heads)))
    x = x + a.out(attended(turned(q), turned(k), v))
    h = normed(layer.norm_2, x)
    part = layer.feed_forward
    return x + (gated(part, h) if hasattr(part, "gate") else part.experts(h) + gated(part.shared, h))


WEIGHTS = {"hidden_size": 12, "num_heads": 4, "num_kv_heads": 2, "head_size": 6, "ffn_size": 20}


@pytest.mark.parametrize("recompute", ["none", "core_attn", "layernorm", "mlp_act", "full"])
@pytest.mark.parametrize("kind", ["llama", "moe", "gpt"])
def test_a_layer_gives_what_its_formulas_give(kind: str, recompute: str) -> None:
    sizes = {"num_experts": 4, "experts_per_token": 2, "shared_ffn_size": 10} if kind == "moe" else {}
    if kind == "gpt":
        sizes |= {"num_kv_heads": 4, "head_size": 3}
    layer = build_layer(LayerShape(kind, **WEIGHTS | sizes), 5, recompute=recompute)
    x = torch.randn(1, 5, 12)
    plain = next(one for one in layer.modules() if hasattr(one, "norm_1"))
    for name in ("norm_1", "norm_2"):
        nn.init.uniform_(getattr(plain, name).weight, 0.5, 1.5)
    if kind == "gpt":
        h = functional.layer_norm(x[0], (12,), plain.norm_1.weight, plain.norm_1.bias)
        q, k, v = plain.qkv(h).view(5, 3, 4, 3).unbind(1)
        expected = x[0] + plain.out(attended(q, k, v))
        h = functional.layer_norm(expected, (12,), plain.norm_2.weight, plain.norm_2.bias)
        expected = expected + plain.down(functional.gelu(plain.up(h)))
    else:
        expected = llama_by_hand(plain, x[0], 4, 2)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("llama", ["layernorm", "mlp_act", "core_attn", "mlp"]), ("gpt", ["layernorm", "mlp_act", "core_attn", "mlp"]),
        ("moe", ["layernorm", "moe_act", "core_attn", "moe", "shared_experts"]),
    ],
)  # fmt: skip
def test_each_part_that_is_computed_again_saves_fewer_bytes(kind: str, names: list[str]) -> None:
    sizes = {"num_experts": 4, "experts_per_token": 2, "shared_ffn_size": 10} if kind == "moe" else {}
    if kind == "gpt":
        sizes |= {"num_kv_heads": 4, "head_size": 3}
    shape = LayerShape(kind, **WEIGHTS | sizes)
    kept = {name: saved_bytes(built(shape, recompute=name)) for name in ("none", *names, "full")}
    assert kept["none"] > max(kept[name] for name in (*names, "full"))
    assert min(kept, key=kept.__getitem__) == "full"


def test_positions_are_no_weights_of_a_layer() -> None:
    layer = build_layer(LayerShape("llama", **WEIGHTS), 5, cp=1)
    assert not {name.rpartition(".")[2] for name in layer.state_dict()} & {"cos", "sin", "peers", "mask"}
    cut = build_layer(LayerShape("llama", **WEIGHTS), 8, cp=2)
    assert not {name.rpartition(".")[2] for name in cut.state_dict()} & {"cos", "sin", "peers", "mask"}
    assert layers.ROTARY_BASE == 500_000.0


def test_experts_on_a_gpu_are_one_grouped_gemm_of_the_ends_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        functional, "grouped_mm", lambda rows, weights, *, offs: asked.append((rows, weights, offs)) or "product"
    )
    rows, counts = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16), torch.tensor([2, 0, 3])
    assert layers.grouped_mm(rows, "weights", counts) == "product"  # type: ignore[arg-type, comparison-overlap]
    ((first, second, ends),) = asked
    assert (first, second, ends.tolist(), ends.dtype) == (rows, "weights", [2, 2, 5], torch.int32)


def test_experts_elsewhere_are_a_gemm_each() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    weights = torch.tensor([[[1.0], [10.0]], [[7.0], [7.0]], [[100.0], [1.0]]])
    assert layers.grouped_mm(rows, weights, torch.tensor([1, 0, 2])).tolist() == [[21.0], [304.0], [506.0]]


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(layers) == {"build_layer": {"cp": 1, "compiled": False}}
