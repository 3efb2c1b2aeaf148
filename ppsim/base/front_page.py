"""The page of `ppsim --help`: the command line itself, and what it imports, is not loaded to show it."""

import os

COMMANDS = {  # in which file of `ppsim.cli` each is, and what the page says of it
    "project": ("project", "Project a step: time, throughput, memory per rank, and why."),
    "tune": ("tune", "Find the best layout and schedule for a model on so many GPUs."),
    "serve": ("serve", "Show projections in a browser, with sliders."),
    "schedules": ("tables", "List the schedules, or print one in full."),
    "build": ("build", "Build a schedule table: torch's compute-only CSV."),
    "check": ("tables", "Tell whether a table runs, and on which channels."),
    "simulate": ("tables", "Simulate any table at any costs."),
    "export": ("tables", "Write a checked table for a runtime."),
    "profile": ("profile", "Measure F, B, I and W of a layer on this device."),
    "models": ("models", "List the models, or count one's parameters and FLOPs."),
    "clusters": ("clusters", "List clusters, or print one with units and sources."),
    "train": ("runs", "Execute a table for real with torch, and measure it."),
    "read": ("runs", "Read a run of any trainer: its timeline, and what is known of it."),
    "explain": ("runs", "Say why a measured step takes as long as it does."),
    "compare": ("runs", "Set a measured step beside a projected one."),
    "calibrate": ("calibrate", "Fit overheads to measured runs, for projections to take."),
    "fit": ("fit", "Fit one's own cluster to measured steps, for --cluster."),
    "validate": ("validate", "Signed errors against published runs."),
    "warm-up": ("warm_up", "Compile every kernel now, for an image or a cluster's workers."),
    "figure": ("figure", "Make a figure for a paper: timeline, memory, bubble, pareto, accuracy."),
}

ABOUT = """Project, explain and export pipeline-parallel schedules from measured costs.

\b
  ppsim project --pp 8 --vpp 2 -o timeline.html      how long, and why
  ppsim project --pp 8 --vpp 2 --schedule all        which schedule is best?
  ppsim build zbv --pp 4 --num-microbatches 8 -o T.csv   the table that torch runs

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
    """Return the page in lines of up to `width` characters, but for examples and where a word is longer."""
    blocks = ["Usage: ppsim [OPTIONS] COMMAND [ARGS]..."]
    for text in ABOUT.strip().split("\n\n"):
        as_it_is = text.startswith("\b\n")
        lines = text[2:].splitlines() if as_it_is else _wrapped(text, width - 2)
        blocks.append("\n".join(f"  {line}" for line in lines))
    said = {name: COMMANDS[name][1] for name in sorted(COMMANDS)}
    blocks += [_definitions(title, rows, width) for title, rows in (("Options", _OPTIONS), ("Commands", said))]
    return "\n\n".join(blocks) + "\n"


def _definitions(title: str, rows: dict[str, str], width: int) -> str:
    """A heading and names with what each means, in two columns."""
    first = max(map(len, rows)) + 2
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
    """Return the width of a help page: that of the terminal, as COLUMNS or the terminal says, within bounds."""
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns or _COLUMNS
    except (ValueError, OSError):
        columns = _COLUMNS
    return max(min(columns, _MOST_COLUMNS) - 2, _LEAST_COLUMNS)
