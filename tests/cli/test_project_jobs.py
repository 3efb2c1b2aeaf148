"""`project --model … --cluster …`: the page, its JSON, and a sentence for everything that cannot be."""

import json
import re

import pytest

from tests.cli.running import ppsim, words_of
from tests.machine.test_cluster_files import OWN

SMALL = ("--model", "llama3-8b", "--cluster", "dgx-h100", "--pp", 4, "--tp", 2, "--gpus", 16)


def test_the_page_says_the_answer_the_fit_the_budget_the_bottleneck_and_the_advice(advice):
    text = ppsim("project", *SMALL, "--vpp", 2, "--global-batch-size", 64, "--tokens", 1e12, "--full").stdout
    assert max(map(len, text.splitlines())) <= 100
    words = words_of(text)
    for part in (
        "interleaved-1f1b pp 4 vpp 2 32 microbatches", "90 % interval", "tokens/s per GPU on 16 GPUs", "MFU", "training",
        " days", "fits: rank 0 needs ", "GiB, 74.2 GiB usable", "where an iteration goes", "model FLOPs at peak",
        "TP communication", "pipeline bubble", "optimizer", "bottleneck compute of stage",
        "gain if 1 % faster compute of all stages", "try next", "P2P serialization", "assumed costs: estimated from "
        "specifications and measured kernels, NVIDIA H100 SXM (dgx-h100)", "layout: tp 2, sequence parallel, cp 1, ep 1, dp 2, pp 4",
    ):  # fmt: skip
        assert part in words, part


def test_json_has_the_documented_keys_of_the_answer():
    found = json.loads(ppsim("project", *SMALL, "--global-batch-size", 64, "--json").stdout)
    assert found["job"]["dp"] == 2
    low, high = found["iteration_time_interval_s"]
    assert low < found["iteration_time_s"] < high
    assert sum(found["time_breakdown_s"].values()) == pytest.approx(found["iteration_time_s"])
    assert sum(found["peak_components_bytes"].values()) == pytest.approx(found["memory_fit"]["peak_bytes"])
    assert found["memory_fit"]["headroom_bytes"] == pytest.approx(
        found["memory_fit"]["limit_bytes"] - found["memory_fit"]["peak_bytes"]
    )
    assert found["bottleneck"] in found["gain_per_percent"]
    assert found["training_days"] is None
    assert "".join(found["pipeline_layout"]) == "E" + "t" * 32 + "L"
    assert set(found["exposed_s"]) == {
        "gather",
        "reduce",
        "share",
        "norm",
        "optimizer",
        "rest",
        "slow rank",
        "stragglers",
    }


def test_a_layout_string_is_taken_and_said_again():
    found = json.loads(ppsim("project", *SMALL, "--split", "Et*7|t*9|t*9|t*7L", "--json").stdout)
    assert found["layers_per_stage"] == [7, 9, 9, 7]
    assert found["pipeline_layout"] == ["E" + 7 * "t", 9 * "t", 9 * "t", 7 * "t" + "L"]
    numbers = json.loads(ppsim("project", *SMALL, "--split", "7,9,9,7", "--json").stdout)
    assert numbers["step_time_s"] == found["step_time_s"]


def test_a_profile_takes_a_layout_string_too():
    found = json.loads(ppsim("project", "--pp", 2, "--split", "Et*14|t*16L", "--json").stdout)
    assert found["layers_per_stage"] == [14, 16]
    text = ppsim("project", "--pp", 2, "--split", "Et*14|t*16mL", code=2).stderr
    assert "a profile has no layers of multi-token prediction" in text


def test_a_profile_beside_a_model_is_used_where_it_can_be():
    text = words_of(ppsim("project", *SMALL, "--profile", "zb-a100-6.2b").stdout)
    assert "estimated from specifications (the profile does not say what sizes its layer has)" in text


@pytest.mark.long
def test_every_schedule_can_be_asked_of_a_job():
    found = json.loads(ppsim("project", *SMALL, "--schedule", "all", "--json").stdout)
    assert len(found["projections"]) > 12


BAD = {
    "gpus": (("--model", "llama3-8b", "--pp", 3, "--gpus", 16), "does not divide 16 devices (nearest: pp 2 or 4)"),
    "dp": (
        ("--model", "llama3-8b", "--pp", 4, "--gpus", 16, "--dp", 3),
        "takes 12 devices, but there are 16 (nearest: dp 4)",
    ),
    "heads": (("--model", "llama3-8b", "--pp", 2, "--tp", 3), "got 3 with 32"),
    "experts": (("--model", "mixtral-8x7b", "--pp", 2, "--ep", 3, "--dp", 3), "got 3 with 8"),
    "ep": (("--model", "mixtral-8x7b", "--pp", 2, "--ep", 4, "--dp", 6), "ep must divide dp · cp"),
    "batch": (
        (*SMALL, "--global-batch-size", 63),
        "1 · 2: got 63 (nearest: 62 or 64)",
    ),
    "no batch": ((*SMALL, "--global-batch-size", 0), "at least 1"),
    "sequence": ((*SMALL, "--seq-len", 0), "sequence length"),
    "straggler": ((*SMALL, "--straggler", "nonsense"), "--straggler is 'nonsense': write it as RANK:FACTOR, as 3:1.2"),
    "straggler rank": ((*SMALL, "--straggler", "9:1.2"), "a straggler is one of the ranks 0 to 3: got 9"),
    "straggler factor": ((*SMALL, "--straggler", "1:-2"), "at least 1 × as long: got -2"),
    "straggler nan": ((*SMALL, "--straggler", "1:nan"), "at least 1 × as long: got nan"),
    "model": (("--model", "llama3-8c", "--pp", 2), "did you mean llama3-8b"),
    "cluster": (("--model", "llama3-8b", "--pp", 2, "--cluster", "dgx-h10"), "dgx-h100"),
    "no model": (("--pp", 2, "--gpus", 8), "--gpus is for a --model on a --cluster"),
    "transfer": ((*SMALL, "--transfer-ms", 1), "--transfer-ms is for one pipeline of a profile"),
    "tokens": ((*SMALL, "--tokens", -1), "--tokens must be more than 0: got -1"),
    "split": ((*SMALL, "--split", "8,8,8"), "the split has 3 entries, but there are 4 stages"),
    "layout": ((*SMALL, "--split", "Et*8|t*8|t*8|t*9L"), "the layout has 33 layers, but the model has 32"),
    "twice": (
        (*SMALL, "--global-batch-size", 64, "--num-microbatches", 8), "--global-batch-size and --num-microbatches say the same twice"
    ),
    "layers": (("--model", "llama3-8b", "--pp", 64), "32 layers are too few for 64 stages"),
    "dtype": (
        ("--model", "llama3-8b", "--pp", 2, "--cluster", "dgx-a100", "--dtype", "float8"), "has no float8"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_in_a_sentence(name):
    arguments, words = BAD[name]
    text = words_of(ppsim("project", *arguments, code=2).stderr)
    assert words in text
    assert text.count("Error") <= 1


def test_a_models_file_with_an_unknown_field_that_counts_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Nobody"], "hidden_sizes": 3}))
    text = ppsim("project", "--model", tmp_path / "config.json", "--pp", 2, code=2).stderr
    assert "config.json" in text


def test_a_cluster_whose_link_is_slower_than_nothing_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace("bytes_per_s = 25e9", "bytes_per_s = -25e9"))
    text = words_of(ppsim("project", "--model", "llama3-8b", "--cluster", path, "--pp", 2, code=2).stderr)
    assert "tiers[1].link.bytes_per_s" in text


def test_what_fits_nowhere_says_by_how_much_and_what_would(advice):
    plan = ["project", "--model", "llama3-405b", "--pp", 4, "--gpus", 4, "--memory-limit", "80GiB"]
    text = words_of(ppsim(*plan, code=1).stdout)
    assert re.match(r"DOES NOT FIT: rank \d needs [\d.]+ TiB, 80.0 GiB usable", text)
    assert "try next no change that was tried makes it fit" in text
