"""The profile file: what it must hold, and what is said of one that does not."""

import json
import math
from dataclasses import MISSING, fields

import pytest

from ppsim.base.errors import ConfigError
from ppsim.costs import profile as profile_module
from ppsim.costs.profile import describe, load_profile, packaged_profiles
from tests.costs.profiles import EXAMPLE, SHAPE, example, profile
from tests.defaults import field_defaults


def changed(path, value):
    """The example with one key set, or removed where the value is `...`."""
    data = example()
    *parents, last = path
    at = data
    for part in parents:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return data


WRONG = {
    "no provenance": (("provenance",), ..., "provenance: missing"),
    "no format": (("format",), ..., "format: missing"),
    "another format": (("format",), "ppsim-profile/9", "format: input should be 'ppsim-profile/1', got 'ppsim-profile/9'"),
    "no device name": (("provenance", "device", "name"), ..., "provenance.device.name: missing"),
    "an unknown kind": (("provenance", "kind"), "guessed", "provenance.kind: input should be 'measured' or 'published', got 'guessed'"),
    "an unknown key": (("model", "layers"), 3, "model.layers: unknown key (did you mean num_layers?)"),
    "an unknown key in a list": (("measurements", 1, "forwards_s"), 3, "measurements[1].forwards_s: unknown key (did you mean forward_s?)"),
    "no layers": (("model", "num_layers"), 0, "model.num_layers: must be at least 1, got 0"),
    "a fraction of a layer": (("model", "num_layers"), 1.5, "model.num_layers: input should be a valid integer, got 1.5"),
    "no measurement": (("measurements",), [], "measurements: must not be empty, got []"),
    "an unknown component": (("measurements", 0, "component"), "attention", "measurements[0].component: input should be 'embedding', 'layer' or 'head'"),
    "a negative time": (("measurements", 2, "backward_input_s", "median"), -1.0, "measurements[2].backward_input_s.median: must be at least 0, got -1"),
    "a time that is no number": (("measurements", 2, "forward_s", "high"), float("nan"), "measurements[2].forward_s.high: must be finite, got nan"),
    "a bare number for a time": (("measurements", 2, "forward_s"), 1.0, "measurements[2].forward_s: must be a JSON object, got 1.0"),
    "no spread": (("measurements", 0, "forward_s", "low"), ..., "measurements[0].forward_s.low: missing"),
    "negative parameters": (("measurements", 0, "parameters"), -1, "measurements[0].parameters: must be at least 0, got -1"),
    "more kept than there is": (("measurements", 1, "activation_bytes_kept_for_weight"), 500, "measurements[1]: activation_bytes_kept_for_weight is 500, more than the 400 activation_bytes it is part of"),
    "no micro-batch": (("measurements", 1, "shape", "micro_batch"), 0, "measurements[1].shape.micro_batch: must be at least 1, got 0"),
    "an unknown recomputation": (("measurements", 1, "shape", "recompute"), "half", "shape.recompute: recompute must be"),
    "a component twice": (("measurements",), [EXAMPLE["measurements"][0]] * 2, "measurements: the embedding at micro-batch 2, sequence length 16, bf16 stands there twice"),
    "a transfer of nothing": (("transfers", 0, "bytes"), 0, "transfers[0].bytes: must be at least 1, got 0"),
    "no peak": (("provenance", "device", "peak_flops_per_s", "bf16"), 0.0, "provenance.device.peak_flops_per_s.bf16: must be more than 0, got 0.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_key_path(case):
    path, value, sentence = WRONG[case]
    with pytest.raises(ConfigError) as error:
        profile(changed(path, value))
    assert sentence in str(error.value)


def test_all_that_is_wrong_is_named_at_once(tmp_path):
    data = changed(("measurements", 0, "parameters"), -1) | {"transfer": []}
    data["model"]["num_heads"] = 0
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as error:
        load_profile(path)
    assert str(error.value).splitlines() == [
        f"{path} is wrong: model.num_heads: must be at least 1, got 0",
        "  measurements[0].parameters: must be at least 0, got -1",
        "  transfer: unknown key (did you mean transfers?)",
    ]


def test_a_profile_is_loaded_by_its_name_or_by_its_path(tmp_path):
    name, path = next(iter(packaged_profiles().items()))
    assert load_profile(name) == load_profile(path) == load_profile(str(path))
    (tmp_path / "mine.json").write_text(json.dumps(example()))
    assert load_profile(tmp_path / "mine.json") == profile()


def test_an_unknown_name_gets_the_close_matches():
    with pytest.raises(ConfigError, match=r"unknown profile 'zb-a100-14b': did you mean zb-a100-14.6b"):
        load_profile("zb-a100-14b")


def test_shapes_are_found_by_micro_batch_and_length():
    larger = [part | {"shape": SHAPE | {"micro_batch": 4}} for part in EXAMPLE["measurements"]]
    two = profile(example(measurements=EXAMPLE["measurements"] + larger))
    assert [shape.micro_batch for shape in two.shapes] == [2, 4]
    assert two.shape_at() == two.shapes[0]
    assert two.shape_at(micro_batch=4, sequence_length=16) == two.shapes[1]
    assert two.find("head", two.shapes[1]).shape.micro_batch == 4
    with pytest.raises(
        ConfigError, match=r"not measured at micro-batch 3 \(there is: micro-batch 2, .*; micro-batch 4"
    ):
        two.shape_at(micro_batch=3)


def cut(**key):
    """The example's measurements at another key."""
    return [part | {"shape": SHAPE | key} for part in EXAMPLE["measurements"]]


def test_what_is_not_cut_and_not_recomputed_comes_first():
    data = example(measurements=cut(tp=2, ep=4, recompute="full") + cut(tp=2) + cut())
    one = profile(data)
    assert one.shape_at() == one.shapes[2]
    assert one.shape_at(tp=2) == one.shapes[1]
    assert one.shape_at(recompute="full") == one.shape_at(ep=4) == one.shapes[0]
    assert describe(one.shapes[0]) == "micro-batch 2, sequence length 16, bf16, tp 2, ep 4, recompute full"
    with pytest.raises(ConfigError, match="profile example was not measured at tp 2, recompute core_attn"):
        one.shape_at(tp=2, recompute="core_attn")


def test_selective_in_a_file_is_what_0_2_0_measured_by_that_word():
    """Norms and activation functions; the core of attention alone is what people ask for by it."""
    one = profile(example(measurements=cut(recompute="selective")))
    assert one.shapes[0].recompute == "layernorm+mlp_act+moe_act"
    assert one.shape_at(recompute="layernorm+mlp_act+moe_act") == one.shapes[0]


def test_a_shape_that_did_not_fit_is_not_called_unmeasured():
    one = profile(example(does_not_fit=[SHAPE | {"micro_batch": 64}]))
    with pytest.raises(ConfigError, match="micro-batch 64 did not fit the memory of a device"):
        one.shape_at(micro_batch=64)


HALVES = {
    "one half": ({"backward_input_s": None}, "backward_input_s and backward_weight_s are both given, or both null"),
    "nothing": (
        {"backward_s": None, "backward_input_s": None, "backward_weight_s": None},
        "backward_s is null, and so are its halves",
    ),
}


@pytest.mark.parametrize("case", HALVES)
def test_a_backward_is_whole_or_in_two_halves(case):
    change, sentence = HALVES[case]
    layer = EXAMPLE["measurements"][1] | change
    with pytest.raises(ConfigError, match=sentence):
        profile(example(measurements=[layer]))


def test_a_profile_says_whether_it_was_measured_or_published():
    assert str(profile()) == "example (measured on a device; by hand)"
    published = changed(("provenance", "kind"), "published")
    assert str(profile(published)) == "example (published, measured on a device; by hand)"


def test_a_step_is_found_by_all_that_it_was_measured_with():
    profile = load_profile("cpu-gpt-mini")
    for one in profile.optimizer:
        assert profile.find_step(one.component, optimizer=one.optimizer, dtype=one.dtype) is one
    assert profile.find_step("layer", optimizer="adamw", dtype="float32", tp=2) is None


NOT_RECORDED = {
    "ProfiledDevice": {"memory_bytes": None, "num_threads": None, "driver": None, "clock_mhz": None},
    "Provenance": {
        "num_repeats": 0, "num_warm_up": 0, "least_s": 0.0, "compiled": False, "cuda_graphs": False,
        "under_load": None,
    },
    "LayerSizes": {"num_experts": 0, "experts_per_token": 0, "shared_ffn_size": 0},
    "ProfiledModel": {"num_heads": None, "vocab_size": None, "layer_sizes": None, "layer_kinds": None},
    "Shape": {"tp": 1, "cp": 1, "ep": 1, "recompute": "none"},
    "OptimizerStep": {"tp": 1, "ep": 1, "fused": False},
    "Measurement": {
        "backward_s": None, "transient_bytes": None, "forward_flops": 0.0, "attention": None, "alone": None,
        "launch": None,
    },
    "Chunk": {
        "backward_input_s": None, "backward_weight_s": None, "transient_bytes": None, "forward_flops": 0.0,
        "launch": None,
    },
    "CalibrationRun": {"pass_factors": None, "reference_ends_s": None, "reference_work": ""},
    "Profile": {"rehearsal": None, "device_facts": None},
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_a_field_that_a_profile_lacks_was_not_divided_or_not_measured(name: str) -> None:
    kind = getattr(profile_module, name)
    assert {one.name: one.default for one in fields(kind) if one.default is not MISSING} == NOT_RECORDED[name]


def test_a_profile_may_leave_out_what_earlier_versions_did_not_write() -> None:
    assert field_defaults(profile_module.Provenance) == {
        "num_repeats": 0, "num_warm_up": 0, "least_s": 0.0, "compiled": False, "cuda_graphs": False,
    }  # fmt: skip
    assert field_defaults(profile_module.LayerSizes) == {
        "num_experts": 0, "experts_per_token": 0, "shared_ffn_size": 0,
    }  # fmt: skip
    assert field_defaults(profile_module.Shape) == {"tp": 1, "cp": 1, "ep": 1, "recompute": "none"}
    assert field_defaults(profile_module.OptimizerStep) == {"tp": 1, "ep": 1, "fused": False}
    for kind in (profile_module.Measurement, profile_module.Chunk):
        assert field_defaults(kind) == {"forward_flops": 0.0}


def test_machine_speed_drifts_by_twice_its_variation_between_windows() -> None:
    """The standard deviation of ln 1 and ln 1.1 is ln 1.1 / √2; variances of T/6 and 2T/3 have a ratio of 4."""
    run = {
        "num_processes": 2, "num_threads": 1, "slowdown": 1.0, "action_overhead_s": 0.0, "hop_overhead_s": 0.0,
        "step_spread": 0.0,
    }  # fmt: skip
    windows = profile_module.CalibrationRun(**run, reference_s=[1.0, 1.1])
    assert windows.pace_s == pytest.approx(1.05)
    assert windows.pace_spread == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert windows.pace_drift == pytest.approx(math.sqrt(2) * math.log(1.1))
    single = profile_module.CalibrationRun(**run, reference_s=[7.0])
    assert (single.pace_s, single.pace_spread, single.pace_drift) == (7.0, 0.0, 0.0)
    assert profile_module.CalibrationRun(**run).pace_s is None
