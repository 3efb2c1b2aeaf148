"""A job's costs: nothing lost between parts and totals, every kind of model, memory that the simulator peaks at."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim import build, simulate
from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds
from ppsim.costs.analytic import end_estimate
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.dp_and_optimizer import step_costs
from ppsim.costs.ledger import Ledger
from ppsim.costs.peak_components import components_at_peak
from ppsim.costs.replica_collectives import num_buckets, replica_collective_s
from ppsim.costs.stage_cost_set import values_of_ranks
from ppsim.machine import collectives
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import RankParameters, held_parameters
from ppsim.model.pipeline_stages import Stage, stages_of
from ppsim.model.rank_memory import rank_memory
from ppsim.model.registry import find_model
from ppsim.parallel.groups import RankGroup, all_devices, group
from ppsim.parallel.layout import Layout
from ppsim.schedule.table import Op, Schedule
from tests.projection.jobs import job, on_ideal_links

MODELS = {
    "llama3-8b": {"tp": 2},
    "gpt2": {},
    "mixtral-8x7b": {"ep": 4},
    "qwen3-30b-a3b": {"ep": 4, "tp": 2},
    "deepseek-v3": {"ep": 4, "layers": 14},
    "qwen2.5-0.5b": {},
}


@pytest.mark.parametrize("recompute", ["none", "core_attn", "layernorm", "full"])
@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_every_stage_are_its_seconds(name: str, recompute: str) -> None:
    sizes = MODELS[name]
    one = job(name, pp=4, dp=4, recompute=recompute, sequence_length=1024, **sizes)
    table = build("zbv-fixed", pp=4, microbatches=8)
    made = assemble_job(one, table)
    costs = made.costs.resolved_for(table)
    for stage, part in enumerate(made.parts):
        assert part.forward.total_s == pytest.approx(costs.forward_s[stage])
        assert part.backward_input.total_s == pytest.approx(costs.backward_input_s[stage])
        assert part.backward_weight.total_s == pytest.approx(costs.backward_weight_s[stage])
        assert part.backward.total_s == pytest.approx(costs.backward_s[stage])
        assert min(part.forward.numbers + part.backward.numbers) >= -1e-15
        assert part.backward.recompute_s > 0 if recompute == "full" and "t" in made.contents[stage] else True
    assert sum(made.split) == len(one.model.layers)
    assert "".join(made.contents) == "E" + "t" * len(one.model.layers) + "m" * len(one.model.mtp) + "L"


@pytest.mark.parametrize("name", MODELS)
def test_the_ideal_part_is_the_models_flops_at_peak(name: str) -> None:
    one = job(name, pp=4, dp=4, sequence_length=1024, **MODELS[name])
    made = assemble_job(one, build("1f1b", pp=4, microbatches=8))
    ideal = sum((part.forward + part.backward).ideal_s for part in made.parts)
    assert ideal == pytest.approx(3 * made.forward_flops / one.cluster.device.peak("bfloat16"), rel=1e-9)


SCHEDULES = [
    ("gpipe", {}), ("1f1b", {}), ("interleaved-1f1b", {"vpp": 2}), ("zb-h1", {}), ("zbv-fixed", {}), ("dualpipe", {}),
]  # fmt: skip


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
@pytest.mark.parametrize(("schedule", "shape"), SCHEDULES)
def test_the_simulated_peak_is_that_of_the_formulas_with_what_is_in_flight_there(
    schedule: str, shape: dict[str, int], zero_stage: int
) -> None:
    """Of an unsplit backward exactly; of a split one at most, since what waits for W is less than a microbatch."""
    one = job("llama3-8b", pp=4, tp=2, dp=2, optimizer=Optimizer(zero_stage=zero_stage))
    table = build(schedule, pp=4, microbatches=16, **shape)
    made = assemble_job(one, table)
    memory = simulate(table, made.costs).memory
    for rank in range(4):
        here = slice(int(table.rank_offsets[rank]), int(memory.peak_at[rank]) + 1)
        ops, stages = table.op[here], table.stage[here]
        begun = [int(((stages == stage) & (ops == Op.F)).sum()) for stage in table.stages_of(rank)]
        ended = [
            int(((stages == stage) & ((ops == Op.B) | (ops == Op.W))).sum()) for stage in table.stages_of(rank)
        ]
        last_frees = table.op[int(memory.peak_at[rank])] in (Op.B, Op.W)
        in_flight = [a - b for a, b in zip(begun, ended, strict=True)]
        if last_frees:
            at = list(table.stages_of(rank)).index(int(table.stage[int(memory.peak_at[rank])]))
            in_flight[at] += 1
        mine = values_of_ranks(table, stages_of(one.model, made.split))[rank]
        formula = rank_memory(one.model, mine, one.settings, in_flight=in_flight).total
        told = components_at_peak(one, table, made, made.costs, memory, rank)
        assert sum(told.values()) == pytest.approx(memory.peak_bytes[rank], rel=1e-6)
        if table.splits_backward:
            assert memory.peak_bytes[rank] <= formula * (1 + 1e-9)
            assert memory.peak_bytes[rank] > 0.99 * formula
        else:
            assert memory.peak_bytes[rank] == pytest.approx(formula, rel=1e-6)


@pytest.mark.parametrize("schedule", ["seq1f1b", "zb-h1", "dualpipe"])
def test_what_is_there_at_the_peak_sums_to_it_whatever_is_cut(schedule: str) -> None:
    made = ppsim.project(model="llama3-8b", stack="plain", gpus=8, pp=2, schedule=schedule, global_batch=32)
    assert sum(made.peak_components_bytes.values()) == pytest.approx(
        made.timeline.memory.peak_bytes.max(), rel=1e-9
    )


def test_what_waits_for_w_is_freed_in_part_by_i() -> None:
    one = job("llama3-8b", pp=4)
    costs = assemble_job(one, build("zb-h1", pp=4, microbatches=8)).costs
    kept, whole = np.array(costs.activation_bytes_kept_for_weight), np.array(costs.activation_bytes)
    assert (kept < whole)[:-1].all()
    assert (kept > 0.3 * whole).all()


def test_recomputation_is_counted_in_times_and_in_bytes() -> None:
    table = build("1f1b", pp=4, microbatches=8)
    made = {
        recompute: assemble_job(job(pp=4, recompute=recompute, attention="unfused"), table).costs
        for recompute in ("none", "core_attn", "full")
    }
    none, selective, full = made.values()
    for stage in range(4):
        assert none.activation_bytes[stage] > selective.activation_bytes[stage] > full.activation_bytes[stage]
        assert none.backward_input_s[stage] < selective.backward_input_s[stage] < full.backward_input_s[stage]


def test_zero_shards_more_the_higher_its_stage_and_pays_for_it_from_stage_2_on() -> None:
    table = build("1f1b", pp=2, microbatches=8)
    made = [assemble_job(job(pp=2, dp=8, optimizer=Optimizer(zero_stage=stage)), table) for stage in range(4)]
    static = [float(np.max(one.costs.static_bytes)) for one in made]
    assert static == sorted(static, reverse=True)
    assert len(set(static)) == 4
    gathered = [float(np.sum(one.step_costs.gather_s)) for one in made]
    reduced = [float(np.sum(one.step_costs.reduce_s)) for one in made]
    assert [value > 0 for value in gathered] == [False, True, True, False]
    assert [value > 0 for value in reduced] == [True, True, False, False]
    assert 0.5 <= reduced[1] / reduced[0] < 1  # half of an all-reduce, which a switch may speed up
    updates = [max(one.step_costs.optimizer_s) for one in made]
    assert updates[0] == pytest.approx(8 * updates[1])
    assert updates[1] == updates[2] == updates[3]


def test_instances_of_the_distributed_optimizer_share_less_and_gather_among_fewer() -> None:
    """16 replicas on 2 nodes in 2 instances, a node each: state among 8, no gather between nodes, one more sum."""
    whole, halved = (
        ppsim.job(model="llama3-8b", stack="plain", gpus=16, num_distributed_optimizer_instances=number)
        for number in (1, 2)
    )
    held = [
        rank_memory(one.model, stages_of(one.model, [32]), one.settings, in_flight=[1]) for one in (whole, halved)
    ]
    states = [one.components["optimizer state"] for one in held]
    assert states[1] == pytest.approx(2 * states[0], rel=1e-6)
    table = ppsim.build("1f1b", pp=1, microbatches=4)
    around = [assemble_job(one, table).step_costs for one in (whole, halved)]
    gathers, reduces, updates = (
        [float(getattr(one, name)[0]) for one in around] for name in ("gather_s", "reduce_s", "optimizer_s")
    )
    assert gathers[1] < gathers[0]
    assert reduces[1] > reduces[0]
    assert updates[1] == pytest.approx(2 * updates[0])


def test_instances_that_cannot_be_are_refused() -> None:
    for options, why in (
        ({"num_distributed_optimizer_instances": 3}, "must divide dp · cp = 16: got 3"),
        ({"num_distributed_optimizer_instances": 0}, "must be at least 1: got 0"),
        ({"num_distributed_optimizer_instances": 2, "zero": 0}, "give --zero 1 to 3"),
    ):
        with pytest.raises(ConfigError, match=why):
            ppsim.job(model="llama3-8b", stack="plain", gpus=16, **options)  # type: ignore[arg-type]


_EXPOSED = {"overlap_grad_reduce": False, "overlap_param_gather": False}


def test_zero_3_exposes_what_compute_does_not_hide() -> None:
    """On a slow network each forward takes as long as its gathering; nothing hidden, it takes both."""
    table = build("1f1b", pp=2, microbatches=8)
    zero = {"pp": 2, "dp": 64, "sequence_length": 128}
    beside = assemble_job(job(**zero, optimizer=Optimizer(zero_stage=3)), table)
    behind = assemble_job(job(**zero, optimizer=Optimizer(zero_stage=3), **_EXPOSED), table)
    without = assemble_job(job(**zero, optimizer=Optimizer(zero_stage=1), **_EXPOSED), table)
    for stage in range(2):
        gather = behind.parts[stage].forward.dp_s
        compute = without.parts[stage].forward.total_s
        assert gather > compute
        assert beside.parts[stage].forward.total_s == pytest.approx(gather)
        assert behind.parts[stage].forward.total_s == pytest.approx(gather + compute)


@pytest.mark.parametrize(("limit", "deferred"), [(0, 8), (3, 3), (22, 8), (None, 0)])
def test_deferred_weight_gradients_of_the_head_leave_its_backward_for_the_end(
    limit: int | None, deferred: int
) -> None:
    table = build("1f1b", pp=2, microbatches=8)
    made, whole = (
        assemble_job(job(pp=2, global_batch=8, wgrad_deferral_limit=one), table) for one in (limit, None)
    )
    head_s = job(pp=2).costs.ends[1].backward_weight.total_s
    assert head_s > 0
    saved_s = [old.backward_weight.total_s - new.backward_weight.total_s
               for old, new in zip(whole.parts, made.parts, strict=True)]  # fmt: skip
    assert saved_s == pytest.approx([0.0, head_s * deferred / 8])
    assert np.broadcast_to(made.step_costs.deferred_s, 2) == pytest.approx([0.0, deferred * head_s])


def test_zero_3_slows_the_compute_that_hides_a_collective_by_the_sms_of_the_collective() -> None:
    """16 of the 132 SMs of an H100, not in torch's fully_shard, whose calibrated throughput includes it."""
    table = build("1f1b", pp=2, microbatches=8)
    zero = {"pp": 2, "dp": 8}
    hidden, exposed, without, fsdp2 = (
        assemble_job(job(**zero, **more), table).parts[0]
        for more in (
            {"optimizer": Optimizer(zero_stage=3)}, {"optimizer": Optimizer(zero_stage=3), **_EXPOSED},
            {"optimizer": Optimizer(zero_stage=1), **_EXPOSED}, {"optimizer": Optimizer(zero_stage=3), "fully_shard": True},
        )
    )  # fmt: skip
    for name in ("forward", "backward_input", "backward_weight"):
        of = [getattr(one, name) for one in (hidden, exposed, without)]
        assert of[0].dp_s == 0 < of[1].dp_s < of[2].total_s
        assert of[0].total_s - of[2].total_s == pytest.approx(16 / 132 * of[1].dp_s)
        assert of[0].matmul_loss_s - of[2].matmul_loss_s == pytest.approx(16 / 132 * of[1].dp_s)
        assert getattr(fsdp2, name).matmul_loss_s == pytest.approx(of[2].matmul_loss_s)


def test_a_backward_that_is_not_split_hides_gathers_and_reductions_together() -> None:
    """Recomputation is in I, so that I hides more than its gather, and W less than its reduction."""
    table = build("1f1b", pp=2, microbatches=8)
    zero: dict[str, Any] = {"pp": 2, "dp": 8, "recompute": "full", "sequence_length": 1024}
    hidden, exposed, without = (
        assemble_job(job(**zero, **more), table).parts[0]
        for more in (
            {"optimizer": Optimizer(zero_stage=3)}, {"optimizer": Optimizer(zero_stage=3), **_EXPOSED},
            {"optimizer": Optimizer(zero_stage=1), **_EXPOSED},
        )
    )  # fmt: skip
    gather_s, reduce_s = exposed.backward_input.dp_s, exposed.backward_weight.dp_s
    assert gather_s < without.backward_input.total_s
    assert reduce_s > without.backward_weight.total_s
    assert hidden.backward_weight.total_s == pytest.approx(reduce_s)
    slowed_s = without.backward.total_s + 16 / 132 * (gather_s + reduce_s)
    assert hidden.backward.total_s == pytest.approx(max(slowed_s, gather_s + reduce_s))
    assert hidden.backward.total_s < hidden.backward_input.total_s + hidden.backward_weight.total_s


def test_zero_3_hides_reductions_and_gathers_apart() -> None:
    table = build("1f1b", pp=2, microbatches=8)
    hidden, gathers, both = (
        assemble_job(job(pp=2, dp=8, optimizer=Optimizer(zero_stage=3), **overlaps), table).parts[0]
        for overlaps in (
            {}, {"overlap_param_gather": False}, {"overlap_grad_reduce": False, "overlap_param_gather": False},
        )
    )  # fmt: skip
    assert gathers.forward == both.forward
    assert gathers.backward_input == both.backward_input
    assert gathers.backward_weight == hidden.backward_weight
    assert hidden.forward.dp_s == hidden.backward_weight.dp_s == 0.0
    assert min(both.forward.dp_s, both.backward_weight.dp_s) > 0.0


@pytest.mark.parametrize(
    ("dtype", "zero", "is_primary", "num_bytes"),
    [
        ("bfloat16", 3, True, 2), ("float8", 3, False, 2), ("float8", 3, True, 1), ("mxfp8", 3, True, 33 / 32),
        ("float8", 1, False, 2), ("float8", 1, True, 1), ("float8-block", 1, True, 1 + 4 / 128), ("mxfp8", 1, True, 2),
        ("nvfp4", 1, True, 9 / 16),
    ],
)  # fmt: skip
def test_only_primary_weights_are_gathered_in_8_or_4_bits(
    dtype: str, zero: int, is_primary: bool, num_bytes: float
) -> None:
    """Embedding, norms and head have 16 bits. Megatron-LM gathers MXFP8 in 16 bits, but not in ZeRO 3."""
    optimizer = Optimizer(zero_stage=zero, fp8_param_gather=is_primary)
    one = job(cluster="dgx-b200", pp=2, dp=64, dtype=dtype, optimizer=optimizer)
    held = Ledger(one).stages(stages_of(one.model, (16, 16)))[0].held
    ranks = group(one.layout, "dp-cp", one.cluster.domain_sizes(128))
    size = 2 * (held.dense - held.gemms) + num_bytes * held.gemms
    gather_s = collectives.seconds("all-gather", size, ranks, one.cluster)
    assert replica_collective_s(one, held, "all-gather") == pytest.approx(gather_s)


@pytest.mark.parametrize(
    ("dp", "cp", "dense", "expert", "buckets"),
    [(1, 1, 40_000_000, 0, 1), (1, 1, 40_000_001, 0, 2), (2, 1, 70_000_000, 60_000_000, 4), (40, 2, 81_000_000, 0, 2), (64, 1, 0, 0, 1)],
)  # fmt: skip
def test_gradients_are_reduced_in_buckets_of_40_million_or_a_million_a_replica(
    dp: int, cp: int, dense: int, expert: int, buckets: int
) -> None:
    """Megatron-LM's bucket size, the last bucket as full as it gets, on a stage without an embedding."""
    one = job("llama3-8b", dp=dp, cp=cp, optimizer=Optimizer(zero_stage=2))
    held = RankParameters(dense=dense, expert=expert, matrices=0)
    assert num_buckets(one, Stage(()), held) == buckets


def test_the_norm_reads_every_gradient_that_a_rank_updates_once_in_float32() -> None:
    """4 bytes of each parameter of the fullest rank at the bandwidth that kernels get, and one number summed."""
    one = on_ideal_links(job("llama3-8b", pp=2, optimizer=Optimizer(zero_stage=0)))
    table = build("1f1b", pp=2, microbatches=8)
    stages = stages_of(one.model, [16, 16])
    most = max(held_parameters(one.model, [stage], one.settings.cut, vocab_multiple=128).dense for stage in stages)
    assert step_costs(one, table, stages).norm_s == pytest.approx(4 * most / (3.35e12 * 0.7))


def test_muon_moves_less_and_multiplies_more() -> None:
    table = build("1f1b", pp=2, microbatches=8)
    adam, muon = (assemble_job(job(pp=2, optimizer=Optimizer(name=name)), table) for name in ("adam", "muon"))
    assert np.max(muon.costs.static_bytes) < np.max(adam.costs.static_bytes)
    assert max(muon.step_costs.optimizer_s) > max(adam.step_costs.optimizer_s)


def test_muon_neither_reads_nor_writes_a_second_moment_of_matrices() -> None:
    """Told by an update at half the bandwidth: the products that make matrices orthogonal take the same time.

    Read and written per parameter: a master weight and a moment, and outside matrices one more moment (4 bytes each).
    Read: a gradient (4). Written: a weight (2).
    """
    table = build("1f1b", pp=2, microbatches=8)
    one = job(pp=2, optimizer=Optimizer(name="muon", zero_stage=0))
    device = one.cluster.device
    slow = replace(device, efficiency=replace(device.efficiency, optimizer=device.efficiency.optimizer / 2))
    late = replace(one, cluster=replace(one.cluster, device=slow))
    took, longer = (assemble_job(each, table, split="even").step_costs.optimizer_s for each in (one, late))
    for stage, contents in enumerate(stages_of(one.model, [16, 16])):
        held = held_parameters(one.model, [contents], one.settings.cut, vocab_multiple=128)
        num_bytes = held.dense * (2 * (4 + 4) + 4 + 2) + (held.dense - held.matrices) * 2 * 4
        rate = device.memory_bytes_per_s * device.efficiency.optimizer
        assert longer[stage] - took[stage] == pytest.approx(num_bytes / rate)


def test_the_norm_is_summed_over_all_devices() -> None:
    assert all_devices(Layout(tp=8, dp=4, pp=4), (8, None)).num_ranks == 128
    table = build("1f1b", pp=2, microbatches=8)
    small, large = (assemble_job(job(pp=2, dp=dp, optimizer=Optimizer(zero_stage=0)), table) for dp in (1, 512))
    assert large.step_costs.norm_s > small.step_costs.norm_s


def test_a_hop_crosses_the_link_between_its_ranks() -> None:
    """tp 4 puts two pipeline ranks on a node of 8: every other hop leaves it, the way back and that of a V too."""
    one = job("llama3-8b", tp=4, pp=4)
    inside, outside = sorted(set(assemble_job(one, build("1f1b", pp=4, microbatches=8)).costs.transfer_s))[-2:]
    assert inside < outside
    loop = assemble_job(one, build("interleaved-1f1b", pp=4, vpp=2, microbatches=8)).costs.transfer_s
    assert list(loop[:7]) == [inside, outside, inside, outside, inside, outside, inside]
    wave = assemble_job(one, build("zbv-fixed", pp=4, microbatches=8)).costs.transfer_s
    assert [wave[stage] for stage in (0, 1, 2, 4, 5, 6)] == [inside, outside, inside, inside, outside, inside]
    both = build("dualpipe", pp=4, microbatches=8)
    assert len(assemble_job(one, both).costs.transfer_s) == both.num_stages


@pytest.mark.parametrize("scatters", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_hop_sends_a_part_if_ranks_divide_the_tokens_or_gather_them_again(
    scatters: bool, sequence_parallel: bool
) -> None:
    """Hidden states of 4096 columns of 2 bytes, on 4 tensor-parallel ranks of one node."""
    one = job("llama3-8b", tp=4, pp=2, scatter_gather=scatters)
    one = replace(one, execution=replace(one.execution, sequence_parallel=sequence_parallel))
    whole, gathers = 2.0 * one.micro_batch * one.length * 4096, scatters and not sequence_parallel
    sent = whole / 4 if scatters or sequence_parallel else whole
    expected_s = collectives.point_to_point_s(sent, one.cluster.tiers[0].p2p_link)
    expected_s += one.place.seconds("all-gather", whole, "tp") if gathers else 0.0
    found = assemble_job(one, build("1f1b", pp=2, microbatches=8)).costs.transfer_s
    assert list(found) == pytest.approx([expected_s, expected_s])


def test_tied_embeddings_are_summed_where_two_ranks_hold_them() -> None:
    tied = job("gpt2", pp=4)
    assert tied.model.tied_embeddings
    around = assemble_job(tied, build("1f1b", pp=4, microbatches=8)).step_costs
    assert [one.ranks for one in around.sharing] == [(0, 3)]
    assert assemble_job(tied, build("zbv-fixed", pp=4, microbatches=8)).step_costs.sharing == ()
    predicts = job("deepseek-v3", layers=14, pp=4, ep=2, dp=2)
    assert [
        one.ranks for one in assemble_job(predicts, build("1f1b", pp=4, microbatches=8)).step_costs.sharing
    ] == [(0, 3)]


@pytest.mark.parametrize("schedule", ["dualpipe", "chimera"])
def test_replicas_sum_the_gradients_of_every_stage_that_two_ranks_hold(schedule: str) -> None:
    table = build(schedule, pp=4, microbatches=8)
    around = assemble_job(job("llama3-8b", pp=4), table).step_costs
    assert [one.ranks for one in around.sharing] == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert len(around.reduce_s) == table.num_stages


@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize(
    ("ranks", "num_replicas"), [([0, 1, 1, 0], 2), ([0, 1, 1, 0, 0, 1, 1, 0], 4), ([0, 1, 0, 1], 2)]
)
def test_replicas_of_a_stage_sum_what_each_keeps_of_its_gradients(
    ranks: list[int], num_replicas: int, zero_stage: int
) -> None:
    """1/dp of a stage's gradients, once over the link between the ranks that hold it; nothing on one rank alone."""
    one = job("llama3-8b", pp=2, tp=8, dp=4, optimizer=Optimizer(zero_stage=zero_stage))
    table = replace(Schedule.outline(ranks, num_microbatches=8), num_replicas=num_replicas)
    stages = stages_of(one.model, [16, 16])
    sharing = step_costs(one, table, stages).sharing
    if len(set(ranks[::2])) == 1:
        assert sharing == ()
        return
    held = [held_parameters(one.model, [stage], one.settings.cut, vocab_multiple=128).dense for stage in stages]
    between_nodes = RankGroup("replicas", 2, (1, 2))
    for stage, shared in enumerate(sharing):
        assert set(shared.ranks) == {0, 1}
        whole = collectives.seconds("all-reduce", held[stage] * 4 / 4, between_nodes, one.cluster)
        assert shared.seconds == pytest.approx(whole)


def test_replicas_of_a_stage_sum_a_part_of_each_expert_as_large_as_its_own_group_leaves() -> None:
    """With tp 2, dp 8 and ep 4, the same weights are on 8 ranks and the same experts on 2: 1/8 and 1/2 of each."""
    one = job("mixtral-8x7b", layers=4, pp=2, tp=2, dp=8, ep=4)
    ranks = [one.place.ranks(name).num_ranks for name in ("dp-cp", "expert-dp")]
    assert ranks == [8, 2]
    table = build("dualpipe", pp=2, microbatches=8)
    stages = stages_of(one.model, [2, 2])
    held = [held_parameters(one.model, [stage], one.settings.cut, vocab_multiple=128) for stage in stages]
    link = RankGroup("replicas", 2, (1, 2))
    for mine, shared in zip(held, step_costs(one, table, stages).sharing, strict=True):
        num_bytes = (mine.dense / 8 + mine.expert / 2) * 4
        assert shared.seconds == pytest.approx(collectives.seconds("all-reduce", num_bytes, link, one.cluster))


def test_two_replicas_on_each_pipeline_cost_little_beside_the_sum_over_dp() -> None:
    """Of 32 ranks each has a 32nd to sum with its counterpart: less than the reduce-scatter among them took."""
    one = job("llama3-8b", pp=4, dp=32, global_batch=256)
    around = assemble_job(one, build("dualpipe", pp=4, microbatches=8)).step_costs
    assert 0 < max(shared.seconds for shared in around.sharing) < max(around.reduce_s) / 3


def test_a_layout_string_is_assembled_as_it_says() -> None:
    one = job("llama3-8b", layers=8, pp=4)
    table = build("1f1b", pp=4, microbatches=8)
    made = assemble_job(one, table, split=["E", "ttt", "ttttt", "L"])
    assert made.split == [0, 3, 5, 0]
    assert made.contents == ["E", "ttt", "ttttt", "L"]
    given = assemble_job(one, table, split=[0, 3, 5, 0])
    assert list(given.costs.forward_s) == list(made.costs.forward_s)
    with pytest.raises(ConfigError, match="the layout has 7 layers, but the model has 8"):
        assemble_job(one, table, split=["E", "ttt", "tttt", "L"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"global_batch": 7, "dp": 2}, "must be a multiple of micro-batch · dp = 1 · 2: got 7 (nearest: 6 or 8)"),
        ({"cp": 3, "sequence_length": 4096}, "divisible by 6"),
        ({"tp": 3}, "tp must divide the heads"),
        ({"ep": 2, "dp": 2}, "got ep 2"),
        ({"micro_batch": 0}, "at least 1"),
        ({"sequence_length": 0}, "sequence length must be at least 1: got 0"),
        ({"dtype": "float4"}, "has no float4 in its tensor cores"),
        ({"recompute": "mla_up_proj"}, "recompute mla_up_proj is for layers with latent attention"),
        ({"recompute": "layernorm+moe_act"}, "recompute moe_act is for layers with experts, and the model has none"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(fields: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job("llama3-8b", **fields)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_further_token_costs_the_same_wherever_its_layer_is(tp: int) -> None:
    """Layer, projection and second pass through the head: on the head's stage, before it, or two stages before it."""
    one = job("deepseek-v3", layers=6, pp=4, tp=tp, dp=2, ep=2, sequence_length=1024, **_EXPOSED)
    table = build("1f1b", pp=4, microbatches=8)
    layouts = ["Etttt", "t", "t", "mL"], ["Etttt", "t", "tm", "L"], ["Etttt", "tm", "t", "L"]
    made = [assemble_job(one, table, split=list(layout)) for layout in layouts]
    for name in ("forward", "backward_input", "backward_weight"):
        totals = [sum(getattr(part, name).total_s for part in each.parts) for each in made]
        assert totals == pytest.approx([totals[0]] * 3)
    head = one.costs.ends[1]
    assert made[1].parts[3].forward.total_s == pytest.approx(2 * head.forward.total_s)
    assert made[1].parts[3].backward.total_s == pytest.approx(2 * head.backward.total_s)


def test_the_hidden_states_of_a_further_token_travel_with_the_others() -> None:
    """Behind its layer every hop carries two states a token (Megatron-LM concatenates them up to the head)."""
    one = on_ideal_links(job("deepseek-v3", layers=6, pp=4, dp=2, ep=2))
    tiers = tuple(replace(tier, link=replace(tier.link, bytes_per_s=1e9)) for tier in one.cluster.tiers)
    one = replace(one, cluster=replace(one.cluster, tiers=tiers))
    early, late = (
        assemble_job(one, build("1f1b", pp=4, microbatches=8), split=split).costs.transfer_s
        for split in (["Etttt", "tm", "t", "L"], ["Etttt", "t", "t", "mL"])
    )
    assert [a / b for a, b in zip(early[:3], late[:3], strict=True)] == pytest.approx([1, 2, 2])


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_ranks_divide_the_projection_of_a_further_token(sequence_parallel: bool) -> None:
    """2h × h: 4h² FLOPs a token, forward, input and weight gradient alike, of which tp ranks have a part each."""
    for tp in (1, 4):
        one = job("deepseek-v3", layers=6, dp=2, ep=2, tp=tp)
        one = replace(one, execution=replace(one.execution, sequence_parallel=sequence_parallel))
        beside = end_estimate(one.model, "mtp", one.place, micro_batch=1, sequence_length=one.length)
        ideal = 4 * 7168**2 * one.length / tp / one.cluster.device.peak("bfloat16")
        for passed in (beside.forward, beside.backward_input, beside.backward_weight):
            assert passed.ideal_s == pytest.approx(ideal)
            assert passed.matmul_loss_s > 0
        assert (beside.forward.tp_s > 0) == (tp > 1)


def test_jobs_of_several_racks_get_64_of_the_72_of_each() -> None:
    """16 trays of 4: a job of 72, or of whole racks, has them all; any other one is placed by 64s."""
    racks = load_cluster("gb200-nvl72")
    assert [racks.domain_sizes(count)[0] for count in (8, 64, 72, 128, 144, 256, 576)] == [
        72,
        72,
        72,
        64,
        72,
        64,
        64,
    ]
    assert load_cluster("dgx-h100").domain_sizes(20) == (8, None)


def test_experts_that_fill_the_usable_part_of_a_rack_stay_in_it_and_straddling_ones_are_named() -> None:
    """ep 64 is one rack's; with tp 2 it takes two, and what the network costs it stands in the assumptions."""
    sizes = {"cluster": "gb200-nvl72", "layers": 16, "pp": 4, "dp": 64, "ep": 64}
    inside, across = (job("deepseek-v3", tp=tp, global_batch=256, **sizes) for tp in (1, 2))
    table = build("1f1b", pp=4, microbatches=4)
    said = [
        [line for line in assemble_job(one, table).assumptions if "spans several" in line]
        for one in (inside, across)
    ]
    assert said[0] == []
    moe = [max(one.costs.layers().values(), key=lambda costs: costs.forward.ep_s) for one in (inside, across)]
    ep_s = [(costs.forward + costs.backward).ep_s for costs in moe]
    assert ep_s[1] > 1.1 * ep_s[0] / 2
    (line,) = said[1]
    assert line.startswith(
        f"ep 64 spans several racks of 64 GPUs: {seconds(ep_s[1])} of communication per layer and microbatch"
    )


def test_the_models_of_the_tests_are_those_meant() -> None:
    assert find_model("deepseek-v3").mtp
    assert find_model("qwen3-30b-a3b").layers[0].is_moe


def test_a_job_with_more_microbatches_has_the_same_costs_a_microbatch() -> None:
    table = build("1f1b", pp=2, microbatches=8)
    one = job("llama3-8b", pp=2)
    more = replace(one, global_batch=2 * one.global_batch)
    assert assemble_job(one, table).costs.forward_s == assemble_job(more, table).costs.forward_s


def test_experts_whole_on_a_rank_need_no_sum_among_tensor_parallel_ranks() -> None:
    """etp 1: an expert's products are whole, its tokens come by the dispatch alone; attention is as it was.

    Where etp ranks share an expert they gather, and sum, every (token, expert) pair that was dispatched to it.
    """
    usual, whole = (job("qwen3-30b-a3b", tp=4, dp=8, ep=8, etp=etp, pp=4) for etp in (4, 1))
    (one,), (other,) = usual.costs.layers().values(), whole.costs.layers().values()
    message, layer = 4096 * 2048 * 2.0, usual.model.layers[0]
    of_attention, of_pairs = (usual.place.sum_over_tp_s(times * message) for times in (1, layer.experts_per_token))
    assert other.forward.tp_s == pytest.approx(of_attention)
    assert one.forward.tp_s == pytest.approx(of_attention + of_pairs)
    assert other.forward.ideal_s == one.forward.ideal_s
    table = build("1f1b", pp=4, microbatches=8)
    assert "ep 8, etp 1" in "".join(assemble_job(whole, table).assumptions)
    held = [step_costs(each, table, stages_of(each.model, [12] * 4)) for each in (usual, whole)]
    assert max(held[1].gather_s) != max(held[0].gather_s)
    with pytest.raises(ConfigError, match="the model has no experts to divide: got etp 1"):
        job("llama3-8b", tp=4, etp=1)
