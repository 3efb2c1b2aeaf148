"""Options typed next to a trainer's configuration: each replaces its own setting, and nothing else vanishes."""

from pathlib import Path
from typing import Any, get_args

import pytest

import ppsim
from ppsim.api.keyword_options import option_types
from ppsim.api.trainer_configuration import with_run_config
from ppsim.base.option_declarations import allowed_values, value_types
from ppsim.errors import ConfigError
from ppsim.projection.options import PlanOptions
from ppsim.trainers.read_config import read_run_config
from tests.trainers.test_read_config import EXPERIMENT, primus

SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 32000 --swiglu --bf16"
)
UNEVEN = f"""torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {SIZES} --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7 \\
  --micro-batch-size 1 --global-batch-size 32 --recompute-granularity full --use-distributed-optimizer"""
LAYOUT = f"""pretrain_gpt.py {SIZES} --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 32 \\
  --pipeline-model-parallel-layout 'Et*7|t*9|t*9|t*7L' --sequence-parallel --context-parallel-size 2"""
CHUNKS = f"""pretrain_gpt.py {SIZES} --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 32 \\
  --num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage 8 \\
  --no-overlap-p2p-communication --num-experts 8 \\
  --expert-model-parallel-size 4 --expert-tensor-parallel-size 1"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "1F1B"
data_parallel_shard_degree = 8
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
DEEPSPEED = """{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64, "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3}}"""
BRIDGE = """model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  seq_length: 4096
  vocab_size: 32000
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
train:
  micro_batch_size: 1
  global_batch_size: 64
mixed_precision:
  bf16: true
"""
FILES = {
    "uneven.sh": UNEVEN, "layout.sh": LAYOUT, "chunks.sh": CHUNKS, "titan.toml": TITAN, "ds.json": DEEPSPEED,
    "bridge.yaml": BRIDGE,
}  # fmt: skip
SAME = {
    "gpus": {"dp"}, "dp": {"gpus"}, "global_batch": {"microbatches"}, "microbatches": {"global_batch"},
    "moe_dispatcher": {"moe_flex_dispatcher_num_sms"}, "overlap_dp": {"overlap_grad_reduce", "overlap_param_gather"},
    "split": {name for name in option_types(PlanOptions) if "pipeline_split" in name or "pipeline_num_layers" in name},
}  # fmt: skip
SAME |= {name: {"split"} for name in SAME["split"]}
"""Options that give the same setting in another way."""

NOT_TYPED = {"run_config", "job", "recipe"}
TEXTS = {
    "calibration": str(Path(__file__).parents[1] / "frozen" / "files" / "overheads.json"),
    "stack": "megatron-lm-2022",
    "model": "llama3-8b",
    "schedule": "interleaved-1f1b",
    "order": "tp-cp-ep-pp-dp",
    "cluster": "dgx-a100",
}


def another(name: str, hint: Any, taken: Any) -> Any:
    """A value of an option other than the one that the file has."""
    if name in TEXTS:
        return TEXTS[name]
    if choices := allowed_values(value_types(hint)):
        return next(choice for choice in choices if choice != taken)
    kinds = get_args(hint)
    if bool in kinds:
        return not taken
    if int in kinds:
        return 2 * (taken or 4)
    return 0.25 if float in kinds and str not in kinds else "7"


def file_of(folder: Path, name: str) -> Path:
    if name == "primus":
        return primus(folder, EXPERIMENT)
    (folder / name).write_text(FILES[name])
    return folder / name


@pytest.mark.parametrize("name", [*FILES, "primus"])
def test_an_option_replaces_only_its_own_setting(tmp_path: Path, name: str) -> None:
    config, hints = read_run_config(file_of(tmp_path, name)), option_types(PlanOptions)
    needed = {} if config.model else {"model": "llama2-7b"}
    lost = []
    for option, hint in hints.items():
        if option in NOT_TYPED:
            continue
        typed = {**needed, option: another(option, hint, config.options.get(option))}
        try:
            found = with_run_config(dict.fromkeys(hints) | typed | {"run_config": config})
        except ConfigError as error:
            assert str(error).endswith(("give --vpp", "or --gradient-accumulation-steps")), (option, str(error))
            continue
        lost += [
            (option, word, value, found[word])
            for word, value in config.options.items()
            if word not in (option, *SAME.get(option, ())) and found[word] != value
        ]
    if name == "titan.toml":  # its rounds are counted again, and a stack decides what is compiled
        lost = [one for one in lost if one[1] not in ("microbatches", "gradient_accumulation_steps")]
        lost = [one for one in lost if one[:2] != ("stack", "compile")]
    assert lost == []


def test_a_layer_layout_stays_with_another_model(tmp_path: Path) -> None:
    for file, model in (("uneven.sh", "llama3-8b"), ("layout.sh", "llama3-8b")):
        made = ppsim.project(run_config=file_of(tmp_path, file), model=model)
        assert made.split == [7, 9, 9, 7]


def test_layers_of_a_virtual_stage_stay_with_another_model_or_pp(tmp_path: Path) -> None:
    path = tmp_path / "each.sh"
    path.write_text(f"pretrain_gpt.py {SIZES} --pipeline-model-parallel-size 4 "
                    "--num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 1 --global-batch-size 32")  # fmt: skip
    assert ppsim.project(run_config=path).timeline.schedule.vpp == 2
    assert ppsim.project(run_config=path, pp=2).timeline.schedule.vpp == 4
    assert ppsim.project(run_config=path, model="llama3-70b").timeline.schedule.vpp == 5
    assert ppsim.project(run_config=path, layers=16).timeline.schedule.vpp == 1
    with pytest.raises(ConfigError, match=r"4 does not divide 30 layers on pp 4: give --vpp$"):
        ppsim.project(run_config=path, layers=30)
    assert ppsim.project(run_config=path, layers=24, vpp=3).timeline.schedule.vpp == 3


def test_what_a_pipeline_of_one_rank_does_not_use_comes_back_with_more_ranks(tmp_path: Path) -> None:
    path = tmp_path / "one.sh"
    path.write_text(UNEVEN.replace("--pipeline-model-parallel-size 4", "--pipeline-model-parallel-size 1"))
    assert ppsim.project(run_config=path).split == [32]
    assert ppsim.project(run_config=path, pp=4).split == [7, 9, 9, 7]


def test_sequence_parallelism_of_a_file_stays_when_tp_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "one.sh"
    path.write_text(UNEVEN.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 1"))
    assert not ppsim.job(run_config=path, tp=4).execution.sequence_parallel


def test_a_schedule_that_takes_another_vpp_than_the_file_says_so(tmp_path: Path) -> None:
    path = file_of(tmp_path, "chunks.sh")
    with pytest.raises(ConfigError, match=r"chunks.sh has vpp 2, and zb-h1 takes 1: give --vpp$"):
        ppsim.project(run_config=path, schedule="zb-h1")


@pytest.mark.parametrize(
    ("name", "typed", "flags"),
    [
        ("uneven.sh", {"pp": 2}, "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers"),
        ("layout.sh", {"vpp": 2}, "--split"),
        ("layout.sh", {"model": "llama3-70b"}, "--split"),
    ],
)
def test_layers_per_stage_of_the_file_that_do_not_fit_are_named(
    tmp_path: Path, name: str, typed: dict[str, Any], flags: str
) -> None:
    path = file_of(tmp_path, name)
    with pytest.raises(ConfigError, match=rf"; {flags} is from .*{name}: replace it, as by --split even$"):
        ppsim.project(run_config=path, **typed)
    assert ppsim.project(run_config=path, split="even", **typed).iteration_time_s > 0
