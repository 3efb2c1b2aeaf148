"""Memory that torch's allocator reserves for training with `fully_shard` (FSDP2).

All allocations of a rank are replayed on a simulated allocator. The replay follows torch 2.6,
distributed/fsdp/_fully_shard and distributed/pipelining.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ppsim.base.errors import ConfigError
from ppsim.model.activations import unused_output_bytes
from ppsim.model.allocator import Allocator, AllocatorBlock
from ppsim.model.architecture import Model
from ppsim.model.compiled_trace import CompiledTrace
from ppsim.model.layer_trace import Kept, LayerTrace, why_no_trace
from ppsim.model.losses import CHUNKS
from ppsim.model.parameters import padded_vocabulary
from ppsim.model.pipeline_stages import Stage, layers_of
from ppsim.model.rank_memory import MemorySettings, gathered_bytes
from ppsim.model.recompute import BY_OPERATORS, whole_layers

NUM_STEPS = 2
"""Simulated steps: Adam's moments are allocated at the end of the first, in memory that activations used before."""


@dataclass(frozen=True)
class MicrobatchPass:
    """A forward or backward of a microbatch; `stage` is an index among the rank's stages."""

    is_forward: bool
    stage: int
    microbatch: int


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of a run that change its allocations.

    `is_async`: collectives inside GEMMs (async tensor parallelism). `num_rounds`: accumulation rounds per step.
    """

    is_pipelined: bool = False
    is_async: bool = False
    is_expandable: bool = True
    num_rounds: int = 1


@dataclass(frozen=True)
class ReplayedMemory:
    """Peak bytes of tensors, and bytes that the process has reserved at the end."""

    allocated: int
    reserved: int


def why_no_replay(model: Model, settings: MemorySettings) -> str | None:
    recompute = settings.batch.recompute
    is_known = recompute in (known := ("none", BY_OPERATORS, "full")) or recompute.startswith("full/")
    if not is_known:
        return f"what an allocator reserves is known for recompute {', '.join(known)}: got {recompute}"
    if model.mtp or model.patches or model.projected_size:
        return "what an allocator reserves is known for embedding, layers and head only"
    return next((reason for layer in model.kinds if (reason := why_no_trace(layer))), None)


def replay_memory(
    model: Model,
    stages: Sequence[Stage],
    settings: MemorySettings,
    passes: Sequence[MicrobatchPass],
    launch: LaunchSettings,
) -> ReplayedMemory:
    if reason := why_no_replay(model, settings):
        raise ConfigError(reason)
    rank = _Rank(model, list(stages), settings, launch)
    for _ in range(NUM_STEPS):
        rank.step(passes, launch.num_rounds)
    return ReplayedMemory(rank.memory.peak_allocated, rank.memory.reserved)


@dataclass
class _Flight:
    """Saved tensors of a microbatch in flight."""

    inputs: list[AllocatorBlock | None] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    of_loss: list[AllocatorBlock | None] = field(default_factory=list)


_FLOAT = 4


class _Rank:
    """Memory of one rank over steps. A unit is a layer of a stage, or a stage's embedding and head (layer -1).

    Weights, gradients and Adam's moments are float32 shards. Without a pipeline, weights are gathered layer by
    layer; embedding and head stay gathered until the end of the backward. With a pipeline, the weights of a stage
    stay gathered until the last backward of the stage. Until then its gradients are accumulated whole, in float32,
    and then all are reduced (`backward_maybe_with_nosync`).
    """

    def __init__(self, model: Model, stages: list[Stage], settings: MemorySettings, launch: LaunchSettings) -> None:
        self.memory = Allocator(is_expandable=launch.is_expandable)
        self.stages, self.is_pipelined = stages, launch.is_pipelined
        self.settings, batch, cut, optimizer = settings, settings.batch, settings.cut, settings.optimizer
        operand = settings.kernels.input_bytes or batch.element_bytes
        is_compiled = whole_layers(batch.recompute) and not settings.kernels.eager
        self.traces = {
            layer: (CompiledTrace if is_compiled else LayerTrace)(
                layer,
                batch,
                cut,
                operand,
                self.memory,
                is_async=launch.is_async,
                held=unused_output_bytes(layer, batch, cut, settings.kernels),
            )
            for layer in dict.fromkeys(layers_of(stages))
        }
        self.trace = self.traces[stages[0].layers[0]] if stages[0].layers else next(iter(self.traces.values()))
        vocab = padded_vocabulary(model.vocab_size, tp=cut.tp, multiple=settings.vocab_multiple) // cut.tp
        self.table, self.logits = vocab * model.hidden_size, self.trace.tokens * vocab
        self.exact_own = self.trace.own * _FLOAT // batch.element_bytes
        self.every, self.loss = whole_layers(batch.recompute), settings.kernels.cross_entropy
        self.resharded = optimizer.zero_stage == 3 and not launch.is_pipelined
        for size in self._all_sizes():
            self._shard(size)
        self.memory.make(settings.workspace_bytes)
        self.moments: list[AllocatorBlock | None] = []
        self.gathered: dict[tuple[int, int], list[AllocatorBlock | None]] = {}
        self.sums: dict[tuple[int, int], list[AllocatorBlock | None]] = {}
        self.flights: dict[tuple[int, int], _Flight] = {}
        self.received: list[AllocatorBlock | None] = []
        self.outputs: list[AllocatorBlock | None] = []
        self.gradients: dict[tuple[int, int], AllocatorBlock | None] = {}
        self.copied_in: AllocatorBlock | None = None
        self.reduced: dict[int, AllocatorBlock | None] = {}

    def _units(self) -> list[tuple[int, int]]:
        return [(at, index) for at, stage in enumerate(self.stages) for index in range(-1, len(stage.layers))]

    def _recomputes(self, stage: int, index: int) -> bool:
        """Every Nth layer of the rank is recomputed whole (`ptd_checkpoint_wrapper`)."""
        number = sum(len(before.layers) for before in self.stages[:stage]) + index + 1
        return self.every > 0 and number % self.every == 0

    def _sizes(self, unit: tuple[int, int]) -> tuple[int, ...]:
        stage = self.stages[unit[0]]
        if unit[1] < 0:
            return (self.table,) * (stage.embedding + stage.head)
        return self.traces[stage.layers[unit[1]]].weights

    def _all_sizes(self) -> list[int]:
        return [size for unit in self._units() for size in self._sizes(unit)]

    def _shard(self, size: int) -> AllocatorBlock | None:
        return self.memory.make(_FLOAT * size / self.settings.sharding_ranks)

    def _gather(self, unit: tuple[int, int]) -> None:
        """Gather into a buffer on a separate stream, which lives until the next gather, and copy out of it."""
        if unit in self.gathered:
            return
        element = self.settings.optimizer.weight_bytes if unit[1] < 0 else gathered_bytes(self.settings)
        size = element * sum(self._sizes(unit))
        own, buffer = (
            self.memory.make(size / self.settings.sharding_ranks, "gathers"),
            self.memory.make(size, "gathers"),
        )
        self.memory.drop(own)
        self.gathered[unit] = [self.memory.make(element * size) for size in self._sizes(unit)]
        self.memory.drop(self.copied_in)
        self.copied_in = buffer

    def _free(self, unit: tuple[int, int]) -> None:
        self.memory.drop(*self.gathered.pop(unit, []))

    def _reduce(self, unit: tuple[int, int], gradients: Sequence[AllocatorBlock | None]) -> None:
        """Copy gradients into one float32 tensor, and reduce it into shards on another stream.

        The tensor is held until the next layer is reduced (`foreach_reduce`). With a pipeline, the tensor of the
        last layer is held until the next step, because no callback drops it.
        """
        size = sum(self._sizes(unit)) * self.settings.optimizer.bytes_of_gradient
        self.memory.drop(self.reduced.get(unit[0]))
        self.reduced[unit[0]] = self.memory.make(size)
        self.memory.drop(*gradients)
        part = self.memory.make(size / self.settings.sharding_ranks, "reductions")
        if unit in self.gradients:
            self.memory.drop(part)  # added to the gradients of earlier microbatches
        else:
            self.gradients[unit] = part

    def _accumulate(
        self, unit: tuple[int, int], sizes: Sequence[int], gradients: Sequence[AllocatorBlock | None]
    ) -> None:
        if unit not in self.sums:
            element = self.settings.optimizer.bytes_of_gradient
            self.sums[unit] = []
            for size, gradient in zip(sizes, gradients, strict=True):
                self.sums[unit].append(self.memory.make(element * size))
                self.memory.drop(gradient)
        else:
            self.memory.drop(*gradients)

    def step(self, passes: Sequence[MicrobatchPass], num_rounds: int) -> None:
        of_round = len(passes) // num_rounds
        for number in range(num_rounds):
            self._round(passes[number * of_round : (number + 1) * of_round])
        self._update()

    def _round(self, passes: Sequence[MicrobatchPass]) -> None:
        """Run the passes of one `schedule.step()`.

        With a pipeline, outputs and input gradients are held until the next call (`forward_one_chunk`,
        `clear_runtime_states`), and the logits of all microbatches, or with a chunked loss the final hidden states,
        are joined in one tensor (`_merge_outputs`).
        """
        if self.is_pipelined and not self.received:
            self._infer_shapes()
            self._make_buffers(len({one.microbatch for one in passes}))
        self.memory.drop(*self.outputs)
        self.outputs = []
        left = Counter(one.stage for one in passes if not one.is_forward)
        for one in passes:
            if one.is_forward:
                self._forward(one)
            else:
                left[one.stage] -= 1
                self._backward(one, is_last=not left[one.stage])
        if self.is_pipelined and any(stage.head for stage in self.stages):
            microbatches = len({one.microbatch for one in passes})
            logits = self.logits * self.trace.batch.element_bytes
            output = self.trace.whole if self.loss == "chunked" else logits
            self.memory.drop(self.memory.make(output * microbatches))
        self.memory.drop(self.copied_in)
        self.copied_in = None

    def _infer_shapes(self) -> None:
        """Each stage first runs an extra forward (stage.py: `_shape_inference`)."""
        for at, stage in enumerate(self.stages):
            self._gather((at, -1))
            whole = self.memory.make(self.trace.whole) if stage.embedding else None
            hidden = self.trace.scattered(whole) if stage.embedding else self.memory.make(self.trace.own)
            for index, layer in enumerate(stage.layers):
                self._gather((at, index))
                before, (hidden, _) = hidden, self.traces[layer].forward(keeps=False)
                self.memory.drop(before)
            self.memory.drop(*self._into_head(hidden) if stage.head else [hidden])

    def _into_head(self, hidden: AllocatorBlock | None) -> list[AllocatorBlock | None]:
        """Return the tensors that the norm saves, its output of all tokens, and logits unless they are chunked."""
        normed, kept = self._forward_of_norm(hidden)
        if self.trace.cut.tp > 1:
            own, normed = normed, self.trace.gathered(self.trace.whole)
            self.memory.drop(own)
        element = self.trace.batch.element_bytes
        return [*kept, normed, *([] if self.loss == "chunked" else [self.memory.make(self.logits * element)])]

    def _make_buffers(self, num_microbatches: int) -> None:
        directions = sum((not stage.embedding) + (not stage.head) for stage in self.stages)
        self.received = [self.memory.make(self.trace.own) for _ in range(directions * num_microbatches)]

    def _update(self) -> None:
        """Adam allocates moments in the first step, and roots of second moments in each (`_foreach_sqrt`)."""
        sizes = self._all_sizes()
        if not self.moments:
            self.moments = [self._shard(size) for size in sizes for _ in range(2)]
        self.memory.drop(*[self._shard(size) for size in sizes])
        self.memory.drop(*self.gradients.values())
        self.gradients = {}

    def _forward(self, one: MicrobatchPass) -> None:
        stage, flight = self.stages[one.stage], _Flight()
        self.flights[one.stage, one.microbatch] = flight
        self._gather((one.stage, -1))
        # later stages read a receive buffer
        hidden = self.trace.scattered(self.memory.make(self.trace.whole)) if stage.embedding else None
        for index, layer in enumerate(stage.layers):
            self._gather((one.stage, index))
            flight.inputs.append(hidden)
            hidden, kept = self.traces[layer].forward(keeps=not self._recomputes(one.stage, index))
            flight.kept.append(kept)
            if self.resharded and index < len(stage.layers) - 1:
                self._free((one.stage, index))
        if stage.head:
            self._forward_of_loss(flight, hidden)
        else:
            self.outputs.append(hidden)

    def _forward_of_loss(self, flight: _Flight, hidden: AllocatorBlock | None) -> None:
        """A loss that is fused or compiled keeps the logits, another one its log-softmax."""
        if self.loss == "chunked":
            flight.of_loss = self._chunks_of_loss(hidden)
            return
        *flight.of_loss, logits = self._into_head(hidden)
        if self.loss in ("fused", "compiled"):
            flight.of_loss.append(logits)
            return
        flight.of_loss.append(self._softmax(self.logits))
        if self.is_pipelined:
            self.outputs.append(logits)
        else:
            self.memory.drop(logits)

    def _softmax(self, logits: int) -> AllocatorBlock | None:
        """With tensor parallelism, the log-softmax has several steps (distributed/tensor/parallel/loss.py)."""
        make, drop = self.memory.make, self.memory.drop
        exact, *shifted = [make(logits * _FLOAT) for _ in range(1 + (self.trace.cut.tp > 1))]
        drop(*[make(logits * _FLOAT) for _ in shifted])
        softmax = make(logits * _FLOAT)
        drop(*shifted, exact)
        return softmax

    def _gradient_of_logits(self, logits: int, softmax: AllocatorBlock | None) -> AllocatorBlock | None:
        """With tensor parallelism also an exponential, and its product with the gradient of the loss."""
        make, drop = self.memory.make, self.memory.drop
        of_loss, *steps = [make(logits * _FLOAT) for _ in range(3 if self.trace.cut.tp > 1 else 1)]
        drop(*steps[:1])
        exact = make(logits * _FLOAT)
        drop(*steps[1:], of_loss, softmax)
        of_logits = make(logits * self.trace.batch.element_bytes)
        drop(exact)
        return of_logits

    def _chunks_of_loss(self, hidden: AllocatorBlock | None) -> list[AllocatorBlock | None]:
        """Run head and loss of one part of the tokens after another, forward and backward (`ChunkedLossWrapper`).

        Return the tensors that the norm saves, the gradient of the head's weight, and the gradient of its input,
        which is summed in float32 (`GradAccumulator`).
        """
        make, drop, element = self.memory.make, self.memory.drop, self.trace.batch.element_bytes
        *kept, normed = self._into_head(hidden)
        parts, part = make(self.trace.whole), self.logits // CHUNKS
        sums = make(self.trace.whole * _FLOAT // element)
        of_weight: AllocatorBlock | None = None
        for _ in range(CHUNKS):
            logits = make(part * element)
            softmax = self._softmax(part)
            drop(logits)
            of_logits = self._gradient_of_logits(part, softmax)
            of_part, of_head = make(self.trace.whole // CHUNKS), make(self.table * element)
            drop(of_logits, of_part, of_weight)
            of_weight = of_head
        gradient = make(self.trace.whole)
        drop(parts, sums, normed)
        return [*kept, of_weight, gradient]

    def _forward_of_norm(
        self, hidden: AllocatorBlock | None
    ) -> tuple[AllocatorBlock | None, list[AllocatorBlock | None]]:
        """Run the eager final norm (norms.py: `RMSNorm`), in float32; return its output and saved tensors."""
        make, drop = self.memory.make, self.memory.drop
        exact = make(self.exact_own)
        drop(hidden)
        drop(make(self.exact_own))
        product = make(self.exact_own)
        scaled = make(self.trace.own)
        drop(product)
        return make(self.trace.own), [exact, scaled]

    def _backward_of_norm(
        self, gradient: AllocatorBlock | None, kept: list[AllocatorBlock | None]
    ) -> AllocatorBlock | None:
        make, drop = self.memory.make, self.memory.drop
        exact, scaled = kept
        of_scaled, of_weight = make(self.trace.own), make(self.trace.own)
        drop(gradient, of_weight, scaled)
        of_product = make(self.exact_own)
        drop(of_scaled)
        of_x, of_root = make(self.exact_own), make(self.exact_own)
        drop(of_product, of_root)
        of_square, doubled = make(self.exact_own), make(self.exact_own)
        drop(exact, doubled)
        total = make(self.exact_own)
        drop(of_square, of_x)
        found = make(self.trace.own)
        drop(total)
        return found

    def _backward_of_loss(self, flight: _Flight) -> tuple[AllocatorBlock | None, list[AllocatorBlock | None]]:
        make, drop, element = self.memory.make, self.memory.drop, self.trace.batch.element_bytes
        *of_norm, normed, softmax = flight.of_loss
        if self.loss == "chunked":
            return self._backward_of_norm(self.trace.scattered(softmax), of_norm), [normed]
        if self.loss == "fused":
            of_logits = softmax
        elif self.loss == "compiled":
            of_logits = make(self.logits * element)
            drop(softmax)
        else:
            of_logits = self._gradient_of_logits(self.logits, softmax)
        whole, of_head = make(self.trace.whole), make(self.table * element)
        drop(of_logits, normed)
        return self._backward_of_norm(self.trace.scattered(whole), of_norm), [of_head]

    def _backward(self, one: MicrobatchPass, *, is_last: bool) -> None:
        stage, flight = self.stages[one.stage], self.flights.pop((one.stage, one.microbatch))
        around: list[AllocatorBlock | None] = []
        if stage.head:
            gradient, around = self._backward_of_loss(flight)
        else:
            gradient = None  # a receive buffer
        for index in reversed(range(len(stage.layers))):
            unit, trace = (one.stage, index), self.traces[stage.layers[index]]
            self._gather(unit)
            if self._recomputes(one.stage, index):
                gradient, of_weights = trace.backward_again(gradient)
            else:
                gradient, of_weights = trace.backward(gradient, flight.kept[index])
            self.memory.drop(flight.inputs[index])
            if self.is_pipelined:
                self._accumulate(unit, trace.weights[::-1], of_weights)
            else:
                self._free(unit)
                self._reduce(unit, of_weights)
        if self.is_pipelined and not stage.embedding:
            self.outputs.append(gradient)
        else:
            self.memory.drop(gradient)
        self._end_backward(one, around, is_last=is_last)

    def _end_backward(self, one: MicrobatchPass, around: list[AllocatorBlock | None], *, is_last: bool) -> None:
        unit, element = (one.stage, -1), self.trace.batch.element_bytes
        if self.stages[one.stage].embedding:
            gathered = self.trace.gathered(self.trace.whole)
            around.append(self.memory.make(self.table * element))
            self.memory.drop(gathered)
        if not self.is_pipelined:
            self._free(unit)
            self._reduce(unit, around)
            self.memory.drop(self.reduced.pop(one.stage))
            return
        self._accumulate(unit, self._sizes(unit), around)
        if not is_last:
            return
        for reduced in [unit for unit in self._units() if unit[0] == one.stage]:
            self._free(reduced)
            self._reduce(reduced, self.sums.pop(reduced))
