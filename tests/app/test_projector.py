"""The numbers of the page: those of the command line, at once from the tables there are, and exact in the end."""

import csv
import io
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import ppsim
from ppsim.app import pictures
from ppsim.app.projector import Projector
from ppsim.app.state import PageState
from ppsim.cli import main
from ppsim.cli.serve import _read_project
from ppsim.errors import ConfigError
from ppsim.plot.plotly_figures import LIGHT

BY_HAND = {
    "forward_ms": "10", "backward_input_ms": "10", "backward_weight_ms": "8", "transfer_ms": "0.5",
    "activation_memory": "2GiB",
}  # fmt: skip
STATES = {
    "a profile": PageState({"pp": "4", "microbatches": "8"}, ("1f1b", "zb-h1", "interleaved-1f1b")),
    "by hand": PageState({"pp": "4", "microbatches": "8", "channel": "direction"} | BY_HAND, ("1f1b", "gpipe")),
    "stage by stage": PageState(
        {"pp": "4", "microbatches": "8"} | BY_HAND
        | {"forward_ms": "10,12,9,14", "transfer_ms": "1,2,1,0", "activation_memory": "1GiB,2GiB,2GiB,3GiB"},
        ("1f1b", "interleaved-1f1b"),
    ),
    "a job": PageState(
        {"model": "llama3-8b", "cluster": "dgx-h100", "pp": "4", "tp": "2", "microbatches": "8", "memory_limit": "70GiB"},
        ("1f1b", "zb-h1"), more="--recompute full --no-overlap-dp",
    ),
}  # fmt: skip


@pytest.fixture
def bench():
    made = Projector(_read_project)
    yield made
    made.close()


def in_a_terminal(command):
    done = CliRunner().invoke(main, [*command.split()[1:], "--json"])
    assert done.exit_code == 0, done.stderr
    return {one["schedule"]: one for one in json.loads(done.stdout)["projections"]}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_command_that_is_copied_gives_the_numbers_that_are_shown(state, bench):
    answer, there = bench.answer(state), in_a_terminal(state.command)
    assert set(answer.projections) == set(there) == set(state.schedules)
    for name, one in answer.projections.items():
        found = there[name]
        assert one.iteration_time_s == found["iteration_time_s"]
        assert one.tokens_per_s == found["tokens_per_s"]
        assert one.timeline.bubble_ratio == found["bubble_ratio"]
        assert one.timeline.memory.peak_bytes.tolist() == [rank["peak_bytes"] for rank in found["ranks"]]


@pytest.mark.search
def test_a_fitted_table_is_searched_for_beside_and_stands_in_for_the_next_costs(bench):
    """zbv at 4 ranks: nothing at first, then the terminal's own table, then that table at other costs."""
    state = PageState({"pp": "4", "microbatches": "8"}, ("zbv",))
    assert bench.answer(state).awaited == {"zbv"}
    assert "being fitted" in pictures.cards_html(bench.answer(state))
    bench.wait(state)
    answer = bench.answer(state)
    assert answer.is_final
    assert (
        answer.projections["zbv"].iteration_time_s
        == in_a_terminal(state.command + " --schedule zbv,1f1b")["zbv"]["iteration_time_s"]
    )
    moved = PageState(state.words | {"transfer_ms": "5"}, ("zbv",))
    there = bench.answer(moved)
    assert there.substitutes == {"zbv"}
    assert there.projections["zbv"].timeline.schedule is answer.projections["zbv"].timeline.schedule
    assert there.projections["zbv"].iteration_time_s > answer.projections["zbv"].iteration_time_s
    assert "its own is being searched for" in pictures.cards_html(there)


def test_only_schedules_whose_search_has_not_ended_are_searched_for(bench, monkeypatch):
    wanted = []
    monkeypatch.setattr(bench._fitter, "want", wanted.extend)
    monkeypatch.setattr(bench._fitter, "found", list)
    state = PageState({"pp": "4", "microbatches": "8"}, ("zbv", "zb-1p", "1f1b"))
    monkeypatch.setitem(bench._failed, (*state.options, "zb-1p"), "no table fits")
    bench.search(state, state.schedules)
    assert [request.name for request in wanted] == ["zbv"]


def test_a_schedule_that_cannot_be_says_why_and_the_others_stay(bench):
    answer = bench.answer(PageState({"pp": "4", "vpp": "2", "microbatches": "8"}, ("1f1b", "interleaved-1f1b")))
    assert list(answer.projections) == ["interleaved-1f1b"]
    assert "vpp" in answer.rejected["1f1b"]
    assert answer.rejected["1f1b"] in pictures.cards_html(answer)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"pp": "x"}, "Invalid value for '--pp': 'x' is not a valid integer."),
        ({"pp": "0"}, "pp must be at least 1: got 0"),
        ({"pp": "4", "profile": "nope"}, "unknown profile 'nope': there are"),
        ({"pp": "4", "memory_limit": "3"}, "the size '3' has no unit"),
        ({"pp": "4", "runtime": "jax"}, "'jax' is not one of"),
    ],
)
def test_bad_input_gets_the_sentence_of_the_command_line(words, sentence, bench):
    with pytest.raises(ConfigError) as raised:
        bench.answer(PageState(words))
    assert sentence in str(raised.value)
    done = CliRunner().invoke(main, PageState(words).command.split()[1:])
    assert sentence in done.stderr
    assert done.exit_code == 2


def test_sliders_begin_where_the_costs_are(bench):
    """The mean rank of the costs by hand is what was given, whatever the number of stages of the baseline."""
    words = {"pp": "4", "microbatches": "8"} | BY_HAND
    expected = {name: value.removesuffix("GiB") for name, value in BY_HAND.items()}
    for name in ("1f1b", "interleaved-1f1b"):
        assert pictures.times_of_rank(bench.answer(PageState(words, (name,)))) == expected


def test_numbers_stand_against_the_baseline(bench):
    words = {"pp": "4", "microbatches": "8"} | BY_HAND | {"transfer_ms": "0", "runtime": "ideal"}
    state = PageState(words, ("1f1b", "zb-h1"), baseline="zb-h1")
    answer = bench.answer(state)
    first, second = (answer.projections[name].iteration_time_s for name in state.schedules)
    assert answer.baseline is answer.projections["zb-h1"]
    told = pictures.cards_html(answer)
    assert f"<dd class=change-worse>+{100 * (first / second - 1):.2f} %</dd>" in told
    assert told.count("aria-pressed=true") == 1


def test_the_exported_table_has_the_numbers_and_the_reasons(bench):
    state = PageState({"pp": "4", "vpp": "2", "microbatches": "8"}, ("interleaved-1f1b", "1f1b"))
    answer = bench.answer(state)
    rows = list(csv.DictReader(io.StringIO(pictures.table_csv(answer))))
    assert [row["schedule"] for row in rows] == ["interleaved-1f1b", "1f1b"]
    assert float(rows[0]["iteration_time_s"]) == answer.projections["interleaved-1f1b"].iteration_time_s
    assert rows[1]["reason"] == answer.rejected["1f1b"]


def test_all_schedules_are_spots_and_those_compared_have_a_bound(bench):
    state = STATES["by hand"]
    spots, missing = bench.spots(state)
    assert missing > 3
    assert {"1f1b", "gpipe", "zb-h1", "1f1b-v"} <= {spot.name for spot in spots}
    assert all(spot.bound_s <= spot.iteration_time_s * (1 + 1e-9) for spot in spots)
    drawn = {
        trace["name"]: trace for trace in pictures.tradeoff_picture(bench.answer(state), spots, theme=LIGHT)["data"]
    }
    assert sorted(drawn["compared"]["text"]) == ["1f1b", "gpipe"]
    assert len(drawn["lower bound"]["x"]) == 2
    assert "<button" in pictures.table_html(spots, state.schedules)


def test_a_picture_while_a_slider_moves_is_small():
    """Of 8 ranks and 32 microbatches: short texts, no critical path, and less than a fifth of the bytes."""
    bench = Projector(_read_project)
    answer = bench.answer(PageState({"pp": "8", "microbatches": "32"}, ("1f1b", "zb-h1")))
    quick, whole = (pictures.timelines(answer, quick=quick, theme=LIGHT) for quick in (True, False))
    assert {trace["type"] for trace in quick["data"]} == {"heatmap"}
    assert 5 * len(json.dumps(quick)) < len(json.dumps(whole))
    bench.close()


def test_a_fitted_table_is_kept_for_its_costs_and_stands_in_for_others_of_its_shape() -> None:
    """It takes as much of the memory as it has actions; a later one of its shape replaces it; a reason is kept, too."""
    table, calls = ppsim.build("1f1b", pp=2, microbatches=4), []

    class Cache:
        def __init__(self, name: str) -> None:
            self.name = name

        def get(self, key: object, *, size: int, make: object) -> None:
            calls.append((self.name, key, size, make()))

        def forget(self, key: object) -> None:
            calls.append((self.name, key))

    answers = [(("costs", "1f1b"), (table, "note")), (("costs", "gpipe"), "too many")]
    bench = SimpleNamespace(
        _fitter=SimpleNamespace(found=lambda: answers), _failed={}, _fitted=Cache("fitted"), _last=Cache("last")
    )
    Projector._collect(bench)
    shape = ("1f1b", 2, 1, 4)
    assert calls == [
        ("fitted", ("costs", "1f1b"), 16, (table, "note")),
        ("last", shape),
        ("last", shape, 16, (table, "note")),
    ]
    assert bench._failed == {("costs", "gpipe"): "too many"}
