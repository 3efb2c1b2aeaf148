"""The device's own facts: every kind on a CPU, into a file that has them once a type."""

import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ppsim.base.file_schema import validated

pytest.importorskip("torch")

import torch

from ppsim.base.files import to_json
from ppsim.costs.profile import load_profile
from ppsim.machine.kernels.microbenchmarks import DeviceMicrobenchmarks
from ppsim.profiling import device_microbenchmarks as bench_module
from ppsim.profiling import device_microbenchmarks as facts_module
from ppsim.profiling.device_microbenchmarks import add_facts, measure_facts
from ppsim.profiling.grids import CPU, CUDA, QUICK, BenchmarkGrid
from ppsim.profiling.settings import MeasuringSettings
from ppsim.profiling.sweep import sweep
from tests.profiling.test_sweep import nano_at, profiled


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure_facts(MeasuringSettings(), "float32", grid=QUICK)


def test_what_was_measured_is_of_the_schema(found: dict[str, Any]) -> None:
    facts = validated(DeviceMicrobenchmarks, json.loads(to_json(found)), "test")
    assert len(facts.products) == len(QUICK.tokens) * (3 * len(QUICK.weights) + len(QUICK.groups))
    assert len(facts.attention) == len(QUICK.attention)
    assert {fact.kernel for fact in facts.memory} == {"copy", "elementwise", "norm"}
    assert [fact.copy_of for fact in facts.beside_copies] == ["device"]
    assert facts.not_measured == [
        "copies between host and device: the device is the host",
        "transfers and collectives between devices: there is one device",
    ]


def test_the_three_products_of_a_linear_layer_are_measured_as_autograd_does_them(found: dict[str, Any]) -> None:
    """16 tokens, 32 in, 128 out; the weight's gradient sums over tokens."""
    sizes = {(one["form"], one["m"], one["n"], one["k"]) for one in found["products"] if one["groups"] == 1}
    assert {("forward", 16, 128, 32), ("input", 16, 32, 128), ("weight", 128, 32, 16)} <= sizes


def test_a_sample_of_many_runs_is_divided_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock by which a run takes 2 ms, a sample of 8 ms is 4 runs, and 5 samples are the fewest."""

    class Clock:
        def __init__(self, device: torch.device) -> None:
            pass

        def time(self, work: Any, times: int, launch_s: float = 0.0) -> tuple[None, Any]:
            work(times)
            return None, lambda: 2e-3 * times

    monkeypatch.setattr(facts_module, "clock_of", Clock)
    grid = dataclasses.replace(QUICK, sample_s=8e-3, point_s=1e-3)
    runs: list[str] = []
    works = [partial(runs.append, "one"), partial(runs.append, "other")]
    seconds = facts_module._Bench(torch.device("cpu"), torch.float32, grid).timed(works)
    assert seconds == {"median": 2e-3, "low": 2e-3, "high": 2e-3}
    assert len(runs) == 3 + 2 + 5 * 4  # warm-up, once each, samples
    assert abs(runs.count("one") - runs.count("other")) <= 1


def test_a_gpu_sleeps_until_all_runs_of_a_sample_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 0.5 µs that takes 5 µs to launch: on stand-ins for events, what a sample's two stand around."""
    now, order = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            pass

        def record(self) -> None:
            order.append("event")

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, last: Any) -> float:
            return 8 * 0.5e-3  # ms

    class Stream:
        def synchronize(self) -> None:
            pass

    def launch() -> None:
        now[0] += 5e-6
        order.append("launch")

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for name, stand_in in {
        "Event": Event, "current_stream": Stream, "_sleep": lambda cycles: order.append(f"sleep {cycles / 3e9:.1e} s"),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    grid = dataclasses.replace(QUICK, sample_s=8 * 4e-6, point_s=1e-9)
    bench = facts_module._Bench(torch.device("cuda"), torch.float32, grid)
    seconds = bench.timed([launch])
    sample = ["sleep 4.0e-05 s", "event", *["launch"] * 8, "event"]
    assert order[-5 * len(sample) :] == 5 * sample
    assert seconds["median"] == pytest.approx(0.5e-6)


def test_every_operand_is_rotated_over_more_than_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers, all of them: a GPU computes on zeros above the clock that it holds on data."""
    rotated: list[int] = []
    operands: list[torch.Tensor] = []

    def timed(bench: Any, works: list[Any]) -> dict[str, float]:
        rotated.append(len(works))
        for work in works:
            operands.extend(one for one in work.args if isinstance(one, torch.Tensor) and one.numel() > 64)
        return {"median": 1.0, "low": 1.0, "high": 1.0}

    monkeypatch.setattr(facts_module._Bench, "timed", timed)
    monkeypatch.setattr(facts_module, "_beside_copies", lambda bench: [])
    measure_facts(MeasuringSettings(), "float32", grid=dataclasses.replace(QUICK, rotated_bytes=2**20))
    assert min(rotated) >= 5  # 2^20 bytes of at most three operands of 2^16
    assert all(float(one.detach().float().std()) > 0.05 for one in operands)  # of attention's means the least


def test_bytes_of_a_kernel_are_read_and_written_ones(found: dict[str, Any]) -> None:
    """Operands of 2¹⁶ bytes: one read and one written by a copy, two read and one written by a product."""
    moved = {one["kernel"]: one["bytes"] for one in found["memory"]}
    assert moved == {"copy": 2 * 2**16, "elementwise": 3 * 2**16, "norm": 2 * 2**16}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "does not fit the memory of the device"),
        (RuntimeError("No available kernel. Aborting execution."), "fails (No available kernel)"),
    ],
)
def test_a_point_that_does_not_fit_or_fails_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError, why: str
) -> None:
    def fails(*arguments: Any, **keywords: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(facts_module.functional, "scaled_dot_product_attention", fails)
    found = measure_facts(MeasuringSettings(), "float32", grid=QUICK)
    assert found["attention"] == []
    assert f"attention of 2 heads, sequence length 16: {why}" in found["not_measured"]
    assert found["products"]


def test_facts_are_measured_once_a_type_into_the_file(tmp_path: Path) -> None:
    path, said = tmp_path / "p.json", []
    settings = MeasuringSettings(num_repeats=1, num_warm_up=0)
    sweep(nano_at(path, 1), settings)
    first = add_facts(str(path), settings, "float32", grid=QUICK)
    before = path.read_bytes()
    assert add_facts(str(path), settings, "float32", grid=QUICK, say=said.append) == first
    assert said == [f"facts of the device in float32 are in {path} already"]
    assert path.read_bytes() == before
    both = add_facts(str(path), settings, "bfloat16", grid=QUICK)
    assert len(both["products"]) == 2 * len(first["products"])
    assert both["not_measured"] == first["not_measured"]
    assert load_profile(str(path)).device_facts == validated(DeviceMicrobenchmarks, both, "test")
    sweep(nano_at(path, 1, 2), settings)
    assert json.loads(path.read_text())["device_facts"] == both  # a sweep that goes on leaves them


def test_the_command_measures_them_and_project_estimates_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from ppsim.cli import main

    monkeypatch.setattr("ppsim.profiling.grids.CPU", QUICK)
    path = str(tmp_path / "p.json")
    arguments = ["--model", "llama-mini", "--seq-len", "16", "-o", path]
    assert profiled(*arguments).exit_code == 0
    command = ["project", "--pp", "2", "--profile", path, "--micro-batch-size", "3", "--json"]
    assert CliRunner().invoke(main, command).exit_code == 2
    made = profiled(*arguments, "--facts")
    assert made.exit_code == 0, made.output
    assert "MFU, float32: model FLOPs" in made.stdout
    report = json.loads(CliRunner().invoke(main, command).stdout)
    assert any("estimated from those measured at micro-batch 2" in line for line in report["assumptions"])


@pytest.mark.parametrize("grid", [CPU, CUDA])
def test_grids_hold_what_they_promise(grid: BenchmarkGrid) -> None:
    """Tokens are divided among groups without a rest, and heads among key/value heads."""
    assert all(tokens % groups == 0 for tokens in grid.tokens for groups, _, _ in grid.groups)
    assert all(one.num_heads % one.num_kv_heads == 0 for one in grid.attention)


def test_time_limit_and_facts_are_for_models(tmp_path: Path) -> None:
    made = profiled("--module", "a:b", "--facts", "-o", str(tmp_path / "p.json"))
    assert made.exit_code == 2
    assert "--facts and --time-limit are for models" in made.stderr


def test_a_point_has_5_to_30_samples_of_at_most_250_runs() -> None:
    names = ("_FEWEST", "_MOST", "_MOST_RUNS", "_MOST_OPERANDS")
    assert [getattr(bench_module, name) for name in names] == [5, 30, 250, 200]
