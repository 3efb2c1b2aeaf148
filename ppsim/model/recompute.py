"""Recomputation of each layer in the backward: none, full, selective-op, or modules joined by +.

The option of a stage or model assigns these to layers (`plan_of_stage`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.base.limits import MOST_LAYERS, short_text
from ppsim.base.name_lookup import joined_modules
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes

Recompute: TypeAlias = str

MODULES = {
    "core_attn": "the attention core: scores, softmax and the product with the values",
    "layernorm": "the norms before attention and before the channel mixer that are not fused into a GEMM",
    "mhc": "the mixing of residual streams and the norms after it (all layers of a stage together)",
    "mla_up_proj": "the up-projections of latent attention (MLA), with their norms and the rotary embedding",
    "mlp": "a dense MLP, with its norm if this is fused into the first GEMM",
    "mlp_act": "the activation function of a dense MLP (without a name in Megatron-LM)",
    "moe": "an MoE layer with its router and all-to-all",
    "moe_act": "the activation functions of routed experts",
    "shared_experts": "the shared experts, which process all tokens",
}
"""Modules of selective recomputation: Megatron-LM's `--recompute-modules`, and `mlp_act`."""

BY_OPERATORS = "selective-op"
"""TorchTitan's `selective_ac_option = "op"`: the outputs in `by_operators` are stored, all others recomputed."""

MEANING = (
    "Activation recomputation: none, full (every layer), block/N (the first N layers of each stage), uniform/N "
    "(every layer, in checkpoints of N layers), full/N (every Nth layer, TorchTitan's selective checkpointing by "
    "layer), full@IDS (layers of the model by number, as full@0,3,8-11), selective-op (every second GEMM and the "
    "cheap operators, TorchTitan's selective checkpointing by operator), or modules joined by +, with the names of "
    "Megatron-LM: core_attn (also: selective), layernorm, mhc, mla_up_proj, mlp, moe, moe_act, shared_experts, and "
    "mlp_act. Several kinds in one stage: full*4,mlp*6 (4 layers, then 6, none in the others)."
)

BLOCK, UNIFORM = "block", "uniform"
"""Megatron-LM's recompute methods: block/N, uniform/N."""

WORDS = "none, selective, selective-op, full, full/N, full@IDS, block/N, uniform/N"


class LayerPlan(NamedTuple):
    """Recomputation of consecutive layers.

    `joined`: they are one checkpoint, which saves only its input.
    """

    layers: int
    recompute: Recompute
    joined: bool = False


def recompute_of(text: str) -> Recompute:
    """Normalise the option; raises `ConfigError` for unknown modules.

    >>> recompute_of("selective"), recompute_of("moe_act+layernorm"), recompute_of("full/1")
    ('core_attn', 'layernorm+moe_act', 'full')
    >>> recompute_of("block/0"), recompute_of("uniform/1"), recompute_of("block/10")
    ('none', 'full', 'block/10')
    >>> recompute_of("full@3,0-2,8"), recompute_of("full*2,selective*3")
    ('full@0-3,8', 'full*2,core_attn*3')
    """
    if "*" in text:
        return ",".join(f"{_of_layer(word)}*{number}" for word, number in _numbered(text))
    if "@" in text:
        word, _, ids = text.partition("@")
        return f"{_of_layer(word)}@{spelled_layers(numbers_of_layers(text, ids))}"
    method, _, number = text.partition("/")
    if method in ("full", BLOCK, UNIFORM) and text != "full":
        least = 0 if method == BLOCK else 1
        if not least <= _layers_in(number) <= MOST_LAYERS:
            raise ConfigError(
                f"recompute must be {method}/N with N from {least} to {MOST_LAYERS:,}: got {short_text(text)} (say "
                f"{method}/2)"
            )
        if int(number) == least:
            return "none" if method == BLOCK else "full"
        return f"{method}/{int(number)}"
    return _of_layer(text)


def require_enough_layers(recompute: Recompute, num_layers: int) -> None:
    """Raises `ConfigError` for WORD/N with more layers than the model has."""
    word, _, number = recompute.partition("/")
    if number and int(number) > num_layers:
        nearest = f"{UNIFORM}/{num_layers}" if word == UNIFORM else "full"
        raise ConfigError(f"recompute {recompute}: the model has {num_layers} layers (nearest: {nearest})")


def _of_layer(text: str) -> Recompute:
    if text in ("none", "full", BY_OPERATORS):
        return text
    return joined_modules("recompute", "core_attn" if text == "selective" else text, MODULES, words=WORDS)


def _numbered(text: str) -> list[tuple[str, int]]:
    runs = []
    for part in text.split(","):
        word, _, number = part.partition("*")
        if not 1 <= _layers_in(number) <= MOST_LAYERS:
            raise ConfigError(
                f"recompute of several kinds is WORD*N,WORD*N with N from 1 to {MOST_LAYERS:,}: got "
                f"{short_text(text)}"
            )
        runs.append((word, int(number)))
    return runs


def _layers_in(number: str) -> int:
    """Return −1 for a text that is no number, or longer than any number of layers."""
    return int(number) if number.isdecimal() and len(number) < 10 else -1


def numbers_of_layers(text: str, ids: str, *, what: str = "recompute of single layers is WORD") -> list[int]:
    """Return the layer numbers in a text such as 0,3,8-11, sorted."""
    listed: list[int] = []
    for part in ids.split(","):
        first, _, last = part.partition("-")
        numbers = range(_layers_in(first), _layers_in(last or first) + 1)
        if numbers.start < 0 or not numbers:
            raise ConfigError(f"{what}@0,3,8-11: got {short_text(text)}")
        if numbers[-1] >= MOST_LAYERS or len(listed) > MOST_LAYERS:
            raise ConfigError(f"{what}@… with at most {MOST_LAYERS:,} layers: got {short_text(text)}")
        listed += numbers
    return sorted(set(listed))


def spelled_layers(ids: Sequence[int]) -> str:
    """The inverse of `numbers_of_layers`."""
    parts: list[str] = []
    for _, group in groupby(enumerate(ids), key=lambda one: one[1] - one[0]):
        first, *others = [value for _, value in group]
        parts.append(f"{first}-{others[-1]}" if others else str(first))
    return ",".join(parts)


def require_spelling(recompute: Recompute) -> None:
    if (word := recompute_of(recompute)) != recompute:
        raise ConfigError(f"recompute '{recompute}' is spelled '{word}'")


def words_of_layers(recompute: Recompute) -> list[Recompute]:
    """Return the options that layers have under an option of a stage or model.

    >>> words_of_layers("block/4"), words_of_layers("full*2,mlp*3"), words_of_layers("mlp+moe")
    (['none', 'full'], ['none', 'full', 'mlp'], ['mlp+moe'])
    """
    word = recompute.partition("@")[0].partition("/")[0]
    if "*" in recompute:
        found = [one for one, _ in _numbered(recompute)]
    elif not is_by_stage(recompute) or word == UNIFORM:
        return ["full" if word == UNIFORM else word]
    else:
        found = ["full" if word == BLOCK else word]
    return ["none", *dict.fromkeys(one for one in found if one != "none")]


def require_layers(recompute: Recompute, num_layers: int) -> None:
    if "@" in recompute and (last := numbers_of_layers(recompute, recompute.partition("@")[2])[-1]) >= num_layers:
        raise ConfigError(f"recompute {recompute} has layer {last}, but the last of the model is {num_layers - 1}")


def layer_ids(recompute: Recompute) -> list[int]:
    """Return the layers that full@IDS recomputes.

    >>> layer_ids("full@0,3-5"), layer_ids("full")
    ([0, 3, 4, 5], [])
    """
    word, _, ids = recompute.partition("@")
    return numbers_of_layers(recompute, ids) if ids and word == "full" else []


def by_number(plans: Iterable[Sequence[LayerPlan]]) -> Recompute | None:
    """Return full@IDS if all stages recompute only whole layers.

    >>> by_number([[LayerPlan(1, "full"), LayerPlan(2, "none")], [LayerPlan(2, "full")]])
    'full@0,3-4'
    """
    flat = [plan for stage in plans for plan in stage]
    if any(plan.joined or plan.recompute not in ("none", "full") for plan in flat):
        return None
    of_layers = [plan.recompute for plan in flat for _ in range(plan.layers)]
    ids = [number for number, word in enumerate(of_layers) if word == "full"]
    if len(ids) == len(of_layers):
        return "full"
    return f"full@{spelled_layers(ids)}" if ids else "none"


def text_of(plan: Sequence[LayerPlan]) -> Recompute:
    """Return the option of a stage with this plan, which has no joined layers.

    >>> text_of([LayerPlan(2, "full"), LayerPlan(3, "none")]), text_of([LayerPlan(4, "mlp")])
    ('full*2', 'mlp')
    """
    runs = list(plan)
    if len(runs) < 2:
        return runs[0].recompute if runs else "none"
    if runs[-1].recompute == "none":
        runs.pop()
    return ",".join(f"{run.recompute}*{run.layers}" for run in runs)


def is_by_stage(recompute: Recompute) -> bool:
    """Whether a layer's recomputation depends on its position."""
    return re.search("[/@*]", recompute) is not None


def require_of_layer(text: str) -> Recompute:
    if is_by_stage(recompute := recompute_of(text)):
        raise ConfigError(
            f"recompute {text} is for the stages of a --model: a layer alone has none, full or modules"
        )
    return recompute


def of_layer(recompute: Recompute) -> Recompute:
    """Return the option of a layer outside stages, for example of multi-token prediction.

    >>> of_layer("block/4"), of_layer("uniform/4"), of_layer("full/2"), of_layer("mlp")
    ('none', 'full', 'none', 'mlp')
    """
    return words_of_layers(recompute)[0]


@lru_cache(maxsize=4096)
def plan_of_stage(
    recompute: Recompute, num_layers: int, *, first: int = 0, before: int = 0
) -> tuple[LayerPlan, ...]:
    """Return the recomputation of a stage's layers, in order.

    `first`: the number of the stage's first layer in the model. `before`: the number of layers in earlier stages of
    the same rank, which full/N counts too (TorchTitan, activation_checkpoint.py: `ptd_checkpoint_wrapper`). Layers
    after the last checkpoint save everything (Megatron-LM, core/transformer/transformer_block.py:
    `_checkpointed_forward`).

    >>> plan_of_stage("block/2", 5)
    (LayerPlan(layers=2, recompute='full', joined=False), LayerPlan(layers=3, recompute='none', joined=False))
    >>> [one.layers for one in plan_of_stage("uniform/2", 5)]
    [2, 2, 1]
    """
    method, _, number = recompute.partition("/")
    if method == UNIFORM:
        most = int(number)
        return tuple(
            LayerPlan(min(most, num_layers - begin), "full", joined=True) for begin in range(0, num_layers, most)
        )
    of_layers: list[Recompute]
    if method == BLOCK:
        of_layers = ["full"] * min(int(number), num_layers)
    elif number:
        of_layers = [("none", "full")[(before + at) % int(number) == 0] for at in range(1, num_layers + 1)]
    elif "@" in recompute:
        word, _, ids = recompute.partition("@")
        chosen = set(numbers_of_layers(recompute, ids))
        of_layers = [word if first + at in chosen else "none" for at in range(num_layers)]
    elif "*" in recompute:
        runs = _numbered(recompute)
        if (total := sum(count for _, count in runs)) > num_layers:
            raise ConfigError(f"recompute {recompute} is of {total} layers, but a stage has {num_layers}")
        of_layers = [word for word, count in runs for _ in range(count)]
    else:
        of_layers = [recompute] * num_layers
    of_layers += ["none"] * (num_layers - len(of_layers))
    return tuple(LayerPlan(len(list(same)), word) for word, same in groupby(of_layers))


def recomputes(recompute: Recompute, module: str) -> bool:
    """Return whether an option names a module; "full" names none.

    >>> recomputes("core_attn+layernorm", "layernorm"), recomputes("full", "mlp")
    (True, False)
    """
    return module in recompute.split("+")


def counts(one: WeightMatrix) -> bool:
    """Return whether `selective-op` counts a matrix: grouped GEMMs of experts, and the router, are recomputed.

    Source: TorchTitan, activation_checkpoint.py: `force_recompute_mm_shapes_by_fqns`; the saved operators have no
    `_grouped_mm`.
    """
    return one.is_product and one.kind not in ("router", "routed")


_JOINED_IN_MEGATRON = ("queries, keys, values", "up")
_LATENTS = ("queries down", "queries up", "keys and values down", "keys and values up")
"""TorchTitan's order (models/deepseek_v3/model/model.py: `Attention.forward`), at the begin of a layer."""


def by_operators(
    linears: Iterable[WeightMatrix], sizes: ParallelSizes
) -> tuple[list[WeightMatrix], list[WeightMatrix]]:
    """Return the GEMMs of a layer whose outputs `selective-op` saves, and those that it recomputes.

    In forward order every second GEMM is recomputed; queries, keys, values, gate and up count separately. A GEMM
    with a bias (`addmm`) is saved, and not counted. The down-projection counts, but is in neither list. With tensor
    parallelism neither is attention's output: the result of the reduce-scatter is saved instead (TorchTitan,
    activation_checkpoint.py: `SelectiveAC`; at 9dec370 parallelize_llama.py: `_save_list`). Matrices that do not
    count (`counts`) are in neither list.

    >>> one = [WeightMatrix("queries, keys, values", "x", 8, (8, 2, 2)), WeightMatrix("attention output", "heads",
    ...     8, (8,))]
    >>> [[product.outputs for product in half] for half in by_operators(one, ParallelSizes())]
    [[8, 2], [2, 8]]
    """
    kept: list[WeightMatrix] = []
    again: list[WeightMatrix] = []
    counted = 0
    for matrix in counted_matrices(linears):
        counted += not matrix.biased
        if matrix.name != "down" and not (matrix.name == "attention output" and sizes.tp > 1):
            (kept if matrix.biased or counted % 2 else again).append(matrix)
    return kept, again


def counted_matrices(linears: Iterable[WeightMatrix]) -> Iterator[WeightMatrix]:
    """Yield the separate GEMMs that `selective-op` counts, or that have a bias, in TorchTitan's order."""
    products = filter(counts, linears)
    for product in sorted(products, key=lambda product: (*_LATENTS, product.name).index(product.name)):
        yield from product.separate_matrices() if product.name in _JOINED_IN_MEGATRON else (product,)
