"""Workers of the page: one question after the other, and the last search only."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.app import background_workers as module
from ppsim.app.background_workers import ScheduleOptimiser, ScheduleRequest, SearchProgress, SearchWorker, Worker
from ppsim.base.errors import PpsimError


class Pipe:
    """Has the messages to receive and those that were sent; an exception among them is raised."""

    def __init__(self, *messages: Any) -> None:
        self.messages, self.sent, self.is_closed = list(messages), [], False

    def poll(self) -> bool:
        return bool(self.messages)

    def recv(self) -> Any:
        message = self.messages.pop(0)
        if isinstance(message, type) and issubclass(message, Exception):
            raise message
        return message

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True


def test_the_first_question_starts_a_process_that_ends_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, calls = Pipe("answer"), Pipe(), []

    def process(**how: Any) -> Any:
        calls.append(how)
        return SimpleNamespace(
            start=lambda: calls.append("start"), terminate=lambda: calls.append("terminate"),
            join=lambda: calls.append("join"),
        )  # fmt: skip

    context = SimpleNamespace(Pipe=lambda: (ours, theirs), Process=process)
    monkeypatch.setattr(module, "get_context", lambda kind: context if kind == "spawn" else None)
    worker = Worker(print)
    assert worker.answer() is None
    worker.close()
    worker.ask("first")
    worker.ask("second")
    assert ours.sent == ["first", "second"]
    assert calls == [{"target": module._working, "args": (print, theirs), "daemon": True}, "start"]
    assert (theirs.is_closed, ours.is_closed) == (True, False)
    assert (worker.answer(), worker.answer()) == ("answer", None)
    ours.messages.append(EOFError)
    assert str(worker.answer()) == "the search ended without an answer"
    assert calls[2:] == ["terminate", "join"]
    assert ours.is_closed
    assert worker.answer() is None
    worker.ask("third")
    assert calls[4:] == calls[:2], "another process"


def test_a_process_answers_until_its_server_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    set_signals: list[Any] = []
    priorities: list[int] = []
    monkeypatch.setattr(module.signal, "signal", lambda *given: set_signals.append(given))
    monkeypatch.setattr(module.os, "nice", priorities.append)

    def work(question: str, answer: Any) -> None:
        answer(f"{question}!")
        if question == "b":
            raise PpsimError("no")

    pipe = Pipe("a", "b", "c", EOFError)
    module._working(work, pipe)  # type: ignore[arg-type]
    assert [str(one) for one in pipe.sent] == ["a!", "b!", "no", "c!"]
    assert isinstance(pipe.sent[2], PpsimError)
    assert set_signals == [(signal.SIGINT, signal.SIG_IGN)]
    assert priorities == [5]


class Asked:
    """A worker whose answers are given."""

    def __init__(self) -> None:
        self.questions: list[Any] = []
        self.answers: list[Any] = []
        self.closed = 0

    def ask(self, question: Any) -> None:
        self.questions.append(question)

    def answer(self) -> Any:
        return self.answers.pop(0) if self.answers else None

    def close(self) -> None:
        self.closed += 1


def request(name: str) -> ScheduleRequest:
    return ScheduleRequest((name,), {}, name)


def test_schedules_are_fitted_one_after_the_other_and_those_no_longer_wanted_are_left_out() -> None:
    worker: Any = Asked()
    optimiser = ScheduleOptimiser(_worker=worker)
    assert optimiser.found() == []
    optimiser.want([request("a"), request("b"), request("c")])
    assert worker.questions == [request("a")]
    optimiser.want([request("c"), request("a"), request("d")])
    assert worker.questions == [request("a")], "the current one is finished"
    worker.answers += [("table", None), PpsimError("too few\nlayers")]
    assert optimiser.found() == [(("a",), ("table", None)), (("c",), "too few")]
    assert worker.questions == [request("a"), request("c"), request("d")]
    assert optimiser.found() == []
    worker.answers += [("other", "note")]
    assert optimiser.found() == [(("d",), ("other", "note"))]
    assert optimiser.found() == []
    optimiser.close()
    assert worker.closed == 1


def test_a_schedule_is_fitted_to_the_costs_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected: dict[str, str] = {}

    def project_all(plan: Any, names: list[str], *, tables: Any) -> Any:
        if not rejected:
            tables(plan, names[0])
            tables(plan, "another")
        return SimpleNamespace(rejected=rejected)

    monkeypatch.setattr(module, "plan_of_options", lambda options: ("plan of", options))
    monkeypatch.setattr(module, "table_of", lambda plan, entry: (plan, entry))
    monkeypatch.setattr(module, "project_all", project_all)
    found: list[Any] = []
    module.optimise_schedule(ScheduleRequest(("k",), {"pp": 2}, "zb-auto"), found.append)
    assert found == [(("plan of", {"pp": 2}), "zb-auto")]
    rejected["zb-auto"] = "too few layers"
    with pytest.raises(PpsimError, match=r"^too few layers$"):
        module.optimise_schedule(ScheduleRequest(("k",), {"pp": 2}, "zb-auto"), found.append)
    assert len(found) == 1


def test_a_search_reports_its_numbers_and_then_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def search_of(options: Any) -> Any:
        def searched(*, progress: Any) -> str:
            progress(3, 7, 1.5)
            return f"found for {options['gpus']}"

        return searched

    monkeypatch.setattr(module, "search_of", search_of)
    monkeypatch.setattr(module, "search_view", lambda tuned: f"view of {tuned}")
    reports: list[Any] = []
    module.search({"gpus": 8}, reports.append)
    assert reports == [SearchProgress(3, 7, 1.5), SearchProgress(found="view of found for 8")]  # type: ignore[arg-type]
    assert SearchProgress() == SearchProgress(0, 0, None, None, "")


def test_the_same_search_is_started_once_unless_it_failed_and_another_ends_it() -> None:
    worker: Any = Asked()
    searches = SearchWorker(_worker=worker)
    assert searches.progress("a") is None
    searches.start("a", {"gpus": 8})
    searches.start("a", {"gpus": 8})
    assert (worker.questions, worker.closed) == ([{"gpus": 8}], 1)
    assert searches.progress("a") == SearchProgress()
    worker.answers += [SearchProgress(1, 4), SearchProgress(2, 4, 1.5)]
    assert searches.progress("a") == SearchProgress(2, 4, 1.5)
    assert searches.progress("b") is None
    worker.answers += [PpsimError("no layout fits")]
    assert searches.progress("a") == SearchProgress(failed="no layout fits")
    searches.start("a", {"gpus": 8})
    assert len(worker.questions) == 2
    assert searches.progress("a") == SearchProgress()
    searches.start("b", {"gpus": 16})
    assert (worker.questions[2], worker.closed) == ({"gpus": 16}, 3)
    assert searches.progress("a") is None
    searches.close()
    assert (searches.progress("b"), worker.closed) == (None, 4)
