"""Messages between stages of a job: who sends which part of them."""

import pytest

import ppsim
from ppsim.costs.job import Job
from ppsim.costs.of_job import assemble_job
from ppsim.costs.place import Execution
from ppsim.layout.layout import layout_on
from ppsim.machine import collectives
from ppsim.machine.files import load_cluster
from ppsim.model.names import find_model


def hop_s(*, scatter_gather: bool, sequence_parallel: bool) -> float:
    job = Job(
        model=find_model("gpt3-175b"), model_name="gpt3-175b", cluster=load_cluster("dgx-a100"),
        layout=layout_on(64, tp=8, pp=8), global_batch=8, scatter_gather=scatter_gather,
        execution=Execution(dtype="float16", sequence_parallel=sequence_parallel),
    )  # fmt: skip
    return assemble_job(job, ppsim.build("1f1b", pp=8, microbatches=8)).costs.transfer_s[0]


def test_scatter_gather_sends_a_part_a_rank_and_gathers_it_inside_the_node() -> None:
    """2·b·s·h / tp over the network, then an all-gather of 2·b·s·h (Narayanan et al. 2021, §4.1)."""
    cluster, whole = load_cluster("dgx-a100"), 2 * 2048 * 12288
    link = cluster.tiers[1].link
    parted = hop_s(scatter_gather=True, sequence_parallel=False)
    assert hop_s(scatter_gather=False, sequence_parallel=False) == collectives.point_to_point_s(whole, link)
    gathered = parted - collectives.point_to_point_s(whole / 8, link)
    assert gathered == pytest.approx(whole * 7 / 8 / cluster.tiers[0].link.achieved_bytes_per_s, rel=0.25)


def test_with_sequence_parallelism_there_is_nothing_to_gather() -> None:
    assert hop_s(scatter_gather=True, sequence_parallel=True) == hop_s(scatter_gather=False, sequence_parallel=True)
