"""Estimates for shapes that were not measured, from measured shapes and device microbenchmarks.

An estimate is the time measured at the nearest shape, times the ratio of the sums of kernel times at both shapes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.costs.layer_kernels import estimate
from ppsim.costs.profile import Component, Measurement, Profile, Quantity, Shape
from ppsim.model import shapes
from ppsim.model.shapes import LayerShape, ModelShape

COMPONENTS: tuple[Component, ...] = ("embedding", "layer", "head")


def estimated(component: Component, profile: Profile, shape: Shape) -> Measurement:
    """Return a measurement of a component at a shape that `profile` lacks.

    Raises `ConfigError` if the profile has no microbenchmarks of the device for this dtype, no sizes of its layer,
    or no measured shape with the same dtype, cp and recomputation.
    """
    model, facts = model_of(profile), profile.device_facts
    if model is None or facts is None:
        lacks = "the sizes of its layer" if model is None else "device facts (ppsim profile --facts)"
        raise ConfigError(f"profile {profile.name} cannot be estimated from: it has not {lacks}")
    anchors = _anchors(profile, component, shape)
    anchor = anchors[0]
    here, *there = (estimate(component, model, one, facts) for one in (shape, *(part.shape for part in anchors)))
    kept, parameters, flops = _sizes(component, model, shape)
    saved = _ratio(kept, _sizes(component, model, anchor.shape)[0])
    tokens = _ratio(_tokens(shape), _tokens(anchor.shape))

    def times(name: str) -> Quantity | None:
        measured: Quantity | None = getattr(anchor, name)
        if measured is None:
            return None
        sums = [getattr(one, name) for one in there]
        medians = [time.median for part in anchors if (time := getattr(part, name)) is not None]
        scale = _scale(getattr(here, name), sums[: len(medians)], medians)
        return Quantity(median=measured.median * scale, low=measured.low * scale, high=measured.high * scale)

    forward_s = times("forward_s")
    assert forward_s is not None
    return Measurement(
        component=component,
        shape=shape,
        forward_s=forward_s,
        backward_s=times("backward_s"),
        backward_input_s=times("backward_input_s"),
        backward_weight_s=times("backward_weight_s"),
        activation_bytes=round(anchor.activation_bytes * saved),
        activation_bytes_kept_for_weight=round(anchor.activation_bytes_kept_for_weight * saved),
        output_bytes=anchor.output_bytes if component == "head" else round(anchor.output_bytes * tokens),
        parameters=parameters,
        transient_bytes=None if anchor.transient_bytes is None else round(anchor.transient_bytes * saved),
        forward_flops=flops,
        estimated_from=[part.shape for part in anchors],
    )


def with_estimates(profile: Profile, **wanted: Any) -> tuple[Profile, Shape]:
    """Return the profile and `profile.shape_at(**wanted)`, with estimates if this shape was not measured.

    Raises `shape_at`'s `ConfigError` if the shape did not fit in memory or cannot be estimated.
    """
    try:
        return profile, profile.shape_at(**wanted)
    except ConfigError:
        given = {name: value for name, value in wanted.items() if value is not None}
        alike = [shape for shape in profile.shapes if _is_alike(shape, given)]
        is_too_large = any(all(getattr(s, n) == v for n, v in given.items()) for s in profile.does_not_fit)
        if profile.device_facts is None or model_of(profile) is None or not alike or is_too_large:
            raise

    def preference(shape: Shape) -> tuple[float, int, int, bool]:
        distance = _distance(shape, replace(shape, **given))
        return distance, shape.tp, shape.ep, shape.recompute != "none"

    first = min(alike, key=preference)
    shape = replace(first, **given)
    parts = [estimated(component, profile, shape) for component in COMPONENTS]
    return replace(profile, measurements=[*profile.measurements, *parts]), shape


def model_of(profile: Profile) -> ModelShape | None:
    model = profile.model
    if model.layer_sizes is None or model.vocab_size is None:
        return None
    layer = LayerShape(**vars(model.layer_sizes))
    return ModelShape(layer, num_layers=model.num_layers, vocab_size=model.vocab_size, sequence_length=1)


def _scale(here: float, there: Sequence[float], measured: Sequence[float]) -> float:
    """Return the factor on the first anchor's time, from the sums of kernel times `here` and at the anchors.

    It follows the line through both anchors if its fixed part and slope are positive, else the ratio of the sums.
    """
    if len(measured) > 1 and there[0] != there[1] and measured[0]:
        slope = (measured[1] - measured[0]) / (there[1] - there[0])
        fixed = measured[0] - slope * there[0]
        if slope > 0 and fixed > 0:
            return (fixed + slope * here) / measured[0]
    return _ratio(here, there[0])


def _anchors(profile: Profile, component: Component, shape: Shape) -> list[Measurement]:
    """The nearest measurement, and the nearest with the same tp and ep but another number of tokens."""
    same = {"dtype": shape.dtype, "cp": shape.cp, "recompute": shape.recompute}
    parts = [
        part
        for part in profile.measurements
        if part.component == component and not part.estimated_from and _is_alike(part.shape, same)
    ]
    if not parts:
        raise ConfigError(
            f"profile {profile.name} has no {component} to estimate from at {shape.dtype}, cp {shape.cp}, "
            f"recompute {shape.recompute}"
        )
    ranked = sorted(parts, key=lambda part: _distance(part.shape, shape))
    first, tokens = ranked[0], _tokens(ranked[0].shape)
    same_parts = (first.shape.tp, first.shape.ep)
    others = [
        part for part in ranked
        if (part.shape.tp, part.shape.ep) == same_parts and _tokens(part.shape) != tokens
    ]  # fmt: skip
    # Interpolation is safer than extrapolation.
    across = [part for part in others if (_tokens(part.shape) > tokens) == (_tokens(shape) > tokens)]
    return [first, *((across or others)[:1])]


def _is_alike(shape: Shape, given: dict[str, Any]) -> bool:
    return all(getattr(shape, name) == value for name, value in given.items() if name not in _SIZES)


_SIZES = {"micro_batch": 1.0, "sequence_length": 1.0, "tp": 4.0, "ep": 4.0}
"""Fields that may differ between a shape and its anchor, each with the distance for a factor of 2."""


def _distance(one: Shape, other: Shape) -> float:
    return sum(
        weight * abs(math.log2(getattr(one, name) / getattr(other, name))) for name, weight in _SIZES.items()
    )


def _tokens(shape: Shape) -> int:
    return shape.micro_batch * shape.sequence_length


def _ratio(one: float, other: float) -> float:
    return one / other if other else 1.0


def _sizes(component: Component, model: ModelShape, shape: Shape) -> tuple[float, int, float]:
    shard = replace(model, sequence_length=shape.sequence_length).shard(tp=shape.tp, ep=shape.ep)
    batch: Any = {"micro_batch": shape.micro_batch, "sequence_length": shape.sequence_length}
    if component == "embedding":
        return _tokens(shape), shard.whole.embedding_parameters, 0.0
    if component == "head":
        saved = shapes.head_activation_bytes(shard, **batch, dtype=shape.dtype)
        return saved, shard.whole.head_parameters, shapes.head_forward_flops(shard, **batch)
    recompute: Any = shape.recompute
    saved = shapes.layer_activation_bytes(shard.layer, **batch, dtype=shape.dtype, recompute=recompute)
    return saved, shapes.layer_parameters(shard.layer), shapes.layer_forward_flops(shard.layer, **batch)
