"""`ppsim tune` ranks, shows, writes and refuses."""

import csv
import json
import re
from types import SimpleNamespace

import click
import pytest

from ppsim.base.errors import ConfigError
from ppsim.cli import tune as module
from ppsim.projection.scaling import Scaling
from tests.cli.running import ppsim, words_of

SMALL = (
    "tune",
    "--model",
    "gpt2",
    "--gpus",
    4,
    "--global-batch-size",
    8,
    "--tp",
    "1,2",
    "--micro-batch-size",
    "1,2",
)

NARROW = ("--pp", 2, "--vpp", 1, "--schedule", "1f1b", "--recompute", "none")


def test_the_table_fits_100_columns_and_names_the_command_of_the_first(folder):
    text = ppsim(*SMALL, "-o", "a.json").stdout
    assert max(map(len, text.splitlines())) <= 100
    command = words_of(text).split(" best ppsim ")[1].partition(" more ")[0].split()
    best = json.loads((folder / "a.json").read_text())["best"][0]
    made = json.loads(ppsim(*command, "--json").stdout)
    assert made["iteration_time_s"] == best["iteration_time_s"]
    assert made["model_flops_utilization"] == pytest.approx(best["model_flops_utilization"])


@pytest.mark.parametrize(
    "changed",
    [
        "--dtype float16 --zero 2 --layers 6 --runtime ideal --no-overlap-dp --optimizer-sync post-validated",
        "--optimizer muon --layer-wise --sequence-parallel --rank-order tp-dp-cp-ep-pp --runtime megatron",
        "--calibration overheads.json",
    ],
)
def test_the_command_of_the_first_says_what_was_asked_otherwise(folder, changed):
    overheads = {"action_overhead_s": 0.01, "hop_overhead_s": 0.0, "latency_s": 0.02, "bandwidth_bytes_per_s": 1e12}
    (folder / "overheads.json").write_text(json.dumps(overheads))
    text = ppsim(*SMALL, *NARROW, *changed.split(), "-o", "a.json").stdout
    command = words_of(text).split(" best ppsim ")[1].partition(" more ")[0].split()
    best = json.loads((folder / "a.json").read_text())["best"][0]
    assert changed.split()[0] in command
    assert json.loads(ppsim(*command, "--json").stdout)["iteration_time_s"] == best["iteration_time_s"]


@pytest.mark.search
def test_the_number_that_does_not_fit_is_a_least_one_if_bounds_left_configurations_out(folder):
    asked = (*SMALL, "--memory-limit", "1.5GiB")
    counts, texts = [], []
    for top in (1, 100_000):
        texts.append(words_of(ppsim(*asked, "--top", top, "--full", "-o", "a.json").stdout))
        counts.append(json.loads((folder / "a.json").read_text())["counts"])
    some, every = (one["too_large_without_a_table"] + one["too_large_by_their_table"] for one in counts)
    assert some < every
    assert counts[0]["left_out_by_bounds"] > 0 == counts[1]["left_out_by_bounds"]
    assert f"configurations: at least {some} do not fit" in texts[0]
    assert f"configurations: {every} do not fit" in texts[1]


ONE_LAYOUT = (*SMALL, "--pp", 2, "--cp", 1, "--recompute", "none", "--split", "auto")


def test_schedules_of_a_trainer_that_ppsim_chose_come_first_and_the_faster_of_others_follow(folder):
    text = ppsim(*ONE_LAYOUT, "--top", 100, "--full", "-o", "a.json").stdout
    rows = [
        line.split()
        for line in text.partition("Pareto set")[0].splitlines()
        if "torch," in line or "megatron" in line
    ]
    trainers = ["megatron" if row[1] == "megatron" else " ".join(row[1:3]) for row in rows if row[0] != "best"]
    own = trainers.count("megatron")
    assert trainers == ["megatron"] * own + ["torch, primus"] * (len(trainers) - own)
    assert 0 < own < len(trainers)
    answer = json.loads((folder / "a.json").read_text())
    assert {one["elsewhere"] for one in answer["best"]} == {False}
    assert answer["question"]["trainer"] == "megatron"
    assert f"--schedule {answer['best'][0]['schedule']} " in words_of(text).partition(" best ppsim ")[2]


@pytest.mark.parametrize("named", [("--runtime", "megatron"), ("--stack", "megatron-bridge")])
def test_schedules_of_other_trainers_than_the_named_one_are_one_line(named):
    text = words_of(ppsim(*ONE_LAYOUT, *named).stdout)
    table, _, more = text.partition(" with torch or primus: ")
    assert "zb" not in table
    assert re.match(r"\S+ -[\d.]+ % \(--schedule any ranks all\) best ppsim project", more)


@pytest.mark.parametrize("asked", ["any", "1f1b,interleaved-1f1b,zbv-fixed"])
def test_any_schedule_and_schedules_that_are_named_rank_by_time_alone(asked):
    found = json.loads(ppsim(*ONE_LAYOUT, "--runtime", "megatron", "--schedule", asked, "--json").stdout)
    times = [one["iteration_time_s"] for one in found["best"]]
    assert times == sorted(times)
    assert "torch, primus" in {one["runs_in"] for one in found["best"]}


@pytest.mark.slow
def test_every_output_is_written(folder):
    names = ("a.json", "a.csv", "a.html", "a.svg", "a.png", "a.pdf")
    ppsim(*SMALL, *(word for name in names for word in ("-o", name)))
    answer = json.loads((folder / "a.json").read_text())
    with open(folder / "a.csv") as file:
        rows = list(csv.DictReader(file))
    times = [float(row["iteration_time_s"]) for row in rows]
    assert times == sorted(times)
    assert sum(row["pareto"] == "1" for row in rows) == len(answer["pareto"])
    assert len(rows) >= len(answer["best"]) == 10
    page = (folder / "a.html").read_text()
    assert "Pareto set" in page
    assert "cdn.plot.ly" not in page.split("<script")[0]
    assert all((folder / name).stat().st_size > 0 for name in names)


def test_pictures_of_one_answer_are_the_same_bytes(folder):
    for name in ("a.svg", "b.svg"):
        ppsim(*SMALL, *NARROW, "-o", name)
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()


def test_in_a_pipe_it_says_what_it_does_before_any_configuration_is_looked_at(folder, monkeypatch):
    from ppsim.tuning import search

    said, screen = [], search._Search.screen
    monkeypatch.setattr("ppsim.cli.tune.print_message", said.append)
    monkeypatch.setattr(search._Search, "screen", lambda self: said.append("screened") or screen(self))
    ppsim(*SMALL, *NARROW)
    assert said == [
        "finding a lower bound of each configuration, then simulating those that may be best",
        "screened",
    ]


@pytest.mark.parametrize("wrong", [["--gpus", 4], ["--model", "gpt2", "--gpus", 4], [*SMALL[1:], "--tp", "two"]])
def test_what_was_not_understood_is_refused_before_it_says_that_it_searches(wrong):
    assert "lower bound" not in ppsim("tune", *wrong, code=2).output


def test_an_answer_goes_on_from_its_file(folder):
    asked = (*SMALL, *NARROW)
    ppsim(*asked, "-o", "a.json")
    first = (folder / "a.json").read_text()
    assert json.loads(ppsim(*asked, "--resume", "a.json", "--json").stdout) == json.loads(first)
    assert (folder / "a.json").read_text() == first


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--gpus", 4, "--global-batch-size", 8], 2, "--model must be given"),
        (["--model", "gpt2", "--global-batch-size", 8], 2, "--gpus must be given"),
        (["--model", "gpt2", "--gpus", 4], 2, "--global-batch-size must be given"),
        ([*SMALL[1:], "--gpus", 0], 2, "--gpus and --global-batch-size are at least 1: got 0 and 8"),
        ([*SMALL[1:], "--tp", "two"], 2, "--tp is 'two': give numbers as 1,2,4"),
        ([*SMALL[1:], "--recompute", "some"], 2, "got 'some'"),
        ([*SMALL[1:], "--memory-share", 1.5], 2, "--memory-share is a part above 0, up to 1: got 1.5"),
        ([*SMALL[1:], "--memory-share", 0.5, "--memory-limit", "8GiB"], 2, "say the same twice"),
        ([*SMALL[1:], "--tp", "5"], 2, "no configuration is possible: tp 5"),
        ([*SMALL[1:], "--top", 0], 2, "top must be at least 1: got 0"),
        ([*SMALL[1:], "-o", "a.json.gz"], 2, "cannot tell what to write to a.json.gz"),
        ([*SMALL[1:], "--resume", "no/a.json"], 2, "cannot write no/a.json"),
        ([*SMALL[1:], "--memory-limit", "1MiB"], 1, "gpt2 does not fit on 4 GPUs: the smallest configuration (tp"),
    ],
)  # fmt: skip
def test_mistakes_get_a_sentence(folder, args, code, words):
    assert words in words_of(ppsim("tune", *args, code=code).stderr)


def test_rows_that_gather_experts_say_so():
    line = ("tune", "--model", "deepseek-v2-lite", "--gpus", 16, "--global-batch-size", 16, "--tp", 1, "--pp", 1)
    line += ("--micro-batch-size", 1, "--recompute", "full", "--schedule", "1f1b", "--top", 1)
    sentence = "experts gathered, not exchanged: rows with ep 1 and ZeRO 3."
    assert sentence in ppsim(*line, "--ep", 1, "--zero", 3).stdout
    assert sentence not in ppsim(*line, "--ep", 8, "--zero", 1).stdout


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"deadline": 3.0}, "--deadline needs --tokens, the number of tokens to train"),
        ({"deadline": 0.0, "tokens": 1e9}, "--deadline must be more than 0 days: got 0"),
        ({"tokens": 0.0}, "--tokens must be more than 0: got 0"),
        (
            {"is_compared": True, "resume": "a"},
            "--resume is for one search: leave out --tokens, --minimise and lists",
        ),
        ({"is_compared": True, "to_config": "megatron"}, "--to-config is for one search"),
    ],
)
def test_a_comparison_of_numbers_has_options_of_its_own(given, sentence):
    def require(is_compared=False, tokens=None, deadline=None, resume=None, to_config=None):
        module._require_comparable(is_compared, tokens, deadline, {"resume": resume}, to_config)

    with pytest.raises(ConfigError, match=sentence):
        require(**given)
    require(deadline=0.5, tokens=1.0)
    require(is_compared=True)
    require(resume="a", to_config="megatron")


ROWS = [
    {"gpus": 8, "iteration_time_s": 3.0, "gpu_hours_per_step": 1.0, "training_days": 9.0},
    {"gpus": 16, "error": "too few"},
    {"gpus": 32, "iteration_time_s": 1.0, "gpu_hours_per_step": 4.0, "training_days": 3.0},
    {"gpus": 64, "iteration_time_s": 2.0, "gpu_hours_per_step": 0.5, "training_days": 6.0},
]  # fmt: skip


@pytest.mark.parametrize(
    ("minimise", "deadline", "order", "code"),
    [
        (None, None, [8, 16, 32, 64], None), ("time", None, [32, 64, 8, 16], None), ("cost", None, [64, 8, 32, 16], None),
        (None, 3.0, [8, 16, 32, 64], None), (None, 2.0, [8, 16, 32, 64], 1),
    ],
)  # fmt: skip
def test_numbers_of_gpus_are_rows_in_order_or_the_best_first(minimise, deadline, order, code, monkeypatch):
    calls = []
    rows = [{"num_gpus": row["gpus"], "verdict": "fits"} | row for row in ROWS]

    def scaling_of(name, numbers, row_of):
        calls.append((name, numbers, row_of(numbers[1])))
        return Scaling("gpus", rows)

    monkeypatch.setattr(module, "scaling_of", scaling_of)
    monkeypatch.setattr("ppsim.api.tune.search_of", lambda options: lambda: ("searched", options["gpus"]))
    monkeypatch.setattr("ppsim.api.tune.row_of_search", lambda *all: all)
    monkeypatch.setattr(module, "print_result", lambda *all: calls.append(all))
    monkeypatch.setattr(module, "write", lambda *all, announce: calls.append(all))

    def compare():
        module._compare_numbers([8, 16], {"gpus": None}, ("o.csv",), 1e9, minimise, deadline, as_json=True)

    if code:
        with pytest.raises(click.exceptions.Exit) as error:
            compare()
        assert error.value.exit_code == code
    else:
        compare()
    assert calls[0] == ("gpus", [8, 16], (("searched", 16), 1e9))
    (scaling, as_json), (outputs, formats, written) = calls[1:]
    assert ([row["gpus"] for row in scaling.rows], scaling.deadline_days, as_json) == (order, deadline, True)
    assert (outputs, formats, written) == (("o.csv",), module.SCALING, scaling)
    rows[:] = rows[1:2]
    with pytest.raises(click.exceptions.Exit):
        module._compare_numbers([8, 16], {"gpus": None}, (), None, None, None, as_json=False)


def test_a_recipe_is_projected_with_the_options_of_the_search(monkeypatch, capsys):
    monkeypatch.setattr("ppsim.api.tune.plan_of_file", lambda options: options["gpus"])

    def outcome_of(plan):
        if plan == 3:
            raise ConfigError("3 is odd")
        return 2.0 * plan, 5.0

    monkeypatch.setattr("ppsim.projection.project.outcome_of", outcome_of)
    config = SimpleNamespace(recipe="name")
    assert module._of_recipe(config, {"gpus": 8}) == {"recipe_iteration_time_s": 16.0, "recipe_peak_bytes": 5.0}
    assert module._of_recipe(config, {"gpus": 3}) == {}
    assert capsys.readouterr().err == "  the recipe itself is not possible with these options: 3 is odd\n"
    assert module._of_recipe(None, {}) == module._of_recipe(SimpleNamespace(recipe=None), {}) == {}


@pytest.mark.parametrize(
    ("options", "verdict", "reasons"),
    [
        (
            {
                "tp": 2,
                "model": "gpt2",
                "recompute": "full",
                "cuda_graphs": "full",
                "micro_batch": 4,
                "trainer_name": 1,
            },
            "fits",
            [],
        ),
        ({"tp": 8}, "fits", ["the search does not try --tp 8"]),
        (
            {"tp": 4, "channel": "edge", "schedule": "zb-h1"},
            "fits",
            ["the search does not try --channel edge --schedule zb-h1"],
        ),
        ({"tp": 2}, "does not fit", ["the recipe does not fit"]),
        ({"tp": 8}, "fits tightly", ["the recipe fits tightly", "the search does not try --tp 8"]),
    ],
)
def test_a_recipe_is_faster_for_its_memory_or_for_what_is_not_tried(options, verdict, reasons):
    question = SimpleNamespace(memory_limit=SimpleNamespace(word=lambda peak: verdict if peak == 7.0 else "wrong"))
    space = SimpleNamespace(tp=[1, 2], micro_batch=None, recompute=["none"], schedule=["1f1b"])
    candidates = [
        SimpleNamespace(candidate=SimpleNamespace(tp=4, micro_batch=4, recompute="full", schedule="1f1b"))
    ]
    tuned = SimpleNamespace(question=question, space=space, simulated=candidates)
    assert module._why_longer(SimpleNamespace(options=options), tuned, 7.0) == reasons
