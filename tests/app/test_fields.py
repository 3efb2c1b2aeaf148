"""The form's HTML: an input of each kind, ranges of sliders, groups and lists."""

import re
from html import escape

import pytest

from ppsim.app import fields
from ppsim.app.fields import RUNTIME, SHAPE, SOURCE, TIMES, TUNED, Field, form_html, search_html
from ppsim.base.option_declarations import declared_options
from ppsim.catalog.build import every_schedule
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions


def common(name: str, options: type = PlanOptions) -> str:
    word = name.removeprefix("tune.")
    sentence = escape(declared_options(options)[word].option.sentence, quote=True)
    return f"id='{name}' name='{name}' aria-describedby='{name}-error' title='{sentence}'"


def field(kind: str, name: str, label: str, control: str, source: str = "") -> str:
    return (
        f"<div class='field {kind}'{source}><label for='{name}'>{label}</label>{control}"
        f"<p class=error id='{name}-error' role=alert></p></div>"
    )


END = " autocomplete=off spellcheck=false>"
NUMBER = " inputmode=decimal class=numeric"


@pytest.mark.parametrize(
    ("declared", "prefix", "expected"),
    [
        (Field("tp", "t<p"), "", field("text", "tp", "t&lt;p", f"<input type=text {common('tp')}{END}")),
        (
            Field("model", "Model", listed="models", empty="it's", source="job"), "tune.",
            field(
                "text", "tune.model", "Model",
                f"<input type=text {common('tune.model', TuneOptions)} placeholder='it&#x27;s' list='models'{END}",
                " data-source=job",
            ),
        ),
        (
            Field("memory_limit", "Limit", "number", unit="GiB", joined=True), "",
            field(
                "number", "memory_limit", "Limit",
                f"<input type=text {common('memory_limit')} data-unit='GiB'{NUMBER}{END}<span class=unit>GiB</span>",
            ),
        ),
        (
            Field("pp", "p", "slider", least=3, most=7, empty="1"), "",
            field(
                "slider", "pp", "p",
                "<input type=range id='pp-slider' data-of='pp' min=3 max=7 step=1 aria-label='p, slider'>"
                f"<input type=text inputmode=decimal {common('pp')} placeholder='1' class=numeric>",
            ),
        ),
        (
            Field("activation_memory", "memory", "scale", unit="GiB", joined=True, least=-3, most=4), "",
            field(
                "scale", "activation_memory", "memory",
                "<input type=range id='activation_memory-slider' data-of='activation_memory' min=1 max=600 step=1 "
                "data-least=-3 data-most=4 aria-label='memory, slider'>"
                f"<input type=text inputmode=decimal {common('activation_memory')} data-unit='GiB' class=numeric>"
                "<span class=unit>GiB</span><details class=stages data-of='activation_memory'><summary "
                "aria-label='memory, stage by stage'>stage by stage</summary><div role=group aria-label='memory, stage "
                "by stage'></div></details>",
            ),
        ),
        (
            Field("runtime", "Runtime", "select", empty="torch"), "",
            field(
                "select", "runtime", "Runtime",
                f"<select {common('runtime')}><option value=''>torch</option><option>torch</option><option>megatron"
                "</option><option>ideal</option></select>",
            ),
        ),
    ],
)  # fmt: skip
def test_a_field_is_an_input_of_its_kind(declared: Field, prefix: str, expected: str) -> None:
    assert fields._field_html(declared, prefix) == expected


def test_a_scale_of_times_begins_with_zero() -> None:
    text = fields._field_html(Field("forward_ms", "F", "scale", unit="ms", least=-2, most=4), "")
    assert "min=0 max=600 step=1 data-least=-2 data-most=4" in text


def test_sliders_have_their_ranges() -> None:
    ranges = {one.word: (one.kind, one.least, one.most) for one in (*SHAPE, *TIMES)}
    assert ranges == {
        "pp": ("slider", 1, 32), "vpp": ("slider", 0, 8), "microbatches": ("slider", 1, 128),
        "forward_ms": ("scale", -2, 4), "backward_input_ms": ("scale", -2, 4), "backward_weight_ms": ("scale", -2, 4),
        "transfer_ms": ("scale", -3, 3), "activation_memory": ("scale", -3, 3),
    }  # fmt: skip
    assert {one.word for one in (*SHAPE, *TIMES, *RUNTIME) if one.joined} == {"activation_memory", "memory_limit"}
    numbers = [one.least for one in (*SOURCE, *RUNTIME, *TUNED) if one.kind == "number"]
    assert numbers == [1, 1, 1, 1, 0, 1, 1, 1]


def test_the_form_has_its_groups_in_order_and_all_schedules() -> None:
    text = form_html()
    assert re.findall("<legend>(.*?)</legend>", text) == [
        "Costs", "Shape", "Times and memory of a microbatch, on a rank", "Runtime", "Schedules to compare",
        "Further options of ppsim project",
    ]  # fmt: skip
    assert re.findall("<fieldset class='(.*?)'>", text) == ["", "", "", "", "schedules", ""]
    assert re.findall("<input type=radio name=source value=(.*?)>(.*?)</label>", text) == [
        ("profile checked", "a profile"), ("job", "a model on a cluster"),
    ]  # fmt: skip
    assert re.findall("name=schedule value='(.*?)'", text) == list(every_schedule())
    words = [one.word for one in (*SOURCE, *SHAPE, *TIMES, *RUNTIME)]
    assert re.findall("<div class='field [a-z]+'.*?<label for='(.*?)'>", text) == words
    assert "<label for='more'>as on the command line</label><input type=text id='more' name='more' " in text
    assert "placeholder='--split even' spellcheck=false aria-describedby='more-error'>" in text
    assert re.findall("<datalist id=(.*?)>", text) == ["profiles", "models", "clusters"]
    assert "<option>dgx-h100</option>" in text.split("<datalist id=clusters>")[1]
    assert "<option>gpt2</option>" in text.split("<datalist id=models>")[1].split("</datalist>")[0]


def test_the_form_of_a_search_has_names_of_its_own() -> None:
    text = search_html()
    assert re.findall("<label for='(.*?)'>", text) == [*(f"tune.{one.word}" for one in TUNED), "tune.more"]
    assert "further options of ppsim tune" in text
    assert "placeholder='--pp 1,2,4'" in text
