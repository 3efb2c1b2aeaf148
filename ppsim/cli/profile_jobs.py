"""`ppsim profile` of models: what would be measured, and measuring it with a bar that says how long it takes."""

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ppsim.base.units import count, seconds
from ppsim.cli.common import say
from ppsim.cli.progress import progress

if TYPE_CHECKING:
    from ppsim.profiling.grids import Grid
    from ppsim.profiling.pace import Pace
    from ppsim.profiling.settings import Settings
    from ppsim.profiling.sweep import SuiteJob


def measure(
    jobs: "Sequence[SuiteJob]",
    settings: "Settings",
    options: dict[str, Any],
    *,
    optimizers: Sequence[str],
    grid: "Grid | None",
) -> None:
    """Measure the jobs, print what was found, and say what is implausible in it."""
    from ppsim.costs.utilization import implausible
    from ppsim.printing.page import Page
    from ppsim.printing.profiles import print_beside, print_measurements
    from ppsim.profiling.grids import grid_of
    from ppsim.profiling.harness import costly_splits
    from ppsim.profiling.suite import run_jobs
    from ppsim.profiling.sweep import require_success

    gc.freeze()  # each collection is then that of what is measured, not of all that torch has imported
    is_suite = options["suite"] is not None
    if is_suite:
        jobs[0].path.parent.mkdir(exist_ok=True)
    facts = (grid or grid_of(settings.device)) if options["facts"] or is_suite else None
    with progress("", total=1) as bar:

        def watch(pace: "Pace") -> None:
            left = f"about {seconds(pace.left_s)} left" if pace.left_s else ""
            bar.update(left, done=pace.done_work, total=pace.total or 1.0)

        contents = run_jobs(
            jobs, settings, optimizers=optimizers, facts=facts,
            start_over=bool(options["start_over"]), time_limit_s=options["time_limit"], say=bar.say, watch=watch,
        )  # fmt: skip
    names = dict.fromkeys((job.model_name, job.path) for job in jobs)  # a file may be of several jobs
    for content, (name, _) in zip(contents, names, strict=False):
        if is_suite:
            Page().add(f"\n[bold]{name}[/bold]")
        print_measurements(content)
        print_beside(content)
    for content, (name, path) in zip(contents, names, strict=False):
        of_model = f"{name}, " if is_suite else ""
        for sentence in costly_splits(content) + implausible(content):
            say(of_model + sentence)
        say(f"wrote {path}")
    require_success(contents)


def dry_run(jobs: "Sequence[SuiteJob]", settings: "Settings", *, with_facts: bool, start_over: bool) -> None:
    """Print what would be measured: shapes that are missing, their FLOPs, and their expected time."""
    from ppsim.printing.page import Columns, Page
    from ppsim.profiling.expect import FACTS_S, SHAPE_S, assumed_rate
    from ppsim.profiling.suite import expected_of, waiting_keys

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
    _, what = assumed_rate(settings.device, jobs[0].keys[0].dtype)
    beside = f"{seconds(SHAPE_S[settings.device])} a shape for weights and memory"
    if with_facts:
        total_s += FACTS_S[settings.device]
        beside += f", at most {seconds(FACTS_S[settings.device])} for the device's facts"
    shapes = "1 shape" if len(rows) == 1 else f"{len(rows)} shapes"
    out.add(f"\n{shapes}, {count(total_flops)}FLOP: about {seconds(total_s)} at {what}; {beside}")
