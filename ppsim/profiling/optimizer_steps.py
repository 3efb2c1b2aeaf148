"""Cost of an optimizer step per component: seconds of the step and of the gradient norm, and bytes of state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ppsim.base.errors import ConfigError
from ppsim.model.shapes import ModelShape
from ppsim.profiling.harness import NUM_BLOCKS, build_blocks, type_of
from ppsim.profiling.layers import build_embedding, build_head
from ppsim.profiling.samples import summarise_samples
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say
from ppsim.profiling.timing import sample_times, without_interruptions
from ppsim.runtime.clock import Seconds, clock_of

OPTIMIZERS = ("adamw", "muon")


def require_optimizer(name: str) -> None:
    if name not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer '{name}': there are {' and '.join(OPTIMIZERS)}")
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"torch {torch.__version__} has no Muon: --optimizer adamw, or torch 2.9 or newer")


_PART = 0.25
"""Fraction of a component's minimum measuring time for an optimizer step, which matters less in projections."""


def measure_optimizer(
    model: ModelShape,
    key: MeasurementKey,
    name: str,
    settings: MeasuringSettings,
    *,
    say: Say = lambda message: None,
) -> list[dict[str, Any]]:
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    shard = replace(model, sequence_length=key.sequence_length).shard(tp=key.tp, ep=key.ep)
    where, kind = torch.device(settings.device), type_of(key)
    parts: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "embedding": (lambda: build_embedding(shard), 1),
        "layer": (
            lambda: build_blocks(shard, replace(key, recompute="none", cp=1), MeasuringSettings()),
            NUM_BLOCKS,
        ),
        "head": (lambda: build_head(shard), 1),
    }
    say(f"measuring a step of {name}")
    found = []
    for component, (build, num_units) in parts.items():
        with where:
            module = build()
        step = measure_step(
            module.to(where, kind), name, settings, is_hidden=component == "layer", num_units=num_units
        )
        shape = {"tp": key.tp, "ep": key.ep, "dtype": key.dtype}
        found.append({"component": component, "optimizer": name, **shape, **step})
    return found


def measure_step(
    module: nn.Module, name: str, settings: MeasuringSettings, *, is_hidden: bool, num_units: int = 1
) -> dict[str, Any]:
    """Return the cost of an optimizer step for one of the `num_units` equal units of `module`.

    16-bit parameters have float32 gradients and master weights; the step copies the master weights into the
    parameters. As its authors recommend, Muon updates only the matrices of layers (`is_hidden`, each expert
    separately), and AdamW the rest.
    """
    step = _Step([parameter.detach() for parameter in module.parameters()], name, is_hidden=is_hidden)
    clock = clock_of(torch.device(settings.device))

    def repeat() -> dict[str, Seconds]:
        return {"gradient_norm_s": clock.time(step.clip)[1], "step_s": clock.time(step.step)[1]}

    with without_interruptions():
        for _ in range(settings.num_warm_up + 1):  # the first step creates the state
            step.clip()
            step.step()
        taken = sample_times(repeat, num_repeats=settings.num_repeats, least_s=_PART * settings.least_s)
    return {
        **{
            key: summarise_samples([seconds / num_units for seconds in taken[key]])
            for key in ("step_s", "gradient_norm_s")
        },
        "state_bytes": step.state_bytes // num_units,
        "parameters": sum(one.numel() for one in step.parameters) // num_units,
        "fused": step.is_fused,
    }


class _Step:
    def __init__(self, parameters: list[Tensor], name: str, *, is_hidden: bool) -> None:
        self.parameters = parameters
        self.has_masters = any(one.element_size() < 4 for one in parameters)
        masters = [one.float() if one.element_size() < 4 else one.clone() for one in parameters]
        self.masters = masters
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for one in masters:
            if name == "muon" and is_hidden and one.dim() >= 2:
                matrices += one.flatten(0, -3).unbind() if one.dim() > 2 else [one]
            else:
                others.append(one)
        self._learning = [nn.Parameter(one) for one in (*matrices, *others)]
        for one in self._learning:
            one.grad = 1e-3 * torch.randn_like(one)
        of_muon, of_adamw = self._learning[: len(matrices)], self._learning[len(matrices) :]
        self._optimizers: list[Optimizer] = [torch.optim.Muon(of_muon)] if of_muon else []
        self.is_fused = False
        if of_adamw:
            adamw, self.is_fused = _adamw(of_adamw)
            self._optimizers.append(adamw)

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._learning, 1.0)

    def step(self) -> None:
        for one in self._optimizers:
            one.step()
        if self.has_masters:
            torch._foreach_copy_(self.parameters, self.masters)

    @property
    def state_bytes(self) -> int:
        """Bytes of moments and separate master weights."""
        states = [state for one in self._optimizers for state in one.state.values()]
        held = [value for state in states for value in state.values() if isinstance(value, Tensor) and value.dim()]
        held += self.masters if self.has_masters else []
        return sum(one.numel() * one.element_size() for one in held)


def _adamw(parameters: list[nn.Parameter]) -> tuple[Optimizer, bool]:
    try:
        return torch.optim.AdamW(parameters, fused=True), True
    except RuntimeError:
        return torch.optim.AdamW(parameters), False
