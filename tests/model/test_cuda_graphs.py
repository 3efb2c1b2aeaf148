"""CUDA graphs: which words there are, what of a layer a graph holds, what cannot be captured, and its buffers."""

import re

import pytest

from ppsim.errors import ConfigError
from ppsim.integrations.transformer_engine import most_alive
from ppsim.model.cuda_graph_scope import captures_all, captures_mixer, captures_router, has_graph, why_not_captured
from ppsim.model.cuda_graphs import cuda_graphs_of
from ppsim.model.execution import Execution
from ppsim.model.memory_rows import kept_of_layer
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import Stage
from ppsim.model.rank_memory import rank_memory
from ppsim.model.registry import find_model

DENSE, SPARSE = find_model("llama3-8b").layers[0], find_model("qwen3-30b-a3b").layers[0]
MAMBA = next(layer for layer in find_model("nemotron-3-nano").layers if layer.is_recurrent)
STEP = {"recompute": "none", "offload": 0.0, "is_dropless": True}


def test_words_are_megatrons_and_say_what_goes_together() -> None:
    assert cuda_graphs_of("mlp+attn") == "attn+mlp"
    for text, said in (
        ("atn", "did you mean attn"),
        ("moe_preprocess", "goes with moe_router"),
        ("moe+moe_router", "moe holds the router"),
    ):
        with pytest.raises(ConfigError, match=said):
            cuda_graphs_of(text)


def test_a_graph_holds_the_modules_that_a_layer_has() -> None:
    assert captures_all("attn+mlp", DENSE)
    assert not captures_all("attn+mlp", SPARSE)
    assert captures_all("layer", SPARSE)
    assert captures_router("attn+moe_router", SPARSE)
    assert not has_graph("moe_router", DENSE)
    assert captures_mixer("mamba", MAMBA)
    assert not captures_mixer("attn", MAMBA)


@pytest.mark.parametrize(
    ("graphs", "layer", "changed", "said"),
    [
        ("layer", SPARSE, {}, "dropless router leaves open"),
        ("full", SPARSE, {}, "attn\\+moe_router\\+moe_preprocess ends before it"),
        ("moe_router", DENSE, {}, "is for layers with experts"),
        ("mlp", SPARSE, {}, "is for layers with a dense feed-forward part"),
        ("mamba", SPARSE, {}, "is for layers with Mamba"),
        ("layer", DENSE, {"recompute": "full"}, "recomputed whole: full can"),
        ("attn+moe_router", SPARSE, {"recompute": "moe"}, "computes the router again"),
        ("attn", DENSE, {"offload": 0.5}, "leave out --offload"),
    ],
)
def test_what_cannot_be_captured_is_said(graphs: str, layer, changed: dict, said: str) -> None:
    found = why_not_captured(graphs, (layer,), **STEP | changed)
    assert found is not None
    assert re.search(said, found)


def test_what_can_be_captured_is_not_refused() -> None:
    for graphs, layer, changed in (
        ("layer", SPARSE, {"is_dropless": False}),
        ("attn+moe_router+moe_preprocess", SPARSE, {}),
        ("full", DENSE, {"recompute": "full", "offload": 0.5}),
        ("none", SPARSE, {"recompute": "full"}),
    ):
        assert why_not_captured(graphs, (layer,), **STEP | changed) is None


def with_graphs(words: str = "none", microbatches: int = 1, *, reuse: bool = True) -> MemorySettings:
    execution = Execution(cuda_graphs=words)
    return MemorySettings(1, 4096, execution=execution, graphed_microbatches=microbatches, cuda_graph_reuse=reuse)


def peak(settings: MemorySettings, num_layers: tuple[int, ...], in_flight: list[int]) -> int:
    """Bytes of a rank with a chunk of so many layers each."""
    model = find_model("llama3-8b")
    stages = [Stage((DENSE,) * number) for number in num_layers]
    return rank_memory(model, stages, settings, in_flight=in_flight).total


@pytest.mark.parametrize("num_layers", [(4, 4), (3, 5)])
def test_graphs_share_buffers_along_the_order_of_the_pipeline_however_uneven_its_chunks(num_layers) -> None:
    """With reuse an output of each layer in flight and one gradient, else four of each layer and microbatch, less
    the inputs that a forward keeps anyway."""
    order = [1, 1, 2, 2, 1, -2, 1, -2, 2, -1, 2, -1, -2, -2, -1, -1]  # of rank 0 of two, four microbatches
    in_flight = list(most_alive(order).values())
    assert in_flight == [4, 2]
    alive = sum(layers * number for layers, number in zip(num_layers, in_flight, strict=True))
    hidden, m = 4096 * 4096 * 2, 4
    none = peak(with_graphs(), num_layers, in_flight)
    assert peak(with_graphs("layer", m), num_layers, in_flight) - none == hidden * (alive + 1)
    apart = peak(with_graphs("layer", m, reuse=False), num_layers, in_flight)
    assert apart - none == hidden * (4 * m * sum(num_layers) - alive)
    assert peak(with_graphs("full", m), num_layers, in_flight) == none


def test_a_graph_of_a_layer_with_residual_streams_holds_all_of_them() -> None:
    layer = next(one for one in find_model("deepseek-v4-flash").layers if one.streams == 4)
    words = "attn+moe_router+moe_preprocess"
    settings = with_graphs(words, 8)
    assert kept_of_layer(layer, settings, "none")["graph buffers"] == 4 * 4096 * layer.hidden_size * 2


def test_an_eager_half_keeps_what_the_graph_beside_it_gives() -> None:
    hidden = 4096 * 4096 * 2
    none = peak(with_graphs(), (4,), [3])
    assert peak(with_graphs("attn", 8), (4,), [3]) - none == hidden
    assert peak(with_graphs("attn", 8, reuse=False), (4,), [3]) - none == hidden * (4 * 8 * 4 - 2 * 4 * 3)
