"""Values, tables and output files that several commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import ppsim
from ppsim.base.errors import CannotRun, ConfigError
from ppsim.cli import BEGAN_S, WORDS
from ppsim.cli.click_options import Choice, OneOrSeveral, Several, _in_short, _pairs, number_meant
from ppsim.cli.common import (
    check_outputs,
    drawing_options,
    has_layout,
    parse_names,
    parse_numbers,
    print_trainer_lines,
    read_table,
    run_config_of,
    scaling_of,
    time_left_s,
    trainer_lines,
    with_command_line,
)

TABLE = ppsim.build("1f1b", pp=2, microbatches=2)


def context(**params: Any) -> click.Context:
    found = click.Context(click.Command("own"))
    found.params = params
    return found


def test_numbers_and_names_are_separated_by_commas() -> None:
    assert (parse_numbers("dp_sizes", "1,2,4"), parse_numbers("dp", None)) == ([1, 2, 4], None)
    with pytest.raises(ConfigError, match="--dp-sizes is '1;2': give numbers as 1,2,4"):
        parse_numbers("dp_sizes", "1;2")
    assert parse_names("sort", "a, b", ["a", "b"]) == parse_names("sort", "a,b") == ["a", "b"]
    assert parse_names("sort", None) is None
    with pytest.raises(ConfigError, match="--sort is 'a,c': c is none of a, b"):
        parse_names("sort", "a,c", ["a", "b"])


def test_a_table_is_read_by_its_suffix(tmp_path: Path) -> None:
    for suffix in (".csv", ".json"):
        ppsim.save(TABLE, tmp_path / f"t{suffix}")
        assert read_table(str(tmp_path / f"t{suffix}")) == TABLE
    for option in ("replicas", "slices"):
        with pytest.raises(ConfigError, match=f"says itself what it holds; --{option} is for a CSV"):
            read_table(str(tmp_path / "t.json"), **{option: 2})
        with pytest.raises(ConfigError, match=option):
            read_table(str(tmp_path / "t.csv"), **{option: 0})
    assert read_table(str(tmp_path / "t.csv"), slices=2).num_slices == 2
    dual = ppsim.build("dualpipe", pp=2, microbatches=4)
    ppsim.save(dual, tmp_path / "d.csv")
    assert read_table(str(tmp_path / "d.csv"), replicas=2).num_replicas == 2


def test_an_output_is_no_input_and_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.json").write_text("{}")
    Path("link.json").symlink_to("in.json")
    with context(file="in.json", outputs=("out.json",), title=("in.json",)):
        check_outputs(["out.json"], [".json"])
        check_outputs(["out.json"], beside="other.json")
        for wrong in ("./in.json", "link.json"):
            with pytest.raises(ConfigError, match="this command reads it; give another name"):
                check_outputs([wrong])
        with pytest.raises(ConfigError, match=r"cannot write a\.json and \./a\.json: two of them are one file"):
            check_outputs(["a.json", "./a.json"])
        with pytest.raises(ConfigError, match="two of them are one file"):
            check_outputs(["a.json"], beside="a.json")
        with pytest.raises(ConfigError, match=r"\.csv"):
            check_outputs(["a.csv"], [".json"])
    with context(outputs=("in.json",), title=("in.json",)):
        check_outputs(["in.json"])
        with pytest.raises(ConfigError, match="this command reads it"):
            check_outputs(["in.json"], inputs=["link.json"])
    with context(file="in.json", outputs=("in.json",)), pytest.raises(ConfigError, match="this command reads it"):
        check_outputs(["in.json"])


def test_a_search_ends_before_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.cli.common.time.monotonic", lambda: 12.0)
    with context() as found:
        assert time_left_s(10.0) == 10.0
        found.meta[BEGAN_S] = 10.0
        assert [time_left_s(limit) for limit in (10.0, 3.0, 2.0, -1.0)] == [7.0, 0.0, 0.0, -1.0]


def test_a_page_has_the_command_line_that_was_typed() -> None:
    from ppsim.api.output_formats import SearchFileContent

    made = SearchFileContent(None, "before")  # type: ignore[arg-type]
    with context() as found:
        assert with_command_line(made).command == ""
        found.meta[WORDS] = ["tune", "--model", "a b"]
        assert with_command_line(made).command == "ppsim tune --model 'a b'"


def test_options_of_drawings_are_taken_out() -> None:
    options = {"with_rows": True, "with_timeline": None, "pp": 2}
    assert drawing_options(options) == {"with_rows": True, "with_timeline": None}
    assert options == {"pp": 2}
    none = dict.fromkeys(("pp", "run_config", "recipe", "run"))
    assert not has_layout(none)
    assert all(has_layout(none | {name: 1}) for name in none)


def test_a_configuration_is_printed_or_the_trainer_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer_lines(ppsim.project(pp=2, microbatches=4), None, {}) == {}
    print_trainer_lines({"to_config": "x"}, "megatron", as_json=True)
    assert capsys.readouterr().out == ""
    print_trainer_lines({"to_config": "x"}, "megatron", as_json=False)
    assert capsys.readouterr().out == "\n# megatron\nx\n"
    with pytest.raises(CannotRun, match="no"):
        print_trainer_lines({"cannot_run": "no"}, "megatron", as_json=True)


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ("64,128,256", "integer", "One number is expected, as 64."),
        ("64-128", "integer", "One number is expected, as 64."),
        ("64x128", "integer", "One number is expected, as 64."),
        ("4,096", "integer", "One number is expected, as 4096 or 4."),
        ("0,5", "float", "One number is expected, as 0.5 or 0."),
        ("4k", "integer", "Write 4096 or 4000."),
        ("80GiB", "integer", "Write it without a unit, as 80."),
        ("3s", "float", "Write it without a unit, as 0.5 or 15e12."),
        ("2.5", "integer", "Write 2 or 3."),
        ("8.0", "integer", "Write 8."),
        ("1e20", "integer", "Write it in digits, as 8."),
        ("eight", "integer", "Write it in digits, as 8."),
    ],
)
def test_a_wrong_number_has_the_nearest_right_one(text: str, kind: str, hint: str) -> None:
    assert number_meant(f"'{text}' is not a valid {kind}.") == f" {hint}"


def test_other_errors_have_no_hint() -> None:
    assert number_meant("no such option") == ""
    assert number_meant(f"'{'1' * 61}' is not a valid integer.") == ""


def test_a_short_help_is_the_first_sentence_without_long_names() -> None:
    assert _in_short(("--pp N", "Pipeline ranks. Required, unless given.")) == ("--pp N", "Pipeline ranks.")
    assert _in_short(("-o, --output PATH", "File: by suffix.")) == ("-o, --output PATH", "File.")
    long = "--recompute none|full|MODULE+MODULE"
    assert _in_short((long, "Recomputation")) == ("--recompute", "Recomputation.")


def test_a_configuration_that_is_read_is_printed_next_to_the_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SimpleNamespace(beside=lambda options: ("config", sorted(options)))
    monkeypatch.setattr(
        "ppsim.api.trainer_configuration.read_source", lambda options: config if options["recipe"] else None
    )
    monkeypatch.setattr("ppsim.results.catalogues.run_config_lines", lambda config: ["first", f"of {config[0]}"])
    options = {"recipe": "name", "set": 1, "launch": 2, "ignore": 3, "tp": 4}
    assert run_config_of(options) == ("config", ["ignore", "launch", "recipe", "set", "tp"])
    assert options == {"recipe": None, "set": None, "launch": None, "ignore": None, "tp": 4}
    assert capsys.readouterr().err == "first\nof config\n"
    assert run_config_of({"recipe": None, "set": 1}) is None
    assert capsys.readouterr().err == ""


def test_values_are_counted_while_they_are_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    @contextmanager
    def progress(text: str, **how: Any) -> Iterator[Any]:
        shown.append((text, how))
        yield SimpleNamespace(update=lambda text, done: shown.append((text, done)))

    monkeypatch.setattr("ppsim.cli.common.progress", progress)
    scaling = scaling_of("micro_batch", [3, 5], lambda setting: {"row": 2 * setting})
    assert scaling.rows == [{"micro_batch": 3, "row": 6}, {"micro_batch": 5, "row": 10}]
    assert shown == [
        ("projecting", {"total": 2, "unit": "values"}), ("projecting --micro-batch-size 3", 0),
        ("projecting --micro-batch-size 5", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["pp", "run_config", "recipe", "run"])
def test_a_layout_is_given_by_ranks_or_by_a_file(name: str) -> None:
    nothing = dict.fromkeys(("pp", "run_config", "recipe", "run"))
    assert not has_layout(nothing)
    assert has_layout(nothing | {name: 0})


def test_a_choice_ignores_case_and_dashes_and_knows_short_names() -> None:
    choice = Choice(["bfloat16", "float32", "v-half"])
    written = {"BF16": "bfloat16", "bf16": "bfloat16", "Float32": "float32", "vhalf": "v-half", "V_HALF": "v-half"}
    assert {text: choice.convert(text, None, None) for text in written} == written
    with pytest.raises(click.BadParameter):
        Choice(["float32"]).convert("bf16", None, None)


def test_several_values_have_commas_but_a_file_may_too(tmp_path: Path) -> None:
    numbers = OneOrSeveral(click.INT)
    assert (numbers.convert("7", None, None), numbers.convert(5, None, None)) == (7, 5)
    several = numbers.convert("2, 3,5", None, None)
    assert isinstance(several, Several)
    assert several == (2, 3, 5)
    (tmp_path / "a,b").touch()
    assert OneOrSeveral(click.STRING).convert(str(tmp_path / "a,b"), None, None) == str(tmp_path / "a,b")
    assert numbers.name == "integer"


def test_pairs_are_numbers_or_texts() -> None:
    context, option = click.Context(click.Command("a")), click.Option(["--slow"], metavar="RANK:FACTOR")
    assert _pairs(":", context, option, ["3:1.25", "5:2"]) == {3: 1.25, 5: 2.0}
    assert _pairs("=", context, option, ["TP=4", "NAME=a=b"]) == {"TP": "4", "NAME": "a=b"}
    assert _pairs(":", context, option, []) is None
    for separator, text, example in (
        (":", "3", "3:1.2"),
        (":", "a:1", "3:1.2"),
        ("=", "=4", "TP=4"),
        ("=", "TP", "TP=4"),
    ):
        with pytest.raises(ConfigError, match=f"--slow is '{text}': write it as RANK:FACTOR, as {example}"):
            _pairs(separator, context, option, [text])
