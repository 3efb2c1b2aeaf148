"""Arguments in text: a shell script that calls a trainer, or the list of them at the head of a training log."""

import ast
import operator
import re
import shlex
from typing import Any

from ppsim.base.errors import ConfigError

_LOGGED = re.compile(r"^(?:\[?[^\s\]]*\]?:?\s)*\s*(\w+) \.{3,} (.*)$")
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[@\])?(?::?-([^{}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def logged_arguments(text: str) -> dict[str, Any]:
    """Return the arguments that Megatron-LM prints at the head of a log: `name ........ value` a line."""
    found = (_LOGGED.match(line) for line in text.splitlines())
    return {match[1]: match[2].strip() for match in found if match}


def flags_of(text: str, source: str) -> dict[str, Any]:
    """Return the options of the commands in a shell script, with the variables that it sets put in.

    An option without a value is True, one that is given twice has its last. Raises `ConfigError` for a script whose
    quotes don't close.
    """
    variables: dict[str, str] = {}
    options: dict[str, Any] = {}
    for statement in _statements(text, source):
        tokens = shlex.split(_substituted(statement, variables), comments=True)
        if tokens[:1] == ["export"]:
            tokens = tokens[1:]
        if len(tokens) == 1 and (assigned := re.fullmatch(r"(\w+)\+?=(.*)", tokens[0], re.DOTALL)):
            variables[assigned[1]] = assigned[2]
            tokens = shlex.split(assigned[2], comments=True) if "--" in assigned[2] else []
        options |= _options(tokens)
    return options


def _statements(text: str, source: str) -> list[str]:
    """Statements: lines that go on by a backslash, within quotes or the parentheses of an array are one."""
    joined = re.sub(r"\\\n", " ", text)
    joined = re.sub(
        r"^(\s*\w+\+?=)\(([^()]*)\)",
        lambda array: array[1] + shlex.quote(_uncommented(array[2])),
        joined,
        flags=re.M,
    )
    statements, begun = [], ""
    for line in joined.splitlines():
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begun = f"{begun}\n{line}" if begun else line
        if _is_closed(begun):
            statements.append(begun)
            begun = ""
    if begun:
        raise ConfigError(f"{source}: cannot read '{begun[:40].splitlines()[0]}': no closing quotation")
    return statements


def _is_closed(statement: str) -> bool:
    """Whether every quote has its other end."""
    try:
        shlex.split(statement, comments=True)
    except ValueError:
        return False
    return True


def _uncommented(lines: str) -> str:
    return " ".join(re.sub(r"(^|\s)#.*", "", line).strip() for line in lines.splitlines())


def _substituted(statement: str, variables: dict[str, str]) -> str:
    """The statement with variables that are known, or have a default, and whole-number arithmetic put in."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name, match[0] if default is None else default)

    for _ in range(8):  # a value may name others
        changed = _VARIABLE.sub(value, statement)
        if changed == statement:
            break
        statement = changed
    return _ARITHMETIC.sub(lambda match: _computed(match[1]) or match[0], statement)


def _computed(text: str) -> str | None:
    """Whole-number arithmetic, or None for what is none."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
                return int(_OPERATORS[type(operation)](value(left), value(right)))
        raise ValueError

    try:
        return str(value(ast.parse(text.replace("$", "").replace("/", "//").strip(), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
        return None


def _options(tokens: list[str]) -> dict[str, Any]:
    """Options with the value behind each; those of modules and of files have several."""
    options: dict[str, Any] = {}
    name = None
    for token in tokens:
        if token.startswith("--") and len(token) > 2:
            name, _, value = token.partition("=")
            options[name] = value or True
        elif name is None or re.match(r"[&|<>;]|\d>", token):
            name = None
        elif options[name] is True:
            options[name] = token
        elif name.endswith(("-modules", "-scope", "-path", "-layers", "_per_model_part", ".components")):
            options[name] += f" {token}"
    return options
