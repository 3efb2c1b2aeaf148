"""Formats of files: their names and what is written into them."""

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.api import output_formats as formats
from ppsim.api.output_formats import SearchFileContent, TimelineFileContent
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.rounds import repeat_rounds
from tests.projection.by_hand import by_hand

PICTURES = [".svg", ".pdf", ".png"]


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.plot.figures.style.figure_bytes", lambda figure, suffix: (figure, suffix))


def test_each_kind_of_result_has_its_formats_by_suffix() -> None:
    kinds = (
        formats.FIGURE, formats.TIMELINE, formats.EXPLANATION, formats.SEARCH, formats.VALIDATION, formats.DIFFERENCE,
        formats.SCALING, formats.TABLE, formats.TOTALS, formats.CALIBRATION,
    )  # fmt: skip
    assert [[*kind] for kind in kinds] == [
        PICTURES, [".html", *PICTURES, ".json", ".csv", ".json.gz", ".md", ".toml"], [".html", ".json", ".md"],
        [".md", ".json", ".csv", ".html", *PICTURES], [".json", ".csv"], [".html", *PICTURES, ".json", ".md"],
        [".csv", ".json", ".md", *PICTURES], [".csv", ".json"], [".json"], [".json"],
    ]  # fmt: skip
    assert {name for name, _ in formats.FIGURE.values()} == {"figure"}
    assert {formats.SCALING[suffix][0] for suffix in PICTURES} == {"throughput, and where the time goes"}
    assert formats.DIFFERENCE[".html"][0] == formats.TIMELINE[".html"][0] == "interactive timeline"


def test_a_figure_is_drawn_in_the_format_of_its_suffix(pictures: None) -> None:
    assert [make("figure") for _, make in formats.FIGURE.values()] == [("figure", suffix) for suffix in PICTURES]


def test_a_picture_of_a_timeline_has_its_titles_and_the_memory_limit(
    pictures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppsim.plot.figures.timeline.timeline_figure", lambda timelines, **more: (timelines, more))
    views: Any = [SimpleNamespace(timeline="a", title="A"), SimpleNamespace(timeline="b", title="B")]
    content = TimelineFileContent(views, dict, 7.0)
    options = {"titles": ["A", "B"], "memory_limit_bytes": 7.0}
    assert formats.TIMELINE[".svg"][1](content) == ((["a", "b"], options), ".svg")


def test_a_difference_is_drawn_as_its_two_timelines(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setitem(formats.TIMELINE, ".svg", ("a name", lambda content: drawn.append(content) or b"picture"))
    monkeypatch.setattr("ppsim.api.views.difference_views", lambda difference: [f"views of {difference.name}"])
    name, make = formats._side_by_side(".svg")
    difference = SimpleNamespace(name="two plans", to_json=lambda: {"change": 0.5})
    assert (name, make(difference)) == ("a name", b"picture")
    assert (drawn[0].views, drawn[0].report()) == (["views of two plans"], {"change": 0.5})


def test_a_table_of_rounds_is_written_as_one_round() -> None:
    table = parse_table("0F0,0F1,0B0,0B1\n")
    views: Any = [SimpleNamespace(timeline=SimpleNamespace(schedule=repeat_rounds(table, 3)), title="")]
    assert formats.TIMELINE[".csv"][1](TimelineFileContent(views, dict)) == "0F0,0F1,0B0,0B1\n"
    assert formats.TABLE[".csv"][1](table) == "0F0,0F1,0B0,0B1\n"


def test_a_trace_is_compressed_without_a_time() -> None:
    made = by_hand(runtime="ideal")
    view: Any = SimpleNamespace(timeline=made.timeline, title="by hand")
    packed = formats.TIMELINE[".json.gz"][1](TimelineFileContent([view], dict))
    assert isinstance(packed, bytes)
    assert packed[4:8] == b"\0\0\0\0"
    assert "by hand" in json.dumps(json.loads(gzip.decompress(packed)))


def test_a_report_has_its_numbers_in_their_units_then_its_groups_from_the_largest() -> None:
    report = {
        "format": "x", "origin": "y", "name": "1f1b", "empty": "", "flag": True, "none": None, "time_s": 0.25,
        "rate_per_s": 2e9, "peak_bytes": 2**30, "bubble_ratio": 0.125, "model_utilization": 0.5, "count": 1234567.0,
        "parts_s": {"a": 1.0, "zero": 0.0, "b": 2.0}, "mixed": {"a": "text"}, "nothing_s": {"a": 0.0}, "list": [1],
    }  # fmt: skip
    expected = """\
|  | value |
| --- | --- |
| name | 1f1b |
| flag | True |
| time_s | 250 ms |
| rate_per_s | 2.00 G |
| peak_bytes | 1.00 GiB |
| bubble_ratio | 12.50 % |
| model_utilization | 50.00 % |
| count | 1.23457e+06 |

| parts_s | value |
| --- | --- |
| b | 2.00 s |
| a | 1.00 s |
"""
    assert formats._report_markdown(report) == expected


def test_the_rows_of_a_search_have_a_number_for_the_pareto_front() -> None:
    tuned: Any = SimpleNamespace(rows=lambda: [{"tp": 2, "pareto": True}, {"tp": 4, "pareto": False}])
    assert formats.SEARCH[".csv"][1](SearchFileContent(tuned)) == "tp,pareto\n2,1\n4,0\n"


@pytest.mark.parametrize(("option", "knee"), [("gpus", 16), ("vpp", None)])
def test_a_knee_is_drawn_over_gpus_alone(
    option: str, knee: int | None, pictures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ppsim.plot.figures.scaling.scaling_figure",
        lambda option, rows, shares, *, knee: (option, rows, shares, knee),
    )
    rows = [{"iteration_time_s": 4.0, "bubble (s)": 1.0}]
    scaling = SimpleNamespace(possible=rows, option=option, knee={"num_gpus": 16})
    assert formats.SCALING[".png"][1](scaling) == ((option, rows, [{"bubble": 0.25}], knee), ".png")


@pytest.mark.parametrize(("epoch", "day"), [("86400", "1970-01-02"), ("x", None)])
def test_the_date_can_be_set_for_reproducible_builds(
    epoch: str, day: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert formats._today() == day or (day is None and formats._today() > "2024")


def test_rows_of_a_validation_have_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    frame = SimpleNamespace(to_csv=lambda **options: written.append(options) or "rows")
    monkeypatch.setattr(formats, "load_function", lambda name: lambda sets: frame)
    assert formats.VALIDATION[".csv"][1]([]) == "rows"
    assert written == [{"index": False, "lineterminator": "\n"}]
