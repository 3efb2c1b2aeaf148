"""Estimates of shapes that were not measured: by the device's curves, anchored on what was measured."""

import itertools
import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import validated
from ppsim.base.files import to_json
from ppsim.cli import main
from ppsim.costs import estimate as estimate_module
from ppsim.costs.assemble_profile import assumption
from ppsim.costs.estimate import estimated, model_of, with_estimates
from ppsim.costs.layer_kernels import estimate
from ppsim.costs.profile import Profile, Shape
from ppsim.machine.kernels.curves import Curves
from ppsim.machine.kernels.microbenchmarks import DeviceMicrobenchmarks
from ppsim.model import shapes
from tests.costs.profiles import EXAMPLE, profile

RATE, BANDWIDTH = 1e12, 1e11
SIZES = {"kind": "llama", "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_size": 16, "ffn_size": 176}


def time(seconds):
    return {"median": seconds, "low": seconds, "high": seconds}


def facts(rate=RATE, **changed):
    """A device that runs every product at `rate`, attention at half of it, and memory at BANDWIDTH."""
    products = [
        {"form": form, "m": m, "n": n, "k": k, "dtype": "bfloat16", "seconds": time(2.0 * m * n * k / rate)}
        for form in ("forward", "input", "weight")
        for m, n, k in itertools.product((1, 64, 1024), repeat=3)
    ]
    attention = [
        {"micro_batch": 1, "num_heads": heads, "num_kv_heads": 1, "sequence_length": s, "head_size": 16,
         "dtype": "bfloat16", "forward_s": time(64.0 * heads * s**2 / (rate / 2)),
         "backward_s": time(128.0 * heads * s**2 / (rate / 2))}
        for heads in (1, 64) for s in (1, 1024)
    ]  # fmt: skip
    memory = [
        {"kernel": kernel, "bytes": size, "dtype": "bfloat16", "seconds": time(size / BANDWIDTH)}
        for kernel in ("copy", "elementwise", "norm")
        for size in (1, 2**30)
    ]
    return {"products": products, "attention": attention, "memory": memory} | changed


def measured(**key):
    return [
        part | {"shape": {"micro_batch": 2, "sequence_length": 16, "dtype": "bfloat16"} | key}
        for part in EXAMPLE["measurements"]
    ]


def known(*parts, **changed):
    """A profile whose layer and device are known."""
    model = EXAMPLE["model"] | {"hidden_size": 64, "num_heads": 4, "vocab_size": 500, "layer_sizes": SIZES}
    data = EXAMPLE | {"model": model, "measurements": [*(parts or measured())], "device_facts": facts()}
    return profile(data | changed)


def shape(**fields):
    return Shape(**{"micro_batch": 2, "sequence_length": 16, "dtype": "bfloat16", **fields})


def test_a_device_of_one_rate_takes_flops_by_rate():
    """A product between points runs at their rate; the head's W is its product and the sums of its gradient."""
    curves = Curves(validated(DeviceMicrobenchmarks, facts(), "test"), "bfloat16")
    assert curves.peak("products") == pytest.approx(RATE)
    assert curves.product_s("forward", 300, 200, 100) == pytest.approx(2 * 300 * 200 * 100 / RATE)
    assert curves.moved_s("copy", 1e6) == pytest.approx(1e6 / BANDWIDTH)
    assert curves.moved_s("copy", 2.0**33) == pytest.approx(2.0**33 / BANDWIDTH)
    model = model_of(known())
    found = estimate("head", model, shape(), validated(DeviceMicrobenchmarks, facts(), "test"))
    flops = shapes.head_forward_flops(model, micro_batch=2, sequence_length=16)
    assert found.backward_weight_s == pytest.approx(flops / RATE + 3 * 500 * 64 * 2 / BANDWIDTH)


def test_no_product_is_faster_than_the_best_measured_nor_takes_less_than_the_shortest():
    data = facts()
    data["products"] = [
        {
            "form": "forward",
            "m": m,
            "n": m,
            "k": m,
            "dtype": "bfloat16",
            "seconds": time(max(1e-5, 2.0 * m**3 / RATE)),
        }
        for m in (8, 64, 512, 1024)
    ]
    curves = Curves(validated(DeviceMicrobenchmarks, data, "test"), "bfloat16")
    assert curves.product_s("forward", 8192, 8192, 8192) >= 2 * 8192.0**3 / RATE
    assert curves.product_s("forward", 1, 1, 1) == 1e-5


def test_groups_without_a_grouped_product_run_one_after_the_other():
    curves = Curves(validated(DeviceMicrobenchmarks, facts(), "test"), "bfloat16")
    assert curves.product_s("weight", 64, 64, 512, groups=4) == pytest.approx(2 * 64 * 64 * 512 / RATE)
    grouped = {
        "form": "forward",
        "m": 512,
        "n": 64,
        "k": 64,
        "groups": 4,
        "dtype": "bfloat16",
        "seconds": time(1.0),
    }
    data = facts()
    data["products"].append(grouped)
    assert (
        Curves(validated(DeviceMicrobenchmarks, data, "test"), "bfloat16").product_s(
            "forward", 512, 64, 64, groups=4
        )
        == 1.0
    )


def test_an_estimate_of_the_measured_shape_is_the_measurement():
    one = known()
    for component in ("embedding", "layer", "head"):
        there = one.find(component, shape())
        found = estimated(component, one, shape())
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s", "activation_bytes",
                     "activation_bytes_kept_for_weight", "output_bytes"):  # fmt: skip
            assert getattr(found, name) == getattr(there, name)


def test_a_shape_takes_the_measured_time_by_the_ratio_of_estimates():
    one, wanted = known(), shape(micro_batch=3)
    model, there = model_of(one), one.find("layer", shape())
    ratio = estimate("layer", model, wanted, one.device_facts).forward_s
    ratio /= estimate("layer", model, shape(), one.device_facts).forward_s
    found = estimated("layer", one, wanted)
    assert ratio == pytest.approx(1.5)  # all of a forward is proportional to the tokens
    assert found.forward_s.median == pytest.approx(there.forward_s.median * ratio)
    assert found.forward_s.high == pytest.approx(there.forward_s.high * ratio)
    assert found.activation_bytes == round(there.activation_bytes * 1.5)
    assert found.parameters == shapes.layer_parameters(model.layer)
    assert found.forward_flops == shapes.layer_forward_flops(model.layer, micro_batch=3, sequence_length=16)
    assert found.estimated_from == [shape()]


@pytest.mark.parametrize("component", ["embedding", "layer", "head"])
@pytest.mark.parametrize("kind", ["gpt", "llama", "moe"])
def test_more_tokens_never_take_less(kind, component):
    sizes = SIZES | {"kind": kind} | ({"num_kv_heads": 4} if kind == "gpt" else {})
    sizes |= {"num_experts": 8, "experts_per_token": 2, "shared_ffn_size": 32} if kind == "moe" else {}
    model = model_of(known(model=asdict(known().model) | {"layer_sizes": sizes}))
    device = validated(DeviceMicrobenchmarks, facts(), "test")
    for recompute in ("none", "full"):
        times = [estimate(component, model, shape(micro_batch=b, recompute=recompute), device) for b in (1, 2, 4)]
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s"):
            values = [getattr(one, name) for one in times]
            assert values == sorted(values)


def test_with_two_measured_shapes_a_pass_is_a_fixed_part_and_a_multiple_of_the_sum():
    """What takes 1 ms and three times the sum of its kernels at two shapes does so at a third, between or beyond."""
    model, device = model_of(known()), validated(DeviceMicrobenchmarks, facts(), "test")

    def seconds(micro_batch):
        return 1e-3 + 3 * estimate("layer", model, shape(micro_batch=micro_batch), device).forward_s

    parts = [part | {"forward_s": time(seconds(b))} for b in (2, 6) for part in measured(micro_batch=b)]
    one = known(*parts)
    for micro_batch in (1, 4, 9):
        found = estimated("layer", one, shape(micro_batch=micro_batch))
        assert found.forward_s.median == pytest.approx(seconds(micro_batch))
        assert len(found.estimated_from) == 2
    added, wanted = with_estimates(one, micro_batch=4)
    nearest_first = "at micro-batch 6, sequence length 16, bfloat16 and at micro-batch 2"
    assert nearest_first in (assumption(added, wanted) or "")


@pytest.mark.parametrize("second", [0.5, 100.0])
def test_a_line_that_falls_or_starts_below_zero_is_not_followed(second):
    """Where twice the tokens take less, or more than twice as long, the nearest shape's ratio stands."""
    parts = [
        part | {"forward_s": time(value)}
        for b, value in ((2, 1.0), (4, second))
        for part in measured(micro_batch=b)
    ]
    assert estimated("layer", known(*parts), shape(micro_batch=1)).forward_s.median == pytest.approx(0.5)


def test_with_recomputation_b_and_i_have_one_forward_more_and_w_one_a_linear_layer():
    model, device = model_of(known()), validated(DeviceMicrobenchmarks, facts(), "test")
    none, full = (estimate("layer", model, shape(recompute=kind), device) for kind in ("none", "full"))
    assert none.backward_s == pytest.approx(none.backward_input_s + none.backward_weight_s)
    assert full.backward_s == pytest.approx(none.backward_s + none.forward_s)
    assert full.backward_input_s == pytest.approx(none.backward_input_s + none.forward_s)
    assert full.backward_weight_s == pytest.approx(none.backward_weight_s + 7 * none.forward_s)


def test_the_nearest_shape_of_the_same_type_and_recomputation_is_the_anchor():
    one = known(*measured(micro_batch=1), *measured(micro_batch=8), *measured(micro_batch=3, recompute="full"))
    assert estimated("layer", one, shape(micro_batch=5)).estimated_from[0] == shape(micro_batch=8)
    assert estimated("layer", one, shape(micro_batch=2)).estimated_from[0] == shape(micro_batch=1)
    of_full = estimated("layer", one, shape(micro_batch=4, recompute="full"))
    assert of_full.estimated_from == [shape(micro_batch=3, recompute="full")]


def test_only_what_was_not_measured_is_estimated_and_the_rest_is_as_at_the_nearest():
    one = known(*measured(), *measured(sequence_length=32, micro_batch=1))
    assert with_estimates(one, micro_batch=2) == (one, shape())
    added, found = with_estimates(one, micro_batch=3)
    assert found == shape(micro_batch=3)
    assert len(added.measurements) == len(one.measurements) + 3
    assert assumption(added, found) == (
        "embedding, layer, head at micro-batch 3, sequence length 16, bfloat16: estimated from those measured at "
        "micro-batch 2, sequence length 16, bfloat16, by device facts"
    )
    assert assumption(added, shape()) is None
    assert with_estimates(one, tp=2)[1] == shape(tp=2)


REFUSED = {
    "no facts": ({"device_facts": None}, {"micro_batch": 3}, "was not measured at micro-batch 3"),
    "no sizes": ({"model": EXAMPLE["model"]}, {"micro_batch": 3}, "was not measured at micro-batch 3"),
    "did not fit": (
        {"does_not_fit": [{"micro_batch": 3, "sequence_length": 16, "dtype": "bfloat16"}]},
        {"micro_batch": 3},
        "micro-batch 3 did not fit the memory",
    ),
    "recomputation": (
        {},
        {"micro_batch": 3, "recompute": "full"},
        "was not measured at micro-batch 3, recompute full",
    ),
    "tp": ({}, {"tp": 4}, "tp must divide the key/value heads: got 4 with 2"),
    "another type": (
        {"device_facts": facts(products=[])},
        {"micro_batch": 3},
        "the device facts have no products in bfloat16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_estimated_is_said(case):
    changed, wanted, sentence = REFUSED[case]
    with pytest.raises(ConfigError, match=sentence):
        with_estimates(known(**changed), **wanted)


def test_a_projection_says_what_was_estimated(tmp_path):
    def projected(one: Profile, code: int):
        path = tmp_path / "p.json"
        path.write_text(to_json(asdict(one)))
        command = ["project", "--pp", "2", "--profile", str(path), "--micro-batch-size", "3", "--json"]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == code, result.output
        return result

    of_nobody = replace(known().provenance, device=replace(known().provenance.device, peak_flops_per_s={}))
    report = json.loads(projected(replace(known(), provenance=of_nobody), 0).stdout)
    assert report["profile"]["shape"]["micro_batch"] == 3
    assert any("estimated from those measured at micro-batch 2" in line for line in report["assumptions"])
    assert "MFU: of the best product measured, no data sheet being known" in report["assumptions"]
    assert report["peak_flops_per_s"] == pytest.approx(RATE)
    assert "was not measured at micro-batch 3" in projected(known(device_facts=None), 2).stderr


@pytest.mark.parametrize(
    ("here", "there", "measured", "scale"),
    [
        (6.0, [3.0], [5.0], 2.0),  # the ratio of the sums
        (7.0, [3.0, 5.0], [10.0, 14.0], (4 + 2 * 7) / 10),  # 4 + 2 x
        (7.0, [3.0, 5.0], [6.0, 10.0], 7 / 3),  # without a fixed part
        (7.0, [3.0, 5.0], [4.0, 10.0], 7 / 3),  # with a negative one
        (7.0, [3.0, 5.0], [10.0, 9.0], 7 / 3),
        (7.0, [3.0, 3.0], [10.0, 14.0], 7 / 3),
        (7.0, [3.0, 5.0], [0.0, 14.0], 7 / 3),
        (7.0, [0.0], [5.0], 1.0),
    ],
)
def test_a_time_follows_the_line_through_two_anchors_or_the_ratio_of_kernels(
    here: float, there: list[float], measured: list[float], scale: float
) -> None:
    assert estimate_module._scale(here, there, measured) == pytest.approx(scale)


def shape_of_tokens(micro_batch: int, **key: object) -> Shape:
    return Shape(**{"micro_batch": micro_batch, "sequence_length": 16, "dtype": "bfloat16"} | key)


def test_the_distance_counts_factors_of_two_and_of_ranks_four_times() -> None:
    one = shape_of_tokens(2, tp=1)
    assert estimate_module._distance(one, shape_of_tokens(8, sequence_length=8, tp=2)) == 2 + 1 + 4
    assert estimate_module._distance(one, shape_of_tokens(1, ep=4)) == 1 + 8
    assert estimate_module._SIZES == {"micro_batch": 1.0, "sequence_length": 1.0, "tp": 4.0, "ep": 4.0}


@pytest.mark.parametrize(
    ("wanted", "anchors"),
    [(3, [4, 2]), (1, [2, 4]), (16, [4, 2]), (2, [2, 4])],  # 3 is nearer to 4 by logarithms
)
def test_anchors_are_the_nearest_and_one_of_other_tokens(wanted: int, anchors: list[int]) -> None:
    parts = [*measured(micro_batch=2), *measured(micro_batch=4), *measured(micro_batch=3, tp=2)]
    found = estimate_module._anchors(known(*parts), "layer", shape_of_tokens(wanted))
    assert [part.shape.micro_batch for part in found] == anchors


def test_a_tokens_anchor_on_the_other_side_is_preferred() -> None:
    parts = [part for size in (2, 3, 8) for part in measured(micro_batch=size)]
    for wanted, expected in ((4, [3, 8]), (6, [8, 3]), (3, [3, 2]), (16, [8, 3])):
        found = estimate_module._anchors(known(*parts), "layer", shape_of_tokens(wanted))
        assert [part.shape.micro_batch for part in found] == expected, wanted


def test_sizes_of_a_component_are_its_saved_values_parameters_and_flops() -> None:
    model = model_of(known(*measured()))
    assert model is not None
    shape, batch = shape_of_tokens(3), {"micro_batch": 3, "sequence_length": 16}
    sized = replace(model, sequence_length=16).shard(tp=1, ep=1)
    assert estimate_module._sizes("embedding", model, shape) == (48, sized.whole.embedding_parameters, 0.0)
    assert estimate_module._sizes("head", model, shape) == (
        shapes.head_activation_bytes(sized, **batch, dtype="bfloat16"), sized.whole.head_parameters,
        shapes.head_forward_flops(sized, **batch),
    )  # fmt: skip


def test_an_estimate_scales_its_anchor_by_tokens_and_keeps_the_outputs_of_a_head() -> None:
    own = known(*measured())
    for component in ("embedding", "layer", "head"):
        anchor = own.find(component, shape_of_tokens(2))
        found = estimated(component, own, shape_of_tokens(6))
        assert found.output_bytes == (anchor.output_bytes if component == "head" else 3 * anchor.output_bytes)
        scale = found.forward_s.median / anchor.forward_s.median
        assert (found.forward_s.low, found.forward_s.high) == pytest.approx(
            (scale * anchor.forward_s.low, scale * anchor.forward_s.high)
        )
        assert scale > 1
        assert found.estimated_from == [anchor.shape]


@pytest.mark.parametrize(
    ("changed", "lacks"),
    [
        ({"device_facts": None}, r"device facts \(ppsim profile --facts\)"),
        ({"model": None}, "the sizes of its layer"),
    ],
)
def test_what_an_estimate_lacks_is_named(changed: dict[str, object], lacks: str) -> None:
    own = known(*measured())
    if "model" in changed:
        own = replace(own, model=replace(own.model, layer_sizes=None))
    else:
        own = replace(own, device_facts=None)
    with pytest.raises(ConfigError, match=f"it has not {lacks}$"):
        estimated("layer", own, shape_of_tokens(6))
