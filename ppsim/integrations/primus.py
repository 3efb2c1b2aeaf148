"""Run a ppsim table in place of one of Primus' algorithms: call `install` in each process before Primus starts.

By the name of an algorithm, Primus also chooses the placement of the model and whether weight gradients are
separate from the backward. Therefore a table replaces an algorithm of the same placement.
"""

from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json

FORMAT = "ppsim-primus/1"

PLACEMENTS = {
    "one chunk per rank": ("1f1b", "zero-bubble", "zero-bubble-heuristic"),
    "a loop of several chunks per rank": ("1f1b-interleaved",),
    "a V of two chunks per rank": ("zbv-formatted", "v-half", "v-min"),
}

_KEEPS_W = ("1f1b",)  # under this name, Primus' layers compute the weight gradient within the backward


def install(path: str | Path, *, replace: str) -> None:
    """Replace the algorithm named `replace` by the table that `ppsim export --to primus` wrote.

    Primus then runs the table if its configuration has `pp_algorithm: <replace>`. Options that Primus gives the
    algorithm are ignored. Raises `ConfigError` for an algorithm that is unknown or has another placement and, when
    Primus asks for the schedule, if ranks, chunks or microbatches are not the table's, or if offloading or combined
    passes are enabled.
    """
    table = read(path)
    algorithm_for(table, path, replace)
    from primus.core.pipeline_parallel.scheduler import schedule_table_factory as factory
    from primus.core.pipeline_parallel.scheduler.algorithms import base
    from primus.core.pipeline_parallel.scheduler.scheduler_node import FuncType, SchedulerNode

    if replace not in factory.pp_algorithm_map:
        algorithms = ", ".join(factory.pp_algorithm_map)
        raise ConfigError(f"this Primus has no algorithm '{replace}': it has {algorithms}")

    class Table(base.PipelineScheduleAlgo):  # type: ignore[misc]
        def __init__(self, pp_size: int, vpp_size: int, micro_batches: int, **options: Any) -> None:
            require_sizes(table, path, pp_size, vpp_size, micro_batches)
            if wanted := [name for name in ("offload", "combined_forward_backward") if options.get(name)]:
                raise ConfigError(f"{path} holds no nodes for {wanted[0]}: turn it off in Primus' configuration")
            super().__init__(pp_size, vpp_size, micro_batches)

        def generate_schedule_table(self) -> list[list[Any]]:
            return [
                [
                    SchedulerNode(
                        FuncType[node["func_type"]], node["mini_batch"], node["chunk"],
                        args=dict(node["args"]) if node["args"] else None,
                    )
                    for node in rank
                ]
                for rank in table["ranks"]
            ]  # fmt: skip

        def last_pp_stage_rank(self) -> int:
            return int(table["last_stage_rank"])

        def direction_map(self, rank: int, chunk: int, func_type: Any) -> dict[str, Any]:
            raise NotImplementedError("the table has its messages already")

    factory.pp_algorithm_map[replace] = Table
    factory._schedule_instance_cache.clear()  # Primus caches schedules by algorithm name and sizes


def read(path: str | Path) -> dict[str, Any]:
    table = read_json(path)
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise ConfigError(f"{path} is no table of the format {FORMAT}: write it by ppsim export --to primus")
    return dict(table)


def placement_of(table: dict[str, Any]) -> str:
    one, loop, v = PLACEMENTS
    if table["vpp_size"] == 1:
        return one
    return loop if table["last_stage_rank"] == table["pp_size"] - 1 else v


def require_sizes(table: dict[str, Any], path: str | Path, pp_size: int, vpp_size: int, micro_batches: int) -> None:
    given = {"pp_size": pp_size, "vpp_size": vpp_size, "micro_batches": micro_batches}
    if wrong := [name for name, size in given.items() if table[name] != size]:
        held = ", ".join(f"{name} {table[name]}" for name in wrong)
        raise ConfigError(f"{path} is for {held}: got {', '.join(f'{name} {given[name]}' for name in wrong)}")


def algorithm_for(table: dict[str, Any], path: str | Path, replace: str | None = None) -> str:
    """Return `replace` or, if it is None, the first algorithm of the table's placement.

    Raises `ConfigError` if `replace` is unknown, has another placement, or computes weight gradients within the
    backward while the table separates them.
    """
    placed = [name for names in PLACEMENTS.values() for name in names]
    if replace is not None and replace not in placed:
        raise ConfigError(f"there is no algorithm '{replace}' of Primus: choose one of {', '.join(placed)}")
    placement = placement_of(table)
    names = PLACEMENTS[placement]
    splits = any(node["func_type"] == "W" for rank in table["ranks"] for node in rank)
    if splits:
        names = tuple(name for name in names if name not in _KEEPS_W)
    if replace is None or replace in names:
        return replace or names[0]
    what = f"has {placement}" if replace not in PLACEMENTS[placement] else "splits the backward"
    raise ConfigError(f"{path} {what}, which '{replace}' has not: replace {' or '.join(names)}")
