"""Saved files and exports: which formats a result has, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api import output_formats, outputs
from ppsim.api.output_formats import _in_unit, _report_markdown
from ppsim.api.outputs import _drawn, _explained_view, explanation_content
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.runs.compare import Comparison
from ppsim.validation.fit_result import FitResult

TABLE = ppsim.build("1f1b", pp=2, microbatches=2)
COSTS = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
TIMELINE = ppsim.simulate(TABLE, COSTS)


def test_a_table_is_saved_as_csv_or_json(tmp_path: Path) -> None:
    for suffix in (".csv", ".json"):
        ppsim.save(TABLE, tmp_path / f"t{suffix}")
    assert ppsim.read_schedule(tmp_path / "t.csv") == TABLE
    assert json.loads((tmp_path / "t.json").read_text())["stage_to_rank"] == [0, 1]
    with pytest.raises(ConfigError, match=r"a table \(simulate it for a timeline\) goes into \.csv or \.json"):
        ppsim.save(TABLE, tmp_path / "t.html")


def test_the_json_of_a_timeline_has_its_costs(tmp_path: Path) -> None:
    ppsim.save(TIMELINE, tmp_path / "t.json", costs=COSTS)
    assert json.loads((tmp_path / "t.json").read_text())["step_time_s"] == TIMELINE.step_time_s
    with pytest.raises(ConfigError, match="give them as costs="):
        ppsim.save(TIMELINE, tmp_path / "u.json")
    assert not (tmp_path / "u.json").exists()
    ppsim.save([TIMELINE], tmp_path / "t.csv")
    assert ppsim.read_schedule(tmp_path / "t.csv") == TABLE


@pytest.mark.parametrize(
    ("those", "titles", "name", "sentence"),
    [
        ([], None, "t.html", "there is nothing to save"),
        ([TIMELINE, 3], None, "t.html", "cannot save int: it is no timeline, projection or run"),
        ([TIMELINE, TIMELINE], ["a"], "t.html", "titles names 1 of 2"),
        ([TIMELINE, TIMELINE], None, "t.json", r"\.json holds one of them: got 2"),
        ([TIMELINE, TIMELINE], None, "t.csv", r"\.csv holds one of them: got 2"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(those: Any, titles: Any, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.save(those, name, titles=titles)


def test_views_are_named_by_their_titles_or_tables() -> None:
    assert _drawn([TIMELINE], "t.svg", None, None).titles == ["1f1b"]
    assert _drawn([TIMELINE, TIMELINE], "t.svg", ["a", "b"], None).titles == ["a", "b"]
    assert _drawn([TIMELINE], "t.svg", None, None).memory_limit_bytes is None
    projected = [ppsim.project(pp=2, microbatches=2, memory_limit=limit) for limit in ("40GiB", "40GiB", "50GiB")]
    assert _drawn(projected[:2], "t.svg", None, None).memory_limit_bytes == 40 * 2**30
    assert _drawn(projected, "t.svg", None, None).memory_limit_bytes is None, "there is no common limit"


def test_causes_that_no_one_can_see_have_no_bar() -> None:
    step_s = TIMELINE.step_time_s
    view = _explained_view(TIMELINE, "measured", [], {"a": 0.5 * step_s, "b": 1e-9 * step_s, "c": -0.5 * step_s})
    assert list(view.time_breakdown_s) == ["a", "c"]
    assert (view.title, view.budget_title) == ("measured", "Where a step goes")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"to": "other"}, "there is no target 'other'"),
        ({"to": "torch", "receives": "deferred"}, "--receives is for --to torch-comms: got --to torch"),
        ({"to": "torch", "torch_version": "2.13"}, "got --to torch, which every version from 2.9 on takes"),
        ({"to": "json", "torch_version": "2.13"}, "got --to json$"),
        ({"to": "json", "split": "1,1"}, "--split is for --to megatron: got --to json"),
    ],
)
def test_options_of_other_targets_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.export(TABLE, **options)


def test_a_table_is_exported_with_and_without_communication() -> None:
    assert ppsim.export(TABLE, to="torch") == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert "SEND_F" in ppsim.export(TABLE, to="torch-comms", receives="deferred")
    assert ppsim.export(TABLE, to="torchtitan") == ppsim.export(TABLE, to="torch")
    assert json.loads(ppsim.export(TABLE, to="json"))["num_microbatches"] == 2


def test_a_table_with_a_placement_that_torchtitan_lacks_is_not_exported_to_it() -> None:
    table = ppsim.build("hanayo", pp=2, vpp=4, microbatches=2)
    assert ppsim.export(table, to="torch")
    with pytest.raises(ScheduleError, match="stages are on ranks 0, 1, 1, 0, 0, 1, 1, 0"):
        ppsim.export(table, to="torchtitan")


def test_a_report_in_markdown_has_numbers_in_their_units() -> None:
    report = {
        "format": "x", "schedule": "1f1b", "step_time_s": 1.5, "bubble_ratio": 0.25, "peak_bytes": 2**30, "empty": "",
        "tokens_per_s": 8000.0, "fits": True, "pp": 1234567, "model_flops_utilization": 0.5, "list": [1],
        "parts_s": {"small": 0.25, "zero": 0.0, "large": 0.5}, "none_s": {"zero": 0.0}, "texts": {"a": "b"},
    }  # fmt: skip
    lines = [line.replace(" ", "") for line in _report_markdown(report).splitlines()]
    for line in (
        "|schedule|1f1b|", "|step_time_s|1.50s|", "|bubble_ratio|25.00%|", "|peak_bytes|1.00GiB|",
        "|tokens_per_s|8.00k|", "|fits|True|", "|model_flops_utilization|50.00%|",
    ):  # fmt: skip
        assert line in lines
    assert not [line for line in lines if "format" in line or "empty" in line or "none_s" in line or "list" in line]
    parts = [line for line in lines if line.startswith(("|small|", "|large|", "|zero|"))]
    assert parts == ["|large|500ms|", "|small|250ms|"]
    assert (_in_unit("pp", 1234567), _in_unit("loss", 0.1234567)) == ("1.23457e+06", "0.123457")


def test_a_date_is_that_of_reproducible_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert output_formats._today() == "1970-01-02"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    assert output_formats._today() > "2026"


def test_each_result_has_its_suffixes() -> None:
    figures = {".svg", ".pdf", ".png"}
    assert set(output_formats.TIMELINE) == {".html", ".json", ".csv", ".json.gz", ".md", ".toml", *figures}
    assert set(output_formats.SEARCH) == {".html", ".json", ".csv", ".md", *figures}
    assert set(output_formats.DIFFERENCE) == {".html", ".json", ".md", *figures}
    assert set(output_formats.SCALING) == {".csv", ".json", ".md", *figures}
    assert set(output_formats.EXPLANATION) == {".html", ".json", ".md"}
    assert set(output_formats.TABLE) == set(output_formats.VALIDATION) == {".csv", ".json"}


@pytest.mark.parametrize("is_same_table", [True, False])
def test_a_page_of_an_explanation_has_its_reasons_faults_and_what_the_projection_lacks(
    is_same_table: bool, monkeypatch
) -> None:
    """A fact without a text is left out; the comparison needs the same table."""
    words = SimpleNamespace(
        title=lambda found: "the mean", reasons=lambda found: ["slow", "late"], faults=lambda found: ["a fault"],
        whole_difference=lambda against, step_s: "2 s more" if step_s == 9.0 else "", lacks=lambda against, step_s: ["pauses"],
    )  # fmt: skip
    monkeypatch.setattr(outputs, "explained_words", words)
    other = TIMELINE if is_same_table else ppsim.simulate(ppsim.build("gpipe", pp=2, microbatches=2), COSTS)
    step_s = TIMELINE.step_time_s
    against = SimpleNamespace(
        timeline=other, note="", differences=[SimpleNamespace(cause="bubble", projected_s=step_s)]
    )
    losses = [SimpleNamespace(cause="pauses", seconds=0.5 * step_s)]
    found = SimpleNamespace(timeline=TIMELINE, comparison=against, step_s=9.0, losses=losses, to_json=dict)
    content = explanation_content(found)
    measured, projected = content.views
    assert measured.facts == [("mean", "the mean"), ("1", "slow"), ("2", "late"), ("late", "a fault")]
    assert projected.facts == [("error", "2 s more"), ("1", "pauses")]
    assert (measured.time_breakdown_s, projected.time_breakdown_s) == ({"pauses": 0.5 * step_s}, {"bubble": step_s})
    assert (content.comparison is not None) == is_same_table
    found.comparison = SimpleNamespace(timeline=None)
    assert len(explanation_content(found).views) == 1
    found.timeline = None
    with pytest.raises(ConfigError, match="no timeline to draw"):
        explanation_content(found)


def of(kind: type, **fields: Any) -> Any:
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def test_a_file_has_the_formats_of_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, ...]] = []
    monkeypatch.setattr(outputs, "write", lambda paths, formats, content: written.append((paths, formats, content)))
    fitted, tuned, of_cluster = of(ppsim.FittedOverheads), of(ppsim.TuneResult), of(FitResult)
    comparison = of(Comparison, measured=TIMELINE, projected=TIMELINE, projected_costs=None)
    for name, what in (("c", fitted), ("f", of_cluster), ("t", tuned), ("d", comparison)):
        ppsim.save(what, f"{name}.json")
    assert [paths for paths, _, _ in written] == [["c.json"], ["f.json"], ["t.json"], ["d.json"]]
    assert written[0][1:] == (output_formats.CALIBRATION, (fitted, "c.json"))
    assert written[1][1:] == (output_formats.CALIBRATION, (of_cluster, "f.json"))
    assert written[2][1] is output_formats.SEARCH
    assert written[2][2].found is tuned
    assert written[3][1] is output_formats.TIMELINE
    assert [(view.timeline, view.title) for view in written[3][2].views] == [
        (TIMELINE, "measured"), (TIMELINE, "projected"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"a calibration goes into \.json"):
        ppsim.save(fitted, "c.html")


def test_a_comparison_has_its_projection_if_its_costs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ppsim.simulate(TABLE, COSTS.replace(transfer_s=0.5))
    monkeypatch.setattr(outputs, "summary_of", lambda comparison, fitted: {"of": comparison, "fitted": fitted})
    for costs, names in ((None, ["of", "fitted"]), (COSTS, ["of", "fitted", "projected"])):
        comparison = of(Comparison, measured=TIMELINE, projected=other, projected_costs=costs)
        content = outputs.comparison_content(comparison, "fit")  # type: ignore[arg-type]
        report = content.report()
        assert list(report) == names
        assert (report["of"], report["fitted"]) == (comparison, "fit")
        assert [view.timeline.step_time_s for view in content.views] == [TIMELINE.step_time_s, other.step_time_s]
    assert report["projected"]["step_time_s"] == other.step_time_s


def test_a_measured_timeline_says_so() -> None:
    assert outputs._view_of(TIMELINE, is_page=False).title == "1f1b"
    measured = replace(TIMELINE, origin="measured")
    assert outputs._view_of(measured, is_page=False).title == "1f1b, measured"
    run = of(
        ppsim.api.read.MeasuredRun, measured=SimpleNamespace(timeline=TIMELINE), facts={"schedule": {"names": []}}
    )
    view = outputs._view_of(run, is_page=False)
    assert (view.timeline, view.title) == (TIMELINE, "own order, measured")
    run = replace(run, facts={"schedule": {"names": ["1f1b", "a"]}})
    assert outputs._view_of(run, is_page=False).title == "1f1b = a, measured"


def test_an_explanation_is_compared_with_a_projection_of_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    words = SimpleNamespace(
        title=str, reasons=lambda explanation: [], faults=lambda explanation: [],
        whole_difference=lambda against, step_s: f"{against.note} {step_s}",
        lacks=lambda against, step_s: [f"{against.note} {step_s}"],
    )  # fmt: skip
    monkeypatch.setattr(outputs, "explained_words", words)
    slower = ppsim.simulate(TABLE, COSTS.replace(forward_s=2.0))
    against = SimpleNamespace(timeline=slower, note="note", differences=[])
    explanation: Any = SimpleNamespace(timeline=TIMELINE, comparison=against, losses=[], step_s=9.0, to_json=dict)
    content = explanation_content(explanation)
    assert content.views[1].facts == [("error", "note 9.0"), ("note", "note"), ("1", "note 9.0")]
    assert content.comparison is not None
    assert content.comparison.step_error == slower.step_time_s / TIMELINE.step_time_s - 1


def test_tables_of_torch_have_no_communication() -> None:
    other = ppsim.build("zbv", pp=2, microbatches=4)
    assert ppsim.export(other, to="torchtitan") == ppsim.export(other, to="torch")
    assert ppsim.export(TABLE, to="torch-comms") != ppsim.export(TABLE, to="torch")


def test_a_figure_of_values_needs_a_possible_one_and_has_the_knee_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("ppsim.plot.figures.scaling.scaling_figure", lambda *all, **how: drawn.append((all, how)))
    row = {"num_gpus": 8, "iteration_time_s": 2.0, "host (s)": 0.5}

    def drawn_of(option: str, knee: Any, rows: list[dict[str, Any]]) -> Any:
        output_formats._scaling_figure(SimpleNamespace(option=option, possible=rows, knee=knee))  # type: ignore[arg-type]
        return drawn[-1]

    assert drawn_of("gpus", {"num_gpus": 16}, [row]) == (("gpus", [row], [{"host": 0.25}]), {"knee": 16})
    assert drawn_of("gpus", None, [row])[1] == {"knee": None}
    assert drawn_of("micro_batch", {"num_gpus": 16}, [row])[1] == {"knee": None}
    with pytest.raises(ConfigError, match="no value of --micro-batch-size is possible: there is nothing to draw"):
        drawn_of("micro_batch", None, [])


def test_an_explanation_is_written_in_the_formats_of_explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(outputs, "write", lambda *given: written.append(given))
    monkeypatch.setattr(outputs, "explanation_content", lambda what: ("content", what))
    explanation = object.__new__(outputs.Explanation)
    outputs.save(explanation, Path("x.md"))
    assert written == [(["x.md"], outputs.EXPLANATION, ("content", explanation))]
