"""Run a ppsim table in DeepSpeed's pipeline engine: call `install` before its first `train_batch`."""

from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json

FORMAT = "ppsim-deepspeed/1"


def install(engine: Any, path: str | Path) -> None:
    """Make a `PipelineEngine` train with the table in a file of `ppsim export --to deepspeed`.

    Raises `ConfigError` if the engine has another number of stages or microbatches (`gradient_accumulation_steps`).
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{path} was not written by ppsim export --to deepspeed: its format is not {FORMAT}")
    for name, theirs in (("stages", engine.num_stages), ("microbatches", engine.gradient_accumulation_steps())):
        if content[name] != theirs:
            raise ConfigError(f"{path} has {content[name]} {name}, the engine {theirs}")
    from deepspeed.runtime.pipe import schedule

    commands = [getattr(schedule, name)(buffer) for name, buffer in content["ranks"][engine.stage_id]]
    num_buffers: int = max(2, content["buffers"][engine.stage_id])

    class Table(schedule.PipeSchedule):  # type: ignore[misc]
        def steps(self) -> Any:
            yield from ([command] for command in commands)
            yield [schedule.ReduceTiedGrads(), schedule.ReduceGrads(), schedule.OptimizerStep()]

        def num_pipe_buffers(self) -> int:
            return num_buffers

    engine._train_schedule = lambda: Table(content["microbatches"], engine.num_stages, engine.stage_id)
