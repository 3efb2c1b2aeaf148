"""The page of `ppsim --help`, without importing the command line."""

import os

GROUPS = {  # command: (module in `ppsim.cli`, line on this page)
    "Plan": {
        "project": ("project", "Project step time and memory of one training configuration."),
        "tune": ("tune", "Search for the fastest configurations of a model on N GPUs."),
        "sweep": ("sweep", "Project or search many jobs, into one table."),
        "fit": ("fit", "Fit your cluster's constants (compute, network) to step times."),
        "validate": ("validate", "Compare projections with published or your own measurements."),
    },
    "Diagnose a run": {
        "read": ("read", "Print timeline and schedule of a recorded run of any trainer."),
        "explain": ("explain", "Explain why a recorded step is slow: lost time by cause."),
        "compare": ("compare", "Compare a recorded step with a projected one: signed errors."),
        "calibrate": ("calibrate", "Fit runtime overheads (host, P2P) to recorded timelines."),
    },
    "Schedules": {
        "schedules": ("catalogues", "List the schedules, or print the properties of one."),
        "build": ("build", "Build a schedule table (CSV) by name, or search for one."),
        "check": ("build", "Check that a schedule table can run without deadlock."),
        "simulate": ("simulate", "Simulate a schedule table with the times in a costs file."),
        "export": ("export", "Write a schedule table in the format of a trainer."),
    },
    "Measure and run": {
        "profile": ("profile", "Measure the costs of a model's layers on this device."),
        "train": ("train", "Execute a schedule table with torch, and record its timeline."),
        "warm-up": ("build", "Compile ppsim's own CPU kernels now, not at first use."),
    },
    "Browse and draw": {
        "serve": ("serve", "Serve an interactive projection page in a browser."),
        "figure": ("figure", "Draw a figure for a paper (timeline, memory, search)."),
        "models": ("catalogues", "List the models, or print parameters and FLOPs of one."),
        "clusters": ("catalogues", "List the clusters, or print one with units and sources."),
        "recipes": ("catalogues", "List the published recipes of trainers, or print one."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

ABOUT = """Project training time and memory of large models, and simulate, explain and export their pipeline
schedules.

\b
  ppsim project --pp 8 --vpp 2 -o timeline.html          time and causes
  ppsim project --pp 8 --vpp 2 --schedule all            all schedules
  ppsim build zbv --pp 4 --num-microbatches 8 -o T.csv   table for torch

A schedule is the order in which each pipeline rank runs the passes of its stages for the microbatches of a step:
forward (F) and backward (B, or split into input gradient I and weight gradient W). A schedule table is a file with
this order. For details, see ppsim COMMAND --help.

Exit codes: 0 fine; 1 valid but impossible (deadlock, does not fit, a run that failed); 2 wrong usage or file;
3 unexpected error in ppsim.
"""

_OPTIONS = {
    "--version": "Show the version and exit.",
    "--debug": "Show the traceback of an error.",
    "-h, --help": "Show this message and exit.",
}
_MOST_COLUMNS, _LEAST_COLUMNS, _COLUMNS = 100, 50, 80


def front_page(width: int) -> str:
    """Only examples, and words longer than `width`, may exceed `width`."""
    blocks = ["Usage: ppsim [OPTIONS] COMMAND [ARGS]..."]
    for text in ABOUT.strip().split("\n\n"):
        as_it_is = text.startswith("\b\n")
        lines = text[2:].splitlines() if as_it_is else _wrapped(text, width - 2)
        blocks.append("\n".join(f"  {line}" for line in lines))
    groups = {title: {name: line for name, (_, line) in group.items()} for title, group in GROUPS.items()}
    blocks += [_definitions(title, rows, width) for title, rows in (groups | {"Options": _OPTIONS}).items()]
    return "\n\n".join(blocks) + "\n"


def _definitions(title: str, rows: dict[str, str], width: int) -> str:
    first = max(map(len, [*COMMANDS, *_OPTIONS])) + 2
    lines = [f"{title}:"]
    for name, text in rows.items():
        wrapped = _wrapped(text, width - first - 2)
        lines += [f"  {name if index == 0 else '':{first}}{line}" for index, line in enumerate(wrapped)]
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def page_width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns or _COLUMNS
    except (ValueError, OSError):
        columns = _COLUMNS
    return max(min(columns, _MOST_COLUMNS) - 2, _LEAST_COLUMNS)
