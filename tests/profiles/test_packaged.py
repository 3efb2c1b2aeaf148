"""The profiles that ship: each loads, and the published ones are what their source gives."""

import importlib.util
import json
from pathlib import Path

import pytest

from ppsim import build
from ppsim.costs.assemble_profile import assemble
from ppsim.costs.profile import DEFAULT, load_profile, packaged_profiles
from tests import published

ROOT = Path(__file__).parents[2]
PACKAGED = packaged_profiles()
ZB_PAPER = [name for name in PACKAGED if name.startswith("zb-a100-")]


@pytest.fixture(scope="module")
def made():
    """What scripts/make_published_profiles.py makes of benchmarks/published."""
    path = ROOT / "scripts" / "make_published_profiles.py"
    spec = importlib.util.spec_from_file_location("make_published_profiles", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.profiles()


def test_the_default_is_packaged():
    assert DEFAULT in PACKAGED


@pytest.mark.parametrize("name", PACKAGED)
def test_every_packaged_profile_loads_and_says_where_it_is_from(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.provenance.source
    assert profile.provenance.device.name in str(profile)
    for shape in profile.shapes:
        for component in ("embedding", "layer", "head"):
            assert profile.find(component, shape).forward_s.median > 0
    for part in profile.measurements:
        for quantity in (part.forward_s, part.backward_input_s, part.backward_weight_s, part.backward_s):
            assert quantity is None or quantity.low <= quantity.median <= quantity.high


@pytest.mark.parametrize("name", PACKAGED)
def test_a_measured_profile_names_its_software_and_repeats(name):
    provenance = load_profile(name).provenance
    if provenance.kind == "measured":
        assert provenance.software
        assert provenance.num_repeats > 0


def test_the_published_profiles_are_what_the_script_writes(made):
    assert set(made) == set(ZB_PAPER)
    for name, profile in made.items():
        assert json.loads(PACKAGED[name].read_text()) == profile


@pytest.mark.parametrize("name", ZB_PAPER)
def test_a_stage_of_the_published_model_takes_what_the_paper_measured(name):
    """Table 9 gives each rank's F, B (our I), W and transfer; the median over the numbers of microbatches."""
    size = name.removeprefix("zb-a100-").upper()
    rows = [row for row in published.read("zb_paper.csv") if row["model"] == size]
    profile = load_profile(name)
    made = assemble(profile, build("1f1b", pp=int(rows[0]["pp"]), microbatches=1))
    columns = {
        "forward_s": "forward_ms", "backward_input_s": "backward_input_ms",
        "backward_weight_s": "backward_weight_ms", "transfer_s": "transfer_ms",
    }  # fmt: skip
    for field, column in columns.items():
        measured = sorted(float(row[column]) for row in rows)[1] / 1e3
        values = [made.costs.transfer_s] if field == "transfer_s" else list(getattr(made.costs, field))
        assert values == pytest.approx([measured] * len(values), rel=1e-6)
