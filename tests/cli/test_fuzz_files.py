"""Whatever is in an input file: a sentence with its name and code 2, or a result; no traceback, and nothing half-written."""

import copy
import json
import os
import random
import tomllib
from importlib import resources

import pytest
import yaml
from click.testing import CliRunner

from ppsim.base.files import data_folder
from ppsim.cli import main
from tests.cli.conftest import ANSWER, COSTS
from tests.cli.running import measured_from, ppsim
from tests.fuzzing.corpus import TRACE
from tests.runs.test_readers import LOG, csv_of, dump_of, export_of, timeline_of
from tests.runtime.traces import traces_of

CASES = int(os.environ.get("PPSIM_FUZZ_CASES", "30"))  # of each format; more by hand

ODD = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, -(10**30), 1e308, -1e308, 1e-320, 0.5, float("nan"), float("inf"), "", "x",
    "0F0", "1e9", "\x00", "ü" * 300, [], {}, [[]], [None], {"": None}, [1, 2, 3], ["0F0"] * 9, [[[[1]]]],
]  # fmt: skip
ODD_TEXT = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b",",
    b"\n",
    b"\n\n",
    b'"',
    b"(",
    b"[" * 3000,
    b"{",
    b"9" * 30,
    b"-1",
    b"nan",
    b"=",
    b": ",
    b"\t",
]

OVERHEADS = {
    "format": "ppsim-overheads/1", "action_overhead_s": 0.001, "hop_overhead_s": 0.001, "overlap_slowdown": 0.1,
    "latency_s": 0.001, "bandwidth_bytes_per_s": 1e9, "not_fitted": {"step_overhead_s": "one step"},
    "samples": {"action_overhead_s": {"num": 3, "quartiles": [0.1, 0.2, 0.3]}}, "hops": [], "residuals": [],
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000,
    "intermediate_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
COMMANDS = {  # of each file
    "T.csv": [
        "check T.csv",
        "simulate T.csv --costs C.json -o out.json",
        "export T.csv --to torch-comms -o out.csv",
    ],
    "t.json": ["check t.json", "simulate t.json --costs C.json --json", "export t.json --to json -o out.json"],
    "C.json": [
        "simulate T.csv --costs C.json -o out.json",
        "build zb-auto --pp 2 --num-microbatches 4 --costs C.json -o out.csv",
    ],
    "measured.json": [
        "compare measured.json -o out.json",
        "calibrate measured.json -o out.json",
        "figure timeline measured.json --panels compute -o out.svg",
        "explain measured.json --json",
        "read measured.json -o out.json",
    ],
    "overheads.json": ["project --pp 2 --num-microbatches 4 --calibration overheads.json --json"],
    "profile.json": ["project --pp 2 --num-microbatches 4 --profile profile.json --json -o out.json"],
    "cluster.json": ["clusters cluster.json", "project --model gpt2 --pp 2 --cluster cluster.json --json"],
    "cluster.yaml": ["clusters cluster.yaml"],
    "cluster.toml": ["clusters cluster.toml"],
    "config.json": ["models config.json --json", "project --model config.json --pp 2 --json"],
    "tune.json": ["figure pareto tune.json -o out.svg"],
    "trace.json": ["calibrate trace.json -o out.json", "read trace.json -o out.json", "explain trace.json"],
    "dump/pp_rank_1.json": ["read dump -o out.json", "explain dump"],
    "dump/config.json": ["read dump -o out.json"],
    "passes.csv": ["read passes.csv -o out.json", "explain passes.csv"],
    "run.sqlite": ["read run.sqlite -o out.json"],
    "train.log": ["read train.log -o out.json"],
}


@pytest.fixture
def sound(folder):
    """The folder with a sound file of every format."""
    cluster = (resources.files("ppsim.machine") / "data" / "clusters" / "dgx-h100.toml").read_text()
    ppsim("export", "T.csv", "--to", "json", "-o", "t.json")
    ppsim("simulate", "zbv.csv", "--costs", "C.json", "-o", "measured.json")
    measured = measured_from(folder / "measured.json") | {"run": {"emulated": True}}
    profile = json.loads((data_folder("profiles") / "zb-a100-6.2b.json").read_text())
    whole = {
        "measured.json": measured, "overheads.json": OVERHEADS, "profile.json": profile, "config.json": LLAMA,
        "cluster.json": tomllib.loads(cluster), "tune.json": ANSWER, "trace.json": TRACE,
        "C.json": COSTS | {"forward_s": [1.0] * 8, "transfer_s": {"latency_s": 0.1, "bytes": 8, "bandwidth_bytes_per_s": 100}},
    }  # fmt: skip
    for name, content in whole.items():
        (folder / name).write_text(json.dumps(content))
    step = timeline_of("1f1b", pp=2, microbatches=2)
    dump_of([step] * 2, folder / "dump")
    csv_of([step] * 2, folder / "passes.csv")
    export_of(traces_of([step] * 2, gap_s=0.1, cuda=True), folder / "run.sqlite")
    (folder / "train.log").write_text(LOG)
    (folder / "cluster.yaml").write_text(yaml.safe_dump(tomllib.loads(cluster)))
    (folder / "cluster.toml").write_text(cluster)
    return folder


def places(content, path=()):
    """Every key path of parsed JSON."""
    yield path
    for key, value in (
        content.items() if isinstance(content, dict) else enumerate(content if isinstance(content, list) else ())
    ):
        yield from places(value, (*path, key))


def changed(content, draw):
    """Parsed JSON with one to three things in it changed: dropped, renamed, doubled, moved, or of another kind."""
    content = copy.deepcopy(content)
    for _ in range(draw.randint(1, 3)):
        *path, last = draw.choice(list(places(content)) or [()]) or [None]
        if last is None:
            return copy.deepcopy(draw.choice(ODD))
        where = content
        for key in path:
            where = where[key]
        what = draw.choice(["drop", "rename", "double", "odd", "odd", "odd", "wrap", "swap"])
        if what == "drop":
            del where[last]
        elif what == "rename" and isinstance(where, dict):
            where[str(last) + "x"] = where.pop(last)
        elif what == "double" and isinstance(where, list):
            where.insert(last, copy.deepcopy(where[last]))
        elif what == "wrap":
            where[last] = [where[last]]
        elif what == "swap":
            other = draw.choice(list(where)) if isinstance(where, dict) else draw.randrange(len(where))
            where[last], where[other] = where[other], where[last]
        else:
            where[last] = copy.deepcopy(draw.choice(ODD))
    return content


def torn(text, draw):
    """Bytes of a file with a piece lost, put in twice, or replaced by something odd."""
    begin = draw.randrange(len(text) + 1)
    end = min(len(text), begin + draw.choice([0, 1, 5, 50, len(text)]))
    return text[:begin] + draw.choice([b"", text[begin:end] * 2, draw.choice(ODD_TEXT)]) + text[end:]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_file_brings_a_command_down(sound, name):
    draw = random.Random(name)
    before = (sound / name).read_bytes()
    for case in range(CASES):
        command = draw.choice(COMMANDS[name])
        if name.endswith(".json") and draw.random() < 0.8:
            content = json.dumps(changed(json.loads(before), draw)).encode()
        else:
            content = torn(before, draw)
        (sound / name).write_bytes(content)
        files = set(sound.iterdir())
        result = CliRunner().invoke(main, command.split())
        shown = f"case {case}, `{command}` of {content[:3000]!r}: {result.exit_code} {result.output[-2000:]}"
        assert result.exit_code in (0, 1, 2), shown
        assert "Traceback" not in result.output, shown
        written = set(sound.iterdir()) - files
        if result.exit_code == 2:
            assert name.partition("/")[0] in result.output, shown
            assert not written, shown
        for path in written:
            assert path.stat().st_size, shown
            path.unlink()
