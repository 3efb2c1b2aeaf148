"""Tokens on their way to experts: how many copies, against a simulation and measured kernels."""

import random
from dataclasses import replace

import pytest

from benchmarks.collectives import COMBINES, HYBRIDS
from ppsim.machine import collectives
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.collectives import Routing, dispatch_s, distinct_domains
from ppsim.parallel.groups import RankGroup

H100 = load_cluster("dgx-h100")
ROUTING = Routing(tokens=4096, token_bytes=2 * 7168, num_experts=256, experts_per_token=8)


@pytest.mark.parametrize(
    ("domains", "experts", "per_token"), [(2, 8, 2), (4, 256, 8), (8, 64, 6), (32, 128, 8), (1, 8, 2)]
)
def test_the_domains_that_a_tokens_experts_lie_in_are_as_many_as_drawing_them_gives(domains, experts, per_token):
    """n (1 − C(E − E/n, k) / C(E, k)) of uniformly drawn sets of k, within four standard errors of 4000 draws."""
    draw, num_draws, size = random.Random(0), 4000, experts // domains
    counts = [len({one // size for one in draw.sample(range(experts), per_token)}) for _ in range(num_draws)]
    mean = sum(counts) / num_draws
    error = (sum((count - mean) ** 2 for count in counts) / num_draws**2) ** 0.5
    assert distinct_domains(domains, experts, per_token) == pytest.approx(mean, abs=4 * error + 1e-12)


def test_one_expert_a_rank_is_as_many_ranks_as_experts_and_all_of_them_with_all():
    assert distinct_domains(64, 64, 8) == pytest.approx(8)
    assert distinct_domains(16, 64, 64) == 16


@pytest.mark.parametrize("one", COMBINES, ids=str)
def test_deepep_combines_within_8_percent_in_a_node_13_with_few_sms_and_20_across(one):
    within = 0.2 if one.nodes > 1 else 0.13 if one.num_sms < 20 else 0.1 if one.num_sms < 24 else 0.08
    assert one.estimated_s == pytest.approx(one.seconds, rel=within)


@pytest.mark.parametrize(
    ("cluster", "dispatcher", "few", "more", "times"),
    [
        ("dgx-h100", "deepep", 9, 18, 2.0),
        ("dgx-h100", "deepep", 18, 24, 1.0),
        ("dgx-h100", "hybridep", 4, 16, 1.0),
        ("dgx-b200", "deepep", 20, 24, 24 / 20),
        ("dgx-b200", "deepep", 32, 48, 1.0),
        ("dgx-b200", "hybridep", 16, 32, 1.07),
        ("dgx-b200", "hybridep", 32, 128, 1.0),
    ],
)
def test_a_copy_takes_longer_with_fewer_sms_up_to_the_number_that_a_link_needs(
    cluster, dispatcher, few, more, times
):
    group, many = RankGroup("ep", 8, (8, 1)), replace(ROUTING, tokens=1e8)
    took = [dispatch_s(dispatcher, many, group, load_cluster(cluster), num_sms=sms) for sms in (few, more)]
    assert took[0] / took[1] == pytest.approx(times, rel=1e-3)


@pytest.mark.parametrize("one", HYBRIDS, ids=str)
def test_hybridep_takes_what_was_measured_within_11_percent_up_to_36_ranks(one):
    """Of its own tokens a rank sends none: the rate of what it sends falls little as ranks get more."""
    assert [one.estimated_s] * 2 == pytest.approx(list(one.measured_s), rel=0.07 if one.num_sms == 32 else 0.11)


def test_a_narrow_token_takes_hybridep_more_than_its_bytes_do():
    """Of tokens of 7168 in 16 bits four fifths of a copy's time are by bytes, of 1024 two fifths."""
    group, b200 = RankGroup("ep", 8, (8, 1)), load_cluster("dgx-b200")
    wide, narrow = (
        dispatch_s("hybridep", replace(ROUTING, tokens=1e7, token_bytes=2 * width), group, b200)
        for width in (7168, 1024)
    )
    assert narrow / wide == pytest.approx((3.5 + 17.86 / 7) / (3.5 + 17.86), rel=0.01)


def test_hybridep_is_sooner_than_deepep_where_it_was_measured_and_as_soon_elsewhere():
    group, b200 = RankGroup("ep", 8, (8, 1)), load_cluster("dgx-b200")
    deep, hybrid = (dispatch_s(how, ROUTING, group, b200) for how in ("deepep", "hybridep"))
    assert 1.7 < deep / hybrid < 1.9  # of 20 SMs and of 16
    assert dispatch_s("hybridep", ROUTING, group, H100) == dispatch_s("deepep", ROUTING, group, H100)


@pytest.mark.parametrize(("nodes", "measured_ms", "pairs_ms"), [(2, 1.83, 5.9), (4, 3.63, 9.0)])
def test_across_nodes_a_token_for_several_experts_of_one_travels_once(nodes, measured_ms, pairs_ms):
    """Each (token, expert) pair by itself takes two and a half times as long, or more, as DeepEP was measured at."""
    ranks = RankGroup("ep", 8 * nodes, (8, nodes))
    once, each = (1e3 * dispatch_s(how, ROUTING, ranks, H100) for how in ("deepep", "alltoall"))
    assert each == pytest.approx(pairs_ms, rel=0.03)
    assert once == pytest.approx(measured_ms, rel=0.2)


def test_across_nodes_the_bytes_are_those_of_the_expected_nodes():
    """T · bytes · n (1 − …) (n − 1)/n over the adapter; the link inside works meanwhile."""
    inner, outer = H100.tiers
    bare = replace(outer.link, launch_s=0.0, step_s=0.0)
    free = replace(inner.link, launch_s=0.0, step_s=0.0)
    cluster = replace(H100, tiers=(replace(inner, link=free), replace(outer, link=bare)))
    nodes = distinct_domains(4, 256, 8)
    expected = 4096 * 2 * 7168 * nodes * 3 / 4 / bare.achieved_bytes_per_s
    assert dispatch_s("deepep", ROUTING, RankGroup("ep", 32, (8, 4)), cluster) == pytest.approx(expected)


def test_all_tokens_to_all_ranks_is_an_all_gather():
    ranks = RankGroup("ep", 8, (8, 1))
    gathered = collectives.seconds("all-gather", 8 * 4096 * 2 * 7168, ranks, H100)
    assert dispatch_s("allgather", ROUTING, ranks, H100) == gathered
    few = replace(ROUTING, experts_per_token=1)
    assert dispatch_s("allgather", few, ranks, H100) == gathered > dispatch_s("deepep", few, ranks, H100)


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep", "alltoall", "allgather"])
def test_a_rank_with_all_experts_sends_nothing(dispatcher):
    assert dispatch_s(dispatcher, ROUTING, RankGroup("ep", 1, (1, 1)), H100) == 0
