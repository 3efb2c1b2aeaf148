"""An option is declared in one place: its help, its keyword, its errors and its part of a command follow."""

from dataclasses import replace
from typing import Annotated, Any, Unpack

import click
import pytest
from click.testing import CliRunner

import ppsim
from ppsim.api.keyword_options import accept_options
from ppsim.base import option_declarations as option_declarations_module
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import Option, declared_options, field_values, options_by_section
from ppsim.cli import main
from ppsim.cli.click_options import command_with
from ppsim.projection.options import PlanOptions
from ppsim.tuning.command_line import command_of as command_line_of
from ppsim.tuning.options import TuneOptions
from tests.cli.running import words_of as text_of
from tests.defaults import number_defaults

HostSeconds = Annotated[
    float | None,
    Option(
        "Host time per step. [default: {default}]", metavar="SECONDS", section="runtime",
        after="runtime", field="job.allocator_slack", default=1.0,
    ),
]  # fmt: skip


class MorePlanOptions(PlanOptions, total=False):
    host_seconds: HostSeconds


class MoreTuneOptions(TuneOptions, total=False):
    host_seconds: HostSeconds


@accept_options(MorePlanOptions)
def fields(**options: Unpack[MorePlanOptions]) -> dict[str, Any]:
    return field_values(declared_options(MorePlanOptions), options, "job")


@command_with(MorePlanOptions, {"runtime": "Runtime and memory"})
def project(**options: Any) -> None:
    """Project."""
    click.echo(options["host_seconds"])


def test_an_option_that_is_declared_is_in_the_help_behind_the_one_it_names() -> None:
    shown = CliRunner().invoke(project, ["--help"], terminal_width=100).output
    assert "--host-seconds SECONDS Host time per step. [default: 1]" in text_of(shown)
    assert shown.index("--runtime") < shown.index("--host-seconds") < shown.index("--channel")
    assert CliRunner().invoke(project, ["--pp", "2", "--host-seconds", "0.5"]).output == "0.5\n"
    assert "is not a valid float" in CliRunner().invoke(project, ["--pp", "2", "--host-seconds", "x"]).output


def test_an_option_that_is_declared_is_a_keyword_and_sets_its_field() -> None:
    assert fields(host_seconds=1.5)["allocator_slack"] == 1.5
    assert fields()["allocator_slack"] == 1.0
    with pytest.raises(ConfigError, match="fields has no 'host_second': did you mean host_seconds"):
        fields(host_second=0.5)  # type: ignore[call-arg]


def test_an_option_that_is_declared_is_in_the_command_of_a_search_where_it_is_no_default() -> None:
    found = ppsim.tune(model="gpt2", gpus=2, global_batch=16, tp=[1], pp=[2], micro_batch=[8], vpp=[1])
    question = replace(found.question, job=replace(found.question.job, allocator_slack=1.5))
    words = {"projected": MorePlanOptions, "searched": MoreTuneOptions}
    best = found.best[0].candidate
    usual = command_line_of(found.question, best)
    assert command_line_of(found.question, best, **words) == usual
    assert command_line_of(question, best, **words) == usual + " --host-seconds 1.5"


@pytest.mark.parametrize("words", [PlanOptions, TuneOptions])
def test_a_help_page_lists_every_word_once(words: Any) -> None:
    listed = [name for names in options_by_section(declared_options(words).values()).values() for name in names]
    assert sorted(listed) == sorted(declared_options(words))


def test_a_choice_is_taken_as_people_write_it() -> None:
    lines = [
        ["project", "--model", "gpt2", "--pp", "2", "--full", "--dtype", dtype]
        for dtype in ("bfloat16", "bf16", "BF16")
    ]
    made = {CliRunner().invoke(main, line).stdout for line in lines}
    assert len(made) == 1
    assert "bfloat16" in made.pop()


def test_what_is_left_out_in_base_option_declarations_has_these_values() -> None:
    assert number_defaults(option_declarations_module) == {
        "Option": {"shown": False, "has_no": False, "required": False, "is_hidden": False},
        "require_least": {"least": 1},
    }  # fmt: skip
