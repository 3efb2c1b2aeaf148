"""Tables of schedules, models and clusters, and the counts of a model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api import catalogues
from ppsim.api.catalogues import count_parameters, model_counts, traced_counts
from ppsim.base.errors import ConfigError
from ppsim.model.registry import find_model


def test_a_schedule_has_its_formulas_and_its_runtimes() -> None:
    pytest.importorskip("pandas")
    table = ppsim.schedules()
    row = table.loc["1f1b"].to_dict()
    assert row["bubble"].startswith("(p - 1) * (F + I + W) + ")
    assert (row["span_bubble"], row["peak_activations"], row["messages"]) == ("", "min(p, m)", "p - 1")
    assert (row["placement"], row["least_vpp"], row["most_vpp"]) == ("loop", 1, 1)
    assert (row["splits_backward"], row["replicas"], row["slices"]) == (False, 1, 1)
    assert row["runs_on"] == ["torch", "megatron", "primus", "deepspeed", "transformer-engine"]
    assert table.loc["zbv", "bubble"] == ""
    assert table.loc["seq1f1b", ["slices", "runs_on"]].tolist() == [4, []]
    assert table.loc["dualpipe", ["replicas", "splits_backward", "least_vpp"]].tolist() == [2, True, 2]
    assert table["most_vpp"].isna()["interleaved-1f1b"]
    assert table["span_bubble"].any()


def test_a_cluster_has_its_device_and_its_domains() -> None:
    pytest.importorskip("pandas")
    row = ppsim.clusters().loc["dgx-a100"].to_dict()
    assert row["device"] == "NVIDIA A100 80GB SXM"
    assert (row["bfloat16_flops_per_s"], row["memory_bytes_per_s"]) == (312e12, 2.039e12)
    assert (row["domain_sizes"], row["link_bytes_per_s"]) == ((8, None), (300e9, 25e9))
    assert row["memory_bytes"] == 85040352461
    assert row["title"].startswith("Eight A100")
    assert row["source"].startswith("NVIDIA DGX A100")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("gpt2", {"layers": 12, "moe_layers": 0, "recurrent_layers": 0, "windowed_layers": 0, "mtp_layers": 0, "hidden_size": 768,
                  "vocab_size": 50257, "tied_embeddings": True, "sequence_length": 1024}),
        ("deepseek-v3", {"layers": 61, "moe_layers": 58, "mtp_layers": 1, "hidden_size": 7168, "tied_embeddings": False}),
        ("gpt-oss-20b", {"layers": 24, "moe_layers": 24, "windowed_layers": 12}),
        ("nemotron-h-8b", {"layers": 52, "recurrent_layers": 24}),
    ],
)  # fmt: skip
def test_layers_of_a_model_are_counted_by_kind(name: str, counts: dict[str, Any]) -> None:
    model = find_model(name)
    counted = model_counts(name)
    assert {key: counted[key] for key in counts} == counts
    assert (counted["name"], counted["source"], counted["parameters"]) == (name, model.source, model.parameters)
    assert counted["training_flops_per_token"] == model.training_flops(model.sequence_length)
    assert "encoder_layers" not in counted


def test_flops_are_counted_at_the_given_length() -> None:
    model = find_model("gpt2")
    counted = count_parameters(model, "mine", 333)
    assert counted["sequence_length"] == 333
    assert counted["training_flops_per_token"] == model.training_flops(333)
    assert counted["training_flops_per_token_causal"] == model.training_flops(333, causal=True)
    assert counted["training_flops_per_token_6n"] == 6 * model.active_parameters
    with pytest.raises(ConfigError, match="at least 1"):
        count_parameters(model, "mine", 0)


def test_encoders_are_summed() -> None:
    encoders = [
        SimpleNamespace(layers=range(3), parameters=10, tokens=4),
        SimpleNamespace(layers=range(5), parameters=20, tokens=6),
    ]
    model: Any = SimpleNamespace(encoders=encoders)
    assert catalogues._encoder_counts(model) == {
        "encoder_layers": 8,
        "encoder_parameters": 30,
        "encoder_tokens": 10,
    }


def test_a_trace_is_counted_and_written_if_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogues, "trace", lambda config: {"of": config})
    monkeypatch.setattr(catalogues, "model_from", lambda data, source: (data, source))
    monkeypatch.setattr(catalogues, "count_parameters", lambda *given: given)
    path = tmp_path / "trace.json"
    counted = (({"of": "c.json"}, "c.json"), "c.json", 64)
    assert traced_counts("c.json", None, 64) == counted  # type: ignore[comparison-overlap]
    assert not path.exists()
    assert traced_counts("c.json", str(path), 64) == counted  # type: ignore[comparison-overlap]
    assert json.loads(path.read_text()) == {"of": "c.json"}
