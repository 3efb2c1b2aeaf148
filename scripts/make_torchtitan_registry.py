"""Write ppsim/trainers/data/torchtitan.toml: the entries of TorchTitan's config registry.

`python scripts/make_torchtitan_registry.py FOLDER VERSION` reads the `config_registry.py` files of an unpacked
wheel or a checkout. Each registry function is executed with mocks for all its imports, so neither torch nor
TorchTitan is needed. The arguments that it passes are recorded.
"""

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppsim.base.files import write_atomically

TABLE = Path(__file__).parents[1] / "ppsim" / "trainers" / "data" / "torchtitan.toml"
EXECUTED = ("typing", "functools", "math")
DIFFUSION = ("flux",)
SECTIONS = ("training", "parallelism", "compile")
LEFT_OUT = ("training.steps", "parallelism.spmd_backend")  # no effect on the time or memory of a step
CHECKPOINTING = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "Float8GroupedExpertsConverter": "quantize.grouped_mm.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "MXFP8GroupedExpertsConverter": "quantize.grouped_mm.mx",
    "NVFP4LinearConverter": "quantize.linear.nvfp4",
    "LoRAConverter": "lora",
}


class Recorded:
    """A recorded call of a configuration class: its name and arguments, which later code may change."""

    def __init__(self, name: str, arguments: tuple[Any, ...], fields: dict[str, Any]) -> None:
        vars(self).update(name=name, arguments=arguments, fields=fields)

    def __getattr__(self, field: str) -> Any:
        if field not in self.fields:
            defaults = {"enable": False, "components": ["model", "loss"], "imports": []}
            self.fields[field] = defaults[field] if field in defaults else Recorded(field, (), {})
        return self.fields[field]

    def __setattr__(self, field: str, value: Any) -> None:
        self.fields[field] = value

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __add__(self, other: Any) -> "Recorded":
        return self

    __mul__ = __floordiv__ = __sub__ = __add__


DEFAULT_CHECKPOINTING = Recorded("SelectiveAC.Config", (), {})
"""The default of Trainer.Config (trainer.py)."""


class StandIn:
    """A mock for anything imported: its attributes and items are mocks, calls are recorded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> "StandIn":
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{self._name}.{attribute}")

    def __getitem__(self, item: Any) -> "StandIn":
        return self

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        """Record the call; as a decorator, return the decorated object."""
        is_decorator = self._name.startswith("dataclasses.") and (not arguments or isinstance(arguments[0], type))
        if is_decorator:
            return arguments[0] if arguments else lambda decorated: decorated
        return Recorded(self._name, arguments, fields)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        name = self._name

        class Base(Recorded):
            def __init__(self, *arguments: Any, **fields: Any) -> None:
                super().__init__(name, arguments, fields)

        return (Base,)

    def __or__(self, other: Any) -> "StandIn":
        return self

    __ror__ = __or__

    def keys(self) -> tuple[str, ...]:
        """Return the keys for `**stand_in`: none."""
        return ()


def imported(name: str, scope: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
    """Import a module, or return a mock for it."""
    return builtins.__import__(name, scope, local, wanted, level) if name in EXECUTED else StandIn(name)


def entries_of(path: Path) -> dict[str, Recorded]:
    """Return the configuration of each registry function in a file, by the function's name."""
    scope: dict[str, Any] = {
        "__name__": "config_registry", "__builtins__": vars(builtins) | {"__import__": imported},
    }  # fmt: skip
    exec(compile(path.read_text(), str(path), "exec"), scope)
    scope |= {name: StandIn(name) for name in scope if name.endswith(("_optimizer", "_dataloader"))}  # unused
    found = {}
    for name, value in scope.items():
        code = getattr(value, "__code__", None)
        if code is None or name.startswith("_") or code.co_argcount or code.co_kwonlyargcount:
            continue
        config = value()
        if isinstance(config, Recorded) and "model_spec" in config.fields:
            found[name] = config
    return found


def options_of(config: Recorded) -> dict[str, Any]:
    """Return a configuration as TorchTitan's options, without defaults."""
    found: dict[str, Any] = {}
    spec = config.model_spec
    found["model.flavor"] = spec.arguments[0] if spec.arguments else spec.fields["flavor"]
    for section in SECTIONS:
        if section in config.fields:
            found |= {f"{section}.{name}": value for name, value in getattr(config, section).fields.items()}
    mode = config.fields.get("activation_checkpoint", DEFAULT_CHECKPOINTING)
    found["activation_checkpoint.mode"] = "none" if mode is None else CHECKPOINTING[mode.name.split(".")[-2]]
    converters = spec.fields.get("converters") or []
    if converters:
        found["model.converters"] = [CONVERTERS[one.name.split(".")[-2]] for one in converters]
    for one in converters:
        if isinstance(one.fields.get("fqns"), Recorded):
            found["quantize.first_layers_only"] = True
    for name in ("moe_comm_backend", "num_mtp_layers"):
        if name in spec.fields:
            found[f"model.{name}"] = spec.fields[name]
    return {name: value for name, value in found.items() if name not in LEFT_OUT and is_plain(value)}


def is_plain(value: Any) -> bool:
    """Return whether TOML can represent a value."""
    if isinstance(value, list):
        return all(isinstance(one, str) for one in value)
    return isinstance(value, str | int | float | bool)


def as_toml(value: Any) -> str:
    """Format a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def main() -> None:
    """Write the table."""
    folder, version = Path(sys.argv[1]), sys.argv[2]
    lines = [
        "# Written by scripts/make_torchtitan_registry.py: settings of each entry of TorchTitan's config registry.",
        f'version = "{version}"',
    ]
    for path in sorted(folder.glob("torchtitan/models/*/config_registry.py")):
        module = path.parent.name
        lines += ["", f"[modules.{module}]", f'source = "{path.relative_to(folder)}"']
        if "MMDataLoader" in path.read_text():
            lines.append("trains_on_images = true")
        if module in DIFFUSION:
            lines.append('refused = "a diffusion model"')
            continue
        for name, config in entries_of(path).items():
            lines += ["", f"[modules.{module}.entries.{name}]"]
            lines += [f'"{option}" = {as_toml(value)}' for option, value in options_of(config).items()]
    write_atomically(TABLE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
