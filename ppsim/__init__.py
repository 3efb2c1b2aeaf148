"""ppsim: simulate pipeline-parallel schedules from measured costs, and export them to runtimes.

The functions of the command line, with the same options, defaults and errors (`ppsim.errors`):

what there is   schedules, models, clusters, load_profile
tables          build, check, simulate, export, read_schedule
projections     job, project, project_all, tune
configurations  read_run_config (of a trainer, as options), trainer_options (a projection for a trainer)
real runs       profile, train, read, explain, compare, calibrate, fit, read_timeline, validate
results         save (a file in the format of its suffix), report (the text that the command prints)

Types of arguments and results:

tables          Op, Action, Schedule
costs           StageCosts, Profile, Job, Plan
results         Timeline, Projection, TuneResult, TrainResult, MeasuredRun, LogTotals, Explanation,
                Comparison, FittedOverheads, FitResult, ValidationReport

Times are in seconds and sizes in bytes; names include the unit. Results have `to_frame()`, a pandas view.

>>> import ppsim
>>> table = ppsim.build("zb-h1", pp=4, microbatches=8)
>>> costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
>>> ppsim.simulate(table, costs).step_time_s
27.0
>>> ppsim.project(pp=8, vpp=2).timeline.schedule.name
'interleaved-1f1b'
"""

from ppsim.base.version import __version__ as __version__

TYPE_CHECKING = False  # typing is not imported, because Ctrl-C during its import would print a traceback
if TYPE_CHECKING:
    from typing import Any

    from ppsim.api.catalogues import clusters, models, schedules
    from ppsim.api.fit import fit
    from ppsim.api.measured import calibrate, compare, explain, read_timeline
    from ppsim.api.outputs import export, report, save
    from ppsim.api.parse_job import job
    from ppsim.api.profile import profile
    from ppsim.api.project import project, project_all
    from ppsim.api.read import MeasuredRun, read
    from ppsim.api.to_config import trainer_options
    from ppsim.api.train import TrainResult, train
    from ppsim.api.tune import tune
    from ppsim.api.validate import validate
    from ppsim.catalog.build import build
    from ppsim.costs.job import Job
    from ppsim.costs.profile import Profile, load_profile
    from ppsim.projection.plan import Plan
    from ppsim.projection.projection import Projection
    from ppsim.runs.calibrate import FittedOverheads
    from ppsim.runs.compare import Comparison
    from ppsim.runs.log_totals import LogTotals
    from ppsim.runs.loss_attribution import Explanation
    from ppsim.schedule.check import check
    from ppsim.schedule.grammar import read_schedule
    from ppsim.schedule.table import Action, Op, Schedule
    from ppsim.simulation.simulate import simulate
    from ppsim.simulation.stage_costs import StageCosts
    from ppsim.simulation.timeline import Timeline
    from ppsim.trainers.read_config import read_run_config
    from ppsim.tuning.search import TuneResult
    from ppsim.validation.fit_result import FitResult
    from ppsim.validation.validation_result import ValidationReport


_HOME = {  # imported on first use, so that `import ppsim` is fast
    "Action": "ppsim.schedule.table",
    "FittedOverheads": "ppsim.runs.calibrate",
    "Comparison": "ppsim.runs.compare",
    "Explanation": "ppsim.runs.loss_attribution",
    "FitResult": "ppsim.validation.fit_result",
    "Job": "ppsim.costs.job",
    "MeasuredRun": "ppsim.api.read",
    "Op": "ppsim.schedule.table",
    "Plan": "ppsim.projection.plan",
    "Profile": "ppsim.costs.profile",
    "Projection": "ppsim.projection.projection",
    "Schedule": "ppsim.schedule.table",
    "StageCosts": "ppsim.simulation.stage_costs",
    "Timeline": "ppsim.simulation.timeline",
    "LogTotals": "ppsim.runs.log_totals",
    "TrainResult": "ppsim.api.train",
    "TuneResult": "ppsim.tuning.search",
    "ValidationReport": "ppsim.validation.validation_result",
    "build": "ppsim.catalog.build",
    "calibrate": "ppsim.api.measured",
    "check": "ppsim.schedule.check",
    "clusters": "ppsim.api.catalogues",
    "compare": "ppsim.api.measured",
    "explain": "ppsim.api.measured",
    "export": "ppsim.api.outputs",
    "fit": "ppsim.api.fit",
    "job": "ppsim.api.parse_job",
    "load_profile": "ppsim.costs.profile",
    "models": "ppsim.api.catalogues",
    "profile": "ppsim.api.profile",
    "project": "ppsim.api.project",
    "project_all": "ppsim.api.project",
    "read": "ppsim.api.read",
    "read_run_config": "ppsim.trainers.read_config",
    "read_schedule": "ppsim.schedule.grammar",
    "read_timeline": "ppsim.api.measured",
    "report": "ppsim.api.outputs",
    "save": "ppsim.api.outputs",
    "schedules": "ppsim.api.catalogues",
    "simulate": "ppsim.simulation.simulate",
    "train": "ppsim.api.train",
    "trainer_options": "ppsim.api.to_config",
    "tune": "ppsim.api.tune",
    "validate": "ppsim.api.validate",
}

TEXTS = {  # printer for each result class, loaded on first use
    "AfterFits": "ppsim.results.validation:print_after_fits",
    "FittedOverheads": "ppsim.results.runs:print_calibration",
    "CheckReport": "ppsim.results.schedules:print_check",
    "Comparison": "ppsim.results.runs:print_comparison",
    "Explanation": "ppsim.results.runs:print_explanation",
    "FitResult": "ppsim.results.validation:print_fitted",
    "MeasuredRun": "ppsim.results.runs:print_measured",
    "PlanDifference": "ppsim.results.difference:print_difference",
    "Projection": "ppsim.results.plans:print_answer",
    "Projections": "ppsim.results.plans:print_plans",
    "Scaling": "ppsim.results.sweep:print_scaling",
    "RunConfig": "ppsim.results.catalogues:print_run_config",
    "Timeline": "ppsim.results.steps:print_simulated",
    "LogTotals": "ppsim.results.runs:print_totals",
    "TrainResult": "ppsim.results.steps:print_trained",
    "TuneResult": "ppsim.results.tuning:print_tuned",
    "ValidationReport": "ppsim.results.validation:print_validations",
}

CARDS = {  # notebook card for each result class
    name: f"ppsim.results.notebook:{card}"
    for name, card in {
        "Comparison": "card_of_comparison",
        "Plan": "card_of_plan",
        "Projection": "card_of_projection",
        "Projections": "card_of_projections",
        "Schedule": "card_of_schedule",
        "Timeline": "card_of_timeline",
        "TuneResult": "card_of_search",
    }.items()
}

PICTURES = {  # functions that draw a result with plotly and with matplotlib
    name: (f"ppsim.api.figures:figure_of_{kind}", f"ppsim.api.figures:axes_of_{kind}")
    for name, kind in {
        "Comparison": "timelines", "Projection": "timelines", "Timeline": "timelines", "TuneResult": "search",
    }.items()
}  # fmt: skip

__all__ = [
    "Action",
    "Comparison",
    "Explanation",
    "FitResult",
    "FittedOverheads",
    "Job",
    "LogTotals",
    "MeasuredRun",
    "Op",
    "Plan",
    "Profile",
    "Projection",
    "Schedule",
    "StageCosts",
    "Timeline",
    "TrainResult",
    "TuneResult",
    "ValidationReport",
    "build",
    "calibrate",
    "check",
    "clusters",
    "compare",
    "explain",
    "export",
    "fit",
    "job",
    "load_profile",
    "models",
    "profile",
    "project",
    "project_all",
    "read",
    "read_run_config",
    "read_schedule",
    "read_timeline",
    "report",
    "save",
    "schedules",
    "simulate",
    "train",
    "trainer_options",
    "tune",
    "validate",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'ppsim' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
