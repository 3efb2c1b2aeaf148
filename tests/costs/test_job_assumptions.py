"""Each option of a job changes the sentence that names it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ppsim.catalog.build import build
from ppsim.costs.cost_sources import RankCosts, RunCosts
from ppsim.costs.job import Job
from ppsim.costs.job_assumptions import _executed, _expert_rows, _kernels, _straddling, assumptions_of
from ppsim.costs.job_cost_sources import JobSource, MeasuredSource
from ppsim.machine.cluster import Constant, Constants
from ppsim.machine.kernels.published_tables import TableTimes
from ppsim.model.execution import Execution
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import StagePlan, stages_of
from tests.projection.jobs import job


def executing(own: Job | None = None, **execution: Any) -> Job:
    own = own or job(tp=2, pp=2, layers=8)
    return replace(own, execution=replace(own.execution, **execution))


def lines_of(own: Job, schedule: str = "1f1b", counts: Sequence[int] = (4, 4), **shape: int) -> list[str]:
    table = build(schedule, pp=own.layout.pp, microbatches=4, **shape)
    return assumptions_of(
        own, table, stages_of(own.model, counts), "auto", {"nvlink4": 0.5}, {"kernels": ["kernels"]}
    )


def test_a_plain_job_has_these_lines() -> None:
    assert lines_of(job(tp=2, pp=2, layers=8)) == [
        "costs: estimated from specifications and measured kernels, NVIDIA H100 SXM (dgx-h100)",
        "model: llama3-8b, 8 layers, split 2×4 (auto), embedding on stage 0, head and loss on the last",
        "stack: plain: fused attention, no dropout, TP communication exposed, ZeRO 1, DP overlapped (--stack)",
        "layout: tp 2, sequence parallel, cp 1, ep 1, dp 1, pp 2, ranks placed tp-cp-ep-dp-pp",
        "batch: 8 sequences of 4096 tokens, micro-batch 1",
        "numbers: bfloat16, recompute none, fused attention",
        "optimizer: adam, ZeRO stage 1, 4-byte gradients, float32 moments, synchronised",
        "transfers: 500 ms over nvlink4",
        "data parallelism: overlapped",
        "memory: by formula; static bytes include the transients of an action, no allocator slack",
        "kernels",
    ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"layers": 8}, "layout: tp 1, cp 1, ep 1, dp 1, pp 2, ranks placed tp-cp-ep-dp-pp"),
        ({"name": "mixtral-8x7b", "layers": 8, "tp": 2, "etp": 1}, "layout: tp 2, sequence parallel, cp 1, ep 1, etp 1, dp 1, pp 2, ranks placed tp-cp-ep-dp-pp"),
        ({"layers": 8, "allocator_slack": 1.1}, "memory: by formula; static bytes include the transients of an action, all × 1.1 of allocator slack"),
        ({"layers": 8, "optimizer": Optimizer(name="muon", layer_wise=True)}, "optimizer: muon, ZeRO stage 1, 4-byte gradients, float32 moments, synchronised, by whole layers"),
        ({"layers": 8, "optimizer": Optimizer(offload_fraction=0.5)}, "optimizer: adam, ZeRO stage 1, 4-byte gradients, float32 moments, synchronised, 50.00 % on the host"),
        ({"layers": 8, "offload": 0.25}, "offload: 25.00 % of the activations to the host, overlapped with compute, at 80.00 % of the link's rate (assumed)"),
        ({"layers": 8, "offload_modules": "core_attn"}, "offload: what core_attn saves of the activations to the host, overlapped with compute, at 80.00 % of the link's rate (assumed)"),
        ({"layers": 8, "overlap_grad_reduce": False}, "data parallelism: all-gather overlapped, reduction exposed"),
        ({"layers": 8, "stack_basis": "because"}, "stack: plain: fused attention, no dropout, ZeRO 1, DP overlapped (because)"),
    ],
)  # fmt: skip
def test_options_are_in_their_lines(fields: dict[str, Any], line: str) -> None:
    lines = lines_of(job(pp=2, **fields))
    assert line in lines, [one for one in lines if one.split(":")[0] == line.split(":")[0]]


def test_replicas_and_recomputed_layers_have_lines_of_their_own() -> None:
    own = job(pp=2, layers=8)
    replicas = "replicas: 2 on each pipeline, each with all of the model"
    kept = "recomputed layers: W keeps no more memory than their forward did"
    assert replicas in lines_of(own, "dualpipe")
    assert replicas not in lines_of(own)
    full = executing(own, recompute="full")
    assert kept in lines_of(full, "zb-h1")
    assert kept not in lines_of(full)
    assert kept not in lines_of(own, "zb-h1")


def test_plans_of_stages_are_named_together() -> None:
    own = job(pp=2, layers=8)
    plans = [StagePlan("full", ""), StagePlan("none", "core_attn")]
    lines = lines_of(replace(own, stage_plans=tuple(plans)))
    assert "numbers: bfloat16, recompute by the plan of each stage, fused attention" in lines
    assert [line for line in lines if line.startswith("offload: what core_attn saves")]
    alike = lines_of(replace(own, stage_plans=(StagePlan("full", ""),) * 2))
    assert "numbers: bfloat16, recompute full, fused attention" in alike


@pytest.mark.parametrize(
    ("execution", "lines"),
    [
        ({}, []),
        ({"overlap_ep": 0.5, "hidden_cp": 0.25}, ["communication hidden by compute: 50.00 % of ep, 25.00 % of cp"]),
        ({"hidden_cp": 0.25}, ["communication hidden by compute: 25.00 % of cp"]),
        ({"overlap_ep": "megatron"}, ["expert-parallel overlap: each pair of a forward and a backward, in the order of megatron"]),
        ({"moe_permute_fusion": False}, ["experts: tokens permuted by torch's gather and scatter-add (no permutation fusion)"]),
        ({"cross_entropy": "unfused"}, ["cross entropy: unfused, with a float32 copy of the logits"]),
        ({"cross_entropy": "chunked"}, ["cross entropy: chunked, with a float32 copy of the logits of one of 8 parts at a time"]),
        ({"cuda_graphs": "layer"}, ["CUDA graphs: layer"]),
        ({"compute_share": 0.9}, ["GEMMs and attention: 0.9 × the rate of their GPU type (--compute-scale)"]),
        ({"context": "all-gather"}, []),
    ],
)  # fmt: skip
def test_options_of_an_execution_have_lines(execution: dict[str, Any], lines: list[str]) -> None:
    assert _executed(executing(**execution)) == lines


def test_other_options_have_lines() -> None:
    own = job(tp=2, pp=2, layers=8)
    assert _executed(replace(own, gradient_accumulation_fusion=False)) == [
        "gradients: accumulated by separate kernels (no gradient accumulation fusion)"
    ]
    assert _executed(replace(own, rest_s=0.5)) == ["extra time per step: 500 ms (--extra-step-time)"]
    graphs = executing(cuda_graphs="layer")
    assert _executed(replace(graphs, cuda_graph_reuse=False)) == ["CUDA graphs: layer, each with its own buffers"]
    sent = "P2P transfers: each tp rank sends its part, the receivers all-gather it"
    scattered = replace(own, scatter_gather=True)
    assert _executed(scattered) == [], "already divided by sequence parallelism"
    assert _executed(executing(scattered, sequence_parallel=False)) == [sent]
    alone = executing(replace(job(pp=2, layers=8), scatter_gather=True), sequence_parallel=False)
    assert _executed(alone) == []


def test_an_exchange_among_context_parallel_ranks_is_named() -> None:
    own = job(cp=2, pp=2, layers=8)
    assert _executed(own) == []
    assert _executed(executing(own, context="all-to-all")) == ["context parallelism: an all-to-all of heads"]
    assert _executed(executing(own, context="all-gather")) == [
        "context parallelism: an all-gather of keys and values of every query head"
    ]


def test_constants_of_a_cluster_are_named() -> None:
    own = job(tp=2, pp=2, layers=8)
    constants = Constants(
        compute_share={"bfloat16": Constant(value=0.9)}, kernel_s=Constant(value=2e-6),
        overlap={"tp": Constant(value=0.5)}, jitter=Constant(value=0.0123), launch_s=Constant(value=1.0),
    )  # fmt: skip
    fitted = replace(own, cluster=replace(own.cluster, constants=constants))
    assert _executed(fitted) == [
        "GEMMs and attention: 0.9 × the rate of their GPU type (dgx-h100)",
        "kernels: 2.00 µs between two kernels (dgx-h100)",
        "constants of dgx-h100: overlap.tp 0.5, jitter 0.0123",
    ]
    assert "constants" not in "".join(_executed(replace(own, cluster=replace(own.cluster, constants=Constants()))))


def test_fine_tuning_counts_its_parameters() -> None:
    lora = job(pp=2, layers=2, lora="2")
    trained = sum(one.weights for layer in lora.model.layers for one in layer.all_linears if one.trainable)
    lines = _executed(lora)
    assert lines[0].startswith("fine-tuning: LoRA of rank 2 on ")
    assert f"; {trained / 1e3:.0f} k of " in lines[0] or f"; {trained / 1e6:.2f} M of " in lines[0]
    assert any(line.startswith("model FLOPs: frozen GEMMs count twice") for line in lines)
    frozen = _executed(job(pp=2, layers=4, freeze="embedding+layers@0-1"))
    assert frozen[0].startswith("fine-tuning: embedding+layers@0-1 frozen; ")
    assert frozen[2].startswith("backward: none in the first 2 layers, since")
    assert len(_executed(job(pp=2, layers=4, freeze="head"))) == 3


def test_rows_of_an_expert_are_those_of_all_its_ranks() -> None:
    own = job("mixtral-8x7b", layers=4, tp=2, ep=4, dp=4, pp=2)
    # 8 experts, 2 per rank; each expert gets 2 of 8 parts of a token from each of 8 / 2 = 4 ranks with whole tokens.
    assert _expert_rows(own) == pytest.approx(4096 * 2 / 8 * 4)
    assert _expert_rows(job(pp=2, layers=4)) == 0


def test_a_source_of_a_job_has_its_sizes() -> None:
    own = job("mixtral-8x7b", layers=4, tp=2, ep=2, dp=4, pp=2)
    source = JobSource(own)
    assert (source.name, source.num_layers, source.sequence_length) == ("mixtral-8x7b on dgx-h100", 4, 4096)
    assert (source.tokens_per_microbatch, source.gpus_per_rank) == (4096 * 4, 8)
    peak, lines = source.peak()
    assert peak == own.cluster.device.peak("bfloat16")
    assert lines[0].endswith(f"relative to {peak / 1e12:g} TFLOP/s")
    row = source.to_json()["job"]
    assert {name: row[name] for name in ("tp", "cp", "ep", "dp", "pp")} == {
        "tp": 2,
        "cp": 1,
        "ep": 2,
        "dp": 4,
        "pp": 2,
    }
    assert "etp" not in row
    assert (row["micro_batch"], row["sequence_length"], row["zero_stage"]) == (1, 4096, 1)


def test_measured_times_of_a_job_leave_out_the_rest_of_the_step() -> None:
    own = job(tp=2, pp=2, layers=8, rest_s=0.5)
    table = build("1f1b", pp=2, microbatches=4)
    found = MeasuredSource(own, RankCosts(1.0, 2.0, 3.0)).assemble(table, "auto")
    assert (found.costs.forward_s, found.costs.backward_weight_s, found.step_costs.rest_s) == (1.0, 3.0, 0.5)
    assert found.step_costs.slow_rank == 0
    assert found.assumptions[-1] == "not in the step time: data-parallel communication, optimizer, gradient norm"
    noisy = replace(own, cluster=replace(own.cluster, constants=Constants(jitter=Constant(value=0.1))))
    slow = MeasuredSource(noisy, RankCosts(1.0, 2.0, 3.0)).assemble(table, "auto")
    assert slow.step_costs.slow_rank == pytest.approx(0.1 * 0.5642, rel=1e-3), "of the larger of two normals"
    assert slow.assumptions[-1] == "the slowest of 2 ranks takes 5.64 % longer than those measured"
    parts = MeasuredSource(noisy, RankCosts((1.0, 1.0), 2.0, 3.0)).assemble(table, "auto")
    assert parts.step_costs.slow_rank == 0
    assert Execution().overlap_tp == "0"


def test_a_recorded_run_corrects_the_costs_of_another_split_by_layer() -> None:
    """A stage of four layers took twice its estimate, the next one three times."""
    own, table = job(pp=2, layers=8), build("1f1b", pp=2, microbatches=4)
    even, uneven = (JobSource(own).assemble(table, split).costs for split in ("even", (2, 6)))
    passes = {
        name: tuple((np.array([2.0, 3.0]) * getattr(even, name)).tolist())
        for name in ("forward_s", "backward_input_s", "backward_weight_s")
    }
    run = RunCosts(**passes, table=table, source="run.json", splits_backward=True, knows_gaps=False)
    found = MeasuredSource(own, run).assemble(table, (2, 6))
    mixed = (2 * 2.0 + 4 * 3.0) / 6
    assert found.costs.forward_s == pytest.approx(np.array(uneven.forward_s) * [2.0, mixed])
    assert found.assumptions[-1].endswith("data-parallel communication, optimizer, gradient norm")
    gaps = MeasuredSource(own, replace(run, knows_gaps=True)).assemble(table, (2, 6))
    assert gaps.assumptions[-1].endswith("the recorded time between steps")


@pytest.mark.parametrize(
    ("fields", "execution", "how"),
    [
        ({}, {}, ""),
        ({}, {"cuda_graphs": "full"}, ""),
        ({}, {"cuda_graphs": "attn"}, ", without CUDA graphs"),
        ({"tp": 2, "cp": 2}, {}, ", divided over 2 tp ranks, as in Megatron-Bridge, repeated by every cp rank"),
        ({"freeze": "encoder"}, {}, ", encoder frozen"),
        ({"freeze": "encoder+projector", "offload": 0.5}, {}, ", encoder and projector frozen, without offload"),
        ({"lora": "8"}, {}, ", encoder and projector frozen, without adapters"),
    ],
)
def test_the_line_of_an_encoder_says_what_it_does_not_share(
    fields: dict[str, Any], execution: dict[str, Any], how: str
) -> None:
    own = executing(job("qwen3-vl-8b", layers=8, pp=2, **fields), **execution)
    assert f"image encoder: 27 layers on stage 0, 16 bits{how}" in lines_of(own)


def on_gb300(name: str = "llama3-8b", **fields: Any) -> Job:
    return job(name, cluster="gb300-nvl72", **fields)


def test_kernels_of_a_table_are_named_with_their_part_and_factor() -> None:
    [line] = _kernels(on_gb300())
    times = on_gb300().place.times
    assert isinstance(times, TableTimes)
    share = on_gb300().costs.shares["table"]
    assert line.startswith(
        f"kernels: {100 * share:.0f} % of F and B from the table of gb300 ({times.table.provenance['source']}), "
        f"multiplied by {times.factor('products'):g} for a training step (error "
    )
    assert " from the data sheet" in line.partition("; ")[2]
    assert _kernels(job(cluster="dgx-a100")) == []


def test_a_dtype_that_was_not_measured_has_the_rates_of_its_stand_in() -> None:
    own = on_gb300(dtype="mxfp8")
    times = own.place.times
    assert isinstance(times, TableTimes)
    is_other = times.factor("products") is not None and times.name != "mxfp8"
    lines = [line for line in _kernels(own) if line.startswith("GEMMs in")]
    expected = [f"GEMMs in mxfp8: rates of {times.name}, the nearest dtype that was measured"]
    assert lines == (expected if is_other else [])
    assert not [line for line in _kernels(on_gb300()) if line.startswith("GEMMs in")]


@pytest.mark.parametrize("tokens", [1024, 65536])
def test_rows_of_experts_beyond_the_table_are_named(tokens: int) -> None:
    own = on_gb300("mixtral-8x7b", sequence_length=tokens, dp=8, ep=8)
    times, rows = own.place.times, _expert_rows(own)
    assert isinstance(times, TableTimes)
    most = times.most_expert_rows
    lines = [line for line in _kernels(own) if line.startswith("experts: measured")]
    expected = [f"experts: measured up to {most:g} rows each; {rows:.0f} rows run at the rate of {most:g}"]
    assert lines == (expected if most is not None and rows > most else [])
    assert (rows > 4096) is (tokens == 65536)


@pytest.mark.parametrize(("cp", "lines"), [(1, []), (2, ["cp 2 spans several nodes of 8 GPUs"])])
def test_groups_that_span_several_nodes_are_named_with_the_cost_of_it(cp: int, lines: list[str]) -> None:
    assert [line.partition(":")[0] for line in _straddling(job("llama3-70b", tp=8, cp=cp))] == lines
