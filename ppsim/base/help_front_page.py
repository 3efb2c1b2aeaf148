"""The page of `ppsim --help`, without importing the command line."""

import os

GROUPS = {  # command: (module in `ppsim.cli`, line on this page)
    "Plan": {
        "project": ("project", "Project one configuration: time, throughput, memory, and why."),
        "tune": ("tune", "Search for the fastest configuration of a model on N GPUs."),
        "fit": ("fit", "Fit the constants of your cluster to measured step times."),
        "validate": ("validate", "Compare projections with published runs: signed errors."),
    },
    "Diagnose a run": {
        "read": ("read", "Read a recording of any trainer, and print its timeline."),
        "explain": ("explain", "Explain why a recorded step is slow: causes, sizes, remedies."),
        "compare": ("compare", "Compare a recorded step with a projected one."),
        "calibrate": ("calibrate", "Fit host and transfer overheads to recorded timelines."),
    },
    "Schedules": {
        "schedules": ("schedules", "List the schedules, or print one in full."),
        "build": ("build", "Build a schedule table: torch's compute-only CSV."),
        "check": ("check", "Check that a table runs, and on which channels."),
        "simulate": ("simulate", "Simulate any table at any costs."),
        "export": ("export", "Write a checked table for a trainer."),
    },
    "Measure and run": {
        "profile": ("profile", "Measure forward and backward passes of a layer on this device."),
        "train": ("train", "Execute a table with torch, and record it."),
        "warm-up": ("warm_up", "Compile all kernels now, for an image or a cluster's workers."),
    },
    "Look": {
        "serve": ("serve", "Show projections in a browser, with sliders."),
        "figure": ("figure", "Draw a figure for a paper: timeline, memory, bubble, pareto, accuracy."),
        "models": ("models", "List the models, or count one's parameters and FLOPs."),
        "clusters": ("clusters", "List the clusters, or print one with units and sources."),
        "recipes": ("recipes", "List the recipes of trainers, or print one with its settings."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

ABOUT = """Project, explain and export pipeline-parallel schedules from measured costs.

\b
  ppsim project --pp 8 --vpp 2 -o timeline.html          how long, why
  ppsim project --pp 8 --vpp 2 --schedule all            the best schedule
  ppsim build zbv --pp 4 --num-microbatches 8 -o T.csv   torch's table

A schedule says in which order each pipeline rank runs the passes of its stages over the microbatches of a step:
forward (F) and backward (B, or I for inputs and W for weights). ppsim COMMAND --help says more.

Exit codes: 0 fine; 1 valid but impossible (deadlock, does not fit, a run that failed); 2 wrong usage or file;
3 an error that ppsim did not foresee.
"""

_OPTIONS = {
    "--version": "Show the version and exit.",
    "--debug": "Show the traceback of an error.",
    "-h, --help": "Show this message and exit.",
}
_MOST_COLUMNS, _LEAST_COLUMNS, _COLUMNS = 100, 50, 80


def front_page(width: int) -> str:
    """Return the page in lines of up to `width` characters; only examples and longer words may exceed it."""
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
        told = _wrapped(text, width - first - 2)
        lines += [f"  {name if index == 0 else '':{first}}{line}" for index, line in enumerate(told)]
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def page_width() -> int:
    """Return the width of a help page: COLUMNS or the terminal's width, within bounds."""
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns or _COLUMNS
    except (ValueError, OSError):
        columns = _COLUMNS
    return max(min(columns, _MOST_COLUMNS) - 2, _LEAST_COLUMNS)
