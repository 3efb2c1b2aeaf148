"""A GPU's clock under load: an idle one runs at a fifth of it, and takes its time to rise."""

import time

import torch

_LOAD_S = 1.0
_SIZE, _IN_FLIGHT = 4096, 20


def raise_clock(where: torch.device) -> None:
    """Multiply matrices of random numbers for a second, so that what is measured next finds the clock of a run.

    Does nothing on a CPU.
    """
    if where.type != "cuda":
        return
    one = torch.randn(_SIZE, _SIZE, device=where, dtype=torch.bfloat16)
    product = torch.empty_like(one)
    end = time.monotonic() + _LOAD_S
    while time.monotonic() < end:
        for _ in range(_IN_FLIGHT):
            torch.matmul(one, one, out=product)
        torch.cuda.synchronize(where)
