"""Reader of slime's launch commands: Megatron-LM's arguments beside those of rollouts (THUDM/slime at 624b824a)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.read_config import from_megatron
from ppsim.trainers.run_config import RunConfig

_OF_ROLLOUTS = re.compile(
    r"rollout_.*|sglang_.*|over_sampling_.*|eval_.*|ref_.*|update_weight_.*|log_probs_.*|n_samples_.*|num_rollout|"
    r"data_pad_.*|use_dynamic_batch_size|max_tokens_per_gpu|num_steps_per_rollout|critic_.*"
)


def claims(flags: Mapping[str, Any]) -> bool:
    return "--actor-num-gpus-per-node" in flags and "--rollout-batch-size" in flags


def from_slime(flags: Mapping[str, Any], source: str) -> RunConfig:
    """The training steps of the actor; rollouts have no part in them. The run decides the length of sequences."""
    arguments = Arguments(megatron_names(flags), source)
    sizes = [arguments.count(name, word="global_batch") for name in ("rollout_batch_size", "n_samples_per_prompt")]
    steps = arguments.count("num_steps_per_rollout", 1, word="global_batch") or 1
    nodes = arguments.count("actor_num_nodes", 1, word="gpus") or 1
    gpus = nodes * (arguments.count("actor_num_gpus_per_node", 8, word="gpus") or 8)
    config = from_megatron(arguments, "slime")
    options = {**config.options, "gpus": gpus}
    if "global_batch" not in options and sizes[0]:
        options |= {"global_batch": sizes[0] * (sizes[1] or 1) // steps}
        options.pop("microbatches", None)
    length = ("the length of sequences is that of the responses, which the run decides", "--seq-len")
    needed = {} if "seq_len" in options else {"seq_len": length}
    notes = tuple(note for note in config.notes if "global_batch_size" not in note)
    ignored = tuple(option for option in config.ignored if not _OF_ROLLOUTS.fullmatch(option.name))
    return replace(config, options=options, needed={**config.needed, **needed}, notes=notes, ignored=ignored)
