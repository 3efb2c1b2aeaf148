"""The measured kinds of layers as torch modules of one rank's shard, without collectives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

from ppsim.model.recompute import Recompute, recomputes
from ppsim.model.shapes import LayerShape, ModelShape
from ppsim.profiling.checkpointing import Cheaply, recompute_result, save_as_usual
from ppsim.runtime import gpt
from ppsim.runtime.gpt import Recomputed


class AttentionCoreModule(nn.Module):
    """Attention of whole sequences, by torch's fused kernel."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.is_grouped = shape.num_kv_heads != shape.num_heads

    @contextmanager
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
        """Yield [batch, sequence, heads · size]; queries, keys and values are [batch, heads, sequence, size]."""
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.is_grouped)
        yield context.transpose(1, 2).flatten(2)


class RecomputedCore(nn.Module):
    """Attention that saves queries, keys, values and its output, but no intermediate tensors."""

    def __init__(self, core: "AttentionCoreModule | ContextCore | RecomputedCore") -> None:
        super().__init__()
        self.core = core

    @contextmanager
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
        yield checkpoint(self._attended, q, k, v, use_reentrant=False)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with self.core.attended(q, k, v) as attended:
            return attended


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
        with self.cheaply(_joined, first, last) as context:
            yield context

    def _gathered(self, own: Tensor) -> Tensor:
        """Return keys or values of all positions, [batch, sequence, heads, head size]."""
        first, last = own.transpose(1, 2).split(self.chunk, dim=1)
        peers = self.peers.expand(own.shape[0], -1, own.shape[1], -1)
        return torch.cat((first, peers, last), dim=1)


def _joined(first: Tensor, last: Tensor) -> Tensor:
    return torch.cat((first.transpose(1, 2), last.transpose(1, 2)), dim=1).flatten(2)


AnyCore: TypeAlias = AttentionCoreModule | ContextCore | RecomputedCore

ROTARY_BASE = 500_000.0
"""Llama 3's value; it does not affect any cost."""


class AttentionModule(nn.Module):
    """Causal self-attention with rotary positions and grouped queries, without biases."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LayerShape, positions: Tensor, core: AnyCore) -> None:
        super().__init__()
        self.core = core
        self.num_heads, self.num_kv_heads, self.head_size = shape.num_heads, shape.num_kv_heads, shape.head_size
        queries, keys = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self.q = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v = nn.Linear(shape.hidden_size, keys, bias=False)
        self.out = nn.Linear(queries, shape.hidden_size, bias=False)
        frequencies = ROTARY_BASE ** (-torch.arange(0, shape.head_size, 2) / shape.head_size)
        angles = torch.outer(positions, frequencies).repeat(1, 2)  # [sequence, head size]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        q = self._rotated(self.q(x).view(batch, sequence, self.num_heads, self.head_size).transpose(1, 2))
        k = self._rotated(self.k(x).view(batch, sequence, self.num_kv_heads, self.head_size).transpose(1, 2))
        v = self.v(x).view(batch, sequence, self.num_kv_heads, self.head_size).transpose(1, 2)
        with self.core.attended(q, k, v) as attended:
            output: Tensor = self.out(attended)
        return output

    def _rotated(self, heads: Tensor) -> Tensor:
        """Rotary positions (Su et al. 2021, arXiv 2104.09864) of [batch, heads, sequence, head size]."""
        cos, sin = self.cos[: heads.shape[2]], self.sin[: heads.shape[2]]
        first, second = heads.chunk(2, dim=-1)
        rotated: Tensor = heads * cos + torch.cat((-second, first), dim=-1) * sin
        return rotated


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, ffn_size: int, *, cheaply: Cheaply = save_as_usual) -> None:
        super().__init__()
        self.cheaply = cheaply  # how the activation is stored for the GEMM after it
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with self.cheaply(_gated, self.gate(x), self.up(x)) as hidden:
            output: Tensor = self.down(hidden)
        return output


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


class Experts(nn.Module):
    """Dropless SwiGLU experts after a top-k router: tokens sorted by expert, one grouped GEMM per projection.

    The router's choice is reduced modulo the number of local experts, so that this rank's own tokens replace the
    tokens of its peers.
    """

    def __init__(self, shape: LayerShape, *, recompute: Recompute = "none") -> None:
        super().__init__()
        self.cheaply = _kept(recompute, "moe_act")
        hidden, columns, count = shape.hidden_size, shape.ffn_size, shape.local_experts
        self.experts_per_token, self.num_local = shape.experts_per_token, count
        self.router = nn.Linear(hidden, shape.num_experts, bias=False)
        self.gate = nn.Parameter(torch.randn(count, hidden, columns) * hidden**-0.5)
        self.up = nn.Parameter(torch.randn(count, hidden, columns) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(count, columns, hidden) * columns**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        logits, chosen = self.router(tokens).topk(self.experts_per_token, dim=-1)
        weights = logits.float().softmax(dim=-1).to(x.dtype)

        expert = chosen.flatten() % self.num_local
        order = expert.argsort(stable=True)
        token = order // self.experts_per_token
        # scatter_add_ has a result of known size; bincount would copy the size to the host, which then waits.
        counts = expert.new_zeros(self.num_local).scatter_add_(0, expert, torch.ones_like(expert))

        taken = tokens.index_select(0, token)  # [tokens · k, hidden], sorted by expert
        gate, up = grouped_mm(taken, self.gate, counts), grouped_mm(taken, self.up, counts)
        with self.cheaply(_gated, gate, up) as hidden:
            found = grouped_mm(hidden, self.down, counts)
        found = found.index_select(0, order.argsort())  # back to the tokens' order
        found = found.view(-1, self.experts_per_token, tokens.shape[-1])
        output: Tensor = (found * weights.unsqueeze(-1)).sum(dim=1).view_as(x)
        return output


def grouped_mm(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Return [rows, out]: `counts[e]` consecutive rows of [rows, in] times `weights[e]` of [experts, in, out].

    On CUDA in bfloat16 this never waits for the host.
    """
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        product: Tensor = functional.grouped_mm(rows, weights, offs=counts.cumsum(0).to(torch.int32))
        return product
    parts = zip(rows.split(counts.tolist()), weights.unbind(), strict=True)
    return torch.cat([part @ weight for part, weight in parts])


class MoEModule(nn.Module):
    """Routed experts, and a shared expert for all tokens if the shape has one."""

    def __init__(self, shape: LayerShape, *, recompute: Recompute = "none") -> None:
        super().__init__()
        self.experts = Experts(shape, recompute=recompute)
        hidden, columns = shape.hidden_size, shape.shared_ffn_size
        self.shared = _whole(SwiGLU(hidden, columns), recompute, "shared_experts") if columns else None

    def forward(self, x: Tensor) -> Tensor:
        routed: Tensor = self.experts(x)
        return routed if self.shared is None else routed + self.shared(x)


class LayerModule(nn.Module):
    """Pre-norm layer of kind "llama" or "moe"."""

    def __init__(
        self, shape: LayerShape, positions: Tensor, core: AnyCore, *, recompute: Recompute = "none"
    ) -> None:
        super().__init__()
        hidden = shape.hidden_size
        self.cheaply = _kept(recompute, "layernorm")
        self.norm_1, self.norm_2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = AttentionModule(shape, positions, core)
        if shape.kind == "llama":
            dense = SwiGLU(hidden, shape.ffn_size, cheaply=_kept(recompute, "mlp_act"))
            self.feed_forward = _whole(dense, recompute, "mlp")
        else:
            self.feed_forward = _whole(MoEModule(shape, recompute=recompute), recompute, "moe")

    def forward(self, x: Tensor) -> Tensor:
        with self.cheaply(self.norm_1, x) as normed:
            x = x + self.attention(normed)
        with self.cheaply(self.norm_2, x) as normed:
            mlp: Tensor = self.feed_forward(normed)
        return x + mlp


class GPTLayer(gpt.Block):
    """The GPT layer of `ppsim train`, with a choice of attention and recomputation."""

    def __init__(self, shape: LayerShape, core: AnyCore, *, recompute: Recompute) -> None:
        super().__init__(shape)
        self.core, self.cheaply = core, _kept(recompute, "layernorm")
        self.activated = _kept(recompute, "mlp_act")
        self.is_mlp_recomputed = recomputes(recompute, "mlp")

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        with self.cheaply(self.norm_1, x) as normed:
            heads = self.qkv(normed).view(batch, sequence, 3, self.num_heads, self.head_size)
        with self.core.attended(*heads.permute(2, 0, 3, 1, 4)) as attended:
            x = x + self.out(attended)
        with self.cheaply(self.norm_2, x) as normed:
            if self.is_mlp_recomputed:
                mlp: Tensor = checkpoint(self._feed_forward, normed, use_reentrant=False)
            else:
                mlp = self._feed_forward(normed)
        return x + mlp

    def _feed_forward(self, x: Tensor) -> Tensor:
        with self.activated(functional.gelu, self.up(x)) as hidden:
            output: Tensor = self.down(hidden)
        return output


def _kept(recompute: Recompute, module: str) -> Cheaply:
    return recompute_result if recomputes(recompute, module) else save_as_usual


def _whole(part: nn.Module, recompute: Recompute, module: str) -> nn.Module:
    return Recomputed(part) if recomputes(recompute, module) else part


def build_layer(
    shape: LayerShape, sequence_length: int, *, recompute: Recompute = "none", cp: int = 1, compiled: bool = False
) -> nn.Module:
    """Return a layer for sequences of up to `sequence_length` tokens.

    With `cp` above 1, the layer's input is [batch, sequence_length / cp, hidden], the positions of the first rank.
    """
    positions = torch.arange(sequence_length)
    core: AnyCore = AttentionCoreModule(shape)
    is_core_whole = recomputes(recompute, "core_attn")
    if cp > 1:
        chunk = sequence_length // (2 * cp)
        positions = torch.cat((positions[:chunk], positions[-chunk:]))
        is_whole = recompute == "full" or compiled or is_core_whole
        core = ContextCore(shape, sequence_length, cp, cheaply=save_as_usual if is_whole else recompute_result)
    if is_core_whole:
        core = RecomputedCore(core)
    if shape.kind != "gpt":
        layer: nn.Module = LayerModule(shape, positions, core, recompute=recompute)
    elif cp == 1 and recompute in ("none", "full"):
        layer = gpt.Block(shape)
    else:
        layer = GPTLayer(shape, core, recompute=recompute)
    if compiled:
        layer.compile()
    return Recomputed(layer) if recompute == "full" else layer


def build_embedding(model: ModelShape) -> nn.Module:
    num_positions = model.sequence_length if model.layer.kind == "gpt" else 0
    return gpt.Embedding(model.vocab_size, model.layer.hidden_size, num_positions=num_positions)


def build_head(model: ModelShape) -> nn.Module:
    hidden = model.layer.hidden_size
    norm = nn.LayerNorm(hidden) if model.layer.kind == "gpt" else nn.RMSNorm(hidden)
    return gpt.Head(norm, hidden, model.vocab_size)
