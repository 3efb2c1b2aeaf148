"""Run the commands of the documents and compare their output with the pages, or write it into the pages.

    python scripts/run_documents.py                          every page; exits with 1 if an output differs
    python scripts/run_documents.py docs/tutorial.md --write

The blocks of a page run in order, in a temporary folder per page:

- ``sh`` runs in bash, which stops at the first command, or part of a pipe, that fails. (Use ``sed -n 1,9p``, which
  reads to the end, instead of ``head``.) ``python`` runs in one interpreter per page, so a block can use the names
  of earlier blocks.
- ``text`` is the output of the block before it, including standard error. A `text` block is
  an error if there is no such block, or the block prints nothing.
- A block after a line that ends in "`FILE.SUFFIX`:" is written to that file instead.

Comments before a block, each on its own line, mark exceptions:

- ``<!-- not run: WHY -->``: the block does not run, and the text after it is not checked.
- ``<!-- exits with 1 -->``: the last command of the block does.
- ``<!-- measured -->``: the numbers in the text were measured, and are not compared.
- ``<!-- not output -->``: the text is not the output of a command.

Prose on a page with output must not contain numbers with a unit that no block of the page contains, because nothing
updates them (`unprinted`). ``<!-- numbers: SOURCE -->``, on the line before a paragraph or list, names the source
of its numbers if no block has them. Tables are not checked.
"""

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click

from ppsim.base.numba_jit import COMPILING

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"(?P<comments>(?:^<!--[^\n]*-->\n)*)^```(?P<kind>\w+)[^\n]*\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"`([\w.-]+\.\w+)`:\s*\Z")
_COMMENTS = re.compile(r"<!-- (not run: .+|exits with \d+|measured|not output) -->\n")


_NUMBER = re.compile(
    r"(?<![\w.,])(\d[\d,.]*)\s?"
    r"(%|[nµm]s|s|seconds|minutes|days|[KMGT]iB|[kMGT]B(?:/s)?|[TP]FLOP/s|(?:k )?tokens/s)(?![\w/])"
)
_CODE = re.compile(r"`[^`]*`")


class WrongPage(Exception):
    """A page that cannot be run: the line and the reason."""


@dataclass(frozen=True)
class Block:
    """A fenced block: `begin` and `end` locate its text in the page; `file` is the file to write, or None."""

    kind: str
    text: str
    begin: int
    end: int
    line: int
    file: str | None
    comments: frozenset[str]

    @property
    def is_run(self) -> bool:
        """Whether the block is a program without the comment "not run"."""
        is_program = self.kind in ("sh", "python") and self.file is None
        return is_program and not any(comment.startswith("not run") for comment in self.comments)

    @property
    def exit_code(self) -> int:
        """The expected exit code of the block's last command."""
        return next((int(one.split()[-1]) for one in self.comments if one.startswith("exits with")), 0)


@dataclass
class Found:
    """Result of running a page: the correct page, and a paragraph for each text that differs."""

    text: str
    differences: list[str] = field(default_factory=list)


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; raises `WrongPage` for unknown comments."""
    for match in _BLOCK.finditer(page):
        line = page.count("\n", 0, match.start("kind")) + 1
        comments = match["comments"]
        known = frozenset(_COMMENTS.findall(comments))
        if len(known) != comments.count("<!--"):
            raise WrongPage(f"line {line}: not understood: {comments.strip()}")
        label = _FILE.search(page[max(0, match.start() - 200) : match.start()])
        file = label[1] if label else None
        yield Block(match["kind"], match["text"], match.start("text"), match.end("text"), line, file, known)


def run_page(page: str, folder: Path) -> Found:
    """Run a page in a folder and return the correct page; raises `WrongPage` if a block fails."""
    found, at = [], 0
    differences = []
    before: Block | None = None  # the block whose output comes next
    printed = ""
    with _Programs(folder) as programs:
        for block in blocks(page):
            if block.file is not None:
                (folder / block.file).write_text(block.text, encoding="utf-8")
            elif block.kind in ("sh", "python"):
                before, printed = block, programs.run(block) if block.is_run else ""
            elif block.kind == "text" and "not output" not in block.comments:
                if before is None:
                    raise WrongPage(
                        f"line {block.line}: no block prints it (say <!-- not output --> if none should)"
                    )
                if not (printed if before.is_run else block.text):
                    raise WrongPage(f"line {block.line}: empty: the block before it prints nothing")
                shape = without_numbers if "measured" in block.comments else str
                if before.is_run and shape(block.text) != shape(printed):
                    differences.append(
                        f"line {block.line}: says\n{block.text}but the block before it prints\n{printed}"
                    )
                    found += [page[at : block.begin], printed]
                    at = block.end
                before = None
    return Found("".join([*found, page[at:]]), differences)


def unprinted(page: str) -> list[str]:
    """Return the numbers with a unit in the prose that no block of the page contains."""
    of_page = list(blocks(page))
    if not any(block.kind == "text" and "not output" not in block.comments for block in of_page):
        return []
    printed = {match.groups() for block in of_page for match in _NUMBER.finditer(block.text)}
    paragraphs = re.split(r"\n\s*\n", _BLOCK.sub("\n\n", page))
    prose = [_CODE.sub("", one) for one in paragraphs if not one.lstrip().startswith(("|", "<!-- numbers:"))]
    return [match[0] for one in prose for match in _NUMBER.finditer(one) if match.groups() not in printed]


def without_numbers(text: str) -> list[str]:
    """Replace numbers and units by #, for comparison between runs."""
    return re.sub(r"[+-]?\d[\d.]*(?: (?:µs|ms|ns|s|%)(?=[\s,]|$))?", "#", " ".join(text.split())).split()


_INTERPRETER = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<block>", "exec"), names)
    except BaseException:
        traceback.print_exc()
        break
    print(end="\\0", flush=True)
"""


_SERVER = """
import contextlib, io, json, os, signal, socket, sys
from ppsim.__main__ import main
from ppsim.cli import main as commands

for warm_up in ("project --model gpt2 --cluster dgx-h100 --gpus 2 --pp 2", "build zbv --pp 2 --num-microbatches 4"):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        commands(warm_up.split())
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
while True:
    caller, _ = listener.accept()
    if os.fork():
        caller.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, opened, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
    told = json.loads(text)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = told["arguments"]
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.send(bytes([code]))
        os._exit(code)
"""
"""Run each `ppsim` command in a fork of a process that has imported ppsim: the import takes longer."""

_CLIENT = """#!{python} -ES
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
told = {{"folder": os.getcwd(), "environment": dict(os.environ), "arguments": sys.argv}}
socket.send_fds(server, [json.dumps(told).encode()], [0, 1, 2])
sys.exit((server.recv(1) or b"\1")[0])
"""


@cache
def _folder_of_ppsim() -> str:
    """Start the server of `ppsim` commands and return the folder of its client, an executable named ppsim."""
    folder = tempfile.TemporaryDirectory(prefix="ppsim-")
    atexit.register(folder.cleanup)
    address, client = str(Path(folder.name) / "socket"), Path(folder.name) / "ppsim"
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, address], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    server.stdout.readline()
    client.write_text(_CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    return folder.name


class _Programs:
    """Runs blocks in a folder: each shell block separately, Python blocks in one interpreter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python: subprocess.Popen[str] | None = None
        path = os.pathsep.join([_folder_of_ppsim(), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}

    def __enter__(self) -> "_Programs":
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            self._python.communicate()

    def run(self, block: Block) -> str:
        """Return the output of a block; raises `WrongPage` for an unexpected exit code."""
        text, code = self._shell(block.text) if block.kind == "sh" else self._interpreted(block.text)
        text = text.replace(f"{COMPILING}\n", "")  # only the first command of an installation prints it
        if code != block.exit_code:
            raise WrongPage(f"line {block.line}: exits with {code}:\n{block.text}\n{text}")
        return text

    def _shell(self, text: str) -> tuple[str, int]:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text], cwd=self._folder, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.stdout, done.returncode

    def _interpreted(self, text: str) -> tuple[str, int]:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER], cwd=self._folder, env=self._environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        stdin, stdout = self._python.stdin, self._python.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(text) + "\n")
        stdin.flush()
        printed = ""
        while (character := stdout.read(1)) not in ("\0", ""):
            printed += character
        return printed, 0 if character else 1


@click.command()
@click.argument("pages", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Write what the commands print into the pages.")
def main(pages: tuple[Path, ...], write: bool) -> None:
    """Run the commands of PAGES (default: all) and compare the output with the pages."""
    is_right = True
    for path in pages or PAGES:
        begin = time.perf_counter()
        page = path.read_text(encoding="utf-8")
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = run_page(page, Path(folder))
        except WrongPage as error:
            raise click.ClickException(f"{path}, {error}") from None
        if write and found.text != page:
            path.write_text(found.text, encoding="utf-8")
        elif found.differences:
            is_right = False
            click.echo("\n".join(f"{path}, {difference}" for difference in found.differences))
        for number in unprinted(found.text):
            is_right = False
            click.echo(f"{path}: no block prints {number}, which the prose states")
        click.echo(f"{time.perf_counter() - begin:5.1f} s  {path}", err=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
