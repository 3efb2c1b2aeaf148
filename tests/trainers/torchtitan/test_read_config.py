"""TorchTitan's configurations: registry entries, the launcher, accumulation rounds, and the defaults of each release."""

import json
from pathlib import Path

import pytest

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.errors import ConfigError
from ppsim.model.registry import find_model
from ppsim.projection.plan import Plan
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.torchtitan.config_registry import registry
from tests.cli.running import ppsim as command

REGISTRY = (
    "torchrun --nproc_per_node=8 --nnodes=8 -m torchtitan.train --module llama3 --config llama3_70b "
    "--training.steps 100\n"
)
ROUNDS = (
    "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b "
    "--training.local_batch_size 8 --training.global_batch_size 128 --training.seq_len 8192 "
    "--parallelism.pipeline_parallel_degree 4 --parallelism.data_parallel_shard_degree 2 "
    "--parallelism.pipeline_parallel_schedule 1F1B --parallelism.pipeline_parallel_microbatch_size 1\n"
)


def read(folder: Path, text: str, name: str = "run.sh") -> RunConfig:
    """Read a file of this text."""
    (folder / name).write_text(text)
    return read_run_config(folder / name)


def plan(folder: Path, text: str, **options: object) -> Plan:
    """The plan of a file of this text with further options."""
    (folder / "run.sh").write_text(text)
    return plan_of_keywords({"run_config": folder / "run.sh", "cluster": "dgx-h100"} | options)


def test_a_registry_entry_sets_what_the_command_leaves_open(tmp_path: Path) -> None:
    found = read(tmp_path, REGISTRY)
    words = ("tp", "recompute", "micro_batch", "seq_len", "gpus", "compile", "dtype", "zero")
    assert [found.options[word] for word in words] == [8, "full", 8, 8192, 64, False, "bfloat16", 3]
    assert found.model == find_model("llama3-70b")
    assert found.ignored == ()


def test_llama3_405b_is_compiled_in_float8_with_hidden_tensor_parallelism(tmp_path: Path) -> None:
    found = read(tmp_path, REGISTRY.replace("70b", "405b"))
    words = ("tp", "recompute", "micro_batch", "compile", "dtype", "overlap_tp")
    assert [found.options[word] for word in words] == [8, "full", 2, True, "float8", "0.5"]


def test_the_entry_its_file_and_the_release_are_assumptions(tmp_path: Path) -> None:
    first = read(tmp_path, REGISTRY).assumed[0]
    assert "--config llama3_70b (torchtitan/models/llama3/config_registry.py of torchtitan 0.3.0) sets" in first
    assert "parallelism.tensor_parallel_degree 8" in first


def test_flags_override_the_registry(tmp_path: Path) -> None:
    text = REGISTRY.replace(
        "--training.steps 100", "--parallelism.tensor_parallel_degree 4 activation-checkpoint:none"
    )
    found = read(tmp_path, text)
    assert (found.options["tp"], found.options["recompute"]) == (4, "none")
    assert found.options["micro_batch"] == 8


def test_the_command_prints_the_registry_and_the_gpus_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(REGISTRY)
    result = command("project", "--run-config", tmp_path / "run.sh", "--cluster", "dgx-h100", "--json")
    report = json.loads(result.stdout)
    assert (report["num_gpus"], report["run_config"]["options"]["tp"]) == (64, 8)
    assert any("llama3_70b" in line for line in report["run_config"]["assumed"])


@pytest.mark.parametrize("module", ["torchtitan.models.llama3", "llama3"])
def test_a_module_may_be_given_with_its_package(tmp_path: Path, module: str) -> None:
    assert read(tmp_path, REGISTRY.replace("--module llama3", f"--module {module}")).options["tp"] == 8


def test_a_file_with_nothing_but_the_entry_is_a_configuration(tmp_path: Path) -> None:
    found = read(tmp_path, "torchrun -m torchtitan.train --module qwen3 --config qwen3_14b\n")
    assert (found.options["micro_batch"], found.options["recompute"], found.options["seq_len"]) == (4, "full", 4096)
    assert found.model == find_model("qwen3-14b")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("llama3_70b", "llama3_7b", r"--config llama3_7b is not in .*config_registry.py of torchtitan 0.3.0: .*llama3_70b"),
        ("--module llama3", "--module mamba", "--module mamba is not in the registry .* deepseek_v3, gpt_oss, .*llama3"),
        ("--module llama3", "--module flux", "a diffusion model, and ppsim projects language models only"),
        ("llama3_70b", "llama3_debugmodel_float8_emulate_lora", "trains only some of the weights"),
    ],
)  # fmt: skip
def test_entries_that_cannot_be_projected_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, REGISTRY.replace(old, new))


def every_entry() -> list[tuple[str, str]]:
    """All entries of the packaged registry."""
    return [(module, name) for module, found in registry().modules.items() for name in found.entries]


@pytest.mark.parametrize(("module", "name"), every_entry())
def test_every_entry_is_read_or_refused_in_a_sentence(tmp_path: Path, module: str, name: str) -> None:
    text = f"torchrun --nproc_per_node=8 --nnodes=16 -m torchtitan.train --module {module} --config {name}\n"
    try:
        found = read(tmp_path, text)
    except ConfigError as error:
        assert "lora" in name
        assert "lora" in str(error).lower()
        return
    if found.model is None:
        assert "give --model" in found.why_no_model
        return
    known = (
        {"recompute": "full"} if found.model.kinds[-1].is_moe else {}
    )  # by operators is known of dense layers only
    made = plan(tmp_path, text, cluster="dgx-b200", **known)
    assert made.job is not None
    assert made.job.layout.num_devices == (1 if "minimal_async_ep" in name else 128)  # which sets all degrees to 1


def test_a_model_that_trains_on_images_is_said_to_be_its_language_model_alone(tmp_path: Path) -> None:
    text = "torchrun -m torchtitan.train --module qwen3_5 --config qwen35_9b\n"
    assert any("language model alone" in line for line in read(tmp_path, text).assumed)


def test_eight_rounds_of_eight_microbatches(tmp_path: Path) -> None:
    made = plan(tmp_path, ROUNDS)
    assert (made.num_microbatches, made.gradient_accumulation_steps, made.round_microbatches) == (64, 8, 8)
    assert read(tmp_path, ROUNDS).options["gradient_accumulation_steps"] == 8
    projection = ppsim.project(made)
    equal_stages = 3 / (8 + 3)
    assert projection.timeline.bubble_ratio == pytest.approx(equal_stages, abs=0.05)
    assert "8 rounds of 8 microbatches" in str(projection)


@pytest.mark.parametrize(
    ("options", "rounds", "microbatches"),
    [
        ({"global_batch": 64}, 4, 32),
        ({"dp": 4}, 4, 32),
        ({"pp": 2}, 8, 64),
        ({"gpus": 32}, 2, 16),
        ({"micro_batch": 2}, 8, 32),
        ({"gradient_accumulation_steps": 1}, 1, 64),
        ({"microbatches": 16}, 2, 16),
        ({"pp": 1}, 8, 8),
        ({"pp": 1, "micro_batch": 2}, 32, 32),
    ],
)
def test_rounds_follow_options_as_the_trainer_would_count_them(
    tmp_path: Path, options: dict[str, int], rounds: int, microbatches: int
) -> None:
    made = plan(tmp_path, ROUNDS, **options)
    assert (made.gradient_accumulation_steps, made.num_microbatches) == (rounds, microbatches)


def test_a_step_that_rounds_do_not_make_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="a step of 24 sequences is no multiple of local batch 8 · dp 2: give --global"
    ):
        plan(tmp_path, ROUNDS, global_batch=24)


def test_without_a_global_batch_a_step_is_one_round(tmp_path: Path) -> None:
    made = plan(tmp_path, ROUNDS.replace("--training.global_batch_size 128", ""))
    assert (made.gradient_accumulation_steps, made.num_microbatches) == (1, 8)


def test_replicas_left_over_of_the_launcher_count_for_rounds(tmp_path: Path) -> None:
    text = ROUNDS.replace("--nproc_per_node=8", "--nproc_per_node=8 --nnodes=4")
    made = plan(tmp_path, text.replace("--parallelism.data_parallel_shard_degree 2", ""))
    assert made.job is not None
    assert (made.job.layout.dp, made.gradient_accumulation_steps) == (8, 2)


@pytest.mark.parametrize(
    "launcher", ["--nproc_per_node=$NGPU", "--nproc_per_node=gpu", "--nproc_per_node=8 --nnodes=1:4"]
)
def test_a_launcher_that_does_not_say_the_number_is_no_error(tmp_path: Path, launcher: str) -> None:
    assert "gpus" not in read(tmp_path, REGISTRY.replace("--nproc_per_node=8 --nnodes=8", launcher)).options


def test_options_of_the_newest_trainer_count_tokens(tmp_path: Path) -> None:
    text = (
        "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b "
        "--training.num_tokens_per_microbatch_per_dp_rank 16384 --training.max_context_length 8192 "
        "--training.num_tokens_per_train_step 1048576 --parallelism.pipeline_parallel_degree 4 "
        "--parallelism.num_pp_microbatches 8 --parallelism.data_parallel_shard_degree 2\n"
    )
    made = plan(tmp_path, text)
    assert made.job is not None
    assert (made.job.micro_batch, made.job.global_batch) == (2, 128)
    assert (made.gradient_accumulation_steps, made.round_microbatches) == (4, 8)
    with pytest.raises(ConfigError, match="16000 tokens are no multiple of max_context_length 8192"):
        plan(tmp_path, text.replace("16384", "16000"))


def test_the_context_length_of_the_newest_trainer_replaces_a_registered_length(tmp_path: Path) -> None:
    command = "python -m torchtitan.train --training.max_context_length 4096"
    options = read(tmp_path, f"{command} --module llama3 --config llama3_8b").options
    assert (options["seq_len"], options["micro_batch"]) == (4096, 2)  # the 8,192 tokens of the registry
    options = read(tmp_path, command).options
    assert (options["seq_len"], options["micro_batch"]) == (4096, 4)  # 16,384 tokens


def test_a_flavor_can_be_the_name_of_a_model(tmp_path: Path) -> None:
    model = read(tmp_path, "python -m torchtitan.train --module kimi_k2_7 --config moonlight_16b_a3b").model
    assert model is not None
    assert len(model.layers) == 27


TOML = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 10\n[parallelism]\ndata_parallel_shard_degree = 8\n'


def test_the_defaults_of_0_2_are_its_own(tmp_path: Path) -> None:
    """job_config.py of v0.2.2: seq_len 2048, local_batch_size 8, selective of every second layer."""
    found = read(tmp_path, TOML, "train.toml")
    words = ("seq_len", "micro_batch", "recompute", "zero", "compile", "dp")
    assert [found.options[word] for word in words] == [2048, 8, "full/2", 3, False, 8]


def test_experts_are_not_divided_by_tensor_parallelism_unless_asked(tmp_path: Path) -> None:
    text = TOML.replace("data_parallel_shard_degree = 8", "tensor_parallel_degree = 4\nexpert_parallel_degree = 8")
    text = text.replace('"llama3"', '"deepseek_v3"').replace('"8B"', '"16B"')
    assert read(tmp_path, text, "train.toml").options["etp"] == 1
    with_etp = text + "expert_tensor_parallel_degree = 4\n"
    assert "etp" not in read(tmp_path, with_etp, "train.toml").options


def test_the_loss_alone_compiled_leaves_blocks_eager(tmp_path: Path) -> None:
    text = TOML + '[compile]\nenable = true\ncomponents = ["loss"]\n'
    assert read(tmp_path, text, "train.toml").options["compile"] is False


def test_a_command_of_0_2_is_read_with_the_toml_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "llama3_8b.toml").write_text(TOML + '[activation_checkpoint]\nmode = "full"\n')
    text = "torchrun -m torchtitan.train --job.config_file configs/llama3_8b.toml --training.local_batch_size 2\n"
    found = read(tmp_path, text)
    words = ("micro_batch", "recompute", "dp", "seq_len")
    assert [found.options[word] for word in words] == [2, "full", 8, 2048]
    assert "options that the command does not set are those of configs/llama3_8b.toml" in found.assumed
    with pytest.raises(ConfigError, match=r"job.config_file other.toml is neither in .* nor in a folder above it"):
        read(tmp_path, text.replace("configs/llama3_8b.toml", "other.toml"))
    (tmp_path / "run_train.sh").write_text(
        "CONFIG_FILE=${CONFIG_FILE:-configs/llama3_8b.toml}\n"
        'torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ${CONFIG_FILE} "$@"\n'
    )
    assert read_run_config(tmp_path / "run_train.sh").options["micro_batch"] == 8


@pytest.mark.parametrize(
    ("options", "asked"),
    [("", "the model"), ("--model.name llama3", "llama3"), ("--model.name llama3 --model.flavor 9B", "llama3 9B")],
)
def test_a_model_without_sizes_is_named_as_far_as_the_options_do(tmp_path: Path, options: str, asked: str) -> None:
    found = read(tmp_path, f"torchrun -m torchtitan.train --training.seq_len 2048 {options}\n")
    assert found.why_no_model.endswith(f": the sizes of {asked} are not known: give --model")


@pytest.mark.parametrize("line", ['dtype = "bfloat16"', 'mixed_precision_param = "float32"'])
def test_number_formats_that_are_not_followed_are_listed(tmp_path: Path, line: str) -> None:
    ignored = read(tmp_path, TOML.replace("steps = 10", line), "train.toml").ignored
    assert [one.name for one in ignored] == [f"training.{line.split(' ')[0]}"]


def test_the_layers_that_the_trainer_gives_each_stage_are_named_as_an_option(tmp_path: Path) -> None:
    """0.3's `_generate_llm_fqn_per_model_part(4, 32, 1, 1)` has 8, 9, 8 and 7 layers."""
    assumed = read(tmp_path, ROUNDS).assumed
    assert "layers per stage: as --split chooses; TorchTitan's own rule is --split 8,9,8,7" in assumed
    less = ROUNDS.replace("1F1B", "1F1B --parallelism.pipeline_parallel_last_stage_less_layers 3")
    assert any("--split 8,9,9,6" in line for line in read(tmp_path, less).assumed)


def test_layers_per_stage_say_how_many_stages_a_rank_has(tmp_path: Path) -> None:
    text = ROUNDS.replace(
        "_schedule 1F1B", "_schedule Interleaved1F1B --parallelism.pipeline_parallel_layers_per_stage "
    )
    assert read(tmp_path, text.replace("_stage  ", "_stage 3 ")).options["vpp"] == 3
    odd = read(tmp_path, text.replace("_stage  ", "_stage 5 "))
    assert "vpp" not in odd.options
    assert any("ignored, because 7 stages are not a multiple of pp 4" in line for line in odd.assumed)


def test_dualpipev_overlaps_the_messages_of_parallel_experts(tmp_path: Path) -> None:
    text = (
        '[model]\nname = "deepseek_v3"\nflavor = "16B"\n[parallelism]\npipeline_parallel_degree = 4\n'
        'pipeline_parallel_schedule = "DualPipeV"\nexpert_parallel_degree = {}\ndata_parallel_shard_degree = 8\n'
    )
    for ep, overlap in ((8, "dualpipe"), (1, None)):
        (tmp_path / "job.toml").write_text(text.format(ep))
        assert read_run_config(tmp_path / "job.toml").options.get("overlap_ep") == overlap


@pytest.mark.parametrize(("shard", "replicate", "dp"), [(4, 2, 8), (4, 1, 4)])
def test_data_parallel_ranks_are_shards_times_replicas(tmp_path: Path, shard: int, replicate: int, dp: int) -> None:
    degrees = (
        f"--parallelism.data_parallel_shard_degree {shard} --parallelism.data_parallel_replicate_degree {replicate}"
    )
    text = f"torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b {degrees}\n"
    assert read(tmp_path, text).options["dp"] == dp


def test_an_unknown_schedule_is_left_to_the_option(tmp_path: Path) -> None:
    text = (
        "torchrun --nproc_per_node 8 train.py --module llama3 --config llama3_8b "
        "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule "
    )
    sentence = "schedule MySchedule is not known: that of --schedule"
    for name, schedule in (("MySchedule", None), ("Interleaved1F1B", "interleaved-1f1b"), ("GPipe", "gpipe")):
        found = read(tmp_path, text + name)
        assert found.options.get("schedule") == schedule
        assert (sentence in found.assumed) is (schedule is None)


def test_the_launcher_starts_8_gpus_by_default(tmp_path: Path) -> None:
    assert read(tmp_path, "torchrun train.py --module llama3 --config llama3_8b").launcher_gpus == 8
