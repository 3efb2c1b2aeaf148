"""Cluster files (packaged or a user's): reading, checking, and conversion to `Cluster`."""

import difflib
import math
import re
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import (
    AboveZero,
    Bounds,
    ConvertAfter,
    ConvertBefore,
    FileSchema,
    NonNegative,
    Positive,
    load_packaged,
    validated,
)
from ppsim.base.files import CONFIG_READERS, data_folder
from ppsim.base.limits import LONGEST_NAME
from ppsim.base.name_lookup import NameLookup, plain
from ppsim.base.user_defaults import CLUSTER
from ppsim.machine.cluster import (
    PER_NAME,
    PLAIN,
    Cluster,
    Constant,
    Constants,
    Device,
    Efficiency,
    GemmWorkspaces,
    InSituRatio,
    Link,
    Tier,
)
from ppsim.machine.devices import hardware
from ppsim.machine.job_similarity import MEASURED_SPREAD, MeasuredJob
from ppsim.machine.kernels.names import OPERATORS, is_operator

Share = Annotated[float, Bounds(gt=0, le=1)]


def _class(name: str) -> str:
    return _known(name, hardware("efficiency"), "class of devices")


class _Workspaces(FileSchema):
    torch: Positive = GemmWorkspaces.torch
    transformer_engine: Positive = GemmWorkspaces.transformer_engine


class _Device(FileSchema):
    name: str
    generation: str = ""
    has_runs: bool = True
    pattern: str | None = None
    efficiency: Annotated[str, ConvertAfter(_class)]
    kernels: str | None = None
    num_cores: Positive
    memory_bytes: Positive
    memory_bytes_per_s: AboveZero
    peak_flops_per_s: Annotated[dict[str, AboveZero], Bounds(min_length=1)]
    host_bytes_per_s: AboveZero | None = None
    host_memory_bytes_per_s: AboveZero | None = None
    gemm_workspaces: _Workspaces = field(default_factory=_Workspaces)
    source: str = "the cluster file"


class _Link(FileSchema):
    name: str = "own link"
    bytes_per_s: AboveZero
    efficiency: Share = 0.7
    reduction_gain: Annotated[float, Bounds(ge=1, le=2)] = 1.0
    launch_s: NonNegative = 10e-6
    step_s: NonNegative = 2e-6
    small_group_loss: Annotated[float, Bounds(ge=0, lt=1)] = 0.0
    is_mesh: bool = False
    copy_bytes_per_s: AboveZero | None = None
    exchange_share: Share = 1.0
    dispatch_share: Share = 1.0
    token_s: NonNegative = 0.0
    dispatch_sms: NonNegative = 0.0
    hybrid_share: AboveZero | None = None
    hybrid_token_s: NonNegative = 0.0
    hybrid_sms_gain: NonNegative = 0.0
    source: str = "the cluster file"


def _device(value: Any) -> Any:
    return hardware("devices")[_known(value, hardware("devices"), "device")] if isinstance(value, str) else value


def _link(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {"name": value} | hardware("links")[_known(value, hardware("links"), "link")]


class _Tier(FileSchema):
    name: str
    num_devices: Positive | None = None
    usable_devices: Positive | None = None
    link: Annotated[_Link, ConvertBefore(_link)]

    def __post_init__(self) -> None:
        if self.usable_devices and (self.num_devices is None or self.usable_devices > self.num_devices):
            raise ValueError(
                f"usable_devices is {self.usable_devices}, but a domain has {self.num_devices or 'no number'}"
            )


def _constant(value: Any) -> Any:
    return value if isinstance(value, dict) else {"value": value}


class _Constant(FileSchema):
    value: NonNegative
    sigma: NonNegative | None = None
    source: str = ""

    def made(self) -> Constant:
        return Constant(**vars(self))


class _Share(_Constant):
    value: AboveZero


class _Efficient(_Constant):
    value: Share


_Plain = Annotated[_Constant, ConvertBefore(_constant)]
_Above = Annotated[_Share, ConvertBefore(_constant)]


def _operator(name: str) -> str:
    if not is_operator(name):
        raise ValueError(f"unknown kind of operator '{name}': there are {', '.join(OPERATORS)}")
    return name


class _Run(FileSchema):
    model: str
    dtype: str
    tp: Positive
    cp: Positive
    ep: Positive
    micro_batch: Positive
    seq_len: Positive
    recompute: str = "none"
    cuda_graphs: str = "none"
    pp: Positive
    gpus: Positive
    times: AboveZero
    sigma: AboveZero = MEASURED_SPREAD
    spread: AboveZero


class _Constants(FileSchema):
    compute_share: dict[str, _Above] = field(default_factory=dict)
    operator_time: dict[Annotated[str, ConvertAfter(_operator)], _Above] = field(default_factory=dict)
    link_efficiency: dict[str, Annotated[_Efficient, ConvertBefore(_constant)]] = field(default_factory=dict)
    overlap: dict[Literal["tp", "ep"], _Plain] = field(default_factory=dict)
    kernel_s: _Plain | None = None
    launch_s: _Plain | None = None
    host_s: _Plain | None = None
    routing_host_s: _Plain | None = None
    jitter: _Plain | None = None
    overlap_slowdown: _Plain | None = None
    fitted_on: list[str] = field(default_factory=list)
    stack: str = ""
    runs: list[_Run] = field(default_factory=list)
    correlation: dict[str, Annotated[float, Bounds(ge=-1, le=1)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pair in self.correlation:
            for name in pair.split():
                kind, _, of = name.partition(".")
                there = getattr(self, kind, None)
                if not there or (of and of not in there):
                    raise ValueError(f"correlation of {name}, of which there is no constant")

    def made(self) -> Constants:
        per_name: dict[str, Any] = {
            kind: {of: one.made() for of, one in getattr(self, kind).items()} for kind in PER_NAME
        }
        plain: dict[str, Any] = {name: one.made() for name in PLAIN if (one := getattr(self, name)) is not None}
        return Constants(
            **per_name, **plain, runs=tuple(MeasuredJob(**vars(one)) for one in self.runs),
            fitted_on=tuple(self.fitted_on), stack=self.stack,
            correlation=self.correlation,
        )  # fmt: skip


class _Cluster(FileSchema):
    format: Literal["ppsim-cluster/1"]
    name: str
    base: str | None = None
    title: str = ""
    device: Annotated[_Device, ConvertBefore(_device)]
    num_devices: Positive | None = None
    source: str = "the cluster file"
    tiers: Annotated[list[_Tier], Bounds(min_length=1)]
    constants: _Constants = field(default_factory=_Constants)
    price_per_gpu_hour: NonNegative | None = None

    def __post_init__(self) -> None:
        *inner, outermost = self.tiers
        names = [tier.name for tier in self.tiers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two tiers are called {twice[0]}")
        if unknown := [name for name in self.constants.link_efficiency if name not in [t.name for t in self.tiers]]:
            raise ValueError(
                f"constants.link_efficiency.{unknown[0]}: no tier is called so; there are "
                f"{', '.join(tier.name for tier in self.tiers)}"
            )
        for index, tier in enumerate(inner):
            if tier.num_devices is None:
                raise ValueError(
                    f"tier {tier.name} says no num_devices; only the outermost can do without"
                    f"{f' (give a tier of {self.base} another link by its name)' if self.base else ''}"
                )
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


@cache
def packaged_clusters() -> dict[str, Path]:
    folder = data_folder("machine/data") / "clusters"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Return a packaged cluster by name, or a cluster by the path of its file.

    Names may be in a common spelling: H100-SXM is dgx-h100. Raises `ConfigError` for an unknown name (with close
    matches) and for an invalid file (with every wrong key).
    """
    text = str(name_or_path)
    if Path(text).suffix in CONFIG_READERS:
        return cluster_from(_extended(Path(text)), text)
    if full_name := _names().find(text):
        return _packaged(full_name)
    raise ConfigError(f"{_names().unknown(text)} (or give the path of a .toml, .yaml or .json file)")


@cache
def _packaged(name: str) -> Cluster:
    return _cluster(load_packaged(_Cluster, _extended(packaged_clusters()[name])))


def cluster_of(given: str | Path | Cluster | None) -> Cluster:
    return given if isinstance(given, Cluster) else load_cluster(given or CLUSTER)


def cluster_named(name: str) -> str:
    """Return the packaged cluster's name for a common spelling; other texts, e.g. paths, unchanged.

    >>> cluster_named("H100-SXM"), cluster_named("mine.toml")
    ('dgx-h100', 'mine.toml')
    """
    return name if Path(name).suffix in CONFIG_READERS else _names().find(name) or name


@cache
def _names() -> NameLookup:
    return NameLookup("cluster", packaged_clusters(), plain_of=_plain)


_LEFT_OUT = re.compile(r"^(nvidia|amd|instinct|dgx(?!c))|(sxm\d?|oam|80gb|hbm\de?|nvl72|(?<=[a-z\d]{4})-8)+$")
"""Ignored parts of a name: manufacturer, system, socket, memory, and number of devices per system."""


def _plain(name: str) -> str:
    text = re.sub(r"[\s_]+", "-", name.lower())[:LONGEST_NAME]
    while (shorter := _LEFT_OUT.sub("", text).strip("-")) != text:
        text = shorter
    return plain(text)


_DEEPEST = 8

CALIBRATION = "ppsim-calibration/1"
"""Format of a calibration: a cluster that extends its `base`, and overheads (`ppsim.runs.calibration_file`)."""


def _extended(path: Path, depth: int = 0) -> Any:
    """The `base` is a packaged cluster or a file relative to the extending file."""
    data = CONFIG_READERS[path.suffix](path)
    if isinstance(data, dict) and data.get("format") == CALIBRATION:
        if "base" not in data:
            raise ConfigError(f"{path} has overheads, and no constants of a cluster: give it with --calibration")
        data = {name: value for name, value in data.items() if name not in ("overheads", "date")}
        data["format"] = "ppsim-cluster/1"
    if not isinstance(data, dict) or not isinstance(data.get("base"), str):
        return data
    if depth == _DEEPEST:
        raise ConfigError(f"{path}: its base extends it")
    is_file = Path(data["base"]).suffix in CONFIG_READERS
    base = None if is_file else _names().find(data["base"])
    if base is None and not is_file:
        raise ConfigError(f"{path}: base is an {_names().unknown(data['base'])}")
    below = _extended(packaged_clusters()[base] if base else path.parent / data["base"], depth + 1)
    return _on_base(below, data) if isinstance(below, dict) else data


def _on_base(below: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Merge constants one by one, tiers by their names, and a device without a name into the device of the base."""
    merged = {**below, **data}
    constants, device = below.get("constants", {}), data.get("device")
    if _is_list_of_tables(below.get("tiers")) and _is_list_of_tables(data.get("tiers")):
        merged["tiers"] = _merged_tiers(below["tiers"], data["tiers"])
        constants = _without_links(constants, {tier.get("name") for tier in data["tiers"] if "link" in tier})
    if isinstance(device, dict) and "name" not in device:
        of_base = below.get("device")
        of_base = hardware("devices").get(of_base, {}) if isinstance(of_base, str) else of_base
        merged["device"] = _merged(of_base, device, depth=1)
    merged["constants"] = _merged(constants, data.get("constants", {}), depth=2)
    return merged


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _merged_tiers(below: list[dict[str, Any]], above: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tiers of the base stay, with the keys of a tier of the same name; the number of devices gives the order."""
    own, names = {tier.get("name"): tier for tier in above}, {tier.get("name") for tier in below}
    if len(own) < len(above):
        return above
    merged = [tier | own.get(tier.get("name"), {}) for tier in below]
    merged += [tier for tier in above if tier.get("name") not in names]
    return sorted(merged, key=lambda tier: size if isinstance(size := tier.get("num_devices"), int) else math.inf)


def _without_links(constants: Any, tiers: set[Any]) -> Any:
    """Leave out link efficiencies of tiers, which were fitted to other links, and their correlations."""
    if not isinstance(constants, dict):
        return constants
    names = {f"link_efficiency.{tier}" for tier in tiers}
    kept = dict(constants)
    if isinstance(links := kept.get("link_efficiency"), dict):
        kept["link_efficiency"] = {tier: value for tier, value in links.items() if tier not in tiers}
    if isinstance(pairs := kept.get("correlation"), dict):
        kept["correlation"] = {pair: value for pair, value in pairs.items() if names.isdisjoint(pair.split())}
    return kept


def _merged(below: Any, above: Any, *, depth: int) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)) or not depth:
        return above
    return below | {
        name: _merged(below[name], value, depth=depth - 1) if name in below else value
        for name, value in above.items()
    }


def cluster_from(data: Any, source: str = "cluster") -> Cluster:
    return _cluster(validated(_Cluster, data, source))


def _cluster(read: _Cluster) -> Cluster:
    device = dict(vars(read.device))
    efficiency_class = device.pop("efficiency")
    del device["pattern"]
    device["gemm_workspaces"] = GemmWorkspaces(**vars(read.device.gemm_workspaces))
    cluster = Cluster(
        name=read.name,
        title=read.title,
        device=Device(**device, efficiency_class=efficiency_class, efficiency=efficiency_of(efficiency_class)),
        tiers=tuple(
            Tier(tier.name, tier.num_devices, Link(**vars(tier.link)), tier.usable_devices) for tier in read.tiers
        ),
        source=read.source,
        num_devices=read.num_devices,
        base=read.base,
        price_per_gpu_hour=read.price_per_gpu_hour,
    )
    return cluster.with_constants(read.constants.made())


def efficiency_of(name: str) -> Efficiency:
    classes = hardware("efficiency")
    try:
        _known(name, classes, "class of devices")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    constants = dict(classes[name])
    in_situ = constants.pop("in_situ", None)
    return Efficiency(**constants, in_situ=in_situ and InSituRatio(**in_situ))


def _known(name: Any, there: dict[str, Any], what: str) -> str:
    if name not in there:
        close = difflib.get_close_matches(str(name), there, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(there)}"
        raise ValueError(f"unknown {what} '{name}': {hint}")
    return str(name)
