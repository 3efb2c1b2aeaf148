"""What a projection assumes or ignores comes first: the number of GPUs, parts of a model, options that change memory."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ppsim
from ppsim.cli import main
from ppsim.costs.job_description import given_assumptions
from ppsim.errors import ConfigError

SIZES = (
    "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 32000 --swiglu --bf16 --attention-dropout 0 --hidden-dropout 0"
)
LARGE = f"pretrain_gpt.py {SIZES} --micro-batch-size 1 --global-batch-size 256"
GPUS = "no number of GPUs is given: "

pytestmark = pytest.mark.usefixtures("without_advice")


def script(folder: Path, text: str) -> Path:
    (folder / "train.sh").write_text(text)
    return folder / "train.sh"


def printed(*words: object) -> tuple[str, str]:
    """What a command prints on both streams, without line breaks."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code in (0, 1), done.output
    return " ".join(done.stdout.split()), " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "1 assumed, the fewest possible"),
        (
            "--pipeline-model-parallel-size 4 --tensor-model-parallel-size 2",
            "8 assumed, the fewest for tp 2 · pp 4",
        ),
        ("--num-experts 8 --expert-model-parallel-size 8", "8 assumed, the fewest for ep 8"),
    ],
)
def test_an_assumed_number_of_gpus_is_the_first_assumption(tmp_path: Path, flags: str, said: str) -> None:
    path = script(tmp_path, f"{LARGE} {flags}")
    sentence = f"{GPUS}{said} (set --gpus)"
    assert ppsim.read_run_config(path).assumed[0] == sentence
    out, err = printed("project", "--run-config", path, "--full")
    assert f"assumed: {sentence}" in err
    assert f"assumed {sentence}" in out
    found = json.loads(CliRunner().invoke(main, ["project", "--run-config", str(path), "--json"]).stdout)
    assert found["assumptions"][0] == found["run_config"]["assumed"][0] == sentence


@pytest.mark.parametrize("typed", [("--gpus", "8"), ("--dp", "8")])
def test_a_number_of_gpus_that_is_given_is_not_assumed(tmp_path: Path, typed: tuple[str, str]) -> None:
    out, err = printed("project", "--run-config", script(tmp_path, LARGE), *typed)
    assert GPUS not in out + err
    assert "give --gpus" not in out


def test_the_number_assumed_is_that_of_the_options_typed(tmp_path: Path) -> None:
    _, err = printed("project", "--run-config", script(tmp_path, LARGE), "--tp", 8, "--pp", 2)
    assert f"{GPUS}16 assumed, the fewest for tp 8 · pp 2" in err


SMALL = LARGE.replace("--num-layers 80", "--num-layers 10")


def test_a_plan_that_does_not_fit_on_an_assumed_number_names_one_that_fits(tmp_path: Path) -> None:
    path = script(tmp_path, f"{SMALL} --use-distributed-optimizer")
    made = ppsim.project(run_config=path)
    assert made.verdict is not None
    assert (made.fits, made.verdict.word, made.is_too_large) == (None, "unknown", True)
    assert re.fullmatch(r"on 1 GPU \(assumed\): needs \d+ of 74.2 GiB; fits on 8: give --gpus", str(made.verdict))
    found = made.memory_fit_to_json()
    assert (found["fits"], found["verdict"]) == (None, "unknown")
    assert (found["memory_fit"]["assumed_gpus"], found["memory_fit"]["fits_on_gpus"]) == (1, 8)
    assert ppsim.project(run_config=path, gpus=8).fits is True
    assert ppsim.project(run_config=path, gpus=4).verdict.word == "does not fit"
    assert ppsim.project(run_config=path, gpus=8).memory_fit_to_json()["memory_fit"]["assumed_gpus"] is None


def test_no_number_of_gpus_is_named_if_more_of_them_free_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, LARGE)
    out = CliRunner().invoke(main, ["project", "--run-config", str(path)])
    assert re.match(r".*on 1 GPU \(assumed\): needs .* GiB; give --gpus, and larger --tp or --pp\W", out.stdout)
    assert out.exit_code == 0
    several = CliRunner().invoke(
        main, ["project", "--run-config", str(path), "--pp", "2", "--schedule", "1f1b,gpipe"]
    )
    assert "on 2 GPUs (assumed): needs " in several.stdout.splitlines()[0]
    assert several.exit_code == 0
    assert ppsim.project(run_config=path, gpus=8).fits is False


PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: language_model.yaml
    overrides:
      num_layers: 4
      hidden_size: 512
      num_attention_heads: 8
      seq_length: 512
      vocab_size: 1024
      micro_batch_size: 1
      global_batch_size: 48
"""


@pytest.mark.parametrize(
    ("sizes", "gpus", "said"),
    [
        ({}, 8, "8 assumed, its launcher's default"),
        ({"tp": 2, "pp": 2}, 8, "8 assumed, its launcher's default"),
        ({"pp": 3}, 24, "24 assumed, the fewest for pp 3 in multiples of its launcher's 8"),
    ],
)
def test_a_file_of_primus_is_of_the_launchers_gpus(
    tmp_path: Path, sizes: dict[str, int], gpus: int, said: str
) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(PRIMUS)
    config = ppsim.read_run_config(path)
    assert config.beside(sizes).assumed[0] == f"{GPUS}{said} (set --gpus)"
    plan = ppsim.project(run_config=path, split="even" if sizes.get("pp", 1) < 3 else [2, 1, 1], **sizes).plan
    assert plan.job is not None
    assert (plan.job.layout.num_devices, given_assumptions(plan.job)[0]) == (gpus, f"{GPUS}{said} (set --gpus)")
    assert ppsim.project(run_config=path, gpus=4, pp=1).num_gpus == 4


MEMORY = "--checkpoint-activations"


def test_the_verdict_names_ignored_options_that_change_memory(tmp_path: Path) -> None:
    path = script(tmp_path, f"{LARGE} {MEMORY} --moe-enable-routing-replay")
    without = "checkpoint_activations on"
    out, _ = printed("project", "--run-config", path)
    assert f"note ignored options that change memory: {without}" in out
    fit = ppsim.project(run_config=path).to_json()["memory_fit"]
    assert ", ".join(fit["ignored_memory_options"]) == without
    plain = ppsim.project(run_config=script(tmp_path, LARGE)).to_json()["memory_fit"]
    assert list(plain["ignored_memory_options"]) == []


def test_hybrid_sharding_of_torchtitan_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "titan.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n[parallelism]\n'
        "data_parallel_shard_degree = 8\ndata_parallel_replicate_degree = 4\n"
    )
    made = ppsim.project(run_config=path)
    assert made.num_gpus == 32
    assert made.verdict.ignored_memory_options == ()
    assert made.plan.job is not None
    assert made.plan.job.optimizer.num_distributed_optimizer_instances == 4


TEXT = {
    "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024, "vocab_size": 262208,
}  # fmt: skip
SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 896,
}  # fmt: skip


@pytest.mark.parametrize(
    ("vision", "said"),
    [
        (
            SIGLIP,
            "image encoder of 0.4 B parameters: 256 tokens of 4096 rows per sequence (mm_tokens_per_image), part of "
            "the sequence",
        ),
        ({"model_type": "siglip_vision_model"}, "text model only, image encoder ignored"),
        ({}, "text model only, image encoder ignored"),
    ],
)
def test_an_image_encoder_is_the_first_assumption(tmp_path: Path, vision: dict[str, Any], said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": TEXT, "vision_config": vision}))
    made = ppsim.project(model=path, gpus=1, pp=1, microbatches=1)
    assert made.assumptions[0] == made.to_json()["assumptions"][0] == said
    assert ppsim.project(run_config=path, pp=1, microbatches=1).assumptions[1] == said
    assert ppsim.read_run_config(path).assumed[1] == said


EXPERTS = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --num-experts 64 --bf16 --tensor-model-parallel-size 2 "
    "--expert-model-parallel-size 64 --nproc-per-node 8 --nnodes 8"
)


def test_experts_that_need_the_tensor_parallel_ranks_use_etp_1_and_say_so(tmp_path: Path) -> None:
    said = (
        "etp 1: ep 64 does not divide dp 32 · cp 1, so experts are spread over the tp 2 ranks too (Megatron-LM's "
        "--expert-tensor-parallel-size 1)"
    )
    of_file = ppsim.project(run_config=script(tmp_path, EXPERTS))
    typed = ppsim.project(model="deepseek-v3", tp=2, dp=32, ep=64, micro_batch=1, pp=1, microbatches=1)
    by_gpus = ppsim.project(model="deepseek-v3", tp=2, gpus=64, ep=64, micro_batch=1, pp=1, microbatches=1)
    for made in (of_file, typed, by_gpus):
        assert made.plan.job is not None
        assert (made.plan.job.layout.dp, made.plan.job.layout.etp) == (32, 1)
        assert said in made.assumptions[:2]


def test_an_etp_of_the_file_is_never_folded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got ep 64 with dp 32"):
        ppsim.project(run_config=script(tmp_path, f"{EXPERTS} --expert-tensor-parallel-size 2"))
    with pytest.raises(ConfigError, match="ep must divide dp · cp: got ep 48 with dp 32"):
        ppsim.project(model="deepseek-v3", tp=2, dp=32, ep=48, pp=1)
