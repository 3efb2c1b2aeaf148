"""`project`: one plan or all schedules, from a packaged profile or one's own."""

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from ppsim import project, read_schedule
from ppsim.api.option_values import parse_size
from ppsim.base.errors import ConfigError
from ppsim.catalog.build import CATALOG, every_schedule
from ppsim.cli import project as module
from ppsim.cli.click_options import Several
from tests.cli.running import ppsim, words_of
from tests.cli.test_tables import RANK_KEYS, REPORT_KEYS
from tests.cli.typed import passes_of_three_steps

PROJECT_KEYS = [
    "fits", "verdict", "memory_fit", *REPORT_KEYS, "profile", "tokens_per_s", "tokens_per_s_per_gpu", "model_flops_utilization",
    "peak_flops_per_s", "model_flops_per_s_per_gpu", "peak_bytes", "num_gpus", "exposed_s", "reference_s", "reference_ends_s", "reference_work", "overheads_fitted_runs",
    "layers_per_stage", "pipeline_layout", "stages", "step_time_by_channel_s",
    "runtime_error", "memory_error", "peak_components_bytes", "reserved_bytes", "assumptions", "options", "iteration_time_interval_s", "time_breakdown_s", "gain_per_percent",
    "bottleneck", "advice", "gpu_hours_per_step", "cost_per_step", "training_days", "training_gpu_hours", "training_cost",
    "by_stack_s",
]  # fmt: skip
PROFILES = Path(__file__).parents[2] / "profiles"


def projected(*args):
    """The object that `ppsim project ARGS --json` prints."""
    return json.loads(ppsim("project", *args, "--json").stdout)


def test_what_the_default_profile_lacks_says_that_no_model_was_given():
    text = ppsim("project", "--pp", 4, "--tp", 4, code=2).stderr
    assert (
        "no --model was given, so the default profile is projected: profile zb-a100-6.2b was not measured" in text
    )


def test_with_nothing_else_a_packaged_gpu_profile_is_used_and_named():
    screen = words_of(ppsim("project", "--pp", 8, "--vpp", 2).stdout)
    assert "costs of profile zb-a100-6.2b (packaged example; --model and --cluster for yours)" in screen
    text = words_of(ppsim("project", "--pp", 8, "--vpp", 2, "--full").stdout)
    assert text.startswith(
        "fits: rank 1 needs 48.4 GiB, 75.0 GiB usable GPT 6.2B on 8 × NVIDIA A100-SXM4-80GB: packaged profile; --model/--cluster or --profile for yours "
        "interleaved-1f1b pp 8 vpp 2 32 microbatches"
    )
    assert "costs: profile zb-a100-6.2b" in text
    assert "Table 9 (6.2B, 8 ranks)" in text


SECOND_LINES = {
    "--pp 4 --layers 24": "24 layers of GPT 6.2B on 4 × NVIDIA A100-SXM4-80GB: packaged profile; --model/--cluster",
    "--pp 4 --profile zb-a100-1.5b --schedule 1f1b,zb-h1": "GPT 1.5B on 4 × NVIDIA A100-SXM4-80GB: profile zb-a100-1.5b",
    "--model llama3-70b --cluster a100 --tp 8 --pp 4 --global-batch-size 64": (
        "llama3-70b (70.6 B) on 32 × NVIDIA A100 80GB SXM (dgx-a100), 64 sequences of 8192 tokens per step"
    ),
}


@pytest.mark.parametrize("options", SECOND_LINES)
def test_the_line_after_the_verdict_says_what_is_projected(options):
    lines = ppsim("project", *options.split(), "--full").stdout.splitlines()
    assert lines["," not in options].startswith(SECOND_LINES[options])
    assert lines[0].startswith("fits: ") == ("," not in options), "a list has its marks"


def test_a_list_says_what_the_names_in_it_mean():
    text = words_of(
        ppsim("project", "--pp", 2, "--schedule", "zbv,zbv-fixed,v-flex,1f1b", "--num-microbatches", 4).stdout
    )
    assert "zbv: tables fitted to the costs of each stage; v-flex: also to the free memory" in text
    assert "names with -fixed: the published table, independent of costs." in text
    assert "above bound" in text
    assert "fitted" not in ppsim("project", "--pp", 2, "--schedule", "gpipe,1f1b").stdout


def test_every_default_and_fallback_is_said():
    text = words_of(ppsim("project", "--pp", 4, "--full").stdout)
    for words in (
        "shape: micro-batch 3, sequence length 1024, fp16", "layers: 30, split 7, 2×8, 7 (auto)",
        "static memory: 16 bytes per parameter", "transfers: 535 µs per P2P transfer of 24.0 MiB, measured",
        "microbatches: 16 (4 per rank; --num-microbatches sets it)", "runtime: torch", "channel pair, receives torch",
        "overheads: none", "not in the step time: data-parallel communication, optimizer",
    ):  # fmt: skip
        assert words in text


def test_the_page_has_the_answer_the_ranks_and_the_other_channels():
    report = projected("--pp", 4, "--num-microbatches", 8)
    text = ppsim("project", "--pp", 4, "--num-microbatches", 8, "--full").stdout
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())
    for words in (
        "step time",
        "throughput",
        "MFU",
        "lower bound",
        "critical path",
        "P2P serialization",
        "assumed",
    ):
        assert f"\n{words}" in text
    assert f"bubble {100 * report['bubble_ratio']:.2f} %" in text
    for rank in report["ranks"]:
        assert any(line.split()[0] == str(rank["rank"]) and line.endswith(rank["peak_at"])
                   for line in text.splitlines() if line)  # fmt: skip


def test_the_bounds_are_for_tables_within_the_memory_limit():
    free = projected("--pp", 4, "--schedule", "zb-1p")
    limited = projected("--pp", 4, "--schedule", "zb-1p", "--memory-limit", "50GiB")
    assert limited["memory_limit_bytes"] == 50 * 2**30
    assert free["memory_limit_bytes"] is None
    for key, reached in (("lower_bound_s", "step_time_s"), ("span_lower_bound_s", "span_s")):
        assert free[key] < limited[key] <= limited[reached]
    text = words_of(ppsim("project", "--pp", 4, "--schedule", "zb-1p", "--memory-limit", "50GiB", "--full").stdout)
    gaps = [limited["step_time_s"] / limited["lower_bound_s"], limited["span_s"] / limited["span_lower_bound_s"]]
    assert "for any schedule on this placement within 50.0 GiB" in text
    assert all(f"({100 * (gap - 1):.2f} % above" in text for gap in gaps)


def test_json_is_one_object_with_the_documented_keys_and_nothing_beside():
    result = ppsim("project", "--pp", 2, "--num-microbatches", 4, "--json")
    report = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(report) == PROJECT_KEYS
    assert [list(rank) for rank in report["ranks"]] == [RANK_KEYS] * 2
    assert list(report["step_time_by_channel_s"]) == ["ideal", "edge", "pair", "direction", "rank"]
    assert report["profile"]["name"] == "zb-a100-6.2b"
    assert report["profile"]["shape"]["micro_batch"] == 3
    assert sum(report["layers_per_stage"]) == 30
    assert report["tokens_per_s"] == pytest.approx(4 * 3 * 1024 / report["step_time_s"])


def test_one_command_line_gives_one_answer(monkeypatch):
    monkeypatch.setenv("PPSIM_CACHE_DIR", "")  # searched for twice
    args = ["project", "--pp", 2, "--num-microbatches", 4, "--schedule", "zbv,v-half,1f1b", "--json"]
    assert ppsim(*args).stdout == ppsim(*args).stdout


def test_all_schedules_are_listed_best_first_and_the_others_with_the_reason():
    text = ppsim(
        "project", "--pp", 4, "--schedule", "all", "--num-microbatches", 16, "--memory-limit", "130GiB", "--full"
    ).stdout
    lines = [line.split() for line in text.splitlines() if line]
    listed = [line[0].rstrip("*!") for line in lines if line[0].rstrip("*!") in CATALOG]
    assert {line[0] for line in lines if line[0].endswith("*")} >= {"dualpipe*", "chimera*", "seq1f1b*"}
    assert "* torch cannot run this table; P2P is simulated as if it could." in text
    comparison = projected("--pp", 4, "--schedule", "all", "--num-microbatches", 16, "--memory-limit", "130GiB")
    assert listed == [projection["schedule"] for projection in comparison["projections"]]
    places = [(one["elsewhere"], not one["fits"], one["iteration_time_s"]) for one in comparison["projections"]]
    assert places == sorted(places)
    assert comparison["rejected"] == {}
    assert {line[0] for line in lines if line[0].endswith("!")} == {"!", "gpipe!", "looped-bfs!"}
    assert {one["schedule"] for one in comparison["projections"] if not one["fits"]} == {"gpipe", "looped-bfs"}
    assert "! does not fit: a rank needs more than the 130 GiB usable." in words_of(text)


def test_all_schedules_of_a_vpp_are_those_that_take_it():
    comparison = projected("--pp", 4, "--vpp", 2, "--schedule", "all")
    takers = {name for name, entry in CATALOG.items() if entry.why_not(pp=4, vpp=2, microbatches=32) is None}
    assert {"interleaved-1f1b", "zbv-fixed"} < takers < set(CATALOG)
    assert {projection["schedule"] for projection in comparison["projections"]} == takers
    assert comparison["rejected"]["1f1b"] == "1f1b needs exactly 1 stage per rank: got vpp=2 (nearest: 1)"


def test_schedules_that_are_named_are_compared_and_all_of_them_drawn(folder):
    named = ["--pp", 4, "--schedule", "1f1b, zbv-fixed,zb-h1", "--memory-limit", "80GiB"]
    comparison = projected(*named, "-o", "named.html")
    assert [one["schedule"] for one in comparison["projections"]] == ["zbv-fixed", "zb-h1", "1f1b"]
    title = re.search("<title>(.*?)</title>", (folder / "named.html").read_text())[1]
    assert title.startswith(
        "GPT 6.2B on 4 × NVIDIA A100-SXM4-80GB (profile zb-a100-6.2b), pp 4: zbv-fixed, zb-h1, 1f1b, "
    )
    assert "did you mean zbv or" in ppsim("project", "--pp", 4, "--schedule", "1f1b,zbw", code=2).stderr


def test_nothing_that_fits_is_an_answer_with_exit_code_1(folder):
    args = ["project", "--pp", 2, "--num-microbatches", 4, "--schedule", "all", "--memory-limit", "1GiB"]
    comparison = json.loads(ppsim(*args, "--json", "-o", "x.json", code=1).stdout)
    assert comparison["fits"] is False
    assert [one["fits"] for one in comparison["projections"]] == [False] * len(CATALOG)
    assert list(json.loads((folder / "x.json").read_text()))[:3] == ["fits", "verdict", "memory_fit"]
    own = [one for one in comparison["projections"] if not one["elsewhere"]]
    least = min(own, key=lambda one: one["memory_fit"]["peak_bytes"])
    first = words_of(ppsim(*args, "--allow-oom").stdout).partition(" GPT 6.2B")[0]
    assert first.startswith("DOES NOT FIT: rank ")
    assert first.endswith(f"({least['schedule']}; the others of torch.distributed.pipelining need more)")


def test_a_plan_that_does_not_fit_says_so_first_and_exits_with_1_unless_that_is_allowed():
    args = ["project", "--pp", 4, "--memory-limit", "20GiB"]
    first = "DOES NOT FIT: rank 0 needs 45.3 GiB, 20.0 GiB usable"
    for code, more in ((1, []), (0, ["--allow-oom"])):
        assert ppsim(*args, *more, code=code).stdout.splitlines()[0] == first
        found = json.loads(ppsim(*args, *more, "--json", code=code).stdout)
        assert next(iter(found)) == "fits"
        assert found["fits"] is False
        fit = found["memory_fit"]
        assert fit["peak_bytes"] > fit["limit_bytes"] == 20 * 2**30
        assert fit["headroom_bytes"] == fit["limit_bytes"] - fit["peak_bytes"]
    assert ppsim("project", "--pp", 4).stdout.splitlines()[3] == "fits           45.3 of 75.0 GiB (rank 0)"


def test_the_table_output_is_the_table_that_build_makes(folder):
    ppsim("project", "--pp", 4, "--schedule", "zbv-fixed", "--num-microbatches", 8, "-o", "projected.csv")
    assert (folder / "projected.csv").read_bytes() == (folder / "zbv.csv").read_bytes()
    ppsim("check", "projected.csv")


def test_of_all_schedules_the_table_output_is_the_best(folder):
    words = ("--pp", 4, "--num-microbatches", 8, "--schedule", "1f1b,interleaved-1f1b,gpipe")
    best = projected(*words)["projections"][0]
    ppsim("project", *words, "-o", "best.csv")
    assert len(read_schedule("best.csv")) == best["num_actions"]
    own = project(pp=4, num_microbatches=8, schedule=best["schedule"])
    assert read_schedule("best.csv") == own.timeline.schedule


def test_the_report_output_simulates_to_the_same_step(folder):
    printed = json.loads(ppsim("project", "--pp", 4, "--vpp", 2, "--json", "-o", "out.json").stdout)
    written = json.loads((folder / "out.json").read_text())
    assert {key: written[key] for key in printed} == printed
    (folder / "again.csv").write_text("\n".join(written["table"]) + "\n")
    (folder / "again.json").write_text(json.dumps(written["costs"]))
    again = json.loads(ppsim("simulate", "again.csv", "--costs", "again.json", "--json").stdout)
    assert again["step_time_s"] == printed["step_time_s"]
    assert again["ranks"] == printed["ranks"]


def test_a_profile_of_ones_own_is_taken_by_its_path(folder):
    shutil.copy(PROFILES / "zb-a100-1.5b.json", folder / "mine.json")
    mine, packaged = (projected("--pp", 4, "--profile", name) for name in ("mine.json", "zb-a100-1.5b"))
    assert mine == packaged


@pytest.mark.parametrize(
    ("option", "assumption"),
    [
        (["--split", "even"], "layers: 30, split 7, 2×8, 7 (even)"),
        (["--split", "6,9,9,6"], "layers: 30, split 6, 2×9, 6 (as given)"),
        (["--layers", "10"], "layers: 10, split 2, 2×3, 2"),
        (["--channel", "rank"], "channel rank, receives torch"),
        (["--receives", "deferred", "--channel", "edge"], "channel edge, receives deferred"),
        (["--runtime", "megatron"], "runtime: megatron"),
    ],
)
def test_an_option_shows_in_what_was_assumed(option, assumption):
    assert any(assumption in line for line in projected("--pp", 4, *option)["assumptions"])


def test_a_transfer_time_is_in_milliseconds():
    """One microbatch goes down and up once: 2 (p − 1) hops."""
    args = ["--pp", 4, "--num-microbatches", 1, "--runtime", "ideal"]
    without, with_transfers = (projected(*args, "--transfer-ms", time)["step_time_s"] for time in (0, 100))
    assert with_transfers - without == pytest.approx(6 * 0.1)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GiB", 80 * 2**30),
        ("80 GB", 80e9),
        ("80g", 80e9),
        ("1.5TiB", 1.5 * 2**40),
        ("512MiB", 2**29),
        ("4194304", 4194304),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text, num_bytes):
    assert parse_size(text) == num_bytes


def test_a_list_of_schedules_has_one_bound():
    """In the order of the step times, distances from one bound grow."""
    text = ppsim("project", "--pp", 4, "--num-microbatches", 8, "--schedule", "zbv,zb-auto,1f1b", "--full").stdout
    begin = text.index("above bound")
    gaps = re.findall(r"^(?:zbv|zb-auto|1f1b) .*?k +([\d.]+) %", text[begin:], re.MULTILINE)
    assert len(gaps) == 3
    assert gaps == sorted(gaps, key=float)


def test_each_schedule_named_beside_a_run_has_its_own_stages_per_rank(folder):
    (folder / "run.csv").write_text(passes_of_three_steps())
    found = json.loads(ppsim("project", "--run", "run.csv", "--schedule", "1f1b,interleaved-1f1b", "--json").stdout)
    assert found["rejected"] == {}
    vpps = {one["options"]["schedule"]: one["options"]["vpp"] for one in found["projections"]}
    assert vpps == {"1f1b": 1, "interleaved-1f1b": 2}


@pytest.fixture
def bars(monkeypatch):
    """Return the texts, limits, totals and updates of the bars that are shown."""
    shown = []

    @contextmanager
    def progress(text, **how):
        shown.append((text, how))
        yield SimpleNamespace(update=lambda text, **how: shown.append((text, how)))

    monkeypatch.setattr(module, "progress", progress)
    return shown


@pytest.mark.parametrize(
    ("schedule", "bar"),
    [("auto", ("searching for a table", {"limit_s": 7.5})), ("zb-h1", ("projecting zb-h1", {}))],
)
def test_a_search_has_a_bar_of_its_time_and_another_plan_one_of_its_name(schedule, bar, bars, monkeypatch):
    made = SimpleNamespace(summarise=lambda tokens: f"answer of {tokens}")
    monkeypatch.setattr("ppsim.projection.project.project", lambda plan, progress: made)
    plan = SimpleNamespace(schedule=schedule, schedule_name=schedule, search_time_s=7.5)
    assert module._answered(plan, 3e9) == (made, "answer of 3000000000.0")
    assert bars[0] == bar
    assert bars[1][0].startswith("looking for what would gain")


def test_schedules_are_counted_while_they_are_projected(bars, monkeypatch):
    def project_all(plan, names, announce):
        for name in ("1f1b", "zb-auto", "zb-h1"):
            announce(name)
        return plan, names

    monkeypatch.setattr("ppsim.projection.project.project_all", project_all)
    assert module._projected("plan", ["a", "b"], is_all=False) == ("plan", ["a", "b"])
    assert bars == [
        ("projecting", {"total": 2, "unit": "schedules"}), ("projecting 1f1b", {"done": 0}),
        ("projecting zb-auto, fitting tables to the costs of every stage", {"done": 1}),
        ("projecting zb-h1", {"done": 2}),
    ]  # fmt: skip
    assert module._projected("plan", ["a", "b"], is_all=True) == ("plan", None)


def test_schedules_to_compare_are_all_or_have_a_comma():
    assert module._compared("all") == module._compared("any") == list(every_schedule())
    assert module._compared("1f1b, zb-h1") == ["1f1b", "zb-h1"]
    assert module._compared("1f1b") == module._compared(None) == []


NOTHING = dict.fromkeys(("pp", "run_config", "recipe", "run", "model", "gpus"))


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, r"\(1: no pipeline\)$"),
        ({"gpus": 8}, r"\(1: no pipeline\)$"),
        ({"model": "gpt"}, r"\(1: no pipeline\)$"),
        (
            {"model": Several(("gpt2", "llama3-8b")), "gpus": Several((8, 16))},
            "find the fastest layout: ppsim tune --model gpt2 --gpus 8 --global-batch-size N$",
        ),
    ],
)
def test_without_ranks_a_plan_is_refused_with_the_search_that_finds_them(options, end):
    with pytest.raises(click.UsageError, match=f"^--pp must be given: the number of pipeline ranks .*{end}"):
        module._require_layout(NOTHING | options)
    for name in ("pp", "run_config", "recipe", "run"):
        module._require_layout(NOTHING | {name: 1})
    with pytest.raises(ConfigError, match="no-such-model"):
        module._require_layout(NOTHING | {"model": "no-such-model"})


@pytest.mark.parametrize(
    ("ranges", "how", "sentence"),
    [
        (["gpus"], {"full": True}, "--full is for one plan: give one value of --gpus"),
        (
            ["micro_batch"],
            {"to_config": "megatron", "full": True},
            "--to-config is for one plan: .* --micro-batch-size",
        ),
        (["gpus", "tp"], {}, "--gpus and --tp cannot both have several values; `ppsim sweep` multiplies lists"),
        (["gpus"], {"has_schedules": True}, "--gpus and --schedule cannot both have several values"),
    ],
)
def test_one_option_has_several_values(ranges, how, sentence):
    usual = {"has_schedules": False, "to_config": None, "full": False}
    with pytest.raises(ConfigError, match=sentence):
        module._require_one_range(ranges, **usual | how)
    module._require_one_range(["gpus"], **usual)


@pytest.mark.parametrize(
    ("verdicts", "allow", "code"),
    [
        (["fits", "does not fit"], None, None),
        (["does not fit"] * 2, None, 1),
        (["does not fit"] * 2, True, None),
        ([], True, 1),
    ],
)
def test_several_values_are_rows_and_none_that_fits_is_an_error(verdicts, allow, code, monkeypatch):
    calls = []
    scaling = SimpleNamespace(possible=[{"verdict": verdict} for verdict in verdicts])

    def scaling_of(name, settings, row_of):
        calls.append((name, settings, row_of(settings[1])))
        return scaling

    monkeypatch.setattr(module, "scaling_of", scaling_of)
    monkeypatch.setattr(module, "run_config_of", lambda options: ("read", options["gpus"]))
    monkeypatch.setattr(module, "print_result", lambda *all: calls.append(all))
    monkeypatch.setattr(module, "write", lambda *all, announce: calls.append(all))
    monkeypatch.setattr(
        "ppsim.api.project.plan_of_options", lambda options: ("plan", options["gpus"], options["run_config"])
    )
    monkeypatch.setattr("ppsim.projection.scaling.row_of_plan", lambda *all: all)
    options = {"gpus": Several((8, 16)), "tokens": 3e9, "allow_oom": allow, "run_config": None}
    if code:
        with pytest.raises(click.exceptions.Exit) as error:
            module._project_range("gpus", dict(options), ("o.csv",), as_json=True)
        assert error.value.exit_code == code
    else:
        module._project_range("gpus", dict(options), ("o.csv",), as_json=True)
    assert calls == [
        ("gpus", [8, 16], (("plan", 16, ("read", 8)), 3e9)), (scaling, True), (("o.csv",), module.SCALING, scaling),
    ]  # fmt: skip


def test_a_published_run_is_of_a_recipe_without_changes(monkeypatch):
    monkeypatch.setattr("ppsim.validation.project_case.published_of", lambda config, plan: (config, plan))
    recipe = SimpleNamespace(recipe="name", typed={"memory_limit": 1, "search_time": 2, "seed": 3})
    assert module._published(recipe, "plan", None) == (recipe, "plan")
    recipe.typed["tp"] = 2
    assert module._published(recipe, "plan", None) is None
    assert module._published(SimpleNamespace(recipe=None), "plan", None) is None
    assert module._published(None, "plan", None) is None
