"""Megatron-LM's options on the model: vocabularies of tokenizers."""

from typing import Any

import pytest

from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.read_model import model_of

MODEL = {"num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 512, "num_attention_heads": 4, "seq_length": 512}


def read(**options: Any) -> tuple[int, str]:
    """Return the size of the vocabulary and the sentences on assumed values."""
    arguments = Arguments({**MODEL, **options}, "here", options)
    return model_of(arguments).vocab_size, " ".join(arguments.assumed)


@pytest.mark.parametrize(
    ("tokenizer", "model"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("meta-llama/Llama-3.1-8B", "llama3-8b"),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama4-scout"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("deepseek-ai/DeepSeek-V2", "deepseek-v2"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen3.5-27B", "qwen3.5-27b"),
        ("moonshotai/Kimi-K2-Base", "kimi-k2"),
        ("unsloth/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_a_tokenizer_has_the_vocabulary_of_its_model(tokenizer: str, model: str) -> None:
    size, assumed = read(tokenizer_model=tokenizer)
    assert size == find_model(model).vocab_size
    assert f"{size:,} rows" in assumed


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"tokenizer_type": "GPT2BPETokenizer"}, 50257),
        ({"merge_file": "merges.txt"}, 50257),
        ({"tokenizer_type": "Llama2Tokenizer"}, 32000),
        ({"tokenizer_type": "Llama3Tokenizer"}, 128256),
        ({"tokenizer_type": "BertWordPieceCase"}, 28996),  # of bert-base-cased
        ({"tokenizer_type": "BertWordPieceLowerCase"}, 30522),  # of bert-base-uncased
        (
            {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "THUDM/glm-4-9b"},
            151552,
        ),  # its config.json
        ({}, 128256),
    ],
)
def test_a_type_of_tokenizer_or_none_has_a_vocabulary(options: dict[str, str], size: int) -> None:
    found, assumed = read(**options)
    assert found == size
    assert ("give vocab-size" in assumed) == (not options)


@pytest.mark.parametrize("name", ["vocab_size", "padded_vocab_size"])
def test_a_size_that_is_given_is_taken(name: str) -> None:
    assert read(tokenizer_model="Qwen/Qwen3-8B", **{name: 1000}) == (1000, "")
