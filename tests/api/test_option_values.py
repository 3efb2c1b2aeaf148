"""Values of options that have a syntax of their own."""

from typing import Any

import pytest

from ppsim.api.option_values import parse_compute_scale, parse_overlap, parse_size, parse_split
from ppsim.base.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("80GiB", 80 * 2**30), ("80GB", 80e9), ("80g", 80e9), ("1.5 TiB", 1.5 * 2**40), ("512MiB", 2**29),
        ("3kb", 3e3), ("2KiB", 2048), ("7B", 7), ("1048576", 2**20), (" 80GiB ", 80 * 2**30), (2**20, 2**20),
        (8e10, 8e10), (None, None),
    ],
)  # fmt: skip
def test_sizes_have_decimal_or_binary_units(given: Any, size: float | None) -> None:
    assert parse_size(given) == size


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("80", "the size '80' has no unit: is 80GiB meant"), ("1048575", "is 1048575GiB meant"),
        (80, "a memory limit of 80 has no unit: is '80GiB' meant"), (2**20 - 1, "has no unit"),
        (0, "a memory limit must be more than 0 bytes: got 0"), (-1.0, "more than 0"), (float("inf"), "more than 0"),
        ("0GiB", "cannot read the size '0GiB'"), ("80XB", "cannot read"), ("", "cannot read"), ("-1GiB", "cannot read"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_size(given)


def test_a_split_is_a_rule_numbers_or_a_layout() -> None:
    assert [parse_split(one) for one in ("auto", "even", "2,3,3,2", "4")] == ["auto", "even", [2, 3, 3, 2], [4]]
    assert parse_split((1, 2)) == [1, 2]
    assert parse_split("Ett|tL") == parse_split("Et*2|tL")
    assert len(parse_split("Ett|tttL")) == 2
    with pytest.raises(ConfigError, match="--split is '2;3': give auto, even or layers per stage"):
        parse_split("2;3")


def test_an_overlap_is_an_order_or_a_part() -> None:
    assert (parse_overlap(0.5), parse_overlap("1"), parse_overlap("megatron")) == (0.5, 1.0, "megatron")
    with pytest.raises(ConfigError, match="--overlap-ep is 'all'"):
        parse_overlap("all")


def test_a_scale_is_of_all_dtypes_or_of_one() -> None:
    assert (parse_compute_scale(None, "float8"), parse_compute_scale("0.9", "float8")) == (None, 0.9)
    assert parse_compute_scale("bfloat16:0.9, float8:1.2", "bfloat16") == 0.9
    assert parse_compute_scale("bfloat16:0.9", "float8") is None
    for wrong in ("bfloat16=0.9", "bfloat16:x", "bfloat16:0.9:1"):
        with pytest.raises(ConfigError, match="--compute-scale is "):
            parse_compute_scale(wrong, "float8")
