"""Messages between stages of a job: who sends which part of them."""

import pytest

import ppsim
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.job import Job
from ppsim.machine import collectives
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.registry import find_model
from ppsim.parallel.layout import layout_on


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


def test_behind_layers_for_a_further_token_the_states_of_both_are_sent_and_gathered() -> None:
    """The layer for a further token is on the stage before the head: two messages and two gathers in its hop."""
    model = find_model("deepseek-v3").with_layers(6)
    sizes = {"model_name": "deepseek-v3", "cluster": load_cluster("dgx-h100"), "global_batch": 8}
    job = Job(model=model, layout=layout_on(32, tp=8, pp=4), sequence_length=4096, scatter_gather=True, **sizes)
    hops = assemble_job(
        job, ppsim.build("1f1b", pp=4, microbatches=8), split=["Ett", "tt", "ttm", "L"]
    ).costs.transfer_s
    assert hops[2] > hops[1] > 0
    link, launch_s = job.cluster.tiers[1].link, collectives.point_to_point_s(0, job.cluster.tiers[1].link)
    gathered_s = job.place.seconds("all-gather", 2.0 * 4096 * 7168, "tp")
    message_s = 2.0 * 4096 * 7168 / 8 / link.achieved_bytes_per_s
    assert hops[1] == pytest.approx(launch_s + message_s + gathered_s)
    assert hops[2] == pytest.approx(launch_s + 2 * (message_s + gathered_s))
