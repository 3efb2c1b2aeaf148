"""Functions for use inside TorchTitan: `preflight` checks stages and loss, `measure` times its model's chunks."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ppsim.integrations.stages import Table, problems_of_stages, read

if TYPE_CHECKING:
    from ppsim.profiling.harness import ModuleSettings


def preflight(
    schedule: Table, stages: Sequence[Any], loss: Any, *, num_microbatches: int | None = None
) -> list[str]:
    """Return the reasons why the first step would fail or give wrong results, one sentence each.

    `stages` are this rank's `PipelineStage`s, `loss` is the loss that the schedule gets. For tables with I and W,
    two more reasons are checked: selective checkpointing, whose saved outputs serve one backward only, and a loss
    that holds parameters and runs a backward of its own (`ChunkedLossWrapper`).
    """
    table = read(schedule)
    problems = problems_of_stages(table, stages, num_microbatches)
    if table.splits_backward:
        problems += [
            f"stage {stage.stage_index} checkpoints {name or 'itself'} selectively, which a split backward "
            f"(I and W) cannot go through twice: checkpoint nothing, or all of it"
            for stage in stages
            for name in [_first_selective(stage.submod)]
            if name is not None
        ]
        if owner := next(_owners(loss), None):
            problems.append(
                f"the loss ({owner}) holds parameters and runs a backward of its own, behind which a split "
                f"backward (I and W) finds no graph: use another loss"
            )
    return problems


def _first_selective(module: Any) -> str | None:
    """Return the name of the first part with selective checkpointing, None if there is none.

    Selective checkpointing has a policy (`context_fn`) that chooses the tensors to save.
    """
    for name, part in module.named_modules():
        function = getattr(part, "checkpoint_fn", None)
        if "context_fn" in (getattr(function, "keywords", None) or {}):
            return str(name)
    return None


def _owners(loss: Any, depth: int = 4) -> Iterator[str]:
    """Yield class names of objects that hold parameters, in the loss or in the functions that it wraps."""
    inside = list(vars(loss).values()) if hasattr(loss, "__dict__") else []
    if any(
        hasattr(one, "parameters") and next(iter(one.parameters()), None) is not None for one in (loss, *inside)
    ):
        yield type(loss).__name__
    cells = getattr(loss, "__closure__", None) or ()
    wrapped = [cell.cell_contents for cell in cells] + [
        getattr(loss, "func", None),
        getattr(loss, "__self__", None),
    ]
    for one in [*wrapped, *inside] if depth else ():
        if callable(one) and one is not loss:
            yield from _owners(one, depth - 1)


def measure(
    trainer: Any,
    *,
    splits: Sequence[Sequence[int]] = (),
    output: str | Path | None = None,
    say: Callable[[str], None] = lambda message: None,
    **settings: "Unpack[ModuleSettings]",
) -> dict[str, Any]:
    """Return a profile of a TorchTitan model's chunks, measured on the trainer's device.

    `trainer` is a `torchtitan.trainer.Trainer`, created in a single process with `--comm.mode fake_backend` and a
    pipeline. Collectives are not timed. `splits`, `output` and `settings` are as in
    `ppsim.integrations.megatron.measure`. Raises `ConfigError` for a trainer without a pipeline, or with real
    process groups.
    """
    import torchtitan

    from ppsim.integrations.torchtitan_chunks import TitanBuilder
    from ppsim.profiling.chunks import profile_inside
    from ppsim.profiling.settings import MeasuringSettings

    sizes = trainer.model_config
    return profile_inside(
        ("TorchTitan", torchtitan.__version__), TitanBuilder(trainer), splits,
        MeasuringSettings(trainer.device.type, compiled=bool(trainer.config.compile.enable), **settings),
        model={"hidden_size": sizes.dim, "vocab_size": sizes.vocab_size},
        note="Chunks of a TorchTitan model, built in its dry mode: no collective is in the times.", output=output,
        say=say,
    )  # fmt: skip
