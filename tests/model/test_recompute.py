"""Recomputation by a layer's place in its stage: block/N and uniform/N, as Megatron-LM has them."""

import random
from types import SimpleNamespace

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.model.recompute import plan_of_stage, recompute_of
from tests.cli.running import ppsim as command

JOB = {
    "model": "llama3-70b",
    "gpus": 64,
    "cluster": "dgx-h100",
    "tp": 4,
    "pp": 4,
    "global_batch": 128,
    "split": "even",
}


def checkpoints(recompute: str, num_layers: int) -> list[int]:
    """The layers of each checkpoint of a stage."""
    found: list[int] = []
    for one in plan_of_stage(recompute, num_layers):
        if one.recompute == "full":
            found += [one.layers] if one.joined else [1] * one.layers
    return found


def counts_of_megatron(method: str, number: int, num_layers: int) -> list[int]:
    """The layers of each checkpoint that megatron-core's own block makes, with counted layers in place of real ones."""
    block = pytest.importorskip("megatron.core.transformer.transformer_block")
    made: list[int] = []
    calls = 0

    def layer(hidden_states: object, **others: object) -> tuple[object, None]:
        nonlocal calls
        calls += 1
        return hidden_states, None

    def checkpoint(forward, distribute, *given):
        before = calls
        result = forward(*given)
        made.append(calls - before)
        return result

    config = SimpleNamespace(
        recompute_method=method, recompute_num_layers=number, fp8=None, fp4=None, distribute_saved_activations=False
    )
    here = SimpleNamespace(config=config, num_layers_per_pipeline_rank=num_layers, _get_layer=lambda index: layer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block.tensor_parallel, "checkpoint", checkpoint)
        block.TransformerBlock._checkpointed_forward(here, *[None] * 7, use_inner_quantization_context=False)
    return made


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_are_those_of_megatron_core_in_200_random_cases() -> None:
    draw = random.Random(0)
    for _ in range(200):
        vpp, pp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
        num_layers = draw.randint(1, 24)
        method, number = draw.choice(["block", "uniform"]), draw.randint(1, 30)
        if method == "uniform":  # megatron-core asks for layers of a stage that N divides
            number = draw.choice([size for size in range(1, num_layers + 1) if num_layers % size == 0])
        found = checkpoints(recompute_of(f"{method}/{number}"), num_layers)
        assert found == counts_of_megatron(method, number, num_layers), (method, number, num_layers, vpp, pp)


def test_more_layers_recomputed_take_longer_and_less_memory() -> None:
    """llama3-70b has 20 layers per stage."""
    words = ("none", "block/5", "block/10", "block/15", "block/20")
    made = [ppsim.project(**JOB, recompute=word) for word in words]
    seconds = [one.iteration_s for one in made]
    peaks = [one.timeline.memory.peak_bytes.max() for one in made]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == 5
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 5


def test_all_layers_in_checkpoints_of_one_are_full_recomputation() -> None:
    full = ppsim.project(**JOB, recompute="full")
    for word in ("block/20", "block/99"):
        one = ppsim.project(**JOB, recompute=word)
        assert one.iteration_s == pytest.approx(full.iteration_s, rel=1e-12)
        assert one.timeline.memory.peak_bytes.tolist() == full.timeline.memory.peak_bytes.tolist()


def test_larger_checkpoints_keep_fewer_inputs_and_need_more_in_the_backward() -> None:
    """Between 1 and 20 layers per checkpoint lies the smallest peak; the time is that of full recomputation."""
    made = {number: ppsim.project(**JOB, recompute=f"uniform/{number}") for number in (1, 2, 4, 10, 20)}
    peaks = {number: one.timeline.memory.peak_bytes[0] for number, one in made.items()}
    assert len({one.iteration_s for one in made.values()}) == 1
    assert min(peaks, key=peaks.get) in (2, 4)
    assert peaks[20] > peaks[10] > peaks[4]


def test_checkpoints_of_a_chunk_count_its_own_layers() -> None:
    """With vpp 5, four layers per chunk: block/4 recomputes all, block/2 half of them."""
    recomputed = [
        sum(stage.backward.recompute_s for stage in ppsim.project(**JOB, vpp=5, recompute=word).assembled.parts)
        for word in ("block/2", "block/4", "full")
    ]
    assert recomputed[0] == pytest.approx(recomputed[2] / 2)
    assert recomputed[1] == pytest.approx(recomputed[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block/x", "recompute must be block/N with N from 0 on: got 'block/x' (say block/2)"),
        ("uniform/0", "recompute must be uniform/N with N from 1 on: got 'uniform/0' (say uniform/2)"),
    ],
)
def test_a_wrong_number_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        recompute_of(text)
    assert str(refused.value) == message


SCRIPT = (
    "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
    "--ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention --num-query-groups 8 "
    "--seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --make-vocab-size-divisible-by 128 "
    "--vocab-size 128256 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --sequence-parallel --use-distributed-optimizer "
    "--recompute-granularity full --recompute-method {} --recompute-num-layers {}"
)


def test_megatrons_method_and_number_are_read(tmp_path) -> None:
    script = tmp_path / "train.sh"
    for method, number, word in (("block", 0, "none"), ("block", 10, "block/10"), ("uniform", 10, "uniform/10")):
        script.write_text(SCRIPT.format(method, number))
        assert ppsim.read_run_config(script).words["recompute"] == word


def test_a_layer_alone_and_a_search_refuse_them_in_a_sentence() -> None:
    for line in (
        "project --pp 4 --recompute block/2",
        "tune --model llama2-7b --gpus 8 --global-batch 64 --recompute none,block/2",
    ):
        result = command(*line.split(), code=2)
        assert "block/2 is for" in result.output
