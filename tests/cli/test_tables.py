"""`schedules`, `build`, `check`, `simulate` and `export`: from a name to a table that a runtime takes."""

import json

import pytest

from ppsim import build, read_schedule
from ppsim.catalog.build import CATALOG
from ppsim.runs.timeline_file import read_timeline
from tests.cli.running import ppsim, words_of

REPORT_KEYS = [
    "schedule", "pp", "vpp", "microbatches", "replicas", "slices", "gradient_accumulation_steps", "num_actions", "step_time_s",
    "step_overhead_s", "iteration_time_s", "span_s",
    "bubble_ratio", "span_bubble_ratio", "lower_bound_s", "span_lower_bound_s", "memory_limit_bytes", "ranks",
    "critical_path",
]  # fmt: skip
RANK_KEYS = [
    "rank", "busy_s", "idle_s", "bubble_ratio", "peak_activation_bytes", "peak_bytes", "peak_at",
    "idle_by_cause_s",
]  # fmt: skip


def test_schedules_lists_every_schedule_on_a_line():
    lines = ppsim("schedules").stdout.splitlines()
    for name in CATALOG:
        assert any(line.split()[:1] == [name] for line in lines)


@pytest.mark.parametrize("name", CATALOG)
def test_schedules_name_prints_constraint_formulas_and_source(name):
    entry = CATALOG[name]
    text = words_of(ppsim("schedules", name).stdout)
    assert entry.constraint in text
    assert entry.source in text
    for form in (entry.bubble, entry.span_bubble, entry.peak_activations, entry.messages):
        assert form is None or form.text in text


def test_schedules_as_json_is_one_object_of_all_or_of_one():
    everything = json.loads(ppsim("schedules", "--json").stdout)
    assert [entry["name"] for entry in everything["schedules"]] == list(CATALOG)
    one = json.loads(ppsim("schedules", "zbv-fixed", "--json").stdout)
    assert one == everything["schedules"][list(CATALOG).index("zbv-fixed")]
    options = {entry["name"]: entry["options"] for entry in everything["schedules"] if entry["options"]}
    assert options["interleaved-1f1b"] == ["vpp", "group_size"]
    assert options["zb-auto"] == ["costs", "memory_limit_bytes"]


IN_TORCH = [name for name, entry in CATALOG.items() if entry.not_in_torch is None]
OPTIONS = {"dualpipe": ["--replicas", 2], "chimera": ["--replicas", 2], "seq1f1b": ["--slices", 4]}


@pytest.mark.parametrize("name", CATALOG)
def test_a_table_survives_build_check_and_simulate(folder, name):
    vpp = CATALOG[name].stages_per_rank[0]
    built = ppsim("build", name, "--pp", 4, "--vpp", vpp, "--num-microbatches", 8, "-o", "built.csv")
    options = OPTIONS.get(name, [])
    hint = "; read it with --replicas 2" if "--replicas" in options else ""
    assert built.stdout == ""
    assert built.stderr == f"wrote built.csv (4 ranks, {len(read_schedule('built.csv'))} actions{hint})\n"
    assert "complete, ordered, free of circular waits" in ppsim("check", "built.csv", *options).stdout
    simulated = json.loads(ppsim("simulate", "built.csv", *options, "--costs", "C.json", "--json").stdout)
    expected = build(name, pp=4, vpp=vpp, microbatches=8)
    counts = {"num_replicas": expected.num_replicas, "num_slices": expected.num_slices}
    assert read_schedule("built.csv", **counts) == expected
    assert simulated["num_actions"] == expected.num_actions
    assert (simulated["microbatches"], simulated["replicas"], simulated["slices"]) == (8, *counts.values())


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_table_survives_export_to_torch(folder, name):
    ppsim("build", name, "--pp", 4, "--num-microbatches", 8, "-o", "built.csv")
    ppsim("export", "built.csv", "--to", "torch", "-o", "torch.csv")
    assert (folder / "torch.csv").read_bytes() == (folder / "built.csv").read_bytes()
    ppsim("export", "built.csv", "--to", "torch-comms", "-o", "comms.csv")
    with_communication = read_schedule("comms.csv")
    assert with_communication.has_communication
    assert with_communication.compute_only() == read_schedule("built.csv")
    assert "complete, ordered, free of circular waits" in ppsim("check", "comms.csv").stdout


@pytest.mark.parametrize("name", IN_TORCH)
@pytest.mark.parametrize("channel", ["ideal", "pair", "rank"])
def test_a_table_with_its_communication_spelled_out_takes_as_long_as_without(folder, name, channel):
    ppsim("build", name, "--pp", 4, "--num-microbatches", 8, "-o", "built.csv")
    ppsim("export", "built.csv", "--to", "torch-comms", "-o", "comms.csv")
    one, other = (
        json.loads(ppsim("simulate", table, "--costs", "C.json", "--channel", channel, "--json").stdout)
        for table in ("built.csv", "comms.csv")
    )
    assert one.pop("schedule") == "built"
    assert other.pop("schedule") == "comms"
    assert one == other


@pytest.mark.parametrize("name", OPTIONS)
def test_neutral_json_carries_what_a_csv_cannot(folder, name):
    ppsim("build", name, "--pp", 4, "--num-microbatches", 8, "-o", "built.csv")
    ppsim("build", name, "--pp", 4, "--num-microbatches", 8, "-o", "built.json")
    ppsim("export", "built.csv", *OPTIONS[name], "--to", "json", "-o", "exported.json")
    of = [json.loads((folder / file).read_text()) | {"name": ""} for file in ("built.json", "exported.json")]
    assert of[0] == of[1]
    one, other = (
        json.loads(ppsim("simulate", *table, "--costs", "C.json", "--json").stdout)
        for table in (["built.csv", *OPTIONS[name]], ["built.json"])
    )
    assert one | {"schedule": name} == other
    ppsim("simulate", "built.json", "--costs", "C.json", "-o", "timeline.json")
    timeline, _ = read_timeline("timeline.json")
    assert timeline.schedule == build(name, pp=4, microbatches=8)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    "target", ["torch", "torch-comms", "torchtitan", "deepspeed", "primus", "megatron", "transformer-engine"]
)
def test_what_a_runtime_cannot_hold_is_refused_in_a_sentence(folder, name, target):
    ppsim("build", name, "--pp", 4, "--num-microbatches", 8, "-o", "T.json")
    refused = ppsim("export", "T.json", "--to", target, "-o", "out", code=2)
    words = "this table has 2 replicas of the model" if name != "seq1f1b" else "this table cuts each into 4 slices"
    assert f"cannot run {name}: it " in refused.stderr
    assert words in refused.stderr
    assert not (folder / "out").exists()


def test_replicas_that_a_csv_does_not_name_are_found_and_named(folder):
    ppsim("build", "chimera", "--pp", 4, "--num-microbatches", 8, "-o", "built.csv")
    for command in (["check", "built.csv"], ["simulate", "built.csv", "--costs", "C.json"]):
        said = words_of(ppsim(*command, code=2).output)
        assert "a table of 2 replicas: each chain of 4 stages runs microbatches of its own" in said
        assert "(--replicas 2). torch, which holds one chain, cannot run it" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["check", "T.json", "--replicas", 2],
            "T.json says itself what it holds; --replicas is for a CSV, which cannot",
        ),
        (["check", "T.csv", "--slices", 0], "--slices must be at least 1: got 0"),
    ],
)
def test_counts_that_make_no_sense_are_refused(folder, arguments, sentence):
    ppsim("build", "chimera", "--pp", 4, "--num-microbatches", 8, "-o", "T.json")
    assert sentence in ppsim(*arguments, code=2).stderr


def test_seq1f1b_takes_slices_on_the_command_line(folder):
    ppsim("build", "seq1f1b", "--pp", 2, "--num-microbatches", 3, "--slices", 2, "-o", "T.csv")
    assert read_schedule("T.csv", num_slices=2) == build("seq1f1b", pp=2, microbatches=3, num_slices=2)
    assert (
        "slices are for seq1f1b"
        in ppsim("build", "1f1b", "--pp", 2, "--num-microbatches", 3, "--slices", 2, code=2).stderr
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_a_schedule_says_why_torch_cannot_run_it(name):
    assert f"not in torch {CATALOG[name].not_in_torch}" in words_of(ppsim("schedules", name).stdout)


def test_exporting_a_comms_table_to_torch_drops_the_communication(folder):
    ppsim("export", "T.csv", "--to", "torch-comms", "-o", "comms.csv")
    ppsim("export", "comms.csv", "--to", "torch", "-o", "back.csv")
    assert (folder / "back.csv").read_bytes() == (folder / "T.csv").read_bytes()


def test_build_prints_the_table_where_no_file_is_named(folder):
    assert (
        ppsim("build", "zbv-fixed", "--pp", 4, "--num-microbatches", 8).stdout == (folder / "zbv.csv").read_text()
    )


def test_simulate_as_json_has_the_documented_keys_and_nothing_beside(folder):
    result = ppsim("simulate", "zbv.csv", "--costs", "C.json", "--json")
    report = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(report) == REPORT_KEYS
    assert (report["schedule"], report["pp"], report["vpp"], report["microbatches"]) == ("zbv", 4, 2, 8)
    for number, rank in enumerate(report["ranks"]):
        assert list(rank) == RANK_KEYS
        assert rank["rank"] == number
        assert set(rank["idle_by_cause_s"]) == {
            "warm_up", "cool_down", "waiting_compute", "exposed_communication", "overhead",
        }  # fmt: skip
        assert sum(rank["idle_by_cause_s"].values()) == pytest.approx(rank["idle_s"])
        assert rank["busy_s"] + rank["idle_s"] == pytest.approx(report["step_time_s"])
    assert report["critical_path"][0] == "0F0"


def test_options_override_the_communication_of_the_costs_file(folder):
    def step(*options):
        return json.loads(ppsim("simulate", "T.csv", "--costs", "C.json", "--json", *options).stdout)["step_time_s"]

    (folder / "rank.json").write_text(
        json.dumps(json.loads((folder / "C.json").read_text()) | {"channel": "rank", "communication": "blocking"})
    )
    assert step("--channel", "rank") > step()
    assert step("--communication", "blocking", "--channel", "rank") == step("--costs", "rank.json")
    assert step("--costs", "rank.json", "--channel", "ideal", "--communication", "overlap") == step()


def test_overheads_are_read_from_the_file_that_compare_writes(folder):
    (folder / "overheads.json").write_text(
        '{"action_overhead_s": 0.5, "hop_overhead_s": 0.25, "fitted_on": {"measured": "m.json"}}'
    )
    ppsim("build", "1f1b", "--pp", 1, "--num-microbatches", 2, "-o", "one.csv")
    report = json.loads(
        ppsim("simulate", "one.csv", "--costs", "C.json", "--calibration", "overheads.json", "--json").stdout
    )
    # 2 (F + B) = 6 s and one overhead before each action but the first, from which a step is counted.
    assert report["step_time_s"] == pytest.approx(6.0 + 3 * 0.5)


def test_a_projection_takes_latency_and_bandwidth_where_both_are_fitted(folder):
    fitted = {"format": "ppsim-overheads/1", "action_overhead_s": 0.0, "hop_overhead_s": 0.7}
    (folder / "o.json").write_text(json.dumps(fitted | {"latency_s": 0.001, "bandwidth_bytes_per_s": 1e9}))
    for options, hop in (((), "1.00 ms per P2P transfer"), (("--transfer-ms", 3), "700 ms per P2P transfer")):
        text = words_of(ppsim("project", "--pp", 2, "--calibration", "o.json", "--full", *options).stdout)
        assert f"overheads: 0 s per action, {hop}" in text
        assert ("24.0 MiB at 1.00 GB/s, calibrated" in text) == (options == ())


def test_check_as_json_has_findings_and_a_verdict_for_every_way_of_communicating(folder):
    report = json.loads(ppsim("check", "zbv.csv", "--json").stdout)
    assert {finding["rule"] for finding in report["findings"]} == {"torch-2.13", "first-stage-split"}
    outcome = {
        (verdict["communication"], verdict["channel"], verdict["receives"]): verdict["outcome"]
        for verdict in report["verdicts"]
    }
    assert outcome["overlap", "pair", "torch"] == "runs"
    assert outcome["overlap", "pair", "ordered"] == "deadlock"
    assert outcome["overlap", "edge", "deferred"] == "misordered"
    assert len(outcome) == 3 * 5


def test_check_prints_where_shared_channels_would_hang_the_table(folder):
    text = ppsim("check", "zbv.csv").stdout
    assert "zbv.csv: complete, ordered, free of circular waits" in text
    row = next(line for line in text.splitlines() if line.startswith("ordered"))
    assert row.split() == ["ordered", "runs", "deadlock", "deadlock", "deadlock", "deadlock"]
    assert "pair, receives ordered: deadlock: the transfer of" in text
