"""Common part of trained and measured runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppsim.api.output_formats import TimelineFileContent
from ppsim.base.display import Printable
from ppsim.base.units import seconds
from ppsim.plot.plot_model import TimelineView
from ppsim.runs.timeline_file import timeline_to_json
from ppsim.runs.timeline_import import ImportedRun
from ppsim.simulation.report import report_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class RunResult(Printable):
    """Recorded steps, and metadata of the run in `facts` (the part `run` of the output of `--json`)."""

    measured: ImportedRun
    facts: dict[str, Any]

    @property
    def title(self) -> str:
        raise NotImplementedError

    @property
    def one_line(self) -> str:
        return f"{self.title}: {len(self.step_times_s)} steps, the median {seconds(self.timeline.step_time_s)}"

    @property
    def timeline(self) -> Timeline:
        return self.measured.timeline

    @property
    def costs(self) -> StageCosts:
        """The given or emulated costs, or the median times of each stage."""
        return self.measured.costs

    @property
    def step_times_s(self) -> list[float]:
        return self.measured.step_times_s

    def report(self) -> dict[str, Any]:
        """Return the simulator's report of the median step (`--json` without `run`)."""
        return report_of(self.timeline, self.costs)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the run's file, with every step, for `ppsim.calibrate` and `ppsim.compare`."""
        return timeline_to_json(self.timeline, self.costs, run=self.facts, steps=self.measured.to_json())

    def to_frame(self) -> "pandas.DataFrame":
        """Return `Timeline.to_frame` of the median step.

        >>> import ppsim
        >>> run = ppsim.train(ppsim.build("1f1b", pp=2, microbatches=2), model="nano", partitions=2, steps=1)
        >>> run.to_frame()["name"].head(4).tolist()
        ['0F0', '0F1', '0B0', '0B1']
        """
        return self.timeline.to_frame()


def run_content(run: RunResult) -> TimelineFileContent:
    return TimelineFileContent([TimelineView(run.timeline, run.title)], run.to_json)
