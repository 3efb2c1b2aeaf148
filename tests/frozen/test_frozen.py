"""Values of ppsim stay the same to 1e-9, and files that earlier versions wrote stay readable."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.catalog.build import build
from ppsim.costs.profile import load_profile
from ppsim.machine.cluster_files import load_cluster
from ppsim.schedule.grammar import read_schedule
from ppsim.trainers.table_json import read_table
from tests.cli.running import ppsim as command
from tests.frozen.values import FOLDER, TOPICS, configs
from tests.trainers.trainer_code import check_file

RTOL = 1e-9
FILES = FOLDER / "files"


@pytest.mark.parametrize("topic", TOPICS)
def test_values_are_the_frozen_ones(topic: str) -> None:
    require_equal(topic, TOPICS[topic]())


def test_trainer_configurations_are_read_as_before() -> None:
    require_equal("configs", configs(check_file("configs.tar.gz")))


def require_equal(topic: str, found: dict[str, Any]) -> None:
    frozen = json.loads((FOLDER / f"{topic}.json").read_text())
    found = json.loads(json.dumps(found))
    changed = [key for key in {**frozen, **found} if not is_close(frozen.get(key), found.get(key))]
    told = "\n".join(
        f"{key}\n  frozen {cut(frozen.get(key))}\n  now    {cut(found.get(key))}" for key in changed[:5]
    )
    assert not changed, (
        f"{len(changed)} of {len(frozen)} values of tests/frozen/{topic}.json changed. If that is meant: "
        f"python scripts/freeze_values.py {topic}, and explain the change in the commit.\n{told}"
    )


def is_close(frozen: Any, found: Any) -> bool:
    if isinstance(frozen, dict) and isinstance(found, dict):
        return frozen.keys() == found.keys() and all(is_close(frozen[key], found[key]) for key in frozen)
    if isinstance(frozen, list) and isinstance(found, list):
        return len(frozen) == len(found) and all(map(is_close, frozen, found))
    if isinstance(frozen, int | float) and isinstance(found, int | float):
        return math.isclose(frozen, found, rel_tol=RTOL, abs_tol=1e-15)
    return bool(frozen == found)


def cut(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 600 else text[:600] + "…"


def test_a_change_above_the_tolerance_is_found() -> None:
    frozen = {"a": [1.0, {"b": 2.0}]}
    assert is_close(frozen, {"a": [1.0 + 1e-12, {"b": 2.0}]})
    assert not is_close(frozen, {"a": [1.0, {"b": 2.0 + 1e-8}]})
    assert not is_close(frozen, {"a": [1.0]})


def test_tables_of_0_3_0_dev0_are_read() -> None:
    made = build("zbv", pp=4, microbatches=8)
    assert read_schedule(FILES / "zbv_p4_m8.csv") == read_table(FILES / "zbv_p4_m8.json") == made


def test_profile_cluster_and_overheads_of_0_3_0_dev0_are_read() -> None:
    assert load_profile(FILES / "profile.json").shapes
    assert load_cluster(str(FILES / "cluster.toml")).constants.fitted_on == ("runs.csv",)
    made = ppsim.project(pp=4, calibration=FILES / "overheads.json")
    assert made.plan.action_overhead_s == pytest.approx(0.00027561950683574477)


def test_projection_and_run_of_0_3_0_dev0_are_read(tmp_path: Path) -> None:
    command("explain", FILES / "run.json")
    command("calibrate", FILES / "run.json")
    command("figure", "timeline", FILES / "projection.json", "-o", tmp_path / "timeline.svg")


def test_a_search_of_0_3_0_dev0_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "tune.json"
    state.write_bytes((FILES / "tune.json").read_bytes())
    command(
        "tune", "--model", "llama2-7b", "--gpus", 8, "--global-batch", 16, "--seq-len", 4096, "--pp", 2, "--tp", 2,
        "--zero", 1, "--stack", "plain", "--resume", state,
    )  # fmt: skip
    before = json.loads((FILES / "tune.json").read_text())["verdicts"]
    after = json.loads(state.read_text())["verdicts"]
    assert {key: after[key] for key in before} == before  # and plans that this version refines
