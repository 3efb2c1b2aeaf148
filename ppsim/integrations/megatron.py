"""Whether Megatron-LM's parsed arguments run a table: `preflight`, wherever its `args` are at hand."""

import json
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError

_ONE_OF = {
    "num-virtual-stages-per-pipeline-rank": "num_virtual_stages_per_pipeline_rank",
    "num-layers-per-virtual-pipeline-stage": "num_layers_per_virtual_pipeline_stage",
    "pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
}


def preflight(path: str | Path, args: Any) -> list[str]:
    """Return a sentence for each thing in which Megatron-LM's `args` differ from an export, none where they run it.

    `path` is what `ppsim export --to megatron -o FILE.json` wrote, `args` what Megatron-LM parsed, before or after
    `validate_args`. Raises `ConfigError` for a file that is no such export.
    """
    try:
        exported = json.loads(Path(path).read_text())
        arguments, microbatches = exported["arguments"], exported["num_microbatches"]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is not what ppsim export --to megatron writes") from None
    wanted = {name.replace("-", "_"): value for name, value in arguments.items()}
    group = wanted.pop("microbatch_group_size_per_virtual_pipeline_stage", None)
    overlaps = not wanted.pop("no_overlap_p2p_communication", False)
    found = [
        f"--{name.replace('_', '-')} is {getattr(args, name, None)}, the table needs {value}"
        for name, value in wanted.items()
        if getattr(args, name, None) != value
    ]
    given = [name for name, field in _ONE_OF.items() if getattr(args, field, None) is not None]
    if set(given) - set(arguments):
        extra = ", ".join(f"--{name}" for name in given if name not in arguments)
        found.append(f"{extra} goes not with this table")
    if group is not None:
        size = getattr(args, "microbatch_group_size_per_vp_stage", None) or wanted["pipeline_model_parallel_size"]
        if size != group:
            found.append(f"--microbatch-group-size-per-virtual-pipeline-stage is {size}, the table needs {group}")
        if not overlaps and getattr(args, "overlap_p2p_comm", False):
            found.append("transfers overlap, the table is without: --no-overlap-p2p-communication")
    return found + _microbatches(args, microbatches)


def _microbatches(args: Any, wanted: int) -> list[str]:
    names = ("global_batch_size", "micro_batch_size", "data_parallel_size")
    if any(getattr(args, name, None) is None for name in names):
        return []
    whole, micro, replicas = (int(getattr(args, name)) for name in names)
    if whole == wanted * micro * replicas:
        return []
    return [
        f"--global-batch-size {whole} makes {whole / (micro * replicas):g} microbatches of {micro} on {replicas} "
        f"data-parallel ranks, the table has {wanted}"
    ]
