"""Names of models: which spellings are one, and what is no name."""

from pathlib import Path

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import registry
from ppsim.model.registry import aliases, find_model, gpt, is_id_of_model, known_name, plain_model, read_model


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Llama3-8B", "llama38b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama318b"),
        ("Meta-Llama-3-8B", "llama38b"),
        ("nvidia/Nemotron__3 _5-x", "nemotron35x"),
        ("nvidia-thing", "thing"),
        ("my-nvidia-thing", "mynvidiathing"),
        ("a/b/c-d", "cd"),
        ("gpt3-1.3b", "gpt31.3b"),
        ("gpt3-13b", "gpt313b"),
        ("qwen2.5-0.5b", "qwen250.5b"),
        ("x-1.5m", "x1.5m"),
        ("x-1.5me", "x15me"),
        *((f"x-{end}", "x") for end in (
            "base", "instruct", "chat", "it", "pt", "hf", "think", "thinking", "reasoning", "sft", "rl", "preview",
            "pretrained", "bf16", "fp16", "fp8", "nvfp4", "mxfp4", "128k", "2507", "v0.3",
        )),
        ("x-base-instruct-2507", "x"),
        ("x-base-8b", "xbase8b"),
        ("x-25071", "x25071"),
        ("x-250", "x250"),
        ("xbase", "xbase"),
        ("x-v1.3", "xv13"),
    ],
)  # fmt: skip
def test_a_name_without_what_does_not_describe_sizes(name: str, plain: str) -> None:
    assert plain_model(name) == plain


def test_long_names_are_shortened() -> None:
    assert len(plain_model("x" * 10_000)) == registry.LONGEST_NAME


def test_a_gpt_has_the_sizes_of_its_arguments() -> None:
    model = gpt(3, 96, 4, vocab=1001, sequence_length=77)
    assert (len(model.layers), model.hidden_size, model.layers[0].attention.num_heads) == (3, 96, 4)
    assert (model.vocab_size, model.source) == (1001, "")
    assert model.parameters == 1001 * 96 + 77 * 96 + 3 * (12 * 96**2 + 13 * 96) + 2 * 96
    usual = gpt(3, 96, 4)
    assert (usual.vocab_size, usual.parameters - model.parameters) == (50257, (49256 + 2048 - 77) * 96)


def test_every_alias_is_of_a_model_and_every_name_its_own() -> None:
    assert set(aliases().values()) <= set(registry.NAMES)
    assert not aliases().keys() & set(registry.NAMES)
    for name in registry.NAMES:
        assert known_name(name) == name
    for alias, name in aliases().items():
        assert known_name(alias) == name


def test_a_module_has_names_and_no_other_computed_attributes() -> None:
    assert "llama3-8b" in registry.NAMES
    with pytest.raises(AttributeError, match="has no attribute NAME"):
        _ = registry.NAME


@pytest.mark.parametrize(
    ("text", "is_id"),
    [
        ("meta-llama/Llama-3.1-8B", True), ("Llama-3.1-8B", False), ("a/meta-llama/Llama-3.1-8B", False),
        ("meta-llama/Llama-9", False),
    ],
)  # fmt: skip
def test_an_id_is_an_organisation_and_a_model(text: str, is_id: bool) -> None:
    assert is_id_of_model(text) == is_id


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("llama3-9b", r"unknown model 'llama3-9b'.*\(or give the path of a config.json\)"),
        (
            "org/llama3-9b",
            "unknown model 'org/llama3-9b' .*https://huggingface.co/org/llama3-9b/raw/main/config.json",
        ),
        ("./llama3-8b", "llama3-8b"),
        ("a/b/llama3-8b", "llama3-8b"),
        ("llama3-8b.json", "llama3-8b.json"),
    ],
)
def test_an_unknown_name_and_a_missing_file_are_errors(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_model(name)


def test_a_file_is_read_and_a_folder_of_no_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = '{"model_type": "gpt2", "n_layer": 3, "n_embd": 96, "n_head": 4, "vocab_size": 1001, "n_positions": 77}'
    for name in ("a.json", "plain"):
        Path(name).write_text(sizes)
        for path in (name, f"./{name}", tmp_path / name):
            assert read_model(path).parameters == gpt(3, 96, 4, vocab=1001, sequence_length=77).parameters
    Path("folder").mkdir()
    Path("llama3-8b").mkdir()
    with pytest.raises(ConfigError, match=r"model .folder. is a folder: give the path .* folder/config\.json"):
        read_model("folder")
    assert read_model("llama3-8b") is find_model("llama3-8b")


def test_a_model_has_the_norms_and_the_source_of_its_row() -> None:
    for name, (_, source, num_norms) in registry._told().items():
        model = find_model(name)
        assert model.source == source
        if num_norms is not None:
            assert {layer.num_norms for layer in model.layers} == {num_norms}
