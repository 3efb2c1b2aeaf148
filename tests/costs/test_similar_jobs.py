"""The features by which jobs are similar are their own sizes and options, each in its place."""

from dataclasses import replace

import pytest

from ppsim.costs.similar_jobs import features_of, scale_of
from ppsim.machine.cluster import Constants
from ppsim.machine.job_similarity import JobFeatures, MeasuredJob
from tests.projection.jobs import job

FEATURES = JobFeatures(
    model="mixtral-8x7b", dtype="float8", tp=2, cp=4, ep=8, micro_batch=3, seq_len=4096, recompute="mlp_act+moe",
    pp=2, gpus=2 * 4 * 2 * 2,
)  # fmt: skip


def test_features_are_those_of_the_layout_and_the_execution() -> None:
    made = job("mixtral-8x7b", tp=2, cp=4, ep=8, dp=2, pp=2, micro_batch=3, global_batch=12, dtype="float8")
    assert features_of(made) == replace(FEATURES, recompute="none")
    graphs = replace(made, execution=replace(made.execution, cuda_graphs="attn", recompute="moe"))
    found = features_of(graphs)
    assert (found.cuda_graphs, found.recompute) == ("attn", "moe")


@pytest.mark.parametrize(
    ("name", "model"),
    [("gpt", "gpt4096"), ("a/b/own model", "own-model"), ("mine.json", "mine.json"), ("llama3-8b", "llama3-8b")],
)
def test_a_model_is_known_by_the_end_of_its_name_and_by_its_width_if_it_has_none(name: str, model: str) -> None:
    assert features_of(replace(job(), model_name=name)).model == model


def test_a_job_like_a_measured_one_takes_its_time() -> None:
    usual = job()
    run = MeasuredJob(**vars(features_of(usual)), times=1.5, sigma=1e-6, spread=0.5)
    cluster = replace(usual.cluster, constants=Constants(runs=(run,)))
    assert scale_of(replace(usual, cluster=cluster)) == pytest.approx(1.5, rel=1e-6)
    assert scale_of(usual) == 1.0
