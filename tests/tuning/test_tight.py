"""Configurations that fit tightly rank after all that fit, and are marked."""

from dataclasses import replace

import ppsim
from ppsim.tuning.search import TuneResult, tune
from ppsim.tuning.space import SearchProblem, space_for


def _tuned(memory_gib: float, top: int) -> TuneResult:
    job = ppsim.job(model="gpt2", stack="plain", gpus=2, global_batch=16, cuda_graphs="attention")
    device = replace(job.cluster.device, memory_bytes=int(memory_gib * 2**30))
    problem = SearchProblem(job=replace(job, cluster=replace(job.cluster, device=device)), num_gpus=2)
    space = space_for(problem, tp=[1], pp=[1, 2], vpp=[1], schedule=["1f1b"], recompute=["none"], zero=[1])
    return tune(problem, space, top=top)


def test_the_ranking_is_of_fits_then_of_fits_tightly_as_in_an_exhaustive_search() -> None:
    whole = _tuned(6.0, 1000).best
    assert {one.verdict for one in whole} == {"fits", "fits tightly"}
    assert whole == sorted(whole, key=lambda one: (one.verdict != "fits", one.iteration_time_s))
    assert whole[0].iteration_time_s > min(one.iteration_time_s for one in whole)  # the fastest fits tightly
    for top in (1, 3, 5):
        assert _tuned(6.0, top).best == whole[:top]


def test_the_table_marks_what_fits_tightly_and_says_why() -> None:
    found = _tuned(6.0, 1000)
    marks = [line.endswith("GiB~") for line in str(found).splitlines() if line.endswith(("GiB", "GiB~"))]
    assert marks == [one.verdict == "fits tightly" for one in found.best[:10]]
    first, second = [line for line in str(_tuned(6.0, 1)).splitlines() if line.endswith(("GiB", "GiB~"))]
    assert (first[-1], second[-1]) == ("B", "~")  # the best, and the fastest of all
    said = " ".join(str(found).split())
    assert "~ fits tightly: CUDA graphs can fragment memory, and more than 4.50 of 6.00 GiB is in use; " in said
    assert "expandable_segments:True" in said
    assert [row["verdict"] for row in found.to_json()["best"]] == [one.verdict for one in found.best]
