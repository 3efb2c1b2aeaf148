"""What of a module's activations is still held between I and W."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ppsim.profiling.measure import MeasuredModule, measure
from ppsim.runtime.gpt import Head, loss_of
from tests.profiling.once import ONCE


def test_w_of_the_head_needs_neither_probabilities_nor_targets() -> None:
    """I drops the log-probabilities and the targets of the loss with the output, and keeps norm and product."""
    batch, vocabulary = (2, 16), 256
    targets = torch.zeros(batch, dtype=torch.int64)
    head = MeasuredModule(
        Head(nn.LayerNorm(32), 32, vocabulary),
        [torch.randn(*batch, 32)],
        loss=lambda logits: loss_of(logits, targets),
    )
    [found] = measure([head], ONCE)
    dropped = 2 * 16 * (4 * vocabulary + 8) + 4  # and the sum of the targets' weights
    assert found.activation_bytes - found.kept_bytes == dropped
