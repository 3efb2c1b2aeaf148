"""Times given by hand have no model: no throughput, MFU or memory verdict, in any form of the result."""

import json
import re

import pytest

import ppsim
from ppsim.errors import ConfigError
from tests.cli.running import ppsim as typed

TIMES = {"forward_ms": 10, "backward_input_ms": 10, "backward_weight_ms": 8}
LINE = (
    "project",
    "--pp",
    "8",
    *(word for name, ms in TIMES.items() for word in (f"--{name.replace('_', '-')}", ms)),
)
OF_A_MODEL = ("tokens/s", "MFU ", "GPT", "A100", "fullest")


def test_without_a_model_nothing_is_said_of_throughput_mfu_device_and_memory():
    text = typed(*LINE).stdout.replace("no --model: throughput, MFU and memory are not known", "")
    text = text.replace("--model for throughput, MFU and memory", "")
    assert text.startswith("times given by hand on 8 ranks")
    assert not [word for word in OF_A_MODEL if word in text]


def test_without_a_model_json_has_null_for_everything_of_a_model():
    found = json.loads(typed(*LINE, "--json").stdout)
    names = (
        "tokens_per_s", "tokens_per_s_per_gpu", "model_flops_utilization", "peak_flops_per_s", "layers_per_stage",
        "pipeline_layout", "memory_error", "peak_components_bytes", "reserved_bytes", "memory_fit", "training_days",
        "cost_per_step", "training_gpu_hours", "training_cost",
    )  # fmt: skip
    assert {name: found[name] for name in names} == dict.fromkeys(names)
    assert "profile" not in found
    assert found["iteration_time_s"] > 0


@pytest.mark.parametrize("suffix", [".html", ".svg", ".json", ".csv"])
def test_without_a_model_no_file_names_the_default_profile(suffix, tmp_path):
    typed(*LINE, "-o", tmp_path / f"by_hand{suffix}")
    text = (tmp_path / f"by_hand{suffix}").read_text()
    assert not [word for word in ("tokens/s", "A100", "zb-a100") if word in text]


def test_a_list_of_schedules_has_no_column_of_throughput_or_peak():
    text = typed(*LINE, "--schedule", "1f1b,zb-h1,seq1f1b").stdout
    assert "tokens/s" not in text
    assert "peak" not in text
    frame = ppsim.project_all(pp=2, schedules=["1f1b", "zb-h1"], **TIMES).to_frame()
    assert frame[["tokens_per_s", "model_flops_utilization", "peak_bytes"]].isna().all(axis=None)


def test_the_card_of_a_notebook_and_the_line_of_a_result_have_no_throughput_either():
    made = ppsim.project(pp=4, **TIMES)
    card = re.sub('base64,[^\'"]*|srcdoc="[^"]*"', "", made._repr_html_()).replace("throughput, MFU and memory", "")
    assert not [word for word in (*OF_A_MODEL, "throughput", "peak of a rank") if word in card]
    assert "tokens/s" not in repr(made)
    assert made.tokens_per_s is None


def test_a_projection_by_hand_can_be_written_and_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed(*LINE, "-o", "by_hand.json")
    typed("figure", "timeline", "by_hand.json", "-o", "by_hand.svg")
    assert (
        "the timeline holds no bytes"
        in typed("figure", "memory", "by_hand.json", "-o", "memory.svg", code=2).stderr
    )


def test_given_activations_are_said_to_be_activations_only():
    text = typed(*LINE, "--activation-memory", "2GiB", "--memory-limit", "80GiB").stdout
    assert "\nmemory         16.0 of 80.0 GiB for activations alone (rank 0)\n" in text
    text = typed(*LINE, "--activation-memory", "2GiB", "--memory-limit", "10GiB", code=1).stdout
    assert text.startswith("DOES NOT FIT: rank 0 needs 16.0 GiB for activations alone, 10.0 GiB usable\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seq_len": 4096}, "--seq-len 4096 is of a model, and times given by hand have none"),
        ({"memory_limit": "80GiB"}, "--memory-limit 80GiB cannot be checked"),
        ({"split": "even"}, "--split even is of a model"),
        ({"lengths": [1, 2]}, "--sequence-lengths .* is of a model"),
    ],
)
def test_options_of_a_model_are_refused_beside_times_given_by_hand(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ppsim.project(pp=4, **TIMES, **options)


def test_days_need_a_model():
    assert "--tokens needs a model" in typed(*LINE, "--tokens", "1e9", code=2).stderr


def test_a_model_or_a_profile_keeps_its_throughput_and_memory():
    for words in ({"model": "gpt3-1.3b"}, {"profile": "zb-a100-6.2b"}):
        made = ppsim.project(pp=4, **TIMES, **words)
        assert made.tokens_per_s
        assert made.model_flops_utilization
        assert made.verdict
