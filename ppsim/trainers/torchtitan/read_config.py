"""Reader of TorchTitan's job configuration: TOML (to 0.2), flags (from 0.3), or Primus' YAML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_toml
from ppsim.model.architecture import Model
from ppsim.model.registry import find_model, known_name
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.option_relevance import config_values
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.setting import read_rows
from ppsim.trainers.torchtitan.config_registry import registered
from ppsim.trainers.torchtitan.settings import AFTER_0_3, SETTINGS

_LAUNCHER_GPUS = 8
"""TorchTitan starts one node of 8 GPUs by default (run_train.sh at 0168bd51: NGPU), and so does Primus."""


def from_torchtitan(
    tree: Mapping[str, Any], path: str | Path, trainer: str = "TorchTitan", asked: Mapping[str, Any] | None = None
) -> RunConfig:
    """`asked` is the part of the tree that the user wrote, if the tree also has defaults.

    Options of the tree override options of a registry entry (0.3: `--module`, `--config`) or of a job's TOML file
    (0.2: `--job.config_file`).
    """
    source = str(path)
    options, said = _with_files(_options(tree), source)
    arguments = Arguments(options, source, None if asked is None else _flat(asked))
    arguments.assumed += said
    model, why_no_model = _model(arguments)
    words = read_rows(SETTINGS, arguments, {"model": model})
    batch = words.pop("batch")
    del words["model"]
    return arguments.config(
        trainer, words, model, why_no_model, read_options=arguments.read, local_batch=batch,
        launcher_gpus=_LAUNCHER_GPUS,
    )  # fmt: skip


def _with_files(options: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    if "module" in options and "config" in options:
        entry, said = registered(str(options["module"]), str(options["config"]), source)
        return (_in_tokens(entry) if any(map(options.get, AFTER_0_3)) else entry) | options, said
    named = options.get("job.config_file")
    if named is None:
        return options, []
    folder = Path(source).resolve().parent
    places = [parent / str(named) for parent in (folder, *folder.parents)]
    path = next((parent for parent in places if parent.is_file()), None)
    if path is None:
        raise ConfigError(f"{source}: job.config_file {named} is neither in {folder} nor in a folder above it")
    return _options(read_toml(path)) | options, [f"options that the command does not set are those of {named}"]


def _in_tokens(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of 0.3 as later releases have it, whose batches are counted in tokens (b5bcd76c)."""
    others = dict(entry)
    length = others.pop("training.seq_len", 2048)
    tokens = length * others.pop("training.local_batch_size", 8)
    return {
        "training.max_context_length": length, "training.num_tokens_per_microbatch_per_dp_rank": tokens
    } | others  # fmt: skip


def _options(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a tree of options; a nested one comes from TorchTitan 0.2 and gets its default for recomputation."""
    is_of_0_2 = any(isinstance(value, dict) for value in tree.values())
    return ({"activation_checkpoint.selective_ac_option": "2"} if is_of_0_2 else {}) | _flat(tree)


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    return megatron_names(dict(config_values(tree)))


def _model(arguments: Arguments) -> tuple[Model | None, str]:
    name, flavor, module, _ = (arguments.get(word) for word in ("model.name", "model.flavor", "module", "config"))
    if name is None and module:
        name = str(module).removeprefix("torchtitan.models.")
    return model_of(str(name or ""), str(flavor or ""), arguments.source)


def model_of(name: str, flavor: str, source: str) -> tuple[Model | None, str]:
    full_name = known_name(f"{name}-{flavor}") or known_name(flavor)
    if full_name is None:
        asked = " ".join(filter(None, (name, flavor))) or "the model"
        return None, f"{source}: the sizes of {asked} are not known: give --model"
    return find_model(full_name), ""
