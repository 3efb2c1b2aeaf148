"""The command `profile`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from ppsim.base.errors import ConfigError
from ppsim.base.files import require_writable, to_json, write_atomically
from ppsim.base.option_declarations import Option, flag_of
from ppsim.base.units import count, seconds
from ppsim.cli.click_options import command_with
from ppsim.cli.common import check_outputs, print_message
from ppsim.profiling.options import OF_MODELS, ProfileOptions
from ppsim.results.progress import progress

if TYPE_CHECKING:
    from ppsim.profiling.measuring_progress import MeasuringProgress, Watch
    from ppsim.profiling.settings import MeasuringSettings, Say
    from ppsim.profiling.sweep import SuiteJob


@contextmanager
def progress_messages() -> "Iterator[tuple[Say, Watch]]":
    """Yield a function that prints a line above a bar, and one that updates the progress."""
    with progress("", total=1) as bar:

        def watch(pace: "MeasuringProgress") -> None:
            left = f"about {seconds(pace.left_s)} left" if pace.left_s else ""
            bar.update(left, done=pace.done_work, total=pace.total or 1.0)

        yield bar.say, watch


def print_profiles(jobs: "Sequence[SuiteJob]", contents: Sequence[dict[str, Any]], *, with_names: bool) -> None:
    from ppsim.costs.utilization import implausible
    from ppsim.profiling.harness import costly_splits
    from ppsim.results.catalogues import print_measurements, print_stage_times
    from ppsim.results.text_layout import Page, bold

    names = dict.fromkeys((job.model_name, job.path) for job in jobs)  # several jobs can write the same file
    for content, (name, _) in zip(contents, names, strict=False):
        if with_names:
            Page().add(f"\n{bold(name)}")
        print_measurements(content)
        print_stage_times(content)
    for content, (name, path) in zip(contents, names, strict=False):
        of_model = f"{name}, " if with_names else ""
        for sentence in costly_splits(content) + implausible(content):
            print_message(of_model + sentence)
        print_message(f"wrote {path}")


def dry_run(
    jobs: "Sequence[SuiteJob]",
    settings: "MeasuringSettings",
    *,
    with_facts: bool,
    start_over: bool,
    num_processes: int,
) -> None:
    from ppsim.profiling.calibration_run import expected_s
    from ppsim.profiling.duration_estimate import FACTS_S, SHAPE_S, assumed_rate
    from ppsim.profiling.suite import expected_of, waiting_keys
    from ppsim.results.text_layout import Page, TableLines

    out, rows, total_flops, total_s = Page(), [], 0.0, 0.0
    for job in jobs:
        keys = list(job.keys) if start_over else waiting_keys(job)
        for key in keys:
            one = expected_of(job, [key], settings)
            rows.append([job.model_name, str(key), f"{count(one.flops)}FLOP", seconds(one.seconds)])
            total_flops, total_s = total_flops + one.flops, total_s + one.seconds
        if done := len(job.keys) - len(keys):
            print_message(f"{done} of {len(job.keys)} shapes are in {job.path} already")
    if not rows:
        return
    out.add(TableLines(["model", "shape", "work", "time"], rows, left=2))
    _, what = assumed_rate(settings.device, jobs[0].keys[0].dtype, num_threads=settings.num_threads)
    beside = f"{seconds(SHAPE_S[settings.device])} per shape for weights and memory"
    if with_facts:
        total_s += FACTS_S[settings.device]
        beside += f", at most {seconds(FACTS_S[settings.device])} for the device microbenchmarks"
    if num_processes > 1:
        calibration_s = expected_s(jobs[0].model, jobs[0].keys[0], settings, num_processes)
        total_s += calibration_s
        beside += f", {seconds(calibration_s)} for the calibration run with {num_processes} processes"
    shapes = "1 shape" if len(rows) == 1 else f"{len(rows)} shapes"
    out.add(f"\n{shapes}, {count(total_flops)}FLOP: about {seconds(total_s)} at {what}; {beside}")


if TYPE_CHECKING:
    from ppsim.profiling.settings import MeasuringSettings
    from ppsim.profiling.sweep import SuiteJob


# fmt: off
class CommandOptions(ProfileOptions, total=False):
    """The options of `profile`."""
    suite: Annotated[Literal["standard", "smoke"] | None, Option(
        "Measure several models with --facts, one file per model in folder -o: standard (the profiles that ppsim "
        "ships, for a GPU) or smoke (seconds on a CPU). With --module, your own model is measured first, into a "
        "file named after its function.",
        section="what",
    )]
    dry_run: Annotated[bool | None, Option(
        "Print the shapes to measure, their FLOPs and the expected time, and exit.", section="going on",
    )]
# fmt: on


_SECTIONS = {
    "what": "Model and measurements",
    "shapes": "Shapes (every combination is measured)",
    "device": "Device and repetitions",
    "going on": "Stop and continue",
}


@command_with(
    CommandOptions,
    _SECTIONS,
    removed={"--partitions": "leave it out to measure on the whole device"},
    threads={"type": str, "default": "1"},  # a number, or "all"
)
@click.option("-o", "--output", required=True, metavar="X.json|FOLDER", help="Output file, or folder for --suite.")
def profile(output: str, **options: Any) -> None:
    """Measure the costs of a model's layers on this device, for --profile: passes, memory, optimizer step.

    \b
      ppsim profile --model mini --seq-len 128,256 -o cpu.json
      ppsim profile --model gpt2 --device cuda --dtype bfloat16 --facts -o h.json
      ppsim profile --suite standard -o profiles

    Passes are forward (F), backward (B), input gradient (I) and weight gradient (W). Memory is activation and
    parameter bytes.

    Several shapes go into one file, which is written after each shape. The same command continues where it was
    stopped: shapes in the file are not measured again.
    """
    from ppsim.runtime.launch import require_device, require_extra

    require_extra("ppsim profile")
    _check(output, options)
    from ppsim.api.profile import measure, measurement_job, settings_from
    from ppsim.profiling.suite import SUITES

    given = options | {"threads": _threads(options["threads"])}
    suite = SUITES[options["suite"]] if options["suite"] else None
    settings = settings_from(given, suite.settings if suite else None)
    jobs, num_processes = suite.jobs(output) if suite else [], 1
    if suite is None and options["module"] is None:
        job, num_processes = measurement_job(given, Path(output))
        jobs = [job]
    if options["dry_run"]:
        if options["module"] is not None:
            raise ConfigError("--dry-run knows the FLOPs of models only: leave out --module")
        dry_run(
            jobs, settings, with_facts=options["facts"] or suite is not None,
            start_over=bool(options["start_over"]), num_processes=num_processes,
        )  # fmt: skip
        return
    require_device(settings.device)
    if options["module"] is not None:
        path = _path_in_suite(options["module"], jobs, output) if suite else Path(output)
        path.parent.mkdir(exist_ok=True)
        of_suite = {"micro_batch": suite.micro_batches, "facts": None, "time_limit": None} if suite else {}
        _measure_module(given | of_suite, settings, path)
    if jobs:
        if suite is None:
            _say_how_long(jobs[0], settings, num_processes, start_over=bool(options["start_over"]))
        else:
            jobs[0].path.parent.mkdir(exist_ok=True)
            given["facts"] = True
        measure(
            jobs, settings, given, num_processes=num_processes, grid=suite.grid if suite else None,
            show=lambda contents: print_profiles(jobs, contents, with_names=suite is not None),
            progress=progress_messages,
        )  # fmt: skip


def _say_how_long(job: "SuiteJob", settings: "MeasuringSettings", num_processes: int, *, start_over: bool) -> None:
    from ppsim.base.units import seconds
    from ppsim.profiling.calibration_run import expected_s
    from ppsim.profiling.suite import expected_of, waiting_keys

    if keys := list(job.keys) if start_over else waiting_keys(job):
        measured = f"about {seconds(expected_of(job, keys, settings).seconds)}"
        calibration = f" and {seconds(expected_s(job.model, keys[0], settings, num_processes))}" * (
            num_processes > 1
        )
        steps = "measuring and the calibration run" if calibration else "measuring"
        when = "at the current machine speed" if settings.device == "cpu" else "on an idle device"
        print_message(f"{steps} will take {measured}{calibration} {when}")


def _measure_module(given: dict[str, Any], settings: "MeasuringSettings", path: Path) -> None:
    from ppsim.api.profile import profiled_module
    from ppsim.costs.chunk_costs import components_of
    from ppsim.profiling.harness import costly_splits
    from ppsim.results.catalogues import print_measurements, print_stage_times

    content = profiled_module(given, settings, say=print_message)
    content["name"] = path.stem
    write_atomically(path, to_json(content))
    if chunks := content.get("chunks"):
        content["measurements"] = components_of(chunks, content["model"]["layer_kinds"])
    print_measurements(content)
    print_stage_times(content)
    for sentence in costly_splits(content):
        print_message(sentence)
    print_message(f"wrote {path}")


def _path_in_suite(module: str, jobs: "Sequence[SuiteJob]", folder: str) -> Path:
    path = Path(folder) / f"{module.rpartition(':')[2]}.json"
    if path in [job.path for job in jobs]:
        raise ConfigError(f"--module {module} would be written to {path}, a model of the suite: name it otherwise")
    return path


def _check(output: str, options: dict[str, Any]) -> None:
    if options["suite"] is None:
        check_outputs([output], [".json"])
    else:
        of_module = () if options["module"] is not None else ("layers", "pp")
        if wrong := [name for name in (*OF_MODELS, "micro_batch", *of_module) if options[name] is not None]:
            raise ConfigError(f"--suite says what is measured: leave out {flag_of(wrong[0])}")
        if Path(output).is_file():
            raise ConfigError(f"a suite is written to a folder: {output} is a file")
        require_writable(Path(output, "x.json") if Path(output).is_dir() else output)


def _threads(text: str) -> int:
    if text == "all":
        import os

        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--threads must be at least 1, or all: got {text}")
    return int(text)
