"""Values of ppsim stay the same to 1e-9, and files that earlier versions wrote stay readable."""

import json
import math
from pathlib import Path

import pytest

import ppsim
from tests.cli.running import ppsim as command
from tests.frozen.comparison import Change, changes, frozen_values, require_frozen
from tests.frozen.values import FOLDER, TOPICS, WITH_ADVICE, commands, configs, numbers_of
from tests.trainers.trainer_code import check_file

FILES = FOLDER / "files"


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["grid", "profiles", "commands", "recordings", "searches"])
def test_values_are_the_frozen_ones(topic: str) -> None:
    """`rows` are compared in tests/validation, where they are projected anyway."""
    require_frozen(topic, TOPICS[topic]())


@pytest.mark.parametrize(
    "line",
    [*WITH_ADVICE, "simulate FROZEN/files/zbv_p4_m8.csv --costs FROZEN/files/costs_per_stage.json"],
)
def test_values_of_a_command_are_the_frozen_ones(line: str) -> None:
    assert list(changes({line: frozen_values("commands")[line]}, commands([line]))) == []


@pytest.mark.slow
def test_trainer_configurations_are_read_as_before() -> None:
    require_frozen("configs", configs(check_file("configs.tar.gz")))


def test_a_change_above_the_tolerance_is_found_and_a_new_measure_is_none() -> None:
    frozen = {"plan": {"iteration_time_s": 1.0, "peak_bytes": 2.0}}
    assert list(changes(frozen, {"plan": {"iteration_time_s": 1.0 + 1e-12, "peak_bytes": 2.0, "mfu": 0.5}})) == []
    (change,) = changes(frozen, {"plan": {"iteration_time_s": 1.0 + 1e-8, "peak_bytes": 2.0}})
    assert change.relative == pytest.approx(1e-8)
    assert list(changes(frozen, {"plan": {"peak_bytes": 2.0}})) == [Change("plan", "iteration_time_s", 1.0, None)]
    assert change.measure == "iteration_time_s"
    assert math.isinf(Change("plan", "iteration_time_s", 1.0, None).relative)


def test_tables_of_0_3_0_dev0_are_read() -> None:
    made = ppsim.build("zbv", pp=4, microbatches=8)
    assert ppsim.read_schedule(FILES / "zbv_p4_m8.csv") == made
    simulated = [
        command("simulate", FILES / name, "--costs", FILES / "costs_per_stage.json", "--json").stdout
        for name in ("zbv_p4_m8.csv", "zbv_p4_m8.json")
    ]
    assert numbers_of(json.loads(simulated[0])) == numbers_of(json.loads(simulated[1]))


def test_profile_cluster_and_overheads_of_0_3_0_dev0_are_read() -> None:
    assert ppsim.load_profile(FILES / "profile.json").shapes
    assert ppsim.job(model="llama3-8b", gpus=8, cluster=FILES / "cluster.toml").cluster.constants.fitted_on == (
        "runs.csv",
    )
    made = ppsim.project(pp=4, calibration=FILES / "overheads.json")
    assert made.plan.action_overhead_s == pytest.approx(0.00027561950683574477)


def test_projection_and_run_of_0_3_0_dev0_are_read(tmp_path: Path) -> None:
    command("explain", FILES / "run.json")
    command("calibrate", FILES / "run.json")
    command("figure", "timeline", FILES / "projection.json", "-o", tmp_path / "timeline.svg")


def test_a_search_of_0_3_0_dev0_is_not_continued_with_other_rules_of_memory_and_overlap(tmp_path: Path) -> None:
    state = tmp_path / "tune.json"
    state.write_bytes((FILES / "tune.json").read_bytes())
    said = command(
        "tune", "--model", "llama2-7b", "--gpus", 8, "--global-batch", 16, "--seq-len", 4096, "--pp", 2, "--tp", 2,
        "--zero", 1, "--stack", "plain", "--resume", state, code=2,
    )  # fmt: skip
    assert "is of another search" in said.output
    assert state.read_bytes() == (FILES / "tune.json").read_bytes()
