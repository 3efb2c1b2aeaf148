"""Fine-tuning: frozen weights of a model, and linear modules with LoRA adapters."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ppsim.base.errors import ConfigError
from ppsim.base.limits import MOST_LAYERS
from ppsim.base.name_lookup import joined_modules
from ppsim.model.recompute import numbers_of_layers, spelled_layers
from ppsim.model.weight_matrices import UP_AND_DOWN, WeightMatrix

LORA_MODULES = {
    "linear_qkv": "queries, keys and values",
    "linear_proj": "output of attention",
    "linear_fc1": "gate and up projection of the MLP, of experts and of shared experts",
    "linear_fc2": "down projection of the MLP, of experts and of shared experts",
    "linear_q_proj": "queries of latent attention without a latent of queries",
    "linear_q_down_proj": "latent of queries (MLA)",
    "linear_q_up_proj": "queries from their latent (MLA)",
    "linear_kv_down_proj": "latent of keys and values (MLA)",
    "linear_kv_up_proj": "keys and values from their latent (MLA)",
    "in_proj": "input of a recurrent mixer (Mamba, delta rules, short convolutions)",
    "out_proj": "output of a recurrent mixer",
    "router": "router of experts",
}
"""Megatron-Core's names of the modules that can have an adapter."""

DEFAULT_MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Modules that have an adapter by default (Megatron-Bridge, peft/lora.py: `target_modules`)."""

GROUPS = ("attention", "mlp", "experts", "router", "norms")
"""Groups of a layer's weights."""

_LAYERS = "layers"
FROZEN = {
    "embedding": "token embedding and learned positions",
    "attention": "weights of attention or another token mixer",
    "mlp": "dense feed-forward weights",
    "experts": "routed and shared experts",
    "router": "router of experts",
    "norms": "all norms, the final one too",
    "head": "output layer",
    _LAYERS: "everything inside layers of the decoder",
    "encoder": "image or audio encoder",
    "projector": "projector of an encoder to the decoder",
}
"""Values of `--freeze`."""

MEANING_OF_LORA = (
    "Rank of LoRA adapters, and the modules that have one: A (inputs × RANK) and B (RANK × outputs). All other "
    "weights are frozen. Modules, joined by +, are Megatron-Core's: linear_qkv, linear_proj, linear_fc1, "
    "linear_fc2, in_proj, out_proj, router, … The routed experts of a rank share one adapter per module."
)
MEANING_OF_FREEZE = (
    "Frozen weights, joined by +: embedding, attention (or mixer), mlp, experts, router, norms, head, "
    "layers (all, whole) or layers@0-15 (these), encoder, projector. They have no weight gradient, gradient buffer "
    "or optimizer state, and layers before the first trained weight have no backward."
)

_INPUTS_OF_RECURRENT = (
    "gate, x, B, C, time step", "queries, keys, values, gates", "queries, keys, values, strength", "gates, values",
)  # fmt: skip
_OF_ATTENTION = {
    "queries, keys, values": "linear_qkv",
    "queries down": "linear_q_down_proj",
    "queries up": "linear_q_up_proj",
    "keys and values down": "linear_kv_down_proj",
    "keys and values up": "linear_kv_up_proj",
    **dict.fromkeys(_INPUTS_OF_RECURRENT, "in_proj"),
    # names of modules in traced models
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn"), "linear_qkv"),
    **dict.fromkeys(("o_proj", "dense", "c_proj"), "linear_proj"),
}


def lora_module_of(linear: WeightMatrix, mixer: Iterable[WeightMatrix]) -> str | None:
    """Megatron-Core's module name of a matrix; `mixer` has the matrices of its layer's token mixer."""
    if linear.kind == "router":
        return "router"
    if linear.kind in ("dense", "routed", "shared") and linear.name in UP_AND_DOWN:
        return "linear_fc1" if linear.name == UP_AND_DOWN[0] else "linear_fc2"
    if linear.kind != "dense":
        return None
    names = {one.name for one in mixer}
    if linear.name == "attention output":
        return "out_proj" if names & set(_INPUTS_OF_RECURRENT) else "linear_proj"
    if linear.name == "queries up" and "queries down" not in names:
        return "linear_q_proj"
    return _OF_ATTENTION.get(linear.name)


def group_of(linear: WeightMatrix, half: int) -> str:
    """Return the group (see `GROUPS`) of a matrix of a token mixer (`half` 1) or channel mixer (2).

    >>> group_of(WeightMatrix("router", "x", 8, (4,), kind="router"), 2), group_of(WeightMatrix("up", "x", 8,
    ...     (4,)), 2)
    ('router', 'mlp')
    """
    if linear.kind == "streams":
        return "norms"
    if half == 1:
        return "attention"
    if linear.kind == "router":
        return "router"
    return "mlp" if linear.kind == "dense" else "experts"


class LayerTraining(NamedTuple):
    """The trained weights of a layer in a fine-tuned model.

    `frozen`: frozen groups of weights (see `GROUPS`). `has_backward`: this layer or an earlier one has a trained
    weight.
    """

    frozen: frozenset[str]
    rank: int = 0
    adapted: frozenset[str] = frozenset()
    has_backward: bool = True

    def trains(self, group: str) -> bool:
        return group not in self.frozen


@dataclass(frozen=True)
class FineTuning:
    """The trained weights: adapters on modules, or all weights except the frozen ones.

    `rank`: 0 for no adapters. `layers`: numbers of the completely frozen layers.
    """

    rank: int = 0
    modules: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    layers: frozenset[int] = frozenset()

    def trains(self, word: str) -> bool:
        """Return whether base weights, named as in `--freeze`, are trained; "mtp" is part of "layers"."""
        return not self.rank and (_LAYERS if word == "mtp" else word) not in self.frozen

    def of_layer(self, number: int) -> LayerTraining:
        """Return the trained weights of layer `number`, assuming that its input needs a gradient.

        >>> FineTuning(frozen=frozenset({"norms"}), layers=frozenset({0})).of_layer(0).trains("mlp")
        False
        """
        is_frozen = self.rank or _LAYERS in self.frozen or number in self.layers
        frozen = frozenset(GROUPS) if is_frozen else self.frozen & frozenset(GROUPS)
        return LayerTraining(frozen, self.rank, frozenset(self.modules))


def lora_of(text: str | int) -> str:
    """Normalise --lora: a rank, and modules unless they are the default.

    >>> lora_of("16:linear_fc1+linear_qkv"), lora_of("8:linear_qkv+linear_proj+linear_fc1+linear_fc2"), lora_of("")
    ('16:linear_qkv+linear_fc1', '8', '')
    """
    if text in ("", "none"):
        return ""
    rank, colon, modules = str(text).partition(":")
    if not rank.isdecimal() or int(rank) < 1 or len(rank) > len(str(MOST_LAYERS)):
        raise ConfigError(
            f"--lora is '{text}': give a rank of 1 or more, or RANK:MODULES as 16:linear_qkv+linear_proj"
        )
    if not colon:
        return str(int(rank))
    named = joined_modules("modules of --lora", modules, LORA_MODULES, words="one of Megatron-Core's")
    return str(int(rank)) if tuple(named.split("+")) == DEFAULT_MODULES else f"{int(rank)}:{named}"


def freeze_of(text: str) -> str:
    """Normalise --freeze.

    >>> freeze_of("layers@2,0-1+mixer+embedding"), freeze_of("none")
    ('embedding+attention+layers@0-2', '')
    """
    if text in ("", "none"):
        return ""
    modules, numbers = [], list[int]()
    for part in text.split("+"):
        word, _, ids = part.strip().partition("@")
        if ids and word == _LAYERS:
            numbers += numbers_of_layers(text, ids, what=f"--freeze of single layers is {_LAYERS}")
        else:
            modules.append(part)
    if numbers and _LAYERS in modules:
        raise ConfigError(f"--freeze is '{text}': give layers (all) or layers@0-15, not both")
    named = (
        joined_modules("--freeze", "+".join(modules), FROZEN, words="none", also={"mixer": "attention"})
        if modules
        else ""
    )
    single = f"{_LAYERS}@{spelled_layers(sorted(set(numbers)))}" if numbers else ""
    return "+".join(filter(None, (named, single)))


def fine_tuning_of(lora: str, freeze: str) -> FineTuning | None:
    """Return the fine-tuning for normalised values; None: all weights are trained.

    >>> fine_tuning_of("16:linear_qkv", ""), fine_tuning_of("", "")
    (FineTuning(rank=16, modules=('linear_qkv',), frozen=frozenset(), layers=frozenset()), None)
    """
    if lora and freeze:
        raise ConfigError("--lora freezes all base weights: leave out --freeze")
    if lora:
        rank, _, modules = lora.partition(":")
        return FineTuning(int(rank), tuple(modules.split("+")) if modules else DEFAULT_MODULES)
    if not freeze:
        return None
    words = freeze.split("+")
    single = [word for word in words if "@" in word]
    numbers = [number for word in single for number in numbers_of_layers(freeze, word.partition("@")[2])]
    return FineTuning(frozen=frozenset(words) - frozenset(single), layers=frozenset(numbers))
