"""Options of `ppsim project` that express the same setting; a light import."""

from collections.abc import Collection, Mapping
from typing import Any

COUNTED_IN_SPLIT = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
MEGATRON_SPLIT = (*COUNTED_IN_SPLIT, "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")

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

_BOTH = {"overlap_dp": ("overlap_grad_reduce", "overlap_param_gather")}
"""Options that set several others."""


def each_setting(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace options that set several others; an option that is given itself keeps its value.

    >>> each_setting({"overlap_dp": False, "overlap_grad_reduce": True})
    {'overlap_dp': None, 'overlap_grad_reduce': True, 'overlap_param_gather': False}
    """
    settings = dict(options)
    for name in _BOTH.keys() & settings.keys():
        value, settings[name] = settings[name], None
        if value is not None:
            settings |= {one: value for one in _BOTH[name] if settings.get(one) is None}
    return settings


def is_among(word: str, given: Any, values: Collection[Any]) -> bool:
    """Return whether an option has one of the values; --recompute, whether any layer or any module has one.

    >>> is_among("recompute", "block/2", ["full"]), is_among("recompute", "mlp+moe", ["moe"])
    (True, True)
    """
    if word != "recompute" or not isinstance(given, str):
        return given in values
    from ppsim.model.recompute import words_of_layers  # heavy import

    return any(part in values for layers in words_of_layers(given) for part in layers.split("+"))
