"""The comparison with one process notices what it is there to notice."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from ppsim.base.errors import RunFailed
from ppsim.model.recompute import LayerPlan
from ppsim.runs.timeline_import import require_agreement
from ppsim.runtime.gpt import GPT, batch, build_stage, loss_of
from ppsim.runtime.verify import differences
from tests.runtime.cases import config_of, table_of


def found_by(tmp_path: Path, *, change: float = 0.0, lose: bool = False) -> dict[str, float]:
    """One process plays the pipeline of two stages; one gradient of stage 1 is changed or lost."""
    table = table_of("1f1b", p=2, m=3)
    config = config_of(table, tmp_path, dtype="float64")
    inputs, targets = batch(0, batch_size=3, sequence_length=16, seed=0)
    stages = [
        build_stage(stage, 2, [LayerPlan(1, "none")], config.model, seed=0, dtype=torch.float64)
        for stage in range(2)
    ]
    losses = []
    for x, y in zip(inputs.chunk(3), targets.chunk(3), strict=True):
        loss = loss_of(stages[1](stages[0](x)), y)
        (loss / 3).backward()
        losses.append(loss.detach())
    gradients = {index: [parameter.grad for parameter in stage.parameters()] for index, stage in enumerate(stages)}
    assert gradients[1][2] is not None
    gradients[1][2].view(-1)[0] += change * gradients[1][2].abs().max()
    if lose:
        gradients[1][2] = None
    return dict(differences(config, table, inputs, targets, losses, gradients))


def test_equal_gradients_are_equal(tmp_path: Path) -> None:
    require_agreement(found_by(tmp_path), "float64")


@pytest.mark.parametrize("change", [1e-8, 1e-3, float("nan")])
def test_one_changed_number_fails_the_run(tmp_path: Path, change: float) -> None:
    with pytest.raises(RunFailed, match=r"differs from one process by 0\.0e\+00 in the loss"):
        require_agreement(found_by(tmp_path, change=change), "float64")


def test_a_lost_gradient_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="inf in a gradient"):
        require_agreement(found_by(tmp_path, lose=True), "float64")


def test_tokens_enter_the_first_stage_and_logits_leave_the_last(tmp_path: Path) -> None:
    """One sequence of 16 tokens, 32 hidden columns, a vocabulary of 256."""
    model = GPT(config_of(table_of("1f1b", p=2, m=3), tmp_path, dtype="bfloat16"))
    found = [(tuple(one.shape), one.dtype) for one in map(model.boundary, range(3))]
    assert found == [((1, 16), torch.int64), ((1, 16, 32), torch.bfloat16), ((1, 16, 256), torch.bfloat16)]
