"""Compressed attention and residual streams: parameters, keys, FLOPs, bytes and messages against figures of others."""

import itertools
from dataclasses import replace

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.cores import core_of
from ppsim.costs.job import Job
from ppsim.machine import collectives
from ppsim.machine.cluster_files import load_cluster
from ppsim.model import compressed_attention as compressed_attention_module
from ppsim.model.activations import end_activations, layer_activations
from ppsim.model.attention_base import Indexer
from ppsim.model.compressed_attention import CompressedAttention
from ppsim.model.config import model_from
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.rank_memory import rank_memory
from ppsim.model.registry import find_model
from ppsim.parallel.layout import layout_on
from ppsim.parallel.sizes import ParallelSizes
from tests.costs.timed import passing
from tests.defaults import number_defaults
from tests.model.operator_lines import lines_of, matrix_lines_of

FLASH, PRO = find_model("deepseek-v4-flash"), find_model("deepseek-v4-pro")
WINDOW, SPARSE, HEAVY = (FLASH.layers[index] for index in (0, 2, 3))
RELEASED = {
    "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "compress_rope_theta": 160000, "eos_token_id": 1, "hc_eps": 1e-6,
    "expert_dtype": "fp4", "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_act": "silu",
    "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "initializer_range": 0.02,
    "max_position_embeddings": 1048576, "model_type": "deepseek_v4", "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64,
    "num_experts_per_tok": 6, "num_hash_layers": 3, "num_hidden_layers": 43, "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1, "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8"}, "rms_norm_eps": 1e-6, "rope_scaling": {"type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
    "swiglu_limit": 10.0, "tie_word_embeddings": False, "topk_method": "noaux_tc", "vocab_size": 129280,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "index", "parameters", "biases"),
    [
        (FLASH, 0, 6_576_416_374, 0),
        (FLASH, 2, 6_595_558_646, 0),
        (FLASH, 3, 6_580_676_726, 256),
        (FLASH, 4, 6_595_558_646, 256),
        (PRO, 0, 25_744_655_030, 0),
        (PRO, 2, 25_768_646_454, 0),
        (PRO, 3, 25_744_655_030, 384),
        (PRO, 4, 25_768_646_454, 384),
    ],
)
def test_a_layer_of_each_kind_has_the_parameters_that_transformers_builds(model, index, parameters, biases) -> None:
    """`DeepseekV4DecoderLayer` of transformers 5.23 on the meta device, where balancing biases are buffers."""
    assert model.layers[index].parameters == parameters + biases


def test_a_layer_for_a_further_token_has_a_window_two_projections_and_streams_of_its_own() -> None:
    (layer,), h = FLASH.mtp, 4096
    assert (layer.attention.block, layer.ffn.router_bias) == (None, True)
    assert layer.parameters == WINDOW.parameters + 256
    assert FLASH.mtp_parameters - layer.parameters == 2 * h * h + 3 * h + 4 * 4 * h + 4 + 1


def test_layers_are_as_many_of_each_kind_as_published() -> None:
    """arXiv 2606.19348: windows in Flash's first two; heavily compressed ones in Pro's; then both in turns."""
    kinds = {model: [layer.attention.block for layer in model.layers] for model in (FLASH, PRO)}
    assert [kinds[FLASH].count(block) for block in (None, 4, 128)] == [2, 21, 20]
    assert [kinds[PRO].count(block) for block in (None, 4, 128)] == [0, 30, 31]
    for model in (FLASH, PRO):
        assert all((layer.attention.indexer is not None) == (layer.attention.block == 4) for layer in model.layers)
        assert [layer.ffn.router_bias for layer in model.layers[:4]] == [False, False, False, True]


@pytest.mark.parametrize(
    ("length", "window", "block", "chosen"),
    [*itertools.product((1, 7, 40, 41), (1, 5, 64), (4, 16), (None, 2, 64))],
)
def test_keys_and_flops_are_those_of_a_mask_written_out(length, window, block, chosen) -> None:
    indexer = Indexer(3, 5, chosen) if chosen else None
    attention = CompressedAttention(2, 8, 4, 2, window, out_groups=2, out_rank=3, block=block, indexer=indexer)
    seen = before = 0
    for place in range(length):
        blocks = [first for first in range(0, length, block) if first + block <= place + 1]
        before += len(blocks)
        seen += len(range(max(0, place - window + 1), place + 1)) + len(blocks[: chosen or length])
    assert attention.keys_per_query(length) * length == pytest.approx(seen)
    scored = 2 * 3 * 5 * before if chosen else 0
    core = attention.core_flops(length, causal=True) * length
    assert core == pytest.approx(2 * (2 * 2 * 8) * seen + scored)


@pytest.mark.parametrize(
    ("tokens_per_s", "tflops"), [(8224, 748), (7776, 706), (8358.842, 759.28), (8056.45, 731.4), (1573.001, 142.91)]
)
def test_flops_a_token_are_those_that_nvidia_counts(tokens_per_s, tflops) -> None:
    """Megatron-Bridge's performance summary of container 26.08, and its verification card of the model."""
    assert FLASH.training_flops(4096, causal=True) == pytest.approx(1e12 * tflops / tokens_per_s, rel=0.0025)


def test_products_of_the_output_are_side_by_side() -> None:
    """Eight of 4096 × 1024, which all tokens pass, have as many weights as one of 32768 × 1024."""
    (down,) = [one for one in SPARSE.all_linears if one.name == "heads down"]
    assert (down.inputs, down.outputs, down.size) == (32768, 8192, 8 * 4096 * 1024)


def kept(layer, recompute="none", streams=None):
    of = layer if streams is None else replace(layer, streams=streams)
    return layer_activations(of, MemorySettings(1, 4096, ParallelSizes(dp=8)), recompute)


def test_what_a_layer_keeps_is_what_its_parts_save() -> None:
    """Columns of a token, of Megatron-LM's modules: in words beside each."""
    window = 2 * 1024 + 2 * 32768 + (512 + 512) + 2 * 32768 + 8192  # latent, queries, key, result, its groups
    compressed = 2 * 512 + 2 * 512 / 128
    sparse = 2 * (1024 + 256) + 2 * 512 / 4 + (8192 + 64) + 2 * 128 / 4
    for layer, columns in ((WINDOW, window), (HEAVY, window + compressed), (SPARSE, window + sparse)):
        assert kept(layer)["attention"] == 4096 * 2 * (4096 + columns)
        again = kept(layer, "mla_up_proj")["attention"]
        assert kept(layer)["attention"] - again == 4096 * 2 * (2 * 32768 + 512)
    assert kept(WINDOW)["scores"] == 4096 * 4 * (64 + 128)
    assert kept(SPARSE)["scores"] == 4096 * 4 * (64 + 128 + 512)
    assert kept(HEAVY)["scores"] == 4096 * 4 * (64 + 128 + 32)


def test_streams_are_kept_by_both_halves_and_alone_where_all_is_recomputed() -> None:
    hidden = 4096 * 4096 * 2
    assert kept(SPARSE)["residual streams"] == 2 * (4 + 1) * hidden
    assert "residual streams" not in kept(SPARSE, streams=1)
    assert kept(SPARSE, "full") == {"layer input": 4 * hidden}
    assert kept(SPARSE, "full", streams=1) == {"layer input": hidden}
    for end, name in (("mtp", "multi-token prediction"), ("head", "head")):
        assert end_activations(FLASH, end, MemorySettings(1, 4096)) == {name: 6 * hidden}


def test_mixing_again_keeps_what_halves_give_and_one_residual_a_stage() -> None:
    """Megatron-LM's module mhc: of both halves streams, inputs of norms and theirs are made again for all layers."""
    hidden, settings = 4096 * 4096 * 2, MemorySettings(1, 4096, ParallelSizes(dp=8, ep=8))
    again = kept(SPARSE, "mhc")
    assert (again.get("norms", 0), again["residual streams"]) == (0, 2 * hidden)
    assert kept(SPARSE)["attention"] - again["attention"] == hidden
    assert sum(kept(SPARSE).values()) - sum(again.values()) == 2 * (4 + 2) * hidden
    stage = stages_of(FLASH, [22, 21])[0]
    settings = replace(settings, execution=Execution(recompute="mhc"))
    found = rank_memory(FLASH, [stage], settings, in_flight=[3]).components
    assert found["residual streams"] == 3 * (22 * 2 + 4) * hidden
    assert found["residual streams again"] == 22 * 2 * 6 * hidden


def job(streams: int, recompute: str = "none") -> Job:
    layers = tuple(replace(layer, streams=streams) for layer in FLASH.layers[:4])
    model = replace(FLASH, layers=layers, mtp=())
    return Job(
        model=model, model_name="deepseek-v4-flash", cluster=load_cluster("gb200"), layout=layout_on(8, pp=2, ep=4),
        global_batch=16, execution=Execution(recompute=recompute),
    )  # fmt: skip


def test_mixing_again_takes_its_passes_and_is_for_streams_alone() -> None:
    costs = [job(4, recompute).costs.layer(SPARSE) for recompute in ("none", "mhc")]
    assert costs[0].forward == costs[1].forward
    place = job(4).place
    more = costs[1].backward_input.recompute_s
    assert more > place.times.moved_s("elementwise", 2 * 14 * 4096 * 4096 * 2, launches=4) / 1.01
    with pytest.raises(
        ConfigError, match="recompute mhc is for layers with residual streams, and the model has none"
    ):
        job(1, "mhc")


def test_all_streams_are_sent_between_stages() -> None:
    """[s, b, n·h] (Megatron-LM, dev at d48bd6b, `pipeline_parallel/schedules.py`: `get_tensor_shapes`)."""
    schedule = ppsim.build("1f1b", pp=2, microbatches=4)
    one, four = (assemble_job(job(streams), schedule).costs for streams in (1, 4))
    link = load_cluster("gb200").tiers[0].link
    hidden = 4096 * 4096 * 2
    assert one.transfer_s[0] == collectives.point_to_point_s(hidden, link)
    assert four.transfer_s[0] == collectives.point_to_point_s(4 * hidden, link)


def test_streams_cost_the_passes_of_their_kernels() -> None:
    """Of four: 3·4 + 2 and 10·4 + 3 a half where one has 3, which is 11 and 40 more, forward and backward."""
    place = job(4).place
    one, four = (passing(replace(HEAVY, streams=streams), place) for streams in (1, 4))
    forward, backward = (four.passes[index].memory_s - one.passes[index].memory_s for index in (0, 1))
    assert backward / forward == pytest.approx(40 / 11)
    more, none = (place.times.moved_s("elementwise", size, launches=1) for size in (2 * 11 * 4096 * 4096 * 2, 0))
    assert forward == pytest.approx(more - none)


def test_a_ranks_gradient_between_stages_is_of_all_streams() -> None:
    settings = MemorySettings(1, 4096, ParallelSizes(dp=8, ep=8))
    memory = rank_memory(FLASH, [stages_of(FLASH, [22, 21])[0]], settings, in_flight=[2])
    assert memory.components["gradient between stages"] == 4 * 4096 * 4096 * 2
    assert memory.components["residual streams"] == 2 * 22 * 2 * 5 * 4096 * 4096 * 2


def test_tensor_parallelism_does_not_divide_it() -> None:
    with pytest.raises(ConfigError, match="not divided by tp: got tp 2"):
        rank_memory(FLASH, [stages_of(FLASH, [43])[0]], MemorySettings(1, 4096, ParallelSizes(tp=2)), in_flight=[1])


def test_context_parallel_ranks_pass_a_window_on_and_gather_compressed_keys() -> None:
    """Megatron-LM's `cp_utils.py`: hidden states of 128 tokens, keys of 512 and, with an indexer, 128 columns."""
    assert [layer.attention.rows_before for layer in (SPARSE, HEAVY)] == [128, 128]
    assert [layer.attention.gathered_columns for layer in (SPARSE, HEAVY)] == [(512 + 128) / 4, 512 / 128]
    one, four = (HEAVY.attention.kept_columns(with_ups=True, cp=cp) for cp in (1, 4))
    assert four - one == 3 * 512 / 128
    whole, parts = (
        ppsim.job(
            model="deepseek-v4-flash", cluster="gb200", gpus=16, seq_len=65536, cp=cp, ep=16, pp=1, microbatches=1
        )
        for cp in (1, 4)
    )
    for layer in (SPARSE, HEAVY):
        alone, last = (job.costs.layer(layer).forward for job in (whole, parts))
        assert alone.cp_s == 0 < last.cp_s
        kernels = [
            core_of(layer.attention, job.place, micro_batch=1, sequence_length=65536).forward
            for job in (whole, parts)
        ]
        shares = [4 * kernels[1].attention_ideal_s / kernels[0].attention_ideal_s]
        assert 1 < shares[0] < 2  # the last of four pieces sees most, never twice the mean


def test_a_file_may_say_kinds_of_layers_by_words_or_by_numbers_or_leave_them_open() -> None:
    words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    numbers = RELEASED["compress_ratios"]
    plain = {name: value for name, value in RELEASED.items() if name not in ("compress_ratios", "num_hash_layers")}
    rates = {words[4]: 4, words[128]: 128}
    told = plain | {
        "layer_types": [words[number] for number in numbers[:43]], "compress_rates": rates,
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
    }  # fmt: skip
    of_earlier_versions = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "first_k_dense_replace": 3}
    for config in (RELEASED, told, RELEASED | {"compress_ratios": numbers[:43]}, RELEASED | of_earlier_versions):
        read = model_from(config)
        assert (read.layers, read.mtp, read.parameters) == (FLASH.layers, FLASH.mtp, FLASH.parameters)
    blocks = [layer.attention.block for layer in model_from(plain | {"num_hidden_layers": 6}).layers]
    assert blocks == [128, 128, 128, 4, 128, 4]


WRONG = {
    "few ratios": ({"compress_ratios": [0, 4]}, "compress_ratios must be a list of 43 whole numbers or more: got [0, 4]"),
    "no ratio": ({"compress_ratios": [0.5] * 44}, "compress_ratios must be a list of 43 whole numbers or more"),
    "word": ({"compress_ratios": None, "layer_types": ["full_attention"] * 43}, "must be of compressed_sparse_attention"),
    "keys": ({"num_key_value_heads": 8}, "num_key_value_heads is 1 in compressed attention"),
    "groups": ({"o_groups": 7}, "the groups of the output must divide the columns of all heads: got 7 with 32768"),
    "biases": ({"attention_bias": True}, "attention_bias true is not known; it is false"),
    "rates": ({"compress_rates": {"linear_attention": 2}}, "compress_rates: unknown field 'linear_attention'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(case: str) -> None:
    changed, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        model_from(RELEASED | changed)
    assert sentence in str(caught.value)


def test_what_is_left_out_in_model_compressed_attention_has_these_values() -> None:
    assert number_defaults(compressed_attention_module) == {
        "CompressedAttention.kept_columns": {"cp": 1},
    }  # fmt: skip


SELECTED = CompressedAttention(6, 20, 14, 4, 27, 5, 22, block=6, indexer=Indexer(3, 9, 4))
COMPRESSED = {
    "sparse": (SELECTED, ParallelSizes(cp=2)),
    "heavy": (CompressedAttention(6, 20, 14, 4, 27, 5, 22, block=10), ParallelSizes()),
    "window": (CompressedAttention(6, 20, 14, 4, 27, 5, 22), ParallelSizes()),
}
LINES_OF_COMPRESSED = {
    "sparse": """
queries down <- attention input 36·14
queries up <- latent of queries 14·120
keys and values up <- attention input 36·20
compressed keys and weights <- attention input 36·40+40
places of keys in a block <- keys 6·40 vector split outputs
compressed indexer's keys and weights <- attention input 36·18+18
places of indexer's keys in a block <- indexer's keys 6·18 vector split outputs
indexer's queries up <- latent of queries 14·27
indexer's weights <- attention input 36·3
sinks <- scores 1·6 vector split outputs
heads down <- heads 120·110 groups 5
attention output <- narrow heads 110·36
rotate <mla_up_proj>  > ; kind: rotation; columns: 338
core <core_attn>  > ; core
makes ups <mla_up_proj>  > ups T·260 attention; I: ups
makes kept <attn>  > kept T·558.5 attention; I: kept
makes index <core_attn>  > index T·37 scores [f32]; I: index
queries down <attn> n1 > queries down out own·14 norms; W: n1; weight: queries down 36·14; 8 bits
view of queries up <attn> kept > latent of queries own·14 attention [kept]; passes
queries up <attn/mla_up_proj> latent of queries > queries up out own·120 norms; W: latent of queries; weight: queries up 14·120
keys and values up <attn/mla_up_proj> n1 > keys and values up out own·20 norms; W: n1; weight: keys and values up 36·20; 8 bits
compressed keys and weights <attn> n1 > compressed keys and weights out own·80 norms; W: n1; weight: compressed keys and weights 36·80; 8 bits
compressed indexer's keys and weights <attn> n1 > compressed indexer's keys and weights out own·36 norms; W: n1; weight: compressed indexer's keys and weights 36·36; 8 bits
view of indexer's queries up <attn> kept > latent of queries own·14 attention [kept]; passes
indexer's queries up <attn> latent of queries > indexer's queries up out own·27 norms; W: latent of queries; weight: indexer's queries up 14·27
indexer's weights <attn> n1 > indexer's weights out own·3 norms; W: n1; weight: indexer's weights 36·3; 8 bits
view of heads down <attn> kept > heads own·120 attention [kept]; passes
heads down <attn> heads > heads down out own·110 norms; W: heads; weight: heads down 120·110
view of attention output <attn> kept > narrow heads own·110 attention [kept]; passes
attention output <attn> narrow heads > mixed own·36 norms; W: narrow heads; weight: attention output 110·36
""",
    "heavy": """
queries down <- attention input 36·14
queries up <- latent of queries 14·120
keys and values up <- attention input 36·20
compressed keys and weights <- attention input 36·20+20
places of keys in a block <- keys 10·20 vector split outputs
sinks <- scores 1·6 vector split outputs
heads down <- heads 120·110 groups 5
attention output <- narrow heads 110·36
rotate <mla_up_proj>  > ; kind: rotation; columns: 288
core <core_attn>  > ; core
makes ups <mla_up_proj>  > ups T·260 attention; I: ups
makes kept <attn>  > kept T·442 attention; I: kept
makes index <core_attn>  > index T·38 scores [f32]; I: index
queries down <attn> n1 > queries down out own·14 norms; W: n1; weight: queries down 36·14; 8 bits
view of queries up <attn> kept > latent of queries own·14 attention [kept]; passes
queries up <attn/mla_up_proj> latent of queries > queries up out own·120 norms; W: latent of queries; weight: queries up 14·120
keys and values up <attn/mla_up_proj> n1 > keys and values up out own·20 norms; W: n1; weight: keys and values up 36·20; 8 bits
compressed keys and weights <attn> n1 > compressed keys and weights out own·40 norms; W: n1; weight: compressed keys and weights 36·40; 8 bits
view of heads down <attn> kept > heads own·120 attention [kept]; passes
heads down <attn> heads > heads down out own·110 norms; W: heads; weight: heads down 120·110
view of attention output <attn> kept > narrow heads own·110 attention [kept]; passes
attention output <attn> narrow heads > mixed own·36 norms; W: narrow heads; weight: attention output 110·36
""",
    "window": """
queries down <- attention input 36·14
queries up <- latent of queries 14·120
keys and values up <- attention input 36·20
sinks <- scores 1·6 vector split outputs
heads down <- heads 120·110 groups 5
attention output <- narrow heads 110·36
rotate <mla_up_proj>  > ; kind: rotation; columns: 268
core <core_attn>  > ; core
makes ups <mla_up_proj>  > ups T·260 attention; I: ups
makes kept <attn>  > kept T·398 attention; I: kept
makes index <core_attn>  > index T·33 scores [f32]; I: index
queries down <attn> n1 > queries down out own·14 norms; W: n1; weight: queries down 36·14; 8 bits
view of queries up <attn> kept > latent of queries own·14 attention [kept]; passes
queries up <attn/mla_up_proj> latent of queries > queries up out own·120 norms; W: latent of queries; weight: queries up 14·120
keys and values up <attn/mla_up_proj> n1 > keys and values up out own·20 norms; W: n1; weight: keys and values up 36·20; 8 bits
view of heads down <attn> kept > heads own·120 attention [kept]; passes
heads down <attn> heads > heads down out own·110 norms; W: heads; weight: heads down 120·110
view of attention output <attn> kept > narrow heads own·110 attention [kept]; passes
attention output <attn> narrow heads > mixed own·36 norms; W: narrow heads; weight: attention output 110·36
""",
}
"""Matrices, then operators."""


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_attention_has_these_matrices_and_operators(name: str) -> None:
    mixer, sizes = COMPRESSED[name]
    lines = [*matrix_lines_of(mixer.linears(36, sizes.tp)), *lines_of(mixer.operators(36, sizes, Execution(), 50))]
    assert lines == LINES_OF_COMPRESSED[name].strip().splitlines()


def test_compressed_keys_are_seen_gathered_and_passed_on() -> None:
    """50 tokens: windows of 27; blocks of 6, 4 of them chosen, or of 10, all of them."""
    heavy, window = COMPRESSED["heavy"][0], COMPRESSED["window"][0]
    kinds = (SELECTED, heavy, window)
    assert [one.norm_parameters for one in kinds] == [14 + 20 + 20 + 9, 14 + 20 + 20, 14 + 20]
    assert [one.rows_before for one in kinds] == [27, 27, 27]
    assert [replace(one, window=3).rows_before for one in kinds] == [12, 10, 3]
    assert [one.gathered_columns for one in kinds] == [29 / 6, 2, 0]
    assert [one.blocks_per_query(50) for one in kinds] == [
        sum(query // block for query in range(1, 51)) / 50 if block else 0 for block in (6, 10, None)
    ]
    assert [one.unmasked_keys(50) for one in kinds] == [31, 32, 27]
    assert [one.unmasked_keys(20) for one in kinds] == [20 + 3, 20 + 2, 20]
    assert [one.core_bytes(50) for one in kinds] == [4 * 37, 4 * 38, 4 * 33]
    assert heavy.kept_columns(with_ups=True) - heavy.kept_columns(with_ups=False) == 2 * 120 + 20
    assert SELECTED.kept_columns(with_ups=False, cp=3) - SELECTED.kept_columns(with_ups=False) == pytest.approx(
        2 * 29 / 6
    )
    scored = 2 * 27 * SELECTED.blocks_per_query(50)
    for causal, times in ((True, 1), (False, 2)):
        keys = 2 * SELECTED.keys_per_query(50) * 240 * times
        assert SELECTED.core_flops(50, causal=causal) == pytest.approx(keys + times * scored)
    for wrong in ({"tp": 2}, {"tp": 4}):
        with pytest.raises(ConfigError):
            SELECTED.require_division(ParallelSizes(**wrong))
    names = ("num_heads", "head_size", "q_lora_rank", "rope_head_size", "window", "out_groups", "out_rank", "block")
    for name in names:
        with pytest.raises(ConfigError, match=name):
            replace(SELECTED, **{name: 0})
    with pytest.raises(ConfigError, match="got 7 with 120"):
        replace(SELECTED, out_groups=7)
    with pytest.raises(ConfigError, match="an indexer chooses"):
        replace(SELECTED, block=None)
