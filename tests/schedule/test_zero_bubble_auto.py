"""The cost-aware zero-bubble scheduler: within its cap, never worse than what it starts from, optimal where provable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build, check, simulate
from ppsim.errors import ConfigError
from ppsim.schedule.zero_bubble_auto import zb_auto, zb_heuristic

SCORES = {"span": "span_s", "step": "step_time_s"}
seconds = st.integers(0, 1000).map(lambda x: x / 100)


@st.composite
def problems(draw):
    """Arguments of `zb_auto` with uneven stages, and the same costs for the simulator."""
    p, m = draw(st.integers(1, 6)), draw(st.integers(1, 12))

    def per_stage(values, count=p):
        return draw(st.lists(values, min_size=count, max_size=count))

    activation = per_stage(st.integers(1, 1000))
    kept = [draw(st.integers(0, size)) for size in activation]
    caps = [size * draw(st.integers(4, 8 * p + 4)) // 4 for size in activation]
    timed = {
        "forward_s": per_stage(seconds.map(lambda x: x + 0.01)),
        "backward_input_s": per_stage(seconds),
        "backward_weight_s": per_stage(seconds),
        "transfer_s": per_stage(st.sampled_from([0.0, 0.1, 0.5, 2.0])),
    }
    arguments = {
        "num_ranks": p,
        "num_microbatches": m,
        "activation": activation,
        "activation_kept_for_weight": kept,
        "cap": caps,
        **timed,
    }
    return arguments, StageCosts(**timed, activation_bytes=activation, activation_bytes_kept_for_weight=kept)


@given(problems(), st.sampled_from(list(SCORES)))
@settings(deadline=None)
def test_it_runs_within_its_cap_and_never_behind_the_heuristic(problem, criterion):
    arguments, costs = problem
    ours = zb_auto(**arguments, criterion=criterion)
    published = zb_heuristic(**arguments)
    for table in (ours, published):
        assert check(table).errors == []
        peak = simulate(table, costs).memory.peak_activation_bytes
        assert (peak <= np.array(arguments["cap"])).all()
    best, theirs = (getattr(simulate(table, costs), SCORES[criterion]) for table in (ours, published))
    assert best <= theirs * (1 + 1e-9)


@given(problems(), st.sampled_from(list(SCORES)))
@settings(deadline=None)
def test_it_is_never_worse_than_zb_h1_and_zb_h2_where_the_cap_admits_them(problem, criterion):
    arguments, costs = problem
    for name in ("zb-h1", "zb-h2"):
        theirs = simulate(build(name, pp=arguments["num_ranks"], microbatches=arguments["num_microbatches"]), costs)
        caps = theirs.memory.peak_activation_bytes  # just enough for it
        ours = simulate(zb_auto(**(arguments | {"cap": caps}), criterion=criterion), costs)
        assert getattr(ours, SCORES[criterion]) <= getattr(theirs, SCORES[criterion]) * (1 + 1e-9)
        assert (ours.memory.peak_activation_bytes <= caps).all()


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("costs", [(1, 1, 1, 0), (3, 4, 2, 0), (297, 294, 199, 5), (3, 2.5, 0.7, 0.1)])
def test_with_a_cap_of_p_it_is_optimal_and_equal_to_zb_h1(p, costs):
    # The windows before the first and after the last input gradient on rank 0 bound the idle time of every
    # schedule that holds p microbatches from F to W (W ≤ F + 2c, m > p, W ≥ 2c).
    F, I, W, c = costs
    for m in (p + 1, 2 * p, 4 * p):
        for criterion, score in SCORES.items():
            table = zb_auto(
                num_ranks=p, num_microbatches=m, forward_s=F, backward_input_s=I, backward_weight_s=W,
                transfer_s=c, cap=p, criterion=criterion,
            )  # fmt: skip
            timeline = simulate(
                table,
                StageCosts(forward_s=F, backward_input_s=I, backward_weight_s=W, transfer_s=c, activation_bytes=1),
            )
            assert getattr(timeline, score) == pytest.approx(m * (F + I + W) + (p - 1) * (F + I - W + 4 * c))
            assert timeline.memory.peak_activation_bytes.max() <= p


@given(problems(), st.sampled_from(list(SCORES)))
@settings(deadline=None, max_examples=15)
def test_plain_and_compiled_give_the_same_table(problem, criterion):
    arguments, _ = problem
    tables = [zb_auto(**arguments, criterion=criterion, engine=engine) for engine in ("plain", "compiled")]
    assert tables[0] == tables[1]


def step_times(cap, **seconds):
    costs = StageCosts(**seconds, activation_bytes=1)
    shape = {"num_ranks": 4, "num_microbatches": 12, "cap": cap}
    tables = {"auto": zb_auto(**shape, **seconds), "heuristic": zb_heuristic(**shape, **seconds)}
    tables |= {"zb-h1": build("zb-h1", pp=4, microbatches=12)}
    return {name: simulate(table, costs).step_time_s for name, table in tables.items()}


def test_below_p_activations_it_keeps_the_pipeline_full_where_the_heuristic_does_not():
    for cap in (2, 3):
        step = step_times(cap, forward_s=1, backward_input_s=1, backward_weight_s=0.8, transfer_s=0.05)
        assert step["auto"] < 0.85 * step["heuristic"]


def test_uneven_stages_gain_over_the_heuristic_and_over_zb_h1():
    stages = [1.6, 1.0, 1.0, 1.0]
    step = step_times(
        6, forward_s=stages, backward_input_s=stages, backward_weight_s=[0.64, 0.4, 0.4, 0.4], transfer_s=0.2
    )
    assert step["auto"] < 0.97 * min(step["heuristic"], step["zb-h1"])


def test_no_cap_is_a_cap_of_infinity():
    table = zb_auto(
        num_ranks=3, num_microbatches=5, forward_s=1, backward_input_s=1, backward_weight_s=1, cap=np.inf
    )
    assert check(table).errors == []


@pytest.mark.parametrize("activation", [0, 1])
def test_costs_of_nothing_still_give_a_whole_table(activation):
    table = zb_auto(
        num_ranks=3,
        num_microbatches=5,
        forward_s=0,
        backward_input_s=0,
        backward_weight_s=0,
        activation=activation,
        cap=2,
    )
    assert check(table).errors == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"cap": 0.5}, r"cap of 0.5 on rank 0 holds no microbatch.*\(smallest cap for all ranks: 1\)"),
        ({"cap": [4, 1], "activation": [1, 2]}, r"cap of 1 on rank 1 holds no microbatch: one activation there is 2 .*ranks: 2\)"),
        ({"forward_s": [1, 2, 3]}, "forward_s has 3 entries: give one number, or 2"),
        ({"transfer_s": -1}, "transfer_s holds -1; costs are finite and not negative"),
        ({"activation_kept_for_weight": 2}, "activation_kept_for_weight is 2 on stage 0, more than the 1 activation"),
        ({"criterion": "time"}, "criterion is 'time'; choose one of span, step"),
        ({"num_ranks": 0}, "must be at least 1: got 0 and 4"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_the_nearest_fix(changed, sentence):
    arguments = {
        "num_ranks": 2, "num_microbatches": 4, "forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1, "cap": 2,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=sentence):
        zb_auto(**(arguments | changed))
