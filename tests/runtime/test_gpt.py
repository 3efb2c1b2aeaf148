"""The GPT of profiles and runs, part by part against formulas."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ppsim.model.recompute import LayerPlan  # noqa: E402
from ppsim.model.shapes import LayerShape  # noqa: E402
from ppsim.runtime.gpt import GPT, Block, Embedding, Head, Recomputed, batch, build_stage, loss_of  # noqa: E402
from ppsim.runtime.train_config import GPTShape  # noqa: E402

SHAPE = GPTShape(num_layers=3, hidden_size=12, num_heads=3, sequence_length=5, vocab_size=257)


def normed(x: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def test_a_block_is_causal_attention_and_an_mlp_after_norms_each_added_to_its_input() -> None:
    """A shard of two heads of 3 columns of a layer of 12."""
    torch.manual_seed(1)
    block = Block(LayerShape("gpt", 12, 2, 2, 3, 20)).to(torch.float64)
    x = torch.randn(4, 5, 12, dtype=torch.float64)
    columns = normed(x) @ block.qkv.weight.T + block.qkv.bias
    parts = [columns[..., 6 * part : 6 * part + 6] for part in range(3)]
    attended = torch.zeros(4, 5, 6, dtype=torch.float64)
    for sequence in range(4):
        for head in range(2):
            q, k, v = (part[sequence, :, 3 * head : 3 * head + 3] for part in parts)
            for query in range(5):
                scores = (k[: query + 1] @ q[query] / math.sqrt(3)).exp()
                attended[sequence, query, 3 * head : 3 * head + 3] = scores @ v[: query + 1] / scores.sum()
    middle = x + attended @ block.out.weight.T + block.out.bias
    up = normed(middle) @ block.up.weight.T + block.up.bias
    gelu = up * (1 + torch.erf(up / math.sqrt(2))) / 2
    expected = middle + gelu @ block.down.weight.T + block.down.bias
    assert torch.allclose(block(x), expected, atol=1e-12)
    recomputed = Recomputed(block)
    assert torch.equal(recomputed(x), block(x))


def test_embedding_head_and_loss_are_looked_up_projected_and_averaged() -> None:
    torch.manual_seed(2)
    tokens = torch.tensor([[3, 1, 3], [0, 2, 4]])
    plain, placed = Embedding(5, 6), Embedding(5, 6, num_positions=7)
    assert plain.positions is None
    assert torch.equal(plain(tokens), plain.tokens.weight[tokens])
    assert torch.equal(placed(tokens), placed.tokens.weight[tokens] + placed.positions[:3])
    head = Head(torch.nn.LayerNorm(6), 6, 5)
    x = torch.randn(2, 3, 6)
    logits = head(x)
    assert torch.allclose(logits, normed(x) @ head.project.weight.T, atol=1e-5)
    assert head.project.bias is None
    chosen = torch.log_softmax(logits, -1).gather(-1, tokens[..., None])
    assert torch.allclose(loss_of(logits, tokens), -chosen.mean())
    assert loss_of(logits.to(torch.bfloat16), tokens).dtype == torch.float32
    assert loss_of(logits.double(), tokens).dtype == torch.float64


def test_a_batch_is_of_a_step_and_a_seed_and_its_targets_follow_its_inputs() -> None:
    inputs, targets = batch(3, batch_size=4, sequence_length=9, seed=5)
    assert inputs.shape == targets.shape == (4, 9)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(batch(3, batch_size=4, sequence_length=9, seed=5)[0], inputs)
    for step, seed in ((4, 5), (3, 6), (5, 3)):
        assert not torch.equal(batch(step, batch_size=4, sequence_length=9, seed=seed)[0], inputs)
    length = 200_000
    assert batch(0, batch_size=1, sequence_length=length, seed=0)[1].shape == (1, length), "longer than the text"


def test_a_stage_has_its_layers_the_ends_and_the_weights_of_its_seed() -> None:
    plan = [LayerPlan(2, "full", joined=True), LayerPlan(1, "full"), LayerPlan(1, "none")]

    def kinds(stage: int, number: int) -> list[str]:
        made = build_stage(stage, number, plan, SHAPE, seed=3, dtype=torch.float64)
        assert {one.dtype for one in made.parameters()} == {torch.float64}
        return [type(one).__name__ for one in made]

    layers = ["Recomputed", "Recomputed", "Block"]
    assert (kinds(0, 3), kinds(1, 3), kinds(2, 3)) == (["Embedding", *layers], layers, [*layers, "Head"])
    assert kinds(0, 1) == ["Embedding", *layers, "Head"]
    first, again, other_seed, other_stage = (
        build_stage(stage, 9, plan[2:], SHAPE, seed=seed, dtype=torch.float32)[0].up.weight
        for stage, seed in ((3, 2), (3, 2), (3, 4), (4, 2))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other_seed)
    assert not torch.equal(first, other_stage)
    whole = build_stage(0, 1, plan, SHAPE, seed=3, dtype=torch.float32)
    assert len(whole[1].layer) == 2
    assert whole[0].positions.shape == (5, 12)
    assert whole[-1].project.weight.shape == (257, 12)


def test_a_gpt_has_the_stages_boundaries_and_batches_of_its_run() -> None:
    config: Any = SimpleNamespace(
        model=SHAPE, layers_per_stage=(2, 1), micro_batch=4, seed=3, dtype="float64",
        plan_of=lambda stage: [LayerPlan(2 - stage, "full")],
    )  # fmt: skip
    gpt = GPT(config)
    stages = gpt.stages([1, 0])
    assert list(stages) == [1, 0]
    assert [type(one).__name__ for one in stages[0]] == ["Embedding", "Recomputed", "Recomputed"]
    assert [type(one).__name__ for one in stages[1]] == ["Recomputed", "Head"]
    whole, parameters = gpt.unsplit()
    assert [[type(one).__name__ for one in stage] for stage in whole] == [
        ["Embedding", "Block", "Block"],
        ["Block", "Head"],
    ]
    assert [len(one) for one in parameters] == [len(list(stages[stage].parameters())) for stage in (0, 1)]
    for stage in (0, 1):
        pairs = zip(parameters[stage], stages[stage].parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    shapes = [(tuple(gpt.boundary(stage).shape), gpt.boundary(stage).dtype) for stage in range(3)]
    assert shapes == [((4, 5), torch.int64), ((4, 5, 12), torch.float64), ((4, 5, 257), torch.float64)]
    inputs, targets = gpt.batch(7, 3)
    expected = batch(7, batch_size=12, sequence_length=5, seed=3)
    assert torch.equal(inputs, expected[0])
    assert torch.equal(targets, expected[1])
    logits = torch.randn(12, 5, 257)
    assert torch.equal(gpt.loss(logits, targets), loss_of(logits, targets))
