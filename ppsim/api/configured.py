"""A trainer's configuration behind the words of the command line: it says what they leave open."""

from collections.abc import Collection, Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.words import require_tokens, words_of
from ppsim.projection.options import GPT, JobOptions, StudyOptions

_MEGATRON_SPLIT = (
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
)  # fmt: skip
_DISPLACES: dict[str, tuple[str, ...]] = {
    "microbatches": ("global_batch",),
    "global_batch": ("microbatches",),
    "gpus": ("dp",),
    "dp": ("gpus",),
    "model": ("split", *_MEGATRON_SPLIT),
    "layers": ("split", *_MEGATRON_SPLIT, "vpp", "group_size"),
    "pp": ("split", *_MEGATRON_SPLIT, "vpp", "group_size"),
    "vpp": ("split", "group_size"),
    "schedule": ("vpp", "group_size"),
    "split": _MEGATRON_SPLIT,
    "stack": ("compile",),
    **dict.fromkeys(_MEGATRON_SPLIT, ("split",)),
}
"""What of a configuration a word of the user leaves without meaning, beside that word itself."""

_OF_STUDIES = {*words_of(StudyOptions), "dp", "sequence_parallel", "offload"} - {"model", "run_config"}
_ONLY_FOR_JOBS = [name for name in words_of(JobOptions) if name in _OF_STUDIES]


def configured(options: Mapping[str, Any], *, tried: Collection[str] = ()) -> dict[str, Any]:
    """Return options with what their `run_config` says where they are None, and the model that it names.

    A word that is given overrides the configuration's, and what there depends on it; those that a search has
    `tried` stay None. Raises `ConfigError` for a file that is no configuration, and for a model that is neither in
    it nor given.
    """
    filled = dict(options)
    require_tokens("seq_len", filled.get("seq_len"))
    path = filled.get("run_config")
    filled["run_config"] = None
    if path is None:
        return _with_stack(filled)
    if filled.get("job") is not None:
        raise ConfigError("the job says everything itself: leave out run_config, or give it to ppsim.job")
    from ppsim.configs.read import read_run_config  # every trainer's format
    from ppsim.configs.run_config import RunConfig

    config = path if isinstance(path, RunConfig) else read_run_config(path)
    given = {name for name, value in filled.items() if value not in (None, {}, ())}
    left = {name for word in given for name in _DISPLACES.get(word, ())} | {*tried}
    for name, value in config.words.items():
        if name in filled and name not in given and name not in left:
            filled[name] = value
    if config.local_batch is not None and "gradient_accumulation_steps" in filled:
        config.local_batch.fill(filled, given)
    if filled.get("model") is None:
        if config.model is None:
            hint = "" if "--model" in config.why_no_model else ": give --model"
            raise ConfigError(f"{config.why_no_model}{hint}")
        filled["model"] = config
    return _with_stack(filled)


def require_no_job(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options of a job, where there is no model."""
    if wrong := [name for name in _ONLY_FOR_JOBS if options.get(name) is not None]:
        raise ConfigError(f"--{wrong[0].replace('_', '-')} is for a --model on a --cluster")


def _with_stack(options: dict[str, Any]) -> dict[str, Any]:
    """The options with what their stack does by default where they are still None; only jobs have one."""
    name = options.get("stack")
    if options.get("model") is None or name is None:
        return options
    from ppsim.configs.read import model_named  # every trainer's format
    from ppsim.configs.stacks import stack_of
    from ppsim.machine.files import cluster_of

    model, cluster = options["model"], cluster_of(options.get("cluster"))
    has_experts = model != GPT and any(layer.is_moe for layer in model_named(model).kinds)
    said = stack_of(name, options, device=cluster.device.name, has_experts=has_experts)
    return options | {word: value for word, value in said.items() if options.get(word, "") is None}
