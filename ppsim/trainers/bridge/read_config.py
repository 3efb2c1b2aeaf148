"""Reader of the YAML or JSON that Megatron-Bridge and NeMo write for a run."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from ppsim.base.errors import ConfigError
from ppsim.trainers.arguments import Arguments, megatron_names, megatron_names_of
from ppsim.trainers.megatron.read_config import from_megatron
from ppsim.trainers.option_relevance import effect_of, require_no_sizes
from ppsim.trainers.run_config import IgnoredOption, RunConfig

_SECTIONS = ("model", "train", "dataset", "data", "optimizer", "ddp", "tokenizer", "mixed_precision", "trainer",
             "strategy", "plugins", "config", "comm_overlap", "dist", "checkpoint", "scheduler", "rng")  # fmt: skip
_OTHER_MODELS = re.compile("megatron_(bart|bert|t5|ul2|retro|griffin|mamba|gpt_hyena)")
_INERT_SECTIONS = ("exp_manager", "logger")
_OWN_SECTIONS = {"train", "ddp", "mixed_precision", "comm_overlap", "trainer", "strategy", "plugins"}


def claims(content: Mapping[str, Any]) -> bool:
    """A model with Megatron-Core's names, or a model beside sections that only Megatron-Bridge and NeMo write."""
    model = content.get("model") or content.get("config")
    if not isinstance(model, dict):
        return False
    has_names = bool({"num_layers", "hidden_size", "tensor_model_parallel_size", "seq_length"} & model.keys())
    return has_names or bool(_OWN_SECTIONS & content.keys()) or "megatron.bridge" in str(model.get("_target_"))


def from_sections(content: Mapping[str, Any], path: str | Path) -> RunConfig:
    """Raises `ConfigError` for NeMo's encoders and recurrent models, and for parallel sizes in another section.

    A file without sizes of the model changes a recipe of Megatron-Bridge or a checkpoint of NeMo.
    """
    source = str(path)
    flat: dict[str, Any] = {}
    others: dict[str, Any] = {}
    _flatten(resolved(content), flat, others)
    if _OTHER_MODELS.match(name := str(content.get("name"))) and not flat.get("hybrid_override_pattern"):
        raise ConfigError(f"{source}: a model {name} is not known, only decoders as GPT")
    require_no_sizes(others, source)
    for name in ("precision", "mixed_precision"):
        if settings := _of_precision(flat.get(name), is_bridge=name == "mixed_precision"):
            flat = {one: value for one, value in flat.items() if one != name} | settings
    if isinstance(optim := others.get("optim"), dict):
        flat |= _of_optimizer(optim)
    if "glu" in str(flat.get("activation")):  # NeMo 1: swiglu, fast-swiglu, geglu, reglu
        flat |= {"swiglu": True, "activation": None}
    flat.setdefault("group_query_attention", bool(flat.get("num_query_groups")))
    if flat.get("ffn_hidden_size") is None and isinstance(hidden := flat.get("hidden_size"), int):
        flat["ffn_hidden_size"] = 4 * hidden  # Megatron-Core's default (transformer_config.py), also if it is gated
    config = from_megatron(Arguments(megatron_names(flat), source, is_partial=True), "Megatron-Bridge or NeMo")
    sections = tuple(
        IgnoredOption(name, value, matters) for name, value in others.items() if (matters := effect_of(name))
    )
    reason = "without sizes of the model, the recipe or the checkpoint decides {}"
    needed = {
        word: (reason.format(option), f"--{word}")
        for word, option in (("tp", "tensor_model_parallel_size"), ("pp", "pipeline_model_parallel_size"))
        if isinstance(path, Path) and not flat.get("hidden_size") and flat.get(option) is None  # no recipe
    }
    options = {name: value for name, value in config.options.items() if name not in needed}
    return replace(
        config, options={**options, "stack": "megatron-bridge"}, ignored=(*config.ignored, *sections),
        needed={**config.needed, **needed},
    )  # fmt: skip


_RESOLVERS: dict[str, Callable[..., int]] = {
    "multiply": lambda left, right: left * right,
    "divide_ceil": lambda size, parts: math.ceil(size / parts),
    "divide_floor": lambda size, parts: math.floor(size / parts),
    "sum": lambda *numbers: sum(numbers),
}
"""Functions that NeMo's launcher registers with OmegaConf (launcher_scripts/main.py)."""


def resolved(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with OmegaConf's references (`${.sibling}`, `${section.name}`) replaced by their values.

    A reference that cannot be resolved stays as written.
    """
    if "${" not in str(content):
        return dict(content)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with catch_warnings():
        simplefilter("ignore")  # 2.4 has a new name for it, which 2.3 lacks
        for name, function in _RESOLVERS.items():
            OmegaConf.register_new_resolver(name, function, replace=True)

    def value_of(node: Any, name: Any) -> Any:
        try:
            inner = node[name]
        except OmegaConfBaseException:
            return OmegaConf.to_container(node)[name]  # type: ignore[index]
        return values_of(inner) if OmegaConf.is_config(inner) else inner

    def values_of(node: Any) -> Any:
        if OmegaConf.is_list(node):
            return [value_of(node, index) for index in range(len(node))]
        return {name: value_of(node, name) for name in node}

    return dict(values_of(OmegaConf.create(dict(content))))


def _of_precision(name: Any, *, is_bridge: bool) -> dict[str, Any]:
    """Return the settings of a named number format, {} for an unknown name.

    Names are from NeMo (`precision`: bf16-mixed, 16, 32) or Megatron-Bridge (`mixed_precision`:
    bf16_with_mxfp8_mixed; training/mixed_precision.py at 067f987d).
    """
    text = str(name).lower().replace("-", "_")
    if not re.search("16|32", text):
        return {}
    is_bfloat16 = "bf16" in text
    arguments: dict[str, Any] = {"bf16": is_bfloat16, "fp16": "16" in text and not is_bfloat16}
    if is_bridge:
        arguments["grad_reduce_in_fp32"] = is_bfloat16
    if "nvfp4" in text:
        return arguments | {"fp4": "e2m1", "fp4_param_gather": True}
    if "mxfp8" in text:
        recipe = {"fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True}
        return arguments | {"fp8": "e4m3"} | recipe
    if "subchannel" in text:
        return arguments | {"fp8": "hybrid", "fp8_recipe": "blockwise"}
    if "fp8" in text:
        recipe = {"fp8_recipe": "delayed" if "delayed" in text else "tensorwise", "fp8_param_gather": True}
        return arguments | {"fp8": "hybrid", "first_last_layers_bf16": "current" in text} | recipe
    return arguments


_OVERLAPPING = {"distributed_fused_adam": True, "mcore_distributed_optim": False}
"""NeMo 1's distributed optimizers, with their defaults of `overlap_grad_sync` (apex, `DistributedFusedAdam`; NeMo,
megatron_gpt_model.py).
"""


def _of_optimizer(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of NeMo 1's `optim`, {} without a distributed optimizer."""
    if (name := str(optim.get("name"))) not in _OVERLAPPING:
        return {}
    return {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": optim.get("overlap_grad_sync", _OVERLAPPING[name]),
        "overlap_param_gather": optim.get("overlap_param_sync", False),
    }


def _flatten(content: Mapping[str, Any], flat: dict[str, Any], others: dict[str, Any]) -> None:
    for name, value in content.items():
        *sections, field = str(name).split(".")
        if isinstance(value, dict):
            if field in _SECTIONS:
                _flatten(value, flat, others)
            elif field not in _INERT_SECTIONS and any(value.values()):
                others[str(name)] = value
        elif not sections or all(section in _SECTIONS for section in sections):
            flat.setdefault(megatron_names_of("bridge").get(field, field), value)
        elif value:
            others[str(name)] = value
