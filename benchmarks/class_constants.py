"""Fit the calibration constants per GPU type, using only the rows of `ppsim validate` marked fit.

    python benchmarks/class_constants.py           # every class with rows
    python benchmarks/class_constants.py gb200     # one

The result is one GEMM constant per number format and class: the in-situ factor if a kernel table is in use, else
the fraction of the peak. The fit minimises squared logarithms of projected / measured times, and squared distances
of the logarithms of constants from their starting values (`PRIOR`). A row beyond `OUTLIER` counts linearly (Huber
1964). Rows of models with experts are used for the GEMMs of experts only, with the constants found for the other
GEMMs. Runs in deterministic mode are not used, because something else takes their time. Constants of clusters are
left out, so that the class itself is evaluated.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ppsim.api.project import plan_of_keywords
from ppsim.base.arrays import Floats
from ppsim.base.errors import PpsimError
from ppsim.machine.cluster import Cluster, Constants, Efficiency
from ppsim.machine.cluster_files import load_cluster
from ppsim.validation.project_case import measured_of, project_run
from ppsim.validation.published_runs import PublishedRun, case_sets, cases_of

OUTLIER = 0.1
"""Error of a row's logarithm above which the row counts linearly."""

ROW_SIGMA = {False: 0.05, True: 0.2}
"""Standard deviation between runs, releases, installations and models: of dense models (False) and of models with
experts (True). With experts, models differ more from each other than repeated runs do.
"""

PRIOR = {"in_situ": (1.1, 0.1), "matmul": (None, 0.3), "experts": (1.1, 0.15)}
"""Starting value of a constant (None: the value in use), and the standard deviation of its logarithm around it."""

OTHER_PHYSICS = ("megatron-golden", "mt-nlg", "zero-bubble", "zero-bubble-sync", "simumax-b200")
"""Sets whose fit rows do not determine GEMM constants (see above). SimuMax' rows determine kernel_s of the b200
class.
"""


@dataclass(frozen=True)
class Row:
    """A fit row, its cluster without fitted constants, and the measured seconds."""

    case: PublishedRun
    cluster: Cluster
    measured: float
    has_experts: bool

    def error(self, efficiency: Efficiency) -> float:
        tried = replace(self.cluster, device=replace(self.cluster.device, efficiency=efficiency))
        words = {**self.case.options, "cluster": tried, "rest": 0.0}
        return math.log(project_run(self.case, plan_of_keywords(words)) / self.measured)


def fit_rows() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for name in case_sets():
        for case in (one for one in cases_of(name) if name not in OTHER_PHYSICS and one.properties.use == "fit"):
            try:
                plan = plan_of_keywords(case.options)
            except PpsimError:
                continue
            job = plan.job
            if job is not None and not case.is_memory and not case.properties.unexpressed:
                base = load_cluster(job.cluster.base or job.cluster.name)  # device without fitted constants
                cluster = replace(job.cluster, constants=Constants(), device=base.device)
                has_experts = job.model.has_experts
                row = Row(case, cluster, measured_of(case, plan), has_experts)
                found.setdefault(job.cluster.device.efficiency_class, []).append(row)
    return found


def constants_of(rows: list[Row]) -> dict[str, float]:
    """Return the constants of a class that the rows determine, by name."""
    efficiency = rows[0].cluster.device.efficiency
    found = {"experts": efficiency.experts} if rows[0].has_experts else {}
    for row in (row for row in rows if not row.has_experts):
        dtype = str(row.case.settings.get("dtype") or "bfloat16")
        in_situ = efficiency.in_situ.factors if efficiency.in_situ else {}
        for table, values in (("in_situ", in_situ), ("matmul", efficiency.matmul)):
            name = next((one for one in (dtype, "float8" if dtype == "mxfp8" else dtype) if one in values), None)
            if name is not None:
                found[f"{table}.{name}"] = values[name]
                break
    return found


def with_constants(efficiency: Efficiency, values: Mapping[str, float]) -> Efficiency:
    for name, value in values.items():
        table, _, dtype = name.partition(".")
        if table == "experts":
            efficiency = replace(efficiency, experts=value)
        elif table == "matmul":
            efficiency = replace(efficiency, matmul={**efficiency.matmul, dtype: value})
        elif efficiency.in_situ is not None:
            factors = {**efficiency.in_situ.factors, dtype: value}
            efficiency = replace(efficiency, in_situ=replace(efficiency.in_situ, factors=factors))
    return efficiency


def fitted(rows: list[Row], *, rounds: int = 8) -> dict[str, float]:
    """Return the least-squares constants of a class, to three digits, by Gauss-Newton steps."""
    names, start = list(in_use := constants_of(rows)), rows[0].cluster.device.efficiency
    priors = [PRIOR[name.partition(".")[0]] for name in names]
    centres = np.log([centre or in_use[name] for name, (centre, _) in zip(names, priors, strict=True)])
    pull = np.diag([1 / sigma for _, sigma in priors])
    logs = centres.copy()

    def errors(logs: Floats) -> Floats:
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return np.array([row.error(with_constants(start, values)) for row in rows])

    for _ in range(rounds):
        now, step = errors(logs), 1e-3
        slopes = np.stack([(errors(logs + step * unit) - now) / step for unit in np.eye(len(names))], axis=1)
        weights = np.sqrt(np.minimum(1.0, OUTLIER / np.maximum(np.abs(now), 1e-9))) / ROW_SIGMA[rows[0].has_experts]
        left = np.concatenate([slopes * weights[:, None], pull])
        right = np.concatenate([-now * weights, pull @ (centres - logs)])
        moved = np.linalg.lstsq(left, right, rcond=None)[0]
        logs = logs + moved
        if np.abs(moved).max() < 1e-4:
            break
    return {name: float(f"{value:.3g}") for name, value in zip(names, np.exp(logs), strict=True)}


def main() -> None:
    asked = sys.argv[1:]
    for name, all_rows in fit_rows().items():
        if asked and name not in asked:
            continue
        for has_experts in (False, True):
            rows = [row for row in all_rows if row.has_experts == has_experts]
            if rows:
                show(name, rows)


def show(name: str, rows: list[Row]) -> None:
    efficiency = rows[0].cluster.device.efficiency
    found, in_use = fitted(rows), constants_of(rows)
    print(name, *(f"{one} {value:g} (in use {in_use[one]:g})" for one, value in found.items()))
    for row in rows:
        before, after = row.error(efficiency), row.error(with_constants(efficiency, found))
        words = row.case.settings
        what = f"{row.case.properties.title} {words['gpus']} {words.get('dtype')} tp {words.get('tp')}"
        print(f"   {100 * math.expm1(before):+6.1f} % → {100 * math.expm1(after):+6.1f} %  {what}")


if __name__ == "__main__":
    main()
