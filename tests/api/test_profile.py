"""Which sizes and shapes `ppsim.profile` measures by its options."""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api.profile import (
    DEFAULT_MODEL,
    DEFAULT_RANKS,
    keys_from,
    measure,
    measurement_job,
    model_from,
    num_calibration_ranks,
    profiled_module,
    settings_from,
)
from ppsim.base.errors import ConfigError
from ppsim.profiling.options import OF_MODELS
from ppsim.profiling.settings import MeasuringSettings

pytest.importorskip("torch")

GIVEN: dict[str, Any] = dict.fromkeys(
    ("model", "hidden", "heads", "layers", "dtype", "recompute", "tp", "cp", "ep", "seq_len", "micro_batch")
)


def test_sizes_are_those_of_the_model_but_the_given() -> None:
    usual = model_from(GIVEN)
    other = model_from(GIVEN | {"hidden": 256, "heads": 8, "layers": 3})
    assert usual.num_layers not in (None, 3)
    assert (other.num_layers, other.layer.hidden_size, other.layer.num_heads) == (3, 256, 8)
    assert other.sequence_length == usual.sequence_length
    with pytest.raises(ConfigError, match="llama3-8b has other sizes beside them"):
        model_from(GIVEN | {"model": "llama3-8b", "heads": 8})


def test_shapes_are_all_combinations_of_the_given_numbers() -> None:
    model = model_from(GIVEN)
    [usual] = keys_from(GIVEN, model)
    assert (usual.micro_batch, usual.sequence_length, usual.tp, usual.cp, usual.ep) == (
        2, model.sequence_length, 1, 1, 1,
    )  # fmt: skip
    assert (usual.dtype, usual.recompute) == ("float32", "none")
    several = keys_from(GIVEN | {"tp": [1, 2], "micro_batch": (1, 4), "seq_len": 128, "dtype": "bfloat16"}, model)
    assert [(one.tp, one.micro_batch) for one in several] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert {(one.sequence_length, one.dtype, one.cp, one.ep) for one in several} == {(128, "bfloat16", 1, 1)}
    with pytest.raises(ConfigError, match="tp must be at least 1"):
        keys_from(GIVEN | {"tp": [0, 1]}, model)


CHOSEN: dict[str, Any] = (
    GIVEN
    | dict.fromkeys(OF_MODELS)
    | dict.fromkeys(("module", "pp", "facts", "time_limit", "repeats", "device", "compile"))
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Return what is called in place of measurements."""
    calls: list[tuple[str, Any]] = []

    def run_jobs(jobs: Any, settings: Any, **how: Any) -> list[str]:
        how["say"]("said")
        calls.append(("run", (jobs, settings, {name: how[name] for name in how if name not in ("say", "watch")})))
        return ["content"]

    def run_calibration(*given: Any, num_processes: int, say: Any, watch: Any) -> None:
        say("calibrating")
        calls.append(("calibrate", (*given, num_processes)))

    monkeypatch.setattr("ppsim.profiling.suite.run_jobs", run_jobs)
    monkeypatch.setattr("ppsim.profiling.calibration_run.run_calibration", run_calibration)
    monkeypatch.setattr("ppsim.profiling.grids.grid_of", lambda device: f"grid of {device}")
    monkeypatch.setattr(
        "ppsim.profiling.sweep.require_success", lambda contents: calls.append(("required", contents))
    )
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(("freeze", None)))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append(("unfreeze", None)))
    return calls


@pytest.mark.parametrize(
    ("options", "grid", "num_processes", "expected"),
    [
        ({}, None, 1, {"optimizers": ["adamw"], "facts": None, "start_over": False, "time_limit_s": None}),
        (
            {"optimizer": ["sgd"], "facts": True, "start_over": True, "time_limit": 9.0}, None, 3,
            {"optimizers": ["sgd"], "facts": "grid of cpu", "start_over": True, "time_limit_s": 9.0},
        ),
        (
            {"optimizer": ["none"], "facts": True}, "of the suite", 1,
            {"optimizers": [], "facts": "of the suite", "start_over": False, "time_limit_s": None},
        ),
    ],
)  # fmt: skip
def test_jobs_are_measured_without_garbage_collection_and_a_single_one_calibrated(
    options: dict[str, Any],
    grid: Any,
    num_processes: int,
    expected: dict[str, Any],
    measured: list[tuple[str, Any]],
) -> None:
    given = dict.fromkeys(("optimizer", "facts", "start_over", "time_limit")) | options
    job: Any = SimpleNamespace(path="p.json", model="model", keys=["first", "second"])
    settings, said = MeasuringSettings(device="cpu"), []

    @contextmanager
    def progress() -> Iterator[tuple[Any, Any]]:
        yield said.append, None

    measure([job], settings, given, num_processes=num_processes, grid=grid, show=lambda contents: measured.append(
        ("shown", contents)
    ), progress=progress)  # fmt: skip
    calibrated = [("calibrate", ("p.json", "model", "first", settings, num_processes))] * (num_processes > 1)
    assert measured == [
        ("freeze", None), ("run", ([job], settings, expected)), ("unfreeze", None), ("shown", ["content"]),
        ("required", ["content"]), *calibrated,
    ]  # fmt: skip
    assert said == ["said", "calibrating"][: 1 + (num_processes > 1)]


@pytest.mark.parametrize(
    ("options", "reason", "ranks"),
    [
        ({}, "", DEFAULT_RANKS), ({"repeats": 3}, "", 1), ({}, "no", 1), ({"pp": 1}, "no", 1), ({"pp": 5}, "", 5),
        ({"pp": 5, "repeats": 3}, "", 5),
    ],
)  # fmt: skip
def test_a_calibration_run_has_the_ranks_of_pp_or_its_own_if_repeats_are_not_given(
    options: dict[str, Any], reason: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "ppsim.profiling.settings.why_no_calibration_run", lambda *all, **how: asked.append((all, how)) or reason
    )
    model: Any = "model"
    key: Any = "key"
    assert num_calibration_ranks(CHOSEN | options, model, key) == ranks
    assert asked == [(("model", "key"), {"device": "cpu", "compiled": False})]


def test_ranks_that_cannot_be_calibrated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.profiling.settings.why_no_calibration_run", lambda *_, **__: "it is compiled")
    nothing: Any = None
    with pytest.raises(
        ConfigError, match="--pp 2: a calibration run is not possible: it is compiled; leave out --pp"
    ):
        num_calibration_ranks(CHOSEN | {"pp": 2}, nothing, nothing)
    with pytest.raises(ConfigError, match="pp must be at least 1"):
        num_calibration_ranks(CHOSEN | {"pp": 0}, nothing, nothing)


def test_a_job_has_the_model_and_the_ranks_of_its_first_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.api.profile.num_calibration_ranks", lambda options, model, key: key.micro_batch + 1)
    job, ranks = measurement_job(GIVEN | {"micro_batch": (3, 5)}, Path("p.json"))
    assert (job.model_name, job.path, [key.micro_batch for key in job.keys], ranks) == (
        DEFAULT_MODEL, Path("p.json"), [3, 5], 4,
    )  # fmt: skip
    assert measurement_job(GIVEN | {"model": "gpt2"}, Path("p.json"))[0].model_name == "gpt2"


def test_a_module_is_measured_with_its_layers_and_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("ppsim.profiling.module.profile_made", lambda *all, **how: given.append((all, how)) or {})
    settings = MeasuringSettings()
    module = CHOSEN | {"module": "own.py:model"}
    profiled_module(module, settings)
    profiled_module(module | {"layers": 7, "micro_batch": (3, 5), "pp": 4}, settings)
    assert [how | {"say": None} for _, how in given] == [
        {"num_layers": None, "micro_batches": None, "pp": 1, "say": None},
        {"num_layers": 7, "micro_batches": [3, 5], "pp": 4, "say": None},
    ]
    assert given[0][0] == ("own.py:model", settings)
    for options, sentence in (
        ({"model": "gpt2"}, "--module says what is measured: leave out --model"),
        ({"pp": 0}, "pp must be at least 1"),
        ({"facts": True}, "--facts and --time-limit are for models"),
        ({"time_limit": 0.0}, "--facts and --time-limit are for models"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            profiled_module(module | options, settings)


def test_a_profile_is_a_json_file_that_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a profile is a .json file: got p.csv"):
        ppsim.profile(output="p.csv")
    with pytest.raises(ConfigError, match="no-such-folder"):
        ppsim.profile(output=tmp_path / "no-such-folder" / "p.json")


SETTINGS: dict[str, Any] = dict.fromkeys(
    ("repeats", "warm_up", "time_limit", "threads", "device", "compile", "cuda_graphs")
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, MeasuringSettings(least_s=1.0, component_s=1.0)),
        ({"repeats": 1}, MeasuringSettings(num_repeats=1)),
        (
            {"repeats": 9, "warm_up": 0, "threads": 3},
            MeasuringSettings(num_repeats=9, num_warm_up=0, num_threads=3),
        ),
        (
            {"repeats": 9, "device": "cuda", "compile": True, "cuda_graphs": True, "time_limit": 0.5},
            MeasuringSettings(num_repeats=9, device="cuda", compiled=True, cuda_graphs=True),
        ),
    ],
)
def test_settings_have_a_second_per_component_unless_repeats_are_given(
    options: dict[str, Any], expected: MeasuringSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppsim.api.profile._LEAST_S", 1.0)
    assert settings_from(SETTINGS | options) == expected
    suite = MeasuringSettings(device="cuda", num_repeats=4, num_warm_up=7, least_s=5.0)
    assert settings_from(SETTINGS | {"warm_up": 2}, suite) == MeasuringSettings(
        device="cuda", num_repeats=4, num_warm_up=2, least_s=5.0
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"repeats": 0}, "--repeats must be at least 1 and --warm-up not negative: got 0 and 5"),
        ({"warm_up": -1}, "--repeats must be at least 1 and --warm-up not negative: got 30 and -1"),
        ({"time_limit": 0.0}, "--time-limit must be more than 0 seconds: got 0"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"cuda_graphs": True}, "--cuda-graphs is for --device cuda: a CPU has none"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings_from(SETTINGS | options)


def test_the_profile_of_a_module_is_written_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    asked: list[Any] = []
    monkeypatch.setattr("ppsim.api.profile.require_extra", lambda name: None)
    monkeypatch.setattr("ppsim.api.profile.require_device", asked.append)
    monkeypatch.setattr("ppsim.api.profile.profiled_module", lambda options, settings: {"of": options["module"]})
    monkeypatch.setattr("ppsim.costs.profile.load_profile", lambda path: json.loads(Path(path).read_text()))
    assert ppsim.profile(module="own.py:layers", output=path) == {"of": "own.py:layers"}
    assert json.loads(path.read_text()) == {"of": "own.py:layers"}
    assert asked == ["cpu"]
