"""`ppsim models` lists what there is and counts one model, by name or from a file."""

import json

import pytest

from tests.cli.running import ppsim, words_of


def test_the_list_has_every_model():
    listed = json.loads(ppsim("models", "--json").stdout)["models"]
    text = ppsim("models").stdout
    assert len(listed) > 40
    assert all(model["name"] in text and f"{model['parameters']:,}" in text for model in listed)


def test_the_full_list_has_the_source_of_each_model():
    short, full = (words_of(ppsim("models", *option).stdout) for option in ((), ("--full",)))
    source = "config.json of zai-org/GLM-5, in ai-dynamo/aiconfigurator 095f58a"
    assert source in full
    assert source not in short
    listed = json.loads(ppsim("models", "--json").stdout)["models"]
    assert next(model["source"] for model in listed if model["name"] == "glm-5") == source


def test_an_id_that_is_not_packaged_says_how_to_get_its_config():
    for command in (["models"], ["project", *PROJECT, "--model"]):
        told = words_of(ppsim(*command, "zai-org/GLM-4.5-Big", code=2).stderr)
        assert "unknown model 'zai-org/GLM-4.5-Big' (nearest: glm-4.5" in told
        assert "https://huggingface.co/zai-org/GLM-4.5-Big/raw/main/config.json" in told
        assert "hf download zai-org/GLM-4.5-Big config.json" in told


def test_one_model_is_counted_with_its_conventions_stated():
    text = words_of(ppsim("models", "deepseek-v3", "--seq-len", 4096).stdout)
    for part in ("61 of width 7168, 58 with experts; 1 for multi-token prediction", "671,026,419,200",
                 "37,552,297,472", "causal half of the scores", "6 × active parameters", "arXiv 2412.19437"):  # fmt: skip
        assert part in text


def test_flops_follow_the_sequence_length():
    at = {s: json.loads(ppsim("models", "llama3-8b", "--seq-len", s, "--json").stdout) for s in (1024, 2048)}
    more = at[2048]["training_flops_per_token"] - at[1024]["training_flops_per_token"]
    assert more == 3 * 32 * 4 * 1024 * 4096
    assert at[1024]["training_flops_per_token_6n"] == 6 * 8_030_261_248


def test_a_config_file_stands_for_a_name(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12,
                                "n_positions": 1024, "vocab_size": 50257}))  # fmt: skip
    assert json.loads(ppsim("models", path, "--json").stdout)["parameters"] == 124_439_808
    assert "shared with the output head" in ppsim("models", path).stdout


def test_a_name_is_found_as_people_write_it_and_its_kinds_of_layers_are_said():
    written = json.loads(ppsim("models", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "--json").stdout)
    assert (written["parameters"], written["recurrent_layers"], written["windowed_layers"]) == (
        31_577_940_288,
        23,
        0,
    )
    assert "23 with experts, 23 recurrent" in ppsim("models", "Nemotron-3-Nano").stdout
    assert "12 with sliding-window attention" in ppsim("models", "gpt-oss-20b").stdout


GLM = {"model_type": "glm4", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "intermediate_size": 1024, "vocab_size": 1000, "pad_token_id": 0}  # fmt: skip
PROJECT = ["--gpus", 2, "--pp", 2, "--global-batch-size", 8, "--seq-len", 256, "--cluster", "dgx-h100", "--json"]


def test_an_unknown_model_type_is_traced_and_stored(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path, stored = tmp_path / "config.json", tmp_path / "model.json"
    path.write_text(json.dumps(GLM))
    text = words_of(ppsim("models", "--trace", path, "-o", stored).stdout)
    assert "model_type glm4: traced with transformers" in text
    traced = json.loads(ppsim("project", "--model", path, *PROJECT).stdout)
    again = json.loads(ppsim("project", "--model", stored, *PROJECT).stdout)
    assert traced["assumptions"][0].startswith("model_type glm4: traced with transformers ")
    assert again["assumptions"][0] == traced["assumptions"][0]
    assert again["iteration_time_s"] == traced["iteration_time_s"]
    assert again["peak_bytes"] == traced["peak_bytes"]


def test_without_transformers_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("ppsim.api.model_traces.find_spec", lambda name: None)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GLM | {"vocab_size": 1001}))
    for command in (["models", path], ["models", "--trace", path], ["project", "--model", path, *PROJECT]):
        told = words_of(ppsim(*command, code=2).stderr)
        assert "torch and transformers" in told
        assert "pip install 'ppsim-pipeline[models]'" in told


def test_what_cannot_be_traced_is_a_sentence_and_exit_2(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    for content, words in (
        (
            {"model_type": "zaya"},
            "model.layers.0.mlp",
        ),
        ({"model_type": "vit"}, "model_type vit"),
        (GLM | {"hidden_size": -4}, "config.json: "),
        ({"model_type": "olmow"}, "transformers does not know model_type 'olmow' either"),
    ):
        path.write_text(json.dumps(content))
        for command in (["models", path], ["project", "--model", path, *PROJECT]):
            assert words in words_of(ppsim(*command, code=2).stderr)
    for command, words in (
        (["models", "-o", "m.json"], "-o is for a traced model"),
        (["models", "gpt2", "--trace", path], "leave out gpt2"),
        (["models", "--trace", tmp_path / "none.json"], "none.json"),
        (["models", "--trace", path, "-o", tmp_path / "m.txt"], "m.txt"),
    ):
        assert words in words_of(ppsim(*command, code=2).stderr)


def test_mistakes_are_a_sentence_and_exit_2(tmp_path):
    assert "did you mean llama3-8b" in ppsim("models", "llamma3-8b", code=2).stderr
    assert "--seq-len is for one model" in ppsim("models", "--seq-len", 5, code=2).stderr
    assert "sequence_length must be at least 1: got 0" in ppsim("models", "gpt2", "--seq-len", 0, code=2).stderr
    assert "no-such" in ppsim("models", tmp_path / "no-such.json", code=2).stderr
