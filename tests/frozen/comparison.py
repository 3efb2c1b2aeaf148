"""Comparison of frozen values with those of today."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.frozen.values import FOLDER, Entries

RTOL = 1e-9


@dataclass(frozen=True)
class Change:
    """A value that is not the frozen one; None is a value that is missing."""

    entry: str
    measure: str
    frozen: Any
    now: Any

    @property
    def relative(self) -> float:
        """|now − frozen| / |frozen|; infinite for a value that is missing, no number, or was 0."""
        if not (_is_number(self.frozen) and _is_number(self.now)) or self.frozen == 0:
            return math.inf
        return float(abs(self.now - self.frozen) / abs(self.frozen))

    def __str__(self) -> str:
        return f"{self.entry}: {self.measure} {self.frozen} → {self.now}"


def frozen_values(topic: str) -> Entries:
    path = FOLDER / f"{topic}.json"
    return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


def changes(frozen: Entries, now: Entries) -> Iterator[Change]:
    """Yield the frozen values that are missing now or differ; new entries and measures are no changes."""
    for entry, measures in frozen.items():
        found = now.get(entry, {})
        for measure, value in measures.items():
            if not is_close(value, found.get(measure)):
                yield Change(entry, measure, value, found.get(measure))


def is_close(frozen: Any, now: Any) -> bool:
    if _is_number(frozen) and _is_number(now):
        return math.isclose(frozen, now, rel_tol=RTOL, abs_tol=1e-15)
    return bool(frozen == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_frozen(topic: str, now: Entries) -> None:
    frozen = frozen_values(topic)
    assert frozen, f"tests/frozen/{topic}.json is missing or empty"
    changed = list(changes(frozen, json.loads(json.dumps(now))))
    first = "\n".join(map(str, sorted(changed, key=lambda one: -one.relative)[:5]))
    assert not changed, (
        f"{len(changed)} values of tests/frozen/{topic}.json changed. If that is meant: "
        f"python scripts/freeze_values.py {topic} --why TEXT\n{first}"
    )
