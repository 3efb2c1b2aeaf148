"""Two projections side by side: the options that differ, and the difference in seconds and bytes by cause."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.display import Printable
from ppsim.base.errors import ConfigError
from ppsim.simulation.timeline import Timeline

Pair = tuple[float, float]


@dataclass(frozen=True, repr=False)
class PlanDifference(Printable):
    """Two projections, by their names in `names`; all pairs are of the first and of the second.

    The differences of `time_breakdown_s` add up to the difference of `iteration_time_s`. `components_bytes` are at
    the highest peak of all ranks, and their differences add up to the difference of `peak_bytes`. `timelines` is
    None if one of the reports has none.
    """

    names: tuple[str, str]
    verdicts: tuple[str, str]
    iteration_time_s: Pair
    tokens_per_s: tuple[float | None, float | None]
    peak_bytes: tuple[float | None, float | None]
    time_breakdown_s: dict[str, Pair]
    components_bytes: dict[str, Pair]
    options: dict[str, tuple[Any, Any]]
    timelines: tuple[Timeline, Timeline] | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: pair for name, pair in vars(self).items() if name != "timelines"}


def is_projection(report: Any) -> bool:
    """Return whether a JSON file is of `ppsim project`, with `-o` or `--json`."""
    return isinstance(report, dict) and "time_breakdown_s" in report and report.get("origin") != "measured"


def difference_of(
    names: tuple[str, str],
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
    timelines: tuple[Timeline, Timeline] | None = None,
) -> PlanDifference:
    """Raises `ConfigError` for a report that lacks its parts.

    Largest differences come first.
    """
    first, second = map(_parts_of, names, reports)
    pairs = {name: (first[name], second[name]) for name in ("verdicts", *_NUMBERS)}
    before, after = first["options"], second["options"]
    return PlanDifference(
        names, **pairs,
        time_breakdown_s=_pairs(first["time_breakdown_s"], second["time_breakdown_s"]),
        components_bytes=_pairs(first["components_bytes"], second["components_bytes"]),
        options={
            name: (before.get(name), after.get(name))
            for name in before | after
            if before.get(name) != after.get(name)
        },
        timelines=timelines,
    )  # fmt: skip


_NUMBERS = ("iteration_time_s", "tokens_per_s", "peak_bytes")


def _parts_of(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {
            "verdicts": report["verdict"],
            **{key: report[key] for key in _NUMBERS},
            "options": {**report["options"], "layers_per_stage": report["layers_per_stage"]},
            "time_breakdown_s": dict(report["time_breakdown_s"]),
            "components_bytes": dict(report["peak_components_bytes"] or {}),
        }
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error).strip("'")
        raise ConfigError(
            f"{name} is no report of this version of ppsim ({reason}): write it again with ppsim project -o"
        ) from None


def _pairs(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, Pair]:
    pairs = {name: (first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}}
    return dict(sorted(pairs.items(), key=lambda entry: -abs(entry[1][1] - entry[1][0])))
