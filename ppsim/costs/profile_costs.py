"""Times of a profile for a job on a cluster: compute from the profile, collectives from the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ppsim.base.errors import ConfigError
from ppsim.costs.assemble_profile import is_whole, line_of
from ppsim.costs.estimate import estimated
from ppsim.costs.profile import Component, Measurement, Profile, Shape, describe
from ppsim.costs.time_breakdown import BASIS, MEASURED, NO_COST, CostEstimate, MeasuredSeconds, TimeBreakdown
from ppsim.machine.devices import TYPE_NAMES
from ppsim.model.architecture import Layer, Model
from ppsim.model.shapes import LayerShape, shape_of

INTERPOLATED = "interpolated by the profile's device facts"


@dataclass(frozen=True)
class ProfileCosts:
    """A profile, and the shape at which a job needs it."""

    profile: Profile
    shape: Shape

    @classmethod
    def at(cls, profile: Profile, wanted: Shape) -> "ProfileCosts":
        """The dtype of `wanted` may have torch's name or the profile's name."""
        names = {
            shape.dtype for shape in profile.shapes if TYPE_NAMES.get(shape.dtype, shape.dtype) == wanted.dtype
        }
        return cls(profile, replace(wanted, dtype=min(names, default=wanted.dtype)))

    def layer(self, layer: Layer, by_specifications: CostEstimate) -> tuple[CostEstimate, CostEstimate]:
        """Return the costs that one more layer adds to a stage, and the stage's costs besides its layers."""
        sizes, shape = self.profile.model.layer_sizes, shape_of(layer)
        if sizes is None or shape is None or LayerShape(**vars(sizes)) != shape:
            return by_specifications, NO_COST
        part = self._find("layer")
        if part is None:
            return by_specifications, NO_COST
        fixed = {name: line_of(part, name)[0] for name in _PASSES}
        beside = CostEstimate(
            TimeBreakdown(measured_loss_s=fixed["forward_s"]),
            TimeBreakdown(measured_loss_s=fixed["backward_input_s"]),
            TimeBreakdown(measured_loss_s=fixed["backward_weight_s"]),
            whole_backward=TimeBreakdown(measured_loss_s=fixed["backward_s"]) if part.backward_s else None,
            known=MeasuredSeconds(profile_s=fixed["forward_s"] + _backward_s(fixed)),
        )
        communicated = by_specifications.sent_again_s
        again = by_specifications.backward_input.recompute_s - communicated
        if self.shape.recompute == "full":
            again = line_of(part, "forward_s")[1]
        return self._with_compute(by_specifications, part, again_s=again, communicated_s=communicated), beside

    def end(self, component: Component, model: Model, by_specifications: CostEstimate) -> CostEstimate:
        profiled = self.profile.model
        if (profiled.hidden_size, profiled.vocab_size) != (model.hidden_size, model.vocab_size):
            return by_specifications
        part = self._find(component)
        return by_specifications if part is None else self._with_compute(by_specifications, part)

    def _find(self, component: Component) -> Measurement | None:
        try:
            return self.profile.find(component, self.shape)
        except ConfigError:
            pass
        try:
            return estimated(component, self.profile, self.shape)
        except ConfigError:
            return None

    def _with_compute(
        self, spec: CostEstimate, part: Measurement, *, again_s: float = 0.0, communicated_s: float = 0.0
    ) -> CostEstimate:
        """Replace estimated compute by measured compute; estimated communication stays.

        `again_s` is the part of the measured backward that is recomputation. `communicated_s`, the repeated
        communication, was not measured and is added.
        """
        seconds = {name: line_of(part, name)[1] for name in _PASSES}
        inputs, weights = spec.backward_input, spec.backward_weight
        if is_whole(part):
            inputs, weights = spec.backward, TimeBreakdown()
        return CostEstimate(
            _measured(spec.forward, seconds["forward_s"]),
            _measured(inputs, seconds["backward_input_s"], again_s, communicated_s),
            _measured(weights, seconds["backward_weight_s"]),
            basis=INTERPOLATED if part.estimated_from else MEASURED,
            known=MeasuredSeconds(profile_s=seconds["forward_s"] + _backward_s(seconds)),
            whole_backward=_measured(spec.backward, seconds["backward_s"], again_s, communicated_s)
            if part.backward_s
            else None,
        )

    def whole_backwards(self, bases: Sequence[tuple[str, str]]) -> list[str]:
        names: tuple[Component, ...] = ("embedding", "layer", "head")
        used = {name for name, basis in bases if basis == MEASURED}
        return [name for name in names if name in used and is_whole(self.profile.find(name, self.shape))]

    def sentence(self, bases: Sequence[tuple[str, str]]) -> str:
        by_basis: dict[str, list[str]] = {}
        for name, basis in bases:
            by_basis.setdefault(basis, []).append(name)
        text = "; ".join(f"{', '.join(names)}: {basis}" for basis, names in by_basis.items())
        why = ""
        if BASIS in by_basis:
            why = f" (the profile has no such component at {describe(self.shape)}, nor facts to estimate it by)"
            if "layer" in " ".join(by_basis[BASIS]) and self.profile.model.layer_sizes is None:
                why = " (the profile does not say what sizes its layer has)"
        return f"{text}{why}; profile {self.profile}; collectives of the cluster"


_PASSES = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")


def _backward_s(seconds: Mapping[str, float]) -> float:
    return seconds["backward_s"] or seconds["backward_input_s"] + seconds["backward_weight_s"]


def _measured(
    spec: TimeBreakdown, seconds: float, again_s: float = 0.0, communicated_again_s: float = 0.0
) -> TimeBreakdown:
    again_s = min(again_s, max(0.0, seconds - spec.ideal_s))
    return replace(
        spec,
        more_flops_s=0.0,
        matmul_loss_s=0.0,
        attention_loss_s=0.0,
        memory_s=0.0,
        host_s=0.0,
        measured_loss_s=seconds - spec.ideal_s - again_s,
        recompute_s=again_s + communicated_again_s,
    )
