"""Options that name modules of a layer, joined by "+"."""

from collections.abc import Iterable, Mapping

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import NameLookup


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

    `also`: further names of modules. `words`, `near`: other options, which an error mentions.
    """
    known = list(modules)
    named = [(also or {}).get(module.strip(), module.strip()) for module in text.split("+")]
    for module in named:
        if module not in known:
            hint = NameLookup("module", [*known, *near], plain_of=str).hint(module)
            raise ConfigError(f"{field} must be {words} or modules joined by +: got '{text}' ({hint})")
    return "+".join(module for module in known if module in named)
