"""benchmarks/partitions.py: what it keeps of its runs is little, whole after each, and enough for its report."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

PATH = Path(__file__).parents[2] / "benchmarks" / "partitions.py"
spec = importlib.util.spec_from_file_location("benchmarks_partitions", PATH)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "EMULATED_S", {"cpu": 1e-3})


def recorded(path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[dict[str, Any]]:
    command = ["partitions.py", "--partitions", "2", "--num-microbatches", "2", *arguments]
    monkeypatch.setattr(sys, "argv", [*command, "--record", str(path)])
    benchmark.main()
    return list(json.loads(path.read_text()))


def test_it_keeps_the_median_step_and_what_the_others_took_in_quartiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some 170 bytes per action, as many for nine steps as for three."""
    few = recorded(tmp_path / "few.json", monkeypatch, "--steps", "3")
    many = recorded(tmp_path / "many.json", monkeypatch, "--steps", "9")
    assert [case["schedule"] for case in many] == ["1f1b", "zb-h1", "zbv-fixed"]
    for case in many:
        result = case["result"]
        assert (len(result["steps"]), len(result["step_times_s"]), result["num_warm_up"]) == (1, 9, 0)
        assert result["took_s"]["F"]["low"] <= result["took_s"]["F"]["median"] <= result["took_s"]["F"]["high"]
        assert case["measured_at"][0] < case["measured_at"][1]
    num_actions = sum(len(rank["records"]) for case in many for rank in case["result"]["steps"][0])
    sizes = [(tmp_path / name).stat().st_size for name in ("few.json", "many.json")]
    assert sizes[1] < 250 * num_actions + 2000 * len(many)
    assert sizes[1] < 1.1 * sizes[0]
    steps = [case["result"]["step_times_s"] for case in few]
    monkeypatch.setattr(sys, "argv", ["partitions.py", "--report", str(tmp_path / "few.json")])
    capsys.readouterr()
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3 + 2
    assert lines[-1].startswith("step time: mean ")
    for line, times in zip(lines[2:5], steps, strict=True):
        assert benchmark.seconds(sorted(times)[1]) in line
        assert benchmark.seconds(max(times)) in line


def test_a_case_that_fails_is_kept_with_its_error_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run_case, calls = tmp_path / "runs.json", benchmark.run_case, []

    def fails(p: int, schedule: str, *rest: Any) -> dict[str, Any]:
        calls.append(schedule)
        if schedule == "zb-h1" and calls.count("zb-h1") == 1:
            raise RuntimeError("a defect")
        return dict(run_case(p, schedule, *rest))

    monkeypatch.setattr(benchmark, "run_case", fails)
    with pytest.raises(SystemExit, match="1 of 3 cases failed"):
        recorded(path, monkeypatch, "--steps", "1")
    assert json.loads(path.read_text())[1]["error"] == "RuntimeError: a defect"
    assert "zb-h1, p 2: RuntimeError: a defect" in capsys.readouterr().err
    cases = recorded(path, monkeypatch, "--steps", "1")
    assert calls == ["1f1b", "zb-h1", "zbv-fixed", "zb-h1"]
    assert [("error" in case, case["schedule"]) for case in cases] == [
        (False, "1f1b"), (False, "zbv-fixed"), (False, "zb-h1"),
    ]  # fmt: skip
