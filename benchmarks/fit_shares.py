"""Fit the shared parts of errors between runs, using only the rows of `ppsim validate` marked fit.

    python benchmarks/fit_shares.py

First, the spread of each device class: the 90 % quantile of the absolute errors' logarithms over 1.645, averaged in
squares with `OF_ALL` rows of all classes. Second, the fractions that rows of the same set and cluster share
(`ppsim.machine.job_similarity`), one result for all classes. It maximises the posterior density. The logarithms of errors
have a multivariate Student's t distribution with `FREEDOM` degrees of freedom, so that a set with a common offset
has little influence. Constants of clusters are left out; the shared error of the machine follows from the slopes of
both steps. The prior is centred at `START`, with a standard deviation of a factor of two (in the logarithm), so
that fractions that few rows determine stay near it.

Finally, the effect of a fit to one row on another row of its set, for all pairs: the mean absolute error before and
after, with fractions fitted to the other sets only, and the coverage of the 90 % interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppsim.api.project import plan_of_keywords
from ppsim.base.arrays import Floats
from ppsim.costs.job import Job
from ppsim.costs.similar_jobs import features_of
from ppsim.machine.cluster import Constants
from ppsim.machine.job_similarity import (
    MEASURED_SPREAD,
    SHARES,
    USUAL,
    CovarianceParameters,
    JobFeatures,
    job_covariance,
)
from ppsim.projection.summary import ESTIMATE_SPREAD, EXPERTS_SPREAD, spread_of
from ppsim.validation.bayesian_fit import FitProblem, MeasuredStep, priors_of, rows_of
from ppsim.validation.published_runs import case_sets, cases_of

FREEDOM = 3
OF_ALL = 4
START = CovarianceParameters(machine=0.4, cut=1.0, size=4.0, dtype=0.5)
FACTOR = 2.0


@dataclass(frozen=True)
class Together:
    """Rows of a set and cluster: their jobs, device classes, spreads, logarithms of errors, and slopes."""

    jobs: Sequence[JobFeatures]
    classes: Sequence[str]
    has_experts: Sequence[bool]
    spreads: Floats
    errors: Floats
    slopes: Floats

    def covariance(self, shares: CovarianceParameters) -> Floats:
        of_jobs = np.outer(self.spreads, self.spreads) * job_covariance(self.jobs, self.jobs, shares)
        return (
            shares.machine**2 * self.slopes @ self.slopes.T + of_jobs + MEASURED_SPREAD**2 * np.eye(len(self.jobs))
        )

    def badness(self, shares: CovarianceParameters) -> float:
        """Return minus the logarithm of the density, up to a constant."""
        whole = self.covariance(shares)
        off = float(self.errors @ np.linalg.solve(whole, self.errors))
        tail = (FREEDOM + len(self.errors)) / 2 * math.log1p(off / FREEDOM)
        return 0.5 * float(np.linalg.slogdet(whole)[1]) + tail

    def after(self, shares: CovarianceParameters, usual: float = USUAL) -> list[tuple[float, float, bool]]:
        """Return the absolute errors of each row before and after a fit on another row, and the coverage."""
        whole, found = self.covariance(shares), []
        for one, other in np.argwhere(~np.eye(len(self.jobs), dtype=bool)):
            most = usual * self.spreads[other]
            weight = whole[one, other] / whole[other, other]
            left = self.errors[one] - weight * min(most, max(-most, self.errors[other]))
            spread = math.sqrt(whole[one, one] - weight * whole[one, other])
            found.append((abs(self.errors[one]), abs(left), abs(left) < 1.645 * spread))
        return found


def sets() -> list[Together]:
    """Return the rows with times, on clusters without fitted constants."""
    found = []
    for name, told in case_sets().items():
        cases = [case for case in cases_of(name) if case.properties.use == "fit"]
        if told.order_only or told.section == "measured costs":
            continue
        clusters: dict[str, list[MeasuredStep]] = {}
        for row in rows_of(cases, plan_of_keywords, name)[0]:
            cluster = replace(_job(row).cluster, constants=Constants())
            words = {**row.case.options, "cluster": cluster, "rest": 0.0}
            bare = replace(row, case=replace(row.case, options=words), plan=plan_of_keywords(words))
            clusters.setdefault(cluster.name, []).append(bare)
        found += [_together(rows) for rows in clusters.values()]
    return found


def _together(rows: Sequence[MeasuredStep]) -> Together:
    plans, jobs = [row.plan for row in rows], [_job(row) for row in rows]
    priors = priors_of(jobs[0].cluster, plans)
    question = FitProblem(jobs[0].cluster, rows, [job.model for job in jobs], plan_of_keywords)
    at = np.zeros(len(priors))
    errors = question.logs(priors, at)
    return Together(
        [features_of(job) for job in jobs],
        [job.cluster.device.efficiency_class for job in jobs],
        [job.model.has_experts for job in jobs],
        np.array([spread_of(plan) for plan in plans]), errors,
        question.slopes(priors, at, errors) / SHARES.machine,
    )  # fmt: skip


def _job(row: MeasuredStep) -> Job:
    assert row.plan.job is not None
    return row.plan.job


def badness(groups: Sequence[Together], logs: Floats) -> float:
    """Return minus the logarithm of the posterior density of shares with these logarithms."""
    off = (logs - _logs(START)) / math.log(FACTOR)
    return sum(one.badness(_shares(logs)) for one in groups) + 0.5 * float(off @ off)


def _logs(shares: CovarianceParameters) -> Floats:
    """Return logarithms of the shares; for fractions, which are below 1, the logarithm of their odds."""
    return np.array(
        [math.log(one / (1 - one)) if name in _PARTS else math.log(one) for name, one in vars(shares).items()]
    )


def _shares(logs: Floats) -> CovarianceParameters:
    values = np.exp(logs)
    return CovarianceParameters(*(
        float(value / (1 + value) if name in _PARTS else value)
        for name, value in zip(vars(START), values, strict=True)
    ))  # fmt: skip


_PARTS = ("machine", "dtype")


def most_probable(groups: Sequence[Together]) -> Floats:
    """Return the logarithms of the most probable shares, by coordinate search with decreasing steps."""
    logs, step = _logs(START), 0.8
    while step > 1e-2:
        tries = [logs + sign * step * unit for unit in np.eye(len(logs)) for sign in (1, -1)]
        best = min(tries, key=lambda tried: badness(groups, tried))
        if badness(groups, best) < badness(groups, logs):
            logs = best
        else:
            step /= 2
    return logs


def show_spreads(groups: Sequence[Together]) -> None:
    for is_experts, of_none in ((False, ESTIMATE_SPREAD), (True, EXPERTS_SPREAD)):
        rows = [
            (name, abs(error), spread) for one in groups
            for name, experts, error, spread in zip(
                one.classes, one.has_experts, one.errors, one.spreads, strict=True
            )
            if experts == is_experts
        ]  # fmt: skip
        whole = _of_nine_in_ten([size for _, size, _ in rows])
        print(f"{'experts' if is_experts else 'dense':8} all classes {whole:.2f} (in use {of_none:g})")
        for name in dict.fromkeys(name for name, *_ in rows):
            mine = [(size, spread) for of, size, spread in rows if of == name]
            own = _of_nine_in_ten([size for size, _ in mine])
            found = math.sqrt((len(mine) * own**2 + OF_ALL * whole**2) / (len(mine) + OF_ALL))
            print(f"   {name:12} {len(mine):2} rows {found:.2f} (in use {mine[0][1]:g})")


def _of_nine_in_ten(sizes: Sequence[float]) -> float:
    return float(np.quantile(sizes, 0.9)) / 1.645


def main() -> None:
    groups = sets()
    show_spreads(groups)
    logs = most_probable(groups)
    least, unit = badness(groups, logs), np.eye(len(logs)) * math.log(2)
    for place, (name, number) in enumerate(vars(_shares(logs)).items()):
        worse = [badness(groups, logs + sign * unit[place]) - least for sign in (-1, 1)]
        in_use = getattr(SHARES, name)
        print(f"{name:8} {number:.2f} (in use {in_use:g})   a half: +{worse[0]:.1f}, twice: +{worse[1]:.1f}")
    for is_experts in (False, True):
        several = [one for one in groups if len(one.jobs) > 1 and one.has_experts[0] == is_experts]
        shares = [_shares(most_probable([other for other in groups if other is not one])) for one in several]
        weights = [math.sqrt(len(one.jobs)) for one in several]
        print("experts" if is_experts else "dense", "after a fit on another row of the set")
        for usual in (0.5, 1.0, 2.0, 3.0):
            found = [np.mean(one.after(of, usual), axis=0) for one, of in zip(several, shares, strict=True)]
            before, after, inside = np.average(found, axis=0, weights=weights)
            said = f"{100 * before:.2f} → {100 * after:.2f} %, {100 * inside:.0f} % inside"
            print(f"   usual up to {usual:g}{' (in use)' if usual == USUAL else ''}: {said}")


if __name__ == "__main__":
    main()
