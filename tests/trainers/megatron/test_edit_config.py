"""A user's Megatron-LM command is written back with the changes of the plan only."""

from pathlib import Path

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.trainers.arguments import Arguments, is_argument, megatron_names, names_of_megatron
from ppsim.trainers.megatron.read_config import from_megatron

OWN = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --swiglu --disable-bias-linear --vocab-size 32000 "
    "--seq-length 1024 --max-position-embeddings 131072 --position-embedding-type none --micro-batch-size 1 "
    "--global-batch-size 32 --bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--num-layers-per-virtual-pipeline-stage 2 --sequence-parallel --use-distributed-optimizer --rotary-base 500000 "
    "--moe-aux-loss-coeff 1e-3 --apply-layernorm-1p --data-path 0.5 /a 0.5 /b --no-check-for-nan-in-loss-and-grad "
    "--split 969,30,1 --lr 1e-4 --overlap-grad-reduce --overlap-param-gather"
)


def arguments(text: str) -> set[str]:
    lines = (line.removesuffix("\\").strip() for line in text.splitlines())
    return {line for line in lines if line.startswith("--")}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(f"torchrun --nproc-per-node 8 --nnodes 2 --rdzv-id 7 pretrain_gpt.py {OWN}\n")
    return path


@pytest.mark.parametrize(
    ("words", "left_out", "added"),
    [
        ({}, set(), set()),
        ({"tp": 4}, {"--tensor-model-parallel-size 2"}, {"--tensor-model-parallel-size 4"}),
        ({"vpp": 4}, {"--num-layers-per-virtual-pipeline-stage 2"}, {"--num-virtual-stages-per-pipeline-rank 4"}),
        ({"seq_len": 2048}, {"--seq-length 1024"}, {"--seq-length 2048"}),
        (
            {"seq_len": 262144},
            {"--seq-length 1024", "--max-position-embeddings 131072"},
            {"--seq-length 262144", "--max-position-embeddings 262144"},
        ),
        ({"sequence_parallel": False}, {"--sequence-parallel"}, set()),
        (
            {"zero": 3},
            set(),
            {"--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params",
             "--ckpt-format fsdp_dtensor", "--megatron-fsdp-main-grads-dtype fp32"},
        ),
    ],
)  # fmt: skip
def test_a_change_of_the_plan_changes_only_its_own_arguments(
    own: Path, words: dict, left_out: set[str], added: set[str]
) -> None:
    made = ppsim.project(run_config=own, **words)
    text = ppsim.trainer_options(made, "megatron", given={"run_config": own} | words)
    before = {f"--{one.strip()}" for one in f" {OWN}".split(" --")[1:]}
    assert arguments(text) == before - left_out | added
    own.write_text(text)
    assert ppsim.project(run_config=own).iteration_time_s == pytest.approx(made.iteration_time_s)


def test_another_model_replaces_the_sizes_and_their_defaults(own: Path) -> None:
    words = {"run_config": own, "model": "gpt-oss-20b", "etp": 1, "vpp": 1}
    text = ppsim.trainer_options(ppsim.project(**words), "megatron", given=words)
    assert {"--hidden-size 2880", "--kv-channels 64", "--rotary-base 500000", "--lr 1e-4"} <= arguments(text)
    assert "not expressible" not in text


def test_a_command_that_is_refused_is_mended_by_an_option(own: Path) -> None:
    own.write_text(own.read_text().replace("--sequence-parallel", "--tp-comm-overlap"))
    words = {"run_config": own, "overlap_tp": 0}
    assert "--tp-comm-overlap" not in arguments(
        ppsim.trainer_options(ppsim.project(**words), "megatron", given=words)
    )


def test_arguments_of_a_yaml_file_stay_too(tmp_path: Path) -> None:
    lines = [
        "  --num-layers: 8", "  --hidden-size: 512", "  --num-attention-heads: 8", "  --seq-length: 1024", "  --bf16: true",
        "  --max-position-embeddings: 1024", "  --micro-batch-size: 1", "  --global-batch-size: 32", "  --swiglu: false",
        "  --vocab-size: 32000", "  --recompute-granularity: selective", '  --recompute-modules: "[core_attn mlp]"',
        "  --attention-softmax-in-fp32: true",
    ]  # fmt: skip
    (tmp_path / "model_config.yaml").write_text("MODEL_ARGS:\n" + "\n".join(lines))
    words = {"run_config": tmp_path / "model_config.yaml", "gpus": 8}
    found = arguments(ppsim.trainer_options(ppsim.project(**words), "megatron", given=words))
    assert {"--attention-softmax-in-fp32", "--recompute-modules core_attn mlp", "--bf16"} <= found
    assert len(found) == len(lines) - 1


SIZES = {"num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_experts": 8}


def is_modelled_or_refused(name: str) -> bool:
    """Return whether an argument is read, or stops the reading, in a model with experts."""
    try:
        arguments = Arguments(SIZES | {name: 7}, "F")
        return from_megatron(arguments).model is None or name in dict(arguments.read)
    except ConfigError:
        return True


def test_every_argument_of_megatron_is_modelled_refused_or_written_back(tmp_path: Path) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in names_of_megatron() if is_argument(name)]
    other = [flag for flag in flags if not is_modelled_or_refused(next(iter(megatron_names({flag: 7}))))]
    assert 1000 < len(other) < len(flags) - 100
    path = tmp_path / "model_config.yaml"
    own = "--world-size: 8\n  --micro-batch-size: 1\n  --seq-length: 512\n  --vocab-size: 1000\n  --bf16: true"
    sizes = [f"--{name.replace('_', '-')}: {size}" for name, size in SIZES.items()]
    path.write_text("\n  ".join(["MODEL_ARGS:", own, *sizes, *(f"{flag}: 7" for flag in other)]))
    made = ppsim.project(run_config=path, cluster="dgx-h100")
    lines = ppsim.trainer_options(made, "megatron", given={"run_config": path}).splitlines()
    written = {line.removesuffix("\\").strip() for line in lines}
    assert not [flag for flag in other if f"{flag} 7" not in written]
