"""Training job: model, cluster and parallel configuration, with the costs of its layers."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from ppsim.base.display import HasRepr
from ppsim.base.errors import ConfigError
from ppsim.costs.component_costs import ComponentCosts
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.profile import Profile
from ppsim.costs.recomputable import why_not_recomputed
from ppsim.machine.cluster import Cluster
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.cuda_graph_scope import why_not_captured
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.hybrid import with_documents
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.narrow_weights import NarrowWeights, WeightCache
from ppsim.model.offloading import PAGED, OffloadRules, offload_modules_of
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import VOCAB_MULTIPLE, require_division
from ppsim.model.pipeline_stages import StagePlan
from ppsim.model.recompute import BY_OPERATORS, Recompute, require_layers, words_of_layers
from ppsim.model.shapes import why_no_context_parallel
from ppsim.parallel.layout import Layout
from ppsim.schedule.option_types import Update


@dataclass(frozen=True, kw_only=True, repr=False)
class Job(HasRepr):
    """A model, a cluster and a parallel configuration; `Plan` adds the pipeline schedule.

    - `global_batch`: sequences per step.
    - `document_length`: mean tokens of documents packed in a sequence; attention stays inside each.
    - `profile`: measured times, used if they match (`ppsim.costs.profile_costs`); collectives are the cluster's.
    - `overlap_grad_reduce`, `overlap_param_gather`: overlap data-parallel collectives with compute.
    - `bucket_size`: gradients per bucket of these collectives; None: Megatron-LM's default.
    - `rest_s`: extra host time per step.
    - `scatter_gather`: each tp rank sends its part of a P2P transfer, and the receivers all-gather it (Narayanan et
      al. 2021, arXiv 2104.04473, §4.1).
    - `offload`: fraction of each microbatch's activations that waits for the backward on the host.
    - `offload_modules`: modules whose saved tensors are offloaded, as far as `offload_rules` allow.
    - `stage_plans`: recomputation and offloading per model stage; empty: as in `execution` and `offload_modules`.
    - `cuda_graph_reuse`: graphs of microbatches that are not in flight together share buffers.
    - `lora`, `freeze`: the trained weights (`ppsim.model.fine_tuning`).
    - `image_tokens`: images and their tokens per sequence (`ppsim.model.encoder`); "": the model's default.
    - `fully_shard`: torch's FSDP2.
    - `weight_cache`: copies in 8 or 4 bits of each 16-bit weight, held between microbatches; None: "none" in
      ZeRO 3, otherwise "all".
    - `num_layers_at_start_in_bf16`, `num_layers_at_end_in_bf16`: layers whose GEMMs have 16 bits, if `dtype` has 8
      or 4.
    - `wgrad_deferral_limit`: microbatches whose weight gradient of the output layer waits for the end of the step;
      0: all, None: none.
    - `launch_s`: host seconds per launch by the schedule; None: the cluster's constant.
    - `stack`: the software whose defaults apply (`ppsim.trainers.stacks`); `stack_basis`: the reason for it if none
      was named.
    - `gpus_assumed`: the assumed number of GPUs is the smallest possible multiple of this; 0: the number is given.

    >>> import ppsim
    >>> job = ppsim.job(model="llama3-8b", gpus=16, tp=2, pp=4, micro_batch=2)
    >>> job.layout.dp, job.global_batch, job.tokens_per_step
    (2, 64, 524288)
    """

    model: Model
    model_name: str
    cluster: Cluster
    layout: Layout
    global_batch: int
    micro_batch: int = 1
    sequence_length: int | None = None
    document_length: int | None = None
    execution: Execution = field(default_factory=Execution)
    optimizer: Optimizer = field(default_factory=Optimizer)
    profile: Profile | None = None
    bucket_size: int | None = None
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    update: Update = "synchronised"
    rest_s: float = 0.0
    allocator_slack: float = 1.0
    vocab_multiple: int = VOCAB_MULTIPLE
    scatter_gather: bool = False
    offload: float = 0.0
    offload_modules: str = ""
    offload_rules: OffloadRules = field(default_factory=OffloadRules)
    stage_plans: tuple[StagePlan, ...] = ()
    cuda_graph_reuse: bool = True
    launch_s: float | None = None
    fully_shard: bool = False
    weight_cache: WeightCache | None = None
    num_layers_at_start_in_bf16: int = 0
    num_layers_at_end_in_bf16: int = 0
    lora: str = ""
    freeze: str = ""
    image_tokens: str = ""
    text_only: bool = False
    gradient_accumulation_fusion: bool = True
    wgrad_deferral_limit: int | None = None
    stack: str = "plain"
    stack_basis: str = field(default="", compare=False)
    gpus_assumed: int = field(default=0, compare=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)
    ignored_memory_options: tuple[str, ...] = field(default=(), compare=False)

    @property
    def one_line(self) -> str:
        layout, batch = self.layout, f"{self.global_batch} sequences of {self.length} tokens"
        sizes = " ".join(f"{name} {getattr(layout, name)}" for name in ("tp", "cp", "ep", "pp", "dp"))
        return f"{self.model_name} on {layout.num_devices} × {self.cluster.device.name}, {sizes}, {batch}"

    def __post_init__(self) -> None:
        if self.execution.sequence_parallel and self.layout.tp == 1:
            object.__setattr__(self, "execution", replace(self.execution, sequence_parallel=False))
        self._require_batch()
        if self.length < 1:
            raise ConfigError(f"the sequence length must be at least 1: got {self.length}")
        if reason := why_no_context_parallel(self.length, self.layout.cp):
            raise ConfigError(reason)
        if not 0 <= self.rest_s < float("inf"):
            raise ConfigError(f"--extra-step-time must be 0 or more seconds: got {self.rest_s:g}")
        if self.wgrad_deferral_limit is not None and self.wgrad_deferral_limit < 0:
            raise ConfigError(f"--wgrad-deferral-limit is 0 (all) or more: got {self.wgrad_deferral_limit}")
        if self.launch_s is not None and not 0 <= self.launch_s < float("inf"):
            raise ConfigError(f"--launch-ms must be 0 or more: got {1e3 * self.launch_s:g}")
        has_float32_weights = self.fully_shard and not self.optimizer.master_weights_in_bf16
        if has_float32_weights and self.optimizer.exp_avg_dtype != "float32":
            raise ConfigError(f"--fully-shard holds float32 moments: leave out {self.optimizer.exp_avg_dtype}")
        if self.fully_shard and self.optimizer.offload_fraction:
            raise ConfigError("--optimizer-offload-fraction is of Megatron-LM's optimizer: leave out --fully-shard")
        self._require_offload()
        gates = [kind.ffn.gated for kind in self.model.kinds]
        if self.execution.activation_func_fp8_input_store and not any(gates):
            raise ConfigError(
                f"--activation-func-fp8-input-store is for gated activations (SwiGLU): {self.model_name} has none"
            )
        if (self.execution.dispatcher_sms or 0) > self.cluster.device.num_cores:
            raise ConfigError(
                f"--moe-flex-dispatcher-num-sms {self.execution.dispatcher_sms} exceeds the "
                f"{self.cluster.device.num_cores} SMs of {self.cluster.device.name}"
            )
        self._set_documents()
        self._set_encoders()
        self._set_fine_tuning()
        self._set_layers_in_16_bits()
        self.cluster.device.peak(self.execution.dtype)
        if self.profile and self.execution.deterministic_mode:
            raise ConfigError(
                f"profile {self.profile.name} was measured without deterministic mode: leave out one of them"
            )
        for word in self.recompute_options_of_layers:
            reason = why_not_recomputed(self.model, self.execution, word, self.layout.tp) or why_not_captured(
                self.execution.cuda_graphs,
                self.model.kinds,
                recompute=word,
                offload=self.offload,
                is_dropless=self.execution.is_dropless,
            )
            if reason:
                raise ConfigError(reason)
        require_division(self.model, self.settings.cut)

    def _require_batch(self) -> None:
        sequences = self.micro_batch * self.layout.dp
        if self.micro_batch < 1 or self.global_batch < 1:
            raise ConfigError(
                f"micro-batch and global batch are at least 1: got {self.micro_batch} and {self.global_batch}"
            )
        if self.global_batch % sequences:
            below = self.global_batch // sequences * sequences
            near = " or ".join(str(size) for size in (below, below + sequences) if size)
            raise ConfigError(
                f"the global batch must be a multiple of micro-batch · dp = {self.micro_batch} · {self.layout.dp}: "
                f"got {self.global_batch} (nearest: {near})"
            )

    @property
    def length(self) -> int:
        return self.model.sequence_length if self.sequence_length is None else self.sequence_length

    @property
    def stack_name(self) -> str:
        return self.stack.removesuffix("@none")

    @property
    def num_microbatches(self) -> int:
        return self.global_batch // (self.micro_batch * self.layout.dp)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.length

    @cached_property
    def settings(self) -> MemorySettings:
        execution = self.execution
        if self.fully_shard or self.profile:  # torch's layers
            execution = replace(
                execution,
                gradient_placeholders=execution.gradient_placeholders and not self.fully_shard,
                norm_in_gemm=execution.norm_in_gemm and self.profile is None,
            )
        return MemorySettings(
            self.micro_batch,
            self.length,
            self.place.cut,
            self.optimizer,
            execution,
            vocab_multiple=self.vocab_multiple,
            allocator_slack=self.allocator_slack,
            workspace_bytes=self.cluster.device.gemm_workspaces.allocated(
                has_engine=execution.compile is None,
                has_experts=any(
                    isinstance(layer.ffn, MixtureOfExperts) and layer.ffn.grouped for layer in self.model.kinds
                ),
                is_deterministic=execution.deterministic_mode,
            ),
            fully_shard=self.fully_shard and self.place.cut.replicas > 1,
            narrow=self._narrow_weights,
            deferred_head=self.num_deferred,
            graphed_microbatches=self.num_microbatches if self.layout.pp > 1 else 1,
            cuda_graph_reuse=self.cuda_graph_reuse,
        )

    @property
    def _narrow_weights(self) -> NarrowWeights | None:
        dtype, optimizer, copies = self.execution.dtype, self.optimizer, self.place.operand_copies
        if (operand := self.execution.operand_bytes) is None:
            return None
        cached = self.weight_cache or ("none" if optimizer.zero_stage == 3 else "all")
        if cached == "none":
            copies = 0
        elif cached == "rowwise":
            copies = 1
        if optimizer.fp8_param_gather:
            copies = copies or self.place.operand_copies
        is_transposable = dtype not in ("mxfp8", "mxfp4")
        return NarrowWeights(operand, copies, optimizer.fp8_param_gather, is_transposable)

    def _require_offload(self) -> None:
        if not 0 <= self.offload <= 1:
            raise ConfigError(f"--offload is a part from 0 to 1: got {self.offload:g}")
        if (word := offload_modules_of(self.offload_modules)) != self.offload_modules:
            raise ConfigError(f"--offload-modules '{self.offload_modules}' is spelled '{word}'")
        if self.offload and (self.offload_modules or any(plan.offload_modules for plan in self.stage_plans)):
            raise ConfigError("--offload is a part of everything: leave out it or --offload-modules")
        if self.offload or not self.offloads:
            self.offload_rules.require_defaults()
        modules = "+".join([self.offload_modules, *(plan.offload_modules for plan in self.stage_plans)])
        paged = [name for name in PAGED if name in modules.split("+")]
        if "fused_group_mlp" in paged and (len(paged) > 1 or not self.execution.fused_experts):
            raise ConfigError(
                "--offload-modules fused_group_mlp goes with --fused-experts, without expert_fc1 and moe_act"
            )
        if self.execution.paged_stash is not None and (paged or self.offload):
            option = "--offload" if self.offload else f"{' and '.join(paged)} of --offload-modules"
            raise ConfigError(f"--moe-paged-stash holds the experts' activations: leave out {option}")

    def _set_documents(self) -> None:
        if self.document_length is None:
            return
        if self.document_length > self.length:
            raise ConfigError(
                f"--document-length {self.document_length} exceeds the sequence of {self.length} tokens: leave it "
                "out for one document per sequence"
            )
        object.__setattr__(self, "model", with_documents(self.model, self.document_length))

    def _set_encoders(self) -> None:
        if self.text_only and self.image_tokens:
            raise ConfigError("--text-only leaves out the image encoder: leave out --image-tokens")
        model = self.model.without_encoders() if self.text_only else self.model
        if self.image_tokens:
            model = model.with_images(self.image_tokens)
        object.__setattr__(self, "model", model)
        if not model.encoders:
            return
        if self.fully_shard:
            raise ConfigError("--fully-shard is not known with an encoder: give --text-only, or leave it out")
        tokens = sum(encoder.tokens for encoder in model.encoders)
        if tokens > self.length:
            raise ConfigError(
                f"images and audio have {tokens} tokens, more than the sequence of {self.length}: give a longer "
                "--seq-len, fewer --image-tokens, or --text-only"
            )

    def _set_layers_in_16_bits(self) -> None:
        ends = self.num_layers_at_start_in_bf16, self.num_layers_at_end_in_bf16
        if min(ends) < 0:
            raise ConfigError(
                f"layers in bfloat16 at the start and the end are 0 or more: got {ends[0]}, {ends[1]}"
            )
        wide = ends if self.execution.operand_bytes else (0, 0)
        object.__setattr__(self, "model", self.model.with_layers_in_16_bits(*wide))

    def _set_fine_tuning(self) -> None:
        tuning = fine_tuning_of(self.lora, self.freeze)
        object.__setattr__(self, "model", self.model.with_fine_tuning(tuning))
        if tuning is None:
            return
        option = "--lora" if self.lora else "--freeze"
        for is_given, other in (
            (self.profile is not None, "--profile, which contains times for training all weights"),
            (self.fully_shard, "--fully-shard, for which ppsim knows only the memory for training all weights"),
            (BY_OPERATORS in self.recompute_options_of_layers, f"--recompute {BY_OPERATORS}"),
        ):
            if is_given:
                raise ConfigError(f"{option} cannot be combined with {other}: leave out one of them")

    @property
    def offloads(self) -> bool:
        of_modules = self.offload_modules or any(plan.offload_modules for plan in self.stage_plans)
        return bool(self.offload or of_modules)

    @property
    def num_deferred(self) -> int:
        """Number of microbatches whose weight gradient of the output layer is deferred."""
        limit = self.wgrad_deferral_limit
        if limit is None or self.layout.pp == 1:
            return 0
        return min(limit or self.num_microbatches, self.num_microbatches)

    @cached_property
    def place(self) -> ExecutionContext:
        overlap = {kind: constant.value for kind, constant in self.cluster.constants.overlap.items()}
        return ExecutionContext(
            cluster=self.cluster,
            layout=self.layout,
            execution=self.execution.overlapping(overlap),
            vocab_multiple=self.vocab_multiple,
        )

    @cached_property
    def costs(self) -> ComponentCosts:
        """Costs of the parts of the model for one microbatch."""
        batch = {"micro_batch": self.micro_batch, "sequence_length": self.length}
        return ComponentCosts(self.model, self.place, **batch, profile=self.profile)

    def share_costs(self, costs: ComponentCosts) -> None:
        """Use the costs of a job with the same model, execution, microbatch and placement of tp, cp and ep.

        >>> import ppsim
        >>> one, other = (ppsim.job(model="llama3-8b", gpus=gpus, pp=2) for gpus in (8, 16))
        >>> other.share_costs(one.costs)
        >>> other.costs is one.costs
        True
        """
        object.__setattr__(self, "costs", costs)

    @cached_property
    def recompute_options_of_layers(self) -> list[Recompute]:
        texts = [plan.recompute for plan in self.stage_plans] or [self.execution.recompute]
        for text in texts:
            require_layers(text, len(self.model.layers))
        return list(dict.fromkeys(word for text in texts for word in words_of_layers(text)))
