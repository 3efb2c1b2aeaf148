"""Printing what a profile has beside its passes: what a stage and the host add, and optimizer steps."""

from collections.abc import Iterable
from typing import Any

from ppsim.base.units import count, seconds, size
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


def print_measurements(profile: dict[str, Any]) -> None:
    """Print a measured profile, a table a shape; of a backward that cannot be split, I and W are dashes.

    With a peak, the table has the MFU of each pass, and a line below it says of what.
    """
    from ppsim.costs.utilization import peak_of, utilization
    from ppsim.model.shapes import in_words

    out = Page()
    by_shape: dict[str, list[dict[str, Any]]] = {}
    peaks: dict[str, tuple[float, str]] = {}
    for part in profile["measurements"]:
        by_shape.setdefault(in_words(part["shape"]), []).append(part)
    for index, (shape, parts) in enumerate(by_shape.items()):
        if len(by_shape) > 1:
            out.add(f"\n{shape}" if index else shape)
        names = ["component", "F", "B", "I", "W", "(I+W)/B", "activation", "kept for W"]
        rows = [_measured_row(part) for part in parts]
        if peak := peak_of(profile, parts[0]["shape"]["dtype"]):
            peaks[parts[0]["shape"]["dtype"]] = peak
            names.append("MFU F B I W, %")
            rows = [[*row, _in_percent(utilization(profile, part))] for row, part in zip(rows, parts, strict=True)]
        out.add(Columns(names, rows, spare=["kept for W", "(I+W)/B"]))
    for shape in profile["does_not_fit"]:
        out.add(f"\n{in_words(shape)}: does not fit")
    for failure in profile["failed"]:
        out.add(f"\n{in_words(failure['shape'])}: {failure['error']}")
    for dtype, (best, what) in peaks.items():
        out.add(f"\nMFU, {dtype}: of {count(best)}FLOP/s, {what}; of attention the causal half is counted")


def _in_percent(mfu: dict[str, float | None]) -> str:
    return " ".join("–" if part is None else f"{100 * part:.0f}" for part in mfu.values())


def _measured_row(part: dict[str, Any]) -> list[str]:
    names = ("forward", "backward", "backward_input", "backward_weight")
    forward, whole, *halves = (part[f"{name}_s"] for name in names)
    is_split = None not in (whole, *halves) and whole["median"]
    ratio = f"{sum(half['median'] for half in halves) / whole['median']:.2f}" if is_split else "–"
    times = ["–" if time is None else seconds(time["median"]) for time in (forward, whole, *halves)]
    kept = size(part["activation_bytes_kept_for_weight"])
    return [part["component"], *times, ratio, size(part["activation_bytes"]), kept]
