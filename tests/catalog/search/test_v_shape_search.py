"""Candidates for a V: which patterns are tried, how often, and when they are left out."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.catalog.search import v_shape_search as module
from ppsim.catalog.search.target import SearchTarget
from ppsim.catalog.search.v_kernels import VChoices
from tests.fitting import in_a_v

TARGET = SearchTarget(
    in_a_v(
        num_ranks=2, num_microbatches=2, forward_s=[1, 2, 3, 5], backward_input_s=[7, 11, 13, 17], backward_weight_s=19,
        transfer_s=[0.25, 0.0, 0.5], cap=4,
    ),
    engine="plain",
)  # fmt: skip


@pytest.mark.parametrize(("num_actions", "num_blocks"), [(1, 600), (1_666, 600), (10_000, 100), (1_000_001, 0)])
def test_fewer_patterns_are_repeated_in_a_larger_table(
    num_actions: int, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the combinations of paces, then drawn ones; each with three gaps, of which the last never fits here."""
    asked: list[Any] = []
    kept = SimpleNamespace(get=lambda key, size, make: asked.append((key[0], size)) or key[1])
    monkeypatch.setattr(module, "_PASSES", kept)
    monkeypatch.setattr(
        module, "fill_weight_gradients", lambda target, passes, gap: (passes, gap) if gap < 1 else None
    )
    target: Any = SimpleNamespace(
        num_actions=num_actions, shape_and_times=b"shape", problem=SimpleNamespace(num_ranks=3)
    )
    candidates = list(module.repeated_patterns(target))
    assert asked == [(b"shape", num_actions)] * num_blocks
    assert [gap for _, gap in candidates] == [0.0, 0.5] * num_blocks  # type: ignore[misc]
    blocks = [block for block, _ in candidates[::2]]  # type: ignore[misc]
    first = [(1.0, 1.0), (1.1, 1.0), (1.25, 1.0), (1.5, 1.0), (2.0, 1.0), (2.5, 1.0), (3.0, 1.0), (4.0, 1.0)]
    if num_blocks:
        assert [(block.pace_down, block.pace_up) for block in blocks[:8]] == first
        assert [block.turns for block in blocks[:17:8]] == [(0.0, 0.0, 0.0), (0.0, 0.17, 0.0), (0.0, 0.33, 0.0)]
        assert blocks[48].pace_up == 1.1
    assert [block.until is None for block in blocks] == [number < 288 for number in range(num_blocks)]


def test_drawn_patterns_have_any_paces_and_turns_and_are_slow_up_to_any_rank() -> None:
    dice = np.random.default_rng(1)
    blocks = [module._Block.drawn(dice, 3) for _ in range(300)]
    assert {block.until for block in blocks} == {1, 2, 3}
    assert {block.pace_down for block in blocks} == {1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0}
    assert {block.pace_up for block in blocks} == {1.0, 1.1, 1.25, 1.5, 2.0, 3.0}
    for turn in range(3):
        assert {block.turns[turn] for block in blocks} == {0.0, 0.17, 0.33, 0.5, 0.67, 0.83}


def test_a_pattern_repeats_its_microbatch_each_period() -> None:
    """Without waits, F start at 0, 1.25, 3.25 and 6.75 s, and I at 11.75, 29.25, 42.25 and 53.5 s from the last stage.

    The period is the work of rank 0 per microbatch, 68 s, so that each microbatch ends before the next begins. With a
    turn of one period before I, the next microbatch is forwarded before the first comes back.
    """
    codes = {0: "0F", 1: "1F", 2: "2F", 3: "3F", 4: "0I", 5: "1I", 6: "2I", 7: "3I"}

    def rows(*block: Any) -> list[str]:
        passes = module._repeated(TARGET, module._Block(*block))
        return [" ".join(codes[code] for code in row) for row in passes.reshape(2, -1).tolist()]

    assert TARGET.work_s.tolist() == [2 * (27 + 41), 2 * (32 + 35)]
    assert rows(1.0, 1.0, (0.0, 0.0, 0.0)) == ["0F 3F 3I 0I 0F 3F 3I 0I", "1F 2F 2I 1I 1F 2F 2I 1I"]
    assert rows(1.0, 1.0, (0.0, 1.0, 0.0)) == ["0F 3F 0F 3F 3I 0I 3I 0I", "1F 2F 1F 2F 2I 1I 2I 1I"]
    assert rows(1.0, 1.0, (1.0, 0.0, 0.0)) == ["0F 0F 3F 3I 0I 3F 3I 0I", "1F 1F 2F 2I 1I 2F 2I 1I"]
    assert rows(1.0, 1.0, (0.0, 0.0, 1.0)) == ["0F 3F 3I 0F 3F 3I 0I 0I", "1F 2F 2I 1F 2F 2I 1I 1I"]
    # Only rank 0 is slow: 75 s after its first F, and 1050 s after its first I.
    assert rows(60.0, 1.0, (0.0, 0.0, 0.0), 1) == ["0F 0F 3F 3I 3F 3I 0I 0I", "1F 2F 1F 2F 2I 1I 2I 1I"]
    assert rows(1.0, 20.0, (0.0, 0.0, 0.0), None)[1] == "1F 2F 1F 2F 2I 1I 2I 1I", "on the way up"


@pytest.mark.parametrize(
    ("idle", "spares"),
    [
        ([[5, 3], [4, 4], [4, 1]], [[0, 0], [0, 2], [0, 0]]),  # 5, 4, 4: no more
        ([[5, 3], [6, 1]], [[0, 0], [0, 2]]),
        ([[5, 3], None], [[0, 0], [0, 2]]),
    ],
)
def test_the_heuristic_runs_again_while_its_longest_idle_time_falls(
    idle: list[Any], spares: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank may then idle as long as the rank that idled longest."""
    runs: list[Any] = []

    def run(target: Any, spare_s: Any, choices: Any) -> Any:
        seconds = idle[len(runs) % len(spares)]
        runs.append((spare_s.tolist(), choices.before_first_gradient, choices.before_forward))
        return (None if seconds is None else "table"), np.array(seconds or [0, 0], dtype=float)

    monkeypatch.setattr(module, "_run", run)
    tables = list(module.heuristic_runs(TARGET))
    choices = [(True, True), (True, False), (False, True), (False, False)]
    assert runs == [(spare, *choice) for choice in choices for spare in spares]
    assert tables == ["table"] * (4 * sum(seconds is not None for seconds in idle))


@pytest.mark.parametrize(
    ("num_actions", "number"), [(1, 150), (3_333, 150), (5_000, 100), (250_000, 2), (500_001, 0)]
)
def test_fewer_blocks_of_cells_are_tried_in_a_larger_table(
    num_actions: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the longest lifetime on; a block that keeps 1 + (a + b) / 12 microbatches must fit with one more."""
    starts = [(0, 2, 5 + lifetime, 9 + lifetime) for lifetime in range(0, 1200, 6)]  # 2 + lifetime / 6 microbatches
    asked: list[int] = []

    def blocks(num_ranks: int) -> list[Any]:
        assert num_ranks == 7
        return starts

    def from_block(name: str, block: Any, microbatches: int, *, are_weights_in_order: bool) -> Any:
        assert (microbatches, are_weights_in_order) == (11, False)
        asked.append(block[2] - 5)
        return block

    monkeypatch.setattr(module, "building_blocks", blocks)
    monkeypatch.setattr(module, "from_block", from_block)
    monkeypatch.setattr(module, "_as_it_is_and_filled", lambda target, table: iter([table]))
    target: Any = SimpleNamespace(
        num_actions=num_actions, least_cap=np.array([2.0, 3.0]),
        problem=SimpleNamespace(num_ranks=7, num_microbatches=11, cap=np.array([2 * 191.0, 999.0])),
    )  # fmt: skip
    assert len(list(module.blocks_of_cells(target))) == number
    assert asked == [
        6 * step for step in range(190, 190 - number, -1)
    ]  # 192 microbatches, one less than fit with one more


def test_a_pattern_is_timed_as_it_is_and_with_its_weight_gradients_placed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "fill_weight_gradients", lambda target, passes, gap: (passes, gap) if gap else None)
    for fits in (True, False):
        candidate = SimpleNamespace(fits=fits, passes="passes")
        target: Any = SimpleNamespace(
            order_of=lambda table: table, timed=lambda order, candidate=candidate: candidate
        )
        schedule: Any = "table"
        found = list(module._as_it_is_and_filled(target, schedule))
        assert found == [*([candidate] if fits else []), ("passes", 0.5), ("passes", 1.0)]


def test_published_patterns_are_built_for_the_shape_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(target: Any, table: Any) -> Iterator[Any]:
        yield table

    monkeypatch.setattr(module, "_as_it_is_and_filled", as_it_is)
    builders: Any = [lambda name=name, **shape: (name, shape) for name in "ab"]
    shape = {"num_ranks": 2, "num_microbatches": 2}
    assert list(module.published(TARGET, builders)) == [("a", shape), ("b", shape)]


@pytest.mark.parametrize("least_gap", [0.0, 1.0])
def test_weight_gradients_are_placed_in_a_table_of_their_own(least_gap: float) -> None:
    """Times are far below a second, so that no start is later than it must be."""
    problem = in_a_v(
        num_ranks=2, num_microbatches=2, forward_s=[1 / 64, 2 / 64, 3 / 64, 5 / 64], backward_input_s=7 / 64,
        backward_weight_s=3 / 64, transfer_s=[0.25 / 64, 0.0, 0.5 / 64], cap=4,
    )  # fmt: skip
    target = SearchTarget(problem, engine="plain")
    passes = np.array([0, 3, 7, 4, 0, 3, 7, 4, 1, 2, 6, 5, 1, 2, 6, 5], dtype=np.int32)
    candidate = module.fill_weight_gradients(target, passes, least_gap)
    assert candidate is not None
    assert candidate.passes.tolist() == passes.tolist()
    assert np.bincount(candidate.order).tolist() == [2] * 12
    assert candidate.fits
    again = target.timed(candidate.order)
    assert again is not None
    assert again.end_s.tolist() == candidate.end_s.tolist()
    assert module.fill_weight_gradients(target, passes[::-1].copy(), least_gap) is None


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_heuristic_gives_up_or_makes_a_complete_table_within_the_cap(p: int, m: int) -> None:
    """From the memory of one microbatch on; with that of all microbatches, it gives up nowhere."""
    given_up = []
    for cap in range(2, 2 * m + 3):
        problem = in_a_v(
            num_ranks=p, num_microbatches=m, forward_s=1 / 16, backward_input_s=3 / 32, backward_weight_s=1 / 32, transfer_s=1 / 64, cap=cap,
            activation_kept_for_weight=0.5,
        )  # fmt: skip
        target = SearchTarget(problem, engine="plain")
        for first_gradient, forward in ((True, True), (False, True), (False, False)):
            choices = VChoices(before_forward=forward, before_first_gradient=first_gradient)
            candidate, idle_s = module._run(target, np.zeros(p), choices)
            given_up.append(candidate is None)
            if candidate is not None:
                assert candidate.fits
                assert np.bincount(candidate.order).tolist() == [m] * 6 * p
                again = target.timed(candidate.order)
                assert again is not None
                assert again.end_s.tolist() == candidate.end_s.tolist()
                assert (idle_s >= 0).all()
    assert not any(given_up[-3:])
    assert any(given_up) == (m > 1 and p > 1)
