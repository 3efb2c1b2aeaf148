"""Printing what a profile has beside its passes: what a stage and the host add, and optimizer steps."""

from collections.abc import Iterable
from typing import Any

from ppsim.base.units import seconds, size
from ppsim.costs.lines import line_through
from ppsim.model.shapes import in_words
from ppsim.printing.page import Columns, Page

_PASSES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}


def print_beside(profile: dict[str, Any]) -> None:
    """Print stages as lines a + n·b, the host's launch times, and optimizer steps, of what was measured."""
    out = Page()
    parts = profile["measurements"]
    if lines := [row for part in parts if part.get("alone") for row in _line_rows(part)]:
        out.add("\na stage of n layers takes a + n·b")
        out.add(Columns(["", "pass", "a", "b"], lines, left=2))
    launches = [
        [part["component"], in_words(part["shape"]), *_row(part["launch"])] for part in parts if part.get("launch")
    ]
    if launches:
        out.add("\nthe host takes to launch a pass")
        out.add(Columns(["component", "", *_PASSES], launches))
    if steps := profile.get("optimizer"):
        out.add("\na step, for one layer, the embedding and the head")
        out.add(
            Columns(
                ["optimizer", "component", "", "step", "gradient norm", "state"],
                [_step_row(step) for step in steps],
            )
        )


def _line_rows(part: dict[str, Any]) -> Iterable[list[str]]:
    alone, shape = part["alone"], in_words(part["shape"])
    for title, name in _PASSES.items():
        mean, one = part[name], alone[name]
        if mean is not None and one is not None:
            line = line_through(one["median"], mean["median"], alone["num_in_row"])
            yield [shape, title, *map(seconds, line)]
            shape = ""


def _row(times: dict[str, Any]) -> Iterable[str]:
    return ("–" if times[name] is None else seconds(times[name]["median"]) for name in _PASSES.values())


def _step_row(step: dict[str, Any]) -> list[str]:
    cuts = "".join(f", {name} {step[name]}" for name in ("tp", "ep") if step[name] > 1)
    times = (seconds(step[name]["median"]) for name in ("step_s", "gradient_norm_s"))
    return [step["optimizer"], step["component"], step["dtype"] + cuts, *times, size(step["state_bytes"])]
