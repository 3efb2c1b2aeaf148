"""Reader of the result folder of Megatron-LM's simulated training step (`--simulate-global-step`).

The format is from its pull requests 3138 and 5104, which were open as of August 2026:

- `finished_tasks.json`: by pipeline rank, the tasks in execution order, with `duration` in ms.
- `all_pp_vpp_layout.json`: by rank and chunk, the content of the chunk.
- `static_memory_info.json`: by rank, GiB of parameters and gradients.

The simulation omits the cool-down, so a rank whose forward passes are all warm-up has no backward passes. The
memory snapshots are not read: they are pickles, and loading a pickle executes code.
"""

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors, read_json
from ppsim.schedule.check import validate
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.stage_costs import StageCosts

_OPS = {"forward": Op.F, "backward": Op.B}
_LETTERS = {"embedding": "E", "encoder": "t", "decoder_layer": "t", "mtp": "m", "loss": "L"}


@dataclass(frozen=True)
class MegatronSimulation:
    """A simulated step, whose transfers take no time.

    `step_time_s` is the longest path over the dependencies in the file. These omit that the first rank waits for
    the last rank's previous chunk.
    """

    schedule: Schedule
    costs: StageCosts
    contents: list[str]
    step_time_s: float


def read_simulation(folder: str | Path) -> MegatronSimulation:
    """F and B of a stage are medians over its microbatches."""
    home = Path(folder)
    ranks, layout, memory = (
        read_json(home / name)
        for name in ("finished_tasks.json", "all_pp_vpp_layout.json", "static_memory_info.json")
    )
    with prefix_errors(folder):
        try:
            rows = [ranks[str(rank)] for rank in range(len(ranks))]
            tasks = [task for row in rows for task in row]
            table = [[_action(task, rank, len(rows)) for task in row] for rank, row in enumerate(rows)]
            _require_backwards(table)
            contents = [
                "".join(map(_letter, layout[str(rank)][str(chunk)]))
                for chunk in range(len(layout["0"]))
                for rank in range(len(rows))
            ]
            static = [memory["executor_0"][str(rank)]["static"] for rank in range(len(rows))]
            gib = [one["params_memory_gb"] + one["grads_memory_gb"] for one in static]
            durations = [float(task["duration"]) / 1e3 for task in tasks]
            step_time_s = _longest_path(tasks, durations)
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"this is not what Megatron-LM's simulation writes: {error!r}") from None
        schedule = Schedule.from_rows(table, name="megatron-simulation")
        validate(schedule)
    taken: dict[tuple[Op, int], list[float]] = {}
    for action, duration in zip([action for row in table for action in row], durations, strict=True):
        taken.setdefault((action.op, action.stage), []).append(duration)
    forward, backward = ([median(taken[op, stage]) for stage in range(len(contents))] for op in (Op.F, Op.B))
    costs = StageCosts(
        forward_s=forward, backward_s=backward, backward_input_s=backward, backward_weight_s=0.0,
        static_bytes=[one * 2**30 for one in gib],
    )  # fmt: skip
    return MegatronSimulation(schedule, costs, contents, step_time_s)


def _action(task: dict[str, Any], rank: int, num_ranks: int) -> Action:
    """Stages are numbered in the order in which a microbatch passes them."""
    return Action(_OPS[task["task_type"]], task["model_chunk_id"] * num_ranks + rank, task["microbatch_id"])


def _require_backwards(table: list[list[Action]]) -> None:
    for rank, row in enumerate(table):
        if row and all(action.op is Op.F for action in row):
            raise ConfigError(
                f"rank {rank} has no backward: its {len(row)} forwards are all warm-up, and the simulation then "
                "leaves its backwards out; simulate more microbatches"
            )


def _letter(part: str | list[str]) -> str:
    return _LETTERS[part if isinstance(part, str) else part[0]]


def _longest_path(tasks: list[dict[str, Any]], durations: list[float]) -> float:
    lasts = {task["task_id"]: duration for task, duration in zip(tasks, durations, strict=True)}
    before = {task["task_id"]: task["dependencies"] for task in tasks}
    ends: dict[str, float] = {}
    try:
        for one in TopologicalSorter(before).static_order():
            ends[one] = max((ends[other] for other in before[one]), default=0.0) + lasts[one]
    except (CycleError, KeyError) as error:
        raise ConfigError(f"a task waits for a task that never ends: {error}") from None
    return max(ends.values())
