"""A step of an optimizer over the components of a model, as file content."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ppsim.model.shapes import ModelShape
from ppsim.profiling.harness import NUM_BLOCKS, build_blocks, type_of
from ppsim.profiling.layers import build_embedding, build_head
from ppsim.profiling.optimizer import measure_step
from ppsim.profiling.settings import Key, Say, Settings


def measure_optimizer(
    model: ModelShape, key: Key, name: str, settings: Settings, *, say: Say = lambda message: None
) -> list[dict[str, Any]]:
    """Return what a step of an optimizer takes for embedding, layer and head, as a profile file has it.

    Of the layer, `NUM_BLOCKS` are measured together and divided. Raises as `measure_shape`.
    """
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    shard = replace(model, sequence_length=key.sequence_length).shard(tp=key.tp, ep=key.ep)
    where, kind = torch.device(settings.device), type_of(key)
    parts: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "embedding": (lambda: build_embedding(shard), 1),
        "layer": (lambda: build_blocks(shard, replace(key, recompute="none", cp=1), Settings()), NUM_BLOCKS),
        "head": (lambda: build_head(shard), 1),
    }
    say(f"measuring a step of {name}")
    found = []
    for component, (build, num_units) in parts.items():
        with where:
            module = build()
        step = measure_step(
            module.to(where, kind), name, settings, is_hidden=component == "layer", num_units=num_units
        )
        shape = {"tp": key.tp, "ep": key.ep, "dtype": key.dtype}
        found.append({"component": component, "optimizer": name, **shape, **step})
    return found
