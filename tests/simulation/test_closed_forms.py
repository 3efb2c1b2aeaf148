"""Step time and span equal the closed forms that the catalogue prints, to 1e-9, with and without transfers."""

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.catalog.build import CATALOG

RANKS = (2, 4, 8, 16)
COSTS = [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (0.297, 0.294, 0.199), (12.0, 14.0, 8.0), (3.0, 2.5, 0.7)]


def shapes(name, p):
    least, most = CATALOG[name].stages_per_rank
    for v in range(least, (most or 4) + 1):
        for m in (1, p // 2, p, p + 1, 2 * p - 1, 2 * p, 3 * p, 64):
            if CATALOG[name].why_not(pp=p, vpp=v, microbatches=m) is None:
                yield v, m


def timeline_of(name, p, v, m, F, I, W, c, k=None, fused_s=None):
    """F, I, W are those of a rank: of all its stages that a microbatch visits."""
    u = v / CATALOG[name].num_replicas
    costs = StageCosts(
        forward_s=F / u, backward_input_s=I / u, backward_weight_s=W / u, transfer_s=c, activation_bytes=1 / u,
        fused_s=fused_s,
    )  # fmt: skip
    return simulate(build(name, pp=p, vpp=v, microbatches=m, num_slices=k), costs)


def symbols_of(name, p, v, m, F=1.0, I=1.0, W=1.0, c=0.0):
    costs = {"F": F, "I": I, "W": W, "FB": F + I + W, "c": c}
    return {"p": p, "v": v, "m": m, "k": CATALOG[name].num_slices, **costs}


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if not entry.takes("costs")])
@pytest.mark.parametrize("relative_transfer", [0.0, 0.02, 0.2])
def test_bubble_by_step_and_by_span(name, p, relative_transfer):
    entry, num_compared = CATALOG[name], 0
    for v, m in shapes(name, p):
        for F, I, W in COSTS:
            symbols = symbols_of(name, p, v, m, F, I, W, relative_transfer * F / v)
            forms = [(entry.bubble, "step_time_s"), (entry.span_bubble, "span_s")]
            exact = [(form, attribute) for form, attribute in forms if form and form.holds(**symbols)]
            for form, attribute in exact:
                timeline = timeline_of(name, p, v, m, F, I, W, symbols["c"])
                expected = m * (F + I + W) + form(**symbols)
                assert getattr(timeline, attribute) == pytest.approx(expected, rel=1e-9), (name, symbols)
                num_compared += 1
    # These forms are for equal costs (the V patterns from p = 3 or 4 on) or, with transfers, for small ones.
    few = {
        "zbv-fixed", "v-half-fixed", "v-min-fixed", "1f1b-v", "dualpipev", "gis", "gis-h", "dualpipe", "chimera",
        "hanayo", "seq1f1b",
    }  # fmt: skip
    assert num_compared > 0 or (name in few and (relative_transfer > 0 or p == 2))


@pytest.mark.parametrize(
    ("name", "closed_form"),
    [
        ("gpipe", lambda p, m, v, F, I, W: (m + p - 1) * (F + I + W)),
        ("1f1b", lambda p, m, v, F, I, W: (m + p - 1) * (F + I + W)),
        ("eager-1f1b", lambda p, m, v, F, I, W: (m + p - 1) * (F + I + W)),
        ("looped-bfs", lambda p, m, v, F, I, W: (m + (p - 1) / v) * (F + I + W)),
        ("interleaved-zb", lambda p, m, v, F, I, W: m * (F + I + W) + (p - 1) * (F + I - W) / v),
        ("interleaved-1f1b", lambda p, m, v, F, I, W: (m + (p - 1) / v) * (F + I + W)),
        ("zb-h1", lambda p, m, v, F, I, W: m * (F + I + W) + (p - 1) * (F + I - W)),
    ],
)
@pytest.mark.parametrize("p", RANKS)
def test_step_time_by_the_papers_formula_written_out_again(name, closed_form, p):
    v = CATALOG[name].stages_per_rank[0]
    for m in (p, 2 * p, 4 * p):
        for F, I, W in COSTS:
            expected = closed_form(p, m, v, F, I, W)
            assert timeline_of(name, p, v, m, F, I, W, 0.0).step_time_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("p", RANKS)
def test_fewer_microbatches_than_ranks_take_what_appendix_h_says(p):
    F, I, W = 3.0, 2.5, 2.0
    for m in range(1, p + 1):
        assert timeline_of("1f1b", p, 1, m, F, I, W, 0).step_time_s == pytest.approx((m + p - 1) * (F + I + W))
        assert timeline_of("zb-h1", p, 1, m, F, I, W, 0).step_time_s == pytest.approx((m + p - 1) * (F + I) + W)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", CATALOG)
def test_peak_activations(name, p):
    for v, m in shapes(name, p):
        symbols = symbols_of(name, p, v, m)
        peak = CATALOG[name].peak_activations
        if peak.holds(**symbols):
            timeline = timeline_of(name, p, v, m, 1.0, 1.0, 1.0, 0.0)
            found, expected = timeline.memory.peak_activation_bytes.max(), peak(**symbols)
            assert found == pytest.approx(expected) or (peak.at_most and found < expected), symbols


@pytest.mark.parametrize("name", CATALOG)
def test_messages_per_microbatch_and_direction(name):
    for p in RANKS:
        v = CATALOG[name].stages_per_rank[0]
        graph = timeline_of(name, p, v, 2 * p, 1.0, 1.0, 1.0, 0.0).graph
        assert graph.num_transfers == 2 * 2 * p * CATALOG[name].messages(**symbols_of(name, p, v, 2 * p))


def test_1f1b_pays_for_latency_with_every_round_and_gpipe_does_not():
    # SCHEDULES: with c > 0 GPipe beats 1F1B on time, since p microbatches in flight do not cover the round trip.
    p, m, c = 8, 32, 0.1
    step = {name: timeline_of(name, p, 1, m, 1, 1, 1, c).step_time_s for name in ("gpipe", "1f1b", "eager-1f1b")}
    assert step["eager-1f1b"] == pytest.approx(step["gpipe"])
    assert step["1f1b"] - step["gpipe"] == pytest.approx((2 * (p - 1) * m / p + 2 * (p - 2) - 2 * (p - 1)) * c)


@pytest.mark.parametrize("name", ["v-half-fixed", "v-min-fixed", "1f1b-v"])
def test_peaks_and_bubbles_of_the_v_patterns_for_every_number_of_ranks(name):
    # Which cells collide depends on p mod 2 and p mod 3; the ranks above are powers of two.
    entry, num_compared = CATALOG[name], 0
    for p in range(1, 20):
        for m in (1, 2, 3, p, p + 1, 2 * p, 4 * p):
            symbols = {"p": p, "v": 2, "m": m, "F": 2.0, "I": 2.0, "W": 2.0, "c": 0.0}
            timeline = timeline_of(name, p, 2, m, 2.0, 2.0, 2.0, 0.0)
            assert timeline.memory.peak_activation_bytes.max() == entry.peak_activations(p=p, m=m), (p, m)
            if entry.bubble.holds(**symbols):
                assert timeline.step_time_s - 6 * m == pytest.approx(entry.bubble(**symbols)), (p, m)
                num_compared += 1
    assert num_compared > 30


@pytest.mark.parametrize("p", [4, 8, 9])
@pytest.mark.parametrize(
    ("F", "I", "W"), [*COSTS, (1.0, 2.0, 1.0), (4.0, 1.0, 1.0), (1.0, 3.0, 0.5), (2.0, 2.0, 0.5)]
)
def test_a_further_microbatch_costs_the_fixed_patterns_more_than_its_work(p, F, I, W):
    """A repeat of 6 cells is as long as its longest chain of passes; for V-Min that is six times the longest pass."""
    B, work = I + W, F + I + W
    slopes = {
        "v-min-fixed": 3 * max(F, I, W),
        "v-half-fixed": work + max(0, I - F - W / 2, F - I - W / 2),
        "1f1b-v": max(F + B, 3 * F) if p % 3 else max(F + B, 2 * F + B / 2),
    }
    for name, slope in slopes.items():
        steps = [timeline_of(name, p, 2, m, F, I, W, 0.0).step_time_s for m in (3 * p, 4 * p, 5 * p)]
        assert steps[1] - steps[0] == pytest.approx(p * slope)
        assert steps[2] - steps[1] == pytest.approx(p * slope)


@pytest.mark.parametrize("p", RANKS)
def test_dualpipev_idles_as_its_authors_say_where_f_equals_i(p):
    for F, I, W in ((1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (10.0, 10.0, 9.0)):
        pair, B = F + I + W, I + W
        bubble = (p - 1) * (pair + B - 3 * W) / 2  # README of DualPipe; B its full backward
        for m in (2 * p, 2 * p + 1, 5 * p):
            timeline = timeline_of("dualpipev", p, 2, m, F, I, W, 0.0)
            assert timeline.step_time_s - m * pair == pytest.approx(bubble)
            assert timeline.memory.peak_activation_bytes.max() == p + 1 / 2


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize(
    ("F", "I", "W", "pair"),
    [
        (1, 1, 1, 2),
        (1, 1, 1, 3),
        (1, 1, 1, 2.5),
        (2, 2, 1, 4),
        (2, 2, 1, 5),
        (10, 10, 9, 24),
        (3, 3, 1, 4),
        (3, 3, 1, 6.5),
    ],
)
def test_dualpipe_idles_as_its_table_says_where_f_equals_i(p, F, I, W, pair):
    """README of DualPipe: (PP/2 − 1)(F&B + B − 3W), B its full backward; peak PP + 1; busy time counts the pair."""
    bubble = (p / 2 - 1) * (pair + (I + W) - 3 * W)
    assert CATALOG["dualpipe"].bubble(p=p, F=F, I=I, W=W, FB=pair) == pytest.approx(bubble)
    for m in (2 * p, 2 * p + 2, 4 * p):
        timeline = timeline_of("dualpipe", p, 2, m, F, I, W, 0.0, fused_s=pair)
        idle = timeline.step_time_s - timeline.busy_s
        assert idle.max() == pytest.approx(bubble)
        assert timeline.bubble_ratio >= 0
        assert (timeline.memory.peak_activation_bytes == p + 1).all()


def test_dualpipe_idles_less_than_its_table_where_i_exceeds_f():
    timeline = timeline_of("dualpipe", 8, 2, 16, 10, 11, 9, 0.0, fused_s=24)
    assert (timeline.step_time_s - timeline.busy_s).max() == 48  # SCHEDULES; the formula says 51
    assert CATALOG["dualpipe"].bubble(p=8, F=10, I=11, W=9, FB=24) == 51


def test_idle_time_differs_between_dualpipe_ranks_where_pairs_overlap():
    timeline = timeline_of("dualpipe", 8, 2, 16, 1, 1, 1, 0.0, fused_s=2)
    idle = timeline.step_time_s - timeline.busy_s
    assert (idle.min(), idle.max()) == (1, 3)


@pytest.mark.parametrize("p", [4, 6, 8, 16])
def test_chimera_bubble_ratios_and_memory_are_the_papers(p):
    """(D − 2)/(2N + D − 2) for F = B and (D − 2)/(3N/2 + D − 2) for B = 2F; D/2 + 1 … D activations, for N = D."""
    for m in (p, 2 * p, 4 * p):
        assert timeline_of("chimera", p, 2, m, 2, 1, 1, 0.0).bubble_ratio == pytest.approx(
            (p - 2) / (2 * m + p - 2)
        )
    timeline = timeline_of("chimera", p, 2, p, 1, 1, 1, 0.0)
    assert timeline.bubble_ratio == pytest.approx((p - 2) / (3 * p / 2 + p - 2))
    peaks = timeline.memory.peak_activation_bytes
    assert (peaks.min(), peaks.max()) == (p / 2 + 1, p)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("w", [1, 2, 3])
def test_each_wave_of_hanayo_shortens_the_bubble(p, w):
    for m in (p, 2 * p, 4 * p):
        timeline = timeline_of("hanayo", p, 2 * w, m, 4, 2, 2, 0.0)
        assert timeline.step_time_s == pytest.approx(m * 8 + (p - 1) * 8 / (2 * w))


def test_hanayo_idles_longer_where_a_backward_takes_two_forwards():
    assert timeline_of("hanayo", 8, 2, 8, 1, 1, 1, 0.0).bubble_ratio == pytest.approx(0.368, abs=5e-4)  # SCHEDULES


@pytest.mark.parametrize("p", [1, *RANKS])
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_seq1f1b_has_a_kth_of_the_bubble_and_k_plus_p_minus_1_kths_of_a_microbatch(p, k):
    for m in (1, p, 3 * p):
        timeline = timeline_of("seq1f1b", p, 1, m, 3, 2, 2, 0.0, k=k)
        assert timeline.step_time_s == pytest.approx(m * 7 + (p - 1) * 7 / k)
        peak = min(k + p - 1, m * k) / k
        assert timeline.memory.peak_activation_bytes[0] == pytest.approx(peak)
        assert timeline.memory.peak_activation_bytes.max() == pytest.approx(peak)


def test_seq1f1b_of_one_slice_is_1f1b():
    assert build("seq1f1b", pp=4, microbatches=6, num_slices=1) == build("1f1b", pp=4, microbatches=6)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-auto"])
def test_with_no_more_microbatches_than_ranks_a_step_is_the_way_there_and_back(name):
    # ZB paper, App. H: (m + p − 1)(F + B) with full backwards, (m + p − 1)(F + I) + W with split ones.
    F, I, W = 3.0, 4.0, 2.0
    costs = StageCosts(forward_s=F, backward_input_s=I, backward_weight_s=W)
    for p in (2, 4, 8):
        for m in range(1, p + 1):
            step = simulate(build(name, pp=p, microbatches=m), costs).step_time_s
            turns = m + p - 1
            assert step == (turns * (F + I) + W if CATALOG[name].splits_backward else turns * (F + I + W)), (p, m)


def test_a_message_takes_the_time_of_the_hop_between_its_two_stages():
    """One microbatch goes down three stages and back up: each hop counts twice, the last stage has none."""
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=[10.0, 100.0, 1e6])
    step = simulate(build("gpipe", pp=3, microbatches=1), costs)
    assert step.step_time_s == 3 * 1.0 + 3 * 2.0 + 2 * (10.0 + 100.0)
