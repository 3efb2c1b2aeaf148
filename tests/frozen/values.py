"""Compute the frozen values, topic by topic, with ppsim's public functions.

A topic is a function that returns entries, `{entry: {measure: value}}`. An entry is a validation row, a command or a
file, a measure a field of its JSON. `scripts/freeze_values.py` writes the topics to JSON files in this folder;
`test_frozen.py` computes them again and compares.
"""

import io
import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

import ppsim
from ppsim.cli import main
from ppsim.errors import PpsimError

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER.parent / "runs" / "data"
Entries = dict[str, dict[str, Any]]

_NOT_FROZEN = ("seconds", "elapsed_s")  # they measure this machine


def numbers_of(value: Any, name: str = "") -> dict[str, float]:
    """Return the numbers of a JSON value by the names of their fields; a list is the sum of its entries.

    >>> numbers_of({"fits": True, "ranks": [{"busy_s": 1.5}, {"busy_s": 2.0}], "schedule": "1f1b"})
    {'fits': 1, 'ranks busy_s': 3.5}
    """
    if isinstance(value, bool | int | float):
        return {name: value + 0}
    found: dict[str, float] = {}
    parts = (
        value.items()
        if isinstance(value, dict)
        else [("", one) for one in value]
        if isinstance(value, list)
        else []
    )
    for field, inner in parts:
        if field not in _NOT_FROZEN:
            for key, number in numbers_of(inner, f"{name} {field}".strip()).items():
                found[key] = found[key] + number if key in found else number
    return found


def rows(sets: Sequence[Mapping[str, Any]] | None = None) -> Entries:
    """Return the projections of every published value; `sets` is the JSON of `ppsim.validate()` if it is there."""
    found: Entries = {}
    seen: Counter[str] = Counter()
    for one in ppsim.validate().to_json()["sets"] if sets is None else sets:
        for row in one["rows"]:
            name = f"{one['set']}: {row['table']} {row['title']} {row['schedule']} {row['metric']} {row['value']}"
            seen[name] += 1
            measures = {key: value for key, value in row.items() if key.startswith("projected")}
            found[name if seen[name] == 1 else f"{name} #{seen[name]}"] = numbers_of(measures)
    return found


def _projected(options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return numbers_of(ppsim.project(**{"memory_limit": None, **options}).to_json())
    except PpsimError as error:
        return {"refused": type(error).__name__}


_MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "llama3-8b": ({"tp": 1, "pp": 1}, {"tp": 2, "pp": 4, "vpp": 2}, {"tp": 4, "pp": 2, "cp": 2}),
    "llama3-70b": ({"tp": 8, "pp": 4}, {"tp": 4, "pp": 4, "vpp": 5}),
    "gpt3-175b": ({"tp": 8, "pp": 8, "vpp": 2},),
    "mixtral-8x7b": ({"tp": 1, "pp": 4, "ep": 8}, {"tp": 2, "pp": 4, "ep": 4, "etp": 1}),
    "deepseek-v3": ({"tp": 1, "pp": 8, "ep": 32}, {"tp": 4, "pp": 4, "ep": 32, "etp": 1}),
    "qwen3-next-80b-a3b": ({"tp": 2, "pp": 4, "ep": 8, "etp": 1},),
    "nemotron-3-nano-30b-a3b": ({"tp": 2, "pp": 2, "ep": 8, "etp": 1},),
}
_PLANS: tuple[dict[str, Any], ...] = (
    {},
    {"recompute": "full"},
    {"recompute": "core_attn"},
    {"recompute": "layernorm"},
    {"dtype": "float8"},
    {"zero": 3},
    {"schedule": "zb-h1", "vpp": None},
    {"stack": "torchtitan"},
    {"cuda_graphs": "attention"},
    {"offload": 0.25},
)


def grid() -> Entries:
    """Return the projections of a grid of models, parallel sizes and plans."""
    found = {}
    for (model, sizes), plan in product(((model, one) for model, all_ in _MODELS.items() for one in all_), _PLANS):
        words = {"model": model, "gpus": 256, "cluster": "dgx-h100", "global_batch": 512, **sizes, **plan}
        key = " ".join([model, *(f"{name}={value}" for name, value in {**sizes, **plan}.items())])
        found[key] = _projected({name: value for name, value in words.items() if value is not None})
    return found


def profiles() -> Entries:
    """Return the projections of every packaged profile at each shape that it was measured at."""
    found = {}
    for name in sorted(path.stem for path in (FOLDER.parents[1] / "profiles").glob("*.json")):
        for shape in ppsim.load_profile(name).shapes:
            words = {
                "micro_batch": shape.micro_batch,
                "seq_len": shape.sequence_length,
                "recompute": shape.recompute,
            }
            sizes = {size: getattr(shape, size) for size in ("tp", "cp", "ep")}
            found[f"{name} {shape}"] = _projected({"pp": 4, "profile": name, **words, **sizes})
    return found


def configs(archive: Path) -> Entries:
    """Return the options and the model of every trainer configuration in an archive."""
    found: Entries = {}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        for path in sorted(
            path for path in Path(folder).rglob("*") if path.suffix in (".yaml", ".yml", ".sh", ".toml")
        ):
            name = str(path.relative_to(folder))
            try:
                read = ppsim.read_run_config(path)
            except PpsimError as error:
                found[name] = {"refused": type(error).__name__}
                continue
            parameters = read.model.parameters if read.model else None
            found[name] = {
                **json.loads(json.dumps(read.to_json()["options"], default=str)),
                "parameters": parameters,
            }
    return found


WITH_ADVICE = (
    "project --pp 8 --vpp 2",
    "project --pp 4 --profile zb-a100-14.6b --layers 24",
    "project --model llama3-8b --gpus 16 --tp 2 --pp 4",
    "project --model mixtral-8x7b --gpus 64 --tp 2 --ep 8 --pp 4 --vpp 8",
)
"""Command lines whose advice is frozen too; it takes most of the time of `project`."""


def commands(lines: Sequence[str] | None = None) -> Entries:
    """Return the JSON of command lines, by default of each line of commands.txt but the searches."""
    if lines is None:
        lines = [line for line in _lines() if not line.startswith("tune ")]
    found = {}
    for line in lines:
        with nullcontext() if line in WITH_ADVICE else patch("ppsim.projection.summary.advise", lambda *_: []):
            found[line] = _printed(line)
    return found


def searches() -> Entries:
    """Return the JSON of the searches in commands.txt."""
    return {line: _printed(line) for line in _lines() if line.startswith("tune ")}


def recordings() -> Entries:
    """Return the JSON of `read`, `explain` and `calibrate` of the packaged recordings."""
    runs = ["primus_pp8_1f1b", "kineto/h100_f_i_w.json.gz"]
    return {
        f"{verb} {run}": _printed(f"{verb} RECORDINGS/{run}")
        for verb in ("read", "explain", "calibrate")
        for run in runs
    }


def _lines() -> list[str]:
    lines = (FOLDER / "commands.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _printed(line: str) -> dict[str, Any]:
    words = line.replace("FROZEN", str(FOLDER)).replace("RECORDINGS", str(RECORDINGS)).split()
    with redirect_stderr(io.StringIO()):
        result = CliRunner().invoke(main, [*words, "--json"], prog_name="ppsim")
    if result.exit_code not in (0, 1) or not result.stdout.startswith("{"):
        return {"exit code": result.exit_code}
    return numbers_of(json.loads(result.stdout))


TOPICS: dict[str, Callable[[], Entries]] = {
    "rows": rows,
    "grid": grid,
    "profiles": profiles,
    "commands": commands,
    "searches": searches,
    "recordings": recordings,
}
"""The topics that need nothing but the checkout; `configs` needs the archive of trainer configurations."""
