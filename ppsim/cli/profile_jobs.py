"""`ppsim profile` of models: what would be measured, and measuring it with a bar that says how long it takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ppsim.base.units import count, seconds
from ppsim.cli.common import say
from ppsim.cli.progress import progress

if TYPE_CHECKING:
    from ppsim.profiling.pace import Pace, Watch
    from ppsim.profiling.settings import Say, Settings
    from ppsim.profiling.sweep import SuiteJob


@contextmanager
def telling() -> "Iterator[tuple[Say, Watch]]":
    """Show a bar, and give what prints a line above it, and what tells how far work is."""
    with progress("", total=1) as bar:

        def watch(pace: "Pace") -> None:
            left = f"about {seconds(pace.left_s)} left" if pace.left_s else ""
            bar.update(left, done=pace.done_work, total=pace.total or 1.0)

        yield bar.say, watch


def show(jobs: "Sequence[SuiteJob]", contents: Sequence[dict[str, Any]], *, with_names: bool) -> None:
    """Print what was found, and say what is implausible in it."""
    from ppsim.costs.utilization import implausible
    from ppsim.profiling.harness import costly_splits
    from ppsim.results.page import Page, bold
    from ppsim.results.profiles import print_beside, print_measurements

    names = dict.fromkeys((job.model_name, job.path) for job in jobs)  # a file may be of several jobs
    for content, (name, _) in zip(contents, names, strict=False):
        if with_names:
            Page().add(f"\n{bold(name)}")
        print_measurements(content)
        print_beside(content)
    for content, (name, path) in zip(contents, names, strict=False):
        of_model = f"{name}, " if with_names else ""
        for sentence in costly_splits(content) + implausible(content):
            say(of_model + sentence)
        say(f"wrote {path}")


def dry_run(
    jobs: "Sequence[SuiteJob]", settings: "Settings", *, with_facts: bool, start_over: bool, num_processes: int
) -> None:
    """Print what would be measured: shapes that are missing, their FLOPs, and their expected time."""
    from ppsim.profiling.expect import FACTS_S, SHAPE_S, assumed_rate
    from ppsim.profiling.rehearsal import expected_s
    from ppsim.profiling.suite import expected_of, waiting_keys
    from ppsim.results.page import Columns, Page

    out, rows, total_flops, total_s = Page(), [], 0.0, 0.0
    for job in jobs:
        keys = list(job.keys) if start_over else waiting_keys(job)
        for key in keys:
            one = expected_of(job, [key], settings)
            rows.append([job.model_name, str(key), f"{count(one.flops)}FLOP", seconds(one.seconds)])
            total_flops, total_s = total_flops + one.flops, total_s + one.seconds
        if done := len(job.keys) - len(keys):
            say(f"{done} of {len(job.keys)} shapes are in {job.path} already")
    if not rows:
        return
    out.add(Columns(["model", "shape", "work", "time"], rows, left=2))
    _, what = assumed_rate(settings.device, jobs[0].keys[0].dtype, num_threads=settings.num_threads)
    beside = f"{seconds(SHAPE_S[settings.device])} a shape for weights and memory"
    if with_facts:
        total_s += FACTS_S[settings.device]
        beside += f", at most {seconds(FACTS_S[settings.device])} for the device's facts"
    if num_processes > 1:
        rehearsed_s = expected_s(jobs[0].model, jobs[0].keys[0], settings, num_processes)
        total_s += rehearsed_s
        beside += f", {seconds(rehearsed_s)} to rehearse with {num_processes} processes"
    shapes = "1 shape" if len(rows) == 1 else f"{len(rows)} shapes"
    out.add(f"\n{shapes}, {count(total_flops)}FLOP: about {seconds(total_s)} at {what}; {beside}")
