"""The number of GPUs of a launch, and the options of its program."""

from pathlib import Path

import pytest

import ppsim
from ppsim.trainers.launchers import Command, slurm_headers, slurm_launch, slurm_variables

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
    assert slurm_launch(slurm_headers("".join(f"#SBATCH {one}\n" for one in headers))) == launch


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


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("torchrun --nproc-per-node=8 --nnodes 2 t.py", ("2", "8")),
        ("python -m torch.distributed.run --nproc_per_node 4 t.py", (None, "4")),
        ("srun -N4 --ntasks-per-node=8 python t.py", ("4", "8")),
        ("srun -N 2 -n 16 python -u t.py", ("2", "8")),
        ("srun -N 4 torchrun --nproc_per_node 8 --nnodes 4 t.py", ("4", "8")),
        ("mpirun -np 16 --allow-run-as-root python t.py", ("1", "16")),
        ("deepspeed --num_gpus 8 --num_nodes=2 t.py", ("2", "8")),
        ("accelerate launch --num_processes 16 --num_machines 2 t.py", ("2", "8")),
        ("numactl --interleave all torchrun --nproc_per_node 8 -m torchtitan.train", (None, "8")),
        ("mpirun -np 16 numactl -m 4-7 -N 4-7 python t.py", ("1", "16")),
        ("python t.py", (None, None)),
    ],
)
def test_the_innermost_launcher_with_a_number_counts(words: str, gpus: tuple[str | None, str | None]) -> None:
    options = Command(tuple(words.split()), {}).options
    assert (options.get("--nnodes"), options.get("--nproc_per_node")) == gpus


def test_options_of_the_launcher_are_not_options_of_the_program() -> None:
    command = Command(("srun", "--gpus", "4", "ray", "job", "submit", "--", "python3", "train.py", "--l", "2"), {})
    assert command.program == "train.py"
    assert command.options == {"--nnodes": "1", "--nproc_per_node": "4", "--l": "2"}


@pytest.mark.parametrize(
    ("program", "trains"),
    [("pretrain_gpt.py", True), ("main.py", True), ("tools/train_tokenizer.py", True), ("tools/convert.py", False),
     ("run_text_generation_server.py", False), ("evaluate.py", False), ("a/gpt_inference.py", False)],
)  # fmt: skip
def test_programs_that_do_not_train_are_known_by_their_name(program: str, trains: bool) -> None:
    assert Command(("python", program), {}).trains is trains


def test_slurm_sets_variables_from_the_headers() -> None:
    headers = slurm_headers("#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=1\n")
    assert slurm_variables(headers) == {
        "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "8",
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4",
    }  # fmt: skip
    assert slurm_variables(slurm_headers("#SBATCH --nodes=2\n")) == {
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
    }
