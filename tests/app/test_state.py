"""The state of the page, its URL and its command line: three ways to write one thing."""

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.app.fields import RUNTIME, SHAPE, SOURCE, TIMES, TUNED
from ppsim.app.state import SCHEDULES, PageState, field_of
from ppsim.base.option_declarations import declared_options
from ppsim.cli.serve import _read_project, serve
from ppsim.errors import ConfigError
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
STATES = st.builds(
    PageState,
    words=st.dictionaries(st.sampled_from([one.word for one in (*SHAPE, *TIMES, *RUNTIME)]), TEXTS, max_size=4),
    schedules=st.lists(st.sampled_from(["1f1b", "zb-h1", "zbv", "v-half"]), max_size=3, unique=True).map(tuple),
    baseline=st.sampled_from([None, "1f1b"]),
    more=st.sampled_from(["", "--split 'Et|tL'", "--straggler 3:1.2"]),
    searched=st.dictionaries(st.sampled_from([one.word for one in TUNED]), TEXTS, max_size=3),
    views=st.sampled_from([{}, {"tab": "tune", "path": "0"}, {"colour": "cause", "panel": "memory"}]),
)


@given(STATES)
def test_a_url_holds_the_whole_state(state):
    assert PageState.read(state.query) == state
    assert PageState.read("?" + state.query) == state


@given(STATES)
def test_the_command_is_the_arguments_as_a_shell_reads_them(state):
    assert shlex.split(state.command) == ["ppsim", "project", *state.arguments]


def test_the_words_of_a_command_come_in_the_order_of_its_help_page():
    state = PageState(
        {"runtime": "ideal", "microbatches": "32", "pp": "8", "vpp": "2"}, ("zbv",), more="--seq-len 2048"
    )
    assert state.command == (
        "ppsim project --pp 8 --vpp 2 --num-microbatches 32 --runtime ideal --seq-len 2048 --schedule zbv"
    )


@pytest.mark.parametrize(
    ("line", "words", "more"),
    [
        ("--pp 8 --vpp 2 --schedule zbv", {"pp": "8", "vpp": "2"}, ""),
        ("--pp 4 --no-overlap-dp --straggler 1:2 --schedule zbv", {"pp": "4"}, "--no-overlap-dp --straggler 1:2"),
    ],
)
def test_a_command_line_becomes_the_state_that_has_it(line, words, more):
    state = PageState().showing(shlex.split(line))
    assert (state.words, state.schedules, state.more) == (words, ("zbv",), more)
    assert sorted(state.arguments) == sorted(shlex.split(line))


def test_the_examples_of_the_help_page_are_states_that_the_command_line_reads():
    examples = re.findall(r"^ *ppsim serve.*-- (.*)$", serve.help, flags=re.MULTILINE)
    assert len(examples) == 2
    for line in examples:
        state = PageState().showing(shlex.split(line))
        read = _read_project(state.arguments)
        assert read["pp"] == 8
        assert read["schedule"] == ",".join(state.schedules)


@pytest.mark.parametrize("line", ["--pp 8", "--pp 8 --schedule all", "--pp 8 --schedule auto"])
def test_a_command_line_that_names_no_schedule_begins_with_three(line):
    assert PageState().showing(line.split()).schedules == SCHEDULES


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("pq=8", "there is no 'pq' in the state of the page"),
        ("tune.pq=8", "there is no 'pq' in the state of the page"),
        ("pp=8&colour=red", "colour is 'red': choose one of kind, cause"),
    ],
)
def test_what_is_no_state_is_said(query, sentence):
    with pytest.raises(ConfigError, match=sentence):
        PageState.read(query)


def test_open_quotes_are_said():
    with pytest.raises(ConfigError, match="cannot read the further options '--split 'Et': no closing quotation"):
        _ = PageState(more="--split 'Et").arguments


def test_every_field_is_a_word_of_its_command():
    assert {one.word for one in (*SOURCE, *SHAPE, *TIMES, *RUNTIME)} <= set(declared_options(PlanOptions))
    assert {one.word for one in TUNED} <= set(declared_options(TuneOptions))


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("--micro-batch-size must be at least 1: got 0", "micro_batch"),
        ("Invalid value for '--memory-limit': x", "memory_limit"),
        ("interleaved-1f1b needs microbatches divisible by pp: got 30 with pp=8", "microbatches"),
        ("pp must be at least 1: got 0", "pp"),
        ("cannot read it", None),
    ],
)
def test_a_sentence_stands_beside_the_field_that_it_is_about(sentence, word):
    assert field_of(sentence) == word


def test_an_address_is_read_into_its_parts():
    state = PageState.read(
        "?pp=4&vpp=&schedule=zbv,+1f1b,,zbv&baseline=1f1b&more=--split+even&tune.tp=1,2&tune.pp=&tune.more=--top+3"
        "&tab=tune&colour=kind&path=0"
    )
    assert state == PageState(
        {"pp": "4"}, ("zbv", "1f1b"), "1f1b", "--split even", {"tp": "1,2"}, "--top 3", {"tab": "tune", "path": "0"}
    )
    assert state.query == (
        "pp=4&schedule=zbv,1f1b&baseline=1f1b&more=--split+even&tune.tp=1,2&tune.more=--top+3&tab=tune&path=0"
    )
    assert [state.view(name) for name in ("tab", "colour", "path", "panel")] == ["tune", "kind", "0", "time"]
    assert state.search_arguments == ["--tp", "1,2", "--top", "3"]
    assert state.search_command == "ppsim tune --tp 1,2 --top 3"
    assert state.command == "ppsim project --pp 4 --split even --schedule zbv,1f1b"
    assert PageState.read("") == PageState.read("?") == PageState()
    assert PageState().words == {"pp": "8", "microbatches": "32"}
    bare = PageState.read("pp=4&baseline=")
    assert (bare.schedules, bare.baseline, bare.command) == ((), None, "ppsim project --pp 4")
    assert bare.query == "pp=4&schedule="


def test_a_plan_that_is_shown_replaces_all_but_the_search_and_the_other_views():
    before = PageState(
        {"pp": "4"}, ("zbv",), "zbv", "--x", {"tp": "1"}, "--top 3", {"tab": "tune", "path": "0", "panel": "memory"}
    )
    after = before.showing(["--vpp", "2", "--schedule", "zb-h1,1f1b", "--split", "a b", "--odd", "1", "--tp"])
    assert after == PageState(
        {"vpp": "2", "split": "a b", "tp": ""}, ("zb-h1", "1f1b"), None, "--odd 1", {"tp": "1"}, "--top 3",
        {"path": "0", "panel": "memory"},
    )  # fmt: skip
    assert before.showing(["--schedule", "any"]).schedules == SCHEDULES


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("pp=3,vpp=2", "vpp"), ("pp 3 --dtype x", "dtype"), ("vpp and --pp", "pp"), ("8 tokens, pp 3", "seq_len"),
        ("9 devices", "gpus"), ("the seq-len", "seq_len"), ("no --such and no vppp", None), ("-pp", None),
        ("micro-batch 3", "micro_batch"), ("tokens of vpp", "vpp"),
    ],
)  # fmt: skip
def test_a_flag_comes_before_a_name_and_a_name_before_pp(sentence, word):
    assert field_of(sentence) == word
