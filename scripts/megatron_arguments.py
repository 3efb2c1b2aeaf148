"""Write Megatron-LM's arguments since core_v0.8.0, each with its releases, to megatron_arguments.txt.

    python scripts/megatron_arguments.py CLONE        # a clone of NVIDIA/Megatron-LM, bare or not; needs torch

Each release builds its own parser. The names that its examples add (`extra_args_provider`), and all names of a
release whose parser cannot be built here, are read from the source.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RELEASES = [f"core_v0.{minor}.0" for minor in range(8, 20)] + ["HEAD"]


TARGET = Path(__file__).parents[1] / "ppsim" / "trainers" / "data" / "megatron_arguments.txt"
_ADDED = re.compile(r"add_argument\(\s*['\"](--[\w.-]+)['\"](?:,\s*['\"](--[\w.-]+)['\"])?")
_PARSER = """
import argparse, sys, types, typing
import torch, torch._dynamo, torch._inductor.runtime.hints, torch._inductor.runtime.triton_compat
import torch._inductor.runtime.triton_heuristics, torch._inductor.utils
torch.cuda.get_device_capability = lambda *_, **__: (10, 0)
typing.override = getattr(typing, "override", lambda function: function)
class Anything(types.ModuleType):
    __path__ = []
    def __init__(self, name="anything"): super().__init__(name)
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Anything()
    def __call__(self, *given, **_): return given[0] if len(given) == 1 and callable(given[0]) else Anything()
    def __mro_entries__(self, bases): return ()
    def __or__(self, other): return self
    __ror__ = __floordiv__ = __mul__ = __rmul__ = __or__
for name in ("triton", "triton.language", "six", "pkg_resources"):
    sys.modules[name] = Anything(name)
sys.modules["triton"].__version__ = "3.4.0"
class Built(Exception): pass
def capture(parser, *_, **__):
    print("\\n".join(option for action in parser._actions for option in action.option_strings))
    raise Built
argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = capture
from megatron.training.arguments import parse_args
try: parse_args()
except Built: pass
"""


def git(clone: str, *words: str) -> bytes:
    return subprocess.run(["git", "-C", clone, *words], capture_output=True, check=False).stdout


def names_of(clone: str, release: str) -> set[str]:
    source = git(clone, "grep", "-h", "-A1", "add_argument(", release, "--", "*.py", ":!tools", ":!tests").decode()
    with tempfile.TemporaryDirectory() as folder:
        archive = git(clone, "archive", release, "megatron")
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=False, capture_output=True)
        built = subprocess.run(
            [sys.executable, "-c", _PARSER], cwd=folder, capture_output=True, text=True, check=False
        )
    state = "built" if built.returncode == 0 else f"not built: {built.stderr.strip()[-100:]}"
    print(f"{release}: parser {state}", file=sys.stderr)
    options = [*built.stdout.split(), *(name for pair in _ADDED.findall(source) for name in pair)]
    return {option[2:].replace("-", "_") for option in options if option.startswith("--")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone")
    clone = parser.parse_args().clone
    releases: dict[str, list[str]] = {}
    for release in RELEASES:
        for name in names_of(clone, release):
            releases.setdefault(name, []).append(release.removeprefix("core_v").removesuffix(".0"))
    commits = ", ".join(f"{name} {git(clone, 'rev-list', '-n1', name).decode()[:8]}" for name in RELEASES)
    title = (
        f"# Megatron-LM's arguments with their first and last release (scripts/megatron_arguments.py): {commits}"
    )
    rows = [f"{name} {named[0]} {named[-1]}" for name, named in sorted(releases.items())]
    TARGET.write_text("\n".join([title, *rows, ""]))
    print(f"{len(rows)} names")


if __name__ == "__main__":
    main()
