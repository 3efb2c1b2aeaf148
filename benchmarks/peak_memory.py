"""Peak activation memory, projected and measured in torch, and the bytes that the projection omits.

    python benchmarks/peak_memory.py         a tiny GPT on this CPU, under a minute

Projected: the bytes of a measured profile in the simulator. Measured: `ppsim train --partitions`, which counts the
storages that autograd saves, action by action. Errors are projected / measured - 1. Between I and W, torch's split
backward pass also holds the gradients that W starts from; the last lines have their bytes per layer.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.pipelining._backward import stage_backward_input

import ppsim
from ppsim.base.file_schema import validated
from ppsim.base.units import percent, signed_percent, size
from ppsim.costs.assemble_profile import assemble
from ppsim.costs.profile import Profile
from ppsim.model.recompute import LayerPlan
from ppsim.profiling.harness import measure_shape, model_header
from ppsim.profiling.model_shapes import of_gpt
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.runs.peaks import peak_errors, peaks_in
from ppsim.runtime.gpt import build_stage
from ppsim.runtime.partitions import run_partitions
from ppsim.runtime.train_config import MODELS, TrainConfig
from ppsim.schedule.grammar import format_table

SCHEDULES = {"1f1b": None, "interleaved-1f1b": 2, "zb-h1": None, "zbv-fixed": 2}
SHAPE, MICRO_BATCH = replace(MODELS["nano"], num_layers=8), 2


def measured_profile() -> Profile:
    model, settings = of_gpt(SHAPE), MeasuringSettings(num_repeats=2, num_warm_up=0)
    content = model_header("nano", "nano", model, settings)
    content["measurements"] = measure_shape(
        model, MeasurementKey(MICRO_BATCH, SHAPE.sequence_length, "float32"), settings
    )
    return validated(Profile, content, "the profile")


def gradients_held() -> tuple[int, int]:
    """Return bytes per layer: gradients that I leaves for W, and activations that F saved for both."""
    layer = build_stage(1, 3, [LayerPlan(1, "none")], SHAPE, seed=0, dtype=torch.float32)
    x = torch.randn(MICRO_BATCH, SHAPE.sequence_length, SHAPE.hidden_size, requires_grad=True)
    output = layer(x)
    _, groups = stage_backward_input([output], [torch.randn_like(output)], [x], layer.parameters())
    grads = [grad for group in groups for held in group["grads"] for grad in held if grad is not None]
    storages = {grad.untyped_storage().data_ptr(): grad.untyped_storage().nbytes() for grad in grads}
    profile = measured_profile()
    return sum(storages.values()), profile.find("layer", profile.shape_at()).activation_bytes


def main() -> None:
    profile = measured_profile()
    print("| schedule | p | rank | projected | at | measured | at | error |")
    print("|---|--:|--:|--:|---|--:|---|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for p in (2, 4):
            for name, vpp in SCHEDULES.items():
                table = ppsim.build(name, pp=p, vpp=vpp, microbatches=2 * p)
                path = Path(folder) / "table.csv"
                path.write_text(format_table(table))
                counts = {"num_stages": table.num_stages, "num_ranks": p}
                assembled = assemble(profile, table, split="even")
                projected = ppsim.simulate(table, assembled.costs.with_torch_first_stage(**counts))
                config = TrainConfig(
                    schedule=str(path), num_ranks=p, model=SHAPE, layers_per_stage=assembled.split,
                    micro_batch=MICRO_BATCH, num_steps=1,
                )  # fmt: skip
                for peak in peak_errors(peaks_in(run_partitions(config), "the run"), projected):
                    print(
                        f"| {name} | {p} | {peak.rank} | {size(peak.projected_bytes)} | {peak.projected_at} "
                        f"| {size(peak.measured_bytes)} | {peak.measured_at} | {signed_percent(peak.error)} |"
                    )
    held, saved = gradients_held()
    print(
        f"\nbetween I and W of a layer: {size(held)} of gradients beside {size(saved)} of activations "
        f"({percent(held / saved)} more)"
    )


if __name__ == "__main__":
    main()
