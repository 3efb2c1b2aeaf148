"""Stage costs hold every component once: the embedding, each layer, the head."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import build
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.assemble_profile import BYTES_PER_PARAMETER, _hop, assemble
from ppsim.parallel.layer_partition import why_no_split
from ppsim.parallel.sequence_slices import equal_time_slices
from tests.costs.profiles import EXAMPLE, example, profile, profiles

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
