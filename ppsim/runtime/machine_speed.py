"""Reference work: the current speed of a CPU, measured with a small part of a run's own work.

The speed of shared machines varies within minutes by tens of percent. Work of another size, or a single layer, may
be slowed by another factor. Therefore the reference work is F and B of each rank's own stages, on all ranks at
once.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ppsim.runtime.train_config import GPTShape, TrainConfig
from ppsim.runtime.trained import RunModel


class ReferenceWork:
    """F of one microbatch on each stage of a rank, then B on each stage.

    B adds to the gradients; torch's random state and the modules' buffers stay unchanged. `work` is a text that is
    equal for equal work.
    """

    def __init__(self, config: TrainConfig, model: RunModel, stages: Mapping[int, nn.Module]) -> None:
        shape, last = config.model, len(config.layers_per_stage) - 1
        if isinstance(shape, GPTShape):
            of = f"{shape.hidden_size}, {shape.num_heads} heads, {shape.vocab_size} words"
            of += f", {config.micro_batch} × {shape.sequence_length} tokens"
        else:
            of = f"{shape.module}, micro-batch {config.micro_batch}"
        self.work = (
            f"stages of {of}, {config.dtype}, {config.num_ranks} ranks at once, --threads {config.num_threads}"
        )
        if config.recompute != "none":
            self.work += f", recompute {config.recompute}"
        self._loss = model.loss
        tokens, targets = model.batch(0, 1)
        with torch.random.fork_rng(devices=[]):
            self._stages = [
                (
                    module,
                    tokens if stage == 0 else torch.randn_like(model.boundary(stage)).requires_grad_(),
                    targets if stage == last else torch.randn_like(model.boundary(stage + 1)),
                    stage == last,
                )
                for stage, module in stages.items()
            ]

    def seconds(self) -> float:
        buffers = [(buffer, buffer.clone()) for module, *_ in self._stages for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[]):
            begin = time.perf_counter()
            outputs: list[Tensor] = []
            for module, given, wanted, has_loss in self._stages:
                output = module(given)
                outputs.append(self._loss(output, wanted) if has_loss else output)
            for output, (_, _, wanted, has_loss) in zip(outputs, self._stages, strict=True):
                output.backward(None if has_loss else wanted)
            taken = time.perf_counter() - begin
        for buffer, before in buffers:
            buffer.copy_(before)
        return taken
