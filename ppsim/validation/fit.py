"""Refit of a packaged cluster's constants to its rows marked fit."""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.machine.cluster import Cluster
from ppsim.machine.cluster_files import load_cluster
from ppsim.validation.project_case import PlanOf, measured_of, project_run
from ppsim.validation.published_runs import cases_of, require_set

_START = {
    "compute_share": 1.0,
    "kernel_s": 10e-6,
    "launch_s": 1e-3,
    "jitter": 0.02,
    "overlap_slowdown": 0.5,
    "rest": 0.1,
}
_OUTLIER = 0.02
"""Relative error beyond which the loss is linear instead of quadratic (Huber 1964)."""


@dataclass(frozen=True)
class FittedCluster:
    """Names are as in `Constants.named`, or options of the jobs that were fitted together with the constants."""

    cluster: Cluster
    found: dict[str, float]
    in_use: dict[str, float]
    num_rows: int


def fit_cluster(name: str, plan_of: PlanOf, *, rounds: int = 30) -> FittedCluster:
    """Gauss-Newton on relative errors of time, from fixed starting values, with reduced weight beyond `_OUTLIER`.

    Raises `ConfigError` for a cluster whose constants come from no set.
    """
    cluster = load_cluster(name)
    sets = [require_set(one) for one in cluster.constants.fitted_on]
    cases = [case for one in cluster.constants.fitted_on for case in cases_of(one) if case.properties.use == "fit"]
    if not cases:
        raise ConfigError(f"the constants of cluster '{name}' were fitted on no set")
    in_use = {constant: one.value for constant, one in cluster.constants.named.items()}
    in_use |= {word: told.defaults[word] for told in sets for word in told.fitted}
    names = list(in_use)
    values = np.array([_START[constant.partition(".")[0]] for constant in names])
    measured = np.array([measured_of(case, plan_of(case.options)) for case in cases])

    def errors(values: Floats) -> Floats:
        tried = dict(zip(names, values.tolist(), strict=True))
        machine = cluster.with_constants(cluster.constants.with_values(tried))
        words = {name: value for name, value in tried.items() if name not in cluster.constants.named}
        plans = (plan_of({**case.options, "cluster": machine, **words}) for case in cases)
        found: Floats = np.array(list(map(project_run, cases, plans))) / measured - 1
        return found

    for _ in range(rounds):
        now = errors(values)
        slopes = np.empty((len(cases), len(names)))
        for index, value in enumerate(values):
            moved = values.copy()
            moved[index] += (by := 1e-3 * max(value, 1e-6))
            slopes[:, index] = (errors(moved) - now) / by
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(np.abs(now), 1e-12)))
        step = np.linalg.lstsq(slopes * weights[:, None], -now * weights, rcond=None)[0]
        values = np.maximum(values + step, 0.0)
        if np.all(np.abs(step) <= 1e-4 * np.maximum(values, 1e-7)):
            break
    found = {constant: float(f"{value:.3g}") for constant, value in zip(names, values, strict=True)}
    return FittedCluster(cluster, found, in_use, len(cases))
