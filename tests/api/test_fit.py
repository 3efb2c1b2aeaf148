"""Which steps of which files a fit takes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.api import fit as fitting
from ppsim.api.read import MeasuredRun
from ppsim.errors import ConfigError
from ppsim.runs.log_totals import LogTotals
from ppsim.validation.published_runs import RecordedTimes

ROWS = """\
use,model,gpus,tp,pp,global_batch,metric,value
fit,llama3-8b,16,2,2,64,iteration_s,3.4
test,llama3-8b,16,4,2,64,iteration_s,3.6
fit,llama3-8b,16,2,4,64,iteration_s,3.7
"""


def test_the_rows_of_a_table_are_those_to_fit_or_those_asked_for_or_all(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(ROWS)
    assert [case.properties.value for case in fitting._cases(str(file), None, None, None)] == [3.4, 3.7]
    assert [case.properties.value for case in fitting._cases(str(file), None, None, "2")] == [3.6]
    file.write_text(ROWS.replace("fit,", "test,"))
    assert len(fitting._cases(str(file), None, None, None)) == 3
    with pytest.raises(ConfigError, match="there must be at least one measured run"):
        ppsim.fit()


def measured_run(*, gaps_s: tuple[float, ...]) -> MeasuredRun:
    """Two ranks with an action of 1, 2 or 3 s and one of 4, 6 or 8 s; the third column is a message."""
    starts = np.zeros((3, 3))
    ends = np.array([[1.0, 4.0, 100.0], [3.0, 8.0, 100.0], [2.0, 6.0, 100.0]])
    table = SimpleNamespace(rank=np.array([0, 1]), num_ranks=2)
    run = SimpleNamespace(
        graph=SimpleNamespace(schedule=table, num_actions=2), start=starts, end=ends, gaps_s=list(gaps_s)
    )
    made = object.__new__(MeasuredRun)
    object.__setattr__(made, "measured", SimpleNamespace(run=run, step_times_s=[10.0, 12.0, 17.0]))
    object.__setattr__(made, "facts", {"step_times_s": [10.0, 12.0, 17.0]})
    return made


@pytest.mark.parametrize(("gaps_s", "seconds"), [((), 12.0), ((0.5, 0.7, 3.0), 12.7), ((-2.0,), 12.0)])
def test_a_step_of_a_run_is_its_median_with_the_time_to_the_next_one(
    gaps_s: tuple[float, ...], seconds: float
) -> None:
    assert fitting._run_of(measured_run(gaps_s=gaps_s)) == (pytest.approx(seconds), [2.0, 6.0])


def test_a_run_without_kernels_has_the_passes_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_recordings", lambda path: [])
    monkeypatch.setattr(fitting, "read", lambda path: measured_run(gaps_s=(0.5,)))
    assert fitting._step_of("a/run.json") == (12.5, RecordedTimes("run.json", passes_s=[2.0, 6.0]), False)


@pytest.mark.parametrize(
    ("timers_s", "recorded"),
    [
        (
            {"forward-compute": (0.1, 1.5), "backward-compute": (0.2, 2.25)},
            RecordedTimes("run.log", passes_s=[3.75]),
        ),
        ({"forward-compute": (0.1, 1.5)}, None),
        ({"backward-compute": (0.1, 1.5), "optimizer": (0.2, 2.25)}, None),
    ],
)
def test_a_log_has_the_passes_of_its_timers_if_it_has_both(
    timers_s: dict[str, tuple[float, float]], recorded: RecordedTimes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogTotals("log", [2.0, 2.5, 9.0], timers_s)
    monkeypatch.setattr(fitting, "_recordings", lambda path: [])
    monkeypatch.setattr(fitting, "read", lambda path: log)
    assert fitting._step_of("a/run.log") == (log.iteration_time_s, recorded, True)


@pytest.mark.parametrize(("steps_s", "seconds"), [((3.0, 4.0), 4.0), ((3.0, None), 12.5)])
def test_recorded_kernels_have_the_longest_step_of_the_processes_or_that_of_the_passes(
    steps_s: tuple[float | None, ...], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: Any = ("first", "second")
    found = dict(zip(totals, zip(totals, steps_s, strict=True), strict=True))
    monkeypatch.setattr(fitting, "_recordings", lambda path: list(totals))
    monkeypatch.setattr(fitting, "kernels_per_step", lambda recording: found[recording])
    monkeypatch.setattr(fitting, "read", lambda path: measured_run(gaps_s=(0.5,)))
    assert fitting._step_of("a/traces") == (seconds, RecordedTimes("traces", kernels=totals), False)


def test_kernels_are_those_of_traces_in_the_order_of_ranks_if_every_process_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"a.json": "trace", "b.sqlite": "sqlite", "c.csv": "csv", "d.json": "trace"}
    of_files = {"a.json": (3, {1: []}), "b.sqlite": (None, {1: []}), "d.json": (2, {})}

    def recording(file: str) -> Any:
        rank, device = of_files[Path(file).name]
        return SimpleNamespace(rank=rank, device=device, name=Path(file).name)

    monkeypatch.setattr(fitting, "file_format", lambda file: kinds[Path(file).name])
    monkeypatch.setattr(fitting, "recording_of", recording)
    monkeypatch.setattr(fitting, "read_recordings", lambda file: [recording(file)])

    def found(*files: str) -> list[str]:
        monkeypatch.setattr(fitting, "files_of", lambda path: files)
        return [one.name for one in fitting._recordings(str(tmp_path))]

    assert found("a.json", "b.sqlite") == ["b.sqlite", "a.json"]
    assert found("a.json", "d.json") == [], "a process without kernels"
    assert found("a.json", "c.csv") == [], "a file without kernels"
    monkeypatch.setattr(fitting, "is_dump", lambda path: path == tmp_path)
    assert found("a.json", "b.sqlite") == []


def test_a_run_needs_a_configuration_unless_its_log_has_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "run.json")
    Path(file).write_text("tensor_model_parallel_size ........ 2\n")
    times = RecordedTimes("run.json", passes_s=[1.0])

    def cases(is_log: bool, *given: Any) -> Any:
        monkeypatch.setattr(fitting, "_step_of", lambda path: (2.5, times, is_log))
        [case] = fitting._cases(file, *given, None)
        return case.options, case.properties, case.recorded

    options, properties, recorded = cases(False, "dgx-h100", "config.yaml")
    assert options == {"run_config": "config.yaml", "cluster": "dgx-h100"}
    assert (properties.metric, properties.value, properties.title) == ("iteration_s", 2.5, "run.json")
    assert recorded is times
    with pytest.raises(ConfigError, match="says how long its steps took, not what ran"):
        cases(False, None, None)
    assert cases(True, None, None)[0] == {"run_config": file}
    Path(file).write_text("no arguments\n")
    with pytest.raises(ConfigError, match="has no arguments of Megatron-LM"):
        cases(True, None, None)
    assert cases(True, None, "config.yaml")[0] == {"run_config": "config.yaml"}
