"""Count local names that do not say what they hold, and fail if a count rises above its ceiling.

    python scripts/check_names.py

The ceilings are in `[tool.ppsim.name-ceilings]` of pyproject.toml, and only ever go down. A name is counted each
time that a function, loop, comprehension or `with` of ppsim/ binds it. The 30 most frequent names are printed too.
"""

import ast
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
EMPTY = ("item", "value", "data", "result", "res", "tmp", "obj", "x")
"""Names without content; their sum has one ceiling, so that one of them does not replace another word."""


def bound_names(tree: ast.AST) -> Counter[str]:
    """Count the names that code binds: assignments, targets of loops and comprehensions, and arguments.

    >>> sorted(bound_names(ast.parse("for one, _ in two: three = [one for one in two]")).items())
    [('_', 1), ('one', 2), ('three', 1)]
    """
    names = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return names + Counter(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))


def main() -> int:
    """Print the counts with their ceilings, and return 1 if one is exceeded."""
    names: Counter[str] = Counter()
    for path in sorted((ROOT / "ppsim").rglob("*.py")):
        names += bound_names(ast.parse(path.read_text(encoding="utf-8")))
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ppsim"][
        "name-ceilings"
    ]
    counts = {word: sum(map(names.__getitem__, EMPTY)) if word == "empty" else names[word] for word in ceilings}
    for word, ceiling in ceilings.items():
        print(f"{word:>8} {counts[word]:5} of {ceiling}")
    print("most frequent:", ", ".join(f"{name} {number}" for name, number in names.most_common(30)))
    return int(any(counts[word] > ceiling for word, ceiling in ceilings.items()))


if __name__ == "__main__":
    sys.exit(main())
