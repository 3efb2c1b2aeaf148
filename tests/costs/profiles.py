"""Profiles for tests: small ones by hand, and random ones."""

import copy

from hypothesis import strategies as st

from ppsim.base.file_schema import validated
from ppsim.costs.profile import Profile

SHAPE = {"micro_batch": 2, "sequence_length": 16, "dtype": "bf16"}


def quantity(value):
    return {"median": value, "low": value, "high": value}


def component(name, *, forward, backward_input, backward_weight, backward=None, activation=0, kept=0,
              parameters=0, output=0, flops=0.0):  # fmt: skip
    """The JSON of one measurement."""
    return {
        "component": name,
        "shape": SHAPE,
        "forward_s": quantity(forward),
        "backward_s": None if backward is None else quantity(backward),
        "backward_input_s": quantity(backward_input),
        "backward_weight_s": quantity(backward_weight),
        "activation_bytes": activation,
        "activation_bytes_kept_for_weight": kept,
        "output_bytes": output,
        "parameters": parameters,
        "forward_flops": flops,
    }


EXAMPLE = {
    "format": "ppsim-profile/1",
    "name": "example",
    "provenance": {
        "kind": "measured", "source": "by hand", "date": "2025-01-01",
        "device": {"name": "a device", "kind": "cpu", "peak_flops_per_s": {"bf16": 1e12}},
    },
    "model": {"name": "a model", "num_layers": 12, "hidden_size": 8, "num_heads": 2},
    "measurements": [
        component("embedding", forward=0.5, backward_input=0.0, backward_weight=0.25, backward=0.25,
                  activation=100, kept=50, parameters=1000, output=64, flops=1e6),
        component("layer", forward=1.0, backward_input=1.25, backward_weight=0.75, backward=1.75,
                  activation=400, kept=300, parameters=200, output=64, flops=1e9),
        component("head", forward=2.0, backward_input=2.5, backward_weight=1.5, backward=3.5,
                  activation=800, kept=10, parameters=500, output=4, flops=2e9),
    ],
    "transfers": [
        {"bytes": 32, "seconds": quantity(0.03125)}, {"bytes": 1024, "seconds": quantity(0.5)},
    ],
}  # fmt: skip


def example(**changes):
    """The JSON of a profile, the top level changed."""
    return copy.deepcopy(EXAMPLE) | changes


def profile(data=None):
    """A profile from its JSON."""
    return validated(Profile, example() if data is None else data, "test")


def scaled(data, factor):
    """The same profile with every time longer by a factor."""
    data = copy.deepcopy(data)
    for part in [*data["measurements"], *data["transfers"]]:
        for key in list(part):
            if (key == "seconds" or key.endswith("_s")) and part[key] is not None:
                part[key] = {name: value * factor for name, value in part[key].items()}
    return data


@st.composite
def profiles(draw):
    """A random profile with 1 to 40 layers; quarters of a second, so that sums are exact."""
    times = st.integers(0, 40).map(lambda quarters: quarters / 4)
    has_full = draw(st.booleans())

    def drawn(name):
        activation = draw(st.integers(0, 1000))
        return component(
            name, forward=draw(times) + 0.25, backward_input=draw(times), backward_weight=draw(times),
            backward=draw(times) if has_full else None, activation=activation,
            kept=draw(st.integers(0, activation)), parameters=draw(st.integers(0, 1000)),
            output=draw(st.sampled_from([0, 64])), flops=float(draw(st.integers(0, 1000))),
        )  # fmt: skip

    data = example(
        measurements=[drawn(name) for name in ("embedding", "layer", "head")],
        transfers=draw(st.sampled_from([[], EXAMPLE["transfers"]])),
    )
    data["model"] |= {"num_layers": draw(st.integers(1, 40))}
    return data
