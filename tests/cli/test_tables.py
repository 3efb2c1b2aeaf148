"""`schedules`, `build`, `check`, `simulate` and `export`: from a name to a table that a runtime takes."""

import json

import pytest

from ppsim import build, read_schedule
from ppsim.schedule.catalog import CATALOG
from tests.cli.running import ppsim, words_of

REPORT_KEYS = [
    "schedule", "pp", "vpp", "microbatches", "num_actions", "step_time_s", "span_s", "bubble_ratio",
    "span_bubble_ratio", "lower_bound_s", "span_lower_bound_s", "memory_limit_bytes", "ranks", "critical_path",
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
    one = json.loads(ppsim("schedules", "zbv", "--json").stdout)
    assert one == everything["schedules"][list(CATALOG).index("zbv")]


@pytest.mark.parametrize("name", CATALOG)
def test_a_table_survives_build_check_simulate_and_export(folder, name):
    vpp = CATALOG[name].stages_per_rank[0]
    built = ppsim("build", name, "--pp", 4, "--vpp", vpp, "--microbatches", 8, "-o", "built.csv")
    assert built.stdout == ""
    assert built.stderr == f"wrote built.csv (4 ranks, {len(read_schedule('built.csv'))} actions)\n"
    assert "complete, ordered, free of circular waits" in ppsim("check", "built.csv").stdout
    simulated = json.loads(ppsim("simulate", "built.csv", "--costs", "C.json", "--json").stdout)
    table = read_schedule("built.csv")
    assert table == build(name, pp=4, vpp=vpp, microbatches=8)
    assert simulated["num_actions"] == table.num_actions

    ppsim("export", "built.csv", "--to", "torch", "-o", "torch.csv")
    assert (folder / "torch.csv").read_bytes() == (folder / "built.csv").read_bytes()
    ppsim("export", "built.csv", "--to", "torch-comms", "-o", "comms.csv")
    with_communication = read_schedule("comms.csv")
    assert with_communication.has_communication
    assert with_communication.compute_only() == table
    assert "complete, ordered, free of circular waits" in ppsim("check", "comms.csv").stdout


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("channel", ["ideal", "pair", "rank"])
def test_a_table_with_its_communication_spelled_out_takes_as_long_as_without(folder, name, channel):
    ppsim("build", name, "--pp", 4, "--microbatches", 8, "-o", "built.csv")
    ppsim("export", "built.csv", "--to", "torch-comms", "-o", "comms.csv")
    one, other = (
        json.loads(ppsim("simulate", table, "--costs", "C.json", "--channel", channel, "--json").stdout)
        for table in ("built.csv", "comms.csv")
    )
    assert one.pop("schedule") == "built"
    assert other.pop("schedule") == "comms"
    assert one == other


def test_exporting_a_comms_table_to_torch_drops_the_communication(folder):
    ppsim("export", "T.csv", "--to", "torch-comms", "-o", "comms.csv")
    ppsim("export", "comms.csv", "--to", "torch", "-o", "back.csv")
    assert (folder / "back.csv").read_bytes() == (folder / "T.csv").read_bytes()


def test_build_prints_the_table_where_no_file_is_named(folder):
    assert ppsim("build", "zbv", "--pp", 4, "--microbatches", 8).stdout == (folder / "zbv.csv").read_text()


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
    ppsim("build", "1f1b", "--pp", 1, "--microbatches", 2, "-o", "one.csv")
    report = json.loads(
        ppsim("simulate", "one.csv", "--costs", "C.json", "--overheads", "overheads.json", "--json").stdout
    )
    # 2 (F + B) = 6 s and one overhead before each action but the first, from which a step is counted.
    assert report["step_time_s"] == pytest.approx(6.0 + 3 * 0.5)


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
