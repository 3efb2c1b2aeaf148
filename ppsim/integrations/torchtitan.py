"""Whether TorchTitan's constructed stages and loss fit a table: `preflight`, before the first step."""

from collections.abc import Iterator, Sequence
from typing import Any

from ppsim.integrations.stages import Table, problems_of_stages, read


def preflight(
    schedule: Table, stages: Sequence[Any], loss: Any, *, num_microbatches: int | None = None
) -> list[str]:
    """Return a sentence for everything that would end or spoil the first step, none where it runs.

    `schedule` is a table or the path of its CSV, `stages` this rank's `PipelineStage`s, `loss` the loss that
    the schedule gets. Looked at: the number of ranks and stages, which stages are here, microbatches where they are
    given; and for tables with I and W selective checkpointing, whose saved outputs serve one backward only, and a
    loss that holds parameters and runs a backward of its own (`ChunkedLossWrapper`).
    """
    table = read(schedule)
    found = problems_of_stages(table, stages, num_microbatches)
    if table.splits_backward:
        found += [
            f"stage {stage.stage_index} checkpoints {name or 'itself'} selectively, which a split backward "
            f"(I and W) cannot go through twice: checkpoint nothing, or all of it"
            for stage in stages
            for name in [_first_selective(stage.submod)]
            if name is not None
        ]
        if owner := next(_owners(loss), None):
            found.append(
                f"the loss ({owner}) holds parameters and runs a backward of its own, behind which a split "
                f"backward (I and W) finds no graph: use another loss"
            )
    return found


def _first_selective(module: Any) -> str | None:
    """The name of the first checkpointed part whose policy chooses what is saved."""
    for name, part in module.named_modules():
        function = getattr(part, "checkpoint_fn", None)
        if "context_fn" in (getattr(function, "keywords", None) or {}):
            return str(name)
    return None


def _owners(loss: Any, depth: int = 4) -> Iterator[str]:
    """The names of what holds modules with parameters, in the loss or in the functions that it wraps."""
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
