"""Check measured profiles for impossible and implausible values. Needs neither torch nor pydantic.

    python scripts/check_profile.py profiles/*.json

- No action is faster than the device's peak allows (MFU above 100 %).
- For the same component, dtype, parts and sequence length, more tokens never take less time.
- I + W is between B and COSTLY_SPLIT times B, up to rounding.
- B takes 1.5 to 3 times F without recomputation; the ratio of I and W matches their FLOPs within a factor of 2.
- Quartiles are within 5 % of the median.
- In the device microbenchmarks, no GEMM is above the data sheet's peak, and no larger copy takes less time.

Prints one line per finding. The exit code is 1 for impossible values, 0 for implausible ones.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.base.units import percent, seconds
from ppsim.costs.utilization import PASSES, implausible, pass_flops
from ppsim.model.measurement_key import describe_key

WIDEST_QUARTILES = 0.05
COSTLY_SPLIT = 1.3
CHEAPEST_SPLIT = 0.95
B_OVER_F = (1.5, 3.0)
OFF_BALANCE = 2.0
ROUNDING = 0.02
SHORTEST = 1e-5
"""Seconds below which clock resolution and launch overhead dominate a measurement."""

Finding = tuple[str, str]
"""Severity ("impossible" or "odd"), and a sentence."""


def findings(profile: dict[str, Any]) -> Iterator[Finding]:
    """Yield the impossible and implausible values in the content of a profile file."""
    for sentence in implausible(profile):
        yield "impossible", sentence
    yield from _not_monotone(profile)
    for part in profile["measurements"]:
        where = f"{part['component']} at {describe_key(part['shape'])}"
        for severity, sentence in (*_backward(profile, part), *_spread(part)):
            yield severity, f"{where}: {sentence}"
    yield from _facts(profile)


def _median(part: dict[str, Any], letter: str) -> float:
    return float((part.get(PASSES[letter]) or {}).get("median", 0.0))


def _not_monotone(profile: dict[str, Any]) -> Iterator[Finding]:
    def group(part: dict[str, Any]) -> str:
        return str([part["component"], *(item for item in part["shape"].items() if item[0] != "micro_batch")])

    for _, parts in groupby(sorted(profile["measurements"], key=group), key=group):
        ordered = sorted(parts, key=lambda part: part["shape"]["micro_batch"])
        for fewer, more in pairwise(ordered):
            for letter in PASSES:
                less, greater = _median(fewer, letter), _median(more, letter)
                if less > SHORTEST and 0 < greater < less * (1 - ROUNDING):
                    fewer_at = f"micro-batch {fewer['shape']['micro_batch']}"
                    times = f"{letter} takes {seconds(greater)}, less than the {seconds(less)} of {fewer_at}"
                    yield "odd", f"{more['component']} at {describe_key(more['shape'])}: {times}"


def _backward(profile: dict[str, Any], part: dict[str, Any]) -> Iterator[Finding]:
    forward, whole, of_input, of_weight = (_median(part, letter) for letter in PASSES)
    if part["component"] == "embedding" or min(forward, whole) < SHORTEST:
        return
    if of_input and not CHEAPEST_SPLIT <= (of_input + of_weight) / whole <= COSTLY_SPLIT:
        yield "odd", f"(I + W) / B is {(of_input + of_weight) / whole:.2f}"
    if part["shape"].get("recompute", "none") != "none":
        return
    low, high = B_OVER_F
    if not low <= whole / forward <= high:
        yield "odd", f"B / F is {whole / forward:.2f}, expected {low:g} to {high:g}"
    flops = pass_flops(profile["model"], part)
    if of_input and of_weight and flops["I"] and flops["W"]:
        balance = (of_input / of_weight) / (flops["I"] / flops["W"])
        if not 1 / OFF_BALANCE <= balance <= OFF_BALANCE:
            yield "odd", f"I / W is {balance:.2f} times what their FLOPs say"


def _spread(part: dict[str, Any]) -> Iterator[Finding]:
    for letter, key in PASSES.items():
        time = part.get(key)
        if time and time["median"] > SHORTEST:
            wide = max(time["high"] / time["median"] - 1, 1 - time["low"] / time["median"])
            if wide > WIDEST_QUARTILES:
                yield "odd", f"{letter}'s quartiles are up to {percent(wide)} from its median"


def _facts(profile: dict[str, Any]) -> Iterator[Finding]:
    facts = profile.get("device_facts") or {}
    peaks = profile["provenance"]["device"].get("peak_flops_per_s", {})
    for one in facts.get("products", []):
        rate, peak = 2.0 * one["m"] * one["n"] * one["k"] / one["seconds"]["median"], peaks.get(one["dtype"])
        if peak and rate > peak:
            sizes = f"{one['m']} × {one['n']} × {one['k']}, {one['form']}, {one['dtype']}"
            yield "impossible", f"product {sizes}: {percent(rate / peak)} of the data sheet's peak"

    def kernel(one: dict[str, Any]) -> str:
        return f"{one['kernel']} in {one['dtype']}"

    for name, points in groupby(sorted(facts.get("memory", []), key=kernel), key=kernel):
        for small, large in pairwise(sorted(points, key=lambda one: one["bytes"])):
            if large["seconds"]["median"] < small["seconds"]["median"] * (1 - ROUNDING):
                yield "odd", f"{name}: {large['bytes']} bytes take less time than {small['bytes']}"


def main(paths: Sequence[str]) -> int:
    """Print the findings of each file; return the exit code."""
    worst = 0
    for path in paths:
        try:
            profile = read_json(path)
            found = list(findings(profile))
        except (ConfigError, KeyError, TypeError, AttributeError) as error:
            print(f"{path}: no profile ({error})")
            worst = 2
            continue
        for severity, sentence in found:
            print(f"{path}: {severity}: {sentence}")
        impossible = sum(severity == "impossible" for severity, _ in found)
        worst = max(worst, 1 if impossible else 0)
        count, odd = len(profile["measurements"]), len(found) - impossible
        print(f"{path}: {count} measurements, {impossible} impossible, {odd} odd")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else "give the paths of profiles")
