"""Deterministic batches from the text that the package ships."""

from importlib import resources

import torch
from torch import Tensor


def batch(step: int, *, batch_size: int, sequence_length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and next-byte targets, both int64 [batch_size, sequence_length], the same on every rank.

    The text is twelve of Shakespeare's sonnets, in the public domain.
    """
    sonnets = (resources.files("ppsim") / "runtime" / "sonnets.txt").read_bytes()
    text = torch.frombuffer(bytearray(sonnets), dtype=torch.uint8).to(torch.int64)
    text = text.repeat(1 + (sequence_length + 1) // len(text))
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(0, len(text) - sequence_length, (batch_size,), generator=generator).tolist()
    inputs = torch.stack([text[start : start + sequence_length] for start in starts])
    targets = torch.stack([text[start + 1 : start + 1 + sequence_length] for start in starts])
    return inputs, targets
