"""Frozen weights and LoRA adapters: parameters, saved bytes and FLOPs, by closed forms and by torch's own count."""

from typing import Any

import pytest

from ppsim.errors import ConfigError
from ppsim.model import fine_tuning as fine_tuning_module
from ppsim.model.activations import layer_activations, weight_gradient_bytes
from ppsim.model.architecture import Model
from ppsim.model.blocks import operators_of
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import DEFAULT_MODULES, FineTuning, fine_tuning_of, freeze_of, lora_of
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.rank_rules import static_bytes
from ppsim.model.registry import find_model, gpt
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults

RANK = 16
LORA = FineTuning(RANK, DEFAULT_MODULES)
FREEZE = FineTuning(frozen=frozenset({"attention", "mlp", "norms"}))  # the embedding is trained: layers have I
ONLY_QKV = FineTuning(RANK, ("linear_qkv",))


def tuned(name: str, tuning: FineTuning) -> Model:
    return find_model(name).with_fine_tuning(tuning)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_adapters_have_rank_times_inputs_and_outputs_of_each_module_over_tp(tp: int) -> None:
    model = tuned("llama3-70b", LORA)
    h, qkv, f = 8192, 10240, 28672
    of_layer = RANK * ((h + qkv) + (h + h) + (h + 2 * f) + (f + h))
    held = held_parameters(model, stages_of(model, [80]), ParallelSizes(tp=tp))
    assert held.trained == 80 * of_layer // tp
    base = find_model("llama3-70b")
    assert held.frozen == held_parameters(base, stages_of(base, [80]), ParallelSizes(tp=tp)).dense


def test_experts_of_a_rank_share_an_adapter_and_latent_attention_has_one_behind_its_heads() -> None:
    layer = tuned("deepseek-v3", LORA).layers[-1]
    adapters = [one for one in layer.linears(ParallelSizes(ep=8, dp=8)) if one.is_adapter]
    assert [one.name for one in adapters] == [
        f"{name}, {letter}" for name in ("attention output", "up", "down", "up", "down") for letter in "AB"
    ]
    routed = [one for one in adapters if one.kind == "routed adapter"]
    assert sum(one.weights for one in routed) == RANK * (7168 + 2 * 2048 + 2048 + 7168)


def test_only_trained_weights_have_gradients_and_optimizer_state() -> None:
    """Bfloat16: 2 bytes of each weight; 4 of gradient, 4 of master weight and 8 of moments of each trained one."""
    for tuning in (LORA, FREEZE):
        model = tuned("llama3-8b", tuning)
        stages = stages_of(model, [32])
        held = held_parameters(model, stages, ParallelSizes(dp=4))
        found = static_bytes(held, MemorySettings(1, 8, ParallelSizes(dp=4), Optimizer(zero_stage=1)))
        assert found["parameters"] == 2 * held.dense
        assert found["gradients"] == 4 * held.trained
        assert found["optimizer state"] == 12 * held.trained // 4
    assert held.trained == 2 * 128256 * 4096  # embedding and head


def test_layers_before_the_first_trained_weight_have_no_backward() -> None:
    model = tuned("llama3-8b", FineTuning(frozen=frozenset({"embedding"}), layers=frozenset(range(16))))
    assert [layer.has_backward for layer in model.layers] == [False] * 16 + [True] * 16
    batch = (1, 128)
    assert layer_activations(model.layers[0], MemorySettings(*batch)) == {}
    assert layer_activations(model.layers[0], MemorySettings(*batch), "full") == {}
    assert weight_gradient_bytes(model.layers[0], MemorySettings(*batch)) == 0
    trained_later = tuned("llama3-8b", FineTuning(layers=frozenset(range(16))))
    assert all(layer.has_backward for layer in trained_later.layers)
    assert all(layer.has_backward for layer in tuned("llama3-8b", LORA).layers)
    assert len(tuned("llama3-8b", LORA).kinds) == 1


def test_a_tied_embedding_is_frozen_with_the_head() -> None:
    model = tuned("gpt2", FineTuning(frozen=frozenset({"head"})))
    assert not model.trains("embedding")
    assert held_parameters(model, stages_of(model, [12]), ParallelSizes()).frozen == 50257 * 768 + 1024 * 768


def test_a_split_backward_holds_the_inputs_of_adapters_only() -> None:
    batch, h, e = (1, 64), 4096, 2
    [full], [lora], [frozen] = (
        one.kinds for one in (find_model("llama3-8b"), tuned("llama3-8b", ONLY_QKV), tuned("llama3-8b", FREEZE))
    )
    assert weight_gradient_bytes(frozen, MemorySettings(*batch)) == 0
    assert weight_gradient_bytes(lora, MemorySettings(*batch)) == 64 * (h + RANK + RANK + 6144) * e
    assert weight_gradient_bytes(full, MemorySettings(*batch)) > weight_gradient_bytes(lora, MemorySettings(*batch))


def test_adapters_of_sequence_parallel_ranks_save_the_gathered_norm() -> None:
    """Megatron-Bridge's A reads what TransformerEngine gathers, and keeps it (`return_layernorm_output_gathered`)."""
    cut, batch = ParallelSizes(tp=4, dp=1, sequence_parallel=True), (1, 64)
    [layer] = tuned("llama3-8b", ONLY_QKV).kinds
    saved = {one.name: one.saved_for_w for one in operators_of(layer, cut, Execution(), 64)}
    assert saved["qkv A"] == ("gathered n1 of qkv",)
    [frozen] = tuned("llama3-8b", FREEZE).kinds
    more = [sum(layer_activations(one, MemorySettings(*batch, cut)).values()) for one in (layer, frozen)]
    assert more[0] - more[1] == 64 * (4096 + RANK) * 2


def test_tuning_again_starts_from_the_base_model() -> None:
    model = find_model("llama3-8b")
    assert model.with_fine_tuning(LORA).with_fine_tuning(LORA).layers[0].training.rank == RANK
    assert model.with_fine_tuning(LORA).with_fine_tuning(ONLY_QKV) == model.with_fine_tuning(ONLY_QKV)
    assert model.with_fine_tuning(LORA).with_fine_tuning(None) == model


@pytest.mark.parametrize(
    ("lora", "freeze", "sentence"),
    [
        ("0", "", "--lora is '0': give a rank of 1 or more"),
        ("sixteen", "", "--lora is 'sixteen': give a rank"),
        ("16:linear_qvk", "", "did you mean linear_qkv"),
        ("16:router", "", "the model has no router, only linear_fc1"),
        ("16:", "", "modules of --lora must be"),
        ("", "mpl", "did you mean mlp?"),
        ("", "experts", "the model has no experts, only attention"),
        ("", "embedding+layers+head+norms", "--freeze leaves no weight to train"),
        ("", "layers@0-99", "--freeze has layer 99, but the last of the model is 31"),
        ("", "layers@3-1", "layers@0,3,8-11: got 'layers@3-1'"),
        ("", "layers+layers@3", "not both"),
        ("8", "head", "--lora freezes all base weights: leave out --freeze"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(lora: str, freeze: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("llama3-8b").with_fine_tuning(fine_tuning_of(lora_of(lora), freeze_of(freeze)))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_diffusion_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="for language models"):
        tuned("dit-b-2", LORA)


H, HEADS, S, BATCH = 32, 4, 8, 2


def torch_layer(tuning: FineTuning | None) -> Any:
    """A GPT layer in torch with the same weights frozen and the same adapters; attention writes its scores."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Lora(nn.Module):
        def __init__(self, base: Any, name: str) -> None:
            super().__init__()
            self.base, self.has_adapter = base, bool(tuning) and name in tuning.modules
            if self.has_adapter:
                self.a = nn.Linear(base.in_features, tuning.rank, bias=False)
                self.b = nn.Linear(tuning.rank, base.out_features, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + 2.0 * self.b(self.a(x)) if self.has_adapter else self.base(x)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(H), nn.LayerNorm(H)
            self.qkv, self.proj = Lora(nn.Linear(H, 3 * H), "linear_qkv"), Lora(nn.Linear(H, H), "linear_proj")
            self.up, self.down = Lora(nn.Linear(H, 4 * H), "linear_fc1"), Lora(nn.Linear(4 * H, H), "linear_fc2")

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm1(x)).view(BATCH, S, 3, HEADS, H // HEADS).permute(2, 0, 3, 1, 4)
            weights = torch.softmax(q @ k.transpose(-1, -2), -1)
            x = x + self.proj((weights @ v).transpose(1, 2).reshape(BATCH, S, H))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    block = Block()
    for name, weight in block.named_parameters():
        weight.requires_grad = tuning is None or (tuning.rank > 0 and name.split(".")[-2] in "ab")
    return block


def measured(tuning: FineTuning | None) -> tuple[int, int, int]:
    """Trained parameters, bytes saved for the backward, and FLOPs of a forward and a backward, by torch."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    block, saved = torch_layer(tuning), {}
    x = torch.randn(BATCH, S, H, requires_grad=True)
    held = {weight.untyped_storage().data_ptr() for weight in block.parameters()}

    def keep(tensor: Any) -> Any:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = block(x)
        out.sum().backward()
    num_bytes = sum(size for storage, (size, _) in saved.items() if storage not in held)
    trained = sum(weight.numel() for weight in block.parameters() if weight.grad is not None)
    return trained, num_bytes, counter.get_total_flops()


def projected(tuning: FineTuning | None) -> tuple[int, int, float]:
    """The same by ppsim; bytes without those that every layer saves alike."""
    [layer] = gpt(1, H, HEADS, vocab=64).with_fine_tuning(tuning).kinds
    norms = layer.norm_parameters * layer.trains_norms
    trained = norms + sum(one.weights + one.biases for one in layer.all_linears if one.trainable)
    kept = layer_activations(
        layer, MemorySettings(BATCH, S, execution=Execution(dtype="float32", attention="unfused"))
    )
    flops = BATCH * S * (3 * layer.forward_flops(S) - layer.left_out_flops(S))
    return trained, sum(kept.values()), flops


@pytest.mark.parametrize("tuning", [None, LORA, ONLY_QKV, FREEZE, FineTuning(4, ("linear_fc2", "linear_proj"))])
def test_torch_trains_saves_and_computes_the_same(tuning: FineTuning | None) -> None:
    """The bytes are compared by what they are fewer than in full training: all else is the same."""
    trained, num_bytes, flops = measured(tuning)
    expected = projected(tuning)
    assert trained == expected[0]
    assert flops == expected[2]
    assert measured(None)[1] - num_bytes == projected(None)[1] - expected[1]


def test_each_group_freezes_its_matrices_and_no_other() -> None:
    """DeepSeek-V3: a dense layer first, and a layer with routed and shared experts last."""
    model = find_model("deepseek-v3")
    attention = {"queries down", "queries up", "keys and values down", "keys and values up", "attention output"}
    groups = {
        "attention": (attention, attention), "mlp": ({"up", "down"}, set()), "router": (set(), {"router"}),
        "experts": (set(), {"up", "down"}), "norms": (set(), set()),
    }  # fmt: skip
    for group, frozen in groups.items():
        tuned = model.with_fine_tuning(fine_tuning_of("", group))
        found = tuple(
            {one.name for one in layer.linears(ParallelSizes()) if not one.trainable}
            for layer in (tuned.layers[0], tuned.layers[-1])
        )
        assert found == frozen, group


def test_what_is_left_out_in_model_fine_tuning_has_these_values() -> None:
    assert number_defaults(fine_tuning_module) == {
        "LayerTraining": {"rank": 0, "has_backward": True},
        "FineTuning": {"rank": 0},
    }  # fmt: skip
