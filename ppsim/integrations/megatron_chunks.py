"""Chunks of a Megatron-core model on one device: one pipeline rank at a time, with fake process groups.

Megatron-LM has such groups itself (`--fake-process-group`). A layout (`pipeline_model_parallel_layout`) of up to
three stages requests a window of layers: the layers before, the window, the layers after.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.tensor_parallel import random as parallel_random
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from ppsim.base.errors import ConfigError
from ppsim.costs.chunk_costs import LAST, layers_of
from ppsim.model.measurement_key import Kind
from ppsim.model.recompute import recompute_of
from ppsim.model.shapes import LayerShape, ModelShape, head_forward_flops, layer_forward_flops
from ppsim.profiling.chunks import BuiltChunk, LayerWindow

Provider = Callable[..., Any]

_SEED = 1234


class GptChunk(nn.Module):
    """Input is tokens or hidden states, output is hidden states or the loss of each token."""

    def __init__(self, model: Any, *, tokens: Tensor, window: LayerWindow) -> None:
        super().__init__()
        self.model, self._window, self._tokens = model, window, tokens
        length = tokens.shape[1]
        self._positions = torch.arange(length, device=tokens.device).expand_as(tokens)
        # On a GPU the attention kernel masks by itself. A CPU needs this mask: Megatron's default mask is on a GPU.
        ones = torch.ones(1, 1, length, length, dtype=torch.bool, device="cpu")
        self._mask = None if tokens.is_cuda else ~ones.tril()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self._tokens if self._window.is_last else None  # multi-token prediction embeds them again
        if self._window.is_first:
            tokens = x
        else:
            self.model.set_input_tensor(x)
        positions = None if tokens is None else self._positions
        labels = {"labels": self._tokens} if self._window.is_last else {}
        output: Tensor = self.model(tokens, positions, self._mask, **labels)
        return output


class MegatronBuilder:
    """Builds any window of the layers of `provider`'s model, by temporary changes of `config`."""

    def __init__(
        self,
        provider: Provider,
        config: Any,
        *,
        micro_batch: int,
        sequence_length: int,
        vocab_size: int,
        device: str,
    ) -> None:
        self._provider, self.config = provider, config
        self.micro_batch, self.sequence_length, self.vocab_size = micro_batch, sequence_length, vocab_size
        self.device = torch.device(device)
        self._around = ExitStack()

    @property
    def num_layers(self) -> int:
        return int(self.config.num_layers)

    def own_split(self) -> list[int]:
        config, pp = self.config, self.config.pipeline_model_parallel_size
        layout = config.pipeline_model_parallel_layout
        if layout is not None:
            stages = [layout.layout[rank][chunk] for chunk in range(len(layout.layout[0])) for rank in range(pp)]
            if any(LayerType.mtp in stage for stage in stages[:-1]):
                raise ConfigError(
                    "multi-token prediction on a stage before the last is not measured: move it there"
                )
            return [stage.count(LayerType.decoder) for stage in stages]
        chunks = range(config.virtual_pipeline_model_parallel_size or 1)
        return [
            get_num_layers_to_build(config, vp_stage=chunk, pp_rank=rank) for chunk in chunks for rank in range(pp)
        ]

    def build(self, window: LayerWindow) -> BuiltChunk:
        """Return the chunk of a window; the process groups of its rank stay active until `close`."""
        self.close()
        layout, rank = _layout_of(window, self.num_layers, self.config.mtp_num_layers or 0)
        self._around.enter_context(patch.multiple(self.config, **_pipeline(layout)))
        self._around.enter_context(_as_rank(self.config, rank, len(layout)))
        if self.device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(_SEED)
        else:
            self._around.enter_context(_without_cuda())
        given: dict[str, Any] = {"pre_process": window.is_first, "post_process": window.is_last}
        if "config" in inspect.signature(self._provider).parameters:
            given["config"] = self.config
        model = self._provider(**given).to(self.device)
        layers = list(model.decoder.layers)
        if self.config.gradient_accumulation_fusion:  # as in Megatron's DistributedDataParallel
            for parameter in model.parameters():
                parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
        if self.config.fp16 or self.config.bf16:
            model = Float16Module(self.config, model)
        chunk = GptChunk(model, tokens=self.tokens(), window=window)
        return BuiltChunk(chunk, layers, torch.mean if window.is_last else None)

    def close(self) -> None:
        self._around.close()

    def tokens(self) -> Tensor:
        shape = (self.micro_batch, self.sequence_length // self.config.context_parallel_size)
        return torch.randint(0, self.vocab_size, shape, device=self.device)

    def input_of(self, window: LayerWindow) -> Tensor:
        """Hidden states are [tokens per rank, micro-batch, hidden size]."""
        config = self.config
        if window.is_first:
            return self.tokens()
        length = self.sequence_length // config.context_parallel_size
        if config.sequence_parallel:
            length //= config.tensor_model_parallel_size
        kind = torch.bfloat16 if config.bf16 else torch.float16 if config.fp16 else config.params_dtype
        return torch.randn(length, self.micro_batch, config.hidden_size, dtype=kind, device=self.device)

    def forward_flops(self, contents: str) -> float | None:
        """Return None for layers without a formula."""
        sizes, config = layer_shape_of(self.config), self.config
        if sizes is None or (config.mtp_num_layers or 0) > 0:
            return None
        tp, ep, cp = (
            config.tensor_model_parallel_size, config.expert_model_parallel_size, config.context_parallel_size,
        )  # fmt: skip
        model = ModelShape(sizes, self.num_layers, self.vocab_size, self.sequence_length).shard(tp=tp, ep=ep)
        of_layer = layer_forward_flops(
            model.layer, micro_batch=self.micro_batch, sequence_length=self.sequence_length, cp=cp
        )
        of_head = head_forward_flops(
            model, micro_batch=self.micro_batch, sequence_length=self.sequence_length // cp
        )
        return len(layers_of(contents)) * of_layer + contents.endswith(LAST) * of_head

    def shape(self) -> dict[str, Any]:
        config = self.config
        modules = config.recompute_modules or ["core_attn"]
        words = {None: "none", "full": "full", "selective": recompute_of("+".join(modules))}
        kind = "bfloat16" if config.bf16 else "float16" if config.fp16 else str(config.params_dtype)
        return {
            "micro_batch": self.micro_batch,
            "sequence_length": self.sequence_length,
            "dtype": kind.removeprefix("torch."),
            "tp": config.tensor_model_parallel_size,
            "cp": config.context_parallel_size,
            "ep": config.expert_model_parallel_size,
            "recompute": words[config.recompute_granularity],
        }


def layer_shape_of(config: Any) -> LayerShape | None:
    is_llama = config.normalization == "RMSNorm" and config.gated_linear_unit and not config.add_bias_linear
    is_gpt = config.normalization == "LayerNorm" and not config.gated_linear_unit and config.add_bias_linear
    experts = config.num_moe_experts or 0
    etp = config.expert_tensor_parallel_size
    if getattr(config, "multi_latent_attention", False) or not (is_llama or (is_gpt and not experts)):
        return None
    if experts and (config.moe_layer_freq != 1 or etp != config.tensor_model_parallel_size):
        return None
    widths = (config.ffn_hidden_size, 0, 0, 0)
    if experts:
        shared = config.moe_shared_expert_intermediate_size or 0
        widths = (config.moe_ffn_hidden_size or config.ffn_hidden_size, experts, config.moe_router_topk, shared)
    heads, groups = config.num_attention_heads, config.num_query_groups or config.num_attention_heads
    kind: Kind = "moe" if experts else "llama" if is_llama else "gpt"
    try:
        return LayerShape(kind, config.hidden_size, heads, groups, config.kv_channels, *widths)
    except ConfigError:
        return None


def _layout_of(window: LayerWindow, num_layers: int, num_predictions: int) -> tuple[list[list[str]], int]:
    before, after = window.start, num_layers - window.stop
    stages = [window.num_layers]
    if not window.is_first:
        stages.insert(0, before)
    if not window.is_last:
        stages.append(after)
    layout = [count * ["decoder"] for count in stages]
    layout[0].insert(0, "embedding")
    layout[-1] += [*(num_predictions * ["mtp"]), "loss"]
    return layout, 0 if window.is_first else 1


def _pipeline(layout: list[list[str]]) -> dict[str, Any]:
    num_stages = len(layout)
    return {
        "pipeline_model_parallel_size": num_stages,
        "virtual_pipeline_model_parallel_size": None,
        "pipeline_model_parallel_layout": (
            PipelineParallelLayerLayout(layout, num_stages) if num_stages > 1 else None
        ),
        **dict.fromkeys(("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")),
        **dict.fromkeys(("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), False),
    }


def num_ranks_of_stage(config: Any) -> int:
    """Return the smallest number of ranks per stage that is a multiple of tp · cp and of etp · ep."""
    tp, cp, ep = (
        config.tensor_model_parallel_size, config.context_parallel_size, config.expert_model_parallel_size,
    )  # fmt: skip
    return math.lcm(tp * cp, (config.expert_tensor_parallel_size or tp) * ep)


@contextmanager
def _as_rank(config: Any, rank: int, num_stages: int) -> Iterator[None]:
    """Make this process the first rank of a pipeline stage, with fake groups of real size."""
    if dist.is_initialized():
        if dist.get_backend() != "fake":
            raise ConfigError(
                "a process group that sends is there already: measure in a process of its own, or in one that "
                "Megatron-LM began with --fake-process-group"
            )
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    of_stage = num_ranks_of_stage(config)
    dist.init_process_group("fake", store=FakeStore(), rank=rank * of_stage, world_size=num_stages * of_stage)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.tensor_model_parallel_size,
            pipeline_model_parallel_size=num_stages,
            context_parallel_size=config.context_parallel_size,
            expert_model_parallel_size=config.expert_model_parallel_size,
            expert_tensor_parallel_size=config.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


@contextmanager
def _without_cuda() -> Iterator[None]:
    """Replace calls of CUDA: Megatron-core's own layers ask for the current GPU, and fork its random state."""
    with (
        patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")),
        patch.object(parallel_random.CudaRNGStatesTracker, "fork", lambda *_: nullcontext()),
    ):
        yield
