"""The number of GPUs of a launch, and the options of its program."""

from pathlib import Path

import pytest

import ppsim
from ppsim.trainers.launchers import (
    Command,
    is_relevant,
    joined,
    options_of,
    slurm_headers,
    slurm_launch,
    slurm_variables,
)

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
        (["--nodes=2", "--ntasks=6"], (2, 3)),
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
        ("deepspeed --num_gpus 8 t.py", ("1", "8")),
        ("accelerate launch --num_processes 6 --num_machines 0 t.py", ("1", "6")),
        ("accelerate launch --num_processes 6 --num_machines $N t.py", ("1", "6")),
        ("accelerate launch --num_processes $G --num_machines 2 t.py", ("1", "$G")),
        ("torchrun --nnodes 3 t.py", ("3", None)),
        ("srun -N 3 -n 6 torchrun t.py", ("3", "2")),
        ("srun -N 3 -n 6 mpirun python t.py", ("3", "2")),
        ("srun -G 6 -N 3 python t.py", ("3", "2")),
        ("mpirun -np 16 torchrun --nproc_per_node 8 --nnodes 3 t.py", ("3", "8")),
        ("torchrun --nproc_per_node 8 t.py --world-size 4", (None, None)),
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
    ("text", "program", "is_python"),
    [
        ("", "", False),
        ("ray job submit", "ray", False),
        ("t.py --l 2", "t.py", True),
        ("python -m a.b t.py", "a.b", True),
        ("python -m a.b", "a.b", True),
        ("ray start -m", "ray", False),
        ("python -m torch.distributed.run", "python", False),
    ],
)
def test_the_program_is_the_first_python_file_or_module_else_the_first_word(
    text: str, program: str, is_python: bool
) -> None:
    command = Command(tuple(text.split()), {})
    assert (command.program, command.is_python) == (program, is_python)


def test_commands_with_equal_options_of_the_plan_have_equal_settings() -> None:
    first, second, other = (
        Command(("t.py", "--num-layers", layers, "--log-dir", folder), {})
        for layers, folder in (("2", "a"), ("2", "b"), ("3", "a"))
    )
    assert first.settings == second.settings == {("--num-layers", "2")}
    assert other.settings == {("--num-layers", "3")}


@pytest.mark.parametrize(
    ("option", "relevance"),
    [("--nproc-per-node", True), ("--seq-length", True), ("--num-layers", True), ("--log-dir", False)],
)
def test_options_that_change_a_plan_or_its_gpus_are_relevant(option: str, relevance: bool) -> None:
    assert is_relevant(option) is relevance


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--tp", "2", "--tp", "4"], {"--tp": "4"}),
        (["--tp", "2", "3", "--", "x"], {"--tp": "2"}),
        (["--log-modules", "a", "b", "--log-modules", "c"], {"--log-modules": "c"}),
        (["--seed", "-1"], {"--seed": "-1"}),
        (["-N", "--bf16"], {"--nodes": True, "--bf16": True}),
        (["--procs=3"], {"--np": "3"}),
        (["-N=3", "-v", "5"], {"--nodes": "3"}),
        (["activation-checkpoint:full"], {"--activation_checkpoint.mode": "full"}),
    ],
)
def test_options_are_read_as_argparse_reads_them(words: list[str], options: dict[str, str | bool]) -> None:
    assert options_of(words, short={"-N": "--nodes", "--procs": "--np"}) == options


@pytest.mark.parametrize(
    ("command", "start", "nested"),
    [
        ("srun -N 2 bash -c LINE", 0, (3, "'bash' '-c' 'LINE'")),
        ("run.sh 7", 0, (0, "'bash' 'run.sh' '7'")),
        ("A=1 run.sh 7", 1, (1, "'bash' 'run.sh' '7'")),
        ("nohup run.sh 7", 0, (1, "'bash' 'run.sh' '7'")),
        ("llio_transfer run.sh 7", 0, None),
        ("torchrun t.py run.sh", 0, None),
        ("ssh host", 0, None),
        ("echo host", 0, None),
    ],
)
def test_a_shell_or_a_script_that_a_program_starts_is_nested(
    command: str, start: int, nested: tuple[int, str] | None
) -> None:
    assert Command(tuple(command.split()), {}).nested(start) == nested


@pytest.mark.parametrize(("program", "nested"), [("/usr/bin/ssh", (2, "cd a; t.py")), ("echo", None)])
def test_the_text_of_a_remote_shell_is_nested(program: str, nested: tuple[int, str] | None) -> None:
    assert Command((program, "host", "cd a; t.py"), {}).nested(0) == nested


def test_joined_words_are_quoted_for_the_shell() -> None:
    assert joined(["a b", "it's"]) == r"""'a b' 'it'\''s'"""


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
    assert slurm_variables({"--nodes": "3", "--ntasks-per-node": "5"})["SLURM_NTASKS"] == "15"
    assert slurm_variables({"--ntasks-per-node": "1"}) == {"SLURM_NTASKS_PER_NODE": "1"}
    assert slurm_variables(slurm_headers("#SBATCH --nodes=2\n")) == {
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
    }
