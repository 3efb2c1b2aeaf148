"""Layers per stage: even, balanced, given."""

from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.base.errors import ConfigError
from ppsim.parallel import layer_partition as layer_partition_module
from ppsim.parallel.layer_partition import (
    AutoSplit,
    MegatronSplit,
    balanced_split,
    even_split,
    given_split,
    layer_split,
    partition,
    require_layers,
    rule_of,
    split_layers,
    why_no_split,
    without_search,
)
from tests.defaults import number_defaults

COUNTS = {"num_layers": st.integers(0, 200), "num_stages": st.integers(1, 64)}
TIME = st.floats(1e-4, 10.0)


def by_megatron(num_layers, pp, vpp, embedding, loss, first, last):
    """Megatron-core 0.16's `get_num_layers_to_build`, restated: layers of (rank, chunk), or None where it asserts."""
    split = []
    for chunk in range(vpp):
        for rank in range(pp):
            if first is not None or last is not None:
                if embedding or loss:
                    return None
                left, stages = num_layers, pp
                for given in (first, last):
                    if given is not None:
                        left, stages = left - given, stages - 1
                if stages > 0 and left % stages:
                    return None
                count = left // stages if stages > 0 else 0
                if rank == 0 and first is not None:
                    count = first
                if rank == pp - 1 and last is not None:
                    count = last
            else:
                if (num_layers + embedding + loss) % pp:
                    return None
                count = (num_layers + embedding + loss) // pp
            if count % vpp:
                return None
            count //= vpp
            count -= embedding and rank == 0 and chunk == 0
            count -= loss and rank == pp - 1 and chunk == vpp - 1
            if count < 0:
                return None
            split.append(int(count))
    return split if sum(split) == num_layers else None


@given(
    num_layers=st.integers(1, 40), pp=st.integers(2, 6), vpp=st.integers(1, 3), embedding=st.booleans(), loss=st.booleans(),
    first=st.none() | st.integers(0, 8), last=st.none() | st.integers(0, 8),
)  # fmt: skip
def test_megatrons_rule_is_megatrons(num_layers, pp, vpp, embedding, loss, first, last):
    """The same layers on every stage, and refused where Megatron-LM asserts; what it does not share, evenly."""
    rule = MegatronSplit(embedding, loss, first, last)
    theirs = by_megatron(num_layers, pp, vpp, embedding, loss, first, last)
    if theirs is not None:
        assert rule.layers_per_stage(num_layers, pp=pp, vpp=vpp) == theirs
    elif rule.is_plain:
        assert rule.layers_per_stage(num_layers, pp=pp, vpp=vpp) == even_split(num_layers, pp * vpp)
        assert "layout" in rule.in_words(num_layers, pp=pp, vpp=vpp)
    else:
        with pytest.raises(ConfigError, match="Megatron-LM"):
            rule.layers_per_stage(num_layers, pp=pp, vpp=vpp)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (MegatronSplit(), "Megatron-LM's rule: even"),
        (MegatronSplit(True, True), "Megatron-LM's rule: even, embedding and loss counted as layers"),
        (MegatronSplit(first=3, last=5), "Megatron-LM's rule: even, 3 on the first rank, 5 on the last rank"),
    ],
)
def test_megatrons_rule_is_said(rule, words):
    assert rule.in_words(32, pp=4, vpp=1) == words


def slowest(split, *, layer_s, embedding_s, head_s):
    stages = [layers * layer_s for layers in split]
    stages[0] += embedding_s
    stages[-1] += head_s
    return max(stages)


@given(**COUNTS)
def test_an_even_split_has_all_layers_and_stages_differ_by_one_at_most(num_layers, num_stages):
    split = even_split(num_layers, num_stages)
    assert len(split) == num_stages
    assert sum(split) == num_layers
    assert max(split) - min(split) <= 1


@given(**COUNTS)
def test_in_an_even_split_the_ends_hold_no_more_than_any_other_stage_where_they_can(num_layers, num_stages):
    split = even_split(num_layers, num_stages)
    if (num_layers % num_stages) <= num_stages - 2:
        assert split[0] == split[-1] == min(split)


@given(**COUNTS, layer_s=TIME, embedding_s=TIME, head_s=TIME)
def test_a_balanced_split_has_all_layers_and_is_never_slower_than_the_even_one(
    num_layers, num_stages, layer_s, embedding_s, head_s
):
    times = {"layer_s": layer_s, "embedding_s": embedding_s, "head_s": head_s}
    split = balanced_split(num_layers, num_stages, **times)
    assert len(split) == num_stages
    assert sum(split) == num_layers
    assert slowest(split, **times) <= slowest(even_split(num_layers, num_stages), **times) + 1e-9


@given(
    num_layers=st.integers(0, 6), num_stages=st.integers(1, 4), layer_s=TIME, embedding_s=TIME, head_s=TIME
)  # fmt: skip
def test_no_split_at_all_is_faster_than_the_balanced_one(num_layers, num_stages, layer_s, embedding_s, head_s):
    times = {"layer_s": layer_s, "embedding_s": embedding_s, "head_s": head_s}
    best = min(
        slowest(split, **times)
        for split in product(range(num_layers + 1), repeat=num_stages)
        if sum(split) == num_layers
    )
    assert slowest(balanced_split(num_layers, num_stages, **times), **times) == pytest.approx(best)


@given(num_stages=st.integers(2, 32), more=st.integers(0, 40), layer_s=TIME, embedding_s=TIME, head_s=TIME)
def test_every_inner_stage_gets_a_layer_where_there_are_enough(num_stages, more, layer_s, embedding_s, head_s):
    num_layers = num_stages - 2 + more
    times = {"layer_s": layer_s, "embedding_s": embedding_s, "head_s": head_s}
    for name, split in (
        ("auto", balanced_split(num_layers, num_stages, **times)),
        ("even", even_split(num_layers, num_stages)),
    ):
        assert why_no_split(name, num_layers, num_stages) is None
        assert all(split[1:-1])


def test_fewer_layers_than_inner_stages_are_refused():
    assert why_no_split("auto", 29, 32) == "29 layers are too few for 32 stages: some would hold nothing"
    assert why_no_split("auto", 30, 32) is None
    assert why_no_split([2, 0, 2], 4, 3) is None
    assert why_no_split([0, 4, 0], 4, 3) is None


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ([3, 3], "the split has 2 entries, but there are 3 stages"),
        ([3, 3, 3], "the split has 9 layers in all, but the model has 8"),
        ([9, -3, 2], "the split holds -3"),
    ],
)
def test_a_given_split_must_have_an_entry_a_stage_and_all_layers(split, sentence):
    with pytest.raises(ConfigError, match=sentence):
        given_split(split, 8, 3)


def test_a_given_split_is_taken_as_it_is():
    assert given_split((1, 4, 3), 8, 3) == [1, 4, 3]


def every_partition(costs, num_stages):
    """What each stage of every split into stages that are not empty takes."""
    for cuts in combinations(range(1, len(costs)), num_stages - 1):
        yield [costs[start:end] for start, end in pairwise((0, *cuts, len(costs)))]


@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=9), data=st.data())
def test_a_partition_is_as_good_as_the_best_of_all_in_its_slowest_stage_and_then_in_evenness(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    split = partition(costs, num_stages)
    ends = [0, *(sum(split[: stage + 1]) for stage in range(num_stages))]
    stages = [costs[start:end] for start, end in pairwise(ends)]
    assert sum(split) == len(costs)
    assert min(split) >= 1
    times = [[sum(stage) for stage in stages] for stages in every_partition(costs, num_stages)]
    best = min((max(stage_times), sum(time**2 for time in stage_times)) for stage_times in times)
    found = [sum(stage) for stage in stages]
    assert (max(found), sum(time**2 for time in found)) == best


def test_equal_sums_of_costs_that_are_rounded_to_ticks_are_equal() -> None:
    """Both 32 + 32 and 24 + 40 are 64, but not in 2**30 ticks of 179."""
    assert partition([32, 32, 12, 24, 40, 39], 4) == [2, 2, 1, 1]


@given(costs=st.lists(TIME, min_size=1, max_size=9), data=st.data())
def test_a_partition_of_any_times_is_as_fast_as_the_best(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    split, first, slowest_stage = partition(costs, num_stages), 0, 0.0
    for items in split:
        slowest_stage, first = max(slowest_stage, sum(costs[first : first + items])), first + items
    best = min(max(map(sum, stages)) for stages in every_partition(costs, num_stages))
    assert slowest_stage == pytest.approx(best, rel=1e-7)  # times are rounded to 2**-30 of their sum


@given(num_layers=st.integers(1, 60), num_stages=st.integers(2, 16), layer_s=TIME, embedding_s=TIME, head_s=TIME)
def test_layers_that_are_alike_are_split_as_fast_as_the_split_for_equal_layers(
    num_layers, num_stages, layer_s, embedding_s, head_s
):
    if num_layers < num_stages - 2:
        return
    ends = {"embedding_s": embedding_s, "head_s": head_s}
    equal = balanced_split(num_layers, num_stages, layer_s=layer_s, **ends)
    if 0 in equal[1:-1]:
        return
    general = layer_split([layer_s] * num_layers, num_stages, **ends)
    assert slowest(general, layer_s=layer_s, **ends) == pytest.approx(
        slowest(equal, layer_s=layer_s, **ends), rel=1e-7
    )


@pytest.mark.parametrize(("num_layers", "num_stages"), [(32, 8), (61, 16), (80, 32)])
@pytest.mark.parametrize("ends", [(0.3, 0.8), (0.1, 2.3), (1.0, 1.0)])
def test_rounding_does_not_move_layers_between_equally_good_splits(num_layers, num_stages, ends):
    """Times that differ in their last bits: as from a sum in another order."""
    splits = {
        tuple(
            layer_split([layer_s] * num_layers, num_stages, embedding_s=ends[0] * layer_s, head_s=ends[1] * layer_s)
        )
        for layer_s in np.nextafter(0.37, [0.0, 0.37, 1.0])
    }
    assert len(splits) == 1


def test_a_heavy_head_and_prediction_of_further_tokens_stand_alone():
    """DeepSeek-V3's chain: light dense layers first, a prediction layer and the head as heavy as several layers."""
    split = layer_split([0.4] * 3 + [1.0] * 13, 8, embedding_s=0.1, head_s=1.2, mtp_s=1.3)
    assert sum(split) == 16
    assert split[-1] == 0
    assert split[0] > split[1]
    assert layer_split([1.0] * 5, 1, embedding_s=1.0, head_s=1.0) == [5]


@pytest.mark.parametrize(
    ("costs", "num_stages", "sentence"),
    [
        ([1.0, 2.0], 3, "2 items are too few for 3 stages"),
        ([1.0], 0, "at least 1 stage: got 0"),
        ([1.0, -2.0], 1, "finite and 0 or more: got [1.0, -2.0]"),
        ([1.0, float("nan")], 1, "finite and 0 or more"),
        ([1.0, float("inf")], 1, "finite and 0 or more"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(costs, num_stages, sentence):
    with pytest.raises(ConfigError) as caught:
        partition(costs, num_stages)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("num_layers", "split"), [(9, [2, 3, 2, 2]), (10, [2, 3, 3, 2]), (11, [3, 3, 3, 2]), (12, [3, 3, 3, 3])]
)
def test_of_stages_that_are_as_fast_the_middle_and_then_the_first_get_the_next_layer(num_layers, split):
    assert balanced_split(num_layers, 4, layer_s=1.0, embedding_s=0.0, head_s=0.0) == split


def test_what_is_left_out_in_parallel_layer_partition_has_these_values() -> None:
    assert number_defaults(layer_partition_module) == {
        "MegatronSplit": {"counts_embedding": False, "counts_loss": False},
        "layer_split": {"mtp_s": 0.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "layers", "pp", "vpp", "stages"),
    [
        ({}, 24, 3, 2, [4] * 6),
        ({}, 20, 3, 2, [4, 4, 3, 3, 3, 3]),
        ({"counts_embedding": True}, 23, 3, 2, [3, 4, 4, 4, 4, 4]),
        ({"counts_loss": True}, 23, 3, 2, [4, 4, 4, 4, 4, 3]),
        ({"first": 4}, 24, 3, 2, [2, 5, 5, 2, 5, 5]),
        ({"last": 2}, 22, 3, 2, [5, 5, 1, 5, 5, 1]),
        ({"first": 6, "last": 2}, 20, 3, 2, [3, 6, 1, 3, 6, 1]),
        ({"first": 6, "last": 4}, 10, 2, 2, [3, 2, 3, 2]),
    ],
)
def test_megatrons_rule_gives_these_layers(
    rule: dict[str, Any], layers: int, pp: int, vpp: int, stages: list[int]
) -> None:
    found = MegatronSplit(**rule).layers_per_stage(layers, pp=pp, vpp=vpp)
    if rule:
        assert found == stages
    else:
        assert sorted(found) == sorted(stages)
    assert sum(found) == layers


@pytest.mark.parametrize(
    ("rule", "layers", "pp", "vpp", "text"),
    [
        ({"counts_loss": True, "first": 4}, 24, 3, 2, "not both"),
        ({"counts_embedding": True, "last": 4}, 24, 3, 2, "not both"),
        ({"counts_loss": True}, 24, 3, 1, "on each of 3 ranks: 25 are left for them .nearest: 23 or 26 layers"),
        ({"first": 4}, 25, 3, 1, "on each of 2 ranks: 21 are left for them .nearest: 24 or 26 layers"),
        ({"first": 20, "last": 8}, 24, 3, 1, "-4 are left"),
        ({"first": 6, "last": 4}, 12, 2, 1, "on each of 0 ranks: 2 are left"),
        ({"first": 3}, 13, 3, 2, "got 3 on rank 0 with vpp 2"),
        ({"last": 4}, 14, 3, 2, "got 5 on rank 0 with vpp 2"),
    ],
)
def test_layers_that_megatrons_rule_cannot_divide_are_refused(
    rule: dict[str, Any], layers: int, pp: int, vpp: int, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        MegatronSplit(**rule).layers_per_stage(layers, pp=pp, vpp=vpp)


def test_a_split_is_named_after_its_rule() -> None:
    assert [rule_of(split, 24, pp=3, vpp=2) for split in ("auto", "even", AutoSplit((12, 12)), [12, 12])] == [
        "auto", "even", "auto", "as given",
    ]  # fmt: skip
    assert [MegatronSplit(**rule).in_words(24, pp=3, vpp=2) for rule in (
        {}, {"counts_embedding": True}, {"counts_embedding": True, "counts_loss": True}, {"first": 4, "last": 2},
    )] == [
        "Megatron-LM's rule: even", "Megatron-LM's rule: even, embedding counted as layers",
        "Megatron-LM's rule: even, embedding and loss counted as layers",
        "Megatron-LM's rule: even, 4 on the first rank, 2 on the last rank",
    ]  # fmt: skip
    assert MegatronSplit().in_words(25, pp=3, vpp=2).startswith("even; ")
    assert [without_search(split) for split in ("auto", "even", "balanced")] == ["balanced", "even", "balanced"]


def test_a_split_is_even_balanced_given_or_by_megatrons_rule() -> None:
    def split(kind: Any, layers: int = 10, stages: int = 4) -> list[int]:
        return split_layers(kind, layers, stages, pp=2, balanced=lambda: [7, 1, 1, 1])

    assert (split("auto"), split("balanced")) == ([7, 1, 1, 1], [7, 1, 1, 1])
    assert (sorted(split("even")), split([0, 1, 4, 5]), split(["Et", "tt", "ttt", "ttttL"])) == (
        [2, 2, 3, 3], [0, 1, 4, 5], [1, 2, 3, 4],
    )  # fmt: skip
    assert split(MegatronSplit(first=4), 12) == [2, 4, 2, 4]
    assert sum(split("even", 2)) == 2
    for wrong in ("even", "auto", MegatronSplit()):
        with pytest.raises(ConfigError, match="1 layers are too few for 4 stages"):
            split(wrong, 1)
    for counts, text in (
        ([10], "has 1 entries, but there are 4 stages"), ([11, 0, 0, -1], "holds -1"),
        ([3, 3, 3, 2], "has 11 layers in all, but the model has 10"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=text):
            split(counts)
    with pytest.raises(ConfigError, match="has 3 entries, but there are 4"):
        given_split([3, 3, 4], 10, 4)
    assert layer_split([3.0] * 7, 1, embedding_s=1.0, head_s=1.0) == [7]
    # 4 + 2 · 3 = 10, 4 · 3 = 12, 3 + 7 + 2 = 12
    assert layer_split([3.0] * 7, 3, embedding_s=4.0, head_s=7.0, mtp_s=2.0) == [2, 4, 1]
    assert balanced_split(7, 3, layer_s=3.0, embedding_s=4.0, head_s=7.0) == [2, 4, 1]
    for costs, number in (([1.0], 2), ([1.0, -1.0], 1), ([1.0, float("inf")], 1), ([1.0], 0)):
        with pytest.raises(ConfigError):
            partition(costs, number)
    assert (partition([0.0, 0.0], 2), partition([1.0, 2.0], 2)) == ([1, 1], [1, 1])


def test_a_model_has_1_to_10_000_layers() -> None:
    require_layers(1)
    require_layers(10_000)
    with pytest.raises(ConfigError, match="num_layers must be at least 1: got 0"):
        require_layers(0)
    with pytest.raises(ConfigError, match="--layers must be at most 10,000: got 10001"):
        require_layers(10_001, "--layers")
