"""Run the readers on mutated files, in one process, and collect what is unforeseen, slow or large."""

import random
import resource
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ppsim.errors import PpsimError
from tests.fuzzing.corpus import write_corpus
from tests.fuzzing.mutations import mutated
from tests.fuzzing.targets import TARGETS

_EXTRA = (
    "experts.yaml",
    "train.sh",
    "T.csv",
    "measured.json",
    "trace.json",
)  # twice as often: the largest grammars


@dataclass
class Found:
    """What became of the inputs: `unforeseen` has for each distinct error an input and its traceback."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unforeseen: dict[str, tuple[str, bytes, str]] = field(default_factory=dict)
    slowest: list[tuple[float, str, bytes]] = field(default_factory=list)
    largest: list[tuple[int, str, bytes]] = field(default_factory=list)

    def add(self, name: str, content: bytes, seconds: float, grown_bytes: int) -> None:
        """Note an input among the slowest and the largest."""
        self.slowest = sorted([*self.slowest, (seconds, name, content)], reverse=True)[:5]
        if grown_bytes:
            self.largest = sorted([*self.largest, (grown_bytes, name, content)], reverse=True)[:5]


def fuzz(folder: Path, num: int, seed: int, only: str | None = None) -> Found:
    """Return what became of `num` mutated files; `only` names one file of the corpus."""
    write_corpus(folder)
    Path("measured0.json").write_bytes(Path("measured.json").read_bytes())
    names = [only] if only else [*TARGETS, *_EXTRA]
    valid = {name: Path(name).read_bytes() for name in dict.fromkeys(names)}
    for name in dict.fromkeys(names):  # valid files are read, and what is imported is not counted
        _run(name)
    found, draw = Found(), random.Random(seed)
    for case in range(num):
        name = names[case % len(names)]
        content = mutated(valid[name], name, list(valid.values()), draw)
        Path(name).write_bytes(content)
        peak, begun = _peak_bytes(), time.process_time()
        try:
            _run(name)
            found.outcomes["read"] += 1
        except PpsimError as error:
            _require_sentence(error, found, name, content)
        except Exception as error:
            found.outcomes["unforeseen"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{name}: {type(error).__name__} in {where.filename}:{where.lineno}"
            found.unforeseen.setdefault(key, (name, content, traceback.format_exc()))
        found.add(name, content, time.process_time() - begun, _peak_bytes() - peak)
        Path(name).write_bytes(valid[name])
    return found


def _run(name: str) -> None:
    TARGETS[name](
        Path("dump") if name.startswith("dump/") else Path("experiment.yaml" if "primus/" in name else name)
    )


def _require_sentence(error: Exception, found: Found, name: str, content: bytes) -> None:
    """Count a refusal; one that cannot be printed, or that is as long as its file, is unforeseen."""
    try:
        is_sentence = len(str(error).encode()) < 50_000
    except UnicodeEncodeError:
        is_sentence = False
    found.outcomes["refused" if is_sentence else "unforeseen"] += 1
    if not is_sentence:
        found.unforeseen.setdefault(
            f"{name}: {type(error).__name__} cannot be shown", (name, content, str(error)[:2000])
        )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
