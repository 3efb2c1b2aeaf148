"""Options of `ppsim project` that express the same setting; a light import."""

MEGATRON_SPLIT = (
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
)  # fmt: skip

SAME_SETTING: dict[str, tuple[str, ...]] = {
    "microbatches": ("global_batch",),
    "global_batch": ("microbatches",),
    "gpus": ("dp",),
    "dp": ("gpus",),
    "split": MEGATRON_SPLIT,
    "stack": ("compile",),
    "moe_dispatcher": ("moe_flex_dispatcher_num_sms",),
    **dict.fromkeys(MEGATRON_SPLIT, ("split",)),
}
"""Options that express the same setting: a typed option replaces exactly these options of a configuration."""
