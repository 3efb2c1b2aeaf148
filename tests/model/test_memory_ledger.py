"""Sums over the rows of stages and ranks, and parameters of ranks that need the embedding's table more than once."""

import numpy as np
import pytest

from ppsim.model import memory_ledger as memory_ledger_module
from ppsim.model.execution import Execution
from ppsim.model.memory_ledger import MemoryLedger
from ppsim.model.memory_rows import LAYER_GRADIENT
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.registry import find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults


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


def test_streams_from_which_others_are_mixed_again_are_kept_once_a_stage() -> None:
    """Two states of each layer, and the four streams of the first."""
    model, hidden = find_model("deepseek-v4-flash"), 4096 * 1024 * 2
    ledger = MemoryLedger(model, MemorySettings(1, 1024, execution=Execution(recompute="mhc")))
    contents = ledger.contents(stages_of(model, [22, 21])[:1])
    streams = ledger.columns.components.index("residual streams")
    assert ledger.saved(contents)[0, streams] == (22 * 2 + 4) * hidden


def test_a_backward_needs_its_largest_moment_among_the_rows_that_the_rank_has() -> None:
    model = find_model("llama3-8b").with_layers(4)
    ledger = MemoryLedger(model, MemorySettings(1, 1024))
    contents = ledger.contents(stages_of(model, [2, 2]))
    first, last = (ledger.transients(contents[[stage]]) for stage in (0, 1))
    assert first == {LAYER_GRADIENT: first[LAYER_GRADIENT], "gradient between stages": 4096 * 1024 * 2}
    assert (last["logits"], last["gradient between stages"]) == (1024 * 128256 * 2, 4096 * 1024 * 2)
    assert LAYER_GRADIENT not in last
    assert ledger.transients(np.zeros((1, len(ledger.rows)))) == {}


@pytest.mark.parametrize(
    ("zero", "sharded", "gradients", "gathered"),
    [(1, False, None, None), (2, False, 1, None), (3, False, 1, 2), (3, True, 1, 2)],
)
def test_zero_reduces_one_layer_and_gathers_two(zero: int, sharded: bool, gradients: int, gathered: int) -> None:
    """FSDP2 also keeps what is outside the layers gathered: both tables and the last norm."""
    model = find_model("llama3-8b").with_layers(4)
    optimizer = Optimizer(zero_stage=zero)
    settings = MemorySettings(1, 1024, ParallelSizes(dp=8), optimizer=optimizer, fully_shard=sharded)
    ledger = MemoryLedger(model, settings)
    contents = ledger.contents(stages_of(model, [4]))
    layer = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096
    found = ledger.peak(contents, [0])
    outside = 2 * 128256 * 4096 + 4096 if sharded else 0
    assert found.get("gradient buckets") == (gradients and layer * 4)
    assert found.get("gathered parameters") == (gathered and (gathered * layer + outside) * 2)


def test_the_update_exceeds_the_bytes_at_rest_by_copies_of_gradients_beyond_a_backwards() -> None:
    """16-bit gradients are copied to float32 for the update, which has no transients and no activations."""
    model = find_model("llama3-8b").with_layers(4)
    for optimizer, copied in ((Optimizer(), 0), (Optimizer(grad_reduce_in_bf16=True), 4)):
        ledger = MemoryLedger(model, MemorySettings(1, 1024, optimizer=optimizer, allocator_slack=1.0))
        contents = ledger.contents(stages_of(model, [4]))
        idle, more = ledger.at_rest(contents)
        update, empty = ledger.update(contents), ledger.peak(contents, [0])
        assert update.get("float32 gradients", 0) == copied * model.parameters
        assert (idle, idle + more) == (sum(empty.values()), max(idle, sum(update.values())))
        assert more == 0 or copied
        assert ledger.at_rest(contents) == (idle, more)


def test_ranks_that_own_whole_tensors_hold_more_than_an_equal_share() -> None:
    """Muon's moment is 4 bytes and Adam's, of both tables, 8; each beside a main weight of 4."""
    model = find_model("llama3-8b").with_layers(4)
    optimizer = Optimizer(name="muon", layer_wise=True, use_layer_wise_param_layout=False)
    ledger = MemoryLedger(model, MemorySettings(1, 1024, ParallelSizes(dp=8), optimizer=optimizer))
    table, whole = 128256 * 4096, model.parameters
    state = ledger.update(ledger.contents(stages_of(model, [4])))["optimizer state"]
    assert state >= 12 * table > (8 * whole + 4 * 2 * table) / 8


def test_what_is_left_out_in_model_memory_ledger_has_these_values() -> None:
    assert number_defaults(memory_ledger_module) == {
        "MemoryLedger._tables": {"with_mtp": True},
    }  # fmt: skip
