"""Regular expressions for the names by which trainers' recordings mark pipeline actions.

A pattern matches the whole name. Its groups are `cell` (in torch's notation, such as `3F0`), or `kind` with any of
`stage`, `chunk`, `microbatch` and `rank`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.schedule.grammar import MOST, parse_cell
from ppsim.schedule.table import NONE, Action, Cell, Op


@dataclass(frozen=True)
class NamePattern:
    """A way to name actions, and the trainer that uses it."""

    trainer: str
    expression: re.Pattern[str]


PATTERNS = tuple(
    NamePattern(trainer, re.compile(text))
    for trainer, text in {
        # torch.distributed.pipelining: _PipelineScheduleRuntime; ScheduleGPipe and Schedule1F1B.
        "torch's pipeline runtime": r"PP:(?P<cell>.+)",
        "torch's GPipe and 1F1B": r"(?P<kind>Forward|Backward) (?P<microbatch>\d+)",
        # NVTX ranges of --profile in the zero-bubble runtimes (sail-sg/zero-bubble-pipeline-parallelism): F3, or
        # F3.1.0 with chunk and sequence slice.
        "zero-bubble Megatron": r"(?P<kind>[FBW])(?P<microbatch>\d+)(?:\.(?P<chunk>\d+)(?:\.0)?)?",
        # Functions of megatron.core in torch.profiler with_stack (--pytorch-profiler-collect-callstack), also if
        # Primus calls them.
        "Megatron-LM's functions": r".*pipeline_parallel[/.]schedules\.py\(\d+\): (?P<kind>forward|backward)_step",
        # nvtx_decorator and nvtx_range_push name a range module.function (--nvtx-ranges).
        "Megatron-LM's NVTX": r"(?:.*\.)?schedules\.(?P<kind>forward|backward)_step",
        "DeepSpeed": r"(?:.*: |.*\.)?_exec_(?P<kind>forward|backward)_pass",
    }.items()
)
"""The patterns in the order in which they are tried; the first with any match is used for the whole recording."""

STEP = re.compile(r"ProfilerStep#\d+|(?:iteration|step)[ _:#]*\d+", re.IGNORECASE)
"""Ranges around a whole step: torch.profiler's own, and names that users commonly choose."""

_KINDS = {
    Op.F: ("f", "fwd", "forward", "forward_step"),
    Op.B: ("b", "bwd", "backward", "backward_step"),
    Op.I: ("i", "dgrad", "bwd_input", "backward_input"),
    Op.W: ("w", "wgrad", "bwd_weight", "backward_weight"),
}
KINDS = {word: op for op, words in _KINDS.items() for word in words}
"""Accepted names of a kind of action, in lower case."""

GROUPS = ("cell", "rank", "stage", "chunk", "microbatch", "kind")
_MAY_BE = re.compile(r"forward|backward|fwd|bwd|micro", re.IGNORECASE)
_MOST_NAMES = 10_000
_SHOWN = 6


@dataclass(frozen=True)
class ParsedName:
    """Content of a name: an action (NONE for an unknown stage or microbatch), and chunk and rank if known."""

    cell: Cell
    chunk: int | None = None
    rank: int | None = None


@dataclass
class NameCounts:
    """Matches the names of a recording with patterns of actions, and counts the unmatched names (`others`)."""

    patterns: Sequence[NamePattern]
    others: Counter[str] = field(default_factory=Counter)

    def match(self, name: str) -> tuple[int, re.Match[str]] | None:
        for index, pattern in enumerate(self.patterns):
            match = pattern.expression.fullmatch(name)
            if match:
                return index, match
        if len(self.others) < _MOST_NAMES or name in self.others:
            self.others[name] += 1
        return None

    def most_common(self) -> str:
        """Return the most common unmatched names; names that look like actions come first."""
        names = sorted(self.others, key=lambda name: (_MAY_BE.search(name) is None, -self.others[name]))
        short = (name if len(name) <= 60 else name[:57] + "…" for name in names[:_SHOWN])
        return ", ".join(f"'{name}'" for name in short)

    def likely_pattern(self) -> str | None:
        """Propose an expression for unmatched names; the first number of a name is assumed to be the microbatch.

        >>> print(NameCounts((), Counter({"## forward 3 ##": 1, "## backward 3 ##": 1})).likely_pattern())
        ## (?P<kind>forward|backward) (?P<microbatch>\\d+) ##
        """
        known = {_NUMBER.sub("#", name) for name in self.others}
        for name in sorted(self.others, key=lambda name: -self.others[name]):
            for forward, backward in _PAIRS:
                before, found, behind = name.partition(forward)
                if found and _NUMBER.sub("#", before + backward + behind) in known:
                    text = f"{_escaped(before)}(?P<kind>{forward}|{backward}){_escaped(behind)}"
                    return _NUMBER.sub(lambda number: r"\d+", text).replace(r"\d+", r"(?P<microbatch>\d+)", 1)
        return None


_NUMBER = re.compile(r"\d+")
_PAIRS = (("forward", "backward"), ("Forward", "Backward"), ("FORWARD", "BACKWARD"), ("fwd", "bwd"), ("FWD", "BWD"))


def _escaped(text: str) -> str:
    """Escape like `re.escape`, except characters that are special only in verbose expressions and in sets."""
    return re.sub(r"\\([ #&~-])", r"\1", re.escape(text))


def patterns_with(texts: Iterable[str]) -> tuple[NamePattern, ...]:
    """Return a user's patterns followed by the built-in ones; raises `ConfigError` for an invalid pattern."""
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
        given.append(NamePattern(f"--pattern {text}", expression))
    return (*given, *PATTERNS)


def named_in(match: re.Match[str], source: str) -> ParsedName:
    fields = {name: text for name, text in match.groupdict().items() if text is not None}
    if "cell" in fields:
        try:
            return ParsedName(parse_cell(fields["cell"]))
        except ScheduleError as error:
            raise ConfigError(f"{source}: the range {match[0]} names no action: {error}") from None
    kind = fields.get("kind", "")
    if kind.lower() not in KINDS:
        raise ConfigError(
            f"{source}: the range {match[0]} is of kind '{kind}', which is none of {', '.join(KINDS)}"
        )
    try:
        numbers = {name: int(text) for name, text in fields.items() if name != "kind"}
    except ValueError as error:
        raise ConfigError(f"{source}: the range {match[0]}: a group of numbers matched none: {error}") from None
    if any(not 0 <= number < MOST for number in numbers.values()):
        raise ConfigError(f"{source}: the range {match[0]} has a number beyond what a pipeline has")
    action = Action(KINDS[kind.lower()], numbers.get("stage", NONE), numbers.get("microbatch", NONE))
    return ParsedName(action, numbers.get("chunk"), numbers.get("rank"))
