"""What the other trainers' modules say of their arguments, stages and orders; torch's own runtime runs tables."""

import functools
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.files import to_json
from ppsim.integrations import megatron, torchtitan
from ppsim.integrations import torchtitan as torchtitan_module
from ppsim.integrations.transformer_engine import check_order, most_alive
from ppsim.model.shapes import LayerShape
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


def megatron_args(**given: Any) -> Any:
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


def selective(**names: Any) -> Any:
    """Return a model whose second part checkpoints with a function of these names."""
    parts = [("", object()), ("layers.0", SimpleNamespace(checkpoint_fn=SimpleNamespace(**names)))]
    return SimpleNamespace(named_modules=lambda: parts)


def test_a_part_checkpoints_selectively_if_its_function_has_a_policy() -> None:
    assert torchtitan._first_selective(selective(keywords={"context_fn": 1})) == "layers.0"
    assert torchtitan._first_selective(selective(keywords={"use_reentrant": False})) is None
    assert torchtitan._first_selective(selective(keywords=None)) is None
    assert torchtitan._first_selective(selective()) is None


class Caller:
    """A loss with a method and what it wraps."""

    def __init__(self, **inside: Any) -> None:
        vars(self).update(inside)

    def loss(self, output: Any) -> Any:
        return output

    __call__ = loss


def test_owners_of_parameters_are_found_in_all_that_a_loss_wraps() -> None:
    own = SimpleNamespace(parameters=lambda: iter([1]))
    empty = SimpleNamespace(parameters=lambda: iter(()))

    class Head(SimpleNamespace):
        def __call__(self) -> None: ...

    head = Head(parameters=lambda: iter([1]))

    def wrapped(number: int) -> Any:
        inner: Any = head
        for _ in range(number):
            inner = (lambda loss: lambda: loss)(inner)
        return inner

    for loss, owners in (
        (own, ["SimpleNamespace"]), (empty, []), (Caller(head=own), ["Caller"]), (Caller(head=empty), []),
        (functools.partial(head), ["Head"]), (lambda: head, ["Head"]), (3, []),
        (Caller(inner=functools.partial(head)), ["Head"]), (wrapped(4), ["Head"]), (wrapped(5), []), (Caller(a=own).loss, ["Caller"]),
    ):  # fmt: skip
        assert list(torchtitan._owners(loss)) == owners, loss


def test_chunks_of_a_model_are_profiled_on_the_device_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("ppsim.profiling.chunks.profile_inside", lambda *given, **named: (given, named))
    titan = SimpleNamespace(__version__="0.9")
    monkeypatch.setitem(sys.modules, "torchtitan", titan)  # type: ignore[arg-type]
    builder = SimpleNamespace(TitanBuilder=lambda trainer: ("builder", trainer.device.type))
    monkeypatch.setitem(sys.modules, "ppsim.integrations.torchtitan_chunks", builder)  # type: ignore[arg-type]
    trainer = SimpleNamespace(
        device=SimpleNamespace(type="cpu"), model_config=SimpleNamespace(dim=48, vocab_size=11),
        config=SimpleNamespace(compile=SimpleNamespace(enable=True)),
    )  # fmt: skip
    say: Any = print
    profiled: Any = torchtitan.measure(trainer, splits=[[1, 2]], output="p.json", say=say, num_repeats=7)
    (trainer_of, chunks, splits, settings), named = profiled
    assert (trainer_of, chunks, splits) == (("TorchTitan", "0.9"), ("builder", "cpu"), [[1, 2]])
    assert (settings.device, settings.compiled, settings.num_repeats) == ("cpu", True, 7)
    assert named.pop("note").startswith("Chunks of a TorchTitan model")
    assert named == {"model": {"hidden_size": 48, "vocab_size": 11}, "output": "p.json", "say": say}


@pytest.mark.parametrize("shape", [LayerShape("llama", 48, 6, 2, 8, 80), None])
def test_chunks_of_a_megatron_model_are_profiled_with_its_sizes_and_closed(
    shape: LayerShape | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    closed: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: shape is None)
    monkeypatch.setattr(
        "ppsim.profiling.chunks.profile_inside", lambda *given, **named: (given, named, len(closed))
    )
    core = SimpleNamespace(__version__="0.17")
    monkeypatch.setitem(sys.modules, "megatron", SimpleNamespace(core=core))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "megatron.core", core)  # type: ignore[arg-type]

    def builder_of(*given: Any, **named: Any) -> Any:
        return SimpleNamespace(given=given, named=named, close=lambda: closed.append("closed"))

    chunks = SimpleNamespace(MegatronBuilder=builder_of, layer_shape_of=lambda config: shape)
    monkeypatch.setitem(sys.modules, "ppsim.integrations.megatron_chunks", chunks)  # type: ignore[arg-type]
    provider, config, say = len, SimpleNamespace(hidden_size=48), print
    sizes = {"micro_batch": 3, "sequence_length": 140, "vocab_size": 11}
    profiled: Any = megatron.measure(
        provider,
        config,
        **sizes,
        splits=[[1, 2]],
        output="p.json",
        say=say,
        num_repeats=7,  # type: ignore[arg-type]
    )
    (trainer_of, builder, splits, settings), named, num_closed = profiled
    device = "cuda" if shape is None else "cpu"
    assert (trainer_of, splits, num_closed, closed) == (("Megatron-core", "0.17"), [[1, 2]], 0, ["closed"])
    assert (builder.given, builder.named) == ((provider, config), sizes | {"device": device})
    assert (settings.device, settings.num_repeats) == (device, 7)
    assert named.pop("note").startswith("Chunks of a Megatron-core model")
    layer = {
        "kind": "llama", "hidden_size": 48, "num_heads": 6, "num_kv_heads": 2, "head_size": 8, "ffn_size": 80,
        "num_experts": 0, "experts_per_token": 0, "shared_ffn_size": 0,
    }  # fmt: skip
    of_layers = {} if shape is None else {"num_heads": 6, "layer_sizes": layer}
    assert named == {"model": {"hidden_size": 48, "vocab_size": 11} | of_layers, "output": "p.json", "say": say}


def test_megatron_preflight_names_each_argument_that_differs(tmp_path: Path) -> None:
    """The file's group is 6; a batch of 60 sequences is 7.5 microbatches of 2 on 4 ranks."""
    arguments = {
        "pipeline-model-parallel-size": 4, "num-layers": 5, "no-overlap-p2p-communication": True,
        "microbatch-group-size-per-virtual-pipeline-stage": 6,
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"arguments": arguments, "num_microbatches": 8}))
    batch = {"global_batch_size": 60, "micro_batch_size": 2, "data_parallel_size": 4}
    given = megatron_args(num_layers=7, microbatch_group_size_per_vp_stage=3, **batch)
    assert megatron.preflight(tmp_path / "a.json", given) == [
        "--num-layers is 7, the table needs 5",
        "--microbatch-group-size-per-virtual-pipeline-stage is 3, the table needs 6",
        "transfers overlap, the table is without: --no-overlap-p2p-communication",
        "--global-batch-size 60 makes 7.5 microbatches of 2 on 4 data-parallel ranks, the table has 8",
    ]
    right = {"num_layers": 5, "microbatch_group_size_per_vp_stage": 6, "overlap_p2p_comm": False}
    assert (
        megatron.preflight(tmp_path / "a.json", megatron_args(**right, **batch | {"global_batch_size": 64})) == []
    )
    del batch["data_parallel_size"]
    assert megatron.preflight(tmp_path / "a.json", megatron_args(**right, **batch)) == []
    for content in ("[]", '{"arguments": {}}'):
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(ConfigError, match="is not what ppsim export --to megatron writes"):
            megatron.preflight(tmp_path / "b.json", given)
