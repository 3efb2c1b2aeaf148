"""A job from its options: sizes, layouts and models, and what is refused."""

from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job

GPT = {"model": "gpt", "layers": 4, "hidden": 64, "heads": 8}


def made(**options: Any) -> Job:
    return ppsim.job(**({"model": "llama3-8b", "stack": "plain"} | options))


def test_a_gpt_has_the_sizes_of_its_options() -> None:
    model = ppsim.job(**GPT, vocab=1000, seq_len=128, kv_heads=2, pp=1).model
    assert (len(model.layers), model.hidden_size, model.vocab_size, model.sequence_length) == (4, 64, 1000, 128)
    assert model.tied_embeddings
    attention: Any = model.layers[0].attention
    assert (attention.num_heads, attention.num_kv_heads) == (8, 2)
    assert not ppsim.job(**GPT, tied_embeddings=False, pp=1).model.tied_embeddings
    plain: Any = ppsim.job(**GPT, pp=1).model.layers[0].attention
    assert plain.num_kv_heads == 8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "gpt", "layers": 4}, "--model gpt needs --hidden, --heads"),
        (GPT | {"heads": 7}, "--heads must divide --hidden: got 7 with 64"),
        (GPT | {"kv_heads": 3}, "--kv-heads must divide --heads: got 3 with 8"),
        (GPT | {"layers": 0}, "layers"),
        (GPT | {"mtp_num_layers": 1}, "--mtp-num-layers is for a model that predicts further tokens: gpt does not"),
        ({"model": "llama3-8b", "hidden": 64}, "--hidden-size is for --model gpt: llama3-8b has its own|is for --model gpt"),
        ({"model": "llama3-8b", "tied_embeddings": True}, "is for --model gpt: llama3-8b has its own"),
        ({"pp": 2}, "--model must be given"),
        ({"model": "llama3-8b", "price": -1.0}, "--price must be a number from 0 on"),
        ({"model": "llama3-8b", "price": float("inf")}, "--price must be"),
        ({"model": "llama3-8b", "micro_batch": 0}, "micro-batch"),
        ({"model": "llama3-8b", "global_batch": 8, "microbatches": 8}, "say the same twice: give one of them"),
        ({"model": "llama3-8b", "dp": 4, "num_distributed_optimizer_instances": 3}, r"must divide dp · cp = 4: got 3"),
        ({"model": "llama3-8b", "mtp_num_layers": 1, "mtp": False}, "--no-mtp has no layers for further tokens: leave out"),
        ({"model": "llama3-8b", "mtp_use_repeated_layer": True}, "is for a model that predicts further tokens, and this one"),
        ({"model": "llama3-8b", "mtp_num_layers": -1}, "mtp-num-layers"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.job(**options)


def test_the_batch_follows_from_the_microbatches() -> None:
    assert made(pp=2, dp=3).global_batch == 4 * 2 * 3
    assert made(pp=2, dp=3, microbatches=5, micro_batch=2).global_batch == 5 * 2 * 3
    assert made(pp=2, dp=3, global_batch=12).num_microbatches == 4
    assert made(pp=1).micro_batch == 1


def test_the_number_of_gpus_is_given_or_the_smallest() -> None:
    given = made(gpus=16, tp=2, pp=2)
    assert (given.layout.dp, given.gpus_assumed) == (4, 0)
    assert (made(tp=2, dp=3, pp=1).layout.num_devices, made(tp=2, dp=3, pp=1).gpus_assumed) == (6, 0)
    smallest = made(tp=2, pp=2)
    assert (smallest.layout.dp, smallest.gpus_assumed) == (1, 1)
    moe = made(model="mixtral-8x7b", ep=8, pp=1)
    assert (moe.layout.dp, moe.layout.num_devices) == (8, 8)


def test_experts_are_spread_over_tp_ranks_if_ep_does_not_divide_the_rest() -> None:
    spread = made(model="mixtral-8x7b", gpus=8, tp=4, ep=8, pp=1)
    assert spread.layout.etp == 1
    assert spread.assumed[-1].startswith(
        "etp 1: ep 8 does not divide dp 2 · cp 1, so experts are spread over the tp 4"
    )
    whole = made(model="mixtral-8x7b", gpus=8, tp=2, ep=4, pp=1)
    assert (whole.layout.etp, whole.assumed) == (None, ())
    assert made(model="mixtral-8x7b", gpus=8, tp=2, ep=4, etp=2, pp=1).layout.etp is None


def test_a_price_and_a_layer_count_replace_those_of_the_files() -> None:
    assert made(pp=1, price=2.5).cluster.price_per_gpu_hour == 2.5
    assert made(pp=1, price=0.0).cluster.price_per_gpu_hour == 0.0
    assert made(pp=1).cluster.price_per_gpu_hour is None
    assert len(made(pp=1, layers=8).model.layers) == 8


@pytest.mark.parametrize(
    ("options", "number", "repeats"),
    [
        ({}, 1, False), ({"mtp": False}, 0, False), ({"mtp_num_layers": 0}, 0, False), ({"mtp_num_layers": 3}, 3, False),
        ({"mtp_use_repeated_layer": True}, 1, True), ({"mtp_num_layers": 2, "mtp_use_repeated_layer": True}, 2, True),
    ],
)  # fmt: skip
def test_layers_for_further_tokens_are_left_out_added_or_repeated(
    options: dict[str, Any], number: int, repeats: bool
) -> None:
    model = made(model="deepseek-v3", layers=4, pp=1, **options).model
    assert (len(model.mtp), bool(model.repeats_mtp)) == (number, repeats)
    assert len(set(map(id, model.mtp))) <= 1


def test_a_dense_model_gets_copies_of_its_last_layer() -> None:
    model = made(pp=1, mtp_num_layers=2).model
    assert model.mtp == (model.layers[-1],) * 2


def test_options_are_read_into_the_execution_and_optimizer() -> None:
    own = made(
        pp=1, tp=2, dtype="float16", recompute="selective", overlap_tp="0.75,0.5", overlap_ep=0.5, launch_ms=2.0,
        compute_share="float16:0.9", offload=0.25, zero=0,
    )  # fmt: skip
    execution = own.execution
    assert (execution.dtype, execution.recompute, execution.compute_share) == ("float16", "core_attn", 0.9)
    assert (execution.hidden_tp_forward, execution.hidden_tp_backward, execution.overlap_ep) == (0.75, 0.5, 0.5)
    assert (own.launch_s, own.offload, own.optimizer.zero_stage, own.optimizer.precision) == (
        0.002,
        0.25,
        0,
        "fp16",
    )
    assert execution.sequence_parallel
    assert not made(pp=1, tp=2, sequence_parallel=False).execution.sequence_parallel
    assert (made(pp=1).optimizer.precision, made(pp=1, dtype="float32").optimizer.precision) == ("bf16", "fp32")


@pytest.mark.parametrize(("length", "sentence"), [
    (0, "--document-length must be at least 1: got 0"),
    (-5, "--document-length must be at least 1: got -5"),
    (4097, "--document-length 4097 exceeds the sequence of 4096 tokens"),
])  # fmt: skip
def test_documents_are_within_a_sequence(length: int, sentence: str) -> None:
    """Keywords and jobs of a sweep have the least values of the command line."""
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        ppsim.project(model="llama3-8b", gpus=8, seq_len=4096, document_length=length)
