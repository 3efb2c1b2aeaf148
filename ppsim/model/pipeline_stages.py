"""Contents of each stage (embedding, layers, head), and its recomputation and offloading."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model
from ppsim.model.encoder import EncoderPart
from ppsim.model.recompute import LayerPlan, Recompute, of_layer, plan_of_stage


@dataclass(frozen=True)
class Stage:
    """Layers, embedding, head, and multi-token prediction of one pipeline stage.

    If `plan` is empty or `offload_modules` is None, the settings of the job apply. If `encoder` is None, a stage
    with the embedding has all encoders.
    """

    layers: tuple[Layer, ...]
    embedding: bool = False
    head: bool = False
    mtp: tuple[Layer, ...] = ()
    plan: tuple[LayerPlan, ...] = ()
    offload_modules: str | None = None
    encoder: tuple[EncoderPart, ...] | None = None

    def encoder_parts(self, model: Model) -> tuple[EncoderPart, ...]:
        return self.encoder if self.encoder is not None else model.encoder_parts if self.embedding else ()

    def planned(self, recompute: Recompute) -> Iterator[tuple[tuple[Layer, ...], LayerPlan]]:
        layers = iter(self.layers)
        for one in self.plan or plan_of_stage(recompute, len(self.layers)):
            yield tuple(islice(layers, one.layers)), one

    def recomputed(self, recompute: Recompute) -> list[tuple[Layer, Recompute]]:
        planned = self.planned(recompute)
        words_of_layers = [(layer, plan.recompute) for layers, plan in planned for layer in layers]
        return words_of_layers + [(layer, of_layer(recompute)) for layer in self.mtp]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Layers are identified by id, because hashing and comparing whole layers is slow."""
        held = tuple(map(id, self.layers)), self.embedding, self.head, tuple(map(id, self.mtp))
        encoder = None if self.encoder is None else tuple((id(one), *ends) for one, *ends in self.encoder)
        return *held, self.plan, self.offload_modules, encoder


@dataclass(frozen=True)
class StagePlan:
    """Recomputation of a stage's layers, in the format of `--recompute`, and its offloaded modules."""

    recompute: Recompute = "none"
    offload_modules: str = ""


def plans_of_stages(
    layers: Sequence[int], recompute: Sequence[Recompute], stages_of_ranks: Iterable[Sequence[int]]
) -> list[tuple[LayerPlan, ...]]:
    """Each stage's plan of recomputation; `stages_of_ranks` has the stages of each rank in order.

    >>> [len(one) for one in plans_of_stages([2, 2], ["full*1", "full"], [[0], [1]])]
    [2, 1]
    """
    first = [0, *accumulate(layers)]
    before: dict[int, int] = {}
    for rank in stages_of_ranks:
        number = 0
        for at in rank:
            before.setdefault(at, number)
            number += layers[at]
    return [
        plan_of_stage(text, number, first=first[at], before=before.get(at, 0))
        for at, (number, text) in enumerate(zip(layers, recompute, strict=True))
    ]


def layers_of(stages: Iterable[Stage]) -> list[Layer]:
    return [layer for stage in stages for layer in (*stage.layers, *stage.mtp)]


def stages_of(model: Model, layers_per_stage: Sequence[int]) -> list[Stage]:
    """The embedding is on the first stage, head and multi-token prediction on the last.

    >>> from ppsim.model.registry import find_model
    >>> [len(stage.layers) for stage in stages_of(find_model("gpt2"), [5, 7])]
    [5, 7]
    """
    if any(layers < 0 for layers in layers_per_stage) or sum(layers_per_stage) != len(model.layers):
        raise ConfigError(
            f"the split {list(layers_per_stage)} has {sum(layers_per_stage)} layers in all, but the model has "
            f"{len(model.layers)}"
        )
    contents = ["t" * layers for layers in layers_per_stage]
    contents[0] = "E" + contents[0]
    contents[-1] += "m" * len(model.mtp) + "L"
    return stages_of_layout(model, contents)


def stages_of_layout(model: Model, contents: Sequence[str]) -> list[Stage]:
    """Read a layout (see `parse_layout`): per stage, a string of v, E, t, m and L.

    v: encoder layer, E: embedding, t: layer, m: MTP layer, L: head. Without v, the encoders are on the stage of the
    embedding. Raises `ConfigError` for numbers of layers other than the model's.
    """
    has_encoder = any("v" in content for content in contents)
    encoder = [(one, at) for one in model.encoders for at in range(len(one.layers))]
    parts: list[tuple[str, Sequence[Any], str]] = [("t", model.layers, "layers")]
    parts += [("m", model.mtp, "multi-token-prediction layers")]
    parts += [("v", encoder, "encoder layers")] * has_encoder
    for letter, held, what in parts:
        placed = sum(content.count(letter) for content in contents)
        if placed != len(held):
            raise ConfigError(f"the layout has {placed} {what}, but the model has {len(held)}")
    stages, layers, mtp, blocks = [], iter(model.layers), iter(model.mtp), iter(encoder)
    for content in contents:
        encoder_blocks = [*islice(blocks, content.count("v"))]
        of_encoders = tuple(
            EncoderPart(
                one,
                min(at for other, at in encoder_blocks if other is one),
                1 + max(at for other, at in encoder_blocks if other is one),
            )
            for one in model.encoders
            if any(other is one for other, _ in encoder_blocks)
        )
        stages.append(
            Stage(
                tuple(islice(layers, content.count("t"))),
                embedding="E" in content,
                head="L" in content,
                mtp=tuple(islice(mtp, content.count("m"))),
                encoder=of_encoders if has_encoder else None,
            )
        )
    return stages


def contents_of(stages: Sequence[Stage]) -> list[str]:
    """The inverse of `stages_of_layout`."""
    return [
        "v" * sum(last - first for _, first, last in stage.encoder or ())
        + "E" * stage.embedding + "t" * len(stage.layers) + "m" * len(stage.mtp) + "L" * stage.head
        for stage in stages
    ]  # fmt: skip
