"""Recomputation by a layer's place in its stage: block/N and uniform/N, as Megatron-LM has them."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.model import recompute as recompute_module
from ppsim.model.recompute import (
    LayerPlan,
    by_number,
    by_operators,
    counted_matrices,
    counts,
    is_by_stage,
    layer_ids,
    numbers_of_layers,
    of_layer,
    plan_of_stage,
    recompute_of,
    recomputes,
    require_enough_layers,
    require_layers,
    require_of_layer,
    require_spelling,
    spelled_layers,
    text_of,
    words_of_layers,
)
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes
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


def test_words_of_stages_and_layers() -> None:
    """Normalised word, options of its layers, and whether they depend on the position."""
    for text, spelled, words, by_stage in (
        ("none", "none", ["none"], False),
        ("full", "full", ["full"], False),
        ("selective", "core_attn", ["core_attn"], False),
        ("selective-op", "selective-op", ["selective-op"], False),
        ("mlp+layernorm", "layernorm+mlp", ["layernorm+mlp"], False),
        ("block/3", "block/3", ["none", "full"], True),
        ("uniform/3", "uniform/3", ["full"], True),
        ("full/3", "full/3", ["none", "full"], True),
        ("full@4,1-2", "full@1-2,4", ["none", "full"], True),
        ("full*2,none*3,mlp*1", "full*2,none*3,mlp*1", ["none", "full", "mlp"], True),
    ):
        assert recompute_of(text) == spelled
        assert (words_of_layers(spelled), is_by_stage(spelled)) == (words, by_stage), text
        assert of_layer(spelled) == words[0]
        require_spelling(spelled)
    for text in ("selective", "block/03", "full@2,1", "full/1"):
        with pytest.raises(ConfigError, match="is spelled"):
            require_spelling(text)
    for text, refused in (
        ("block/10000", "block/10001"),
        ("full/10000", "full/10001"),
        ("full*10000", "full*10001"),
    ):
        assert recompute_of(text) == text
        with pytest.raises(ConfigError):
            recompute_of(refused)
    for refused in ("block/-1", "full/0", "full*0", "full@", "full@3-2", "full@-1", "full@10000", "mlq"):
        with pytest.raises(ConfigError):
            recompute_of(refused)
    assert recompute_of("full@9999") == "full@9999"


def test_layers_by_number_are_within_the_model() -> None:
    assert numbers_of_layers("", "7,0-2,2") == [0, 1, 2, 7]
    assert spelled_layers([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    require_layers("full@0-7", 8)
    require_layers("full", 1)
    with pytest.raises(ConfigError, match="has layer 8, but the last of the model is 7"):
        require_layers("full@1,8", 8)
    assert (layer_ids("full@1,8"), layer_ids("mlp@1,8"), layer_ids("none")) == ([1, 8], [], [])
    for allowed, refused in (("block/8", "block/9"), ("uniform/8", "uniform/9"), ("full", "full/9")):
        require_enough_layers(allowed, 8)
        with pytest.raises(ConfigError):
            require_enough_layers(refused, 8)


def test_plans_are_written_as_options() -> None:
    full, none, mlp = (LayerPlan(number, word) for number, word in ((2, "full"), (3, "none"), (1, "mlp")))
    assert by_number([[full, none], [full]]) == "full@0-1,5-6"
    assert (by_number([[full], [full]]), by_number([[none]]), by_number([[full, mlp]])) == ("full", "none", None)
    assert by_number([[LayerPlan(2, "full", joined=True)]]) is None
    assert [text_of(plan) for plan in ([], [mlp], [none], [full, mlp], [full, none], [none, full])] == [
        "none", "mlp", "none", "full*2,mlp*1", "full*2", "none*3,full*2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recompute", "options", "plan"),
    [
        ("none", {}, [(5, "none")]),
        ("mlp", {}, [(5, "mlp")]),
        ("block/3", {}, [(3, "full"), (2, "none")]),
        ("block/7", {}, [(5, "full")]),
        ("full/2", {}, [(1, "none"), (1, "full"), (1, "none"), (1, "full"), (1, "none")]),
        ("full/2", {"before": 1}, [(1, "full"), (1, "none"), (1, "full"), (1, "none"), (1, "full")]),
        ("full@3,7-8", {"first": 4}, [(3, "none"), (2, "full")]),
        ("full@3,7-8", {}, [(3, "none"), (1, "full"), (1, "none")]),
        ("full*2,mlp*1", {}, [(2, "full"), (1, "mlp"), (2, "none")]),
        ("full*2,mlp*3", {}, [(2, "full"), (3, "mlp")]),
    ],
)
def test_layers_of_a_stage_are_recomputed_so(
    recompute: str, options: dict[str, int], plan: list[tuple[int, str]]
) -> None:
    found = plan_of_stage(recompute, 5, **options)
    assert [(one.layers, one.recompute) for one in found] == plan
    assert not any(one.joined for one in found)


def test_uniform_checkpoints_join_their_layers() -> None:
    assert plan_of_stage("uniform/3", 5) == (LayerPlan(3, "full", joined=True), LayerPlan(2, "full", joined=True))


def test_modules_of_a_word_and_matrices_that_count() -> None:
    assert [recomputes("mlp+moe_act", word) for word in ("mlp", "moe_act", "moe", "mlp+moe_act")] == [
        True,
        True,
        False,
        False,
    ]
    counted = {
        kind: counts(WeightMatrix("up", "x", 4, (8,), kind=kind))
        for kind in ("dense", "router", "routed", "shared", "gate", "vector")
    }
    assert counted == {
        "dense": True,
        "router": False,
        "routed": False,
        "shared": True,
        "gate": False,
        "vector": False,
    }
    with pytest.raises(ConfigError, match="is for the stages"):
        require_of_layer("block/2")
    assert require_of_layer("selective") == "core_attn"


def test_every_second_product_is_kept_in_torchtitans_order() -> None:
    """Latents come first; q, k, v and gate and up count separately; a biased product is kept and does not count."""
    matrices = [
        WeightMatrix("queries down", "x", 8, (3,)), WeightMatrix("queries up", "l", 3, (8,)),
        WeightMatrix("attention output", "heads", 8, (8,)), WeightMatrix("up", "x", 8, (5, 6)),
        WeightMatrix("keys and values down", "x", 8, (4,)), WeightMatrix("router", "x", 8, (9,), kind="router"),
        WeightMatrix("queries, keys, values", "x", 8, (7, 2, 1), biased=True), WeightMatrix("down", "a", 5, (8,)),
    ]  # fmt: skip
    assert [(one.name, one.columns) for one in counted_matrices([*matrices[:2], matrices[4]])] == [
        ("queries down", (3,)), ("queries up", (8,)), ("keys and values down", (4,)),
    ]  # fmt: skip
    in_order = [matrices[0], matrices[1], matrices[4]]
    kept, again = by_operators(in_order, ParallelSizes())
    assert ([one.name for one in kept], [one.name for one in again]) == (
        ["queries down", "keys and values down"], ["queries up"],
    )  # fmt: skip
    dense = [replace(matrices[6], biased=False), matrices[2], matrices[3], matrices[7]]

    def columns(tp: int, products: list[WeightMatrix]) -> list[list[int]]:
        return [[one.outputs for one in half] for half in by_operators(products, ParallelSizes(tp=tp))]

    # 7 kept, 2 not, 1 kept, 8 not (output), 5 kept, 6 not, down counts
    assert columns(1, dense) == [[7, 1, 5], [2, 8, 6]]
    assert columns(2, dense) == [[7, 1, 5], [2, 6]]
    assert columns(1, [matrices[6], *dense[1:]]) == [[7, 2, 1, 8, 6], [5]]
