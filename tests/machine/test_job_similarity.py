"""Covariances of jobs and corrections by their runs, by hand."""

from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import pytest

from ppsim.machine.job_similarity import USUAL, JobFeatures, MeasuredJob, correction_of, job_covariance

FEATURES: dict[str, Any] = {
    "model": "llama3-8b", "dtype": "bfloat16", "tp": 2, "cp": 1, "ep": 1, "micro_batch": 1, "seq_len": 4096, "pp": 2,
    "gpus": 8,
}  # fmt: skip
JOB = JobFeatures(**FEATURES)
OF_JOB = 1 - 0.30**2


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 1.0),
        ({"tp": 4}, exp(-1 / 2 / 0.61**2)),
        ({"tp": 1, "micro_batch": 4}, exp(-(1 + 4) / 2 / 0.61**2)),
        ({"recompute": "full"}, exp(-1 / 2 / 0.61**2)),
        ({"recompute": "full", "cuda_graphs": "attn"}, exp(-2 / 2 / 0.61**2)),
        ({"pp": 4, "gpus": 32}, exp(-(1 + 4) / 2 / 6.6**2)),
        ({"dtype": "fp8"}, 0.58),
        ({"dtype": "fp8", "seq_len": 8192, "pp": 1}, 0.58 * exp(-1 / 2 / 0.61**2 - 1 / 2 / 6.6**2)),
        ({"model": "llama3-70b"}, 0.0),
    ],
)
def test_jobs_are_as_similar_as_their_sizes_are_apart_in_factors_of_two(
    changes: dict[str, Any], factor: float
) -> None:
    other = replace(JOB, **changes)
    assert job_covariance([JOB], [other])[0, 0] == pytest.approx(OF_JOB * factor)
    assert job_covariance([other, JOB], [JOB])[:, 0] == pytest.approx([OF_JOB * factor, OF_JOB])


def run(times: float, **changes: Any) -> MeasuredJob:
    return MeasuredJob(**(FEATURES | changes), times=times, sigma=0.02, spread=0.1)


def test_a_run_corrects_a_job_by_its_weight_and_leaves_the_rest_unknown() -> None:
    weight = OF_JOB / (OF_JOB + 0.2**2)
    found = correction_of([run(1.1), run(3.0, model="gpt2")], JOB)
    assert (found.times, found.weight) == pytest.approx((1.1**weight, weight))
    assert found.unknown == pytest.approx(sqrt(OF_JOB * (1 - weight)))
    alone = correction_of([], JOB)
    assert (alone.times, alone.weight, alone.unknown) == (1.0, 0.0, pytest.approx(sqrt(OF_JOB)))


def test_what_is_unusual_of_a_run_is_for_jobs_with_its_layers_alone() -> None:
    most = exp(USUAL * 0.1)
    weight = OF_JOB / (OF_JOB + 0.2**2)
    same = correction_of([run(2 * most, pp=4)], JOB)
    near = exp(-1 / 2 / 6.6**2)
    assert log(same.times) == pytest.approx(near * weight * log(2 * most))
    apart = exp(-1 / 2 / 0.61**2)
    for times, counted in ((2 * most, most), (1.01, 1.01), (0.5 / most, 1 / most)):
        other = correction_of([run(times, tp=4)], JOB)
        assert log(other.times) == pytest.approx(apart * weight * log(counted))
    assert run(1.0).layer_configuration == JOB.layer_configuration != replace(JOB, seq_len=8192).layer_configuration
    assert JOB.title == "llama3-8b/bfloat16 on 8, tp2-cp1-ep1-pp2-b1-s4096"


def test_a_run_is_as_unsure_as_a_replay_and_usual_up_to_one_spread() -> None:
    assert (MeasuredJob(**FEATURES, times=1.0, spread=0.1).sigma, USUAL) == (0.02, 1.0)
