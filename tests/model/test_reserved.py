"""What torch's allocator reserves: its rules one by one, and the tensors of a rank under fully_shard."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.model.activations import layer_activations, unused_output_bytes
from ppsim.model.allocator import Allocator
from ppsim.model.batch import Batch, KernelChoice
from ppsim.model.fully_shard import LaunchSettings, MicrobatchPass, replay_memory
from ppsim.model.layer_trace import LayerTrace
from ppsim.model.narrow_weights import NarrowWeights
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.rank_memory import MemorySettings, rank_memory
from ppsim.model.registry import find_model, gpt
from ppsim.parallel.sizes import ParallelSizes
from tests.model.sharded import settings

MIB = 2**20
ONE_STEP = [MicrobatchPass(True, 0, 0), MicrobatchPass(False, 0, 0)]
LLAMA = find_model("llama3-8b").with_layers(4)


def reserved(made: MemorySettings, model=LLAMA, passes=ONE_STEP, **words) -> int:
    stages = stages_of(model, [len(model.layers)])
    return replay_memory(model, stages, made, passes, LaunchSettings(**words)).reserved


def test_a_tensor_takes_the_smallest_free_block_that_holds_it_and_leaves_the_rest() -> None:
    memory = Allocator()
    blocks = [memory.make(size * MIB) for size in (40, 2, 20, 2, 100)]
    memory.drop(blocks[0], blocks[2])
    taken = memory.make(17 * MIB)
    assert taken.begin == blocks[2].begin
    assert memory.make(35 * MIB).begin == blocks[0].begin


def test_free_neighbours_become_one_and_what_is_free_at_the_end_grows() -> None:
    memory = Allocator()
    first, second, last = (memory.make(20 * MIB) for _ in range(3))
    memory.drop(first, second)
    assert memory.make(40 * MIB).begin == first.begin
    memory.drop(last)
    assert memory.make(60 * MIB).begin == last.begin
    assert memory.reserved == 100 * MIB


def test_a_stream_takes_no_block_of_another() -> None:
    memory = Allocator()
    memory.drop(memory.make(40 * MIB, "reductions"))
    memory.make(40 * MIB)
    assert memory.reserved == 80 * MIB


def test_segments_that_do_not_grow_are_rounded_apart_and_kept_for_what_fits_in_one() -> None:
    """CUDACachingAllocator.cpp, `get_allocation_size`: 20 MiB for a request below 10, else multiples of 2."""
    memory = Allocator(is_expandable=False)
    small, odd, first, second = (memory.make(size * MIB) for size in (3, 31, 40, 40))
    assert memory.reserved == (20 + 32 + 40 + 40) * MIB
    assert memory.make(17 * MIB).begin == small.begin + small.size  # what the first one left of its 20
    memory.drop(first, second)
    assert memory.make(80 * MIB).begin not in (first.begin, odd.begin + odd.size)
    assert memory.reserved == (20 + 32 + 40 + 40 + 80) * MIB


@given(st.lists(st.tuples(st.booleans(), st.integers(2, 300)), max_size=60), st.booleans())
def test_held_blocks_never_overlap_and_reserved_never_falls_below_them(moves, is_expandable) -> None:
    memory, held, before = Allocator(is_expandable=is_expandable), [], 0
    for makes, size in moves:
        if makes or not held:
            held.append(memory.make(size * MIB))
        else:
            memory.drop(held.pop(size % len(held)))
        ordered = sorted((block.begin, block.begin + block.size) for block in held)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ordered))
        assert memory.allocated == sum(block.size for block in held) <= memory.reserved
        assert memory.reserved >= before
        before = memory.reserved


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_layer_leaves_nothing_behind(tp: int, keeps: bool, is_async: bool) -> None:
    memory = Allocator()
    trace = LayerTrace(
        LLAMA.kinds[0], Batch(16, 8192), ParallelSizes(tp=tp), 1.0, memory, is_async=is_async and tp > 1
    )
    output, kept = trace.forward(keeps=keeps)
    assert memory.allocated == trace.own + sum(block.size for block in kept.values())
    if keeps:
        gradient, of_weights = trace.backward(memory.make(trace.own), kept)
        assert sum(block.size for block in of_weights) == 2 * sum(trace.weights)
        memory.drop(output, gradient, *of_weights)
        assert memory.allocated == 0


def test_a_pipeline_sums_whole_gradients_and_keeps_weights_gathered() -> None:
    """Of a stage's weights 4 bytes of gradients and 2 gathered beside the shards, where layers alone have neither."""
    one = settings()
    held = rank_memory(LLAMA, stages_of(LLAMA, [4]), one, in_flight=[0])
    whole = rank_memory(
        LLAMA, stages_of(LLAMA, [4]), replace(one, optimizer=Optimizer(zero_stage=1)), in_flight=[0]
    )
    weights = LLAMA.parameters
    assert held.static == pytest.approx(16 * weights / 8, rel=1e-6)
    assert whole.static == pytest.approx(16 * weights / 8 + 6 * weights, rel=1e-6)
    passes = [
        MicrobatchPass(True, 0, 0),
        MicrobatchPass(True, 0, 1),
        MicrobatchPass(False, 0, 0),
        MicrobatchPass(False, 0, 1),
    ]
    small = settings(batch=Batch(1, 128, recompute="full"))
    more = reserved(small, passes=passes, is_pipelined=True) - reserved(small)
    assert more > 4 * weights


def test_weights_are_gathered_in_8_bits_only_among_dp_ranks() -> None:
    in_8_bits = settings(narrow=NarrowWeights(1.0, 2, is_primary=True), optimizer=Optimizer(zero_stage=1))
    among_cp = replace(in_8_bits, cut=ParallelSizes(cp=8))
    dp, cp = (
        rank_memory(LLAMA, stages_of(LLAMA, [4]), one, in_flight=[0]).components["parameters"]
        for one in (in_8_bits, among_cp)
    )
    assert cp - dp == pytest.approx(LLAMA.parameters, rel=1e-6)


def test_products_that_gather_and_scatter_make_one_copy_less_of_both() -> None:
    """Beside what comes of them: of operands the raw gather, of partial sums the pieces that are reduced."""
    peaks = {}
    for is_async in (False, True):
        memory = Allocator()
        trace = LayerTrace(LLAMA.kinds[0], Batch(16, 8192), ParallelSizes(tp=4), 2.0, memory, is_async=is_async)
        memory.drop(trace._into_product(trace.whole))
        gathered, partial = memory.peak_allocated, memory.make(trace.whole)
        memory.drop(trace._out_of_product(partial))
        peaks[is_async] = gathered, memory.peak_allocated, memory.allocated
    whole = trace.whole
    assert peaks == {False: (2 * whole, 2 * whole, 0), True: (whole, whole + trace.own, 0)}


def test_products_in_8_bits_copy_their_operands_in_the_backward() -> None:
    """torchao, float8_ops.py, `preprocess_addmm`: of the last weight its gradient's tokens and its input's."""
    peaks = {}
    for operand_bytes in (1.0, 2.0):
        memory = Allocator()
        trace = LayerTrace(LLAMA.kinds[0], Batch(1, 8192), ParallelSizes(), operand_bytes, memory)
        before = memory.allocated
        trace._of_weight([])
        peaks[operand_bytes] = memory.peak_allocated - before - 2 * trace.weights[-1]
    assert peaks == {1.0: 8192 * (4096 + 14336), 2.0: 0}


def test_the_last_rank_joins_the_logits_of_all_microbatches() -> None:
    """As many bytes as all of them where nothing else is as large: of short sequences in a large vocabulary."""
    small = settings(batch=Batch(1, 1024, recompute="full"), optimizer=Optimizer(zero_stage=1))
    model = replace(LLAMA, layers=LLAMA.layers[:1], vocab_size=400 * LLAMA.vocab_size)
    passes = [MicrobatchPass(forward, 0, one) for one in range(2) for forward in (True, False)]
    plain = replay_memory(model, stages_of(model, [1]), small, passes, LaunchSettings())
    joined = replay_memory(model, stages_of(model, [1]), small, passes, LaunchSettings(is_pipelined=True))
    assert joined.reserved - plain.reserved > 2 * 2 * 1024 * model.vocab_size


def test_a_fused_loss_reserves_less_by_its_copies_in_32_bits() -> None:
    logits = 8192 * LLAMA.vocab_size
    fused = reserved(settings(kernels=KernelChoice(cross_entropy="fused")))
    assert reserved(settings()) - fused >= 4 * logits


def test_a_chunked_loss_has_the_logits_of_an_eighth_of_the_tokens() -> None:
    """TorchTitan 0.3, components/loss.py, ChunkedLossWrapper: num_chunks is 8; gradients are summed in float32."""
    logits = 8192 * LLAMA.vocab_size
    whole, chunked = (reserved(settings(kernels=KernelChoice(cross_entropy=one))) for one in ("unfused", "chunked"))
    assert 9 * logits < whole - chunked <= 12 * logits  # without its logits, a layer's backward has the peak


def test_torchs_compiled_loss_has_no_float32_copy_of_the_logits() -> None:
    """Reserved by Llama 3.1 8B in float8 on 32 and 64 H200 (TorchTitan, benchmarks, Trainy, June 2025)."""
    words = {
        "model": "llama3-8b",
        "cluster": "dgx-h200",
        "pp": 1,
        "seq_len": 8192,
        "micro_batch": 2,
        "compile": True,
    }
    words |= {"dtype": "float8", "recompute": "selective-op", "stack": "torchtitan", "cross_entropy": "compiled"}
    for gpus, measured_gib in ((32, 47.96), (64, 46.97)):
        [reserved_bytes] = ppsim.project(**words, gpus=gpus, global_batch=2 * gpus).reserved_bytes
        assert reserved_bytes / 2**30 == pytest.approx(measured_gib, rel=0.01)


@pytest.mark.parametrize(
    ("model", "micro_batch", "measured_gib"), [("llama3-8b", 32, 174.49), ("qwen3-8b", 16, 112.88)]
)
def test_memory_of_torchtitan_0_3_is_that_of_its_chunked_loss(
    model: str, micro_batch: int, measured_gib: float
) -> None:
    """torchtitan/components/quantization/nvfp4.md at b5bcd76: 4 GPUs with Blackwell, bfloat16, sequences of 2048."""
    words = {"model": model, "cluster": "gb200-nvl72", "gpus": 4, "pp": 1, "seq_len": 2048, "compile": True}
    words |= {"recompute": "selective-op", "stack": "torchtitan"}
    made = ppsim.project(**words, micro_batch=micro_batch, global_batch=4 * micro_batch)
    assert made.reserved_bytes[0] / 2**30 == pytest.approx(measured_gib, rel=0.07)


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(ConfigError, match="for layers of attention and SwiGLU only"):
        reserved(settings(), model=gpt(2, 256, 4))
    with pytest.raises(ConfigError, match="for recompute none, selective-op, full: got core_attn"):
        reserved(settings(batch=Batch(1, 8192, recompute="core_attn")))
    made = ppsim.project(model="llama3-8b", gpus=8, pp=1)
    assert made.reserved_bytes is None


def test_a_projection_reserves_at_least_what_its_tensors_have() -> None:
    words = {"model": "llama3-8b", "gpus": 8, "stack": "torchtitan", "recompute": "full", "micro_batch": 1}
    for pp in (1, 2):
        made = ppsim.project(**words, pp=pp)
        assert len(made.reserved_bytes) == pp
        assert max(made.reserved_bytes) > made.timeline.memory.peak_bytes.max() > 0
        assert made.to_json()["reserved_bytes"] == made.reserved_bytes


def test_microbatches_without_a_pipeline_add_their_gradients_into_the_same_shards() -> None:
    two, four = (
        reserved(
            settings(),
            passes=[MicrobatchPass(forward, 0, one) for one in range(number) for forward in (True, False)],
        )
        for number in (2, 4)
    )
    assert reserved(settings()) < two == four


@pytest.mark.parametrize(("tp", "held"), [(1, 1.0), (8, 1 + 1 / 8)])
def test_an_eager_block_holds_what_its_last_product_gives_though_no_backward_needs_it(tp: int, held: float) -> None:
    """The seventh product of a Llama's layer, T·h·e, and what tp ranks scatter of it; by formula and in the replay."""
    layer, batch, cut = LLAMA.kinds[0], Batch(1, 8192, recompute="selective-op"), ParallelSizes(tp=tp)
    eager, compiled = KernelChoice(eager=True), KernelChoice()
    more = 8192 * LLAMA.hidden_size * 2 * held
    kept = [sum(layer_activations(layer, batch, cut, kernels).values()) for kernels in (eager, compiled)]
    assert kept[0] - kept[1] == sum(unused_output_bytes(layer, batch, cut, eager)) == more
    sizes = []
    for kernels in (eager, compiled):
        memory = Allocator()
        trace = LayerTrace(layer, batch, cut, 2.0, memory, held=unused_output_bytes(layer, batch, cut, kernels))
        output, kept_blocks = trace.forward(keeps=True)
        sizes.append(memory.allocated)
        gradient, of_weights = trace.backward(memory.make(trace.own), kept_blocks)
        memory.drop(output, gradient, *of_weights)
        assert memory.allocated == 0
    assert sizes[0] - sizes[1] == more
