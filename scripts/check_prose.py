"""Check that prose is easy to read: python scripts/check_prose.py [--worst N] [PATH ...]

Reads Markdown without its code, and docstrings and comments of Python files. It counts habits that make a reader go
back, per 1,000 words, and fails (exit 1) if a rate is above its ceiling or a phrase of scripts/vocabulary.txt
occurs. The ceilings are about twice the rates of Megatron-LM's documentation. A sentence that passes can still be
hard to read, and the check is no reason for a worse sentence.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from pathlib import Path

VOCABULARY = Path(__file__).with_name("vocabulary.txt")

_UNIT = (
    "step|rank|stage|layer|microbatch|device|action|class|token|head|node|GPU|row|column|line|key|query|message|"
    "parameter|process"
)
_COUNTED = "bytes|tokens|seconds|stages?|ranks?|layers?|microbatches|sequences|one|entry|number|row|launches|cost"
CEILINGS = {
    r"\bwhat\b": 2.0,
    r"\bof (which|it|them|those|that)\b": 0.5,
    r"\b(that|those) of\b": 0.1,
    r"\b(beside|behind|apart|alike)\b": 0.3,
    r"\b(so|as) (many|much)\b": 0.2,
    r"\bwhere (a|an|the|it|they|there|nothing|no|nobody|none|some)\b": 0.5,  # instead of "if" or "when"
    r"\b((no|some|any|every)body|one's own)\b": 0.2,
    r"\b(lies?|stands?|told|taken|kept)\b": 0.8,
    rf"\b({_COUNTED}) an? ({_UNIT})\b": 0.4,  # "bytes a rank" instead of "bytes per rank"
}
"""Regular expressions, and the most matches per 1,000 words."""


def prose_of(path: Path) -> str:
    """Return the prose of a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "page.md"
    ...     _ = page.write_text("Words.\\n```sh\\ncode\\n```\\n")
    ...     prose_of(page).split()
    ['Words.']
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"<!--.*?-->", "", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.S)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(re.sub(r"^\s*(>>>|\.\.\.).*$", "", part, flags=re.M) for part in parts)


def files_in(paths: list[Path]) -> list[Path]:
    """Return the Markdown and Python files among paths and in folders."""
    found = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return [file for file in found if file.suffix in (".md", ".py")]


def main() -> None:
    """Print the rates of README.md, docs and ppsim, or of the paths given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("README.md"), Path("docs"), Path("ppsim")])
    parser.add_argument("--worst", type=int, default=10, help="files to list [default: 10]")
    given = parser.parse_args()

    prose = {path: prose_of(path) for path in files_in(given.paths)}
    num_words = sum(len(text.split()) for text in prose.values())
    print(f"{num_words} words in {len(prose)} files")
    failed = False
    matches = dict.fromkeys(prose, 0)
    for pattern, ceiling in CEILINGS.items():
        counts = {path: len(re.findall(pattern, text, re.I)) for path, text in prose.items()}
        rate = 1000 * sum(counts.values()) / max(num_words, 1)
        failed |= rate > ceiling
        print(f"{'over' if rate > ceiling else 'ok':5}{rate:6.2f} of {ceiling:4.1f}  {pattern[:80]}")
        matches = {path: matches[path] + counts[path] for path in prose}
    for path in sorted(prose, key=lambda one: -matches[one])[: given.worst]:
        print(f"{matches[path]:5} in {path}")
    for phrase in VOCABULARY.read_text().split("\n"):
        for path in [path for path, text in prose.items() if phrase and phrase in " ".join(text.split()).lower()]:
            failed = True
            print(f"{path}: '{phrase}' is in scripts/vocabulary.txt")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
