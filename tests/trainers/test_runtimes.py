"""Tables for runtimes other than torch: round trips, the adapters of the docs executed, and what cannot be said."""

import dataclasses
import enum
import json
import re
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim import Op
from ppsim.base.errors import ConfigError, PpsimError, ScheduleError
from ppsim.base.files import to_json
from ppsim.catalog.build import build, every_schedule
from ppsim.catalog.published.interleaved import legal_group_sizes
from ppsim.model.pipeline_stages import stages_of_layout
from ppsim.model.registry import find_model
from ppsim.schedule.grammar import parse_table
from ppsim.trainers.megatron.write_config import as_entries, as_flags
from ppsim.trainers.megatron.write_schedule import (
    format_layout,
    layout_string,
    megatron_arguments,
    parse_layout,
)
from ppsim.trainers.primus.write_schedule import primus_table
from ppsim.trainers.table_json import read_table, table_from_json, table_to_json
from ppsim.trainers.transformer_engine.write_schedule import graph_order
from tests.cli.running import ppsim as run
from tests.strategies import tables_and_costs

NAMES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zbv-fixed": 2}
DOCS = Path(__file__).parents[2] / "docs" / "export.md"


def table_of(name, pp=4, microbatches=8):
    return ppsim.build(name, pp=pp, vpp=NAMES[name], microbatches=microbatches)


def adapter(name):
    """The functions of a code block of the docs, executed."""
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if f"adapter: {name}" in block
    )
    scope = {}
    exec(code, scope)
    return scope


@given(tables_and_costs())
def test_neutral_json_is_lossless(table_and_costs):
    table, _ = table_and_costs
    assert table_from_json(json.loads(to_json(table_to_json(table))), "it") == table


def test_neutral_json_keeps_fused_and_idle_cells():
    table = parse_table("0F0,,(0F1;0B0)OVERLAP_F_B,0B1\n", name="t", source="it")
    assert table_to_json(table)["ranks"] == [[[["F", 0, 0]], [], [["F", 0, 1], ["B", 0, 0]], [["B", 0, 1]]]]
    assert table_from_json(table_to_json(table), "it") == table


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": [[[["X", 0, 0]]]]}, "rank 0: unknown operation 'X'"),
        ({"ranks": [[[["F", "0", 0]]]]}, "ranks[0][0][0]"),
        ({"ranks": []}, "ranks: must not be empty"),
        ({"extra": 1}, "unknown key"),
        ({"format": "other"}, "format"),
    ],
)
def test_a_wrong_neutral_file_is_refused_with_its_place(change, words):
    with pytest.raises((ConfigError, ScheduleError), match=re.escape(words)):
        table_from_json(table_to_json(table_of("1f1b")) | change, "it")


class TaskType(enum.Enum):
    FWD, BWD, BWD_I, BWD_W = range(1, 5)


@dataclasses.dataclass(frozen=True)
class Task:
    stage_id: int
    mubatch_idx: int
    fwd_or_bwd: TaskType
    latency: int = dataclasses.field(hash=False, compare=False)

    @classmethod
    def make(cls, stage_id, mubatch_idx, fwd_or_bwd, latency=None):
        return cls(stage_id, mubatch_idx, fwd_or_bwd, 1 if latency is None else latency)


class FusedTask(tuple):
    __slots__ = ()


@dataclasses.dataclass(eq=True, frozen=True)
class BaseSchedule:
    """As JaxPP's base class: frozen, and not split unless a subclass says so."""

    num_stages: int
    is_partial_bwd: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        assert self.num_stages > 0


JAXPP = types.SimpleNamespace(TaskType=TaskType, Task=Task, FusedTask=FusedTask, BaseSchedule=BaseSchedule)


def jaxpp_schedule(table, tmp_path):
    (tmp_path / "T.json").write_text(to_json(table_to_json(table)))
    return adapter("JaxPP")["jaxpp_schedule"](tmp_path / "T.json", JAXPP)


def unpacked(tasks):
    return [one for task in tasks for one in (task if isinstance(task, FusedTask) else [task])]


@pytest.mark.parametrize("name", [*NAMES, "dualpipev"])
def test_jaxpp_adapter_makes_a_task_of_every_action_and_parts_no_backward_of_stage_0(name, tmp_path):
    table = ppsim.build(name, pp=4, vpp=NAMES.get(name), microbatches=8)
    made = jaxpp_schedule(table, tmp_path)
    assert (made.num_stages, made.is_partial_bwd) == (table.num_stages, table.splits_backward)
    assert [made.get_mpmd_idx(stage) for stage in range(table.num_stages)] == table.stage_to_rank.tolist()
    kinds = {Op.F: [TaskType.FWD], Op.B: [TaskType.BWD], Op.I: [TaskType.BWD_I], Op.W: [TaskType.BWD_W]}
    if made.is_partial_bwd:
        kinds[Op.B] = [TaskType.BWD_I, TaskType.BWD_W]
    for tasks, row in zip(made.tasks(8), table.rows(), strict=True):
        expected = []
        for action in (one for cell in row for one in ([cell] if isinstance(cell, ppsim.Action) else cell)):
            is_first = action.stage == 0 and made.is_partial_bwd
            kind = {Op.I: kinds[Op.B], Op.W: []}.get(action.op) if is_first else None
            expected += [
                (action.stage, action.microbatch, one) for one in (kinds[action.op] if kind is None else kind)
            ]
        assert [(t.stage_id, t.mubatch_idx, t.fwd_or_bwd) for t in unpacked(tasks)] == expected
        # What JaxPP asks of any split schedule: whole backwards are pairs, and those of stage 0 stay together.
        for task, following in zip(unpacked(tasks), [*unpacked(tasks)[1:], None], strict=True):
            assert (task.fwd_or_bwd is TaskType.BWD) <= (not made.is_partial_bwd)
            if task.stage_id == 0 and task.fwd_or_bwd is TaskType.BWD_I:
                assert following == Task.make(0, task.mubatch_idx, TaskType.BWD_W)
    assert any(isinstance(task, FusedTask) for rank in made.tasks(8) for task in rank) == (
        name == "dualpipev" or made.is_partial_bwd
    )
    with pytest.raises(ValueError, match="is for 8 microbatches: got 4"):
        made.tasks(4)


class FuncType(enum.Enum):
    F, B, W, BW, SF, SB, RF, RB = range(8)


def primus_nodes(table):
    return [
        [types.SimpleNamespace(**node | {"func_type": FuncType[node["func_type"]]}) for node in rank]
        for rank in primus_table(table)["ranks"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_primus_nodes_compute_the_table_and_exchange_every_message_in_one_order(name):
    table = table_of(name)
    ranks = primus_nodes(table)
    letters = {FuncType.F: "F", FuncType.B: "I", FuncType.W: "W", FuncType.BW: "B"}
    for rank, nodes in enumerate(ranks):
        stages = list(table.stages_of(rank))
        computed = [
            f"{stages[n.chunk]}{letters[n.func_type]}{n.mini_batch}" for n in nodes if n.func_type in letters
        ]
        assert computed == [str(cell) for cell in table.rows()[rank]]
    for sender in range(table.num_ranks):
        for receiver in range(table.num_ranks):
            sent, received = [], []
            for node in ranks[sender]:
                if node.func_type in (FuncType.SF, FuncType.SB) and node.args["to_pp_rank"] == receiver:
                    assert node.args["from_pp_rank"] == sender
                    sent.append((node.func_type.name[1], node.mini_batch, node.chunk, node.args["send_to_chunk"]))
            for node in ranks[receiver]:
                if node.func_type in (FuncType.RF, FuncType.RB) and node.args["from_pp_rank"] == sender:
                    assert node.args["to_pp_rank"] == receiver
                    received.append(
                        (node.func_type.name[1], node.mini_batch, node.args["recv_from_chunk"], node.chunk)
                    )
            assert sent == received, (sender, receiver)


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_primus_time_steps_make_the_same_batches_at_both_ends_in_one_order(pp):
    """A rank stays at a batch until its peers are there; by the least step left, one of them always can go on."""
    for entry in every_schedule().values():
        try:
            table = build(entry, pp=pp, microbatches=max(2 * pp, round(entry.least_microbatches(p=pp))))
            ranks = primus_table(table)["ranks"]
        except PpsimError:
            continue
        sent, received = {}, {}
        for rank, nodes in enumerate(ranks):
            came, last, closed = set(), -1, -1  # nodes so far, the step of the last message, of the last batch
            for node in nodes:
                kind, args, place = node["func_type"], node["args"], (node["mini_batch"], node["chunk"])
                if args is None:
                    needs = f"R{'F' if kind == 'F' else 'B'}"
                    assert (
                        kind == "W" or (needs, *place) in came or is_end_of_chain(table, kind, rank, node["chunk"])
                    )
                    closed = last
                else:
                    step = args["time_step"]
                    assert closed < step >= last, (entry.name, rank, node)
                    last, other = step, args["send_to_chunk" if kind[0] == "S" else "recv_from_chunk"]
                    chunks = (node["chunk"], other) if kind[0] == "S" else (other, node["chunk"])
                    message = (kind[1], node["mini_batch"], args["from_pp_rank"], args["to_pp_rank"], *chunks)
                    (sent if kind[0] == "S" else received)[message] = step
                    if kind[0] == "S":
                        assert came & {(one, *place) for one in (["F"] if kind == "SF" else ["B", "BW"])}
                    elif args["from_pp_rank"] == rank:
                        assert ("S" + kind[1], node["mini_batch"], other) in came
                came.add((kind, *place))
        assert sent == received, entry.name


def is_end_of_chain(table, kind, rank, chunk):
    """Whether a forward is of the first stage, or a backward of the last: those receive nothing."""
    return table.stages_of(rank)[chunk] == (0 if kind == "F" else table.num_stages - 1)


@pytest.mark.parametrize(
    ("text", "placed"),
    [("0F0,0B0\n1F0,2F0,2B0,1B0\n", "on ranks 0, 1, 1"), ("1F0,1B0\n0F0,0B0\n", "on ranks 1, 0")],
)
def test_primus_has_loops_and_a_v_of_two_chunks(text, placed):
    table = parse_table(text, name="t", source="it")
    with pytest.raises(ScheduleError, match=f"or two stages per rank in a V; .* {placed}"):
        primus_table(table)


def test_primus_has_no_fused_cells():
    table = parse_table("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", name="t", source="it")
    with pytest.raises(ScheduleError, match="no fused cells"):
        primus_table(table)


def test_megatron_arguments_name_the_group_size_that_gives_this_order():
    table = ppsim.build("interleaved-1f1b", pp=4, vpp=2, microbatches=12, group_size=6)
    assert megatron_arguments(table, layers_per_stage=[1, 2, 2, 2, 2, 2, 2, 1]) == {
        "arguments": {
            "pipeline-model-parallel-size": 4,
            "pipeline-model-parallel-layout": "Et|tt|tt|tt|tt|tt|tt|tL",
            "microbatch-group-size-per-virtual-pipeline-stage": 6,
        },
        "num_microbatches": 12,
    }
    assert megatron_arguments(table_of("1f1b"))["arguments"] == {"pipeline-model-parallel-size": 4}


@pytest.mark.parametrize(("p", "v", "m"), [(2, 3, 7), (3, 2, 13), (4, 2, 4), (4, 2, 12)])
def test_megatron_group_size_is_read_off_the_table_for_every_legal_one(p, v, m):
    for size in legal_group_sizes(p, m):
        table = ppsim.build("interleaved-1f1b", pp=p, vpp=v, microbatches=m, group_size=size)
        assert megatron_arguments(table)["arguments"]["microbatch-group-size-per-virtual-pipeline-stage"] == size


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpipe", "rank 0 differs from it at position 4: 0F4 where Megatron-LM runs 0B0"),
        ("zb-h1", "no split backward"),
        ("zbv-fixed", "stage s on rank s mod pp"),
    ],
)
def test_megatron_says_what_it_cannot_run(name, words):
    with pytest.raises(ScheduleError, match=re.escape(words)):
        megatron_arguments(table_of(name))


@pytest.mark.parametrize(
    ("p", "m", "options", "words"),
    [
        (1, 4, {}, "interleaves on 2 or more ranks: got 1"),
        (2, 4, {"overlap_p2p": False}, "interleaves on 3 or more ranks where transfers do not overlap: got 2"),
        (4, 3, {}, "interleaves groups of pp or more microbatches: got 3 for pp 4"),
    ],
)
def test_megatron_says_where_it_does_not_interleave(p, m, options, words):
    table = ppsim.build("interleaved-1f1b", pp=p, vpp=2, microbatches=m)
    with pytest.raises(ScheduleError, match=re.escape(words)):
        megatron_arguments(table, **options)


SIZE, GROUP = "pipeline-model-parallel-size", "microbatch-group-size-per-virtual-pipeline-stage"
STAGES, CHUNK = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
EMBEDDING, LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"


@pytest.mark.parametrize(
    ("p", "layers", "expected"),
    [
        (4, [2] * 4, {}),
        (4, [2] * 8, {CHUNK: 2, GROUP: 4}),
        (4, [1, 2, 2, 1], {EMBEDDING: True, LOSS: True}),
        (4, [1, 2, 2, 2, 2, 2, 2, 2], {CHUNK: 2, EMBEDDING: True, GROUP: 4}),
        (4, [3, 2, 2, 2], {FIRST: 3}),
        (4, [3, 2, 2, 1], {FIRST: 3, LAST: 1}),
        (4, [3, 2, 2, 1, 3, 2, 2, 1], {STAGES: 2, FIRST: 6, LAST: 2, GROUP: 4}),
    ],
)
def test_layers_are_said_in_counts_where_megatron_has_such(p, layers, expected):
    vpp = len(layers) // p
    table = ppsim.build("interleaved-1f1b" if vpp > 1 else "1f1b", pp=p, vpp=vpp, microbatches=8)
    found = megatron_arguments(table, layers_per_stage=layers, layers_by="counts")["arguments"]
    assert found == {SIZE: p} | expected


@pytest.mark.parametrize("layers", [[1, 2, 3, 2], [0, 3, 3, 0], [1, 2, 2, 3]])
def test_what_no_counts_say_needs_a_layout(layers):
    with pytest.raises(ConfigError, match="no arguments but a layout put"):
        megatron_arguments(table_of("1f1b"), layers_per_stage=[*layers[:2], 5, layers[3]], layers_by="counts")
    assert "layout" in str(megatron_arguments(table_of("1f1b"), layers_per_stage=layers))


def test_arguments_are_a_line_to_paste_and_yaml():
    table = ppsim.build("interleaved-1f1b", pp=4, vpp=2, microbatches=8)
    found = megatron_arguments(table, layers_per_stage=[2] * 8, overlap_p2p=False)["arguments"]
    assert " ".join(as_flags(found)) == (
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Ett|tt|tt|tt|tt|tt|tt|ttL' "
        "--microbatch-group-size-per-virtual-pipeline-stage 4 --no-overlap-p2p-communication"
    )
    assert as_entries(found) == [
        "pipeline_model_parallel_size: 4",
        'pipeline_model_parallel_layout: "Ett|tt|tt|tt|tt|tt|tt|ttL"',
        "microbatch_group_size_per_vp_stage: 4",
        "overlap_p2p_comm: false",
    ]


@pytest.mark.parametrize("split", [[1, 2, 2, 1], [0, 4, 4, 0], [12], [7, 8, 8, 7]])
def test_a_layout_string_reads_back(split):
    stages = parse_layout(layout_string(split))
    assert [stage.count("t") for stage in stages] == split


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 2))
def test_a_layout_written_out_reads_back(layers, num_mtp_layers):
    contents = parse_layout(layout_string(layers, num_mtp_layers=num_mtp_layers))
    assert parse_layout(format_layout(contents)) == contents
    assert contents[-1].count("m") == num_mtp_layers


def test_deepseek_v3s_layout_makes_its_stages():
    """The layout of Megatron-LM's documentation: 61 layers and one for further tokens on 32 stages."""
    stages = stages_of_layout(find_model("deepseek-v3"), parse_layout("Et*3|(tt|)*29,m|L"))
    assert [len(stage.layers) for stage in stages] == [3, *[2] * 29, 0, 0]
    assert [bool(stage.mtp) for stage in stages] == [False] * 30 + [True, False]
    assert (stages[0].embedding, stages[-1].head) == (True, True)
    with pytest.raises(ConfigError, match="the layout has 3 layers, but the model has 61"):
        stages_of_layout(find_model("deepseek-v3"), ["Ett", "tmL"])
    with pytest.raises(ConfigError, match="the layout has 0 multi-token-prediction layers, but the model has 1"):
        stages_of_layout(find_model("deepseek-v3"), ["E" + "t" * 61 + "L"])


@pytest.mark.parametrize("text", [
    "tt|tL", "Et|EtL", "Et|t", "EtL|t", "Etx|tL", "Et|(t|tL",
    "Et | tL", "Et|(tt)|tL", "E((t|)*2t|)*2tL", "Et*2*2|L", "Em|tL", "Et|m|mL",
])  # fmt: skip
def test_a_wrong_layout_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        parse_layout(text)


def test_transformer_engine_order_of_1f1b_and_of_a_split_backward():
    assert graph_order(table_of("1f1b", pp=2, microbatches=3)) == [[1, 1, -1, 1, -1, -1], [1, -1, 1, -1, 1, -1]]
    table = parse_table("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1W0,1I1,1W1\n", name="t", source="it")
    assert graph_order(table) == [[1, 1, -1, -1.5, -1, -1.5], [1, -1, 1, -1.5, -1, -1.5]]


def test_transformer_engine_refuses_a_weight_gradient_after_the_next_backward_of_its_chunk():
    """TransformerEngine captures it into the graph of the last backward (`bwd_idx` − 1), which has one already."""
    table = parse_table("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1W0,1I1,1W1\n", name="t", source="it")
    with pytest.raises(ScheduleError, match="rank 0 runs 0I1 before 0W0"):
        graph_order(table)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b"])
def test_transformer_engine_lists_hold_every_pass_of_every_chunk(name):
    table = table_of(name)
    for rank, order in enumerate(graph_order(table)):
        assert len(order) == table.rank_offsets[rank + 1] - table.rank_offsets[rank]
        assert sum(1 for item in order if item > 0) == table.num_microbatches * table.vpp


def test_transformer_engine_refuses_microbatches_out_of_order():
    table = parse_table("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", name="t", source="it")
    with pytest.raises(ScheduleError, match="rank 0 runs 0B1 where microbatch 0 is next"):
        graph_order(table)


@pytest.mark.parametrize("target", ["json", "primus", "megatron", "transformer-engine", "transformer_engine"])
def test_the_command_writes_each_target(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("build", "1f1b", "--pp", 2, "--num-microbatches", 4, "-o", "T.csv")
    run("export", "T.csv", "--to", target, "-o", "out.json")
    assert json.loads(Path("out.json").read_text())
    if target == "json":
        assert read_table("out.json") == ppsim.build("1f1b", pp=2, microbatches=4)
        assert "complete, ordered" in run("check", "out.json").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "json", "--receives", "ordered"), "--receives is for --to torch-comms: got --to json"),
        (("--to", "torch", "--split", "1,1"), "--split is for --to megatron: got --to torch"),
        (("--to", "megatron", "--split", "even"), "the layout string needs layers per stage"),
        (("--to", "megatron", "--split", "1,2,3"), "the split has 3 entries, but there are 2 stages"),
        (("--to", "megatron", "--layers-by", "counts"), "--layers-by says the layers of --split: give it too"),
        (("--to", "megatron", "--split", "Et|tL", "--layers-by", "counts"), "a layout is no count of layers"),
        (
            ("--to", "torchtitan", "--trainer-version", "1.0"),
            "TorchTitan 1.0: ppsim has the settings of 0.2 and 0.3",
        ),
        (("--to", "torchtitan", "--split", "1,2,3"), "the split has 3 entries, but there are 2 stages"),
        (("--to", "torchtitan", "--split", "even"), "TorchTitan needs layers per stage, as 7,8,8,7"),
        (("--to", "torchtitan", "--micro-batch-size", "0"), "--micro-batch-size must be at least 1: got 0"),
        (("--to", "torch", "--micro-batch-size", "2"), "--micro-batch-size is for --to torchtitan: got --to torch"),
        (("--to", "primus", "--replace", "v-min"), "the table has one chunk per rank, which 'v-min' has not"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("build", "1f1b", "--pp", 2, "--num-microbatches", 4, "-o", "T.csv")
    assert words in run("export", "T.csv", *arguments, "-o", "out.json", code=2).stderr
    assert not Path("out.json").exists()


def test_the_command_tells_what_to_paste(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("build", "interleaved-1f1b", "--pp", 2, "--vpp", 2, "--num-microbatches", 4, "-o", "T.csv")
    line = (
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3 "
        "--microbatch-group-size-per-virtual-pipeline-stage 2\n"
    )
    counts = ("--split", "3,3,3,3", "--layers-by", "counts")
    for name in ("a.json", "a.yaml", "a.txt"):
        assert run("export", "T.csv", "--to", "megatron", *counts, "-o", name).stdout == line
    assert Path("a.txt").read_text() == line
    assert "num_layers_per_virtual_pipeline_stage: 3\n" in Path("a.yaml").read_text()
    assert json.loads(Path("a.json").read_text())["arguments"]["num-layers-per-virtual-pipeline-stage"] == 3
    told = run("export", "T.csv", "--to", "torchtitan", "-o", "ready.csv")
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B \\\n" in told.stdout
    assert Path("ready.csv").read_text() == Path("T.csv").read_text()
    told = run("export", "T.csv", "--to", "primus", "-o", "primus.json").stdout
    assert 'install("primus.json", replace="1f1b-interleaved")\n' in told
    compile(told, "start.py", "exec")
