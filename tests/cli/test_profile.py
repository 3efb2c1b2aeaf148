"""What `profile` says of shapes, files and times, of jobs whose times are given."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from ppsim.base.errors import ConfigError
from ppsim.cli import main, profile
from ppsim.profiling.options import OF_MODELS
from ppsim.profiling.settings import MeasuringSettings


def job_of(name: str, *keys: str) -> SimpleNamespace:
    made = tuple(SimpleNamespace(dtype="bfloat16") for _ in keys)
    return SimpleNamespace(model_name=name, model=None, keys=made, path=Path(f"{name}.json"))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Each shape takes 2 TFLOP and 3 s, the calibration run 7 s; `waiting` is the number of shapes to measure."""
    given: dict[str, Any] = {"waiting": None}

    def expected_of(job: Any, keys: Any, settings: Any) -> SimpleNamespace:
        return SimpleNamespace(flops=2e12 * len(keys), seconds=3.0 * len(keys))

    monkeypatch.setattr("ppsim.profiling.suite.expected_of", expected_of)
    monkeypatch.setattr("ppsim.profiling.suite.waiting_keys", lambda job: list(job.keys)[: given["waiting"]])
    monkeypatch.setattr("ppsim.profiling.calibration_run.expected_s", lambda *_: 7.0)
    monkeypatch.setattr("ppsim.profiling.duration_estimate.assumed_rate", lambda *_, **__: (1e12, "some speed"))
    return given


@pytest.mark.parametrize(
    ("waiting", "options", "total", "beside"),
    [
        (None, {}, "3 shapes, 6.00 TFLOP: about 9.00 s", ""),
        (1, {}, "2 shapes, 4.00 TFLOP: about 6.00 s", ""),
        (1, {"start_over": True}, "3 shapes, 6.00 TFLOP: about 9.00 s", ""),
        (None, {"with_facts": True}, "about 69.0 s", "at most 60.0 s for the device microbenchmarks"),
        (None, {"num_processes": 2}, "about 16.0 s", "7.00 s for the calibration run with 2 processes"),
    ],
)
def test_a_dry_run_adds_up_the_shapes_that_are_left(waiting, options, total, beside, times, capsys) -> None:
    times["waiting"] = waiting
    given = {"with_facts": False, "start_over": False, "num_processes": 1} | options
    profile.dry_run([job_of("a", "1", "2"), job_of("b", "1")], MeasuringSettings(device="cuda"), **given)
    printed = capsys.readouterr()
    text = " ".join(printed.out.split())
    assert total in text
    assert beside in text
    assert "at some speed; 1.50 s per shape" in text
    is_partly_done = waiting == 1 and not options
    assert printed.err == ("1 of 2 shapes are in a.json already\n" if is_partly_done else "")


def test_a_dry_run_of_one_shape_or_none(times, capsys) -> None:
    options = {"with_facts": True, "start_over": False, "num_processes": 2}
    profile.dry_run([job_of("a", "1")], MeasuringSettings(device="cpu"), **options)
    assert "1 shape, 2.00 TFLOP: about 15.0 s at some speed; 200 ms per shape" in " ".join(
        capsys.readouterr().out.split()
    )
    times["waiting"] = 0
    profile.dry_run([job_of("a", "1")], MeasuringSettings(device="cpu"), **options)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("device", "num_processes", "start_over", "sentence"),
    [
        ("cpu", 1, False, "measuring will take about 3.00 s at the current machine speed\n"),
        ("cpu", 1, True, "measuring will take about 6.00 s at the current machine speed\n"),
        (
            "cuda",
            2,
            False,
            "measuring and the calibration run will take about 3.00 s and 7.00 s on an idle device\n",
        ),
    ],
)
def test_how_long_it_takes_is_said_before(device, num_processes, start_over, sentence, times, capsys) -> None:
    times["waiting"] = 1
    settings = MeasuringSettings(device=device)
    profile._say_how_long(job_of("a", "1", "2"), settings, num_processes, start_over=start_over)
    assert capsys.readouterr().err == sentence
    times["waiting"] = 0
    profile._say_how_long(job_of("a", "1", "2"), settings, num_processes, start_over=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("with_names", [True, False])
def test_profiles_of_a_suite_have_their_names_and_every_file_is_named_once(with_names, monkeypatch, capsys) -> None:
    jobs = [job_of("a"), job_of("b"), job_of("a")]
    contents = [{"measurements": []}, {"measurements": []}]
    for name in ("print_measurements", "print_stage_times"):
        monkeypatch.setattr(f"ppsim.results.catalogues.{name}", lambda content, name=name: print(name))
    monkeypatch.setattr(
        "ppsim.profiling.harness.costly_splits", lambda content: ["costly"] if content is contents[1] else []
    )
    monkeypatch.setattr(
        "ppsim.costs.utilization.implausible", lambda content: ["implausible"] if content is contents[1] else []
    )
    profile.print_profiles(jobs, contents, with_names=with_names)
    printed = capsys.readouterr()
    tables = ["print_measurements", "print_stage_times"]
    assert printed.out.split() == (["a", *tables, "b", *tables] if with_names else tables * 2)
    of_b = "b, " if with_names else ""
    assert printed.err.splitlines() == ["wrote a.json", f"{of_b}costly", f"{of_b}implausible", "wrote b.json"]


def test_a_progress_bar_has_the_work_done_and_the_time_left(monkeypatch) -> None:
    updates = []

    class Bar:
        say = print

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, text: str, *, done: float, total: float) -> None:
            updates.append((text, done, total))

    monkeypatch.setattr(profile, "progress", lambda *_, **__: Bar())
    with profile.progress_messages() as (say, watch):
        assert say is print
        watch(SimpleNamespace(left_s=90.0, done_work=1.0, total=4.0))
        watch(SimpleNamespace(left_s=None, done_work=0.0, total=0.0))
    assert updates == [("about 90.0 s left", 1.0, 4.0), ("", 0.0, 1.0)]


def options_with(**given: Any) -> dict[str, Any]:
    return dict.fromkeys((*OF_MODELS, "micro_batch", "layers", "pp", "suite", "module")) | given


def test_a_suite_is_a_folder_and_says_itself_what_is_measured(tmp_path, monkeypatch) -> None:
    checked = []
    monkeypatch.setattr(profile, "check_outputs", lambda *found: checked.append(found))
    (tmp_path / "file").touch()
    profile._check(str(tmp_path / "new"), options_with(suite="smoke"))
    assert not checked
    profile._check("p.json", options_with(layers="2"))
    assert checked == [(["p.json"], [".json"])]
    profile._check(str(tmp_path), options_with(suite="smoke", module="a:b", layers="2"))
    for given in (
        {"layers": "2"},
        {"pp": 2},
        {"micro_batch": "1"},
        {"model": "gpt2"},
        {"module": "a:b", "micro_batch": "1"},
    ):
        with pytest.raises(ConfigError, match="--suite says what is measured: leave out --"):
            profile._check(str(tmp_path), options_with(suite="smoke", **given))
    with pytest.raises(ConfigError, match="is a file"):
        profile._check(str(tmp_path / "file"), options_with(suite="smoke"))


def test_a_module_in_a_suite_has_a_file_of_its_own() -> None:
    jobs = [SimpleNamespace(path=Path("suite/a.json"))]
    assert profile._path_in_suite("own.py:b", jobs, "suite") == Path("suite/b.json")
    with pytest.raises(ConfigError, match="would be written to suite"):
        profile._path_in_suite("own.py:a", jobs, "suite")


def test_all_threads_are_those_that_the_process_may_use() -> None:
    assert profile._threads("3") == 3
    assert profile._threads("all") == len(os.sched_getaffinity(0))
    for text in ("0", "-1", "two"):
        with pytest.raises(ConfigError, match=f"at least 1, or all: got {text}"):
            profile._threads(text)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Return what the command calls; a suite has the models a and b, and a job 3 ranks."""
    calls: list[tuple[str, Any]] = []

    def note(target: Any, name: str, made: Any = None) -> None:
        short = name.rpartition(".")[2]
        record = lambda *all, **how: calls.append((short, (all, how))) or made  # noqa: E731
        monkeypatch.setattr(name, record) if target is None else monkeypatch.setattr(target, name, record)

    suite = SimpleNamespace(
        jobs=lambda folder: [
            SimpleNamespace(path=Path(folder) / f"{name}.json", keys=(), model_name=name) for name in "ab"
        ],
        settings="of the suite", micro_batches=(7,), grid="grid",
    )  # fmt: skip
    monkeypatch.setattr("ppsim.profiling.suite.SUITES", {"smoke": suite})
    note(None, "ppsim.runtime.launch.require_extra")
    note(None, "ppsim.runtime.launch.require_device")
    note(None, "ppsim.api.profile.measurement_job", (job_of("one", "1"), 3))
    note(None, "ppsim.api.profile.measure")
    for name in ("dry_run", "_measure_module", "_say_how_long", "_check"):
        note(profile, name)
    monkeypatch.setattr(
        "ppsim.api.profile.settings_from",
        lambda given, of_suite: SimpleNamespace(device="cuda", threads=given["threads"], of_suite=of_suite),
    )
    return calls


def run(output: str, **options: Any) -> None:
    params = main.commands["profile"].make_context("profile", ["-o", output]).params
    main.commands["profile"].callback(**params | options)  # type: ignore[misc]


def test_a_job_is_measured_with_its_calibration_run(called: list[tuple[str, Any]]) -> None:
    run("p.json", threads="3", start_over=True)
    assert [name for name, _ in called] == [
        "require_extra", "_check", "measurement_job", "require_device", "_say_how_long", "measure",
    ]  # fmt: skip
    made = dict(called)
    (given, path), _ = made["measurement_job"]
    assert (path, given["threads"]) == (Path("p.json"), 3)
    assert made["require_device"] == (("cuda",), {})
    (job, settings, ranks), how = made["_say_how_long"]
    assert (job.model_name, settings.threads, settings.of_suite, ranks, how) == (
        "one",
        3,
        None,
        3,
        {"start_over": True},
    )
    (jobs, _, _), how = made["measure"]
    assert (jobs, how["num_processes"], how["grid"]) == ([job], 3, None)


def test_a_suite_is_measured_into_its_folder_with_the_device(called: list[tuple[str, Any]], tmp_path: Path) -> None:
    run(str(tmp_path / "new"), suite="smoke")
    assert [name for name, _ in called] == ["require_extra", "_check", "require_device", "measure"]
    (jobs, settings, given), how = dict(called)["measure"]
    assert [job.model_name for job in jobs] == ["a", "b"]
    assert (settings.of_suite, given["facts"], how["num_processes"], how["grid"]) == (
        "of the suite",
        True,
        1,
        "grid",
    )
    assert (tmp_path / "new").is_dir()


def test_a_module_is_measured_alone_or_before_a_suite(called: list[tuple[str, Any]], tmp_path: Path) -> None:
    run(str(tmp_path / "p.json"), module="own.py:c", micro_batch=(2,), facts=True)
    assert [name for name, _ in called][2:] == ["require_device", "_measure_module"]
    (given, _, path), _ = dict(called)["_measure_module"]
    assert (path, given["micro_batch"], given["facts"]) == (tmp_path / "p.json", (2,), True)
    called.clear()
    run(str(tmp_path / "new"), module="own.py:c", suite="smoke", facts=True, time_limit=3.0)
    assert [name for name, _ in called][2:] == ["require_device", "_measure_module", "measure"]
    (given, _, path), _ = dict(called)["_measure_module"]
    assert (path, given["micro_batch"], given["facts"], given["time_limit"]) == (
        tmp_path / "new" / "c.json", (7,), None, None,
    )  # fmt: skip
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("options", "models", "how"),
    [
        ({}, ["one"], {"with_facts": False, "start_over": False, "num_processes": 3}),
        (
            {"facts": True, "start_over": True},
            ["one"],
            {"with_facts": True, "start_over": True, "num_processes": 3},
        ),
        ({"suite": "smoke"}, ["a", "b"], {"with_facts": True, "start_over": False, "num_processes": 1}),
    ],
)
def test_a_dry_run_measures_nothing(
    options: dict[str, Any], models: list[str], how: dict[str, Any], called: list[tuple[str, Any]]
) -> None:
    run("p.json", dry_run=True, **options)
    assert called[-1][0] == "dry_run"
    (jobs, _), given = called[-1][1]
    assert ([job.model_name for job in jobs], given) == (models, how)
    with pytest.raises(ConfigError, match="--dry-run knows the FLOPs of models only: leave out --module"):
        run("p.json", dry_run=True, module="own.py:c")


@pytest.mark.parametrize("chunks", [None, {"a": 1}])
def test_a_measured_module_is_written_and_printed(
    chunks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"model": {"layer_kinds": "kinds"}, "chunks": chunks}
    monkeypatch.setattr(
        "ppsim.api.profile.profiled_module", lambda given, settings, say: content | {"given": given}
    )
    monkeypatch.setattr("ppsim.costs.chunk_costs.components_of", lambda *all: list(all))
    monkeypatch.setattr("ppsim.profiling.harness.costly_splits", lambda made: ["costly"])
    for name in ("print_measurements", "print_stage_times"):
        monkeypatch.setattr(
            f"ppsim.results.catalogues.{name}", lambda made, name=name: print(name, made.get("measurements"))
        )
    profile._measure_module({"x": 1}, MeasuringSettings(), tmp_path / "mine.json")
    printed = capsys.readouterr()
    components = [{"a": 1}, "kinds"] if chunks else None
    assert printed.out.splitlines() == [f"print_measurements {components}", f"print_stage_times {components}"]
    assert printed.err.splitlines() == ["costly", f"wrote {tmp_path / 'mine.json'}"]
    written = json.loads((tmp_path / "mine.json").read_text())
    assert (written["name"], written["given"], "measurements" in written) == ("mine", {"x": 1}, False)
