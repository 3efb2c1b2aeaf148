"""A table in the place of one of Primus' algorithms: what `install` puts there, and what it refuses."""

import re
import sys
import types
from enum import Enum

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.base.files import to_json
from ppsim.integrations.primus import PLACEMENTS, algorithm_for, install
from ppsim.trainers.primus.write_schedule import primus_table


class FuncType(Enum):
    F, B, W, BW, SF, SB, RF, RB = range(8)


class Algo:
    """As Primus' base class stores its sizes."""

    def __init__(self, pp_size, vpp_size, micro_batches):
        self.pp_size, self.vpp_size, self.micro_batches = pp_size, vpp_size, micro_batches


@pytest.fixture
def factory(monkeypatch):
    """The three modules of Primus that `install` imports, with its names and as little else as it needs."""
    scheduler = "primus.core.pipeline_parallel.scheduler"
    made = {}
    for name in ("schedule_table_factory", "algorithms", "algorithms.base", "scheduler_node"):
        made[name] = types.ModuleType(f"{scheduler}.{name}")
    parents = [scheduler.rsplit(".", up)[0] for up in range(scheduler.count("."), 0, -1)]
    for parent in (*parents, scheduler):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, f"{scheduler}.{name}", module)
    sys.modules[scheduler].schedule_table_factory = made["schedule_table_factory"]
    made["algorithms"].base = made["algorithms.base"]
    made["algorithms.base"].PipelineScheduleAlgo = Algo
    made["scheduler_node"].FuncType, made["scheduler_node"].SchedulerNode = FuncType, types.SimpleNamespace
    made["scheduler_node"].SchedulerNode = lambda kind, mini_batch, chunk, args: (
        kind.name,
        mini_batch,
        chunk,
        args,
    )
    names = [name for names in PLACEMENTS.values() for name in names]
    made["schedule_table_factory"].pp_algorithm_map = dict.fromkeys(names)
    made["schedule_table_factory"]._schedule_instance_cache = {"older": None}
    return made["schedule_table_factory"]


def write(tmp_path, name, **options):
    path = tmp_path / f"{name}.json"
    path.write_text(to_json(primus_table(ppsim.build(name, pp=2, microbatches=4, **options))))
    return path


def test_the_nodes_are_those_of_the_file_and_new_at_each_call(factory, tmp_path):
    path = write(tmp_path, "zbv")
    install(path, replace="v-half")
    assert factory._schedule_instance_cache == {}
    made = factory.pp_algorithm_map["v-half"](2, 2, 4, offload=False, memory_config="half")
    ranks = made.generate_schedule_table()
    table = primus_table(ppsim.build("zbv", pp=2, microbatches=4))
    assert [[list(node) for node in rank] for rank in ranks] == [
        [[node["func_type"], node["mini_batch"], node["chunk"], node["args"]] for node in rank]
        for rank in table["ranks"]
    ]
    assert made.last_pp_stage_rank() == 0
    next(node for node in ranks[0] if node[3])[3]["req"] = "as the handlers do"
    assert all("req" not in (node[3] or {}) for rank in made.generate_schedule_table() for node in rank)


@pytest.mark.parametrize(
    ("name", "replace", "words"),
    [
        (
            "zbv",
            "1f1b-interleaved",
            "has a V of two chunks per rank, which '1f1b-interleaved' has not: replace zbv-form",
        ),
        (
            "interleaved-1f1b",
            "zbv-formatted",
            "'zbv-formatted'",
        ),
        ("1f1b", "v-min", "has one chunk per rank, which 'v-min' has not: replace 1f1b or zero-bubble or zero"),
        (
            "zb-h1",
            "1f1b",
            "splits the backward, which '1f1b' has not: replace zero-bubble or zero-bubble-heuristic",
        ),
        ("1f1b", "gpipe", "there is no algorithm 'gpipe' of Primus: choose one of 1f1b, "),
    ],
)
def test_another_placement_is_refused_in_one_sentence(factory, tmp_path, name, replace, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        install(write(tmp_path, name), replace=replace)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("1f1b", "1f1b"), ("zb-h1", "zero-bubble"), ("interleaved", "1f1b-interleaved"), ("zb-v", "zbv-formatted")],
)
def test_a_table_replaces_the_first_algorithm_that_places_and_splits_as_it_does(name, algorithm):
    table = primus_table(ppsim.build(name, pp=2, microbatches=4))
    assert algorithm_for(table, "T.json") == algorithm


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ((4, 1, 4), {}, "is for pp_size 2: got pp_size 4"),
        ((2, 1, 8), {}, "is for micro_batches 4: got micro_batches 8"),
        ((4, 2, 4), {}, "is for pp_size 2, vpp_size 1: got pp_size 4, vpp_size 2"),
        ((2, 1, 4), {"offload": True}, "holds no nodes for offload: turn it off"),
    ],
)
def test_other_sizes_are_refused_when_primus_asks(factory, tmp_path, sizes, options, words):
    install(write(tmp_path, "1f1b"), replace="1f1b")
    with pytest.raises(ConfigError, match=re.escape(words)):
        factory.pp_algorithm_map["1f1b"](*sizes, **options)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "ppsim-table/1"}'])
def test_another_file_is_refused(factory, tmp_path, text):
    (tmp_path / "T.json").write_text(text)
    what = "is no table of the format ppsim-primus/1" if text else "is not valid JSON: line 1, column 1"
    with pytest.raises(ConfigError, match=rf"T\.json {what}"):
        install(tmp_path / "T.json", replace="1f1b")
    with pytest.raises(ConfigError, match=r"cannot read .*none\.json: No such file"):
        install(tmp_path / "none.json", replace="1f1b")
