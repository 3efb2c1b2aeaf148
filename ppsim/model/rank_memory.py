"""Bytes on a rank at the peak of a step.

Activations depend on the microbatches in flight, which the schedule determines
(`ppsim.simulation.memory_per_action` has memory over time). The peak is assumed to be in the backward that needs
the most bytes (of the head or a layer), with the saved activations of all microbatches in flight.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ppsim.base.errors import ConfigError
from ppsim.model.activations import (
    embedding_activations,
    head_activations,
    layer_activations,
    layer_backward,
    mtp_activations,
)
from ppsim.model.architecture import Layer, Model
from ppsim.model.batch import Batch, KernelChoice
from ppsim.model.cuda_graph_scope import has_graph, num_extra_hidden_states
from ppsim.model.cuda_graphs import CudaGraphs
from ppsim.model.encoder import Encoder, EncoderPart
from ppsim.model.losses import CHUNKS
from ppsim.model.narrow_weights import NarrowWeights
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import exact_multiple, held_parameters, padded_vocabulary, require_division
from ppsim.model.ping_pong import largest_state, trained_tensors
from ppsim.model.pipeline_stages import Stage, layers_of
from ppsim.model.recompute import BY_OPERATORS, Recompute, of_layer, recomputes
from ppsim.parallel.sizes import ParallelSizes, share


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at its peak, by component."""

    components: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.components.values())

    @property
    def static(self) -> int:
        return sum(size for name, size in self.components.items() if name in STATIC)

    @property
    def activations(self) -> int:
        return sum(size for name, size in self.components.items() if name in ACTIVATIONS)


STATIC = (
    "parameters", "gradients", "optimizer state",
    "expert parameters", "expert gradients", "expert optimizer state",
)  # fmt: skip
ACTIVATIONS = (
    "layer input", "norms", "attention", "scores", "feed-forward", "experts", "modulation", "residual streams",
    "dropout masks",
    "embedding", "encoder", "head", "logits", "multi-token prediction",
)  # fmt: skip


@dataclass(frozen=True)
class GraphBuffers:
    """Buffers of CUDA graphs, which have fixed addresses.

    There is one graph per layer, pass and captured microbatch. TransformerEngine's `make_graphed_callables`, as
    called by Megatron-LM's `TECudaGraphHelper`, captures all microbatches of a step, or one microbatch without a
    pipeline. With `reuse` (`_reuse_graph_input_output_buffers`, from version 2.7 on), microbatches that are not in
    flight together share inputs and outputs, and all backwards of a size share one output gradient. Without
    `reuse`, each graph has its own input, output and the gradients of both.
    """

    captured: CudaGraphs = "none"
    num_microbatches: int = 1
    reuse: bool = True

    def kept(self, layer: Layer) -> int:
        """Hidden states that a layer saves in addition per microbatch; negative if `held` counts them already."""
        if self.captured in ("none", "full") or not has_graph(self.captured, layer):
            return 0
        beside = num_extra_hidden_states(self.captured, layer)
        return beside if self.reuse else beside - 2

    def held(self, layers: Sequence[Layer]) -> int:
        """Hidden states that a rank with these layers always holds."""
        if self.captured in ("none", "full"):
            return 0
        number = sum(has_graph(self.captured, layer) for layer in layers)
        return min(number, 1) if self.reuse else 4 * self.num_microbatches * number


RESERVED_PER_ALLOCATED = 1.12
"""Memory that torch's allocator reserves with FSDP2 / peak memory of tensors.

The median of the five calibration rows of TorchTitan's published peaks (`validation/data/torchtitan-memory.csv`:
Llama 3 8B and 70B on 8, 128 and 256 H100, 1.10 to 1.14). The test rows have 1.11 to 1.17 without a pipeline and
1.19 to 1.39 with one.
"""


@dataclass(frozen=True)
class MemorySettings:
    """Settings of a step that determine its memory.

    - `vocab_multiple`: the vocabulary is padded to a multiple of this times tp (Megatron-LM: 128).
    - `workspace_bytes`: library workspaces, by default 32 MiB each for cuBLAS and TransformerEngine.
    - `allocator_slack`: reserved bytes / allocated bytes.
    - `fully_shard`: torch's FSDP2 instead of Megatron-LM's distributed optimizer.
    - `narrow`: the weights of GEMMs in 8 or 4 bits; None: GEMMs are in at least 16 bits.
    - `deferred_head`: number of microbatches whose weight gradient of the output layer is deferred.
    """

    batch: Batch
    cut: ParallelSizes = field(default_factory=ParallelSizes)
    optimizer: Optimizer = field(default_factory=Optimizer)
    kernels: KernelChoice = field(default_factory=KernelChoice)
    vocab_multiple: int = 1
    workspace_bytes: int = 64 * 2**20
    allocator_slack: float = 1.0
    fully_shard: bool = False
    narrow: NarrowWeights | None = None
    deferred_head: int = 0
    graphs: GraphBuffers = field(default_factory=GraphBuffers)

    @property
    def sharding_ranks(self) -> int:
        return self.cut.replicas // self.optimizer.instances_among(self.cut.replicas)

    def recomputing(self, recompute: Recompute) -> "MemorySettings":
        same = recompute == self.batch.recompute
        return self if same else replace(self, batch=replace(self.batch, recompute=recompute))

    def __post_init__(self) -> None:
        if self.workspace_bytes < 0:
            raise ConfigError(f"workspace_bytes must be 0 or more: got {self.workspace_bytes}")
        if not self.allocator_slack >= 1:
            raise ConfigError(f"the allocator's slack must be 1 or more: got {self.allocator_slack}")


def static_memory(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> dict[str, int]:
    """Bytes that a rank always holds for these stages, by component of `STATIC`.

    FSDP2 holds float32 shards, and also whole tensors: gathered weights up to ZeRO 2, and accumulated gradients up
    to ZeRO 1, the level of TorchTitan with a pipeline.
    """
    cut, optimizer = settings.cut, settings.optimizer
    held = held_parameters(model, list(stages), cut, vocab_multiple=settings.vocab_multiple)
    stage, of_gradient = optimizer.zero_stage, optimizer.bytes_of_gradient
    state = held.matrices * optimizer.state_bytes(is_matrix=True)
    state += (held.trained - held.matrices) * optimizer.state_bytes()
    expert_state = held.trained_expert * optimizer.state_bytes(is_matrix=True)
    found: dict[str, int] = {}
    experts = cut.expert_replicas // optimizer.instances_among(cut.expert_replicas)
    for prefix, number, gemms, trained, state_bytes, replicas, whole in (
        ("", held.dense, held.gemms, held.trained, state, settings.sharding_ranks, cut.replicas),
        (
            "expert ",
            held.expert,
            held.expert_gemms,
            held.trained_expert,
            expert_state,
            experts,
            cut.expert_replicas,
        ),
    ):
        if settings.fully_shard:
            shard = share(4 * number, replicas)
            weights = shard + (0 if stage == 3 else exact_multiple(number, gathered_bytes(settings)))
            gradients = shard + number * of_gradient * (stage <= 1)
            states = share(8 * number, replicas)
        else:
            is_whole = stage < 3
            weights = share(_weight_bytes(settings, number, gemms, is_whole), 1 if is_whole else replicas)
            gradients = share(trained * of_gradient, replicas if stage >= 2 else 1)
            on_device = exact_multiple(state_bytes, 1 - optimizer.offload_fraction)
            states = share(on_device, optimizer.ranks_of_state(whole) if stage >= 1 else 1)
        found |= {
            f"{prefix}parameters": weights,
            f"{prefix}gradients": gradients,
            f"{prefix}optimizer state": states,
        }
    return found | _states_of_whole_tensors(model, stages, settings)


def _states_of_whole_tensors(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> dict[str, int]:
    optimizer, cut = settings.optimizer, settings.cut
    if not optimizer.layer_wise or optimizer.use_layer_wise_param_layout:
        return {}
    dense, expert = trained_tensors(model, stages, cut, vocab_multiple=settings.vocab_multiple)
    return {
        "optimizer state": largest_state(dense, optimizer, optimizer.ranks_of_state(cut.replicas)),
        "expert optimizer state": largest_state(expert, optimizer, optimizer.ranks_of_state(cut.expert_replicas)),
    }


def _weight_bytes(settings: MemorySettings, number: int, gemms: int, is_whole: bool = True) -> int:
    """Bytes of weights, `gemms` of them in GEMMs inside layers; not `is_whole`: in the form that ZeRO 3 divides."""
    wide, narrow = settings.optimizer.weight_bytes, settings.narrow
    if narrow is None or not narrow.is_primary:
        return number * wide
    each = narrow.bytes_of_copies if is_whole else narrow.sharded_bytes
    return (number - gemms) * wide + exact_multiple(gemms, each)


def gathered_bytes(settings: MemorySettings) -> float:
    """Bytes per GEMM weight in an all-gather of parameters.

    TorchTitan casts a weight to the operand dtype before dp ranks gather it, but not if only cp ranks share it
    (float8.py at 9dec370: `dp_shard_enabled`).
    """
    narrow, optimizer = settings.narrow, settings.optimizer
    if narrow is None or not narrow.is_primary or (settings.fully_shard and settings.cut.dp == 1):
        return optimizer.weight_bytes
    return narrow.operand_bytes if settings.fully_shard else narrow.gathered_bytes(optimizer.zero_stage)


def stage_activations(model: Model, stage: Stage, settings: MemorySettings) -> dict[str, int]:
    """Saved bytes per microbatch, without the stage's head."""
    batch, cut, kernels = settings.batch, settings.cut, settings.kernels
    found: Counter[str] = Counter()
    words = Counter(stage.recomputed(batch.recompute))
    for layers, plan in stage.planned(batch.recompute):
        if plan.joined:
            words.subtract((layer, plan.recompute) for layer in layers)
            if not layers[-1].has_backward:
                continue
            found["layer input"] += _hidden_bytes(layers[0].streams * layers[0].hidden_size, settings)
    for (layer, recompute), number in (+words).items():
        kept = kept_of_layer(layer, settings.recomputing(recompute))
        found.update({name: number * size for name, size in kept.items()})
    if found["residual streams"] and any(recomputes(word, "mhc") for _, word in words):
        # the first streams of the stage, from which the other streams are mixed again
        found["residual streams"] += _hidden_bytes(model.residual_size, settings)
    if stage.layers and not stage.embedding and (summed := stage.layers[0].summed_residuals):
        # Earlier residuals are received with the input of the first layer, which the layer counts.
        found["earlier residuals"] += (summed[0] - 1) * _hidden_bytes(model.hidden_size, settings)
    if stage.mtp:
        found.update(mtp_activations(model, len(stage.mtp), batch, cut))
    if stage.embedding and model.trains("embedding"):
        found.update(embedding_activations(model, batch, cut, kernels))
    if of_encoders := sum(encoder_activations(part, settings) for part in stage.encoder_parts(model)):
        found["encoder"] = of_encoders
    return found


def of_encoder(encoder: Encoder, settings: MemorySettings) -> MemorySettings | None:
    """Return the settings of an encoder, which runs in 16 bits; None if it encodes nothing."""
    if not encoder.images:
        return None
    batch, is_full = settings.batch, encoder.is_divided and settings.batch.recompute == "full"
    return replace(
        settings,
        batch=Batch(
            batch.micro_batch * encoder.images, encoder.rows, batch.element_bytes, "full" if is_full else "none"
        ),
        cut=encoder.cut(settings.cut),
        kernels=replace(settings.kernels, input_bytes=None, dropout=False),
        graphs=GraphBuffers(),
    )


def encoder_activations(part: EncoderPart, settings: MemorySettings) -> int:
    encoder, own = part.encoder, of_encoder(part.encoder, settings)
    if own is None:
        return 0
    number, e = settings.batch.micro_batch * encoder.tokens, own.batch.element_bytes
    layers = sum(times * _kept(layer, own) for layer, times in Counter(part.layers).items())
    columns = sum(encoder.merge * one.rows * one.inputs for one in part.embedding if encoder.trains_layers)
    projector = part.own_projector(settings.cut)
    columns += sum(one.rows * one.inputs for one in projector if encoder.trains_projector)
    if encoder.trains_layers or encoder.trains_projector:
        columns += sum(one.rows * one.outputs for one in projector[:-1])
    return layers + round(number * columns * e)


def kept_of_layer(layer: Layer, settings: MemorySettings) -> dict[str, int]:
    found = layer_activations(layer, settings.batch, settings.cut, settings.kernels)
    beside = settings.graphs.kept(layer) * _hidden_bytes(layer.streams * layer.hidden_size, settings)
    return found | {"graph buffers": beside} if beside else found


def _hidden_bytes(hidden_size: int, settings: MemorySettings) -> int:
    batch, cut = settings.batch, settings.cut
    return share(batch.tokens(cut) * hidden_size, cut.norm_divisor) * batch.element_bytes


def rank_memory(
    model: Model, stages: Sequence[Stage], settings: MemorySettings, *, in_flight: Sequence[float]
) -> RankMemory:
    """Peak of a rank that holds these stages.

    `in_flight`: microbatches per stage whose forward is done and whose backward is not, including the one whose
    backward starts; fractions are for averages. The head saves its part of one microbatch, because its backward
    follows its forward. Raises `ConfigError` for a model that cannot be divided.
    """
    if len(in_flight) != len(stages):
        raise ConfigError(f"in_flight has {len(in_flight)} entries, but there are {len(stages)} stages")
    if any(not number >= 0 for number in in_flight):
        raise ConfigError(f"microbatches in flight must be 0 or more: got {min(in_flight)}")
    require_division(model, settings.cut)
    found = Counter(_held_memory(model, stages, settings))
    for stage, number in zip(stages, in_flight, strict=True):
        kept = stage_activations(model, stage, settings)
        found.update({name: exact_multiple(size, number) for name, size in kept.items()})
    found.update(max(_moments(model, stages, settings), key=lambda moment: sum(moment.values())))
    if any(stage.head for stage in stages) and model.trains("head"):
        found["deferred gradients of the head"] = settings.deferred_head * _held_for_head(model, settings)
    found.update(_buckets(model, stages, settings))
    found["float32 gradients"] = _copies_beside_graphs(model, stages, settings)
    return _with_slack(found, settings)


def _copies_beside_graphs(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> int:
    """Bytes of gradient copies that do not fit into the place of tensors outside CUDA graphs.

    Eager tensors cannot use the private pool of graphs, which holds the tensors of the captured passes
    (TransformerEngine at d0067d0d, graph.py: `_make_graphed_callables`; Megatron-LM at d98e8a64,
    core/full_cuda_graph.py: `get_graph_pool`). Beside graphs of whole layers, copies take the place of transient
    bytes. Beside graphs of some modules, they are assumed to take the place of the other activations.
    """
    copies = _gradient_copies(model, stages, settings)
    if settings.graphs.captured == "full":
        return copies
    if settings.graphs.captured != "layer" or not copies:
        return 0
    eager = transient_peak_bytes(model, stages, settings) + sum(_buckets(model, stages, settings).values())
    return max(0, copies - eager)


def update_memory(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> RankMemory:
    """Memory of a rank during the update, without activations and with float32 copies of 16-bit gradients."""
    found = Counter(_held_memory(model, stages, settings))
    found["float32 gradients"] = _gradient_copies(model, stages, settings)
    return _with_slack(found, settings)


def _held_memory(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> dict[str, int]:
    """Bytes that a rank holds in all passes and during the update."""
    return {
        **static_memory(model, stages, settings),
        **_placeholders(stages, settings),
        **_weight_copies(model, stages, settings),
        "graph buffers": settings.graphs.held(layers_of(stages)) * _hidden_bytes(model.residual_size, settings),
        "library workspaces": settings.workspace_bytes,
    }


def _gradient_copies(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> int:
    cut, optimizer = settings.cut, settings.optimizer
    if settings.fully_shard or not optimizer.gradient_copy_bytes:
        return 0
    held = held_parameters(model, list(stages), cut, vocab_multiple=settings.vocab_multiple)
    replicas = (held.trained, cut.replicas), (held.trained_expert, cut.expert_replicas)
    of_ranks = [(number, optimizer.ranks_of_state(ranks)) for number, ranks in replicas]
    each = optimizer.gradient_copy_bytes * (1 - optimizer.offload_fraction)
    return sum(
        share(exact_multiple(number, each), ranks if optimizer.zero_stage else 1) for number, ranks in of_ranks
    )


def _with_slack(found: Counter[str], settings: MemorySettings) -> RankMemory:
    used = sum(found.values())
    found["allocator slack"] = exact_multiple(used, settings.allocator_slack) - used
    return RankMemory({name: size for name, size in found.items() if size})


def bytes_at_rest(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> tuple[int, int]:
    """Return the bytes of a rank without microbatches in flight, and by how many the update exceeds them.

    The first include the transient bytes of a backward pass, which the update does not have.
    """
    idle = rank_memory(model, stages, settings, in_flight=[0] * len(stages)).total
    return idle, max(0, update_memory(model, stages, settings).total - idle)


def transient_peak_bytes(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> int:
    """Bytes besides static memory and saved activations at the peak of a rank."""
    return max(sum(one.values()) for one in _moments(model, stages, settings))


def _moments(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> list[dict[str, int]]:
    batch, cut = settings.batch, settings.cut
    hidden = _hidden_bytes(model.residual_size, settings)
    gathered = 2 * batch.tokens(cut) * model.hidden_size * batch.element_bytes if cut.norm_divisor > 1 else 0
    moments = [
        {"gradient of a layer": num_bytes, "gradient between stages": hidden}
        for num_bytes in _backwards(stages, settings) | _encoder_backwards(model, stages, settings)
    ]
    if mixed := max((_mixed_again(stage, settings) for stage in stages), default=0):
        moments = [one | {"residual streams again": mixed} for one in moments]
    if any(stage.head for stage in stages):
        around = {"gradient between stages": hidden, "gathered sequence": gathered}
        moments += [one | around for one in _moments_of_head(model, settings)]
    return moments or [{}]


def _mixed_again(stage: Stage, settings: MemorySettings) -> int:
    """Bytes of recomputed residual streams of a stage before its backward, for one microbatch."""
    words = [
        (layer, plan.recompute) for layers, plan in stage.planned(settings.batch.recompute) for layer in layers
    ]
    words += [(layer, of_layer(settings.batch.recompute)) for layer in stage.mtp]
    mixing = [layer for layer, word in words if recomputes(word, "mhc")]
    plain, again = (sum(_kept(layer, settings.recomputing(word)) for layer in mixing) for word in ("none", "mhc"))
    return plain - again


def _kept(layer: Layer, settings: MemorySettings) -> int:
    return sum(layer_activations(layer, settings.batch, settings.cut, settings.kernels).values())


def _held_for_head(model: Model, settings: MemorySettings) -> int:
    logits = settings.batch.tokens(settings.cut) * _vocabulary_on_a_rank(model, settings)
    return logits * settings.batch.element_bytes + _hidden_bytes(model.hidden_size, settings)


def _vocabulary_on_a_rank(model: Model, settings: MemorySettings) -> int:
    tp = settings.cut.tp
    return padded_vocabulary(model.vocab_size, tp=tp, multiple=settings.vocab_multiple) // tp


def _moments_of_head(model: Model, settings: MemorySettings) -> list[dict[str, int]]:
    """Bytes during the backward of the loss (`CrossEntropy`), and of the head.

    torch's own loss, used with FSDP2, adds two float32 tensors, the gradients of the log-softmax and of the logits,
    and with tensor parallelism an exponential (torch, distributed/tensor/parallel/loss.py:
    `_nll_loss_and_log_softmax_backward`). A chunked loss has all this for a part of the tokens, and sums the
    gradients of the hidden states in float32.
    """
    batch, cut, kernels = settings.batch, settings.cut, settings.kernels
    head = head_activations(model, batch, cut, kernels, vocab_multiple=settings.vocab_multiple)
    vocab = _vocabulary_on_a_rank(model, settings)
    weight = vocab * model.hidden_size * settings.optimizer.weight_bytes
    has_placeholder = kernels.gradient_placeholders and model.trains("head")
    placeholder = {"gradient placeholder of the head": weight if has_placeholder else 0}
    if kernels.cross_entropy == "fused":
        return [head | placeholder]
    logits, copies = batch.tokens(cut) * vocab, 2 if cut.tp == 1 else 3
    of_loss = logits * (batch.element_bytes + 4 * (kernels.cross_entropy == "compiled"))
    if settings.fully_shard or kernels.cross_entropy == "chunked":
        of_loss = 4 * copies * logits
    if kernels.cross_entropy == "chunked":
        part = (logits * max(batch.element_bytes, 4) + of_loss) // CHUNKS
        sums = 4 * batch.tokens(cut) * model.hidden_size
        return [head | {"gradient of the logits": part, "gradient of the hidden states": sums} | placeholder]
    if settings.fully_shard and kernels.cross_entropy == "compiled":
        narrow = logits * batch.element_bytes
        return [head | {"logits": narrow, "gradient of the logits": narrow}]
    of_logits = {"gradient of the logits": logits * batch.element_bytes}
    return [head | {"gradient of the logits": of_loss}, {"head": head["head"]} | of_logits | placeholder]


def _backwards(stages: Sequence[Stage], settings: MemorySettings) -> set[int]:
    found, plain = set(), settings.recomputing("none")
    for stage in stages:
        for layers, plan in stage.planned(settings.batch.recompute):
            if plan.joined:
                inside = sum(_kept(layer, plain) for layer in layers)
                # the checkpoint already holds its input
                inside -= _hidden_bytes(layers[0].streams * layers[0].hidden_size, settings)
                found.add(max(_layer_backward(layer, plain) for layer in set(layers)) + inside)
            else:
                found |= {_layer_backward(layer, settings.recomputing(plan.recompute)) for layer in set(layers)}
        of_mtp = settings.recomputing(of_layer(settings.batch.recompute))
        found |= {_layer_backward(layer, of_mtp) for layer in set(stage.mtp)}
    return found


def _encoder_backwards(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> set[int]:
    parts = [part for stage in stages for part in stage.encoder_parts(model)]
    found = [(layer, of_encoder(part.encoder, settings)) for part in parts for layer in set(part.layers)]
    return {_layer_backward(layer, own) for layer, own in found if own is not None}


def _layer_backward(layer: Layer, settings: MemorySettings) -> int:
    """Bytes beyond those saved by the forward, including a recurrent mixer's states."""
    if not layer.has_backward:
        return 0
    batch, cut, kernels = settings.batch, settings.cut, settings.kernels
    again = 0
    if batch.recompute == BY_OPERATORS:
        whole = layer_activations(layer, replace(batch, recompute="none"), cut, kernels)
        kept = layer_activations(layer, batch, cut, kernels)
        again = sum(whole.values()) - sum(size for name, size in kept.items() if name in whole)
        batch = replace(batch, recompute="none")
    found = layer_backward(layer, batch, cut, kernels)
    return max(found, batch.tokens(cut) * layer.attention.transient_bytes // cut.tp) + again


def _placeholders(stages: Sequence[Stage], settings: MemorySettings) -> dict[str, int]:
    """TransformerEngine's placeholders of weight gradients: one per shape, counted as one per size."""
    if not settings.kernels.gradient_placeholders:
        return {}
    layers = set(layers_of(stages))
    sizes = {
        one.size
        for layer in layers
        for one in layer.linears(settings.cut)
        if one.is_orthogonalised and one.trainable
    }
    return {"gradient placeholders": sum(sizes) * settings.optimizer.weight_bytes}


def _weight_copies(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> dict[str, int]:
    """TransformerEngine's copies of 16-bit weights for GEMMs in 8 or 4 bits. FSDP2's weights have no copies."""
    narrow = settings.narrow
    if narrow is None or narrow.is_primary or settings.fully_shard:
        return {}
    held = held_parameters(model, list(stages), settings.cut)
    copies = exact_multiple(held.gemms + held.expert_gemms, narrow.bytes_of_copies)
    return {"weights in fewer bits": copies}


def _buckets(model: Model, stages: Sequence[Stage], settings: MemorySettings) -> dict[str, int]:
    """Communication buffers besides the parameters and gradients themselves.

    ZeRO 2 and 3 reduce one layer's whole gradient at a time. ZeRO 3 gathers the weights of the current and the next
    layer; FSDP2 also holds embedding and head, which it does not free between forward and backward.
    """
    optimizer = settings.optimizer
    if optimizer.zero_stage < 2:
        return {}
    sizes, trained = [0], [0]
    for stage in stages:
        for layer in set(stage.layers):
            held = held_parameters(model, [Stage((layer,))], settings.cut)
            count, gemms = held.dense + held.expert, held.gemms + held.expert_gemms
            if settings.fully_shard:
                sizes.append(exact_multiple(count, gathered_bytes(settings)))
            else:
                sizes.append(_weight_bytes(settings, count, gemms))
            trained.append(held.trained + held.trained_expert)
        for part in stage.encoder_parts(model):
            of_encoder_layer, frozen = EncoderPart(part.encoder, part.first, part.first + 1).held(settings.cut)
            sizes.append(of_encoder_layer * optimizer.weight_bytes)
            trained.append(of_encoder_layer - frozen)
    found = {"gradient buckets": max(trained) * optimizer.bytes_of_gradient}
    if optimizer.zero_stage == 3:
        found["gathered parameters"] = 2 * max(sizes)
    if settings.fully_shard and optimizer.zero_stage == 3:
        around = [replace(stage, layers=(), mtp=()) for stage in stages]
        held = held_parameters(model, around, settings.cut, vocab_multiple=settings.vocab_multiple)
        found["gathered parameters"] += held.dense * optimizer.weight_bytes
    return found
