"""What the other trainers' modules say of their arguments, stages and orders; torch's own runtime runs tables."""

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.files import to_json
from ppsim.integrations import megatron, torchtitan
from ppsim.integrations import torchtitan as torchtitan_module
from ppsim.integrations.transformer_engine import check_order, most_alive
from ppsim.schedule.grammar import format_table
from ppsim.trainers.megatron.write_schedule import megatron_arguments
from ppsim.trainers.torchtitan.write_schedule import settings_text, torchtitan_settings, warnings_of
from ppsim.trainers.transformer_engine.write_schedule import graph_order
from tests.defaults import number_defaults

HEAVY = ("torch", "numba", "pandas", "matplotlib", "plotly", "pydantic", "click", "ortools")


@pytest.mark.parametrize("module", ["primus", "megatron", "torchtitan", "transformer_engine"])
def test_a_module_imports_nothing_heavy(module):
    code = f"import sys, ppsim.integrations.{module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.torch
def test_torch_runs_tables_of_stages_built_as_usual_and_says_what_does_not_fit(tmp_path):
    pytest.importorskip("torch")
    paths = []
    for name in ("1f1b", "zb-h1", "interleaved-1f1b", "zbv"):
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text(format_table(ppsim.build(name, pp=2, microbatches=4)))
    paths.insert(2, tmp_path / "comms.csv")
    paths[2].write_text(ppsim.export(ppsim.build("interleaved-zb", pp=2, microbatches=4), to="torch-comms"))
    script = Path(__file__).with_name("torch_ranks.py")
    done = subprocess.run([sys.executable, script, *paths], capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout or "{}")
    assert [len(errors) for errors in found["errors"]] == [len(paths)] * 2, done.stderr[-2000:]
    assert max(max(errors) for errors in found["errors"]) < 1e-12
    for rank, said in enumerate(found["said"]):
        assert said["microbatches"] == "the table has 4 microbatches, the run 99"
        assert f"rank {rank} has stages {rank}, the table gives it " in said["placement"]
        assert f"stage {rank} checkpoints itself selectively" in said["preflight"][0]
        assert said["whole"] == []
    assert "Trying to backward an extra time" in found["run"]  # what `preflight` spares


class Stage(types.SimpleNamespace):
    """What `preflight` looks at of torch's `PipelineStage`."""

    def __init__(self, index, rank=0, ranks=2, stages=4):
        empty = types.SimpleNamespace(named_modules=list)
        super().__init__(stage_index=index, group_rank=rank, group_size=ranks, num_stages=stages, submod=empty)


class OwnHead:
    """As TorchTitan's ChunkedLossWrapper: it holds the last layer."""

    def __init__(self):
        self.lm_head = types.SimpleNamespace(parameters=lambda: iter([1]))

    def __call__(self, output, target):
        return output


@pytest.mark.parametrize(
    ("stages", "microbatches", "words"),
    [
        ([Stage(0), Stage(3)], 4, None),
        ([Stage(0), Stage(2)], None, "rank 0 has stages 0, 2, the table gives it 0, 3: its placement is another"),
        ([Stage(0, ranks=4)], None, "the table has 2 ranks, the stages are on 4"),
        ([Stage(0), Stage(3)], 8, "the table has 4 microbatches, the run 8"),
        ([Stage(0, stages=2)], None, "the table has 4 stages, the model 2"),
        ([], None, "this rank has no stages"),
    ],
)
def test_torchtitan_preflight_compares_table_and_stages(stages, microbatches, words):
    table = ppsim.build("zbv", pp=2, microbatches=4)
    found = torchtitan.preflight(table, stages, lambda output, target: output, num_microbatches=microbatches)
    assert found == [] if words is None else words in found


def test_preflight_says_that_torch_cannot_run_a_table_of_slices():
    table = ppsim.build("seq1f1b", pp=2, microbatches=4)
    (said,) = torchtitan.preflight(table, [Stage(0, stages=2)], lambda output, target: output)
    assert said == "torch cannot run seq1f1b: it runs whole microbatches, this table cuts each into 4 slices"


def test_a_loss_that_holds_parameters_is_found_behind_its_wrapper_where_the_backward_is_split():
    loss = OwnHead()
    wrapped = lambda output, target: loss(output, target)  # noqa: E731
    stages = [Stage(0), Stage(3)]
    assert torchtitan.preflight(ppsim.build("1f1b-v", pp=2, microbatches=4), stages, wrapped) == []
    (said,) = torchtitan.preflight(ppsim.build("zbv", pp=2, microbatches=4), stages, wrapped)
    assert said.startswith("the loss (OwnHead) holds parameters")


def test_torchtitan_settings_are_flags_for_0_3_and_toml_for_0_2():
    table = ppsim.build("zbv", pp=2, microbatches=4)
    given = {"csv": "T.csv", "micro_batch": 2, "layers_per_stage": [1, 2, 2, 1]}
    assert settings_text(torchtitan_settings(table, **given), "0.3").replace(" \\\n", "\n").splitlines() == [
        "--parallelism.pipeline_parallel_degree 2",
        "--parallelism.pipeline_parallel_schedule ZBVZeroBubble",
        "--parallelism.pipeline_parallel_schedule_csv T.csv",
        "--parallelism.pipeline_parallel_microbatch_size 2",
        "--training.local_batch_size 8",
        "--parallelism.pipeline_parallel_layers_per_stage 2",
        "--parallelism.pipeline_parallel_first_stage_less_layers 1",
        "--parallelism.pipeline_parallel_last_stage_less_layers 1",
        "--training.disable_cuda_graphs",
    ]
    old = settings_text(torchtitan_settings(table, **given, version="0.2.2"), "0.2.2")
    assert old.startswith(
        '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"\n'
    )
    assert old.endswith("[training]\nlocal_batch_size = 8\n")
    uneven = torchtitan_settings(table, csv="T.csv", layers_per_stage=[1, 3, 2, 0])
    assert uneven["parallelism.module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3"], ["layers.4", "layers.5"],
        ["norm", "lm_head"],
    ]  # fmt: skip
    flag = "--parallelism.module_fqns_per_model_part tok_embeddings,layers.0 layers.1,layers.2,layers.3 "
    assert flag + "layers.4,layers.5 norm,lm_head" in settings_text(uneven, "0.3")


def test_torchtitan_is_warned_of_where_the_backward_is_split():
    split, whole = (ppsim.build(name, pp=2, microbatches=4) for name in ("zb-h1", "1f1b"))
    assert [len(warnings_of(split, version)) for version in ("0.2", "0.3")] == [1, 3]
    assert warnings_of(whole, "0.3") == []


def test_torchtitan_says_what_it_cannot_do():
    table = ppsim.build("interleaved-1f1b", pp=2, vpp=3, microbatches=4)
    with pytest.raises(ConfigError, match=re.escape("TorchTitan 0.9: ppsim has the settings of 0.2 and 0.3")):
        torchtitan_settings(table, csv="T.csv", version="0.9")
    with pytest.raises(ConfigError, match="the split has 2 entries, but there are 6 stages"):
        torchtitan_settings(table, csv="T.csv", layers_per_stage=[1, 1])
    for layers, words in (
        ([1, 0, 3, 2, 2, 1], "no stage without a module"),
        ([1, 2, 2, 2, 2, -1], "a stage -1 layers"),
    ):
        with pytest.raises(ConfigError, match=words):
            torchtitan_settings(table, csv="T.csv", layers_per_stage=layers)
    with pytest.raises(ConfigError, match="makes 3 stages per rank where it knows the layers: give --split"):
        torchtitan_settings(table, csv="T.csv")
    with pytest.raises(ScheduleError, match="on ranks 0, 1, 1, 0, 0, 1, 1, 0"):
        torchtitan_settings(ppsim.build("hanayo", pp=2, vpp=4, microbatches=4), csv="T.csv")


def megatron_args(**given):
    names = (
        "num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage",
        "pipeline_model_parallel_layout", "microbatch_group_size_per_vp_stage",
    )  # fmt: skip
    return types.SimpleNamespace(
        **dict.fromkeys(names) | {"pipeline_model_parallel_size": 4, "overlap_p2p_comm": True} | given
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_virtual_stages_per_pipeline_rank": 2, "microbatch_group_size_per_vp_stage": 6}, []),
        (
            {"num_virtual_stages_per_pipeline_rank": 2},
            ["--microbatch-group-size-per-virtual-pipeline-stage is 4, the table needs 6"],
        ),
        (
            {"pipeline_model_parallel_layout": "Et|tL", "microbatch_group_size_per_vp_stage": 6},
            [
                "--num-virtual-stages-per-pipeline-rank is None, the table needs 2",
                "--pipeline-model-parallel-layout goes not with this table",
            ],
        ),
        (
            {
                "num_virtual_stages_per_pipeline_rank": 2, "microbatch_group_size_per_vp_stage": 6,
                "global_batch_size": 64, "micro_batch_size": 2, "data_parallel_size": 2,
            },
            ["--global-batch-size 64 makes 16 microbatches of 2 on 2 data-parallel ranks, the table has 12"],
        ),
    ],
)  # fmt: skip
def test_megatron_preflight_compares_export_and_arguments(given, words, tmp_path):
    table = ppsim.build("interleaved-1f1b", pp=4, vpp=2, microbatches=12, group_size=6)
    (tmp_path / "a.json").write_text(to_json(megatron_arguments(table)))
    assert megatron.preflight(tmp_path / "a.json", megatron_args(**given)) == words
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not what ppsim export --to megatron writes"):
        megatron.preflight(tmp_path / "b.json", megatron_args())


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "gis", "v-min"])
def test_our_orders_pass_the_rules_of_transformer_engine(name):
    table = ppsim.build(name, pp=4, microbatches=8)
    for order in graph_order(table):
        check_order(order, num_chunks=table.vpp, num_microbatches=8)
        assert max(most_alive(order)) == table.vpp


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([1, -1, -1, 1], "entry 2, -1, comes before the forward of its microbatch 1"),
        ([1, -1.5, 1, -1], "entry 1, -1.5, comes before the backward of its microbatch 0"),
        ([1, 1, -1], "chunk 1 has 1 backwards: there are 2 microbatches"),
        ([1, 1, -1, -1.5, -1], "chunk 1 has 1 weight gradients: there are 2 microbatches"),
        (
            [1, 1, -1, -1, -1.5, -1.5],
            "entry 4, -1.5, comes after the backward of microbatch 1: the weight gradient of",
        ),
        ([1, 2, -2, -1], "entry 1 is 2, which is no pass of one of 1 chunks"),
        ([1, -1.25], "entry 1 is -1.25, which is no pass"),
        ([0], "entry 0 is 0, which is no pass"),
    ],
)
def test_an_order_that_cannot_be_captured_is_refused_with_its_entry(order, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_order(order, num_chunks=1, num_microbatches=2)


def test_what_is_left_out_in_integrations_torchtitan_has_these_values() -> None:
    assert number_defaults(torchtitan_module) == {
        "_owners": {"depth": 4},
    }  # fmt: skip
