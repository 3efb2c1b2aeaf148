"""A small GPT, whole or divided into stages, shared by `ppsim profile` and `ppsim train`."""

from collections.abc import Collection, Sequence
from importlib import resources
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ppsim.model.recompute import LayerPlan
from ppsim.model.shapes import LayerShape
from ppsim.runtime.train_config import GPTShape, TrainConfig


def batch(step: int, *, batch_size: int, sequence_length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and next-byte targets, both int64 [batch_size, sequence_length], the same on every rank."""
    sonnets = (resources.files("ppsim") / "runtime" / "sonnets.txt").read_bytes()
    text = torch.frombuffer(bytearray(sonnets), dtype=torch.uint8).to(torch.int64)
    text = text.repeat(1 + (sequence_length + 1) // len(text))
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(0, len(text) - sequence_length, (batch_size,), generator=generator).tolist()
    inputs = torch.stack([text[start : start + sequence_length] for start in starts])
    targets = torch.stack([text[start + 1 : start + 1 + sequence_length] for start in starts])
    return inputs, targets


class Embedding(nn.Module):
    """Maps int64 [batch, sequence] to [batch, sequence, hidden], with `num_positions` learned positions if any."""

    def __init__(self, vocab_size: int, hidden_size: int, *, num_positions: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, hidden_size)) if num_positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(tokens)
        return embedded if self.positions is None else embedded + self.positions[: tokens.shape[1]]


class Block(nn.Module):
    """One transformer layer, or a tensor-parallel shard of one; input and output are [batch, sequence, hidden]."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        hidden, inner, ffn = shape.hidden_size, shape.num_heads * shape.head_size, shape.ffn_size
        self.num_heads, self.head_size = shape.num_heads, shape.head_size
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * inner)
        self.out = nn.Linear(inner, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, sequence, 3, self.num_heads, self.head_size)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, -1))
        mlp: Tensor = self.down(functional.gelu(self.up(self.norm_2(x))))
        return x + mlp


class Recomputed(nn.Module):
    """A layer that saves only its input; a backward runs its forward again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output: Any = checkpoint(self.layer, x, use_reentrant=False)
        return output  # type: ignore[no-any-return]


class Head(nn.Module):
    """Final norm and projection: [batch, sequence, hidden] → logits [batch, sequence, vocabulary]."""

    def __init__(self, norm: nn.Module, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = norm
        self.project = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.project(self.norm(x))
        return logits


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits are [batch, sequence, vocabulary], targets int64 [batch, sequence]."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_stage(
    stage: int, num_stages: int, plan: Sequence[LayerPlan], shape: GPTShape, *, seed: int, dtype: torch.dtype,
) -> nn.Sequential:  # fmt: skip
    """Return the layers of a stage, with the embedding on the first stage and the head on the last stage.

    A layer with `recompute` "full" saves only its input; joined layers save one input together. A seed gives a
    stage the same weights for every placement of stages on ranks.
    """
    torch.manual_seed(1_000_003 * seed + stage)
    parts: list[nn.Module] = []
    if stage == 0:
        parts.append(Embedding(shape.vocab_size, shape.hidden_size, num_positions=shape.sequence_length))
    for one in plan:
        blocks: list[nn.Module] = [Block(shape.layer) for _ in range(one.layers)]
        if one.joined:
            blocks = [nn.Sequential(*blocks)]
        parts += [Recomputed(block) for block in blocks] if one.recompute == "full" else blocks
    if stage == num_stages - 1:
        parts.append(Head(nn.LayerNorm(shape.hidden_size), shape.hidden_size, shape.vocab_size))
    return nn.Sequential(*parts).to(dtype)


class GPT:
    """The GPT of a run, a `ppsim.runtime.trained.TrainedModel`."""

    def __init__(self, config: TrainConfig) -> None:
        assert isinstance(config.model, GPTShape)
        self.config, self.shape = config, config.model

    def stages(self, wanted: Collection[int]) -> dict[int, nn.Module]:
        return {stage: self._stage(stage, self.config.plan_of(stage)) for stage in wanted}

    def _stage(self, stage: int, plan: Sequence[LayerPlan]) -> nn.Module:
        config = self.config
        num_stages, dtype = len(config.layers_per_stage), getattr(torch, config.dtype)
        return build_stage(stage, num_stages, plan, self.shape, seed=config.seed, dtype=dtype)

    def unsplit(self) -> tuple[nn.Module, list[list[nn.Parameter]]]:
        """The whole model has no recomputation."""
        layers = self.config.layers_per_stage
        stages = [self._stage(stage, [LayerPlan(number, "none")]) for stage, number in enumerate(layers)]
        return nn.Sequential(*stages), [list(stage.parameters()) for stage in stages]

    def boundary(self, stage: int) -> Tensor:
        shape, config = (self.config.micro_batch, self.shape.sequence_length), self.config
        if stage == 0:
            return torch.zeros(shape, dtype=torch.int64)
        is_last = stage == len(config.layers_per_stage)
        width = self.shape.vocab_size if is_last else self.shape.hidden_size
        return torch.zeros(*shape, width, dtype=getattr(torch, config.dtype))

    def batch(self, step: int, num_microbatches: int) -> tuple[Tensor, Tensor]:
        size = num_microbatches * self.config.micro_batch
        return batch(step, batch_size=size, sequence_length=self.shape.sequence_length, seed=self.config.seed)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return loss_of(output, targets)
