"""Fraction of a device's peak that measured passes reach, from a profile file (without pydantic).

With A and P the forward FLOPs of attention and of weight GEMMs, F has P + A, I has P + 2A and W has P. Only the
causal half of the scores is counted, so that a result above the peak means a wrong time.
"""

from typing import Any

from ppsim.machine.devices import TYPE_NAMES, DataSheet
from ppsim.model.measurement_key import describe_key

BY_DATA_SHEET = "the data sheet's peak"

PASSES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}
"""Key of the seconds of each pass, by its letter."""


def pass_flops(model: dict[str, Any], measurement: dict[str, Any]) -> dict[str, float | None]:
    """If `model` has no `layer_sizes`, I and W of a layer are None, because they cannot be separated.

    >>> head = {"component": "head", "shape": {"micro_batch": 1, "sequence_length": 8}, "forward_flops": 6.0}
    >>> pass_flops({}, head)
    {'F': 6.0, 'B': 12.0, 'I': 6.0, 'W': 6.0}
    """
    forward, shape = measurement.get("forward_flops", 0.0), measurement["shape"]
    if measurement["component"] != "layer":
        return {"F": forward, "B": 2 * forward, "I": forward, "W": forward}
    if model.get("layer_sizes") is None:
        return {"F": forward, "B": 2 * forward, "I": None, "W": None}
    from ppsim.model import shapes  # imported here because the peak alone does not need it

    shard = shapes.LayerShape(**model["layer_sizes"]).shard(tp=shape.get("tp", 1), ep=shape.get("ep", 1))
    sizes = {"micro_batch": shape["micro_batch"], "sequence_length": shape["sequence_length"]}
    causal = shapes.layer_forward_flops(shard, **sizes, causal=True)
    half_attention = shapes.layer_forward_flops(shard, **sizes) - causal
    products = causal - half_attention
    return {"F": causal, "B": 2 * causal, "I": products + 2 * half_attention, "W": products}


def peak_of(profile: dict[str, Any], dtype: str) -> tuple[float, str] | None:
    """Return the peak in FLOP/s and its source: the data sheet if known, otherwise the fastest measured GEMM."""
    peaks = profile["provenance"]["device"].get("peak_flops_per_s", {})
    if sheet := DataSheet("", {TYPE_NAMES.get(name, name): peak for name, peak in peaks.items()}).peak(dtype):
        return sheet, BY_DATA_SHEET
    products = (profile.get("device_facts") or {}).get("products", [])
    rates = [2.0 * product["m"] * product["n"] * product["k"] / product["seconds"]["median"]
             for product in products if product["dtype"] == dtype and product["seconds"]["median"]]  # fmt: skip
    return (max(rates), "the best product measured, no data sheet being known") if rates else None


def utilization(profile: dict[str, Any], measurement: dict[str, Any]) -> dict[str, float | None]:
    """Return model FLOPs / time / peak of F, B, I and W."""
    peak = peak_of(profile, measurement["shape"]["dtype"])
    flops = pass_flops(profile["model"], measurement)
    shares: dict[str, float | None] = {}
    for letter, key in PASSES.items():
        count, time = flops[letter], (measurement.get(key) or {}).get("median")
        shares[letter] = count / time / peak[0] if peak and count and time else None
    return shares


def split_ratio(measurement: dict[str, Any]) -> float | None:
    whole, *halves = (measurement[PASSES[letter]] for letter in "BIW")
    if None in (whole, *halves) or not whole["median"]:
        return None
    return float(sum(half["median"] for half in halves) / whole["median"])


def implausible(profile: dict[str, Any]) -> list[str]:
    sentences = []
    for part in profile["measurements"]:
        above = {letter: mfu for letter, mfu in utilization(profile, part).items() if mfu and mfu > 1}
        if above:
            _, what = peak_of(profile, part["shape"]["dtype"]) or (0.0, "")
            passes = ", ".join(f"{letter} {100 * mfu:.0f} %" for letter, mfu in above.items())
            sentences.append(
                f"{part['component']} at {describe_key(part['shape'])}: {passes} of {what}: this measurement "
                "is implausible, measure again on a quiet device"
            )
    return sentences
