"""The layer kinds that are measured, as torch modules of a rank's shard: [batch, sequence, hidden] → the same.

A shard has its part of heads, columns and experts, and works without its peers: the collectives of tensor and
expert parallelism are left out, so what is measured is one rank's own compute.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ppsim.costs.shapes import LayerShape, ModelShape, Recompute
from ppsim.runtime import gpt

ROTARY_BASE = 500_000.0
"""Of Llama 3; its value changes no cost."""


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped queries, without biases."""

    def __init__(self, shape: LayerShape, sequence_length: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size = shape.num_heads, shape.num_kv_heads, shape.head_size
        queries, keys = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self.q = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v = nn.Linear(shape.hidden_size, keys, bias=False)
        self.out = nn.Linear(queries, shape.hidden_size, bias=False)
        frequencies = ROTARY_BASE ** (-torch.arange(0, shape.head_size, 2) / shape.head_size)
        angles = torch.outer(torch.arange(sequence_length), frequencies).repeat(1, 2)  # [sequence, head size]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the heads attended to, projected to the hidden size."""
        batch, sequence, _ = x.shape
        q = self._rotated(self.q(x).view(batch, sequence, self.num_heads, self.head_size).transpose(1, 2))
        k = self._rotated(self.k(x).view(batch, sequence, self.num_kv_heads, self.head_size).transpose(1, 2))
        v = self.v(x).view(batch, sequence, self.num_kv_heads, self.head_size).transpose(1, 2)
        is_grouped = self.num_kv_heads != self.num_heads
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)
        output: Tensor = self.out(attended.transpose(1, 2).reshape(batch, sequence, -1))
        return output

    def _rotated(self, heads: Tensor) -> Tensor:
        """Rotary positions (Su et al. 2021, arXiv 2104.09864) of [batch, heads, sequence, head size]."""
        cos, sin = self.cos[: heads.shape[2]], self.sin[: heads.shape[2]]  # type: ignore[index]
        first, second = heads.chunk(2, dim=-1)
        rotated: Tensor = heads * cos + torch.cat((-second, first), dim=-1) * sin
        return rotated


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward of [..., hidden]."""
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output


class Experts(nn.Module):
    """SwiGLU experts behind a top-k router, dropless: tokens sorted by expert, one grouped product a projection.

    The router chooses among all experts of the model; with fewer here than there are, its choice modulo their
    number is taken, so that this rank's own tokens stand in for those its peers would send, T·k pairs in all.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        hidden, columns, count = shape.hidden_size, shape.ffn_size, shape.local_experts
        self.experts_per_token, self.num_local = shape.experts_per_token, count
        self.router = nn.Linear(hidden, shape.num_experts, bias=False)
        self.gate = nn.Parameter(torch.randn(count, hidden, columns) * hidden**-0.5)
        self.up = nn.Parameter(torch.randn(count, hidden, columns) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(count, columns, hidden) * columns**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return each token's weighted sum of its experts; weights are the softmax of its top-k logits."""
        tokens = x.flatten(0, -2)
        logits, chosen = self.router(tokens).topk(self.experts_per_token, dim=-1)
        weights = logits.float().softmax(dim=-1).to(x.dtype)

        expert = chosen.flatten() % self.num_local
        order = expert.argsort(stable=True)
        token = order // self.experts_per_token
        counts = torch.bincount(expert, minlength=self.num_local)

        taken = tokens.index_select(0, token)  # [tokens · k, hidden], sorted by expert
        hidden = functional.silu(grouped_mm(taken, self.gate, counts)) * grouped_mm(taken, self.up, counts)
        found = grouped_mm(hidden, self.down, counts).index_select(0, order.argsort())  # back to the tokens' order
        found = found.view(-1, self.experts_per_token, tokens.shape[-1])
        output: Tensor = (found * weights.unsqueeze(-1)).sum(dim=1).view_as(x)
        return output


def grouped_mm(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Return [rows, out]: `counts[e]` consecutive rows of [rows, in] times `weights[e]` of [experts, in, out].

    In bfloat16 on CUDA by torch's grouped kernel, which never waits for the host; elsewhere a product an expert.
    """
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        product: Tensor = functional.grouped_mm(rows, weights, offs=counts.cumsum(0).to(torch.int32))
        return product
    parts = zip(rows.split(counts.tolist()), weights.unbind(), strict=True)
    return torch.cat([part @ weight for part, weight in parts])


class Mixture(nn.Module):
    """Routed experts, and one that every token passes where the shape has it."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.experts = Experts(shape)
        self.shared = SwiGLU(shape.hidden_size, shape.shared_ffn_size) if shape.shared_ffn_size else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        routed: Tensor = self.experts(x)
        return routed if self.shared is None else routed + self.shared(x)


class Layer(nn.Module):
    """Pre-norm layer of kind "llama" or "moe"."""

    def __init__(self, shape: LayerShape, sequence_length: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(shape.hidden_size), nn.RMSNorm(shape.hidden_size)
        self.attention = Attention(shape, sequence_length)
        self.feed_forward = SwiGLU(shape.hidden_size, shape.ffn_size) if shape.kind == "llama" else Mixture(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return attention and feed-forward, each added to its input."""
        x = x + self.attention(self.norm_1(x))
        mlp: Tensor = self.feed_forward(self.norm_2(x))
        return x + mlp


class Recomputed(nn.Module):
    """A layer of which only the input is kept: its forward runs again where a backward needs it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer returns."""
        output: Any = checkpoint(self.layer, x, use_reentrant=False)
        return output  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """int64 [batch, sequence] → [batch, sequence, hidden], with `num_positions` learned positions if any."""

    def __init__(self, vocab_size: int, hidden_size: int, *, num_positions: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, hidden_size)) if num_positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embedded tokens."""
        embedded: Tensor = self.tokens(tokens)
        return embedded if self.positions is None else embedded + self.positions[: tokens.shape[1]]


class Head(nn.Module):
    """Final norm and projection: [batch, sequence, hidden] → logits [batch, sequence, vocabulary]."""

    def __init__(self, norm: nn.Module, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = norm
        self.project = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.project(self.norm(x))
        return logits


def build_layer(shape: LayerShape, sequence_length: int, *, recompute: Recompute = "none") -> nn.Module:
    """Return a layer of any kind for sequences of up to `sequence_length` tokens, recomputed whole if asked."""
    layer = gpt.Block(shape) if shape.kind == "gpt" else Layer(shape, sequence_length)
    return Recomputed(layer) if recompute == "full" else layer


def build_embedding(model: ModelShape) -> nn.Module:
    """Return the embedding; a gpt's has learned positions for `model.sequence_length` tokens."""
    num_positions = model.sequence_length if model.layer.kind == "gpt" else 0
    return Embedding(model.vocab_size, model.layer.hidden_size, num_positions=num_positions)


def build_head(model: ModelShape) -> nn.Module:
    """Return final norm and projection."""
    hidden = model.layer.hidden_size
    norm = nn.LayerNorm(hidden) if model.layer.kind == "gpt" else nn.RMSNorm(hidden)
    return Head(norm, hidden, model.vocab_size)
