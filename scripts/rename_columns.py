"""Turn sets of published runs with 0.2's columns into words of `ppsim project`: python scripts/rename_columns.py

Rewrites ppsim/validation/data/*.csv and sets.toml (or those of the folder that is given). A set whose rows and
defaults say neither `runtime` nor `stack` has the old columns; the others stay as they are.
"""

import csv
import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from ppsim.configs.stacks import stacks

FOLDER = Path(__file__).parents[1] / "ppsim" / "validation" / "data"
RENAMED = {"machine": "cluster", "zero_stage": "zero", "overlap": "overlap_dp", "hidden_ep": "overlap_ep",
           "hidden_cp": "overlap_cp", "rest_s": "rest"}  # fmt: skip
HIDDEN = ("hidden_tp", "hidden_tp_backward")
IS_MEASURED = "forward_ms"
OLD_DEFAULTS: dict[str, Any] = {"sequence_parallel": False, "fused_cross_entropy": False}
"""What the old columns took where nothing was said, and `ppsim project` takes otherwise."""


def main(folder: Path) -> None:
    """Rewrite the sets of a folder that have the old columns."""
    sets = tomllib.loads((folder / "sets.toml").read_text(encoding="utf-8"))
    head = [line for line in (folder / "sets.toml").read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    for name, told in sets.items():
        path = folder / f"{name}.csv"
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        known = {*told.get("defaults", {}), *rows[0]}
        if known & {"runtime", "stack"}:
            continue
        defaults = told.setdefault("defaults", {})
        if "machine" in told:
            defaults["cluster"] = told.pop("machine")
        told["defaults"] = new_defaults(defaults, known)
        comments = [line for line in lines if line.startswith("#")]
        path.write_text("\n".join([*comments, csv_of([new_row(row, defaults) for row in rows])]), encoding="utf-8")
        print(f"renamed {name}")
    (folder / "sets.toml").write_text(toml_of(head, sets), encoding="utf-8")


def new_defaults(old: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the defaults of a set as words; `known` are its columns and defaults."""
    found = {RENAMED.get(name, name): value for name, value in old.items() if name not in (*HIDDEN, "channel")}
    if "model" not in known:
        found["model"] = "gpt"
    channel = old.get("channel", "edge")
    found["runtime"] = "ideal" if channel == "ideal" else "megatron"
    if channel == "pair":
        found["channel"] = channel
    if not known & {IS_MEASURED, "split"}:
        found["split"] = "even"
    if hidden := hidden_of(old):
        found["overlap_tp"] = hidden
    if IS_MEASURED not in known:
        found |= {name: value for name, value in OLD_DEFAULTS.items() if name not in known}
    for name, stack in stacks().items():
        lines = {line.word: line.value for line in stack.lines}
        usual = {"attention": "fused", "dropout": False, "scatter_gather": False, "zero": 1, "overlap_dp": True}
        if lines and all((usual | found).get(word) == value for word, value in lines.items()):
            found = {word: value for word, value in found.items() if word not in lines} | {"stack": name}
            break
    return found


def hidden_of(row: dict[str, Any]) -> str:
    """Return what --overlap-tp is, "" where nothing is said."""
    if not any(row.get(name) not in (None, "") for name in HIDDEN):
        return ""
    forward, backward = (f"{float(row.get(name) or 0):g}" for name in HIDDEN)
    return forward if forward == backward else f"{forward},{backward}"


def new_row(old: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return a row as words of `ppsim project`."""
    found = {RENAMED.get(name, name): cell for name, cell in old.items() if name not in HIDDEN}
    if any(name in old for name in HIDDEN):
        found["overlap_tp"] = hidden_of(defaults | {name: old[name] for name in HIDDEN if old.get(name)})
    if IS_MEASURED in old:
        # A layer a stage: embedding and head have one each.
        stages = int(old["pp"]) * int(old.get("vpp") or 1)
        is_layer_each = stages == int(old["layers"]) + 2
        found = {**found, "split": f"E|(t|)*{old['layers']}L" if is_layer_each else ""}
    return {**{name: cell for name, cell in found.items() if name not in ("metric", "value")},
            "metric": found["metric"], "value": found["value"]}  # fmt: skip


def csv_of(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def toml_of(head: list[str], sets: dict[str, Any]) -> str:
    """Return the sets as TOML."""
    lines = list(head)
    for name, told in sets.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {literal(value)}" for key, value in told.items() if key != "defaults"]
        lines += ["", f"[{name}.defaults]"]
        lines += [f"{key} = {literal(value)}" for key, value in told["defaults"].items()]
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """Return a value as TOML has it."""
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
