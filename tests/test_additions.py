"""Something new is added with exactly the files that docs/explanation/architecture.md names for it, and then works."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
ROWS = dict(re.findall(r"^\| ([a-z ]+?) \| (.*) \|$", PAGE.partition("## I want to add")[2], flags=re.MULTILINE))


@dataclass
class Tree:
    """A copy of the package; `changed` are the files that an addition edits, `made` those that it makes."""

    root: Path
    changed: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.root / "ppsim" / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
        self.changed.add(name)

    def append(self, name: str, text: str) -> None:
        path = self.root / "ppsim" / name
        path.write_text(path.read_text() + text)
        self.changed.add(name)

    def make(self, name: str, text: str) -> None:
        path = self.root / "ppsim" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.made.add(name)

    def run(self, *arguments: str) -> str:
        """What Python prints with this package."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env={"PYTHONPATH": str(self.root), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def require_files_of(self, what: str) -> None:
        """The files are those of the page's row: the edited ones by name, the new ones beside an example."""
        examples = set(re.findall(r"like `([\w/.]+)`", ROWS[what]))
        named = set(re.findall(r"`([\w/]+\.(?:py|toml))`", ROWS[what])) - examples
        assert self.changed == named
        assert len(self.made) >= len(examples) - len(self.changed & examples)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name in ("ppsim", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.nb*"))
    return Tree(tmp_path)


def test_a_schedule(tree: Tree) -> None:
    tree.append(
        "catalog/published/one_f_one_b.py",
        '\n\ndef my_gpipe(*, num_ranks: int, num_microbatches: int) -> Schedule:\n    """Return GPipe."""\n'
        "    return gpipe(num_ranks=num_ranks, num_microbatches=num_microbatches)\n",
    )
    tree.append(
        "catalog/schedules.toml",
        '\n[mine]\nkind = "one-stage"\ntitle = "Mine"\nbuild = "published.one_f_one_b:my_gpipe"\nsplits_backward = false\n'
        'bubble = "(p - 1) * (F + I + W)"\npeak_activations = "m"\nsource = "me"\n',
    )
    tree.require_files_of("schedule")
    assert "mine" in tree.run("-m", "ppsim", "schedules")
    tree.run("-m", "ppsim", "build", "mine", "--pp", "2", "--num-microbatches", "2", "-o", "T.csv")
    assert (tree.root / "T.csv").read_text() == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


def test_a_layer(tree: Tree) -> None:
    text = (ROOT / "ppsim" / "model" / "mixers" / "short_convolution.py").read_text()
    tree.make("model/mixers/mine.py", re.sub(r'"lfm2(\w*)"', r'"mine\1"', text))
    tree.require_files_of("layer")
    code = (
        "from ppsim.model.config import model_from\n"
        "config = dict(model_type='mine', hidden_size=1024, num_hidden_layers=2, num_attention_heads=8,"
        " intermediate_size=4096, vocab_size=1000, layer_types=['conv', 'full_attention'], conv_L_cache=3)\n"
        "print(type(model_from(config, 'mine').layers[0].attention).__module__)"
    )
    assert tree.run("-c", code).strip() == "ppsim.model.mixers.mine"


def test_a_device(tree: Tree) -> None:
    section = re.search(r"\[h100-nvl\]\n(.*\n)+?(?=\n\[)", (ROOT / "ppsim/machine/data/devices.toml").read_text())
    assert section
    mine = section[0].replace("h100-nvl", "mine").replace("H100 NVL", "Mine")
    tree.append("machine/data/devices.toml", f"\n{mine}")
    cluster = (ROOT / "ppsim/machine/data/clusters/dgx-h100.toml").read_text()
    tree.make("machine/data/clusters/mine.toml", re.sub(r'^device = ".*"', 'device = "mine"', cluster, flags=re.M))
    tree.require_files_of("device")
    printed = tree.run(
        "-m", "ppsim", "project", "--model", "llama3-8b", "--gpus", "8", "--pp", "4", "--cluster", "mine"
    )
    assert "NVIDIA Mine" in printed


_CONFIG = '''"""Mine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.trainers.run_config import RunConfig


def from_mine(content: Mapping[str, Any], path: Path) -> RunConfig:
    """Return what it says."""
    return RunConfig("Mine", str(path), {"pp": content["mine_stages"]}, None, "no model", (), ())
'''


def test_a_trainer(tree: Tree) -> None:
    tree.make("trainers/mine/__init__.py", '"""Mine."""\n')
    tree.make("trainers/mine/read_config.py", _CONFIG)
    tree.replace(
        "trainers/__init__.py", "TRAINERS = (\n", 'TRAINERS = (\n    Trainer("Mine", config="Mine JSON"),\n'
    )
    row = '    (lambda content: "model_type" in content, _from_hugging_face),\n'
    mine = '    (lambda content: "mine_stages" in content, from_mine),\n'
    tree.replace("trainers/read_config.py", row, mine + row)
    tree.replace(
        "trainers/read_config.py", "from ppsim.trainers.primus", "from ppsim.trainers.mine.read_config import from_mine\nfrom ppsim.trainers.primus",
    )  # fmt: skip
    tree.require_files_of("trainer")
    (tree.root / "mine.json").write_text('{"mine_stages": 4}')
    code = "import ppsim; print(ppsim.read_run_config('mine.json').options['pp'])"
    assert tree.run("-c", code).strip() == "4"
    assert "Mine JSON" in tree.run("-c", "from ppsim.trainers import configurations; print(configurations())")


def test_an_importer(tree: Tree) -> None:
    tree.make("trainers/mine/__init__.py", '"""Mine."""\n')
    tree.make(
        "trainers/mine/read_trace.py",
        '"""Mine."""\n\nfrom pathlib import Path\n\nfrom ppsim.runs.readers.csv_rows import read_rows\n\n\n'
        'def read_mine(path: Path):\n    """Read a folder with a CSV of passes in it."""\n'
        '    return read_rows(str(next(path.glob("*.mine"))))\n',
    )
    tree.replace("trainers/__init__.py", "TRAINERS = (\n", 'TRAINERS = (\n    Trainer("Mine", recording="mine"),\n')
    tree.replace(
        "api/read.py", "    if len(paths) == 1 and is_dump(paths[0]):\n",
        "    if paths[0].is_dir() and list(paths[0].glob('*.mine')):\n"
        "        from ppsim.trainers.mine.read_trace import read_mine\n\n        return read_mine(paths[0])\n"
        "    if len(paths) == 1 and is_dump(paths[0]):\n",
    )  # fmt: skip
    tree.require_files_of("importer of recordings")
    folder = tree.root / "recorded"
    folder.mkdir()
    passes = [
        f"{rank},{kind},{rank},0,{10 * step + time},{10 * step + time + 1},{step}"
        for step in range(4)
        for rank, kind, time in ((0, "F", 0), (1, "F", 1), (1, "B", 2), (0, "B", 3))
    ]
    (folder / "run.mine").write_text("\n".join(["rank,kind,stage,microbatch,start,end,step", *passes, ""]))
    assert "1f1b" in tree.run("-m", "ppsim", "read", str(folder))


@pytest.mark.pages
def test_an_export(tree: Tree) -> None:
    tree.make("trainers/mine/__init__.py", '"""Mine."""\n')
    tree.make(
        "trainers/mine/write_schedule.py",
        '"""Mine."""\n\n\ndef mine(table):\n    """Return it."""\n    return {"ranks": table.num_ranks}\n',
    )
    tree.replace(
        "trainers/__init__.py", "TRAINERS = (\n",
        'TRAINERS = (\n    Trainer("Mine", export="mine", writer="ppsim.trainers.mine.write_schedule:mine"),\n',
    )  # fmt: skip
    tree.require_files_of("export")
    tree.run("-m", "ppsim", "build", "1f1b", "--pp", "2", "--num-microbatches", "2", "-o", "T.csv")
    tree.run("-m", "ppsim", "export", "T.csv", "--to", "mine", "-o", "T.json")
    assert '"ranks": 2' in (tree.root / "T.json").read_text()
    assert "mine" in tree.run("-m", "ppsim", "schedules", "1f1b")


def test_an_option(tree: Tree) -> None:
    tree.replace(
        "projection/options.py", "class PlanOptions(",
        'MINE = Option("Mine. [default: {default}]", section="runtime", field="mine", default=1)\n\n\n'
        "class PlanOptions(",
    )  # fmt: skip
    tree.replace(
        "projection/options.py",
        "    schedule: Annotated[",
        "    mine: Annotated[int | None, MINE]\n    schedule: Annotated[",
    )
    tree.replace("projection/plan.py", "    pp: int\n", "    pp: int\n    mine: int = 1\n")
    tree.require_files_of("option")
    assert "--mine" in tree.run("-m", "ppsim", "project", "--help-all")
    assert tree.run("-c", "import ppsim; print(ppsim.project(pp=4, mine=3).plan.mine)").strip() == "3"


@pytest.mark.pages
def test_an_option_of_the_computation(tree: Tree) -> None:
    """It changes seconds and bytes, and is written to and read from a script of Megatron-LM."""
    name = "fp32_residual_connection"
    tree.replace(
        "projection/options.py", "    dropout: Annotated[",
        f'    {name}: Annotated[bool | None, Option(\n        "Mine. [default: off]",\n'
        f'        section="model", field="job.execution.{name}", default=False, has_no=True,\n    )]\n'
        "    dropout: Annotated[",
    )  # fmt: skip
    tree.replace(
        "model/execution.py",
        "    dropout: bool = False\n",
        f"    dropout: bool = False\n    {name}: bool = False\n",
    )
    tree.replace(
        "model/execution.py", "self.attention, self.context,", f"self.attention, self.{name}, self.context,"
    )
    tree.replace(
        "model/blocks.py", "    if execution.dropout:\n        outputs.append",
        f'    if execution.{name}:\n        wide = Tensor(f"wide{{number}}", "own_tokens", h, "norms", "f32")\n'
        '        yield Operator(wide.name, "", (given,), (wide,), (wide.name,), kind="norm")\n'
        "    if execution.dropout:\n        outputs.append",
    )  # fmt: skip
    tree.replace(
        "trainers/megatron/settings.py", '    _flag("deterministic_mode"', f'    _flag("{name}", "{name}"),\n    _flag("deterministic_mode"',
    )  # fmt: skip
    tree.require_files_of("option of the computation")
    project = ("-m", "ppsim", "project", "--model", "llama3-8b", "--gpus=8", "--pp=4", "--stack=plain")
    script = tree.run(*project, "--fp32-residual-connection", "--to-config", "megatron")
    assert "--fp32-residual-connection" in script
    (tree.root / "mine.sh").write_text(script.partition("\n# megatron\n")[2])
    code = f"import ppsim; print(ppsim.read_run_config('mine.sh').options['{name}'])"
    assert tree.run("-c", code).strip() == "True"
    without, mine = (
        json.loads(tree.run(*project, *flag, "--json")) for flag in ((), ("--fp32-residual-connection",))
    )
    assert mine["iteration_time_s"] > without["iteration_time_s"]
    assert mine["peak_bytes"] > without["peak_bytes"]


def test_a_figure(tree: Tree) -> None:
    tree.make(
        "plot/figures/mine.py",
        '"""Mine."""\n\nfrom ppsim.plot.figures.style import new_axes\n\n\n'
        'def mine_figure(width="two-column"):\n    """Return it."""\n'
        "    from matplotlib.figure import Figure\n\n    return Figure()\n",
    )
    tree.append(
        "cli/figure.py",
        '\n\n@figure.command(short_help="Mine.")\n@_drawn\ndef mine(**look: Any) -> "Figure":\n    """Draw it."""\n'
        "    from ppsim.plot.figures.mine import mine_figure\n\n    return mine_figure(**look)\n",
    )
    tree.require_files_of("figure")
    tree.run("-m", "ppsim", "figure", "mine", "-o", "mine.svg")
    assert (tree.root / "mine.svg").read_text().startswith("<?xml")
