"""ZeRO 3 by lists of tensors: what of its copies and collectives nothing hides, tensor by tensor."""

from dataclasses import replace

import pytest

import ppsim
from ppsim import build
from ppsim.costs.job import Job
from ppsim.costs.listed import persistent_s
from ppsim.costs.of_job import assemble_job
from ppsim.costs.parts import Estimate
from ppsim.model.stages import stages_of

HOST_S = 1.0
"""So slow a host that nothing else counts."""


def listed(layers: int = 3, hidden: int = 4096, gpus: int = 16, **options: object) -> Job:
    """A GPT, each layer of which has four matrices and eight vectors; and one table, its positions, a last norm."""
    words = {"stack": "deepspeed-2021", "recompute": "none", "dtype": "float16", **options}
    made = ppsim.job(
        model="gpt", layers=layers, hidden=hidden, heads=32, cluster="dgx-a100", gpus=gpus, pp=1, global_batch=gpus,
        **words,
    )  # fmt: skip
    device = made.cluster.device
    slow = replace(device, efficiency=replace(device.efficiency, host_s=HOST_S))
    return replace(made, cluster=replace(made.cluster, device=slow))


def added(job: Job) -> Estimate:
    """What lists add to the costs of the only stage, beside what its slow host has to launch anyway."""
    return assemble_job(job, build("1f1b", pp=1, microbatches=1)).parts[0]


@pytest.mark.parametrize("gpus", [8, 16, 48])
@pytest.mark.parametrize("layers", [1, 5])
def test_the_host_copies_from_each_rank_for_each_matrix(gpus, layers):
    job = listed(layers, gpus=gpus)
    part, a_copy_a_rank = added(job), gpus * HOST_S
    forward = 4 * layers + 2 + 1  # embedding and positions; the table again as head
    assert part.forward.dp_s == pytest.approx(forward * a_copy_a_rank)
    assert part.backward_input.dp_s == pytest.approx((4 * layers + 1) * a_copy_a_rank)
    of_each_parameter = 12 * layers + 2 + 2  # tied, the table is reduced once; the last norm has two vectors
    assert part.backward_weight.dp_s == pytest.approx(of_each_parameter * a_copy_a_rank)


def test_vectors_are_gathered_behind_the_optimizer():
    job = listed(layers=5, gpus=16)
    kept_s = (8 * 5 + 2) * 16 * HOST_S
    assert persistent_s(job, stages_of(job.model, [5])) == pytest.approx(kept_s)
    rest = [
        assemble_job(one, build("1f1b", pp=1, microbatches=1)).around.rest_s
        for one in (job, replace(job, rest_s=3.0))
    ]
    assert rest == pytest.approx([kept_s, kept_s + 3.0])


def test_what_recomputation_leaves_is_not_gathered_again():
    """Of h 4096 nothing is used between the last matrix of a layer and its backward, behind others 10^8 or more
    are; of h 1024 all four are there."""
    wide, narrow = listed(2, 4096, recompute="full"), listed(2, 1024, recompute="full")
    assert added(wide).backward_input.dp_s == pytest.approx((1 + 8 + 6) * 16 * HOST_S)
    assert added(narrow).backward_input.dp_s == pytest.approx((1 + 8) * 16 * HOST_S)


def test_a_fast_host_waits_for_network_and_copies_of_the_device():
    """Gathered bytes are written by zeros, and read and written once more; divided and copied are those reduced."""
    slow = listed(layers=1, gpus=16)
    job = replace(slow, cluster=ppsim.job(model="gpt2", cluster="dgx-a100", gpus=16, pp=1).cluster)
    part, device = added(job), job.cluster.device
    own = added(
        replace(job, listed_collectives=False, overlap=True, optimizer=replace(job.optimizer, zero_stage=1))
    )
    sizes = [3 * 4096**2, 4096**2, 4 * 4096**2, 4 * 4096**2, *[50304 * 4096] * 2, 2048 * 4096]
    expected = sum(
        job.place.seconds("all-gather", 2.0 * size, "dp-cp")
        + 3 * 2.0 * size / (device.memory_bytes_per_s * device.efficiency.memory)
        + 16 * device.efficiency.kernel_s
        for size in sizes
    )
    assert part.forward.dp_s == pytest.approx(expected, rel=0.01)
    assert part.forward.total_s - own.forward.total_s == pytest.approx(part.forward.dp_s)


def test_lists_are_zero_3s_only_and_one_rank_has_none():
    assert listed().has_lists
    assert not listed(listed_collectives=False).has_lists
    assert not listed(zero=1).has_lists
    assert not listed(gpus=1).has_lists


@pytest.mark.parametrize(("zero", "dtype", "bytes_a_parameter"), [
    (1, "bfloat16", 2 + 4 + 4), (0, "float16", (2 + 2 + 2) * 3 / 4), (3, "bfloat16", 2 + 4), (2, "float16", 2 + 2),
])  # fmt: skip
def test_gradients_move_once_more_where_products_do_not_add_them(zero, dtype, bytes_a_parameter):
    """A sum of their own type is the first of four microbatches' gradients; from ZeRO 2 on they are copied."""
    job = ppsim.job(
        model="gpt2", cluster="dgx-a100", gpus=2, pp=1, global_batch=8, dtype=dtype, zero=zero, overlap_dp=False,
    )  # fmt: skip
    fused, apart = (
        assemble_job(replace(job, gradient_accumulation_fusion=one), build("1f1b", pp=1, microbatches=4)).parts[0]
        for one in (True, False)
    )
    device = job.cluster.device
    rate = device.memory_bytes_per_s * device.efficiency.memory
    expected = job.model.parameters * bytes_a_parameter / rate
    assert apart.backward_weight.total_s - fused.backward_weight.total_s == pytest.approx(expected, rel=0.01)
    assert apart.forward == fused.forward
    assert apart.backward_input == fused.backward_input
