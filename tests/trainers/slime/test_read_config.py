"""slime's actor trains with Megatron-LM's arguments."""

from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError

SCRIPT = """#!/bin/bash
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/small.sh"
WANDB_ARGS=(
   # --use-wandb
)
ray start --head --num-gpus 8
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 \\
  ${MODEL_ARGS[@]} --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 \\
  --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216 --sglang-ep-size 8 ${WANDB_ARGS[@]}
"""


def test_the_actor_is_read_and_rollouts_are_not(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text(
        "MODEL_ARGS=(--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 1024 --swiglu)\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    config = ppsim.read_run_config(path)
    assert config.trainer == "slime"
    assert (config.options["gpus"], config.options["tp"], config.options["global_batch"]) == (16, 2, 256)
    assert not config.ignored
    with pytest.raises(ConfigError, match=r"the length of sequences is that of the responses.*: give --seq-len"):
        ppsim.project(run_config=path)
    assert ppsim.project(run_config=path, seq_len=2048).plan.job.length == 2048
