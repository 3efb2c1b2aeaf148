"""`ppsim figure` draws what other commands wrote, at the width of a column, or says what is wrong with it."""

import json

import pytest

from tests.cli.conftest import ANSWER, COSTS
from tests.cli.running import ppsim, words_of


@pytest.fixture
def step(folder):
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "step.json")
    return folder / "step.json"


@pytest.fixture
def written(folder):
    (folder / "tune.json").write_text(json.dumps(ANSWER))
    return folder


COMMANDS = [
    ("timeline", "step.json"), ("memory", "step.json"), ("pareto", "tune.json"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file"), COMMANDS)
def test_a_figure_is_as_wide_as_asked_and_the_same_bytes_again(step, written, name, file):
    for width, inches, path in (
        ("one-column", 3.33, "a.svg"),
        ("two-column", 7.0, "b.svg"),
        ("two-column", 7.0, "c.svg"),
    ):
        said = ppsim("figure", name, file, "--width", width, "-o", path)
        assert said.stdout == ""
        assert f"wrote {path} (figure)" in said.stderr
        assert f'width="{72 * inches:.6g}pt"' in (written / path).read_text()
    assert (written / "b.svg").read_bytes() == (written / "c.svg").read_bytes()


def test_a_figure_of_other_commands_is_that_of_figure(step, written):
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "a.svg")
    schedule = json.loads(step.read_text())
    shape = f"pp {schedule['pp']}, vpp {schedule['vpp']}, {schedule['microbatches']} microbatches"
    for path, title in (("same.svg", f"T.csv: {shape}"), ("another.svg", "another")):
        ppsim("figure", "timeline", "step.json", "--title", title, "-o", path)
    assert (written / "a.svg").read_bytes() == (written / "same.svg").read_bytes()
    assert (written / "a.svg").read_bytes() != (written / "another.svg").read_bytes()


def test_the_limit_is_the_files_unless_it_is_given(folder):
    ppsim("project", "--pp", 2, "--num-microbatches", 4, "--memory-limit", "75GiB", "-o", "step.json")
    contents = set()
    for given in ([], ["--memory-limit", "75GiB"], ["--memory-limit", "78GiB"]):
        ppsim("figure", "memory", "step.json", *given, "-o", "a.svg")
        contents.add((folder / "a.svg").read_bytes())
    assert len(contents) == 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("timeline step.json -o a.html", "cannot tell what to write to a.html: give it one of .svg, .pdf, .png"),
        ("timeline step.json -o none/a.svg", "cannot write none/a.svg: there is no folder none"),
        ("timeline nope.json -o a.svg", "cannot read nope.json: No such file"),
        ("timeline tune.json -o a.svg", "tune.json is no timeline"),
        ("timeline step.json step.json --title a -o a.svg", "give a --title for each timeline or none: got 1 for 2"),
        ("timeline step.json --panels compute,costs -o a.svg", "--panels is 'compute,costs': costs is none of compute, transfers, memory"),
        ("timeline step.json --width 3in -o a.svg", "'3in' is not one of 'one-column', 'two-column'"),
        ("memory step.json --memory-limit lots -o a.svg", "cannot read the size 'lots'"),
        ("memory wrong.json -o a.svg", "wrong.json is wrong: memory_limit_bytes is 'much'"),
        ("memory bare.json -o a.svg", "no bytes"),
        ("timeline bare.json --panels memory -o a.svg", "no memory"),
        ("pareto step.json -o a.svg", "step.json is not a result of ppsim tune"),
        ("pareto empty.json -o a.svg", "empty.json has no configuration that fits"),
        ("pareto unasked.json -o a.svg", "unasked.json is wrong: its question has no memory_limit_bytes"),
        ("pareta tune.json -o a.svg", "unknown command 'pareta': did you mean pareto"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_leaves_no_file(step, written, args, sentence):
    (written / "C0.json").write_text(
        json.dumps({**COSTS, "activation_bytes": 0, "activation_bytes_kept_for_weight": 0})
    )
    ppsim("simulate", "T.csv", "--costs", "C0.json", "-o", "bare.json")
    (written / "wrong.json").write_text(json.dumps(json.loads(step.read_text()) | {"memory_limit_bytes": "much"}))
    (written / "empty.json").write_text(json.dumps(ANSWER | {"verdicts": {}}))
    (written / "unasked.json").write_text(json.dumps(ANSWER | {"question": {}}))
    before = sorted(written.iterdir())
    result = ppsim("figure", *args.split(), code=2)
    assert sentence in words_of(result.stderr)
    assert sorted(written.iterdir()) == before
