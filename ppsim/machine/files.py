"""Cluster files, packaged and a user's, in TOML, YAML or JSON: read, checked, and turned into a `Cluster`."""

import difflib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ppsim.base.boundary import AboveZero, NonNegative, Positive, Strict, validated
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json, read_toml, read_yaml
from ppsim.machine.cluster import Cluster, Device, Efficiency, InSitu, Link, Tier
from ppsim.machine.devices import hardware

Share = Annotated[float, Field(gt=0, le=1)]


class _InSitu(Strict):
    sigma: NonNegative
    source: str
    factors: dict[str, AboveZero] = Field(min_length=1)


class _Efficiency(Strict):
    matmul: dict[str, Share] = Field(min_length=1)
    wave_tail: NonNegative
    depth_tail: NonNegative
    attention_forward: Share
    attention_backward: Share
    memory: Share
    optimizer: Share
    kernel_s: NonNegative
    host_s: NonNegative
    source: str
    in_situ: _InSitu | None = None


class _Device(Strict):
    name: str
    pattern: str | None = None
    efficiency: str
    kernels: str | None = None
    num_cores: Positive
    memory_bytes: Positive
    memory_bytes_per_s: AboveZero
    peak_flops_per_s: dict[str, AboveZero] = Field(min_length=1)
    host_bytes_per_s: AboveZero | None = None
    source: str = "the cluster file"

    @field_validator("efficiency")
    @classmethod
    def _is_a_class(cls, name: str) -> str:
        return _known(name, hardware("efficiency"), "class of devices")


class _Link(Strict):
    name: str = "own link"
    bytes_per_s: AboveZero
    efficiency: Share = 0.7
    reduction_gain: Annotated[float, Field(ge=1, le=2)] = 1.0
    launch_s: NonNegative = 10e-6
    step_s: NonNegative = 2e-6
    small_group_loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    source: str = "the cluster file"


def _device(value: Any) -> Any:
    return hardware("devices")[_known(value, hardware("devices"), "device")] if isinstance(value, str) else value


def _link(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {"name": value} | hardware("links")[_known(value, hardware("links"), "link")]


class _Tier(Strict):
    name: str
    num_devices: Positive | None = None
    usable_devices: Positive | None = None
    link: Annotated[_Link, BeforeValidator(_link)]

    @model_validator(mode="after")
    def _can_be_used(self) -> "_Tier":
        if self.usable_devices and (self.num_devices is None or self.usable_devices > self.num_devices):
            raise ValueError(
                f"usable_devices is {self.usable_devices}, but a domain has {self.num_devices or 'no number'}"
            )
        return self


class _Cluster(Strict):
    format: Literal["ppsim-cluster/1"]
    name: str
    title: str = ""
    device: Annotated[_Device, BeforeValidator(_device)]
    num_devices: Positive | None = None
    source: str = "the cluster file"
    tiers: list[_Tier] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_nested(self) -> "_Cluster":
        *inner, outermost = self.tiers
        for index, tier in enumerate(inner):
            if tier.num_devices is None:
                raise ValueError(f"tier {tier.name} says no num_devices; only the outermost can do without")
            outer = self.tiers[index + 1]
            if outer.num_devices is not None and outer.num_devices % tier.num_devices:
                raise ValueError(
                    f"tier {outer.name} has {outer.num_devices} devices, no multiple of the {tier.num_devices} of "
                    f"{tier.name} inside it"
                )
        if outermost.num_devices is not None and (self.num_devices or 0) > outermost.num_devices:
            raise ValueError(
                f"num_devices is {self.num_devices}, more than the {outermost.num_devices} of its outermost tier "
                f"{outermost.name}"
            )
        return self


def packaged_clusters() -> dict[str, Path]:
    """Return the clusters that ship with ppsim, by name."""
    folder = Path(str(resources.files("ppsim.machine"))) / "data" / "clusters"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Return a packaged cluster by name, or any by the path of its .toml, .yaml, .yml or .json file.

    Raises `ConfigError` for an unknown name (with close matches) and for a file that does not fit the schema (with
    every wrong key); `MissingExtra` for YAML where PyYAML is not installed.
    """
    text = str(name_or_path)
    packaged = packaged_clusters()
    if text in packaged:
        return cluster_from(_read(packaged[text]), text)
    if Path(text).suffix in _READERS:
        return cluster_from(_read(Path(text)), text)
    close = difflib.get_close_matches(text, packaged, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(packaged)}"
    raise ConfigError(f"unknown cluster '{text}': {hint} (or give the path of a .toml, .yaml or .json file)")


def cluster_from(data: Any, source: str = "cluster") -> Cluster:
    """Return the cluster that a parsed file spells out; raises `ConfigError` with every wrong key."""
    read = validated(_Cluster, data, source)
    device = read.device.model_dump()
    efficiency_class = device.pop("efficiency")
    del device["pattern"]
    return Cluster(
        name=read.name,
        title=read.title,
        device=Device(**device, efficiency_class=efficiency_class, efficiency=efficiency_of(efficiency_class)),
        tiers=tuple(
            Tier(tier.name, tier.num_devices, Link(**tier.link.model_dump()), tier.usable_devices)
            for tier in read.tiers
        ),
        source=read.source,
        num_devices=read.num_devices,
    )


def efficiency_of(name: str) -> Efficiency:
    """Return the constants of a class of devices; raises `ConfigError` naming the classes there are."""
    classes = hardware("efficiency")
    try:
        _known(name, classes, "class of devices")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    constants = validated(_Efficiency, classes[name], f"hardware/efficiency.toml [{name}]")
    in_situ = constants.in_situ and InSitu(**constants.in_situ.model_dump())
    return Efficiency(**{**constants.model_dump(), "in_situ": in_situ})


def _known(name: Any, there: dict[str, Any], what: str) -> str:
    if name not in there:
        close = difflib.get_close_matches(str(name), there, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(there)}"
        raise ValueError(f"unknown {what} '{name}': {hint}")
    return str(name)


def _read(path: Path) -> Any:
    return _READERS[path.suffix](path)


_READERS = {".toml": read_toml, ".yaml": read_yaml, ".yml": read_yaml, ".json": read_json}
