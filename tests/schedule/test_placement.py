"""Stage → rank maps."""

from hypothesis import given
from hypothesis import strategies as st

from ppsim.schedule.placement import loop, style_of, v_shape

shapes = st.tuples(st.integers(2, 9), st.integers(2, 4))


@given(shapes)
def test_a_loop_puts_each_next_stage_on_the_next_rank(shape):
    p, v = shape
    assert [(b - a) % p for a, b in zip(loop(p, p * v), loop(p, p * v)[1:], strict=False)] == [1] * (p * v - 1)
    assert style_of(loop(p, p * v), p) == "loop"


@given(shapes)
def test_a_v_turns_on_the_last_rank_and_ends_on_the_first(shape):
    p, _ = shape
    placement = v_shape(p, 2 * p)
    assert placement[p - 1] == placement[p] == p - 1
    assert all(placement[rank] == placement[2 * p - 1 - rank] == rank for rank in range(p))
    assert style_of(placement, p) == "v"


def test_any_other_map_is_custom():
    assert style_of([0, 0, 1], 2) == "custom"
