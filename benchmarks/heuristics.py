"""The published heuristics, without ppsim's search."""

from functools import reduce

from ppsim.catalog.search import v_shape_search as of_a_v
from ppsim.catalog.search.target import SearchTarget


def zbv_heuristic(problem):
    """Return the best span of the ZB-V heuristic's runs (arXiv 2401.10241, §6), or None if no run fits."""
    runs = list(of_a_v.heuristic_runs(SearchTarget(problem, "span")))
    return _first_best(runs).schedule("zbv-heuristic") if runs else None


def _first_best(runs):
    """Return the best run by the criterion alone, as the authors do; of equal ones the first."""

    def better(first, second):
        return second if second.score_s < first.score_s - first.target.tolerance_s else first

    return reduce(better, runs)
