"""Writer of a trainer's configuration from options of `ppsim project`: the inverse of `read_config`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import given_options
from ppsim.model.architecture import Model
from ppsim.trainers import ConfigTarget
from ppsim.trainers.megatron.edit_config import OwnCommand
from ppsim.trainers.megatron.write_config import as_flags, megatron_arguments, write_megatron
from ppsim.trainers.run_config import RunConfig


@dataclass(frozen=True)
class WrittenPlan:
    """Options of a plan, its model, and the layout string of its stages."""

    words: Mapping[str, Any]
    model: Model
    layout: str

    def arguments(self, release: str, *, may_be_refused: bool = False) -> dict[str, Any]:
        options = given_options(self.words)
        return megatron_arguments(options, self.model, self.layout, release, may_be_refused=may_be_refused)


def files_of(
    plan: WrittenPlan, trainer: ConfigTarget, own: tuple[RunConfig, WrittenPlan] | None = None
) -> Iterator[str]:
    """Yield the configurations that match the options of a run and its model best.

    Options and models that the trainer does not have are left out. With a user's `own` Megatron-LM command and its
    plan, only the differences between the plans change the command.

    >>> from ppsim.model.registry import find_model
    >>> words = {"tp": 2, "pp": 4, "gpus": 8, "seq_len": 8192}
    >>> plan = WrittenPlan(words, find_model("llama3-8b"), "Et*8|t*8|t*8|t*8L")
    >>> [text] = files_of(plan, "megatron")
    >>> print(*text.splitlines()[:4], sep="\\n")
    # Megatron-LM. Add your own data, tokenizer, learning rate and checkpoints.
    torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py \\
      --num-layers 32 \\
      --hidden-size 4096 \\
    """
    if trainer not in get_args(ConfigTarget):
        raise ConfigError(f"unknown trainer '{trainer}': there are {', '.join(get_args(ConfigTarget))}")
    given, version = given_options(plan.words), trainer.partition("@")[2]
    if trainer.startswith("megatron"):
        arguments = plan.arguments(version)
        flags = _own_command(*own, plan, version).with_changes(arguments) if own else as_flags(arguments)
        yield write_megatron(given, flags, version)
    elif trainer == "automodel":
        from ppsim.trainers.automodel.write_config import write_automodel  # heavy imports, here and below

        yield write_automodel(given)
    elif trainer == "primus":
        from ppsim.trainers.primus.write_config import write_primus

        yield write_primus(given, plan.model, plan.layout)
    else:
        from ppsim.trainers.torchtitan.write_config import models_of, write_torchtitan

        for choice in models_of(plan.model, version or "0.3"):
            yield write_torchtitan(given, choice, version or "0.3")


def _own_command(config: RunConfig, before: WrittenPlan, after: WrittenPlan, release: str) -> OwnCommand:
    words, others = before.words, after.words
    changed = [name for name in {**words, **others} if words.get(name) != others.get(name)]
    arguments = before.arguments(release, may_be_refused=True)
    return OwnCommand(config.flags, arguments, dict(config.read_options), changed)
