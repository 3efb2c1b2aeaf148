"""The parts of a calibration: constants of a cluster, which replace it, and overheads, which are fields of a plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.api.calibration import calibrated_cluster, overheads_of, plan_fields_of
from ppsim.base.errors import ConfigError
from ppsim.machine.cluster_files import load_cluster
from ppsim.runs.calibrate import FittedConstant, FittedOverheads

OVERHEADS = {"action_overhead_s": 0.001, "hop_overhead_s": 0.002}
OPTIONS = {"launch_ms": None, "runtime": None}
FITTED = FittedOverheads(
    action=FittedConstant(0.001, (0.0, 0.0), 1), hop=None, slowdown=None, step=None, hops=[], latency_s=None,
    bandwidth_bytes_per_s=None,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.json"


def written(path: Path, **parts: Any) -> Path:
    path.write_text(json.dumps({"format": "ppsim-calibration/1", **parts}))
    return path


def test_constants_of_a_cluster_replace_it_and_no_other(path: Path) -> None:
    written(path, base="dgx-h100")
    assert calibrated_cluster(path, None) == path
    assert calibrated_cluster(path, "dgx-h100") == path
    with pytest.raises(ConfigError, match="dgx-a100"):
        calibrated_cluster(path, "dgx-a100")
    loaded = load_cluster("dgx-a100")
    assert calibrated_cluster(path, loaded) is loaded


def test_overheads_alone_leave_the_cluster(path: Path) -> None:
    written(path, overheads=OVERHEADS)
    for cluster in (None, "dgx-h100"):
        assert calibrated_cluster(path, cluster) == cluster
        assert calibrated_cluster(FITTED, cluster) == cluster


def test_the_base_of_constants_may_be_a_file_beside_the_calibration(path: Path) -> None:
    own = path.with_name("own.toml")
    own.write_text(
        'format = "ppsim-cluster/1"\nname = "mine"\ndevice = "h200"\n[[tiers]]\nname = "node"\nlink = "nvlink4"\n'
    )
    assert calibrated_cluster(written(path, base="own.toml"), own) == path


def test_overheads_are_fields_of_the_plan(path: Path) -> None:
    assert plan_fields_of(written(path, base="dgx-h100"), OPTIONS) == {}
    assert overheads_of(path) is None
    fields = plan_fields_of(written(path, overheads=OVERHEADS), OPTIONS)
    assert (fields["action_overhead_s"], fields["hop_overhead_s"]) == (0.001, 0.002)
    assert "runtime" not in fields
    assert "bandwidth_bytes_per_s" not in fields
    assert plan_fields_of(FITTED, OPTIONS)["action_overhead_s"] == 0.001


def test_a_fitted_line_gives_the_transfers_unless_their_time_is_given(path: Path) -> None:
    written(
        path, overheads=OVERHEADS | {"latency_s": 0.003, "bandwidth_bytes_per_s": 1e9, "communication": "megatron"}
    )
    fields = plan_fields_of(path, OPTIONS)
    assert (fields["hop_overhead_s"], fields["bandwidth_bytes_per_s"]) == (0.003, 1e9)
    assert fields["runtime"] == "megatron"
    given = plan_fields_of(path, OPTIONS | {"transfer_ms": 1.0, "runtime": "torch"})
    assert given["hop_overhead_s"] == 0.002
    assert "runtime" not in given


def test_launches_are_in_the_overheads_already(path: Path) -> None:
    with pytest.raises(ConfigError, match="--launch-ms"):
        plan_fields_of(written(path, overheads=OVERHEADS), OPTIONS | {"launch_ms": 0.0})
