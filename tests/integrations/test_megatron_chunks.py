"""Chunks of Megatron-core's models: layouts, sizes and inputs, without Megatron-core itself."""

from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.shapes import LayerShape
from tests.integrations.stubs import imported_with

pytest.importorskip("torch")

import torch

MODULE = "ppsim.integrations.megatron_chunks"


class LayerType(Enum):
    embedding, decoder, mtp, loss = range(4)


class Layout:
    """As Megatron-core's layout: it keeps its arguments."""

    def __init__(self, *given: Any) -> None:
        self.given = given


class Float16Module(torch.nn.Module):
    def __init__(self, config: Any, module: Any) -> None:
        super().__init__()
        self.config, self.module = config, module


CALLS: list[Any] = []
PARALLEL = SimpleNamespace(
    initialize_model_parallel=lambda **sizes: CALLS.append(sizes),
    destroy_model_parallel=lambda: CALLS.append("destroyed model parallel"),
)
SEEDED = SimpleNamespace(model_parallel_cuda_manual_seed=lambda seed: CALLS.append(seed))
RANDOM = SimpleNamespace(CudaRNGStatesTracker=type("Tracker", (), {"fork": lambda self: "of CUDA"}))
STUBS: dict[str, dict[str, Any]] = {
    "megatron.core": {"parallel_state": PARALLEL, "tensor_parallel": SEEDED},
    "megatron.core.tensor_parallel": {"random": RANDOM},
    "megatron.core.transformer.enums": {"LayerType": LayerType},
    "megatron.core.transformer.module": {"Float16Module": Float16Module},
    "megatron.core.transformer.pipeline_parallel_layer_layout": {"PipelineParallelLayerLayout": Layout},
    "megatron.core.transformer.transformer_block": {
        "get_num_layers_to_build": lambda config, *, vp_stage, pp_rank: 10 * vp_stage + pp_rank
    },
}


@pytest.fixture(scope="module")
def chunks() -> Iterator[Any]:
    """Return the module, imported with names of Megatron-core that do nothing."""
    with imported_with(STUBS, MODULE) as module:
        yield module


def config_of(**fields: Any) -> Any:
    """Return the sizes of a Llama; no two numbers are equal."""
    given = {
        "num_layers": 9, "hidden_size": 48, "ffn_hidden_size": 80, "num_attention_heads": 6, "num_query_groups": 2,
        "kv_channels": 8, "normalization": "RMSNorm", "gated_linear_unit": True, "add_bias_linear": False,
        "num_moe_experts": None, "moe_ffn_hidden_size": 28, "moe_router_topk": 3, "moe_layer_freq": 1,
        "moe_shared_expert_intermediate_size": None, "expert_tensor_parallel_size": 2, "mtp_num_layers": None,
        "tensor_model_parallel_size": 2, "context_parallel_size": 5, "expert_model_parallel_size": 1,
        "pipeline_model_parallel_size": 3, "virtual_pipeline_model_parallel_size": None,
        "pipeline_model_parallel_layout": None, "sequence_parallel": False, "bf16": False, "fp16": False,
        "params_dtype": torch.float32, "recompute_granularity": None, "recompute_modules": None,
        "gradient_accumulation_fusion": False, "num_layers_in_first_pipeline_stage": 7,
        "num_layers_in_last_pipeline_stage": 7, "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }  # fmt: skip
    return SimpleNamespace(**given | fields)


def builder_of(chunks: Any, config: Any, provider: Any = None) -> Any:
    return chunks.MegatronBuilder(provider, config, micro_batch=3, sequence_length=140, vocab_size=11, device="cpu")


LLAMA = ("llama", 48, 6, 2, 8, 80)
BIASED = {
    "normalization": "LayerNorm",
    "gated_linear_unit": False,
    "add_bias_linear": True,
    "num_query_groups": None,
}
EXPERTS = {"num_moe_experts": 4}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, LLAMA),
        ({"num_query_groups": None}, ("llama", 48, 6, 6, 8, 80)),
        (BIASED, ("gpt", 48, 6, 6, 8, 80)),
        (EXPERTS, ("moe", 48, 6, 2, 8, 28, 4, 3, 0)),
        (
            EXPERTS | {"moe_shared_expert_intermediate_size": 36, "moe_ffn_hidden_size": None},
            ("moe", 48, 6, 2, 8, 80, 4, 3, 36),
        ),
        ({"moe_layer_freq": 2, "expert_tensor_parallel_size": 1}, LLAMA),
        (EXPERTS | {"moe_layer_freq": 2}, None),
        (EXPERTS | {"expert_tensor_parallel_size": 1}, None),
        (BIASED | EXPERTS, None),
        ({"multi_latent_attention": True}, None),
        ({"normalization": "LayerNorm"}, None),
        ({"gated_linear_unit": False}, None),
        ({"add_bias_linear": True}, None),
        (BIASED | {"normalization": "RMSNorm"}, None),
        (BIASED | {"gated_linear_unit": True}, None),
        (BIASED | {"add_bias_linear": False}, None),
        (BIASED | {"num_query_groups": 2}, None),
    ],
)
def test_layers_of_known_kinds_have_a_shape(chunks: Any, fields: dict[str, Any], expected: Any) -> None:
    shape = None if expected is None else LayerShape(*expected)
    assert chunks.layer_shape_of(config_of(**fields)) == shape


@pytest.mark.parametrize(
    ("start", "stop", "ends", "predictions", "layout", "rank"),
    [
        (0, 9, "EL", 0, ["Ettttttttt|"], 0),
        (0, 2, "E", 0, ["Ett", "ttttttt"], 0),
        (7, 9, "L", 2, ["Ettttttt", "ttmm"], 1),
        (3, 5, "", 1, ["Ettt", "tt", "ttttm"], 1),
    ],
)
def test_a_window_is_a_stage_between_the_layers_before_and_after(
    chunks: Any, start: int, stop: int, ends: str, predictions: int, layout: list[str], rank: int
) -> None:
    letters = {"E": "embedding", "t": "decoder", "m": "mtp"}
    stages = [[letters[letter] for letter in stage if letter != "|"] for stage in layout]
    stages[-1].append("loss")
    window = chunks.LayerWindow(start, stop, "E" in ends, "L" in ends)
    assert chunks._layout_of(window, 9, predictions) == (stages, rank)


def test_a_layout_replaces_all_other_splits_of_the_pipeline(chunks: Any) -> None:
    several, single = chunks._pipeline([["a"], ["b"]]), chunks._pipeline([["a"]])
    assert several.pop("pipeline_model_parallel_layout").given == ([["a"], ["b"]], 2)
    assert several == {
        "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": None,
        "num_layers_in_first_pipeline_stage": None, "num_layers_in_last_pipeline_stage": None,
        "account_for_embedding_in_pipeline_split": False, "account_for_loss_in_pipeline_split": False,
    }  # fmt: skip
    assert single == several | {"pipeline_model_parallel_size": 1, "pipeline_model_parallel_layout": None}


@pytest.mark.parametrize(
    ("sizes", "expected"), [((2, 3, 4, 1), 12), ((2, 3, 4, None), 24), ((2, 5, 1, 2), 10), ((1, 1, 7, 3), 21)]
)
def test_ranks_of_a_stage_divide_into_both_kinds_of_groups(chunks: Any, sizes: Any, expected: int) -> None:
    tp, cp, ep, etp = sizes
    config = config_of(
        tensor_model_parallel_size=tp, context_parallel_size=cp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )  # fmt: skip
    assert chunks.num_ranks_of_stage(config) == expected


def test_the_own_split_goes_round_all_ranks_for_each_chunk(chunks: Any) -> None:
    assert builder_of(chunks, config_of()).own_split() == [0, 1, 2]
    assert builder_of(chunks, config_of(virtual_pipeline_model_parallel_size=2)).own_split() == [
        0,
        1,
        2,
        10,
        11,
        12,
    ]
    start, layer, prediction = LayerType.embedding, LayerType.decoder, LayerType.mtp
    layout = [[[start, layer], 3 * [layer]], [2 * [layer], [layer, prediction, LayerType.loss]]]
    config = config_of(
        pipeline_model_parallel_size=2, pipeline_model_parallel_layout=SimpleNamespace(layout=layout)
    )
    assert builder_of(chunks, config).own_split() == [1, 2, 3, 1]
    layout[0][1].append(prediction)
    with pytest.raises(ConfigError, match="multi-token prediction on a stage before the last is not measured"):
        builder_of(chunks, config).own_split()


def test_inputs_are_tokens_or_hidden_states_of_the_sequence_of_a_rank(chunks: Any) -> None:
    first, later = chunks.LayerWindow(0, 2, is_first=True), chunks.LayerWindow(2, 4)
    builder = builder_of(chunks, config_of())
    tokens = builder.input_of(first)
    assert (tuple(tokens.shape), tokens.dtype) == ((3, 140 // 5), torch.int64)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 11
    hidden = builder.input_of(later)
    assert (tuple(hidden.shape), hidden.dtype) == ((140 // 5, 3, 48), torch.float32)
    for fields, dtype in (({"bf16": True}, torch.bfloat16), ({"fp16": True}, torch.float16)):
        shared = builder_of(chunks, config_of(sequence_parallel=True, **fields)).input_of(later)
        assert (tuple(shared.shape), shared.dtype) == ((140 // 5 // 2, 3, 48), dtype)


def test_flops_are_of_the_layers_and_the_head_of_a_rank(chunks: Any) -> None:
    """tp 2, cp 5: 3 · 28 tokens; the vocabulary is padded to a multiple of 128 · 2."""
    builder = builder_of(chunks, config_of())
    tokens = 3 * 140 // 5
    weights = 48 * 48 // 2 + 2 * 48 * 16 // 2 + 48 * 48 // 2 + 3 * 48 * 80 // 2
    layer = 2 * tokens * weights + 2 * 2 * tokens * 140 * 48 // 2
    head = 2 * tokens * 48 * 256 // 2
    assert builder.forward_flops("Ett") == 2 * layer
    assert builder.forward_flops("tttL") == 3 * layer + head
    assert builder_of(chunks, config_of(mtp_num_layers=1)).forward_flops("tt") is None
    assert builder_of(chunks, config_of(multi_latent_attention=True)).forward_flops("tt") is None
    experts = config_of(**EXPERTS, expert_model_parallel_size=4)
    assert builder_of(chunks, experts).forward_flops("t") == (
        2 * tokens * (48 * 48 // 2 + 2 * 48 * 16 // 2 + 48 * 48 // 2 + 48 * 4 + 3 * 3 * 48 * 28 // 2)
        + 2 * 2 * tokens * 140 * 48 // 2
    )


@pytest.mark.parametrize(
    ("fields", "dtype", "recompute"),
    [
        ({}, "float32", "none"),
        ({"bf16": True, "recompute_granularity": "full"}, "bfloat16", "full"),
        ({"fp16": True, "recompute_granularity": "selective"}, "float16", "core_attn"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["moe_act", "layernorm"]},
            "float32",
            "layernorm+moe_act",
        ),
    ],
)
def test_a_profile_has_the_sizes_of_the_configuration(
    chunks: Any, fields: dict[str, Any], dtype: str, recompute: str
) -> None:
    assert builder_of(chunks, config_of(expert_model_parallel_size=7, **fields)).shape() == {
        "micro_batch": 3, "sequence_length": 140, "dtype": dtype, "tp": 2, "cp": 5, "ep": 7, "recompute": recompute,
    }  # fmt: skip


class Model(torch.nn.Module):
    """A model that notes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.decoder = SimpleNamespace(layers=("first", "second"))
        self.given: list[Any] = []

    def set_input_tensor(self, hidden: Any) -> None:
        self.given.append(hidden)

    def forward(self, *given: Any, **labels: Any) -> Any:
        self.given += [*given, labels]
        return "output"


@pytest.mark.parametrize("ends", ["EL", "E", "L", ""])
def test_a_chunk_gets_tokens_first_and_labels_last(chunks: Any, ends: str) -> None:
    """The last chunk gets tokens too, because multi-token prediction embeds them."""
    tokens, given = torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([3])
    model, is_first, is_last = Model(), "E" in ends, "L" in ends
    chunk = chunks.GptChunk(model, tokens=tokens, window=chunks.LayerWindow(0, 1, is_first, is_last))
    assert chunk(given) == "output"
    *hidden, embedded, positions, mask, labels = model.given
    assert len(hidden) == (not is_first)
    assert all(states is given for states in hidden)
    assert embedded is (given if is_first else tokens if is_last else None)
    assert (None if positions is None else positions.tolist()) == ([[0, 1, 2]] * 2 if ends else None)
    assert mask.tolist() == [[[[False, True, True], [False, False, True], [False, False, False]]]]
    assert list(labels) == (["labels"] if is_last else [])
    assert labels.get("labels", tokens) is tokens


@pytest.fixture
def ranks(chunks: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls of process groups, of which there is none."""
    CALLS.clear()
    monkeypatch.setattr(chunks, "FakeStore", lambda: "fake store")
    monkeypatch.setattr(chunks.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(chunks.dist, "destroy_process_group", lambda: CALLS.append("destroyed"))
    monkeypatch.setattr(chunks.dist, "init_process_group", lambda *given, **named: CALLS.append((given, named)))
    return CALLS


SIZES = {
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 3, "context_parallel_size": 5,
    "expert_model_parallel_size": 7, "expert_tensor_parallel_size": 1, "create_gloo_process_groups": False,
}  # fmt: skip
DESTROYED = ["destroyed model parallel", "destroyed"]


def test_a_process_is_the_first_rank_of_a_stage_for_as_long_as_its_chunk(
    chunks: Any, ranks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage of tp 2 · cp 5 and etp 1 · ep 7 has 70 ranks."""
    config = config_of(expert_model_parallel_size=7, expert_tensor_parallel_size=1)
    group = {"store": "fake store", "rank": 140, "world_size": 210}
    with chunks._as_rank(config, 2, 3):
        assert ranks == [(("fake",), group), SIZES]
    assert ranks[2:] == DESTROYED
    monkeypatch.setattr(chunks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(chunks.dist, "get_backend", lambda: "fake")
    ranks.clear()
    with pytest.raises(KeyError), chunks._as_rank(config, 0, 1):
        raise KeyError
    assert ranks[:2] == ranks[-2:] == DESTROYED
    ranks.clear()
    monkeypatch.setattr(chunks.dist, "get_backend", lambda: "gloo")
    with pytest.raises(ConfigError, match="a process group that sends is there already"):
        chunks._as_rank(config, 0, 1).__enter__()
    assert ranks == []


def test_calls_of_cuda_do_nothing_for_as_long_as_a_chunk_on_a_cpu(chunks: Any) -> None:
    before, tracker = torch.cuda.current_device, RANDOM.CudaRNGStatesTracker()
    with chunks._without_cuda():
        assert str(torch.cuda.current_device()) == "cpu"
        with tracker.fork():
            pass
    assert torch.cuda.current_device is before
    assert tracker.fork() == "of CUDA"


@pytest.mark.parametrize("takes_config", [False, True])
def test_a_chunk_is_built_from_a_configuration_that_is_restored(
    chunks: Any, ranks: list[Any], takes_config: bool
) -> None:
    providers: list[Any] = []
    config = config_of(gradient_accumulation_fusion=True)
    before = dict(vars(config))

    def with_config(pre_process: bool, post_process: bool, config: Any) -> Model:
        providers.append((pre_process, post_process, config.pipeline_model_parallel_layout.given, "config"))
        return Model()

    def plain(pre_process: bool, post_process: bool) -> Model:
        providers.append((pre_process, post_process, config.pipeline_model_parallel_layout.given))
        return Model()

    builder = builder_of(chunks, config, with_config if takes_config else plain)
    built = builder.build(chunks.LayerWindow(6, 9, is_last=True))
    layout = [["embedding", *6 * ["decoder"]], [*3 * ["decoder"], "loss"]]
    assert providers == [(False, True, (layout, 2), *["config"] * takes_config)]
    assert ranks[0][1] == {"store": "fake store", "rank": 10, "world_size": 20}
    assert str(torch.cuda.current_device()) == "cpu"
    assert (built.layers, built.loss) == (["first", "second"], torch.mean)
    model = built.module.model
    assert (model.weight.main_grad.dtype, model.weight.main_grad.tolist()) == (torch.float32, [0.0, 0.0])
    builder.build(chunks.LayerWindow(0, 2, is_first=True))
    assert ranks[2:4] == DESTROYED, "the groups of the chunk before"
    assert providers[1][:2] == (True, False)
    builder.close()
    assert vars(config) == before
    assert ranks[-2:] == DESTROYED


@pytest.mark.parametrize(("fields", "is_wrapped"), [({}, False), ({"fp16": True}, True), ({"bf16": True}, True)])
def test_models_of_16_bits_are_wrapped_as_in_training(
    chunks: Any, ranks: list[Any], fields: dict[str, bool], is_wrapped: bool
) -> None:
    config = config_of(mtp_num_layers=1, **fields)
    builder = builder_of(chunks, config, lambda pre_process, post_process: Model())
    built = builder.build(chunks.LayerWindow(3, 5))
    assert isinstance(built.module.model, Float16Module) == is_wrapped
    assert built.loss is None
    assert config.pipeline_model_parallel_layout.given[0][-1] == [*4 * ["decoder"], "mtp", "loss"]
    model = built.module.model.module if is_wrapped else built.module.model
    assert not hasattr(model.weight, "main_grad")
    assert not is_wrapped or built.module.model.config is config
    assert tuple(built.module._tokens.shape) == (3, 28)
    builder.close()


def test_on_a_gpu_the_random_state_of_tensor_parallel_ranks_is_seeded(chunks: Any, ranks: list[Any]) -> None:
    before = torch.cuda.current_device
    builder = builder_of(
        chunks, config_of(), lambda pre_process, post_process: SimpleNamespace(to=lambda on: Model())
    )
    builder.device = SimpleNamespace(type="cuda")
    builder.tokens = lambda: torch.zeros(1, 2, dtype=torch.int64)
    builder.build(chunks.LayerWindow(3, 5))
    assert ranks[2:] == [1234]
    assert torch.cuda.current_device is before
    builder.close()
