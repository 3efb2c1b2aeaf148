"""Parameters with gradients in Megatron-core's own GPTModel on a CPU: python megatron_trained.py. Prints JSON.

Each case of the list on stdin freezes parts of a model or puts adapters on modules: an input matrix to the rank and
one to the output of the module, added to its output, as Megatron-Bridge's `ParallelLinearAdapter` (067f987).
"""

import contextlib
import json
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import moe_utils
from megatron_chunks import config_of, dense, mixed

SIZES = {
    "normalization": "RMSNorm", "gated_linear_unit": True, "add_bias_linear": False, "num_query_groups": 2,
    "ffn_hidden_size": 96, "qk_layernorm": True,
}  # fmt: skip
EXPERTS = {
    "num_moe_experts": 4, "moe_layer_freq": [0, 1, 1], "moe_router_topk": 2, "moe_ffn_hidden_size": 48,
    "moe_token_dispatcher_type": "allgather", "moe_router_load_balancing_type": "none",
}  # fmt: skip
PARTS = {
    "embedding": ("embedding.",),
    "attention": ("self_attention.linear",),
    "mlp": ("mlp.linear_fc",),
    "experts": ("mlp.experts.",),
    "router": ("mlp.router.",),
    "norms": ("layernorm",),
    "head": ("output_layer.",),
}
"""Parts of parameter names for each word of --freeze."""


class Adapted(torch.nn.Module):
    """A linear module with an adapter."""

    def __init__(self, module, rank):
        super().__init__()
        self.module = module
        outputs, inputs = module.weight.shape
        self.linear_in = torch.nn.Linear(inputs, rank, bias=False)
        self.linear_out = torch.nn.Linear(rank, outputs, bias=False)

    def forward(self, x, *arguments, **keywords):
        """Return the module's output and bias, with the adapter's output added."""
        out, bias = self.module(x, *arguments, **keywords)
        return out + self.linear_out(self.linear_in(x)), bias


def frozen(model, words):
    """Freeze the parameters of these words."""
    for name, parameter in model.named_parameters():
        layers = [word.partition("@")[2] for word in words if word.startswith("layers@")]
        is_in_layers = any(
            name.startswith(f"decoder.layers.{number}.")
            for one in layers
            for number in range(int(one.split("-")[0]), int(one.split("-")[-1]) + 1)
        )
        is_dense = "mlp.experts" not in name and "mlp.router" not in name
        parts = [part for word in words if word in PARTS for part in PARTS[word] if word != "mlp" or is_dense]
        if is_in_layers or any(part in name for part in parts):
            parameter.requires_grad_(False)


def adapted(model, rank, modules):
    """Freeze all parameters, and put adapters on the modules with these names."""
    model.requires_grad_(False)
    for layer in model.decoder.layers:
        for part in (layer.self_attention, layer.mlp):
            for name in modules:
                if hasattr(part, name):
                    setattr(part, name, Adapted(getattr(part, name), rank))


def trained(case):
    """Elements of the parameters that have a gradient after a backward, by the word or adapter they belong to."""
    torch.manual_seed(0)
    build, others = (mixed, EXPERTS) if case["experts"] else (dense, {})
    model = build(config=config_of(3, **SIZES, **others))
    if case["modules"]:
        adapted(model, case["rank"], case["modules"])
    else:
        frozen(model, case["freeze"])
    ids = torch.arange(16).reshape(1, 16) % 256
    mask = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1).reshape(1, 1, 16, 16)
    model(ids, ids, mask, labels=ids).sum().backward()
    named = list(model.named_parameters())
    with_gradient = sum(one.numel() for _, one in named if one.grad is not None)
    assert with_gradient == sum(one.numel() for _, one in named if one.requires_grad)
    return {"trained": with_gradient, "frozen": sum(one.numel() for _, one in named) - with_gradient}


def main():
    """Build one model per case."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    megatron_random.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    torch.cuda.current_device = lambda: torch.device("cpu")
    moe_utils.te_general_gemm = None  # 0.16.1 does not define it without TransformerEngine
    print(json.dumps([trained(case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
