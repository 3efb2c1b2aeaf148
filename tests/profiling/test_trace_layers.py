"""Layers from recorded operators: a hand-made recording of each kind of layer, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.attention_and_mlp import FeedForward, MixtureOfExperts, NoFeedForward
from ppsim.model.mixers.traced import TracedSaved
from ppsim.model.recurrent import ChunkProduct, GatedDeltaNet, Mamba

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from ppsim.profiling.trace_layers import TracedLayer, plain  # noqa: E402
from ppsim.profiling.trace_recorder import TracedOperation, storage  # noqa: E402

H, TOKENS, PATH = 8, 4, "layers.0"
INPUT = 1000  # number of the storage of the layer's input


class Part(nn.Module):
    """Matrices by name as (inputs, outputs), and norms of a number of columns."""

    def __init__(self, bias: bool = False, **sizes: tuple[int, int] | int) -> None:
        super().__init__()
        for name, size in sizes.items():
            self.add_module(name, nn.RMSNorm(size) if isinstance(size, int) else nn.Linear(*size, bias=bias))


def layer(*, norm: Any = nn.RMSNorm, **parts: nn.Module) -> nn.Module:
    made = nn.Module()
    for name, module in {"norm1": norm(H), **parts, "norm2": norm(H)}.items():
        made.add_module(name, module)
    return made


ATTENTION = {"q_proj": (H, 16), "k_proj": (H, 8), "v_proj": (H, 8), "o_proj": (16, H)}
MLP = {"gate_proj": (H, 24), "up_proj": (H, 24), "down_proj": (24, H)}


def gemm(module: str, k: int, n: int, *, m: int = TOKENS, reads: int = INPUT, **further: Any) -> TracedOperation:
    weight = f"{PATH}.{module}.weight"
    return TracedOperation("gemm", f"{PATH}.{module}", m=m, k=k, n=n, weight=weight, reads=(reads,), **further)


def gemms(name: str, sizes: dict[str, tuple[int, int]], **further: Any) -> list[TracedOperation]:
    return [gemm(f"{name}.{module}", *size, **further) for module, size in sizes.items()]


SIZES = {
    "heads": 2, "kv_heads": 1, "qk": 8, "v": 8, "keys": TOKENS, "window": None, "is_chunked": False, "sinks": False,
    "is_causal": True,
}  # fmt: skip
CORE = TracedOperation("attention", f"{PATH}.attn", reads=(11, 12, 13), writes=14, sizes=SIZES)
OF_ATTENTION = [
    *gemms("attn", {name: ATTENTION[name] for name in ("q_proj", "k_proj", "v_proj")}, reads=2), CORE,
    gemm("attn.o_proj", 16, H, reads=14),
]  # fmt: skip
OF_MLP = [*gemms("mlp", {name: MLP[name] for name in ("gate_proj", "up_proj")}, reads=3), gemm("mlp.down_proj", 24, H, reads=4)]  # fmt: skip


def traced(
    module: nn.Module,
    events: list[TracedOperation],
    *,
    plan: dict[str, str] | None = None,
    saved: dict[int, tuple[str, Any]] | None = None,
    runs: int = 1,
    makers: dict[int, str] | None = None,
) -> TracedLayer:
    given = torch.zeros(1, TOKENS, H)
    recorder = SimpleNamespace(
        inputs={PATH: given}, order={PATH: runs}, events=events, makers=makers or {2: f"{PATH}.norm1"},
        source=lambda number: INPUT if number == storage(given) else number, fused=lambda: saved or {},
    )  # fmt: skip
    return TracedLayer(recorder, module, PATH, plan or {}, TOKENS, "here")  # type: ignore[arg-type]


def dense(**further: Any) -> TracedLayer:
    return traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP)), [*OF_ATTENTION, *OF_MLP], **further)


def test_a_layer_has_its_norms_its_mixer_and_its_feed_forward_part() -> None:
    found = dense()
    assert (found.hidden, found.ffn, found.mixers, found.fed) == (H, FeedForward(24), {"attn"}, {"mlp"})
    assert (found.norms(), found.norm(), found.element_bytes) == (["norm1", "norm2"], "rmsnorm", 4)
    assert [one.module for one in found.own] == ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn", "attn.o_proj"]
    assert found.total == 2 * H + H * (16 + 8 + 8) + 16 * H + 3 * H * 24
    described = found.describe()
    assert {name: described[name] for name in ("hidden_size", "norm", "num_norms", "ffn")} == {
        "hidden_size": H, "norm": "rmsnorm", "num_norms": 2, "ffn": {"kind": "FeedForward", "size": 24},
    }  # fmt: skip
    gemms = described["mixer"]["gemms"]
    assert [(one["module"], one["reads"], one["inputs"], one["columns"]) for one in gemms] == [
        ("attn.q_proj", "n1", 8, [16]), ("attn.k_proj", "n1", 8, [8]), ("attn.v_proj", "n1", 8, [8]),
        ("attn.o_proj", "call 0 o", 16, [8]),
    ]  # fmt: skip
    assert [one.get("split") for one in gemms] == ["outputs", "outputs", "outputs", "inputs"]
    (core,) = described["mixer"]["cores"]
    assert [core[name] for name in ("num_heads", "num_kv_heads", "qk_size", "v_size")] == [2, 1, 8, 8]
    assert found.by_rule == ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj"]


@pytest.mark.parametrize(
    ("norm", "kind"),
    [(nn.LayerNorm, "layernorm"), (nn.RMSNorm, "rmsnorm"), (lambda size: nn.LayerNorm(size, elementwise_affine=False), "plain")],
)  # fmt: skip
def test_a_norm_with_a_bias_is_a_layernorm_and_without_weights_plain(norm: Any, kind: str) -> None:
    found = traced(layer(norm=norm, attn=Part(**ATTENTION), mlp=Part(**MLP)), [*OF_ATTENTION, *OF_MLP])
    assert (found.norm(), found.norms()) == (kind, ["norm1", "norm2"])


def test_norms_of_other_widths_are_weights_of_the_mixer() -> None:
    parts = {
        "attn": Part(**ATTENTION, q_norm=16),
        "mlp": Part(**MLP),
        "normal": Part(inner=H),
        "last": nn.RMSNorm(5),
    }
    found = traced(layer(**parts), [*OF_ATTENTION, *OF_MLP])
    assert found.norms() == ["norm1", "norm2"]
    assert found.describe()["mixer"]["norm_weights"] == 16 + H + 5


def eager(**changes: Any) -> list[TracedOperation]:
    scores = {"m": TOKENS, "k": 6, "n": TOKENS, "count": 3, "shape": (1, 3, TOKENS, TOKENS), "reads": (21, 22)}
    mixed = {
        "m": TOKENS,
        "k": TOKENS,
        "n": 10,
        "count": 3,
        "shape": (1, 3, TOKENS, 10),
        "reads": (23, 24),
        "writes": 25,
    }
    module = {"module": f"{PATH}.attn"}
    return [
        TracedOperation("product", **module | scores),
        TracedOperation("pointwise", f"{PATH}.attn"),
        TracedOperation("product", **module | mixed | changes),
    ]  # fmt: skip


def test_two_products_around_a_square_of_scores_are_one_attention_call() -> None:
    sizes = {"q_proj": (H, 18), "k_proj": (H, 18), "v_proj": (H, 30), "o_proj": (30, H)}
    before, after = gemms("attn", dict(list(sizes.items())[:3])), gemm("attn.o_proj", 30, H, reads=25)
    found = traced(layer(attn=Part(**sizes)), [*before, *eager(), after])
    (call,) = found.of_kind("attention")
    assert (call.module, call.reads, call.writes) == ("attn", (21, 22, 24), 25)
    assert call.sizes == {
        "heads": 3, "kv_heads": 3, "qk": 6, "v": 10, "keys": TOKENS, "window": None, "is_chunked": False, "sinks": False,
        "is_causal": True,
    }  # fmt: skip
    assert [one.kind for one in found.events] == ["gemm"] * 3 + ["pointwise", "attention", "gemm"]
    assert found.notes == ["attention that transformers writes as single operators is taken as one fused kernel"]


@pytest.mark.parametrize("changes", [{"module": f"{PATH}.other"}, {"m": 5}, {"k": 5}])
def test_other_products_stay_products(changes: dict[str, Any]) -> None:
    found = traced(layer(attn=Part(**ATTENTION)), [*OF_ATTENTION, *eager(**changes)])
    assert [len(found.of_kind(kind)) for kind in ("attention", "product")] == [1, 2]
    assert found.notes == []


def test_products_without_weights_are_a_scan_of_all_tokens() -> None:
    found = traced(layer(attn=Part(**ATTENTION)), [*OF_ATTENTION, *eager(m=5), *eager(m=5)])
    scan = found._of_products(found.of_kind("product"))
    assert (scan.num_heads, scan.chunk_size) == (3, TOKENS)
    assert scan.products == (ChunkProduct(6, TOKENS, TOKENS, 6), ChunkProduct(6, 5, 10, TOKENS))
    assert found.notes[-1] == "GEMMs without weights in attn are those of 4 tokens"


def test_scans_are_those_of_the_mixers_that_ppsim_has() -> None:
    found = dense()
    sizes = {"heads": 4, "head": 6, "state": 5, "groups": 2, "chunk": 3, "key": 7, "value": 9, "channels": 11}
    scan = found._scan(TracedOperation("mamba", "attn", sizes=sizes))
    assert (scan.num_heads, scan.chunk_size) == (4, 3)
    assert scan.products == Mamba(4, 6, 5, 2, chunk_size=3).chunk_products()
    scan, net = found._scan(TracedOperation("delta rule", "attn", sizes=sizes)), GatedDeltaNet(4, 4, 7, 9)
    assert (scan.num_heads, scan.chunk_size, scan.products) == (4, net.chunk_size, net.chunk_products())
    scan = found._scan(TracedOperation("selective scan", "attn", sizes=sizes))
    assert (scan.num_heads, scan.chunk_size, scan.products) == (11, 1, (ChunkProduct(1, 11, 1, 5),))
    assert found._scan(TracedOperation("selective scan", "attn", sizes=sizes | {"state": 0})).products == ()


def test_the_plan_of_transformers_or_the_name_and_size_decide_how_ranks_divide_a_matrix() -> None:
    plan = {
        "layers.*.attn.q_proj": "rowwise",
        "layers.*.attn.k_proj": "colwise_rep",
        "layers.*.attn.v_proj": "none",
    }
    found = dense(plan=plan)
    assert [found.split(one, ends=False) for one in found.gemms] == [
        "inputs", "outputs", None, "inputs", "outputs", "outputs", "inputs",
    ]  # fmt: skip
    assert found.by_rule == ["attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    for name, k, n, ends, expected in (
        ("a.gate", 99, H, False, None), ("a.x_proj", 99, H, False, None), ("a.fc2", H, 99, False, "inputs"),
        ("a.b", 99, H, False, "inputs"), ("a.b", H, H, False, "outputs"), ("a.b", 99, 98, False, "outputs"),
        ("a.b", H, 99, True, "inputs"),
    ):  # fmt: skip
        assert found.split(TracedOperation("gemm", name, k=k, n=n), ends=ends) == expected, name


EXPERTS = {"router": (H, 6), "gate_up": (H, 6 * 20), "down": (10, 6 * H)}


def grouped(*, pairs: float = 2, width: int = H, **changes: Any) -> list[TracedOperation]:
    sizes = {"up": {"k": width, "n": 20}, "down": {"k": 10, "n": width}}
    return [
        TracedOperation(
            "experts", f"{PATH}.moe", weight=f"{PATH}.moe.{name}.weight",
            **{"m": int(TOKENS * pairs), "count": 6, **size, **changes.get(name, {})},
        )
        for name, size in sizes.items()
    ]  # fmt: skip


def of_experts(events: list[TracedOperation], **sizes: tuple[int, int]) -> TracedLayer:
    of_layer = {"up": (H, 120), "down": (10, 48), "router": (H, 6)} | sizes
    return traced(layer(attn=Part(**ATTENTION), moe=Part(**of_layer)), [*OF_ATTENTION, *events])


ROUTER = gemm("moe.router", H, 6)
SHARED = {"shared_gate_proj": (H, 14), "shared_up_proj": (H, 14), "shared_down_proj": (14, H)}


def test_grouped_gemms_with_a_router_are_experts() -> None:
    assert of_experts([ROUTER, *grouped()]).ffn == MixtureOfExperts(FeedForward(10), 6, 2)
    ungated = grouped(up={"n": 10})
    assert of_experts([ROUTER, *ungated]).ffn == MixtureOfExperts(FeedForward(10, gated=False), 6, 2)
    biased = grouped(up={"biased": True}, down={"biased": True})
    assert of_experts([ROUTER, *biased]).ffn == MixtureOfExperts(FeedForward(10, bias=True), 6, 2)
    half = grouped(up={"biased": True})
    assert of_experts([ROUTER, *half]).ffn == MixtureOfExperts(FeedForward(10), 6, 2)


def test_further_gemms_next_to_experts_are_shared_experts_and_their_gate() -> None:
    shared = gemms("moe", SHARED)
    found = of_experts([ROUTER, *grouped(), *shared], **SHARED)
    assert found.ffn == MixtureOfExperts(FeedForward(10), 6, 2, 14)
    assert len(found.own) == len(OF_ATTENTION)
    gate = gemm("moe.shared_expert_gate", H, 1)
    found = of_experts([ROUTER, *grouped(), *shared, gate], **SHARED, shared_expert_gate=(H, 1))
    assert found.ffn == MixtureOfExperts(FeedForward(10), 6, 2, 14, shared_gate=True)
    other = gemms("moe", {"shared_up_proj": (H, 14), "shared_down_proj": (14, H)})  # not gated, as the experts are
    found = of_experts([ROUTER, *grouped(), *other], shared_up_proj=(H, 14), shared_down_proj=(14, H))
    assert found.ffn == MixtureOfExperts(FeedForward(10), 6, 2)
    assert len(found.own) == len(OF_ATTENTION) + 2


def test_narrow_experts_have_a_projection_from_the_hidden_size_and_back() -> None:
    latents = [gemm("moe.into", H, 5), gemm("moe.back", 5, H)]
    sizes = {"into": (H, 5), "back": (5, H), "up": (5, 120), "down": (10, 30)}
    found = of_experts([ROUTER, *latents, *grouped(width=5)], **sizes)
    assert found.ffn == MixtureOfExperts(FeedForward(10), 6, 2, latent_size=5)
    with pytest.raises(
        ConfigError, match=r"module layers\.0\.moe has experts of width 5 without a projection from 8"
    ):
        of_experts([ROUTER, latents[0], *grouped(width=5)], **sizes)


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (grouped(), "has no router of 8 → 6 columns"),
        ([ROUTER, *grouped(), *grouped()], "has 4 grouped GEMMs in one layer"),
        ([ROUTER, *grouped(down={"count": 5})], "has 2 grouped GEMMs in one layer"),
        ([ROUTER, *grouped(down={"m": 4})], "has 2 grouped GEMMs in one layer"),
        ([ROUTER, *grouped(up={"n": 15})], r"has experts of 8 → 15 and 10 → 8 columns"),
        ([ROUTER, *grouped(down={"n": 7})], r"has experts of 8 → 20 and 10 → 7 columns"),
        ([ROUTER, *grouped(pairs=1.5)], r"takes 1\.5 experts per token"),
        ([ROUTER, *grouped(pairs=7)], "takes 7 experts per token"),
        ([ROUTER, *grouped(pairs=0.5)], r"takes 0\.5 experts per token"),
    ],
)
def test_experts_that_ppsim_does_not_have_are_refused(events: list[TracedOperation], sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"^here: module layers\.0\.moe {sentence}, which ppsim cannot express$"):
        of_experts(events)


def test_all_experts_of_a_token_may_be_taken() -> None:
    assert of_experts([ROUTER, *grouped(pairs=6)]).ffn == MixtureOfExperts(FeedForward(10), 6, 6)
    assert of_experts([ROUTER, *grouped(pairs=1)]).ffn == MixtureOfExperts(FeedForward(10), 6, 1)


def test_gemms_that_are_alone_in_their_parts_are_a_feed_forward_part_together() -> None:
    parts = {name: nn.Linear(*size, bias=False) for name, size in (("w1", (H, 24)), ("w2", (24, H)))}
    found = traced(layer(attn=Part(**ATTENTION), **parts), [*OF_ATTENTION, gemm("w1", H, 24), gemm("w2", 24, H)])
    assert (found.ffn, found.fed) == (FeedForward(24, gated=False), {"w1", "w2"})
    alone = traced(layer(attn=Part(**ATTENTION), w1=nn.Linear(H, 24)), [*OF_ATTENTION, gemm("w1", H, 24)])
    assert alone.ffn == NoFeedForward()


def test_a_matrix_that_nothing_multiplies_is_refused_unless_it_reads_an_encoder() -> None:
    events = [*OF_ATTENTION, *OF_MLP]
    large = {"proj": (80, 80)}  # 64 · 8 elements and more
    with pytest.raises(
        ConfigError, match=r"module layers\.0\.other\.proj has weights \[80, 80\] that no traced GEMM"
    ):
        traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP), other=Part(**large)), events)
    found = traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP), cross_attn=Part(**large)), events)
    assert found.notes == ["cross_attn reads an encoder, and does not run without one"]
    for small in ({"proj": (16, 31)}, {"proj": (600, 1)}):
        assert traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP), other=Part(**small)), events).notes == []
    with pytest.raises(ConfigError, match=r"\[32, 16\]"):
        traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP), other=Part(proj=(16, 32))), events)


@pytest.mark.parametrize("runs", [0, 2])
def test_a_layer_runs_once(runs: int) -> None:
    with pytest.raises(ConfigError, match=rf"here: module layers\.0 runs {runs} times in a forward, which ppsim"):
        dense(runs=runs)


def test_multiply_adds_that_no_part_has_are_refused() -> None:
    found = dense()
    found.events.append(TracedOperation("experts", "mlp.more", m=TOKENS, k=3, n=5, count=7))
    with pytest.raises(
        ConfigError, match=r"^here: module layers\.0 has 975 multiply-adds per token, not 960, which"
    ):
        found._require_flops(found._layer(found._mixer("rmsnorm", 2)[0], "rmsnorm", 2))


def test_saved_tensors_are_counted_once_and_by_what_made_them() -> None:
    def tensor(columns: int, dtype: Any = torch.float32) -> Any:
        return torch.zeros(TOKENS, columns, dtype=dtype)

    saved = {
        11: (f"{PATH}.attn", tensor(16)), 12: (f"{PATH}.attn", tensor(8)), 13: (f"{PATH}.attn", tensor(9)),
        30: (f"{PATH}.attn.q_norm", tensor(6)), 31: (f"{PATH}.attn.act", tensor(5)), 32: (f"{PATH}.attn.act", tensor(7)),
        33: (f"{PATH}.attn.x", tensor(3, torch.bfloat16)), 34: (f"{PATH}.mlp.act_fn", tensor(24)),
        35: (f"{PATH}.norm2", tensor(H)), 36: (PATH, tensor(H)), 37: (f"{PATH}.attn", torch.zeros(3)),
        38: (f"{PATH}.attn", tensor(TOKENS)),
    }  # fmt: skip
    found = dense(saved=saved, makers=dict.fromkeys(saved, f"{PATH}.attn") | {2: f"{PATH}.norm1"})
    mixer, _ = found._mixer("rmsnorm", 2)
    (core,) = mixer.cores
    assert (core.q, core.k, core.v) == (16, 8, 9)
    assert mixer.saved == (
        TracedSaved("attn.q_norm", 6, "norm"), TracedSaved("attn.act", 12, "activation"), TracedSaved("attn.x", 3),
    )  # fmt: skip
    narrow = layer(attn=Part(**ATTENTION), mlp=Part(**MLP)).to(torch.bfloat16)
    saved = {number: saved[number] for number in (30, 33)} | {40: (f"{PATH}.other", tensor(2))}
    found = traced(narrow, [*OF_ATTENTION, *OF_MLP], saved=saved, makers=dict.fromkeys(saved, f"{PATH}.attn"))
    assert found.element_bytes == 2
    assert found._mixer("rmsnorm", 2)[0].saved == (
        TracedSaved("attn.q_norm", 6, "norm", is_float32=True), TracedSaved("attn.x", 3),
        TracedSaved("other", 2, is_float32=True, is_divided=False),
    )  # fmt: skip


def test_the_stored_form_leaves_out_defaults_and_names_parts() -> None:
    assert plain((FeedForward(3), 4)) == [{"kind": "FeedForward", "size": 3}, 4]
    assert plain(FeedForward(3, gated=False)) == {"kind": "FeedForward", "size": 3, "gated": False}
    assert plain(ChunkProduct(1, 2, 3, 4)) == {"count": 1, "rows": 2, "columns": 3, "depth": 4}


def test_a_router_may_be_outside_of_its_experts_with_a_bias_per_expert() -> None:
    sizes = {"up": (H, 120), "down": (10, 48)}
    router = Part(gate=(H, 6), bias=True)
    module = layer(attn=Part(**ATTENTION), moe=Part(**sizes), router=router, shared_mlp=Part(**MLP))
    events = [*OF_ATTENTION, gemm("router.gate", H, 6), *grouped(), *gemms("shared_mlp", MLP)]
    found = traced(module, events)
    assert found.ffn == MixtureOfExperts(FeedForward(10), 6, 2, 24, router_bias=True)
    assert found.fed == {"moe", "router", "shared_mlp"}
    named_so = {"shared_proj": (H, 6), "router": (H, 6)}
    both = of_experts([*gemms("moe", named_so), *grouped()], **named_so)  # the second is the router
    assert [one.module for one in both.own] == [one.module.removeprefix(f"{PATH}.") for one in OF_ATTENTION] + [
        "moe.shared_proj"
    ]


def test_parallel_matrices_and_operands_that_a_gemm_saves_first() -> None:
    sizes = {"q_proj": (H, 16), "mix": (6, 6), "k_proj": (16, 5), "v_proj": (16, 7), "o_proj": (16, H)}
    events = [
        gemm("attn.q_proj", H, 16, reads=INPUT), gemm("attn.mix", 2, 6, count=3, m=2 * TOKENS, reads=40),
        gemm("attn.k_proj", 16, 5, reads=41), gemm("attn.v_proj", 16, 7, reads=41), CORE, gemm("attn.o_proj", 16, H, reads=14),
    ]  # fmt: skip
    saved = {41: (f"{PATH}.attn", torch.zeros(TOKENS, 16)), 14: (f"{PATH}.attn", torch.zeros(TOKENS, 16))}
    makers = dict.fromkeys(saved, f"{PATH}.attn")
    found = traced(layer(attn=Part(**sizes)), events, saved=saved, makers=makers)
    mixer, _ = found._mixer("rmsnorm", 2)
    assert [(one.reads, one.rows, one.saves, one.count, one.split) for one in mixer.gemms] == [
        ("n1", 1, 0, 1, "outputs"), ("tensor 1", 6, 0, 3, "outputs"), ("tensor 2", 1, 16, 1, "outputs"),
        ("tensor 2", 1, 0, 1, "outputs"), ("call 0 o", 1, 0, 1, "inputs"),
    ]  # fmt: skip
    assert mixer.saved == ()


def test_products_of_an_indexer_are_counted_with_its_core() -> None:
    indexed = TracedOperation(
        "attention",
        f"{PATH}.attn",
        reads=(11, 12, 13, 15),
        writes=14,
        sizes=SIZES | {"index_columns": 3, "block": 2},
    )
    inside = [TracedOperation("product", f"{PATH}.{name}", m=3, k=5, n=7) for name in ("attn.indexer", "attn")]
    found = traced(
        layer(attn=Part(**ATTENTION), mlp=Part(**MLP)),
        [*OF_ATTENTION[:3], indexed, OF_ATTENTION[-1], *inside, *OF_MLP],
    )
    mixer, _ = found._mixer("rmsnorm", 2)
    assert [scan.products for scan in mixer.scans] == [(ChunkProduct(1, 3, 7, 5),)]
    assert (mixer.cores[0].index_columns, mixer.cores[0].block) == (3, 2)
    without = traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP)), [*OF_ATTENTION, *inside, *OF_MLP])
    (scan,) = without._mixer("rmsnorm", 2)[0].scans
    assert scan.products == (ChunkProduct(2, 3, 7, 5),)
    assert without._mixer("rmsnorm", 2)[0].cores[0].index_columns == 0


def test_fewer_parameters_than_the_gemms_have_is_a_weight_used_twice() -> None:
    again = [*OF_ATTENTION, gemm("attn.o_proj", 16, H, reads=14), *OF_MLP]
    sentence = (
        r"^here: module layers\.0 has 112 parameters less than its GEMMs, since a weight is used twice, which"
    )
    with pytest.raises(ConfigError, match=sentence):
        traced(layer(attn=Part(**ATTENTION), mlp=Part(**MLP)), again).describe()


def test_a_layer_without_parameters_has_16_bits_and_one_of_another_name_does_not_run() -> None:
    bare = nn.Module()
    found = traced(bare, [])
    assert (found.element_bytes, found.total, found.ffn) == (2, 0, NoFeedForward())
    recorder = SimpleNamespace(inputs={}, order={}, events=[])
    with pytest.raises(ConfigError, match="runs 0 times in a forward"):
        TracedLayer(recorder, bare, PATH, {}, TOKENS, "here")  # type: ignore[arg-type]
