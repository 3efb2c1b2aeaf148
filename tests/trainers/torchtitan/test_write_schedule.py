"""TorchTitan's settings for a table, by name."""

import pytest

from ppsim import build
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.schedule.table import Schedule
from ppsim.trainers.torchtitan.write_schedule import (
    name_of_placement,
    settings_text,
    torchtitan_settings,
    warnings_of,
)

FIRST, MOST, LAST = (
    f"parallelism.pipeline_parallel_{name}"
    for name in ("first_stage_less_layers", "layers_per_stage", "last_stage_less_layers")
)


def layers(*counts: int, version: str = "0.3", pp: int = 0) -> dict[str, object]:
    """Return the settings of layers."""
    table = build("1f1b", pp=pp or len(counts), microbatches=4)
    found = torchtitan_settings(table, csv="t.csv", version=version, layers_per_stage=counts)
    named = ("layers_per_stage", "less_layers", "module_fqns_per_model_part")
    return {name: value for name, value in found.items() if name.endswith(named)}


def test_a_table_has_its_ranks_microbatches_and_file() -> None:
    table = build("interleaved-1f1b", pp=2, vpp=2, microbatches=4)
    expected = {
        "parallelism.pipeline_parallel_degree": 2,
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
        "parallelism.pipeline_parallel_schedule_csv": "t.csv",
        "parallelism.pipeline_parallel_microbatch_size": 3,
        "training.local_batch_size": 12,
    }
    assert torchtitan_settings(table, csv="t.csv", version="0.2.1", micro_batch=3) == expected
    with_graphs = expected | {"training.disable_cuda_graphs": True}
    assert torchtitan_settings(table, csv="t.csv", version="v0.3", micro_batch=3) == with_graphs


def test_a_placement_has_the_name_of_a_schedule() -> None:
    tables = {
        "1F1B": build("1f1b", pp=4, microbatches=4),
        "Interleaved1F1B": build("interleaved-1f1b", pp=2, vpp=3, microbatches=4),
        "ZBVZeroBubble": build("zbv-fixed", pp=2, microbatches=4),
    }
    assert {name: name_of_placement(table) for name, table in tables.items()} == {name: name for name in tables}
    with pytest.raises(ScheduleError, match="this table's stages are on ranks 1, 0"):
        name_of_placement(Schedule.outline([1, 0], num_microbatches=4))


def test_fewer_layers_at_the_ends_are_numbers() -> None:
    assert layers(3, 4, 2) == {MOST: 4, FIRST: 1, LAST: 2}
    assert layers(4, 3) == {MOST: 4, FIRST: 0, LAST: 1}
    assert layers(2, 2, 2, 2) == {MOST: 2, FIRST: 0, LAST: 0}


def test_other_splits_name_the_modules_of_each_stage() -> None:
    modules = "parallelism.module_fqns_per_model_part"
    assert layers(2, 1, 2) == {
        modules: [
            ["tok_embeddings", "layers.0", "layers.1"],
            ["layers.2"],
            ["layers.3", "layers.4", "norm", "lm_head"],
        ]
    }
    assert layers(0, 1, version="0.2") == {modules: [["tok_embeddings"], ["layers.0", "norm", "output"]]}
    assert layers(2) == {modules: [["tok_embeddings", "layers.0", "layers.1", "norm", "lm_head"]]}


def test_splits_without_a_module_or_a_stage_are_refused() -> None:
    with pytest.raises(ConfigError, match="no stage without a module: got 2, 0, 1 layers"):
        layers(2, 0, 1)
    with pytest.raises(ConfigError, match="gives a stage -1 layers"):
        layers(2, -1)
    with pytest.raises(ConfigError, match="the split has 2 entries, but there are 4 stages"):
        layers(2, 1, pp=4)
    with pytest.raises(ConfigError, match="TorchTitan makes 3 stages per rank where it knows the layers"):
        torchtitan_settings(build("interleaved-1f1b", pp=2, vpp=3, microbatches=4), csv="t.csv")


def test_settings_are_flags_or_tables() -> None:
    settings = {"a.one": 1, "b.two": [["x", "y"], ["z"]], "a.three": True, "b.four": "t.csv"}
    assert settings_text(settings, "0.3") == "--a.one 1 \\\n--b.two x,y z \\\n--a.three \\\n--b.four t.csv\n"
    assert settings_text(settings, "0.2") == (
        '[a]\none = 1\nthree = true\n[b]\ntwo = [["x", "y"], ["z"]]\nfour = "t.csv"\n'
    )


def test_split_backwards_have_warnings_of_their_version() -> None:
    split = build("zb-h1", pp=2, microbatches=4)
    assert warnings_of(build("1f1b", pp=2, microbatches=4), "0.3") == []
    assert warnings_of(split, "0.2") == ["I and W need torch 2.13 or newer"]
    assert len(warnings_of(split, "0.3")) == 3


@pytest.mark.parametrize("version", ["0.1", "0.30", "1.0", "", "x0.3"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"ppsim has the settings of 0\.2 and 0\.3"):
        settings_text({}, version)
