"""Errors of estimated shapes compared with measurements: estimated / measured − 1.

Every shape of a grid is measured, and the device microbenchmarks once. Then each shape is held out and estimated
from the two nearest other shapes. `alone` is the sum of kernels without such an anchor. `again` is a second
measurement of the same shape compared with the first: the limit of accuracy on this machine.

    python benchmarks/estimates.py            # mini and llama-mini, one thread
    python benchmarks/estimates.py --rows     # also every shape
    python benchmarks/estimates.py --cpu-time # CPU time of this thread instead of wall time, for a busy machine
    python benchmarks/estimates.py profiles/*-h100.json    # existing profiles; measures nothing
"""

import argparse
import gc
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ppsim.costs.estimate import estimated, model_of
from ppsim.costs.layer_kernels import PassSeconds, estimate
from ppsim.costs.profile import Measurement, Profile, describe, load_profile
from ppsim.profiling.device_microbenchmarks import add_facts
from ppsim.profiling.model_shapes import find_model
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.profiling.sweep import SuiteJob, sweep
from ppsim.runtime.clock import HostClock

MODELS = {"mini": (64, 128, 256), "llama-mini": (64, 128, 256)}
MICRO_BATCHES = (1, 2, 3)
PASSES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}


def measured(name: str, folder: Path, settings: MeasuringSettings) -> Profile:
    path = folder / f"{name}.json"
    keys = [MeasurementKey(b, s, "float32") for s in MODELS[name] for b in MICRO_BATCHES]
    sweep(SuiteJob(name, find_model(name), tuple(keys), path), settings)
    add_facts(str(path), settings, "float32")
    return load_profile(path)


def errors(guess: PassSeconds | Measurement, truth: Measurement) -> dict[str, float]:
    found = {}
    for letter, name in PASSES.items():
        value, measured_s = getattr(guess, name), getattr(truth, name)
        if value is not None and measured_s is not None:
            found[letter] = (value if isinstance(value, float) else value.median) / measured_s.median - 1
    return found


def held_out(profile: Profile, again: Profile | None = None) -> list[tuple[str, str, dict[str, float]]]:
    """Return (shape, method, errors by action) of layer and head at every shape, for the measured actions."""
    model, facts = model_of(profile), profile.device_facts
    assert model is not None
    assert facts is not None
    rows = []
    for truth in profile.measurements:
        if truth.component == "embedding" or truth.shape.dtype == "fp8":  # no microbenchmarks
            continue
        shape = truth.shape
        rest = replace(profile, measurements=[part for part in profile.measurements if part.shape != shape])
        where = f"{truth.component}, {describe(shape)}"
        rows.append((where, f"{truth.component}, held out", errors(estimated(truth.component, rest, shape), truth)))
        rows.append(
            (where, f"{truth.component}, alone", errors(estimate(truth.component, model, shape, facts), truth))
        )
        if again is not None:
            rows.append((where, f"{truth.component}, again", errors(again.find(truth.component, shape), truth)))
    return rows


def measure_thread_time() -> None:
    """Time actions by the CPU time of their thread, independent of the load on this machine."""
    HostClock.now = lambda clock: time.thread_time()  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("profiles", nargs="*", metavar="PROFILE.json")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--cpu-time", action="store_true", help="time of this thread, where others load the machine"
    )
    options = parser.parse_args()
    if options.cpu_time:
        measure_thread_time()
    gc.freeze()
    settings = MeasuringSettings(num_repeats=options.repeats, num_warm_up=3, component_s=0.3)
    print("| model, component, how | F mean / worst | B | I | W | all, mean absolute |")
    print("|---|--:|--:|--:|--:|--:|")
    if options.profiles:
        for path in options.profiles:
            report(Path(path).stem, held_out(load_profile(path)), with_rows=options.rows)
        return
    for name in MODELS:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            rows = held_out(measured(name, Path(first), settings), measured(name, Path(second), settings))
        report(name, rows, with_rows=options.rows)


def report(name: str, rows: list[tuple[str, str, dict[str, float]]], *, with_rows: bool) -> None:
    for how in dict.fromkeys(how for _, how, _ in rows):
        found = [errors for _, other, errors in rows if other == how]
        cells = []
        for letter in PASSES:
            values = [errors[letter] for errors in found if letter in errors]
            mean_and_worst = statistics.mean(values), max(values, key=abs)
            cells.append(" / ".join(f"{100 * value:+.1f} %" for value in mean_and_worst))
        absolute = statistics.mean(abs(value) for errors in found for value in errors.values())
        print(f"| {name}, {how} | {' | '.join(cells)} | {100 * absolute:.1f} % |")
    if with_rows:
        for where, how, errors_of in rows:
            print(f"  {where}: {how}: " + ", ".join(f"{k} {100 * v:+.1f} %" for k, v in errors_of.items()))


if __name__ == "__main__":
    main()
