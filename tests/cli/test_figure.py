"""`ppsim figure` draws what other commands wrote, at the width of a column, or says what is wrong with it."""

import csv
import json

import pytest

from tests.cli.conftest import ANSWER, COSTS, VALIDATION
from tests.cli.running import ppsim, words_of


@pytest.fixture
def step(folder):
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "step.json")
    return folder / "step.json"


@pytest.fixture
def written(folder):
    (folder / "tune.json").write_text(json.dumps(ANSWER))
    (folder / "validation.json").write_text(json.dumps(VALIDATION))
    return folder


COMMANDS = [
    ("timeline", "step.json"), ("memory", "step.json"), ("pareto", "tune.json"), ("accuracy", "validation.json"),
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


def test_bubbles_are_swept_and_what_is_left_out_is_said(folder):
    said = ppsim(
        "figure", "bubble", "--pp", 4, "--schedule", "1f1b,dualpipev", "--num-microbatches", "4,8", "--costs", "C.json",
        "-o", "b.pdf", "-o", "b.csv",
    )  # fmt: skip
    assert "left out: dualpipev with 4 microbatches: dualpipev needs at least 2 * p" in words_of(said.stderr)
    assert (folder / "b.pdf").read_bytes().startswith(b"%PDF")
    with open(folder / "b.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["schedule"], row["microbatches"]) for row in rows] == [
        ("1f1b", "4"), ("1f1b", "8"), ("dualpipev", "4"), ("dualpipev", "8"),
    ]  # fmt: skip
    assert [row["bubble_ratio"] == "" for row in rows] == [False, False, True, False]
    said = ppsim("figure", "bubble", "--pp", 2, "--schedule", "1f1b", "-o", "b.csv")
    assert "costs: profile zb-a100-6.2b" in said.stderr


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
        ("bubble --pp 0 -o a.svg", "pp must be at least 1: got 0"),
        ("bubble --pp 4 --vpp 0 -o a.svg", "--vpp must be at least 1: got 0"),
        ("bubble --pp 4 --schedule 1f2b -o a.svg", "'1f2b'"),
        ("bubble --pp 4 --num-microbatches 4,many -o a.svg", "--num-microbatches is '4,many': give numbers as 1,2,4"),
        ("bubble --pp 4 --num-microbatches 0 -o a.svg", "microbatches"),
        ("bubble --pp 4 --vpp 3 --schedule 1f1b -o a.svg", "no schedule of the sweep"),
        ("bubble --pp 4 --costs C.json --profile zb-a100-6.2b -o a.svg", "--profile is for measured costs"),
        ("bubble --pp 4 --costs C.json --runtime torch -o a.svg", "--runtime is for measured costs"),
        ("bubble --pp 4", "Missing option '-o'"),
        ("pareto step.json -o a.svg", "step.json is not a result of ppsim tune"),
        ("pareto empty.json -o a.svg", "empty.json has no configuration that fits"),
        ("pareto unasked.json -o a.svg", "unasked.json is wrong: its question has no memory_limit_bytes"),
        ("accuracy step.json -o a.svg", "step.json contains no validation results"),
        ("accuracy order.json -o a.svg", "of these sets only the order of the schedules counts"),
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
    only_order = [one | {"order_only": True} for one in VALIDATION["sets"]]
    (written / "order.json").write_text(json.dumps({"sets": only_order}))
    before = sorted(written.iterdir())
    result = ppsim("figure", *args.split(), code=2)
    assert sentence in words_of(result.stderr)
    assert sorted(written.iterdir()) == before
