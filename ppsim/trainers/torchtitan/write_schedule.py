"""TorchTitan's settings for a schedule table; TorchTitan splits the model by the name of a schedule."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.schedule.placement import loop, v_shape
from ppsim.schedule.table import Schedule

VERSIONS = {"0.2": "toml", "0.3": "flags"}
"""Supported versions of TorchTitan, and the format of their settings."""

_HEAD = {"0.2": "output", "0.3": "lm_head"}  # name of the last module of a model


def torchtitan_settings(
    schedule: Schedule,
    *,
    csv: str,
    version: str = "0.3",
    micro_batch: int = 1,
    layers_per_stage: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Settings have full names; raises `ScheduleError` for a placement that TorchTitan does not build."""
    short = _short(version)
    compute = schedule.compute_only()
    settings = {
        "parallelism.pipeline_parallel_degree": compute.num_ranks,
        "parallelism.pipeline_parallel_schedule": name_of_placement(compute),
        "parallelism.pipeline_parallel_schedule_csv": csv,
        "parallelism.pipeline_parallel_microbatch_size": micro_batch,
        "training.local_batch_size": compute.num_microbatches * micro_batch,
    }
    if layers_per_stage is not None:
        settings |= _layers(layers_per_stage, compute.num_stages, _HEAD[short])
    elif compute.vpp > 2:
        raise ConfigError(f"TorchTitan makes {compute.vpp} stages per rank where it knows the layers: give --split")
    return settings | ({"training.disable_cuda_graphs": True} if short == "0.3" else {})


def name_of_placement(schedule: Schedule) -> str:
    p, placed = schedule.num_ranks, schedule.stage_to_rank.tolist()
    if placed == loop(p, len(placed)) and len(placed) % p == 0:
        return "1F1B" if len(placed) == p else "Interleaved1F1B"
    if placed == v_shape(p, 2 * p):
        return "ZBVZeroBubble"
    raise ScheduleError(
        f"TorchTitan has loops and a V of two stages per rank; this table's stages are on ranks "
        f"{', '.join(map(str, placed))}"
    )


def settings_text(settings: dict[str, Any], version: str) -> str:
    if VERSIONS[_short(version)] == "flags":
        flags = [f"--{name}" + ("" if value is True else f" {_plain(value)}") for name, value in settings.items()]
        return " \\\n".join(flags) + "\n"
    lines = []
    for section in dict.fromkeys(name.split(".")[0] for name in settings):
        inside = {name.split(".")[1]: value for name, value in settings.items() if name.startswith(section + ".")}
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in inside.items())]
    return "\n".join(lines) + "\n"


def warnings_of(schedule: Schedule, version: str) -> list[str]:
    """Return known failures of TorchTitan with a table that splits the backward."""
    if not schedule.splits_backward:
        return []
    about = ["I and W need torch 2.13 or newer"]
    if _short(version) == "0.3":
        about += [
            'I and W crash with selective activation checkpointing, the default ("Trying to backward an extra '
            'time"): disable it with activation-checkpoint:none',
            "ChunkedLossWrapper silently leaves the last norm without a gradient if a schedule has I and W: use "
            "another loss",
        ]
    return about


def _short(version: str) -> str:
    match = re.match(r"v?(\d+\.\d+)(?!\d)", version)
    if not match or match[1] not in VERSIONS:
        raise ConfigError(
            f"unknown settings of TorchTitan {version}: ppsim has the settings of {' and '.join(VERSIONS)}"
        )
    return match[1]


def _layers(layers: Sequence[int], num_stages: int, head: str) -> dict[str, Any]:
    if len(layers) != num_stages:
        raise ConfigError(f"the split has {len(layers)} entries, but there are {num_stages} stages")
    most = max(layers)
    if min(layers) < 0:
        raise ConfigError(f"the split gives a stage {min(layers)} layers")
    if num_stages > 1 and set(layers[1:-1]) <= {most} and min(layers) > 0:
        return {
            "parallelism.pipeline_parallel_layers_per_stage": most,
            "parallelism.pipeline_parallel_first_stage_less_layers": most - layers[0],
            "parallelism.pipeline_parallel_last_stage_less_layers": most - layers[-1],
        }
    if min([1, *layers[1:-1]]) < 1:
        raise ConfigError(f"TorchTitan builds no stage without a module: got {', '.join(map(str, layers))} layers")
    first = [sum(layers[:stage]) for stage in range(num_stages)]
    parts = [[f"layers.{first[s] + k}" for k in range(layers[s])] for s in range(num_stages)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return {"parallelism.module_fqns_per_model_part": parts}


def _plain(value: Any) -> str:
    return " ".join(",".join(part) for part in value) if isinstance(value, list) else str(value)
