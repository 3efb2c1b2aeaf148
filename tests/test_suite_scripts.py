"""Scripts and plugins of the test suite: budgets, frozen values and mutations."""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.cpu_seconds import above_budget, cpu_s, folder_of

ROOT = Path(__file__).parents[1]


@pytest.fixture
def freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with one topic, on a folder of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("freeze_values")
    for module in ("freeze_values", "tests.frozen.comparison"):
        monkeypatch.setattr(f"{module}.FOLDER", tmp_path)
    monkeypatch.setattr(script, "REASONS", tmp_path / "CHANGES.md")
    monkeypatch.setattr(
        script, "TOPICS", {"plans": lambda: {"a": {"time_s": 2.0, "bytes": 5}, "b": {"time_s": 1.0}}}
    )
    return script


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["freeze_values.py", *arguments])
    script.main()


def test_frozen_values_change_by_more_than_a_millionth_with_a_reason_only(
    freeze: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plans.json"
    file.write_text(before := json.dumps({"a": {"time_s": 1.0, "bytes": 5}, "b": {"time_s": 1.0 + 1e-7}}))
    with pytest.raises(SystemExit, match="--why"):
        run(freeze, monkeypatch)
    assert file.read_text() == before
    assert not (tmp_path / "CHANGES.md").exists()
    run(freeze, monkeypatch, "--why", "clocks run twice as fast")
    assert json.loads(file.read_text())["a"] == {"time_s": 2.0, "bytes": 5}
    assert "a: time_s 1.0 → 2.0" in capsys.readouterr().out
    told = (tmp_path / "CHANGES.md").read_text()
    assert "clocks run twice as fast" in told
    assert "| plans | time_s | 2 | 0.5 | 1 |" in told


def test_changes_below_a_millionth_need_no_reason(
    freeze: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plans.json").write_text(json.dumps({"a": {"time_s": 2.0 + 1e-7}}))
    run(freeze, monkeypatch)
    assert json.loads((tmp_path / "plans.json").read_text())["a"]["time_s"] == 2.0
    assert not (tmp_path / "CHANGES.md").exists()


def test_a_folder_may_exceed_its_budget_by_half() -> None:
    found = above_budget(
        Counter({"tests/a": 3.1, "tests/b": 2.9, "tests/new": 0.1}), {"tests/a": 4, "tests/b": 4}, unit=0.5
    )
    assert [line.partition(":")[0] for line in found] == ["tests/a", "tests/new"]


def test_a_test_counts_for_its_folder_and_cpu_time_grows() -> None:
    assert folder_of("tests/trainers/torch/test_x.py::test_y") == "tests/trainers"
    assert folder_of("tests/test_site.py::test_y") == "tests"
    assert folder_of("ppsim/a/b.py::ppsim.a.b.c") == "ppsim"
    before_s = cpu_s()
    sum(range(10**6))
    assert cpu_s() > before_s


def test_each_kind_of_mutation_is_one_line_of_valid_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    mutations = importlib.import_module("ast_mutations").mutations
    source = (ROOT / "ppsim" / "machine" / "collectives.py").read_text()
    found = mutations(source)
    assert {one.kind for one in found} >= {"comparison", "arithmetic", "condition", "constant", "swapped arguments"}
    for one in found:
        changed = one.applied(source)
        compile(changed, "mutated", "exec")
        differ = [a != b for a, b in zip(source.splitlines(), changed.splitlines(), strict=True)]
        assert sum(differ) == 1


def test_a_module_has_the_tests_of_its_name_or_of_the_table_then_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    tests_near = importlib.import_module("mutants").tests_near
    engine, step_costs = Path("ppsim/simulation/engine.py"), Path("ppsim/simulation/step.py")
    folder = ["tests/simulation"]
    assert tests_near(engine) == [["tests/simulation/test_engine.py"], folder]
    assert tests_near(step_costs) == [[str(step_costs), "tests/simulation/test_step.py"], folder]
