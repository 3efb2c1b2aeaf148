"""`ppsim warm-up` runs every kernel that there is, so that no other command has to compile one."""

import ast
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import ppsim
from ppsim import build
from ppsim.api import warm_up as module
from ppsim.api.warm_up import _work, warm_up
from ppsim.base import numba_jit as compiling
from ppsim.base.errors import ConfigError
from ppsim.base.numba_jit import WORTH_COMPILING
from ppsim.catalog.build import CATALOG, TABLES
from ppsim.schedule.analysis_cache import KEPT


def kernels():
    """The names of functions that are handed to `run_kernel`, directly or by a method that takes a kernel first."""
    found = set()
    rooms = Path(ppsim.__file__).parent
    for path in (path for room in ("schedule", "simulation", "catalog") for path in (rooms / room).rglob("*.py")):
        tree = ast.parse(path.read_text())
        defined = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        imported = {one.name for node in tree.body if isinstance(node, ast.ImportFrom) for one in node.names}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            first = call.args[0] if call.args else None
            if (
                name in ("run_kernel", "_run", "run")
                and isinstance(first, ast.Name)
                and first.id in defined | imported
            ):
                found.add(first.id)
    return found


def test_every_kernel_is_run(monkeypatch):
    TABLES.clear()  # what an earlier test built
    KEPT.clear()
    ran, compiled, said = set(), compiling._compiled, []

    def noted(kernel, **options):
        ran.add(kernel.__name__)
        return compiled(kernel, **options)

    monkeypatch.setattr(compiling, "_compiled", noted)
    number = warm_up(say=said.append)
    result = f"{number} kernels compiled" if number else "all kernels were compiled before"
    assert said[-1].startswith(f"{result}; cached in ")
    assert len(kernels()) > 12
    assert ran >= kernels()


def test_what_two_processes_share_out_is_all_of_the_work():
    works = [placement for _, placement, _ in _work()]
    assert len(works) == works.count("v") + works.count("loop") > len(CATALOG)


@pytest.mark.search
def test_the_first_search_for_every_schedule_needs_half_of_the_kernels_compiled(monkeypatch):
    """Where nothing is kept, that is: the others are done sooner in plain Python than compiled."""
    monkeypatch.setenv("PPSIM_CACHE_DIR", "")
    TABLES.clear()
    KEPT.clear()
    iterations = Counter()
    monkeypatch.setattr(compiling, "_ITERATIONS", iterations)
    ppsim.project_all(pp=8)
    worth = {kernel.__name__ for kernel, number in iterations.items() if number >= WORTH_COMPILING}
    assert worth == {
        "anneal", "list_schedule", "place_weight_gradients", "_drain", "_longest_path", "_move_ahead", "_place_weights",
        "_squeeze",
    }  # fmt: skip
    assert len(iterations) >= 2 * len(worth) - 1


def test_kernels_are_compiled_for_the_named_schedules_and_placements(monkeypatch):
    """Each piece of work compiles two or no kernels here."""
    ran, said, counts = [], [], SimpleNamespace(number=10)

    def work(name, number):
        def run():
            ran.append(name)
            counts.number += number

        return run

    pieces = [("1f1b", "loop", work("1f1b", 2)), ("zbv", "v", work("zbv", 0)), ("gpipe", "loop", work("gpipe", 2))]
    monkeypatch.setattr(module, "_work", lambda: iter(pieces))
    monkeypatch.setattr(module, "compilations", lambda: counts)
    monkeypatch.setattr(module, "cache_folder", lambda: "the cache")
    assert warm_up(say=said.append) == 4
    assert ran == ["1f1b", "zbv", "gpipe"]
    assert [line.partition(" in ")[0] for line in said] == [
        "1f1b: 2 kernels compiled", "gpipe: 2 kernels compiled", "4 kernels compiled; cached",
    ]  # fmt: skip
    for options, names in (
        ({"placements": ["v"]}, ["zbv"]), ({"names": ["GPipe"]}, ["gpipe"]), ({"names": ["1f1b"], "placements": ["v"]}, []),
    ):  # fmt: skip
        ran.clear()
        assert warm_up(**options) == 2 * ("gpipe" in names)
        assert ran == names
    said.clear()
    assert warm_up(["zbv"], say=said.append) == 0
    assert said == ["all kernels were compiled before; cached in the cache"]


def test_a_schedule_is_tried_with_the_first_shape_that_it_takes(monkeypatch):
    built = []
    monkeypatch.setattr(
        module,
        "build",
        lambda entry, **shape: built.append((entry.name, shape)) or build("1f1b", pp=2, microbatches=2),
    )
    costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    for name, shape in (("1f1b", (2, 4)), ("dualpipe", (2, 4)), ("zbv", (2, 4))):
        module._tried(CATALOG[name], costs)
        entry = CATALOG[name]
        given = {"pp": shape[0], "vpp": entry.stages_per_rank[0], "microbatches": shape[1]}
        assert built.pop() == (name, given | {"costs": costs if entry.takes("costs") else None})
    larger = SimpleNamespace(
        name="larger",
        stages_per_rank=(3, 3),
        takes=lambda option: False,
        why_not=lambda pp, **shape: None if pp == 4 else "no",
    )
    module._tried(larger, costs)
    assert built.pop() == ("larger", {"pp": 4, "vpp": 3, "microbatches": 8, "costs": None})
    none = SimpleNamespace(name="none", stages_per_rank=(1, 1), why_not=lambda **shape: "no")
    with pytest.raises(ConfigError, match=r"^none takes none of the shapes that are warmed up$"):
        module._tried(none, costs)
