"""The ring of torch's context parallelism, run as it is but for its kernels and messages, beside what it is costed at."""

from collections.abc import Iterator

import pytest

from ppsim.costs.cores import core_of
from ppsim.costs.execution_context import ExecutionContext
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.registry import find_model
from ppsim.parallel.layout import Layout

torch = pytest.importorskip("torch")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
ring = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")

LENGTH = 16
"""Tokens of a rank."""


class Kernels:
    """In place of attention's kernels: what they are called with, and zeros."""

    def __init__(self) -> None:
        self.flops = {True: 0.0, False: 0.0}  # a query and key, by whether they are masked

    def _count(self, query, key, is_causal) -> None:
        self.flops[is_causal] += query.shape[2] * key.shape[2] / (2 if is_causal else 1)

    def forward(self, query, key, value, is_causal=False, **words):
        self._count(query, key, is_causal)
        return torch.zeros_like(query), torch.zeros(query.shape[:3]), None

    def backward(self, query, key, value, out, logsumexp, is_causal, **words):
        self._count(query, key, is_causal)
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


@pytest.fixture(params=[(cp, rank) for cp in (2, 4, 8) for rank in range(cp)], ids=str)
def group(request) -> Iterator:
    """A rank of a group whose messages arrive at once and say nothing."""
    cp, rank = request.param
    torch.distributed.init_process_group("fake", rank=rank, world_size=cp, store=fake.FakeStore())
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_every_rank_has_as_much_attention_of_which_its_own_block_is_masked(group) -> None:
    """Half of cp blocks of queries and keys, and of them half a block masked, by default and in both passes."""
    cp, kernels = torch.distributed.get_world_size(), {"forward": Kernels(), "backward": Kernels()}
    query = torch.zeros(1, 2, LENGTH, 8, dtype=torch.bfloat16)
    out, sums, *_ = ring._templated_ring_attention(
        group, 2, kernels["forward"].forward, query, query, query, is_causal=True
    )
    ring._templated_ring_attention_backward(
        group, 2, kernels["backward"].backward, out, "grad_out", query, query, query, out, sums, True
    )
    for one in kernels.values():
        assert sum(one.flops.values()) == LENGTH**2 * cp / 2
        assert one.flops[True] == LENGTH**2 / 2
    (core,) = cores_of(cp)
    assert core.queries * core.keys / 2 == sum(kernels["forward"].flops.values())
    assert 1 - core.unmasked == kernels["forward"].flops[True] / sum(kernels["forward"].flops.values())


def cores_of(cp: int) -> set:
    """What is costed of a rank with as many tokens."""
    execution = Execution(context="all-gather", compile=True)
    place = ExecutionContext(cluster=load_cluster("grand-teton"), layout=Layout(cp=cp), execution=execution)
    seen = set()
    object.__setattr__(place.wide_times, "attention_s", lambda part, core: seen.add(core) or 0.0)
    core_of(find_model("llama3-8b").layers[0].attention, place, micro_batch=1, sequence_length=LENGTH * cp)
    return seen
