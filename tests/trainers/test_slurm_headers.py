"""The number of GPUs of a script that Slurm starts."""

from pathlib import Path

import pytest

import ppsim
from ppsim.trainers.slurm_headers import slurm_launch

MODEL = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1024 "
    "--micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer"
)


@pytest.mark.parametrize(
    ("headers", "launch"),
    [
        (["--nodes=16", "--ntasks-per-node=4", "--gpus-per-node=4"], (16, 4)),
        (["-N 2", "--gres=gpu:h100:8", "--ntasks-per-node=1"], (2, 8)),
        (["-N4", "--gpus-per-node=a100:4"], (4, 4)),
        (["--nodes 2-4", "--gpus 16   # all"], (2, 8)),
        (["--nodes=2", "--gres=nvme:1,gpu:8"], (2, 8)),
        (["--gpus-per-node=8"], (1, 8)),
        (["--nodes=16", "--ntasks-per-node=1"], None),
        (["--nodes=$N", "--time=1:00:00"], None),
        ([], None),
    ],
)
def test_headers_give_nodes_and_gpus_per_node(headers: list[str], launch: tuple[int, int] | None) -> None:
    assert slurm_launch("".join(f"#SBATCH {one}\n" for one in headers)) == launch


@pytest.mark.parametrize(
    ("start", "gpus"),
    [
        ("srun python3", 64),
        ("srun torchrun --nproc-per-node 2 --nnodes $SLURM_NNODES", 32),
        ("torchrun --nproc-per-node=${SLURM_GPUS_ON_NODE} --nnodes=1", 4),
    ],
)
def test_a_script_with_headers_has_their_gpus_unless_its_launcher_says_others(
    tmp_path: Path, start: str, gpus: int
) -> None:
    path = tmp_path / "train.sbatch"
    path.write_text(f"#!/bin/bash\n#SBATCH --nodes=16\n#SBATCH --gpus-per-node=4\n{start} {MODEL}\n")
    config = ppsim.read_run_config(path)
    assert config.options["gpus"] == gpus
    assert not any("no number of GPUs" in one for one in config.assumed)
