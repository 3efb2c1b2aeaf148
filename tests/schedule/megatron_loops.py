"""What Megatron-core's own pipeline loops do, in order: python megatron_loops.py, with a list as JSON on stdin.

A case is [ranks, stages per rank, microbatches, overlap]. The real loops run on the CPU, one rank at a time, in a group
that only counts its ranks; prints, for each case and rank, "F" and "B" where a pass runs, and for each call of the
communicator what it sends and receives and whether it returns when that is done.
"""

import json
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

LOG = []


class Passes(torch.autograd.Function):
    """The identity; writes down when its backward runs."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        LOG.append("B")
        return gradient


class Chunk(torch.nn.Module):
    """A stage with one weight."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.given = None

    def set_input_tensor(self, tensors):
        self.given = tensors[0] if isinstance(tensors, list) else tensors


class Communicator(p2p_communication.P2PCommunicator):
    """Writes down what would be communicated."""

    def _communicate(
        self, *, tensor_send_next, tensor_send_prev, recv_prev, recv_next, tensor_shape, wait_on_reqs=True
    ):
        names = {
            "send_next": tensor_send_next is not None, "send_prev": tensor_send_prev is not None,
            "recv_prev": recv_prev, "recv_next": recv_next,
        }  # fmt: skip
        done = sorted(name for name, is_done in names.items() if is_done)
        if done:
            LOG.append({"does": done, "waits": wait_on_reqs})
        handle = SimpleNamespace(wait=lambda: None)
        made = [torch.zeros(tensor_shape, requires_grad=True) if one else None for one in (recv_prev, recv_next)]
        return *made, None if wait_on_reqs else dict.fromkeys(done, handle)


def step(_, chunk, is_last):
    LOG.append("F")
    given = torch.zeros(1, 1, 1) if chunk.given is None else chunk.given
    output = Passes.apply(given * chunk.weight)
    return output, lambda result: (result.sum(), {})


def run(ranks, chunks, microbatches, overlap, rank):
    """The log of one rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    alone = dist.new_group([rank])
    config = TransformerConfig(
        num_layers=ranks * chunks, hidden_size=1, num_attention_heads=1,
        pipeline_model_parallel_size=ranks, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_dtype=torch.float32, overlap_p2p_comm=overlap, batch_p2p_comm=not overlap,
        deallocate_pipeline_outputs=False,
    )  # fmt: skip
    groups = SimpleNamespace(
        tp=alone, cp=alone, embd=None, pos_embd=None, pp=dist.group.WORLD, dp_cp=alone, tp_dp_cp=alone
    )
    model = [Chunk(config) for _ in range(chunks)]
    interleaved = chunks > 1
    loop = (
        schedules.forward_backward_pipelining_with_interleaving
        if interleaved
        else schedules.forward_backward_pipelining_without_interleaving
    )
    LOG.clear()
    loop(
        forward_step_func=partial(step, is_last=rank == ranks - 1),
        data_iterator=[None] * chunks if interleaved else None, model=model if interleaved else model[0],
        num_microbatches=microbatches, seq_length=1, micro_batch_size=1,
        p2p_communicator=Communicator(dist.group.WORLD, config), pg_collection=groups,
    )  # fmt: skip
    dist.destroy_process_group()
    return list(LOG)


def on_the_cpu(make):
    """Megatron counts tokens on the device that it takes for granted."""
    return lambda *sizes, **options: make(*sizes, **{k: v for k, v in options.items() if k != "device"})


def main():
    warnings.filterwarnings("ignore")
    torch.zeros, torch.tensor = on_the_cpu(torch.zeros), on_the_cpu(torch.tensor)
    cases = json.load(sys.stdin)
    print(json.dumps([[run(*case, rank) for rank in range(case[0])] for case in cases]))


if __name__ == "__main__":
    main()
