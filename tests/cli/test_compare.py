"""`ppsim compare` of two projections, and commands that take several tables."""

import json
from types import SimpleNamespace

import pytest

from ppsim.base.errors import ConfigError
from ppsim.cli import compare as module
from ppsim.cli import main
from tests.cli.running import ppsim, words_of

PLAN = ("project", "--model", "llama3-8b", "--gpus", 16, "--tp", 2, "--pp", 2, "--global-batch-size", 32)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    printed = ppsim(*PLAN, "--json", "-o", folder / "a.json").stdout
    ppsim(*PLAN, "--vpp", 4, "-o", folder / "b.json")
    (folder / "printed.json").write_text(printed)
    return folder


def test_two_projections_are_compared_by_option_second_and_byte(reports, folder):
    text = ppsim(
        "compare", reports / "a.json", reports / "b.json", "-o", "d.json", "-o", "d.md", "-o", "d.html"
    ).stdout
    assert "pipeline bubble" in text
    found = json.loads((folder / "d.json").read_text())
    assert found["options"]["vpp"] == [1, 4]
    gain = found["iteration_time_s"][1] - found["iteration_time_s"][0]
    assert sum(b - a for a, b in found["time_breakdown_s"].values()) == pytest.approx(gain, abs=1e-9)
    assert (folder / "d.md").read_text().startswith("| option |")
    assert "b.json" in (folder / "d.html").read_text()


def test_without_a_timeline_there_is_no_page(reports, folder):
    ppsim("compare", reports / "printed.json", reports / "b.json")
    told = ppsim("compare", reports / "printed.json", reports / "b.json", "-o", "d.html", code=2).output
    assert "is of --json, which has no timeline" in words_of(told)
    assert not (folder / "d.html").exists()


def test_what_is_for_a_recorded_step_is_refused(reports):
    told = ppsim("compare", reports / "a.json", reports / "b.json", "--fit", "f.json", code=2).output
    assert "--fit is for a recorded step, and both files are projections" in words_of(told)


def test_several_tables_are_simulated_on_one_clock(folder):
    text = ppsim("simulate", "T.csv", "zbv.csv", "--costs", "C.json", "-o", "both.html").stdout
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["T.csv", "zbv.csv"]
    found = json.loads(ppsim("simulate", "T.csv", "zbv.csv", "--costs", "C.json", "--json").stdout)
    alone = json.loads(ppsim("simulate", "zbv.csv", "--costs", "C.json", "--json").stdout)
    assert found["zbv.csv"] == alone
    page = (folder / "both.html").read_text()
    assert "T.csv" in page
    assert "zbv.csv" in page
    told = ppsim("simulate", "T.csv", "zbv.csv", "--costs", "C.json", "-o", "a.json", code=2).output
    assert "a.json is for one table: got 2" in told


def test_several_tables_are_checked_and_the_worst_decides(folder):
    text = ppsim("check", "T.csv", "zbv.csv").stdout
    assert "T.csv" in text
    assert "zbv.csv" in text
    (folder / "wrong.csv").write_text("0B0,0F0\n")
    ppsim("check", "T.csv", "wrong.csv", code=2)
    assert set(json.loads(ppsim("check", "T.csv", "zbv.csv", "--json").stdout)) == {"T.csv", "zbv.csv"}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zbv"])
def test_costs_are_accepted_for_every_schedule(folder, name):
    made = ppsim("build", name, "--pp", 4, "--num-microbatches", 8, "--costs", "C.json")
    if name != "zbv":
        assert f"{name} does not depend on costs" in made.stderr
        assert made.stdout == ppsim("build", name, "--pp", 4, "--num-microbatches", 8).stdout


def test_numbers_of_a_projection_and_rows_of_a_search_are_tables_to_read(folder):
    ppsim(*PLAN, "-o", "a.md")
    text = (folder / "a.md").read_text()
    assert "| iteration_time_s |" in text
    assert "| pipeline bubble |" in text
    ppsim("tune", "--model", "gpt2", "--gpus", 2, "--global-batch-size", 8, "--tp", 1, "--pp", 1, "-o", "t.md")
    assert (folder / "t.md").read_text().startswith("| tp | cp |")


@pytest.fixture
def called(monkeypatch):
    """Return what the command calls; nothing is read, and two plans differ if `plans` is set."""
    calls = SimpleNamespace(made=[], plans=None)

    def note(name, made=None):
        return lambda *all, **how: calls.made.append((name, all, how)) or made

    monkeypatch.setattr("ppsim.api.measured.compare_plans", lambda *all: calls.plans and (calls.plans, all))
    monkeypatch.setattr("ppsim.api.measured.compare", note("compare", "comparison"))
    monkeypatch.setattr("ppsim.api.measured.calibrate", note("calibrate", "fitted"))
    monkeypatch.setattr("ppsim.api.read.inputs_of", lambda path: [f"in {path}"])
    monkeypatch.setattr("ppsim.api.outputs.comparison_content", lambda *all: all)
    monkeypatch.setattr("ppsim.runs.compare.summary_of", lambda *all: {"summary": all})
    monkeypatch.setattr(module, "with_command_line", lambda content: ("typed", content))
    for name in ("check_outputs", "write", "print_result", "show"):
        monkeypatch.setattr(module, name, note(name))
    return calls


def compare(measured="m.json", projected=None, **options):
    usual = {"fit": None, "calibration": None, "outputs": ("o.html",), "as_json": False, "with_rows": False}
    main.commands["compare"].callback(measured=measured, projected=projected, **usual | options)


def test_two_plans_are_compared_without_a_fit(called):
    called.plans = "plans"
    compare("a.json", "b.json", as_json=True)
    difference = ("plans", ("a.json", "b.json"))
    assert [(name, all) for name, all, _ in called.made] == [
        ("check_outputs", (("o.html",), module.DIFFERENCE)), ("write", (("o.html",), module.DIFFERENCE, difference)),
        ("print_result", (difference, True)),
    ]  # fmt: skip
    assert called.made[0][2] == {"inputs": ["a.json", "b.json"]}
    for option in ("fit", "calibration"):
        with pytest.raises(ConfigError, match=f"--{option} is for a recorded step, and both files are projections"):
            compare("a.json", "b.json", **{option: "c.json"})


def test_a_measured_step_is_compared_and_fitted(called, capsys):
    compare(fit="c.json", calibration="old.json", with_rows=True)
    assert [(name, all) for name, all, _ in called.made] == [
        ("check_outputs", (("o.html",), module.TIMELINE)), ("compare", ("m.json", None)), ("calibrate", ("m.json",)),
        ("write", (["c.json"], module.CALIBRATION, ("fitted", "c.json"))),
        ("write", (("o.html",), module.TIMELINE, ("typed", ("comparison", "fitted")))),
        ("print_result", ("comparison", False)), ("show", ("fitted",)),
    ]  # fmt: skip
    assert called.made[0][2] == {"beside": "c.json", "inputs": ["in m.json"]}
    assert called.made[1][2] == {"calibration": "old.json"}
    how = called.made[5][2]
    assert (how["content"](), how["with_rows"]) == ({"summary": ("comparison", "fitted")}, True)
    assert capsys.readouterr().err.splitlines()[-1] == "projected: the run's own costs, simulated"
    called.made.clear()
    compare(projected="p.json", as_json=True, fit="c.json")
    assert [name for name, _, _ in called.made][-1] == "print_result"
    compare(projected="p.json")
    assert "projected:" not in capsys.readouterr().err
    assert [name for name, _, _ in called.made][-4:] == ["check_outputs", "compare", "write", "print_result"]
    with pytest.raises(ConfigError):
        compare(fit="c.txt")
