"""Figures of results: which timelines and points they draw."""

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import pyplot

import ppsim
from ppsim.api import figures
from ppsim.errors import ConfigError
from ppsim.runs.compare import Comparison
from tests.projection.by_hand import MEASURED, by_hand
from tests.results.test_tuning import BEST, COUNTS, OTHERS
from tests.tuning.questions import question

GIB = 2**30


@pytest.fixture(autouse=True)
def _without_windows() -> Iterator[None]:
    mpl.use("Agg")
    yield
    pyplot.close("all")


def comparison(measured: ppsim.Timeline, projected: ppsim.Timeline) -> Comparison:
    made = object.__new__(Comparison)
    for name, timeline in (("measured", measured), ("projected", projected)):
        object.__setattr__(made, name, timeline)
    return made


def test_timelines_have_their_titles_and_a_projection_its_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(
        "ppsim.plot.plotly_figures.timeline_plotly", lambda timelines, **how: drawn.update(how, of=timelines)
    )
    monkeypatch.setattr("ppsim.plot.plotly_figures.figure_of", lambda figure: figure)
    made = by_hand(memory_limit_bytes=3 * GIB)
    figures.figure_of_timelines(made)
    assert (drawn["of"], drawn["titles"], drawn["look"].memory_limit_bytes) == ([made.timeline], ["1f1b"], 3 * GIB)
    assert not drawn["look"].with_memory
    other = by_hand(schedule="zb-h1").timeline
    figures.figure_of_timelines(comparison(other, made.timeline))
    assert (drawn["of"], drawn["titles"]) == ([other, made.timeline], ["measured", "projected"])
    known = ppsim.project(pp=2, microbatches=4).timeline
    figures.figure_of_timelines(known)
    assert (drawn["of"], drawn["titles"], drawn["look"].memory_limit_bytes) == ([known], [""], None)
    assert drawn["look"].with_memory
    assert MEASURED.activation_bytes is None


def test_a_figure_is_for_20000_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures._MOST_ACTIONS == 20_000
    made = by_hand()
    monkeypatch.setattr(figures, "_MOST_ACTIONS", 16)
    assert figures.figure_of_timelines(made) is not None
    monkeypatch.setattr(figures, "_MOST_ACTIONS", 31)
    sentence = "a plotly figure is for up to 31 actions: this has 32"
    with pytest.raises(ConfigError, match=sentence):
        figures.figure_of_timelines(comparison(made.timeline, made.timeline))


@pytest.mark.parametrize(("ranks", "height"), [(2, 1 + 0.6 + 0.4), (17, 1 + 0.6 + 3.4), (20, 1 + 4.0)])
def test_axes_are_as_high_as_their_ranks(ranks: int, height: float, monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[float] = []
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_new_axes", lambda inches: heights.append(inches) or "axes")
    monkeypatch.setattr("ppsim.plot.figures.timeline.draw_timelines", lambda *all: drawn.append(all))
    timeline = by_hand(pp=ranks).timeline
    assert figures.axes_of_timelines(timeline, None) == "axes"
    assert heights == [pytest.approx(height)]
    both: Any = comparison(timeline, timeline)
    figures.axes_of_timelines(both, None)
    assert heights[1] == pytest.approx(1 + 2 * (height - 1))
    assert figures.axes_of_timelines(timeline, "mine") == "mine"  # type: ignore[comparison-overlap, arg-type]
    assert drawn[0] == ("axes", [timeline], [""])
    assert len(heights) == 2


def tuned() -> Any:
    simulated = [*OTHERS[:2], *BEST]
    return ppsim.TuneResult(
        question=question(), space=None, best=BEST[:1], pareto=[OTHERS[0], BEST[1]], simulated=simulated,
        counts=COUNTS, verdicts={}, seed=0,
    )  # fmt: skip


def test_a_search_is_a_point_per_configuration_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(
        "ppsim.plot.plotly_figures.tradeoff_figure", lambda points, **how: drawn.update(how, points=points)
    )
    figures.figure_of_search(tuned())
    points = drawn["points"]
    assert [(one.kind, one.key) for one in points] == [
        (kind, one.candidate.key)
        for kind, one in zip(("compared", "possible", "compared", "compared"), [*OTHERS[:2], *BEST], strict=True)
    ]
    assert drawn["memory_limit_bytes"] == 75 * GIB
    assert vars(points[1])["told"].startswith("ppsim project --model llama3-8b ")
    assert (OTHERS[1].peak_bytes, OTHERS[1].iteration_time_s) == tuple(
        value for value in vars(points[1]).values() if isinstance(value, float | int)
    )[:2]


def test_axes_of_a_search_have_a_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def draw(axes: Any, table: Any, **how: Any) -> None:
        axes.plot([0, 1], label="configurations")
        drawn.extend((table, how))

    monkeypatch.setattr("ppsim.plot.figures.pareto.draw_pareto", draw)
    monkeypatch.setattr(ppsim.TuneResult, "configurations", lambda self: "table")
    axes = figures.axes_of_search(tuned(), None)
    assert axes.get_legend() is not None
    assert drawn == ["table", {"memory_limit_bytes": 75 * GIB}]
    assert tuple(axes.figure.get_size_inches()) == (9, 3.5)
    assert figures.axes_of_search(tuned(), axes) is axes
