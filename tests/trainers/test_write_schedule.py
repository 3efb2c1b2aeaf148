"""Which runtimes run which schedules: asked of the exporters, told by `ppsim schedules NAME` and the docs."""

import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.catalog.build import CATALOG
from ppsim.trainers import write_schedule as targets
from ppsim.trainers.megatron.write_schedule import megatron_arguments, parse_layout
from ppsim.trainers.stacks import stacks, trainer_of
from ppsim.trainers.write_schedule import RUNTIMES, refusals, runs_in, runtime_facts, trainers_text
from tests.cli.running import ppsim as run
from tests.cli.running import words_of

PAGES = Path(__file__).parents[2] / "docs" / "schedules"


W_AFTER_THE_NEXT_I = {
    "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-auto", "interleaved-zb", "zbv", "zbv-fixed", "v-half", "v-half-fixed",
    "v-flex",
}  # fmt: skip


@pytest.mark.parametrize("name", CATALOG)
def test_megatron_runs_its_two_loops_the_others_what_they_hold(name):
    entry = CATALOG[name]
    reasons = refusals(entry)
    assert list(reasons) == list(RUNTIMES)
    is_plain = entry.num_replicas == entry.num_slices == 1  # one chain of stages, whole microbatches
    assert (reasons["torch"] is None) == is_plain == (entry.not_in_torch is None)
    assert (reasons["megatron"] is None) == (name in ("1f1b", "interleaved-1f1b", "combined-1f1b"))
    assert (reasons["primus"] is None) == (is_plain and name not in ("dualpipev", "combined-1f1b"))
    not_captured = {"dualpipev", "looped-bfs", *W_AFTER_THE_NEXT_I}
    assert (reasons["transformer-engine"] is None) == (is_plain and name not in not_captured)


@pytest.mark.parametrize("name", CATALOG)
def test_the_trainers_of_a_schedule_are_those_whose_exporter_accepts_it(name):
    accepted = [trainer for trainer, reason in refusals(CATALOG[name]).items() if reason is None]
    assert list(runs_in(name)) == [trainer for trainer in accepted if trainer != "transformer-engine"]


@pytest.mark.parametrize(
    ("recompute", "text"),
    [("block/2", "all"), ("full@0-3", "torch, primus"), ("full*2,none*2", "torch")],
)
def test_recomputation_of_single_layers_runs_in_few_trainers(recompute: str, text: str) -> None:
    assert trainers_text("1f1b", recompute) == text


def test_a_trainer_is_known_by_the_stack_or_by_the_runtime():
    assert {name for name, stack in stacks().items() if stack.export} == {"primus", "deepspeed-2021"}
    assert trainer_of("megatron-bridge@26.08", "torch") == "torch"
    assert [trainer_of("plain", runtime) for runtime in ("torch", "megatron", "ideal")] == ["torch", "megatron", ""]


def test_the_reasons_are_the_exporters_own():
    assert refusals(CATALOG["zbv"])["megatron"].startswith("Megatron-LM places stage s on rank s mod pp")
    assert "no fused cells" in refusals(CATALOG["dualpipev"])["primus"]
    assert "stage 0 runs B for some microbatches" in refusals(CATALOG["dualpipev"])["transformer-engine"]
    assert "runs 1I1 before 1W0" in refusals(CATALOG["zb-h1"])["transformer-engine"]
    assert "4B7 where microbatch 0 is next" in refusals(CATALOG["looped-bfs"])["transformer-engine"]


def test_what_an_exporter_refuses_is_told_without_a_list_to_edit(monkeypatch):
    def refuse(table):
        raise ScheduleError(f"no {table.name} here\nsecond line")

    monkeypatch.setattr(targets, "RUNTIMES", RUNTIMES | {"torch": refuse})
    assert runtime_facts(CATALOG["1f1b"]) == [
        ("runs on", "megatron, primus, deepspeed, transformer-engine"),
        ("not on torch", "no 1f1b here"),
    ]


@pytest.mark.parametrize("name", CATALOG)
def test_the_command_its_json_and_the_docs_say_so(name):
    text = words_of(run("schedules", name).stdout)
    page = (PAGES / f"{name}.md").read_text()
    for fact, words in runtime_facts(CATALOG[name]):
        assert f"{fact} {words}" in text
        assert f"- {fact}: {words}" in page
    refused = json.loads(run("schedules", name, "--json").stdout)["refused_by"]
    assert refused == {runtime: reason for runtime, reason in refusals(CATALOG[name]).items() if reason}


@pytest.mark.parametrize("shape", [{"pp": 4, "vpp": 2, "group_size": 8}, {"pp": 1, "vpp": 1}])
def test_combined_1f1b_is_megatrons_flag(shape):
    table = ppsim.build("combined-1f1b", microbatches=16, **shape)
    arguments = RUNTIMES["megatron"](table)["arguments"]
    assert arguments["overlap-moe-expert-parallel-comm"] is True
    assert arguments.get("microbatch-group-size-per-virtual-pipeline-stage") == shape.get("group_size")
    plain = ppsim.build("interleaved-1f1b", pp=4, vpp=2, microbatches=16)
    assert "overlap-moe-expert-parallel-comm" not in RUNTIMES["megatron"](plain)["arguments"]


@pytest.mark.parametrize(
    ("rows", "mine", "theirs"),
    [
        ("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "rank 0 differs from it at position 1: 0B0", "0F1"),
        (
            "0F0,0F1,0B0,0B1\n(1F0;1B0)OVERLAP_F_B,1F1,1B1\n",
            "rank 1 differs from it at position 0: (1F0;1B0)OVERLAP_F_B",
            "1F0",
        ),
    ],
)
def test_an_order_that_megatron_does_not_run_is_named_with_fused_actions_as_one(
    tmp_path: Path, rows: str, mine: str, theirs: str
) -> None:
    (tmp_path / "T.csv").write_text(rows)
    with pytest.raises(ScheduleError) as refused:
        ppsim.export(ppsim.read_schedule(tmp_path / "T.csv"), to="megatron")
    assert f"{mine} where Megatron-LM runs {theirs}" in str(refused.value)


@pytest.mark.parametrize("layout", ["(" * 50_000, "E" + "m" * 50_000 + "L", "Et*" + "9" * 5000 + "L"])
def test_a_long_layout_takes_linear_time(layout: str) -> None:
    begun = time.process_time()
    with suppress(ConfigError):
        parse_layout(layout)
    assert time.process_time() - begun < 0.3


def test_layers_that_predict_more_tokens_are_in_the_last_chunk_of_a_rank():
    table = ppsim.build("interleaved-1f1b", pp=2, vpp=2, microbatches=4)
    written = megatron_arguments(table, layers_per_stage=["Et", "t", "tm", "L"])["arguments"]
    assert parse_layout(written["pipeline-model-parallel-layout"]) == ["Et", "t", "tm", "L"]
    with pytest.raises(ConfigError, match="one of the last 2 stages: got stage 1"):
        megatron_arguments(table, layers_per_stage=["Et", "tm", "", "L"])
    for layers, reason in (
        (["Et", "t", "tL"], "the split has 3 entries, but there are 4 stages"),
        ([2, -1, 2, 1], "gives a stage -1 layers"),
    ):
        with pytest.raises(ConfigError, match=reason):
            megatron_arguments(table, layers_per_stage=layers)
    assert megatron_arguments(table)["arguments"] == {
        "pipeline-model-parallel-size": 2, "num-virtual-stages-per-pipeline-rank": 2,
        "microbatch-group-size-per-virtual-pipeline-stage": 2,
    }  # fmt: skip
