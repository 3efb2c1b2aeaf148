"""A trainer's configuration behind the command line: what it says, what overrides it, and the way back."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import ppsim
from ppsim.cli import main
from ppsim.errors import ConfigError

SCRIPT = """
GPUS=16
torchrun --nproc_per_node 8 --nnodes $(($GPUS/8)) pretrain_gpt.py \\
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \\
  --vocab-size 50257 --micro-batch-size 2 --global-batch-size 64 --bf16 --tensor-model-parallel-size 2 \\
  --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 --use-distributed-optimizer \\
  --overlap-grad-reduce --recompute-activations --tp-comm-overlap \\
  --sequence-parallel --some-new-option 3 --save /tmp/x
"""
SAME = {
    "model": "gpt3-350m", "gpus": 16, "tp": 2, "pp": 4, "vpp": 2, "micro_batch": 2, "global_batch": 64,
    "seq_len": 2048, "recompute": "core_attn", "runtime": "megatron", "sequence_parallel": True, "zero": 1,
    "overlap_grad_reduce": True, "overlap_param_gather": False, "dtype": "bfloat16", "overlap_tp": 0.5, "dropout": True, "cross_entropy": "unfused",
    "stack": "plain",
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_a_configuration_projects_as_its_words_do(script: Path) -> None:
    by_file, by_words = ppsim.project(run_config=script), ppsim.project(**SAME)  # type: ignore[arg-type]
    assert by_file.iteration_time_s == by_words.iteration_time_s
    assert by_file.plan.job is not None
    assert by_file.plan.job.model.parameters == ppsim.job(model="gpt3-350m").model.parameters


def test_a_word_that_is_given_replaces_its_own_setting(script: Path) -> None:
    made = ppsim.project(run_config=script, schedule="zb-h1", vpp=1, microbatches=16, runtime="torch")
    assert (made.timeline.schedule.name, made.timeline.schedule.vpp) == ("zb-h1", 1)
    assert made.timeline.schedule.num_microbatches == 16
    assert ppsim.project(run_config=script, dp=1).num_gpus == 8
    assert ppsim.project(run_config=script, pp=2).timeline.schedule.num_ranks == 2
    other = ppsim.project(run_config=script, model="gpt3-1.3b")
    assert other.plan.job is not None
    assert other.plan.job.model_name == "gpt3-1.3b"


def test_the_model_alone_may_be_read_of_it(script: Path) -> None:
    assert ppsim.job(model=script).model.parameters == ppsim.job(model="gpt3-350m").model.parameters


def test_the_command_says_what_it_understood_and_what_not(script: Path) -> None:
    done = CliRunner().invoke(main, ["project", "--run-config", str(script), "--json"])
    assert done.exit_code == 0, done.stderr
    assert "read: a model of 0.356 G parameters, tp 2, pp 4" in done.stderr
    assert "tp_comm_overlap: 50 % of TP communication is hidden" in done.stderr
    assert "ignored (effect unknown, not Megatron-LM's): some_new_option 3" in done.stderr
    assert "save" not in done.stderr
    found = json.loads(done.stdout)["run_config"]
    assert found["trainer"] == "Megatron-LM"
    assert found["read_options"]["tp_comm_overlap"] == "overlap_tp"
    assert {one["name"] for one in found["ignored"]} == {"some_new_option"}


def test_the_plan_goes_back_as_the_trainers_options(script: Path) -> None:
    done = CliRunner().invoke(main, ["project", "--run-config", str(script), "--to-config", "megatron"])
    assert done.exit_code == 0, done.stderr
    lines = [line.removesuffix("\\").strip() for line in done.stdout.splitlines()]
    for line in (
        "--tensor-model-parallel-size 2",
        "--num-layers-per-virtual-pipeline-stage 3",
        "--recompute-activations",
        "--some-new-option 3",
    ):
        assert line in lines


def test_only_a_model_with_experts_is_given_options_of_experts() -> None:
    found = [ppsim.project(model=model, gpus=2, pp=2, ep=1) for model in ("gpt2", "mixtral-8x7b")]
    dense, sparse = (ppsim.trainer_options(one, "megatron") for one in found)
    assert "moe" not in dense
    assert "--moe-token-dispatcher-type flex" in sparse


def test_a_search_of_a_configuration_gives_the_best_back(script: Path) -> None:
    command = ["tune", "--run-config", str(script), "--pp", "2,4", "--tp", "2", "--micro-batch-size", "2", "--schedule",
               "1f1b", "--recompute", "none", "--to-config", "primus"]  # fmt: skip
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.stderr
    assert "pipeline_model_parallel_size: " in done.stdout
    assert f"--model {script}" in " ".join(done.stdout.split())  # the command that projects it in full


@pytest.mark.search
def test_a_search_tries_what_the_configuration_has_one_of(script: Path) -> None:
    """Its own tp, pp, vpp, microbatch and recomputation are the start of the search."""
    words = {"run_config": script, "cp": [1], "ep": [1], "schedule": ["1f1b"], "split": ["even"], "pp": [2, 4]}
    found = ppsim.tune(**words, recompute=["none"])  # type: ignore[arg-type]
    given = ppsim.tune(**words, recompute=["none"], tp=[1, 2, 4, 8], micro_batch=[1, 2, 4, 8])  # type: ignore[arg-type]
    assert {one.candidate.pp for one in found.simulated} == {2, 4}
    assert found.best[0].candidate == given.best[0].candidate
    assert found.question.job.global_batch == 64
    done = CliRunner().invoke(main, ["tune", "--run-config", str(script), "--pp", "2", "--schedule", "1f1b"])
    assert done.exit_code == 0, done.stderr
    start = next(line for line in done.stderr.splitlines() if "the search starts from: " in line)
    assert {"tp", "vpp", "micro-batch", "recompute"} <= set(start.replace(",", "").split())
    assert "pp" not in start.split()  # typed


@pytest.mark.search
def test_a_search_keeps_the_settings_of_the_configuration_that_it_is_told_to_keep(script: Path) -> None:
    words = {"run_config": script, "cp": [1], "ep": [1], "schedule": ["1f1b"], "split": ["even"], "pp": [2]}
    found = ppsim.tune(**words, keep=["tp", "--micro-batch-size", "attention"])  # type: ignore[arg-type]
    own = ppsim.project(run_config=script).plan.job
    assert {(one.candidate.tp, one.candidate.micro_batch) for one in found.simulated} == {(2, own.micro_batch)}
    assert "attention" in found.space.fixed
    assert ppsim.tune(**words, keep=["zero"]).space.zero == (own.optimizer.zero_stage,), "the file does not set it"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--keep tpp is no option that tune changes: did you mean"):
        ppsim.tune(**words, keep=["tpp"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--keep tp: no configuration sets it; give --tp a value$"):
        ppsim.tune(model="gpt2", gpus=2, global_batch=8, keep=["tp"])
    with pytest.raises(ConfigError, match=f"^--keep ep: {script} does not set it; give --ep a value$"):
        ppsim.tune(run_config=script, gpus=3, keep=["ep"])


def test_sizes_beside_a_configuration_are_refused_by_its_name(script: Path) -> None:
    with pytest.raises(ConfigError, match=f"^--hidden is for --model gpt: {script} has its own$"):
        ppsim.project(run_config=script, hidden=512)


def test_a_configuration_without_a_model_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}')
    with pytest.raises(ConfigError, match="has no model: give --model"):
        ppsim.project(run_config=path, pp=2)
    assert ppsim.project(run_config=path, model="gpt2", pp=2).plan.job.optimizer.zero_stage == 1  # type: ignore[union-attr]


def test_a_split_says_how_many_stages_a_rank_has() -> None:
    made = ppsim.project(model="gpt2", pp=2, split=[2, 4, 4, 2], microbatches=4)
    assert made.timeline.schedule.vpp == 2


def test_experts_divided_over_tensor_parallel_ranks_too() -> None:
    sizes = {"model": "mixtral-8x7b", "gpus": 16, "tp": 2, "pp": 4, "microbatches": 8, "micro_batch": 4}
    made = ppsim.project(**sizes, ep=4, etp=1)  # type: ignore[arg-type]
    assert made.plan.job is not None
    assert made.plan.job.layout.etp == 1
    assert made.iteration_time_s != ppsim.project(**sizes, ep=2).iteration_time_s  # type: ignore[arg-type]
    assert "--expert-tensor-parallel-size 1" in ppsim.trainer_options(made, "megatron")
    with pytest.raises(ConfigError, match="ep · etp must divide tp · cp · dp"):
        ppsim.project(**sizes, ep=8, etp=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--etp is for a --model"):
        ppsim.project(pp=2, etp=1)


@pytest.mark.parametrize(
    ("typed", "overlaps"),
    [
        ({}, (True, False)),
        ({"overlap_dp": False}, (False, False)),
        ({"overlap_dp": True}, (True, True)),
        ({"overlap_param_gather": True}, (True, True)),
        ({"overlap_dp": True, "overlap_grad_reduce": False}, (False, True)),
    ],
)
def test_overlap_dp_sets_both_overlaps_that_are_not_typed(
    script: Path, typed: dict[str, bool], overlaps: tuple[bool, bool]
) -> None:
    """SCRIPT has --overlap-grad-reduce alone."""
    made = ppsim.job(run_config=script, **typed)
    assert (made.overlap_grad_reduce, made.overlap_param_gather) == overlaps


@pytest.mark.parametrize(("typed", "vpp"), [({}, 4), ({"pp": 8}, 2)])
def test_layers_of_virtual_stages_count_the_embedding_and_the_loss(
    script: Path, typed: dict[str, int], vpp: int
) -> None:
    """Megatron-LM: (30 + 2) layers on 4 ranks, two per virtual stage (training/arguments.py, `validate_args`)."""
    text = script.read_text().replace("--num-layers 24", "--num-layers 30 " + " ".join(
        f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss")
    ))  # fmt: skip
    script.write_text(
        text.replace("--num-layers-per-virtual-pipeline-stage 3", "--num-layers-per-virtual-pipeline-stage 2")
    )
    assert ppsim.project(run_config=script, **typed).plan.vpp == vpp


def test_a_plan_that_the_trainer_refuses_is_projected_and_the_reason_is_said() -> None:
    command = ["project", "--model", "gpt2", "--gpus", "2", "--pp", "1", "--zero", "3", "--optimizer", "muon"]
    done = CliRunner().invoke(main, [*command, "--to-config", "megatron"])
    assert done.exit_code == 1
    assert "iteration" in done.stdout
    assert "Megatron-LM cannot run this: FSDP has no Muon: give --zero 1 or --optimizer adam" in done.stderr
