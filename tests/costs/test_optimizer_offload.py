"""Optimizer state on the host: its bytes, the seconds of its update, and where it cannot be."""

from dataclasses import replace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.costs.dp_and_optimizer import step_costs
from ppsim.costs.job import Job
from ppsim.costs.offload import HOST_EFFICIENCY
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.rank_rules import static_bytes

HELD = 8_030_261_248
"""Parameters of Llama 3 8B."""


def offloading(part: float, **options: Any) -> Job:
    """Return a job of four replicas with a part of the optimizer on the host."""
    return ppsim.job(model="llama3-8b", stack="plain", gpus=4, optimizer_offload_fraction=part, **options)


def update_s(job: Job) -> float:
    """Return the seconds of a job's optimizer step."""
    schedule = ppsim.build("1f1b", pp=1, microbatches=job.num_microbatches)
    return max(step_costs(job, schedule, stages_of(job.model, [32])).optimizer_s)


def test_the_state_of_a_part_of_the_parameters_is_not_on_the_device() -> None:
    """Adam has 12 bytes per parameter, over four replicas; parameters and gradients stay."""
    none, half, all_ = (static_bytes(held_parameters(one.model, stages_of(one.model, [32]), one.settings.cut), one.settings)
                        for one in map(offloading, (0.0, 0.5, 1.0)))  # fmt: skip
    assert none["optimizer state"] == 12 * HELD / 4
    assert half["optimizer state"] == 12 * HELD / 8
    assert all_["optimizer state"] == 0
    for name in ("parameters", "gradients"):
        assert none[name] == half[name] == all_[name]


def test_an_update_on_the_host_has_gradients_out_and_weights_back_around_it() -> None:
    """4 and 2 bytes per parameter over the link; 34 in host memory: 28 of Adam, 6 to cast the weight."""
    job, half = offloading(1.0), offloading(0.5)
    device, number = job.cluster.device, HELD / 4
    assert device.host_bytes_per_s
    assert device.host_memory_bytes_per_s
    copies_s = 6 * number / (HOST_EFFICIENCY * device.host_bytes_per_s)
    host_s = 34 * number / (HOST_EFFICIENCY * device.host_memory_bytes_per_s)
    assert update_s(job) == pytest.approx(copies_s + host_s)
    assert update_s(half) == pytest.approx((copies_s + host_s) / 2)  # the device's half takes less than the host's
    beside = offloading(1.0, overlap_cpu_optimizer_d2h_h2d=True)
    assert update_s(beside) == pytest.approx(host_s)
    assert update_s(offloading(0.001)) == pytest.approx(update_s(offloading(0.0)), rel=0.01)
    made = ppsim.project(model="llama3-8b", stack="plain", gpus=4, optimizer_offload_fraction=0.25)
    assert any("moments, synchronised, 25.00 % on the host" in line for line in made.assumptions)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer_offload_fraction": 1.5}, "--optimizer-offload-fraction is a part from 0 to 1: got 1.5"),
        ({"optimizer": "muon"}, "is for adam with --zero 1 to 3 and float32 moments: got muon, zero 1 and float32"),
        ({"zero": 0}, "got adam, zero 0 and float32"),
        ({"exp_avg_dtype": "bfloat16"}, "got adam, zero 1 and bfloat16"),
        ({"fully_shard": True}, "leave out --fully-shard"),
    ],
)
def test_it_is_refused_where_it_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.job(
            **{"model": "llama3-8b", "stack": "plain", "gpus": 4, "optimizer_offload_fraction": 0.5} | options
        )


def test_the_rate_of_the_host_must_be_known() -> None:
    job = offloading(0.5)
    bare = replace(job.cluster.device, host_memory_bytes_per_s=None)
    with pytest.raises(ConfigError, match="has no host_memory_bytes_per_s, which an optimizer on the host needs"):
        update_s(replace(job, cluster=replace(job.cluster, device=bare)))
