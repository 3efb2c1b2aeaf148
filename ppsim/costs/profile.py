"""Profile file format: costs of the components of one model on one device, with their provenance."""

from collections.abc import Iterable
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ppsim.base.display import HasRepr
from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import (
    AboveZero,
    Bounds,
    ConvertAfter,
    Count,
    FileSchema,
    NonNegative,
    Positive,
    load_packaged,
    validated,
)
from ppsim.base.files import data_folder, read_json
from ppsim.base.limits import MOST_LAYERS
from ppsim.base.name_lookup import NameLookup
from ppsim.costs.chunk_costs import LAYER, components_of, cost_key, require_contents
from ppsim.machine.kernels.microbenchmarks import DeviceMicrobenchmarks
from ppsim.model.measurement_key import Kind, describe_key
from ppsim.model.recompute import Recompute, recompute_of

FORMAT: Literal["ppsim-profile/1"] = "ppsim-profile/1"
DEFAULT = "zb-a100-6.2b"

Component = Literal["embedding", "layer", "head"]

_RECOMPUTED_IN_0_2 = "layernorm+mlp_act+moe_act"
"""Modules that ppsim 0.2.0 recomputed under the name "selective"."""

Recomputation = Annotated[
    Recompute, ConvertAfter(lambda word: _RECOMPUTED_IN_0_2 if word == "selective" else recompute_of(word))
]


class Spread(FileSchema):
    """Median and quartiles of samples."""

    median: NonNegative
    low: NonNegative
    high: NonNegative


class Quantity(Spread):
    """Seconds: median and quartiles of the repeats, or the values of a publication."""


class ProfiledDevice(FileSchema):
    """The measured device; `peak_flops_per_s` is the data sheet's dense peak per dtype."""

    name: str
    kind: Literal["cuda", "cpu"]
    memory_bytes: Positive | None = None
    num_threads: Positive | None = None
    driver: str | None = None
    clock_mhz: NonNegative | None = None
    peak_flops_per_s: dict[str, AboveZero] = field(default_factory=dict)


class LoadSamples(FileSchema):
    """Samples of nvidia-smi on the busy device; `held_back`: fraction of samples per clock throttle reason."""

    driver: str
    num_samples: Positive
    sm_clock_mhz: Spread
    memory_clock_mhz: Spread
    power_w: Spread
    temperature_c: Spread
    held_back: dict[str, NonNegative] = field(default_factory=dict)


class Provenance(FileSchema):
    """Source of the numbers: a publication and its table, or the software of a measurement.

    Each component was measured a multiple of `num_repeats` times, for at least `least_s` seconds; with
    `cuda_graphs`, F and B were measured by graph replay. `measured_at` has begin and end in Unix time (seconds).
    """

    kind: Literal["measured", "published"]
    source: str
    date: str
    device: ProfiledDevice
    software: dict[str, str] = field(default_factory=dict)
    num_repeats: Count = 0
    num_warm_up: Count = 0
    least_s: NonNegative = 0.0
    compiled: bool = False
    cuda_graphs: bool = False
    measured_at: list[list[float]] = field(default_factory=list)
    under_load: LoadSamples | None = None
    notes: list[str] = field(default_factory=list)


class LayerSizes(FileSchema):
    """Sizes of one whole layer: the fields of `ppsim.model.shapes.LayerShape`."""

    kind: Kind
    hidden_size: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_size: Positive
    ffn_size: Positive
    num_experts: Count = 0
    experts_per_token: Count = 0
    shared_ffn_size: Count = 0


class ProfiledModel(FileSchema):
    """The model whose components were measured.

    For a user's own module, `layer_sizes` are unknown, so nothing can be estimated. `layer_kinds` has one letter
    per layer, equal for equal layers.
    """

    name: str
    num_layers: Annotated[Positive, Bounds(le=MOST_LAYERS)]
    hidden_size: Positive
    num_heads: Positive | None = None
    vocab_size: Positive | None = None
    layer_sizes: LayerSizes | None = None
    layer_kinds: str | None = None

    def __post_init__(self) -> None:
        if self.layer_kinds is not None and len(self.layer_kinds) != self.num_layers:
            raise ValueError(f"layer_kinds has {len(self.layer_kinds)} letters for {self.num_layers} layers")


class Shape(FileSchema):
    """Key of a measurement: microbatch, parallel sizes, dtype and recomputation.

    With tp or ep above 1, one rank's part was measured.
    """

    micro_batch: Positive
    sequence_length: Positive
    dtype: str
    tp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    recompute: Recomputation = "none"


class Times(FileSchema):
    """Seconds of each pass; null if not measured, and for I and W if the backward cannot be split."""

    forward_s: Quantity
    backward_s: Quantity | None = None
    backward_input_s: Quantity | None = None
    backward_weight_s: Quantity | None = None


class SingleLayerTimes(Times):
    """Seconds of one layer alone; the times of a `Measurement` are then means over `num_in_row` layers in a row."""

    num_in_row: Annotated[int, Bounds(ge=2)]


class OptimizerStep(FileSchema):
    """One optimizer step for one layer, the embedding or the head, on one rank, without sharding or collectives.

    If the parameters' `dtype` has 16 bits, gradients and master weights are float32. `gradient_norm_s` is the time
    to compute the norm of the gradients and to scale the gradients.
    """

    component: Component
    optimizer: str
    tp: Positive = 1
    ep: Positive = 1
    dtype: str
    step_s: Quantity
    gradient_norm_s: Quantity
    state_bytes: Count
    parameters: Count
    fused: bool = False


class Measurement(FileSchema):
    """Costs of one microbatch through one component.

    `transient_bytes` is the most that any pass holds in addition to `activation_bytes`. `attention` names the fused
    kernels that torch picked, or "math" if none. `launch` is the host time to enqueue a pass. `estimated_from` are
    the measured shapes used for an estimate.
    """

    component: Component
    shape: Shape
    forward_s: Quantity
    backward_s: Quantity | None = None
    backward_input_s: Quantity | None
    backward_weight_s: Quantity | None
    activation_bytes: Count
    activation_bytes_kept_for_weight: Count
    output_bytes: Count
    parameters: Count
    transient_bytes: Count | None = None
    forward_flops: NonNegative = 0.0
    attention: str | None = None
    alone: SingleLayerTimes | None = None
    launch: Times | None = None
    estimated_from: list[Shape] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.activation_bytes_kept_for_weight > self.activation_bytes:
            raise ValueError(
                f"activation_bytes_kept_for_weight is {self.activation_bytes_kept_for_weight}, more than the "
                f"{self.activation_bytes} activation_bytes it is part of"
            )
        if (self.backward_input_s is None) != (self.backward_weight_s is None):
            raise ValueError("backward_input_s and backward_weight_s are both given, or both null")
        if self.backward_s is None and self.backward_input_s is None:
            raise ValueError("backward_s is null, and so are its halves")


class Chunk(Times):
    """Costs of one microbatch through a chunk of a model, as its trainer builds it (`ppsim.costs.chunk_costs`)."""

    contents: Annotated[str, ConvertAfter(require_contents)]
    shape: Shape
    backward_s: Quantity = field()  # required here, unlike in Times
    activation_bytes: Count
    activation_bytes_kept_for_weight: Count
    output_bytes: Count
    parameters: Count
    transient_bytes: Count | None = None
    forward_flops: NonNegative = 0.0
    launch: Times | None = None


class Transfer(FileSchema):
    """One message between two neighbouring stages."""

    bytes: Positive
    seconds: Quantity


class CalibrationRun(FileSchema):
    """Results of a calibration run: short pipelines on `num_processes` ranks, compared with their projection.

    A pass takes `slowdown` times its measured time; an action takes `action_overhead_s` more, a message
    `hop_overhead_s`. `step_spread` is the interquartile range of the step times, relative to their median.
    `pass_factors` are equally likely ratios of a pass's time to its median.

    `reference_s` has one value per time window: seconds per layer of the reference work
    (`ppsim.runtime.worker`). Step times are corrected to the median of `reference_s`. `reference_ends_s` has
    the extra times of the first and the last stage; None in files of older versions.
    """

    num_processes: Annotated[int, Bounds(ge=2)]
    num_threads: Positive
    slowdown: AboveZero
    action_overhead_s: NonNegative
    hop_overhead_s: NonNegative
    step_spread: NonNegative
    pass_factors: list[NonNegative] | None = None
    reference_s: list[AboveZero] = field(default_factory=list)
    reference_ends_s: Annotated[list[float], Bounds(min_length=2, max_length=2)] | None = None
    reference_work: str = ""

    @property
    def pace_s(self) -> float | None:
        return float(np.median(self.reference_s)) if self.reference_s else None

    @property
    def pace_spread(self) -> float:
        """Standard deviation of log machine speed between windows."""
        return float(np.log(self.reference_s).std(ddof=1)) if len(self.reference_s) > 1 else 0.0

    @property
    def pace_drift(self) -> float:
        """Standard deviation of the log ratio of a later run's machine speed to `pace_s`.

        Machine speed drifts like a random walk with variance 1 per second: its variance is T/6 within a period of
        length T, and 2T/3 between the means of two successive periods.
        """
        return 2 * self.pace_spread


class Failure(FileSchema):
    """An error that ended the measurement of a shape."""

    shape: Shape
    optimizer: str | None = None
    error: str


def _require_once(parts: Iterable[tuple[str, Shape, str]]) -> None:
    seen = set()
    for key, shape, name in parts:
        if (key, shape) in seen:
            raise ValueError(f"the {name} at {describe(shape)} stands there twice")
        seen.add((key, shape))


def _built_once(chunks: list[Chunk]) -> list[Chunk]:
    _require_once((cost_key(chunk.contents), chunk.shape, f"chunk {chunk.contents}") for chunk in chunks)
    return chunks


def _measured_once(measurements: list[Measurement]) -> list[Measurement]:
    _require_once((part.component, part.shape, part.component) for part in measurements)
    return measurements


class Profile(HasRepr, FileSchema):
    """A measured or published profile; `load_profile` reads one.

    If a model was measured in `chunks`, its `measurements` are derived from them. With `device_facts`, other shapes
    can be estimated (`ppsim.costs.estimate`). `rehearsal` is the calibration run.

    >>> import ppsim
    >>> profile = ppsim.load_profile("zb-a100-6.2b")
    >>> profile.model.num_layers, profile.find("layer", profile.shapes[0]).forward_s.median
    (30, 0.0074505)
    """

    format: Literal["ppsim-profile/1"]
    name: str
    provenance: Provenance
    model: ProfiledModel
    chunks: Annotated[list[Chunk], ConvertAfter(_built_once)] = field(default_factory=list)
    measurements: Annotated[list[Measurement], ConvertAfter(_measured_once)] = field(default_factory=list)
    optimizer: list[OptimizerStep] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    rehearsal: CalibrationRun | None = None
    does_not_fit: list[Shape] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    device_facts: DeviceMicrobenchmarks | None = None

    @property
    def one_line(self) -> str:
        measured = f"{len(self.measurements)} measurements"
        return f"{self.name}, {self.model.name} on {self.provenance.device.name}, {measured}"

    def __post_init__(self) -> None:
        if self.measurements:
            return
        if not self.chunks:
            raise ValueError("measurements: must not be empty, got []")
        kinds = self.model.layer_kinds or self.model.num_layers * LAYER
        components = components_of([asdict(chunk) for chunk in self.chunks], kinds)
        object.__setattr__(
            self, "measurements", [validated(Measurement, part, "what chunks tell") for part in components]
        )

    @property
    def shapes(self) -> list[Shape]:
        return list(dict.fromkeys(measurement.shape for measurement in self.measurements))

    def find(self, component: Component, shape: Shape) -> Measurement:
        """Return the measurement of a component at a shape; raises `ConfigError` if there is none.

        >>> import ppsim
        >>> profile = ppsim.load_profile("zb-a100-6.2b")
        >>> profile.find("layer", profile.shape_at()).backward_weight_s.median
        0.0048825
        """
        for measurement in self.measurements:
            if measurement.component == component and measurement.shape == shape:
                return measurement
        raise ConfigError(f"profile {self.name} has no {component} at {describe(shape)}")

    def shape_at(
        self,
        *,
        micro_batch: int | None = None,
        sequence_length: int | None = None,
        tp: int | None = None,
        cp: int | None = None,
        ep: int | None = None,
        recompute: Recompute | None = None,
    ) -> Shape:
        """Return the first measured shape with the given values.

        tp, cp and ep 1 and no recomputation are preferred. Raises `ConfigError` if there is none.

        >>> import ppsim
        >>> describe(ppsim.load_profile("zb-a100-6.2b").shape_at(sequence_length=1024))
        'micro-batch 3, sequence length 1024, fp16'
        """
        given = {
            "micro_batch": micro_batch,
            "sequence_length": sequence_length,
            "tp": tp,
            "cp": cp,
            "ep": ep,
            "recompute": recompute,
        }
        wanted = {name: value for name, value in given.items() if value is not None}

        def suits(shape: Shape) -> bool:
            return all(getattr(shape, name) == value for name, value in wanted.items())

        if suitable := [shape for shape in self.shapes if suits(shape)]:
            return min(suitable, key=lambda shape: (shape.tp, shape.cp, shape.ep, shape.recompute != "none"))
        text = ", ".join(f"{_IN_WORDS.get(name, name)} {value}" for name, value in wanted.items())
        if any(suits(shape) for shape in self.does_not_fit):
            raise ConfigError(f"{text} did not fit the memory of {self.provenance.device.name} ({self.name})")
        there = "; ".join(describe(shape) for shape in self.shapes)
        raise ConfigError(f"profile {self.name} was not measured at {text} (there is: {there})")

    def find_step(
        self, component: Component, *, optimizer: str, tp: int = 1, ep: int = 1, dtype: str
    ) -> OptimizerStep | None:
        """Return the measured optimizer step for one rank's part of a component, or None.

        >>> import ppsim
        >>> profile = ppsim.load_profile("zb-a100-6.2b")
        >>> profile.find_step("layer", optimizer="adamw", dtype="fp16") is None
        True
        """
        wanted = (component, optimizer, tp, ep, dtype)
        for step in self.optimizer:
            if (step.component, step.optimizer, step.tp, step.ep, step.dtype) == wanted:
                return step
        return None

    def __str__(self) -> str:
        device = self.provenance.device.name
        how = "measured on" if self.provenance.kind == "measured" else "published, measured on"
        return f"{self.name} ({how} {device}; {self.provenance.source})"


_IN_WORDS = {"micro_batch": "micro-batch", "sequence_length": "sequence length"}


def describe(shape: Shape) -> str:
    """Return a shape in words.

    >>> describe(Shape(micro_batch=3, sequence_length=1024, dtype="fp16"))
    'micro-batch 3, sequence length 1024, fp16'
    """
    return describe_key(vars(shape))


def packaged_profiles() -> dict[str, Path]:
    folder = data_folder("profiles")
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_profile(name_or_path: str | Path) -> Profile:
    """Return a packaged profile by name, or another by the path of its JSON file.

    Raises `ConfigError` for an unknown name and for a file that does not fit the schema.

    >>> import ppsim
    >>> ppsim.load_profile("zb-a100-6.2b").provenance.device.name
    'NVIDIA A100-SXM4-80GB'
    """
    text, there = str(name_or_path), packaged_profiles()
    names = NameLookup("profile", there)
    if full_name := names.find(text):
        return load_packaged(Profile, read_json(there[full_name]))
    if Path(name_or_path).suffix == ".json":
        return validated(
            Profile, read_json(Path(name_or_path), made_by="ppsim profile writes a profile with -o NAME.json"), text
        )
    raise ConfigError(f"{names.unknown(text)} (or give the path of a .json file)")


def profile_of(given: str | Path | Profile) -> Profile:
    return given if isinstance(given, Profile) else load_profile(given)
