"""Recomputation by a layer's place in its stage: block/N and uniform/N, as Megatron-LM has them."""

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.model import recompute as recompute_module
from ppsim.model.recompute import plan_of_stage, recompute_of
from tests.cli.running import ppsim as command
from tests.defaults import number_defaults

JOB = {
    "model": "llama3-70b",
    "gpus": 64,
    "cluster": "dgx-h100",
    "tp": 4,
    "pp": 4,
    "global_batch": 128,
    "split": "even",
}


def test_more_layers_recomputed_take_longer_and_less_memory() -> None:
    """llama3-70b has 20 layers per stage."""
    words = ("none", "block/5", "block/10", "block/15", "block/20")
    made = [ppsim.project(**JOB, recompute=word) for word in words]
    seconds = [one.iteration_time_s for one in made]
    peaks = [one.timeline.memory.peak_bytes.max() for one in made]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == 5
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 5


def test_all_layers_in_checkpoints_of_one_are_full_recomputation() -> None:
    full = ppsim.project(**JOB, recompute="full")
    for word in ("block/20", "block/80"):
        one = ppsim.project(**JOB, recompute=word)
        assert one.iteration_time_s == pytest.approx(full.iteration_time_s, rel=1e-12)
        assert one.timeline.memory.peak_bytes.tolist() == full.timeline.memory.peak_bytes.tolist()


def test_more_layers_than_the_model_has_are_refused_if_they_are_typed() -> None:
    """A configuration may have more: Megatron-LM then recomputes all layers."""
    for ask in (lambda **words: ppsim.project(**JOB, **words), lambda recompute: ppsim.tune(
        model="llama3-70b", gpus=64, global_batch=128, recompute=[recompute]
    )):  # fmt: skip
        with pytest.raises(ConfigError, match=r"^recompute block/81: the model has 80 layers \(nearest: full\)$"):
            ask(recompute="block/81")
        with pytest.raises(
            ConfigError, match=r"^recompute uniform/81: the model has 80 layers \(nearest: uniform/80\)$"
        ):
            ask(recompute="uniform/81")


def test_larger_checkpoints_keep_fewer_inputs_and_need_more_in_the_backward() -> None:
    """Between 1 and 20 layers per checkpoint lies the smallest peak; the time is that of full recomputation."""
    words = JOB | {"grad_reduce_in_bf16": False}  # no copies of gradients, which may need more than activations
    made = {number: ppsim.project(**words, recompute=f"uniform/{number}") for number in (1, 2, 4, 10, 20)}
    peaks = {number: one.timeline.memory.peak_bytes[0] for number, one in made.items()}
    assert len({one.iteration_time_s for one in made.values()}) == 1
    assert min(peaks, key=peaks.get) in (2, 4)
    assert peaks[20] > peaks[10] > peaks[4]


def test_checkpoints_of_a_chunk_count_its_own_layers() -> None:
    """With vpp 5, four layers per chunk: block/4 recomputes all, block/2 half of them."""
    recomputed = [
        sum(
            stage.backward.recompute_s for stage in ppsim.project(**JOB, vpp=5, recompute=word).stage_cost_set.parts
        )
        for word in ("block/2", "block/4", "full")
    ]
    assert recomputed[0] == pytest.approx(recomputed[2] / 2)
    assert recomputed[1] == pytest.approx(recomputed[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block/x", "recompute must be block/N with N from 0 to 10,000: got 'block/x' (say block/2)"),
        ("uniform/0", "recompute must be uniform/N with N from 1 to 10,000: got 'uniform/0' (say uniform/2)"),
        ("full/" + "9" * 5000, "recompute must be full/N with N from 1 to 10,000: got 'full/9999"),
        ("full*99999999999", "with N from 1 to 10,000: got 'full*99999999999'"),
        ("full@0-99999999999", "recompute of single layers is WORD@0,3,8-11: got 'full@0-99999999999'"),
        ("full@" + "0-9999," * 10_000, "WORD@… with at most 10,000 layers: got 'full@0-9999,0-9999"),
    ],
)
def test_a_wrong_number_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        recompute_of(text)
    assert message in str(refused.value)


def test_kinds_of_more_layers_than_the_stage_has_are_not_listed() -> None:
    with pytest.raises(ConfigError, match="is of 100000000 layers, but a stage has 4"):
        plan_of_stage(",".join(["full*10000"] * 10_000), 4)


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
        assert ppsim.read_run_config(script).options["recompute"] == word


def test_a_layer_alone_refuses_them_in_a_sentence() -> None:
    result = command("project", "--pp", "4", "--recompute", "block/2", code=2)
    assert "block/2 is for" in result.output


def test_every_nth_layer_is_counted_over_all_stages_of_the_rank() -> None:
    def layers(before: int) -> list[tuple[int, str]]:
        return [(one.layers, one.recompute) for one in plan_of_stage("full/3", 4, before=before)]

    assert layers(0) == [(2, "none"), (1, "full"), (1, "none")]
    assert layers(4) == [(1, "none"), (1, "full"), (2, "none")]


def test_what_is_left_out_in_model_recompute_has_these_values() -> None:
    assert number_defaults(recompute_module) == {
        "LayerPlan": {"joined": False},
        "plan_of_stage": {"first": 0, "before": 0},
    }  # fmt: skip
