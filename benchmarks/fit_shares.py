"""Find again what runs differ by, from the rows of `ppsim validate` marked fit and from no other.

    python benchmarks/fit_shares.py

How far a projected step is off is one spread a class of devices. A fit to one run has to know what of it is the
machine's, what the model's in a dtype, what of the way in which its layers are cut (`Job.alike`), and what one run's:
ratios of standard deviations, here the most probable, of dense models and of those with experts. Rows of a set share a
cluster's constants, by both steps' slopes, and jobs; their errors' logarithms have Student's distribution together, of
`FREEDOM` degrees, by which a set that is far off as a whole speaks softly. Of models with experts a set has one row a job
at most: there all sets' rows stand together, jobs shared among clusters, without those that a fit doubts. Constants of a
cluster are left out. A ratio's prior is around `START`, within a factor of `FACTOR` (the standard deviation of its
logarithm), by which those that few rows tell stay in sight.

Behind them: what a fit to one row makes of another of its set, each with each, the mean of sizes before and after.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppsim.api.plans import plan_of
from ppsim.base.arrays import Floats
from ppsim.costs.job import Job
from ppsim.machine.cluster import Constants
from ppsim.projection.answering import MEASURED_SPREAD, spread_of
from ppsim.projection.fitted_spread import DENSE_SHARES, EXPERTS_SHARES, MACHINE_SHARE, Shares
from ppsim.projection.plan import Plan
from ppsim.validation.cases import case_sets, cases_of
from ppsim.validation.posterior import OUTLIER, Question, Row, fitted_plan_of, rows_of
from ppsim.validation.posterior import fit_rows as fit_to
from ppsim.validation.predict import PlanOf, predict
from ppsim.validation.priors import priors_of

FREEDOM = 3
NAMES = ("machine", "model", "cut", "run")
START = np.log([0.5, 0.4, 0.4, 0.02])
FACTOR = np.array([1.0, 1.0, 1.0, 0.3])


@dataclass(frozen=True)
class Together:
    """Rows that may share something: errors' logarithms, and what two of them share of each name, by unit ratios."""

    errors: Floats
    covariances: list[Floats]

    def badness(self, logs: Floats) -> float:
        """Return minus the logarithm of the density at ratios with these logarithms, but for a constant."""
        squares = np.exp(2 * logs)
        whole = np.sum([square * one for square, one in zip(squares, self.covariances, strict=True)], axis=0)
        off = float(self.errors @ np.linalg.solve(whole, self.errors))
        tail = (FREEDOM + len(self.errors)) / 2 * math.log1p(off / FREEDOM)
        return 0.5 * float(np.linalg.slogdet(whole)[1]) + tail


def badness(groups: Sequence[Together], logs: Floats) -> float:
    """Return minus the logarithm of the ratios' posterior density."""
    off = (logs - START) / FACTOR
    return sum(one.badness(logs) for one in groups) + 0.5 * float(off @ off)


def fit_rows() -> list[Row]:
    """Return the rows of time, on clusters without constants of their own."""
    found = []
    for name, told in case_sets().items():
        cases = [case for case in cases_of(name) if case.told.use == "fit"]
        if told.order_only or told.section == "measured costs":
            continue
        for row in rows_of(cases, plan_of, name)[0]:
            assert row.plan.job is not None
            cluster = replace(row.plan.job.cluster, constants=Constants())
            words = {**row.case.words, "cluster": cluster, "rest": 0.0}
            found.append(replace(row, case=replace(row.case, words=words), plan=plan_of(words)))
    return found


def together(rows: Sequence[Row]) -> Together:
    """Return what rows share, of several sets jobs only."""
    plans = [row.plan for row in rows]
    spreads = np.array([spread_of(plan) for plan in plans])
    errors, machine = np.zeros(len(rows)), np.zeros((len(rows), len(rows)))
    for mine in by_set(rows):
        ran = [rows[index] for index in mine]
        cluster = _job(ran[0].plan).cluster
        priors = priors_of(cluster, [row.plan for row in ran])
        question = Question(cluster, ran, [_job(row.plan).model for row in ran], plan_of)
        at = np.zeros(len(priors))
        errors[mine] = now = question.logs(priors, at)
        slopes = question.slopes(priors, at, now) / MACHINE_SHARE
        machine[np.ix_(mine, mine)] = slopes @ slopes.T
    names = np.array([_job(plan).alike for plan in plans])
    jobs = [np.outer(spreads, spreads) * (of[:, None] == of[None, :]) for of in names.T]
    return Together(errors, [machine, *jobs, np.eye(len(rows))])


def by_set(rows: Sequence[Row]) -> list[list[int]]:
    """Return the places of rows of one set and cluster."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault((row.name.partition(",")[0], _job(row.plan).cluster.name), []).append(place)
    return list(found.values())


def of_one_row(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the mean size of errors of rows before and after a fit on each other one of their set.

    A set counts by the root of how many rows it has.
    """
    found, weights = [], []
    for mine in (one for one in by_set(rows) if len(one) > 1):
        after = {one: _after(rows[one]) for one in mine}
        pairs = [(after[one], rows[other]) for one in mine for other in mine if one != other]
        found.append([(abs(_error(row, plan_of)), abs(_error(row, fitted))) for fitted, row in pairs])
        weights.append(math.sqrt(len(mine)))
    before, after = np.average([np.mean(one, axis=0) for one in found], axis=0, weights=weights)
    return float(before), float(after)


def _after(row: Row) -> PlanOf:
    return fitted_plan_of({_job(row.plan).cluster.name: fit_to([row], plan_of)}, plan_of)


def _error(row: Row, made_by: PlanOf) -> float:
    return predict(row.case, made_by(row.case.words)) / row.measured_s - 1


def _job(plan: Plan) -> Job:
    assert plan.job is not None
    return plan.job


def most_probable(groups: Sequence[Together]) -> Floats:
    """Return the logarithms of ratios with the least badness, by steps along each that halve."""
    logs, step = START.copy(), 0.8
    while step > 1e-3:
        tries = [logs + sign * step * unit for unit in np.eye(len(logs)) for sign in (1, -1)]
        best = min(tries, key=lambda tried: badness(groups, tried))
        if badness(groups, best) < badness(groups, logs):
            logs = best
        else:
            step /= 2
    return logs


def show(name: str, groups: Sequence[Together], in_use: Shares) -> None:
    """Print the ratios found beside those in use, and how much worse a half and twice of each is."""
    logs = most_probable(groups)
    least, unit = badness(groups, logs), np.eye(len(logs)) * math.log(2)
    print(f"{name}, {sum(len(one.errors) for one in groups)} rows")
    known = (MACHINE_SHARE, in_use.of_model, in_use.of_cut, MEASURED_SPREAD)
    for place, (what, number) in enumerate(zip(NAMES, known, strict=True)):
        worse = [badness(groups, logs + sign * unit[place]) - least for sign in (-1, 1)]
        shown = f"a half: +{worse[0]:.1f}, twice: +{worse[1]:.1f}"
        print(f"   {what:8} {math.exp(logs[place]):.3f} (in use {number:g})   {shown}")


def main() -> None:
    """Print what is found of both kinds."""
    rows = fit_rows()
    experts = [row for row in rows if any(layer.is_moe for layer in _job(row.plan).model.kinds)]
    dense = [row for row in rows if row not in experts]
    show("dense", [together([dense[place] for place in mine]) for mine in by_set(dense)], DENSE_SHARES)
    believed = [row for row in experts if abs(math.log1p(_error(row, plan_of))) <= OUTLIER * spread_of(row.plan)]
    show("experts", [together(believed)], EXPERTS_SHARES)
    for name, mine in (("dense", dense), ("experts", experts)):
        before, after = of_one_row(mine)
        print(f"{name}, a row after a fit on another of its set: {100 * before:.2f} → {100 * after:.2f} %")


if __name__ == "__main__":
    main()
