"""A comparison with overheads that were fitted on the compared run says so; without knowledge it claims nothing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ppsim
from ppsim.api.read import open_run
from ppsim.runs.calibrate import calibrate
from ppsim.runs.readers import csv_rows as rows
from ppsim.runs.run import Run
from tests.cli.running import ppsim as command
from tests.runs.test_calibrate import run_of

TABLE = ppsim.build("1f1b", pp=2, microbatches=4)
SENTENCE = "the overheads were fitted on this run, so the errors below are not a test of the projection"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with two recordings of the same table."""
    monkeypatch.chdir(tmp_path)
    recorded("fitted.csv", seed=0)
    recorded("other.csv", seed=1)
    return tmp_path


def recorded(path: str, *, seed: int) -> None:
    """Write a CSV with four steps of the table, whose costs vary by 5 %."""
    dice, lines, begin = np.random.default_rng(seed), [",".join((*rows.NEEDED, "stage", "microbatch"))], 0.0
    for _ in range(4):
        passes = dict(
            zip(("forward_s", "backward_input_s", "backward_weight_s"), dice.normal(0.02, 0.001, 3), strict=True)
        )
        step = ppsim.simulate(TABLE, ppsim.StageCosts(**passes, transfer_s=0.001, action_overhead_s=0.0005))
        for entry in range(step.num_actions):
            start, end = begin + step.start[entry], begin + step.end[entry]
            stage, microbatch = TABLE.stage[entry], TABLE.microbatch[entry]
            rank, kind = TABLE.rank[entry], TABLE[entry][0].name
            lines.append(f"{rank},{kind},{start:.9f},{end:.9f},{stage},{microbatch}")
        begin += step.step_time_s + 0.003
    Path(path).write_text("\n".join(lines) + "\n")


def compared(*words: str) -> tuple[str, bool]:
    """What `ppsim compare` prints, and the flag in its JSON."""
    told = json.loads(command("compare", *words, "--json").output)
    return command("compare", *words).output, told["overheads_fitted_on_this_run"]


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("measured", "is_fitted"), [("fitted.csv", True), ("other.csv", False)])
def test_compare_says_that_the_overheads_were_fitted_on_this_run_and_not_of_another(
    measured: str, is_fitted: bool
) -> None:
    command("calibrate", "fitted.csv", "-o", "overheads.json")
    text, flag = compared(measured, "--calibration", "overheads.json")
    command("compare", measured, "--calibration", "overheads.json", "-o", "page.html")
    assert flag is is_fitted
    assert [SENTENCE in joined(one) for one in (text, Path("page.html").read_text())] == [is_fitted, is_fitted]


def test_a_comparison_without_overheads_claims_nothing() -> None:
    text, flag = compared("fitted.csv")
    assert flag is False
    assert "fitted on this run" not in joined(text)


def test_overheads_fitted_on_several_runs_were_fitted_on_each() -> None:
    command("calibrate", "fitted.csv", "other.csv", "-o", "overheads.json")
    assert all(compared(one, "--calibration", "overheads.json")[1] for one in ("fitted.csv", "other.csv"))


@pytest.mark.parametrize(
    "words",
    [
        ("project", "--pp", 2, "--num-microbatches", 4),
        ("simulate", "T.csv", "--costs", "C.json"),
    ],
    ids=["project", "simulate"],
)
def test_a_projection_file_carries_the_runs_of_its_overheads(words: tuple[str | int, ...]) -> None:
    ppsim.save(TABLE, "T.csv")
    Path("C.json").write_text('{"forward_s": 0.02, "backward_input_s": 0.02, "backward_weight_s": 0.02}')
    command("calibrate", "fitted.csv", "-o", "overheads.json")
    command(*words, "--calibration", "overheads.json", "-o", "with.json")
    command(*words, "-o", "without.json")
    assert [compared(run, "with.json")[1] for run in ("fitted.csv", "other.csv")] == [True, False]
    assert not compared("fitted.csv", "without.json")[1]


def test_objects_in_python_know_it_as_files_do() -> None:
    run = ppsim.read("fitted.csv")
    assert isinstance(run, ppsim.MeasuredRun)
    fitted = ppsim.calibrate(run)
    ppsim.save(run, "run.json")
    for measured in (run, "run.json", "fitted.csv"):
        assert ppsim.compare(measured, calibration=fitted).overheads_fitted_on_this_run
        projected = ppsim.project(pp=2, microbatches=4, calibration=fitted)
        assert ppsim.compare(measured, projected).overheads_fitted_on_this_run
    assert "overheads fitted on this run" in ppsim.compare(run, calibration=fitted).one_line


def test_overheads_files_without_runs_are_read_and_claim_nothing() -> None:
    command("calibrate", "fitted.csv", "-o", "overheads.json")
    data = json.loads(Path("overheads.json").read_text())
    assert len(data["overheads"].pop("fitted_runs")) == 1
    Path("old.json").write_text(json.dumps(data))
    assert not compared("fitted.csv", "--calibration", "old.json")[1]
    command("project", "--pp", 2, "--num-microbatches", 4, "--calibration", "old.json", "-o", "projected.json")
    assert not compared("fitted.csv", "projected.json")[1]


def test_a_fit_says_that_its_own_errors_are_no_test() -> None:
    for words in (("compare", "fitted.csv", "--fit", "overheads.json"), ("calibrate", "fitted.csv")):
        assert "on the runs of the fit, so they do not test a projection" in joined(command(*words).output)
    told = json.loads(command("compare", "fitted.csv", "--fit", "overheads.json", "--json").stdout)
    assert (
        told["fitted"]["fitted_runs"] == json.loads(Path("overheads.json").read_text())["overheads"]["fitted_runs"]
    )


def test_the_fingerprint_is_of_the_last_step_whatever_path_warm_up_and_clocks() -> None:
    Path("moved").mkdir()
    Path("moved/run.csv").write_bytes(Path("fitted.csv").read_bytes())
    prints = {
        opened.measured.run.fingerprint
        for path in ("fitted.csv", "moved/run.csv")
        for warm_up in (0, 1, 2)
        if not isinstance(opened := open_run(path, warm_up=warm_up), ppsim.LogTotals)
    }
    assert len(prints) == 1
    run = run_of(noise=0.01)
    shift = np.concatenate([0.125 * (1 + run.graph.schedule.rank), np.zeros(run.graph.num_transfers)])
    assert replace(run, start=run.start + shift, end=run.end + shift).fingerprint == run.fingerprint


def test_another_table_or_other_times_have_another_fingerprint() -> None:
    run = run_of(noise=0.01)
    others: list[Run] = [run_of(noise=0.01, seed=1), run_of("1f1b", vpp=1, noise=0.01)]
    longer = run.end.copy()
    longer[-1, 3] += 1e-6
    others.append(replace(run, end=longer))
    assert len({one.fingerprint for one in (run, *others)}) == 4
    assert calibrate([run, others[0]]).fitted_runs == (run.fingerprint, others[0].fingerprint)
