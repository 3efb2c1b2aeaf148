"""Chunks of Megatron-core's own model, measured with a fake process group: what they hold, and what they answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.costs.chunk_costs import ChunkNumbers
from ppsim.model.shapes import LayerShape, ModelShape, layer_parameters
from tests.trainers.trainer_code import require_megatron

pytestmark = pytest.mark.oracle
HIDDEN, VOCABULARY = 32, 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("megatron")


@pytest.fixture(scope="module")
def found(folder):
    require_megatron()
    script = Path(__file__).with_name("megatron_chunks.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, folder], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def chunk(contents, numbers):
    spent = {"median": 1.0}
    halves = {} if contents[0] == "E" else {"backward_input_s": spent, "backward_weight_s": spent}
    return {"contents": contents, "backward_input_s": None, "backward_weight_s": None, **halves, **numbers}


def test_each_different_chunk_of_the_pipelines_is_measured_once(found):
    """[2, 2, 2, 2] in a loop of 2 ranks, [3, 5] and [1, 3, 3, 1]; tt and ttt tell a layer alone."""
    assert sorted(found["chunks"]) == sorted(["Ett", "tt", "ttL", "Ettt", "tttttL", "Et", "ttt", "tL"])
    assert sorted(found["layout"]) == sorted(["E", "ttt", "tttt", "tL"])
    assert sorted(found["shard"]) == sorted(["Ett", "ttL", "t", "tttt"])


@pytest.mark.parametrize("contents", ["Ett", "ttL", "Ettt", "tttttL", "Et", "tL"])
def test_what_a_chunk_holds_is_what_the_others_say_it_would(found, contents):
    """Bytes, parameters and FLOPs of Megatron-core's chunks are made up exactly: nothing but time is a fit."""
    others = [chunk(one, numbers) for one, numbers in found["chunks"].items() if one != contents]
    made_up = ChunkNumbers(others)
    assert not made_up.is_measured(contents)
    for name in ("activation_bytes", "activation_bytes_kept_for_weight", "parameters", "forward_flops"):
        assert made_up.number(name, contents) == pytest.approx(found["chunks"][contents][name], rel=1e-9), name


def test_chunks_have_the_parameters_of_the_layers_and_ends(found):
    """E is the vocabulary times the hidden size, L that and a norm; half a layer's linear weights with tp 2."""
    whole, norm = VOCABULARY * HIDDEN, 2 * HIDDEN
    gpt = LayerShape("gpt", HIDDEN, 4, 4, HIDDEN // 4, 4 * HIDDEN)
    layer = layer_parameters(gpt)
    assert found["chunks"]["Ett"]["parameters"] == whole + 2 * layer
    assert found["chunks"]["ttL"]["parameters"] == 2 * layer + norm + whole
    assert found["layout"]["E"]["parameters"] == whole
    llama = ModelShape(LayerShape("llama", HIDDEN, 4, 4, HIDDEN // 4, 4 * HIDDEN), 4, VOCABULARY, 32).shard(tp=2)
    assert found["shard"]["t"]["parameters"] == layer_parameters(llama.layer)
    assert found["shard"]["Ett"]["parameters"] == whole // 2 + 2 * layer_parameters(llama.layer)


def test_the_configuration_and_the_process_are_as_before(found):
    assert found["restored"]


def test_layers_of_two_kinds_are_told_apart_and_16_bit_is_as_trained(found, folder):
    assert (found["kinds"], found["dtype"]) == ("tuuuuu", "bfloat16")
    projected = ppsim.project(profile=folder / "mixed.json", pp=2, vpp=1, microbatches=4)
    assert sum(projected.split) == 6
    with pytest.raises(ConfigError, match="layers of 2 kinds"):
        ppsim.project(profile=folder / "mixed.json", pp=2, layers=12)


def test_a_profile_of_chunks_answers_every_schedule_layout_batch_and_channel(found, folder):
    path = folder / "chunks.json"
    rows = ppsim.project_all(profile=path, pp=2, microbatches=4)
    names = {row.plan.schedule for row in rows.projections}
    assert {"1f1b", "interleaved-1f1b", "zb-h1", "zbv", "dualpipev"} <= names
    content = json.loads(path.read_text())
    own = {one["contents"]: one["forward_s"]["median"] for one in content["chunks"]}
    made = ppsim.project(profile=path, pp=4, vpp=1, microbatches=8, split=[1, 3, 3, 1], channel="edge")
    assert list(made.costs.forward_s) == [own["Et"], own["ttt"], own["ttt"], own["tL"]]
    deep = ppsim.project(profile=path, pp=4, vpp=2, layers=48, microbatches=8, split="even")
    assert sum(deep.split) == 48


def test_what_cannot_be_measured_is_said_in_a_sentence(found):
    assert "built from the configuration that it is given" in found["stubborn"]
    assert "a process group that sends is there already" in found["sends"]
