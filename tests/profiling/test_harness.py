"""Contents of a profile and rules of its measurements, without measuring."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ppsim.base.errors import ConfigError, RunFailed  # noqa: E402
from ppsim.profiling import harness  # noqa: E402
from ppsim.profiling.harness import (  # noqa: E402
    _costs_of,
    _is_near,
    _times,
    costly_splits,
    forward_flops,
    header,
    model_header,
    num_inputs,
    profile_module,
    require_measurable,
    shape_of,
    type_of,
)
from ppsim.profiling.measure import Samples  # noqa: E402
from ppsim.profiling.model_shapes import find_model  # noqa: E402
from ppsim.profiling.settings import (  # noqa: E402
    MeasurementKey,
    MeasuringSettings,
    summarise_samples,
    why_no_calibration_run,
)
from ppsim.profiling.sweep import _missing_steps, continue_profile, finished_keys, require_success  # noqa: E402
from tests.defaults import parameter_defaults  # noqa: E402

KEY = MeasurementKey(micro_batch=2, sequence_length=16, dtype="float32")
SHAPE = {
    "micro_batch": 2,
    "sequence_length": 16,
    "dtype": "float32",
    "tp": 1,
    "cp": 1,
    "ep": 1,
    "recompute": "none",
}


def test_gradients_are_near_within_rounding_or_the_noise_of_other_runs() -> None:
    one = torch.tensor([3.0, 4.0])  # norm 5
    off = torch.tensor([0.0, 1.0])
    assert _is_near(one, one + 4.9e-3 * off)
    assert not _is_near(one, one + 5.1e-3 * off)
    assert _is_near(one.bfloat16(), (one + 0.2 * off).bfloat16())
    assert not _is_near(one.double(), (one + 1e-4 * off).double())
    assert _is_near(one, one + 0.19 * off, one + 0.1 * off, None)
    assert not _is_near(one, one + 0.21 * off, one + 0.1 * off)
    assert (_is_near(None, None), _is_near(one, None), _is_near(None, one)) == (True, False, False)


@pytest.mark.parametrize(
    ("shape", "kind", "sequence_length"),
    [((4, 16, 8), "float32", 16), ((4, 8), "float32", 1), ((4, 16), "int64", 16), ((4,), "int64", 1)],
)
def test_a_modules_input_has_a_sequence_if_it_has_a_dimension_for_it(
    shape: tuple[int, ...], kind: str, sequence_length: int
) -> None:
    first = torch.zeros(shape, dtype=getattr(torch, kind))
    found = shape_of(first, torch.nn.Linear(8, 8).bfloat16())
    assert found == {"micro_batch": 4, "sequence_length": sequence_length, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("inputs", "module", "sentence"),
    [
        ((), torch.nn.Linear(8, 8), "example inputs are tensors"),
        ((torch.tensor(1.0),), torch.nn.Linear(8, 8), "example inputs are tensors"),
        ((3,), torch.nn.Linear(8, 8), "example inputs are tensors"),
        (torch.zeros(2, 8), torch.nn.ReLU(), "own has no parameter that learns"),
    ],
)
def test_modules_that_no_stage_could_have_are_refused(inputs: Any, module: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        profile_module(module, inputs, name="own")


def test_times_are_per_unit_with_quartiles() -> None:
    found = _times({"F": [4.0, 8.0, 12.0, 16.0, 20.0], "B": [8.0]}, 4)
    assert found["forward_s"] == {"median": 3.0, "low": 1.5, "high": 4.5}
    assert found["backward_s"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert found["backward_input_s"] is found["backward_weight_s"] is None
    assert summarise_samples([1.0, 3.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_costs_of_a_row_are_those_of_a_unit() -> None:
    whole = SimpleNamespace(
        seconds={"F": [4.0]}, activation_bytes=400, kept_bytes=200, output_bytes=10, transient_bytes=7
    )
    alone = SimpleNamespace(seconds={"F": [1.5]})
    row = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    part: Any = SimpleNamespace(num_units=4, subjects=[SimpleNamespace(module=row)])
    found = _costs_of(part, [whole, alone], MeasuringSettings())  # type: ignore[list-item]
    assert found["forward_s"]["median"] == 1.0
    assert (found["activation_bytes"], found["activation_bytes_kept_for_weight"]) == (100, 50)
    assert (found["output_bytes"], found["transient_bytes"], found["parameters"]) == (10, 7, 12)
    assert found["alone"]["num_in_row"] == 4
    assert found["alone"]["forward_s"]["median"] == 1.5
    assert "launch" not in found
    assert "alone" not in _costs_of(part, [whole], MeasuringSettings())  # type: ignore[list-item]


def test_replayed_graphs_give_the_seconds_and_one_eager_pass_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = Samples({"F": [9.0]}, 400, 200, 10, 7)
    how: list[Any] = []

    def measured(subjects: Any, settings: Any, *, can_split: Any) -> list[Samples]:
        how.append((subjects, settings.num_repeats, settings.num_warm_up, can_split))
        return [eager]

    monkeypatch.setattr(harness, "measure", measured)
    monkeypatch.setattr(harness, "replay_graph", lambda subject, _: {"F": [subject.seconds]})
    subjects: Any = [SimpleNamespace(module=torch.nn.Linear(3, 3), seconds=one) for one in (2.0, 3.0)]
    parts: Any = [SimpleNamespace(name=str(at), num_units=1, subjects=[one]) for at, one in enumerate(subjects)]
    said: list[str] = []
    first, second = harness.measured_costs(parts, MeasuringSettings(cuda_graphs=True), say=said.append)
    assert (first["forward_s"]["median"], second["forward_s"]["median"]) == (2.0, 3.0)
    assert first["activation_bytes"] == 400
    assert how == [([one], 1, 0, [False]) for one in subjects]
    assert said == [
        f"{at}: with --cuda-graphs I and W are not captured; its backward cannot be split, only B is recorded"
        for at in (0, 1)
    ]


@pytest.mark.parametrize(
    ("key", "settings", "sentence"),
    [
        ({"recompute": "selective-op"}, {}, "recompute selective-op is torch's own checkpoint"),
        ({"recompute": "core_attn"}, {"compiled": True}, "torch.compile chooses by itself what to recompute"),
        ({"recompute": "mla_up_proj"}, {}, "mla_up_proj is of latent attention"),
        ({"recompute": "mhc"}, {}, "mhc is of residual streams"),
        ({"cp": 3}, {}, "cp 3"),
    ],
)
def test_shapes_that_cannot_be_measured_are_refused(key: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        require_measurable(find_model("nano"), replace(KEY, **key), MeasuringSettings(**settings))
    require_measurable(find_model("nano"), replace(KEY, recompute="core_attn"), MeasuringSettings())
    require_measurable(find_model("nano"), replace(KEY, recompute="full"), MeasuringSettings(compiled=True))


def test_context_parallel_ranks_have_their_part_of_the_flops() -> None:
    model = find_model("nano")
    layer, head = forward_flops(model, KEY)
    halves = forward_flops(model, replace(KEY, cp=2))
    assert halves[1] == head / 2
    assert halves[0] == pytest.approx(layer / 2, rel=0.1)
    assert forward_flops(model, replace(KEY, micro_batch=4)) == (2 * layer, 2 * head)


def test_inputs_are_rotated_and_have_a_type() -> None:
    assert num_inputs(torch.device("cpu"), torch.zeros(2)) == 3
    assert (type_of(KEY), type_of(replace(KEY, dtype="fp8"))) == (torch.float32, torch.bfloat16)


def test_a_header_has_the_settings_that_differ() -> None:
    plain = header("own", {"name": "m"}, MeasuringSettings(num_threads=3), ["a"])
    assert plain["format"] == "ppsim-profile/1"
    assert plain["provenance"]["device"]["num_threads"] == 3
    assert (plain["provenance"]["num_repeats"], plain["provenance"]["num_warm_up"]) == (30, 5)
    assert not plain["provenance"].keys() & {"least_s", "compiled", "cuda_graphs"}
    more = header("own", {}, MeasuringSettings(least_s=2.0, compiled=True), [])["provenance"]
    assert (more["least_s"], more["compiled"]) == (2.0, True)
    model = find_model("nano")
    found = model_header("own", "nano", model, MeasuringSettings(component_s=0.5))
    assert found["model"]["name"] == "GPT nano"
    assert (found["model"]["num_layers"], found["model"]["vocab_size"]) == (model.num_layers, model.vocab_size)
    assert found["provenance"]["notes"] == [
        "Per layer: 4 layers in a row, divided by 4. Median and quartiles.",
        "Repeats: as many as 500 ms a component allow, 5 at least.",
    ]


def measurement(component: str, ratio: float) -> dict[str, Any]:
    times = {"backward_s": 1.0, "backward_input_s": ratio / 2, "backward_weight_s": ratio / 2}
    return {"component": component, **{name: {"median": value} for name, value in times.items()}}


def test_a_split_that_takes_a_third_longer_is_reported() -> None:
    parts = [measurement("layer", ratio) for ratio in (1.2, 1.5, 1.4)] + [
        measurement("head", 1.35),
        measurement("embedding", 1.3),
    ]
    assert costly_splits({"measurements": parts}) == [
        "layer: (I + W) / B is 1.40 to 1.50 at 2 of 3 shapes: zero-bubble schedules hardly pay off, splitting makes its "
        "backward 50 % longer",
        "head: (I + W) / B is 1.35: zero-bubble schedules hardly pay off, splitting makes its backward 35 % longer",
    ]


@pytest.mark.parametrize(
    ("key", "how", "reason"),
    [
        ({}, {"device": "cuda"}, "it takes a cuda device for each rank"),
        ({"tp": 2}, {}, "the runtime cuts no layer"),
        ({"recompute": "core_attn"}, {}, "the runtime recomputes all of a layer or nothing, not core_attn"),
        ({"recompute": "full"}, {}, ""),
        ({"dtype": "float16"}, {}, "the runtime trains float32, float64, bfloat16 without torch.compile"),
        ({}, {"compiled": True}, "the runtime trains float32, float64, bfloat16 without torch.compile"),
    ],
)
def test_the_runtime_runs_what_it_can(key: Any, how: Any, reason: str) -> None:
    given = {"device": "cpu", "compiled": False} | how
    assert why_no_calibration_run(find_model("nano"), replace(KEY, **key), **given) == reason


def test_settings_of_many_components_share_the_time() -> None:
    assert MeasuringSettings(component_s=2.0, least_s=1.0).of_many(3) == MeasuringSettings(
        component_s=6.0, least_s=3.0
    )
    assert MeasuringSettings().of_many(3) == MeasuringSettings()


CONTENT: dict[str, Any] = {
    "format": "ppsim-profile/1", "measurements": [{"shape": SHAPE}], "does_not_fit": [SHAPE | {"micro_batch": 8}],
    "failed": [{"shape": SHAPE | {"micro_batch": 4}, "error": "odd", "optimizer": ""}],
    "optimizer": [{"optimizer": "adamw", "tp": 1, "ep": 1, "dtype": "float32"}], "model": {"name": "m"}, "provenance": {},
}  # fmt: skip


def test_failures_are_counted_and_the_first_is_named() -> None:
    require_success([CONTENT | {"failed": []}])
    with pytest.raises(RunFailed, match=r"^1 shape failed, first .*: odd"):
        require_success([CONTENT])
    with pytest.raises(RunFailed, match=r"^2 shapes failed"):
        require_success([CONTENT, CONTENT])


def test_finished_shapes_are_measured_too_large_or_failed() -> None:
    assert finished_keys(CONTENT) == {replace(KEY, micro_batch=size) for size in (2, 4, 8)}


def test_missing_optimizer_steps_use_the_first_shape_that_fits() -> None:
    keys = [replace(KEY, micro_batch=8, tp=2), replace(KEY, tp=2), replace(KEY, tp=2, micro_batch=1), KEY]
    content = CONTENT | {"does_not_fit": [SHAPE | {"micro_batch": 8, "tp": 2}]}
    assert _missing_steps(content, keys, ["adamw", "muon"]) == [
        (keys[1], "adamw"), (keys[1], "muon"), (KEY, "muon"),
    ]  # fmt: skip
    failed = content | {"failed": [{"shape": SHAPE, "error": "odd", "optimizer": "muon"}]}
    assert _missing_steps(failed, keys, ["adamw", "muon"])[-1] == (keys[1], "muon")


def test_a_profile_is_continued_with_the_same_settings(tmp_path: Any) -> None:
    path = tmp_path / "p.json"
    path.write_text(
        '{"format": "ppsim-profile/1", "measurements": [], "model": {"name": "m"}, "provenance": {"least_s": 2}}'
    )
    fresh = {"format": "ppsim-profile/1", "model": {"name": "m"}, "provenance": {"least_s": 2}}
    found = continue_profile(path, fresh)
    assert found["does_not_fit"] == found["failed"] == found["optimizer"] == []
    with pytest.raises(ConfigError, match="holds measurements with least s 2, not None"):
        continue_profile(path, fresh | {"provenance": {}})
    with pytest.raises(ConfigError, match="with name m, not other"):
        continue_profile(path, fresh | {"model": {"name": "other"}})
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is no profile"):
        continue_profile(path, fresh)


def test_limits_of_the_harness() -> None:
    assert {torch.float64: 1e-6, torch.float32: 1e-3} == harness._TOLERANCE
    names = ("GRAPH_WARM_UP", "_TOLERANCE_16_BIT", "_NOISE", "_OTHERS", "NUM_BLOCKS", "COSTLY_SPLIT", "_NUM_INPUTS")
    assert [getattr(harness, name) for name in names] == [3, 5e-2, 2.0, 3, 4, 1.3, 3]
    assert parameter_defaults(harness._times) == {"num_units": 1}


def test_the_provenance_of_a_gpu_has_its_memory_and_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", total_memory=77)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(
        harness,
        "data_sheet",
        lambda name: SimpleNamespace(flops_per_s={"bfloat16": 5.0}, source=f"sheet of {name}"),
    )
    found = harness._provenance(MeasuringSettings("cuda", cuda_graphs=True), ["a"])
    assert found["device"] == {
        "name": "NVIDIA H100", "kind": "cuda", "memory_bytes": 77, "peak_flops_per_s": {"bfloat16": 5.0},
    }  # fmt: skip
    assert found["notes"] == ["a", "peak_flops_per_s: sheet of NVIDIA H100, dense."]
    assert (found["cuda_graphs"], "compiled" in found, found["software"]["torch"]) == (
        True,
        False,
        torch.__version__,
    )
    monkeypatch.setattr(harness, "data_sheet", lambda name: None)
    unknown = harness._provenance(MeasuringSettings("cuda"), ["a"])
    assert (unknown["device"].keys(), unknown["notes"]) == ({"name", "kind", "memory_bytes"}, ["a"])
    cpu = harness._provenance(MeasuringSettings(num_threads=3), [])
    assert cpu["device"] == {"name": harness._cpu_name(), "kind": "cpu", "num_threads": 3}


def test_the_processor_is_named_by_its_first_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("vendor: A\nmodel name\t: Fast: 9\nmodel name\t: Slow\n")
    real = open
    monkeypatch.setattr("builtins.open", lambda name, **how: real(path if name == "/proc/cpuinfo" else name, **how))
    assert harness._cpu_name() == "Fast: 9"
    path.unlink()
    monkeypatch.setattr(harness.platform, "processor", lambda: "")
    monkeypatch.setattr(harness.platform, "machine", lambda: "m")
    assert harness._cpu_name() == "m"


@pytest.mark.parametrize(
    ("graphs", "seconds"), [(False, {"F": [2.0], "I": [3.0]}), (False, {"F": [2.0]}), (True, {})]
)
def test_launches_are_measured_on_a_device_that_the_host_does_not_wait_for(
    graphs: bool, seconds: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(harness, "is_asynchronous", lambda where: where.type == "cuda")
    monkeypatch.setattr(
        harness, "launch_seconds", lambda subject, **how: asked.append((subject, how)) or {"F": [0.5], "W": [0.25]}
    )
    subjects: Any = [SimpleNamespace(module=torch.nn.Linear(3, 3)), "alone"]
    part = harness.MeasuredPart("layer", subjects, 1.0)
    samples = [Samples(seconds, 400, 200, 10, 7)]
    found = _costs_of(part, samples, MeasuringSettings("cuda", cuda_graphs=graphs))
    assert ("launch" in found) is not graphs
    if not graphs:
        assert asked == [("alone", {"device": torch.device("cuda"), "can_split": "I" in seconds})]
        assert [one and one["median"] for one in found["launch"].values()] == [0.5, None, None, 0.25]


def test_components_take_turns_on_a_cpu_only_and_flops_are_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[str]] = []

    def costs(parts: Any, settings: Any, *, say: Any) -> list[dict[str, Any]]:
        groups.append([part.name for part in parts])
        return [{"cost": part.name} for part in parts]

    monkeypatch.setattr(harness, "measured_costs", costs)
    parts = [harness.MeasuredPart(name, [], flops) for name, flops in (("layer", 3.0), ("head", 5.0))]
    said: list[str] = []
    for device in ("cpu", "cuda"):
        found = harness.measured_components(parts, MeasuringSettings(device), shape={"tp": 2}, say=said.append)
        assert found == [
            {"component": name, "shape": {"tp": 2}, "cost": name, "forward_flops": flops}
            for name, flops in (("layer", 3.0), ("head", 5.0))
        ]
    assert groups == [["layer", "head"], ["layer"], ["head"]]
    assert said == ["measuring layer, head", "measuring layer", "measuring head"]
    subject: Any = SimpleNamespace(
        forward=lambda x: x[0] @ x[1], next_input=lambda: (torch.ones(3, 5), torch.ones(5, 7))
    )
    assert harness.count_flops(subject) == (2 * 3 * 5 * 7, 7)
    subject.forward = lambda x: (x[0] @ x[1]).sum()
    assert harness.count_flops(subject)[1] == 1
