"""Peak memory of one layer in its forward and backward under plans of recomputation: on a GPU, and as projected.

    python benchmarks/layer_peaks.py --record peaks.json   measure: needs a CUDA device, torch and numpy; half a minute
    python benchmarks/layer_peaks.py --report peaks.json   compare

The Llama layer is also measured with frozen weights, without and with LoRA adapters.

The layers are the ones that `ppsim profile` measures: torch's own kernels, attention by `scaled_dot_product_attention`, one
microbatch of 4096 tokens in bfloat16. Gradient buffers exist before. Columns of the report, in MiB:

- saved: bytes that the forward leaves allocated, without its input and output;
- peak: bytes that the backward allocates beyond these, at most, by `ppsim.model.backward`.

Errors are projected / measured - 1: a positive error means that the projection is larger.
"""

import argparse
import gc
import json
import statistics
from pathlib import Path
from typing import Any

from ppsim.base.files import to_json, write_atomically
from ppsim.base.units import seconds, signed_percent

SEQUENCE_LENGTH = 4096
MODELS = {"llama3-8b": 1, "mixtral-8x7b": 8}
"""Expert-parallel size by model."""

PLANS = {
    "llama3-8b": ("none", "full", "core_attn", "layernorm", "mlp", "mlp_act", "core_attn+layernorm", "layernorm+mlp_act"),
    "mixtral-8x7b": ("none", "full", "core_attn", "layernorm", "moe", "moe_act", "layernorm+moe", "layernorm+moe_act"),
}  # fmt: skip
TRAININGS = ("all", "frozen", "lora")
"""What is trained: everything, nothing (only the input gradient is computed), or `LORA`."""

FROZEN = "attention+mlp+norms"
LORA = "16:linear_proj+linear_fc2"
MIB = 2**20


def frozen(layer: Any, training: str, kind: Any) -> Any:
    """Freeze the weights of a layer in place; with "lora", add adapters to its two output projections."""
    from torch import nn

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, rank: int = 16) -> None:
            super().__init__()
            self.base = base
            self.a = nn.Linear(base.in_features, rank, bias=False, dtype=kind)
            self.b = nn.Linear(rank, base.out_features, bias=False, dtype=kind)

        def forward(self, x: Any) -> Any:
            return self.base(x) + 2.0 * self.b(self.a(x))

    if training != "all":
        layer.requires_grad_(requires_grad=False)
    if training == "lora":
        layer.attention.out = Adapted(layer.attention.out)
        layer.feed_forward.down = Adapted(layer.feed_forward.down)
    return layer


def measured(name: str, recompute: str, training: str, device: str) -> dict[str, Any]:
    """Return bytes and median seconds of one layer's forward and backward."""
    import torch

    from ppsim.profiling.layers import build_layer
    from ppsim.profiling.measure import MeasuredModule, measure
    from ppsim.profiling.model_shapes import find_model
    from ppsim.profiling.settings import MeasuringSettings

    shape = find_model(name)
    shard = shape.shard(tp=1, ep=MODELS[name])
    kind = torch.bfloat16
    gc.collect()
    with torch.device(device):
        layer = build_layer(shard.layer, SEQUENCE_LENGTH, recompute=recompute, cp=1, compiled=False).to(kind)
        layer = frozen(layer, training, kind)
        inputs = [torch.randn(1, SEQUENCE_LENGTH, shard.layer.hidden_size, dtype=kind) for _ in range(2)]
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    subject = MeasuredModule(layer, inputs)
    subject.pass_once(subject.next_input())  # workspaces of libraries
    memory = Memory(device)
    x = subject.next_input()
    memory.start()
    output = subject.forward(x)
    held, forward_peak = memory.read()
    grad = subject.grad_of(output)
    memory.restart()
    subject.backward(x, output, grad)
    _, backward_peak = memory.read()
    saved_bytes, input_bytes = held - output.nbytes, x[0].nbytes
    del output, x, grad
    [samples] = measure(
        [subject], MeasuringSettings(device, num_repeats=20, num_warm_up=3), can_split=[training == "all"]
    )
    return {
        "model": name, "recompute": recompute, "training": training,
        "seconds": {action: statistics.median(taken) for action, taken in samples.seconds.items()},
        "saved_bytes": saved_bytes,
        "forward_bytes": forward_peak - held, "backward_bytes": backward_peak - held, "input_bytes": input_bytes,
    }  # fmt: skip


class Memory:
    """Bytes allocated on the device since `start`; zeros on a CPU, where only the code is tried."""

    def __init__(self, device: str) -> None:
        import torch

        self.cuda = torch.cuda if device == "cuda" else None
        self.before = 0

    def start(self) -> None:
        """Count from here."""
        if self.cuda:
            self.cuda.synchronize()
            self.before = self.cuda.memory_allocated()
        self.restart()

    def restart(self) -> None:
        """Forget the peak."""
        if self.cuda:
            self.cuda.synchronize()
            self.cuda.reset_peak_memory_stats()

    def read(self) -> tuple[int, int]:
        """Return the bytes now and at the peak."""
        if not self.cuda:
            return 0, 0
        self.cuda.synchronize()
        return self.cuda.memory_allocated() - self.before, self.cuda.max_memory_allocated() - self.before


def record(path: Path, device: str) -> None:
    """Measure every plan of every model."""
    import torch

    rows = [measured(name, recompute, "all", device) for name, plans in PLANS.items() for recompute in plans]
    rows += [measured(next(iter(MODELS)), "none", training, device) for training in TRAININGS[1:]]
    where = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    write_atomically(path, to_json({"device": where, "torch": torch.__version__, "rows": rows}))
    print(f"wrote {path}: {len(rows)} layers on {where}")


def report(content: dict[str, Any]) -> None:
    """Print measured and projected bytes."""
    from ppsim.model.activations import layer_activations, layer_backward
    from ppsim.model.execution import Execution
    from ppsim.model.fine_tuning import fine_tuning_of
    from ppsim.model.memory_settings import MemorySettings
    from ppsim.model.registry import find_model
    from ppsim.parallel.sizes import ParallelSizes

    kernels = Execution(
        fused_activation=False, gradient_placeholders=False, compile=False, weighted_output=True, norm_in_gemm=False
    )
    print(f"{content['device']}, torch {content['torch']}, one microbatch of {SEQUENCE_LENGTH} tokens, MiB")
    print(
        f"{'model':14}{'recompute, trained':22}{'saved':>8}{'projected':>11}{'error':>9}{'peak':>8}{'projected':>11}{'error':>9}"
    )
    for row in content["rows"]:
        training = row["training"]
        tuning = fine_tuning_of(LORA if training == "lora" else "", FROZEN if training == "frozen" else "")
        layer = find_model(row["model"]).with_fine_tuning(tuning).layers[-1]
        cut = ParallelSizes(dp=MODELS[row["model"]], ep=MODELS[row["model"]])
        settings = MemorySettings(1, SEQUENCE_LENGTH, cut, execution=kernels)
        saved = sum(layer_activations(layer, settings, row["recompute"]).values())
        peak = layer_backward(layer, settings, row["recompute"])
        held = row["saved_bytes"] + row["input_bytes"]
        print(
            f"{row['model']:14}{row['recompute'] if training == 'all' else training:22}{held / MIB:8.1f}{saved / MIB:11.1f}"
            f"{signed_percent(saved / held - 1):>9}{row['backward_bytes'] / MIB:8.1f}{peak / MIB:11.1f}"
            f"{signed_percent(peak / max(row['backward_bytes'], 1) - 1):>9}"
        )
    print("\na backward that computes input gradients only takes as long as I of the whole layer")
    times = {row["training"]: row["seconds"] for row in content["rows"] if row["recompute"] == "none"}
    whole = next(row["seconds"] for row in content["rows"] if row["recompute"] == "none")
    for training in TRAININGS[1:]:
        took, error = times[training]["B"], signed_percent(whole["I"] / times[training]["B"] - 1)
        print(f"{training:8}B {seconds(took)}, I of the whole layer {seconds(whole['I'])}: {error}")


def main() -> None:
    """Measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--record", type=Path, metavar="FILE", help="measure, and write the measured bytes there")
    group.add_argument("--report", type=Path, metavar="FILE", help="compare the bytes that --record wrote")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tries the code")
    given = parser.parse_args()
    if given.record:
        record(given.record, given.device)
    else:
        report(json.loads(given.report.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
