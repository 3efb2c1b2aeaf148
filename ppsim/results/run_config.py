"""Summary of a trainer's configuration: used options, ignored options and what they affect."""

import textwrap

from ppsim.trainers.run_config import RunConfig, shorten


def run_config_lines(config: RunConfig) -> list[str]:
    return [*_wrapped(f"{config.source}: {config.trainer}"), *settings_lines(config)]


def settings_lines(config: RunConfig) -> list[str]:
    words = ", ".join(f"{word.replace('_', '-')} {shorten(value)}" for word, value in config.options.items())
    if config.model is not None:
        words = f"a model of {config.model.parameters / 1e9:,.3g} G parameters, {words}".rstrip(", ")
    lines = [f"  read: {words}"]
    for what in ("time and memory", "time", "memory", "unknown"):
        names = [one.in_words for one in config.ignored if one.effect == what]
        if names:
            reason = "effect unknown" if what == "unknown" else f"affects {what}"
            lines.append(f"  ignored ({reason}): {', '.join(names)}")
    lines += [f"  assumed: {sentence}" for sentence in config.assumed]
    return [part for line in lines for part in _wrapped(line)]


_WIDTH = 100


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="    ")


def print_run_config(config: RunConfig) -> None:
    print(*run_config_lines(config), sep="\n")
