"""How alike two jobs on a cluster are, and what measured runs say of another job.

A Gaussian process (Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, section 2.2) over the
logarithms of measured times over what the cluster's constants say, in units of the spread of its class of devices.
Of a spread's square the constants of the machine have one part, and jobs of one model the other, the more in
common the nearer they are: a run next to the measured one gets nearly all that it was off by, one far away little.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats

MEASURED_SPREAD = 0.02
"""For measured costs: what a step differs by from its replay, and one measurement from the next."""

USUAL = 1.0
"""Spreads of its class beyond which a run counts by its distance, not by its square (Huber 1964), for all but jobs
cut as it is: of 0.5 to 3 the one after which rows marked fit are nearest (`python benchmarks/fit_shares.py`)."""


@dataclass(frozen=True)
class Shares:
    """What runs have in common.

    `machine`: what of its class's spread a constant has among installations. `cut`: how far layers' cuts are apart,
    and `size`: how far jobs are in stages and devices, where what they have in common is down to exp(-1/2); a
    factor of two in one number is 1, as is another recomputation. `dtype`: what is in common in another dtype.
    """

    machine: float
    cut: float
    size: float
    dtype: float


SHARES = Shares(machine=0.42, cut=0.79, size=6.4, dtype=0.57)
"""Most probable for the rows of `ppsim validate` marked fit (`python benchmarks/fit_shares.py`)."""

_CUT = ("tp", "cp", "ep", "micro_batch", "seq_len")
_SIZE = ("pp", "gpus")


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """What of a job says how near it is to another: its model, how its layers are cut, and how large it is."""

    model: str
    dtype: str
    tp: int
    cp: int
    ep: int
    micro_batch: int
    seq_len: int
    recompute: str = "none"
    cuda_graphs: str = "none"
    pp: int
    gpus: int

    @property
    def of_cut(self) -> tuple[object, ...]:
        """What jobs have alike whose layers take the same kernels and messages."""
        return self.model, self.dtype, self.recompute, self.cuda_graphs, *(getattr(self, name) for name in _CUT)

    @property
    def title(self) -> str:
        """Model, dtype, devices and cut in a word each."""
        cut = f"tp{self.tp}-cp{self.cp}-ep{self.ep}-pp{self.pp}-b{self.micro_batch}-s{self.seq_len}"
        return f"{self.model}/{self.dtype} on {self.gpus}, {cut}"


@dataclass(frozen=True, kw_only=True)
class Run(Likeness):
    """A measured run: `times` as long as the constants of its cluster say.

    `sigma` is the standard deviation of that number's logarithm, `spread` that of its class before any run.
    """

    times: float
    sigma: float = MEASURED_SPREAD
    spread: float


@dataclass(frozen=True)
class Said:
    """What runs say of a job: how many `times` as long it takes as constants say, and what they leave unknown.

    `weight`: how much of an error that all of them share is made up for so. `unknown`: the standard deviation of
    what is left, in units of its class's spread.
    """

    times: float
    weight: float
    unknown: float


def in_common(ones: Sequence[Likeness], others: Sequence[Likeness], shares: Shares = SHARES) -> Floats:
    """Return the covariance of each with each, in units of both their spreads, of what is no machine's."""
    found = np.zeros((len(ones), len(others)))
    for row, one in enumerate(ones):
        for column, other in enumerate(others):
            if one.model == other.model:
                changed = (one.recompute != other.recompute) + (one.cuda_graphs != other.cuda_graphs)
                apart = (_apart(one, other, _CUT) + changed) / shares.cut**2 + _apart(
                    one, other, _SIZE
                ) / shares.size**2
                found[row, column] = math.exp(-apart / 2) * (1.0 if one.dtype == other.dtype else shares.dtype)
    return (1 - shares.machine**2) * found


def _apart(one: Likeness, other: Likeness, names: Sequence[str]) -> float:
    """The squares of the factors by which two differ, in powers of two."""
    return float(sum(math.log2(getattr(one, name) / getattr(other, name)) ** 2 for name in names))


def said_of(runs: Sequence[Run], job: Likeness) -> Said:
    """Return what runs on its cluster say of a job; what is unusual of one they say of jobs cut as it is only."""
    same = [run for run in runs if run.model == job.model]
    if not same:
        return Said(1.0, 0.0, math.sqrt(1 - SHARES.machine**2))
    beside = in_common(same, [job])[:, 0]
    among = in_common(same, same) + np.diag([(run.sigma / run.spread) ** 2 for run in same])
    logs = np.array([math.log(run.times) for run in same])
    most = np.array([USUAL * run.spread for run in same])
    usual = np.clip(logs, -most, most)
    cut_so = np.array([run.of_cut == job.of_cut for run in same])
    weights = np.linalg.solve(among, beside)
    gained = weights @ usual + (beside * cut_so) @ np.linalg.solve(among, logs - usual)
    unknown = 1 - SHARES.machine**2 - float(weights @ beside)
    return Said(math.exp(gained), float(weights.sum()), math.sqrt(max(0.0, unknown)))
