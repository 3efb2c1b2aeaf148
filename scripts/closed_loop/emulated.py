"""Compare simulated with measured steps whose costs are known exactly: torch's runtime waits instead of computing.

Every step runs in the runtime of torch.distributed.pipelining over gloo. The order of actions, messages and host
time are real; the seconds of each action are given. Two constants, the host time per action and the latency per P2P
transfer, are fitted to the GPipe runs with equal stages, and used for all other runs.
"""

import functools
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from summary import row, summed_up

import ppsim
from ppsim.base.files import to_json
from ppsim.base.units import seconds, signed_percent
from ppsim.runs.calibrate import calibrate
from ppsim.runs.compare import replay_s
from ppsim.runs.timeline_import import ImportedRun, import_result
from ppsim.runtime.launch import launch_all
from ppsim.runtime.train_config import MODELS, TrainConfig
from ppsim.schedule.grammar import format_table
from ppsim.simulation.cost_files import costs_to_json
from ppsim.simulation.simulate import simulate_graph


@dataclass(frozen=True)
class Case:
    """One run. On each stage, an action takes `action_s` / vpp, times a random factor of 1 ± `spread`."""

    name: str
    p: int
    m: int
    action_s: float
    spread: float = 0.0
    transfer_s: float = 0.0
    channel: str = "ideal"

    @property
    def table(self) -> ppsim.Schedule:
        """The schedule to run."""
        vpp = 2 if self.name in ("interleaved-1f1b", "zbv-fixed") else None
        return ppsim.build(self.name, pp=self.p, vpp=vpp, microbatches=self.m)

    @property
    def costs(self) -> ppsim.StageCosts:
        """The times for which the runtime waits; random, with the same seed in every run."""
        table, random = self.table, np.random.default_rng(7)
        one = self.action_s / table.vpp

        def each() -> list[float]:
            return list(one * (1 + self.spread * random.uniform(-1, 1, table.num_stages)))

        return ppsim.StageCosts(
            forward_s=each(), backward_input_s=each(), backward_weight_s=each(),
            transfer_s=self.transfer_s, channel=self.channel,
        )  # fmt: skip


SHAPES = ((4, 8), (8, 16))
NUM_STEPS = 3
"""Recorded steps per run; the median step is used."""
CALIBRATION = [Case("gpipe", p, m, action_s) for p, m in SHAPES for action_s in (0.05, 0.1)]
GRID = [
    case
    for p, m in SHAPES
    for action_s in (0.05, 0.1)
    for name in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv-fixed")
    for spread in (0.0, 0.2)
    if (case := Case(name, p, m, action_s, spread)) not in CALIBRATION
]
CHANNELS = [
    Case(name, 4, 8, 0.04, transfer_s=0.01, channel=channel)
    for name in ("1f1b", "interleaved-1f1b", "zbv-fixed")
    for channel in ("ideal", "edge", "pair", "rank")
]


def run(cases: list[Case], *, num_steps: int) -> dict[Case, ImportedRun]:
    """Run the cases; cases with the same number of ranks share processes."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for p in sorted({case.p for case in cases}):
            mine = [case for case in cases if case.p == p]
            configs = []
            for index, case in enumerate(mine):
                table, costs = Path(folder) / f"{p}_{index}.csv", Path(folder) / f"{p}_{index}.json"
                table.write_text(format_table(case.table))
                costs.write_text(to_json(costs_to_json(case.costs)))
                configs.append(
                    TrainConfig(
                        schedule=str(table), num_ranks=p, model=MODELS["nano"], emulate_costs=str(costs),
                        layers_per_stage=[0] * case.table.num_stages, num_steps=num_steps, num_warm_up=1,
                    )
                )  # fmt: skip
            for case, result in zip(mine, launch_all(configs), strict=True):
                counts = {"num_stages": case.table.num_stages, "num_ranks": p}
                measured[case] = import_result(result, case.table, case.costs.with_torch_first_stage(**counts))
    return measured


def simulated_s(measured: ImportedRun, fitted: dict[str, float] | None) -> float:
    """Return the simulated step time of the measured table and costs, with `fitted` constants or without."""
    costs = measured.costs
    if fitted:
        costs = costs.replace(**fitted)
    return simulate_graph(measured.timeline.graph, costs).step_time_s


def grid_section() -> tuple[str, list[dict[str, str]]]:
    """Return a table of errors over schedule, p, m, action time and stage imbalance, and a row per run."""
    return _section(GRID)


def channel_section() -> tuple[str, list[dict[str, str]]]:
    """Return a table of errors with transfers that take time, for each channel, and a row per run."""
    return _section(CHANNELS)


@functools.cache
def fitted_on_gpipe() -> dict[str, float]:
    """Return the host time per action and the latency per P2P transfer, fitted once."""
    found = calibrate([one.run for one in run(CALIBRATION, num_steps=NUM_STEPS).values()])
    assert found.hop is not None  # all calibration runs have several ranks
    return {"action_overhead_s": found.action.value, "hop_overhead_s": found.hop.value}


def _section(cases: list[Case]) -> tuple[str, list[dict[str, str]]]:
    fitted, measured = fitted_on_gpipe(), run(cases, num_steps=NUM_STEPS)
    columns: dict[str, list[float]] = {"raw": [], "fitted": [], "replay": []}
    rows = []
    for case in cases:
        one = measured[case]
        step = one.timeline.step_time_s
        found = [simulated_s(one, None), simulated_s(one, fitted), replay_s(one.timeline)]
        for column, value in zip(columns.values(), found, strict=True):
            column.append(value / step - 1)
        rows.append({
            "schedule": case.name, "p": str(case.p), "m": str(case.m), "action": seconds(case.action_s),
            "stages": f"±{case.spread:.0%}" if case.spread else "equal",
            "hop": seconds(case.transfer_s) if case.transfer_s else "–", "channel": case.channel,
            "measured": seconds(step), **{name: signed_percent(errors[-1]) for name, errors in columns.items()},
        })  # fmt: skip
    lines = [
        f"{len(rows)} runs, Python {platform.python_version()}, {platform.machine()}; fitted constants: "
        f"{seconds(fitted['action_overhead_s'])} per action, "
        f"{seconds(fitted['hop_overhead_s'])} per P2P transfer.\n",
        row(["projection", "errors"]),
        "|---|---|",
        *(row([name, summed_up(errors)]) for name, errors in columns.items()),
    ]
    return "\n".join(lines), rows
