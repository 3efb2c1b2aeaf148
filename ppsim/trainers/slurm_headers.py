"""Nodes and GPUs in the #SBATCH headers of a script."""

import re

_HEADER = re.compile(r"^#SBATCH[ \t]+(-[A-Za-z]|--[a-z-]+)[= \t]*([^\s#]*)", re.MULTILINE)
_LONG = {"-N": "--nodes", "-G": "--gpus"}
_NUMBER = re.compile(r"(?:[\w.-]+:)*(\d{1,6})(?:-\d+)?")
_GPUS = re.compile(r"\bgpu(?::[\w.-]+)?:(\d{1,6})")


def slurm_launch(text: str) -> tuple[int, int] | None:
    """Return the nodes and the GPUs per node; None if the headers do not give them.

    Several tasks per node are ranks, one per GPU; a single task may start more processes itself.

    >>> slurm_launch("#SBATCH --nodes=16\\n#SBATCH --ntasks-per-node=4\\n")
    (16, 4)
    >>> slurm_launch("#SBATCH -N 2\\n#SBATCH --gres=gpu:a100:8\\n#SBATCH --ntasks-per-node=1\\n")
    (2, 8)
    """
    headers = {_LONG.get(name, name): value for name, value in _HEADER.findall(text)}

    def number(name: str) -> int:
        found = _NUMBER.fullmatch(headers.get(name, ""))
        return int(found[1]) if found else 0

    nodes = number("--nodes") or 1
    gres = _GPUS.search(headers.get("--gres", ""))
    tasks = number("--ntasks-per-node")
    per_node = (
        number("--gpus-per-node")
        or (int(gres[1]) if gres else 0)
        or number("--gpus") // nodes
        or (tasks > 1) * tasks
    )
    return (nodes, per_node) if per_node else None
