"""Terminal output for profiles."""

from collections.abc import Iterable
from typing import Any

from ppsim.base.units import count, seconds, size
from ppsim.costs.affine_layer_cost import stage_lines
from ppsim.costs.utilization import PASSES, peak_of, split_ratio, utilization
from ppsim.model.measurement_key import describe_key
from ppsim.results.text_layout import Page, TableLines


def print_stage_times(profile: dict[str, Any]) -> None:
    """Print stage times as a + n·b (n layers), launch times of the host, and optimizer steps, if measured."""
    out = Page()
    parts = profile["measurements"]
    if lines := [row for part in parts if part.get("alone") for row in _stage_lines(part)]:
        out.add("\na stage of n layers takes a + n·b")
        out.add(TableLines(["", "pass", "a", "b"], lines, left=2))
    launches = [
        {"component": part["component"], "": describe_key(part["shape"]), **_medians(part["launch"])}
        for part in parts
        if part.get("launch")
    ]
    if launches:
        out.add("\nthe host takes to launch a pass")
        out.add(TableLines.of(launches))
    if steps := profile.get("optimizer"):
        out.add("\noptimizer step of one layer, of the embedding and of the head")
        out.add(TableLines.of([_optimizer_step(step) for step in steps]))


def _stage_lines(part: dict[str, Any]) -> Iterable[list[str]]:
    shape = describe_key(part["shape"])
    for letter, line in stage_lines(part).items():
        yield [shape, letter, *map(seconds, line)]
        shape = ""


def _medians(times: dict[str, Any]) -> dict[str, str]:
    return {letter: _median(times[name]) for letter, name in PASSES.items()}


def _median(time: dict[str, Any] | None) -> str:
    return "–" if time is None else seconds(time["median"])


def _optimizer_step(step: dict[str, Any]) -> dict[str, str]:
    cuts = "".join(f", {name} {step[name]}" for name in ("tp", "ep") if step[name] > 1)
    return {
        "optimizer": step["optimizer"],
        "component": step["component"],
        "": step["dtype"] + cuts,
        "step": _median(step["step_s"]),
        "gradient norm": _median(step["gradient_norm_s"]),
        "state": size(step["state_bytes"]),
    }


def print_measurements(profile: dict[str, Any]) -> None:
    """I and W are dashes if the backward pass cannot be split."""
    out = Page()
    by_shape: dict[str, list[dict[str, Any]]] = {}
    peaks: dict[str, tuple[float, str]] = {}
    for part in profile["measurements"]:
        by_shape.setdefault(describe_key(part["shape"]), []).append(part)
    for index, (shape, parts) in enumerate(by_shape.items()):
        if len(by_shape) > 1:
            out.add(f"\n{shape}" if index else shape)
        if peak := peak_of(profile, parts[0]["shape"]["dtype"]):
            peaks[parts[0]["shape"]["dtype"]] = peak
        rows = [
            _measurement(part) | ({"MFU F B I W, %": _in_percent(utilization(profile, part))} if peak else {})
            for part in parts
        ]
        out.add(TableLines.of(rows, spare=["kept for W", "(I+W)/B"]))
    for shape in profile["does_not_fit"]:
        out.add(f"\n{describe_key(shape)}: does not fit")
    for failure in profile["failed"]:
        out.add(f"\n{describe_key(failure['shape'])}: {failure['error']}")
    for dtype, (best, what) in peaks.items():
        out.add(f"\nMFU, {dtype}: model FLOPs (causal half of attention) relative to {count(best)}FLOP/s, {what}")


def _in_percent(mfu: dict[str, float | None]) -> str:
    return " ".join("–" if part is None else f"{100 * part:.0f}" for part in mfu.values())


def _measurement(part: dict[str, Any]) -> dict[str, str]:
    ratio = split_ratio(part)
    return {
        "component": part["component"],
        **_medians(part),
        "(I+W)/B": "–" if ratio is None else f"{ratio:.2f}",
        "activation": size(part["activation_bytes"]),
        "kept for W": size(part["activation_bytes_kept_for_weight"]),
    }
