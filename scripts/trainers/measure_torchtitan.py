"""Measure the chunks of TorchTitan's debug Llama in TorchTitan's trainer on a CPU, and write a profile.

    pip install torchtitan==0.3.0 'torch>=2.14' .
    python scripts/trainers/measure_torchtitan.py -o chunks.json

The trainer is created by TorchTitan's code in one process, with its fake process groups. `run_torchtitan._on_cpu`
replaces the parts that need a GPU.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run_torchtitan import NUM_MICROBATCHES, NUM_RANKS, _on_cpu, write_assets


def main() -> None:
    """Write the profile of the chunks, and print the progress of the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="chunks.json")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("options", nargs="*", help="more options of TorchTitan")
    given = parser.parse_args()
    output = Path(given.output).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        write_assets(Path(temporary))
        os.chdir(temporary)
        os.environ |= {"NGPU": str(NUM_RANKS), "RANK": "0", "LOCAL_RANK": "0"}
        _on_cpu()
        from torchtitan.config import ConfigManager
        from torchtitan.trainer import Trainer

        from ppsim.integrations.torchtitan import measure

        config = ConfigManager().parse_args([
            "--module", "run_torchtitan", "--config", "debug", "--dump-folder", "out",
            "--hf-assets-path", "tokenizer", "--comm.mode", "fake_backend",
            "--parallelism.pipeline-parallel-degree", str(NUM_RANKS),
            "--training.local-batch-size", str(NUM_MICROBATCHES), "--training.seq-len", "64",
            "--training.disable-cuda-graphs", "activation-checkpoint:none", *given.options,
        ])  # fmt: skip
        trainer = Trainer(config)
        measure(trainer, output=output, say=print, num_repeats=given.repeats)


if __name__ == "__main__":
    main()
