"""Fields of a config.json are read with their type, or refused with their name."""

from collections.abc import Callable
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.hf_fields import ConfigFields


def fields(**values: Any) -> ConfigFields:
    return ConfigFields(values, "config.json")


def test_the_first_of_several_names_with_a_value_is_read_or_else_the_default() -> None:
    assert fields(a=None, b=2, c=3).count("a", "b", "c") == 2
    assert fields().count("a", "b", default=7) == 7
    with pytest.raises(ConfigError):
        fields(a=None).count("a", "b")


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (ConfigFields.count, [1, 10**9]),
        (lambda one, name: one.number(name, default=5), [0, 1, 10**9]),
        (lambda one, name: one.flag(name, default=False), [True, False]),
        (ConfigFields.factor, [0.5, 1, 1000]),
        (ConfigFields.layers, [[0, 3], []]),
        (lambda one, name: one.counts(name, 2), [[0, 1], [1, 2, 3]]),
        (ConfigFields.objects, [[{"b": 1}], []]),
        (ConfigFields.sentences, [["b"], []]),
        (ConfigFields.text, ["M*"]),
    ],
)
def test_values_of_the_type_are_returned(read: Callable[..., Any], values: list[Any]) -> None:
    for value in values:
        found = read(fields(a=value), "a")
        assert found == (set(value) if isinstance(found, set) else value)


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (ConfigFields.count, [0, -1, True, 1.5, "1", 10**9 + 1]),
        (lambda one, name: one.number(name, default=5), [-1, True, 1.5, "1", 10**9 + 1]),
        (lambda one, name: one.flag(name, default=False), [0, "true"]),
        (ConfigFields.factor, [0, -1, True, "1", 1001]),
        (ConfigFields.layers, [3, "1,b", ["1"]]),
        (lambda one, name: one.counts(name, 2), [[1], [1, True], [1, -1], [1, 1.5], 2]),
        (ConfigFields.objects, [{"b": 1}, [1]]),
        (ConfigFields.sentences, ["b", [1]]),
        (ConfigFields.nested, [[1], "b"]),
        (ConfigFields.text, [1, [1]]),
        (lambda one, name: one.words(name, {"b": 1}, 2), [["b"], ["b", "b", "b"], ["b", "c"], "bb"]),
    ],
)
def test_values_of_another_type_are_refused_with_the_name(read: Callable[..., Any], values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=r"config\.json: name "):
            read(fields(name=value), "name")


def test_missing_fields_are_none_or_empty() -> None:
    empty = fields(a=None)
    assert (empty.optional("a"), empty.counts("a", 1), empty.words("a", {}, 1), empty.text("a")) == (None,) * 4
    assert (empty.length("a"), empty.layers("a"), empty.sentences("a")) == (0, set(), [])
    empty.nested("a").require_all_known()
    assert empty.is_word("a", None)
    assert not empty.is_list("a")
    assert not empty.has_any("a", "b")


def test_lists_and_words_are_recognised() -> None:
    found = fields(a=[1, 2], b="x")
    assert (found.length("a"), found.length("b"), found.is_list("a"), found.is_list("b")) == (2, 0, True, False)
    assert (found.is_word("b", "x"), found.is_word("b", "y"), found.has_any("c", "b")) == (True, False, True)
    assert found.optional("c") is None
    assert found.seen == {"model_type", "a", "b", "c"}


def test_layers_may_be_a_text_with_commas() -> None:
    assert fields(a="0, 2,5").layers("a") == {0, 2, 5}


def test_words_per_layer_are_looked_up() -> None:
    assert fields(a=["x", "y"]).words("a", {"x": 1, "y": 2}, 2) == [1, 2]


def test_a_list_of_layer_types_is_a_pattern_of_letters() -> None:
    kinds = ["mamba", "linear_attention", "attention", "full_attention", "mlp", "moe"]
    assert fields(b=kinds).text("a", "b") == "MM**-E"
    with pytest.raises(ConfigError, match=r"b must be of mamba, .*: got 'conv'"):
        fields(b=["conv"]).text("a", "b")


def test_a_field_that_was_not_read_is_refused_unless_it_has_no_effect_on_costs() -> None:
    found = fields(hidden_size=1, rope_theta=1e4, temperature=1.0, _name="x", hiden_size=2)
    found.count("hidden_size")
    with pytest.raises(ConfigError, match=r"unknown field 'hiden_size' .*is 'hidden_size' meant"):
        found.require_all_known()
    known = fields(hidden_size=1, rope_theta=1e4, temperature=1.0, _name="x")
    known.count("hidden_size")
    known.require_all_known()
    with pytest.raises(ConfigError, match="is 'hiden_size' meant"):
        fields(hiden_size=2).count("hidden_size")


def test_fields_of_other_kinds_of_files_are_unknown() -> None:
    """A pattern of config_fields.toml covers each name that it matches, and only in files of its kind."""
    given = fields(eos_token_id=1, mamba_dt_min=1)
    with pytest.raises(ConfigError, match="unknown field 'mamba_dt_min'"):
        given.require_all_known()
    given.kinds.add("granitemoehybrid")
    given.require_all_known()


def test_a_field_with_one_value_in_every_release_is_refused_with_another() -> None:
    given = fields(lm_head_bias=True)
    given.kinds.add("phi3")
    with pytest.raises(ConfigError, match="lm_head_bias true is not known; it is false in every release"):
        given.require_all_known()
