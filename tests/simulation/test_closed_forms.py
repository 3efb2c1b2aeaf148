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
            yield v, m


def timeline_of(name, p, v, m, F, I, W, c):
    costs = StageCosts(
        forward_s=F / v, backward_input_s=I / v, backward_weight_s=W / v, transfer_s=c, activation_bytes=1 / v
    )
    return simulate(build(name, pp=p, vpp=v, microbatches=m), costs)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", CATALOG)
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
    assert num_compared > 0 or (name == "zbv" and relative_transfer > 0)


@pytest.mark.parametrize(
    ("name", "closed_form"),
    [
        ("gpipe", lambda p, m, v, F, I, W: (m + p - 1) * (F + I + W)),
        ("1f1b", lambda p, m, v, F, I, W: (m + p - 1) * (F + I + W)),
        ("interleaved-1f1b", lambda p, m, v, F, I, W: (m + (p - 1) / v) * (F + I + W)),
        ("zb-h1", lambda p, m, v, F, I, W: m * (F + I + W) + (p - 1) * (F + I - W)),
    ],
)
@pytest.mark.parametrize("p", RANKS)
def test_step_time_by_the_papers_formula_written_out_again(name, closed_form, p):
    v = 2 if name == "interleaved-1f1b" else 1
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
            assert timeline.memory.peak_activation_bytes.max() == pytest.approx(peak(**symbols)), symbols


@pytest.mark.parametrize("name", CATALOG)
def test_messages_per_microbatch_and_direction(name):
    for p in RANKS:
        v = CATALOG[name].stages_per_rank[0]
        graph = timeline_of(name, p, v, p, 1.0, 1.0, 1.0, 0.0).graph
        assert graph.num_transfers == 2 * p * CATALOG[name].messages(p=p, v=v)


def test_1f1b_pays_for_latency_with_every_round_and_gpipe_does_not():
    # SCHEDULES: with c > 0 GPipe beats 1F1B on time, since p microbatches in flight do not cover the round trip.
    p, m, c = 8, 32, 0.1
    step = {name: timeline_of(name, p, 1, m, 1, 1, 1, c).step_time_s for name in ("gpipe", "1f1b")}
    assert step["1f1b"] - step["gpipe"] == pytest.approx((2 * (p - 1) * m / p + 2 * (p - 2) - 2 * (p - 1)) * c)
