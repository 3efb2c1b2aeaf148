"""A suite: a file a model, facts once; killed, stopped or out of memory, it loses nothing and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ppsim.cli import main
from ppsim.costs.profile import load_profile
from ppsim.model.shapes import Recompute
from ppsim.profiling import harness, measure, suite
from ppsim.profiling.duration_estimate import (
    FACTS_S,
    SHAPE_S,
    DurationEstimate,
    assumed_rate,
    estimate_duration,
)
from ppsim.profiling.grids import QUICK
from ppsim.profiling.harness import measure_shape
from ppsim.profiling.measuring_progress import MeasuringProgress
from ppsim.profiling.model_shapes import MODELS
from ppsim.profiling.settings import LEAST_REPEATS, MeasurementKey, MeasuringSettings
from ppsim.profiling.suite import SUITES, Suite, SuiteModel, expected_of, run_jobs, waiting_keys
from ppsim.profiling.sweep import SuiteJob
from tests.profiling.emulated import Allocator, Counting

WITHOUT_PYDANTIC = """
import sys
for name in ("pydantic", "plotly", "pandas", "matplotlib", "numba"):
    sys.modules[name] = None
from ppsim.cli import main
main(sys.argv[1:], prog_name="ppsim")
"""


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments])


def fake(model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any) -> list[dict[str, Any]]:
    """A measurement in no time."""
    from dataclasses import asdict

    second = {"median": 1.0, "low": 1.0, "high": 1.0}
    return [{"component": "layer", "shape": asdict(key), "forward_s": second, "backward_s": second,
             "backward_input_s": second, "backward_weight_s": second, "activation_bytes": 1,
             "activation_bytes_kept_for_weight": 1, "output_bytes": 1, "parameters": 1}]  # fmt: skip


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU runs at is measured, but not in tests of what follows from it."""
    monkeypatch.setattr("ppsim.profiling.duration_estimate._rate_of_cpu", lambda dtype, num_threads: 5e10)


def measured_by(monkeypatch: pytest.MonkeyPatch, stand_in: Any) -> None:
    """Have something else measure shapes."""
    monkeypatch.setattr("ppsim.profiling.sweep.measure_shape", stand_in)


def jobs_in(folder: Path) -> list[SuiteJob]:
    return SUITES["smoke"].jobs(folder)


def num_shapes(folder: Path) -> int:
    return sum(len(json.loads(path.read_text())["measurements"]) for path in folder.glob("*.json")) // 3


@pytest.mark.torch
def test_it_runs_where_pydantic_and_plotly_are_not_installed(tmp_path: Path) -> None:
    """A real SIGKILL in the middle; the files are valid then, and what they hold is not measured again."""
    folder = tmp_path / "profiles"
    command = [sys.executable, "-c", WITHOUT_PYDANTIC, "profile", "--suite", "smoke", "-o", str(folder)]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (folder / "llama-mini.json").exists():
        assert killed.poll() is None
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    nano = (folder / "nano.json").read_bytes()
    finished = num_shapes(folder)
    assert 3 <= finished < 9
    for path in folder.glob("*.json"):
        load_profile(str(path))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("\nshape ") == 9 - finished
    assert done.stderr.count("measuring products of matrices") == 0
    before, after = json.loads(nano), json.loads((folder / "nano.json").read_text())
    assert after["measurements"][: len(before["measurements"])] == before["measurements"]
    profiles = [load_profile(str(path)) for path in sorted(folder.glob("*.json"))]
    assert [profile.name for profile in profiles] == ["llama-mini", "moe-mini", "nano"]
    assert profiles[0].device_facts == profiles[1].device_facts == profiles[2].device_facts is not None
    assert num_shapes(folder) == 9
    assert done.stdout.count("MFU, float32: model FLOPs") == 3
    assert done.stdout.count("nano\n") == 1  # of two jobs, one file


def test_memory_that_does_not_suffice_is_recorded_and_the_rest_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(
        model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any
    ) -> list[dict[str, Any]]:
        if key.sequence_length == 32:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return fake(model, key, settings)

    measured_by(monkeypatch, too_large)
    contents = run_jobs(jobs_in(tmp_path), MeasuringSettings())
    assert [len(content["does_not_fit"]) for content in contents] == [1, 2, 1]
    assert [len(content["measurements"]) for content in contents] == [2, 2, 1]


def test_jobs_of_one_file_begin_it_once_and_a_job_that_fails_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last job of the suite goes into the first one's file."""

    def fails(model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any) -> list[dict[str, Any]]:
        if model is MODELS["nano"] and key.micro_batch == 1:
            raise RuntimeError("a defect")
        return fake(model, key, settings)

    measured_by(monkeypatch, fails)
    for start_over in (False, True):
        contents = run_jobs(jobs_in(tmp_path), MeasuringSettings(), start_over=start_over)
        assert [len(content["failed"]) for content in contents] == [2, 0, 0]
        assert [part["shape"]["micro_batch"] for part in contents[0]["measurements"]] == [2]
        assert [len(content["measurements"]) for content in contents] == [1, 4, 2]
        assert json.loads((tmp_path / "nano.json").read_text()) == contents[0]


def test_of_8_bit_products_the_facts_are_those_of_the_type_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has no type of that name."""
    job = SuiteJob("nano", MODELS["nano"], (MeasurementKey(1, 16, "fp8"),), tmp_path / "p.json")
    measured_by(monkeypatch, fake)
    [content] = run_jobs([job], MeasuringSettings(), facts=QUICK)
    assert {one["dtype"] for one in content["device_facts"]["products"]} == {"bfloat16"}


def test_facts_are_measured_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    measured_by(monkeypatch, fake)
    run = {"facts": QUICK, "say": said.append}
    contents = run_jobs(jobs_in(tmp_path), MeasuringSettings(), **run)
    assert said.count("measuring products of matrices") == 1
    assert contents[0]["device_facts"] == contents[1]["device_facts"] == contents[2]["device_facts"]
    (tmp_path / "moe-mini.json").unlink()
    run_jobs(jobs_in(tmp_path), MeasuringSettings(), **run)
    assert said.count("measuring products of matrices") == 1


def test_the_time_limit_stops_between_shapes_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes of a second each, and 3.5 seconds: the fourth would end behind them and is not begun."""
    now = [0.0]
    monkeypatch.setattr("ppsim.profiling.measuring_progress.time.monotonic", lambda: now[0])

    def slow(model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any) -> list[dict[str, Any]]:
        now[0] += 1.0
        return fake(model, key, settings)

    said: list[str] = []
    measured_by(monkeypatch, slow)
    begun = run_jobs(jobs_in(tmp_path), MeasuringSettings(), time_limit_s=3.5, say=said.append)
    assert [len(content["measurements"]) for content in begun] == [2, 1]
    assert f"3 of 4 shapes of {tmp_path / 'llama-mini.json'} are left: the time is over" in said
    rest = run_jobs(jobs_in(tmp_path), MeasuringSettings())
    assert [len(content["measurements"]) for content in rest] == [3, 4, 2]


def test_when_the_time_is_over_no_step_of_an_optimizer_is_begun_and_no_clock_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every job behind the limit would take some seconds more; the next run makes up for the steps."""
    begun: list[str] = []
    now = [0.0]
    monkeypatch.setattr("ppsim.profiling.measuring_progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ppsim.profiling.sweep.raise_clock", lambda device: begun.append("clock"))

    def stepped(
        model: Any, key: MeasurementKey, name: str, settings: MeasuringSettings, **fields: Any
    ) -> list[dict[str, Any]]:
        begun.append(f"step of tp {key.tp}, ep {key.ep}")
        return [{"optimizer": name, "tp": key.tp, "ep": key.ep, "dtype": key.dtype}]

    def slow(model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any) -> list[dict[str, Any]]:
        now[0] += 1.0
        return fake(model, key, settings)

    monkeypatch.setattr("ppsim.profiling.sweep.measure_optimizer", stepped)
    measured_by(monkeypatch, slow)
    run_jobs(jobs_in(tmp_path), MeasuringSettings(), time_limit_s=3.5, optimizers=["adamw"])
    assert begun == ["clock", "step of tp 1, ep 1", "clock"]
    begun.clear()
    run_jobs(jobs_in(tmp_path), MeasuringSettings(), optimizers=["adamw"])
    assert begun == ["clock", "step of tp 1, ep 1", "step of tp 2, ep 1", "clock", "step of tp 1, ep 4", "clock"]


def test_a_pace_knows_what_is_left_and_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ppsim.profiling.measuring_progress.time.monotonic", lambda: now[0])
    pace = MeasuringProgress(10.0, time_limit_s=20.0)
    assert (pace.left, pace.has_time_for(10.0)) == ("", True)
    now[0] += 8.0
    pace.done(2.0)
    pace.dropped(1.0)
    assert pace.left_s == 7 * 4.0
    assert pace.left == ", about 28.0 s left"
    assert pace.has_time_for(3.0)
    assert not pace.has_time_for(3.1)
    assert not pace.has_time_for(0.1)  # once over, over


def test_a_dry_run_says_work_and_time_and_measures_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "standard"
    made = ppsim("--suite", "standard", "--dry-run", "-o", str(folder))
    assert made.exit_code == 0, made.output
    assert not folder.exists()
    assert "54 shapes, " in made.stdout
    if not torch.cuda.is_available():
        page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
        assert "\n".join(made.stdout.splitlines()[-2:]) in page
    single = ppsim("--model", "mini", "--micro-batch-size", "1,2", "--dry-run", "-o", str(tmp_path / "p.json"))
    assert "2 shapes, " in single.stdout
    assert "at 50 GFLOP/s, what a layer of micro runs at just now" in single.stdout.replace("\n", " ")
    assert "for the calibration run with 2 processes" in single.stdout.replace("\n", " ")


def test_the_standard_suite_is_what_is_shipped_and_fits_two_times_nine_minutes_of_an_h100(tmp_path: Path) -> None:
    suite = SUITES["standard"]
    jobs = suite.jobs(tmp_path)
    assert [(job.model_name, job.keys[0].dtype, len(job.keys)) for job in jobs] == [
        ("llama3-8b", "bfloat16", 6), ("mixtral-8x7b", "bfloat16", 8), ("llama3-70b", "bfloat16", 8),
        ("llama3-8b", "fp8", 4), ("deepseek-v3-like", "bfloat16", 8), ("llama3-405b", "bfloat16", 4),
        ("gpt3-175b", "bfloat16", 4), ("llama3-70b", "bfloat16", 8), ("llama3-70b", "fp8", 4),
    ]  # fmt: skip
    assert {job.path.name for job in jobs} == {f"{job.model_name}.json" for job in jobs}
    assert {key.tp for job in jobs for key in job.keys} == {1, 2, 4, 8}
    assert len({(job.model_name, key) for job in jobs for key in job.keys}) == 54
    for job in jobs:
        for key in job.keys:
            job.model.shard(tp=key.tp, ep=key.ep)
    if not torch.cuda.is_available():
        seconds = sum(estimate_duration(job.model, key, suite.settings).seconds for job in jobs for key in job.keys)
        assert seconds + 60 < 2 * 480  # with facts; a minute of each for the start and the results


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.torch), "cuda"])
def test_flops_that_are_expected_are_those_that_are_run(
    device: str, recompute: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's formulas, which know unfused attention. What a GPU does besides is done here by a CPU."""
    settings = MeasuringSettings("cpu", num_repeats=2, num_warm_up=1)
    key = MeasurementKey(2, 32, "float32", recompute=recompute)
    model = MODELS["llama-mini"]
    monkeypatch.setattr(harness, "is_asynchronous", lambda where: device == "cuda")
    monkeypatch.setattr(measure, "is_asynchronous", lambda where: device == "cuda")
    Allocator(monkeypatch)  # which nobody asks: all counts are 0
    with sdpa_kernel(SDPBackend.MATH), Counting() as counter:
        measure_shape(model, key, settings)
    told = estimate_duration(model, key, replace(settings, device=device)).flops
    # What is computed again ends before a layer's last product, which nothing asks for.
    assert counter.flops == pytest.approx(told, rel=0.01 if recompute == "none" else 0.15)


def test_repeats_are_as_many_as_their_time_allows(tmp_path: Path) -> None:
    key, rate = MeasurementKey(1, 8192, "bfloat16"), assumed_rate("cuda", "bfloat16", num_threads=1)[0]
    limited = MeasuringSettings("cuda", num_repeats=30, num_warm_up=2, component_s=1.5)
    one, many = (
        estimate_duration(MODELS["llama3-405b"], key, settings)
        for settings in (limited, MeasuringSettings("cuda", 30, 2))
    )
    assert one.seconds < many.seconds
    assert one.seconds == pytest.approx(one.flops / rate + SHAPE_S["cuda"])
    path = str(tmp_path / "p.json")
    job = SuiteJob("nano", MODELS["nano"], (MeasurementKey(1, 8, "float32"),), Path(path))
    [content] = run_jobs([job], MeasuringSettings(num_repeats=1000, num_warm_up=1, component_s=1e-9))
    note = f"Repeats: as many as 1.00 ns a component allow, {LEAST_REPEATS} at least."
    assert note in content["provenance"]["notes"]


WRONG = {
    "a model": (["--suite", "smoke", "--model", "nano"], "--suite says what is measured: leave out --model"),
    "no folder": (["--suite", "smoke"], "cannot write "),
    "no time": (["--model", "nano", "--time-limit", "0"], "--time-limit must be more than 0 seconds: got 0"),
    "a module": (["--module", "a:b", "--dry-run"], "--dry-run knows the FLOPs of models only: leave out --module"),
    "no device": (["--suite", "standard"], "--device cuda: torch sees no CUDA device here"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_measured(tmp_path: Path, case: str) -> None:
    if case == "no device" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    arguments, sentence = WRONG[case]
    output = {"no folder": tmp_path / "none" / "p", "no device": tmp_path / "p"}.get(case, tmp_path / "p.json")
    result = ppsim(*arguments, "-o", str(output))
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_folder_with_other_files_of_that_name_is_left_alone(tmp_path: Path) -> None:
    """The last file of the suite is wrong: nothing is measured for the first ones."""
    (tmp_path / "moe-mini.json").write_text("[]")
    result = ppsim("--suite", "smoke", "-o", str(tmp_path))
    assert result.exit_code == 2
    assert f"{tmp_path / 'moe-mini.json'} is no profile: give another file" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["moe-mini.json"]


def keys_of(*micro_batches: int) -> tuple[MeasurementKey, ...]:
    return tuple(MeasurementKey(size, 16, "float32") for size in micro_batches)


def test_shapes_of_a_model_vary_by_micro_batch_then_length_then_parallel_sizes() -> None:
    part = SuiteModel("nano", ((1, 2), (4, 3)), (16, 8), (5, 7), "bfloat16")
    keys = part.keys()
    assert [(key.tp, key.ep, key.sequence_length, key.micro_batch) for key in keys] == [
        (1, 2, 16, 5), (1, 2, 16, 7), (1, 2, 8, 5), (1, 2, 8, 7),
        (4, 3, 16, 5), (4, 3, 16, 7), (4, 3, 8, 5), (4, 3, 8, 7),
    ]  # fmt: skip
    assert {key.dtype for key in keys} == {"bfloat16"}
    own = Suite((part, SuiteModel("nano", ((1, 1),), (16,), (3, 5), "float32")), MeasuringSettings())
    assert own.micro_batches == [3, 5, 7]


def test_shapes_of_a_file_that_are_measured_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = SuiteJob("nano", MODELS["nano"], keys_of(1, 2, 3), tmp_path / "p.json")
    assert waiting_keys(job) == [*keys_of(1, 2, 3)]
    job.path.write_text("{}")
    monkeypatch.setattr(suite, "read_unfinished", lambda path: path)
    monkeypatch.setattr(suite, "finished_keys", lambda path: {*keys_of(2)} if path == job.path else None)
    assert waiting_keys(job) == [*keys_of(1, 3)]


def test_the_estimate_of_a_job_is_the_sum_over_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        suite, "estimate_duration",
        lambda model, key, settings: DurationEstimate(100.0 * key.micro_batch, settings.least_s + key.micro_batch),
    )  # fmt: skip
    job = SuiteJob("nano", MODELS["nano"], keys_of(1, 2, 3), Path("p.json"))
    assert expected_of(job, job.keys[1:], MeasuringSettings(least_s=0.5)) == DurationEstimate(500.0, 6.0)


class Sweeps:
    """Stand-ins for the measurements of jobs, whose keys take a second per sequence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.jobs = [
            SuiteJob("first", MODELS["nano"], keys_of(1, 2), folder / "a.json"),
            SuiteJob("second", MODELS["nano"], keys_of(4), folder / "b.json"),
            SuiteJob("third", MODELS["nano"], keys_of(8, 16), folder / "a.json"),
        ]
        self.swept: list[tuple[str, bool]] = []
        self.continued: list[str] = []
        self.totals_s: list[float] = []
        self.said: list[str] = []
        self.empty: set[str] = set()
        monkeypatch.setattr(suite, "sweep", self.sweep)
        monkeypatch.setattr(suite, "continue_profile", lambda path, fresh: self.continued.append(path.name))
        monkeypatch.setattr(suite, "waiting_keys", lambda job: list(job.keys[1:]))
        monkeypatch.setattr(
            suite, "estimate_duration", lambda model, key, settings: DurationEstimate(0.0, float(key.micro_batch))
        )

    def sweep(
        self, job: SuiteJob, settings: Any, *, optimizers: Any, start_over: bool, say: Any, pace: Any
    ) -> dict[str, Any]:
        self.swept.append((job.model_name, start_over))
        say(f"measuring {job.model_name}")
        content = {name: [] for name in ("measurements", "does_not_fit", "failed")}
        if job.model_name not in self.empty:
            content["failed"] = [job.model_name]
        job.path.write_text(json.dumps(content))
        return content

    def run(self, jobs: list[SuiteJob] | None = None, **how: Any) -> list[Any]:
        watch = {"watch": lambda pace: self.totals_s.append(pace.total)}
        contents = run_jobs(jobs or self.jobs, MeasuringSettings(), say=self.said.append, **watch, **how)
        return [content["failed"] for content in contents]


def test_every_file_is_checked_before_a_measurement_and_has_its_last_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = Sweeps(monkeypatch, tmp_path)
    sweeps.jobs[1].path.write_text("{}")
    assert sweeps.run() == [["third"], ["second"]]
    assert sweeps.continued == ["b.json"]
    assert sweeps.swept == [("first", False), ("second", False), ("third", False)]
    assert sweeps.said[:2] == [f"first: 2 shapes, into {tmp_path / 'a.json'}", "measuring first"]
    assert sweeps.totals_s == [2.0 + 16.0] * (1 + 3 * 3), "at the start, and after each sentence and each job"


def test_to_start_over_measures_all_shapes_and_begins_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = Sweeps(monkeypatch, tmp_path)
    sweeps.jobs[1].path.write_text("{}")
    sweeps.run(start_over=True)
    assert sweeps.continued == []
    assert sweeps.swept == [("first", True), ("second", True), ("third", False)]
    assert sweeps.totals_s[0] == 1 + 2 + 4 + 8 + 16


def test_a_job_without_any_shape_is_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Sweeps(monkeypatch, tmp_path)
    sweeps.empty = {"second"}
    assert sweeps.run() == [["first"]]
    assert [name for name, _ in sweeps.swept] == ["first", "second"]
    assert sweeps.run(sweeps.jobs[:1]) == [["first"]]
    assert sweeps.said[-1] == "measuring first", "a single job needs no title"


def test_facts_of_a_device_are_written_into_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Sweeps(monkeypatch, tmp_path)
    known_before: list[Any] = []

    def with_facts(job: SuiteJob, content: Any, settings: Any, *, known: Any, **how: Any) -> dict[str, Any]:
        known_before.append((known, how["grid"]))
        job.path.write_text(json.dumps(content | {"failed": ["facts", job.model_name]}))
        return {"facts": job.model_name}

    monkeypatch.setattr(suite, "_with_facts", with_facts)
    assert sweeps.run(facts=QUICK) == [["facts", "third"], ["facts", "second"]]
    assert known_before == [({}, QUICK), ({"facts": "first"}, QUICK), ({"facts": "second"}, QUICK)]


def test_facts_are_taken_from_the_file_then_from_another_file_then_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "has_facts", lambda facts, dtype: facts.get("dtype") == dtype)
    added: list[Any] = []
    monkeypatch.setattr(
        suite, "add_facts",
        lambda path, settings, dtype, *, grid, say: added.append((path, dtype, grid)) or {"measured": True},
    )  # fmt: skip
    job, said = SuiteJob("nano", MODELS["nano"], keys_of(1), tmp_path / "p.json"), []
    asked: list[float] = []

    def facts_of(content: dict[str, Any], known: dict[str, Any], *, has_time: bool = True) -> dict[str, Any]:
        pace: Any = SimpleNamespace(has_time_for=lambda seconds: asked.append(seconds) or has_time)
        return suite._with_facts(
            job, content, MeasuringSettings(), known=known, grid=QUICK, pace=pace, say=said.append
        )

    own, other = {"dtype": "float32", "of": "file"}, {"dtype": "float32", "of": "another file"}
    assert facts_of({"device_facts": own}, other) == own
    assert not job.path.exists()
    assert facts_of({"device_facts": None, "name": "n"}, other) == other
    assert json.loads(job.path.read_text()) == {"device_facts": other, "name": "n"}
    assert (asked, added) == ([], [])
    assert facts_of({}, {"dtype": "float64"}) == {"measured": True}
    assert (asked, added) == ([FACTS_S["cpu"]], [(str(job.path), "float32", QUICK)])
    assert facts_of({}, {}, has_time=False) == {}
    assert (said, len(added)) == (["facts of the device are left: the time is over"], 1)
