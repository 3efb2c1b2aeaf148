"""The stored form of traced models is read without torch, and what is wrong with a file is said with its place."""

import copy

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.activations import layer_activations
from ppsim.model.attention_base import blocks_before, keys_in_window
from ppsim.model.config import model_from
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.mixers import traced as traced_module
from ppsim.model.mixers.traced import TracedCore, TracedGemm, TracedMixer, TracedSaved, TracedScan
from ppsim.model.parameters import held_of_layer, require_division_of_layer
from ppsim.model.recurrent import ChunkProduct
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults

GEMM = {"module": "q_proj", "reads": "n1", "inputs": 64, "columns": [64], "split": "outputs"}
OUT = {"module": "o_proj", "reads": "call 0 o", "inputs": 64, "columns": [64], "split": "inputs"}
CORE = {"num_heads": 4, "num_kv_heads": 2, "qk_size": 16, "v_size": 16, "q": 64, "k": 32, "v": 32}
MIXER = {
    "kind": "TracedMixer",
    "gemms": [
        GEMM,
        GEMM | {"module": "k_proj", "columns": [32]},
        GEMM | {"module": "v_proj", "columns": [32]},
        OUT,
    ],
    "cores": [CORE],
    "saved": [{"module": "q_norm", "columns": 64, "does": "norm"}],
    "norm_weights": 96,
}
FFN = {"kind": "FeedForward", "size": 128}
STORED = {
    "model_type": "ppsim_traced", "source": "a trace", "vocab_size": 100, "max_position_embeddings": 256,
    "kinds": [
        {"hidden_size": 64, "norm": "rmsnorm", "num_norms": 2, "mixer": MIXER, "ffn": FFN},
        {"hidden_size": 64, "mixer": {"kind": "Attention", "num_heads": 4, "num_kv_heads": 2, "head_size": 16}, "ffn": FFN},
    ],
    "layers": [0, 1, 1], "extra": [3, 5, 0], "assumptions": ["model_type x: traced with transformers 5"],
}  # fmt: skip


def test_a_stored_model_is_read():
    model = model_from(STORED)
    traced, named = model.kinds
    assert model.layers == (traced, named, named)
    assert isinstance(traced.attention, TracedMixer)
    assert traced.parameters == named.parameters + 96
    assert model.parameters == 2 * 100 * 64 + traced.parameters + 2 * named.parameters + 64 + 3 + 5
    assert traced.forward_flops(128, causal=True) == named.forward_flops(128, causal=True)
    assert model.notes == ("model_type x: traced with transformers 5",)


def test_a_list_of_operators_saves_and_divides_as_the_named_mixer():
    traced, named = model_from(STORED).kinds
    batch, kernels = (1, 128), Execution()
    for cut in (ParallelSizes(), ParallelSizes(tp=2, dp=1)):
        ours, theirs = (
            sum(layer_activations(layer, MemorySettings(*batch, cut, execution=kernels)).values())
            for layer in (traced, named)
        )
        assert ours == theirs + 2 * 128 * 64 // cut.tp
        assert held_of_layer(traced, cut).dense == held_of_layer(named, cut).dense + 96
    for recompute in ("full", "core_attn", "layernorm"):
        assert sum(layer_activations(traced, MemorySettings(1, 128, execution=kernels), recompute).values()) > 0
    with pytest.raises(ConfigError, match="tp must divide"):
        require_division_of_layer(traced, ParallelSizes(tp=4, dp=1))


def test_context_parallelism_of_a_scan_is_refused():
    stored = copy.deepcopy(STORED)
    product = {"count": 4, "rows": 64, "columns": 16, "depth": 16}
    stored["kinds"][0]["mixer"] |= {
        "cores": [],
        "scans": [{"num_heads": 4, "chunk_size": 64, "products": [product]}],
    }
    stored["kinds"][0]["mixer"]["gemms"][3]["reads"] = "scan"
    traced = model_from(stored).kinds[0]
    assert traced.attention.core_flops(256, causal=False) == 2 * 4 * 16 * 16
    with pytest.raises(ConfigError, match="context parallelism of a traced scan is not known: got cp 2"):
        require_division_of_layer(traced, ParallelSizes(cp=2))


def changed(path: str, value: object) -> dict[str, object]:
    stored = copy.deepcopy(STORED)
    *above, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
    place = stored
    for word in above:
        place = place[word]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return stored


WRONG = {
    "no kinds": ("kinds", [], "layers must be numbers of the 0 kinds"),
    "kinds that are no list": ("kinds", 5, "kinds must be a list of objects"),
    "a layer of no kind": ("layers", [0, 2], "layers must be numbers of the 2 kinds"),
    "no layers": ("layers", None, "layers must be numbers of the 2 kinds"),
    "no mixer": ("kinds.0.mixer", None, "kinds 0 must have hidden_size, mixer and ffn"),
    "another mixer": ("kinds.0.mixer.kind", "Spell", "kinds 0, mixer must have a kind of Attention, "),
    "a mixer that is no object": ("kinds.0.mixer", 3, "kinds 0, mixer must have a kind of"),
    "a feed-forward part as mixer": ("kinds.0.mixer", FFN, "kinds 0 must have a hidden_size of 1 or more, a mixer"),
    "no size": ("kinds.0.ffn.size", None, "kinds 0, ffn needs size"),
    "an unknown field": ("kinds.0.ffn.sizes", 4, "kinds 0, ffn has an unknown field 'sizes'"),
    "a word for a number": ("kinds.0.ffn.size", "4", "kinds 0, ffn, size must be of type int: got '4'"),
    "a flag for a number": ("kinds.0.ffn.size", True, "kinds 0, ffn, size must be of type int: got True"),
    "a negative number": ("kinds.0.mixer.norm_weights", -1, "norm_weights must be from 0 to 10^12: got -1"),
    "no size of heads": ("kinds.1.mixer.num_heads", 0, "num_heads must be at least 1: got 0"),
    "gemms that are no list": ("kinds.0.mixer.gemms", 3, "kinds 0, mixer, gemms must be a list: got 3"),
    "a gemm that is none": ("kinds.0.mixer.gemms", [3], "kinds 0, mixer, gemms must be an object: got 3"),
    "another split": ("kinds.0.mixer.gemms.0.split", "rows", "split must be outputs or inputs: got 'rows'"),
    "no columns": ("kinds.0.mixer.gemms.0.columns", [], "columns must have a number of 1 or more: got []"),
    "another norm": ("kinds.0.norm", "batch", "kinds 0, norm must be layernorm, rmsnorm or plain: got 'batch'"),
    "other notes": ("assumptions", [3], "assumptions must be a list of strings"),
    "no vocabulary": ("vocab_size", None, "vocab_size is missing"),
    "an unknown field of the file": ("tied", True, "unknown field 'tied'"),
    "no hidden size": ("kinds.0.hidden_size", 0, "kinds 0 must have a hidden_size of 1 or more"),
    "other widths": ("kinds.0.hidden_size", 32, "kinds must have one hidden_size: got 32 and 64"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    path, value, sentence = WRONG[case]
    with pytest.raises(ConfigError) as raised:
        model_from(changed(path, value), "model.json")
    assert sentence in str(raised.value)
    assert str(raised.value).startswith("model.json")


def test_what_is_left_out_in_model_traced_has_these_values() -> None:
    assert number_defaults(traced_module) == {
        "TracedCore": {"is_causal": True, "q": 0.0, "k": 0.0, "v": 0.0, "is_chunked": False, "index_columns": 0},
        "TracedScan.chunk_products": {"tp": 1},
        "TracedGemm": {"biased": False, "rows": 1.0, "saves": 0.0, "count": 1},
        "TracedSaved": {"is_float32": False, "is_divided": True},
        "TracedMixer": {"norm_weights": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, 60),
        ({"is_causal": False}, 120),
        ({"window": 120}, 60),
        ({"window": 12}, keys_in_window(12, 120)),
        ({"window": 12, "is_chunked": True}, 6),
        ({"window": 12, "is_causal": False}, 120),
        ({"block": 7}, 60 + blocks_before(7, 120)),
        ({"block": 7, "num_blocks": 5, "window": 12}, keys_in_window(12, 120) + blocks_before(7, 120, 5)),
    ],
)
def test_a_query_sees_the_keys_of_its_window_or_chunk_and_compressed_ones(fields, keys):
    core = TracedCore(6, 3, 10, 20, index_columns=11, **fields)
    assert core.keys_per_query(120) == pytest.approx(keys)
    indexed = 22 * blocks_before(7, 120) if "block" in fields else 0
    masked = 1 if fields.get("is_causal") is False else 2
    assert core.core_flops(120, causal=True) == pytest.approx(2 * keys * 6 * 30 + indexed)
    assert core.core_flops(120, causal=False) == pytest.approx(masked * 2 * keys * 6 * 30 + 2 * indexed)
    assert (core.qk_head_size, core.v_head_size, core.linears(64, 1)) == (10, 20, [])


def test_a_scan_divides_its_products_by_heads_and_knows_no_columns():
    products = (
        ChunkProduct(count=6, rows=64, columns=16, depth=8),
        ChunkProduct(count=1, rows=4, columns=5, depth=9),
    )
    scan = TracedScan(5, 64, products)
    assert [one.count for one in scan.chunk_products(3)] == [2, 1]
    assert [one.count for one in scan.chunk_products()] == [6, 1]
    assert (scan.inner_size, scan.convolved, scan.kept_columns, scan.divided) == (0, 0, 0, {"heads": 5})
    (operator,) = scan.operators(64, ParallelSizes(), Execution(), 128)
    assert (operator.name, operator.core, scan.linears(64, 1)) == ("scan", scan, [])


def mixer(**fields):
    return TracedMixer(
        gemms=(
            TracedGemm("q", "n1", 60, (120, 24), split="outputs", biased=True, rows=0.5, count=3),
            TracedGemm("up", "x", 36, (12,), saves=72.0),
            TracedGemm("out", "y", 84, (48,), split="inputs", saves=44.0),
            TracedGemm("again", "y", 84, (20,)),
        ),
        cores=(TracedCore(6, 3, 10, 20, window=90), TracedCore(4, 2, 10, 20, window=50), TracedCore(8, 1, 10, 20)),
        saved=(TracedSaved("a", 30.0, "norm", is_float32=True), TracedSaved("b", 40.0, "sum", is_divided=False)),
        norm_weights=17,
        **fields,
    )  # fmt: skip


def test_a_mixer_adds_its_calls_and_divides_its_matrices():
    traced = mixer(scans=(TracedScan(5, 64),))
    assert (traced.num_heads, traced.window, traced.norm_parameters) == (18, 50, 17)
    assert TracedMixer(cores=(TracedCore(8, 1, 10, 20),)).window is None
    assert traced.parts == (*traced.cores, *traced.scans)
    flops = sum(core.core_flops(120, causal=True) for core in traced.cores)
    assert mixer().core_flops(120, causal=True) == flops
    assert traced.divided == {
        "heads of attention call 0": 6, "heads of attention call 1": 4, "heads of attention call 2": 8,
        "key/value heads of call 0": 3, "key/value heads of call 1": 2, "key/value heads of call 2": 1,
        "columns of q": 24, "columns of out": 84,
    }  # fmt: skip
    assert [(one.name, one.inputs, one.columns, one.split) for one in traced.linears(60, 2)] == [
        ("q", 60, (60, 12), "outputs"), ("up", 36, (12,), None), ("out", 42, (48,), "inputs"), ("again", 84, (20,), None),
    ]  # fmt: skip
    first = traced.linears(60, 1)[0]
    assert (first.biased, first.rows, first.count, first.reads) == (True, 0.5, 3, "n1")


def test_context_parallel_ranks_need_an_attention_call_and_no_scan():
    sizes = ParallelSizes(cp=2)
    mixer().require_division(sizes)
    for wrong in (mixer(scans=(TracedScan(5, 64),)), TracedMixer(gemms=mixer().gemms)):
        wrong.require_division(ParallelSizes())
        with pytest.raises(ConfigError, match="got cp 2"):
            wrong.require_division(sizes)
    TracedMixer().require_division(sizes)


def test_each_tensor_of_a_mixer_is_written_once_and_divided_like_its_reader():
    operators = list(mixer().operators(60, ParallelSizes(tp=2), Execution(), 128))
    written = {tensor.name: (tensor.columns, tensor.dtype) for one in operators for tensor in one.writes}
    assert written["saved 0"] == (15, "f32")
    assert written["saved 1"] == (40, "act")
    assert (written["x"], written["y"]) == ((72, "act"), (22, "act"))
    assert (written["out 0"], written["out 1"], written["out 2"]) == ((36, "act"), (12, "act"), (48, "act"))
    assert written["mixed"] == (60, "act")
    assert [one.name for one in operators if one.weight is not None] == ["q 0", "up 1", "out 2", "again 3"]
    assert [one.module for one in operators if one.weight is not None] == ["qkv_linear", *["attn_proj"] * 3]
    assert [one.kind for one in operators[:2]] == ["norm", "gate"], "an unknown kind is a gate"
    assert [one.name for one in operators].count("makes y") == 1
    assert operators[-1].reads == ("out 3",)
    assert operators[-1].passes_gradient
    assert [one.writes[0].name for one in operators if one.name.endswith(" core")] == [
        "call 0 o",
        "call 1 o",
        "call 2 o",
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kinds.0.mixer.norm_weights", 10**12), ("kinds.0.mixer.norm_weights", 0), ("kinds.0.mixer.cores.0.q", 3),
        ("kinds.0.mixer.cores.0.q", 2.5), ("kinds.0.mixer.cores.0.window", 7), ("kinds.0.num_norms", 4),
        ("kinds.0.norm", "plain"), ("kinds.0.norm", "layernorm"), ("source", None), ("final_norm", False),
    ],
)  # fmt: skip
def test_what_a_file_may_hold_is_read(path, value):
    model = model_from(changed(path, value))
    layer = model.layers[0]
    read = {
        "norm_weights": layer.attention.norm_weights, "q": layer.attention.cores[0].q, "window": layer.attention.window,
        "num_norms": layer.num_norms, "norm": layer.norm, "source": None if model.source == "a trace" else 0,
        "final_norm": model.final_norm,
    }  # fmt: skip
    assert read[path.rpartition(".")[-1]] == value


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("kinds.0.mixer.norm_weights", 10**12 + 1, "must be from 0 to"),
        ("kinds.0.mixer.cores.0.q", True, "q must be of type float: got True"),
        ("kinds.0.mixer.cores.0.is_causal", 1, "is_causal must be of type bool: got 1"),
        ("kinds.0.mixer.gemms.0.inputs", 0, "inputs must be at least 1"),
        ("kinds.0.mixer.gemms.0.columns", [4, 0], "columns must have a number of 1 or more: got"),
        (
            "kinds.0.ffn",
            {"kind": "Attention", "num_heads": 4, "num_kv_heads": 2, "head_size": 16},
            "kinds 0 must have",
        ),
        ("kinds.0", 3, "kinds must be a list of objects"),
        ("kinds.0.num_norms", "2", "num_norms must be of type int"),
    ],
)
def test_numbers_and_flags_of_a_file_have_bounds_and_types(path, value, sentence):
    with pytest.raises(ConfigError, match=sentence):
        model_from(changed(path, value))
