"""Configurations of real trainers, which lie beside the checkout: nearly all are read, and their models are right."""

import tarfile
from pathlib import Path

import pytest

from ppsim.errors import ConfigError
from ppsim.model.registry import find_model
from ppsim.trainers.read_config import read_run_config
from tests.trainers.trainer_code import check_file


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    with tarfile.open(check_file("configs.tar.gz")) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("llama2_7B-BF16", "llama2-7b"),
        ("llama2_70B-FP8", "llama2-70b"),
        ("llama3.1_8B-BF16", "llama3-8b"),
        ("llama3.1_405B-BF16", "llama3-405b"),
        ("mixtral_8x7B_v0.1-BF16", "mixtral-8x7b"),
        ("mixtral_8x22B_v0.1-BF16", "mixtral-8x22b"),
        ("qwen3_30B_A3B-BF16", "qwen3-30b-a3b"),
        ("qwen3_235B_A22B-BF16", "qwen3-235b-a22b"),
    ],
)
def test_parameters_are_those_published(configs: Path, file: str, model: str) -> None:
    found = read_run_config(configs / f"primus/examples/megatron/configs/MI300X/{file}-pretrain.yaml")
    assert found.model is not None
    assert found.model.parameters == find_model(model).parameters


def test_nearly_all_of_megatrons_own_tests_with_pipelining_have_a_model(configs: Path) -> None:
    """The other one states no sizes."""
    with_model = without = 0
    for file in sorted((configs / "megatron").rglob("model_config.yaml")):
        try:
            found = read_run_config(file)
        except ConfigError:
            continue  # a conversion of checkpoints, a set of validations
        if found.options.get("pp", 1) > 1:
            with_model += found.model is not None
            without += found.model is None
    assert (with_model, without) == (99, 1)


def test_every_decoder_of_primus_has_a_model(configs: Path) -> None:
    files = sorted((configs / "primus/examples/megatron/configs/MI300X").glob("*.yaml"))
    found = [read_run_config(file) for file in files]
    assert len(found) == 80
    assert not [one.why_no_model for one in found if one.model is None]


def test_every_torchtitan_experiment_of_primus_has_a_model(configs: Path) -> None:
    files = sorted((configs / "primus/examples/torchtitan/configs/MI300X").glob("*.yaml"))
    found = [read_run_config(file) for file in files]
    assert len(found) == 25
    assert not [one.why_no_model for one in found if one.model is None]


@pytest.mark.parametrize(
    ("case", "model"),
    [
        ("nemotron/nemotron3_super_release_gb200", "nemotron-3-super-120b-a12b"),
        ("nemotron/nemotron3_5_lightning_nightly_tp1_pp1_cp1_ep8_dgx_gb200", "nemotron-3-nano-30b-a3b"),
    ],
)
def test_layers_of_nemotron_are_those_of_the_model_by_name(configs: Path, case: str, model: str) -> None:
    """As Megatron-LM's own tests have them; they train two further tokens where the release has one layer or none."""
    folder = configs / "megatron/tests/functional_tests/test_cases" / case
    found = read_run_config(folder / "model_config.yaml").model
    assert found is not None
    assert found.layers == find_model(model).layers
    assert len(found.mtp) == 2


def test_a_pattern_says_where_stages_end(configs: Path) -> None:
    case = "hybrid/hybrid_mr_mcore_te_tp1_pp2_vpp2_cp1_dgx_a100_1N8G"
    found = read_run_config(configs / f"megatron/tests/functional_tests/test_cases/{case}/model_config.yaml")
    assert (found.options["pp"], found.options["vpp"]) == (2, 2)
    stages = ["M-M-M-M*-M-", "M-M-M*-M-M-", "M-M*-M-M-M-", "M*-M-M-M-M-"]
    assert found.options["split"] == "E" + "|".join("t" * len(stage) for stage in stages) + "L"
