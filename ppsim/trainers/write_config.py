"""Writer of a trainer's configuration from options of `ppsim project`: the inverse of `read_config`."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import given_options
from ppsim.model.architecture import Model
from ppsim.trainers import ConfigTarget
from ppsim.trainers.megatron.write_config import write_megatron
from ppsim.trainers.primus.write_config import write_primus
from ppsim.trainers.torchtitan.write_config import models_of, write_torchtitan


def files_of(words: Mapping[str, Any], model: Model, trainer: ConfigTarget, layout: str) -> Iterator[str]:
    """Yield the configurations that match the options of a run and its model best.

    Options and models that the trainer does not have are left out.

    >>> from ppsim.model.registry import find_model
    >>> words = {"tp": 2, "pp": 4, "gpus": 8, "seq_len": 8192}
    >>> [text] = files_of(words, find_model("llama3-8b"), "megatron", "Et*8|t*8|t*8|t*8L")
    >>> print(*text.splitlines()[:4], sep="\\n")
    # Megatron-LM. Add your own data, tokenizer, learning rate and checkpoints.
    torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py \\
      --num-layers 32 \\
      --hidden-size 4096 \\
    """
    if trainer not in get_args(ConfigTarget):
        raise ConfigError(f"unknown trainer '{trainer}': there are {', '.join(get_args(ConfigTarget))}")
    given = given_options(words)
    if trainer == "megatron":
        yield write_megatron(given, model, layout)
    elif trainer == "primus":
        yield write_primus(given, model, layout)
    else:
        version = trainer.partition("@")[2] or "0.3"
        for choice in models_of(model, version):
            yield write_torchtitan(given, choice, version)
