"""Costs of stages: defaults, arrays per stage and microbatch, and sentences on wrong fields."""

from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build
from ppsim.base.errors import CostsError
from ppsim.simulation import stage_costs
from tests.defaults import field_defaults, parameter_defaults

UNIT = StageCosts(forward_s=1.0, backward_input_s=2.0, backward_weight_s=3.0)
TWO = {"num_stages": 2, "num_ranks": 2}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"forward_s": -1.0}, "forward_s holds -1; costs are finite and not negative"),
        ({"forward_s": [1.0, float("nan")]}, "forward_s holds nan; costs are finite"),
        (
            {"forward_s": "x"},
            "forward_s is 'x'; give a number or a list of numbers, or a list of such lists of one",
        ),
        ({"forward_s": []}, "forward_s is []; give a number or a list"),
        ({"forward_s": [[[1.0]]]}, "forward_s is [[[1.0]]]; give a number"),
        ({"static_bytes": [[1.0]]}, "static_bytes is [[1.0]]; give a number or a list of numbers"),
        ({"fused_s": [[1.0, 2.0]]}, "fused_s is [[1.0, 2.0]]; a matrix has a row per forward's stage"),
        ({"slow_links": [[0, 1, 2.0]]}, "slow_links is [[0, 1, 2.0]]; give rows of two ranks and three times"),
        ({"slow_links": [1.0] * 5}, "give rows of two ranks and three times"),
        ({"backward_input_s": None}, "backward_input_s: missing (only backward_s can stand for both of I and W)"),
        (
            {"slice_time_shares": [0.5, 0.6]},
            "slice_time_shares sum to 1.1; the shares of a microbatch's slices sum",
        ),
        ({"channel": "none"}, "channel is 'none'; choose one of "),
        ({"receives": "late"}, "receives is 'late'; choose one of "),
        ({"communication": "no"}, "communication is 'no'; choose one of "),
        ({"action_overhead_s": -0.5}, "action_overhead_s holds -0.5"),
    ],
)
def test_wrong_costs_are_named(fields: dict[str, Any], problem: str) -> None:
    given = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0, "backward_s": 2.0}
    with pytest.raises(CostsError) as error:
        StageCosts(**(given | fields))
    assert problem in str(error.value)
    with pytest.raises(CostsError):
        StageCosts(**given).replace(**fields)


def test_a_whole_backward_stands_for_both_halves() -> None:
    assert StageCosts(forward_s=1.0, backward_s=2.0).backward_input_s is None
    with pytest.raises(CostsError, match="backward_input_s: missing"):
        StageCosts(forward_s=1.0)
    whole = StageCosts(forward_s=1.0, backward_s=2.0)
    with pytest.raises(CostsError, match="which 0I0 and 0W0 need"):
        whole.resolved_for(build("zb-h1", pp=2, microbatches=2))
    assert whole.resolved_for(build("1f1b", pp=2, microbatches=2)).backward_s.tolist() == [2.0, 2.0]
    assert UNIT.resolved(**TWO).backward_s.tolist() == [5.0, 5.0]


def test_shares_that_round_to_one_are_whole() -> None:
    assert (
        UNIT.replace(slice_time_shares=[1 / 3] * 3, slice_token_shares=[0.1] * 10).slice_time_shares == [1 / 3] * 3
    )
    with pytest.raises(CostsError):
        UNIT.replace(slice_time_shares=[0.5, 0.5 + 2e-9])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"forward_s": [1.0, 2.0, 3.0]}, "forward_s"),
        ({"static_bytes": [1.0] * 3}, "static_bytes"),
        ({"slice_time_shares": [0.5, 0.5]}, "slice_time_shares"),
        ({"fused_s": np.ones((3, 3))}, "fused_s"),
        ({"activation_bytes": 1.0, "activation_bytes_kept_for_weight": 2.0}, "activation_bytes_kept_for_weight"),
        ({"forward_s": [[1.0, 2.0]] * 2, "microbatch_factors": [1.0, 2.0, 3.0]}, "microbatch"),
    ],
)
def test_costs_of_other_dimensions_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(CostsError, match="costs do not match the schedule") as error:
        UNIT.replace(**fields).resolved(**TWO)
    assert problem in str(error.value)


def test_costs_of_another_number_of_microbatches_are_refused() -> None:
    costs = UNIT.replace(microbatch_factors=[1.0, 2.0])
    assert costs.resolved(**TWO, num_microbatches=2).forward_s.tolist() == [1.5, 1.5]
    assert costs.resolved(**TWO).forward_s.tolist() == [1.5, 1.5]
    with pytest.raises(CostsError):
        costs.resolved(**TWO, num_microbatches=3)


def test_factors_of_microbatches_multiply_times_and_bytes() -> None:
    costs = UNIT.replace(
        microbatch_factors=[1.0, 3.0], activation_bytes=[10.0, 20.0], transfer_s=0.5, fused_s=4.0,
        fused_activation_bytes=8.0,
    )  # fmt: skip
    found = costs.resolved(**TWO)
    assert found.values("forward_s").tolist() == [[1.0, 3.0]] * 2
    assert found.values("activation_bytes").tolist() == [[10.0, 30.0], [20.0, 60.0]]
    assert found.activation_bytes.tolist() == [30.0, 60.0], "bytes by their largest"
    assert (found.forward_s.tolist(), found.transfer_s.tolist()) == ([2.0, 2.0], [1.0, 1.0])
    assert found.fused_s is not None
    assert found.fused_activation_bytes is not None
    assert (found.fused_s[0, 0], found.fused_activation_bytes[0, 0]) == (8.0, 24.0)
    equal = costs.with_equal_microbatches()
    assert (equal.microbatch_factors, np.asarray(equal.forward_s).tolist()) == (None, [2.0])
    assert np.asarray(equal.activation_bytes).tolist() == [30.0, 60.0]
    assert (float(equal.fused_s), float(equal.fused_activation_bytes)) == (8.0, 24.0)  # type: ignore[arg-type]
    assert UNIT.with_equal_microbatches() is UNIT
    assert (costs.differ_by_microbatch, UNIT.differ_by_microbatch) == (True, False)
    assert costs.plain(**TWO).forward_s.tolist() == [1.0, 1.0]


def test_resolved_costs_have_defaults_and_overheads() -> None:
    given = {
        "action_overhead_s": 1.0, "hop_overhead_s": 2.0, "variation_s": 3.0, "first_pass_s": 4.0, "last_pass_s": 5.0,
        "between_rounds_s": 6.0,
    }  # fmt: skip
    found = UNIT.replace(**given, static_bytes=[7.0, 8.0]).resolved(**TWO)
    assert {name: getattr(found, name) for name in given} == given
    assert found.static_bytes.tolist() == [7.0, 8.0]
    assert (found.fused_s, found.slow_links, found.by_microbatch) == (None, None, {})
    assert found.time_shares.tolist() == found.token_shares.tolist() == [1.0]
    plain = UNIT.resolved(**TWO, num_slices=4)
    assert plain.time_shares.tolist() == [0.25] * 4
    defaults = (UNIT.communication, UNIT.channel, UNIT.receives, UNIT.step_overhead_s, UNIT.overlap_slowdown)
    assert defaults == ("overlap", "ideal", "torch", 0.0, 0.0)
    assert [getattr(UNIT, name) for name in ("message_overhead_s", "transfer_s", "update_bytes")] == [0.0] * 3


def test_replicas_have_the_costs_of_their_model_stages() -> None:
    costs = UNIT.replace(forward_s=[1.0, 2.0])
    assert costs.resolved(num_stages=4, num_ranks=2, num_replicas=2).forward_s.tolist() == [1.0, 2.0, 1.0, 2.0]


def test_scaling_multiplies_actions_and_transfers_only() -> None:
    costs = UNIT.replace(transfer_s=[0.5, 1.0], fused_s=4.0, action_overhead_s=1.0, activation_bytes=3.0)
    twice = costs.scaled(2.0)
    assert (twice.forward_s, twice.backward_input_s, twice.backward_weight_s, twice.fused_s) == (2.0, 4.0, 6.0, 8.0)
    assert np.asarray(twice.transfer_s).tolist() == [1.0, 2.0]
    assert (twice.action_overhead_s, twice.activation_bytes, twice.backward_s) == (1.0, 3.0, None)


def test_blocking_calls_are_part_of_the_transfer() -> None:
    costs = UNIT.replace(transfer_s=[0.5, 1.0], hop_overhead_s=0.25)
    found = costs.with_calls("megatron-no-overlap")
    assert (np.asarray(found.transfer_s).tolist(), found.hop_overhead_s) == ([0.75, 1.25], 0.0)
    assert found.communication == "megatron-no-overlap"
    assert costs.with_calls("overlap").hop_overhead_s == 0.25


def test_torchs_first_stage_has_its_whole_backward_in_w() -> None:
    costs = UNIT.replace(activation_bytes=4.0, activation_bytes_kept_for_weight=1.0)
    found = costs.with_torch_first_stage(num_stages=4, num_ranks=2, num_replicas=2)
    assert np.asarray(found.backward_input_s).tolist() == [0.0, 2.0, 0.0, 2.0]
    assert np.asarray(found.backward_weight_s).tolist() == [5.0, 3.0, 5.0, 3.0]
    assert np.asarray(found.activation_bytes_kept_for_weight).tolist() == [4.0, 1.0, 4.0, 1.0]
    assert found.forward_s == 1.0
    whole = StageCosts(forward_s=1.0, backward_s=2.0)
    assert whole.with_torch_first_stage(**TWO) is whole


def test_slow_stages_take_longer_in_all_passes_and_pairs() -> None:
    costs = UNIT.replace(fused_s=10.0, transfer_s=0.5)
    found = costs.on_stages(**TWO, factor=np.array([1.0, 1.5]))
    assert np.asarray(found.forward_s).tolist() == [1.0, 1.5]
    assert np.asarray(found.backward_s).tolist() == [5.0, 7.5]
    assert np.asarray(found.fused_s).tolist() == [[10.0, 10.0], [15.0, 15.0]]
    assert found.transfer_s == 0.5
    assert costs.on_stages(**TWO) is costs


def test_a_cell_waits_as_one_if_it_has_its_own_cost() -> None:
    assert (UNIT.pairs, UNIT.replace(fused_s=1.0).pairs) == ("parts", "whole")
    assert UNIT.replace(forward_s=1.0) is UNIT
    assert UNIT.graph(build("1f1b", pp=2, microbatches=3)).num_transfers == 6
    with pytest.raises(TypeError):
        UNIT.replace(forwards_s=1.0)


def test_costs_that_are_not_given_are_none() -> None:
    numbers = {name: value for name, value in field_defaults(StageCosts).items() if not isinstance(value, str)}
    assert set(numbers.values()) == {0.0}
    assert len(numbers) == 13
    assert stage_costs._LINK_COLUMNS == 5
    assert parameter_defaults(StageCosts.resolved) == {"num_replicas": 1, "num_slices": 1}
    assert parameter_defaults(StageCosts.with_torch_first_stage) == {"num_replicas": 1}
    assert parameter_defaults(StageCosts.plain) == {"num_replicas": 1}
    assert parameter_defaults(StageCosts.on_stages) == {"num_replicas": 1, "in_torch": False}


def test_costs_of_other_dimensions_are_refused_on_stages_too() -> None:
    with pytest.raises(CostsError, match="costs do not match the schedule: forward_s has 3 entries"):
        UNIT.replace(forward_s=[1.0, 2.0, 3.0]).on_stages(**TWO, factor=np.ones(2))
    with pytest.raises(CostsError, match="costs do not match the schedule: fused_s has 3 rows"):
        UNIT.replace(fused_s=np.ones((3, 3))).on_stages(**TWO, factor=np.ones(2))


def test_slow_stages_of_torch_have_both_changes_and_pairs_only_the_factor() -> None:
    costs = UNIT.replace(fused_s=10.0, activation_bytes=4.0, activation_bytes_kept_for_weight=1.0)
    found = costs.on_stages(**TWO, in_torch=True)
    assert (found.fused_s, found.forward_s) == (10.0, 1.0)
    assert np.asarray(found.backward_weight_s).tolist() == [5.0, 3.0]
    both = costs.on_stages(**TWO, factor=np.array([2.0, 3.0]), in_torch=True)
    assert np.asarray(both.forward_s).tolist() == [2.0, 3.0]
    assert np.asarray(both.backward_input_s).tolist() == [0.0, 6.0]
    assert np.asarray(both.backward_weight_s).tolist() == [10.0, 9.0]
    assert np.asarray(both.backward_s).tolist() == [10.0, 15.0]
    assert np.asarray(both.fused_s).tolist() == [[20.0, 20.0], [30.0, 30.0]]
    assert np.asarray(both.activation_bytes_kept_for_weight).tolist() == [4.0, 1.0]
    by_microbatch = UNIT.replace(forward_s=[[1.0, 2.0], [3.0, 4.0]]).on_stages(**TWO, factor=np.array([2.0, 3.0]))
    assert np.asarray(by_microbatch.forward_s).tolist() == [[2.0, 4.0], [9.0, 12.0]]
    whole = StageCosts(forward_s=1.0, backward_s=2.0)
    assert whole.on_stages(**TWO, in_torch=True) is whole


def test_a_pair_has_a_row_per_forward_and_replicas_repeat_it() -> None:
    sizes = {"num_stages": 4, "num_ranks": 2, "num_replicas": 2}
    found = UNIT.replace(fused_s=[[1.0, 2.0], [3.0, 4.0]]).resolved(**sizes).fused_s
    assert np.asarray(found).tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]] * 2
    found = UNIT.replace(fused_s=[5.0, 6.0]).resolved(**sizes).fused_s
    assert np.asarray(found).tolist() == [[5] * 4, [6] * 4] * 2


@pytest.mark.parametrize(
    ("fields", "sizes", "problem"),
    [
        ({"forward_s": [1.0] * 3}, {"num_stages": 4, "num_ranks": 2, "num_replicas": 2},
         "forward_s has 3 entries, but the schedule has 4 stages (give one number, or one per stage or one each of the model's 2)"),
        ({"forward_s": [1.0] * 3}, TWO, "forward_s has 3 entries, but the schedule has 2 stages (give one number, or one per stage)"),
        ({"update_bytes": [1.0] * 3}, TWO, "update_bytes has 3 entries, but the schedule has 2 ranks (give one number, or one per rank)"),
        ({"slice_time_shares": [0.5, 0.5]}, TWO, "slice_time_shares has 2 entries, but the schedule has 1 per microbatch"),
        ({"activation_bytes": [2.0, 3.0], "activation_bytes_kept_for_weight": [2.0, 4.0]}, TWO,
         "activation_bytes_kept_for_weight is 4 on stage 1, more than the 3 activation_bytes it is part of"),
        ({"forward_s": [[1.0, 2.0]], "transfer_s": [[1.0, 2.0, 3.0]]}, TWO, "forward_s has 2 microbatches, but others have 3"),
        ({"forward_s": [[1.0, 2.0]]}, TWO | {"num_microbatches": 5}, "forward_s has 2 microbatches, but the schedule has 5"),
    ],
)  # fmt: skip
def test_each_wrong_dimension_has_its_sentence(fields: dict[str, Any], sizes: dict[str, int], problem: str) -> None:
    with pytest.raises(CostsError) as error:
        UNIT.replace(**fields).resolved(**sizes)
    assert str(error.value) == f"costs do not match the schedule: {problem}"
