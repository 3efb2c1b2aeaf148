"""Recording of the start and end of every action of a rank, with hooks into torch's runtime.

The runtime wraps each action in ``record_function("PP:3F0")``, waits for a receive inside it, and then calls the
stage. An action starts when the stage is called, after the wait.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ppsim.runtime.clock import HostClock, RecordedRange
from ppsim.runtime.torch_private import schedules
from ppsim.trainers.torch.read_trace import WAIT_MARK

_ONE_CHUNK = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


BeforeCall = Callable[[Any, str, int], None]


class StepRecorder:
    """Records the ranges of one step of this rank.

    `mark_trace` also keeps torch's own ranges, for a running torch.profiler.
    """

    def __init__(self, clock: HostClock, *, mark_trace: bool = False) -> None:
        self.clock, self.mark_trace = clock, mark_trace
        self.ranges: list[RecordedRange] = []

    @property
    def current(self) -> RecordedRange | None:
        return self.ranges[-1] if self.ranges and self.ranges[-1].end is None else None

    @contextmanager
    def installed(self, stages: list[Any], before_call: BeforeCall) -> Iterator[None]:
        """Record within the block, and run `before_call(stage, kind, microbatch)` before each call of a stage.

        The kind is "F", "B", "I" or "W".
        """
        recorder = self

        class Hook:
            """Replaces torch.profiler.record_function in the runtime."""

            def __init__(self, name: str) -> None:
                self._name = name.removeprefix("PP:")
                self._mark = real_record(name) if recorder.mark_trace else nullcontext()

            def __enter__(self) -> None:
                recorder.ranges.append(RecordedRange(self._name, recorder.clock.now()))
                self._mark.__enter__()

            def __exit__(self, *_: object) -> None:
                self._mark.__exit__(None, None, None)
                recorder.ranges[-1].end = recorder.clock.now()

        real_record, real_wait = schedules.record_function, schedules._wait_batch_p2p

        def wait(work: Any) -> None:
            begin = recorder.clock.now()
            with real_record(WAIT_MARK) if recorder.mark_trace else nullcontext():
                real_wait(work)
            if recorder.current is not None:
                recorder.current.waits.append((begin, recorder.clock.now()))

        schedules.record_function, schedules._wait_batch_p2p = Hook, wait
        for stage in stages:
            for name in _ONE_CHUNK:
                setattr(stage, name, self._called(stage, name, getattr(stage, name), before_call))
        try:
            yield
        finally:
            schedules.record_function, schedules._wait_batch_p2p = real_record, real_wait
            for stage in stages:
                for name in _ONE_CHUNK:
                    delattr(stage, name)

    def _called(self, stage: Any, name: str, real: Any, before_call: BeforeCall) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert self.current is not None
            self.current.calls.append(self.clock.now())
            full = kwargs.get("full_backward", True)
            running = {"forward_one_chunk": "F", "backward_weight_one_chunk": "W"}.get(name, "B" if full else "I")
            before_call(stage, running, args[0])
            return real(*args, **kwargs)

        return call

    def seconds(self, moment: Any) -> float:
        self.clock.wait(moment)
        return self.clock.seconds(moment)

    def take_step(self) -> list[dict[str, Any]]:
        records = [item.record(self.seconds) for item in self.ranges]
        self.ranges = []
        return records
