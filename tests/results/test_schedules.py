"""Output of the catalogue of schedules and of checks of tables."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.catalog.build import find
from ppsim.results import schedules
from ppsim.results.schedules import print_catalog, print_check, print_entry
from ppsim.results.text_layout import WIDTH


def finding(severity: str, message: str) -> Any:
    return SimpleNamespace(severity=severity, rule="order", message=message)


def verdict(channel: str, receives: str, outcome: str, reason: str = "", communication: str = "overlap") -> Any:
    return SimpleNamespace(
        channel=channel, receives=receives, outcome=outcome, reason=reason, communication=communication
    )


def printed(capsys: pytest.CaptureFixture[str], findings: list[Any], verdicts: list[Any], **name: str) -> list[str]:
    errors = [one for one in findings if one.severity == "error"]
    print_check(SimpleNamespace(findings=findings, verdicts=verdicts, errors=errors), **name)  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


def test_the_catalogue_has_stages_and_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    print_catalog([find("1f1b"), find("zbv-fixed"), find("interleaved-1f1b")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "schedule"
    assert [line.split()[:4] for line in lines[1:] if line.startswith(("1f1b ", "zbv"))] == [
        ["1f1b", "1", "loop", "B"], ["zbv-fixed", "2", "v", "I,"],
    ]  # fmt: skip
    assert lines[-1] == "ppsim schedules NAME prints constraints, closed forms and source of one."


def test_an_entry_explains_the_closed_forms_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for name in ("1f1b", "zbv-fixed", "zb-auto"):
        print_entry(find(name), [("torch", "runs it")])
        texts[name] = " ".join(capsys.readouterr().out.split())
    for name, text in texts.items():
        entry = find(name)
        assert ("bubble: idle time of the rank that idles longest." in text) == bool(entry.bubble)
        assert ("bubble by span: idle time between" in text) == bool(entry.span_bubble)
        assert "torch runs it" in text
        assert text.startswith(f"{name} {entry.title}")


def test_an_error_ends_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, [finding("error", "order: wrong\n  0F0\n  0F1")], [verdict("pair", "torch", "runs")])
    assert lines == ["the table: error (order): wrong", "  0F0", "  0F1"]


def test_outcomes_are_a_row_per_receive_with_three_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [
        verdict("pair", "torch", "runs"), verdict("edge", "torch", "deadlock", "a waits\nmore"),
        verdict("pair", "ordered", "deadlock", "b waits"), verdict("edge", "ordered", "deadlock", "a waits"),
        verdict("rank", "ordered", "deadlock", "c waits"), verdict("none", "ordered", "deadlock", "d waits"),
        verdict("x", "torch", "runs", communication="blocking"), verdict("rank", "torch", "runs"),
        verdict("none", "torch", "runs"), verdict("x", "ordered", "runs", communication="blocking"),
    ]  # fmt: skip
    lines = printed(capsys, [finding("warning", "order: late")], verdicts, name="t.csv")
    assert lines[:2] == ["t.csv: warning (order): late", "t.csv: complete, ordered, free of circular waits"]
    assert lines[2].split() == ["receives", "pair", "edge", "blocking", "rank", "none"]
    assert [line.split()[:3] for line in lines[3:5]] == [
        ["torch", "runs", "deadlock"],
        ["ordered", "deadlock", "deadlock"],
    ]
    assert lines[5:] == [
        "edge, receives torch: a waits",
        "pair, receives ordered: b waits",
        "rank, receives ordered: c waits",
    ]


def test_long_circular_waits_are_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    six, seven = ("; ".join(f"{number} waits" for number in range(count)) for count in (6, 7))
    assert printed(capsys, [finding("error", six)], []) == [f"the table: error (order): {six}"]
    assert " ".join(printed(capsys, [finding("error", seven)], [])) == (
        "the table: error (order): 0 waits; 1 waits; 2 waits; … 3 more, which --json has …; 6 waits"
    )


def test_errors_are_red_and_warnings_yellow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "styled", lambda text, colour: f"{text} in {colour}")
    findings = [finding("error", "no"), finding("warning", "late")]
    assert printed(capsys, findings, []) == [
        "the table: error in 31 (order): no",
        "the table: warning in 33 (order): late",
    ]


def test_rows_below_a_finding_are_cut_to_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    row = "  rank 0: " + "0F0 " * 60
    lines = printed(capsys, [finding("error", f"wrong\n{row}")], [])
    assert lines == ["the table: error (order): wrong", row[: len(lines[1])]]
    assert len(lines[1]) == WIDTH
