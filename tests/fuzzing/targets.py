"""What is done with each file of the corpus: read it, then project, simulate, explain and print the content."""

import json
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import ppsim
from ppsim.errors import PpsimError
from ppsim.projection.lengths import read_lengths
from ppsim.results.catalogues import print_run_config
from ppsim.results.validation import markdown
from ppsim.simulation.cost_files import message_bytes_in, read_costs
from ppsim.simulation.report import report_of
from ppsim.trainers.read_config import model_named
from ppsim.trainers.table_json import read_table
from ppsim.tuning.configurations import read_answer
from tests.fuzzing.corpus import TUNED

_MOST_ACTIONS = 20_000
"""Actions of a table that is simulated: larger ones take time that their files do not show."""


_MOST_LAYERS = 200
"""Layers of a model that is projected."""


def _is_printed(path: Path) -> bool:
    """Whether a projection is printed, which takes several more projections: one file in four."""
    return path.stat().st_size % 4 == 0


def _printed(found: Any) -> None:
    """Print a result and turn it into JSON: NaN and infinity must not be in either."""
    str(found).encode()
    if hasattr(found, "to_json"):
        json.dumps(found.to_json(), allow_nan=False)


def _configuration(path: Path) -> None:
    config = ppsim.read_run_config(path)
    with redirect_stdout(StringIO()) as text:
        print_run_config(config)
    text.getvalue().encode()
    json.dumps(config.to_json(), allow_nan=False)
    words = config.options
    batch = words.get("global_batch") or (words.get("microbatches") or 1) * (words.get("micro_batch") or 1)
    if isinstance(batch, int) and batch * (words.get("pp") or 1) * (words.get("vpp") or 1) < _MOST_ACTIONS:
        model = {} if config.model else {"model": "gpt2"}
        batches = {} if words.get("global_batch") or words.get("microbatches") else {"microbatches": 4}
        is_small = config.model is None or len(config.model.layers) < _MOST_LAYERS
        found = ppsim.project(run_config=config, cluster="dgx-h100", **model, **batches) if is_small else None
        if _is_printed(path):
            _printed(found)


def _model(path: Path) -> None:
    model = model_named(path)
    _ = model.parameters
    if len(model.layers) < _MOST_LAYERS:
        _project("model", tp=1, gpus=2, seq_len=64, cluster="dgx-h100")(path)


def _table(path: Path, read: Callable[[Path], ppsim.Schedule] = ppsim.read_schedule) -> None:
    table = read(path)
    if len(table) > _MOST_ACTIONS:
        return
    _printed(ppsim.check(table))
    costs = ppsim.StageCosts(forward_s=1.0, backward_s=2.0, backward_input_s=1.0, backward_weight_s=1.0)
    ppsim.report(ppsim.simulate(table, costs), costs=costs).encode()
    for target in ("torch", "json", "megatron", "primus"):
        with suppress(PpsimError):
            ppsim.export(table, to=target)


def _costs(path: Path) -> None:
    costs = read_costs(path)
    message_bytes_in(path)
    timeline = ppsim.simulate(ppsim.read_schedule("T.csv"), costs)
    ppsim.report(timeline, costs=costs).encode()
    json.dumps(report_of(timeline, costs), allow_nan=False)


def _project(word: str, **others: Any) -> Callable[[Path], None]:
    def projected(path: Path) -> None:
        found = ppsim.project(**{word: str(path)}, **({"pp": 2, "microbatches": 4} | others))
        if _is_printed(path):
            _printed(found)

    return projected


def _recording(path: Path) -> None:
    run = ppsim.read(path)
    _printed(run)
    if not isinstance(run, ppsim.LogTotals):
        for made_of in (ppsim.explain, ppsim.compare, ppsim.calibrate):
            _printed(made_of(run))


def _timeline(path: Path) -> None:
    ppsim.read_timeline(path).to_frame()
    _printed(ppsim.explain("measured0.json", against=path))


def _validated(path: Path) -> None:
    found = ppsim.validate(path)
    _printed(found)
    markdown(found.sets).encode()


def _lengths(path: Path) -> None:
    found = read_lengths(path)
    if sum(found) < 10**6:
        _project(
            "lengths", model="gpt2", gpus=2, seq_len=128, cluster="dgx-h100", global_batch=8, microbatches=None
        )(path)


def _tuned(path: Path) -> None:
    _printed(ppsim.tune(**TUNED, resume=str(path)))


_CLUSTER = _project("cluster", model="gpt2", tp=1, gpus=2, seq_len=128)

TARGETS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(
        ("megatron.yaml", "experts.yaml", "hybrid.yaml", "arguments.log", "train.sh", "titan.sh", "titan.toml", "bridge.yaml",
         "bridge.json", "experiment.yaml", "deepspeed.json", "primus/configs/models/megatron/small.yaml"),
        _configuration,
    ),
    **dict.fromkeys(("llama.json", "deepseek.json"), _model),
    **dict.fromkeys(("T.csv", "dual.csv", "comms.csv"), _table),
    "t.json": lambda path: _table(path, read_table),
    **dict.fromkeys(("C.json", "matrix.json"), _costs),
    **dict.fromkeys(
        ("measured.json", "trace.json", "passes.csv", "run.sqlite", "train.log", "dump/pp_rank_1.json", "dump/config.json",
         "otlp.jsonl", "console.jsonl"),
        _recording,
    ),
    "projected.json": _timeline,
    "overheads.json": _project("calibration"),
    "profile.json": _project("profile"),
    **dict.fromkeys(("cluster.json", "cluster.toml", "cluster.yaml"), _CLUSTER),
    "plan.toml": _project("stage_plan", model="gpt2", gpus=2, seq_len=128, cluster="dgx-h100"),
    "lengths.txt": _lengths,
    "runs.csv": _validated,
    "tune.json": lambda path: _printed(read_answer(path)),
    "state.json": _tuned,
}  # fmt: skip
"""By name of a file in the corpus, what is done with it. A file in a folder is read as a part of it."""
