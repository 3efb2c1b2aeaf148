"""Reader of NeMo AutoModel's YAML recipes (NVIDIA-NeMo/Automodel at 36044ad3)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.model.recompute import BY_OPERATORS
from ppsim.model.registry import find_model, known_name
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.local_batch import LocalBatch
from ppsim.trainers.option_relevance import config_values
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.torchtitan.settings import known_schedule, layers_of_parts

_SIZES = {"tp_size": "tp", "cp_size": "cp", "pp_size": "pp", "ep_size": "ep", "dp_size": "dp"}
_LENGTHS = ("packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length")
_MODELS = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config")
DISPATCHERS = {"deepep": "deepep", "hybridep": "hybridep", "torch": "alltoall"}
FP8 = {"mxfp8": "mxfp8", "block": "float8-block", "current": "float8"}
RECOMPUTED = {"false": "none", "none": "none", "true": "full", "full": "full", "selective": BY_OPERATORS}
GPUS_PER_NODE = 8


_NO_TEXT = {"flow_matching", "recipe_args"}
"""Sections of recipes for diffusion models and for drafts of speculative decoding."""


def claims(content: Mapping[str, Any]) -> bool:
    model = content.get("model")
    has_sections = isinstance(content.get("step_scheduler"), dict) and isinstance(model, dict)
    is_of_text = has_sections and ("distributed" in content or "nemo_automodel" in str(model))
    return is_of_text or bool(_NO_TEXT & content.keys())


def from_automodel(content: Mapping[str, Any], path: Path) -> RunConfig:
    """Raises `ConfigError` for distillation, and for training of other than decoders."""
    source, recipe = str(path), str(content.get("recipe", "of diffusion"))
    if _NO_TEXT & content.keys() or re.search("Encoder|Diffusion|Multimodal", recipe):
        raise ConfigError(f"{source}: recipe {recipe} is not known, only the prediction of next tokens")
    if "teacher_model" in content:
        raise ConfigError(f"{source}: knowledge distillation (teacher_model) is not known, only one trained model")
    values = {
        path: None if str(value).lower() in ("none", "null") else value for path, value in config_values(content)
    }
    arguments = Arguments(values, source)
    get = arguments.get
    options: dict[str, Any] = {
        word: arguments.count(f"distributed.{name}", word=word) for name, word in _SIZES.items()
    }
    pp = options["pp"] = options["pp"] or 1
    lengths = [arguments.count(name, word="seq_len", least=0) for name in _LENGTHS]
    options["seq_len"] = next((length for length in lengths if length), None)
    model, why_no_model = _model(arguments)
    local = arguments.count("step_scheduler.local_batch_size", 1, word="micro_batch") or 1
    of_pipeline = arguments.count("distributed.pipeline.pp_microbatch_size", 1, word="micro_batch") or 1
    batch = LocalBatch(local, of_pipeline, local, source)
    options |= batch.words(pp, arguments.count("step_scheduler.global_batch_size", word="global_batch"))
    options |= _stages(arguments, pp, model) | _sharding(arguments, pp, options["ep"] or 1) | _optimizer(arguments)
    recomputed = str(get("distributed.activation_checkpointing", False, word="recompute")).lower()
    fp8 = str(get("model.backend.te_fp8.recipe", "", word="dtype"))
    dispatcher = str(get("model.backend.dispatcher", "", word="moe_dispatcher"))
    fuses = str(get("model.backend.rms_norm", "", word="stack")) == "te"  # otherwise, blocks are as TorchTitan's
    compiles = [arguments.flag(name, word="compile") for name in ("compile.enabled", "distributed.enable_compile")]
    options |= {
        "sequence_parallel": arguments.flag("distributed.sequence_parallel", word="sequence_parallel"),
        "recompute": RECOMPUTED.get(recomputed, "full"),
        "dtype": FP8.get(fp8, "float8") if fp8 else "bfloat16",
        "moe_dispatcher": DISPATCHERS.get(dispatcher) if (options["ep"] or 1) > 1 else None,
        "compile": None if fuses else any(compiles),
        "runtime": "torch",
        "stack": "automodel" if fuses else "torchtitan",
    }
    if options["seq_len"] is None:
        arguments.assumed.append("the sequences of the data set have no fixed length: give --seq-len")
    if not fuses:
        arguments.assumed.append("the stack of TorchTitan, the nearest that was measured")
    return arguments.config(
        "NeMo AutoModel", options, model, why_no_model, ignored=arguments.ignored_that_matter, local_batch=batch,
        launcher_gpus=GPUS_PER_NODE,
    )  # fmt: skip


def _model(arguments: Arguments) -> tuple[Model | None, str]:
    names = [str(name) for name in map(arguments.get, _MODELS) if isinstance(name, str)]
    full_name = next(filter(None, map(known_name, names)), None)
    if full_name is None:
        return (
            None,
            f"{arguments.source}: the sizes of {names[0] if names else 'its model'} are not known: give --model",
        )
    return find_model(full_name), ""


def _stages(arguments: Arguments, pp: int, model: Model | None) -> dict[str, Any]:
    """Return schedule and split (components/distributed/pipelining/functional.py: `calculate_virtual_stages`)."""
    each = arguments.count("distributed.pipeline.layers_per_stage", word="split")
    rounding = arguments.get("distributed.pipeline.round_virtual_stages_to_pp_multiple", word="split")
    parts = arguments.get("distributed.pipeline.module_fqns_per_model_part", word="split")
    name = str(arguments.get("distributed.pipeline.pp_schedule", "1f1b", word="schedule"))
    if pp == 1:
        return {}
    schedule = known_schedule(arguments, name)
    if parts:
        return {"schedule": schedule, "split": layers_of_parts(parts), "vpp": len(parts) // pp}
    if model is None:
        return {"schedule": schedule}
    stages = -(-len(model.layers) // each) if each else pp * (1 if schedule in ("1f1b", "gpipe") else 2)
    stages += (pp - stages % pp) % pp if rounding == "up" else -(stages % pp)
    stages = max(stages, pp)
    return {"schedule": schedule, "split": divided(len(model.layers), stages), "vpp": stages // pp}


def divided(num_layers: int, stages: int) -> list[int]:
    """Return the layers of each stage, of which the first have one more.

    >>> divided(10, 4)
    [3, 3, 2, 2]
    """
    quotient, more = divmod(num_layers, stages)
    return [quotient + (stage < more) for stage in range(stages)]


def _sharding(arguments: Arguments, pp: int, ep: int) -> dict[str, Any]:
    """FSDP keeps weights whole after the forward pass in a pipeline, and by default beside expert parallelism."""
    strategy = str(arguments.get("distributed.strategy", "fsdp2", word="zero")).lower()
    if strategy == "ddp":
        return {"zero": 0}
    if strategy == "megatron_fsdp":
        return {"zero": arguments.count("distributed.zero_dp_strategy", 3, word="zero", least=0)}
    of_layers = arguments.get("distributed.reshard_after_forward", pp == 1, word="zero")
    of_moe = arguments.flag("distributed.moe.reshard_after_forward", word="zero")
    instances = arguments.count("distributed.dp_replicate_size", word="num_distributed_optimizer_instances")
    reshards = of_moe if ep > 1 else of_layers
    return {
        "zero": 3 if reshards else 1 if pp > 1 else 2,
        "num_distributed_optimizer_instances": instances if (instances or 1) > 1 else None,
    }


def _optimizer(arguments: Arguments) -> dict[str, Any]:
    """Weights have the dtype in which the model is loaded, by default bfloat16, and torch's Adam its own in it."""
    dtype = str(arguments.get("model.torch_dtype", "bf16", word="bf16_master_weights_and_grads"))
    target = str(arguments.get("optimizer._target_", "torch.optim.Adam", word="exp_avg_dtype"))
    if "32" in dtype:
        return {}
    is_of_torch = target.startswith("torch.optim")
    return {"bf16_master_weights_and_grads": True, "exp_avg_dtype": "bfloat16" if is_of_torch else None}
