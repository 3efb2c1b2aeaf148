"""Compute the frozen values, topic by topic.

Each topic is a function that returns a mapping from a key (a validation row, a command, a file) to a JSON value.
`scripts/freeze_values.py` writes the topics to JSON files in this folder; `test_frozen.py` computes them again and compares.
"""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.catalog.build import build, every_schedule, find
from ppsim.cli import main
from ppsim.costs.profile import load_profile, packaged_profiles
from ppsim.costs.time_breakdown import TimeBreakdown
from ppsim.errors import PpsimError
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_table, table_of
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.write_schedule import RUNTIMES
from ppsim.validation.published_runs import case_sets, cases_of

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER.parent / "runs" / "data"
MEASURES = (
    "iteration_s", "peak_bytes", "forward_s", "backward_input_s", "backward_weight_s", "backward_s", "activation_bytes",
    "kept_bytes", "static_bytes", "forward_flops", "parameters",
)  # fmt: skip
PARTS = tuple(part.name for part in fields(TimeBreakdown))


def measures(plan: Plan) -> dict[str, list[float]] | str:
    """Return the numbers of a projection: `MEASURES` (sums over stages or ranks), and the seconds of F and B by part.

    A refusal is its first line.
    """
    try:
        table, _ = table_of(plan, find(plan.schedule_name))
        made = project_table(plan, table)
    except PpsimError as error:
        return str(error).splitlines()[0]
    costs = made.costs.resolved_for(table)
    values = {
        "iteration_s": made.iteration_time_s,
        "peak_bytes": float(made.timeline.memory.peak_bytes.max()),
        "forward_flops": made.stage_cost_set.forward_flops,
        "parameters": plan.job.model.parameters if plan.job else 0,
    }
    found = [float(values[name]) if name in values else float(getattr(costs, name).sum()) for name in MEASURES]
    passes = [part for stage in made.stage_cost_set.parts for part in (stage.forward, stage.backward)]
    return {
        "measures": found,
        "parts": [sum(getattr(one, name) for one in passes) for name in PARTS] if passes else [],
    }


def rows() -> dict[str, Any]:
    """Return the measures of every validation row that has a plan."""
    found = {}
    for name in case_sets():
        for case in cases_of(name):
            if not case.properties.unexpressed:
                found[f"{name}:{case.number}"] = _measures_of(case.options)
    return found


def _measures_of(words: Mapping[str, Any]) -> Any:
    try:
        return measures(plan_of_keywords({"memory_limit": None, **words}))
    except PpsimError as error:
        return str(error).splitlines()[0]


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


def grid() -> dict[str, Any]:
    """Return the measures of a grid of models, parallel sizes and plans."""
    found = {}
    for (model, sizes), plan in product(((model, one) for model, all_ in _MODELS.items() for one in all_), _PLANS):
        words = {"model": model, "gpus": 256, "cluster": "dgx-h100", "global_batch": 512, **sizes, **plan}
        key = " ".join([model, *(f"{name}={value}" for name, value in {**sizes, **plan}.items())])
        found[key] = _measures_of({name: value for name, value in words.items() if value is not None})
    return found


def profiles() -> dict[str, Any]:
    """Return the measures of every packaged profile at each shape that it was measured at."""
    found = {}
    for name in sorted(packaged_profiles()):
        for shape in load_profile(name).shapes:
            words = {
                "micro_batch": shape.micro_batch,
                "seq_len": shape.sequence_length,
                "recompute": shape.recompute,
            }
            sizes = {size: getattr(shape, size) for size in ("tp", "cp", "ep")}
            found[f"{name} {shape}"] = _measures_of({"pp": 4, "profile": name, **words, **sizes})
    return found


SHAPES = ((2, 4), (4, 8), (8, 16))


def schedules() -> dict[str, str]:
    """Return the sha256 of each schedule's export to each runtime, at three shapes; a refusal is its first line."""
    found = {}
    for (name, entry), (pp, microbatches) in product(every_schedule().items(), SHAPES):
        for runtime, export in RUNTIMES.items():
            key = f"{name} {runtime} pp{pp} m{microbatches}"
            try:
                found[key] = digest(export(build(entry, pp=pp, microbatches=microbatches)))
            except PpsimError as error:
                found[key] = str(error).splitlines()[0]
    return found


def digest(value: Any) -> str:
    """Return the sha256 of a text, or of the JSON of any other value."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def configs(archive: Path) -> dict[str, Any]:
    """Return the reading of every trainer configuration in an archive: options, read, assumed, ignored."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        for path in sorted(
            path for path in Path(folder).rglob("*") if path.suffix in (".yaml", ".yml", ".sh", ".toml")
        ):
            name = str(path.relative_to(folder))
            try:
                read = read_run_config(path).to_json()
            except PpsimError as error:
                found[name] = str(error).replace(str(path), name).replace(f"{folder}/", "").splitlines()[0]
                continue
            del read["source"]
            text = json.dumps(read, default=str).replace(f"{folder}/", "")
            found[name] = {
                **json.loads(text),
                "read_options": sorted(f"{a} > {b}" for a, b in read["read_options"].items()),
            }
    return found


def written() -> dict[str, str]:
    """Return the text of `--to-config` of 50 plans for each trainer."""
    found = {}
    cases = [case for name in case_sets() for case in cases_of(name) if not case.properties.unexpressed]
    for case in _every(50, [case for case in cases if "model" in case.settings]):
        try:
            made = ppsim.project(**{**case.options, "memory_limit": None})
        except PpsimError:
            continue
        for trainer in ("megatron", "primus", "torchtitan"):
            found[f"{case.command} --to-config {trainer}"] = ppsim.trainer_options(made, trainer)
    return found


def _every(count: int, cases: list[Any]) -> Iterator[Any]:
    """About `count` of the entries, evenly spaced."""
    yield from cases[:: max(1, len(cases) // count)]


def commands() -> dict[str, Any]:
    """Return the JSON that each line of commands.txt prints, long lists as their length and sum."""
    lines = [
        line for line in (FOLDER / "commands.txt").read_text().splitlines() if line and not line.startswith("#")
    ]
    return {line: _printed(line) for line in lines}


def recordings() -> dict[str, Any]:
    """Return the JSON of `read`, `explain` and `calibrate` of the packaged recordings."""
    runs = ["primus_pp8_1f1b", "kineto/h100_f_i_w.json.gz"]
    return {
        f"{verb} {run}": _printed(f"{verb} RECORDINGS/{run}")
        for verb in ("read", "explain", "calibrate")
        for run in runs
    }


def _printed(line: str) -> Any:
    words = line.replace("FROZEN", str(FOLDER)).replace("RECORDINGS", str(RECORDINGS)).split()
    with redirect_stderr(io.StringIO()):
        result = CliRunner().invoke(main, [*words, "--json"], prog_name="ppsim")
    if result.exit_code not in (0, 1) or not result.stdout.startswith("{"):
        return f"exit {result.exit_code}: {result.output.strip().splitlines()[-1]}".replace(f"{FOLDER.parent}/", "")
    return brief(json.loads(result.stdout.replace(f"{FOLDER.parent}/", "")))


MOST_ENTRIES = 12


def brief(value: Any) -> Any:
    """Return a JSON value with each list of more than 12 entries as its length, its sum if it has numbers, and a digest of its texts.

    >>> brief([1] * 20)
    {'entries': 20, 'sum': 20}
    """
    if isinstance(value, dict):
        return {name: brief(inner) for name, inner in value.items() if name not in ("seconds", "elapsed_s")}
    if not isinstance(value, list) or len(value) <= MOST_ENTRIES:
        return [brief(inner) for inner in value] if isinstance(value, list) else value
    leaves = list(_leaves(value))
    numbers = [leaf for leaf in leaves if isinstance(leaf, int | float) and not isinstance(leaf, bool)]
    texts = [leaf for leaf in leaves if isinstance(leaf, str)]
    return (
        {"entries": len(value)}
        | ({"sum": sum(numbers)} if numbers else {})
        | ({"texts": digest(texts)} if texts else {})
    )


def _leaves(value: Any) -> Iterator[Any]:
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _leaves(inner)
        else:
            yield inner


TOPICS: dict[str, Callable[[], dict[str, Any]]] = {
    "rows": rows,
    "grid": grid,
    "profiles": profiles,
    "schedules": schedules,
    "written": written,
    "commands": commands,
    "recordings": recordings,
}
"""The topics that need nothing but the checkout; `configs` needs the archive of trainer configurations."""
