"""Frozen weights and adapters: the parameters with gradients are those of Megatron-core's model on a CPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppsim.model.config import model_from
from ppsim.model.fine_tuning import fine_tuning_of, freeze_of
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.parallel.sizes import ParallelSizes
from tests.trainers.trainer_code import require_megatron

pytestmark = pytest.mark.oracle
DENSE = {
    "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 96, "vocab_size": 256, "num_hidden_layers": 3, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = DENSE | {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "mlp_only_layers": [0],
}  # fmt: skip
"""The models of megatron_trained.py, as config.json."""


def case(*modules: str, rank: int = 0, freeze: str = "", experts: bool = False) -> dict[str, Any]:
    return {"modules": modules, "rank": rank, "freeze": freeze.split("+") if freeze else [], "experts": experts}


CASES = [
    case("linear_qkv", rank=8),
    case("linear_qkv", "linear_proj", rank=4),
    case("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", rank=16),
    case(freeze="embedding"),
    case(freeze="embedding+attention"),
    case(freeze="mlp+norms"),
    case(freeze="head+layers@0-1"),
    case(freeze="embedding+layers@1"),
    case(freeze="experts", experts=True),
    case(freeze="router+mlp+embedding", experts=True),
    case(freeze="attention+experts+norms", experts=True),
    case("linear_qkv", "linear_proj", rank=8, experts=True),
]


@pytest.fixture(scope="module")
def built() -> list[dict[str, int]]:
    require_megatron()
    script = Path(__file__).with_name("megatron_trained.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script],
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, int]] = json.loads(done.stdout)
    return found


def name_of(number: int) -> str:
    given = CASES[number]
    return "+".join([*given["modules"], *given["freeze"]])


@pytest.mark.parametrize("number", range(len(CASES)), ids=name_of)
def test_trained_and_frozen_parameters_are_those_of_megatron_core(number: int, built: list[dict[str, int]]) -> None:
    given = CASES[number]
    model = model_from(EXPERTS if given["experts"] else DENSE)
    lora = f"{given['rank']}:{'+'.join(given['modules'])}" if given["modules"] else ""
    tuned = model.with_fine_tuning(fine_tuning_of(lora, freeze_of("+".join(given["freeze"]))))
    held = held_parameters(tuned, stages_of(tuned, [3]), ParallelSizes())
    assert held.trained + held.trained_expert == built[number]["trained"]
    assert held.frozen + held.frozen_expert == built[number]["frozen"]
