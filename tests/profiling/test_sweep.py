"""A sweep: one file, whole at every moment, that goes on where it was stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

import torch

from ppsim.base.errors import ConfigError, RunFailed
from ppsim.cli import main
from ppsim.costs.profile import load_profile
from ppsim.model import shapes
from ppsim.profiling import sweep as sweep_module
from ppsim.profiling.harness import costly_splits, measure_shape
from ppsim.profiling.model_shapes import MODELS
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.profiling.sweep import SuiteJob, measure_step, require_success, sweep
from tests.defaults import number_defaults
from tests.profiling.once import ONCE

QUICK = ["--repeats", "2", "--warm-up", "0"]


def profiled(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments, *QUICK])


def nano_at(path: Path, *micro_batches: int) -> SuiteJob:
    """Nano at sequences of 8, into the file."""
    keys = tuple(MeasurementKey(micro_batch=batch, sequence_length=8, dtype="float32") for batch in micro_batches)
    return SuiteJob("nano", MODELS["nano"], keys, path)


def shapes_of(path: Path) -> list[tuple[int, int]]:
    parts = json.loads(path.read_text())["measurements"]
    return list(dict.fromkeys((part["shape"]["micro_batch"], part["shape"]["sequence_length"]) for part in parts))


def test_every_combination_is_measured_once_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    arguments = ["--model", "llama-mini", "--micro-batch-size", "1,2", "--seq-len", "8,16", "--optimizer", "none"]
    arguments += ["-o", str(path)]
    first = profiled(*arguments)
    assert first.exit_code == 0, first.output
    assert "shape 1 of 4: micro-batch 1, sequence length 8, float32\n" in first.stderr
    assert "left\n" in first.stderr
    assert shapes_of(path) == [(1, 8), (2, 8), (1, 16), (2, 16)]
    content = path.read_bytes()
    again = profiled(*arguments)
    assert f"4 of 4 shapes are in {path} already" in again.stderr
    assert "measuring" not in again.stderr
    assert path.read_bytes() == content
    more = profiled(*arguments[:3], "2,3", *arguments[4:])
    assert "shape 1 of 2: micro-batch 3, sequence length 8, float32\n" in more.stderr
    assert shapes_of(path) == [(1, 8), (2, 8), (1, 16), (2, 16), (3, 8), (3, 16)]
    assert "shape 1 of 4" in profiled(*arguments, "--start-over").stderr


@pytest.mark.long
def test_killed_in_the_middle_it_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    """A real SIGKILL, as soon as the file is there; it is valid then, and its shapes stay as they are."""
    path = tmp_path / "p.json"
    command = [sys.executable, "-m", "ppsim", "profile", "--model", "llama-mini", "--micro-batch-size", "1,2",
               "--seq-len", "16,32", "--repeats", "10", "--optimizer", "none", "-o", str(path)]  # fmt: skip
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not path.exists():
        assert killed.poll() is None
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    before = json.loads(path.read_text())["measurements"]
    load_profile(str(path))
    finished = len(shapes_of(path))
    assert 1 <= finished < 4
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{finished} of 4 shapes are in {path} already" in done.stderr
    assert f"shape {4 - finished} of {4 - finished}" in done.stderr
    assert json.loads(path.read_text())["measurements"][: len(before)] == before
    assert len(shapes_of(path)) == 4
    assert [one.name for one in tmp_path.iterdir() if not one.name.startswith(".")] == ["p.json"]


def test_the_clock_is_raised_before_the_first_shape_and_never_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr("ppsim.profiling.sweep.raise_clock", lambda device: order.append(f"clock of {device}"))

    def measured(
        model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any
    ) -> list[dict[str, Any]]:
        order.append(f"shape {key.micro_batch}")
        return []

    monkeypatch.setattr("ppsim.profiling.sweep.measure_shape", measured)
    sweep(nano_at(tmp_path / "p.json", 1, 2), MeasuringSettings())
    assert order == ["clock of cpu", "shape 1", "shape 2"]
    sweep(nano_at(tmp_path / "q.json"), MeasuringSettings())
    assert len(order) == 3


def test_a_shape_that_does_not_fit_is_recorded_and_the_rest_measured(tmp_path: Path) -> None:
    """10¹² sequences exceed the address space: the allocator says so at once."""
    path = tmp_path / "p.json"
    arguments = ["--model", "nano", "--seq-len", "8", "--micro-batch-size", "1000000000000,2", "-o", str(path)]
    made = profiled(*arguments)
    assert made.exit_code == 0, made.output
    assert "micro-batch 1000000000000, sequence length 8, float32 does not fit" in made.stderr
    assert shapes_of(path) == [(2, 8)]
    assert "2 of 2 shapes are in" in profiled(*arguments).stderr
    with pytest.raises(ConfigError, match="micro-batch 1000000000000 did not fit the memory of"):
        load_profile(str(path)).shape_at(micro_batch=10**12)


NO_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
)


@pytest.mark.parametrize("error", [*NO_MEMORY, RuntimeError("a defect. More of it"), KeyError("forward")])
def test_whatever_a_shape_fails_with_is_recorded_and_the_next_one_measured(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Want of memory for what it is; anything else in `failed`. A repeated sweep leaves both."""
    calls: list[MeasurementKey] = []

    def fails(model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any) -> list[dict[str, Any]]:
        calls.append(key)
        if key.micro_batch == 1:
            raise error
        return measure_shape(model, key, settings)

    monkeypatch.setattr("ppsim.profiling.sweep.measure_shape", fails)
    path, job = tmp_path / "p.json", nano_at(tmp_path / "p.json", 1, 2)
    for _ in range(2):
        content = sweep(job, ONCE)
    assert tuple(calls) == job.keys
    assert shapes_of(path) == [(2, 8)]
    failed = [(one["shape"]["micro_batch"], one["error"]) for one in content["failed"]]
    if error in NO_MEMORY:
        assert ([one["micro_batch"] for one in content["does_not_fit"]], failed) == ([1], [])
        require_success([content])
    else:
        words = {RuntimeError: "RuntimeError: a defect", KeyError: "KeyError: 'forward'"}[type(error)]
        assert failed == [(1, words)]
        with pytest.raises(RunFailed, match="1 shape failed, first micro-batch 1, sequence length 8, float32: "):
            require_success([content])
    assert len(load_profile(str(path)).failed) == len(failed)


def test_a_step_that_fails_is_recorded_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **fields: Any) -> list[dict[str, Any]]:
        raise RuntimeError("no such optimizer")

    monkeypatch.setattr("ppsim.profiling.sweep.measure_optimizer", fails)
    path = tmp_path / "p.json"
    arguments = ["--model", "nano", "--seq-len", "8", "-o", str(path)]
    made = profiled(*arguments)
    assert made.exit_code == 1
    assert (
        "a step of adamw for micro-batch 2, sequence length 8, float32 fails: RuntimeError: no such" in made.stderr
    )
    assert f"wrote {path}" in made.stderr
    assert shapes_of(path) == [(2, 8)]
    again = profiled(*arguments)
    assert again.exit_code == 1
    assert "a step of adamw" not in again.stderr
    assert "1 shape failed, first micro-batch 2" in again.stderr


def test_a_device_that_answers_no_more_ends_the_process_and_the_file_names_the_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a kernel stays with the process: those behind it would be recorded as failed too."""

    def fails(*arguments: Any, **fields: Any) -> list[dict[str, Any]]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def answers_not() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("ppsim.profiling.sweep.release_memory", answers_not)
    monkeypatch.setattr("ppsim.profiling.sweep.measure_shape", fails)
    path = tmp_path / "p.json"
    with pytest.raises(RunFailed, match=r"the device answers no more .*illegal memory access.*repeat the command"):
        sweep(nano_at(path, 1, 2), MeasuringSettings())
    assert [one["shape"]["micro_batch"] for one in json.loads(path.read_text())["failed"]] == [1]


def test_parts_of_a_rank_are_projected_where_they_are_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "p.json")
    arguments = ["--model", "moe-mini", "--seq-len", "16", "--micro-batch-size", "1", "-o", path]
    assert profiled(*arguments, "--tp", "2", "--ep", "4", "--recompute", "full").exit_code == 0
    assert profiled(*arguments).exit_code == 0
    profile = load_profile(path)
    layer = MODELS["moe-mini"].layer
    shard = profile.find("layer", profile.shape_at(tp=2))
    assert shard.parameters == shapes.layer_parameters(layer.shard(tp=2, ep=4))
    assert shard.forward_flops == shapes.layer_forward_flops(
        layer.shard(tp=2, ep=4), micro_batch=1, sequence_length=16
    )
    assert shard.activation_bytes == 16 * layer.hidden_size * 4
    assert profile.shape_at().tp == 1  # though the other was measured first

    def projected(*options: str) -> dict[str, Any]:
        result = CliRunner().invoke(main, ["project", "--pp", "2", "--profile", path, "--json", *options])
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    whole, part = projected(), projected("--tp", "2", "--ep", "4", "--recompute", "full")
    assert (whole["profile"]["shape"]["tp"], part["profile"]["shape"]["tp"]) == (1, 2)
    assert part["tokens_per_s_per_gpu"] == pytest.approx(part["tokens_per_s"] / (2 * 2))
    assert any("one rank's part" in line for line in part["assumptions"])
    wrong = CliRunner().invoke(main, ["project", "--pp", "2", "--profile", path, "--tp", "8"])
    assert wrong.exit_code == 2
    assert "profile p was not measured at tp 8 (there is: micro-batch 1, sequence length 16, float32, tp 2, ep 4, " \
        "recompute full; micro-batch 1, sequence length 16, float32)" in wrong.stderr  # fmt: skip


def halves(component: str, ratio: float) -> dict[str, Any]:
    return {"component": component, "backward_s": {"median": 2.0}, "backward_input_s": {"median": 1.0},
            "backward_weight_s": {"median": 2.0 * ratio - 1.0}}  # fmt: skip


def test_a_costly_split_is_said_once_a_component() -> None:
    parts = [halves("layer", 1.5), halves("layer", 1.25), halves("layer", 2.0), halves("head", 1.1)]
    assert costly_splits({"measurements": parts}) == [
        "layer: (I + W) / B is 1.50 to 2.00 at 2 of 3 shapes: zero-bubble schedules hardly pay off, splitting makes "
        "its backward 100 % longer"
    ]


WRONG = {
    "a word": (["--micro-batch-size", "1,two"], "--micro-batch-size is '1,two': give numbers as 1,2,4"),
    "none": (["--seq-len", "0,8"], "--seq-len must be at least 1: got 0"),
    "a model": (["--model", "llama"], "unknown model 'llama': did you mean llama"),
    "tp": (["--model", "llama-mini", "--tp", "4"], "got 4 with 2"),
    "hidden": (["--model", "llama-mini", "--hidden", "64"], "--hidden and --heads are for nano, micro, mini, gpt2: "),
    "both": (["--module", "a:b", "--tp", "2"], "--module says what is measured: leave out --tp"),
    "no colon": (["--module", "a.b"], "--module is 'a.b'"),
    "no module": (["--module", "a_b:c"], "--module a_b:c fails: ModuleNotFoundError: No module named 'a_b'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_measured(tmp_path: Path, case: str) -> None:
    arguments, sentence = WRONG[case]
    result = profiled(*arguments, "-o", str(tmp_path / "p.json"))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "measuring" not in result.stderr


def test_a_file_that_was_measured_otherwise_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert profiled("--model", "nano", "--seq-len", "8", "-o", str(path)).exit_code == 0
    other = profiled("--model", "llama-mini", "--seq-len", "8", "-o", str(path))
    assert other.exit_code == 2
    assert f"{path} holds measurements with name GPT nano, not llama-mini: give another file, or --start-over" in (
        other.stderr
    )
    path.write_text("[]")
    assert f"{path} is no profile" in profiled("--model", "nano", "-o", str(path)).stderr


@pytest.mark.parametrize("num_warm_up", [0, 2])
def test_a_step_is_measured_after_one_that_creates_the_state_and_those_that_warm_up(
    num_warm_up, monkeypatch
) -> None:
    """The times are of one of the equal units, the weights of two are 2 · 8 · 4."""
    steps = []
    monkeypatch.setattr(sweep_module._Step, "step", lambda self: steps.append("step"))
    monkeypatch.setattr(sweep_module._Step, "clip", lambda self: steps.append("clip"))
    monkeypatch.setattr(sweep_module._Step, "state_bytes", 512)
    monkeypatch.setattr(
        sweep_module, "sample_times", lambda repeat, **_: {"step_s": [6.0] * 3, "gradient_norm_s": [2.0] * 3}
    )
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 4, bias=False) for _ in range(2)))
    settings = MeasuringSettings(num_warm_up=num_warm_up)
    found = measure_step(layers, "adamw", settings, is_hidden=True, num_units=2)
    assert steps == ["clip", "step"] * (num_warm_up + 1)
    assert (found["parameters"], found["state_bytes"]) == (32, 256)
    assert [found[name]["median"] for name in ("step_s", "gradient_norm_s")] == [3.0, 1.0]


def test_a_sweep_says_its_shapes_and_records_its_spans_and_casts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape of four is in the file, one fails, and the time is over before the last one."""
    now, said, paced = [100.0], [], []

    def measured(
        model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any
    ) -> list[dict[str, Any]]:
        now[0] += 7.0
        if key.micro_batch == 2:
            raise ValueError("odd")
        return [{"component": "layer", "shape": vars(key)}]

    pace: Any = SimpleNamespace(
        is_stopped=False, left=", little left", has_time_for=lambda work: work < 4, done=lambda work: paced.append(work),
        dropped=lambda work: paced.append(-work),
    )  # fmt: skip
    monkeypatch.setattr(sweep_module, "measure_shape", measured)
    monkeypatch.setattr(sweep_module, "require_measurable", lambda *given: None)
    monkeypatch.setattr(sweep_module, "fused_cast", lambda device, *, compiled: (None, f"cast {device} {compiled}"))
    monkeypatch.setattr(
        sweep_module,
        "estimate_duration",
        lambda model, key, settings: SimpleNamespace(seconds=float(key.micro_batch)),
    )
    monkeypatch.setattr(sweep_module.time, "time", lambda: now[0])
    monkeypatch.setattr(sweep_module, "raise_clock", lambda device: said.append(str(device)))
    path = tmp_path / "p.json"
    keys = [
        MeasurementKey(size, 8, dtype) for size, dtype in ((3, "fp8"), (1, "fp8"), (2, "float32"), (9, "float32"))
    ]
    job = SuiteJob("nano", MODELS["nano"], (keys[0],), path)
    sweep(job, ONCE, pace=pace, say=said.append)
    assert said == ["cpu", f"shape 1 of 1: {keys[0]}, little left"]
    said.clear()
    content = sweep(SuiteJob("nano", MODELS["nano"], (*keys, keys[1]), path), ONCE, pace=pace, say=said.append)
    assert said == [
        f"2 of 5 shapes are in {path} already (--start-over forgets them)", "cpu",
        f"shape 1 of 3: {keys[1]}, little left", f"shape 2 of 3: {keys[2]}, little left",
        f"{keys[2]} fails: ValueError: odd; recorded so", f"1 of 5 shapes of {path} are left: the time is over",
    ]  # fmt: skip
    assert paced == [3.0, 1.0, -2.0]
    assert content["provenance"]["measured_at"] == [[100.0, 107.0], [107.0, 121.0]]
    assert content["provenance"]["notes"][1:] == ["cast cpu False"]
    assert [part["shape"]["micro_batch"] for part in content["measurements"]] == [3, 1]
    failure = {"shape": vars(keys[2]), "optimizer": None, "error": "ValueError: odd"}
    assert content["failed"] == [failure]
    assert json.loads(path.read_text()) == content
    again = sweep(job, ONCE, start_over=True, pace=pace)
    assert again["failed"] == []


def test_an_optimizers_step_is_measured_for_each_component(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def step(
        module: torch.nn.Module, name: str, settings: Any, *, is_hidden: bool, num_units: int
    ) -> dict[str, Any]:
        kind = next(module.parameters()).dtype
        made.append((name, is_hidden, num_units, kind, sum(one.numel() for one in module.parameters())))
        return {"step_s": len(made)}

    said: list[str] = []
    monkeypatch.setattr(sweep_module, "measure_step", step)
    model, key = MODELS["llama-mini"], MeasurementKey(3, 16, "bfloat16", tp=2, cp=2, recompute="full")
    found = sweep_module.measure_optimizer(model, key, "adamw", ONCE, say=said.append)
    shard, common = model.shard(tp=2, ep=1), {"optimizer": "adamw", "tp": 2, "ep": 1, "dtype": "bfloat16"}
    assert found == [
        {"component": name, **common, "step_s": at} for at, name in enumerate(("embedding", "layer", "head"), 1)
    ]
    assert [one[:4] for one in made] == [
        ("adamw", name == "layer", 4 if name == "layer" else 1, torch.bfloat16)
        for name in ("embedding", "layer", "head")
    ]
    assert made[1][4] == 4 * shapes.layer_parameters(shard.layer)
    assert said == ["measuring a step of adamw"]
    sizes = {name: sweep_module._at({"format": "f", "model": {"name": "m"}}, *name) for name in (
        ("", "format"), ("model", "name"), ("model", "odd"), ("provenance", "name"),
    )}  # fmt: skip
    assert list(sizes.values()) == ["f", "m", None, None]


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(sweep_module) == {"measure_step": {"num_units": 1}, "sweep": {"start_over": False}}
