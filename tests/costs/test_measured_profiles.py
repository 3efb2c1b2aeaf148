"""The profiles that ppsim measured on an H100 and an H200: nothing in them is impossible, and estimates are near to them."""

from collections import Counter
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.analytic import layer_errors
from benchmarks.estimates import held_out
from ppsim.base.files import read_json
from ppsim.costs.profile import Profile, load_profile
from ppsim.costs.utilization import implausible
from ppsim.machine.cluster_files import load_cluster

PROFILES = Path(__file__).parents[2] / "profiles"
NAMES = sorted(path.stem for path in PROFILES.glob("*-h?00.json"))
DEVICES = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
EXPERTS = ("deepseek-v3-like", "mixtral-8x7b")


@cache
def loaded(name: str) -> Profile:
    return load_profile(name)


def device_of(name: str) -> str:
    return name.rsplit("-", 1)[1]


def test_there_are_six_of_each_device() -> None:
    assert Counter(device_of(name) for name in NAMES) == {"h100": 6, "h200": 6}


@pytest.mark.parametrize("name", NAMES)
def test_what_it_says_of_its_measurement_is_whole(name: str) -> None:
    """Which device and software, when, at which clock, held back by what; fused attention; no failure."""
    profile = loaded(name)
    provenance = profile.provenance
    assert (provenance.kind, provenance.device.name) == ("measured", DEVICES[device_of(name)])
    assert provenance.under_load is not None
    assert 1400 < provenance.under_load.sm_clock_mhz.median < 1800
    assert provenance.under_load.held_back["power cap"] > 0.85
    content = read_json(str(PROFILES / f"{name}.json"))
    assert content["failed"] == []
    assert not list(implausible(content))
    layers = [part for part in profile.measurements if part.component == "layer"]
    assert {part.attention for part in layers} <= {"flash", "cudnn"}
    of_16_bits = [part for part in layers if part.shape.dtype == "bfloat16"]
    assert of_16_bits
    assert all(part.backward_input_s and part.backward_weight_s for part in of_16_bits)


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_that_was_not_measured_is_estimated_within_a_few_percent(name: str) -> None:
    """Each held out, from the others and the device's facts: mean absolute errors of layers, F and B."""
    rows = [errors for _, how, errors in held_out(loaded(name)) if how == "layer, held out"]
    assert mean(abs(row[letter]) for row in rows for letter in "FB") < 0.04


@pytest.mark.parametrize("name", NAMES)
def test_the_class_of_the_device_is_near_to_kernels_that_its_constants_never_saw(name: str) -> None:
    """Forward within 7 % in the mean where a layer is dense; experts of torch's own are slower than trainers'."""
    errors = layer_errors(loaded(name), load_cluster(f"dgx-{device_of(name)}"))
    assert abs(mean(errors["F"])) < (0.16 if name.startswith(EXPERTS) else 0.07)
    assert -0.25 < mean(errors["B"]) < 0.0
