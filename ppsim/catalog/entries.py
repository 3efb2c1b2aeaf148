"""All schedules of the catalogue (schedules.toml), one `ScheduleEntry` each, in the order of `ppsim schedules`."""

from collections.abc import Mapping
from typing import Any

from ppsim.base.display import load_function
from ppsim.base.files import data_folder, read_toml
from ppsim.catalog.entry import Formula, ScheduleEntry

_FORMULAS = ("bubble", "span_bubble", "peak_activations", "messages", "least_microbatches")


def _entry(name: str, table: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> ScheduleEntry:
    fields = dict(table)
    while "kind" in fields:
        fields = {**kinds[fields.pop("kind")], **fields}
    for field in _FORMULAS:
        if field in fields:
            formula = fields[field]
            fields[field] = Formula(formula) if isinstance(formula, str) else Formula(**formula)
    fewest, *most = fields["stages_per_rank"]
    fields["stages_per_rank"] = fewest, most[0] if most else None
    fields |= {field: tuple(fields.get(field, ())) for field in ("published", "also")}
    return ScheduleEntry(name, **fields | {"build": load_function(f"ppsim.catalog.{fields['build']}")})


def _read() -> tuple[ScheduleEntry, ...]:
    tables = read_toml(data_folder("catalog") / "schedules.toml")
    kinds = tables.pop("kinds")
    return tuple(_entry(name, table, kinds) for name, table in tables.items())


ENTRIES = _read()
