"""By which names trainers' recordings tell a pass of the pipeline: a small table of regular expressions.

A pattern matches the whole of a name. Its named groups say what is known: `cell` (a cell in torch's grammar,
`3F0`), or `kind` with `stage` or `chunk` (the how-manieth of the rank's stages), `microbatch` and `rank`, as far
as the name tells them. What it does not tell follows from the order (`ppsim.runs.numbering`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.schedule.grammar import MOST, parse_cell
from ppsim.schedule.table import NONE, Action, Cell, Op


@dataclass(frozen=True)
class Pattern:
    """One way to name passes: whose it is, and the expression."""

    trainer: str
    expression: re.Pattern[str]


PATTERNS = tuple(
    Pattern(trainer, re.compile(text))
    for trainer, text in {
        # torch.distributed.pipelining: _PipelineScheduleRuntime; ScheduleGPipe and Schedule1F1B.
        "torch's pipeline runtime": r"PP:(?P<cell>.+)",
        "torch's GPipe and 1F1B": r"(?P<kind>Forward|Backward) (?P<microbatch>\d+)",
        # NVTX under --profile of the zero-bubble runtimes (sail-sg/zero-bubble-pipeline-parallelism): F3, F3.1.0
        # with chunk and slice of the sequence.
        "zero-bubble Megatron": r"(?P<kind>[FBW])(?P<microbatch>\d+)(?:\.(?P<chunk>\d+)(?:\.0)?)?",
        # torch.profiler with_stack (--pytorch-profiler-collect-callstack), functions of megatron.core, also where
        # Primus calls them.
        "Megatron-LM's functions": r".*pipeline_parallel[/.]schedules\.py\(\d+\): (?P<kind>forward|backward)_step",
        # nvtx_decorator and nvtx_range_push name a range module.function (--nvtx-ranges).
        "Megatron-LM's NVTX": r"(?:.*\.)?schedules\.(?P<kind>forward|backward)_step",
        "DeepSpeed": r"(?:.*: |.*\.)?_exec_(?P<kind>forward|backward)_pass",
    }.items()
)
"""Those that are tried, in this order; the first that matches anything in a recording is taken for all of it."""

STEP = re.compile(r"ProfilerStep#\d+|(?:iteration|step)[ _:#]*\d+", re.IGNORECASE)
"""Ranges around a whole step: torch.profiler's own, and what people call theirs."""

_KINDS = {
    Op.F: ("f", "fwd", "forward", "forward_step"),
    Op.B: ("b", "bwd", "backward", "backward_step"),
    Op.I: ("i", "dgrad", "bwd_input", "backward_input"),
    Op.W: ("w", "wgrad", "bwd_weight", "backward_weight"),
}
KINDS = {word: op for op, words in _KINDS.items() for word in words}
"""What a kind may be called, in small letters."""

GROUPS = ("cell", "rank", "stage", "chunk", "microbatch", "kind")
_MAY_BE = re.compile(r"forward|backward|fwd|bwd|micro", re.IGNORECASE)
_MOST_NAMES = 10_000
_SHOWN = 6


@dataclass(frozen=True)
class Named:
    """What a name tells: a cell, NONE in it for a stage or microbatch that is not told, and the rest."""

    cell: Cell
    chunk: int | None = None
    rank: int | None = None


@dataclass
class Names:
    """Sorts the names of a recording into those of passes, of steps, and others, which are counted.

    `found` has, by place of the pattern, what was matched; only the first pattern that matches is used in the end.
    """

    patterns: Sequence[Pattern]
    others: Counter[str] = field(default_factory=Counter)

    def match(self, name: str) -> tuple[int, re.Match[str]] | None:
        """Return the first pattern that matches and its match."""
        for place, pattern in enumerate(self.patterns):
            found = pattern.expression.fullmatch(name)
            if found:
                return place, found
        if len(self.others) < _MOST_NAMES or name in self.others:
            self.others[name] += 1
        return None

    def most_common(self) -> str:
        """Return the most frequent names that no pattern matched, in quotes, such as may be passes first."""
        names = sorted(self.others, key=lambda name: (_MAY_BE.search(name) is None, -self.others[name]))
        short = (name if len(name) <= 60 else name[:57] + "…" for name in names[:_SHOWN])
        return ", ".join(f"'{name}'" for name in short)

    def likely_pattern(self) -> str | None:
        """Return an expression for names seen of forwards that are seen of backwards too, None where none are.

        The first number of a name is taken for the microbatch.

        >>> print(Names((), Counter({"## forward 3 ##": 1, "## backward 3 ##": 1})).likely_pattern())
        ## (?P<kind>forward|backward) (?P<microbatch>\\d+) ##
        """
        for name in sorted(self.others, key=lambda name: -self.others[name]):
            for forward, backward in _PAIRS:
                before, found, behind = name.partition(forward)
                text = f"{_escaped(before)}(?P<kind>{forward}|{backward}){_escaped(behind)}"
                text = re.sub(r"\d+", lambda number: r"\d+", text)
                text = text.replace(r"\d+", r"(?P<microbatch>\d+)", 1)
                expression = re.compile(text)
                matches = (expression.fullmatch(other) for other in self.others)
                if found and any(match is not None and match["kind"] == backward for match in matches):
                    return text
        return None


_PAIRS = (("forward", "backward"), ("Forward", "Backward"), ("FORWARD", "BACKWARD"), ("fwd", "bwd"), ("FWD", "BWD"))


def _escaped(text: str) -> str:
    """As re.escape, but for characters that mean nothing outside of verbose expressions."""
    return re.sub(r"\\([ #&~-])", r"\1", re.escape(text))


def patterns_with(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Return the patterns of a user, before those of the table; raises `ConfigError` for one that cannot be."""
    given = []
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            expression = re.compile(text)
        except re.error as error:
            raise ConfigError(f"--pattern '{text}' is no regular expression: {error}") from None
        groups = set(expression.groupindex)
        if unknown := sorted(groups - set(GROUPS)):
            raise ConfigError(f"--pattern '{text}' has a group {unknown[0]}: there are {', '.join(GROUPS)}")
        if not groups & {"cell", "kind"}:
            raise ConfigError(
                f"--pattern '{text}' does not tell a forward from a backward: name a group kind, as in "
                r"'(?P<kind>forward|backward) mb(?P<microbatch>\d+)'"
            )
        given.append(Pattern(f"--pattern {text}", expression))
    return (*given, *PATTERNS)


def named_in(match: re.Match[str], source: str) -> Named:
    """Return what a matched name tells; raises `ConfigError` for a kind or a cell that there is not."""
    told = {name: text for name, text in match.groupdict().items() if text is not None}
    if "cell" in told:
        try:
            return Named(parse_cell(told["cell"]))
        except ScheduleError as error:
            raise ConfigError(f"{source}: the range {match[0]} names no action: {error}") from None
    kind = told.get("kind", "")
    if kind.lower() not in KINDS:
        raise ConfigError(
            f"{source}: the range {match[0]} is of kind '{kind}', which is none of {', '.join(KINDS)}"
        )
    try:
        numbers = {name: int(text) for name, text in told.items() if name != "kind"}
    except ValueError as error:
        raise ConfigError(f"{source}: the range {match[0]}: a group of numbers matched none: {error}") from None
    if any(not 0 <= number < MOST for number in numbers.values()):
        raise ConfigError(f"{source}: the range {match[0]} has a number beyond what a pipeline has")
    action = Action(KINDS[kind.lower()], numbers.get("stage", NONE), numbers.get("microbatch", NONE))
    return Named(action, numbers.get("chunk"), numbers.get("rank"))
