"""The inner loop of the search in plain Python: two ranks and microbatches, F 1 s, I 2 s, W 3 s and 0.5 s a hop.

Codes are F 0 and 1, I 2 and 3, W 4 and 5; rank 0 has the even ones.
"""

from collections import Counter

import numpy as np
import pytest

from ppsim.catalog.search import anneal
from ppsim.catalog.search.anneal import DEADLOCK, RepeatedWindow, empty_timing, empty_unrolled, unroll
from ppsim.catalog.search.target import SearchTarget
from tests.fitting import one_chunk

TARGET = SearchTarget(
    one_chunk(
        num_ranks=2, num_microbatches=2, forward_s=1, backward_input_s=2, backward_weight_s=3, transfer_s=0.5,
        activation=2, activation_kept_for_weight=1.5, cap=4,
    )
)  # fmt: skip
PIPELINE = TARGET.pipeline
ORDER = [0, 0, 2, 4, 2, 4, 1, 3, 5, 1, 3, 5]


def codes(*given: int) -> np.ndarray:
    return np.array(given, dtype=np.int32)


def dice(state: int = 1) -> np.ndarray:
    return np.array([state], dtype=np.int64)


def window(*given: int, ahead: tuple[int, ...] = (0,) * 6) -> RepeatedWindow:
    return RepeatedWindow(codes(*given), np.array(ahead, dtype=np.int64))


@pytest.mark.parametrize(
    ("handicap_s", "score_s", "critical"),
    [((0, 0), 16, [5, 4, 10, 9, 8, 7, 6, 0]), ((4, 0), 13.5, [11, 10, 9, 8, 7, 6, 0]), ((2.5, 0), 13.5, [5])],
)
def test_an_order_scores_the_last_end_less_its_handicap_and_its_longest_path_is_followed_back(
    handicap_s: tuple[float, float], score_s: float, critical: list[int]
) -> None:
    timing, path, handicap = empty_timing(PIPELINE), np.zeros(12, dtype=np.int64), np.array(handicap_s, dtype=float)
    assert anneal._criterion(PIPELINE, handicap, codes(*ORDER), timing) == score_s
    assert timing.now_s.tolist() == [16, 13.5]
    assert timing.start_s.tolist() == [0, 1, 5, 7, 11, 13, 1.5, 2.5, 4.5, 7.5, 8.5, 10.5]
    length = anneal._critical_path(PIPELINE, handicap, timing, path)
    assert path[:length].tolist()[: len(critical)] == critical


def test_an_order_that_waits_for_itself_deadlocks() -> None:
    backward_first = [2, 0, 0, 4, 2, 4, *ORDER[6:]]
    assert anneal._criterion(PIPELINE, np.zeros(2), codes(*backward_first), empty_timing(PIPELINE)) == DEADLOCK


def test_numbers_are_those_of_minstd_below_their_limit() -> None:
    state, drawn = dice(), []
    for _ in range(3):
        drawn.append(anneal._drawn(state, 1000))
    assert (drawn, state.tolist()) == ([271, 794, 886], [1291394886])


def test_an_action_moves_along_its_row_and_back_but_not_past_its_own_code() -> None:
    order = codes(*ORDER)
    anneal._move(order, 1, 3)
    assert order.tolist()[:6] == [0, 2, 4, 0, 2, 4]
    anneal._move(order, 3, 1)
    assert order.tolist() == ORDER
    nearest = [anneal._nearest_allowed(order, *move) for move in ((2, 5), (2, 0), (5, 0), (0, 3), (1, 3))]
    assert nearest == [3, 0, 4, 0, 3]


def test_moves_are_of_a_critical_action_the_one_before_it_or_any_of_its_rank_within_reach() -> None:
    """A quarter of the draws each; of the last, half go either way."""
    state, path = dice(7), np.array([8, 0], dtype=np.int64)
    moves = Counter(anneal._drawn_move(PIPELINE, 2, state, codes(*ORDER), path, 1) for _ in range(2000))
    nothing = moves.pop((-1, -1))
    in_row = {(s, t) for s in range(6, 12) for t in range(6, 12) if 1 <= abs(s - t) <= 2}
    assert set(moves) == in_row
    shares = [sum(moves[8, 8 + way * step] for step in (1, 2)) / 2000 for way in (-1, 1)]
    assert shares == pytest.approx([1 / 4 + 1 / 48] * 2, abs=0.03)
    assert sum(moves[7, target] for target in (8, 9)) / 2000 == pytest.approx(1 / 4 + 1 / 48, abs=0.03)
    assert nothing / 2000 == pytest.approx(1 / 4 * (3 + 3) / 24, abs=0.02)


@pytest.mark.parametrize(
    ("row", "move", "least_cap"),
    [
        ((0, 2, 0, 4, 2, 4), (2, 1), 4),  # a forward earlier: 2 + 2
        ((0, 2, 0, 4, 2, 4), (1, 2), 4),  # what frees, later
        ((0, 0, 2, 4, 2, 4), (1, 3), 0),  # a forward later
        ((0, 2, 0, 4, 2, 4), (3, 2), 0),  # what frees, earlier
        ((0, 2, 4, 0, 2, 4), (3, 2), 3.5),  # 2 − 0.5 + 2
    ],
)
def test_a_move_fits_if_the_row_is_within_the_cap_where_it_allocates_earlier_or_frees_later(
    row: tuple[int, ...], move: tuple[int, int], least_cap: float
) -> None:
    assert TARGET.memory.changes.tolist() == [2, 2, -0.5, -0.5, -1.5, -1.5]
    for cap in (least_cap, least_cap - 0.1):
        memory = TARGET.memory._replace(cap=np.array([cap, 99.0]))
        fits = anneal._fits(PIPELINE, memory, codes(*row, *ORDER[6:]), *move)
        assert fits == (cap == least_cap or least_cap == 0)
        other_row = codes(*[code - 1 for code in ORDER[6:]], *[code + 1 for code in row])
        assert anneal._fits(PIPELINE, memory, other_row, *[place + 6 for place in move])


def test_a_window_is_repeated_from_its_first_microbatches_on() -> None:
    unrolled = empty_unrolled(PIPELINE)
    unroll(PIPELINE, window(0, 2, 4, 1, 3, 5, ahead=(0, 0, -1, 0, -1, 0)), unrolled)
    assert unrolled.order.tolist() == ORDER
    assert unrolled.origin.tolist() == [0, 0, 1, 2, 1, 2, 3, 4, 5, 3, 4, 5]
    length = anneal._critical_origins(PIPELINE, np.zeros(2), unrolled._replace(timing=_timed(unrolled.order)))
    assert unrolled.path[:length].tolist() == [2, 1, 4, 3, 5, 4, 3, 0]


def _timed(order: np.ndarray) -> anneal.Timing:
    timing = empty_timing(PIPELINE)
    anneal._criterion(PIPELINE, np.zeros(2), order, timing)
    return timing


@pytest.mark.parametrize(
    ("place", "steps", "moved", "ahead"),
    [
        (0, 1, [2, 0, 4], [0, 0, 0]),
        (0, -1, [4, 2, 0], [1, 0, -1]),  # before the last W: it is of the next microbatch
        (2, 1, [4, 2, 0], [1, 0, -1]),
        (0, 2, [2, 4, 0], [0, 0, 0]),
        (1, 2, [2, 4, 0], [1, -1, 0]),
    ],
)
def test_a_move_around_the_end_of_a_window_counts_another_microbatch(
    place: int, steps: int, moved: list[int], ahead: list[int]
) -> None:
    repeated = window(0, 2, 4, 1, 3, 5)
    assert anneal._move_around(repeated, 0, 3, place, steps)
    assert (repeated.codes.tolist(), repeated.ahead.tolist()[::2]) == ([*moved, 1, 3, 5], ahead)
    assert not anneal._move_around(window(0, 0, 2, 2, 4, 4), 0, 6, 0, 1)


@pytest.mark.parametrize(
    ("ahead", "begun"), [((0, 0, -1), (0, 0, -1)), ((1, 0, -1), (-1, -2, -3)), ((3, 2, 1), (-1, -2, -3))]
)
def test_a_window_begins_with_microbatch_0_or_earlier(ahead: tuple[int, ...], begun: tuple[int, ...]) -> None:
    """By whole windows of two microbatches, and for its rank alone."""
    repeated = window(0, 0, 2, 2, 4, 4, 1, 1, 3, 3, 5, 5, ahead=(ahead[0], 9, ahead[1], 9, ahead[2], 9))
    anneal._begin_earlier(PIPELINE, repeated, 0)
    assert repeated.ahead.tolist() == [begun[0], 9, begun[1], 9, begun[2], 9]


@pytest.mark.parametrize(
    ("row", "ahead", "least_cap"),
    [
        ((0, 2, 4), (0, 0, 0), 2),
        ((0, 2, 4), (0, -1, -1), 4),  # a forward of the window before is still held
        ((2, 0, 4), (0, -1, -1), 3.5),
        ((2, 0, 4), (0, 0, 0), None),  # a backward before its forward
        ((0, 4, 2), (0, 0, 0), None),
    ],
)
def test_a_window_fits_if_its_forwards_are_within_the_cap_and_its_backwards_have_them(
    row: tuple[int, ...], ahead: tuple[int, ...], least_cap: float | None
) -> None:
    repeated = window(*row, 1, 3, 5, ahead=(ahead[0], 0, ahead[1], 0, ahead[2], 0))
    for more, is_enough in ((0, True), (-0.1, False)):
        memory = TARGET.memory._replace(cap=np.array([4.0 if least_cap is None else least_cap + more, 99.0]))
        fits = anneal._window_fits(PIPELINE, memory, repeated, 0, np.zeros(6, dtype=np.int64))
        assert fits == (least_cap is not None and is_enough)


@pytest.mark.parametrize("num_moves", [1, 2])
def test_every_move_is_drawn_unless_the_bound_is_met(num_moves: int) -> None:
    def state_after(number: int, bound_s: float = 0.0, state: int = 1) -> int:
        rolled, order = dice(state), codes(*ORDER)
        rules = anneal.AnnealParameters(np.zeros(2), bound_s, heat_s=0.0, num_moves=number, reach=2)
        anneal.anneal(
            PIPELINE,
            TARGET.memory,
            rules,
            rolled,
            order,
            order.copy(),
            empty_timing(PIPELINE),
            np.zeros(12, dtype=np.int64),
        )
        return int(rolled[0])

    assert state_after(num_moves) != state_after(num_moves - 1)
    assert state_after(num_moves, bound_s=16.0) == 1, "the order takes 16 s"
    assert state_after(num_moves, bound_s=15.9) != 1
