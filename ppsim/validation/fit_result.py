"""Result of `ppsim fit`: constants of a cluster and its jobs, for a calibration file."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.base.display import Printable
from ppsim.base.errors import ConfigError
from ppsim.machine.cluster import Cluster, Constants
from ppsim.machine.cluster_files import cluster_named, packaged_clusters
from ppsim.machine.job_similarity import MeasuredJob
from ppsim.validation.bayesian_fit import ConstantEstimate, MeasuredStep, Posterior, fit_rows, rows_of
from ppsim.validation.priors import REST
from ppsim.validation.project_case import PlanOf
from ppsim.validation.published_runs import PublishedRun

if TYPE_CHECKING:
    import pandas

DEFAULT_BASE = "dgx-h100"


@dataclass(frozen=True, repr=False)
class FitResult(Printable):
    """Constants fitted to measured steps of a cluster, whose name or file is `base`, and of its jobs.

    `skipped` are unusable rows with the reason. `source` names the files of the rows.

    >>> import ppsim
    >>> with open("runs.csv", "w") as file:
    ...     _ = file.write("model,gpus,tp,pp,global_batch,metric,value\\nllama3-8b,16,2,2,64,iteration_s,3.0\\n")
    >>> found = ppsim.fit("runs.csv")
    >>> [run.title for run in found.constants.runs]
    ['llama3-8b/bfloat16 on 16, tp2-cp1-ep1-pp2-b1-s8192']
    """

    posterior: Posterior
    base: str
    source: str
    skipped: Sequence[tuple[PublishedRun, str]]

    @property
    def one_line(self) -> str:
        return f"{self.base}: {', '.join(self.constants.named) or 'nothing'} from {self.source}"

    @property
    def constants(self) -> Constants:
        return self.posterior.constants(self.source)

    @property
    def cluster(self) -> Cluster:
        return self.posterior.cluster.with_constants(self.constants)

    @property
    def rests(self) -> dict[str, ConstantEstimate]:
        """Fitted extra step times (not covered by any model part) by the model's name."""
        return {
            self._job_name(one): one for one in self.posterior.found if one.prior.name.startswith(REST)
        }  # fmt: skip

    def _job_name(self, one: ConstantEstimate) -> str:
        model = self.posterior.jobs[int(one.prior.name.partition(".")[2])]
        return next(
            row.case.properties.title or row.plan.job.model_name
            for row in self.posterior.rows if row.plan.job and row.plan.job.model == model
        )  # fmt: skip

    @property
    def estimates(self) -> list[ConstantEstimate]:
        """Constants that the rows determine come first."""
        return [*self.posterior.found, *self.posterior.left]

    def to_json(self) -> dict[str, Any]:
        posterior = self.posterior
        return {
            "cluster": posterior.cluster.name,
            "fitted_on": self.source,
            "constants": self._constants(),
            "outliers": [asdict(one) for one in posterior.outliers],
            "extra_step_time_s": {name: one.value for name, one in self.rests.items()},
            "correlation": dict(self.constants.correlation),
            "runs": [asdict(run) for run in self.constants.runs],
            "rows": [
                {"row": row.name, "command": row.case.command, "measured_s": row.measured_s,
                 "error_before": before, "error_after": after}
                for row, before, after in zip(posterior.rows, posterior.before, posterior.after, strict=True)
            ],
            "skipped": [{"command": case.command, "reason": reason} for case, reason in self.skipped],
        }  # fmt: skip

    def _constants(self) -> list[dict[str, Any]]:
        return [
            {"constant": one.prior.name, "is_determined": index < len(self.posterior.found), "value": one.value,
             "relative_sigma": one.spread, "prior": one.prior.median, "prior_relative_sigma": one.prior.spread,
             "prior_reason": one.prior.reason}
            for index, one in enumerate(self.estimates)
        ]  # fmt: skip

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per constant of the fit.

        is_determined is False if a constant stays at its prior; "rest.0" is the extra step time of the first job,
        in seconds.

        >>> import ppsim
        >>> ppsim.fit("dgxc-gb200", rows="one").to_frame()["constant"][0]
        'compute_share.bfloat16'
        """
        import pandas

        return pandas.DataFrame(self._constants())

    def to_calibration(self, path: str | Path) -> dict[str, Any]:
        """Return the part of a calibration file at `path` with the fitted constants, which extend the base cluster.

        >>> import ppsim
        >>> with open("runs.csv", "w") as file:
        ...     said = file.write("model,gpus,tp,pp,global_batch,cluster,metric,value\\n")
        ...     said = file.write("llama3-8b,8,2,2,32,dgx-h100,iteration_s,3.0\\n")
        >>> ppsim.fit("runs.csv").to_calibration("mine.json")["base"]
        'dgx-h100'
        """
        constants, base = self.constants, self.base
        if base not in packaged_clusters():
            base = os.path.relpath(base, Path(path).resolve().parent)
        number = len(self.posterior.rows)
        steps = "a measured step" if number == 1 else f"{number} measured steps"
        mine = {*(one.prior.name for one in self.posterior.found), *self.posterior.operators}
        written: dict[str, Any] = {}
        for name, one in constants.named.items():
            if name in mine:
                kind, _, which = name.partition(".")
                (written.setdefault(kind, {}) if which else written)[which or kind] = asdict(one)
        return {
            "base": base,
            "title": f"{self.posterior.cluster.title}, fitted to {steps}",
            "source": f"ppsim fit {self.source}",
            "constants": {
                **written,
                "fitted_on": [self.source],
                **({"stack": constants.stack} if constants.stack else {}),
                "runs": [_without_defaults(run) for run in constants.runs],
                "correlation": dict(constants.correlation),
            },
        }


def _without_defaults(run: MeasuredJob) -> dict[str, Any]:
    defaults = {one.name: one.default for one in fields(MeasuredJob)}
    return {name: value for name, value in vars(run).items() if value != defaults[name]}


def fit_cases(
    cases: Sequence[PublishedRun], plan_of: PlanOf, *, source: str, cluster: str | None = None
) -> FitResult:
    """Raises `ConfigError` for cases of several clusters without `cluster`, and if no case is usable."""
    rows, listed = rows_of(cases, plan_of, source)
    if cluster is not None:
        mine = [row for row in rows if _cluster_of(row) == cluster]
        listed += [(row.case, f"ran on {_cluster_of(row)}") for row in rows if row not in mine]
        rows = mine
    if not rows:
        reasons = [f"{case.number or 'run'}: {reason}" for case, reason in listed]
        raise ConfigError("\n  ".join([f"{source} has no row to fit on", *reasons]))
    return FitResult(fit_rows(rows, plan_of), _cluster_of(rows[0]), source, listed)


def _cluster_of(row: MeasuredStep) -> str:
    return cluster_named(str(row.case.settings.get("cluster") or DEFAULT_BASE))
