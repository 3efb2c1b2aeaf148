"""Options as keywords: their names, their types and what is wrong with them."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

import ppsim
from ppsim.api.keyword_options import accept_options, option_types, require_valid_options
from ppsim.base.option_declarations import Option
from ppsim.errors import ConfigError


class Options(TypedDict, total=False):
    """Of every type."""

    size: Annotated[int | None, Option("Size.", section="a", least=2, also=("--the-size",))]
    share: Annotated[float | None, Option("Share.", section="a")]
    is_on: Annotated[bool | None, Option("On.", section="a")]
    kind: Annotated[Literal["a", "b"] | None, Option("Kind.", section="a")]
    level: Annotated[Literal[1, 2] | float | None, Option("Level.", section="a")]
    path: Annotated[str | Path | None, Option("Path.", section="a")]
    sizes: Annotated[Sequence[int] | None, Option("Sizes.", section="a")]
    either: Annotated[str | Sequence[int] | None, Option("Either.", section="a")]
    slow: Annotated[Mapping[int, float] | None, Option("Slow ranks.", section="a")]


@accept_options(Options)
def verb(first: Any, *, own: int = 3, **options: Any) -> tuple[Any, ...]:
    return first, own, options


NONE = dict.fromkeys(Options.__annotations__)


def test_a_function_gets_every_option_by_its_name() -> None:
    assert verb(1) == (1, 3, NONE)
    assert verb(1, own=4, size=5, kind="b") == (1, 4, NONE | {"size": 5, "kind": "b"})
    parameters = inspect.signature(verb).parameters
    assert [*parameters] == ["first", "own", *NONE]
    assert {parameters[name].default for name in NONE} == {None}
    assert {parameters[name].kind for name in NONE} == {inspect.Parameter.KEYWORD_ONLY}
    assert option_types(Options)["size"] == int | None


def test_a_name_of_the_command_line_is_the_same_option() -> None:
    assert ppsim.job(model="gpt2", micro_batch_size=3, stack="plain").micro_batch == 3
    for given in ({"micro_batch": 1, "micro_batch_size": 2}, {"micro_batch_size": 2, "micro_batch": 1}):
        with pytest.raises(
            ConfigError, match=r"^micro_batch and micro_batch_size are one option: give one of them$"
        ):
            ppsim.job(model="gpt2", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"sise": 3}, r"^verb has no 'sise': did you mean size"), ({"size": True}, r"^size must be a whole number: got True$"),
        ({"size": 2.5}, r"^size must be a whole number: got 2.5$"), ({"size": 1}, r"^--size must be at least 2: got 1$"),
        ({"share": "x"}, r"^share must be a number: got 'x'$"), ({"is_on": 1}, r"^is_on must be true or false: got 1$"),
        ({"kind": "c"}, r"^kind is 'c': choose one of a, b$"), ({"path": 3}, r"^path must be a text: got 3$"),
        ({"slow": [(1, 2)]}, r"^slow must be a mapping, as \{3: 1.2\}: got "),
        ({"either": [1, "x"]}, r"^either must be a text or a list, a whole number each: got \[1, 'x'\]$"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_its_type(option: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        verb(1, **option)


@pytest.mark.parametrize(
    "option",
    [
        {"size": 2}, {"size": None}, {"share": 1}, {"share": 0.5}, {"is_on": False}, {"kind": "a"}, {"path": "p"}, {"path": Path("p")},
        {"sizes": 3}, {"either": "x"}, {"either": [1, 2]}, {"either": (1,)}, {"slow": {3: 1.5}}, {"path": ppsim.Plan(pp=2)},
    ],
)  # fmt: skip
def test_a_right_option_is_handed_over_as_it_is(option: dict[str, Any]) -> None:
    require_valid_options(Options, option, "verb")
    assert verb(1, **option)[2] == NONE | option
