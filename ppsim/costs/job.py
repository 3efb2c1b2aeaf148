"""Training job: model, cluster and parallel configuration, with the costs of its layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath

from ppsim.base.display import HasRepr
from ppsim.base.errors import ConfigError
from ppsim.costs.component_costs import ComponentCosts
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.profile import Profile
from ppsim.costs.recomputable import why_not_recomputed
from ppsim.machine.cluster import Cluster
from ppsim.machine.job_similarity import JobFeatures, correction_of
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.cuda_graph_scope import why_not_captured
from ppsim.model.cuda_graphs import CudaGraphs
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.hybrid import with_documents
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.narrow_weights import NarrowWeights, WeightCache
from ppsim.model.offloading import PAGED, OffloadRules, offload_modules_of
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import VOCAB_MULTIPLE, require_division
from ppsim.model.pipeline_stages import Stage, StagePlan, plans_of_stages
from ppsim.model.recompute import (
    BY_OPERATORS,
    Recompute,
    by_number,
    of_layer,
    plan_of_stage,
    require_layers,
    words_of_layers,
)
from ppsim.model.shapes import why_no_context_parallel
from ppsim.parallel.layout import Layout, assumed_devices
from ppsim.schedule.option_types import Update
from ppsim.simulation.verdict import MemoryLimit


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
        if self.document_length:
            object.__setattr__(self, "model", with_documents(self.model, self.document_length))
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
    def seconds_per_launch(self) -> float:
        """Host seconds per launch by the schedule: an action has one launch, a message between ranks two."""
        if self.execution.cuda_graphs == "full":
            return 0.0
        constant = self.cluster.constants.launch_s
        return self.launch_s if self.launch_s is not None else constant.value if constant else 0.0

    @property
    def overlap_slowdown(self) -> float:
        """Slowdown of compute during a message between ranks, as a fraction."""
        constant = self.cluster.constants.overlap_slowdown
        return constant.value if constant else 0.0

    @cached_property
    def job_features(self) -> JobFeatures:
        """Key for the similarity to other jobs; an unnamed model is identified by its hidden size.

        >>> import ppsim
        >>> ppsim.job(model="llama3-8b", gpus=16, tp=2, pp=4, micro_batch=2).job_features.title
        'llama3-8b/bfloat16 on 16, tp2-cp1-ep1-pp4-b2-s8192'
        """
        execution, layout = self.execution, self.layout
        name = "-".join(PurePath(self.model_name).name.split())
        return JobFeatures(
            model=f"{name}{self.model.hidden_size if name == _UNNAMED else ''}", dtype=execution.dtype,
            tp=layout.tp, cp=layout.cp, ep=layout.ep,
            micro_batch=self.micro_batch, seq_len=self.length, recompute=execution.recompute,
            cuda_graphs=execution.cuda_graphs, pp=layout.pp, gpus=layout.num_devices,
        )  # fmt: skip

    @property
    def memory_limit(self) -> MemoryLimit:
        return self.memory_limit_of(self.execution.cuda_graphs)

    def memory_limit_of(self, graphs: CudaGraphs) -> MemoryLimit:
        """Return the limit with these CUDA graphs.

        >>> import ppsim
        >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2)
        >>> job.memory_limit_of("layer").safe_bytes < job.memory_limit_of("none").safe_bytes
        True
        """
        fragments = ["experts"] if self.model.has_experts else []
        fragments += ["CUDA graphs"] if graphs != "none" else []
        return MemoryLimit.of_device(self.cluster.device.memory_bytes, fragments=" and ".join(fragments))

    @property
    def assumptions(self) -> list[str]:
        sizes = {name: getattr(self.layout, name) for name in ("tp", "cp", "ep", "dp", "pp")}
        gpus = [assumed_devices(**sizes, multiple=self.gpus_assumed)] if self.gpus_assumed else []
        left_out = [self.model.left_out] if self.model.left_out else []
        encoders = [one.sentence for one in self.model.encoders]
        return [*self.model.notes, *gpus, *encoders, *left_out, *self.assumed]

    @property
    def stack_name(self) -> str:
        return self.stack.removesuffix("@none")

    @property
    def stack_description(self) -> str:
        execution = self.execution
        said = [f"{execution.attention} attention", "dropout" if execution.dropout else "no dropout"]
        if self.layout.tp > 1:
            said.append(execution.tp_overlap_text)
        if execution.compile is not None:
            said.append("torch.compile" if execution.compile else "eager blocks")
        said += [f"ZeRO {self.optimizer.zero_stage}", f"DP {self.dp_overlap_text}"]
        return f"{self.stack_name}: {', '.join(said)}"

    @property
    def dp_overlap_text(self) -> str:
        overlaps = self.overlap_grad_reduce
        if not self.optimizer.zero_stage or overlaps == self.overlap_param_gather:
            return "overlapped" if overlaps else "exposed"
        hidden, exposed = ("reduction", "all-gather") if overlaps else ("all-gather", "reduction")
        return f"{hidden} overlapped, {exposed} exposed"

    @property
    def scale(self) -> float:
        """Ratio of measured to projected step time of similar jobs."""
        return correction_of(self.cluster.constants.runs, self.job_features).times

    @property
    def num_microbatches(self) -> int:
        return self.global_batch // (self.micro_batch * self.layout.dp)

    @property
    def forward_flops(self) -> float:
        """A third of the model FLOPs of training on a microbatch, per tensor- and context-parallel rank."""
        tokens = self.micro_batch * self.length / (self.layout.tp * self.layout.cp)
        return self.model.training_flops(self.length, causal=True) / 3 * tokens

    @property
    def domain_sizes(self) -> tuple[int | None, ...]:
        return self.place.domain_sizes

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
        if self.offload and (self.offload_modules or any(one.offload_modules for one in self.stage_plans)):
            raise ConfigError("--offload is a part of everything: leave out it or --offload-modules")
        if self.offload or not self.offloads:
            self.offload_rules.require_defaults()
        modules = "+".join([self.offload_modules, *(one.offload_modules for one in self.stage_plans)])
        both = [name for name in PAGED if name in modules.split("+")]
        if "fused_group_mlp" in both and (len(both) > 1 or not self.execution.fused_experts):
            raise ConfigError(
                "--offload-modules fused_group_mlp goes with --fused-experts, without expert_fc1 and moe_act"
            )
        if self.execution.paged_stash is not None and (both or self.offload):
            option = "--offload" if self.offload else f"{' and '.join(both)} of --offload-modules"
            raise ConfigError(f"--moe-paged-stash holds the experts' activations: leave out {option}")

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
        tokens = sum(one.tokens for one in model.encoders)
        if tokens > self.length:
            raise ConfigError(
                f"images and audio have {tokens} tokens, more than the sequence of {self.length}: give a longer "
                "--seq-len, fewer --image-tokens, or --text-only"
            )

    def _set_layers_in_16_bits(self) -> None:
        both = self.num_layers_at_start_in_bf16, self.num_layers_at_end_in_bf16
        if min(both) < 0:
            raise ConfigError(
                f"layers in bfloat16 at the start and the end are 0 or more: got {both[0]}, {both[1]}"
            )
        wide = both if self.execution.operand_bytes else (0, 0)
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
        of_modules = self.offload_modules or any(one.offload_modules for one in self.stage_plans)
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
        texts = [one.recompute for one in self.stage_plans] or [self.execution.recompute]
        for text in texts:
            require_layers(text, len(self.model.layers))
        return list(dict.fromkeys(word for text in texts for word in words_of_layers(text)))

    def planned(
        self,
        stages: Sequence[Stage],
        stages_of_ranks: Iterable[Sequence[int]],
        plans: Sequence[StagePlan] | None = None,
    ) -> list[Stage]:
        """Return stages of the model with their plans; raises `ConfigError` for plans of another number of stages.

        >>> import ppsim
        >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2, recompute="block/2")
        >>> [one.layers for one in job.planned([Stage(job.model.layers)], [[0]])[0].plan]
        [2, 30]
        """
        plans = plans or self.plans_of(len(stages))
        if len(plans) != len(stages):
            raise ConfigError(f"the plan has {len(plans)} stages, but the schedule has {len(stages)}")
        layers = [len(stage.layers) for stage in stages]
        recomputed = plans_of_stages(layers, [one.recompute for one in plans], stages_of_ranks)
        return [
            replace(stage, plan=plan, offload_modules=one.offload_modules)
            for stage, plan, one in zip(stages, recomputed, plans, strict=True)
        ]

    def plans_of(self, num_stages: int) -> tuple[StagePlan, ...]:
        """Return the plan of each model stage.

        >>> import ppsim
        >>> ppsim.job(model="llama3-8b", gpus=8, pp=2, recompute="full").plans_of(2)[1].recompute
        'full'
        """
        return self.stage_plans or (StagePlan(self.execution.recompute, self.offload_modules),) * num_stages

    def with_plans(self, plans: Sequence[StagePlan], layers: Sequence[int] | None) -> "Job":
        """Return the job with a plan for each stage, written as a single option for all stages if possible.

        >>> import ppsim
        >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2)
        >>> job.with_plans([StagePlan("full*2"), StagePlan()], [16, 16]).execution.recompute
        'full@0-1'
        """
        text = plans[0].recompute if len({one.recompute for one in plans}) == 1 else None
        if text is None and layers is not None:
            text = by_number(map(plan_of_stage, [one.recompute for one in plans], layers))
        if text is None or len({one.offload_modules for one in plans}) > 1:
            return replace(self, stage_plans=tuple(plans))
        execution = replace(self.execution, recompute=text)
        return replace(self, execution=execution, offload_modules=plans[0].offload_modules, stage_plans=())

    def recomputing(self, recompute: Recompute) -> "Job":
        """Return the job with the same recomputation for all layers.

        >>> import ppsim
        >>> ppsim.job(model="llama3-8b", gpus=8, pp=2).recomputing("mlp").execution.recompute
        'mlp'
        """
        if recompute == of_layer(self.execution.recompute):
            return self
        return replace(self, execution=replace(self.execution, recompute=recompute), stage_plans=())


_UNNAMED = "gpt"
"""Name of models that are given by their sizes."""
