"""Measure F, B, I and W of one module, split exactly as torch's pipelining runtime splits the backward.

Including its imports, this module needs only torch, numpy and the standard library.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

from ppsim.base.errors import ConfigError
from ppsim.profiling.settings import LEAST_REPEATS, MeasuringSettings
from ppsim.profiling.timing import sample_times, without_interruptions
from ppsim.runtime.clock import Seconds, clock_of
from ppsim.runtime.live_bytes import LiveBytes


@dataclass(frozen=True)
class Samples:
    """Seconds of each action (F, B, I, W), one entry per repeat, and bytes.

    `activation_bytes` are saved by F for the backward, without parameters and buffers; `kept_bytes` of these are
    still held between I and W. `transient_bytes` is the peak that an action allocates in addition.
    """

    seconds: dict[str, list[float]]
    activation_bytes: int
    kept_bytes: int
    output_bytes: int
    transient_bytes: int | None


LAUNCHES, LAUNCHES_BEFORE = LEAST_REPEATS, 1
"""Number of timed launches of each action, and of untimed launches before; the device is idle before a launch."""

FEWEST_WARM_UPS = 2
"""Minimum number of warm-up repeats: the first repeat does much one-time work."""

_FEWEST_GRADS = 3
"""Minimum number of rotated gradients if an output is far larger than an input, as an embedding's is."""

Input = tuple[Tensor, ...]


class MeasuredModule:
    """A module as a pipeline stage: inputs, one output, and a loss for the last stage.

    Inputs and output gradients are rotated, because a pipeline never finds its input in a cache. Gradients are
    random, because a GPU's clock depends on how many bits change. With `is_first`, W is the whole backward, as on
    torch's stage 0.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Sequence[Tensor | Input],
        *,
        is_first: bool = False,
        loss: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.module, self.is_first, self.loss = module, is_first, loss
        self._inputs = [(tensor,) if isinstance(tensor, Tensor) else tensor for tensor in inputs]
        self._grads: list[Tensor] = []
        self._turn = 0

    def next_input(self) -> Input:
        self._turn += 1
        x = tuple(one.detach() for one in self._inputs[self._turn % len(self._inputs)])
        return x if self.is_first else tuple(tensor.requires_grad_(tensor.is_floating_point()) for tensor in x)

    def forward(self, x: Input) -> Tensor:
        """Raise `ConfigError` if the module's output is not one tensor."""
        output = self.module(*x)
        if not isinstance(output, Tensor):
            raise ConfigError(f"a module to be measured returns one tensor: got {type(output).__name__}")
        return output if self.loss is None else self.loss(output)

    def backward(self, x: Input, output: Tensor, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        return stage_backward(output, grad, x)

    def backward_input(self, x: Input, output: Tensor, grad: Tensor | None) -> Any:
        """Return the state that W needs."""
        if self.is_first:
            return None
        grads = None if grad is None else [grad]
        return stage_backward_input([output], grads, list(x), self.module.parameters())[1]

    def backward_weight(self, x: Input, output: Tensor, grad: Tensor | None, groups: Any) -> None:
        if self.is_first:
            stage_backward(output, grad, x)
        else:
            stage_backward_weight(self.module.parameters(), groups)

    def pass_once(self, x: Input) -> None:
        """Do F and B, and free the output and its autograd nodes, which belong to the current stream."""
        output = self.forward(x)
        self.backward(x, output, self.grad_of(output))

    def grad_of(self, output: Tensor) -> Tensor | None:
        """Return a different gradient for each input; None for a loss."""
        if self.loss is not None:
            return None
        if not self._grads or self._grads[0].shape != output.shape:
            taken = sum(part.nbytes for one in self._inputs for part in one)  # exceeds a cache, as gradients should
            count = min(len(self._inputs), max(_FEWEST_GRADS, taken // output.nbytes + 1))
            self._grads = [torch.randn_like(output) for _ in range(count)]
        return self._grads[self._turn % len(self._grads)]


def measure(
    subjects: Sequence[MeasuredModule], settings: MeasuringSettings, *, can_split: Sequence[bool] | None = None
) -> list[Samples]:
    """Return the samples of each module, measured in turns so that other load affects all modules equally.

    As in a pipeline's steady state, gradients accumulate, and a later microbatch's activations are held during a
    backward. `component_s` limits the repeats to no less than `LEAST_REPEATS`; if even these take longer, it limits
    the warm-up to two.
    """
    device, num_repeats = torch.device(settings.device), settings.num_repeats
    clock = clock_of(device)
    splits = [True] * len(subjects) if can_split is None else can_split
    runs = [_Run(subject, clock.time, can_split=split) for subject, split in zip(subjects, splits, strict=True)]

    def repeat() -> dict[tuple[int, str], Seconds]:
        return {(index, name): taken for index, run in enumerate(runs) for name, taken in run.repeat().items()}

    with without_interruptions():
        for done in range(1, settings.num_warm_up + 1):
            begin = clock.done()
            repeat()
            if settings.component_s is not None:
                affordable = int(settings.component_s / (clock.done() - begin))
                num_repeats = min(settings.num_repeats, max(LEAST_REPEATS, affordable))
                if done >= FEWEST_WARM_UPS and affordable < LEAST_REPEATS:
                    break
        taken = sample_times(repeat, num_repeats=num_repeats, least_s=settings.least_s)
    for run in runs:
        run.forget()
    return [
        _samples(subject, {name: taken[at, name] for at, name in taken if at == index}, device)
        for index, subject in enumerate(subjects)
    ]


def is_asynchronous(device: torch.device) -> bool:
    return device.type == "cuda"


def release_memory() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


Timed = Callable[..., tuple[Any, Seconds]]
"""Calls a function with arguments; returns its result, and a function that returns its seconds."""


class _Run:
    def __init__(self, subject: MeasuredModule, timed: Timed, *, can_split: bool) -> None:
        self.subject, self.can_split, self._timed = subject, can_split, timed
        self._waiting = [self._forward() for _ in range(2)]

    def _forward(self) -> tuple[Input, Tensor, Seconds]:
        x = self.subject.next_input()
        output, seconds = self._timed(self.subject.forward, x)
        return x, output, seconds

    def repeat(self) -> dict[str, Seconds]:
        subject, timed = self.subject, self._timed
        (x, output, forward_s), self._waiting[0] = self._waiting[0], self._forward()
        _, backward_s = timed(subject.backward, x, output, subject.grad_of(output))
        passes = {"F": forward_s, "B": backward_s}
        if self.can_split:
            (x, output, _), self._waiting[1] = self._waiting[1], self._forward()
            grad = subject.grad_of(output)
            groups, passes["I"] = timed(subject.backward_input, x, output, grad)
            _, passes["W"] = timed(subject.backward_weight, x, output, grad, groups)
        return passes

    def forget(self) -> None:
        self._waiting.clear()
        self.subject.module.zero_grad(set_to_none=True)


def _samples(subject: MeasuredModule, taken: dict[str, list[float]], device: torch.device) -> Samples:
    activation_bytes, kept_bytes, output_bytes = _saved_bytes(subject, can_split="I" in taken)
    transient_bytes = _transient_bytes(subject, activation_bytes) if is_asynchronous(device) else None
    return Samples(taken, activation_bytes, kept_bytes, output_bytes, transient_bytes)


def launch_seconds(subject: MeasuredModule, *, device: torch.device, can_split: bool) -> dict[str, list[float]]:
    """Return the host's time to enqueue each action; on a CPU, the time of the action itself."""
    run = _Run(subject, clock_of(device).time_launch, can_split=can_split)
    with without_interruptions():
        taken = [run.repeat() for _ in range(LAUNCHES_BEFORE + LAUNCHES)][LAUNCHES_BEFORE:]
    run.forget()
    return {name: [one[name]() for one in taken] for name in taken[0]}


def _saved_bytes(subject: MeasuredModule, *, can_split: bool) -> tuple[int, int, int]:
    """Return the bytes that autograd holds after F and after I, and the bytes of the output."""
    held = LiveBytes([subject.module])
    with held.counting():
        x = subject.next_input()
        output = subject.forward(x)
    output_bytes = output.nbytes
    after_forward = held.live_bytes
    if not can_split:
        return after_forward, after_forward, output_bytes
    grad = subject.grad_of(output)
    groups = subject.backward_input(x, output, grad)
    if not subject.is_first:
        output.detach_()  # as the runtime does
    gc.collect()
    after_input = held.live_bytes
    subject.backward_weight(x, output, grad, groups)
    subject.module.zero_grad(set_to_none=True)
    return after_forward, min(after_input, after_forward), output_bytes


def _transient_bytes(subject: MeasuredModule, activation_bytes: int) -> int:
    """Return the peak allocation of F and B beyond activations and gradient buffers."""
    for parameter in subject.module.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    subject.pass_once(subject.next_input())
    peak = torch.cuda.max_memory_allocated()
    subject.module.zero_grad(set_to_none=True)
    return max(int(peak - before - activation_bytes), 0)
