"""torch's own loader takes every file that we export for it, and refuses none."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.pipelining import schedules

from ppsim.base.errors import PpsimError
from ppsim.catalog.build import CATALOG, build
from ppsim.trainers.torch.write_schedule import torch_csv
from tests.cli.running import ppsim as run
from tests.runtime.cases import stage_of

SHIPPED = sorted((Path(__file__).parents[3] / "schedules").glob("*.csv"))
SHAPES = list(product((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 5, 8)))


def load(path: Path, *, num_ranks: int, num_stages: int, num_microbatches: int, file_format: str) -> None:
    """Load a file in `_PipelineScheduleRuntime` of the installed torch; raises what it raises."""
    stage = stage_of(num_ranks=num_ranks, num_stages=num_stages)
    schedules._PipelineScheduleRuntime([stage], num_microbatches)._load_csv(str(path), format=file_format)


@pytest.mark.parametrize("name", CATALOG)
def test_torch_loads_every_shape_of_every_schedule_that_we_export(name: str, tmp_path: Path) -> None:
    entry, num_loaded = CATALOG[name], 0
    for pp, vpp, m in SHAPES:
        if entry.why_not(pp=pp, vpp=vpp, microbatches=m) is not None:
            continue
        table = build(name, pp=pp, vpp=vpp, microbatches=m)
        counts: dict[str, Any] = {"num_ranks": pp, "num_stages": pp * vpp, "num_microbatches": m}
        path = tmp_path / "T.csv"
        for with_communication, file_format in ((False, "compute_only"), (True, "compute_comms")):
            try:
                path.write_text(torch_csv(table, with_communication=with_communication))
            except PpsimError:
                assert entry.not_in_torch is not None
                continue
            load(path, **counts, file_format=file_format)
            num_loaded += 1
    assert (num_loaded == 0) == (entry.not_in_torch is not None)


@pytest.mark.parametrize("table", SHIPPED, ids=lambda path: path.stem)
def test_the_export_of_a_shipped_csv_loads_with_the_microbatches_of_its_name_or_is_refused(
    table: Path, tmp_path: Path
) -> None:
    name, pp, vpp, m = table.stem.rsplit("_", 3)
    is_refused = CATALOG[name].not_in_torch is not None
    out = tmp_path / "out.csv"
    run("export", table, "--to", "torch", "-o", out, code=2 if is_refused else 0)
    assert out.exists() != is_refused
    if not is_refused:
        counts = {"num_ranks": int(pp[2:]), "num_microbatches": int(m[1:])}
        load(out, num_stages=int(pp[2:]) * int(vpp[1:]), file_format="compute_only", **counts)


@pytest.mark.parametrize(
    "target", ["torch", "torch-comms", "torchtitan", "deepspeed", "primus", "megatron", "transformer-engine"]
)
def test_a_csv_of_slices_is_refused_by_every_export_without_an_option(target: str, tmp_path: Path) -> None:
    table, out = tmp_path / "T.csv", tmp_path / "out"
    run("build", "seq1f1b", "--pp", 4, "--num-microbatches", 8, "-o", table)
    refused = run("export", table, "--to", target, "-o", out, code=2).stderr
    assert "cannot run T: it runs whole microbatches, this table cuts each into 4 slices" in refused
    assert not out.exists()


def test_torch_itself_refuses_a_csv_of_slices(tmp_path: Path) -> None:
    run("build", "seq1f1b", "--pp", 4, "--num-microbatches", 8, "-o", tmp_path / "T.csv")
    for m in (8, 32):
        with pytest.raises(RuntimeError, match="Invalid action string: # slices 4"):
            load(tmp_path / "T.csv", num_ranks=4, num_stages=4, num_microbatches=m, file_format="compute_only")


@pytest.mark.parametrize("options", [["--schedule", "T.csv"], ["--schedule", "seq1f1b", "--pp", 2]])
def test_train_refuses_slices_before_it_starts(options: list[Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run("build", "seq1f1b", "--pp", 2, "--num-microbatches", 2, "-o", "T.csv")
    assert "this table cuts each into 4 slices" in run("train", *options, code=2).stderr
