"""Modules of a layer that one word names, joined by "+": for recomputation, for CUDA graphs."""

from collections.abc import Iterable, Mapping

from ppsim.base.errors import ConfigError
from ppsim.base.names import Names


def joined_modules(
    field: str,
    text: str,
    modules: Iterable[str],
    *,
    words: str,
    also: Mapping[str, str] | None = None,
    near: Iterable[str] = (),
) -> str:
    """Return the modules that a text names, in the order of `modules`.

    `also` has other names of some. Raises `ConfigError` for what is none: `field` may be one of `words` too, of
    which those in `near` are looked through for what may be meant.
    """
    known = list(modules)
    named = [(also or {}).get(module.strip(), module.strip()) for module in text.split("+")]
    for module in named:
        if module not in known:
            hint = Names("module", [*known, *near], plain_of=str).hint(module)
            raise ConfigError(f"{field} must be {words} or modules joined by +: got '{text}' ({hint})")
    return "+".join(module for module in known if module in named)
