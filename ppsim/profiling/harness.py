"""Measurements of `ppsim profile`: embedding, layer and head of a model, or a user's module."""

import datetime
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from ppsim.base.errors import ConfigError, RunFailed
from ppsim.base.units import seconds
from ppsim.base.version import __version__
from ppsim.costs.utilization import split_ratio
from ppsim.machine.devices import data_sheet
from ppsim.model import shapes
from ppsim.model.recompute import BY_OPERATORS, recomputes
from ppsim.model.shapes import ModelShape
from ppsim.profiling.float8 import fused_cast, require_float8, to_float8
from ppsim.profiling.layers import build_embedding, build_head, build_layer
from ppsim.profiling.measure import Input, MeasuredModule, Samples, is_asynchronous, launch_seconds, measure
from ppsim.profiling.settings import LEAST_REPEATS, MeasurementKey, MeasuringSettings, Say, summarise_samples
from ppsim.profiling.timing import first_sentence, is_out_of_memory, without_interruptions
from ppsim.runtime.clock import Seconds, clock_of
from ppsim.runtime.gpt import loss_of
from ppsim.runtime.torch_private import attention_in

GRAPH_WARM_UP = 3
"""Repeats on a side stream before capture, as torch's documentation requires: libraries initialise in them."""


def replay_graph(subject: MeasuredModule, settings: MeasuringSettings) -> dict[str, list[float]]:
    """Return the seconds of F and B per replay.

    Raises `RunFailed` if an action cannot be captured, for example because it waits for the device.
    """
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    x = subject.next_input()
    with torch.cuda.stream(beside):
        for _ in range(GRAPH_WARM_UP):
            subject.pass_once(x)
    torch.cuda.current_stream().wait_stream(beside)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(forward):
            output = subject.forward(x)
        grad = subject.grad_of(output)
        with torch.cuda.graph(backward, pool=forward.pool()):
            subject.backward(x, output, grad)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = first_sentence(error)
        raise RunFailed(f"--cuda-graphs: a pass cannot be captured ({reason}); leave it out") from error
    clock = clock_of(torch.device(settings.device))

    def replay() -> dict[str, Seconds]:
        return {name: clock.time(graph.replay)[1] for name, graph in (("F", forward), ("B", backward))}

    with without_interruptions():
        for _ in range(settings.num_warm_up):
            replay()
        taken = [replay() for _ in range(settings.num_repeats)]
    subject.module.zero_grad(set_to_none=True)
    return {name: [one[name]() for one in taken] for name in "FB"}


_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_TOLERANCE_16_BIT = 5e-2
_NOISE, _OTHERS = 2.0, 3
"""Allowed distance of I and W's gradients from B's, relative to the largest distance of other runs of B, and number
of these runs."""


def why_not_split(subject: MeasuredModule) -> str | None:
    """Return the reason why I and W cannot replace B, as part of a sentence, or None if they can.

    I or W may raise (with reentrant checkpointing), or their gradients may differ from B's by more than other runs
    of B do. Runs of B differ because a GPU's atomic sums have no fixed order, which can change a router's choice.
    """
    if subject.is_first:
        return None
    x = subject.next_input()
    devices = {tensor.device.index or 0 for tensor in x if tensor.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        state = torch.random.get_rng_state()
        cuda_states = [torch.cuda.get_rng_state(device) for device in devices]

        def forward() -> tuple[tuple[Tensor, ...], Tensor]:
            torch.random.set_rng_state(state)
            for device, cuda_state in zip(devices, cuda_states, strict=True):
                torch.cuda.set_rng_state(cuda_state, device)
            leaves = tuple(one.detach().requires_grad_(one.requires_grad) for one in x)
            return leaves, subject.forward(leaves)

        def whole_gradients() -> dict[str, Tensor | None]:
            leaves, output = forward()
            return _taken_gradients(subject, subject.backward(leaves, output, subject.grad_of(output)))

        gradients = whole_gradients()
        leaves, output = forward()
        grad = subject.grad_of(output)
        try:
            groups = subject.backward_input(leaves, output, grad)
            subject.backward_weight(leaves, output, grad, groups)
        except (RuntimeError, KeyError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            subject.module.zero_grad(set_to_none=True)
            return f"torch's split backward fails in it ({first_sentence(error)})"
        halves = _taken_gradients(subject, tuple(leaf.grad for leaf in leaves))
        differing = [name for name, one in gradients.items() if not _is_near(one, halves.get(name))]
        others = [whole_gradients() for _ in range(_OTHERS)] if differing else []
    for name in differing:
        if not _is_near(gradients[name], halves.get(name), *(other[name] for other in others)):
            return f"I and W give another gradient of {name} than B"
    return None


def _taken_gradients(subject: MeasuredModule, of_inputs: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
    gradients = {name: parameter.grad for name, parameter in subject.module.named_parameters()}
    gradients |= {f"input {index}": grad for index, grad in enumerate(of_inputs)}
    subject.module.zero_grad(set_to_none=True)
    return gradients


def _is_near(one: Tensor | None, other: Tensor | None, *alike: Tensor | None) -> bool:
    """Return whether two gradients differ by rounding only, or by at most `_NOISE` × their usual difference.

    The usual difference is the largest distance of `one` to the gradients `alike` of other runs.
    """
    if one is None or other is None:
        return one is other
    allowed = _TOLERANCE.get(one.dtype, _TOLERANCE_16_BIT) * _norm(one) + 1e-12
    allowed = max(allowed, *(_NOISE * _norm(one - like) for like in alike if like is not None), 0.0)
    return _norm(one - other) <= allowed


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.flatten(), dtype=torch.float64))


NUM_BLOCKS = 4
"""Layers measured in sequence, so that each finds its input where the previous layer left it."""

COSTLY_SPLIT = 1.3
"""A ratio (I + W) / B above this is reported."""

_NUM_INPUTS = 3
"""Minimum number of rotated inputs."""

_TIMES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}


def measure_shape(
    model: ModelShape, key: MeasurementKey, settings: MeasuringSettings, *, say: Say = lambda message: None
) -> list[dict[str, Any]]:
    """Return the measurements of a model's embedding, layer and head at one shape, as in a profile file.

    Raises `ConfigError` if the model cannot be measured as asked, and torch's out-of-memory error.
    """
    require_measurable(model, key, settings)
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    shard = replace(model, sequence_length=key.sequence_length).shard(tp=key.tp, ep=key.ep)
    where, kind = torch.device(settings.device), type_of(key)
    batch, hidden_size = (key.micro_batch, key.sequence_length // key.cp), shard.layer.hidden_size
    layer_flops, head_flops = forward_flops(model, key)
    like_tokens = torch.empty(batch, dtype=torch.int64, device="meta")
    like_hidden = torch.empty(*batch, hidden_size, dtype=kind, device="meta")
    tokens = [
        torch.randint(0, shard.vocab_size, batch, device=where) for _ in range(num_inputs(where, like_tokens))
    ]
    hidden = [
        torch.randn(*batch, hidden_size, device=where, dtype=kind) for _ in range(num_inputs(where, like_hidden))
    ]

    with where:  # on the device: a CPU would take longer to draw billions of weights than the measurement takes
        blocks = build_blocks(shard, key, settings)
        ends = (build_embedding(shard), build_head(shard))
    if settings.compiled:
        for end in ends:
            end.compile()
    for module in (blocks, *ends):
        module.to(where, kind)
    row, alone = MeasuredModule(blocks, hidden), MeasuredModule(blocks[0], hidden)
    head = MeasuredModule(ends[1], hidden, loss=lambda logits: loss_of(logits, tokens[0]))
    components = measured_components(
        [
            MeasuredPart("embedding", [MeasuredModule(ends[0], tokens, is_first=True)], flops=0.0),
            MeasuredPart("layer", [row, alone], flops=layer_flops, num_units=NUM_BLOCKS),
            MeasuredPart("head", [head], flops=head_flops),
        ],
        settings, shape=asdict(key), say=say,
    )  # fmt: skip
    if not settings.compiled:  # the operators of compiled code cannot be observed
        components[1]["attention"] = attention_in(lambda: alone.forward(alone.next_input()))
    return components


@dataclass(frozen=True)
class MeasuredPart:
    """Modules to measure: the first has `num_units` equal units; the second, if any, is one unit alone.

    `flops` are the forward FLOPs of one unit.
    """

    name: str
    subjects: Sequence[MeasuredModule]
    flops: float
    num_units: int = 1


def measured_components(
    parts: Sequence[MeasuredPart],
    settings: MeasuringSettings,
    *,
    shape: dict[str, Any],
    say: Say = lambda message: None,
) -> list[dict[str, Any]]:
    """Return the measurements of the parts.

    On a CPU the parts take turns, so that other load affects them equally. On other devices they are measured one
    after the other, because their activations may not fit into memory together.
    """
    components = []
    for group in [parts] if settings.device == "cpu" else [[part] for part in parts]:
        say(f"measuring {', '.join(part.name for part in group)}")
        components += measured_costs(group, settings, say=say)
    return [
        {"component": part.name, "shape": shape, **costs, "forward_flops": part.flops}
        for part, costs in zip(parts, components, strict=True)
    ]


def build_blocks(shard: ModelShape, key: MeasurementKey, settings: MeasuringSettings) -> nn.Sequential:
    blocks = [
        build_layer(
            shard.layer, key.sequence_length, recompute=key.recompute, cp=key.cp, compiled=settings.compiled
        )
        for _ in range(NUM_BLOCKS)
    ]
    if key.dtype == "fp8":
        cast, _ = fused_cast(settings.device, compiled=settings.compiled)
        blocks = [to_float8(block, cast) for block in blocks]
    return nn.Sequential(*blocks)


def require_measurable(model: ModelShape, key: MeasurementKey, settings: MeasuringSettings) -> None:
    """Raise `ConfigError` if the model cannot be sharded, or a layer cannot be computed, as the key asks."""
    model.shard(tp=key.tp, ep=key.ep)
    if reason := shapes.why_no_context_parallel(key.sequence_length, key.cp):
        raise ConfigError(reason)
    if key.dtype == "fp8":
        require_float8(torch.device(settings.device), key.micro_batch * key.sequence_length // key.cp)
        fused_cast(settings.device, compiled=settings.compiled)  # now, while no device is torch's default
    if key.recompute == BY_OPERATORS:
        raise ConfigError(
            "recompute selective-op is torch's own checkpoint, which goes through no I and W: profile measures "
            "none, full or modules, ppsim.integrations.torchtitan.measure such layers of TorchTitan's"
        )
    if key.recompute not in ("none", "full"):
        if settings.compiled:
            raise ConfigError(
                f"torch.compile chooses by itself what to recompute: --recompute none or full, not {key.recompute}"
            )
        for module, what in (("mla_up_proj", "latent attention"), ("mhc", "residual streams")):
            if recomputes(key.recompute, module):
                raise ConfigError(f"{module} is of {what}, which profile has not: leave it out")


def forward_flops(model: ModelShape, key: MeasurementKey) -> tuple[float, float]:
    """Return the FLOPs of a layer and of the head, for one rank's part."""
    shard, batch, length = model.shard(tp=key.tp, ep=key.ep), key.micro_batch, key.sequence_length
    return (
        shapes.layer_forward_flops(shard.layer, micro_batch=batch, sequence_length=length, cp=key.cp),
        shapes.head_forward_flops(shard, micro_batch=batch, sequence_length=length // key.cp),
    )


class ModuleSettings(TypedDict, total=False):
    """The fields of `MeasuringSettings` for measuring a user's module."""

    num_repeats: int
    num_warm_up: int
    num_threads: int
    least_s: float
    cuda_graphs: bool


def profile_module(
    module: nn.Module,
    example_inputs: Input | torch.Tensor,
    *,
    name: str = "module",
    num_layers: int = 1,
    say: Say = lambda message: None,
    **settings: Unpack[ModuleSettings],
) -> dict[str, Any]:
    """Return the profile of a user's module, as one of `num_layers` equal layers.

    The module is called as `module(*example_inputs)` and returns one tensor. It is measured on the device of its
    inputs. FLOPs are from torch's counter, which omits fused attention on a CPU. If the backward cannot be split,
    only B is recorded. Raises `ConfigError` for inputs or an output that no pipeline stage could have.

    >>> content = profile_module(nn.Linear(8, 8), torch.randn(4, 16, 8), num_repeats=2, num_warm_up=0)
    >>> part = content["measurements"][0]
    >>> part["parameters"], part["activation_bytes"], part["forward_flops"]
    (72, 2048, 8192.0)
    """
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if not inputs or not all(isinstance(one, torch.Tensor) and one.dim() for one in inputs):
        raise ConfigError("example inputs are tensors with a dimension for the microbatch, one or a tuple of them")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"{name} has no parameter that learns: there is no backward to measure")
    first = inputs[0]
    how = MeasuringSettings(first.device.type, **settings)
    torch.set_num_threads(how.num_threads)
    rotated = [tuple(tensor.clone() for tensor in inputs) for _ in range(num_inputs(first.device, *inputs))]
    subject = MeasuredModule(module, rotated, is_first=not any(one.is_floating_point() for one in inputs))
    flops, width = count_flops(subject)
    [layer] = measured_components(
        [MeasuredPart(name, [subject], flops)], how, shape=shape_of(first, module), say=say
    )
    notes = ["A module of one's own, as a layer. Median and quartiles. FLOPs by torch's counter."]
    model = {"name": name, "num_layers": num_layers, "hidden_size": width}
    return {**header(name, model, how, notes), "measurements": [layer | {"component": "layer"}]}


def shape_of(first: torch.Tensor, module: nn.Module) -> dict[str, Any]:
    """Return the key of a user's module.

    The second dimension of the input is the sequence length if the input has more than two dimensions or integers.
    """
    has_sequence = first.dim() > 2 or (first.dim() == 2 and not first.is_floating_point())
    learning = next(parameter for parameter in module.parameters() if parameter.requires_grad)
    return {
        "micro_batch": first.shape[0],
        "sequence_length": first.shape[1] if has_sequence else 1,
        "dtype": str(learning.dtype).removeprefix("torch."),
    }


def model_header(name: str, model_name: str, model: ModelShape, settings: MeasuringSettings) -> dict[str, Any]:
    facts = {
        "name": f"GPT {model_name}" if model.layer.kind == "gpt" else model_name,
        "num_layers": model.num_layers,
        "hidden_size": model.layer.hidden_size,
        "num_heads": model.layer.num_heads,
        "vocab_size": model.vocab_size,
        "layer_sizes": {name: size for name, size in asdict(model.layer).items() if size is not None},
    }
    notes = [f"Per layer: {NUM_BLOCKS} layers in a row, divided by {NUM_BLOCKS}. Median and quartiles."]
    if settings.component_s is not None:
        limit = seconds(settings.component_s)
        notes.append(f"Repeats: as many as {limit} a component allow, {LEAST_REPEATS} at least.")
    return header(name, facts, settings, notes)


def header(name: str, model: dict[str, Any], settings: MeasuringSettings, notes: list[str]) -> dict[str, Any]:
    return {
        "format": "ppsim-profile/1",
        "name": name,
        "provenance": _provenance(settings, notes),
        "model": model,
        "measurements": [],
        "optimizer": [],
        "transfers": [],
        "does_not_fit": [],
        "failed": [],
    }


def costly_splits(content: dict[str, Any]) -> list[str]:
    sentences = []
    for component in ("embedding", "layer", "head"):
        parts = [part for part in content["measurements"] if part["component"] == component]
        ratios = [ratio for part in parts if (ratio := split_ratio(part)) is not None]
        costly = sorted(ratio for ratio in ratios if ratio > COSTLY_SPLIT)
        if costly:
            between = f"{costly[0]:.2f}" if len(costly) == 1 else f"{costly[0]:.2f} to {costly[-1]:.2f}"
            where = "" if len(ratios) == 1 else f" at {len(costly)} of {len(ratios)} shapes"
            sentences.append(
                f"{component}: (I + W) / B is {between}{where}: zero-bubble schedules hardly pay off, "
                f"splitting makes its backward {100 * (costly[-1] - 1):.0f} % longer"
            )
    return sentences


def measured_costs(parts: Sequence[MeasuredPart], settings: MeasuringSettings, *, say: Say) -> list[dict[str, Any]]:
    """Return the costs of one unit of each part, measured in turns."""
    subjects: list[MeasuredModule] = []
    can_split: list[bool] = []
    for part in parts:
        reason = "with --cuda-graphs I and W are not captured" if settings.cuda_graphs else (
            why_not_split(part.subjects[0])
        )  # fmt: skip
        if reason:
            say(f"{part.name}: {reason}; its backward cannot be split, only B is recorded")
        subjects += part.subjects
        can_split += [reason is None] * len(part.subjects)
    if settings.cuda_graphs:
        found = [_replayed(subject, settings) for subject in subjects]
    else:
        found = measure(subjects, settings.of_many(len(parts)), can_split=can_split)
    samples = iter(found)
    return [_costs_of(part, [next(samples) for _ in part.subjects], settings) for part in parts]


def _costs_of(part: MeasuredPart, samples: Sequence[Samples], settings: MeasuringSettings) -> dict[str, Any]:
    whole, where, num_units = samples[0], torch.device(settings.device), part.num_units
    content = {
        **_times(whole.seconds, num_units),
        "activation_bytes": whole.activation_bytes // num_units,
        "activation_bytes_kept_for_weight": whole.kept_bytes // num_units,
        "output_bytes": whole.output_bytes,
        "transient_bytes": whole.transient_bytes,
        "parameters": sum(parameter.numel() for parameter in part.subjects[0].module.parameters()) // num_units,
    }
    if len(samples) > 1:
        content["alone"] = {"num_in_row": num_units, **_times(samples[1].seconds)}
    if is_asynchronous(where) and not settings.cuda_graphs:
        content["launch"] = launch_times(part.subjects[-1], where, can_split="I" in whole.seconds)
    return content


def launch_times(subject: MeasuredModule, device: torch.device, *, can_split: bool) -> dict[str, Any]:
    """Return the host seconds to enqueue each action."""
    return _times(launch_seconds(subject, device=device, can_split=can_split))


def _replayed(subject: MeasuredModule, settings: MeasuringSettings) -> Samples:
    [eager] = measure([subject], replace(settings, num_repeats=1, num_warm_up=0, least_s=0.0), can_split=[False])
    return replace(eager, seconds=replay_graph(subject, settings))


def _times(taken: dict[str, list[float]], num_units: int = 1) -> dict[str, Any]:
    return {
        key: summarise_samples([seconds / num_units for seconds in taken[name]]) if name in taken else None
        for name, key in _TIMES.items()
    }


def num_inputs(device: torch.device, *inputs: torch.Tensor) -> int:
    """Return the number of inputs to rotate: on CUDA, more than fit into the L2 cache."""
    if device.type != "cuda":
        return _NUM_INPUTS
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return int(max(_NUM_INPUTS, cache // sum(tensor.nbytes for tensor in inputs) + 2))


def type_of(key: MeasurementKey) -> torch.dtype:
    kind: torch.dtype = torch.bfloat16 if key.dtype == "fp8" else getattr(torch, key.dtype)
    return kind


def count_flops(subject: MeasuredModule) -> tuple[float, int]:
    """Return the forward FLOPs by torch's counter, and the width of the output."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = subject.forward(subject.next_input())
    return float(counter.get_total_flops()), output.shape[-1] if output.dim() else 1


def _provenance(settings: MeasuringSettings, notes: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": _cpu_name(), "kind": settings.device}
    if settings.device == "cuda":
        properties = torch.cuda.get_device_properties(torch.device(settings.device))
        facts |= {"name": properties.name, "memory_bytes": properties.total_memory}
        if sheet := data_sheet(properties.name):
            facts["peak_flops_per_s"] = sheet.flops_per_s
            notes = [*notes, f"peak_flops_per_s: {sheet.source}, dense."]
    else:
        facts["num_threads"] = settings.num_threads
    return {
        "kind": "measured",
        "source": f"ppsim profile {__version__}",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "device": facts,
        "software": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "num_repeats": settings.num_repeats,
        "num_warm_up": settings.num_warm_up,
        **({"least_s": settings.least_s} if settings.least_s else {}),
        **{name: True for name in ("compiled", "cuda_graphs") if getattr(settings, name)},
        "notes": notes,
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
