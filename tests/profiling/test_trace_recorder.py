"""What the recorder of a traced forward writes down, on modules of one or two operators."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ppsim.base.errors import ConfigError
from ppsim.profiling.trace_recorder import (
    ForwardRecorder,
    TracedOperation,
    attend,
    chunk_scan,
    delta_rule,
    experts,
    linear_attention,
    recording,
    selective_scan,
    storage,
)
from tests.defaults import field_defaults


class Module(nn.Module):
    """Its forward is a function of the module."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.of = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *tensors):
        return self.of(self, *tensors)


def meta(*shape, **options):
    return torch.empty(*shape, device="meta", **options)


def recorded(model, *tensors):
    """Run a forward, and return its recorder."""
    model.to("meta")
    recorder = ForwardRecorder(model)
    saving = torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor)
    with recording(recorder, model), saving:
        recorder.alive.append(model(*tensors))
    return recorder


def sizes(event: TracedOperation):
    return event.kind, event.module, event.count, (event.m, event.k, event.n)


def test_operators_after_a_caught_error_belong_to_the_module_that_calls_them():
    def fails(_, x):
        raise ConfigError("no such path")

    def forward(self, x):
        with pytest.raises(ConfigError):
            self.first(x)
        return x @ x.T

    [event] = recorded(Module(forward, first=Module(fails)), meta(4, 8)).events
    assert sizes(event) == ("product", "", 1, (4, 8, 4))


def test_gemms_have_the_rows_and_columns_of_their_weight():
    """A weight on the left multiplies the columns of its operand, and several products in one call count."""
    layer, table = nn.Linear(8, 16), nn.Parameter(torch.empty(32, 8))
    model = Module(lambda self, x: (self.layer(x), self.table @ x.T, x.T @ x), layer=layer, table=table)
    linear, left, product = recorded(model, meta(4, 8)).events
    assert sizes(linear) == ("gemm", "layer", 1, (4, 8, 16))
    assert (linear.weight, linear.biased) == ("layer.weight", True)
    assert sizes(left) == ("gemm", "", 1, (4, 8, 32))
    assert (left.weight, left.biased) == ("table", False)
    assert sizes(product) == ("product", "", 1, (8, 4, 8))
    assert len(product.reads) == 2
    assert len(linear.reads) == len(left.reads) == 1
    batched = recorded(Module(lambda self, x: x @ x.transpose(1, 2)), meta(3, 4, 8)).events
    assert [sizes(one) for one in batched] == [("product", "", 3, (4, 8, 4))]


def test_a_cast_weight_is_the_weight():
    model = Module(lambda self, x: x @ self.table.bfloat16(), table=nn.Parameter(torch.empty(8, 16)))
    [event] = recorded(model, meta(4, 8, dtype=torch.bfloat16)).events
    assert (event.kind, event.weight) == ("gemm", "table")


def test_a_convolution_over_all_channels_is_a_gemm():
    """Kernels of 3 over 8 channels, for 10 frames with stride 2 of 2 samples; of one channel each it is none."""
    model = Module(
        lambda self, x: (self.whole(x), self.each(x), self.single(x[:, :1])),
        whole=nn.Conv1d(8, 16, 3, stride=2, padding=1),
        each=nn.Conv1d(8, 8, 3, groups=8),
        single=nn.Conv1d(1, 4, 3, bias=False),
    )
    whole, each, single = recorded(model, meta(2, 8, 10)).events
    assert sizes(whole) == ("gemm", "whole", 1, (2 * 5, 8 * 3, 16))
    assert (whole.weight, whole.biased, whole.shape) == ("whole.weight", True, (2, 16, 5))
    assert [(one.kind, one.weight) for one in (each, single)] == [
        ("convolution", "each.weight"), ("convolution", "single.weight"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "keywords", "expected"),
    [
        ({}, {}, {"window": None, "is_chunked": False, "sinks": False, "is_causal": True}),
        ({"is_causal": None}, {}, {"is_causal": True}),
        ({"is_causal": False}, {"s_aux": 1}, {"is_causal": False, "sinks": True}),
        ({"sliding_window": 32}, {}, {"window": 32, "is_chunked": False}),
        ({"sliding_window": 32}, {"sliding_window": (64, 0)}, {"window": 64}),
        ({"sliding_window": 0}, {}, {"window": None}),
        ({"layer_type": "chunked_attention", "attention_chunk_size": 16}, {}, {"window": 16, "is_chunked": True}),
        ({"attention_type": "chunked_attention", "sliding_window": 8}, {}, {"window": 8, "is_chunked": True}),
        ({"attention_chunk_size": 16}, {}, {"window": None}),
    ],
)
def test_attention_is_recorded_with_its_mask(attributes, keywords, expected):
    def forward(self, query, key, value):
        return attend(self, query, key, value, **keywords)[0]

    model = Module(forward, **attributes)
    recorder = recorded(model, meta(2, 8, 64, 16), meta(2, 4, 64, 16), meta(2, 4, 64, 24))
    [event] = recorder.events
    assert event.kind == "attention"
    assert {name: event.sizes[name] for name in ("heads", "kv_heads", "qk", "v", "keys")} == {
        "heads": 8, "kv_heads": 4, "qk": 16, "v": 24, "keys": 64,
    }  # fmt: skip
    assert {name: event.sizes[name] for name in expected} == expected
    assert len(event.reads) == 3
    assert recorder.alive[-1].shape == (2, 64, 8, 24)


def test_keys_beyond_the_queries_are_compressed():
    """64 queries and 64 + 16 keys: one key per block of 4; an indexer chooses `index_topk` of them."""
    config = SimpleNamespace(index_topk=8, index_n_heads=2, index_head_dim=16)
    model = Module(lambda self, q, k: attend(self, q, k, k)[0], indexer=nn.Identity(), config=config)
    arguments = meta(1, 8, 64, 16), meta(1, 1, 80, 16)
    [event] = recorded(model, *arguments).events
    assert {name: event.sizes.get(name) for name in ("block", "num_blocks", "index_columns")} == {
        "block": 4, "num_blocks": 8, "index_columns": 32,
    }  # fmt: skip
    del model.indexer
    [event] = recorded(model, *arguments).events
    assert (event.sizes["block"], "num_blocks" in event.sizes) == (4, False)


def table_of_experts(forward, *, is_gated, **others):
    up = nn.Parameter(torch.empty(4, 2 * 24 if is_gated else 24, 16))
    return Module(
        forward, **{"gate_up_proj" if is_gated else "up_proj": up}, down_proj=nn.Parameter(torch.empty(4, 16, 24)),
        act_fn=nn.functional.silu, **others,
    )  # fmt: skip


@pytest.mark.parametrize("is_gated", [True, False])
def test_experts_are_two_grouped_gemms_of_the_routed_tokens(is_gated):
    model = table_of_experts(experts, is_gated=is_gated)
    index, weights = torch.zeros(10, 2, dtype=torch.long, device="meta"), meta(10, 2)
    recorder = recorded(model, meta(10, 16), index, weights)
    up, down = [event for event in recorder.events if event.kind == "experts"]
    assert sizes(up) == ("experts", "", 4, (20, 16, 48 if is_gated else 24))
    assert sizes(down) == ("experts", "", 4, (20, 24, 16))
    assert [one.weight for one in (up, down)] == ["gate_up_proj" if is_gated else "up_proj", "down_proj"]
    assert not up.biased
    assert recorder.alive[-1].shape == (10, 16)


def test_experts_that_all_get_every_token_count_only_the_routed():
    """As in Llama 4: four copies of 10 tokens, of which each is routed to `num_experts_per_tok`."""
    model = table_of_experts(experts, is_gated=True, config=SimpleNamespace(num_experts_per_tok=2))
    recorder = recorded(model, meta(40, 16))
    assert [sizes(one)[3] for one in recorder.events if one.kind == "experts"] == [(20, 16, 48), (20, 24, 16)]
    assert recorder.alive[-1].shape == (40, 16)


def test_scans_are_recorded_whole():
    """Tensors are [b, s, heads, size] in a delta rule and in Mamba-2, [b, channels, s] in Mamba-1."""
    for run, tensors, kind, expected in (
        (delta_rule, ((1, 6, 2, 8), (1, 6, 2, 16), (1, 6, 4, 8)), "delta rule", {"heads": 4, "key": 16, "value": 8}),
        (
            chunk_scan, ((1, 6, 4, 8), (1, 6, 4), (4,), (1, 6, 2, 32), (1, 6, 2, 32)), "mamba",
            {"heads": 4, "head": 8, "groups": 2, "state": 32, "chunk": 256},
        ),
        (
            selective_scan, ((1, 64, 6), (1, 64, 6), (64, 16), (1, 16, 6), (1, 16, 6)), "selective scan",
            {"channels": 64, "state": 16},
        ),
        (linear_attention, ((64,), (64,), (1, 6, 64), (1, 6, 64), (1, 64, 3)), "selective scan", {"channels": 64, "state": 0}),
    ):  # fmt: skip
        made = [meta(*shape) for shape in tensors]
        model = Module(lambda self, *given, run=run: run(*given))
        [event] = recorded(model, *made).events
        assert (event.kind, event.sizes) == (kind, expected)


def test_a_fused_kernel_keeps_the_source_of_pointwise_operators():
    """silu saves its input, the result of a GEMM; the product behind it reads a result that is made again."""
    up, down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
    model = Module(lambda self, x: self.down(nn.functional.silu(self.up(x)) * 2.0), up=up, down=down)
    x = meta(4, 8, requires_grad=True)
    recorder = recorded(model, x)
    first, second = recorder.events
    assert set(recorder.fused()) == {storage(x), first.writes, *second.reads}
    saved_by = {number: module for number, (module, _) in recorder.fused().items()}
    assert saved_by[storage(x)] == "up"
    assert saved_by[second.reads[0]] == "down"


def test_decisions_by_data_are_noted_and_taken_for_false():
    model = Module(lambda self, x: x @ x.T if bool((x > 0).any()) else x)
    recorder = recorded(model, meta(4, 8))
    assert (list(recorder.decisions), recorder.events) == ([""], [])


@pytest.mark.parametrize(
    ("sources", "kept", "is_made_again"),
    [
        ({"a": "b"}, "b", True),
        ({"a": "b", "b": "c"}, "c", True),
        ({"a": "b", "b": "c"}, "", False),
        ({"a": "bc"}, "b", False),
        ({"a": "bc", "c": "b"}, "b", True),
        ({"a": "bp"}, "b", True),
        ({"a": "a"}, "a", False),
        ({"a": "b", "b": "a"}, "", False),
        ({}, "a", False),
        ({"a": "b", "b": "c", "convolution": "b"}, "c", False),
        ({"a": "b", "b": "c", "convolution": "b", "scanned": "b"}, "c", True),
    ],
)
def test_what_is_computed_from_kept_tensors_and_parameters_is_made_again(sources, kept, is_made_again):
    """`a` is a saved tensor, `p` a parameter; a convolution is made again in a scan only."""
    tensors = {name: torch.empty(1) for name in "abcp"}
    number = {name: storage(tensor) for name, tensor in tensors.items()}
    recorder = ForwardRecorder(nn.Identity())
    recorder.sources = {
        number[name]: (
            "convolution" if name in sources.get("convolution", "") else "mul",
            [tensors[one] for one in of],
        )
        for name, of in sources.items()
        if name in number
    }
    recorder.makers = dict.fromkeys(number.values(), "m")
    recorder.scanned = {"m"} if "scanned" in sources else set()
    recorder.parameters = {number["p"]: "p"}
    assert recorder._is_made_again(number["a"], {number[one]: None for one in kept}, set()) is is_made_again


def test_an_operation_without_sizes_is_counted_once() -> None:
    sizes = {"m": 0, "k": 0, "n": 0, "count": 1, "biased": False, "writes": 0}
    assert sizes.items() <= field_defaults(TracedOperation).items()


def test_operators_belong_to_the_innermost_module():
    """Of two levels: everything that an inner module computes has its name, not the name of the one around it."""

    def inner(self, x):
        biased = nn.functional.linear(x, self.weight, self.bias)  # addmm
        pairs = x @ x.T
        if (x > 0).any():
            raise AssertionError
        image = x.T.reshape(1, 8, 2, 2)
        return (
            biased,
            pairs,
            nn.functional.conv2d(image, self.kernel),
            nn.functional.conv2d(image, self.depth, groups=8),
        )

    part = Module(inner)
    part.weight, part.bias = nn.Parameter(torch.empty(16, 8)), nn.Parameter(torch.empty(16))
    part.kernel, part.depth = nn.Parameter(torch.empty(5, 8, 2, 2)), nn.Parameter(torch.empty(8, 1, 1, 1))
    outer = Module(lambda self, x: self.part(x), part=part)
    model = Module(lambda self, x: self.outer(x), outer=outer)
    found = recorded(model, meta(4, 8))
    assert [sizes(event) for event in found.events] == [
        ("gemm", "outer.part", 1, (4, 8, 16)), ("product", "outer.part", 1, (4, 8, 4)),
        ("gemm", "outer.part", 1, (1, 32, 5)), ("convolution", "outer.part", 1, (0, 0, 0)),
    ]  # fmt: skip
    assert [(event.weight, event.biased, event.shape) for event in found.events] == [
        ("outer.part.weight", True, (4, 16)), (None, False, (4, 4)), ("outer.part.kernel", False, (1, 5, 1, 1)),
        ("outer.part.depth", False, ()),
    ]  # fmt: skip
    assert set(found.makers.values()) == {"outer.part"}
    assert (list(found.decisions), found.failed_in) == (["outer.part"], "outer.part")
    assert found.order == {"": 1, "outer": 1, "outer.part": 1}
    assert found.stack == [""]
    assert all(one.device.type == "meta" for outputs in found.alive[:-1] for one in outputs)
    assert len(found.alive) > len(found.events)


def test_hooks_end_with_the_recording():
    model = Module(lambda self, x: self.part(x), part=nn.Linear(8, 4))
    found = recorded(model, meta(2, 8))
    model(meta(2, 8))
    assert found.order == {"": 1, "part": 1}


def test_a_convolution_of_one_channel_or_in_groups_is_no_gemm():
    for channels, groups, kind in ((1, 1, "convolution"), (2, 1, "gemm"), (2, 2, "convolution")):
        layer = nn.Conv1d(channels, 4, 3, groups=groups)
        [event] = recorded(Module(lambda self, x: self.layer(x), layer=layer), meta(1, channels, 7)).events
        assert event.kind == kind
        if kind == "gemm":
            assert (event.m, event.k, event.n, event.biased) == (5, 6, 4, True)


def test_opaque_kernels_belong_to_the_innermost_module_and_note_where_they_scan():
    def scans(_, x):
        return chunk_scan(
            x.reshape(1, 4, 2, 4), x[None, :, :2], x[0, :2], x.reshape(1, 4, 1, 8), x.reshape(1, 4, 1, 8), 2
        )

    found = recorded(Module(lambda self, x: self.part(x), part=Module(scans)), meta(4, 8))
    [event] = found.events
    assert (event.kind, event.module) == ("mamba", "part")
    assert event.sizes == {"heads": 2, "head": 4, "groups": 1, "state": 8, "chunk": 2}
    assert found.scanned == {"part"}


def test_experts_belong_to_the_innermost_module():
    part = table_of_experts(experts, is_gated=True)
    index, weights = torch.zeros(10, 2, dtype=torch.long, device="meta"), meta(10, 2)
    outer = Module(lambda self, *tensors: self.part(*tensors), part=part)
    found = recorded(Module(lambda self, *tensors: self.outer(*tensors), outer=outer), meta(10, 16), index, weights)
    assert [one.module for one in found.events if one.kind == "experts"] == ["outer.part"] * 2
