"""What Megatron-core builds of arguments and layouts: python megatron_layers.py, with two lists as JSON on stdin.

`counts` holds [arguments, layers of each stage], of which the real `get_num_layers_to_build` is to make those layers;
`texts` layouts, which the real parser is to read as [text, stages], or to refuse where stages is null. Prints a line
for each that it sees otherwise, and how many there were.
"""

import json
import sys
import warnings

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def built(arguments, layers):
    """The layers that Megatron-core builds on each stage; the virtual size as validate_args finds it."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    pp, num_layers = arguments["pipeline-model-parallel-size"], sum(layers)
    counted = [arguments.get(f"account-for-{name}-in-pipeline-split", False) for name in ("embedding", "loss")]
    ends = [arguments.get(f"decoder-{name}-pipeline-num-layers") for name in ("first", "last")]
    virtual = arguments.get("num-virtual-stages-per-pipeline-rank", 1)
    if chunk := arguments.get("num-layers-per-virtual-pipeline-stage"):
        assert ends == [None, None], "please use --num-virtual-stages-per-pipeline-rank"
        assert virtual == 1, "no more than one"
        virtual = (num_layers + sum(counted)) // pp // chunk
    config = TransformerConfig(
        num_layers=num_layers, hidden_size=8, num_attention_heads=1, pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None, pipeline_dtype=torch.bfloat16,
        account_for_embedding_in_pipeline_split=counted[0], account_for_loss_in_pipeline_split=counted[1],
        num_layers_in_first_pipeline_stage=ends[0], num_layers_in_last_pipeline_stage=ends[1],
    )  # fmt: skip
    parallel_state.set_virtual_pipeline_model_parallel_world_size(virtual)
    return [get_num_layers_to_build(config, vp_stage=s // pp, pp_rank=s % pp) for s in range(pp * virtual)]


def read(text, _):
    """The stages that Megatron-core's parser reads, None where it refuses the text."""
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    try:
        stages = PipelineParallelLayerLayout.parse_str_to_list(text)
    except AssertionError:
        return None
    return ["".join(LETTERS[layer.name] for layer in stage) for stage in stages]


def main():
    warnings.filterwarnings("ignore")  # Megatron-core's, on Transformer Engine and Apex
    given = json.load(sys.stdin)
    for see, cases in ((built, given["counts"]), (read, given["texts"])):
        for case, wanted in cases:
            try:
                found = see(case, wanted)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found != wanted:
                print(json.dumps([case, wanted, found]))
    print(len(given["counts"]), len(given["texts"]))


if __name__ == "__main__":
    main()
