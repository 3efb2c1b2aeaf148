"""Parser of shell scripts, in time linear in the length of the script; nothing is executed.

A command substitution `$(…)` and a variable that the script does not set stay as written. Unlike a shell, `$ARRAY`
expands to all elements, and quotes inside a value group its words (scripts `eval` such values).
"""

import ast
import operator
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.trainers.slurm_headers import slurm_launch

MOST_EXPANDED = 2**20
"""Limit on the characters that the variables of a script expand to, over all uses."""

_LONGEST = 4096  # limit on the characters of ${…}, $((…)) and $(…)
_DEEPEST = 8  # limit on nested variables

_SPACE = re.compile(r"(?:[^\S\n]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"\d*[<>][<>&\d]*|[;&|]+")
_PLAIN = re.compile(r"(?:[^\s'\"\\$;&|<>()]|\$(?![\w({]))+")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE_PLAIN = re.compile(r"(?:[^\"\\$]|\$(?![\w({]))+")
_NAME = re.compile(r"\$(\w+)")
_BRACED = re.compile(r"(\w+)(?:\[[@*]\])?(?::?[-=](.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")


@dataclass
class _Word:
    pieces: list[str] = field(default_factory=list)
    assigned: re.Match[str] | None = None
    array: list[str] | None = None

    @property
    def value(self) -> str:
        return "".join(self.pieces)

    @property
    def text(self) -> str:
        return (self.assigned[0] if self.assigned else "") + self.value


class ShellScript:
    """A script, read statement by statement; `variables` are the ones set so far."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text.replace("\r\n", "\n"), source
        self.variables: dict[str, list[str]] = {}
        self._place, self._expanded = 0, 0

    def statements(self) -> Iterator[list[str]]:
        """Yield the words of each statement; for an assignment, the words of its value.

        Raises `ConfigError` if variables expand to too many characters.
        """
        words: list[_Word] = []
        while self._place < len(self.text):
            if match := _SPACE.match(self.text, self._place) or _COMMENT.match(self.text, self._place):
                self._place = match.end()
            elif self.text[self._place] == "\n":
                self._place += 1
                yield from self._ended(words)
                words = []
            elif match := _OPERATOR.match(self.text, self._place):
                self._place = match.end()
                if match[0][0] in ";&|":
                    yield from self._ended(words)
                    words = []
                else:
                    words.append(_Word([match[0]]))
            else:
                words += self._words()
        yield from self._ended(words)

    def _ended(self, words: list[_Word]) -> Iterator[list[str]]:
        if words and words[0].text in _DECLARING:
            words = [word for word in words[1:] if word.assigned]
        if not words:
            return
        if not all(word.assigned for word in words):
            yield [word.text for word in words]
            return
        for word in words:
            value = [word.value] if word.array is None else word.array
            yield value if word.array else self._split(value)
            name, appends = word.assigned[1], word.assigned[2]  # type: ignore[index]
            before = self.variables.get(name, []) if appends else []
            if before and word.array is None:
                before, value = before[:-1], [before[-1] + value[0]]
            self.variables[name] = self._counted(before + value)

    def _words(self, *, in_array: bool = False) -> list[_Word]:
        begin, depth = self._place, 0
        found = [_Word(assigned=_ASSIGNED.match(self.text, begin))]
        if found[0].assigned:
            self._place = found[0].assigned.end()
            if self.text.startswith("(", self._place) and not in_array:
                self._place += 1
                found[0].array = self._array(begin)
                return found
        while self._place < len(self.text):
            character = self.text[self._place]
            if match := _PLAIN.match(self.text, self._place):
                self._place = match.end()
                found[-1].pieces.append(match[0])
            elif character == "'":
                if (match := _SINGLE.match(self.text, self._place)) is None:
                    raise self._unclosed("quotation", begin)
                self._place = match.end()
                found[-1].pieces.append(match[1])
            elif character == '"':
                self._double_quoted(found, begin)
            elif character == "$":
                value = self._expansion()
                # A command is not run and stays one word.
                is_one_word = found[0].assigned or (value and value[0].startswith("$("))
                _add(found, value if is_one_word else self._split(value))
            elif character == "\\" and not self.text.startswith("\\\n", self._place):
                found[-1].pieces.append(self.text[self._place + 1 : self._place + 2])
                self._place += 2
            elif character in "()" and (depth or character == "(" or not in_array):
                depth += 1 if character == "(" else -1 if depth else 0
                found[-1].pieces.append(character)
                self._place += 1
            else:
                break
        return [word for word in found if word.pieces or word.assigned]

    def _array(self, begin: int) -> list[str]:
        elements: list[str] = []
        while self._place < len(self.text):
            if self.text[self._place] == ")":
                self._place += 1
                return self._counted(elements)
            if match := _COMMENT.match(self.text, self._place) or _SPACE.match(self.text, self._place):
                self._place = match.end()
            elif self.text[self._place] in "\n;&|<>":
                self._place += 1
            else:
                elements += [word.text for word in self._words(in_array=True)]
        raise self._unclosed("parenthesis", begin)

    def _double_quoted(self, found: list[_Word], begin: int) -> None:
        """An empty array in quotes is no word, other empty quotes are an empty word."""
        self._place += 1
        has_empty_array = False
        while self._place < len(self.text):
            character = self.text[self._place]
            if match := _DOUBLE_PLAIN.match(self.text, self._place):
                self._place = match.end()
                found[-1].pieces.append(match[0])
            elif character == '"':
                self._place += 1
                found[-1].pieces += [] if has_empty_array else [""]
                return
            elif character == "\\":
                escaped = self.text[self._place + 1 : self._place + 2]
                found[-1].pieces.append({"\n": " ", '"': '"', "\\": "\\", "$": "$"}.get(escaped, f"\\{escaped}"))
                self._place += 2
            else:
                value = self._expansion()
                has_empty_array = has_empty_array or not value
                _add(found, [" ".join(value)] if found[0].assigned else value)
        raise self._unclosed("quotation", begin)

    def _expansion(self) -> list[str]:
        """Move past the `$…` that starts here; the value of an array has several elements."""
        begin = self._place
        for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}")):
            if not self.text.startswith(opening, begin):
                continue
            if (end := self._closing(self.text, begin + len(opening), closing)) is None:
                break
            self._place = end
            whole, inner = self.text[begin:end], self.text[begin + len(opening) : end - len(closing)]
            if opening == "${" and (match := _BRACED.fullmatch(inner)) and match[1] in self.variables:
                return self._variable(match[1], whole, 0)
            if opening == "$((":
                return [self._computed(inner) or whole]
            return [self._with_variables(whole, 0) if opening == "${" else whole]
        match = _NAME.match(self.text, begin)
        self._place = match.end() if match else begin + 1
        return self._variable(match[1], match[0], 0) if match else ["$"]

    def _variable(self, name: str, written: str, depth: int) -> list[str]:
        """Return the text as written if the variable is not set."""
        value = self.variables.get(name, [written])
        if name in self.variables and depth < _DEEPEST and any("$" in one for one in value):
            value = [self._with_variables(one, depth + 1) for one in value]
        return self._counted(value)

    def _with_variables(self, text: str, depth: int) -> str:
        self._counted([text])
        pieces, place = [], 0
        while (dollar := text.find("$", place)) >= 0:
            pieces.append(text[place:dollar])
            place, piece = dollar + 1, "$"
            if text.startswith("${", dollar):
                if (end := self._closing(text, dollar + 2, "}")) is not None:
                    place, piece = end, self._braced(text[dollar:end], depth)
            elif match := _NAME.match(text, dollar):
                place, piece = match.end(), " ".join(self._variable(match[1], match[0], depth))
            pieces.append(piece)
        return "".join([*pieces, text[place:]])

    def _braced(self, whole: str, depth: int) -> str:
        match = _BRACED.fullmatch(whole[2:-1])
        if match is None or (match[1] not in self.variables and match[2] is None) or depth == _DEEPEST:
            return whole
        if match[1] in self.variables:
            return " ".join(self._variable(match[1], whole, depth))
        return self._with_variables(match[2].strip("\"'"), depth + 1)

    def _computed(self, text: str) -> str | None:
        text = self._with_variables(text, 0)
        return _computed(re.sub(r"[A-Za-z_]\w*", lambda name: " ".join(self._variable(name[0], name[0], 0)), text))

    def _closing(self, text: str, begin: int, closing: str) -> int | None:
        """Return None if there is no closing bracket within `_LONGEST` characters."""
        opener, shut, depth = "{" if closing == "}" else "(", closing[0], 0
        for match in re.compile(f"[{opener}{shut}]").finditer(text, begin, begin + _LONGEST):
            depth += 1 if match[0] == opener else -1
            if depth < 0:
                self._counted([text[begin : match.end()]])
                return match.start() + len(closing) if text.startswith(closing, match.start()) else None
        self._counted([text[begin : begin + _LONGEST]])
        return None

    def _counted(self, value: list[str]) -> list[str]:
        self._expanded += sum(map(len, value)) + len(value)
        if self._expanded > MOST_EXPANDED:
            raise ConfigError(
                f"{self.source}: its variables expand to more than {MOST_EXPANDED:,} characters "
                f"(line {self._line(self._place)})"
            )
        return value

    def _split(self, value: list[str]) -> list[str]:
        words: list[str] = []
        for one in value:
            try:
                words += shlex.split(one) if re.search(r"['\"\\]", one) else one.split()
            except ValueError:  # the quote is an apostrophe in a text
                words += one.split()
        return words

    def _unclosed(self, what: str, begin: int) -> ConfigError:
        line = self.text[begin : begin + 40].split("\n")[0]
        return ConfigError(f"{self.source}: cannot read '{line}' in line {self._line(begin)}: no closing {what}")

    def _line(self, place: int) -> int:
        return self.text.count("\n", 0, place) + 1


def _add(words: list[_Word], value: list[str]) -> None:
    if value:
        words[-1].pieces.append(value[0])
        words += [_Word([one]) for one in value[1:]]


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
_LONGEST_SUM = 400  # limit on the characters of arithmetic, because the parser is recursive


def _computed(text: str) -> str | None:
    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
                return int(_OPERATORS[type(operation)](value(left), value(right)))
        raise ValueError

    text = " ".join(text.replace("$", "").split())
    if len(text) > _LONGEST_SUM:
        return None
    try:
        return str(value(ast.parse(re.sub("/+", "//", text), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


_LOGGED = re.compile(r"(?:^|\s)(\w+) \.{3,} (.*)$")


def logged_arguments(text: str) -> dict[str, Any]:
    """Megatron-LM prints its arguments at the start of a log, one `name ........ value` per line."""
    found = (_LOGGED.search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in found if match}


def flags_of(text: str, source: str) -> dict[str, Any]:
    """An option without a value is True; the last value of a repeated option counts.

    #SBATCH headers set Slurm's variables and, if no launcher is given the processes per node, these.
    """
    options: dict[str, Any] = {}
    script = ShellScript(text, source)
    if launch := slurm_launch(text):
        script.variables = {name: [str(launch[place])] for name, place in _SLURM_VARIABLES.items()}
    for words in script.statements():
        options |= _options(words)
    if launch and not {"--nproc_per_node", "--nproc-per-node", "--world-size"} & options.keys():
        options |= {"--nnodes": str(launch[0]), "--nproc_per_node": str(launch[1])}
    return options


_SLURM_VARIABLES = {
    "SLURM_NNODES": 0, "SLURM_JOB_NUM_NODES": 0, "SLURM_GPUS_PER_NODE": 1, "SLURM_GPUS_ON_NODE": 1,
}  # fmt: skip
"""Variables that Slurm sets, with the place of their values in `slurm_launch`."""


def _options(tokens: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    several: dict[str, list[str]] = {}
    name = None
    for token in tokens:
        if token.startswith("--") and len(token) > 2:
            name, _, value = token.partition("=")
            options[name] = value or True
            several.pop(name, None)
        elif name is None or re.match(r"[&|<>;]|\d>", token):
            name = None
        elif options[name] is True:
            options[name] = token
        elif name.endswith(
            ("-modules", "-comm-type", "-scope", "-path", "-layers", "_per_model_part", ".components")
        ):
            several.setdefault(name, [options[name]]).append(token)
    return options | {name: " ".join(values) for name, values in several.items()}
