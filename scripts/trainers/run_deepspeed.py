"""Run exported tables, and for comparison DeepSpeed's own schedule, in DeepSpeed's pipeline engine on a CPU.

    pip install torch . && DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation deepspeed
    python scripts/trainers/run_deepspeed.py

Each table is made as in docs/export.md: `ppsim build`, `ppsim export --to deepspeed`, and one line after
`deepspeed.initialize`. The script prints the loss of the third step and the sum of the absolute weights after it.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, NUM_RANKS, NUM_MICROBATCHES, WIDTH = 3, 4, 8, 16
TABLES = ("1f1b", "eager-1f1b")


def run_rank(table: str) -> None:
    """Train a chain of layers with the table or, if it is empty, with DeepSpeed's own schedule."""
    import deepspeed
    import torch
    from deepspeed.pipe import PipelineModule
    from torch import nn

    from ppsim.integrations.deepspeed import install

    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="gloo")
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2 * NUM_RANKS)]
    net = PipelineModule(
        layers, num_stages=NUM_RANKS, loss_fn=nn.MSELoss(), partition_method="uniform", seed_layers=True
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": NUM_MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "steps_per_print": 1000,
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config=config)
    if table:
        install(engine, table)
    draw = torch.Generator().manual_seed(1)
    batches = iter([tuple(torch.randn(4, WIDTH, generator=draw) for _ in range(2))
                    for _ in range(STEPS * NUM_MICROBATCHES)])  # fmt: skip
    for _ in range(STEPS):
        loss = engine.train_batch(batches)
    weights = torch.tensor([sum(float(one.double().abs().sum()) for one in net.parameters())], dtype=torch.float64)
    torch.distributed.all_reduce(weights)
    if engine.stage_id == 0:
        print("RESULT", json.dumps([float(loss), float(weights)]), flush=True)


def train(table: Path | None) -> tuple[float, float]:
    """Return loss and sum of weights; raises `RuntimeError` with DeepSpeed's error."""
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={NUM_RANKS}", "--rdzv_backend=c10d",
        "--rdzv_endpoint=localhost:0", str(Path(__file__).resolve()), str(table or ""),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = re.search(r"RESULT (.*)", done.stdout)
    if found is None:
        errors = re.findall(r"\w*(?:Error|Exception).*", done.stderr)
        raise RuntimeError(errors[0] if errors else f"DeepSpeed ended with {done.returncode}")
    loss, weights = json.loads(found[1])
    return loss, weights


def main() -> None:
    """Print a row per table, after a row for DeepSpeed's own schedule."""
    print(f"{'table':<14}{'loss':>12}{'sum of weights':>20}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("its own", *TABLES):
            ready = None
            if name in TABLES:
                table, ready = Path(folder, f"{name}.csv"), Path(folder, f"{name}.json")
                shape = ["--pp", str(NUM_RANKS), "--num-microbatches", str(NUM_MICROBATCHES)]
                for command in (["build", name, *shape, "-o", str(table)],
                                ["export", str(table), "--to", "deepspeed", "-o", str(ready)]):  # fmt: skip
                    subprocess.run([sys.executable, "-m", "ppsim", *command], check=True, capture_output=True)
            loss, weights = train(ready)
            print(f"{name:<14}{loss:>12.8f}{weights:>20.12f}", flush=True)


if __name__ == "__main__":
    run_rank(sys.argv[1]) if "LOCAL_RANK" in os.environ else main()
