"""What a result prints is found by one table."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

import ppsim
from ppsim.base.display import Drawable, HasRepr, Printable, show, text_of
from ppsim.base.errors import ConfigError


@pytest.mark.parametrize("name", ppsim.TEXTS)
def test_every_text_of_the_table_is_there(name: str) -> None:
    module, _, function = ppsim.TEXTS[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_every_public_result_that_prints_is_in_the_table() -> None:
    public = [getattr(ppsim, name) for name in ppsim.__all__]
    assert {one.__name__ for one in public if isinstance(one, type) and issubclass(one, Printable)} <= set(
        ppsim.TEXTS
    )


@dataclass(repr=False)
class Layers(HasRepr):
    number: int = 1
    share: float = 0.5
    names: list[str] = field(default_factory=lambda: ["a"])
    text: str = ""
    inner: Any = None
    cache: int = field(default=0, repr=False)


class Unsized:
    def __repr__(self) -> str:
        return "u" * 41


def test_a_repr_has_the_fields_that_are_no_defaults() -> None:
    assert repr(Layers()) == repr(Layers(names=["a"], cache=3)) == "Layers()"
    assert repr(Layers(2, 1 / 3, ["b"])) == "Layers(number=2, share=0.333333, names=['b'])"
    assert repr(Layers(number=True)) == "Layers(number=True)", "a flag is no number"


def test_a_repr_shortens_values_of_more_than_40_characters() -> None:
    assert repr(Layers(text="a" * 38)) == f"Layers(text='{'a' * 38}')"
    assert repr(Layers(text="a" * 39)) == f"Layers(text='{'a' * 39}…')"
    assert repr(Layers(inner=list(range(14)))) == "Layers(inner=list(… 14))"
    assert repr(Layers(inner=Unsized())) == "Layers(inner=Unsized(…))"
    assert repr(Layers(inner=Layers(text="a" * 38))) == f"Layers(inner=Layers(text='{'a' * 38}'))"


def test_a_class_without_a_card_has_no_html(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Layers()._repr_html_() is None
    monkeypatch.setitem(ppsim.CARDS, "Layers", "builtins:repr")
    assert Layers(2)._repr_html_() == "Layers(number=2)"


class Report(Printable, Drawable):
    one_line = "a report"


def print_report(report: Report, *, end: str = "\n\n") -> None:
    print(report.one_line, end=end)


def test_a_result_is_printed_by_the_function_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ppsim.TEXTS, "Report", f"{__name__}:print_report")
    assert str(Report()) == "a report"
    assert text_of(Report(), end="!\n") == "a report!"
    with pytest.raises(ConfigError, match="cannot print int"):
        show(5)


def test_a_result_is_drawn_with_plotly_or_with_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ppsim.PICTURES, "Report", ("builtins:repr", "builtins:isinstance"))
    assert Report().figure() == "Report(a report)"
    assert Report().plot(Report)  # type: ignore[arg-type]
    assert not Report().plot(int)  # type: ignore[arg-type]
