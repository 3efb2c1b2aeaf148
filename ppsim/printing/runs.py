"""What a terminal shows of measured steps beside projected ones, and of what was fitted to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import rate, seconds, signed_percent, size
from ppsim.printing.page import Columns, Page, add_list, some_of

if TYPE_CHECKING:
    from ppsim.runs.calibrate import Calibration
    from ppsim.runs.compare import Comparison
    from ppsim.runs.peaks import PeakError


def print_compare(comparison: "Comparison", *, with_rows: bool = False) -> None:
    """Print a measured step beside a projected one: signed errors, by step, pass and stage.

    `with_rows` prints every stage; without, of more than `MOST_ROWS` only some.
    """
    out = Page()
    measured, projected = comparison.measured, comparison.projected
    steps = [
        ("step time", measured.step_time_s, projected.step_time_s, comparison.step_error),
        ("span", measured.span_s, projected.span_s, comparison.span_error),
        ("replay", measured.step_time_s, comparison.replay_s, comparison.replay_error),
    ]
    out.add(
        Columns(
            ["", "measured", "projected", "error"],
            [
                [name, seconds(real), seconds(expected), signed_percent(error)]
                for name, real, expected, error in steps
            ],
        )
    )
    num_stages = measured.schedule.num_stages
    worst = max(comparison.ops, key=lambda op: abs(op.error)).stage
    shown = set(range(num_stages) if with_rows else some_of(num_stages, [worst]))
    out.add()
    out.add(
        Columns(
            ["pass", "stage", "measured", "projected", "error"],
            [
                [op.op, str(op.stage), seconds(op.measured_s), seconds(op.projected_s), signed_percent(op.error)]
                for op in comparison.ops
                if op.stage in shown
            ],
        )
    )
    if len(shown) < num_stages:
        out.add(f"{len(shown)} of {num_stages} stages; stage {worst} has the largest error. --rows prints all")
    out.add(
        "\nerror: projected / measured − 1, negative is too optimistic. replay: the measured actions, each taking "
        "what it took from when it could start, through the simulator: what is left is not in the costs."
    )


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
            rows.append([_FITTED[name], written(fit.value), f"{low} … {high}", str(fit.num_samples)])
    out.add(Columns(["", "fitted", "half of the samples", "samples"], rows))
    for hop in found.hops:
        of = "of unknown size" if hop.message_bytes is None else f"of {size(hop.message_bytes)}"
        out.add(f"a hop {of}: {seconds(hop.seconds.value)}, of {hop.seconds.num_samples}")
    if found.line:
        out.add(f"latency {seconds(found.line[0])}, bandwidth {rate(found.line[1])}")
    if found.not_fitted:
        add_list(out, "not fitted", [f"{name}: {why}" for name, why in found.not_fitted.items()])
    out.add()
    errors = [
        [one.source, *map(seconds, (one.measured_step_s, one.projected_step_s)),
         *map(signed_percent, (one.error, one.error_without))]
        for one in found.residuals
    ]  # fmt: skip
    out.add(Columns(["step time", "measured", "projected", "error", "without overheads"], errors))


def print_peaks(peaks: "Sequence[PeakError]", *, with_rows: bool = False) -> None:
    """Print measured peaks of activation memory beside projected ones, a row a rank, as `print_compare` does."""
    if not peaks:
        return
    out = Page()
    out.add()
    worst = max(range(len(peaks)), key=lambda index: abs(peaks[index].error))
    shown = range(len(peaks)) if with_rows else some_of(len(peaks), [worst])
    rows = [
        [
            str(peak.rank), size(peak.measured_bytes), peak.measured_at, size(peak.projected_bytes),
            peak.projected_at, signed_percent(peak.error),
        ]
        for peak in (peaks[index] for index in shown)
    ]  # fmt: skip
    out.add(Columns(["rank", "measured peak", "at", "projected peak", "at", "error"], rows))
    if len(shown) < len(peaks):
        out.add(
            f"{len(shown)} of {len(peaks)} ranks; rank {peaks[worst].rank} has the largest error. --rows prints all"
        )
