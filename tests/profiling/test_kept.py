"""What of a module's activations is still held between I and W."""

import pytest

pytest.importorskip("torch")

import torch

from ppsim.profiling.measure import Module, measure
from ppsim.runtime.config import GPTShape
from ppsim.runtime.gpt import Head, loss_of
from tests.profiling.once import ONCE


def test_w_of_the_head_needs_neither_probabilities_nor_targets() -> None:
    """I drops the log-probabilities and the targets of the loss with the output, and keeps norm and product."""
    shape = GPTShape(num_layers=1, hidden_size=32, num_heads=2, sequence_length=16)
    batch, vocabulary = (2, 16), shape.vocab_size
    targets = torch.zeros(batch, dtype=torch.int64)
    head = Module(Head(shape), [torch.randn(*batch, 32)], loss=lambda logits: loss_of(logits, targets))
    [found] = measure([head], ONCE)
    dropped = 2 * 16 * (4 * vocabulary + 8) + 4  # and the sum of the targets' weights
    assert found.activation_bytes - found.kept_bytes == dropped
