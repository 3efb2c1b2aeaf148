"""A thread of jobs runs them in order, hands on their errors, and ends after the last."""

import threading

import pytest

from ppsim.runtime.emulate import JobThread


def test_jobs_run_in_their_order_and_return_results_or_errors() -> None:
    thread, ran = JobThread("jobs"), []
    futures = [thread.put(lambda number=number: ran.append(number) or number) for number in range(3)]
    failed = thread.put(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(60)
    assert [future.result(0) for future in futures] == ran == [0, 1, 2]
    thread.end(60)
    assert not thread.is_alive()


def test_a_caller_does_not_wait_for_the_end_unless_it_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, release, waited_s = JobThread("jobs"), threading.Event(), []
    future = thread.put(lambda: release.wait(60))
    with monkeypatch.context() as patch:
        patch.setattr(thread, "join", waited_s.append)
        thread.end()
        thread.end(2.5)
    assert waited_s == [0.0, 2.5]
    release.set()
    assert future.result(60), "a job that was queued before the end still runs"
