"""Chunks of a TorchTitan model on one device, with TorchTitan's own split, parallelism and loss, in its dry mode.

Process groups are fake. Every chunk is built as stage 0 of the pipeline, the stage of this process.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed import pipeline_parallel
from torchtitan.tools import utils

from ppsim.base.errors import ConfigError
from ppsim.model.recompute import BY_OPERATORS
from ppsim.profiling.chunks import BuiltChunk, LayerWindow


class DecoderChunk(nn.Module):
    """Input is tokens or hidden states, output is hidden states or logits."""

    def __init__(self, model: nn.Module, arguments: dict[str, Any], trainer: Any) -> None:
        super().__init__()
        self.model = model
        self._arguments, self._context = arguments, trainer.train_context

    def forward(self, x: Tensor) -> Tensor:
        with self._context():
            output: Tensor = self.model(x, **self._arguments)
        return output


class TitanBuilder:
    """Builds any window of the layers of a trainer's model, as the trainer builds its own chunks."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.config = trainer, trainer.config
        if not trainer.parallel_dims.pp_enabled:
            raise ConfigError(
                "the trainer has no pipeline: give it a parallelism.pipeline_parallel_degree of 2 or more"
            )
        if torch.distributed.get_backend() != "fake":
            raise ConfigError("the trainer's process groups send: start it alone with --comm.mode fake_backend")
        self._hidden: Tensor | None = None
        tokens, self._labels = self.tokens(), self.tokens()
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        _, self._labels, self._arguments = trainer.post_dataloading_process(
            {"input": tokens, "positions": positions}, self._labels
        )

    @property
    def num_layers(self) -> int:
        return len(self.trainer.model_config.layers)

    def own_split(self) -> list[int]:
        parts = self.config.parallelism.module_fqns_per_model_part
        if parts is None:
            stages, *rest = pipeline_parallel._get_pipeline_metadata(
                self.trainer.parallel_dims, self.config.parallelism, self.trainer.model_config
            )
            parts = pipeline_parallel._generate_llm_fqn_per_model_part(stages, *rest)
        return [sum(name.startswith("layers.") for name in part) for part in parts]

    def build(self, window: LayerWindow) -> BuiltChunk:
        trainer, config = self.trainer, self.config
        names = [
            *(["tok_embeddings"] if window.is_first else []),
            *(f"layers.{layer}" for layer in range(window.start, window.stop)),
            *(["norm", "lm_head"] if window.is_last else []),
        ]
        parallelism = dataclasses.replace(
            config.parallelism,
            pipeline_parallel_schedule="1F1B",
            pipeline_parallel_schedule_csv="",
            module_fqns_per_model_part=[names] * trainer.parallel_dims.pp,
        )
        with torch.device("meta"), utils.set_default_dtype(TORCH_DTYPE_MAP[config.training.dtype]):
            whole = trainer.model_config.build()
        _, (model,), *_ = config.model_spec.pipelining_fn(
            whole, parallel_dims=trainer.parallel_dims, training=config.training, parallelism=parallelism,
            compile_config=config.compile, ac_config=config.activation_checkpoint, dump_folder=config.dump_folder,
            device=trainer.device, model_config=trainer.model_config,
            parallelize_fn=config.model_spec.parallelize_fn, loss_fn=trainer.loss_fn,
        )  # fmt: skip
        model.to_empty(device=trainer.device)
        with torch.no_grad():
            model.init_weights(buffer_device=None)
        model.train()
        if isinstance(model, FSDPModule):  # as the pipeline does for all microbatches but the last
            model.set_is_last_backward(False)
            model.set_reshard_after_backward(False)
            model.set_requires_gradient_sync(False)
        if window.is_last and hasattr(trainer.loss_fn, "set_lm_head"):
            trainer.loss_fn.set_lm_head(model.lm_head)
            model._skip_lm_head = True
        chunk = DecoderChunk(model, self._arguments, trainer)
        return BuiltChunk(chunk, list(model.layers.values()), self._loss if window.is_last else None)

    def _loss(self, output: Tensor) -> Tensor:
        valid = torch.tensor(float(self._labels.numel()), device=self._labels.device)
        loss: Tensor = self.trainer.loss_fn(output, self._labels, global_valid_tokens=valid)[0]
        return loss

    def tokens(self) -> Tensor:
        batch, length = self.config.parallelism.pipeline_parallel_microbatch_size, self.config.training.seq_len
        length //= self.trainer.parallel_dims.cp
        return torch.randint(0, self.trainer.model_config.vocab_size, (batch, length), device=self.trainer.device)

    def input_of(self, window: LayerWindow) -> Tensor:
        if window.is_first:
            return self.tokens()
        if self._hidden is None:
            built = self.build(LayerWindow(0, 0, is_first=True))
            with torch.no_grad():
                self._hidden = built.module(self.tokens())
            if type(self._hidden) is not Tensor:
                raise ConfigError(f"stages send a {type(self._hidden).__name__}: only plain tensors are measured")
        return torch.randn_like(self._hidden)

    def forward_flops(self, contents: str) -> float | None:
        """Return None: torch's counter is used."""
        return None

    def shape(self) -> dict[str, Any]:
        config, dims = self.config, self.trainer.parallel_dims
        checkpointing = type(config.activation_checkpoint).__qualname__.split(".")[0]
        words = {"NoneType": "none", "FullAC": "full", "SelectiveAC": BY_OPERATORS}
        if checkpointing not in words:
            raise ConfigError(f"activation checkpointing by {checkpointing} is not known here: leave it out")
        return {
            "micro_batch": config.parallelism.pipeline_parallel_microbatch_size,
            "sequence_length": config.training.seq_len,
            "dtype": config.training.mixed_precision_param,
            "tp": dims.tp,
            "cp": dims.cp,
            "ep": dims.ep,
            "recompute": words[checkpointing],
        }
