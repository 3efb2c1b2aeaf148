"""One-line changes of Python code that a test should notice, made from the syntax tree."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A replacement of columns `begin` to `end` (UTF-8 bytes) of a line by `text`; lines count from 1."""

    kind: str
    line: int
    begin: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """Return the source with the change."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        lines[self.line - 1] = (line[: self.begin] + self.text.encode() + line[self.end :]).decode()
        return "".join(lines)


def mutations(source: str) -> list[Mutation]:
    """Return the changes of expressions and statements on one line.

    Annotations, decorators, imports, texts and f-strings stay.

    >>> [(one.kind, one.applied("x = a + f(b, c)")) for one in mutations("x = a + f(b, c)")]
    [('arithmetic', 'x = (a - f(b, c))'), ('swapped arguments', 'x = a + (f(c, b))')]
    """
    tree = ast.parse(source)
    silent = {id(inner) for node in ast.walk(tree) for part in _silent(node) for inner in ast.walk(part)}
    found = []
    for node in ast.walk(tree):
        if id(node) in silent or getattr(node, "lineno", None) != getattr(node, "end_lineno", None):
            continue
        for kind, text in _changes(node):
            found.append(Mutation(kind, node.lineno, node.col_offset, node.end_col_offset, text))  # type: ignore[attr-defined]
    return found


def _silent(node: ast.AST) -> Iterator[ast.AST]:
    """Yield parts whose change is no change of behaviour, or whose place in the text is unknown."""
    for name in ("annotation", "returns"):
        if isinstance(part := getattr(node, name, None), ast.AST):
            yield part
    yield from getattr(node, "decorator_list", ())
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        yield node
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield node


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _COMPARISONS[type(node.ops[0])]()
        yield "comparison", _text(ast.Compare(node.left, [other], node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node):
        yield "arithmetic", _text(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "condition", _text(ast.BoolOp(other_op, node.values))
    elif isinstance(node, ast.IfExp):
        yield "condition", _text(ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "condition", _text(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield "constant", repr(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Call) and len(node.args) >= 2 and not _has_star(node):
        first, second, *rest = node.args
        yield "swapped arguments", _text(ast.Call(node.func, [second, first, *rest], node.keywords))
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "dropped statement", "pass"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in ast.walk(node)
    )


def _has_star(node: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in node.args[:2])
