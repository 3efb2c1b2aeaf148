"""Lines of a progress bar."""

import time
from types import SimpleNamespace

import pytest

from ppsim.results import progress
from ppsim.results.progress import Bar, searching, searching_layouts


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress.time, "monotonic", lambda: 3725.0)


def line(bar: Bar, *, began_s: float = 0.0) -> tuple[int, str]:
    """Return the columns of a bar, and the text behind it."""
    bar._began_s = began_s
    shown = bar._line()
    for code in ("\x1b[0m", "\x1b[2m", "\x1b[35m", "\x1b[33m"):
        shown = shown.replace(code, "")
    text = shown.lstrip("━-")
    return len(shown) - len(text), text


def test_a_bar_counts_its_items_or_has_a_percentage() -> None:
    bar = Bar("reading", total=8, unit="files")
    bar.update(done=2)
    assert line(bar) == (40, " 2/8 files 1:02:05 reading")
    bar.update("writing", total=4)
    assert line(bar, began_s=3719.0) == (40, " 2/4 files 0:00:06 writing")
    share = Bar(total=8)
    share.update(done=2)
    assert line(share)[1] == "  25 % 1:02:05 "
    share.update(done=80)
    assert line(share)[1].startswith(" 100 %")


def test_work_with_a_limit_shows_its_time_alone() -> None:
    assert line(Bar("searching", limit_s=10.0), began_s=3720.0) == (40, " 0:00:05 searching")
    assert Bar(limit_s=10.0)._total == 10.0
    assert Bar(total=5, limit_s=10.0)._total == 10.0
    assert (Bar()._is_timed, Bar(limit_s=1.0)._is_timed) == (False, True)


def coloured(bar: Bar, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the columns and style of the parts of a bar."""
    parts: list[tuple[int, int]] = []

    def styled(text: str, style: int) -> str:
        parts.append((len(text), style))
        return text

    monkeypatch.setattr("ppsim.results.text_layout.styled", styled)
    bar._line()
    return parts[:3]


def test_the_done_part_is_bright(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Bar(total=8)
    bar.update(done=2)
    assert coloured(bar, monkeypatch) == [(0, 2), (10, 35), (30, 2)]


def test_without_an_end_a_part_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Bar()
    bar._began_s = 3725.0 - 0.51
    assert coloured(bar, monkeypatch) == [(5, 2), (8, 35), (27, 2)]
    bar._began_s = 3725.0 - 3.31
    assert coloured(bar, monkeypatch) == [(1, 2), (8, 35), (31, 2)]


def test_a_bar_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert sum(len(part) for part in line(Bar("reading", total=8))[1:]) + 40 <= 49
    monkeypatch.setenv("COLUMNS", "")
    assert progress._columns() == 100, "of a pipe or a notebook"


def test_messages_and_bars_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("reading", total=2)
    bar.say("first")
    assert capsys.readouterr().err == "first\n"
    with bar.shown():
        bar.say("second")
        time.sleep(0)
    text = capsys.readouterr().err
    assert text.startswith("\x1b[?25l\r\x1b[K")
    assert "\r\x1b[Ksecond\n" in text
    assert text.endswith("\r\x1b[K\x1b[?25h")


def test_searches_say_the_best_so_far() -> None:
    bar = Bar()
    searching(bar)(2.0, 1.6)
    assert bar._text == "searching for a table, best 2.00 s, 25.00 % above the bound"
    searching(bar)(2.0, 0.0)
    assert bar._text == "searching for a table, best 2.00 s"
    with searching_layouts() as show:
        show(1, 4, None)
        own = show.__closure__
        assert own is not None
        bar = next(cell.cell_contents for cell in own if isinstance(cell.cell_contents, Bar))
        assert (bar._done, bar._total) == (1, 4)
        assert bar._text == "simulating those that may be best, the quickest bounds first"
        show(2, 4, 0.5)
        assert bar._text.endswith("first, best 500 ms")


def test_a_bar_is_drawn_at_its_begin_and_below_each_message_and_then_no_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_REDRAWN_S", 600.0)
    bar = Bar("reading", total=8)
    assert (bar._done, bar._began_s, bar._is_shown) == (0.0, 3725.0, False)
    drawn = f"\r\x1b[K{bar._line()}"
    with bar.shown():
        assert bar._is_shown
        bar.say("first")
    bar.say("second")
    assert capsys.readouterr().err == (f"\x1b[?25l{drawn}\r\x1b[Kfirst\n{drawn}\r\x1b[K\x1b[?25hsecond\n")
    waits = iter([False, False, True])
    monkeypatch.setattr(bar, "_ended", SimpleNamespace(wait=lambda seconds: next(waits)))
    bar._is_shown = True
    bar._redraw()
    assert capsys.readouterr().err == 2 * drawn
