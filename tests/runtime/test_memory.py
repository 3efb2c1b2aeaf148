"""The projected curve's peak is what torch holds."""

import gc
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ppsim.base.files import to_json

pytest.importorskip("torch")

import torch

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.cli import main
from ppsim.costs.assemble_profile import assemble
from ppsim.model.recompute import LayerPlan, plan_of_stage
from ppsim.model.shapes import layer_activation_bytes
from ppsim.runtime.gpt import build_stage
from ppsim.runtime.launch import launch_all
from ppsim.runtime.live_bytes import LiveBytes
from ppsim.runtime.partitions import run_partitions
from ppsim.runtime.threads import ModelStage
from ppsim.runtime.train_config import GPTShape, TrainConfig
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Op

SCHEDULES = {"1f1b": None, "interleaved-1f1b": 2, "zb-h1": None, "zbv-fixed": 2}
MODEL = GPTShape(num_layers=8, hidden_size=64, num_heads=4, sequence_length=64)
SMALL = {"layers": 8, "hidden": 64, "heads": 4, "seq_len": 64, "steps": 1, "warm_up": 0}


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


@pytest.mark.torch
def test_torch_holds_in_its_own_runtime_what_it_holds_in_ours(profile: ppsim.Profile, tmp_path: Path) -> None:
    tables = [table_of(name, 2) for name in SCHEDULES]
    for table, result in zip(tables, launch_all([config_of(table, tmp_path) for table in tables]), strict=True):
        check_peaks(result["memory"], table, profile)


@pytest.mark.parametrize("passes", [(Op.B,), (Op.I, Op.W)])
def test_a_backward_leaves_nothing_behind(passes: tuple[Op, ...]) -> None:
    """Without the collector: nothing that was saved is part of a cycle."""
    module = build_stage(1, 3, [LayerPlan(2, "none")], MODEL, seed=0, dtype=torch.float32)
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


_WITH_STORAGE = (torch.Tensor, torch.nn.Parameter)  # tensors of other tests' compilers have none


def live_storages() -> dict[int, int]:
    """The bytes of every storage that a Python object holds; saved tensors too, inside `LiveBytes.counting`."""
    gc.collect()
    storages = (one.untyped_storage() for one in gc.get_objects() if type(one) in _WITH_STORAGE)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


@pytest.mark.parametrize(
    "recompute",
    [
        "none",
        "uniform/3",
        *(
            pytest.param(one, marks=pytest.mark.torch)
            for one in ("full", "full*1", "full*3", "block/2", "uniform/2", "full/2")
        ),
    ],
)
def test_a_stage_keeps_what_its_plan_says(recompute: str) -> None:
    """Within 1 %: each layer what a plain one saves, or its input; a checkpoint of several layers one input.

    The input of the stage is there already.
    """
    gc.freeze()  # earlier objects are not searched
    num_layers, shape = 4, replace(MODEL, hidden_size=128, sequence_length=128)
    plan = plan_of_stage(recompute, num_layers)
    module = build_stage(1, 3, plan, shape, seed=0, dtype=torch.float32)
    live, given = LiveBytes([module]), torch.randn(2, 128, 128).requires_grad_()
    before = live_storages()
    with live.counting():
        output = module(given)
        after = live_storages()
    held = sum(size for pointer, size in after.items() if pointer not in before)
    held -= output.untyped_storage().nbytes()

    def saved(word: str) -> int:
        sizes = {"micro_batch": 2, "sequence_length": 128, "dtype": "float32"}
        return layer_activation_bytes(shape.layer, **sizes, recompute=word)

    parts = [saved(one.recompute) * (1 if one.joined else one.layers) for one in plan]
    checkpoints = sum((1 if one.joined else one.layers) * (one.recompute == "full") for one in plan)
    random_state = checkpoints * torch.get_rng_state().nbytes  # torch keeps it to draw the same numbers again
    assert held - random_state == pytest.approx(sum(parts) - saved("full"), rel=0.01)


@pytest.mark.parametrize(
    "recompute",
    [
        "full*2,none*1",
        pytest.param("uniform/2", marks=pytest.mark.long),
        pytest.param("full/2", marks=pytest.mark.long),
        "full@0,3-5",
    ],
)
@pytest.mark.torch
def test_recomputed_layers_give_the_gradients_of_one_process(recompute: str, tmp_path: Path) -> None:
    table = table_of("1f1b", 2)
    (tmp_path / "T.csv").write_text(format_table(table))
    made = ppsim.train(tmp_path / "T.csv", partitions=2, recompute=recompute, verify=True, **SMALL)
    assert made.facts["differences"]["loss"] == 0


@pytest.mark.torch
def test_a_run_takes_the_plan_of_each_stage_from_a_file(tmp_path: Path) -> None:
    """Rank 0, which has two microbatches in flight and recomputes, holds less than with nothing recomputed."""
    table = table_of("1f1b", 2)
    (tmp_path / "T.csv").write_text(format_table(table))
    peaks = {}
    for word in ("none", "full*3"):
        text = f'[[stages]]\nlayers = 4\nrecompute = "{word}"\n[[stages]]\nlayers = 4\n'
        (tmp_path / "plan.toml").write_text(text)
        plan = {"stage_plan": tmp_path / "plan.toml"}
        made = ppsim.train(tmp_path / "T.csv", partitions=2, **plan, **SMALL | {"warm_up": 1})
        assert made.config.layers_per_stage == [4, 4]
        peaks[word] = [one["peak_activation_bytes"] for one in made.facts["memory"]["ranks"]]
    assert peaks["full*3"][0] < peaks["none"][0] / 1.5
    assert peaks["full*3"][1] == peaks["none"][1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"recompute": "mlp"}, "train recomputes whole layers: got recompute mlp"),
        ({"recompute": "full*9"}, "recompute full\\*9 is of 9 layers, but a stage has 4"),
        ({"recompute": "full@8"}, "has layer 8, but the last of the model is 7"),
        ({"stage_plan": "three.toml"}, "has 3 stages, but the table has 2"),
        ({"stage_plan": "offloads.toml"}, "train offloads nothing: leave out offload_modules of stage 1"),
    ],
)
def test_what_a_run_cannot_recompute_is_refused(words: dict, sentence: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("T.csv").write_text(format_table(table_of("1f1b", 2)))
    Path("three.toml").write_text("[[stages]]\n" * 3)
    Path("offloads.toml").write_text('[[stages]]\n[[stages]]\noffload_modules = "core_attn"\n')
    with pytest.raises(ConfigError, match=sentence):
        ppsim.train("T.csv", partitions=2, layers=8, steps=1, **words)


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
        "project", "--schedule", "1f1b", "--pp", "2", "--num-microbatches", "4", "--split", "even",
        "--profile", str(tmp_path / "P.json"), "-o", str(tmp_path / "projected.json"),
    ]  # fmt: skip
    assert run.invoke(main, projected).exit_code == 0
    compared = run.invoke(main, ["compare", str(tmp_path / "measured.json"), str(tmp_path / "projected.json")])
    assert compared.exit_code == 0, compared.stderr
    rows = [line.split() for line in compared.stdout.split("measured peak")[1].splitlines()[1:]]
    assert [row[0] for row in rows if row] == ["0", "1"]
    assert all(abs(float(row[-2])) < 3 for row in rows if row)
