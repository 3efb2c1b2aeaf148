"""Passes of torch's Schedule1F1B, which names none, have the names of torch's pipeline runtime in a trace."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim import build
from ppsim.errors import ConfigError
from ppsim.integrations import torch as torch_module
from ppsim.integrations.stages import problems_of_stages
from ppsim.schedule.lowering import lower
from ppsim.trainers.torch.write_schedule import torch_csv
from tests.defaults import number_defaults

pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile

from ppsim.integrations.torch import named_passes


class Stage:
    """What is called of a stage of torch."""

    stage_index = 3

    def forward_one_chunk(self, microbatch: int, args: Any) -> Any:
        return microbatch, args

    def backward_one_chunk(self, microbatch: int, loss: Any = None, full_backward: bool = True) -> None:
        pass

    def backward_weight_one_chunk(self, microbatch: int) -> None:
        pass


def test_passes_are_named_inside_and_not_after() -> None:
    stage: Any = Stage()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        with named_passes([stage]):
            assert stage.forward_one_chunk(1, ("x",)) == (1, ("x",))
            stage.backward_one_chunk(1, loss=None)
            stage.backward_one_chunk(2, full_backward=False)
            stage.backward_weight_one_chunk(2)
        stage.forward_one_chunk(4, ())
    names = [event.name for event in recorded.events() if event.name.startswith("PP:")]
    assert names == ["PP:3F1", "PP:3B1", "PP:3I2", "PP:3W2"]


def test_what_is_left_out_in_integrations_torch_has_these_values() -> None:
    assert number_defaults(torch_module) == {
        "load": {"defer_receives": False},
    }  # fmt: skip


TABLE = build("interleaved-1f1b", pp=2, vpp=2, microbatches=4)


def own_stages(*numbers: int, **fields: Any) -> list[Any]:
    given = {"group_rank": 1, "group_size": 2, "num_stages": 4} | fields
    return [SimpleNamespace(stage_index=number, **given) for number in numbers]


@pytest.mark.parametrize(
    ("stages", "microbatches", "problems"),
    [
        (own_stages(3, 1), 4, []),
        (own_stages(1, 3), None, []),
        ([], 4, ["this rank has no stages"]),
        (own_stages(1, 3, group_size=8), 4, ["the table has 2 ranks, the stages are on 8"]),
        (own_stages(1, 3, num_stages=6), 4, ["the table has 4 stages, the model 6"]),
        (own_stages(3, 2), 4, ["rank 1 has stages 2, 3, the table gives it 1, 3: its placement is another"]),
        (own_stages(1, 3), 5, ["the table has 4 microbatches, the run 5"]),
        (
            own_stages(1, num_stages=6), 5,
            [
                "the table has 4 stages, the model 6",
                "rank 1 has stages 1, the table gives it 1, 3: its placement is another",
                "the table has 4 microbatches, the run 5",
            ],
        ),
    ],
)  # fmt: skip
def test_stages_of_a_rank_are_compared_with_the_table(
    stages: list[Any], microbatches: int | None, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems_of_stages(TABLE, stages, microbatches) == problems
    monkeypatch.setattr(torch_module, "schedule_runtime", lambda *_, **__: pytest.fail("nothing starts"))
    if problems:
        with pytest.raises(ConfigError, match=re.escape("; ".join(problems))):
            torch_module.load(TABLE, stages, len, microbatches)  # type: ignore[arg-type]


def test_a_table_that_torch_cannot_run_is_the_only_problem() -> None:
    (problem,) = problems_of_stages(build("dualpipe", pp=2, microbatches=4), [], 4)
    assert problem.startswith("torch cannot run dualpipe: ")


@pytest.mark.parametrize("has_messages", [False, True])
def test_a_table_is_loaded_as_a_file_of_its_kind(has_messages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lower(TABLE) if has_messages else TABLE
    assert table.has_communication is has_messages
    asked: list[Any] = []

    class Runtime:
        def _load_csv(self, path: str, format: str) -> None:
            asked.append((Path(path).read_text(), format))

    def runtime(*given: Any, **options: Any) -> Runtime:
        asked.append((given, options))
        return Runtime()

    monkeypatch.setattr(torch_module, "schedule_runtime", runtime)
    stages = own_stages(1, 3)
    made = torch_module.load(table, tuple(stages), len, 4, defer_receives=True)  # type: ignore[arg-type]
    assert isinstance(made, Runtime)
    text = torch_csv(table, with_communication=has_messages)
    kind = "compute_comms" if has_messages else "compute_only"
    assert asked == [((stages, 4, len), {"defer_receives": True}), (text, kind)]
    monkeypatch.setattr(torch_module, "why_not_loaded", lambda table, version: f"not in {version}")
    with pytest.raises(ConfigError, match="not in 2"):
        torch_module.load(table, stages, len, 4)


def test_a_rank_builds_its_stages_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    group = object()
    monkeypatch.setattr(torch_module.dist, "get_rank", lambda given: 1 if given is group else 0)
    monkeypatch.setattr(torch_module.dist, "get_world_size", lambda given: 2 if given is group else 3)
    monkeypatch.setattr(torch_module, "PipelineStage", lambda *given, group: (*given, group))
    moved: list[Any] = []

    def of_stage(stage: int) -> Any:
        return SimpleNamespace(to=lambda device: moved.append((stage, device)) or f"module {stage}")

    cpu = torch.device("cpu")
    made: Any = torch_module.stages_of(TABLE, of_stage, "cpu", group=group)
    assert made == [("module 1", 1, 4, cpu, group), ("module 3", 3, 4, cpu, group)]
    assert moved == [(1, cpu), (3, cpu)]
    with pytest.raises(ConfigError, match="the table has 2 ranks: got a group of 3"):
        torch_module.stages_of(TABLE, of_stage, "cpu")
