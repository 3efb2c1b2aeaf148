"""Configurations of real trainers, which lie beside the checkout: nearly all are read, and their models are right."""

import tarfile
from pathlib import Path

import pytest

from ppsim.configs.read import read_run_config
from ppsim.errors import ConfigError
from ppsim.model.names import find_model
from tests.exporting.oracles import oracles


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    with tarfile.open(oracles("configs.tar.gz") / "configs.tar.gz") as files:
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
    """The others are of kinds that are not known: a hybrid with Mamba, sparse attention, one without sizes."""
    with_model = without = 0
    for file in sorted((configs / "megatron").rglob("model_config.yaml")):
        try:
            found = read_run_config(file)
        except ConfigError:
            continue  # a conversion of checkpoints, a set of validations
        if found.words.get("pp", 1) > 1:
            with_model += found.model is not None
            without += found.model is None
    assert with_model >= 97
    assert without <= 3


def test_every_decoder_of_primus_has_a_model(configs: Path) -> None:
    reasons = []
    for file in sorted((configs / "primus/examples/megatron/configs/MI300X").glob("*.yaml")):
        try:
            reasons.append(read_run_config(file).why_no_model)
        except ConfigError as error:
            reasons.append(str(error))
    others = [reason for reason in reasons if reason]
    assert (len(reasons), len(others)) == (80, 16)
    assert all("not known" in reason for reason in others)  # Mamba layers, gated delta nets
