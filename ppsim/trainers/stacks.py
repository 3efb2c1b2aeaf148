"""Defaults of training stacks as options of `ppsim project`, and the stack of a job that names none.

The defaults are in data/stacks.toml, the errors of the stacks on measured runs in data/stack_errors.json
(scripts/make_accuracy.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import FileSchema, load_packaged
from ppsim.base.files import data_folder, read_json, read_toml
from ppsim.base.option_declarations import flag_of, given_options
from ppsim.trainers.same_settings import each_setting, is_among

PLAIN = "plain"
WITHOUT_RECIPES = "none"
"""In place of a release: the stack without the settings that its MoE recipes share."""
ERRORS = "stack_errors.json"
NEAREST = "default: smallest error on"


class StackDefault(FileSchema):
    """One default, which holds if all conditions hold that are not None.

    `devices` are words in the device name. `unless` maps options to values that cancel the default (empty: any
    value but 0 or false). `of_recipes` marks a setting of performance recipes, which NAME@none does not have.
    """

    word: str
    value: bool | int | float | str
    source: str
    dtypes: list[str] | None = None
    pipelined: bool | None = None
    devices: list[str] | None = None
    experts: bool | None = None
    zero: list[int] | None = None
    of_recipes: bool = False
    unless: dict[str, list[bool | int | str]] = field(default_factory=dict)

    def holds(self, options: Mapping[str, Any], *, device: str, has_experts: bool) -> bool:
        if self.devices is not None and not any(name in device.split() for name in self.devices):
            return False
        if self.experts not in (None, has_experts) or (self.zero and options.get("zero") not in self.zero):
            return False
        for word, values in self.unless.items():
            given = options.get(word)
            if given is not None and (is_among(word, given, values) if values else not _is_off(given)):
                return False
        is_pipelined = (options.get("pp") or 1) > 1 if isinstance(options.get("pp"), int | None) else True
        return (self.dtypes is None or (options.get("dtype") or "bfloat16") in self.dtypes) and (
            self.pipelined in (None, is_pipelined)
        )


def _is_off(option: Any) -> bool:
    """Return whether an option is off: false, 0, or 0 for each of several (`--overlap-tp 0,0`)."""
    return option is False or not str(option).strip("0.,")


class StackDefaults(FileSchema):
    """For options without a default, `extends` names the stack that applies.

    `ended` marks software of past years, which applies only if it is named. `has_recipes` is true if the stack
    includes the settings that its MoE recipes share. `export` is the trainer whose schedules it runs, as in
    `ppsim export --to`, if this is not the runtime.
    """

    title: str
    extends: str | None = None
    ended: bool = False
    generations: list[str] | None = None
    export: str = ""
    has_recipes: bool = False
    lines: list[StackDefault] = field(default_factory=list)


class StackErrors(FileSchema):
    """Mean absolute and mean signed error of each stack, over the same calibration rows."""

    generation: str
    kind: str
    rows: int
    errors: dict[str, tuple[float, float]]

    @property
    def nearest(self) -> str:
        """The stack with the smallest error; of equal errors, a trainer's rather than the plain stack."""
        return min(self.errors, key=lambda name: (self.errors[name][0], name == PLAIN))


@dataclass(frozen=True)
class Stack:
    """The name has a release, as in megatron-bridge@26.08, if the stack includes settings of MoE recipes."""

    name: str
    options: Mapping[str, Any]
    sentences: tuple[str, ...] = ()
    remark: str = ""


@cache
def stacks() -> dict[str, StackDefaults]:
    content = read_toml(data_folder("trainers/data") / "stacks.toml")
    return {name: load_packaged(StackDefaults, data) for name, data in content.items()}


@cache
def stack_errors() -> dict[tuple[str, str], StackErrors]:
    """Keys are the generation of the device and the kind of the model (dense, MoE)."""
    rows = read_json(data_folder("trainers/data") / ERRORS)
    errors = [load_packaged(StackErrors, one) for one in rows]
    return {(one.generation, one.kind): one for one in errors}


def base_of(name: str) -> str:
    """Leave out the release.

    >>> base_of("megatron-bridge@26.08")
    'megatron-bridge'
    """
    return name.partition("@")[0]


def trainer_of(stack: str, runtime: str) -> str:
    """Return the trainer whose schedules a plan can use, as in `ppsim export --to`; "" for an ideal network.

    >>> trainer_of("megatron-bridge@26.08", "megatron"), trainer_of("primus", "megatron")
    ('megatron', 'primus')
    """
    return stacks()[base_of(stack)].export or ("" if runtime == "ideal" else runtime)


def without_recipes(name: str) -> str:
    """Use this for a configuration that states its own settings."""
    has_recipes = name in stacks() and stacks()[name].has_recipes
    return f"{name}@{WITHOUT_RECIPES}" if has_recipes else name


def current_stacks(generation: str) -> list[str]:
    """Leave out software of past years."""
    return [
        name
        for name, stack in stacks().items()
        if not stack.ended and (stack.generations is None or generation in stack.generations)
    ]


def default_stack(generation: str, *, has_experts: bool, measured: str = "") -> tuple[str, str]:
    """Return the stack of a job that names none, and the reason.

    It is the stack with the smallest error over the calibration rows of the generation and the kind of model. If
    there are no such rows, or times come from `measured`, it is the plain stack.
    """
    kind = "MoE" if has_experts else "dense"
    if measured:
        return PLAIN, f"default with {measured}"
    if (errors := stack_errors().get((generation, kind))) is None:
        return PLAIN, f"default: no calibration runs of {kind} models on {generation or 'this device'}"
    rows = f"{errors.rows} {kind} calibration run{'s' * (errors.rows > 1)}"
    return errors.nearest, f"{NEAREST} {rows} on {generation}"


def measured_stacks(generation: str, *, has_experts: bool) -> list[str]:
    errors = stack_errors().get((generation, "MoE" if has_experts else "dense"))
    return [] if errors is None else list(errors.errors)


def stack_of(name: str, options: Mapping[str, Any], *, device: str, has_experts: bool) -> Stack:
    base, at, release = name.partition("@")
    if base not in stacks():
        raise ConfigError(f"unknown stack '{base}': there are {', '.join(stacks())}")
    one = stacks()[base]
    lines = [*(stacks()[one.extends].lines if one.extends else ()), *one.lines]
    said = {
        line.word: line.value
        for line in lines
        if line.holds(options, device=device, has_experts=has_experts)
        and not (line.of_recipes and release == WITHOUT_RECIPES)
    }
    said = given_options(each_setting(said))
    if at and not one.has_recipes:
        raise ConfigError(f"stack {base} has no releases: leave out @{release}")
    if not one.has_recipes or not (has_experts or release):
        return Stack(base, said)
    if release == WITHOUT_RECIPES:
        return Stack(name if has_experts else base, said)
    from ppsim.model.registry import known_name
    from ppsim.trainers.shared_settings import applicable_settings, release_named, release_settings

    release, model, dtype = release_named(base, release), options.get("model"), options.get("dtype") or "bfloat16"
    model = known_name(model) if isinstance(model, str) else None
    shared = release_settings(base, release, device, dtype, model, options.get("gpus"), has_experts)
    if shared is None:
        return Stack(base, said)
    brought = applicable_settings(shared.settings, options, has_experts=has_experts)
    texts = ", ".join(_option_text(word, value) for word, value in brought.items()) or "nothing else"
    missing = [flag_of(word) for word in shared.settings if word not in brought and options.get(word) is None]
    left_out = f"; left out, because the other options exclude them: {', '.join(missing)}" if missing else ""
    name = f"{base}@{release}"
    return Stack(name, {**said, **brought}, (f"{name} sets, as {shared.origin}: {texts}{left_out}",), shared.remark)


def _option_text(word: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag_of(word) if value else f"--no-{flag_of(word)[2:]}"
    return f"{flag_of(word)} {value}"
