"""Whole tensors of ranks without Megatron-LM's layer-wise layout."""

from collections import Counter
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import held_parameters, padded_vocabulary, tables_of
from ppsim.model.ping_pong import largest_state, trained_tensors
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.registry import find_model
from ppsim.model.stage_rows import rows_of
from ppsim.parallel.sizes import ParallelSizes

ADAM = Optimizer(layer_wise=True, use_layer_wise_param_layout=False)


def test_ten_tensors_go_to_four_ranks_and_back() -> None:
    """Megatron-LM's example: [[p0, p7, p8], [p1, p6, p9], [p2, p5], [p3, p4]]; 12 bytes per parameter."""
    sizes = Counter({(number, False): 1 for number in range(1, 11)})
    assert largest_state(sizes, ADAM, 4) == 12 * (2 + 7 + 10)
    assert largest_state(sizes, ADAM, 1) == 12 * 55


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b"])
def test_the_tensors_are_all_parameters(name: str) -> None:
    model, cut = find_model(name), ParallelSizes()
    stages = stages_of(model, [len(model.layers)])
    held = held_parameters(model, stages, cut, vocab_multiple=128)
    tables = tables_of(model, [(stage.embedding, stage.head, bool(stage.mtp)) for stage in stages])
    rows = [(row, 1) for row in rows_of(model, stages[0], "none")]
    table_size = model.table(padded_vocabulary(model.vocab_size, tp=1, multiple=128))
    dense, expert = trained_tensors(rows, held, cut, tables=sum(tables), table_size=table_size)
    assert dense[table_size, False] == sum(tables)
    for found, number in ((dense, held.trained), (expert, held.trained_expert)):
        assert sum(size * times for (size, _), times in found.items()) == number


def test_one_rank_has_the_embedding_and_the_head_without_the_layout() -> None:
    """Llama 3 8B: both tables, 128256 · 4096, are the largest tensors, with 12 bytes per parameter."""
    words: dict[str, Any] = {"model": "llama3-8b", "gpus": 64, "pp": 1, "stack": "plain", "optimizer": "muon"}
    even, whole = (
        ppsim.project(**words, layer_wise=True, use_layer_wise_param_layout=layout).peak_components_bytes
        for layout in (True, False)
    )
    table = 12 * 128256 * 4096
    assert even["optimizer state"] < table < whole["optimizer state"] < 1.2 * table
    assert {**whole, "optimizer state": 0} == {**even, "optimizer state": 0}


def test_the_layout_belongs_to_a_layer_wise_optimizer() -> None:
    with pytest.raises(ConfigError, match="--no-use-layer-wise-param-layout goes with --layer-wise"):
        Optimizer(use_layer_wise_param_layout=False)
