"""Ranks on domains: which link each group and each hop crosses, and factorisations that cannot be."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.base.errors import ConfigError
from ppsim.parallel import layout as layout_module
from ppsim.parallel.groups import group, hop_tiers
from ppsim.parallel.layout import (
    Layout,
    _nearest,
    assumed_devices,
    assumed_replicas,
    fewest_replicas,
    layout_on,
    require_devices,
)
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults

SIZES = st.sampled_from([1, 2, 3, 4, 8])


def by_hand(layout, members, num_devices):
    """For the groups of ranks that differ in `members` only: the most domains that one touches."""
    names = [name for name in layout.order.split("-") if name != "ep"]
    groups = {}
    for rank, reversed_place in enumerate(product(*(range(getattr(layout, name)) for name in reversed(names)))):
        place = dict(zip(reversed(names), reversed_place, strict=True))
        key = tuple(place[name] for name in names if name not in members)
        groups.setdefault(key, set()).add(rank // num_devices)
    return max(len(domains) for domains in groups.values())


@given(
    tp=SIZES,
    cp=SIZES,
    dp=SIZES,
    pp=SIZES,
    order=st.sampled_from(["tp-cp-ep-dp-pp", "pp-tp-cp-ep-dp", "tp-dp-pp-cp-ep"]),
)
def test_a_group_touches_as_many_domains_as_counted_by_hand(tp, cp, dp, pp, order):
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=pp, order=order)
    for name, members in (("tp", ["tp"]), ("cp", ["cp"]), ("dp", ["dp"]), ("pp", ["pp"]), ("dp-cp", ["dp", "cp"])):
        found = group(layout, name, (8, None))
        assert found.extents[1] == by_hand(layout, members, 8)
        assert found.extents[0] * found.extents[1] >= found.num_ranks


def test_by_default_tensor_parallel_ranks_are_neighbours_and_stages_are_far():
    layout = layout_on(64, tp=4, cp=2, pp=4)
    sizes = (8, None)
    assert [group(layout, name, sizes).extents for name in ("tp", "cp", "dp", "pp")] == [
        (4, 1),
        (2, 1),
        (1, 2),
        (1, 4),
    ]
    assert hop_tiers(layout, sizes) == (1, 1, 1, 1)


def test_an_order_with_pp_inside_keeps_hops_in_the_node():
    layout = layout_on(64, tp=2, pp=4, order="tp-pp-cp-ep-dp")
    assert hop_tiers(layout, (8, None)) == (0, 0, 0, 0)
    assert group(layout, "dp", (8, None)).extents == (1, 8)


def test_a_rack_of_72_holds_eight_stages_of_tp_8():
    assert hop_tiers(Layout(tp=8, pp=16), (72, None)) == (*[0] * 8, 1, *[0] * 6, 1)


def test_experts_spread_over_cp_and_dp_of_the_same_tensor_part():
    layout = Layout(tp=2, cp=2, dp=8, ep=8, pp=2)
    assert group(layout, "ep", (8, None)).extents == (4, 2)
    assert group(layout, "expert-dp", (8, None)).num_ranks == 2
    assert group(layout, "dp-cp", (8, None)).num_ranks == 16


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"tp": 8, "pp": 6}, r"tp 8 · cp 1 · pp 6 = 48 does not divide 64 devices \(nearest: pp 4 or 8\)"),
        ({"tp": 3}, r"does not divide 64 devices \(nearest: 63 or 66 devices\)"),
        ({"tp": 8, "pp": 4, "dp": 3}, r"with dp 3 takes 96 devices, but there are 64 \(nearest: dp 2\)"),
        ({"tp": 8, "ep": 3}, r"ep must divide dp · cp: got ep 3 with dp 8 and cp 1 \(nearest: 2 or 4\)"),
        ({"tp": 0}, "tp must be at least 1: got 0"),
        ({"order": "tp-pp"}, r"names tp, cp, ep, dp and pp once each: got 'tp-pp' \(the usual is tp-cp-ep-dp-pp\)"),
        ({"tp": 2, "cp": 2, "ep": 4, "pp": 2, "order": "tp-cp-ep-pp-dp"}, "pp outermost"),
    ],
)  # fmt: skip
def test_an_impossible_factorisation_is_named_with_the_nearest_legal_one(shape, words):
    with pytest.raises(ConfigError, match=words):
        layout_on(64, **shape)


@given(num_devices=st.integers(1, 200), tp=st.integers(1, 16), pp=st.integers(1, 16))
def test_the_pp_that_is_proposed_is_legal(num_devices, tp, pp):
    try:
        layout = layout_on(num_devices, tp=tp, pp=pp)
    except ConfigError as error:
        if "nearest: pp" in str(error):
            for proposed in str(error).split("nearest: pp ")[1].rstrip(")").split(" or "):
                assert layout_on(num_devices, tp=tp, pp=int(proposed)).num_devices == num_devices
    else:
        assert layout.num_devices == num_devices


def test_fewer_ranks_share_an_expert_than_a_layer_where_etp_says_so() -> None:
    """Megatron-LM's expert groups: etp next to each other, ep of those, the rest replicas; stages where they were."""
    layout = Layout(tp=4, cp=1, dp=4, ep=4, etp=1, pp=2)
    assert dict(layout.expert_sizes) == {"tp": 1, "ep": 4, "dp": 4, "pp": 2}
    assert group(layout, "ep", (4, None)).extents == (4, 1)
    assert group(layout, "etp", (4, None)).num_ranks == 1
    usual = Layout(tp=4, dp=4, ep=4, pp=2)
    assert group(usual, "ep", (4, None)).extents == (1, 4)
    assert Layout(tp=4, dp=4, ep=4, etp=4, pp=2).expert_sizes == usual.expert_sizes
    cut = layout.cut(sequence_parallel=True)
    assert (cut.expert_tp, cut.expert_replicas) == (1, group(layout, "expert-dp", (4, None)).num_ranks)


def test_experts_fold_over_tensor_and_context_parallel_ranks_into_a_node() -> None:
    """MoE Parallel Folding (Liu et al. 2025, arXiv 2504.14960, §3.2): ep over tp · cp · dp, here a node's 2 · 2 · 2.

    Unfolded, experts of two tensor parts and their eight ranks lie in two nodes.
    """
    folded = Layout(tp=2, cp=2, dp=8, pp=4, ep=8, etp=1)
    assert folded.num_devices == 128
    assert group(folded, "ep", (8, None)).extents == (8, 1)
    assert group(folded, "expert-dp", (8, None)).extents == (1, 4)
    assert group(folded, "cp", (8, None)).extents == (2, 1)
    assert group(Layout(tp=2, cp=2, dp=8, pp=4, ep=8), "ep", (8, None)).extents == (4, 2)


def test_experts_that_do_not_divide_the_ranks_of_a_stage_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="ep · etp must divide tp · cp · dp: got ep 4 and etp 2 with tp 4, cp 1 and dp 1"
    ):
        Layout(tp=4, ep=4, etp=2)
    with pytest.raises(ConfigError, match="etp must be at least 1: got 0"):
        Layout(tp=4, etp=0)


@pytest.mark.parametrize(
    ("layout", "ep", "biased", "reason"),
    [
        (Layout(tp=2, dp=32), 64, False, "ep 64 does not divide dp 32 · cp 1"),
        (Layout(tp=2, dp=32), 8, False, ""),
        (Layout(tp=2, dp=32), 8, True, "Megatron-LM does not divide experts with biases"),
        (Layout(tp=1, dp=32), 8, True, ""),
        (Layout(tp=2, dp=32), 3, True, ""),  # another error
    ],
)
def test_experts_on_one_tensor_parallel_rank_have_a_reason(
    layout: Layout, ep: int, biased: bool, reason: str
) -> None:
    assert layout.why_single_expert_ranks(ep, biased=biased).startswith(reason)
    assert bool(layout.why_single_expert_ranks(ep, biased=biased)) is bool(reason)


def test_what_is_left_out_in_parallel_layout_has_these_values() -> None:
    assert number_defaults(layout_module) == {
        "Layout": {"tp": 1, "cp": 1, "ep": 1, "dp": 1, "pp": 1},
        "layout_on": {"tp": 1, "cp": 1, "ep": 1, "pp": 1},
        "fewest_replicas": {"tp": 1, "cp": 1, "ep": 1},
        "assumed_devices": {"multiple": 1},
        "assumed_replicas": {"tp": 1, "cp": 1, "ep": 1, "pp": 1, "multiple": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "number", "fewest"),
    [
        ({}, 1, "the fewest possible"),
        ({"tp": 2, "cp": 3, "ep": 4, "pp": 5}, 2 * 3 * 4 * 5, "the fewest for tp 2 · cp 3 · ep 4 · pp 5"),
        ({"tp": 2, "pp": 5, "dp": 7}, 70, "the fewest for tp 2 · pp 5"),
        ({"tp": 4, "ep": 8, "etp": 2}, 16, "the fewest for tp 4 · ep 8"),
        ({"multiple": 8}, 8, "its launcher's default"),
        ({"tp": 8, "multiple": 8}, 8, "its launcher's default"),
        ({"pp": 3, "multiple": 8}, 24, "the fewest for pp 3 in multiples of its launcher's 8"),
        ({"pp": 3, "multiple": 2}, 6, "the fewest for pp 3 in multiples of its launcher's 2"),
    ],
)
def test_the_assumed_number_of_devices_is_the_fewest(sizes: dict[str, int], number: int, fewest: str) -> None:
    assert assumed_devices(**sizes) == f"no number of GPUs is given: {number} assumed, {fewest} (set --gpus)"


def test_replicas_are_the_fewest_for_experts_and_multiples() -> None:
    assert [fewest_replicas(cp=cp, ep=ep) for cp, ep in ((1, 1), (2, 8), (6, 4), (3, 5))] == [1, 4, 2, 5]
    assert [fewest_replicas(tp=tp, cp=3, ep=8, etp=2) for tp in (1, 4)] == [16, 4]
    assert assumed_replicas(tp=2, cp=3, ep=4, pp=5, multiple=8) == 4
    assert assumed_replicas(tp=2, cp=3, ep=2, pp=5, multiple=16) == 8
    assert assumed_replicas(tp=2, ep=4, etp=1, multiple=3) == 6


def test_a_layout_counts_devices_and_lists_coordinates_in_its_order() -> None:
    layout = Layout(tp=2, cp=3, dp=5, pp=7, order="cp-tp-ep-dp-pp")
    assert layout.num_devices == 210
    assert layout.sizes == (("cp", 3), ("tp", 2), ("dp", 5), ("pp", 7))
    experts = Layout(tp=2, cp=3, dp=4, pp=7, ep=6, etp=1)
    assert experts.expert_sizes == (("tp", 1), ("ep", 6), ("dp", 4), ("pp", 7))
    cut = experts.cut(sequence_parallel=False)
    assert cut == ParallelSizes(tp=2, cp=3, dp=4, ep=6, etp=1, sequence_parallel=False)
    found = layout_on(420, tp=2, cp=3, pp=7, ep=5, etp=2, order="tp-ep-cp-dp-pp")
    assert found == Layout(tp=2, cp=3, dp=10, pp=7, ep=5, etp=2, order="tp-ep-cp-dp-pp")
    assert layout_on(42, tp=2, cp=3, pp=7, dp=1).dp == 1
    assert Layout(tp=2, cp=2, dp=3, pp=2, order="tp-cp-ep-pp-dp").num_devices == 24


@pytest.mark.parametrize("name", ["tp", "cp", "ep", "dp", "pp", "etp"])
def test_each_size_is_1_or_more(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be at least 1"):
        Layout(**{name: 0})


def test_there_are_1_to_a_million_devices() -> None:
    for number in (1, 1_000_000):
        require_devices(number)
    for number in (0, 1_000_001):
        with pytest.raises(ConfigError):
            require_devices(number)
    with pytest.raises(ConfigError, match="at least 1 device"):
        layout_on(0)
    with pytest.raises(ConfigError, match="1000001"):
        Layout(dp=1_000_001)


def test_the_nearest_values_are_others() -> None:
    assert _nearest(4, [1, 2, 4, 8]) == "2 or 8"
    assert (_nearest(1, [1, 2]), _nearest(9, [1, 2])) == ("2", "2")
