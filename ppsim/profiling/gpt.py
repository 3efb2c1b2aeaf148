"""The first harness: a small GPT's embedding, layer and head on one device → a profile file's content."""

import datetime
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ppsim
from ppsim.profiling.measure import Module, Passes, measure, quantity
from ppsim.runtime.config import Dtype, GPTShape
from ppsim.runtime.gpt import Block, Embedding, Head, loss_of

NUM_BLOCKS = 4
"""Layers measured in a row, so that a layer finds its input where the layer before it left it."""

_NUM_INPUTS = 3


def profile_gpt(
    name: str,
    shape: GPTShape,
    *,
    model_name: str,
    micro_batch: int,
    dtype: Dtype,
    device: str,
    num_repeats: int,
    num_warm_up: int,
    num_threads: int,
    progress: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Return the content of a profile file, measured on this machine's `device` ("cpu" or "cuda").

    Embedding, one layer (of `NUM_BLOCKS` in a row) and head with loss, each with F, B, I and W through the
    split that torch's pipelining runtime uses.
    """
    torch.set_num_threads(num_threads)
    where, kind = torch.device(device), getattr(torch, dtype)
    torch.manual_seed(0)
    batch = (micro_batch, shape.sequence_length)
    tokens = [torch.randint(0, shape.vocab_size, batch, device=where) for _ in range(_NUM_INPUTS)]
    hidden = [torch.randn(*batch, shape.hidden_size, device=where, dtype=kind) for _ in range(_NUM_INPUTS)]
    targets = tokens[0]

    subjects = {
        "embedding": (Module(Embedding(shape).to(where, kind), tokens, is_first=True), 1),
        "layer": (
            Module(nn.Sequential(*(Block(shape.layer) for _ in range(NUM_BLOCKS))).to(where, kind), hidden),
            NUM_BLOCKS,
        ),
        "head": (Module(Head(shape).to(where, kind), hidden, loss=lambda logits: loss_of(logits, targets)), 1),
    }
    s, b, h = shape.sequence_length, micro_batch, shape.hidden_size
    flops = {"embedding": 0, "layer": s * b * h * (24 * h + 4 * s), "head": 2 * s * b * h * shape.vocab_size}
    key = {"micro_batch": micro_batch, "sequence_length": shape.sequence_length, "dtype": dtype}
    measurements = []
    for component, (subject, num_units) in subjects.items():
        progress(f"measuring {component}")
        passes = measure(subject, device=where, num_repeats=num_repeats, num_warm_up=num_warm_up)
        parameters = sum(parameter.numel() for parameter in subject.module.parameters())
        measurements.append(
            {
                "component": component,
                "shape": key,
                **_per_unit(passes, num_units),
                "parameters": parameters // num_units,
                "forward_flops": flops[component],
            }
        )
    return {
        "format": "ppsim-profile/1",
        "name": name,
        "provenance": _provenance(where, num_repeats, num_warm_up, num_threads),
        "model": {
            "name": f"GPT {model_name}",
            "num_layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "num_heads": shape.num_heads,
            "vocab_size": shape.vocab_size,
        },
        "measurements": measurements,
        "transfers": [],
    }


def _per_unit(passes: Passes, num_units: int) -> dict[str, Any]:
    times = {
        name: quantity([seconds / num_units for seconds in getattr(passes, name)])
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
    }
    return {
        **times,
        "activation_bytes": passes.activation_bytes // num_units,
        "activation_bytes_kept_for_weight": passes.kept_bytes // num_units,
        "output_bytes": passes.output_bytes,
        "transient_bytes": passes.transient_bytes,
    }


def _provenance(device: torch.device, num_repeats: int, num_warm_up: int, num_threads: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": _cpu_name(), "kind": device.type}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"name": properties.name, "memory_bytes": properties.total_memory}
    else:
        facts["num_threads"] = num_threads
    return {
        "kind": "measured",
        "source": f"ppsim profile {ppsim.__version__}",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "device": facts,
        "software": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "num_repeats": num_repeats,
        "num_warm_up": num_warm_up,
        "notes": [f"Per layer: {NUM_BLOCKS} layers in a row, divided by {NUM_BLOCKS}. Median and quartiles."],
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
