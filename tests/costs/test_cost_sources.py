"""Measured times of ranks and parts of the model, divided and summed to stages by hand."""

from typing import Any

import numpy as np
import pytest

from ppsim import build
from ppsim.base.errors import ConfigError
from ppsim.costs.assemble_profile import assemble, layer_costs_of
from ppsim.costs.cost_sources import MeasuredProfileSource, ProfileSource, RankCosts, RankSource, RunCosts
from ppsim.costs.profile import Profile
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from tests.costs.profiles import EXAMPLE, example, profile, quantity

GIB = 2**30


def estimated(**costs: Any) -> StageCostSet:
    given = {"forward_s": 0.0, "backward_input_s": 0.0, "backward_weight_s": 0.0} | costs
    return StageCostSet(
        StageCosts(**given), [], 0.0, assumptions=["costs: estimated", "transfers: estimated", "other"]
    )


def table(pp: int = 4, vpp: int = 1) -> Schedule:
    return build("1f1b" if vpp == 1 else "interleaved-1f1b", pp=pp, vpp=vpp, microbatches=2 * pp)


def replaced(schedule: Schedule, costs: RankCosts, **own: Any) -> StageCostSet:
    return costs.replacing(estimated(**own), schedule)


def test_the_time_of_a_rank_is_divided_by_its_stages() -> None:
    costs = RankCosts(2.0, 4.0, 6.0, transfer_s=0.5)
    alone, several = replaced(table(), costs), replaced(table(2, 2), costs)
    assert (alone.costs.forward_s, several.costs.forward_s) == (2.0, 1.0)
    assert (several.costs.backward_input_s, several.costs.backward_weight_s, several.costs.transfer_s) == (
        2,
        3,
        0.5,
    )
    assert alone.assumptions == ["costs: measured of a rank", "other"]
    assert several.assumptions == ["costs: measured of a rank, in 2 equal stages", "other"]


def test_times_of_parts_are_divided_or_summed() -> None:
    costs = RankCosts((2.0, 4.0), (4.0, 8.0), (6.0, 2.0), transfer_s=(0.25, 0.5))
    divided = replaced(table(2, 2), costs)
    assert divided.costs.forward_s == [1.0, 1.0, 2.0, 2.0]
    assert divided.costs.transfer_s == [0.25, 0.25, 0.5, 0.5]
    assert divided.assumptions[0] == "costs: measured of 2 parts of the model, in 2 equal stages each"
    summed = replaced(table(2), RankCosts((1.0, 2.0, 3.0, 4.0), 0.0, 0.0, transfer_s=(1.0, 2.0, 3.0, 4.0)))
    assert summed.costs.forward_s == [3.0, 7.0]
    assert summed.costs.transfer_s == [2.0, 4.0], "after the last part of a stage"
    assert summed.assumptions[0] == "costs: measured of 4 parts of the model"
    same = replaced(table(2), RankCosts((1.0, 2.0), 0.0, 0.0))
    assert (same.costs.forward_s, same.costs.transfer_s) == ([1.0, 2.0], 0.0)
    with pytest.raises(ConfigError, match="--forward-ms has 3 values for 4 stages: give 4"):
        replaced(table(), RankCosts((1.0, 2.0, 3.0), 0.0, 0.0))


def test_given_activations_keep_the_share_that_the_weight_gradient_needs() -> None:
    costs = RankCosts(1.0, 1.0, 1.0, activation_bytes=(2 * GIB, 4 * GIB))
    own = {"activation_bytes": [10.0, 0.0], "activation_bytes_kept_for_weight": [4.0, 0.0]}
    found = replaced(table(2), costs, **own)
    assert list(found.costs.activation_bytes) == [2 * GIB, 4 * GIB]
    assert list(found.costs.activation_bytes_kept_for_weight) == pytest.approx([0.8 * GIB, 0.0])
    assert found.assumptions[1] == "activations: 4.00 GiB per microbatch on the fullest part, as given"
    alone = replaced(table(2), RankCosts(1.0, 1.0, 1.0, activation_bytes=GIB))
    assert alone.costs.activation_bytes_kept_for_weight is None
    assert alone.assumptions[1] == "activations: 1.00 GiB per microbatch on a rank, as given"


@pytest.mark.parametrize("name", ["forward_s", "backward_input_s", "backward_weight_s", "transfer_s"])
def test_a_negative_time_is_refused_by_its_option(name: str) -> None:
    fields = {"forward_s": 0.0, "backward_input_s": 0.0, "backward_weight_s": 0.0, "transfer_s": 0.0}
    RankCosts(**fields)
    with pytest.raises(ConfigError, match=f"--{name[:-2].replace('_', '-')}-ms must be 0 or more: got -1500"):
        RankCosts(**(fields | {name: (1.0, -1.5)}))
    with pytest.raises(ConfigError):
        RankCosts(**(fields | {name: float("inf")}))


def test_times_without_a_model_have_no_peak_and_no_variation() -> None:
    source = RankSource(RankCosts(1.0, 1.0, 1.0))
    found = source.assemble(table(), "even")
    assert found.assumptions == [
        "costs: measured of a rank",
        "no --model: throughput, MFU and memory are not known",
    ]
    assert (source.peak(), source.jitter(), source.to_json(), source.gpus_per_rank) == ((None, []), None, {}, 1)
    with_bytes = RankSource(RankCosts(1.0, 1.0, 1.0, activation_bytes=1.0)).assemble(table(), "even")
    assert with_bytes.assumptions[-1].endswith("MFU and memory except activations are not known")


def run(forward: tuple[float, ...], **fields: Any) -> RunCosts:
    num = len(forward)
    given = {
        "forward_s": forward, "backward_input_s": (2.0,) * num, "backward_weight_s": (1.0,) * num,
        "table": table(num), "source": "run.json", "splits_backward": True, "knows_gaps": False,
    }  # fmt: skip
    return RunCosts(**(given | fields))


def test_the_ends_of_the_model_keep_their_excess() -> None:
    found = replaced(table(4, 2), run((3.0, 2.0, 2.0, 6.0)))
    assert list(found.costs.forward_s) == pytest.approx([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0])
    assert found.assumptions[0] == (
        "costs: medians per stage of run.json, 4 stages divided into 8, more than the median of the others stays at "
        "the first and the last"
    )
    less = replaced(table(4, 2), run((1.0, 2.0, 2.0, 2.0)))
    assert list(less.costs.forward_s)[:2] == [0.5, 0.5], "a first stage with less than the median has no excess"


def test_two_recorded_stages_are_divided_evenly() -> None:
    found = replaced(table(2, 2), run((3.0, 2.0)))
    assert list(found.costs.forward_s) == [1.5, 1.5, 1.0, 1.0]
    assert found.assumptions == ["costs: medians per stage of run.json, 2 stages divided into 4", "other"]


def test_recorded_stages_are_summed_without_a_rest() -> None:
    found = replaced(table(2), run((1.0, 2.0, 3.0, 4.0)))
    assert list(found.costs.forward_s) == [3.0, 7.0]
    assert found.assumptions[0] == "costs: medians per stage of run.json, 4 stages"
    with pytest.raises(ConfigError, match="4 stages, which are neither divided nor summed to 6"):
        replaced(table(6), run((1.0,) * 4))


def test_halves_of_a_recorded_backward_are_an_assumption_of_schedules_that_split_it() -> None:
    split = build("zb-h1", pp=2, microbatches=4)
    line = "I and W: each half of the recorded B, assumed (the run has full backwards)"
    assert replaced(split, run((1.0, 1.0), splits_backward=False)).assumptions[1] == line
    assert line not in replaced(split, run((1.0, 1.0))).assumptions
    assert line not in replaced(table(2), run((1.0, 1.0), splits_backward=False)).assumptions


FAULTY = {"slow_ranks": ((1, 1.5, 2.0),), "slow_links": ((0, 1, 0.5, 0.0, 0.25), (1, 0, 0.0, 0.125, 0.0))}


def test_faults_are_named_with_their_sizes() -> None:
    assert run((1.0, 1.0), **FAULTY).faults == {
        "slow ranks 1": "forward × 1.50, backward × 2.00",
        "slow links 0-1": "0 → 1: 500 ms per message, one after the other, 250 ms blocked; 1 → 0: 125 ms later",
    }
    assert run((1.0, 1.0)).faults == {}


def test_faults_are_removed_by_number_or_name() -> None:
    faulty = run((1.0, 1.0), **FAULTY)
    assert list(faulty.without(["1"]).faults) == list(faulty.without(["slow ranks 1"]).faults) == ["slow links 0-1"]
    assert list(faulty.without(["2"]).faults) == ["slow ranks 1"]
    assert faulty.without(["1", "slow links 0-1"]).faults == {}
    assert faulty.without([]).faults == faulty.faults
    assert list(faulty.without(["slow ranks"]).faults) == ["slow links 0-1"]
    for wrong in ("0", "3", "rank 1", "slow", ""):
        with pytest.raises(ConfigError, match=r"has no such cause: give 1 \(slow ranks 1\), 2 \(slow links 0-1\)"):
            faulty.without([wrong])
    with pytest.raises(ConfigError, match="has no slow rank or link"):
        run((1.0, 1.0)).without(["1"])


def test_faults_stay_on_as_many_ranks() -> None:
    faulty = run((1.0, 1.0), **FAULTY)
    found = replaced(table(2), faulty).costs
    assert list(found.forward_s) == [1.0, 1.5]
    assert (list(found.backward_input_s), list(found.backward_weight_s)) == ([2.0, 4.0], [1.0, 2.0])
    assert found.slow_links == [[0, 1, 0.5, 0.0, 0.25], [1, 0, 0.0, 0.125, 0.0]]
    interleaved = replaced(table(2, 2), faulty).costs
    assert list(interleaved.forward_s) == [0.5, 0.75, 0.5, 0.75]
    more = replaced(table(4), faulty)
    assert list(more.costs.forward_s) == [0.5] * 4
    assert more.costs.slow_links is None


def test_recorded_times_correct_the_estimate_by_layers() -> None:
    recorded = run((2.0, 6.0), backward_input_s=(4.0, 4.0), backward_weight_s=(1.0, 3.0), transfer_s=0.5)
    passes = {"forward_s": [1.0, 2.0], "backward_input_s": [2.0, 2.0], "backward_weight_s": [1.0, 1.0]}
    own = StageCostSet(StageCosts(**passes), [2, 2], 0.0)
    other = {name: [1.0, 1.0, 1.0, 1.0] for name in passes}
    new = StageCostSet(StageCosts(**other), [1, 2, 1, 0], 0.0, assumptions=["costs: estimated", "other"])
    found = recorded.correcting(new, own)
    assert list(found.costs.forward_s) == [2.0, 2.5, 3.0, 3.0], "ratios 2 and 3, by the share of the stage's layers"
    assert list(found.costs.backward_input_s) == [2.0] * 4
    assert list(found.costs.backward_weight_s) == [1.0, 2.0, 3.0, 3.0]
    assert (found.costs.transfer_s, found.parts) == (0.5, [])
    assert found.assumptions == [
        "costs: the model's, times recorded / estimated per stage of run.json: F 2.00 to 3.00, I 2.00 to 2.00, W "
        "1.00 to 3.00",
        "other",
    ]
    full = run((2.0, 6.0), backward_input_s=(4.0, 4.0), backward_weight_s=(2.0, 5.0), splits_backward=False)
    together = full.correcting(new, own).costs
    assert list(together.backward_input_s) == list(together.backward_weight_s) == [2.0, 2.5, 3.0, 3.0]


def test_a_stage_without_an_estimate_is_not_corrected() -> None:
    recorded = run((2.0, 6.0))
    passes = {"forward_s": [1.0, 0.0], "backward_input_s": [2.0, 2.0], "backward_weight_s": [1.0, 1.0]}
    own = StageCostSet(StageCosts(**passes), [1, 1], 0.0)
    found = recorded.correcting(StageCostSet(StageCosts(**passes), [1, 1], 0.0), own)
    assert list(found.costs.forward_s) == [2.0, 0.0]


def test_a_profile_is_used_at_its_first_shape() -> None:
    data = profile(example())
    source = ProfileSource.of(data, None, num_layers=None, transfer_s=None, bandwidth_bytes_per_s=None)
    shape = data.shape_at()
    assert (source.shape, source.num_layers) == (shape, data.model.num_layers)
    assert source.tokens_per_microbatch == shape.micro_batch * shape.sequence_length
    assert source.gpus_per_rank == shape.tp * shape.cp
    assert (source.sequence_length, source.hidden_size) == (shape.sequence_length, data.model.hidden_size)
    assert source.name == f"profile {data.name}"
    forward = data.find("layer", shape).forward_s
    assert source.jitter() == pytest.approx((forward.high - forward.low) / 1.349 / forward.median)
    given = ProfileSource.of(data, shape, num_layers=3, transfer_s=1.0, bandwidth_bytes_per_s=2.0)
    assert (given.num_layers, given.transfer_s, given.bandwidth_bytes_per_s) == (3, 1.0, 2.0)
    assert np.asarray(given.assemble(table(2), "even").costs.transfer_s).max() == 1.0


def source_of(measured: Profile, **changes: Any) -> ProfileSource:
    nothing = dict.fromkeys(("num_layers", "transfer_s", "bandwidth_bytes_per_s"))
    return ProfileSource.of(measured, None, **(nothing | changes))


def test_the_default_profile_is_the_packaged_one_at_its_first_shape() -> None:
    source = ProfileSource.of(None, None, num_layers=None, transfer_s=None, bandwidth_bytes_per_s=None)
    assert (source.profile.name, source.num_layers) == ("zb-a100-6.2b", 30)
    assert source.shape == source.profile.shape_at()


def test_ranks_of_a_profile_count_tensor_and_context_parallel_gpus() -> None:
    shape = {"micro_batch": 5, "sequence_length": 7, "dtype": "bf16", "tp": 2, "cp": 3}
    measured = profile(example(measurements=[part | {"shape": shape} for part in EXAMPLE["measurements"]]))
    source = source_of(measured)
    assert (source.gpus_per_rank, source.tokens_per_microbatch) == (6, 35)
    described = source.to_json()["profile"]
    assert described.pop("shape") == shape | {"ep": 1, "recompute": "none"}
    assert described == {
        "name": "example", "provenance": "measured", "source": "by hand", "device": "a device", "model": "a model",
    }  # fmt: skip


def test_a_profile_gives_its_transfers_and_layers_to_the_costs() -> None:
    """64 B at 128 B/s take 0.5 s."""
    source = source_of(profile(), bandwidth_bytes_per_s=128.0, num_layers=5)
    costs = source.assemble(table(2), "even")
    assert (costs.costs.transfer_s, costs.split) == (0.5, [3, 2])
    other = source_of(profile(), num_layers=7).assemble(table(2), "even")
    assert other.split == assemble(profile(), table(2), num_layers=7, split="even").split
    layers, direct = source.layer_costs(), layer_costs_of(profile(), profile().shape_at(), 5)
    assert layers.work_s.tolist() == direct.work_s.tolist() == [2.75] * 5


def test_the_variation_of_a_layer_is_a_part_of_its_interquartile_range() -> None:
    """A normal distribution has 1.349 standard deviations between its quartiles; a free layer has no variation."""
    embedding, layer, head = EXAMPLE["measurements"]
    spread = {"median": 4.0, "low": 3.5, "high": 3.5 + 2 * 1.349}
    varied = profile(example(measurements=[embedding, layer | {"forward_s": spread}, head]))
    assert source_of(varied).jitter() == pytest.approx(2 / 4)
    free = profile(example(measurements=[embedding, layer | {"forward_s": quantity(0.0)}, head]))
    assert source_of(free).jitter() is None


def test_the_peak_of_a_profile_is_its_data_sheet_or_its_fastest_gemm() -> None:
    """A GEMM of 2 × 3 × 5 takes 60 FLOPs: 120 FLOP/s in half a second."""
    assert source_of(profile()).peak() == (1e12, [])
    unknown = example()
    unknown["provenance"]["device"]["peak_flops_per_s"] = {}
    assert source_of(profile(unknown)).peak() == (None, [])
    gemm = {"m": 2, "n": 3, "k": 5, "form": "forward", "dtype": "bf16", "seconds": quantity(0.5)}
    unknown["device_facts"] = {"products": [gemm]}
    peak, lines = source_of(profile(unknown)).peak()
    assert peak == 120.0
    assert lines == ["MFU: of the best product measured, no data sheet being known"]


def test_measured_times_replace_those_of_a_profile_and_leave_its_bytes() -> None:
    fields = vars(source_of(profile(), num_layers=4))
    source = MeasuredProfileSource(**fields, costs=RankCosts(2.0, 3.0, 5.0, transfer_s=0.25))
    stages, of_profile = (
        source.assemble(table(2), "even"),
        source_of(profile(), num_layers=4).assemble(table(2), "even"),
    )
    assert (stages.costs.forward_s, stages.costs.transfer_s) == (2.0, 0.25)
    assert list(stages.costs.activation_bytes) == list(of_profile.costs.activation_bytes)
    assert stages.split == [2, 2]


def test_a_stage_without_layers_is_corrected_as_the_layer_after_it() -> None:
    """Or as the last layer. Layers 0 to 4 are in the recorded stages 0, 1, 2, 2, whose ratios are 2, 3 and 5."""
    passes = ("forward_s", "backward_input_s", "backward_weight_s")
    own = StageCostSet(StageCosts(**{name: [1.0, 1.0, 1.0] for name in passes}), [1, 1, 2], 0.0)
    new = StageCostSet(StageCosts(**{name: [1.0] * 6 for name in passes}), [0, 1, 0, 2, 1, 0], 0.0)
    corrected = run((2.0, 3.0, 5.0)).correcting(new, own)
    assert list(corrected.costs.forward_s) == pytest.approx([2.0, 2.0, 3.0, 4.0, 5.0, 5.0])


def test_a_transfer_of_a_part_is_used_after_all_its_stages_when_corrected() -> None:
    passes = ("forward_s", "backward_input_s", "backward_weight_s")
    own = StageCostSet(StageCosts(**{name: [1.0, 1.0] for name in passes}), [1, 1], 0.0)
    new = StageCostSet(StageCosts(**{name: [1.0] * 4 for name in passes}), [0, 1, 1, 0], 0.0)
    corrected = run((2.0, 3.0), transfer_s=(0.25, 0.5)).correcting(new, own)
    assert corrected.costs.transfer_s == [0.25, 0.25, 0.5, 0.5]


def test_three_recorded_stages_have_ends_that_keep_their_excess() -> None:
    """The median of one stage between is 2; the ends have 5 and 1 s more, beside a third of 2 s each."""
    divided = replaced(table(3, 3), run((7.0, 2.0, 3.0)))
    assert list(divided.costs.forward_s) == pytest.approx([17 / 3, *[2 / 3] * 7, 5 / 3])


def test_a_slow_link_is_removed_with_both_its_directions() -> None:
    links = ((0, 1, 0.5, 0.0, 0.25), (2, 1, 0.0, 0.125, 0.0), (1, 0, 0.0, 0.125, 0.0))
    faulty = run((1.0, 1.0, 1.0), slow_links=links)
    assert faulty.without(["slow links 0-1"]).slow_links == (links[1],)
    assert list(faulty.without(["2"]).faults) == ["slow links 0-1"]
    assert faulty.without(["slow links"]).slow_links == ()
