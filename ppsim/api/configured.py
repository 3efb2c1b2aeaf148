"""A trainer's configuration behind the words of the command line: it says what they leave open."""

from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.configs.read import read_run_config
from ppsim.configs.run_config import RunConfig
from ppsim.configs.written import Trainer, written
from ppsim.exporting.megatron import layout_string
from ppsim.layout.split import MegatronSplit
from ppsim.projection.project import project
from ppsim.projection.projection import Projection
from ppsim.tuning.search import Tuned

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
    **dict.fromkeys(_MEGATRON_SPLIT, ("split",)),
}
"""What of a configuration a word of the user leaves without meaning, beside that word itself."""


def configured(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with what their `run_config` says where they are None, and the model that it names.

    A word that is given overrides the configuration's, and what there depends on it. Raises `ConfigError` for a
    file that is no configuration, and for a model that is neither in it nor given.
    """
    filled = dict(options)
    path = filled.get("run_config")
    filled["run_config"] = None
    if path is None:
        return filled
    if filled.get("job") is not None:
        raise ConfigError("the job says everything itself: leave out run_config, or give it to ppsim.job")
    config = path if isinstance(path, RunConfig) else read_run_config(path)
    given = {name for name, value in filled.items() if value not in (None, {}, ())}
    left = {name for word in given for name in _DISPLACES.get(word, ())}
    for name, value in config.words.items():
        if name in filled and name not in given and name not in left:
            filled[name] = value
    if filled.get("model") is None:
        if config.model is None:
            hint = "" if "--model" in config.why_no_model else ": give --model"
            raise ConfigError(f"{config.why_no_model}{hint}")
        filled["model"] = config.source
    return filled


def trainer_options(result: Projection | Tuned, trainer: Trainer) -> str:
    """Return a projection's plan, or the best of a search, as lines of a trainer's own configuration.

    `trainer` is megatron, primus or torchtitan: options of the command line for Megatron-LM and TorchTitan,
    `overrides` of YAML for Primus. What it has no option for is a comment. Raises `ConfigError` for a trainer that
    is not known.

    >>> import ppsim
    >>> made = ppsim.project(model="llama3-8b", gpus=16, tp=2, pp=4, vpp=2, microbatches=8)
    >>> print(ppsim.trainer_options(made, "megatron"))  # doctest: +ELLIPSIS
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --context-parallel-size 1
    ...
    """
    projection = _projected(result) if isinstance(result, Tuned) else result
    plan, schedule = projection.plan, projection.timeline.schedule
    words: dict[str, Any] = {"pp": schedule.num_ranks, "vpp": schedule.vpp, "schedule": schedule.name}
    if plan.group_size is not None:
        words["group_size"] = plan.group_size
    if isinstance(plan.split, MegatronSplit):
        split = plan.split
        words |= dict(zip(_MEGATRON_SPLIT, (split.counts_embedding or None, split.counts_loss or None, split.first,
                                             split.last), strict=True))  # fmt: skip
    elif len(set(layers := projection.split)) > 1:
        words["split"] = layout_string(layers)
    job = plan.job
    if job is not None:
        layout, execution = job.layout, job.execution
        words |= {
            "tp": layout.tp, "cp": layout.cp, "ep": layout.ep if layout.ep > 1 else None, "etp": layout.etp,
            "dp": layout.dp,
            "micro_batch": job.micro_batch, "global_batch": job.global_batch, "seq_len": job.length,
            "recompute": execution.recompute, "dtype": execution.dtype, "zero": job.optimizer.zero_stage,
            "sequence_parallel": execution.sequence_parallel, "overlap_dp": job.overlap,
        }  # fmt: skip
    return written(words, trainer)


def _projected(tuned: Tuned) -> Projection:
    """The best configuration in full: its split is what the search balanced."""
    return project(tuned.question.plan_of(tuned.best[0].candidate))
