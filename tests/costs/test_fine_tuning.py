"""What fine-tuning takes: weight gradients of adapters only, reduced and updated with them."""

from typing import Any

import pytest

import ppsim
from ppsim.costs.job import Job
from ppsim.costs.ledger import Ledger, StageSums
from ppsim.costs.replica_collectives import replica_collective_s
from ppsim.errors import ConfigError
from ppsim.model.memory_rows import bytes_of_row
from ppsim.model.pipeline_stages import Stage
from ppsim.model.stage_rows import Row

SMALL: dict[str, Any] = {
    "model": "llama3-8b",
    "stack": "plain",
    "gpus": 8,
    "pp": 2,
    "tp": 2,
    "global_batch": 16,
    "seq_len": 2048,
}


def sums(job: Job, stage: Stage) -> StageSums:
    return Ledger(job).stages([stage])[0]


def weight_s(**options: Any) -> float:
    """Seconds of the weight gradients of a layer."""
    job = ppsim.job(**SMALL | options)
    return sums(job, Stage(job.model.layers[-1:])).costs.backward_weight.total_s


def test_weight_gradients_are_those_of_adapters_only() -> None:
    job = ppsim.job(**SMALL, lora="16:linear_qkv")
    parts = sums(job, Stage(job.model.layers[:1])).costs.backward_weight
    tokens, tp = 2048, 2
    flops = 2 * tokens * 16 * (4096 + 6144) / tp
    peak = job.cluster.device.peak("bfloat16")
    assert parts.ideal_s == pytest.approx(flops / peak)
    assert 0 < parts.total_s < 0.1 * weight_s()
    assert weight_s(freeze="layers@16-31") == 0
    assert weight_s(freeze="norms") == pytest.approx(weight_s(), rel=1e-5)  # their gradients come with I


def test_a_frozen_head_does_not_gather_its_input_again() -> None:
    """Megatron-LM, core/tensor_parallel/layers.py: only the weight gradient of a linear needs the gathered input."""
    job, frozen = ppsim.job(**SMALL), ppsim.job(**SMALL, freeze="head")
    head, of_frozen = (sums(one, Stage((), head=True)) for one in (job, frozen))
    assert of_frozen.costs.backward.tp_s == pytest.approx(
        head.costs.backward.tp_s / 2
    )  # the gradient's message stays
    gathered = [
        bytes_of_row(one.model, Row("head"), one.settings).moments[0]["gathered sequence"] for one in (job, frozen)
    ]
    assert gathered == [2 * 2048 * 4096 * 2, 2048 * 4096 * 2]


def test_a_frozen_layer_has_an_input_gradient_if_anything_before_it_is_trained() -> None:
    job = ppsim.job(**SMALL, freeze="layers@0-15")
    assert sums(job, Stage(job.model.layers[:1])).costs.backward_input.total_s > 0
    job = ppsim.job(**SMALL, freeze="embedding+layers@0-15")
    of_layer = sums(job, Stage(job.model.layers[:1], embedding=True)).costs
    assert of_layer.backward.total_s == 0
    assert of_layer.forward.total_s > 0
    assert "backward: none in the first 16 layers" in " ".join(ppsim.project(job=job).assumptions)


def test_split_backwards_have_next_to_nothing_to_delay() -> None:
    """Zero-bubble schedules gain little: their W is that of adapters."""
    found = ppsim.project(**SMALL | {"pp": 4, "schedule": "zb-h1", "lora": 16}).stage_cost_set.costs
    assert max(found.backward_weight_s) < 0.3 * max(found.backward_input_s)
    frozen = ppsim.project(**SMALL | {"schedule": "zb-h1", "freeze": "embedding+layers@0-15", "split": "even"})
    costs = frozen.stage_cost_set.costs
    assert costs.backward_weight_s[0] == costs.backward_input_s[0] == costs.activation_bytes[0] == 0


def test_replicas_reduce_and_update_adapters_only() -> None:
    job = ppsim.job(**SMALL | {"tp": 1, "pp": 1}, lora=16)
    held = sums(job, Stage(job.model.layers)).held
    adapters = 32 * 16 * ((4096 + 6144) + 2 * 4096 + (4096 + 28672) + (14336 + 4096))
    assert held.trained == adapters
    seconds = replica_collective_s(job, held, "reduce-scatter")
    full = ppsim.job(**SMALL | {"tp": 1, "pp": 1})
    assert seconds < 0.05 * replica_collective_s(full, sums(full, Stage(full.model.layers)).held, "reduce-scatter")
    fast, slow = (ppsim.project(job=one).stage_cost_set.step_costs.optimizer_s[0] for one in (job, full))
    assert fast < 0.01 * slow
    sharded = ppsim.job(**SMALL | {"tp": 1, "pp": 1}, lora=16, zero=3)
    assert replica_collective_s(sharded, held, "all-gather") > 10 * seconds  # all weights are gathered


def test_model_flops_count_frozen_gemms_twice() -> None:
    job, full = ppsim.job(**SMALL, lora=16), ppsim.job(**SMALL)
    base = full.model
    gemms = sum(layer.weights_per_token for layer in base.layers) * 2 + base.head_forward_flops()
    adapters = 32 * 2 * 16 * ((4096 + 6144) + 2 * 4096 + (4096 + 28672) + (14336 + 4096))
    of_training = job.model.training_flops(2048, causal=True)
    assert of_training == pytest.approx(base.training_flops(2048, causal=True) - gemms + 3 * adapters)
    assert "frozen GEMMs count twice" in " ".join(ppsim.project(job=job).assumptions)


def test_packed_sequences_attend_to_themselves_only() -> None:
    """The scores of a packed sequence go with the square of its own length, with frozen weights too."""
    made = ppsim.project(**SMALL, lora=16, lengths=[512] * 16)
    job = made.plan.job
    assert job is not None
    of_sequences = job.model.training_flops(512, causal=True) * 512 / 3 / 2  # of one of tp 2 ranks
    assert made.stage_cost_set.forward_flops == pytest.approx(of_sequences, rel=1e-4)


@pytest.mark.parametrize(
    "model", ["deepseek-v3", "nemotron-h-8b", "qwen3-next-80b-a3b", "gpt-oss-20b", "qwen3-0.6b"]
)
@pytest.mark.parametrize("option", [{"lora": 8}, {"freeze": "embedding+attention+norms"}])
def test_every_kind_of_layer_can_be_fine_tuned(model: str, option: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "model": model,
        "stack": "plain",
        "layers": 12,
        "gpus": 16,
        "pp": 2,
        "tp": 2,
        "seq_len": 1024,
    }
    tuned, full = (ppsim.project(**given, **one, global_batch=16) for one in (option, {}))
    assert tuned.timeline.memory.peak_bytes.max() < full.timeline.memory.peak_bytes.max()
    assert ppsim.project(**given, **option, global_batch=16, schedule="zb-h1").iteration_time_s > 0


def test_options_that_know_full_training_only_are_refused() -> None:
    for other in ({"fully_shard": True}, {"recompute": "selective-op"}):
        with pytest.raises(ConfigError, match="--lora cannot be combined with --"):
            ppsim.job(**SMALL | other, lora=16)
    with pytest.raises(ConfigError, match="tp must divide the rank of the adapters: got 2 with 7"):
        ppsim.job(**SMALL, lora=7)


def test_the_first_screen_names_what_is_trained():
    words = {"model": "llama3-8b", "stack": "plain", "gpus": 8, "tp": 2, "pp": 2, "global_batch": 16}
    assert "· lora 16:linear_qkv\n" in ppsim.report(ppsim.project(**words, lora="16:linear_qkv"))
    assert "· freeze embedding\n" in ppsim.report(ppsim.project(**words, freeze="embedding"))
    assert "lora" not in ppsim.report(ppsim.project(**words))
