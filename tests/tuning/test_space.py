"""A space holds every configuration that goes, and none that does not; an empty one says why."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.catalog.build import find
from ppsim.model.pipeline_stages import StagePlan
from ppsim.projection.changes import LEAST_TOKENS
from ppsim.tuning.command_line import command_of
from ppsim.tuning.space import (
    PLANNED,
    Configuration,
    _Refusals,
    _schedules,
    configurations,
    space_for,
    zero_stages,
)
from tests.tuning.questions import question


def test_every_configuration_fills_the_devices_and_divides_the_batch():
    asked = question("mixtral-8x7b", layers=8, gpus=16, batch=32, length=4096)
    found = configurations(asked, space_for(asked))
    assert len(found) == len(set(found)) == len({one.key for one in found}) > 1000
    for one in found:
        assert one.tp * one.cp * one.dp * one.pp == 16
        assert 32 % (one.micro_batch * one.dp) == 0
        assert one.tp * one.dp * one.cp % one.ep == 0
        assert one.pp * one.vpp <= 8 + 2
        microbatches = 32 // (one.micro_batch * one.dp)
        assert find(one.schedule).why_not(pp=one.pp, vpp=one.vpp, microbatches=microbatches) is None
    assert {one.ep for one in found} == {1, 2, 4, 8}


def test_one_pipeline_rank_has_one_schedule():
    asked = question(gpus=8, batch=8)
    found = configurations(asked, space_for(asked, pp=[1]))
    assert {(one.schedule, one.vpp) for one in found} == {("1f1b", 1)}


def test_under_fsdp2_selective_op_is_tried_too_where_no_backward_is_split():
    plain, sharded = question(), question(fully_shard=True)
    assert "selective-op" not in space_for(plain).recompute
    found = configurations(sharded, space_for(sharded, schedule=["1f1b", "zbv-fixed"], pp=[2], vpp=[1, 2]))
    tried = {(find(one.schedule).splits_backward, one.recompute) for one in found}
    assert tried == {(False, "none"), (False, "selective-op"), (False, "full"), (True, "none"), (True, "full")}


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"tp": [3]}, "tp 3 · cp 1 · pp 1 = 3 does not divide 16 devices (nearest: 15 or 18 devices)"),
        ({"pp": [2], "dp": [3], "tp": [2], "cp": [1]}, "dp is what tp 2 · cp 1 · pp 2 leave of 16 devices: got 3 (nearest: 4)"),
        ({"micro_batch": [3]}, "micro-batch · dp"),
        ({"schedule": ["zbv-fixed"], "vpp": [4]}, "zbv-fixed needs exactly 2 stages per rank: got vpp=4 (nearest: 2)"),
        ({"pp": [16], "vpp": [8]}, "32 layers are too few for 128 stages"),
        ({"ep": [2]}, "got ep 2"),
        ({"schedule": ["dualpipe"]}, "dualpipe holds two replicas of the model, which tune does not search"),
        ({"schedule": ["seq1f1b"]}, "seq1f1b cuts microbatches into slices, which tune does not search"),
        ({"schedule": ["auto"]}, "auto improves on the best of other schedules"),
        ({"schedule": ["1f2b"]}, "unknown schedule '1f2b'"),
        ({"tp": [0]}, "tp"),
        ({"vpp": []}, "there must be at least one vpp to try"),
    ],
)  # fmt: skip
def test_an_empty_space_is_a_sentence(ranges, words):
    asked = question(gpus=16, batch=32)
    with pytest.raises(ConfigError) as refused:
        configurations(asked, space_for(asked, **ranges))
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_experts_of_a_tensor_parallelism_of_their_own_are_spread_over_more_ranks() -> None:
    """Eight over tp 2 · dp 4, where tp 2 would leave four (MoE Parallel Folding, arXiv 2504.14960)."""
    ranges = {"tp": [2], "cp": [1], "ep": [8], "pp": [2], "vpp": [1], "micro_batch": [1], "schedule": ["1f1b"]}
    asked = {
        "model": "mixtral-8x7b",
        "stack": "plain",
        "cluster": "dgx-h100",
        "gpus": 16,
        "global_batch": 64,
        "recompute": ["full"],
    }
    assumed = ppsim.tune(**asked, **ranges, split=["even"])
    assert "--etp" not in command_of(assumed.question, assumed.best[0].candidate)  # ppsim project assumes it, too
    tuned = ppsim.tune(**asked, **ranges, split=["even"], etp=[4, 1])
    assert tuned.best == assumed.best
    found = tuned.best[0]
    assert (found.candidate.ep, found.candidate.dp) == (8, 4)
    assert tuned.question.job_of(found.candidate).layout.expert_tp == 1
    assert " --etp 1" in command_of(tuned.question, found.candidate)
    assert tuned.question.to_json()["etp"] == 1


def test_several_sizes_of_each_expert_are_tried_with_every_layout() -> None:
    asked = replace(question("mixtral-8x7b", gpus=8, batch=32, length=4096), etp=1)
    space = space_for(asked, tp=[2], cp=[1], ep=[2], pp=[1], etp=[1, 2], micro_batch=[1], zero=[1])
    found = configurations(asked, space)
    sizes = {one.switched: asked.job_of(one).layout.expert_tp for one in found}
    assert sizes == {(): 1, ("etp=2",): 2}
    assert all(map(space.allows, found))
    assert not space.allows(replace(found[0], switched=("etp=4",)))
    assert space.to_json()["etp"] == [1, 2]
    assert "etp" not in space_for(asked).to_json(), "files of earlier versions continue"


def test_sizes_of_experts_are_for_models_with_experts() -> None:
    with pytest.raises(ConfigError, match=r"^--etp is for a model with experts: gpt2 has none$"):
        ppsim.tune(model="gpt2", gpus=2, global_batch=8, etp=2)


def tried_stages(asked, **ranges):
    found = configurations(asked, space_for(asked, pp=[1, 2], vpp=[1], schedule=["1f1b"], **ranges))
    return {(one.pp, one.zero) for one in found}


def test_zero_3_is_tried_without_a_pipeline_and_every_stage_that_is_given_everywhere() -> None:
    assert tried_stages(question()) == {(1, 1), (1, 3), (2, 1)}
    assert tried_stages(question(zero=0)) == {(1, 0), (2, 0)}
    assert tried_stages(question(fully_shard=True)) == {(1, 1), (2, 1)}
    assert tried_stages(question(), zero=[2]) == {(1, 2), (2, 2)}
    with pytest.raises(ConfigError, match="--zero takes stages 0 to 3: got 4"):
        space_for(question(), zero=[4])


def test_zero_3_at_pp_1_is_tried_for_llama3_8b_on_16_gpus_and_needs_less_memory() -> None:
    asked = {
        "model": "llama3-8b", "gpus": 16, "global_batch": 64, "tp": [1], "cp": [1], "micro_batch": [1],
        "stack": "plain", "schedule": ["1f1b"], "vpp": [1],
    }  # fmt: skip
    best, own = (ppsim.tune(**asked, pp=[1, 2], zero=stages) for stages in (None, [1]))
    before = own.best[0]
    sharded = next(one for one in best.simulated if (one.candidate.zero, one.candidate.pp) == (3, 1))
    assert sharded.iteration_time_s < 1.1 * before.iteration_time_s
    assert sharded.peak_bytes < 0.8 * before.peak_bytes
    assert " --zero 3" in command_of(best.question, sharded.candidate)
    assert "--zero" not in command_of(own.question, before.candidate)


def test_an_option_that_replaces_a_setting_of_the_stack_is_typed_also_if_it_has_its_default() -> None:
    """The recipe of the stack's release has alltoall, and the default is deepep."""
    tuned = ppsim.tune(
        model="qwen3-235b-a22b", cluster="dgx-b200", gpus=64, global_batch=64, seq_len=4096, dtype="bfloat16",
        stack="megatron-bridge@26.02", pp=[8], vpp=[1], ep=[8], tp=[2], cp=[1], micro_batch=[1], zero=[1],
        recompute=["none"], schedule=["1f1b"], split=["even"], overlap_ep=0.0, cuda_graphs="none",
    )  # fmt: skip
    best = tuned.best[0].candidate
    assert tuned.question.job_of(best).execution.moe_dispatcher == "alltoall"
    assert "moe-dispatcher" not in command_of(tuned.question, best)
    other = replace(best, switched=("moe_dispatcher=deepep",))
    assert "--moe-dispatcher deepep" in command_of(tuned.question, other)


USUAL = {
    "model": "llama3-8b", "num_layers": 32, "cluster": "dgx-h100", "gpus": 16, "global_batch": 32,
    "sequence_length": 8192, "order": "tp-cp-ep-dp-pp", "dtype": "bfloat16", "sequence_parallel": None,
    "optimizer": "adam", "zero_stage": 1, "update": "synchronised", "overlap_grad_reduce": True,
    "overlap_param_gather": True, "runtime": "torch", "memory_limit_bytes": 75.0 * 2**30,
    "grad_reduce_in_bf16": False,
}  # fmt: skip


def test_the_json_of_a_question_has_its_job_and_what_is_unusual():
    asked = question()
    assert asked.to_json() == USUAL
    assert (asked.trainer, asked.names_trainer, asked.calibration_file) == ("", False, None)
    job = asked.job
    unusual = replace(
        asked, etp=2, trainer="megatron", overheads=(("action_overhead_s", 1.0),), sequence_parallel=True,
        by_pipeline={True: {"zero": 1}, False: {"zero": 3}},
        job=replace(
            job, rest_s=2.0, global_batch=64, execution=replace(job.execution, dropout=0.5),
            optimizer=replace(job.optimizer, num_distributed_optimizer_instances=2),
        ),
    )  # fmt: skip
    assert unusual.to_json() == USUAL | {
        "etp": 2, "trainer": "megatron", "overheads": {"action_overhead_s": 1.0}, "sequence_parallel": True,
        "with_pipeline": {"zero": 1}, "without_pipeline": {"zero": 3}, "dropout": 0.5, "rest_s": 2.0,
        "global_batch": 64, "num_distributed_optimizer_instances": 2,
    }  # fmt: skip


def test_the_key_of_a_configuration_is_read_again():
    for key in (
        "tp8 cp2 ep4 dp16 pp3 vpp5 mb7 none interleaved-1f1b auto",
        "tp8 cp2 ep4 dp16 pp3 vpp5 mb7 full 1f1b even zero3 moe_dispatcher=alltoall offload=0.25",
    ):
        configuration = Configuration.of_key(key)
        assert configuration.key == key
        assert (configuration.tp, configuration.cp, configuration.ep, configuration.dp) == (8, 2, 4, 16)
        assert (configuration.pp, configuration.vpp, configuration.micro_batch) == (3, 5, 7)
        assert configuration.num_gpus == 8 * 2 * 16 * 3
    assert (configuration.recompute, configuration.split, configuration.zero) == ("full", "even", 3)
    assert configuration.switches == {"moe_dispatcher": "alltoall", "offload": 0.25}
    assert Configuration.of_key("tp8") is None
    usual = Configuration(2, 3, 5, 7, 11, 13, 17, "none", "1f1b", "even")
    assert usual.key == "tp2 cp3 ep5 dp7 pp11 vpp13 mb17 none 1f1b even", "ZeRO 1"


def test_a_plan_is_a_configuration_of_its_number_of_gpus():
    asked = question()
    made = ppsim.project(
        model="llama3-8b", stack="plain", gpus=16, tp=2, pp=2, vpp=2, global_batch=32, recompute="full", zero=0
    ).plan
    found = Configuration.of_plan(made, asked)
    assert found.key.startswith("tp2 cp1 ep1 dp4 pp2 vpp2 mb1 full interleaved-1f1b searched zero0")
    assert Configuration.of_plan(replace(made, split="even"), asked).split == "even"
    assert found.switched == ()
    assert Configuration.of_plan(made, replace(asked, num_gpus=8)) is None
    switched = replace(made, job=replace(made.job, execution=replace(made.job.execution, sequence_parallel=False)))
    assert Configuration.of_plan(switched, asked).switched == ("sequence_parallel=False",)
    planned = replace(made, job=replace(made.job, stage_plans=(StagePlan("full"),) * 4))
    assert Configuration.of_plan(planned, asked) is None
    assert Configuration.of_plan(ppsim.project(pp=2, microbatches=4).plan, asked) is None


def test_overlapped_experts_need_pairs_of_passes_and_several_expert_parallel_ranks():
    asked = question("mixtral-8x7b", gpus=8)
    usual = space_for(asked)
    assert 1 in usual.ep
    overlapped = replace(
        asked, job=replace(asked.job, execution=replace(asked.job.execution, overlap_ep="megatron"))
    )
    space = space_for(overlapped)
    assert space.schedule == ("combined-1f1b", "dualpipev")
    assert space.ep == tuple(size for size in usual.ep if size > 1)
    assert space_for(question()).ep == (1,)
    sharded = replace(question(), job=replace(question().job, fully_shard=True))
    assert space_for(sharded).recompute == ("none", "selective-op", "full")
    start = Configuration.of_key("tp3 cp1 ep1 dp2 pp5 vpp1 mb11 none 1f1b auto")
    started = space_for(question(), start=start, tp=[1, 2, 1])
    assert (started.tp, started.pp[-1], started.micro_batch[-1], started.start) == ((1, 2), 5, 11, start)
    assert "tp" in started.fixed
    assert "pp" not in started.fixed


def test_the_rejection_after_most_checks_is_told_and_of_those_the_nearest() -> None:
    refusals = _Refusals()
    said = []
    for depth, reason, off_by in (
        (0, "a", 9), (0, "b", 5), (0, "c", 5), (0, "d", 6), (2, "e", 7), (1, "f", 0), (2, "g", 6), (3, "h", 99),
    ):  # fmt: skip
        refusals.note(depth, reason, off_by=off_by)
        said.append(refusals.sentence)
    assert said == ["a", "b", "b", "b", "e", "e", "g", "h"]
    refusals.note(3, ConfigError("i"))
    assert refusals.sentence == "i"


def test_schedules_are_those_that_the_sizes_allow_and_one_without_a_pipeline() -> None:
    space = space_for(question(), vpp=[1, 2, 4], schedule=["zbv", "1f1b", "interleaved-1f1b"])
    refusals = _Refusals()
    assert list(_schedules(space, 4, 8, 12, refusals)) == [(1, "1f1b"), (2, "zbv"), (2, "interleaved-1f1b")]
    assert refusals.sentence == "12 layers are too few for 16 stages: some would hold nothing"
    assert list(_schedules(space, 1, 8, 12, refusals)) == [(1, "1f1b")]


def sharding(**fields: Any) -> Any:
    job = {"optimizer": SimpleNamespace(name="adam"), "fully_shard": False, "stack": "megatron-bridge@26.02"}
    graphs = SimpleNamespace(cuda_graphs=fields.pop("cuda_graphs", "none"))
    own = fields.pop("own", 1)
    return SimpleNamespace(zero_for=lambda pp: own, job=SimpleNamespace(**job | fields, execution=graphs))


@pytest.mark.parametrize(
    ("fields", "pp", "stages"),
    [
        ({}, 1, (1, 3)),
        ({}, 2, (1,)),
        ({"own": 2}, 1, (2,)),
        ({"optimizer": SimpleNamespace(name="sgd")}, 1, (1,)),
        ({"fully_shard": True}, 1, (1,)),
        ({"stack": "torchtitan"}, 1, (1,)),
        ({"stack": "primus"}, 1, (1, 3)),
        ({"cuda_graphs": "layer"}, 1, (1,)),
    ],
)
def test_zero_3_is_tried_where_megatron_fsdp_can_shard_the_same_job(
    fields: dict[str, Any], pp: int, stages: tuple[int, ...]
) -> None:
    ranges: Any = SimpleNamespace(zero=None)
    assert zero_stages(sharding(**fields), ranges, pp) == stages
    ranges.zero = (0, 2)
    assert zero_stages(sharding(**fields), ranges, pp) == (0, 2)


def test_a_search_stays_in_the_ranges_of_the_user() -> None:
    usual = Configuration(2, 1, 1, 4, 2, 1, 1, "none", "1f1b", "auto")
    fixed = space_for(question(), tp=[2], recompute=["none"], split=["auto"], fixed=["moe_dispatcher"])
    assert fixed.allows(usual)
    assert fixed.allows(replace(usual, split="searched", pp=8, switched=("offload=0.5",)))
    assert fixed.allows(replace(usual, recompute=PLANNED))
    for other in (
        {"tp": 4}, {"recompute": "full"}, {"split": "even"}, {"switched": ("moe_dispatcher=alltoall",)},
        {"tp": 4, "recompute": PLANNED},
    ):  # fmt: skip
        assert not fixed.allows(replace(usual, **other)), other
    assert space_for(question()).allows(replace(usual, tp=4, split="even", switched=("moe_dispatcher=alltoall",)))
    assert not space_for(question(), dp=[8]).allows(usual)


def test_default_ranges_follow_from_the_sizes() -> None:
    """Of 24 GPUs in nodes of 8, tp divides 8 key/value heads; each context-parallel rank has enough tokens."""
    space = space_for(question(gpus=24, layers=4, length=4 * LEAST_TOKENS))
    assert (space.tp, space.pp) == ((1, 2, 4, 8), (1, 2, 3, 4, 6))
    assert (space.cp, space.ep) == ((1, 2, 4), (1,))
    assert (space.vpp, space.micro_batch) == ((1, 2, 4, 8), (1, 2, 4, 8))
    assert space_for(question(length=3)).cp == (1,)
    experts = space_for(question("mixtral-8x7b", layers=4))
    assert experts.ep == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("ranges", "sentence"),
    [
        ({"tp": (0,)}, "tp must be at least 1: got 0"),
        ({"zero": (-1,)}, "zero must be at least 0: got -1"),
        ({"zero": (4,)}, "--zero takes stages 0 to 3: got 4 (nearest: 3)"),
        ({"split": ()}, "there must be at least one split to try"),
    ],
)
def test_a_range_has_possible_numbers(ranges: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        space_for(question(), **ranges)
    assert str(refused.value) == sentence


def test_the_nearest_number_of_data_parallel_ranks_is_told() -> None:
    """tp 2 leaves 8 ranks, and tp 1 leaves 16."""
    asked = question(gpus=16, batch=32)
    for given, nearest in (([15, 99], "got 15, 99 (nearest: 16)"), ([7], "got 7 (nearest: 8)")):
        with pytest.raises(ConfigError) as refused:
            configurations(asked, space_for(asked, tp=[2, 1], cp=[1], pp=[1], dp=given))
        assert str(refused.value).endswith(nearest)


def test_a_search_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="there must be at least 1 device: got 0"):
        space_for(replace(question(), num_gpus=0))
