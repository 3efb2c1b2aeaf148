"""`ppsim warm-up` runs every kernel that there is, so that no other command has to compile one."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import ppsim
from ppsim.api.warm_up import _work, warm_up
from ppsim.base import numba_jit as compiling
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
