"""What `ppsim export` tells besides the file: settings, arguments, or the start of a trainer, to paste."""

import json
from typing import Any

from ppsim.base.words import flag_of, require_least
from ppsim.cli.common import say

_FOR = {
    "layers_by": ("megatron",),
    "trainer_version": ("torchtitan",),
    "micro_batch": ("torchtitan",),
    "replace": ("primus",),
}


def check_options(target: str, options: dict[str, Any]) -> None:
    """Raise `ConfigError` for an option that is another target's."""
    from ppsim.base.errors import ConfigError

    for name, targets in _FOR.items():
        if options[name] is not None and target not in targets:
            option = flag_of(name)
            raise ConfigError(f"{option} is for --to {' and '.join(targets)}: got --to {target}")
    if options["layers_by"] and options["split"] is None:
        raise ConfigError("--layers-by says the layers of --split: give it too")
    require_least("micro_batch", options["micro_batch"])


def for_trainer(target: str, schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    """Return the text of the file, as its suffix says, and what to print."""
    makes = {"megatron": _megatron, "torchtitan": _torchtitan, "primus": _primus}
    return makes[target](schedule, content, output, options) if target in makes else (content, "")


def _megatron(schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    from ppsim.api.option_values import parse_split
    from ppsim.base.files import to_json
    from ppsim.trainers.megatron.write_schedule import megatron_arguments
    from ppsim.trainers.write_config import as_entries, as_flags

    exported = json.loads(content)
    if options["layers_by"]:
        layers: Any = parse_split(options["split"])
        exported = megatron_arguments(schedule, layers_per_stage=layers, layers_by=options["layers_by"])
        content = to_json(exported)
    line = " ".join(as_flags(exported["arguments"])) + "\n"
    if output.endswith((".yaml", ".yml")):
        content = "\n".join(as_entries(exported["arguments"])) + "\n"
    return (line if output.endswith(".txt") else content), line


def _torchtitan(schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    from ppsim.api.option_values import parse_split
    from ppsim.base.errors import ConfigError
    from ppsim.trainers.torchtitan.write_schedule import settings_text, torchtitan_settings, warnings_of

    version = options["trainer_version"] or "0.3"
    layers: Any = None if options["split"] is None else parse_split(options["split"])
    if layers is not None and not all(isinstance(count, int) for count in layers):
        raise ConfigError(f"--split is '{options['split']}': TorchTitan needs layers per stage, as 7,8,8,7")
    settings = torchtitan_settings(
        schedule, csv=output, version=version, micro_batch=options["micro_batch"] or 1, layers_per_stage=layers
    )
    for warning in warnings_of(schedule, version):
        say(f"warning: {warning}")
    return content, settings_text(settings, version)


def _primus(schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    from ppsim.integrations.primus import algorithm_for

    name = algorithm_for(json.loads(content), "the table", options["replace"])
    return content, (
        f"# start.py, for: primus-cli direct --script start.py -- train pretrain --config YOURS.yaml\n"
        f"# with patch_primus_pipeline: true and pp_algorithm: {name} in the configuration\n"
        f"from ppsim.integrations.primus import install\n\n"
        f'install("{output}", replace="{name}")\n\n'
        f"from primus.cli.main import main\n\n"
        f"main()\n"
    )
