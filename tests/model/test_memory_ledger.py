"""Parameters of ranks that need the embedding's table more than once."""

import numpy as np
import pytest

from ppsim.model.memory_ledger import MemoryLedger
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.registry import find_model


def of_ranks(name: str, layers: int, *split: int) -> tuple[list[int], int, int]:
    """Return the parameters of each stage, all of the model's, and the size of its table."""
    model = find_model(name).with_layers(layers)
    ledger = MemoryLedger(model, MemorySettings(1, 1024))
    contents = ledger.contents(stages_of(model, split))
    held = [ledger.parameters(contents[[stage]]) for stage in range(len(split))]
    return [one.dense + one.expert for one in held], model.parameters, model.table(model.vocab_size)


def test_stages_add_up_to_the_model() -> None:
    held, whole, _ = of_ranks("llama3-8b", 8, 4, 4)
    assert sum(held) == whole


@pytest.mark.parametrize(("name", "layers"), [("gpt2", 12), ("deepseek-v3", 6)])
def test_a_tied_head_and_further_tokens_need_the_table_on_the_last_rank_too(name: str, layers: int) -> None:
    held, _, table = of_ranks(name, layers, layers // 2, layers - layers // 2)
    alone, whole, _ = of_ranks(name, layers, layers)
    assert sum(held) == alone[0] + table
    assert alone[0] == whole or find_model(name).mtp


def test_each_row_is_counted_as_often_as_a_stage_has_it() -> None:
    model = find_model("llama3-8b").with_layers(8)
    ledger = MemoryLedger(model, MemorySettings(1, 1024))
    contents = ledger.contents(stages_of(model, [3, 5]))
    counts = {row.kind: contents[:, number].tolist() for number, row in enumerate(ledger.rows)}
    assert counts["embedding"] == [1, 0]
    assert counts["head"] == [0, 1]
    assert sorted(np.sum(contents, axis=1).tolist())[-1] >= 5
    first, second = ledger.saved(contents).sum(axis=1)
    assert second > first
    assert (ledger.for_weight(contents) <= ledger.saved(contents).sum(axis=1)).all()
