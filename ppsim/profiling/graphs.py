"""Time F and B of a module by replay of CUDA graphs, without launches of single kernels."""

import torch

from ppsim.base.errors import RunFailed
from ppsim.profiling.measure import MeasuredModule
from ppsim.profiling.settings import MeasuringSettings
from ppsim.profiling.timing import first_sentence, is_out_of_memory, without_interruptions
from ppsim.runtime.clock import Seconds, clock_of

NUM_WARM_UP = 3
"""Repeats on a side stream before capture, as torch's documentation requires: libraries initialise in them."""


def replay_graph(subject: MeasuredModule, settings: MeasuringSettings) -> dict[str, list[float]]:
    """Return the seconds of F and B per replay.

    Raises `RunFailed` if an action cannot be captured, for example because it waits for the device.
    """
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    x = subject.next_input()
    with torch.cuda.stream(beside):
        for _ in range(NUM_WARM_UP):
            subject.pass_once(x)
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
    clock = clock_of(torch.device(settings.device))

    def replay() -> dict[str, Seconds]:
        return {name: clock.time(graph.replay)[1] for name, graph in (("F", forward), ("B", backward))}

    with without_interruptions():
        for _ in range(settings.num_warm_up):
            replay()
        taken = [replay() for _ in range(settings.num_repeats)]
    subject.module.zero_grad(set_to_none=True)
    return {name: [one[name]() for one in taken] for name in "FB"}
