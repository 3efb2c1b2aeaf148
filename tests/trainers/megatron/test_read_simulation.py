"""Megatron-LM's simulation of a step, read from its result folder: the table, the costs, and its own step time."""

import json
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.trainers.megatron.read_simulation import read_simulation

FORWARD_MS, BACKWARD_MS = 10.0, 15.0
WRITTEN = Path(__file__).parents[2] / "runs" / "data" / "megatron_simulation"
"""By `VppSimulator` itself, of pull request 5104 (ffef7bfc), 2 ranks of 2 chunks, 4 microbatches; only its models and
the passes that it times were stand-ins: 10.5 ms and 0.5 ms more a kind of forward, 15 ms + rank + chunk / 4."""


def written(folder, *, pp, vpp, microbatches, slow=None):
    """The files as `VppSimulator` writes them, with its dependencies: a task before it on its rank, F before its B, and
    the neighbouring rank's same chunk; nothing from the last rank to the first."""
    order = ppsim.build("interleaved-1f1b" if vpp > 1 else "1f1b", pp=pp, vpp=vpp, microbatches=microbatches)

    def name(rank, chunk, microbatch, kind):
        return f"pp_{rank}-mbs_{microbatch}-model_chunk_{chunk}-task_type_{kind}"

    ranks = {}
    for rank in range(pp):
        tasks = []
        for action in order.rows()[rank]:
            chunk, kind = action.stage // pp, "forward" if action.op is ppsim.Op.F else "backward"
            waits = [name(rank, chunk, action.microbatch, "forward")] if kind == "backward" else []
            other = rank - 1 if kind == "forward" else rank + 1
            waits += [name(other, chunk, action.microbatch, kind)] if 0 <= other < pp else []
            waits += [tasks[-1]["task_id"]] if tasks else []
            more = 5.0 if (rank, chunk) == slow else 0.0
            tasks.append({
                "task_type": kind, "pp_rank": rank, "microbatch_id": action.microbatch, "model_chunk_id": chunk,
                "task_id": name(rank, chunk, action.microbatch, kind), "dependencies": waits, "finished": True,
                "duration": (FORWARD_MS if kind == "forward" else BACKWARD_MS) + more,
            })  # fmt: skip
        ranks[str(rank)] = tasks
    layer = ["decoder_layer", "attn_softmax", "mlp_moe"]
    layout = {str(rank): {str(chunk): [layer, layer] for chunk in range(vpp)} for rank in range(pp)}
    layout["0"]["0"].insert(0, "embedding")
    layout[str(pp - 1)][str(vpp - 1)].append("loss")
    static = {"params_memory_gb": 1.5, "grads_memory_gb": 3.0}
    memory = {"executor_0": {str(rank): {"static": static, "dynamic": {}} for rank in range(pp)}}
    for file, content in {
        "finished_tasks": ranks, "all_pp_vpp_layout": layout, "static_memory_info": memory,
    }.items():  # fmt: skip
        (folder / f"{file}.json").write_text(json.dumps(content))
    return order


def test_what_its_own_code_writes_is_read():
    found = read_simulation(WRITTEN)
    assert found.schedule == ppsim.build("interleaved-1f1b", pp=2, vpp=2, microbatches=4)
    assert found.contents == ["Ett", "tt", "tt", "ttL"]
    assert list(found.costs.forward_s) == [0.0105, 0.011, 0.011, 0.0115]  # "tt" is timed once
    assert list(found.costs.backward_s) == [0.015, 0.01525, 0.01525, 0.01625]
    assert list(found.costs.static_bytes) == [2 * 4 * 2**20] * 2  # a million parameters and their gradients
    assert found.step_time_s == 0.2415


def test_a_rank_whose_backwards_its_code_leaves_out_is_told(tmp_path):
    """As where its forwards are all warm-up: `_create_pp_rank_schedule_dependencies` then has no cool-down."""
    for path in WRITTEN.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    tasks = json.loads((WRITTEN / "finished_tasks.json").read_text())
    tasks["0"] = [task for task in tasks["0"] if task["task_type"] == "forward"]
    (tmp_path / "finished_tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(
        ConfigError, match=r"rank 0 has no backward: its 8 forwards are all warm-up, .* more microb"
    ):
        read_simulation(tmp_path)


def test_table_costs_contents_and_memory_are_those_of_the_files(tmp_path):
    order = written(tmp_path, pp=2, vpp=2, microbatches=4, slow=(1, 1))
    found = read_simulation(tmp_path)
    assert found.schedule == order
    assert found.contents == ["Ett", "tt", "tt", "ttL"]
    assert list(found.costs.forward_s) == [0.010, 0.010, 0.010, 0.015]
    assert list(found.costs.backward_s) == [0.015, 0.015, 0.015, 0.020]
    assert list(found.costs.static_bytes) == [4.5 * 2**30] * 2


def test_with_one_chunk_its_step_is_ours(tmp_path):
    """1F1B: (m + p − 1)(F + B)."""
    written(tmp_path, pp=4, vpp=1, microbatches=8)
    found = read_simulation(tmp_path)
    assert found.step_time_s == pytest.approx((8 + 4 - 1) * 0.025)
    assert ppsim.simulate(found.schedule, found.costs).step_time_s == pytest.approx(found.step_time_s)


@pytest.mark.parametrize("slow", [None, (0, 0), (2, 0), (3, 0), (3, 1)])
def test_with_several_chunks_too_though_it_leaves_out_the_hop_back_to_the_first_rank(tmp_path, slow):
    """A group of as many microbatches as ranks is back before the first rank has another need of it."""
    written(tmp_path, pp=4, vpp=2, microbatches=8, slow=slow)
    found = read_simulation(tmp_path)
    assert ppsim.simulate(found.schedule, found.costs).step_time_s == pytest.approx(found.step_time_s)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (
            "finished_tasks",
            lambda data: data["0"][0].update(duration=None),
            "not what Megatron-LM's simulation writes",
        ),
        ("finished_tasks", lambda data: data["1"].pop(), "1"),
        (
            "finished_tasks",
            lambda data: data["0"][0]["dependencies"].append("pp_9"),
            "waits for a task that never ends",
        ),
        ("all_pp_vpp_layout", lambda data: data["0"]["0"].append("conv"), "KeyError\\('conv'\\)"),
    ],
)
def test_what_is_no_result_is_refused_in_a_sentence(tmp_path, file, change, words):
    written(tmp_path, pp=2, vpp=1, microbatches=2)
    data = json.loads((tmp_path / f"{file}.json").read_text())
    change(data)
    (tmp_path / f"{file}.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=words):
        read_simulation(tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_simulation(tmp_path / "nowhere")
