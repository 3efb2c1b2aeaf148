"""What a terminal shows of measured steps beside projected ones, and of what was fitted to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import rate, seconds, signed_percent, size
from ppsim.printing.page import Columns, Page, facts, some_of

if TYPE_CHECKING:
    from ppsim.runs.calibrate import Calibration
    from ppsim.runs.compare import Comparison
    from ppsim.runs.peaks import PeakError


def print_comparison(comparison: "Comparison", *, with_rows: bool = False) -> None:
    """Print a measured step beside a projected one: signed errors, by step, pass, stage and peak memory.

    `with_rows` prints every stage and rank; without, of more than `MOST_ROWS` only some.
    """
    out = Page()
    measured, projected = comparison.measured, comparison.projected
    steps = [
        ("step time", measured.step_time_s, projected.step_time_s, comparison.step_error),
        ("span", measured.span_s, projected.span_s, comparison.span_error),
        ("replay", measured.step_time_s, comparison.replay_s, comparison.replay_error),
    ]
    out.add(Columns.of([{"": name} | _errors(*numbers) for name, *numbers in steps]))
    num_stages, worst = measured.schedule.num_stages, comparison.worst_stage
    shown = set(range(num_stages) if with_rows else some_of(num_stages, [worst]))
    rows = [
        {"pass": op.op, "stage": str(op.stage)} | _errors(op.measured_s, op.projected_s, op.error)
        for op in comparison.ops
        if op.stage in shown
    ]
    out.add()
    out.add(Columns.of(rows))
    if len(shown) < num_stages:
        out.add(f"{len(shown)} of {num_stages} stages; stage {worst} has the largest error. --rows prints all")
    out.add(
        "\nerror: projected / measured − 1, negative is too optimistic. replay: the measured actions, each taking "
        "what it took from when it could start, through the simulator: what is left is not in the costs."
    )
    if comparison.peaks:
        _add_peaks(out, comparison.peaks, with_all=with_rows)


def _errors(measured_s: float, projected_s: float, error: float) -> dict[str, str]:
    return {"measured": seconds(measured_s), "projected": seconds(projected_s), "error": signed_percent(error)}


_FITTED = {
    "action_overhead_s": "an action, on the host",
    "hop_overhead_s": "a hop, beyond its transfer",
    "overlap_slowdown": "compute beside a transfer",
    "step_overhead_s": "between two steps",
}


def print_calibration(found: "Calibration") -> None:
    """Print what was fitted and on how much, what could not be and why, and what is left."""
    out = Page()
    rows = []
    for name, fit in found.fits.items():
        if fit is not None:
            written = signed_percent if name == "overlap_slowdown" else seconds
            low, high = map(written, fit.quartiles)
            half = {"half of the samples": f"{low} … {high}", "samples": str(fit.num_samples)}
            rows.append({"": _FITTED[name], "fitted": written(fit.value), **half})
    out.add(Columns.of(rows))
    for hop in found.hops:
        of = "of unknown size" if hop.message_bytes is None else f"of {size(hop.message_bytes)}"
        out.add(f"a hop {of}: {seconds(hop.seconds.value)}, of {hop.seconds.num_samples}")
    if found.line:
        out.add(f"latency {seconds(found.line[0])}, bandwidth {rate(found.line[1])}")
    if found.not_fitted:
        out.add(facts([("not fitted", [f"{name}: {why}" for name, why in found.not_fitted.items()])]))
    out.add()
    errors = [
        {"step time": one.source, **_errors(one.measured_step_s, one.projected_step_s, one.error)}
        | {"without overheads": signed_percent(one.error_without)}
        for one in found.residuals
    ]
    out.add(Columns.of(errors))


def _add_peaks(out: Page, peaks: "Sequence[PeakError]", *, with_all: bool) -> None:
    """Print measured peaks of activation memory beside projected ones, a row a rank."""
    worst = max(peaks, key=lambda peak: abs(peak.error)).rank
    shown = range(len(peaks)) if with_all else some_of(len(peaks), [worst])
    header = ["rank", "measured peak", "at", "projected peak", "at", "error"]
    rows = [
        [
            str(peak.rank), size(peak.measured_bytes), peak.measured_at, size(peak.projected_bytes),
            peak.projected_at, signed_percent(peak.error),
        ]
        for peak in (peaks[rank] for rank in shown)
    ]  # fmt: skip
    out.add()
    out.add(Columns(header, rows))
    if len(shown) < len(peaks):
        out.add(f"{len(shown)} of {len(peaks)} ranks; rank {worst} has the largest error. --rows prints all")
