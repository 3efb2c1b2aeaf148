"""Groups of ranks on network domains, against groups of ranks that are listed one by one."""

from itertools import product

import pytest

from ppsim.parallel.groups import RankGroup, all_devices, group, hop_tiers, tier_between
from ppsim.parallel.layout import Layout

NODES = (4, None)
RACKS = (2, 8, None)
"""Pairs of GPUs in racks of 8."""


def coordinates(layout: Layout) -> dict[int, dict[str, int]]:
    """Coordinates of each rank, of which the first of `sizes` changes fastest."""
    names, counts = zip(*layout.sizes, strict=True)
    places = product(*(range(count) for count in reversed(counts)))
    return {rank: dict(zip(names, reversed(place), strict=True)) for rank, place in enumerate(places)}


def groups_of(layout: Layout, varying: set[str]) -> list[list[int]]:
    members: dict[tuple[int, ...], list[int]] = {}
    for rank, place in coordinates(layout).items():
        members.setdefault(tuple(index for name, index in place.items() if name not in varying), []).append(rank)
    return list(members.values())


def most_domains(ranks: list[list[int]], size: int) -> int:
    return max(len({rank // size for rank in one}) for one in ranks)


@pytest.mark.parametrize(
    "layout", [Layout(tp=2, cp=2, dp=3, pp=2), Layout(tp=1, cp=3, dp=4, pp=2), Layout(tp=4, dp=6)]
)
@pytest.mark.parametrize("name", ["tp", "cp", "dp", "pp", "dp-cp"])
def test_extents_are_ranks_a_domain_and_domains_of_the_widest_group(layout: Layout, name) -> None:
    ranks = groups_of(layout, set(name.split("-")))
    of_nodes, of_racks = group(layout, name, NODES), group(layout, name, RACKS)
    number, nodes = len(ranks[0]), most_domains(ranks, 4)
    assert of_nodes == RankGroup(name, number, (-(-number // nodes), nodes))
    pairs, racks = most_domains(ranks, 2), most_domains(ranks, 8)
    assert of_racks.extents == (-(-number // pairs), -(-pairs // racks), racks)


def test_the_tier_of_a_group_is_the_outermost_that_it_crosses() -> None:
    assert RankGroup("tp", 1, (1, 1, 1)).tier == 0
    assert RankGroup("tp", 4, (2, 2, 1)).tier == 1
    assert RankGroup("tp", 4, (2, 1, 2)).tier == 2


def test_a_group_splits_into_neighbours_and_their_counterparts() -> None:
    whole = RankGroup("dp", 24, (4, 3, 2))
    inner, outer = whole.instances(2)
    assert (inner, outer) == (RankGroup("dp", 12, (4, 3, 1)), RankGroup("dp", 2, (1, 1, 2)))
    inner, outer = whole.instances(12)
    assert (inner.extents, outer.extents) == ((2, 1, 1), (2, 3, 2))


def test_all_devices_fill_domains() -> None:
    assert all_devices(Layout(tp=4, dp=3), (8, None)) == RankGroup("all", 12, (6, 2))  # two nodes of 6 on average
    assert all_devices(Layout(tp=4, dp=3), (2, 8, None)).extents == (2, 3, 2)


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
@pytest.mark.parametrize("sizes", [NODES, RACKS])
def test_a_hop_has_the_tier_of_the_furthest_of_its_pairs(order: str, sizes: tuple[int | None, ...]) -> None:
    layout = Layout(tp=2, dp=3, pp=4, order=order)
    place_of = coordinates(layout)

    def tier(here: int, there: int) -> int:
        return next(index for index, size in enumerate(sizes) if size is None or here // size == there // size)

    for one, other in product(range(4), repeat=2):
        pairs = [
            (here, there)
            for here, there in product(place_of, repeat=2)
            if place_of[here] | {"pp": other} == place_of[there] and place_of[here]["pp"] == one
        ]
        assert tier_between(layout, sizes, one, other) == max(tier(*pair) for pair in pairs)
    assert hop_tiers(layout, sizes) == tuple(tier_between(layout, sizes, one, (one + 1) % 4) for one in range(4))


def test_domains_beyond_the_outermost_count_in_its_extent() -> None:
    """16 ranks fill 4 domains of 4, and 2 domains of 8, which no tier connects."""
    assert group(Layout(dp=16), "dp", (4, 8)) == RankGroup("dp", 16, (4, 2 * 2))
    assert group(Layout(dp=8), "dp", (4, 8)).extents == (4, 2)


def test_groups_of_experts_have_their_own_coordinates() -> None:
    """tp 4 · dp 6 = 24 ranks hold etp 2 · ep 3 · 4 replicas of an expert; ranks of an expert are neighbours."""
    layout = Layout(tp=4, dp=6, ep=3, etp=2)
    assert group(layout, "etp", NODES) == RankGroup("etp", 2, (2, 1))
    assert group(layout, "ep", NODES) == RankGroup("ep", 3, (2, 2))
    assert group(layout, "expert-dp", NODES) == RankGroup("expert-dp", 4, (1, 4))
