"""Pictures of results with plotly and matplotlib."""

from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError
from ppsim.plot.lanes import has_memory
from ppsim.projection.projection import Projection
from ppsim.runs.compare import Comparison
from ppsim.simulation.timeline import Timeline
from ppsim.tuning.command_line import command_of
from ppsim.tuning.search import FoundConfiguration, TuneResult

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes


_MOST_ACTIONS = 20_000


def figure_of_timelines(what: Timeline | Projection | Comparison) -> "go.Figure":
    """Raises `ConfigError` above 20,000 actions, which take a browser seconds to draw."""
    from ppsim.plot.plotly_figures import DrawingOptions, figure_of, timeline_plotly

    timelines, titles = _timelines_of(what)
    num_actions = sum(timeline.num_actions for timeline in timelines)
    if num_actions > _MOST_ACTIONS:
        raise ConfigError(
            f"a plotly figure is for up to {_MOST_ACTIONS:,} actions: this has {num_actions:,}; "
            "ppsim.save(result, 'timeline.html') writes a page for any number"
        )
    limit = what.plan.memory_bound_bytes if isinstance(what, Projection) else None
    look = DrawingOptions(with_memory=all(map(has_memory, timelines)), memory_limit_bytes=limit)
    return figure_of(timeline_plotly(timelines, titles=titles, look=look))


def axes_of_timelines(what: Timeline | Projection | Comparison, ax: "Axes | None") -> "Axes":
    from ppsim.plot.figures.timeline import draw_timelines

    timelines, titles = _timelines_of(what)
    axes = ax or _new_axes(1.0 + len(timelines) * min(0.6 + 0.2 * timelines[0].schedule.num_ranks, 4.0))
    draw_timelines(axes, timelines, titles)
    return axes


def _timelines_of(what: Timeline | Projection | Comparison) -> tuple[list[Timeline], list[str]]:
    if isinstance(what, Projection):
        return [what.timeline], [what.plan.schedule_name]
    if isinstance(what, Comparison):
        return [what.measured, what.projected], ["measured", "projected"]
    return [what], [""]


def figure_of_search(tuned: TuneResult) -> "go.Figure":
    from ppsim.plot.plotly_figures import TradeoffPoint, tradeoff_figure

    named = {tuned.pareto[0].candidate.key, tuned.pareto[-1].candidate.key, tuned.best[0].candidate.key}

    def point(configuration: FoundConfiguration) -> TradeoffPoint:
        is_named = configuration.candidate.key in named
        return TradeoffPoint(
            configuration.candidate.schedule, configuration.peak_bytes, configuration.iteration_time_s,
            told=command_of(tuned.question, configuration.candidate),
            kind="compared" if is_named else "possible", key=configuration.candidate.key,
        )  # fmt: skip

    return tradeoff_figure(
        [point(configuration) for configuration in tuned.simulated],
        memory_limit_bytes=tuned.question.memory_bound_bytes,
    )


def axes_of_search(tuned: TuneResult, ax: "Axes | None") -> "Axes":
    from ppsim.plot.figures.pareto import draw_pareto

    axes = ax or _new_axes(3.5)
    draw_pareto(axes, tuned.configurations(), memory_limit_bytes=tuned.question.memory_bound_bytes)
    axes.legend()
    return axes


def _new_axes(height: float) -> Any:
    """Use pyplot, because notebooks display its figures automatically; `height` is in inches."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, height))[1]
