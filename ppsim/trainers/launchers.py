"""A command of a launch script: launchers, training program, the program's options and the number of GPUs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from ppsim.trainers.option_relevance import effect_of

_LAUNCHERS = {
    "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed", "deepspeed.launcher.runner": "deepspeed",
    "accelerate": "accelerate", "accelerate.commands.launch": "accelerate",
    "srun": "srun", "mpirun": "mpirun", "mpiexec": "mpirun",
}  # fmt: skip
"""Launchers whose options give the number of processes, by program or module."""

_SHORT = {
    "srun": {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"},
    "mpirun": {"-np": "--np", "-n": "--np", "-N": "--npernode"},
    "torchrun": {"--nproc-per-node": "--nproc_per_node"},
}

_NO_TRAINING = re.compile(
    r"infer|generat|conver|server?\b|serving|eval|preprocess|prepare|export|download|tokeniz|^pip$|^build$|^install"
)
_TRAINING = re.compile(r"train|finetun|sft|grpo|ppo|dpo", re.IGNORECASE)

_MODULE = re.compile(rf"(?!(?:{'|'.join(map(re.escape, _LAUNCHERS))})$)[A-Za-z_][\w.]*")
"""A module that is no launcher, unlike the cores of `numactl -m 0-3`."""

_SHELL = re.compile(r"(?:[\w./-]*/)?(?:ba|z)?sh")
_STARTER = re.compile(
    r"(?:^|/)(?:nohup|srun|sbatch|mpi\w+|aprun|jsrun|numactl|singularity|apptainer|docker|torchrun|ssh|pdsh)$"
)
"""Programs that start a file, unlike `llio_transfer run.sh`."""


@dataclass(frozen=True)
class Command:
    """The words of a command, and the #SBATCH headers of its script."""

    words: tuple[str, ...]
    headers: Mapping[str, str]

    @cached_property
    def _program_at(self) -> int:
        """Index of the training program: a Python file, a module, or else the first word."""
        for index, word in enumerate(self.words):
            if word.endswith(".py"):
                return index
            if word == "-m" and index + 1 < len(self.words) and _MODULE.fullmatch(self.words[index + 1]):
                return index + 1
        return 0

    @property
    def program(self) -> str:
        return self.words[self._program_at] if self.words else ""

    @property
    def is_python(self) -> bool:
        return self._program_at > 0 or self.program.endswith(".py")

    @property
    def trains(self) -> bool:
        """Return False for programs that convert, generate, serve and so on, by their name."""
        name = self.program.rpartition("/")[2]
        return bool(_TRAINING.search(name)) or not _NO_TRAINING.search(name.lower())

    @cached_property
    def options(self) -> dict[str, Any]:
        options = options_of(self.words[self._program_at + 1 :])
        if {"--nproc_per_node", "--nproc-per-node", "--world-size"} & options.keys():
            return options
        return self._processes | options

    @property
    def settings(self) -> frozenset[tuple[str, Any]]:
        """The options that can change a plan: commands with equal ones start the same training."""
        return frozenset((name, text) for name, text in self.options.items() if is_relevant(name))

    @property
    def _processes(self) -> dict[str, Any]:
        """Nodes and processes per node as options of torchrun; {} if neither launcher nor headers give them."""
        launchers = self._launchers
        for name, given in reversed(launchers):
            if name == "torchrun":
                processes = {option: given[option] for option in GPU_OPTIONS if option in given}
            elif name == "deepspeed":
                processes = _options_of_torchrun(given.get("--num_nodes", 1), given.get("--num_gpus"))
            elif name == "accelerate":
                processes = _spread(given.get("--num_processes"), given.get("--num_machines"))
            else:
                processes = _spread(given.get("--np"), None)
            if "--nproc_per_node" in processes or (name == "torchrun" and processes):
                return processes
        of_step = next((given for name, given in launchers if name == "srun"), {})
        launch = slurm_launch({**self.headers, **of_step})
        return _options_of_torchrun(*launch) if launch else {}

    @property
    def _launchers(self) -> list[tuple[str, dict[str, Any]]]:
        """Launchers in front of the program, outermost first, each with its options."""
        front = self.words[: self._program_at]
        starts = [index for index, word in enumerate(front) if word.rpartition("/")[2] in _LAUNCHERS]
        launchers = []
        for start, end in pairwise([*starts, len(front)]):
            name = _LAUNCHERS[front[start].rpartition("/")[2]]
            launchers.append((name, options_of(front[start + 1 : end], short=_SHORT.get(name, {}))))
        return launchers

    def nested(self, start: int) -> tuple[int, str] | None:
        """Return the index and text of a shell command in the words: `srun bash -c TEXT`, `ssh HOST TEXT`."""
        for index, word in enumerate(self.words[start:], start):
            if _SHELL.fullmatch(word):
                return index, joined(["bash", *self.words[index + 1 :]])
            if word.endswith(".sh") and (index == start or _STARTER.search(self.words[start])):
                return index, joined(["bash", *self.words[index:]])
            if index == self._program_at > start:
                break
        is_remote = self.words[start].rpartition("/")[2] in ("ssh", "pdsh")
        return (len(self.words) - 1, self.words[-1]) if is_remote and " " in self.words[-1] else None


GPU_OPTIONS = ("--nnodes", "--nproc_per_node")


def is_relevant(option: str) -> bool:
    """Return whether an option can change a plan or its number of GPUs."""
    name = option.lstrip("-").replace("-", "_")
    return name in ("nnodes", "nproc_per_node", "world_size", "vocab_size", "seq_length") or bool(effect_of(name))


def joined(words: Sequence[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _options_of_torchrun(nodes: Any, per_node: Any) -> dict[str, Any]:
    return {} if per_node is None else {"--nnodes": str(nodes), "--nproc_per_node": str(per_node)}


def _spread(processes: Any, nodes: Any) -> dict[str, Any]:
    if not str(processes).isdecimal():
        return _options_of_torchrun(1, processes)
    number = int(nodes) if str(nodes).isdecimal() and int(nodes) else 1
    return _options_of_torchrun(number, int(processes) // number)


_HEADER = re.compile(r"^#SBATCH[ \t]+(-[A-Za-z]|--[a-z-]+)[= \t]*([^\s#]*)", re.MULTILINE)
_NUMBER = re.compile(r"(?:[\w.-]+:)*(\d{1,6})(?:-\d+)?")
_GPUS = re.compile(r"\bgpu(?::[\w.-]+)?:(\d{1,6})")


def slurm_headers(text: str) -> dict[str, str]:
    return {_SHORT["srun"].get(name, name): text for name, text in _HEADER.findall(text)}


def slurm_launch(options: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the nodes and the GPUs per node of sbatch's or srun's options; None if they do not give them.

    Several tasks per node are ranks, one per GPU; a single task may start more processes itself.

    >>> slurm_launch({"--nodes": "16", "--ntasks-per-node": "4"})
    (16, 4)
    >>> slurm_launch({"--nodes": "2", "--gres": "gpu:a100:8", "--ntasks-per-node": "1"})
    (2, 8)
    """

    def number(name: str) -> int:
        match = _NUMBER.fullmatch(str(options.get(name, "")))
        return int(match[1]) if match else 0

    nodes = number("--nodes") or 1
    gres = _GPUS.search(str(options.get("--gres", "")))
    tasks = number("--ntasks-per-node") or number("--ntasks") // nodes
    per_node = (
        number("--gpus-per-node")
        or (int(gres[1]) if gres else 0)
        or number("--gpus") // nodes
        or (tasks > 1) * tasks
    )
    return (nodes, per_node) if per_node else None


def slurm_variables(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets from a script's headers."""
    nodes, per_node = slurm_launch(headers) or (None, None)
    if nodes is None and (match := _NUMBER.fullmatch(headers.get("--nodes", ""))):
        nodes = int(match[1])
    tasks = headers.get("--ntasks-per-node", "")
    variables = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": per_node,
        "SLURM_GPUS_ON_NODE": per_node, "SLURM_NTASKS_PER_NODE": tasks if tasks.isdecimal() else None,
    }  # fmt: skip
    if tasks.isdecimal() and nodes:
        variables |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), int(tasks) * nodes)
    return {name: str(number) for name, number in variables.items() if number is not None}


_SEVERAL = ("-modules", "-comm-type", "-scope", "-path", "-layers", "_per_model_part", ".components")
"""Ends of the names of options with several values."""


def options_of(words: Sequence[str], *, short: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An option without a value is True; the last value of a repeated option counts.

    `short` has further names of options, those with one dash too.

    >>> options_of(["--bf16", "--tp=2", "--recompute-modules", "moe", "mlp"])
    {'--bf16': True, '--tp': '2', '--recompute-modules': 'moe mlp'}
    >>> options_of(["-N4", "-n", "32"], short={"-N": "--nodes", "-n": "--ntasks"})
    {'--nodes': '4', '--ntasks': '32'}
    """
    options: dict[str, Any] = {}
    several: dict[str, list[str]] = {}
    names = short or {}
    name = None
    for word in words:
        one_dash = re.fullmatch(r"(-[A-Za-z]+)=?(\d\S*)?", word)
        if one_dash and one_dash[1] in names:
            name = names[one_dash[1]]
            options[name] = one_dash[2] or True
        elif word.startswith("--") and len(word) > 2:
            written, _, attached = word.partition("=")
            name = names.get(written, written)
            options[name] = attached or True
            several.pop(name, None)
        elif chosen := re.fullmatch(r"activation[-_]checkpoint:([\w-]+)", word):  # a subcommand of TorchTitan 0.3
            options["--activation_checkpoint.mode"] = chosen[1]
        elif name is not None and options[name] is True:
            options[name] = word
        elif name is not None and name.endswith(_SEVERAL):
            several.setdefault(name, [options[name]]).append(word)
    return options | {name: " ".join(values) for name, values in several.items()}
