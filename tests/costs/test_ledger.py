"""Every sum over a stage or rank is the same wherever it is read: simulation, components, bounds, JSON."""

import pickle
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.ledger import Ledger, layer_muon_flops, muon_flops
from ppsim.costs.stage_rules import accumulated
from ppsim.model.pipeline_stages import stages_of

SMALL = {"model": "llama3-8b", "cluster": "dgx-h100", "gpus": 8, "pp": 4, "global_batch": 32, "seq_len": 4096}
SPARSE = {"model": "deepseek-v2-lite", "cluster": "dgx-h100", "gpus": 16, "pp": 2, "ep": 4, "global_batch": 64,
          "seq_len": 4096}  # fmt: skip

WRONG_SUMS: dict[str, dict[str, Any]] = {
    "pairs": {**SPARSE, "overlap_ep": "best", "schedule": "combined-1f1b"},
    "pairs in a V": {**SPARSE, "overlap_ep": "best", "schedule": "dualpipev"},
    "recomputation by layer": {**SMALL, "recompute": "full@0-7", "global_batch": 64, "seq_len": 8192},
    "recomputation by stage": {**SMALL, "recompute": "full/2"},
    "blocks": {**SMALL, "recompute": "block/3"},
    "checkpoints": {**SMALL, "recompute": "uniform/2"},
    "by number": {**SMALL, "recompute": "mlp*2,full*3,none*3"},
    "a searched plan": {**SMALL, "pp": 2, "stage_plan": "auto", "memory_limit": "60GiB"},
    "torch's first stage": {**SMALL, "schedule": "zb-h1", "runtime": "torch"},
    "an encoder": {**SMALL, "model": "qwen3-vl-8b"},
    "offloading": {**SMALL, "offload": 0.4},
    "offloaded modules": {**SMALL, "offload_modules": "core_attn+mlp_norm"},
    "a frozen embedding": {**SMALL, "freeze": "embedding"},
    "adapters": {**SMALL, "lora": "16"},
    "diffusion": {**SMALL, "model": "flux.1-dev", "seq_len": 4608, "schedule": "interleaved-1f1b", "vpp": 2},
    "ZeRO 3": {**SMALL, "pp": 2, "zero": 3},
    "several lengths": {**SMALL, "schedule": "v-half", "sequence_lengths": [1000, 4096]},
}


@pytest.mark.parametrize("name", list(WRONG_SUMS))
def test_components_sum_to_the_simulated_peak_and_to_json(name: str) -> None:
    found = ppsim.project(**WRONG_SUMS[name])
    peak = float(found.timeline.memory.peak_bytes.max())
    assert sum(found.peak_components_bytes.values()) == pytest.approx(peak, abs=16)
    assert sum(found.to_json()["peak_components_bytes"].values()) == pytest.approx(peak, abs=16)


def test_a_stage_has_the_sum_of_its_layers_and_ends() -> None:
    job = ppsim.job(**SMALL, stack="plain", overlap_grad_reduce=False, overlap_param_gather=False)
    ledger, layers = Ledger(job), job.model.layers
    first, middle, last = ledger.stages(stages_of(job.model, [10, 10, 12]))
    of_layer, (embedding, head) = job.costs.layer(layers[0]), job.costs.ends
    for passed in ("forward", "backward_input", "backward_weight"):
        one = getattr(of_layer, passed).total_s
        assert getattr(middle.costs, passed).total_s == pytest.approx(10 * one)
        assert getattr(first.costs, passed).total_s == pytest.approx(10 * one + getattr(embedding, passed).total_s)
        assert getattr(last.costs, passed).total_s == pytest.approx(12 * one + getattr(head, passed).total_s)
    assert middle.saved_bytes * 12 == last.saved_bytes * 10


def test_a_rank_has_the_parameters_of_its_stages_and_a_tied_table_once() -> None:
    for model in ("llama3-8b", "gpt2"):
        job = ppsim.job(model=model, gpus=2, pp=1, stack="plain")
        stages = stages_of(job.model, [6, len(job.model.layers) - 6])
        together, *alone = Ledger(job).ranks([stages, *([stage] for stage in stages)])
        table = job.model.table(job.settings.vocabulary_of(job.model))
        twice = table * job.model.tied_embeddings
        assert together.held.dense == sum(rank.held.dense for rank in alone) - twice
        assert together.num_layers == len(job.model.layers)
        assert together.idle_bytes < sum(rank.idle_bytes for rank in alone)


def test_gradients_without_fusion_are_written_and_read_again() -> None:
    """Float32 sums of 16-bit gradients: 2 bytes read, 4 read and 4 written per parameter and microbatch."""
    job = ppsim.job(**SMALL, stack="plain", gradient_accumulation_fusion=False)
    fused = ppsim.job(**SMALL, stack="plain")
    stages = stages_of(job.model, [8, 8, 8, 8])
    (plain,), (without,) = (Ledger(one).stages(stages[1:2]) for one in (fused, job))
    added_s = without.costs.backward_weight.total_s - plain.costs.backward_weight.total_s
    device = job.cluster.device
    moved = 10 * plain.held.trained
    assert added_s == pytest.approx(accumulated(job, plain.held).backward_weight.total_s)
    assert added_s == pytest.approx(moved / (device.memory_bytes_per_s * device.efficiency.memory), rel=0.1)


def test_a_layers_muon_flops_are_of_its_trained_matrices() -> None:
    job = ppsim.job(model="mixtral-8x7b", gpus=8, ep=8, pp=1, optimizer="muon", stack="plain")
    layer, cut = job.model.layers[0], job.settings.cut
    matrices = [matrix for matrix in layer.linears(cut) if matrix.is_orthogonalised]
    routed = sum(matrix.count * muon_flops(matrix.size, 4096) for matrix in matrices if matrix.kind == "routed")
    dense, of_experts = layer_muon_flops(layer, cut)
    assert of_experts == routed > 0
    assert dense == sum(muon_flops(matrix.size, 4096) for matrix in matrices if matrix.kind != "routed") > 0
    (rank,) = Ledger(job).ranks([stages_of(job.model, [32])])
    assert rank.muon_flops == pytest.approx((32 * dense, 32 * of_experts))


def test_another_process_sums_again() -> None:
    job = ppsim.job(**SMALL)
    ledger, stages = Ledger(job), stages_of(job.model, [8, 8, 8, 8])
    here = [stage.saved_bytes for stage in ledger.stages(stages)]
    there = pickle.loads(pickle.dumps(ledger))
    assert np.array_equal(here, [stage.saved_bytes for stage in there.stages(stages_of(there.job.model, [8] * 4))])


def test_the_update_has_no_buffers_of_offloading() -> None:
    """Copies of gradients need more bytes than one microbatch, and no activation is in flight."""
    words = {**SMALL, "gpus": 1, "pp": 1, "global_batch": 1, "grad_reduce_in_bf16": True, "stack": "plain"}
    plain, offloading = (ppsim.project(**words, offload_modules=modules) for modules in ("", "core_attn"))
    assert "float32 gradients" in offloading.peak_components_bytes
    assert max(offload.ahead for offload in offloading.stage_cost_set.offloads) > 0
    assert offloading.timeline.memory.peak_bytes[0] == plain.timeline.memory.peak_bytes[0]
    assert sum(offloading.peak_components_bytes.values()) == offloading.timeline.memory.peak_bytes[0]
