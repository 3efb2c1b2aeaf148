"""Reader of training configurations of any trainer; the format is detected from the content."""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_head, read_json, read_toml, read_yaml
from ppsim.base.limits import CONFIG_BYTES
from ppsim.model.architecture import Model
from ppsim.model.config import model_from
from ppsim.model.hf_fields import UnknownModelType
from ppsim.model.registry import read_model
from ppsim.trainers import configurations
from ppsim.trainers.arguments import Arguments, judged, megatron_names, names_of_megatron
from ppsim.trainers.automodel import read_config as automodel
from ppsim.trainers.automodel.read_config import from_automodel
from ppsim.trainers.bridge import read_config as bridge
from ppsim.trainers.bridge.read_config import from_sections
from ppsim.trainers.deepspeed import read_config as deepspeed
from ppsim.trainers.deepspeed.read_config import from_deepspeed
from ppsim.trainers.flagscale import read_config as flagscale
from ppsim.trainers.flagscale.read_config import from_flagscale
from ppsim.trainers.foreign import require_known_program
from ppsim.trainers.launch_script import LaunchScript
from ppsim.trainers.launchers import Command, options_of
from ppsim.trainers.lora_config import with_adapters, without_adapters
from ppsim.trainers.megatron.read_config import from_megatron
from ppsim.trainers.option_relevance import require_full_training
from ppsim.trainers.primus.read_config import from_primus
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.slime import read_config as slime
from ppsim.trainers.torchtitan.read_config import from_torchtitan


def model_named(given: str | Path | RunConfig) -> Model:
    """`given`: a name or a file, or the name of a recipe with its release."""
    if isinstance(given, str) and "@" in given and not isfile(given):
        from ppsim.trainers.read_recipe import read_recipe  # imports this module

        given = read_recipe(given)
    if not isinstance(given, RunConfig) and (Path(given).suffix == ".json" or not isfile(given)):
        return read_model(given)
    config = given if isinstance(given, RunConfig) else read_run_config(given)
    if config.model is None:
        raise ConfigError(config.why_no_model)
    return config.model


_SUFFIXES = {".sh", ".yaml", ".yml", ".toml", ".json", ".log"}


_MOST_LISTED = 20
"""Training commands of a script that a message lists."""

_SCRIPT_SUFFIXES = {".sh", ".bash", ".sbatch", ".slurm"}
_TREE_SUFFIXES = {".yaml", ".yml", ".toml", ".json"}


def read_run_config(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    launch: int | None = None,
    ignore: Collection[str] = (),
) -> RunConfig:
    """Read a trainer's configuration: options of `ppsim.project`, the model, and the options that ppsim ignores.

    A launch script is run by a bash that reaches nothing of the machine, with values for its `variables` ("1" to
    "9": its arguments); of several training commands, `launch` chooses one, counted from 1. Arguments that no
    release of Megatron-LM has and that may change the layers stop the reading, except the ones in `ignore`. Raises
    `ConfigError` for an unknown format and for an invalid value.

    >>> import ppsim, tempfile
    >>> script = Path(tempfile.mkdtemp(), "train.sh")
    >>> _ = script.write_text("pretrain_gpt.py --pipeline-model-parallel-size 4 --micro-batch-size 2 --bf16")
    >>> found = ppsim.read_run_config(script)
    >>> found.options["pp"], found.options["micro_batch"], found.options["dtype"]
    (4, 2, 'bfloat16')
    """
    if isdir(path):
        raise ConfigError(_why_no_folder(Path(path)))
    config = _read(path, variables or {}, launch)
    if ignore and not config.flags:
        raise ConfigError(f"{path} is no command of Megatron-LM: leave out --ignore")
    lifted = [name.lstrip("-").replace("-", "_") for name in ignore]
    return replace(config, ignored=judged(config.ignored, str(path), lifted)) if config.flags else config


def _read(path: str | Path, variables: Mapping[str, str], launch: int | None) -> RunConfig:
    (text, has_more), source = read_head(path), str(path)
    if has_more and not logged_arguments(text):  # a log starts with the arguments and may be long
        raise ConfigError(
            f"{path} is larger than {CONFIG_BYTES // 2**20} MiB: this is not a training configuration"
        )
    if _is_script(text, Path(path)):
        return _from_script(text, source, variables, launch)
    if given := [flag for flag, given in (("--set", variables), ("--launch", launch)) if given]:
        raise ConfigError(f"{path} is no launch script: leave out {given[0]}")
    is_yaml = Path(path).suffix in (".yaml", ".yml")
    if text.lstrip().startswith("{") and not is_yaml:
        return _from_tree(read_json(path, most=CONFIG_BYTES), Path(path))
    if re.search(r"^\[[\w.]+\][ \t]*$", text, re.MULTILINE) and re.search(r"^\w+ *= *", text, re.MULTILINE):
        return from_torchtitan(read_toml(path), source)
    if not is_yaml and (logged := logged_arguments(text)):
        return from_megatron(Arguments(megatron_names(logged), source, is_complete=True))
    return _from_tree(read_yaml(path), Path(path))


def _is_script(text: str, path: Path) -> bool:
    if path.suffix in _TREE_SUFFIXES:
        return False
    if path.suffix in _SCRIPT_SUFFIXES or re.match(r"#!.*sh\b", text):
        return not logged_arguments(text)
    has_options = re.search(r"(^|\s)--[a-z][\w.-]*( +|=)[^\s:]", text)
    is_tree = re.search(
        r"^[ \t]*--[\w-]+:|^(modules|MODEL_ARGS|model):|^\[[\w.]+\][ \t]*$|^\s*\{", text, re.MULTILINE
    )
    return bool(has_options) and not is_tree and not logged_arguments(text)


def _from_script(text: str, source: str, variables: Mapping[str, str], launch: int | None) -> RunConfig:
    script = LaunchScript(text, source, _is_claimed, variables)
    commands = script.commands
    if launch is None and len(commands) > 1:
        listed = [
            f"{number}: {_in_short(command, commands)}" for number, command in enumerate(commands[:_MOST_LISTED], 1)
        ]
        each = "; ".join([*listed, *["…"][: len(commands) - len(listed)]])
        raise ConfigError(f"{source} starts {len(commands)} training commands: give --launch N ({each})")
    if launch is not None and not 1 <= launch <= len(commands):
        raise ConfigError(
            f"--launch must be from 1 to {len(commands)}, the training commands of {source}: got {launch}"
        )
    dependence = script.dependence((launch or 1) - 1)
    config = _from_flags(dependence.options, source)
    return replace(config, notes=(*config.notes, *dependence.notes))


def _in_short(command: Command, commands: Sequence[Command]) -> str:
    """The program and the options in which a command differs from others."""
    common = frozenset.intersection(*(other.settings for other in commands))
    own = sorted(f"{name} {text}" for name, text in command.settings - common)
    return " ".join([command.program, *own[:3], *(["…"] if len(own) > 3 else [])])


_LOGGED = re.compile(r"(?:^|\s)(\w+) \.{3,} (.*)$")


def logged_arguments(text: str) -> dict[str, Any]:
    """Megatron-LM prints its arguments at the start of a log, one `name ........ value` per line."""
    matches = (_LOGGED.search(line) for line in text.splitlines() if " ..." in line)
    logged = {match[1]: match[2].strip() for match in matches if match}
    return logged if logged and names_of_megatron() & logged.keys() else {}


def _why_no_folder(folder: Path) -> str:
    likely = sorted(file.name for file in folder.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    held = f"; it holds {', '.join(likely[:3])}{', …' * (len(likely) > 3)}" if likely else ""
    return f"{folder} is a folder{held}: give one file; there are {configurations()}"


def _unreadable(source: str) -> ConfigError:
    return ConfigError(f"{source} is not a training configuration that ppsim can read. It reads {configurations()}")


def _from_flags(flags: Mapping[str, Any], source: str) -> RunConfig:
    if slime.claims(flags):
        return slime.from_slime(flags, source)
    if _is_of_torchtitan(flags):
        return from_torchtitan({name.lstrip("-"): text for name, text in flags.items()}, source)
    if not _is_claimed(flags):
        raise _unreadable(source)
    return _from_names(flags, source)


def _is_of_torchtitan(flags: Mapping[str, Any]) -> bool:
    sections = ("--parallelism.", "--training.", "--job.")
    return "--module" in flags or any(name.startswith(sections) for name in flags)


def _is_claimed(flags: Mapping[str, Any]) -> bool:
    """Return whether the options of a command are those of Megatron-LM or TorchTitan."""
    is_of_megatron = any("model-parallel-size" in name or name in _OF_MEGATRON for name in flags)
    return is_of_megatron or _is_of_torchtitan(flags)


_OF_MEGATRON = ("--num-layers", "--micro-batch-size")


def _from_tree(content: Any, path: Path) -> RunConfig:
    if not isinstance(content, dict):
        raise _unreadable(str(path))
    read = next((reader for claims, reader in _READERS if claims(content)), None)
    require_known_program(content, str(path))
    content, adapters = without_adapters(content, str(path))
    require_full_training(content, str(path))
    if read is None:
        raise _unreadable(str(path))
    return with_adapters(read(content, path), adapters)


def _from_model_arguments(content: Mapping[str, Any], path: Path) -> RunConfig:
    """Megatron-LM's own tests have their arguments under MODEL_ARGS."""
    arguments = content["MODEL_ARGS"]
    if isinstance(arguments, str):
        return _from_flags(options_of(shlex.split(arguments)), str(path))
    if any(str(name).startswith(("trainer.", "model.")) for name in arguments):
        return from_sections(arguments, path)
    return _from_names(arguments, path)


def _from_names(content: Mapping[str, Any], path: str | Path) -> RunConfig:
    return replace(from_megatron(Arguments(megatron_names(content), str(path))), flags=content)


def _from_hugging_face(content: Mapping[str, Any], path: Path) -> RunConfig:
    try:
        return RunConfig("Hugging Face", str(path), {}, model_from(content, str(path)), "")
    except UnknownModelType as unknown:
        hint = f"give it as --model, which traces it with transformers, or run `ppsim models --trace {path}`"
        raise UnknownModelType(f"{unknown}; {hint}") from None


_Claim = Callable[[Mapping[str, Any]], bool]
_READERS: tuple[tuple[_Claim, Callable[[dict[str, Any], Path], RunConfig]], ...] = (
    (lambda content: isinstance(content.get("MODEL_ARGS"), dict | str), _from_model_arguments),
    (lambda content: bool({"modules", "extends", "bases"} & content.keys()), from_primus),
    (automodel.claims, from_automodel),
    (flagscale.claims, from_flagscale),
    (deepspeed.claims, from_deepspeed),
    (lambda content: "model_type" in content, _from_hugging_face),
    (lambda content: {"parallelism", "training"} <= content.keys(), from_torchtitan),
    (lambda content: any(str(name).startswith("--") for name in content), _from_names),
    (bridge.claims, from_sections),
)
"""How each reader of trees recognises its own files, and the reader; the first that claims a file reads it."""
