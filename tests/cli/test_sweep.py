"""`ppsim sweep`, several values of an option of `project`, and several numbers of GPUs of `tune`."""

import csv
import json

import pytest

from tests.cli.running import ppsim, words_of

SMALL = ("project", "--model", "gpt2", "--tp", 1, "--pp", 1, "--global-batch-size", 48)


@pytest.fixture
def jobs(folder):
    (folder / "jobs.yaml").write_text("model: gpt2\nglobal_batch_size: 8\npp: 1\ngpus: [2, 3, 4]\n")
    return folder / "jobs.yaml"


def test_a_sweep_says_what_came_out_and_what_it_kept(folder, jobs):
    said = words_of(ppsim("sweep", "jobs.yaml", "-o", "a.csv").output)
    assert "wrote a.csv" in said
    assert "3 jobs: 2 fit, 1 with an error" in said
    with open(folder / "a.csv") as file:
        rows = list(csv.DictReader(file))
    alone = json.loads(ppsim(*SMALL[:-1], 8, "--gpus", 4, "--json").stdout)
    assert [row["gpus"] for row in rows] == ["2", "3", "4"]
    assert float(rows[2]["iteration_time_s"]) == alone["iteration_time_s"]
    assert "does not divide" in rows[1]["error"] or "multiple" in rows[1]["error"]
    assert "3 of 3 jobs were computed before" in ppsim("sweep", "jobs.yaml", "-o", "a.csv").output


def test_a_sweep_without_a_good_job_exits_with_1(folder, jobs):
    jobs.write_text("model: no-such-model\ngpus: 2\n")
    ppsim("sweep", "jobs.yaml", "-o", "a.csv", code=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("-o", "a.txt"), "cannot tell what to write to a.txt"),
        (("-o", "jobs.yaml"), "cannot write jobs.yaml: this command reads it"),
        (("-o", "a.csv", "--backend", "dask"), "--backend dask and --scheduler ADDRESS belong together"),
        (("-o", "a.csv", "--address", "auto"), "--backend ray and --address ADDRESS belong together"),
        (("-o", "a.csv", "--jobs", 2, "--backend", "ray", "--address", "auto"), "--jobs 2 is for processes"),
        (("-o", "a.csv", "--jobs", 0), "got 0"),
    ],
)
def test_what_cannot_be_swept_gets_a_sentence_and_no_file(folder, jobs, options, sentence):
    assert sentence in words_of(ppsim("sweep", "jobs.yaml", *options, code=2).output)
    assert not list(folder.glob("a.*"))


def test_several_values_are_a_table_and_numbers_that_do_not_divide_rows_with_a_reason(folder):
    text = ppsim(*SMALL, "--gpus", "1,2,5,4", "-o", "a.json", "-o", "a.md", "-o", "a.csv").stdout
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "5"]
    found = json.loads((folder / "a.json").read_text())
    assert [row["gpus"] for row in found["rows"]] == [1, 2, 5, 4]
    assert found["rows"][2]["error"]
    alone = json.loads(ppsim(*SMALL, "--gpus", 2, "--json").stdout)
    assert found["rows"][1]["iteration_time_s"] == alone["iteration_time_s"]
    assert (folder / "a.md").read_text().startswith("| gpus | iteration |")
    assert "what grows" in text


def test_the_values_may_be_names_and_the_figure_has_the_interval(folder):
    ppsim(*SMALL, "--gpus", 4, "--cluster", "dgx-h100,dgx-a100", "-o", "a.svg")
    assert (folder / "a.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--gpus", "2,4", "--micro-batch-size", "1,2"),
            "cannot both have several values; `ppsim sweep` multiplies",
        ),
        (("--gpus", "2,4", "--schedule", "all"), "--gpus and --schedule cannot both"),
        (("--gpus", "2,4", "--to-config", "megatron"), "--to-config is for one plan: give one value of --gpus"),
        (("--gpus", "2,4", "--full"), "--full is for one plan: give one value of --gpus"),
        (("--gpus", "2,x"), "'x' is not a valid integer"),
        (("--gpus", "2,4", "-o", "a.html"), "give it one of .csv, .json, .md"),
    ],
)
def test_two_ranges_and_what_has_no_range_get_a_sentence(options, sentence):
    assert sentence in words_of(ppsim(*SMALL, *options, code=2).output)


def test_a_range_of_which_nothing_fits_exits_with_1():
    ppsim(*SMALL, "--gpus", "2,4", "--memory-limit", "1MiB", code=1)
    ppsim(*SMALL, "--gpus", "2,4", "--memory-limit", "1MiB", "--allow-oom")


NUMBERS = ("tune", "--model", "gpt2", "--global-batch-size", 8, "--tp", 1, "--pp", 1, "--recompute", "none",
           "--micro-batch-size", 1)  # fmt: skip


@pytest.mark.search
def test_numbers_of_gpus_are_searched_each_and_ordered_by_cost(folder):
    asked = (*NUMBERS, "--gpus", "4,2,8", "--tokens", 1e9, "--price", 2)
    found = json.loads(ppsim(*asked, "--minimise", "cost", "--json").stdout)["rows"]
    costs = [row["training_cost"] for row in found]
    assert costs == sorted(costs)
    alone = json.loads(ppsim(*NUMBERS, "--gpus", 4, "--json").stdout)["best"][0]
    [row] = [row for row in found if row["gpus"] == 4]
    assert row["iteration_time_s"] == pytest.approx(alone["iteration_time_s"], rel=1e-9)
    assert row["peak_bytes"] == pytest.approx(alone["peak_bytes"], rel=1e-9)
    days = sorted(row["training_days"] for row in found)
    met = words_of(ppsim(*asked, "--deadline", 1.01 * days[1]).stdout)
    assert met.startswith("4 GPUs are the fewest that meet")
    missed = words_of(ppsim(*asked, "--deadline", 0.5 * days[0], code=1).stdout)
    assert "the nearest is 8 GPUs with" in missed


def test_several_impossible_numbers_come_last():
    found = json.loads(ppsim(*NUMBERS, "--gpus", "3,5,2", "--minimise", "time", "--json").stdout)["rows"]
    assert [(row["gpus"], row["error"] is None) for row in found] == [(2, True), (3, False), (5, False)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--gpus", 2, "--deadline", 3), "--deadline needs --tokens"),
        (("--gpus", 2, "--tokens", 1e9, "--deadline", 0), "--deadline must be more than 0 days: got 0"),
        (("--gpus", 2, "--tokens", -1), "--tokens must be more than 0: got -1"),
        (("--gpus", "2,4", "--resume", "a.json"), "--resume is for one search"),
        (("--gpus", 2, "--price", -2), "--price must be a number from 0 on"),
        (("--gpus", 2, "--workers", "ray:auto"), "--workers was removed: for one search, give --jobs N"),
    ],
)
def test_what_cannot_be_compared_gets_a_sentence(options, sentence):
    assert sentence in words_of(ppsim(*NUMBERS, *options, code=2).output)


def test_a_stopped_sweep_says_how_to_continue(folder, jobs, monkeypatch):
    def stopped(job):
        if job["gpus"] == 4:
            raise KeyboardInterrupt
        return {"verdict": "fits"}

    monkeypatch.setattr("ppsim.api.sweep.row_of_job", stopped)
    said = words_of(ppsim("sweep", "jobs.yaml", "-o", "a.csv", code=130).output)
    assert "stopped: rows so far are in a.csv.partial.jsonl; the same command continues" in said
    assert not (folder / "a.csv").exists()
