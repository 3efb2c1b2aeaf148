"""What a file holds: checked where it is a user's, taken as it is where it ships with ppsim."""

import time
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, field, replace
from importlib import resources
from typing import Annotated, Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import (
    LARGEST_COUNT,
    AboveZero,
    Bounds,
    ConvertAfter,
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
    with_field_types,
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


def test_a_file_of_20_wrong_keys_has_a_sentence_for_each() -> None:
    with pytest.raises(ConfigError) as refused:
        validated(Inner, dict.fromkeys((f"numbr{at}" for at in range(19)), 1), "file")
    assert "more" not in str(refused.value)
    assert str(refused.value).splitlines()[0] == "file is wrong: number: missing"


def test_objects_of_a_schema_compare_by_class_and_fields() -> None:
    class Same(FileSchema):
        number: float

    inner = Inner(number=1.0)
    assert inner == Inner(number=1.0)
    assert hash(inner) == hash(Inner(number=1.0)) == hash((1.0,))
    assert inner != Inner(number=2.0)
    assert inner != Same(number=1.0)
    assert repr(inner) == "Inner(number=1.0)"


def test_fields_are_given_by_name_or_have_a_default_and_do_not_change() -> None:
    class Row(FileSchema):
        number: float
        notes: list[str] = field(default_factory=list)
        word: str = "a"

    row, other = Row(number=2.0), Row(number=2.0, notes=["b"])
    assert (row.notes, row.word, other.notes) == ([], "a", ["b"])
    assert row.notes is not Row(number=2.0).notes
    with pytest.raises(TypeError, match="Row has no field 'numbr'"):
        Row(numbr=2.0)
    with pytest.raises(TypeError, match="Row needs the field 'number'"):
        Row(word="b")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'word'"):
        row.word = "b"  # type: ignore[misc]


def test_fields_of_a_schema_may_get_other_types_and_defaults() -> None:
    kind = with_field_types(Inner, {"number": float, "count": int}, {"count": 7})
    assert (kind.__name__, validated(kind, {"number": 3}, "file").count) == ("Inner", 7)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="file is wrong: number: missing"):
        validated(kind, {"count": 2}, "file")


def test_a_packaged_file_is_converted_without_checks() -> None:
    class Row(FileSchema):
        number: Annotated[float, ConvertAfter(lambda number: number + 1), ConvertBefore(lambda text: text[1:])]
        inner: Inner | None = None
        by_name: dict[str, float] = field(default_factory=dict)
        rows: list[Inner] = field(default_factory=list)

    row = load_packaged(
        Row, {"number": "a3", "inner": {"number": 2}, "by_name": {"b": 5}, "rows": [{"number": -7}]}
    )
    assert (row.number, row.inner, row.by_name) == (4.0, Inner(number=2.0), {"b": 5.0})
    assert isinstance(row.by_name["b"], float)
    assert row.rows == [Inner(number=-7.0)]
    assert load_packaged(Row, {"number": "a3", "inner": None}).inner is None


def test_a_number_in_place_of_a_list_has_no_index_in_its_path() -> None:
    class Row(FileSchema):
        several: OneOrMany

    with pytest.raises(ConfigError, match="file is wrong: several: must be at least 0, got -1"):
        validated(Row, {"several": -1}, "file")
    with pytest.raises(ConfigError, match=r"file is wrong: several\[1\]: must be at least 0, got -1"):
        validated(Row, {"several": [2, -1]}, "file")
    with pytest.raises(ConfigError, match="file is wrong: the whole: must be a JSON object, got 5"):
        validated(Row, 5, "file")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_without_bounds_is_finite(number: float) -> None:
    class Row(FileSchema):
        number: float

    with pytest.raises(ConfigError, match="number: must be finite"):
        validated(Row, {"number": number}, "a file")
