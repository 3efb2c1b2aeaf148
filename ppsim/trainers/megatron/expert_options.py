"""Megatron-LM's arguments for the token exchange of experts, and for CUDA graphs."""

import re
from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.machine.defaults import FLEX
from ppsim.model.cuda_graphs import MODULES, cuda_graphs_of
from ppsim.trainers.arguments import Arguments

_DISPATCHERS = {"alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": "allgather"}
"""For flex, `--moe-flex-dispatcher-backend` selects one of `FLEX`, by default the first."""


_SMS = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}


def experts_of(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    """With `is_partial` (Megatron-Bridge, NeMo), options that the file leaves out stay unset."""
    words: dict[str, Any] = {}
    if not arguments.count("num_experts", least=0):
        return words
    default = None if is_partial else "allgather"
    given = arguments.get("moe_token_dispatcher_type", default, word="moe_dispatcher")
    arguments.get("moe_enable_deepep", word="moe_dispatcher")
    backend = str(arguments.get("moe_flex_dispatcher_backend", word="moe_dispatcher") or FLEX[0])
    for name, value, known in (
        ("moe_token_dispatcher_type", given, (*_DISPATCHERS, "flex")),
        ("moe_flex_dispatcher_backend", backend, FLEX),
    ):
        if value is not None and str(value) not in known:
            raise ConfigError(f"{arguments.source}: {name} must be {', '.join(known)}: got {value!r}")
    words["moe_dispatcher"] = backend if given == "flex" else _DISPATCHERS.get(str(given))
    words["moe_flex_dispatcher_num_sms"] = _dispatcher_sms(arguments, words["moe_dispatcher"])
    capacity = arguments.get("moe_expert_capacity_factor", word="moe_expert_capacity_factor")
    if capacity is not None:
        if isinstance(capacity, bool) or not isinstance(capacity, int | float) or capacity <= 0:
            raise ConfigError(
                f"{arguments.source}: moe_expert_capacity_factor must be a number above 0: got {capacity!r}"
            )
        words["moe_expert_capacity_factor"] = float(capacity)
        if not arguments.flag("moe_pad_expert_input_to_capacity", word="moe_expert_capacity_factor"):
            arguments.assumed.append("experts with fewer tokens than their capacity are taken to be padded to it")
    legacy = arguments.flag("moe_use_legacy_grouped_gemm", word="moe_use_legacy_grouped_gemm")
    words["moe_use_legacy_grouped_gemm"] = legacy or None
    permutes = arguments.flag("moe_permute_fusion", default=is_partial, word="moe_permute_fusion")
    without_sync = arguments.get("turbo_sync_free_moe_stage", 0, word="moe_permute_fusion")  # Primus, from 1 on
    words["moe_permute_fusion"] = None if permutes or without_sync else False
    room, stash = "moe_expert_rank_capacity_factor", "moe_paged_stash"
    words |= {
        "fused_experts": arguments.flag("use_transformer_engine_op_fuser", word="fused_experts") or None,
        room: arguments.get(room, word=room),
        stash: arguments.get("moe_paged_stash_buffer_size_factor_cuda", 1.1, word=stash)
        if arguments.flag(stash, word=stash)
        else None,
    }
    if arguments.flag("moe_router_force_load_balancing", word="expert_imbalance"):
        words["expert_imbalance"] = 1.0
    return words


def _dispatcher_sms(arguments: Arguments, dispatcher: str | None) -> int | None:
    """`moe_flex_dispatcher_num_sms` of Megatron-LM 0.19 replaces the option of each backend."""
    word = "moe_flex_dispatcher_num_sms"
    found = {name: arguments.count(name, word=word) for name in (word, *_SMS.values())}
    if dispatcher not in _SMS:
        return None
    return found[word] or found[_SMS[dispatcher]]


def cuda_graphs_in(arguments: Arguments) -> dict[str, Any]:
    how = arguments.get("cuda_graph_impl", word="cuda_graphs")
    for name, meant in (("enable_cuda_graph", "local"), ("external_cuda_graph", "transformer_engine")):
        if arguments.flag(name, word="cuda_graphs") and how in (None, "none"):
            how = meant
    scopes = [arguments.get(name, word="cuda_graphs") for name in ("cuda_graph_modules", "cuda_graph_scope")]
    if how is None or how == "none":
        return {}
    asked = re.findall(r"\w+", " ".join(_text(one) for one in scopes if one is not None))
    if how == "full_iteration" or "full_iteration" in asked:
        return {"cuda_graphs": "full"}
    modules = [module for module in asked if module not in ("full", "full_iteration_inference")]
    if other := [module for module in modules if module not in MODULES]:
        arguments.assumed.append(f"not captured, since unknown: {', '.join(other)}")
    known = "+".join(module for module in modules if module in MODULES)
    return {"cuda_graphs": cuda_graphs_of(known) if known else "layer"}


def _text(scope: Any) -> str:
    return " ".join(map(str, scope)) if isinstance(scope, list | tuple) else str(scope)


def arguments_of_experts(words: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if dispatcher := words.get("moe_dispatcher"):
        found["moe_token_dispatcher_type"] = "flex" if dispatcher in FLEX else dispatcher
        if dispatcher in FLEX:
            found["moe_flex_dispatcher_backend"] = dispatcher
            if sms := words.get("moe_flex_dispatcher_num_sms"):
                found[_SMS[dispatcher]] = sms
        if words.get("moe_permute_fusion", True):
            found["moe_permute_fusion"] = True
    if capacity := words.get("moe_expert_capacity_factor"):
        found |= {"moe_expert_capacity_factor": capacity, "moe_pad_expert_input_to_capacity": True}
    if words.get("moe_use_legacy_grouped_gemm"):
        found["moe_use_legacy_grouped_gemm"] = True
    if words.get("fused_experts"):
        found["use_transformer_engine_op_fuser"] = True
    if room := words.get("moe_expert_rank_capacity_factor"):
        found["moe_expert_rank_capacity_factor"] = room
    if stash := words.get("moe_paged_stash"):
        found |= {"moe_paged_stash": True, "moe_paged_stash_buffer_size_factor_cuda": stash}
    graphs = words.get("cuda_graphs", "none")
    if graphs == "full":
        found["cuda_graph_impl"] = "full_iteration"
    elif graphs != "none":
        found["cuda_graph_impl"] = "transformer_engine"
        if graphs != "layer":
            found["cuda_graph_modules"] = graphs.split("+")
    return found
