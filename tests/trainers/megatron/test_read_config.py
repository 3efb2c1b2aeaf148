"""Megatron-LM's options: values that ppsim has under another name."""

import pytest

from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.read_config import from_megatron

MODEL = {
    "num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 512, "num_attention_heads": 4, "vocab_size": 1000,
    "seq_length": 512, "micro_batch_size": 1, "global_batch_size": 8, "use_distributed_optimizer": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "in_16_bits"),
    [
        ({"grad_reduce_in_fp32": True}, False),
        ({"grad_reduce_in_fp32": False}, True),
        ({"grad_reduce_in_bf16": True}, True),
    ],
)
def test_gradients_reduced_in_32_bits_are_not_reduced_in_16(given: dict[str, bool], in_16_bits: bool) -> None:
    found = from_megatron(Arguments({**MODEL, **given}, "here", given), "Megatron-LM")
    assert found.options["grad_reduce_in_bf16"] is in_16_bits


def test_a_layout_that_is_a_number_is_read_as_text_and_refused_later() -> None:
    found = from_megatron(Arguments({**MODEL, "pipeline_model_parallel_layout": 7}, "here"))
    assert found.options["split"] == "7"


def test_the_size_of_gradient_buckets_is_read() -> None:
    found = from_megatron(Arguments({**MODEL, "ddp_bucket_size": 1000}, "here", {}), "Megatron-LM")
    assert found.options["bucket_size"] == 1000
