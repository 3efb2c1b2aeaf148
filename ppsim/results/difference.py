"""Terminal output for two projections side by side."""

from collections.abc import Callable, Mapping

from ppsim.base.option_declarations import flag_of
from ppsim.base.units import count, percent, seconds, size
from ppsim.costs.stage_cost_set import short_counts
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
    names = difference.names
    options = [
        {"option": flag_of(name)[2:], **dict(zip(names, map(_text, pair), strict=True))}
        for name, pair in difference.options.items()
    ]
    time = _table(_TIME, names, difference.time_breakdown_s, "iteration", difference.iteration_time_s, seconds)
    before, after = difference.tokens_per_s
    if before and after:
        time.append(_row(_TIME, names, "tokens/s", (before, after), count))
    before, after = difference.peak_bytes
    if before is None or after is None:
        return [options, time, []]
    memory = _table(_MEMORY, names, difference.components_bytes, "peak", (before, after), size)
    verdicts = dict(zip(names, difference.verdicts, strict=True))
    return [options, time, [*memory, dict.fromkeys(memory[0], "") | {_MEMORY: "verdict"} | verdicts]]


_TIME, _MEMORY = "where the time goes", "memory at the peak"


def _table(
    title: str,
    names: tuple[str, str],
    pairs: Mapping[str, Pair],
    whole: str,
    sums: Pair,
    text_of: Callable[[float], str],
) -> list[dict[str, str]]:
    """The last row is the sum, and `all else` has small differences."""
    least = _LEAST_PART * max(sums)
    shown = {name: pair for name, pair in pairs.items() if abs(pair[1] - pair[0]) >= least}
    rest = [pair for name, pair in pairs.items() if name not in shown]
    others = sum(pair[0] for pair in rest), sum(pair[1] for pair in rest)
    shown |= ({"all else": others} if max(others) >= least else {}) | {whole: sums}
    return [_row(title, names, name, pair, text_of) for name, pair in shown.items()]


def _row(
    title: str, names: tuple[str, str], name: str, pair: Pair, text_of: Callable[[float], str]
) -> dict[str, str]:
    before, after = pair
    if abs(after - before) < _ROUNDING * max(abs(before), abs(after)):
        after = before
    sign = "+" if after >= before else "−"
    change = f"{sign}{percent(abs(after / before - 1))}" if before else "–"
    texts = {title: name, names[0]: text_of(before), names[1]: text_of(after)}
    return texts | {"difference": f"{sign}{text_of(abs(after - before))}", "change": change}


def _text(setting: object) -> str:
    if isinstance(setting, list):
        return short_counts(setting)
    return "–" if setting is None else str(setting)
