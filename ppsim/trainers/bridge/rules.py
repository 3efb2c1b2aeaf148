"""Rules of Megatron-Core and Megatron-Bridge, checked for options that are given next to a recipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.user_defaults import runs_deepep
from ppsim.catalog.build import schedule_named
from ppsim.trainers.same_settings import is_among
from ppsim.trainers.write_schedule import is_run_by


@dataclass(frozen=True)
class OptionRule:
    """`refuses` tests all options in force; `source` is the trainer's file."""

    options: tuple[str, ...]
    refuses: Callable[[Mapping[str, Any]], bool]
    sentence: str
    source: str


def overlaps_experts(options: Mapping[str, Any]) -> bool:
    return str(options.get("overlap_ep")).startswith("megatron")


def _has_pipeline(options: Mapping[str, Any]) -> bool:
    return (options.get("pp") or 1) > 1


def _cluster_name(options: Mapping[str, Any]) -> str:
    cluster = options.get("cluster")
    return str(getattr(cluster, "name", cluster))


RULES = (
    OptionRule(
        ("schedule",),
        lambda options: not is_run_by("megatron", schedule_named(options.get("schedule") or "1f1b")),
        "its pipeline has the schedules {schedules}",
        "megatron/core/pipeline_parallel/schedules.py",
    ),
    OptionRule(
        ("overlap_ep", "pp", "vpp"),
        lambda options: overlaps_experts(options) and _has_pipeline(options) and (options.get("vpp") or 1) < 2,
        "the overlap of expert-parallel communication in a pipeline needs --vpp 2 or more",
        "training/comm_overlap.py",
    ),
    OptionRule(
        ("overlap_ep", "recompute"),
        lambda options: (
            overlaps_experts(options) and is_among("recompute", options.get("recompute"), ("full", "moe"))
        ),
        "the overlap of expert-parallel communication does not go with --recompute full or moe",
        "training/comm_overlap.py",
    ),
    OptionRule(
        ("overlap_ep", "ep"),
        lambda options: overlaps_experts(options) and (options.get("ep") or 1) < 2,
        "the overlap of expert-parallel communication needs --ep 2 or more",
        "training/comm_overlap.py",
    ),
    OptionRule(
        ("offload", "pp"),
        lambda options: bool(options.get("offload")) and _has_pipeline(options),
        "activation offload by layers (--offload) needs --pp 1",
        "megatron/core/transformer/transformer_config.py",
    ),
    OptionRule(
        ("offload", "recompute"),
        lambda options: bool(options.get("offload")) and options.get("recompute") not in (None, "none"),
        "activation offload by layers (--offload) does not go with --recompute",
        "megatron/core/transformer/transformer_config.py",
    ),
    OptionRule(
        ("moe_dispatcher", "cluster"),
        lambda options: options.get("moe_dispatcher") == "deepep" and not runs_deepep(_cluster_name(options)),
        "DeepEP runs on Hopper, B200 and B300, not on GB200 and GB300",
        "training/flex_dispatcher_backend.py",
    ),
)
