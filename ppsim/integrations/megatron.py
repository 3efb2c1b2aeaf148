"""Functions for use inside Megatron-LM: `preflight` checks its `args`, `measure` times the chunks of its model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json

if TYPE_CHECKING:
    from ppsim.profiling.harness import ModuleSettings

_ONE_OF = {
    "num-virtual-stages-per-pipeline-rank": "num_virtual_stages_per_pipeline_rank",
    "num-layers-per-virtual-pipeline-stage": "num_layers_per_virtual_pipeline_stage",
    "pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
}


def preflight(path: str | Path, args: Any) -> list[str]:
    """Return a sentence for each difference between Megatron-LM's `args` and an export; empty if there is none.

    `path` is a file of `ppsim export --to megatron`. `args` may be from before or after `validate_args`.
    """
    exported = read_json(path)
    try:
        arguments, microbatches = exported["arguments"], exported["num_microbatches"]
    except (KeyError, TypeError):
        raise ConfigError(f"{path} is not what ppsim export --to megatron writes") from None
    wanted = {name.replace("-", "_"): value for name, value in arguments.items()}
    group = wanted.pop("microbatch_group_size_per_virtual_pipeline_stage", None)
    overlaps = not wanted.pop("no_overlap_p2p_communication", False)
    problems = [
        f"--{name.replace('_', '-')} is {getattr(args, name, None)}, the table needs {value}"
        for name, value in wanted.items()
        if getattr(args, name, None) != value
    ]
    given = [name for name, field in _ONE_OF.items() if getattr(args, field, None) is not None]
    if set(given) - set(arguments):
        extra = ", ".join(f"--{name}" for name in given if name not in arguments)
        problems.append(f"{extra} goes not with this table")
    if group is not None:
        size = getattr(args, "microbatch_group_size_per_vp_stage", None) or wanted["pipeline_model_parallel_size"]
        if size != group:
            problems.append(
                f"--microbatch-group-size-per-virtual-pipeline-stage is {size}, the table needs {group}"
            )
        if not overlaps and getattr(args, "overlap_p2p_comm", False):
            problems.append("transfers overlap, the table is without: --no-overlap-p2p-communication")
    return problems + _microbatches(args, microbatches)


def _microbatches(args: Any, wanted: int) -> list[str]:
    names = ("global_batch_size", "micro_batch_size", "data_parallel_size")
    if any(getattr(args, name, None) is None for name in names):
        return []
    global_batch, micro, replicas = (int(getattr(args, name)) for name in names)
    if global_batch == wanted * micro * replicas:
        return []
    return [
        f"--global-batch-size {global_batch} makes {global_batch / (micro * replicas):g} microbatches of {micro} "
        f"on {replicas} data-parallel ranks, the table has {wanted}"
    ]


def measure(
    model_provider: Callable[..., Any],
    config: Any,
    *,
    micro_batch: int,
    sequence_length: int,
    vocab_size: int,
    splits: Sequence[Sequence[int]] = (),
    output: str | Path | None = None,
    say: Callable[[str], None] = lambda message: None,
    **settings: "Unpack[ModuleSettings]",
) -> dict[str, Any]:
    """Return a profile of a Megatron-core model's chunks, measured on this GPU if there is one, else on the CPU.

    `config` is the model's `TransformerConfig`. `model_provider(pre_process=…, post_process=…, config=…)` builds a
    chunk from it, as in Megatron-LM. Process groups are fake, so that one rank's part is timed, without
    collectives. Each different chunk of the configured pipeline and of `splits` (layers of each stage) is measured.
    If these do not determine the costs of other chunks, more chunks are measured, for example single layers.
    `settings` are as for `ppsim.profiling.harness.profile_module`.

    Raises `ConfigError` if a real process group exists, and for splits that do not have all layers.
    """
    import megatron.core
    import torch

    from ppsim.integrations.megatron_chunks import MegatronBuilder, layer_shape_of
    from ppsim.profiling.chunks import profile_inside
    from ppsim.profiling.settings import MeasuringSettings

    where = "cuda" if torch.cuda.is_available() else "cpu"
    builder = MegatronBuilder(
        model_provider, config, micro_batch=micro_batch, sequence_length=sequence_length, vocab_size=vocab_size,
        device=where,
    )  # fmt: skip
    sizes, model = layer_shape_of(config), {"hidden_size": config.hidden_size, "vocab_size": vocab_size}
    if sizes is not None:
        whole = {key: value for key, value in asdict(sizes).items() if value is not None}
        model |= {"num_heads": sizes.num_heads, "layer_sizes": whole}
    note = (
        "Chunks of a Megatron-core model, a pipeline rank after the other with a fake process group: no collective "
        "is in the times."
    )
    try:
        return profile_inside(
            ("Megatron-core", megatron.core.__version__), builder, splits, MeasuringSettings(where, **settings),
            model=model,
            note=note, output=output, say=say,
        )  # fmt: skip
    finally:
        builder.close()
