"""Terminal output for `ppsim sweep`, and for several values of one option."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ppsim.base.option_declarations import flag_of
from ppsim.base.units import count, percent, seconds, size
from ppsim.plot.figures.pareto import in_short
from ppsim.projection.cost import amount
from ppsim.projection.scaling import ERROR, LEAST_GROWTH, Scaling
from ppsim.results.text_layout import Page, TableLines, bold, facts

_MOST_ERRORS = 3
_VERDICTS = {
    "fits": "fit", "fits tightly": "fit tightly", "does not fit": "do not fit", "unknown": "without a memory limit",
}  # fmt: skip


def print_sweep(verdicts: Counter[str], errors: Counter[str]) -> None:
    """Print the number of jobs by verdict, and the most frequent errors."""
    parts = [f"{number:,} {_VERDICTS[word]}" for word, number in verdicts.items()]
    parts += [f"{errors.total():,} with an error"] if errors else []
    page = Page()
    number = verdicts.total() + errors.total()
    page.add(f"{number:,} job{'s' if number > 1 else ''}: {', '.join(parts)}")
    if errors:
        texts = [f"{number:,} × {text}" for text, number in errors.most_common(_MOST_ERRORS)]
        further = len(errors) - _MOST_ERRORS
        texts += [f"{further:,} more in the column error"] if further > 0 else []
        page.add(facts([("errors", texts)]))


def print_scaling(scaling: Scaling) -> None:
    """Print a row for each value, then the knee, the cause that grows, and the stack."""
    page = Page()
    if scaling.deadline_days is not None:
        page.add(bold(_deadline_line(scaling)), "")
    page.add(TableLines.of(scaling_texts(scaling), wraps=True, spare=["MFU"]))
    notes = []
    if knee := scaling.knee:
        notes.append(
            ("knee", f"{knee['num_gpus']} GPUs: less than {LEAST_GROWTH:g} times the tokens/s of half as many")
        )
    if cause := scaling.growing_cause:
        name, first, last = cause
        notes.append(("what grows", f"{name}, from {percent(first)} to {percent(last)} of the iteration"))
    if len(stacks := scaling.stacks) > 1:
        names = dict.fromkeys(text.partition(" (")[0] for text in stacks)
        shown = ", ".join(names if len(names) == len(stacks) else stacks)
        notes.append(("stacks", f"{shown} differ: part of the difference in time is theirs"))
    elif stacks:
        notes.append(("stack", stacks[0]))
    notes += [(f"{row['num_gpus']} GPUs", row["command"]) for row in scaling.possible if "command" in row]
    page.add("", facts(notes))


def _deadline_line(scaling: Scaling) -> str:
    within = f"{scaling.deadline_days:g} days"
    if met := scaling.in_time:
        return f"{met['num_gpus']} GPUs are the fewest that meet {within}: {_days(met)}"
    soonest = scaling.soonest
    nearest = f"the nearest is {soonest['num_gpus']} GPUs with {_days(soonest)}" if soonest else "none fits"
    return f"no number of GPUs meets {within}: {nearest}"


def _days(row: Mapping[str, Any]) -> str:
    return f"{row['training_days']:.1f} days"


def scaling_texts(scaling: Scaling) -> list[dict[str, str]]:
    """Return the cells of the table."""
    rows = [_texts(scaling, row) for row in scaling.rows]
    header = {name: None for row in sorted(rows, key=len, reverse=True) for name in row}
    return [{name: row.get(name, "–") for name in header} for row in rows]


def _texts(scaling: Scaling, row: Mapping[str, Any]) -> dict[str, str]:
    header = {flag_of(scaling.option)[2:]: str(row[scaling.option])}
    if ERROR in row:
        return header | {"note": row[ERROR]}
    low, high = (seconds(row[f"iteration_time_{end}_s"]) for end in ("low", "high"))
    verdict = row["verdict"] if row["verdict"] not in ("fits", "unknown") else ""
    notes = [in_short(row.get("configuration", "")), verdict, row["note"]]
    return header | {
        "iteration": seconds(row["iteration_time_s"]),
        "90 % interval": f"{low} to {high}",
        "tokens/s": count(row["tokens_per_s"]) if row["tokens_per_s"] else "–",
        "MFU": percent(row["model_flops_utilization"]) if row["model_flops_utilization"] else "–",
        "memory": size(row["peak_bytes"]) if row["peak_bytes"] is not None else "–",
        **cost_column(row),
        "note": ", ".join(filter(None, notes)),
    }


def cost_column(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cost, without a price the GPU hours, of a run if its tokens are known, else of a step."""
    period = "step" if row["training_days"] is None else "run"
    cost = row["cost_per_step" if period == "step" else "training_cost"]
    hours = row["gpu_hours_per_step" if period == "step" else "training_gpu_hours"]
    days = {} if row["training_days"] is None else {"days": f"{row['training_days']:.1f}"}
    return days | (
        {f"GPU hours per {period}": amount(hours)} if cost is None else {f"cost per {period}": amount(cost)}
    )
