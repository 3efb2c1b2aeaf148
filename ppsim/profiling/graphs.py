"""F and B of a module by replay of CUDA graphs: no kernel is launched by the host one at a time."""

import torch

from ppsim.base.errors import RunFailed
from ppsim.profiling.failures import first_sentence, is_out_of_memory
from ppsim.profiling.measure import Input, Module
from ppsim.profiling.timing import undisturbed
from ppsim.runtime.clock import clock_of

NUM_WARM_UP = 3
"""Passes on a stream beside before capture, as torch's documentation asks: libraries set themselves up in them."""


def replayed(
    subject: Module, *, device: torch.device, num_repeats: int, num_warm_up: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of F and of B, one entry a repeat. Every replay reads the same input.

    Raises `RunFailed` where a pass cannot be captured: something in it waits for the device.
    """
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    x = subject.next_input()
    with torch.cuda.stream(beside):
        for _ in range(NUM_WARM_UP):
            _pass_once(subject, x)
    torch.cuda.current_stream().wait_stream(beside)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(forward):
            output = subject.forward(x)
        grad = subject.grad_of(output)
        with torch.cuda.graph(backward, pool=forward.pool()):
            subject.backward(x, output, grad)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = first_sentence(error)
        raise RunFailed(f"--cuda-graphs: a pass cannot be captured ({reason}); leave it out") from error
    clock = clock_of(device)
    with undisturbed():
        passes = [
            [clock.time(graph.replay)[1] for graph in (forward, backward)] for _ in range(num_warm_up + num_repeats)
        ][num_warm_up:]
    subject.module.zero_grad(set_to_none=True)
    forward_s, backward_s = ([seconds() for seconds in column] for column in zip(*passes, strict=True))
    return forward_s, backward_s


def _pass_once(subject: Module, x: Input) -> None:
    """F and B; the output ends here, and the nodes with it, which belong to the stream that they ran on."""
    output = subject.forward(x)
    subject.backward(x, output, subject.grad_of(output))
