"""Run exported tables, and for comparison TorchTitan's own schedules, in TorchTitan's trainer on a CPU.

    pip install torchtitan==0.3.0 'torch>=2.14' .
    python scripts/trainers/run_torchtitan.py            # or with names of `ppsim schedules`

Each table is made as in docs/howto/torchtitan.md: `ppsim build`, `ppsim export --to torch`, and two options of
TorchTitan. TorchTitan's debug Llama trains for three steps on text in the format of TorchTitan's test set. The
script prints the loss and the gradient norm of the last step. TorchTitan has no CPU mode, so `_on_cpu` replaces the
parts that need a GPU, none of them in the pipeline.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, NUM_RANKS, NUM_MICROBATCHES = 3, 4, 8
TABLES = {
    "1f1b": "1F1B", "zb-h1": "1F1B", "zb-1p": "1F1B", "interleaved-1f1b": "Interleaved1F1B",
    "interleaved-zb": "Interleaved1F1B", "gis": "Interleaved1F1B", "zbv-fixed": "ZBVZeroBubble",
    "zbv": "ZBVZeroBubble", "v-half": "ZBVZeroBubble", "v-min": "ZBVZeroBubble",
}  # fmt: skip
"""For each table, TorchTitan's schedule with the same placement, by which TorchTitan splits the model."""


def debug() -> Any:
    """Return the configuration of TorchTitan's debug Llama, with a loss whose parameters a split backward finds."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel_ce_loss

    return llama3_debugmodel_ce_loss()


def run_rank() -> None:
    """Run the `main` of TorchTitan in a process of torchrun."""
    _on_cpu()
    from torchtitan.train import main

    main()


def _on_cpu() -> None:
    """Make the CPU the device, answer queries of a GPU with fixed values, and compute attention uncompiled."""
    import types
    from collections import defaultdict

    import torch
    import torch.nn.functional as F

    torch._utils._get_available_device_type = lambda: "cpu"
    answers: dict[str, Any] = {
        "get_device_name": lambda *_: "CPU",
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=2**34),
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda *_: None,
        "memory_stats": lambda *_: defaultdict(int),
        "device_count": lambda: NUM_RANKS,
    }
    for name, answer in answers.items():
        setattr(torch.cpu, name, answer)

    from torch.nn.attention.flex_attention import create_mask
    from torchtitan.distributed import utils
    from torchtitan.models.common.attention import FlexAttention

    def attend(q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any) -> Any:
        mask = create_mask(block_mask.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        return output, types.SimpleNamespace(lse=None)

    FlexAttention.compiled_flex_attn = staticmethod(attend)
    utils.set_pg_timeouts = lambda *_, **__: None  # the original has a barrier on a device


def train(folder: Path, schedule: str, table: Path | None) -> tuple[str, str]:
    """Return loss and gradient norm of the last step as printed; raises `RuntimeError` with TorchTitan's error."""
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={NUM_RANKS}", "--rdzv_backend=c10d",
        "--rdzv_endpoint=localhost:0", "--role=rank", "--tee=3", str(Path(__file__).resolve()),
        "--module", "run_torchtitan", "--config", "debug", "--dump-folder", str(folder / "out"),
        "--hf-assets-path", str(folder / "tokenizer"),
        "--parallelism.pipeline-parallel-degree", str(NUM_RANKS),
        "--parallelism.pipeline-parallel-schedule", schedule,
        *(["--parallelism.pipeline-parallel-schedule-csv", str(table)] if table else []),
        "--training.local-batch-size", str(NUM_MICROBATCHES), "--training.seq-len", "64",
        "--training.steps", str(STEPS), "--training.disable-cuda-graphs", "--debug.seed", "1",
        "activation-checkpoint:none",
    ]  # fmt: skip
    paths = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    found = re.findall(rf"step: +{STEPS} +loss: +([\d.]+) +grad_norm: +([\d.]+)", text)
    if not found:
        errors = re.findall(r"\w*(?:Error|Exception): .*", text)
        raise RuntimeError(errors[0] if errors else f"TorchTitan ended with {done.returncode} and no step")
    return found[0]


def write_assets(folder: Path) -> None:
    """Write a tokenizer of single letters, and a text for TorchTitan's `c4_test`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = [chr(code) for code in range(32, 127)]
    tokenizer = Tokenizer(models.WordLevel({letter: place for place, letter in enumerate(letters)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    text = folder / "tests" / "assets" / "c4_test" / "data.json"
    text.parent.mkdir(parents=True)
    draw = random.Random(0)
    words = ["pipelines", "fill", "and", "drain", "with", "bubbles", "between", "the", "ranks"]
    text.write_text("".join(json.dumps({"text": " ".join(draw.choices(words, k=100))}) + "\n" for _ in range(400)))


def exported(folder: Path, name: str) -> Path:
    """Return the file of a table for TorchTitan, made with the commands of docs/howto/torchtitan.md."""
    table, ready = folder / f"{name}.csv", folder / f"{name}.ready.csv"
    shape = ["--pp", str(NUM_RANKS), "--num-microbatches", str(NUM_MICROBATCHES)]
    for command in (["build", name, *shape, "-o", str(table)],
                    ["export", str(table), "--to", "torch", "-o", str(ready)]):  # fmt: skip
        subprocess.run([sys.executable, "-m", "ppsim", *command], check=True, capture_output=True, text=True)
    return ready


def main() -> None:
    """Print a row per table: loss and gradient norm, also with TorchTitan's own schedule of the same placement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"of {', '.join(TABLES)}")
    names = parser.parse_args().tables
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"unknown table {unknown[0]}: there are {', '.join(TABLES)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_assets(folder)
        own = {
            schedule: train(folder, schedule, None) for schedule in dict.fromkeys(TABLES[name] for name in names)
        }
        print(f"{'table':<18}{'loss':>10}{'norm':>9}   TorchTitan's own{'loss':>12}{'norm':>9}", flush=True)
        for name in names:
            schedule = TABLES[name]
            loss, norm = train(folder, schedule, exported(folder, name))
            theirs = own[schedule]
            print(f"{name:<18}{loss:>10}{norm:>9}   {schedule:<17}{theirs[0]:>11}{theirs[1]:>9}", flush=True)


if __name__ == "__main__":
    run_rank() if "LOCAL_RANK" in os.environ else main()
