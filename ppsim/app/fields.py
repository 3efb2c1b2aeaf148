"""The form of the page."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Literal

from ppsim.base.option_declarations import allowed_values, declared_options
from ppsim.catalog.build import every_schedule
from ppsim.costs.profile import DEFAULT, packaged_profiles
from ppsim.machine.cluster_files import packaged_clusters
from ppsim.model.registry import NAMES
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions

Kind = Literal["text", "number", "slider", "scale", "select"]

_WORDS, _TUNED = declared_options(PlanOptions), declared_options(TuneOptions)


@dataclass(frozen=True)
class Field:
    """A field of the form. The kind "slider" has integers from `least` to `most`.

    The kind "scale" is a logarithmic slider, for which `least` and `most` are powers of ten.

    If `joined`, `unit` is also part of the command-line value ("2GiB"). `empty` is the placeholder of an empty
    field. `source` is the source of costs for which the field is shown (None: all).
    """

    word: str
    label: str
    kind: Kind = "text"
    unit: str = ""
    joined: bool = False
    least: float = 0
    most: float = 0
    empty: str = ""
    source: Literal["profile", "job"] | None = None
    listed: str = ""


SOURCE = (
    Field("profile", "Profile", listed="profiles", empty=DEFAULT, source="profile"),
    Field("model", "Model", listed="models", source="job"),
    Field("cluster", "Cluster", listed="clusters", empty="dgx-h100", source="job"),
    Field("tp", "tp", "number", least=1, empty="1", source="job"),
    Field("dp", "dp", "number", least=1, empty="1", source="job"),
    Field("micro_batch", "micro-batch", "number", least=1, empty="as measured, or 1"),
    Field("seq_len", "tokens per sequence", "number", least=1, empty="the model's"),
    Field("recompute", "recompute", empty="none", source="job"),
)
SHAPE = (
    Field("pp", "p, pipeline ranks", "slider", least=1, most=32),
    Field("vpp", "v, stages per rank", "slider", least=0, most=8, empty="fewest"),
    Field("microbatches", "m, microbatches", "slider", least=1, most=128),
)
TIMES = (
    Field("forward_ms", "F, forward", "scale", unit="ms", least=-2, most=4),
    Field("backward_input_ms", "I, backward of inputs", "scale", unit="ms", least=-2, most=4),
    Field("backward_weight_ms", "W, backward of weights", "scale", unit="ms", least=-2, most=4),
    Field("transfer_ms", "hop to the next stage", "scale", unit="ms", least=-3, most=3),
    Field("activation_memory", "memory per microbatch", "scale", unit="GiB", joined=True, least=-3, most=3),
)
RUNTIME = (
    Field("runtime", "Runtime", "select", empty="torch"),
    Field("channel", "Channel", "select", empty="the runtime's"),
    Field("memory_limit", "Memory limit per rank", "number", unit="GiB", joined=True, empty="the device's"),
)
TUNED = (
    Field("model", "Model", listed="models", empty="must be given"),
    Field("cluster", "Cluster", listed="clusters", empty="dgx-h100"),
    Field("gpus", "GPUs", "number", least=1, empty="must be given"),
    Field("global_batch", "Global batch", "number", least=1, empty="must be given"),
    Field("seq_len", "Tokens a sequence", "number", least=1, empty="the model's"),
)


def form_html() -> str:
    return "".join(
        [
            _group("Costs", _source_html() + _fields_html(SOURCE)),
            _group("Shape", _fields_html(SHAPE)),
            _group("Times and memory of a microbatch, on a rank", _TIMES_NOTE + _fields_html(TIMES)),
            _group("Runtime", _fields_html(RUNTIME)),
            _group("Schedules to compare", _schedules_html(), kind="schedules"),
            _group(
                "Further options of ppsim project", _text_html("more", "as on the command line", "--split even")
            ),
            *_lists_html(),
        ]
    )


def search_html() -> str:
    more = _text_html("tune.more", "further options of ppsim tune", "--pp 1,2,4")
    return _fields_html(TUNED, prefix="tune.") + more


_STAGES = (
    "<details class=stages data-of='{name}'><summary aria-label='{label}, stage by stage'>stage by stage</summary>"
    "<div role=group aria-label='{label}, stage by stage'></div></details>"
)
"""Container in which the script puts a slider and a number per stage."""

_TIMES_NOTE = (
    "<p class=note id=times-note></p><button type=button id=by-costs hidden>Take them from the costs again</button>"
)


def _group(title: str, content: str, kind: str = "") -> str:
    return f"<fieldset class='{kind}'><legend>{escape(title)}</legend>{content}</fieldset>"


def _source_html() -> str:
    radios = "".join(
        f"<label><input type=radio name=source value={value}>{text}</label>"
        for value, text in (("profile checked", "a profile"), ("job", "a model on a cluster"))
    )
    return f"<div class=choice role=radiogroup aria-label='Where costs come from'>{radios}</div>"


def _fields_html(fields: Iterable[Field], prefix: str = "") -> str:
    return "".join(_field_html(one, prefix) for one in fields)


def _field_html(declared: Field, prefix: str) -> str:
    name = prefix + declared.word
    unit = f"<span class=unit>{declared.unit}</span>" if declared.unit else ""
    sentence = (_TUNED if prefix else _WORDS)[declared.word].option.sentence
    common = f"id='{name}' name='{name}' aria-describedby='{name}-error' title='{escape(sentence, quote=True)}'"
    empty = f" placeholder='{escape(declared.empty, quote=True)}'" if declared.empty else ""
    unit_joined = f" data-unit='{declared.unit}'" if declared.joined else ""
    if declared.kind == "select":
        choices = "".join(f"<option>{value}</option>" for value in allowed_values(_WORDS[declared.word].kinds))
        control = f"<select {common}><option value=''>{escape(declared.empty)}</option>{choices}</select>"
    elif declared.kind in ("slider", "scale"):
        # Step 0 of a scale is the value 0, which is no valid memory size (the scale with `joined`).
        ends = (
            f"min={declared.least:g} max={declared.most:g}"
            if declared.kind == "slider"
            else f"min={int(declared.joined)} max=600"
        )
        decades = f" data-least={declared.least:g} data-most={declared.most:g}" if declared.kind == "scale" else ""
        control = (
            f"<input type=range id='{name}-slider' data-of='{name}' {ends} step=1{decades} "
            f"aria-label='{escape(declared.label, quote=True)}, slider'>"
            f"<input type=text inputmode=decimal {common}{empty}{unit_joined} class=numeric>{unit}"
        )
        if declared.kind == "scale":
            control += _STAGES.format(name=name, label=escape(declared.label, quote=True))
    else:
        listed = f" list='{declared.listed}'" if declared.listed else ""
        mode = " inputmode=decimal class=numeric" if declared.kind == "number" else ""
        control = (
            f"<input type=text {common}{empty}{unit_joined}{listed}{mode} autocomplete=off spellcheck=false>{unit}"
        )
    source = f" data-source={declared.source}" if declared.source else ""
    return (
        f"<div class='field {declared.kind}'{source}><label for='{name}'>{escape(declared.label)}</label>{control}"
        f"<p class=error id='{name}-error' role=alert></p></div>"
    )


def _text_html(name: str, label: str, empty: str) -> str:
    return (
        f"<div class='field text wide'><label for='{name}'>{escape(label)}</label>"
        f"<input type=text id='{name}' name='{name}' placeholder='{escape(empty, quote=True)}' spellcheck=false "
        f"aria-describedby='{name}-error'><p class=error id='{name}-error' role=alert></p></div>"
    )


def _schedules_html() -> str:
    boxes = "".join(
        f"<label title='{escape(entry.title, quote=True)}'><input type=checkbox name=schedule value='{name}'>"
        f"{name}</label>"
        for name, entry in every_schedule().items()
    )
    return f"<div class=boxes>{boxes}</div><p class=error id='schedule-error' role=alert></p>"


def _lists_html() -> list[str]:
    lists = {"profiles": packaged_profiles(), "models": NAMES, "clusters": packaged_clusters()}
    options = {name: "".join(f"<option>{escape(one)}</option>" for one in names) for name, names in lists.items()}
    return [f"<datalist id={name}>{listed}</datalist>" for name, listed in options.items()]
