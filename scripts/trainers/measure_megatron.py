"""Measure the chunks of a Megatron-Core GPT on one device, and write a profile for projections of any pipeline.

    pip install megatron-core 'torch>=2.13' .
    python scripts/trainers/measure_megatron.py --layers 16 --hidden 128 --heads 8 --pp 4 --vpp 2 -o chunks.json
    ppsim project --profile chunks.json --pp 8 --vpp 2 --schedule all

On a GPU, the script uses bfloat16, and TransformerEngine if it is installed. On a CPU, it uses float32 and the
parts of Megatron-Core that need no GPU kernels. In your own training script, call
`ppsim.integrations.megatron.measure` with its `model_provider` and configuration.
"""

import argparse
import importlib.util
import warnings
from typing import Any

warnings.filterwarnings("ignore", module="megatron")


def model_provider(pre_process: bool, post_process: bool, config: Any) -> Any:
    """Return a chunk of a GPT, like the `model_provider` of Megatron-LM."""
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs

    has_engine = importlib.util.find_spec("transformer_engine") is not None and not config.use_cpu_initialization
    with_engine, local = (
        gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec, gpt_layer_specs.get_gpt_layer_local_spec,
    )  # fmt: skip
    return GPTModel(
        config, (with_engine if has_engine else local)(), vocab_size=8192, max_sequence_length=8192,
        pre_process=pre_process, post_process=post_process,
    )  # fmt: skip


def configuration(given: argparse.Namespace) -> Any:
    """Return the `TransformerConfig` of the options; without a GPU, GPU kernels are disabled."""
    import torch
    from megatron.core.transformer import TransformerConfig

    on_gpu = torch.cuda.is_available()
    kernels = ("masked_softmax_fusion", "bias_dropout_fusion", "persist_layer_norm")
    return TransformerConfig(
        num_layers=given.layers, hidden_size=given.hidden, num_attention_heads=given.heads,
        tensor_model_parallel_size=given.tp, pipeline_model_parallel_size=given.pp,
        virtual_pipeline_model_parallel_size=given.vpp if given.vpp > 1 else None,
        bf16=on_gpu, params_dtype=torch.bfloat16 if on_gpu else torch.float32,
        pipeline_dtype=torch.bfloat16 if on_gpu else torch.float32,
        hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
        use_cpu_initialization=not on_gpu, **({} if on_gpu else dict.fromkeys(kernels, False)),
    )  # fmt: skip


def main() -> None:
    """Write the profile, and print the progress of the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {
        "layers": 16, "hidden": 128, "heads": 8, "tp": 1, "pp": 4, "vpp": 2, "micro-batch": 1, "seq-len": 256,
        "repeats": 30,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("-o", "--output", default="chunks.json", help="profile to write, default chunks.json")
    given = parser.parse_args()
    from ppsim.integrations.megatron import measure

    measure(
        model_provider, configuration(given), micro_batch=given.micro_batch, sequence_length=given.seq_len,
        vocab_size=8192, output=given.output, say=print, num_repeats=given.repeats,
    )  # fmt: skip


if __name__ == "__main__":
    main()
