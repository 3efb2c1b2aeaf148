"""The projected curve's peak is what torch holds."""

import gc
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ppsim.base.files import to_json

pytest.importorskip("torch")

import torch

import ppsim
from ppsim.cli import main
from ppsim.costs.of_profile import assemble
from ppsim.runtime.config import GPTShape, TrainConfig
from ppsim.runtime.gpt import build_stage
from ppsim.runtime.launch import launch_all
from ppsim.runtime.live_bytes import LiveBytes
from ppsim.runtime.partitions.run import run_partitions
from ppsim.runtime.partitions.stages import ModelStage
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Op

SCHEDULES = {"1f1b": None, "interleaved-1f1b": 2, "zb-h1": None, "zbv-fixed": 2}
MODEL = GPTShape(num_layers=8, hidden_size=64, num_heads=4, sequence_length=64)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> ppsim.Profile:
    path = tmp_path_factory.mktemp("profile") / "nano.json"
    made = CliRunner().invoke(
        main, ["profile", "--model", "nano", "--layers", "8", "--repeats", "2", "-o", str(path)]
    )
    assert made.exit_code == 0, made.output
    return ppsim.load_profile(str(path))


def table_of(name: str, p: int) -> ppsim.Schedule:
    return ppsim.build(name, pp=p, vpp=SCHEDULES[name], microbatches=2 * p)


def config_of(table: ppsim.Schedule, folder: Path) -> TrainConfig:
    path = folder / f"{table.name}_{table.num_ranks}.csv"
    path.write_text(format_table(table))
    return TrainConfig(
        schedule=str(path), num_ranks=table.num_ranks, model=MODEL, num_steps=1,
        layers_per_stage=[MODEL.num_layers // table.num_stages] * table.num_stages,
    )  # fmt: skip


def check_peaks(memory: dict[str, Any], table: ppsim.Schedule, profile: ppsim.Profile) -> None:
    """Within 3 %: a step's inputs and targets are one tensor, of which every microbatch holds a part."""
    costs = assemble(profile, table, split="even").costs
    costs = costs.with_torch_first_stage(num_stages=table.num_stages, num_ranks=table.num_ranks)
    projected = ppsim.simulate(table, costs)
    at = {projected.name_of(entry): projected.memory.during[entry] for entry in range(projected.num_actions)}
    for rank, peak in enumerate(memory["ranks"]):
        assert peak["rank"] == rank
        expected = projected.memory.peak_activation_bytes[rank]
        assert peak["peak_activation_bytes"] == pytest.approx(expected, rel=0.03)
        assert at[peak["peak_at"]] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_projected_peak_is_the_measured_one_and_stands_there_too(
    name: str, p: int, profile: ppsim.Profile, tmp_path: Path
) -> None:
    table = table_of(name, p)
    check_peaks(run_partitions(config_of(table, tmp_path))["memory"], table, profile)


def test_torch_holds_in_its_own_runtime_what_it_holds_in_ours(profile: ppsim.Profile, tmp_path: Path) -> None:
    tables = [table_of(name, 2) for name in SCHEDULES]
    for table, result in zip(tables, launch_all([config_of(table, tmp_path) for table in tables]), strict=True):
        check_peaks(result["memory"], table, profile)


@pytest.mark.parametrize("passes", [(Op.B,), (Op.I, Op.W)])
def test_a_backward_leaves_nothing_behind(passes: tuple[Op, ...]) -> None:
    """Without the collector: nothing that was saved is part of a cycle."""
    module = build_stage(1, 3, 2, MODEL, seed=0, dtype=torch.float32)
    stage, live = ModelStage(module, is_first=False, loss=None), LiveBytes([module])
    gc.disable()
    try:
        with live.counting():
            stage.run(Op.F, 0, torch.randn(2, 64, 64))
            assert live.live_bytes > 0
            for op in passes:
                stage.run(op, 0, torch.randn(2, 64, 64))
        assert live.live_bytes == 0
    finally:
        gc.enable()


def test_compare_puts_measured_peaks_beside_projected_ones(profile: ppsim.Profile, tmp_path: Path) -> None:
    table = table_of("1f1b", 2)
    (tmp_path / "T.csv").write_text(format_table(table))
    run = CliRunner()
    arguments = ["--schedule", str(tmp_path / "T.csv"), "--partitions", "2", "--layers", "8", "--steps", "1"]
    trained = run.invoke(main, ["train", "--model", "nano", *arguments, "-o", str(tmp_path / "measured.json")])
    assert trained.exit_code == 0, trained.stderr
    assert "peak activations" in trained.stdout
    (tmp_path / "P.json").write_text(to_json(asdict(profile)))
    projected = [
        "project", "--schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--split", "even",
        "--profile", str(tmp_path / "P.json"), "-o", str(tmp_path / "projected.json"),
    ]  # fmt: skip
    assert run.invoke(main, projected).exit_code == 0
    compared = run.invoke(main, ["compare", str(tmp_path / "measured.json"), str(tmp_path / "projected.json")])
    assert compared.exit_code == 0, compared.stderr
    rows = [line.split() for line in compared.stdout.split("measured peak")[1].splitlines()[1:]]
    assert [row[0] for row in rows if row] == ["0", "1"]
    assert all(abs(float(row[-2])) < 3 for row in rows if row)
