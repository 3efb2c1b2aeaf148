"""The stored form of traced models is read without torch, and what is wrong with a file is said with its place."""

import copy

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.activations import layer_activations
from ppsim.model.config import model_from
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.mixers import traced as traced_module
from ppsim.model.mixers.traced import TracedMixer
from ppsim.model.parameters import held_of_layer, require_division_of_layer
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
