"""A model measured in chunks: any stage costs a + Σ n·b + E + L, told from the chunks that were measured."""

import copy
from itertools import pairwise

import pytest

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.assemble_profile import assemble
from ppsim.costs.chunk_costs import (
    KINDS,
    ChunkNumbers,
    _spread,
    layers_of,
    require_contents,
    short_contents,
    undetermined_parts,
)
from tests.costs.profiles import SHAPE, example, profile, quantity

BESIDE, EMBEDDING, HEAD = 0.25, 0.5, 2.0
SECONDS = {"t": 1.0, "u": 3.0}
PASSES = {"forward_s": 1.0, "backward_s": 2.0, "backward_input_s": 1.25, "backward_weight_s": 1.0}
"""Each pass takes so many times what F does; the embedding has B alone."""


def exact(contents, name):
    """What a chunk takes by the formula; of E, all of the backward is in W."""
    layers = layers_of(contents)
    inner = BESIDE * bool(layers) + sum(SECONDS[kind] for kind in layers) + HEAD * contents.endswith("L")
    first = {"backward_input_s": 0.0, "backward_weight_s": PASSES["backward_s"]}.get(name, PASSES[name])
    return PASSES[name] * inner + first * EMBEDDING * contents.startswith("E")


def size(contents, *, kept=False):
    layer = 30 if kept else 40
    return layer * len(layers_of(contents)) + (5 if contents[0] == "E" else 0) + (7 if contents[-1] == "L" else 0)


def chunk(contents, *, splits=True, factor=1.0):
    """The JSON of a measured chunk; of one with E, and where nothing splits, I and W are null."""
    has_halves = splits and contents[0] != "E"
    halves = ("backward_input_s", "backward_weight_s")
    return {
        "contents": contents,
        "shape": SHAPE,
        **{
            name: quantity(factor * exact(contents, name)) if has_halves or name not in halves else None
            for name in PASSES
        },
        "activation_bytes": size(contents),
        "activation_bytes_kept_for_weight": size(contents, kept=has_halves),
        "output_bytes": 64,
        "parameters": 100 * size(contents),
        "forward_flops": 1000.0 * size(contents),
    }


def of_chunks(*contents, kinds="t" * 12, splits=True):
    data = example(measurements=[], chunks=[chunk(one, splits=splits) for one in contents])
    data["model"] |= {"num_layers": len(kinds), "layer_kinds": kinds}
    return data


@pytest.mark.parametrize(
    ("kinds", "measured"),
    [
        ("t" * 12, ["Ett", "t", "tttt", "tL"]),
        ("t" * 12, ["Et", "Ettt", "t", "tt", "ttt", "ttL", "L"]),
        ("tttuuuuuuuuu", ["Et", "t", "u", "uuuu", "uL"]),
    ],
)
@pytest.mark.parametrize(("name", "pp", "vpp"), [("1f1b", 4, 1), ("zb-h1", 3, 1), ("interleaved-1f1b", 2, 2), ("zbv", 2, 2)])  # fmt: skip
@pytest.mark.parametrize("split", ["auto", "even", "given"])
def test_every_stage_costs_what_the_formula_says(kinds, measured, name, pp, vpp, split):
    table = ppsim.build(name, pp=pp, vpp=vpp, microbatches=4)
    stages = table.num_model_stages
    given = split if split != "given" else [1] * (stages - 1) + [12 - stages + 1]
    made = assemble(profile(of_chunks(*measured, kinds=kinds)), table, split=given)
    ends = [sum(made.split[:stage]) for stage in range(stages + 1)]
    held = [kinds[a:b] for a, b in pairwise(ends)]
    held[0], held[-1] = "E" + held[0], held[-1] + "L"
    for key in PASSES:
        assert list(getattr(made.costs, key)) == pytest.approx([exact(one, key) for one in held]), key
    assert list(made.costs.activation_bytes) == pytest.approx([size(one) for one in held])
    kept = [size(one, kept=True) for one in held]  # of E all is kept, of which there are 5 as of what it holds
    assert list(made.costs.activation_bytes_kept_for_weight) == pytest.approx(kept)
    assert made.forward_flops == pytest.approx(1000 * sum(map(size, held)))


def test_the_balanced_split_of_layers_of_two_kinds_weighs_each():
    made = assemble(
        profile(of_chunks("Et", "t", "u", "uu", "uL", kinds="ttttttuu")), ppsim.build("1f1b", pp=2, microbatches=4)
    )
    assert made.split == [6, 2]


def test_noise_that_makes_two_layers_quicker_than_one_leaves_a_balanced_split():
    """A row of two that was measured at half of what one takes: a layer then weighs what it takes alone."""
    data = of_chunks("Et", "t", "u", "uL", kinds="ttttttuu")
    data["chunks"].append(chunk("uu", factor=0.25))
    made = assemble(profile(data), ppsim.build("1f1b", pp=2, microbatches=4))
    assert made.split == [6, 2]


def test_a_stage_that_was_measured_keeps_its_own_numbers():
    data = of_chunks("Ett", "t", "tttt", "ttL")
    slow = chunk("ttt", factor=1.5)
    data["chunks"].append(slow)
    made = assemble(profile(data), ppsim.build("1f1b", pp=4, microbatches=4), split=[3, 3, 4, 2])
    assert made.costs.forward_s[1] == slow["forward_s"]["median"]
    assert "chunks: 3 of 4 stages measured as they are, Et*3 made up of others" in made.assumptions


def test_what_the_chunks_tell_are_the_components_of_the_profile():
    """A row of four is a + 4b; one alone a + b; so that jobs, searches and lines find what they ask for."""
    embedding, layer, head = profile(of_chunks("Ett", "t", "tttt", "ttL")).measurements
    assert (embedding.component, layer.component, head.component) == ("embedding", "layer", "head")
    assert layer.forward_s.median == pytest.approx((BESIDE + 4) / 4)
    assert layer.alone is not None
    assert layer.alone.num_in_row == 4
    assert layer.alone.forward_s.median == pytest.approx(BESIDE + 1)
    assert embedding.forward_s.median == pytest.approx(EMBEDDING)
    assert embedding.backward_weight_s is not None
    assert embedding.backward_weight_s.median == pytest.approx(2 * EMBEDDING)
    assert head.backward_s is not None
    assert head.backward_s.median == pytest.approx(2 * HEAD)
    assert (layer.activation_bytes, layer.parameters) == (40, 4000)


def test_chunks_of_one_size_are_refused_with_what_they_lack():
    with pytest.raises(ConfigError, match="the chunks Ett, tt, tttL cannot tell what t and L takes"):
        profile(of_chunks("Ett", "tt", "tttL"))
    assert undetermined_parts(["Ett", "tt", "t", "tttL"]) == []


def test_numbers_of_a_stage_that_no_chunks_make_up_are_refused_by_name():
    numbers = ChunkNumbers([chunk(one) for one in ("Ett", "tt", "ttL")])
    assert numbers.number("forward_s", "Ett") == exact("Ett", "forward_s")
    with pytest.raises(ConfigError, match="what a stage ttt takes cannot be told from the chunks Ett, tt, ttL"):
        numbers.number("forward_s", "ttt")


def test_layers_of_two_kinds_are_not_made_more_or_fewer():
    made = profile(of_chunks("Et", "t", "u", "uu", "uL", kinds="ttuuuu"))
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    with pytest.raises(ConfigError, match=r"layers of 2 kinds \(ttuuuu\): it cannot tell what 7 layers would be"):
        assemble(made, table, num_layers=7)
    alike = profile(of_chunks("Ett", "t", "tttt", "ttL"))
    assert sum(assemble(alike, table, num_layers=31).split) == 31


def test_a_schedule_that_splits_is_refused_where_only_b_was_measured():
    whole = profile(of_chunks("Ett", "t", "tttt", "ttL", splits=False))
    with pytest.raises(ScheduleError, match="splits the backward"):
        assemble(whole, ppsim.build("zb-h1", pp=2, microbatches=4))
    made = assemble(whole, ppsim.build("1f1b", pp=2, microbatches=4), split=[2, 10])
    assert list(made.costs.backward_s) == pytest.approx(
        [exact(one, "backward_s") for one in ("Ett", 10 * "t" + "L")]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["chunks"][0].update(contents="ttE"), "a chunk is E, a letter for each layer, and L"),
        (lambda data: data["chunks"].append(copy.deepcopy(data["chunks"][0])), "the chunk Ett at"),
        (lambda data: data["model"].update(layer_kinds="tt"), "layer_kinds has 2 letters for 12 layers"),
        (lambda data: data.update(chunks=[]), "measurements: must not be empty"),
    ],
)
def test_wrong_chunks_are_refused(change, words):
    data = of_chunks("Ett", "t", "tttt", "ttL")
    change(data)
    with pytest.raises(ConfigError, match=words):
        profile(data)


def test_letters_of_layers_are_no_other_letters_of_a_layout():
    assert not set(KINDS) & set("ELm")
    assert len(set(KINDS)) == len(KINDS)


def test_quartiles_of_a_component_are_as_far_apart_as_those_of_the_largest_chunk() -> None:
    measured = {"forward_s": {"median": 2.0, "low": 1.0, "high": 5.0}}
    assert _spread(3.0, measured) == {"median": 3.0, "low": 1.5, "high": 7.5}
    free = {"forward_s": {"median": 0.0, "low": 0.0, "high": 5.0}}
    assert _spread(3.0, free) == {"median": 3.0, "low": 0.0, "high": 3.0}


def test_contents_have_e_first_and_l_last_and_runs_of_three_are_short() -> None:
    assert [require_contents(contents) for contents in ("E", "L", "tuL", "EtL")] == ["E", "L", "tuL", "EtL"]
    for wrong in ("", "tE", "Lt", "m", "T"):
        with pytest.raises(ConfigError, match="a chunk is E, a letter for each layer, and L"):
            require_contents(wrong)
    assert short_contents("Ettuuut") == "Ettu*3t"


def test_memory_for_the_weight_gradient_is_part_of_the_activations() -> None:
    """With more bytes for W than saved in all, as by noise in the combination, all saved bytes count."""
    chunks = [chunk(one) for one in ("t", "ttt", "EtL")]
    for one in chunks:
        one["activation_bytes_kept_for_weight"] = one["activation_bytes"] + 7
    numbers = ChunkNumbers(chunks)
    assert numbers.number("activation_bytes_kept_for_weight", "tt") == pytest.approx(80.0)
    assert numbers.number("forward_s", "") == 0
    assert (numbers.is_measured("ttt"), numbers.is_measured("tt")) == (True, False)
