"""Tables in DeepSpeed's pipeline engine: commands, buffers and sizes, without DeepSpeed itself."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.integrations.deepspeed import install


class PipeSchedule:
    """As DeepSpeed's: it keeps its sizes."""

    def __init__(self, micro_batches: int, stages: int, stage_id: int) -> None:
        self.sizes = micro_batches, stages, stage_id


@pytest.fixture
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ForwardPass", "BackwardPass", "ReduceTiedGrads", "ReduceGrads", "OptimizerStep")
    commands = {name: (lambda *buffer, name=name: (name, *buffer)) for name in names}
    pipe, schedule = ModuleType("pipe"), SimpleNamespace(PipeSchedule=PipeSchedule, **commands)
    vars(pipe)["schedule"] = schedule
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.pipe", pipe)


TABLE = {
    "format": "ppsim-deepspeed/1", "stages": 3, "microbatches": 5, "buffers": [4, 1, 7],
    "ranks": [[], [["ForwardPass", 0], ["BackwardPass", 1]], [["BackwardPass", 2]]],
}  # fmt: skip


def engine_of(stage: int, stages: int = 3, microbatches: int = 5) -> Any:
    return SimpleNamespace(
        num_stages=stages, stage_id=stage, gradient_accumulation_steps=lambda: microbatches, _train_schedule=None
    )


@pytest.mark.usefixtures("_commands")
@pytest.mark.parametrize(
    ("stage", "commands", "num_buffers"),
    [(1, [("ForwardPass", 0), ("BackwardPass", 1)], 2), (2, [("BackwardPass", 2)], 7), (0, [], 4)],
)
def test_an_engine_runs_the_commands_of_its_stage_and_then_the_update(
    stage: int, commands: list[Any], num_buffers: int, tmp_path: Path
) -> None:
    """It has two buffers at least."""
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    engine = engine_of(stage)
    install(engine, tmp_path / "table.json")
    schedule = engine._train_schedule()
    update = [("ReduceTiedGrads",), ("ReduceGrads",), ("OptimizerStep",)]
    assert list(schedule.steps()) == [*([command] for command in commands), update]
    assert schedule.num_pipe_buffers() == num_buffers
    assert schedule.sizes == (5, 3, stage)


@pytest.mark.parametrize(
    ("content", "engine", "sentence"),
    [
        (TABLE, engine_of(0, stages=4), "table.json has 3 stages, the engine 4"),
        (TABLE, engine_of(0, microbatches=6), "table.json has 5 microbatches, the engine 6"),
        ([], engine_of(0), "table.json was not written by ppsim export --to deepspeed"),
        ({"format": "ppsim-deepspeed/2"}, engine_of(0), "its format is not ppsim-deepspeed/1"),
    ],
)
def test_an_engine_of_other_sizes_is_refused(content: Any, engine: Any, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=sentence):
        install(engine, tmp_path / "table.json")
    assert engine._train_schedule is None
