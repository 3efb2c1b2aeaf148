"""Similarity of jobs on a cluster, and corrections of a job's projection by measured runs.

A Gaussian process (Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, section 2.2) over
log(measured time / time by the cluster's constants), in units of the spread of the GPU type (the standard deviation
of this logarithm before any run). One part of the variance belongs to the cluster's constants. Jobs of the same
model share the other part, more so the more similar they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats

MEASURED_SPREAD = 0.02
"""Relative standard deviation of a measured step from its replay, or between two measurements of a step."""

USUAL = 1.0
"""Number of spreads beyond which the loss of a run is linear (Huber 1964), except for jobs with the same layer
configuration. The best value between 0.5 and 3 for the rows marked fit (`python benchmarks/fit_shares.py`).
"""


@dataclass(frozen=True)
class CovarianceParameters:
    """Hyperparameters of the covariance.

    - `machine`: spread of a constant among installations, relative to the spread of the GPU type.
    - `cut`: length scale of layer configurations. A factor of two in one number has distance 1, and so has a
      different recomputation or different CUDA graphs.
    - `size`: length scale of pipeline ranks and GPUs, with the same distance.
    - `dtype`: covariance factor for another dtype.
    """

    machine: float
    cut: float
    size: float
    dtype: float


SHARES = CovarianceParameters(machine=0.30, cut=0.61, size=6.6, dtype=0.58)
"""Maximum-likelihood values for the rows of `ppsim validate` marked fit (`python benchmarks/fit_shares.py`)."""

_CUT = ("tp", "cp", "ep", "micro_batch", "seq_len")
_SIZE = ("pp", "gpus")


@dataclass(frozen=True, kw_only=True)
class JobFeatures:
    """Properties of a job that define its similarity to others."""

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
    def layer_configuration(self) -> tuple[object, ...]:
        """Jobs with the same configuration run the same kernels and messages per layer."""
        return self.model, self.dtype, self.recompute, self.cuda_graphs, *(getattr(self, name) for name in _CUT)

    @property
    def title(self) -> str:
        layout = f"tp{self.tp}-cp{self.cp}-ep{self.ep}-pp{self.pp}-b{self.micro_batch}-s{self.seq_len}"
        return f"{self.model}/{self.dtype} on {self.gpus}, {layout}"


@dataclass(frozen=True, kw_only=True)
class MeasuredJob(JobFeatures):
    """A measured run: `times` is its time relative to the time by its cluster's constants.

    `sigma` is the standard deviation of log(`times`), `spread` the spread of its GPU type.
    """

    times: float
    sigma: float = MEASURED_SPREAD
    spread: float


@dataclass(frozen=True)
class JobCorrection:
    """Correction of a job by runs: `times` is its time relative to the time by the constants.

    `weight`: share of an error common to all runs that the correction removes. `unknown`: standard deviation of the
    remaining error, in units of the spread of the GPU type.
    """

    times: float
    weight: float
    unknown: float


def job_covariance(
    ones: Sequence[JobFeatures], others: Sequence[JobFeatures], shares: CovarianceParameters = SHARES
) -> Floats:
    """Return covariances [ones, others] of the logarithms, without the part of the cluster's constants.

    The unit is the product of the GPU-type spreads of the two jobs.
    """
    covariance = np.zeros((len(ones), len(others)))
    for row, one in enumerate(ones):
        for column, other in enumerate(others):
            if one.model == other.model:
                changed = (one.recompute != other.recompute) + (one.cuda_graphs != other.cuda_graphs)
                apart = (_apart(one, other, _CUT) + changed) / shares.cut**2 + _apart(
                    one, other, _SIZE
                ) / shares.size**2
                covariance[row, column] = math.exp(-apart / 2) * (1.0 if one.dtype == other.dtype else shares.dtype)
    return (1 - shares.machine**2) * covariance


def _apart(features: JobFeatures, other: JobFeatures, names: Sequence[str]) -> float:
    """Return the sum of log2(ratio)² over the named sizes."""
    return float(sum(math.log2(getattr(features, name) / getattr(other, name)) ** 2 for name in names))


def correction_of(runs: Sequence[MeasuredJob], job: JobFeatures) -> JobCorrection:
    """The excess of a run beyond `USUAL` spreads applies only to jobs with the same layer configuration."""
    same = [run for run in runs if run.model == job.model]
    if not same:
        return JobCorrection(1.0, 0.0, math.sqrt(1 - SHARES.machine**2))
    beside = job_covariance(same, [job])[:, 0]
    among = job_covariance(same, same) + np.diag([(run.sigma / run.spread) ** 2 for run in same])
    logs = np.array([math.log(run.times) for run in same])
    most = np.array([USUAL * run.spread for run in same])
    usual = np.clip(logs, -most, most)
    has_same_layers = np.array([run.layer_configuration == job.layer_configuration for run in same])
    weights = np.linalg.solve(among, beside)
    gained = weights @ usual + (beside * has_same_layers) @ np.linalg.solve(among, logs - usual)
    unknown = 1 - SHARES.machine**2 - float(weights @ beside)
    return JobCorrection(math.exp(gained), float(weights.sum()), math.sqrt(max(0.0, unknown)))
