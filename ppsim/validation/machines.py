"""Constants of machine classes beyond their data sheets: one set a class, in published/machines.toml."""

import tomllib
from dataclasses import replace
from functools import cache

from pydantic import Field

from ppsim.base.boundary import AboveZero, NonNegative, Strict, validated
from ppsim.base.errors import ConfigError
from ppsim.machine.cluster import Cluster
from ppsim.validation.cases import FOLDER


class Machine(Strict):
    """What runs on one class of machines take beyond the estimate for its devices and links.

    compute_share
        Per dtype of the products: what products and attention get of the device class's efficiency. 1 where not
        given.
    kernel_s
        Seconds from a kernel's end to the next one's start, in place of the device class's.
    launch_s
        Host time of a launch by the schedule: an action is one, a message between ranks two, its send and its
        receive.
    rest_s
        Seconds a step that nothing else covers.
    fitted
        The names of those that were fitted, a dtype behind a dot: "compute_share.float8". The others are 1 or 0.
    fitted_on
        The sets whose rows marked fit they come from.
    """

    title: str
    source: str
    fitted: list[str]
    fitted_on: list[str]
    compute_share: dict[str, AboveZero] = Field(default_factory=dict)
    kernel_s: NonNegative | None = None
    launch_s: NonNegative = 0.0
    rest_s: NonNegative = 0.0

    def constant(self, name: str) -> float:
        """Return a constant by its name in `fitted`."""
        name, _, dtype = name.partition(".")
        return float(self.compute_share.get(dtype, 1.0) if dtype else getattr(self, name))

    def with_constants(self, values: dict[str, float]) -> "Machine":
        """Return the machine with other values of the constants that are named as in `fitted`."""
        shares = {name.partition(".")[2]: value for name, value in values.items() if "." in name}
        others = {name: value for name, value in values.items() if "." not in name}
        return self.model_copy(update={"compute_share": {**self.compute_share, **shares}, **others})


@cache
def machines() -> dict[str, Machine]:
    """Return all classes of machines that have constants of their own."""
    found = tomllib.loads((FOLDER / "machines.toml").read_text(encoding="utf-8"))
    return {name: validated(Machine, data, f"published/machines.toml [{name}]") for name, data in found.items()}


def machine_of(name: str | None) -> Machine | None:
    """Return the constants of a class, None where there are none; raises `ConfigError` for an unknown name."""
    if name is None:
        return None
    if name not in machines():
        raise ConfigError(f"unknown class of machines '{name}': there are {', '.join(machines())}")
    return machines()[name]


def on_machine(cluster: Cluster, machine: Machine | None, dtype: str) -> Cluster:
    """Return the cluster with what products and attention get there."""
    share = machine.constant(f"compute_share.{dtype}") if machine else 1.0
    class_ = cluster.device.efficiency
    kernel_s = machine.kernel_s if machine else None
    efficiency = replace(
        class_,
        matmul={name: share * value for name, value in class_.matmul.items()},
        attention_forward=share * class_.attention_forward,
        attention_backward=share * class_.attention_backward,
        kernel_s=class_.kernel_s if kernel_s is None else kernel_s,
        in_situ=class_.in_situ and class_.in_situ.times(1 / share),
    )
    return replace(cluster, device=replace(cluster.device, efficiency=efficiency))
