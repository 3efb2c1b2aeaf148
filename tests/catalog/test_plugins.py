"""Schedules that other packages register: the example of docs/own_schedule.md, and registrations that are wrong."""

import re
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.catalog.build import CATALOG, every_schedule, find
from tests.cli.running import ppsim as run

PAGE = (Path(__file__).parents[2] / "docs" / "own_schedule.md").read_text()
CODE = re.search(r"`my_schedules.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)[1]
TARGET = re.search(r'gpipe-lifo = "(.*?)"', PAGE)[1]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of one module, as pip would have left it."""

    def installed(code, target, module="my_schedules"):
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ppsim.schedules]\ngpipe-lifo = {target}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)

    return installed


@pytest.mark.slow
def test_the_example_of_the_docs_is_a_schedule_by_name(install):
    install(CODE, TARGET)
    table = ppsim.build("gpipe-lifo", pp=2, microbatches=3)
    assert [str(action) for action in table][:6] == ["0F0", "0F1", "0F2", "0B2", "0B1", "0B0"]
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    assert ppsim.simulate(table, costs).step_time_s == 3 * 3 + find("gpipe-lifo").bubble(p=2, m=3, F=1, I=1, W=1)
    assert list(every_schedule()) == [*CATALOG, "gpipe-lifo"]
    assert "gpipe-lifo" in run("schedules").stdout
    assert "Huang et al." in run("schedules", "gpipe-lifo").stdout
    run("build", "gpipe-lifo", "--pp", 2, "--num-microbatches", 4, "-o", "T.csv")
    assert "complete, ordered" in run("check", "T.csv").stdout
    assert "gpipe-lifo" in run("project", "--pp", 2, "--schedule", "all", "--full").stdout


@pytest.mark.parametrize(
    ("code", "target", "words"),
    [
        (CODE, "my_missing:ENTRY", "cannot load schedule 'gpipe-lifo' from my_missing:ENTRY"),
        ("def ENTRY():\n    return 3\n", "my_wrong:ENTRY", "is no ppsim.catalog.build.ScheduleEntry"),
        (CODE.replace("gpipe-lifo", "gpipe"), "my_double:ENTRY", "takes a name that is taken already"),
    ],
)
def test_a_wrong_registration_is_named(install, code, target, words):
    install(code, target, module=target.split(":")[0] if "missing" not in target else "my_other")
    with pytest.raises(ConfigError, match=re.escape(words)):
        every_schedule()
    assert words in run("schedules", code=2).stderr
    assert ppsim.build("1f1b", pp=2, microbatches=2)
