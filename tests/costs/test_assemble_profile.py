"""Stage costs hold every component once: the embedding, each layer, the head."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import build
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.assemble_profile import (
    BYTES_PER_PARAMETER,
    _hop,
    assemble,
    layer_costs_of,
    line_of,
    threads_in_words,
)
from ppsim.parallel.layer_partition import MegatronSplit, why_no_split
from ppsim.parallel.sequence_slices import equal_time_slices
from tests.costs.profiles import EXAMPLE, component, example, profile, profiles, quantity
from tests.costs.test_chunk_costs import of_chunks

PLACEMENTS = {"loop": "1f1b", "interleaved loop": "interleaved-1f1b", "V": "zbv-fixed"}
TIMES = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
BYTES = ("activation_bytes", "activation_bytes_kept_for_weight")
LAYER = EXAMPLE["measurements"][1]


@st.composite
def cases(draw):
    """A random profile, a placement of any pp and vpp, and a split of any kind."""
    data = draw(profiles())
    name = draw(st.sampled_from(sorted(PLACEMENTS.values())))
    vpp = {"1f1b": 1, "zbv-fixed": 2}.get(name) or draw(st.integers(2, 4))
    table = build(name, pp=draw(st.integers(1, 6)), vpp=vpp, microbatches=draw(st.integers(1, 3)))
    num_layers = max(data["model"]["num_layers"], table.num_stages - 2)
    split = draw(st.sampled_from(["auto", "even", "given"]))
    if split == "given":
        inner = [1] * table.num_stages
        inner[0] = inner[-1] = 0
        for stage in draw(st.lists(st.integers(0, table.num_stages - 1), max_size=20)):
            inner[stage] += 1
        split, num_layers = inner, sum(inner)
    return data, table, num_layers, split


def parts(data, name):
    """The value of a component's field: the median of a time, the number of anything else."""
    values = [part[name] for part in data["measurements"]]
    return [value["median"] if isinstance(value, dict) else value for value in values]


@given(cases())
def test_stage_costs_add_up_to_the_model(case):
    """Σ stages = embedding + L·layer + head, in seconds, bytes, parameters and FLOPs."""
    data, table, num_layers, split = case
    made = assemble(profile(data), table, num_layers=num_layers, split=split)
    assert len(made.split) == table.num_stages
    assert sum(made.split) == num_layers
    costs = made.costs.resolved(num_stages=table.num_stages, num_ranks=table.num_ranks)
    has_full_backward = data["measurements"][0]["backward_s"] is not None
    for name in (*TIMES, *BYTES):
        if name == "backward_s" and not has_full_backward:
            assert made.costs.backward_s is None
            continue
        embedding, layer, head = parts(data, name)
        field = "kept_bytes" if name == BYTES[1] else name
        assert getattr(costs, field).sum() == pytest.approx(embedding + num_layers * layer + head)
    embedding, layer, head = parts(data, "parameters")
    assert costs.static_bytes.sum() == pytest.approx(BYTES_PER_PARAMETER * (embedding + num_layers * layer + head))
    embedding, layer, head = parts(data, "forward_flops")
    assert made.forward_flops == pytest.approx(embedding + num_layers * layer + head)


@given(cases())
def test_the_first_stage_holds_the_embedding_and_the_last_the_head(case):
    data, table, num_layers, split = case
    made = assemble(profile(data), table, num_layers=num_layers, split=split)
    layers = np.array(made.split)
    for name in (*TIMES, *BYTES):
        if getattr(made.costs, name) is None:
            continue
        embedding, layer, head = parts(data, name)
        beside_layers = np.asarray(getattr(made.costs, name)) - layers * layer
        expected = np.zeros(table.num_stages)
        expected[0] += embedding
        expected[-1] += head
        assert beside_layers == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "head_rank"), [("1f1b", 4, 1, 3), ("interleaved-1f1b", 4, 2, 3), ("zbv-fixed", 4, 2, 0)]
)
def test_the_head_is_on_the_rank_that_the_placement_gives_the_last_stage(name, pp, vpp, head_rank):
    """By parameters: 16 bytes each; embedding 1000, layer 200, head 500."""
    made = assemble(profile(), build(name, pp=pp, vpp=vpp, microbatches=4), split="even", num_layers=16)
    expected = np.full(4, 16 * 200 * 4.0)
    if vpp == 2:
        assert made.split == [2] * 8
    expected[0] += 16 * 1000
    expected[head_rank] += 16 * 500
    assert np.asarray(made.costs.static_bytes) == pytest.approx(expected)


@given(profiles(), st.integers(1, 6), st.sampled_from([1, 2, 3]))
def test_the_automatic_split_balances_forward_and_backward(data, pp, vpp):
    """The busiest rank is never busier than under the even split."""
    table = build("1f1b" if vpp == 1 else "interleaved-1f1b", pp=pp, vpp=vpp, microbatches=1)
    if why_no_split("auto", data["model"]["num_layers"], table.num_stages):
        return

    def busiest(split):
        costs = assemble(profile(data), table, split=split).costs
        costs = costs.resolved(num_stages=table.num_stages, num_ranks=table.num_ranks)
        return np.bincount(table.stage_to_rank, weights=costs.forward_s + costs.backward_s).max()

    assert busiest("auto") <= busiest("even") + 1e-9


def test_a_full_backward_that_one_component_lacks_is_input_plus_weight_everywhere():
    data = example()
    data["measurements"][2]["backward_s"] = None
    costs = assemble(profile(data), build("1f1b", pp=2, microbatches=1)).costs
    assert costs.backward_s is None
    resolved = costs.resolved(num_stages=2, num_ranks=2)
    assert resolved.backward_s == pytest.approx(resolved.backward_input_s + resolved.backward_weight_s)


@pytest.mark.parametrize(
    ("output_bytes", "hop_s", "sentence"),
    [
        (32, 0.03125, "transfers: 31.2 ms per P2P transfer of 32 B, measured"),
        (64, 0.0625, "transfers: 62.5 ms per P2P transfer of 64 B, scaled from 32 B"),
        (2048, 1.0, "transfers: 1.00 s per P2P transfer of 2.00 KiB, scaled from 1.00 KiB"),
        (0, 0.0, "scaled from 32 B"),
    ],
)
def test_a_hop_is_the_measured_transfer_nearest_in_size_and_a_scaling_is_said(output_bytes, hop_s, sentence):
    data = example()
    data["measurements"][1]["output_bytes"] = output_bytes
    made = assemble(profile(data), build("1f1b", pp=2, microbatches=1))
    assert made.costs.transfer_s == hop_s
    assert sentence in made.assumptions[-1]


def test_a_profile_without_transfers_says_that_none_are_assumed():
    made = assemble(profile(example(transfers=[])), build("1f1b", pp=2, microbatches=1))
    assert made.costs.transfer_s == 0.0
    assert "the profile has none; 0 s assumed" in made.assumptions[-1]


def test_a_transfer_time_that_is_given_is_taken():
    made = assemble(profile(), build("1f1b", pp=2, microbatches=1), transfer_s=0.125)
    assert made.costs.transfer_s == 0.125
    assert not any("transfers" in line for line in made.assumptions)


def test_what_was_assumed_is_said():
    made = assemble(profile(), build("1f1b", pp=4, microbatches=1), split=[1, 5, 5, 1])
    assert made.assumptions[:4] == [
        "costs: profile example (measured on a device; by hand)",
        "shape: micro-batch 2, sequence length 16, bf16",
        "layers: 12, split 1, 2×5, 1 (as given), embedding on stage 0, head and loss on the last",
        "static memory: 16 bytes per parameter, no sharding",
    ]


def test_a_profile_without_a_head_is_refused():
    data = example(measurements=EXAMPLE["measurements"][:2])
    with pytest.raises(ConfigError, match="profile example has no head at micro-batch 2, sequence length 16, bf16"):
        assemble(profile(data), build("1f1b", pp=2, microbatches=1))


def test_layers_alone_have_free_ends():
    made = assemble(profile(example(measurements=[LAYER])), build("zb-h1", pp=2, microbatches=2), split="even")
    assert made.costs.forward_s.tolist() == [6 * LAYER["forward_s"]["median"]] * 2
    assert made.costs.backward_s.tolist() == [6 * LAYER["backward_s"]["median"]] * 2
    assert "embedding and head: none in the profile, taken to cost nothing" in made.assumptions


def test_a_whole_backward_is_all_that_an_unsplit_schedule_needs():
    embedding, layer, head = EXAMPLE["measurements"]
    whole = profile(
        example(measurements=[embedding, layer | {"backward_input_s": None, "backward_weight_s": None}, head])
    )
    made = assemble(whole, build("1f1b", pp=2, microbatches=2))
    assert (
        made.costs.backward_s.tolist()
        == assemble(profile(), build("1f1b", pp=2, microbatches=2)).costs.backward_s.tolist()
    )
    with pytest.raises(
        ScheduleError, match="zb-h1 splits the backward, which cannot be done to the layer of profile example"
    ):
        assemble(whole, build("zb-h1", pp=2, microbatches=2))


def test_a_part_of_a_rank_is_said_to_be_one():
    data = example(measurements=[part | {"shape": part["shape"] | {"tp": 8}} for part in EXAMPLE["measurements"]])
    made = assemble(profile(data), build("1f1b", pp=2, microbatches=2))
    assert "tp 8, ep 1: one rank's part, measured on one device; no collective is in the times" in made.assumptions


def test_no_layers_is_not_taken_for_the_default():
    with pytest.raises(ConfigError, match="0 layers are too few for 4 stages"):
        assemble(profile(), build("1f1b", pp=4, microbatches=1), num_layers=0)


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_every_replica_has_all_layers_embedding_and_head_and_their_bytes(name):
    one = assemble(profile(), build("1f1b", pp=4, microbatches=8), split=[2, 4, 4, 2])
    two = assemble(profile(), build(name, pp=4, microbatches=8), split=[2, 4, 4, 2])
    assert two.split == one.split
    assert two.forward_flops == one.forward_flops
    alone = one.costs.resolved(num_stages=4, num_ranks=4)
    costs = two.costs.resolved(num_stages=8, num_ranks=4, num_replicas=2)
    for field in ("forward_s", "backward_s", "activation_bytes", "kept_bytes"):
        assert getattr(costs, field).tolist() == 2 * getattr(alone, field).tolist()
    # Rank r holds stage r of one replica and stage p − 1 − r of the other.
    assert costs.static_bytes.tolist() == (alone.static_bytes + alone.static_bytes[::-1]).tolist()
    assert "replicas: 2, each with all layers, embedding and head" in two.assumptions


def test_slices_are_cut_to_take_the_same_time():
    made = assemble(profile(), build("seq1f1b", pp=2, microbatches=2, num_slices=3))
    assert made.costs.slice_time_shares is None
    assert np.array(made.costs.slice_token_shares) * 16 == pytest.approx(equal_time_slices(16, 3, hidden_size=8))
    assert any(
        line.startswith("slices: 6, 2×5 tokens, of equal FLOPs under causal attention") for line in made.assumptions
    )


def test_a_transfer_follows_the_bandwidth_or_the_measured_one_nearest_in_size() -> None:
    """An output of 1 MiB; measured times scale with the bytes."""

    def measured(num_bytes: int, median_s: float) -> SimpleNamespace:
        return SimpleNamespace(bytes=num_bytes, seconds=SimpleNamespace(median=median_s))

    layer, near, exact = SimpleNamespace(output_bytes=2**20), measured(2**19, 5e-3), measured(2**20, 7e-3)
    for transfers, bandwidth, expected in (
        ([exact], 2.0**30, (2**-10, "transfers: 977 µs per P2P transfer, 1.00 MiB at 1.07 GB/s, calibrated, with a "
                            "latency of its own")),
        ([], None, (0.0, "transfers: the profile has none; 0 s assumed (--transfer-ms gives one)")),
        ([near, exact], None, (7e-3, "transfers: 7.00 ms per P2P transfer of 1.00 MiB, measured")),
        ([measured(2**30, 1.0), near], None, (
            10e-3, "transfers: 10.0 ms per P2P transfer of 1.00 MiB, scaled from 512 KiB"
        )),
    ):  # fmt: skip
        assert _hop(SimpleNamespace(transfers=transfers), layer, bandwidth) == expected


ALONE_S = {"forward_s": 1.2, "backward_s": 2.25, "backward_input_s": 1.75, "backward_weight_s": 0.5}
"""Of one layer alone. With the means 1, 1.75, 1.25 and 0.75 of three in a row, a stage of n layers takes
0.3 + 0.9·n for F, 0.75 + 1.5·n for B, 0.75 + n for I, and 0.75·n for W, because a layer alone is faster than the mean.
"""


def with_lone_layer(layer: dict[str, Any] = LAYER, **changes: Any) -> dict[str, Any]:
    embedding, _, head = EXAMPLE["measurements"]
    times = {name: quantity(time) for name, time in ALONE_S.items()} | changes
    return example(measurements=[embedding, layer | {"alone": {"num_in_row": 3, **times}}, head])


def test_only_stages_with_layers_take_the_fixed_time() -> None:
    assembled = assemble(
        profile(with_lone_layer()), build("1f1b", pp=3, microbatches=3), split=[0, 2, 4], num_layers=6
    )
    assert list(assembled.costs.forward_s) == pytest.approx([0.5, 0.3 + 1.8, 0.3 + 3.6 + 2.0])
    assert list(assembled.costs.backward_s) == pytest.approx([0.25, 0.75 + 3.0, 0.75 + 6.0 + 3.5])
    assert list(assembled.costs.backward_input_s) == pytest.approx([0.0, 0.75 + 2.0, 0.75 + 4.0 + 2.5])
    assert list(assembled.costs.backward_weight_s) == pytest.approx([0.25, 1.5, 3.0 + 1.5])
    assert "a stage takes 1.05 s for F and B beside its layers, measured" in assembled.assumptions


def test_a_layer_more_adds_its_slope_and_the_fixed_time_counts_as_layers() -> None:
    measured = profile(with_lone_layer())
    costs = layer_costs_of(measured, measured.shape_at(), 5)
    assert costs.work_s.tolist() == [2.75] * 5, "F + B of a mean layer"
    assert costs.passes_s.tolist() == pytest.approx([0.9, 1.5, 1.0, 0.75])
    assert costs.exposed_s.tolist() == costs.passes_s.tolist()
    assert (costs.static_bytes, costs.activation_bytes) == (16 * 200, 400)
    assert costs.fixed == pytest.approx((0.3 + 0.75) / (0.9 + 1.5))


def test_a_backward_measured_in_halves_is_their_sum() -> None:
    measured = profile(with_lone_layer(LAYER | {"backward_s": None}))
    costs = layer_costs_of(measured, measured.shape_at(), 2)
    assert costs.work_s.tolist() == [1.0 + 1.25 + 0.75] * 2
    assert costs.passes_s.tolist() == pytest.approx([0.9, 1.0 + 0.75, 1.0, 0.75])
    assert costs.fixed == pytest.approx((0.3 + 0.75) / (0.9 + 1.75))


def test_layers_without_time_have_no_fixed_part() -> None:
    free = component("layer", forward=0.0, backward_input=0.0, backward_weight=0.0, backward=0.0)
    measured = profile(example(measurements=[free]))
    assert layer_costs_of(measured, measured.shape_at(), 2).fixed == 0.0


def test_the_input_gradient_of_an_unsplit_backward_is_all_of_it() -> None:
    unsplit = {"backward_input_s": None, "backward_weight_s": None}
    layer = profile(with_lone_layer(LAYER | unsplit, **unsplit)).measurements[1]
    assert line_of(layer, "backward_input_s") == pytest.approx((0.75, 1.5))
    assert line_of(layer, "backward_weight_s") == (0.0, 0.0)
    assert line_of(layer, "parameters") == (0.0, 200.0)
    part = profile(with_lone_layer(**unsplit)).measurements[1]
    assert line_of(part, "backward_input_s") == (0.0, 1.25), "halves that were not measured of a layer alone"


def test_a_component_measured_in_halves_weighs_as_their_sum() -> None:
    """With 3 + 4 + 5 s, the embedding takes as long as four layers of 3 s."""
    embedding = component("embedding", forward=3.0, backward_input=4.0, backward_weight=5.0)
    head = component("head", forward=1.0, backward_input=0.5, backward_weight=1.5, backward=2.0)
    layer = component("layer", forward=1.0, backward_input=1.0, backward_weight=1.0, backward=2.0)
    measured = profile(example(measurements=[embedding, layer, head]))
    assembled = assemble(measured, build("1f1b", pp=3, microbatches=3), num_layers=10)
    assert assembled.split == [1, 5, 4]


def test_the_shape_that_is_asked_for_is_used() -> None:
    other = {"micro_batch": 3, "sequence_length": 32, "dtype": "bf16"}
    longer = [part | {"shape": other, "forward_s": quantity(7.0)} for part in EXAMPLE["measurements"]]
    measured = profile(example(measurements=[*EXAMPLE["measurements"], *longer]))
    assembled = assemble(measured, build("1f1b", pp=1, microbatches=1), shape=measured.shapes[1], num_layers=2)
    assert list(assembled.costs.forward_s) == [7.0 * 4]
    assert assembled.assumptions[1] == "shape: micro-batch 3, sequence length 32, bf16"


def test_static_bytes_follow_the_bytes_per_parameter() -> None:
    assembled = assemble(
        profile(), build("1f1b", pp=2, microbatches=2), num_layers=5, split=[2, 3], bytes_per_parameter=7
    )
    assert assembled.costs.static_bytes == [7 * (1000 + 2 * 200), 7 * (3 * 200 + 500)]
    assert assembled.assumptions[3] == "static memory: 7 bytes per parameter, no sharding"


def at_shape(changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [part | {"shape": part["shape"] | changes} for part in EXAMPLE["measurements"]]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, None),
        ({"cp": 2}, "tp 1, cp 2, ep 1: one rank's part, measured on one device; no collective is in the times"),
        ({"ep": 2}, "tp 1, ep 2: one rank's part, measured on one device; no collective is in the times"),
        ({"recompute": "full"}, "recomputation: full, of the layers"),
    ],
)
def test_a_shape_of_one_rank_or_with_recomputation_is_an_assumption(
    changes: dict[str, Any], line: str | None
) -> None:
    assembled = assemble(
        profile(example(measurements=at_shape(changes))), build("1f1b", pp=2, microbatches=2), transfer_s=0.0
    )
    assert assembled.assumptions[4:] == ([line] if line else [])


def test_the_rule_of_megatron_is_named_with_the_contents_of_the_stages() -> None:
    """6 layers are divided evenly among 2 ranks with 3 chunks each."""
    table = build("interleaved-1f1b", pp=2, vpp=3, microbatches=2)
    assembled = assemble(profile(), table, num_layers=6, split=MegatronSplit())
    assert assembled.contents == ["Et", "t", "t", "t", "t", "tL"]
    assert assembled.assumptions[2].startswith("layers: 6, split 6×1 (Megatron-LM's rule: even), embedding")


def test_layout_strings_are_counted_unless_they_hold_further_predicted_tokens() -> None:
    table = build("1f1b", pp=2, microbatches=2)
    assert assemble(profile(), table, num_layers=5, split=["Ett", "tttL"]).split == [2, 3]
    with pytest.raises(ConfigError, match="the layout holds m, but a profile has no layers of multi-token"):
        assemble(profile(), table, num_layers=3, split=["Ett", "tmL"])


CALIBRATED = {
    "num_processes": 2, "num_threads": 3, "slowdown": 1.25, "action_overhead_s": 0.0, "hop_overhead_s": 0.0,
    "step_spread": 0.02,
}  # fmt: skip


def test_the_slowdown_of_a_calibration_run_applies_to_as_many_ranks() -> None:
    measured = profile(example(rehearsal=CALIBRATED))
    plain = assemble(profile(), build("1f1b", pp=2, microbatches=2)).costs
    assembled = assemble(measured, build("1f1b", pp=2, microbatches=2))
    for name in TIMES:
        assert getattr(assembled.costs, name) == pytest.approx(1.25 * getattr(plain, name))
    assert assembled.costs.transfer_s == plain.transfer_s
    assert assembled.assumptions[-1] == (
        "calibration run with 2 processes at once, 3 threads each: actions take 1.25 times as long as with one "
        "process; half of its steps took within 2.00 % of each other; measured by an earlier version: profile again, "
        "so that ppsim compare knows the machine speed"
    )
    other = assemble(measured, build("1f1b", pp=3, microbatches=3))
    unchanged = assemble(profile(), build("1f1b", pp=3, microbatches=3)).costs
    assert list(other.costs.forward_s) == list(unchanged.forward_s)
    assert other.assumptions[-1].endswith("3 threads each: not applied, because the schedule has 3 ranks")


def test_a_calibration_run_with_reference_work_has_the_variation_of_machine_speed() -> None:
    """The standard deviation of the logarithms of 1 and 1.1 is ln 1.1 / √2 = 6.74 %."""
    reference = {"reference_s": [1.0, 1.1], "reference_ends_s": [0.0, 0.0], "num_threads": 1}
    halves = [part | {"backward_s": None} for part in EXAMPLE["measurements"]]
    measured = profile(example(measurements=halves, rehearsal=CALIBRATED | reference))
    assembled = assemble(measured, build("1f1b", pp=2, microbatches=2))
    assert assembled.costs.backward_s is None
    assert assembled.assumptions[-1].endswith(
        "1 thread each: actions take 1.25 times as long as with one process; half of its steps took within 2.00 % of "
        "each other at equal speed; the machine speed varied by 6.74 %"
    )


def test_several_threads_are_a_plural() -> None:
    assert threads_in_words(2) == "2 threads each"


def test_layers_of_two_kinds_weigh_as_one_layer_more_adds_to_a_stage() -> None:
    """t adds 3 s and u 9 s of F + B, E takes 1.5 s and L 6 s: [5, 1] takes 16.5 and 15 s, [4, 2] 13.5 and 18 s."""
    measured = profile(of_chunks("Et", "t", "u", "uuuu", "uL", kinds="tttttu"))
    assembled = assemble(measured, build("1f1b", pp=2, microbatches=2))
    assert assembled.split == [5, 1]
    assert list(assembled.costs.forward_s) == pytest.approx([0.5 + 0.25 + 5, 0.25 + 3 + 2])
    assert layer_costs_of(measured, measured.shape_at(), 6).work_s.tolist() == pytest.approx([3.0] * 5 + [9.0])


@pytest.mark.parametrize(
    ("split", "line"),
    [
        ([2, 4, 4, 2], "chunks: 4 of 4 stages measured as they are"),
        ([3, 2, 5, 2], "chunks: 1 of 4 stages measured as they are, Et*3, tt, t*5 made up of others"),
        ([2, 5, 4, 1], "chunks: 2 of 4 stages measured as they are, t*5, tL made up of others"),
    ],
)
def test_stages_that_are_no_measured_chunk_are_listed_in_their_order(split: list[int], line: str) -> None:
    measured = profile(of_chunks("Ett", "t", "tttt", "ttL"))
    assembled = assemble(measured, build("1f1b", pp=4, microbatches=4), split=split)
    assert line in assembled.assumptions


def test_a_model_of_chunks_with_one_kind_of_layer_may_have_any_number_of_layers() -> None:
    """A chunk takes 0.25 s and 1 s per layer for F, three times as much for F + B; a layer of four is the mean."""
    measured = profile(of_chunks("Ett", "t", "tttt", "ttL"))
    assembled = assemble(measured, build("1f1b", pp=2, microbatches=2), num_layers=31, split=[14, 17])
    assert list(assembled.costs.forward_s) == pytest.approx([0.5 + 0.25 + 14, 0.25 + 17 + 2])
    costs = layer_costs_of(measured, measured.shape_at(), 31)
    assert costs.work_s.tolist() == pytest.approx([3 * 4.25 / 4] * 31)


def test_chunks_at_another_shape_are_not_used() -> None:
    """Components of the second shape were measured, so they add up instead of its chunks."""
    other = {"micro_batch": 3, "sequence_length": 16, "dtype": "bf16"}
    longer = [part | {"shape": other} for part in EXAMPLE["measurements"]]
    chunks = of_chunks("Ett", "t", "tttt", "ttL")["chunks"]
    measured = profile(example(measurements=[*EXAMPLE["measurements"], *longer], chunks=chunks))
    table = build("1f1b", pp=2, microbatches=2)
    of_chunk, of_components = (assemble(measured, table, shape=shape, split=[2, 10]) for shape in measured.shapes)
    assert list(of_chunk.costs.forward_s) == pytest.approx([2.75, 12.25])
    assert list(of_components.costs.forward_s) == [2.5, 12.0]
