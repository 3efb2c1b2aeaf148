"""A file of plans for each stage: what does not fit the job, all in one message, and how a plan is written."""

from pathlib import Path
from typing import Any

import pytest

from ppsim.api.plan_file import StagesFile, read_stages, stages_toml
from ppsim.base.errors import ConfigError
from ppsim.projection.plan import Plan
from tests.projection.jobs import job

JOB = job(layers=8, pp=2, recompute="full")


def stages(folder: Path, *tables: dict[str, Any]) -> StagesFile:
    lines = ["[[stages]]\n" + "".join(f"{name} = {value!r}\n" for name, value in table.items()) for table in tables]
    (folder / "plan.toml").write_text("\n".join(lines))
    return read_stages(folder / "plan.toml")


def problems(folder: Path, *tables: dict[str, Any], schedule: str = "1f1b", vpp: int = 1) -> list[str]:
    file = stages(folder, *tables)
    try:
        file.require_fit(Plan(pp=2, job=JOB, schedule=schedule, vpp=vpp), JOB, vpp)
    except ConfigError as error:
        return str(error).removeprefix(f"{file.path}: ").split("\n  ")
    return []


@pytest.mark.parametrize(
    "tables",
    [
        ({}, {}),
        ({"layers": 3}, {"layers": 5}),
        ({"layers": 4, "recompute": "block/4"}, {"layers": 4}),  # exactly its layers
        ({"layers": 4, "recompute": "full*1,none*3"}, {"layers": 4, "recompute": "none"}),
        ({"layers": 4, "recompute": "none", "offload_modules": "core_attn"}, {"layers": 4, "recompute": "none"}),
    ],
)
def test_these_plans_fit(tmp_path: Path, tables: tuple[dict[str, Any], ...]) -> None:
    assert problems(tmp_path, *tables) == []


def test_plans_that_do_not_fit_say_why(tmp_path: Path) -> None:
    assert problems(tmp_path, {}) == ["it has 1 stages, but pp 2 and vpp 1 make 2"]
    assert problems(tmp_path, {}, {}, vpp=2) == ["it has 2 stages, but pp 2 and vpp 2 make 4"]
    assert problems(tmp_path, {}, {}, schedule="dualpipe", vpp=2) == []  # two replicas of two stages
    assert problems(tmp_path, {"layers": 8}, {}) == ["all stages have layers, or none: stage 1 has none"]
    assert problems(tmp_path, {"layers": 4}, {"layers": 5}) == ["its stages have 9 layers, but the model has 8"]
    assert problems(tmp_path, {"layers": 5}, {"layers": 3, "recompute": "block/4"})[0] == (
        "stage 1: recompute block/4 is of 4 layers, but it has 3"
    )
    assert problems(tmp_path, {"recompute": "none", "offload_modules": "core_attn"}, {}, schedule="zb-h1") == [
        "stage 0: zb-h1 splits the backward: leave out offload_modules"
    ]


def test_all_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    made = problems(tmp_path, {"layers": 4}, {"layers": 3, "recompute": "block/9"}, {"layers": 2})
    assert len(made) >= 3


def test_what_a_file_lacks_comes_from_the_job(tmp_path: Path) -> None:
    file = stages(tmp_path, {"layers": 3, "recompute": "none"}, {"layers": 5, "offload_modules": "core_attn"})
    assert [(one.recompute, one.offload_modules) for one in file.plans(JOB)] == [
        ("none", JOB.offload_modules),
        ("full", "core_attn"),
    ]


def test_a_split_beside_the_file_must_be_its_own(tmp_path: Path) -> None:
    file = stages(tmp_path, {"layers": 1}, {"layers": 2})
    assert file.split(None) == [1, 2]
    assert file.split([1, 2]) == [1, 2]
    assert file.split(["Et", "ttL"]) == ["Et", "ttL"]
    for other in ([2, 1], ["Ett", "tL"]):
        with pytest.raises(ConfigError, match=r"plan\.toml says the layers of each stage: leave out --split"):
            file.split(other)
    without = stages(tmp_path, {}, {})
    assert without.layers is None
    assert without.split("balanced") == "balanced"


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        {"layers": 3, "recompute": "none", "offload_modules": "core_attn"},
        {"layers": 5, "recompute": "full", "offload_modules": ""},
    ]
    (tmp_path / "plan.toml").write_text(stages_toml({"stages": rows}))
    read = read_stages(tmp_path / "plan.toml").stages
    assert [(one.layers, one.recompute, one.offload_modules or "") for one in read] == [
        tuple(row.values()) for row in rows
    ]
    with pytest.raises(ConfigError, match="a plan of each stage is of a projection with a model: give --model"):
        stages_toml({"stages": []})
