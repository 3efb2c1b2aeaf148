"""Chunks of Megatron-core's own GPTModel, measured on a CPU: python megatron_chunks.py FOLDER. Prints JSON.

In a process of its own (with -W ignore): Megatron-core warns of what is not installed, and its process groups are
the process's.
"""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils

from ppsim.base.errors import ConfigError
from ppsim.integrations.megatron import measure

SHAPE = {"micro_batch": 2, "sequence_length": 32, "vocab_size": 256}
FEW = {"num_repeats": 3, "num_warm_up": 1}
HELD = ("activation_bytes", "activation_bytes_kept_for_weight", "parameters", "forward_flops", "output_bytes")


def config_of(num_layers, **fields):
    """A small GPT with no kernel that needs a GPU."""
    return TransformerConfig(**{
        "num_layers": num_layers, "hidden_size": 32, "num_attention_heads": 4, "pipeline_dtype": torch.float32,
        "use_cpu_initialization": True, "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias_dropout_fusion": False,
        "masked_softmax_fusion": False, "persist_layer_norm": False, "gradient_accumulation_fusion": False, **fields,
    })  # fmt: skip


def dense(pre_process=True, post_process=True, vp_stage=None, config=None):
    """As Megatron-LM's `model_provider`."""
    spec = get_gpt_layer_local_spec(normalization=config.normalization)
    return GPTModel(
        config, spec, vocab_size=SHAPE["vocab_size"], max_sequence_length=64, pre_process=pre_process,
        post_process=post_process, vp_stage=vp_stage, position_embedding_type="rope",
    )  # fmt: skip


def mixed(pre_process=True, post_process=True, vp_stage=None, config=None):
    """The same with dense layers and mixtures of experts."""
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
    return GPTModel(
        config, spec, vocab_size=SHAPE["vocab_size"], max_sequence_length=64, pre_process=pre_process,
        post_process=post_process, vp_stage=vp_stage, position_embedding_type="rope",
    )  # fmt: skip


def held(content):
    """The numbers of each chunk that no clock has to do with."""
    return {chunk["contents"]: {name: chunk[name] for name in HELD} for chunk in content["chunks"]}


def refusal(provider, config):
    """What `measure` says of a model that it cannot measure."""
    try:
        measure(provider, config, **SHAPE, **FEW)
    except ConfigError as error:
        return str(error)
    return None


def main(folder):
    """Measure a model in two pipelines, a shard, a mixture of experts in 16 bit, and ask for what is refused."""
    gc.freeze()  # the harness collects garbage before it measures, and torch's own takes long to look through
    found = {}
    config = config_of(8, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    before = dict(vars(config))
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)  # Megatron-LM's own, say
    content = measure(dense, config, splits=[[3, 5], [1, 3, 3, 1]], output=folder / "chunks.json", **SHAPE, **FEW)
    found["chunks"] = held(content)
    found["restored"] = dict(vars(config)) == before and not dist.is_initialized()
    found["layout"] = held(measure(dense, config_of(
        8, pipeline_model_parallel_size=2, pipeline_model_parallel_layout="E|ttt|tttt|tL",
    ), **SHAPE, **FEW))  # fmt: skip
    llama = {"normalization": "RMSNorm", "gated_linear_unit": True, "add_bias_linear": False}
    found["shard"] = held(measure(
        dense, config_of(4, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, **llama), **SHAPE, **FEW
    ))  # fmt: skip
    moe_utils.te_general_gemm = None  # 0.16.1 does not define it without TransformerEngine
    experts = config_of(
        6, pipeline_model_parallel_size=3, num_moe_experts=4, moe_layer_freq=[0, 1, 1, 1, 1, 1], moe_router_topk=2,
        moe_ffn_hidden_size=32, moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none",
        bf16=True, params_dtype=torch.bfloat16, **llama,
    )  # fmt: skip
    content = measure(mixed, experts, output=folder / "mixed.json", **SHAPE, **FEW)
    found["kinds"], found["dtype"] = content["model"]["layer_kinds"], content["chunks"][0]["shape"]["dtype"]

    def stubborn(pre_process, post_process):
        return dense(pre_process, post_process, config=config_of(2))

    found["stubborn"] = refusal(stubborn, config_of(4, pipeline_model_parallel_size=2))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found["sends"] = refusal(dense, config)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
