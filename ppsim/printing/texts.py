"""Each result as the text that its command prints: plain, 100 columns wide."""

from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError
from ppsim.base.shown import printed
from ppsim.printing.plans import print_answer, print_plans
from ppsim.printing.runs import print_calibration, print_compare, print_peaks
from ppsim.printing.schedules import print_check
from ppsim.printing.steps import print_report, print_run, print_timeline
from ppsim.printing.tuning import print_tuned
from ppsim.printing.validation import print_validations
from ppsim.simulation.report import report_of

if TYPE_CHECKING:
    from ppsim.projection.projection import Projection, Projections
    from ppsim.runs.calibrate import Calibration
    from ppsim.runs.compare import Comparison
    from ppsim.schedule.check import CheckReport
    from ppsim.simulation.stage_costs import StageCosts
    from ppsim.simulation.timeline import Timeline
    from ppsim.tuning.search import Tuned
    from ppsim.validation.validated import Validated


def of_timeline(timeline: "Timeline", *, costs: "StageCosts | None" = None) -> str:
    """What `ppsim simulate` prints; raises `ConfigError` without the costs that it was simulated at."""
    if costs is None:
        raise ConfigError("the report of a timeline has bounds at its costs: give them as costs=")
    return _lines(printed(print_report, report_of(timeline, costs)), _drawing(timeline))


def of_check(report: "CheckReport") -> str:
    """What `ppsim check` prints."""
    return printed(print_check, report, "the table")


def of_projection(projection: "Projection") -> str:
    """What `ppsim project` prints."""
    return printed(print_answer, projection, projection.answer)


def of_projections(projections: "Projections") -> str:
    """What `ppsim project --schedule all` prints."""
    return printed(print_plans, projections)


def of_run(trained: Any) -> str:
    """What `ppsim train` prints."""
    return _lines(printed(print_run, trained.report(), trained.facts), _drawing(trained.timeline))


def of_comparison(comparison: "Comparison") -> str:
    """What `ppsim compare` prints."""
    return _lines(printed(print_compare, comparison), printed(print_peaks, comparison.peaks))


def of_calibration(found: "Calibration") -> str:
    """What `ppsim calibrate` prints."""
    return printed(print_calibration, found)


def of_search(tuned: "Tuned") -> str:
    """What `ppsim tune` prints."""
    return printed(print_tuned, tuned)


def of_validation(found: "Validated") -> str:
    """What `ppsim validate` prints."""
    return printed(print_validations, found.sets, with_rows=len(found.sets) == 1)


def _drawing(timeline: "Timeline") -> str:
    return printed(print_timeline, timeline, is_wanted=None)


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))
