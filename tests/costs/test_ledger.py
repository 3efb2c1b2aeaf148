"""Every sum over a stage or rank is the same wherever it is read: simulation, components, bounds, JSON."""

import pickle
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.costs.ledger import Ledger, layer_muon_flops, muon_flops
from ppsim.costs.stage_rules import accumulated
from ppsim.costs.time_breakdown import NO_COST, work_of
from ppsim.model.memory_rows import kept_of_layer
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import Stage, stages_of
from tests.projection.jobs import job as small_job

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


def test_a_rank_counts_layers_of_further_tokens_and_its_heads() -> None:
    job = small_job("mimo-7b", layers=3, optimizer=Optimizer(name="muon"))
    assert len(job.model.mtp) == 1
    first, last = stages_of(job.model, [1, 2])
    ledger = Ledger(job)
    both, head = ledger.ranks([[first, last], [last]])
    assert [(rank.num_layers, rank.num_heads) for rank in (both, head)] == [(4, 1), (3, 1)]
    of_layer, of_further = (
        layer_muon_flops(one, job.settings.cut)[0] for one in (job.model.layers[0], job.model.mtp[0])
    )
    assert both.muon_flops == (pytest.approx(3 * of_layer + of_further), 0)


def test_each_further_token_has_a_layer_and_a_pass_of_the_head() -> None:
    job = small_job("mimo-7b", layers=3)
    ledger, costs = Ledger(job), job.costs
    middle = Stage(job.model.layers[:2])
    last = Stage(job.model.layers[2:], head=True, mtp=job.model.mtp)
    layer, further, (_, head) = costs.layer(job.model.layers[0]), costs.mtp(job.model.mtp[0]), costs.ends
    assert ledger.estimate(Stage(())) == NO_COST
    assert work_of(ledger.estimate(middle)) == pytest.approx(2 * work_of(layer))
    assert work_of(ledger.estimate(last)) == pytest.approx(work_of(layer) + work_of(further) + 2 * work_of(head))
    in_order = ledger.costs_in_order(last)
    assert [work_of(cost) for cost in in_order] == pytest.approx([work_of(layer), work_of(further)])
    assert ledger.layer_times(Stage(())) == []


def test_a_stage_saves_its_bytes_with_slack_a_part_before_its_experts() -> None:
    usual, slack = (small_job(layers=2, allocator_slack=slack) for slack in (1.0, 1.5))
    (plain,), (more,) = (Ledger(job).stages([Stage(job.model.layers)]) for job in (usual, slack))
    assert (more.saved_bytes, more.weight_bytes) == pytest.approx(
        (1.5 * plain.saved_bytes, 1.5 * plain.weight_bytes)
    )
    assert 0 < plain.weight_bytes < plain.saved_bytes
    saved = kept_of_layer(usual.model.layers[0], usual.settings, "none")
    assert plain.before_experts == pytest.approx(1 - saved["feed-forward"] / sum(saved.values()))
    assert more.before_experts == pytest.approx(plain.before_experts)


def test_a_newton_schulz_iteration_is_of_the_shorter_side() -> None:
    """4 m² n + 2 m³ of 2 × 5, five times by default."""
    assert muon_flops(10, 5) == muon_flops(10, 2) == 5 * (4 * 4 * 5 + 2 * 8)
    assert muon_flops(10, 5, iterations=3) == 3 * (4 * 4 * 5 + 2 * 8)
