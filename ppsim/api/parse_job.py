"""A training job on a cluster."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from ppsim.api.keyword_options import accept_options
from ppsim.api.option_values import parse_compute_scale, parse_overlap
from ppsim.api.trainer_configuration import require_no_job, with_run_config
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options, field_values, flag_of, given_options, require_least
from ppsim.costs.job import Job
from ppsim.costs.profile import profile_of
from ppsim.machine.cluster import Cluster
from ppsim.machine.cluster_files import cluster_of
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import Attention
from ppsim.model.cuda_graphs import cuda_graphs_of
from ppsim.model.encoder import image_tokens_of
from ppsim.model.execution import Execution, hidden_tp_of
from ppsim.model.fine_tuning import freeze_of, lora_of
from ppsim.model.offloading import OffloadRules, offload_modules_of
from ppsim.model.optimizer import Optimizer, Precision
from ppsim.model.recompute import recompute_of, require_enough_layers
from ppsim.model.registry import gpt
from ppsim.parallel.layout import Layout, fewest_replicas, layout_on
from ppsim.projection.options import GPT, JobOptions
from ppsim.trainers.run_config import RunConfig

_WORDS = declared_options(JobOptions)


@accept_options(JobOptions)
def job(**options: Unpack[JobOptions]) -> Job:
    """Return a training job: a `model` on a `cluster`, and its division among `gpus`.

    Options and defaults are as for `ppsim project`. model is a name in `ppsim.models()` or a Hugging Face
    config.json, cluster a name in `ppsim.clusters()`, a file or a `Cluster`. Raises `ConfigError` for an invalid
    combination.

    >>> import ppsim
    >>> made = ppsim.job(model="llama3-70b", gpus=256, tp=8, pp=4, global_batch=512)
    >>> made.layout.dp, made.num_microbatches
    (8, 64)
    """
    parsed = job_of_options(with_run_config(options))
    if parsed is None:
        raise ConfigError("--model must be given")
    return parsed


def job_of_options(options: Mapping[str, Any]) -> Job | None:
    """Return None if the options have no model; raises `ConfigError` for job options without a model.

    An error that names an option of the stack says how to turn it off.
    """
    if options["model"] is None:
        require_no_job(options)
        return None
    try:
        return _job_of(options)
    except ConfigError as error:
        switches = [flag_of(word) for word in options.get("set_by_stack", ()) if options[word] is True]
        named = [flag for flag in switches if re.search(rf"{flag}(?![\w-])", str(error))]
        if not named:
            raise
        off = f"--no-{named[0].removeprefix('--')}"
        raise ConfigError(
            f"{error} ({named[0]} is set by --stack {options['stack']}: {off} turns it off)"
        ) from None


def _job_of(options: Mapping[str, Any]) -> Job:
    given = options["model"]
    name = given.source if isinstance(given, RunConfig) else str(given)
    model = _model(given, name, options)
    cluster = _with_price(cluster_of(options["cluster"]), options["price"])
    layout, assumed = _layout(options, model, cluster.num_devices)
    instances, replicas = options["num_distributed_optimizer_instances"] or 1, layout.dp * layout.cp
    if replicas % instances:
        raise ConfigError(
            f"--num-distributed-optimizer-instances must divide dp · cp = {replicas}: got {instances}"
        )
    micro_batch = 1 if options["micro_batch"] is None else options["micro_batch"]
    require_least("micro_batch", micro_batch)
    microbatches = 4 * layout.pp if options["microbatches"] is None else options["microbatches"]
    if options["global_batch"] is not None and options["microbatches"] is not None:
        raise ConfigError("--global-batch-size and --num-microbatches say the same twice: give one of them")
    given_dtype = options["dtype"] or _WORDS["dtype"].option.default
    depending = {"global_batch": microbatches * micro_batch * layout.dp, "sequence_parallel": True}
    recompute = recompute_of(options["recompute"] or "none")
    read = {
        "compute_share": parse_compute_scale(options["compute_share"], given_dtype),
        "recompute": recompute,
        "offload_modules": offload_modules_of(options["offload_modules"] or "none"),
        "lora": lora_of(options["lora"] or ""),
        "freeze": freeze_of(options["freeze"] or ""),
        "image_tokens": image_tokens_of("" if options["image_tokens"] is None else options["image_tokens"]),
        "cuda_graphs": cuda_graphs_of(options["cuda_graphs"] or "none"),
        "overlap_ep": parse_overlap(options["overlap_ep"] or 0.0),
        "profile": None if options["profile"] is None else profile_of(options["profile"]),
    }
    config = options["run_config"] if isinstance(options["run_config"], RunConfig) else None
    if config is None or config.options.get("recompute") != options["recompute"]:
        require_enough_layers(recompute, len(model.layers))
    given = depending | given_options(options) | read
    execution = field_values(_WORDS, given, "job.execution")
    execution |= hidden_tp_of(given.get("overlap_tp", _WORDS["overlap_tp"].option.default))
    precision = _PRECISIONS.get(execution["dtype"], "bf16")
    return Job(
        model=model,
        model_name=name,
        cluster=cluster,
        layout=layout,
        execution=Execution(**execution),
        launch_s=None if options["launch_ms"] is None else options["launch_ms"] / 1e3,
        optimizer=Optimizer(**field_values(_WORDS, given, "job.optimizer"), precision=precision),
        offload_rules=OffloadRules(**field_values(_WORDS, given, "job.offload_rules")),
        gpus_assumed=options.get("gpus_assumed") or int(options["gpus"] is None and options["dp"] is None),
        assumed=(*options.get("assumed", ()), *assumed),
        stack_basis=options.get("stack_basis", ""),
        ignored_memory_options=config.ignored_memory_options if config else (),
        **field_values(_WORDS, given, "job"),
    )


def _model(given: str | Path | RunConfig, source: str, options: Mapping[str, Any]) -> Model:
    sizes = given_options({name: options[name] for name in ("hidden", "heads", "vocab", "kv_heads")})
    is_tied = options["tied_embeddings"]
    if given != GPT:
        if wrong := [*sizes, *([] if is_tied is None else ["tied_embeddings"])]:
            raise ConfigError(f"{flag_of(wrong[0])} is for --model gpt: {source} has its own")
        from ppsim.trainers.read_config import model_named  # heavy import

        model = model_named(given)
        model = model if options["layers"] is None else model.with_layers(options["layers"])
        return _with_further_tokens(model, options)
    if wrong := [name for name in ("mtp", "mtp_num_layers", "mtp_use_repeated_layer") if options[name]]:
        raise ConfigError(f"{flag_of(wrong[0])} is for a model that predicts further tokens: gpt does not")
    if missing := [name for name in ("layers", "hidden", "heads") if options[name] is None]:
        raise ConfigError(f"--model gpt needs {', '.join(f'--{name}' for name in missing)}")
    for name in ("layers", *sizes):
        require_least(name, options[name])
    for part, whole in (("heads", "hidden"), ("kv_heads", "heads")):
        if part in sizes and sizes[whole] % sizes[part]:
            of = part.replace("_", "-")
            raise ConfigError(f"--{of} must divide --{whole}: got {sizes[part]} with {sizes[whole]}")
    others = given_options({"vocab": options["vocab"], "sequence_length": options["seq_len"]})
    model = gpt(options["layers"], sizes["hidden"], sizes["heads"], **others)
    [layer] = model.kinds
    assert isinstance(layer.attention, Attention)
    attention = replace(layer.attention, num_kv_heads=sizes.get("kv_heads", sizes["heads"]))
    layers = (replace(layer, attention=attention),) * options["layers"]
    return replace(model, layers=layers, tied_embeddings=is_tied is not False)


_PRECISIONS: dict[str, Precision] = {"float16": "fp16", "float32": "fp32"}


def _with_price(cluster: Cluster, given: float | None) -> Cluster:
    if given is None:
        return cluster
    if not 0 <= given < math.inf:
        raise ConfigError(f"--price must be a number from 0 on, per GPU hour: got {given:g}")
    return replace(cluster, price_per_gpu_hour=given)


def _layout(options: Mapping[str, Any], model: Model, num_devices: int | None) -> tuple[Layout, tuple[str, ...]]:
    sizes = field_values(_WORDS, options, "job.layout")
    given_etp = sizes.pop("etp", None)
    if options["gpus"] is not None:
        on: Callable[..., Layout] = partial(layout_on, options["gpus"])
    elif options["dp"] is not None:
        on = Layout
    else:
        on = partial(Layout, dp=_fewest_replicas(sizes, given_etp))
    ep = sizes.pop("ep", 1)
    whole = on(**sizes)
    etp, assumed = None if given_etp == whole.tp else given_etp, ""
    if given_etp is None and (reason := whole.why_single_expert_ranks(ep, biased=model.has_biased_experts)):
        etp, assumed = 1, f"etp 1: {reason} (Megatron-LM's --expert-tensor-parallel-size 1)"
    layout = on(**sizes, ep=ep, etp=etp)
    if num_devices is not None and layout.num_devices > num_devices:
        raise ConfigError(f"the layout takes {layout.num_devices} devices, but the cluster has {num_devices}")
    return layout, (assumed,) if assumed else ()


def _fewest_replicas(sizes: Mapping[str, Any], etp: int | None) -> int:
    """Return 1 for sizes that `Layout` rejects, so that `Layout` reports the error."""
    given = {name: sizes[name] for name in ("tp", "cp", "ep") if name in sizes} | ({"etp": etp} if etp else {})
    return fewest_replicas(**given) if min(given.values(), default=1) > 0 else 1


def _with_further_tokens(model: Model, options: Mapping[str, Any]) -> Model:
    """Added MTP layers are copies of the last MTP layer, or of the last layer if the model has no MTP layer.

    Megatron-LM builds MTP layers from the specification of the last layer (core/models/gpt/gpt_layer_specs.py:
    `get_gpt_mtp_block_spec`).
    """
    number, repeats = options["mtp_num_layers"], options["mtp_use_repeated_layer"]
    require_least("mtp_num_layers", number, least=0)
    if given := [name for name in ("mtp_num_layers", "mtp_use_repeated_layer") if options[name]]:
        word = given[0].replace("_", "-")
        if options["mtp"] is False:
            raise ConfigError(f"--no-mtp has no layers for further tokens: leave out --{word}")
        last = model.layers[-1]
        is_decoder = model.patches is None and last.has_mixer and last.has_feed_forward
        if not model.mtp and not (number and is_decoder):
            raise ConfigError(f"--{word} is for a model that predicts further tokens, and this one does not")
    if options["mtp"] is False or number == 0:
        return replace(model, mtp=())
    mtp = model.mtp if number is None else (model.mtp + number * (model.mtp or model.layers)[-1:])[:number]
    return replace(model, mtp=mtp, repeats_mtp=model.repeats_mtp if repeats is None else repeats)
