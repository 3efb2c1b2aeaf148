"""nvidia-smi's log beside a measurement: what the GPU did while it was busy, in the time of that profile."""

import datetime
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from ppsim.costs.profile import load_profile
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.profiling.sweep import sweep
from tests.profiling.once import ONCE
from tests.profiling.test_sweep import nano_at

PATH = Path(__file__).parents[2] / "scripts" / "device_log.py"
spec = importlib.util.spec_from_file_location("device_log", PATH)
device_log = importlib.util.module_from_spec(spec)
spec.loader.exec_module(device_log)
FIELDS, under_load = device_log.FIELDS, device_log.under_load


def line(at: float, clock: Any, utilization: int = 100, reasons: str = "0x0000000000000004") -> str:
    when = datetime.datetime.fromtimestamp(at).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
    return f"{when}, 580.159.04, {clock}, 3201, 690.12, 61, {utilization}, {reasons}"


def test_samples_of_an_idle_gpu_and_of_another_time_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "device.csv"
    samples = [
        line(999.0, 345), line(1000.2, 1980, reasons="0x0000000000000000"), line(1000.4, 1700), line(1000.6, 1740),
        line(1000.8, 345, utilization=0), line(1001.0, "[N/A]"), line(2000.0, 345),
        line(1001.2, 1700)[:-12], "No devices were found", "",
    ]  # fmt: skip
    path.write_text("\n".join(samples))
    found = under_load(path, [(1000.0, 1002.0)])
    assert found == {
        "driver": "580.159.04",
        "num_samples": 3,
        "sm_clock_mhz": {"median": 1740.0, "low": 1700.0, "high": 1980.0},
        "memory_clock_mhz": {"median": 3201.0, "low": 3201.0, "high": 3201.0},
        "power_w": {"median": 690.12, "low": 690.12, "high": 690.12},
        "temperature_c": {"median": 61.0, "low": 61.0, "high": 61.0},
        "held_back": {"power cap": 2 / 3},
    }
    whole = under_load(path)
    assert whole is not None
    assert whole["num_samples"] == 5
    assert under_load(path, []) is None
    assert len(samples[1].split(",")) == len(FIELDS.split(","))


def test_it_goes_into_the_provenance_of_each_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sweeps of one file are two times; what was between them is not of it."""
    now = [1000.0]
    monkeypatch.setattr("ppsim.profiling.sweep.time.time", lambda: now[0])

    def measured(
        model: Any, key: MeasurementKey, settings: MeasuringSettings, **fields: Any
    ) -> list[dict[str, Any]]:
        from ppsim.profiling.harness import measure_shape

        now[0] += 10.0
        return measure_shape(model, key, settings)

    monkeypatch.setattr("ppsim.profiling.sweep.measure_shape", measured)
    path, log = tmp_path / "p.json", tmp_path / "device.csv"
    for batch in (1, 2):
        sweep(nano_at(path, batch), ONCE)
        now[0] += 100.0
    log.write_text("\n".join(line(at, clock) for at, clock in ((1005, 1700), (1050, 345), (1115, 1750))))
    device_log.main(str(log), [str(path)])
    device_log.main(str(log), [])
    provenance = load_profile(str(path)).provenance
    assert provenance.measured_at == [[1000.0, 1010.0], [1110.0, 1120.0]]
    assert provenance.under_load is not None
    assert provenance.under_load.sm_clock_mhz.median == 1725.0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{path}: 1725 MHz (")
    assert told[0].endswith("690 W, 61 °C, held back by power cap in 100.00 %; 2 samples")
    assert told[1].startswith(f"{log}: 1700 MHz (")
    sweep(nano_at(path, 3), ONCE)  # as before
    assert len(json.loads(path.read_text())["provenance"]["measured_at"]) == 3
