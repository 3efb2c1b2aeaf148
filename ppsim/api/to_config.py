"""A plan on its way back: as the options of a trainer."""

from ppsim.base.words import values_in, words_of
from ppsim.configs.written import written
from ppsim.exporting.megatron import layout_string
from ppsim.layout.split import MegatronSplit
from ppsim.projection.options import PlanOptions
from ppsim.projection.project import project
from ppsim.projection.projection import Projection
from ppsim.schedule.choices import Trainer
from ppsim.tuning.search import Tuned

_WORDS = words_of(PlanOptions)


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
    # Of a search, the best configuration in full: its split is what the search balanced.
    made = project(result.question.plan_of(result.best[0].candidate)) if isinstance(result, Tuned) else result
    plan, schedule = made.plan, made.timeline.schedule
    words = values_in(_WORDS, plan)
    words |= {"pp": schedule.num_ranks, "vpp": schedule.vpp, "schedule": schedule.name, "split": None}
    if plan.job is not None:
        words |= {"seq_len": plan.job.length, "overlap_tp": plan.job.execution.overlap_tp}
        words |= {"ep": words["ep"] if words["ep"] > 1 else None}
        if not any(layer.is_moe for layer in plan.job.model.kinds):
            words["moe_dispatcher"] = None
    if not isinstance(plan.split, MegatronSplit) and len(set(made.split)) > 1:
        words["split"] = layout_string(made.split)
    return written(words, trainer)
