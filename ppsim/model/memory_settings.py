"""Settings of a step that determine its memory."""

from dataclasses import dataclass, field
from functools import cached_property

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model
from ppsim.model.cuda_graph_scope import has_graph, num_extra_hidden_states
from ppsim.model.execution import Execution
from ppsim.model.narrow_weights import NarrowWeights
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import RankParameters, exact_multiple, padded_vocabulary
from ppsim.parallel.sizes import ParallelSizes, require_positive, share

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
    - `graphed_microbatches`: microbatches that CUDA graphs capture; `cuda_graph_reuse`: graphs share buffers.
    """

    micro_batch: int
    sequence_length: int
    cut: ParallelSizes = field(default_factory=ParallelSizes)
    optimizer: Optimizer = field(default_factory=Optimizer)
    execution: Execution = field(default_factory=Execution)
    vocab_multiple: int = 1
    workspace_bytes: int = 64 * 2**20
    allocator_slack: float = 1.0
    fully_shard: bool = False
    narrow: NarrowWeights | None = None
    deferred_head: int = 0
    graphed_microbatches: int = 1
    cuda_graph_reuse: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on a context-parallel rank."""
        if self.sequence_length % self.cut.cp:
            raise ConfigError(f"cp must divide the sequence length: got {self.cut.cp} with {self.sequence_length}")
        return self.micro_batch * self.sequence_length // self.cut.cp

    @cached_property
    def layer_key(self) -> tuple[object, ...]:
        """The settings that determine the tensors of a layer and their sizes, for caches."""
        return self.micro_batch, self.sequence_length, self.cut, self.execution.saved_tensors

    def hidden_bytes(self, hidden_size: int) -> int:
        """Bytes of a microbatch's hidden states on a rank."""
        return share(self.tokens * hidden_size, self.cut.norm_divisor) * self.execution.element_bytes

    def vocabulary_of(self, model: Model) -> int:
        """Rows of the embedding table on a rank, padded."""
        return padded_vocabulary(model.vocab_size, tp=self.cut.tp, multiple=self.vocab_multiple) // self.cut.tp

    def weight_bytes(self, number: int, gemms: int, *, is_whole: bool = True) -> int:
        """Return the bytes of weights, of which `gemms` are in GEMMs inside layers.

        Not `is_whole`: in the form that ZeRO 3 divides.
        """
        wide, narrow = self.optimizer.weight_bytes, self.narrow
        if narrow is None or not narrow.is_primary:
            return number * wide
        each = narrow.bytes_of_copies if is_whole else narrow.sharded_bytes
        return (number - gemms) * wide + exact_multiple(gemms, each)

    def gathered_layer_bytes(self, held: RankParameters) -> int:
        """Bytes of a layer's gathered weights."""
        count, gemms = held.dense + held.expert, held.gemms + held.expert_gemms
        return exact_multiple(count, self.gathered_bytes) if self.fully_shard else self.weight_bytes(count, gemms)

    @property
    def gathered_bytes(self) -> float:
        """Bytes per GEMM weight in an all-gather of parameters.

        TorchTitan casts a weight to the operand dtype before dp ranks gather it, but not if only cp ranks share it
        (float8.py at 9dec370: `dp_shard_enabled`).
        """
        narrow, optimizer = self.narrow, self.optimizer
        if narrow is None or not narrow.is_primary or (self.fully_shard and self.cut.dp == 1):
            return optimizer.weight_bytes
        return narrow.operand_bytes if self.fully_shard else narrow.gathered_bytes(optimizer.zero_stage)

    def captures(self, layer: Layer) -> bool:
        """Return whether the layer has CUDA graphs of its own."""
        captured = self.execution.cuda_graphs
        return captured not in ("none", "full") and has_graph(captured, layer)

    def states_kept_by_graphs(self, layer: Layer) -> int:
        """Hidden states that a layer saves in addition per microbatch; negative if `graph_buffers` counts them."""
        if not self.captures(layer):
            return 0
        extra = num_extra_hidden_states(self.execution.cuda_graphs, layer)
        return extra if self.cuda_graph_reuse else extra - 2

    def graph_buffers(self, num_captured: int) -> int:
        """Hidden states that a rank with this number of captured layers always holds, at fixed addresses.

        There is one graph per layer, pass and captured microbatch. TransformerEngine's `make_graphed_callables`, as
        called by Megatron-LM's `TECudaGraphHelper`, captures all microbatches of a step, or one microbatch without
        a pipeline. With reuse (`_reuse_graph_input_output_buffers`, from version 2.7 on), microbatches that are not
        in flight together share inputs and outputs, and all backwards of a size share one output gradient. Without
        it, each graph has its own input, output and the gradients of both.
        """
        return min(num_captured, 1) if self.cuda_graph_reuse else 4 * self.graphed_microbatches * num_captured

    def __post_init__(self) -> None:
        require_positive(self, "micro_batch", "sequence_length")
        if self.workspace_bytes < 0:
            raise ConfigError(f"workspace_bytes must be 0 or more: got {self.workspace_bytes}")
        if not self.allocator_slack >= 1:
            raise ConfigError(f"the allocator's slack must be 1 or more: got {self.allocator_slack}")
