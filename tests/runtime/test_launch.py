"""The processes of `ppsim train`: whom they listen to, whose failure is told, and that nothing of them is left."""

import ipaddress
import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("torch")

from ppsim.runtime import launch
from ppsim.runtime.launch import launch_all, start_rank
from ppsim.runtime.train_config import turns_of, word_of
from tests.runtime.cases import config_of, table_of
from tests.runtime.processes import (
    TINY,
    Training,
    finished,
    rank_process,
    sockets_of,
    started,
    wait_for_line,
)

SLOW = ("--emulate-costs", "slow.json", "--steps", "100")


@pytest.fixture
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run of the folder has its own folder."""
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    return folder / "tmp"


BREAKS = """
import os, sys, time, types
if "run_rank" in sys.orig_argv[-1]:
    {place}
    whole = place.{function}
    def broken(*arguments):
        if os.environ["RANK"] == "{rank}":
            {how}
        return whole(*arguments)
    place.{function} = broken
"""
"""A sitecustomize for the processes of the ranks."""

IN_ITS_STEP = ("from ppsim.runtime.worker import StepRecorder as place", "take_step")
AT_ITS_START = (  # without torch, which is quicker
    "place = sys.modules['ppsim.runtime.worker'] = types.SimpleNamespace(main=lambda folder: time.sleep(1e4))",
    "main",
)


def break_rank(
    rank: int, how: str, folder: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[str, str] = IN_ITS_STEP
) -> None:
    """Have a rank do this at the end of its first step, others being in the middle of theirs, or as it starts."""
    (folder / "broken").mkdir()
    code = BREAKS.format(place=at[0], function=at[1], rank=rank, how=how)
    (folder / "broken" / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder / "broken"))


def not_loopback(sockets: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return [one for one in sockets if not ipaddress.ip_address(one[1].removeprefix("::ffff:")).is_loopback]


@pytest.mark.torch
def test_a_run_has_no_socket_that_is_not_loopback_and_leaves_no_file(training: Training) -> None:
    """No store that takes pickles from whoever reaches this machine: ranks meet in a file."""
    assert ("LISTEN", "127.0.0.1") in training.sockets  # gloo's, for the tensors
    assert not_loopback(training.sockets) == []
    assert list((training.folder / "tmp").glob("ppsim-*")) == []


def other_interface() -> tuple[str, str]:
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family.name == "AF_INET" and not ipaddress.ip_address(each.address).is_loopback:
                return name, each.address
    pytest.skip("this machine has no interface but loopback")


@pytest.mark.long
def test_an_interface_that_the_user_gave_gloo_is_not_for_local_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", other_interface()[0])
    run = started(folder, *TINY)
    assert not_loopback(sockets_of(run)) == []
    assert finished(run)[0] == 0


@pytest.mark.long
def test_a_hostname_that_leads_elsewhere_leads_no_run_there(folder: Path) -> None:
    """Where nothing is said, gloo listens on the address of the hostname."""
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{other_interface()[1]} elsewhere\n")
    there = "mount --bind hosts /etc/hosts && hostname elsewhere && "
    under = ("unshare", "--user", "--map-root-user", "--uts", "--mount", "sh", "-c", there + 'exec "$@"', "sh")
    try:
        seen = subprocess.run([*under, "getent", "hosts", "elsewhere"], cwd=folder, capture_output=True, check=True)
        assert other_interface()[1] in seen.stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets nobody have a hostname of their own")
    run = started(folder, *TINY, under=under)
    assert not_loopback(sockets_of(run)) == []
    assert finished(run)[0] == 0


def test_ranks_have_the_environment_of_the_user_and_meet_where_nobody_else_reads(training: Training) -> None:
    assert training.environment["OMP_NUM_THREADS"] == "3"
    assert stat.S_IMODE(training.meeting_mode) == 0o700


@pytest.mark.parametrize(
    ("at", "how", "told"),
    [
        pytest.param(
            *(IN_ITS_STEP, "os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL"), marks=pytest.mark.torch
        ),
        pytest.param(
            *(IN_ITS_STEP, "raise ValueError('no such thing')", "rank 1 failed: ValueError: no such thing"),
            marks=pytest.mark.torch,
        ),
        pytest.param(*(IN_ITS_STEP, "raise SystemExit", "rank 1 failed: SystemExit"), marks=pytest.mark.long),
        pytest.param(
            *(AT_ITS_START, "os.kill(os.getpid(), 15)", "rank 1 was killed by SIGTERM"), marks=pytest.mark.torch
        ),
        pytest.param(
            *(AT_ITS_START, "os.kill(os.getpid(), 40)", "rank 1 was killed by signal 40"),
            marks=[
                pytest.mark.torch,
                pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="every signal here has a name"),
            ],
        ),
        (AT_ITS_START, "os._exit(3)", "rank 1 ended with exit code 3"),
        pytest.param(*(AT_ITS_START, "os._exit(0)", "rank 1 ended with exit code 0"), marks=pytest.mark.torch),
    ],
)
def test_the_rank_that_failed_is_the_one_that_is_told(
    at: tuple[str, str], how: str, told: str, folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rank(1, how, folder, monkeypatch, at)
    code, _, err = finished(started(folder, *TINY))
    assert code == 1
    assert err.splitlines()[-1] == f"ppsim: {told}; the other ranks were stopped"
    assert "Traceback" not in err
    assert list(temporary.glob("ppsim-*")) == []


@pytest.mark.parametrize("line", [pytest.param(None, marks=pytest.mark.long), "step 1 of"])
@pytest.mark.torch
def test_no_rank_outlives_a_launcher_that_was_killed(line: str | None, folder: Path, temporary: Path) -> None:
    run = started(folder, *SLOW)
    ranks = [rank_process(run, rank) for rank in range(2)]  # which import torch now
    if line:
        wait_for_line(run, line)
    run.kill()
    _, alive = psutil.wait_procs(ranks, timeout=20)
    alive = [rank for rank in alive if rank.status() != psutil.STATUS_ZOMBIE]
    for rank in alive:
        rank.kill()
    run.communicate()
    assert not alive


@pytest.mark.long
def test_a_rank_that_hangs_after_its_last_step_ends_the_run_within_the_time_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rank(1, "__import__('time').sleep(1e4)", folder, monkeypatch)
    code, _, err = finished(started(folder, *TINY, "--steps", "1", "--timeout", "3"))
    assert code == 1
    assert "ppsim: rank 0 failed: RuntimeError" in err
    assert "Timed out waiting 3000ms" in err


@pytest.mark.torch
def test_a_rank_that_hangs_ends_the_run_within_the_time_out(folder: Path) -> None:
    """Stage 1 is on rank 1 and never done; rank 0 gives up waiting for it, and both are stopped."""
    costs = {"forward_s": [0.01, 1e4, 0.01, 0.01], "backward_input_s": 0.01, "backward_weight_s": 0.01}
    (folder / "stuck.json").write_text(json.dumps(costs))
    code, _, err = finished(started(folder, "--emulate-costs", "stuck.json", "--timeout", "3"))
    assert code == 1
    assert "ppsim: rank 0 failed: RuntimeError" in err
    assert "Timed out waiting 3000ms" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("SIGINT", "step 1 of"),
        pytest.param("SIGTERM", None, marks=pytest.mark.torch),
        pytest.param("SIGHUP", None, marks=pytest.mark.torch),
    ],
)
def test_an_interrupted_run_says_so_and_leaves_nothing_behind(
    name: str, line: str | None, folder: Path, temporary: Path
) -> None:
    """In its steps, and while its ranks import torch."""
    run = started(folder, *SLOW)
    rank_process(run, 1)
    if line:
        wait_for_line(run, line)
    os.kill(run.pid, signal.Signals[name])
    code, _, err = finished(run)
    assert code == 1
    assert err.splitlines()[-1] == f"ppsim: the run was interrupted by {name}; its ranks were stopped"
    assert "Traceback" not in err
    assert list(temporary.glob("ppsim-*")) == []


@pytest.mark.long
def test_ranks_of_tests_that_are_forked_train_as_those_that_import_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [config_of(table_of("1f1b", p=2, m=2), tmp_path, num_steps=2)]
    (forked,) = launch_all(configs, quiet=True)
    monkeypatch.setattr("ppsim.runtime.launch.start_rank", start_rank)
    (apart,) = launch_all(configs, quiet=True)
    assert forked["losses"] == apart["losses"]


def test_signals_are_the_launchers_while_it_runs_and_then_those_of_before() -> None:
    """What was ignored, as by nohup, stays ignored; a second signal while ranks are stopped is, too."""
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(each) for each in asking]
    handlers = []

    def interrupted() -> None:
        with launch._interruptions():
            handlers.append([signal.getsignal(each) for each in asking])
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                handlers.append([signal.getsignal(each) for each in asking])

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(launch.RunFailed, match="by SIGTERM"):
            interrupted()
        handlers.append([signal.getsignal(each) for each in asking])
    finally:
        for each, handler in zip(asking, before, strict=True):
            signal.signal(each, handler)
    (own, other, ignored), stopping, after = handlers
    assert own == other != signal.default_int_handler
    assert (ignored, stopping) == (signal.SIG_IGN, [signal.SIG_IGN] * 3)
    assert after == [signal.default_int_handler, before[1], signal.SIG_IGN]


def test_each_new_turn_is_watched_until_all_ranks_have_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, watched = iter(["0", "1", "1", "3"]), []

    def sleep(_: float) -> None:
        text = next(turns, "")
        turns_of(tmp_path).write_text(text or "3")
        if not text:
            word_of(tmp_path, 1).write_text("null")

    monkeypatch.setattr(launch.time, "sleep", sleep)
    word_of(tmp_path, 0).write_text("null")
    ranks = [SimpleNamespace(poll=lambda: None)] * 2
    launch._wait_for_all(ranks, tmp_path, watched.append)  # type: ignore[arg-type]
    assert watched == [1, 3]


@pytest.mark.parametrize(
    ("poll", "word", "sentence"),
    [
        (-9, None, "rank 1 was killed by SIGKILL"),
        (-99, None, "rank 1 was killed by signal 99"),
        (3, None, "rank 1 ended with exit code 3"),
        (
            None,
            {"kind": "ValueError", "message": " a\n", "callstack": ""},
            "rank 1 failed: ValueError: a; the other",
        ),
        (None, {"kind": "ValueError", "message": "", "callstack": ""}, "rank 1 failed: ValueError; the other"),
    ],
)
def test_a_rank_that_ends_or_reports_an_error_ends_the_wait(
    poll, word, sentence, tmp_path: Path, monkeypatch
) -> None:
    """A rank that died is told before what others report, which its death may have caused."""
    monkeypatch.setattr(launch.time, "sleep", lambda _: None)
    (tmp_path / "rank1.txt").write_text("last words")
    word_of(tmp_path, 1 if word else 0).write_text(
        json.dumps(word or {"kind": "A", "message": "", "callstack": ""})
    )
    ranks = [SimpleNamespace(poll=lambda: None), SimpleNamespace(poll=lambda: poll)]
    with pytest.raises(launch.RunFailed, match=sentence) as raised:
        launch._wait_for_all(ranks, tmp_path, print)  # type: ignore[arg-type]
    assert any("last words" in note for note in getattr(raised.value, "__notes__", [])) == (poll is not None)
