"""Step time and span equal the closed forms that the catalogue prints, to 1e-9, with and without transfers."""

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.schedule.catalog import CATALOG

RANKS = (2, 4, 8, 16)
COSTS = [(1.0, 1.0, 1.0), (0.297, 0.294, 0.199), (12.0, 14.0, 8.0), (3.0, 2.5, 0.7)]


def shapes(name, p):
    least, most = CATALOG[name].stages_per_rank
    for v in range(least, (most or 4) + 1):
        for m in (1, p // 2, p, p + 1, 2 * p - 1, 2 * p, 3 * p, 64):
            if CATALOG[name].why_not(pp=p, vpp=v, microbatches=m) is None:
                yield v, m


def timeline_of(name, p, v, m, F, I, W, c):
    costs = StageCosts(
        forward_s=F / v, backward_input_s=I / v, backward_weight_s=W / v, transfer_s=c, activation_bytes=1 / v
    )
    return simulate(build(name, pp=p, vpp=v, microbatches=m), costs)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if not entry.takes("costs")])
@pytest.mark.parametrize("relative_transfer", [0.0, 0.02, 0.2])
def test_bubble_by_step_and_by_span(name, p, relative_transfer):
    entry, num_compared = CATALOG[name], 0
    for v, m in shapes(name, p):
        for F, I, W in COSTS:
            symbols = {"p": p, "v": v, "m": m, "F": F, "I": I, "W": W, "c": relative_transfer * F / v}
            forms = [(entry.bubble, "step_time_s"), (entry.span_bubble, "span_s")]
            exact = [(form, attribute) for form, attribute in forms if form and form.holds(**symbols)]
            for form, attribute in exact:
                timeline = timeline_of(name, p, v, m, F, I, W, symbols["c"])
                expected = m * (F + I + W) + form(**symbols)
                assert getattr(timeline, attribute) == pytest.approx(expected, rel=1e-9), (name, symbols)
                num_compared += 1
    # These forms are for equal costs (the V patterns from p = 3 or 4 on) or, with transfers, for small ones.
    few = {"zbv-fixed", "v-half-fixed", "v-min-fixed", "1f1b-v", "dualpipev", "gis", "gis-h"}
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
        symbols = {"p": p, "v": v, "m": m}
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
        assert graph.num_transfers == 2 * 2 * p * CATALOG[name].messages(p=p, v=v)


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
