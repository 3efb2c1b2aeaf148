"""Kernels give the same compiled and plain, whatever their arrays come in, and are never older than their source."""

import importlib
import shutil
import sys
import time
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from ppsim.base import numba_jit as compiling
from ppsim.base import numba_jit as numba_jit_module
from ppsim.base.numba_jit import (
    COMPILING,
    WORTH_COMPILING,
    TimeIsUp,
    announce_compiling,
    compilations,
    every_kernel_compiled,
    run_kernel,
    time_limit,
    working_clock,
)
from tests.defaults import number_defaults


class Inner(NamedTuple):
    values: np.ndarray
    factor: float


class Outer(NamedTuple):
    inner: Inner
    counts: np.ndarray


def scaled(inner: Inner, k: int) -> float:
    return inner.values[k] * inner.factor


def fill(given: Inner, filled: Outer, sums: np.ndarray) -> int:
    for k in range(len(given.values)):
        filled.inner.values[k] = scaled(given, k)
        filled.counts[k] += k
        sums[0] += filled.inner.values[k]
    return len(given.values)


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_named_tuples_of_arrays_come_back_filled(engine):
    given = Inner(np.array([1.0, 2.0, 4.0]), 0.5)
    filled = Outer(Inner(np.zeros(3), 1.0), np.array([5, 5, 5]))
    sums = np.zeros(1)
    assert run_kernel(fill, inputs=(given,), outputs=(filled, sums), size=3, engine=engine) == 3
    assert filled.inner.values.tolist() == [0.5, 1.0, 2.0]
    assert filled.counts.tolist() == [5, 6, 7]
    assert sums.tolist() == [3.5]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose kernel and what it calls are in two files, imported anew after each change of the second."""
    folder = tmp_path / "twofiles"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(
        "from twofiles.steps import Pair, step\n\ndef kernel(pair: Pair) -> int:\n    return step(pair)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def imported(*, fields: str, result: str):
        (folder / "steps.py").write_text(
            f"from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    {fields}\n\ndef step(pair):\n    return {result}\n"
        )
        importlib.invalidate_caches()
        for name in ("twofiles", "twofiles.kernels", "twofiles.steps"):
            sys.modules.pop(name, None)
        return importlib.import_module("twofiles.kernels")

    yield imported
    for name in ("twofiles", "twofiles.kernels", "twofiles.steps"):
        sys.modules.pop(name, None)


def test_a_kernel_is_compiled_anew_when_what_it_calls_has_changed(package):
    """numba itself looks only at the kernel's own file, and would run what it compiled before."""
    results = []
    for fields, result in (
        ("first: int; second: int", "pair.first - pair.second"),
        ("first: int; second: int", "2 * (pair.first - pair.second)"),
        ("second: int ; first: int", "2 * (pair.first - pair.second)"),
    ):
        made = package(fields=fields, result=result)
        pair = made.Pair(first=5, second=3)
        results.append(run_kernel(made.kernel, inputs=(pair,), size=1, engine="compiled"))
    assert results == [2, 4, 4]


def test_that_a_kernel_is_compiled_is_said_once_and_only_of_what_no_cache_holds(package):
    said = []
    made = package(fields="first: int; second: int", result="pair.first * pair.second")
    pair = made.Pair(first=5, second=3)
    for _ in range(2):  # the second of the same source is loaded
        with announce_compiling(said.append):
            run_kernel(made.kernel, inputs=(pair,), size=1, engine="plain")
            run_kernel(made.kernel, inputs=(pair,), size=1, engine="compiled")
    assert said == [COMPILING]
    other = package(fields="first: int ; second: int", result="pair.first * pair.second")
    with announce_compiling(said.append):
        assert run_kernel(other.kernel, inputs=(other.Pair(5, 3),), size=1, engine="compiled") == 15
    assert said == [COMPILING] * 2


def test_the_clock_of_work_stands_still_while_a_kernel_is_compiled(package):
    made = package(fields="first: int; second: int", result="pair.first + 7 * pair.second")
    behind = []
    for _ in range(2):  # compiled, and there
        run_kernel(made.kernel, inputs=(made.Pair(5, 3),), size=1, engine="compiled")
        behind.append(time.monotonic() - working_clock())
    assert behind[0] > 0.01
    assert behind[1] - behind[0] < 1e-3


def test_a_kernel_is_compiled_once_its_work_in_the_process_would_have_paid_for_that(package):
    made = package(fields="first: int; second: int", result="pair.first + 11 * pair.second")
    numbers = []
    for size in (1, WORTH_COMPILING - 2, 1, 1):
        before = compilations().number  # imports numba, which alone compiles nothing
        assert run_kernel(made.kernel, inputs=(made.Pair(5, 3),), size=size) == 38
        numbers.append(compilations().number - before)
    assert numbers == [0, 0, 1, 0]


def test_a_kernel_that_is_kept_compiled_is_run_so_from_the_first_call_on(package):
    made = package(fields="first: int; second: int", result="pair.first + 13 * pair.second")
    with every_kernel_compiled():
        assert run_kernel(made.kernel, inputs=(made.Pair(5, 3),), size=1) == 44
    again = package(fields="first: int; second: int", result="pair.first + 13 * pair.second")
    before = compilations().number
    assert run_kernel(again.kernel, inputs=(again.Pair(5, 3),), size=1) == 44
    assert compilations().number == before
    assert compiling._KEPT[again.kernel]


def test_of_a_kernel_only_its_last_state_is_kept(package, tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    kept = []
    for factor in (23, 29):
        made = package(fields="first: int; second: int", result=f"pair.first + {factor} * pair.second")
        run_kernel(made.kernel, inputs=(made.Pair(5, 3),), size=1, engine="compiled")
        kept.append({path.name for path in tmp_path.rglob("*.nb[ci]")})
    assert list(map(len, kept)) == [2, 2]
    assert kept[0] & kept[1] == set()


@pytest.fixture
def run_for(package, monkeypatch):
    """Runs a kernel of so many iterations that takes so many seconds of a clock of its own, which it begins with."""
    now, begins, takes_s, run = [0.0], [0.0], [0.0], compiling._run

    def run_slowly(*arguments, **options):
        now[0] += takes_s[0]
        return run(*arguments, **options)

    def choose_slowly(*_):
        now[0] += begins[0]
        return False

    monkeypatch.setattr(compiling, "_run", run_slowly)
    monkeypatch.setattr(compiling, "_pays", choose_slowly)
    monkeypatch.setattr(compiling, "working_clock", lambda: now[0])
    made = package(fields="first: int; second: int", result="pair.first + 31 * pair.second")

    def run_one(size, seconds, *, import_s=0.0):
        begins[0], takes_s[0] = import_s, seconds
        run_kernel(made.kernel, inputs=(made.Pair(5, 3),), size=size)
        return now[0]

    return run_one


def test_within_a_time_no_kernel_is_begun_that_would_outlast_it(run_for):
    with time_limit(10.0):
        for size in (1, 2, 3):
            assert run_for(size, size) == size * (size + 1) / 2
        with pytest.raises(TimeIsUp):
            run_for(5, 5)
    assert run_for(7, 7) == 13.0  # outside of it there is no end


def test_what_a_run_waits_for_once_is_not_of_the_pace_of_the_next(run_for):
    """Importing numba in the first run of a kernel, or a machine that did something else, ended whole searches."""
    with time_limit(100.0):
        assert run_for(10, 1, import_s=50) == 51
        assert run_for(10, 1) == 52
        assert run_for(10, 20) == 72
        assert run_for(100, 10) == 82  # as twice the run before: 20 s
        assert run_for(1, 5) == 87  # a short run, of which most is not iterations
        assert run_for(100, 10) == 97
        with pytest.raises(TimeIsUp):
            run_for(100, 10)


def test_what_was_compiled_in_one_place_is_found_where_the_same_source_is_put(package, tmp_path, monkeypatch):
    """A wheel is built in one folder and installed in another, at another time."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    made = package(fields="first: int; second: int", result="pair.first + 17 * pair.second")
    run_kernel(made.kernel, inputs=(made.Pair(5, 3),), size=1, engine="compiled")
    shutil.copytree(tmp_path / "twofiles", tmp_path / "elsewhere" / "twofiles", copy_function=shutil.copy)
    for name in ("twofiles", "twofiles.kernels", "twofiles.steps"):
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    copied = importlib.import_module("twofiles.kernels")
    assert copied.__file__ != made.__file__
    before = compilations().number
    assert run_kernel(copied.kernel, inputs=(copied.Pair(5, 3),), size=1, engine="compiled") == 56
    assert compilations().number == before


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_within_a_block_kernels_run_on_its_engine_whatever_their_size_and_auto_within_it(engine, monkeypatch):
    compiled = []
    monkeypatch.setattr(compiling, "_compiled", lambda kernel: compiled.append(kernel) or kernel)
    given, filled = Inner(np.ones(1), 1.0), Outer(Inner(np.zeros(1), 1.0), np.zeros(1, dtype=np.int64))
    for size in (1, 10**9):
        with compiling.running_on(engine), compiling.running_on("auto"):
            run_kernel(fill, inputs=(given,), outputs=(filled, np.zeros(1)), size=size)
    assert len(compiled) == (2 if engine == "compiled" else 0)


def test_the_pace_of_a_kernel_at_most_doubles_and_small_runs_only_quicken_it(monkeypatch) -> None:
    monkeypatch.setattr(compiling, "_PACE_S", {})

    def kernel() -> None: ...

    def noted(size: int, seconds: float) -> tuple[int, float]:
        compiling._note_pace(kernel, size, seconds)
        return compiling._PACE_S[kernel]

    assert noted(10, 5.0) == (10, 0.5)
    assert noted(10, 20.0) == (10, 1.0), "2 s per iteration, limited to twice the known pace"
    assert noted(5, 10.0) == (5, 2.0)
    assert noted(2, 6.0) == (5, 2.0), "a run of less than half the size is not slower"
    assert noted(2, 2.0) == (2, 1.0)
    assert noted(0, 0.5) == (1, 0.5)


def test_what_is_left_out_in_base_numba_jit_has_these_values() -> None:
    assert number_defaults(numba_jit_module) == {
        "_compiled": {"is_called_by_another": False},
    }  # fmt: skip


def test_after_a_block_its_engine_listener_and_limit_no_longer_apply() -> None:
    variables = compiling._ENGINE, compiling._ALL, compiling._TOLD, compiling._UNTIL_S
    before = [variable.get() for variable in variables]
    with compiling.running_on("plain"), every_kernel_compiled(), announce_compiling(print), time_limit(1e6):
        assert [variable.get() for variable in variables[:3]] == ["plain", True, print]
        assert compiling._UNTIL_S.get() - working_clock() == pytest.approx(1e6, abs=60)
    assert [variable.get() for variable in variables] == before


def test_nested_compilations_count_once_with_the_time_of_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 13.0, 20.0, 25.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    said: list[str] = []
    counts = compiling.Compilations()
    with announce_compiling(said.append):
        for step in "((()))()":
            (counts.on_start if step == "(" else counts.on_end)(None)
    assert (counts.number, counts.seconds, counts.depth) == (2, 3.0 + 5.0, 0)
    assert said == [COMPILING]


@pytest.mark.parametrize("spec", [None, "a module"])
def test_kernels_are_compiled_only_if_numba_is_installed(monkeypatch: pytest.MonkeyPatch, spec: str | None) -> None:
    compiling._has_numba.cache_clear()
    monkeypatch.setattr(compiling, "find_spec", {"numba": spec}.get)
    assert compiling._has_numba() is (spec is not None)
    compiling._has_numba.cache_clear()


def test_kernels_release_the_interpreter_and_count_no_references() -> None:
    options = compiling._compiled(scaled).targetoptions
    assert (options["nogil"], options["_nrt"]) == (True, False)


@pytest.mark.parametrize(
    ("iterations", "others", "has_numba", "pays"),
    [
        (WORTH_COMPILING, 0, True, True),
        (WORTH_COMPILING - 1, 0, True, False),
        (WORTH_COMPILING, 0, False, False),
        (WORTH_COMPILING - 1, WORTH_COMPILING, False, False),
    ],
)
def test_numba_is_imported_once_the_iterations_of_all_kernels_pay(
    monkeypatch: pytest.MonkeyPatch, iterations: int, others: int, *, has_numba: bool, pays: bool
) -> None:
    monkeypatch.setattr(compiling, "_ITERATIONS", Counter({fill: others}))
    monkeypatch.setattr(compiling, "_has_numba", lambda: has_numba)
    monkeypatch.setattr(compiling, "_is_kept", lambda *_: False)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiling._pays(scaled, (), iterations) is pays
    with every_kernel_compiled():
        assert compiling._pays(scaled, (), 1)
