"""Bytes and parameters of a rank by small cases: options of the optimizer, sharding, tables, divided layers."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward, MixtureOfExperts
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.narrow_weights import NarrowWeights
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import (
    RankParameters,
    Tables,
    exact_multiple,
    held_of_layer,
    padded_vocabulary,
    require_division,
    tables_of,
)
from ppsim.model.rank_rules import gradient_copies_beside_graphs, gradient_copy_bytes, static_bytes, with_slack
from ppsim.parallel.sizes import ParallelSizes

AWARE, SHORT, IN_16_BITS = (
    {"is_precision_aware": True},
    {"master_weights_in_bf16": True},
    {"grad_reduce_in_bf16": True},
)
OPTIMIZERS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    # weight, gradient, copy of the gradient; moments, moments of a matrix, main weight; state, state of a matrix
    ({}, (2, 4, 0, 8, 8, 4, 12, 12)),
    ({"precision": "fp32"}, (4, 4, 0, 8, 8, 4, 8, 8)),
    ({"precision": "fp16"}, (2, 2, 4, 8, 8, 4, 12, 12)),
    (IN_16_BITS, (2, 2, 4, 8, 8, 4, 12, 12)),
    ({"precision": "fp32", **IN_16_BITS}, (4, 4, 0, 8, 8, 4, 8, 8)),
    ({"gradient_bytes": 2}, (2, 2, 4, 8, 8, 4, 12, 12)),
    ({"precision": "fp16", "gradient_bytes": 4}, (2, 4, 0, 8, 8, 4, 12, 12)),
    ({"name": "muon"}, (2, 4, 0, 8, 4, 4, 12, 8)),
    ({"name": "muon", "precision": "fp32"}, (4, 4, 0, 8, 4, 4, 8, 4)),
    ({**AWARE, **IN_16_BITS}, (2, 2, 0, 8, 8, 2, 10, 10)),
    ({**AWARE, "exp_avg_dtype": "bfloat16"}, (2, 4, 0, 4, 4, 2, 6, 6)),
    ({**AWARE, "exp_avg_dtype": "float16"}, (2, 4, 0, 4, 4, 2, 6, 6)),
    ({**AWARE, "exp_avg_dtype": "float8"}, (2, 4, 0, 2, 2, 2, 4, 4)),
    ({**AWARE, "precision": "fp32"}, (4, 4, 0, 8, 8, 4, 8, 8)),
    (SHORT, (2, 2, 0, 8, 8, 2, 10, 10)),
]


@pytest.mark.parametrize(("options", "expected"), OPTIMIZERS, ids=str)
def test_an_optimizer_has_these_bytes_per_parameter(options: dict[str, Any], expected: tuple[int, ...]) -> None:
    one = Optimizer(**options)
    found = (
        one.weight_bytes, one.bytes_of_gradient, one.gradient_copy_bytes, one.moment_bytes(),
        one.moment_bytes(is_matrix=True), one.main_weight_bytes, one.state_bytes(), one.state_bytes(is_matrix=True),
    )  # fmt: skip
    assert found == expected
    # An update reads and writes the state and a copied gradient, reads the gradient, and writes the weight, which it
    # also reads if there is no main weight.
    weight, gradient, copy, *_, state, _ = expected
    reads = 2 if options.get("precision") == "fp32" else 1
    assert one.traffic_bytes == 2 * state + 2 * copy + gradient + reads * weight
    # On the host: moments and weight of 12 bytes in and out, a gradient, and a cast of 4 bytes to the weight's.
    assert one.host_traffic_bytes == 2 * 12 + 4 + (0 if weight == 4 else 4 + weight)


OFFLOADED = {"offload_fraction": 0.5}
REFUSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"exp_avg_dtype": "float32"}, {"exp_avg_dtype": "float64"}),
    ({"zero_stage": 1, "exp_avg_dtype": "bfloat16"}, {"zero_stage": 0, "exp_avg_dtype": "bfloat16"}),
    ({"zero_stage": 0}, {"zero_stage": 0, **AWARE}),
    ({"zero_stage": 1, **AWARE}, {"name": "muon", **AWARE}),
    ({"precision": "bf16", **SHORT}, {"precision": "fp16", **SHORT}),
    ({"precision": "fp16"}, {"precision": "fp8"}),
    ({"name": "muon"}, {"name": "sgd"}),
    ({"zero_stage": 3}, {"zero_stage": 4}),
    ({"zero_stage": 2}, {"zero_stage": -1}),
    ({"num_distributed_optimizer_instances": 1, "zero_stage": 0}, {"num_distributed_optimizer_instances": 0}),
    ({"num_distributed_optimizer_instances": 2}, {"num_distributed_optimizer_instances": 2, "zero_stage": 0}),
    (
        {"outer_dp_sharding_strategy": "optim", "zero_stage": 3},
        {"outer_dp_sharding_strategy": "optim", "zero_stage": 2},
    ),
    ({"offload_fraction": 1.0}, {"offload_fraction": 1.01}),
    ({"offload_fraction": 0.0, "zero_stage": 0}, {"offload_fraction": -0.01}),
    (OFFLOADED, {**OFFLOADED, "name": "muon"}),
    (OFFLOADED, {**OFFLOADED, "zero_stage": 0}),
    (OFFLOADED, {**OFFLOADED, "exp_avg_dtype": "float8"}),
    ({"overlap_cpu_optimizer_d2h_h2d": True, **OFFLOADED}, {"overlap_cpu_optimizer_d2h_h2d": True}),
    ({"layer_wise": True, "zero_stage": 1}, {"layer_wise": True, "zero_stage": 0}),
    (
        {"layer_wise": True, "use_layer_wise_param_layout": False},
        {"layer_wise": False, "use_layer_wise_param_layout": False},
    ),
    ({"gradient_bytes": 2}, {"gradient_bytes": 3}),
    ({"gradient_bytes": 4}, {"gradient_bytes": 8}),
]


@pytest.mark.parametrize(("allowed", "refused"), REFUSED, ids=str)
def test_options_of_the_optimizer_that_contradict_each_other_are_refused(
    allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    Optimizer(**allowed)
    with pytest.raises(ConfigError):
        Optimizer(**refused)


def test_instances_divide_the_ranks_that_share_the_state() -> None:
    four = Optimizer(num_distributed_optimizer_instances=4, zero_stage=3)
    assert (four.instances_among(24), four.ranks_of_state(24)) == (4, 6)
    assert (four.instances_among(6), four.ranks_of_state(6)) == (2, 3)
    outer = replace(four, outer_dp_sharding_strategy="optim")
    assert (outer.instances_among(24), outer.ranks_of_state(24)) == (4, 24)
    assert Optimizer(precision="fp16").grad_reduce_in_bf16
    assert not Optimizer(precision="bf16").grad_reduce_in_bf16
    assert not Optimizer(precision="fp16", grad_reduce_in_bf16=False).grad_reduce_in_bf16


HELD = RankParameters(
    dense=1009, expert=4001, matrices=500, frozen=101, frozen_expert=211, gemms=701, expert_gemms=3001
)
SIZES = ParallelSizes(
    tp=2, cp=3, dp=4, ep=4, etp=1
)  # 12 ranks with the same dense parameters, 6 with the same experts


def bytes_of(optimizer: Optimizer, **other: Any) -> list[int]:
    """Parameters, gradients and state, dense and of experts."""
    return list(static_bytes(HELD, MemorySettings(1, 8, SIZES, optimizer, **other)).values())


def up(value: int, ranks: int) -> int:
    return -(-value // ranks)


def test_each_stage_of_zero_shards_one_part_more() -> None:
    """1009 - 101 = 908 and 4001 - 211 = 3790 trained parameters; 2, 4 and 12 bytes each."""
    weights, gradients, state = (2 * 1009, 2 * 4001), (4 * 908, 4 * 3790), (12 * 908, 12 * 3790)
    shards = {
        part: (up(dense, 12), up(expert, 6)) for part, (dense, expert) in
        (("weights", weights), ("gradients", gradients), ("state", state))
    }  # fmt: skip
    for stage, parts in (
        (0, (weights, gradients, state)),
        (1, (weights, gradients, shards["state"])),
        (2, (weights, shards["gradients"], shards["state"])),
        (3, (shards["weights"], shards["gradients"], shards["state"])),
    ):
        of_dense, of_experts = zip(*parts, strict=True)
        assert bytes_of(Optimizer(zero_stage=stage)) == [*of_dense, *of_experts], stage
    names = [
        f"{prefix}{part}" for prefix in ("", "expert ") for part in ("parameters", "gradients", "optimizer state")
    ]
    assert list(static_bytes(HELD, MemorySettings(1, 8, SIZES))) == names


def test_muon_has_one_moment_for_matrices_and_experts() -> None:
    """500 matrices with 8 bytes, the 408 others with 12; experts with 8."""
    found = bytes_of(Optimizer(name="muon", zero_stage=0))
    assert (found[2], found[5]) == (500 * 8 + 408 * 12, 3790 * 8)
    halves = bytes_of(Optimizer(offload_fraction=0.25))
    assert (halves[2], halves[5]) == (up(12 * 908 * 3 // 4, 12), up(12 * 3790 * 3 // 4, 6))
    shared = bytes_of(Optimizer(num_distributed_optimizer_instances=2, zero_stage=3))
    assert shared[0] == up(2 * 1009, 6)
    assert shared[3] == up(2 * 4001, 3)


def test_fsdp_has_shards_of_main_weights_and_gradients_and_whole_tensors_before_zero_3() -> None:
    shard, moments = up(4 * 1009, 12), up(8 * 1009, 12)
    for stage, gathered, accumulated in ((1, 2 * 1009, 4 * 1009), (2, 2 * 1009, 0), (3, 0, 0)):
        found = bytes_of(Optimizer(zero_stage=stage), fully_shard=True)
        assert found[:3] == [shard + gathered, shard + accumulated, moments], stage
    assert bytes_of(Optimizer(zero_stage=3), fully_shard=True)[3:] == [
        up(4 * 4001, 6),
        up(4 * 4001, 6),
        up(8 * 4001, 6),
    ]


def test_copies_of_gradients_have_4_bytes_and_are_sharded_with_the_state() -> None:
    def copies(**options: Any) -> int:
        return gradient_copy_bytes(
            HELD, MemorySettings(1, 8, SIZES, Optimizer(grad_reduce_in_bf16=True, **options))
        )

    assert copies(zero_stage=0) == 4 * (908 + 3790)
    assert copies(zero_stage=1) == up(4 * 908, 12) + up(4 * 3790, 6)
    assert copies(offload_fraction=0.25) == up(3 * 908, 12) + up(3 * 3790, 6)
    assert gradient_copy_bytes(HELD, MemorySettings(1, 8, SIZES)) == 0
    torch = MemorySettings(1, 8, SIZES, Optimizer(grad_reduce_in_bf16=True), fully_shard=True)
    assert gradient_copy_bytes(HELD, torch) == 0
    for graphs, beside in (("none", 0), ("layer", 70), ("full", 100), ("attn", 0)):
        settings = MemorySettings(1, 8, execution=Execution(cuda_graphs=graphs))
        assert gradient_copies_beside_graphs(100, 30, settings) == beside, graphs
    assert (
        gradient_copies_beside_graphs(30, 100, MemorySettings(1, 8, execution=Execution(cuda_graphs="layer"))) == 0
    )
    assert with_slack({"a": 1000, "b": 0}, MemorySettings(1, 8, allocator_slack=1.25)) == {
        "a": 1000, "allocator slack": 250,
    }  # fmt: skip


def test_settings_count_tokens_hidden_bytes_and_padded_rows_of_a_rank() -> None:
    settings = MemorySettings(3, 40, ParallelSizes(tp=4, cp=2), vocab_multiple=16)
    assert settings.tokens == 60
    assert settings.hidden_bytes(7) == 60 * 7 // 4 * 2
    model = Model((Layer(8, Attention(2, 2, 4), FeedForward(16)),), vocab_size=100, sequence_length=8)
    assert settings.vocabulary_of(model) == 128 // 4
    assert replace(settings, cut=ParallelSizes(tp=4, sequence_parallel=False)).hidden_bytes(7) == 120 * 7 * 2
    assert MemorySettings(1, 5, ParallelSizes(tp=4)).hidden_bytes(7) == 9 * 2, "rounded up"
    assert [settings.graph_buffers(number) for number in (0, 1, 5)] == [0, 1, 1]
    alone = replace(settings, cuda_graph_reuse=False, graphed_microbatches=3)
    assert [alone.graph_buffers(number) for number in (0, 1, 5)] == [0, 12, 60]
    for wrong in ({"micro_batch": 0}, {"sequence_length": 0}, {"workspace_bytes": -1}, {"allocator_slack": 0.99}):
        with pytest.raises(ConfigError):
            replace(settings, **wrong)
    assert replace(settings, workspace_bytes=0, allocator_slack=1.0).workspace_bytes == 0
    with pytest.raises(ConfigError, match="got 2 with 41"):
        _ = replace(settings, sequence_length=41).tokens


def test_gathered_weights_have_the_bytes_of_their_format() -> None:
    """640 of 1000 weights have 1.25 bytes per copy instead of 2."""
    narrow = NarrowWeights(1.25, copies=2, is_primary=True, is_transposable=False)
    primary, copied = (
        MemorySettings(1, 8, SIZES, narrow=replace(narrow, is_primary=is_primary)) for is_primary in (True, False)
    )
    assert copied.weight_bytes(1000, 640) == 2000
    assert primary.weight_bytes(1000, 640) == 720 + 1600
    assert replace(primary, narrow=replace(narrow, copies=3)).weight_bytes(1000, 640) == 720 + 2400
    assert primary.weight_bytes(1000, 640, is_whole=False) == 720 + 1600
    transposable = replace(primary, narrow=replace(narrow, is_transposable=True))
    assert transposable.weight_bytes(1000, 640, is_whole=False) == 720 + 800
    assert primary.gathered_layer_bytes(RankParameters(600, 400, gemms=400, expert_gemms=240)) == 720 + 1600
    fsdp = replace(primary, fully_shard=True)
    assert fsdp.gathered_layer_bytes(RankParameters(600, 400, gemms=400, expert_gemms=240)) == 1250
    no_dp = replace(fsdp, cut=ParallelSizes(cp=2))
    sharded = replace(primary, optimizer=Optimizer(zero_stage=3))
    each = (fsdp, no_dp, primary, sharded, transposable, copied, MemorySettings(1, 8))
    assert [one.gathered_bytes for one in each] == [1.25, 2, 2, 1.25, 1.25, 2, 2]


def test_tables_are_on_the_ranks_of_the_embedding_the_head_and_further_tokens() -> None:
    """Stages: (embedding, head, multi-token prediction)."""
    layer = Layer(8, Attention(2, 2, 4), FeedForward(16))
    plain, tied = (Model((layer,), 100, 8, tied_embeddings=is_tied) for is_tied in (False, True))
    for stages, separate, shared in (
        ([(True, False, False)], (1, 0), (1, 0)),
        ([(False, True, False)], (0, 1), (0, 1)),
        ([(False, True, True)], (1, 1), (1, 0)),
        ([(True, True, False)], (1, 1), (1, 0)),
        ([(True, False, False), (False, True, True)], (1, 1), (1, 0)),
        ([(False, False, True), (False, True, False)], (1, 1), (1, 1)),
        ([(False, False, False)], (0, 0), (0, 0)),
    ):
        assert (tables_of(plain, stages), tables_of(tied, stages)) == (Tables(*separate), Tables(*shared)), stages
    frozen = plain.with_fine_tuning(fine_tuning_of("", "embedding"))
    assert Tables(3, 5).trained(frozen) == 5
    assert Tables(3, 5).held(frozen, 7) == RankParameters(56, frozen=21)
    assert Tables(3, 5).held(plain, 7) == RankParameters(56)
    assert [padded_vocabulary(size, tp=4, multiple=8) for size in (1, 32, 33)] == [32, 32, 64]
    assert [exact_multiple(7, factor) for factor in (3.0, 2.5, 1 / 3)] == [21, 18, 2]


def test_a_rank_holds_its_part_of_a_layer() -> None:
    """Norms: 2 · 36. With tp 2: queries, keys, values 36 · (60 + 30 + 30) + 120 biases, output 60 · 36.

    The router: 8 · 36; 4 of 8 experts of 36 · 26 · 3 weights; a shared expert of 34 columns: 36 · 17 · 3.
    """
    experts = MixtureOfExperts(FeedForward(26), 8, 3, shared_size=34)
    layer = Layer(36, Attention(12, 6, 10, qkv_bias=True), experts)
    sizes = ParallelSizes(tp=2, dp=2, ep=2, etp=1)
    attention, shared, routed = 36 * 120 + 60 * 36, 36 * 17 * 3, 4 * 36 * 26 * 3
    whole = RankParameters(
        dense=72 + attention + 120 + 8 * 36 + shared, expert=routed, matrices=attention + shared,
        gemms=attention + shared, expert_gemms=routed,
    )  # fmt: skip
    assert held_of_layer(layer, sizes) == whole
    assert held_of_layer(replace(layer, in_16_bits=True), sizes) == replace(whole, gemms=0, expert_gemms=0)
    model = Model((layer,), 100, 8)

    def frozen(text: str) -> RankParameters:
        return held_of_layer(model.with_fine_tuning(fine_tuning_of("", text)).layers[0], sizes)

    assert frozen("norms") == replace(whole, frozen=72)
    assert frozen("attention") == replace(whole, frozen=attention + 120, matrices=shared)
    assert frozen("experts") == replace(whole, frozen=shared, frozen_expert=routed, matrices=attention)
    assert (whole.trained, frozen("norms").trained, frozen("experts").trained_expert) == (
        whole.dense,
        whole.dense - 72,
        0,
    )
    assert whole + HELD == RankParameters(
        whole.dense + 1009,
        routed + 4001,
        attention + shared + 500,
        101,
        211,
        attention + shared + 701,
        routed + 3001,
    )
    lora = held_of_layer(model.with_fine_tuning(fine_tuning_of("4:linear_fc1", "")).layers[0], sizes)
    # One adapter for a rank's experts, 36 · 4 + 4 · 52, and one for the shared expert, 36 · 2 + 4 · 34.
    assert (lora.trained_expert, lora.trained, lora.matrices) == (36 * 4 + 4 * 52, 36 * 2 + 4 * 34, 0)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, {"tp": 4}),
        ({"ffn": FeedForward(25)}, {"tp": 2}),
        ({"ffn": FeedForward(26)}, {"dp": 2, "ep": 2}),
        ({"ffn": FeedForward(26)}, {"tp": 2, "etp": 1}),
        ({}, {"dp": 3, "ep": 3}),
        ({}, {"tp": 2, "dp": 3, "etp": 3}),
        ({"ffn": MixtureOfExperts(FeedForward(26), 8, 3, shared_size=33)}, {"tp": 2, "etp": 1}),
    ],
    ids=str,
)
def test_sizes_that_do_not_divide_a_layer_are_refused(changes: dict[str, Any], sizes: dict[str, int]) -> None:
    layer = replace(
        Layer(36, Attention(6, 6, 10), MixtureOfExperts(FeedForward(26), 8, 3, shared_size=34)), **changes
    )
    require_division(Model((layer,), 100, 8), ParallelSizes())
    with pytest.raises(ConfigError):
        require_division(Model((layer,), 100, 8), ParallelSizes(**sizes))


@pytest.mark.parametrize(("lora", "sizes"), [("6", {"tp": 4, "etp": 1}), ("6", {"tp": 2, "dp": 2, "etp": 4})])
def test_ranks_of_adapters_are_divided_too(lora: str, sizes: dict[str, int]) -> None:
    layer = Layer(36, Attention(8, 8, 10), MixtureOfExperts(FeedForward(32), 8, 3))
    model = Model((layer,), 100, 8)
    require_division(model, ParallelSizes(**sizes))
    with pytest.raises(ConfigError, match="rank of the adapters"):
        require_division(model.with_fine_tuning(fine_tuning_of(lora, "")), ParallelSizes(**sizes))
