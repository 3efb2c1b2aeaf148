"""What a file holds: checked where it is a user's, taken as it is where it ships with ppsim."""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import resources
from typing import Annotated, Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import (
    LARGEST_COUNT,
    AboveZero,
    Bounds,
    ConvertBefore,
    Count,
    FileSchema,
    Matrix,
    Moment,
    NonNegative,
    OneOrMany,
    Positive,
    load_packaged,
    non_default_fields,
    validated,
)
from ppsim.base.files import read_json, read_toml
from ppsim.costs.profile import Profile, packaged_profiles
from ppsim.machine import cluster_files as files
from ppsim.trainers.stacks import StackDefaults
from ppsim.validation.published_runs import FOLDER, CaseSet


def shipped() -> Iterator[tuple[str, type[FileSchema], Any]]:
    """Name, model and content of all that is read unchecked."""
    stacks = read_toml(str(resources.files("ppsim.trainers") / "data" / "stacks.toml"))
    yield from ((name, StackDefaults, data) for name, data in stacks.items())
    yield from ((name, CaseSet, data) for name, data in read_toml(FOLDER / "sets.toml").items())
    yield from ((name, files._Cluster, files._extended(path)) for name, path in files.packaged_clusters().items())
    yield from ((name, Profile, read_json(path)) for name, path in packaged_profiles().items())


@pytest.mark.parametrize("kind", [StackDefaults, CaseSet, files._Cluster, Profile])
def test_what_ships_is_right_and_made_as_a_checked_file_is(kind: type[FileSchema]) -> None:
    contents = {name: data for name, model, data in shipped() if model is kind}
    assert contents
    for name, data in contents.items():
        made, checked = load_packaged(kind, data), validated(kind, data, name)
        assert made == checked
        assert str(asdict(made)) == str(asdict(checked))  # a whole number is no float  # type: ignore[call-overload]


class Inner(FileSchema):
    number: Annotated[float, Bounds(ge=0, le=10)]


class Outer(FileSchema):
    inner: Inner
    several: Annotated[list[Inner], Bounds(min_length=1), ConvertBefore(lambda value: value)]
    word: str = "as usual"

    def __post_init__(self) -> None:
        if self.word == "wrong":
            raise ValueError("a wrong word")


def test_all_that_is_wrong_is_said_at_once_each_with_its_path() -> None:
    data = {"inner": {"number": "1", "numbr": 2}, "several": [{"number": 11}, 3], "wor": "x"}
    with pytest.raises(ConfigError) as told:
        validated(Outer, data, "the file")
    assert str(told.value).splitlines() == [
        "the file is wrong: inner.number: input should be a valid number, got '1'",
        "  inner.numbr: unknown key (did you mean number?)",
        "  several[0].number: must be at most 10, got 11",
        "  several[1]: must be a JSON object, got 3",
        "  wor: unknown key (did you mean word?)",
    ]
    right = {"inner": {"number": 1}, "several": [{"number": 2}]}
    with pytest.raises(ConfigError, match="a wrong word"):
        validated(Outer, right | {"word": "wrong"}, "the file")
    with pytest.raises(ConfigError, match="several: must not be empty"):
        validated(Outer, right | {"several": []}, "the file")
    found = validated(Outer, right, "the file")
    assert non_default_fields(found) == {"inner": Inner(number=1.0), "several": [Inner(number=2.0)]}
    assert non_default_fields(replace(found, word="other"))["word"] == "other"


def test_of_many_wrong_keys_the_first_are_explained_and_the_others_counted() -> None:
    begun = time.process_time()
    with pytest.raises(ConfigError) as refused:
        validated(Inner, dict.fromkeys((f"numbr{at}" for at in range(5_000)), 1), "file")
    assert "numbr0: unknown key (did you mean number?)" in str(refused.value)
    assert str(refused.value).endswith("… and 4981 more")
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (NonNegative, [0, 1e30], [-1e-9, 1.01e30]),
        (AboveZero, [1e-9, 1e30], [0, 1.01e30]),
        (Moment, [-1e12, 1e12], [-1.01e12, 1.01e12]),
        (Count, [0, 3.0, LARGEST_COUNT], [-1, 0.5, LARGEST_COUNT + 1]),
        (Positive, [1, LARGEST_COUNT], [0, 1.5, LARGEST_COUNT + 1]),
        (OneOrMany, [0.5, [0.5], [1, 2]], [[], [-1], -1]),
        (Matrix, [[[0.5]], [[1], [2, 3]]], [[], [[]], [[1], []], [[-1]]]),
    ],
)
def test_numbers_are_within_their_bounds(kind: Any, allowed: list[Any], refused: list[Any]) -> None:
    class Row(FileSchema):
        value: kind

    for value in allowed:
        validated(Row, {"value": value}, "a file")
    for value in refused:
        with pytest.raises(ConfigError, match="value"):
            validated(Row, {"value": value}, "a file")
