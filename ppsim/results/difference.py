"""Terminal output for two projections side by side."""

from collections.abc import Callable, Mapping

from ppsim.base.option_declarations import flag_of
from ppsim.base.units import count, percent, seconds, size
from ppsim.projection.difference import Pair, PlanDifference
from ppsim.results.text_layout import Page, TableLines

_LEAST_PART = 1e-4
"""Fraction of the larger iteration or peak below which a difference is not printed."""


_ROUNDING = 1e-12
"""Fraction of a number below which a difference is rounding."""


def print_difference(difference: PlanDifference) -> None:
    """Print the options that differ, then seconds and bytes by cause, with their sums."""
    page = Page()
    for table in difference_tables(difference):
        if table:
            page.add(TableLines.of(table), "")
    if not difference.options:
        page.add("no option differs")


def difference_tables(difference: PlanDifference) -> list[list[dict[str, str]]]:
    """Return the rows of three tables: options, time, memory."""
    first, second = difference.names
    options = [
        {"option": flag_of(name)[2:], first: _text(before), second: _text(after)}
        for name, (before, after) in difference.options.items()
    ]
    whole_s = difference.iteration_time_s
    time = _rows("where the time goes", difference.names, difference.time_breakdown_s, whole_s, seconds)
    time.append(_row("iteration", "where the time goes", difference.names, whole_s, seconds))
    before, after = difference.tokens_per_s
    if before and after:
        time.append(_row("tokens/s", "where the time goes", difference.names, (before, after), count))
    peak_before, peak_after = difference.peak_bytes
    memory: list[dict[str, str]] = []
    if peak_before is not None and peak_after is not None:
        peaks = (peak_before, peak_after)
        memory = _rows("memory at the peak", difference.names, difference.components_bytes, peaks, size)
        memory.append(_row("peak", "memory at the peak", difference.names, peaks, size))
        verdicts = dict(zip(difference.names, difference.verdicts, strict=True))
        memory.append({"memory at the peak": "verdict", **verdicts, "difference": "", "change": ""})
    return [options, time, memory]


def _rows(
    title: str, names: tuple[str, str], pairs: Mapping[str, Pair], whole: Pair, text_of: Callable[[float], str]
) -> list[dict[str, str]]:
    least = _LEAST_PART * max(whole)
    shown = {name: pair for name, pair in pairs.items() if abs(pair[1] - pair[0]) >= least}
    rest = tuple(sum(pair[index] for name, pair in pairs.items() if name not in shown) for index in (0, 1))
    rows = [_row(name, title, names, pair, text_of) for name, pair in shown.items()]
    return [*rows, _row("all else", title, names, (rest[0], rest[1]), text_of)] if max(rest) >= least else rows


def _row(
    name: str, title: str, names: tuple[str, str], pair: Pair, text_of: Callable[[float], str]
) -> dict[str, str]:
    before, after = pair
    if abs(after - before) < _ROUNDING * max(abs(before), abs(after)):
        after = before
    sign = "+" if after >= before else "−"
    change = f"{sign}{percent(abs(after / before - 1))}" if before else "–"
    texts = {names[0]: text_of(before), names[1]: text_of(after)}
    return {title: name} | texts | {"difference": f"{sign}{text_of(abs(after - before))}", "change": change}


def _text(setting: object) -> str:
    return "–" if setting is None else str(setting)
