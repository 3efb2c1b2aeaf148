"""Conversion of a plan into a trainer's configuration."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ppsim.api.plan_options import MODEL, RULE, WORDS, inexpressible_differences, job_of, marks_of, options_of_plan
from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import command_arguments, given_options
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.projection.projection import Projection
from ppsim.trainers import ConfigTarget
from ppsim.trainers.megatron.write_schedule import layout_string
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.write_config import files_of
from ppsim.tuning.search import TuneResult


def trainer_options(
    result: Projection | TuneResult, trainer: ConfigTarget, *, given: Mapping[str, Any] | None = None
) -> str:
    """Return a projection's plan, or the best configuration of a search, as a trainer's configuration.

    `trainer` is megatron, primus, torchtitan (TorchTitan 0.3) or torchtitan@0.2. Settings that the trainer cannot
    express become comments with options of `ppsim project`. Reading the text with `run_config` and adding these
    options gives a plan with the same time and memory. The comments use file names from `given`, the original
    options. Raises `ConfigError` for a plan without a model or an unknown trainer.

    >>> import ppsim
    >>> made = ppsim.project(model="llama3-8b", gpus=16, tp=2, pp=4, vpp=2, microbatches=8, runtime="megatron")
    >>> print(ppsim.trainer_options(made, "megatron"))  # doctest: +ELLIPSIS
    # not expressible: --stack megatron-bridge
    # Megatron-LM. Add your own data, tokenizer, learning rate and checkpoints.
    torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py \\
    ...
    """
    made = project(result.question.plan_of(result.best[0].candidate)) if isinstance(result, TuneResult) else result
    plan, job = made.plan, job_of(made.plan)
    if isinstance(result, TuneResult):
        given = {"calibration": result.question.calibration_file} | dict(given or {})
    words = options_of_plan(plan, made.split, given=given or {})
    layout = layout_string(made.split, num_mtp_layers=len(job.model.mtp))
    found = []
    for text in files_of(words, job.model.with_fine_tuning(None).with_layers_in_16_bits(0, 0), trainer, layout):
        comments = _Comments(plan, words, marks_of(plan, made.split)).of(_read(text))
        found.append((len(comments), "\n".join([*comments, text])))
    return min(found)[1]


def _read(text: str) -> RunConfig:
    with TemporaryDirectory() as folder:
        path = Path(folder, "config")
        path.write_text(text, encoding="utf-8")
        return read_run_config(path)


class _Comments:
    """Options of a plan that a configuration cannot express.

    Options are added in several rounds until the configuration with them gives the same plan, because an added
    option may replace some of the file's settings. Then options that are not necessary are removed.
    """

    def __init__(self, plan: Plan, words: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
        job = job_of(plan)
        self._plan, self._marks = plan, marks
        self._words = given_options({name: value for name, value in words.items() if name not in RULE})
        self._values = self._words | given_options({"cluster": job.cluster, "profile": job.profile})

    def of(self, config: RunConfig) -> list[str]:
        added: list[str] = []
        while more := [
            name for name in self._differing(config, added) if name in self._words and name not in added
        ]:
            added += more
        added = self._needed(config, added, sorted(added, key="stack".__eq__))
        texts = (
            text for name in WORDS if name in added for text in command_arguments(WORDS[name], self._words[name])
        )
        others = inexpressible_differences(self._plan, self._plan_of(config, added))
        return [
            *(f"# not expressible: {text}" for text in texts),
            *(f"# not expressible by any option: {one}" for one in others),
        ]

    def _needed(
        self, config: RunConfig, added: list[str], tried: list[str], *, is_needed: bool = False
    ) -> list[str]:
        """Return `added` without the options of `tried` that are not necessary.

        Removes all of `tried` at once, otherwise one half after the other. If `is_needed`, removing all is known to
        change the plan.
        """
        others = [name for name in added if name not in tried]
        if not is_needed and not self._differing(config, others):
            return others
        if len(tried) < 2:
            return added
        half = len(tried) // 2
        left = self._needed(config, added, tried[:half])
        is_first_removed = len(left) == len(added) - half
        return self._needed(config, left, tried[half:], is_needed=is_first_removed)

    def _plan_of(self, config: RunConfig, added: Iterable[str]) -> Plan:
        return plan_of_keywords({name: self._values[name] for name in added} | {"run_config": config})

    def _differing(self, config: RunConfig, added: Iterable[str]) -> list[str]:
        try:
            read = self._plan_of(config, added)
            found = marks_of(read)
        except ConfigError:
            return list(self._words)
        names = [name for name, mark in self._marks.items() if found[name] != mark]
        return [*names, *(MODEL if "model" in names else ())]
