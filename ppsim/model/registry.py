"""The models known by name, each with the publication of its sizes."""

import re
from dataclasses import replace
from functools import cache
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_json, read_toml
from ppsim.base.limits import CONFIG_BYTES, LONGEST_NAME
from ppsim.base.name_lookup import NameLookup
from ppsim.model.architecture import Model
from ppsim.model.config import model_from


def gpt(
    num_layers: int,
    hidden: int,
    heads: int,
    *,
    vocab: int = 50257,
    sequence_length: int = 2048,
) -> Model:
    sizes = {"n_layer": num_layers, "n_embd": hidden, "n_head": heads}
    sizes |= {"vocab_size": vocab, "n_positions": sequence_length}
    return replace(model_from(sizes | {"model_type": "gpt2"}, "gpt"), source="")


@cache
def _tables() -> dict[str, Any]:
    return read_toml(data_folder("model/data") / "models.toml")


@cache
def aliases() -> dict[str, str]:
    """Return the model's name for each further name."""
    return {alias: name for name, others in _tables()["aliases"].items() for alias in others}


@cache
def _told() -> dict[str, tuple[dict[str, Any], str, int | None]]:
    """Config.json, source and, if given, number of norms per layer, for each model in data/models.toml."""
    described: dict[str, tuple[dict[str, Any], str, int | None]] = {}
    for family in _tables()["family"]:
        source, num_norms = family.pop("source"), family.pop("num_norms", None)
        columns, rows = family.pop("columns"), family.pop("models")
        for name, row in rows.items():
            own = {column: cell for column, cell in zip(columns, row, strict=True) if cell != ""}
            source_text = source.format(own.pop("source", ""))
            if text := own.pop("text", None):  # a model with an encoder before one of the models above
                own["text_config"] = described[text][0]
            described[name] = family | own, source_text, num_norms
    return described


@cache
def _read(name: str) -> Model:
    config, source, num_norms = _told()[name]
    model = replace(model_from(config, name), source=source)
    if num_norms is None:
        return model
    return replace(model, layers=(replace(model.layers[0], num_norms=num_norms),) * len(model.layers))


NAMES: tuple[str, ...]


def __getattr__(name: str) -> Any:
    """Compute `NAMES` on first use, because it reads a file."""
    if name != "NAMES":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return tuple(_told())


@cache
def _names() -> NameLookup:
    return NameLookup("model", _told(), also=aliases(), plain_of=plain_model, listed_by="`ppsim models`")


def known_name(name: str) -> str | None:
    """Return the name in `ppsim models` for any spelling or alias of it.

    >>> known_name("Nemotron_3_5_Lightning"), known_name("meta-llama/Llama-3.1-8B-Instruct"), known_name("gpt-9")
    ('nemotron-3.5-lightning-30b-a3b', 'llama3-8b', None)
    """
    return _names().find(name)


def is_id_of_model(text: str) -> bool:
    """Return whether a text is the Hugging Face id of a known model: an organisation, a slash and the name."""
    return text.count("/") == 1 and known_name(text) is not None


_LEFT_OUT = re.compile(
    r"-(base|instruct|chat|it|pt|hf|think|thinking|reasoning|sft|rl|preview|pretrained|bf16|fp16|fp8|nvfp4|mxfp4|\d+k"
    r"|\d{4}|v0\.\d)$"
)
"""Ends of names that describe training, a number format, or a date, not sizes."""


_DOT_OF_VERSION = r"\.(?!\d+[bm]\b)"
"""Every dot except in a size: qwen35-27b is qwen3.5-27b, but gpt3-13b is not gpt3-1.3b."""


def find_model(name: str) -> Model:
    """Find a model by name or Hugging Face id; raises `ConfigError` with the close matches.

    Capitals, dashes, dots, the organisation before a slash, and ends that do not describe sizes are ignored.

    >>> find_model("llama3-8b").parameters
    8030261248
    >>> find_model("meta-llama/Llama-3.1-8B-Instruct") is find_model("llama3-8b")
    True
    """
    if (full_name := known_name(name)) is not None:
        return _read(full_name)
    if name.count("/") == 1:
        raise ConfigError(
            f"unknown model '{name}' (nearest: {', '.join(_names().nearest(name))}): give its config.json instead, "
            f"from https://huggingface.co/{name}/raw/main/config.json or `hf download {name} config.json`"
        )
    raise ConfigError(f"{_names().unknown(name)} (or give the path of a config.json)")


def read_model(name_or_path: str | Path) -> Model:
    text = str(name_or_path)
    if isdir(text) and known_name(text) is None:
        raise ConfigError(
            f"model '{text}' is a folder: give the path of its config.json, {Path(text) / 'config.json'}"
        )
    if text.endswith(".json") or text.count("/") > 1 or text.startswith((".", "/")) or isfile(text):
        return model_from(read_json(text, most=CONFIG_BYTES), text)
    return find_model(text)


def plain_model(name: str) -> str:
    text = re.sub(r"[\s_-]+", "-", name.rsplit("/", 1)[-1].lower())[:LONGEST_NAME]
    text = re.sub(r"^(meta|nvidia)-", "", text)
    while (shorter := _LEFT_OUT.sub("", text)) != text:
        text = shorter
    return re.sub(_DOT_OF_VERSION, "", text).replace("-", "")
