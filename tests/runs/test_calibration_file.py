"""Calibration files: both parts in one file, files of earlier versions, and wrong ones."""

import json
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.runs.calibration_file import Overheads, read_calibration
from ppsim.tuning.command_line import command_of
from tests.cli.running import ppsim as command

DUMP = Path(__file__).parent / "data" / "primus_pp8_1f1b"
JOB = ("project", "--model", "llama3-8b", "--gpus", 16, "--tp", 2, "--pp", 2, "--global-batch-size", 64)
RUNS = "model,gpus,tp,pp,global_batch,metric,value\nllama3-8b,16,2,2,64,iteration_s,3.9\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    (folder / "runs.csv").write_text(RUNS)
    ppsim.save(ppsim.fit(folder / "runs.csv"), folder / "fit.json")
    ppsim.save(ppsim.calibrate(DUMP), folder / "overheads.json")
    (folder / "both.json").write_text((folder / "fit.json").read_text())
    ppsim.save(ppsim.calibrate(DUMP), folder / "both.json")
    return folder


def test_one_file_has_the_constants_and_the_overheads_in_any_order(files: Path) -> None:
    both = json.loads((files / "both.json").read_text())
    fit, overheads = (json.loads((files / f"{name}.json").read_text()) for name in ("fit", "overheads"))
    assert both["format"] == fit["format"] == overheads["format"] == "ppsim-calibration/1"
    assert (both["constants"], both["overheads"]) == (fit["constants"], overheads["overheads"])
    assert "constants" not in overheads
    ppsim.save(ppsim.fit(files / "runs.csv"), files / "overheads.json")
    again = json.loads((files / "overheads.json").read_text())
    assert (again["constants"], again["overheads"]) == (both["constants"], both["overheads"])


def test_a_projection_uses_both_parts(files: Path) -> None:
    options = {"model": "llama3-8b", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 64}
    plain, fit, both = (
        ppsim.project(**options, calibration=one) for one in (None, files / "fit.json", files / "both.json")
    )
    assert abs(fit.iteration_time_s / 3.9 - 1) < 0.02 < abs(plain.iteration_time_s / 3.9 - 1)
    assert fit.plan.action_overhead_s == 0 < both.plan.action_overhead_s
    assert both.plan.job.cluster == ppsim.project(**options, cluster=files / "both.json").plan.job.cluster
    found = ppsim.tune(
        **{name: options[name] for name in ("model", "gpus", "global_batch")}, tp=[2], pp=[2], vpp=[1],
        schedule=["1f1b"], calibration=files / "fit.json",
    )  # fmt: skip
    text = command_of(found.question, found.best[0].candidate)
    assert f"--calibration {files / 'fit.json'}" in text
    assert "--cluster" not in text
    assert "--launch-ms" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*JOB, "--cluster", "dgx-b200", "--calibration", "fit.json"), "fit.json has constants of dgx-h100, not of dgx-b200"),
        (("project", "--pp", 2, "--calibration", "fit.json"), "fit.json has constants of a cluster"),
        ((*JOB, "--cluster", "rest.json"), "give it with --calibration"),
        ((*JOB, "--calibration", "cluster.toml"), "give it with --cluster"),
        ((*JOB, "--calibration", "wrong.json"), "overheads.hop_overhead_s: must be at least 0, got -1"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_a_sentence(
    files: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str | int, ...], said: str
) -> None:
    monkeypatch.chdir(files)
    file = {"format": "ppsim-calibration/1", "overheads": {"action_overhead_s": 0.001, "hop_overhead_s": 0.0}}
    Path("rest.json").write_text(json.dumps(file))
    file["overheads"] |= {"hop_overhead_s": -1}
    Path("wrong.json").write_text(json.dumps(file))
    found = command(*words, code=2)
    assert said in " ".join(found.output.split())


def test_overheads_without_a_constant_leave_it_to_the_costs(tmp_path):
    path = tmp_path / "overheads.json"
    file = {
        "format": "ppsim-overheads/1",
        "action_overhead_s": 0.001,
        "hop_overhead_s": None,
        "overlap_slowdown": 0.1,
    }
    path.write_text(json.dumps(file | {"latency_s": 0.002, "bandwidth_bytes_per_s": 1e9}))
    assert read_calibration(path).overheads == Overheads(
        {"action_overhead_s": 0.001, "overlap_slowdown": 0.1}, (0.002, 1e9)
    )
    path.write_text(json.dumps(file | {"format": "ppsim-overheads/2"}))
    with pytest.raises(ConfigError, match="format"):
        read_calibration(path)


def test_overheads_of_the_first_version_are_two_numbers_and_where_they_were_fitted(tmp_path):
    path = tmp_path / "overheads.json"
    path.write_text('{"action_overhead_s": 0.001, "hop_overhead_s": 0.0, "fitted_on": {"num_actions": 3}}')
    assert read_calibration(path).overheads == Overheads({"action_overhead_s": 0.001, "hop_overhead_s": 0.0})
    path.write_text('{"action_overhead_s": -1}')
    with pytest.raises(
        ConfigError, match="action_overhead_s: must be at least 0, got -1\n  hop_overhead_s: missing"
    ):
        read_calibration(path)
