"""A process that starts and ends lean does what another does."""

import gc
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.process_startup import exit_fast, reduce_startup


def said(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


SETTINGS = {"OPENBLAS_THREAD_TIMEOUT": "4", "PYDANTIC_DISABLE_PLUGINS": "__all__"}


@pytest.mark.parametrize("given", SETTINGS)
def test_threads_plug_ins_and_collections_are_turned_off_unless_they_are_set(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(name, "own")
        if name != given:
            monkeypatch.delenv(name)
    before = gc.get_threshold()
    try:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "numpy._core._add_newdocs", sys)
            patch.setitem(sys.modules, "numpy._core._add_newdocs_scalars", sys)
            reduce_startup()
        assert gc.get_threshold()[0] == 100_000
        assert {name: os.environ[name] for name in SETTINGS} == SETTINGS | {given: "own"}
    finally:
        gc.set_threshold(*before)


def test_numpy_does_without_docstrings_what_it_does_with_them() -> None:
    code = "from ppsim.base.process_startup import exit_fast, reduce_startup; reduce_startup()\nimport numpy as np, numpy.ma, numpy.random\n"
    assert said(code + "print(np.array([1, 2]).sum(), np.array.__doc__, np.ma.array([1, 2]).sum())") == "3 None 3\n"


@pytest.mark.parametrize("code", [0, 7, None])
def test_an_end_has_its_exit_code_and_does_what_was_to_be_done_at_it(code: int | None) -> None:
    work = (
        "import atexit, sys; from ppsim.base.process_startup import exit_fast; atexit.register(print, 'at exit')\n"
        f"print('text', end=' '); exit_fast({code}); print('not reached')"
    )
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code or 0, "text at exit\n", "")


@pytest.mark.parametrize(
    "busy",
    ["sys.settrace(lambda *_: None)", "sys.setprofile(lambda *_: None)", "import multiprocessing",
     "import threading; threading.Thread(target=input, daemon=True).start()"],
)  # fmt: skip
def test_it_leaves_the_end_to_python_where_somebody_is_at_work(busy: str) -> None:
    work = f"import sys; from ppsim.base.process_startup import exit_fast\n{busy}; exit_fast(0); print('reached', flush=True)"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reached\n"
        process.communicate(b"\n", timeout=60)


def calls_at_the_end(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Set up a lone thread without multiprocessing and torch, whose calls at the end are recorded."""
    calls: list[Any] = []
    for name in ("multiprocessing", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("gettrace", "getprofile"):
        monkeypatch.setattr(sys, name, lambda: None)
    monkeypatch.setattr(sys, "flags", SimpleNamespace(interactive=0))
    monkeypatch.setattr("threading.active_count", lambda: 1)
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: calls.append("exit functions"))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(flush=lambda name=name: calls.append(name)))
    monkeypatch.setattr(os, "_exit", calls.append)
    return calls


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (3, 3)])
def test_a_process_ends_after_its_exit_functions_and_outputs(
    monkeypatch: pytest.MonkeyPatch, code: int | None, status: int
) -> None:
    ended = calls_at_the_end(monkeypatch)
    exit_fast(code)
    assert ended == ["exit functions", "stdout", "stderr", status]


@pytest.mark.parametrize("busy", ["multiprocessing", "torch", "threads", "gettrace", "getprofile", "flags", "code"])
def test_a_busy_process_or_one_with_a_message_ends_as_usual(monkeypatch: pytest.MonkeyPatch, busy: str) -> None:
    ended = calls_at_the_end(monkeypatch)
    if busy in ("multiprocessing", "torch"):
        monkeypatch.setitem(sys.modules, busy, sys)
    elif busy == "threads":
        monkeypatch.setattr("threading.active_count", lambda: 2)
    elif busy == "flags":
        monkeypatch.setattr(sys, "flags", SimpleNamespace(interactive=1))
    elif busy != "code":
        monkeypatch.setattr(sys, busy, lambda: print)
    exit_fast("wrong" if busy == "code" else 0)
    assert ended == []


def test_python_reports_an_output_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = calls_at_the_end(monkeypatch)
    monkeypatch.setattr(sys, "stdout", None)
    exit_fast(0)
    assert ended == ["exit functions"]
