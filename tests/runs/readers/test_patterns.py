"""Names of ranges: which is an action, which are counted, and which pattern may match the others."""

from collections import Counter
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs.readers import patterns
from ppsim.runs.readers.patterns import PATTERNS, NameCounts, ParsedName, named_in, patterns_with
from ppsim.schedule.table import NONE, Action, Op

OWN = r"(?P<kind>\w+) mb(?P<microbatch>-?\d+)?(?: s(?P<stage>\d+))?(?: c(?P<chunk>\d+))?(?: r(?P<rank>\d+))?"


def parsed(text: str, name: str) -> ParsedName:
    names = NameCounts(patterns_with([text]))
    matched = names.match(name)
    assert matched is not None
    assert matched[0] == 0
    return named_in(matched[1], "a.json")


def test_a_name_has_its_kind_and_the_numbers_that_it_tells() -> None:
    assert parsed(OWN, "FORWARD mb3 s4 c5 r6") == ParsedName(Action(Op.F, 4, 3), 5, 6)
    assert parsed(OWN, "backward mb7") == ParsedName(Action(Op.B, NONE, 7), None, None)
    assert parsed("(?P<cell>.*)!", "3F5!") == ParsedName(Action(Op.F, 3, 5))


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("(?P<cell>.*)!", "3X5!", "a.json: the range 3X5! names no action"),
        (OWN, "odd mb3", "a.json: the range odd mb3 is of kind 'odd', which is none of"),
        (OWN, "forward mb-1", "has a number beyond what a pipeline has"),
        (r"(?P<kind>forward) (?P<microbatch>\w+)", "forward x", "a group of numbers matched none"),
    ],
)
def test_a_name_that_tells_no_action_is_refused(text: str, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parsed(text, name)


def test_names_are_matched_by_the_first_pattern_and_else_counted_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = NameCounts(patterns_with([OWN, r"(?P<kind>forward) mb(?P<microbatch>\d+)"]))
    assert names.match("forward mb3")[0] == 0  # type: ignore[index]
    assert names.match("PP:3F5")[0] >= 2  # type: ignore[index]
    assert names.others == {}
    monkeypatch.setattr(patterns, "_MOST_NAMES", 2)
    for name in ("a", "b", "a", "c", "b", "a"):
        assert names.match(name) is None
    assert names.others == {"a": 3, "b": 2}


def test_the_most_common_names_are_shown_those_like_passes_first() -> None:
    counts = Counter({"load": 9, "my Micro": 1, "step": 8, "bwd": 3, "x" * 60: 7, "y" * 61: 6, "z": 5, "never": 4})
    assert NameCounts((), counts).most_common() == (
        f"'bwd', 'my Micro', 'load', 'step', '{'x' * 60}', '{'y' * 57}…'"
    )


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ({"## forward 3 ##": 1, "## backward 4 ##": 1}, r"## (?P<kind>forward|backward) (?P<microbatch>\d+) ##"),
        ({"Forward-1.2": 1, "Backward-3.4": 1}, r"(?P<kind>Forward|Backward)-(?P<microbatch>\d+)\.\d+"),
        ({"rank 1 fwd": 2, "rank 2 bwd": 2}, r"rank (?P<microbatch>\d+) (?P<kind>fwd|bwd)"),
        ({"a FWD 1": 1, "a BWD 1": 1, "b fwd 1": 5, "b bwd 1": 4}, r"b (?P<kind>fwd|bwd) (?P<microbatch>\d+)"),
        ({"forward 3": 1, "back 3": 1}, None),
        ({"forward 3": 1, "Backward 3": 1}, None),
    ],
)
def test_a_pattern_is_proposed_for_a_forward_with_its_backward(names: dict[str, int], pattern: str | None) -> None:
    assert NameCounts((), Counter(names)).likely_pattern() == pattern


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(", r"--pattern '\(' is no regular expression"),
        (
            "(?P<kind>a)(?P<zone>b)(?P<place>c)",
            "has a group place: there are cell, rank, stage, chunk, microbatch, kind",
        ),
        (r"(?P<stage>\d+)", "does not tell a forward from a backward: name a group kind"),
    ],
)
def test_a_pattern_needs_known_groups_and_a_kind(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        patterns_with([text])


def test_own_patterns_come_before_the_built_in_ones() -> None:
    given: Any = patterns_with(["(?P<cell>a)", "(?P<kind>b)"])
    assert [one.expression.pattern for one in given[:2]] == ["(?P<cell>a)", "(?P<kind>b)"]
    assert given[2:] == PATTERNS
    assert patterns_with("(?P<cell>abc)")[1:] == PATTERNS


def test_ten_thousand_names_are_counted_and_six_are_shown() -> None:
    assert (patterns._MOST_NAMES, patterns._SHOWN) == (10_000, 6)
