"""A compiled block's buffers by inductor's rules, and what torch's own fully_shard and pipeline stages hold."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ppsim.model.allocator import Allocator
from ppsim.model.batch import Batch
from ppsim.model.compiled_trace import CompiledTrace
from ppsim.model.fully_shard import LaunchSettings, MicrobatchPass, _Rank, replay_memory
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.registry import find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.model.sharded import settings

LLAMA = find_model("llama3-70b").with_layers(2)


def trace_of(*, operand_bytes: float = 1.0, is_async: bool = False, tp: int = 8, cp: int = 1) -> CompiledTrace:
    batch, cut = Batch(1, 4096 * cp, recompute="full"), ParallelSizes(tp=tp, cp=cp)
    return CompiledTrace(LLAMA.kinds[0], batch, cut, operand_bytes, Allocator(), is_async=is_async)


def test_a_buffer_takes_the_place_of_a_dead_one_of_its_size_and_type_which_waits_for_it() -> None:
    """torch/_inductor/codegen/wrapper.py, `AllocateLine.plan`; a result of a kernel of its own takes none."""
    trace = trace_of()
    steps, left = trace._plan("a=W -a b=O c=W")
    assert (steps, left) == ([("a", trace.whole), ("b", trace.own)], {"b": "b", "c": "a"})
    steps, _ = trace._plan("a=W -a c<W")
    assert steps == [("a", trace.whole), ("a", 0.0), ("c", trace.whole)]


def test_operands_of_8_bits_are_of_two_types_and_those_of_16_of_one() -> None:
    """float8_e4m3fn of weights and activations, float8_e5m2 of gradients."""
    for operand_bytes, number in ((1.0, 3), (2.0, 1)):
        trace = trace_of(operand_bytes=operand_bytes)
        assert len(trace._plan("a=P -a b=P5 -b")[0]) == (4 if operand_bytes == 1 else 2)
        assert sum(size > 0 for _, size in trace._plan("a=W -a b=P -b c=P5")[0]) == number


@pytest.mark.parametrize("operand_bytes", [1.0, 2.0])
@pytest.mark.parametrize(("tp", "is_async"), [(8, True), (8, False), (1, False)])
@pytest.mark.parametrize("cp", [1, 4])
def test_a_block_leaves_its_output_then_its_gradients(
    operand_bytes: float, tp: int, is_async: bool, cp: int
) -> None:
    trace = trace_of(operand_bytes=operand_bytes, is_async=is_async, tp=tp, cp=cp)
    output, kept = trace.forward(keeps=False)
    assert not kept
    assert trace.memory.allocated == trace.own
    of_input, of_weights = trace.backward_again(output)
    assert [block.size for block in of_weights] == [2 * size for size in reversed(trace.weights)]
    assert trace.memory.allocated == trace.own + 2 * sum(trace.weights)
    trace.memory.drop(of_input, *of_weights)
    assert trace.memory.allocated == 0


def test_partial_sums_of_three_products_and_their_pieces_are_there_at_a_blocks_end() -> None:
    """Beside the operands that weights' gradients wait for; the forward inside products has none of them twice."""
    peaks = {}
    for is_async in (True, False):
        trace = trace_of(is_async=is_async)
        trace.memory.drop(trace.forward(keeps=False)[0])
        forward = trace.memory.peak_allocated
        trace.backward_again(None)
        peaks[is_async] = forward / trace.whole, trace.memory.peak_allocated / trace.whole
    assert peaks[True][0] < 2 < 4 < peaks[False][0]  # gathered twice and reduced twice, each beside its copy
    assert min(backward for _, backward in peaks.values()) > 4


def test_without_tensor_parallelism_what_goes_up_waits_for_the_weights_gradients_behind_attentions_backward() -> (
    None
):
    """Gate, up and the gradient of what is activated, all columns of a token each, beside attention's own."""
    trace = trace_of(tp=1)
    steps = [name for name, _ in trace._plans[1][0]]
    assert max(steps.index(name) for name in ("dq", "dk", "dv")) < steps.index("w2")
    assert all(
        max(at for at, name in enumerate(steps) if name == one) > steps.index("wq") for one in ("gate", "up")
    )


def test_the_last_copy_of_gradients_stays_over_a_pipelines_next_step_and_over_no_others() -> None:
    """torch 2.6, stage.py, `run_post_backward`: no final callback comes behind it that would drop it."""
    passes = [MicrobatchPass(True, 0, 0), MicrobatchPass(False, 0, 0)]
    left = {}
    for is_pipelined in (True, False):
        made = settings(optimizer=Optimizer(zero_stage=1 if is_pipelined else 3))
        rank = _Rank(LLAMA, stages_of(LLAMA, [2]), made, LaunchSettings(is_pipelined=is_pipelined))
        rank.step(passes, 1)
        left[is_pipelined] = sum(block.size for block in rank.reduced.values())
    assert left == {True: 4 * sum(rank.trace.weights), False: 0}


def test_tensors_of_up_to_a_mebibyte_have_segments_of_their_own() -> None:
    """As many shards of a large model are: weights, two moments, and the roots of one; gradients are of one piece."""
    memory = Allocator(is_expandable=False)
    blocks = [memory.make(size * 2**20) for size in (1, 0.5, 0.25, 40)]
    assert memory.reserved == (2 + 40) * 2**20
    memory.drop(*blocks)
    memory.make(0.75 * 2**20)
    assert memory.reserved == (2 + 40) * 2**20


@pytest.fixture
def ranks() -> Iterator[None]:
    """Eight ranks of which one is here and none answers."""
    distributed = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=8)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("ranks")
def test_torchs_fully_shard_sums_whole_gradients_in_float32_where_they_are_not_reduced() -> None:
    """What `_accumulate` makes: of bf16 gradients 4 bytes each, whole, while gathered weights stay."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    layer = torch.nn.Linear(64, 128, bias=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(layer, mesh=init_device_mesh("cpu", (8,)), mp_policy=policy, reshard_after_forward=False)
    layer.set_requires_gradient_sync(False)
    layer.set_reshard_after_backward(False)
    for _ in range(2):
        layer(torch.ones(4, 64)).sum().backward()
    (held,) = fully_shard.state(layer)._fsdp_param_group.fsdp_params
    assert held.unsharded_accumulated_grad.nbytes == 4 * 64 * 128
    assert sum(one.nbytes for one in held.all_gather_outputs) == 2 * 64 * 128
    assert held._sharded_param_data.nbytes == 4 * 64 * 128 / 8


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("microbatches", [2, 5])
def test_torchs_last_pipeline_stage_receives_each_microbatch_in_a_buffer_of_its_own(microbatches: int) -> None:
    """As many bytes as the replay's, in which each is a rank's part of the hidden states."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining._utils import InferenceMode

    model = find_model("llama3-8b").with_layers(1)
    last = replace(stages_of(model, [1])[0], embedding=False)
    batch = Batch(1, 256, recompute="full")
    rank = _Rank(
        model, [last], settings(batch=batch, optimizer=Optimizer(zero_stage=1)), LaunchSettings(is_pipelined=True)
    )
    rank._make_buffers(microbatches)
    hidden = torch.empty(1, 256, model.hidden_size, dtype=torch.bfloat16, device="meta")
    stage = PipelineStage(torch.nn.Identity(), 7, 8, torch.device("cpu"), input_args=hidden, output_args=hidden)
    stage._inference_mode = InferenceMode.STATIC
    stage._prepare_forward_infra(microbatches, (), has_backward=True)
    received = [one.buffer for (one,) in stage.args_recv_info.values()]
    assert [block.size for block in rank.received] == [buffer.nbytes for buffer in received]
    assert len(received) == microbatches


def test_a_replay_of_tensor_parallel_ranks_reserves_more_where_products_are_not_pipelined() -> None:
    made = settings(cut=ParallelSizes(tp=8, dp=8), batch=Batch(4, 8192, recompute="full"))
    stages, passes = stages_of(LLAMA, [2]), [MicrobatchPass(True, 0, 0), MicrobatchPass(False, 0, 0)]
    plain, pipelined = (
        replay_memory(LLAMA, stages, made, passes, LaunchSettings(is_expandable=False, is_async=one)).reserved
        for one in (False, True)
    )
    assert plain > pipelined
