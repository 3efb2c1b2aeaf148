"""Fork the ranks of local runs from one process that has imported torch: an import takes seconds of CPU time.

The server receives a request per run on its standard input, a Unix socket. When a rank has ended, it answers with
one line: the rank and its exit code, as JSON.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 65536

can_fork = sys.platform == "linux"
"""macOS does not support forks after torch was imported, so each rank imports torch."""


class ForkServer:
    """Client of the fork server; creating it starts the server."""

    def __init__(self) -> None:
        self._conditions = _conditions()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                _python("from ppsim.runtime.fork_server import main; main()"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
        atexit.register(self.close)
        self._running: set[int] = set()
        self._unread = b""
        self._exit_codes: dict[int, int] = {}

    @property
    def is_usable(self) -> bool:
        """Whether the server runs, and a new one would have the same environment."""
        return self._conditions == _conditions() and self._process.poll() is None

    def start(
        self, folder: Path, environments: Sequence[dict[str, str]], stdin: int, stderr: Sequence[int]
    ) -> None:
        """Start one rank per environment; `stdin` and `stderr` are file descriptors."""
        self._running, self._exit_codes = set(range(len(environments))), {}
        told = {"folder": str(folder), "environments": environments, "cwd": os.getcwd(), "fork": can_fork}
        told["imports_from_cwd"] = bool({"", os.getcwd()} & set(sys.path))
        socket.send_fds(self._socket, [json.dumps(told).encode()], [stdin, *stderr])

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended so far."""
        while self._running and select.select([self._socket], [], [], 0)[0]:
            received = self._socket.recv(MOST_BYTES)
            *lines, self._unread = (self._unread + received).split(b"\n")
            ended: dict[int, int] = dict(json.loads(line) for line in lines)
            if not received:  # the server died: no rank can report its end
                ended = dict.fromkeys(sorted(self._running), self._process.wait())
            self._exit_codes |= ended
            self._running -= ended.keys()
        return self._exit_codes

    def wait(self) -> None:
        while self._running:
            select.select([self._socket], [], [])
            self.exit_codes()

    def close(self, *, kill: bool = False) -> None:
        """End the server, unless this process is a fork of the process that started it."""
        is_own = self._conditions[0] == os.getpid()
        if kill and is_own and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._socket.close()  # after the kill, because the server then ends, but not its ranks
        if is_own:
            self._process.wait()
        atexit.unregister(self.close)


def _conditions() -> tuple[int, dict[str, str]]:
    return os.getpid(), dict(os.environ)


def _python(code: str) -> list[str]:
    """Return a command whose code imports this ppsim, and no modules of the working directory (as a torch.py)."""
    root = str(Path(__file__).parents[2])
    path = f"import sys; sys.path[:0] = [] if {root!r} in sys.path else [{root!r}]"
    return [sys.executable, "-P", "-c", f"{path}; {code}"]


def main() -> None:
    requests = socket.socket(fileno=os.dup(0))
    wake, woken = socket.socketpair()
    woken.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ranks: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, wake], [], [])
        if wake in ready:
            wake.recv(MOST_BYTES)
            _report_ended(ranks, requests)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 253)
            if not message:
                os._exit(0)
            ranks |= _fork(json.loads(message), descriptors, requests)


def _report_ended(ranks: dict[int, int], requests: socket.socket) -> None:
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        requests.sendall(json.dumps([ranks.pop(pid), os.waitstatus_to_exitcode(status)]).encode() + b"\n")


def _fork(told: dict[str, Any], descriptors: Sequence[int], requests: socket.socket) -> dict[int, int]:
    if told["fork"]:
        import ppsim.runtime.worker  # noqa: F401

        gc.freeze()  # a collection in a rank would copy the pages of all objects
    ranks = {}
    stdin, *stderr = descriptors
    for rank, environment in enumerate(told["environments"]):
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(told | {"environment": environment}, stdin, stderr[rank])
        ranks[pid] = rank
    for descriptor in descriptors:
        os.close(descriptor)
    return ranks


def _become(told: dict[str, Any], stdin: int, stderr: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(stdin, 0)
        os.dup2(stderr, 2)
        os.environ |= told["environment"]
        os.chdir(told["cwd"])
        if not told["fork"]:
            command = _python(f"from ppsim.runtime.worker import main; main({told['folder']!r})")
            os.execv(command[0], command)
        if told["imports_from_cwd"]:
            sys.path.insert(0, told["cwd"])
        from ppsim.runtime import worker

        worker.main(told["folder"])
    except BaseException:
        traceback.print_exc()
    os._exit(1)
