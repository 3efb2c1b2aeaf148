"""Causal attention without its projections."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

from ppsim.model.shapes import LayerShape
from ppsim.profiling.checkpointing import Cheaply


class AttentionCoreModule(nn.Module):
    """Attention of whole sequences, by torch's fused kernel."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.is_grouped = shape.num_kv_heads != shape.num_heads

    @contextmanager
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
        """Yield [batch, sequence, heads · size]; queries, keys and values are [batch, heads, sequence, size]."""
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.is_grouped)
        yield found.transpose(1, 2).flatten(2)


class RecomputedCore(nn.Module):
    """Attention that saves queries, keys, values and its output, but no intermediate tensors."""

    def __init__(self, core: "AttentionCoreModule | ContextCore | RecomputedCore") -> None:
        super().__init__()
        self.core = core

    @contextmanager
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
        yield checkpoint(self._attended, q, k, v, use_reentrant=False)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with self.core.attended(q, k, v) as found:
            return found


class ContextCore(nn.Module):
    """Attention of the first of `cp` ranks, which has the first and the last of 2·cp chunks of every sequence.

    As in Llama 3 (arXiv 2407.21783, §3.3.2) and TransformerEngine's "all_gather", other ranks' keys and values are
    gathered before attention and again for the backward; only the rank's own keys and values are saved. Random
    numbers replace the collectives. `cheaply` decides how gathered tensors are saved; it is `save_as_usual` if the
    whole attention is recomputed.
    """

    mask: Tensor
    peers: Tensor

    def __init__(self, shape: LayerShape, sequence_length: int, cp: int, *, cheaply: Cheaply) -> None:
        super().__init__()
        self.is_grouped, self.cheaply = shape.num_kv_heads != shape.num_heads, cheaply
        self.chunk = sequence_length // (2 * cp)
        of_peers = torch.randn(1, sequence_length - 2 * self.chunk, 1, shape.head_size)
        later = torch.ones(self.chunk, sequence_length, dtype=torch.bool).triu(sequence_length - self.chunk + 1)
        self.register_buffer("peers", of_peers, persistent=False)
        self.register_buffer("mask", torch.zeros(later.shape).masked_fill(later, -torch.inf), persistent=False)
        # torch cannot create this kind of tensor inside a dispatch mode.
        self.named_mask = causal_lower_right(self.chunk, sequence_length)

    @contextmanager
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
        chunk, is_grouped = self.chunk, self.is_grouped
        q_first, q_last = q.split(chunk, dim=2)
        # CUDA's kernel skips masked scores of torch's lower-right mask; the CPU's kernel needs a mask of numbers.
        mask = self.named_mask if q.is_cuda else self.mask
        with self.cheaply(self._gathered, k) as keys, self.cheaply(self._gathered, v) as values:
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
            first = functional.scaled_dot_product_attention(
                q_first, keys[:, :, :chunk], values[:, :, :chunk], is_causal=True, enable_gqa=is_grouped
            )
            last = functional.scaled_dot_product_attention(
                q_last, keys, values, attn_mask=mask, enable_gqa=is_grouped
            )
        with self.cheaply(_joined, first, last) as found:
            yield found

    def _gathered(self, own: Tensor) -> Tensor:
        """Return keys or values of all positions, [batch, sequence, heads, head size]."""
        first, last = own.transpose(1, 2).split(self.chunk, dim=1)
        peers = self.peers.expand(own.shape[0], -1, own.shape[1], -1)
        return torch.cat((first, peers, last), dim=1)


def _joined(first: Tensor, last: Tensor) -> Tensor:
    return torch.cat((first.transpose(1, 2), last.transpose(1, 2)), dim=1).flatten(2)
