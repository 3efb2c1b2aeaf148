"""Options are declared once: flags, keywords, texts, defaults and fields follow from the declaration."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypedDict

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import (
    Option,
    OptionDeclaration,
    command_arguments,
    declared_options,
    field_values,
    given_options,
    option_values,
    options_by_section,
    require_least,
    require_tokens,
    value_types,
    with_defaults,
)
from tests.defaults import field_defaults


class Options(TypedDict, total=False):
    micro_batch: Annotated[int | None, Option("Sequences.", field="job.batch", default=3, also=("--mbs",))]
    lengths: Annotated[Sequence[int], Option("Lengths.", metavar="N,N", section="data")]
    stragglers: Annotated[Mapping[int, float], Option("Slow ranks.", metavar="RANK:FACTOR")]
    names: Annotated[Mapping[str, str] | None, Option("Names.", metavar="NAME=VALUE")]
    overlap_p2p: Annotated[bool | None, Option("Overlap.", has_no=True, field="job.comm.overlap")]
    causal: Annotated[bool, Option("Causal.", flag="--causal-mask")]
    order: Annotated[Literal["a", "b"] | None, Option("Order.", section="data", after="lengths")]
    text: Annotated[Literal["c"] | str | None, Option("Text.", section="data", after="lengths", field="word")]
    python_only: int


DECLARED = declared_options(Options)


def test_keys_without_an_option_are_not_declared() -> None:
    assert list(DECLARED) == list(Options.__annotations__)[:-1]
    assert [DECLARED[name].kinds for name in ("micro_batch", "order", "causal")] == [
        (int,), (Literal["a", "b"],), (bool,),
    ]  # fmt: skip


def test_an_option_may_leave_out_all_but_its_help() -> None:
    assert field_defaults(Option) == {"shown": False, "has_no": False, "required": False, "is_hidden": False}


def test_a_help_text_has_its_default() -> None:
    for default, text in ((0.5, "0.5"), (1e9, "1e+09"), (7, "7"), ((1, 2.0), "1,2"), (None, "None")):
        assert Option("Sizes. [default: {default}]", default=default).sentence == f"Sizes. [default: {text}]"


@pytest.mark.parametrize(
    ("name", "flag", "also", "keyword"),
    [
        ("micro_batch", "--micro-batch-size", ("--mbs", "--micro-batch"), "micro_batch_size"),
        ("lengths", "--sequence-lengths", ("--lengths",), "sequence_lengths"),
        ("stragglers", "--straggler", (), "straggler"),
        ("overlap_p2p", "--overlap-p2p-communication", (), "overlap_p2p_communication"),
        ("causal", "--causal-mask", (), "causal_mask"),
        ("text", "--text", (), "text"),
    ],
)
def test_the_key_is_another_name_of_a_flag_that_takes_a_value(
    name: str, flag: str, also: tuple[str, ...], keyword: str
) -> None:
    assert (DECLARED[name].flag, DECLARED[name].also, DECLARED[name].keyword) == (flag, also, keyword)


def test_types_give_choices_lists_and_mappings() -> None:
    assert {name: declared.choices for name, declared in DECLARED.items() if declared.choices} == {
        "order": ["a", "b"]
    }
    assert {name: declared.listed for name, declared in DECLARED.items() if declared.listed} == {"lengths": int}
    assert [name for name, declared in DECLARED.items() if declared.is_mapping] == ["stragglers", "names"]
    assert OptionDeclaration("either", (Sequence[int], str), Option("")).listed is None
    assert value_types("Split | None") == ("Split | None",)
    assert value_types(int | float | None) == (int, float)


@pytest.mark.parametrize(
    ("name", "given", "arguments"),
    [
        ("micro_batch", None, []),
        ("micro_batch", 5, ["--micro-batch-size 5"]),
        ("lengths", [3, 7], ["--sequence-lengths 3,7"]),
        ("text", "a b", ["--text 'a b'"]),
        ("stragglers", {2: 1.5, 3: 2.0}, ["--straggler 2:1.5", "--straggler 3:2.0"]),
        ("names", {"a": "b c"}, ["--names 'a=b c'"]),
        ("overlap_p2p", True, ["--overlap-p2p-communication"]),
        ("overlap_p2p", False, ["--no-overlap-p2p-communication"]),
        ("causal", True, ["--causal-mask"]),
        ("causal", False, []),
    ],
)
def test_a_value_is_typed_as_its_option_takes_it(name: str, given: Any, arguments: list[str]) -> None:
    assert command_arguments(DECLARED[name], given) == arguments


def test_an_option_follows_the_one_it_names_or_the_one_declared_before() -> None:
    assert options_by_section(DECLARED.values()) == {
        "": ["micro_batch", "stragglers", "names", "overlap_p2p", "causal"],
        "data": ["lengths", "text", "order"],
    }
    first = OptionDeclaration("first", (int,), Option("", after="absent"))
    second, third = (OptionDeclaration(name, (int,), Option("")) for name in ("second", "third"))
    after_first = OptionDeclaration("after", (int,), Option("", after="first"))
    assert options_by_section([first, second, after_first, third]) == {"": ["first", "after", "third", "second"]}


def test_numbers_have_a_least_value_and_tokens_a_largest() -> None:
    require_least("micro_batch", 1)
    require_least("micro_batch", None)
    require_least("rest", 0.5, 0)
    with pytest.raises(ConfigError, match="--micro-batch-size must be at least 1: got 0"):
        require_least("micro_batch", 0)
    with pytest.raises(ConfigError, match="--extra-step-time must be at least 3: got 2"):
        require_least("rest", 2, 3)
    require_tokens("seq_len", 10**9)
    require_tokens("seq_len", None)
    with pytest.raises(ConfigError, match="--seq-len must be at most 1000000000: got 1000000001, for one sequence"):
        require_tokens("seq_len", 10**9 + 1)


def test_missing_options_have_their_defaults() -> None:
    assert given_options({"a": None, "b": 0, "c": False}) == {"b": 0, "c": False}
    options = with_defaults(DECLARED, {"micro_batch": None, "causal": False})
    assert (options["micro_batch"], options["causal"], options["order"]) == (3, False, None)


def test_options_set_the_fields_below_a_path_and_are_read_from_them() -> None:
    given = {"overlap_p2p": False, "text": "d", "order": "a"}
    assert field_values(DECLARED, given) == {"word": "d"}
    assert field_values(DECLARED, given, "job") == {"batch": 3}
    assert field_values(DECLARED, given, "job.comm") == {"overlap": False}
    plan = SimpleNamespace(word="d", job=SimpleNamespace(batch=5, comm=None))
    assert given_options(option_values(DECLARED, plan)) == {"micro_batch": 5, "text": "d"}
