"""Mixers from a trace and delta rules: keys, products and tensors of a rank, by hand."""

from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.execution import Execution
from ppsim.model.mixers.traced import TracedCore, TracedGemm, TracedMixer, TracedSaved, TracedScan
from ppsim.model.recurrent import ChunkProduct, GatedDeltaNet, KimiDeltaAttention
from ppsim.parallel.sizes import ParallelSizes

CORE = TracedCore(num_heads=8, num_kv_heads=2, qk_size=16, v_size=32)


def core(**fields: Any) -> TracedCore:
    return TracedCore(**({"num_heads": 8, "num_kv_heads": 2, "qk_size": 16, "v_size": 32} | fields))


def test_a_query_sees_half_the_keys_its_window_or_its_chunk() -> None:
    whole = CORE.keys_per_query(64)
    assert whole in (32.0, 32.5)
    assert core(window=16, is_chunked=True).keys_per_query(64) == 8
    window = core(window=16).keys_per_query(64)
    assert 15 - 16 / 8 < window < 16
    assert core(window=64).keys_per_query(64) == core(window=100).keys_per_query(64) == whole
    assert core(window=16, is_causal=False).keys_per_query(64) == core(is_causal=False).keys_per_query(64)


def test_compressed_keys_are_seen_in_addition() -> None:
    blocks = core(block=4, num_blocks=2)
    assert blocks.keys_per_query(64) > CORE.keys_per_query(64)
    windowed, both = core(window=16), core(window=16, block=4, num_blocks=2)
    added = both.keys_per_query(64) - windowed.keys_per_query(64)
    assert added == pytest.approx(blocks.keys_per_query(64) - CORE.keys_per_query(64))
    assert 0 < added <= 2
    indexed = core(block=4, index_columns=10)
    scored = indexed.core_flops(64, causal=True) - core(block=4).core_flops(64, causal=True)
    assert indexed.core_flops(64, causal=False) - core(block=4).core_flops(64, causal=False) == pytest.approx(
        2 * scored
    )
    assert scored == pytest.approx(2 * 10 * (core(block=4).keys_per_query(64) - CORE.keys_per_query(64)))


@pytest.mark.parametrize("field", ["num_heads", "num_kv_heads", "qk_size", "window", "block", "num_blocks"])
def test_sizes_are_positive(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        core(**{field: 0})


def test_tensors_of_a_core_are_divided_by_tp() -> None:
    made = core(q=128.0, k=32.0, v=64.0)
    operators = list(made.operators(64, ParallelSizes(tp=2), Execution(), 64))
    assert [(one.name, one.writes[0].columns) for one in operators[:3]] == [
        ("makes q", 64.0), ("makes k", 16.0), ("makes v", 32.0),
    ]  # fmt: skip
    assert all(one.module == "qkv_linear" for one in operators[:3])


def test_products_of_a_scan_are_divided_but_for_the_last() -> None:
    scan = TracedScan(8, 64, (ChunkProduct(4, 1, 2, 3), ChunkProduct(1, 1, 2, 3)))
    assert [one.count for one in scan.chunk_products(2)] == [2, 1]
    assert [one.count for one in scan.chunk_products(1)] == [4, 1]
    assert (scan.inner_size, scan.convolved, scan.kept_columns, scan.divided) == (0, 0, 0, {"heads": 8})


def gemm(module: str, reads: str, **fields: Any) -> TracedGemm:
    return TracedGemm(**({"module": module, "reads": reads, "inputs": 64, "columns": (32, 16)} | fields))


MIXER = TracedMixer(
    gemms=(
        gemm("in", "n1", split="outputs"), gemm("mid", "held", saves=64.0, split="inputs"),
        gemm("out", "held", columns=(64,), rows=0.5, count=2),
    ),
    cores=(CORE, core(window=16)), saved=(TracedSaved("act", 48.0, "activation"), TracedSaved("x", 10.0, "odd", is_float32=True, is_divided=False)),
    norm_weights=7,
)  # fmt: skip


def test_a_mixer_sums_its_calls() -> None:
    assert (MIXER.num_heads, MIXER.window, MIXER.norm_parameters, len(MIXER.parts)) == (16, 16, 7, 2)
    flops = CORE.core_flops(64, causal=True) + core(window=16).core_flops(64, causal=True)
    assert MIXER.core_flops(64, causal=True) == pytest.approx(flops)
    assert MIXER.divided["columns of in"] == 16
    assert MIXER.divided["columns of mid"] == 64
    assert "columns of out" not in MIXER.divided
    assert TracedMixer().window is None


def test_tensors_are_made_once_and_divided_with_their_gemms() -> None:
    operators = {one.name: one for one in MIXER.operators(64, ParallelSizes(tp=2), Execution(), 64)}
    assert {name: one.kind for name, one in operators.items() if name in ("act 0", "x 1")} == {
        "act 0": "activation", "x 1": "gate",
    }  # fmt: skip
    saved = {one.name: one for name in ("act 0", "x 1") for one in operators[name].writes}
    assert {name: (one.columns, one.dtype) for name, one in saved.items()} == {
        "saved 0": (24.0, "act"), "saved 1": (10.0, "f32"),
    }  # fmt: skip
    assert operators["makes held"].writes[0].columns == 32.0
    assert [name for name in operators if name.startswith("makes held")] == ["makes held"]
    assert operators["in 0"].writes[0].columns == 24
    assert operators["out 2"].writes[0].columns == 0.5 * operators["out 2"].weight.outputs  # type: ignore[union-attr]
    assert (operators["in 0"].module, operators["mid 1"].module) == ("qkv_linear", "attn_proj")
    assert operators["mixed"].reads == ("out 2",)
    assert operators["mixed"].passes_gradient


def test_wrong_gemms_are_refused() -> None:
    for wrong, sentence in (
        ({"split": "rows"}, "split must be"),
        ({"columns": ()}, "columns must"),
        ({"columns": (0,)}, "columns must"),
        ({"inputs": 0}, "inputs"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            gemm("in", "n1", **wrong)


def test_context_parallelism_of_a_scan_is_not_known() -> None:
    scans = TracedMixer(scans=(TracedScan(8, 64),))
    scans.require_division(ParallelSizes(cp=1))
    for mixer in (scans, TracedMixer(gemms=(gemm("in", "n1"),))):
        with pytest.raises(ConfigError, match=r"got cp 2 \(nearest: 1\)"):
            mixer.require_division(ParallelSizes(cp=2))
    MIXER.require_division(ParallelSizes(cp=2))


def test_a_delta_rule_has_eight_products_per_chunk() -> None:
    delta = GatedDeltaNet(4, 8, 16, 32)
    q, k, v = delta.chunk_size, 16, 32
    products = 3 * q * q * k + 2 * q * q * v + 3 * q * k * v
    assert sum(one.flops for one in delta.chunk_products(2)) == 2 * 4 * products
    assert sum(one.is_again for one in delta.chunk_products()) == 4
    assert [one.count for one in delta.chunk_products(4)] == [2] * 8
    assert [one.is_within for one in delta.chunk_products()] == [True] * 5 + [False] * 3


@pytest.mark.parametrize("full_gate", [False, True])
def test_a_decay_per_column_is_projected_through_a_head(full_gate: bool) -> None:
    mixer = KimiDeltaAttention(4, 8, 16, 32, full_gate=full_gate)
    linears = {one.name: one for one in mixer.linears(64, 2)}
    keys, inner, heads = 4 * 16 // 2, 8 * 32 // 2, 8 // 2
    first = "queries, keys, values, strength, gate" if full_gate else "queries, keys, values, strength"
    assert linears[first].columns == (
        (keys, keys, inner, heads, inner) if full_gate else (keys, keys, inner, heads)
    )
    assert (linears["decay up"].inputs, linears["decay up"].columns) == (32, (heads * 16,))
    down = "decay down" if full_gate else "decay and gate down"
    assert (linears[down].inputs, linears[down].columns) == (64, (32,) if full_gate else (32, 32))
    assert ("gate up" in linears) == (not full_gate)
    assert all(one.name != "attention input" for one in linears.values())
