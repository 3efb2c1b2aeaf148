"""The versions of torch's compute+comms table. That 2.13 reads its own is in tests/runtime/test_torch_agreement.py."""

import re
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.schedule.grammar import format_table, parse_table
from ppsim.schedule.lowering import lower
from ppsim.trainers.torch.write_schedule import COMMS_VERSIONS, torch_csv, why_not_loaded
from tests.cli.running import ppsim as run

# What the lowering of torch 2.15.0 made of these tables: its pipelining package, run once on the core of 2.13.
STORED = sorted(Path(__file__).parent.joinpath("torch_2_15").glob("*.csv"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_table_for_2_15_is_what_its_own_lowering_made(path):
    assert len(STORED) == 10
    name, pp, m, receives = path.stem.split("_")
    table = ppsim.build(name, pp=int(pp[2:]), microbatches=int(m[1:]))
    assert format_table(lower(table, receives=receives, waits=True)) == path.read_text()
    if receives == "torch":
        assert torch_csv(table, with_communication=True, torch_version="2.15") == path.read_text()


@pytest.mark.parametrize("name", ["interleaved-1f1b", "dualpipev"])
def test_2_10_to_2_14_write_one_table_and_2_15_another_that_goes_back_to_it(name):
    table = ppsim.build(name, pp=2, microbatches=4)
    texts = {
        version: torch_csv(table, with_communication=True, torch_version=version) for version in COMMS_VERSIONS
    }
    assert len(set(texts.values())) == 2
    assert texts["2.14"] == texts["2.10"] == torch_csv(table, with_communication=True)
    newest = parse_table(texts["2.15"])
    assert torch_csv(newest, with_communication=True) == texts["2.15"]
    assert "WAIT" not in torch_csv(newest, with_communication=True, torch_version="2.13")
    assert torch_csv(parse_table(texts["2.13"]), with_communication=True, torch_version="2.15.0+cpu").count(
        "WAIT"
    ) == (texts["2.15"].count("WAIT"))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.9", "ppsim has the tables of 2.10 to 2.15 (nearest: 2.10)"),
        (
            "2.16",
            "unknown compute+comms tables of torch 2.16: ppsim has the tables of 2.10 to 2.15 (nearest: 2.15)",
        ),
        ("3.0", "(nearest: 2.15)"),
        ("newest", "unknown compute+comms tables of torch newest: ppsim has the tables of 2.10 to 2.15"),
    ],
)
def test_an_unknown_version_is_refused_with_the_nearest(version, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        torch_csv(ppsim.build("1f1b", pp=2, microbatches=2), with_communication=True, torch_version=version)


def test_the_command_writes_the_version_asked_for_and_reads_it_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("build", "zbv", "--pp", 2, "--num-microbatches", 4, "-o", "T.csv")
    run("export", "T.csv", "--to", "torch-comms", "--torch-version", "2.15", "-o", "new.csv")
    assert Path("new.csv").read_text().count("WAIT_SEND") == Path("new.csv").read_text().count(",0SEND") + sum(
        Path("new.csv").read_text().count(f",{stage}SEND") for stage in (1, 2, 3)
    )
    assert "complete, ordered" in run("check", "new.csv").stdout
    run("export", "new.csv", "--to", "torch", "-o", "back.csv")
    assert Path("back.csv").read_bytes() == Path("T.csv").read_bytes()
    for target, words in (("torch", "which every version from 2.9 on takes"), ("json", "is for --to torch-comms")):
        wrong = run("export", "T.csv", "--to", target, "--torch-version", "2.15", "-o", "no.csv", code=2)
        assert words in wrong.stderr
    assert (
        "nearest: 2.15"
        in run("export", "T.csv", "--to", "torch-comms", "--torch-version", "2.20", "-o", "no.csv", code=2).stderr
    )
    assert not Path("no.csv").exists()


def test_a_table_of_another_version_is_refused_before_torch_misreads_it():
    table = ppsim.build("1f1b", pp=2, microbatches=2)
    old, new = lower(table), lower(table, waits=True)
    assert why_not_loaded(table, "2.15.0") is why_not_loaded(old, "2.13.0+cpu") is None
    assert why_not_loaded(new, "2.15.0") is why_not_loaded(new, "2.99") is None
    assert "has waits, which torch reads from 2.15 on" in why_not_loaded(new, "2.13.0+cpu")
    assert "has no waits, which torch 2.15 needs" in why_not_loaded(old, "2.15.0")
