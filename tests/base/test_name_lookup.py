"""Names as people write them mean what there is, wherever a name is taken."""

import pytest

import ppsim
from ppsim.base import name_lookup as name_lookup_module
from ppsim.catalog.build import find
from ppsim.errors import ConfigError
from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.model.registry import NAMES, find_model
from ppsim.profiling.model_shapes import find_model as find_profiled
from tests.cli.running import ppsim as run
from tests.defaults import number_defaults

SCHEDULES = {
    "1F1B": "1f1b", "ZBV": "zbv", "zb_h1": "zb-h1", "Interleaved1F1B": "interleaved-1f1b", "interleaved": "interleaved-1f1b",
    "ZBVZeroBubble": "zbv-fixed", "ScheduleInterleavedZeroBubble": "interleaved-zb", "LoopedBFS": "looped-bfs",
    "ScheduleDualPipeV": "dualpipev", "GPipe": "gpipe", "V Half": "v-half", "DAPPLE": "1f1b",
}  # fmt: skip
CLUSTERS = {
    "h100": "dgx-h100", "H100-SXM": "dgx-h100", "NVIDIA H100 80GB HBM3": "dgx-h100", "A100-SXM4-80GB": "dgx-a100",
    "H100 PCIe": "h100-pcie-8", "MI300X": "mi300x-8", "GB200": "gb200-nvl72", "DGX_B200": "dgx-b200", "L40S": "l40s-8",
}  # fmt: skip


@pytest.mark.parametrize(("written", "name"), SCHEDULES.items())
def test_a_schedule_is_known_as_people_write_it(written, name):
    assert find(written).name == name
    assert ppsim.Plan(pp=4, schedule=written) == ppsim.Plan(pp=4, schedule=name)


@pytest.mark.parametrize(("written", "name"), CLUSTERS.items())
def test_a_cluster_is_known_by_its_device(written, name):
    assert load_cluster(written) == load_cluster(name)


def test_every_packaged_name_still_means_itself():
    assert [load_cluster(name).name for name in packaged_clusters()] == list(packaged_clusters())
    assert len({id(find_model(name)) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("written", ["a100-40gb", "H100-NVL", "a100-pcie"])
def test_another_device_than_there_is_stays_unknown(written):
    with pytest.raises(ConfigError, match=f"unknown cluster '{written}': did you mean .*100"):
        load_cluster(written)


@pytest.mark.parametrize("written", ["llama3-70B", "meta-llama/Llama-3.1-70B", "Llama_3 70B"])
def test_a_model_is_known_with_its_organisation(written):
    assert find_model(written) is find_model("llama3-70b")
    assert find_profiled(written) == find_profiled("llama3-70b")


def test_a_profile_is_known_in_capitals():
    assert ppsim.load_profile("ZB_A100 6.2B") == ppsim.load_profile("zb-a100-6.2b")


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("project --pp 2 --schedule 1F1B,ZB_H1 --json", "project --pp 2 --schedule 1f1b,zb-h1 --json"),
        ("build Interleaved --pp 2 --num-microbatches 4", "build interleaved-1f1b --pp 2 --num-microbatches 4"),
        ("schedules ZBVZeroBubble", "schedules zbv-fixed"),
        ("clusters H100-SXM", "clusters dgx-h100"),
        ("models meta-llama/Llama-3.1-70B", "models Llama3-70B"),
    ],
)
def test_commands_take_the_same_names(written, plain):
    said, meant = run(*written.split()).stdout, run(*plain.split()).stdout
    assert said.splitlines()[1:] == meant.splitlines()[1:]


def test_a_search_takes_a_schedule_once_however_it_is_written():
    given = {"model": "GPT2", "gpus": 2, "global_batch": 16, "tp": [1], "micro_batch": [8], "cluster": "h100"}
    found = ppsim.tune(**given, schedule=["1F1B", "1f1b", "zb_h1"])
    assert found.space.schedule == ("1f1b", "zb-h1")


def test_a_file_of_runs_takes_the_same_names(tmp_path):
    columns = "model,gpus,tp,pp,global_batch,cluster,schedule,metric,value"
    rows = [
        "Llama3-8B,16,2,2,64,H100-SXM,1F1B,iteration_s,3.0",
        "llama3_8b,16,2,2,128,dgx_h100,1f1b,iteration_s,6.0",
    ]
    (tmp_path / "runs.csv").write_text("\n".join([columns, *rows, ""]))
    found = ppsim.fit(tmp_path / "runs.csv")
    assert (found.base, len(found.posterior.rows)) == ("dgx-h100", 2)
    assert found.to_calibration(tmp_path / "elsewhere" / "mine.json")["base"] == "dgx-h100"


def test_a_cluster_file_extends_one_by_any_of_its_names(tmp_path):
    (tmp_path / "mine.toml").write_text('format = "ppsim-cluster/1"\nname = "mine"\nbase = "H100-SXM"\n')
    assert load_cluster(tmp_path / "mine.toml").device == load_cluster("dgx-h100").device


def test_what_is_left_out_in_base_name_lookup_has_these_values() -> None:
    assert number_defaults(name_lookup_module) == {
        "NameLookup.nearest": {"number": 3},
    }  # fmt: skip


def test_at_most_three_names_are_suggested_those_that_begin_alike_first() -> None:
    names = name_lookup_module.NameLookup("thing", ["abcd", "abce", "abcf", "abcg", "zabc"])
    assert names.hint("abc") == "did you mean abcd or abce or abcf?"
    assert names.hint("qqqq") == "there are abcd, abce, abcf, abcg, zabc"


@pytest.mark.parametrize(("number", "listed_by"), [(30, "ppsim things"), (31, "")])
def test_up_to_30_names_or_names_that_no_command_lists_are_listed(number: int, listed_by: str) -> None:
    names = name_lookup_module.NameLookup("thing", [f"{at:05}" for at in range(number)], listed_by=listed_by)
    assert names.hint("qqqq").startswith("there are 00000, 00001, ")


def test_the_nearest_of_more_names_have_the_command_that_lists_all() -> None:
    names = name_lookup_module.NameLookup("thing", [f"{at:05}" for at in range(31)], listed_by="ppsim things")
    hint = names.hint("qqqq")
    assert hint.startswith("the nearest of 31 names are ")
    assert hint.endswith("; ppsim things lists all")
    assert hint.count(", ") == 2


@pytest.mark.parametrize(("similarity", "hint"), [("abqq", "did you mean abcd?"), ("aqqq", "there are abcd")])
def test_a_suggested_name_shares_half_of_its_letters(similarity: str, hint: str) -> None:
    """2 · 2 of 8 letters are a ratio of 0.5."""
    assert name_lookup_module.NameLookup("thing", ["abcd"]).hint(similarity) == hint


def test_modules_joined_by_a_plus_are_in_their_usual_order() -> None:
    joined = name_lookup_module.joined_modules
    also = {"attn": "core_attn"}
    assert (
        joined("--offload", "moe + attn", ["core_attn", "mlp", "moe"], words="none", also=also) == "core_attn+moe"
    )
    with pytest.raises(ConfigError) as refused:
        joined("--offload", "moe+mlpp", ["core_attn", "mlp", "moe"], words="none", near=["mlpq"])
    assert str(refused.value) == (
        "--offload must be none or modules joined by +: got 'moe+mlpp' (did you mean mlp or mlpq?)"
    )
