"""A sweep computes each job once, keeps what it has, and writes the same bytes however often it was stopped."""

import csv
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import ppsim
from ppsim.api import sweep as module
from ppsim.api.sweep import row_of_job, sweep
from ppsim.base.errors import ConfigError, DoesNotFit, MissingExtra
from ppsim.base.parallel import in_processes

SMALL = {"model": "gpt2", "gpus": 2, "pp": 1, "global_batch": 8}
JOBS = [{"model": "gpt2", "gpus": number, "tp": tp} for number in (1, 2, 4) for tp in (1, 2)]
run = partial(in_processes, number=1)


@pytest.fixture
def computed(monkeypatch):
    """The jobs that were computed, without projecting them."""
    found = []

    def row_of(job):
        found.append(job)
        if job.get("tp") == 2 and job["gpus"] == 1:
            return {"error": "tp 2 does not divide 1"}
        return {"iteration_time_s": 0.1 + job["gpus"] / 3, "verdict": "fits", "note": None}

    monkeypatch.setattr(module, "row_of_job", row_of)
    return found


def test_the_row_of_a_job_is_its_projection():
    row = row_of_job(SMALL | {"tokens": "1e9", "price": "2"})
    made = ppsim.project(model="gpt2", gpus=2, pp=1, global_batch=8)
    summary = made.summarise(tokens=1e9, with_advice=False)
    assert row["iteration_time_s"] == made.iteration_time_s
    assert (row["iteration_time_low_s"], row["iteration_time_high_s"]) == summary.iteration_time_interval_s
    assert row["peak_bytes"] == made.timeline.memory.peak_bytes.max()
    assert row["verdict"] == made.verdict.word
    assert row["stack_name"] == made.plan.job.stack_name
    assert row["model FLOPs at peak (s)"] == summary.time_breakdown_s["model FLOPs at peak"]
    assert row["cost_per_step"] == pytest.approx(2 * 2 * made.iteration_time_s / 3600)
    assert row["training_days"] == summary.training_days


@pytest.mark.slow
def test_the_row_of_a_search_is_the_projection_of_its_command():
    row = row_of_job({"model": "gpt2", "gpus": 2, "global_batch": 8, "tune": True, "tp": [1], "micro_batch": 8})
    best = ppsim.tune(model="gpt2", gpus=2, global_batch=8, tp=[1], micro_batch=[8]).best[0]
    assert row["iteration_time_s"] == pytest.approx(best.iteration_time_s, rel=1e-9)
    assert row["command"].startswith("ppsim project --model gpt2")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpus": 3, "tp": 2}, "does not divide 3 devices"),
        ({"tokens": "many"}, "tokens must be a number, as 15e12: got 'many'"),
        ({"tp": "two"}, "tp must be a whole number"),
    ],
)
def test_an_error_is_in_the_row(change, sentence):
    assert sentence in row_of_job(SMALL | change)["error"]


def test_an_unexpected_error_is_in_the_row_too(monkeypatch):
    monkeypatch.setattr(module, "plan_of_keywords", lambda words: 1 / 0)
    assert "unexpected error in ppsim" in row_of_job(SMALL)["error"]
    monkeypatch.setattr(module, "plan_of_keywords", lambda words: (_ for _ in ()).throw(DoesNotFit("too\nlarge")))
    assert row_of_job(SMALL)["error"] == "too large"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rows_that_the_output_has_are_not_computed_again(tmp_path, computed, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    output = tmp_path / f"results{suffix}"
    assert sweep(JOBS[:4], output, run) == ({"fits": 3}, {"tp 2 does not divide 1": 1})
    sweep(JOBS, output, run)
    assert computed == JOBS
    once = tmp_path / f"once{suffix}"
    sweep(JOBS, once, run)
    assert output.read_bytes() == once.read_bytes()
    assert not list(tmp_path.glob("*.partial.*"))


def test_a_sweep_that_was_stopped_gives_the_same_bytes(tmp_path, computed):
    whole, output, partial_file = (tmp_path / name for name in ("a.csv", "b.csv", "b.csv.partial.jsonl"))
    sweep(JOBS, whole, run)
    for number in range(1, len(JOBS)):
        with pytest.raises(KeyboardInterrupt):
            sweep(JOBS, output, partial(stopping, number))
        assert not output.exists()
        partial_file.write_text(partial_file.read_text()[:-9])  # cut in the middle of a line
        before = len(computed)
        sweep(JOBS, output, run)
        assert len(computed) - before == len(JOBS) - number + 1
        assert output.read_bytes() == whole.read_bytes()
        output.unlink()


def stopping(number, function, tasks):
    """Stop after a number of tasks of one job each."""
    for index, (block,) in enumerate(tasks):
        if index == number:
            raise KeyboardInterrupt
        yield 10.0, function(block)[1]  # tasks that take long have one job


def test_the_same_job_is_computed_once_and_has_each_row(tmp_path, computed):
    sweep([JOBS[0], JOBS[2], JOBS[0]], tmp_path / "a.csv", run)
    assert computed == [JOBS[0], JOBS[2]]
    with open(tmp_path / "a.csv") as file:
        assert [row["gpus"] for row in csv.DictReader(file)] == ["1", "2", "1"]


def test_a_changed_file_or_version_is_computed_again(tmp_path, computed, monkeypatch):
    script = tmp_path / "train.toml"
    script.write_text("a = 1")
    jobs = [{"run_config": str(script), "gpus": 1}]
    output = tmp_path / "a.csv"
    sweep(jobs, output, run)
    script.write_text("a = 2")
    module._digest_of_path.cache_clear()
    sweep(jobs, output, run)
    assert len(computed) == 2
    monkeypatch.setattr(module, "__version__", "9.9")
    sweep(jobs, output, run)
    assert len(computed) == 3


def test_restart_computes_all(tmp_path, computed):
    sweep(JOBS, tmp_path / "a.csv", run)
    sweep(JOBS, tmp_path / "a.csv", run, restart=True)
    assert len(computed) == 2 * len(JOBS)


@pytest.mark.parametrize("content", ["other", "a,b\n1,2\n", ""])
def test_an_output_of_something_else_is_not_overwritten(tmp_path, computed, content):
    output = tmp_path / "a.csv"
    if content == "other":
        sweep(JOBS[:1], output, run)
    else:
        output.write_text(content)
    before = output.read_bytes()
    if not before:
        sweep(JOBS[1:], output, run)
        return
    with pytest.raises(ConfigError, match=r"a\.csv (has the results of other jobs|is no output of ppsim sweep)"):
        sweep(JOBS[1:], output, run)
    assert output.read_bytes() == before


def test_rows_that_would_be_lost_are_counted(tmp_path, computed):
    output = tmp_path / "a.csv"
    sweep(JOBS[:3], output, run)
    before = output.read_bytes()
    with pytest.raises(ConfigError, match=r"a\.csv has the results of other jobs \(2 of 3\)"):
        sweep(JOBS[2:], output, run)
    assert output.read_bytes() == before
    sweep(JOBS[1:], output, run)
    assert len(computed) == len(JOBS)


def test_a_worker_of_another_version_is_refused():
    with pytest.raises(ConfigError, match=r"a worker has ppsim .*, and this is 0\.0\.1: install the same on both"):
        module._rows_of_block("0.0.1", {})


def test_prices_of_some_jobs_only_are_refused(tmp_path, computed):
    with pytest.raises(ConfigError, match="1 of 2 jobs have a price, and jobs on dgx-a100 have none"):
        sweep([{"cluster": "dgx-a100"}, {"price": 2}], tmp_path / "a.csv", run)


def test_columns_are_options_then_results_and_mixed_types_become_texts(tmp_path, computed):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    sweep([{"gpus": 1, "lora": 16}, {"gpus": 2, "lora": "attention:8"}], tmp_path / "a.parquet", run)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["gpus", "lora", "key", "iteration_time_s", "verdict", "note", "error"]
    assert table["lora"].to_pylist() == ["16", "attention:8"]
    assert table["gpus"].to_pylist() == [1, 2]


def test_a_table_for_reading_has_no_keys(tmp_path, computed):
    sweep(JOBS[:1], tmp_path / "a.md", run)
    assert Path(tmp_path / "a.md").read_text().startswith("| model | gpus | tp | iteration_time_s |")


def test_tasks_hold_jobs_for_half_a_second():
    blocks = module._Blocks((str(number), {"gpus": number}) for number in range(100))
    sizes = []
    for (block,) in blocks:
        sizes.append(len(block))
        blocks.note(0.02 * len(block), len(block))
    assert sizes == [1, 25, 25, 25, 24]


def test_lines_of_the_partial_file_are_json(tmp_path, computed):
    with pytest.raises(KeyboardInterrupt):
        sweep(JOBS, tmp_path / "a.csv", partial(stopping, 2))
    lines = (tmp_path / "a.csv.partial.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines][1] == {"error": "tp 2 does not divide 1"}


def test_blocks_of_a_sweep_follow_the_seconds_of_its_rows(tmp_path, computed):
    """A job takes 0.1 s here: after the first, five at once."""
    sizes = []

    def run_at_once(function, tasks):
        for (block,) in tasks:
            sizes.append(len(block))
            yield 0.1 * len(block), function(block)[1]

    sweep([{"gpus": number} for number in range(2, 10)], tmp_path / "a.csv", run_at_once)
    assert sizes == [1, 5, 2]


def test_progress_counts_rows_and_those_that_the_output_had(tmp_path, computed):
    output, seen = tmp_path / "a.csv", []

    def run_in_turn(function, tasks):
        for (block,) in tasks:
            yield 10.0, function(block)[1]

    sweep(JOBS[:2], output, run_in_turn)
    sweep([*JOBS[:4], JOBS[3]], output, run_in_turn, progress=lambda *counts: seen.append(counts))
    assert seen == [(2, 2), (3, 2), (5, 2)]


def test_a_partial_file_without_rows_is_removed_and_one_with_rows_stays(tmp_path, computed):
    output, partial_file = tmp_path / "a.csv", tmp_path / "a.csv.partial.jsonl"
    for number, is_there in ((0, False), (1, True)):
        with pytest.raises(KeyboardInterrupt):
            sweep(JOBS, output, partial(stopping, number))
        assert partial_file.exists() == is_there


def test_a_full_disk_is_named_with_the_partial_file(tmp_path, computed):
    def fill(function, tasks):
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"^cannot write .*a\.csv\.partial\.jsonl: No space left on device$"):
        sweep(JOBS, tmp_path / "a.csv", fill)


def test_a_row_is_of_a_projection_or_of_a_search_with_the_tokens_of_the_job(monkeypatch):
    monkeypatch.setattr(module, "tune", lambda **options: ("tuned", options))
    monkeypatch.setattr(module, "plan_of_keywords", lambda options: ("plan", options))
    monkeypatch.setattr(module, "row_of_search", lambda tuned, tokens: {"row": tuned, "tokens": tokens})
    monkeypatch.setattr(module, "row_of_plan", lambda plan, tokens: {"row": plan, "tokens": tokens})
    job = {"model": "gpt2", "gpus": "4", "tokens": "2e9"}
    assert row_of_job(job) == {"row": ("plan", {"model": "gpt2", "gpus": 4}), "tokens": 2e9}
    assert row_of_job(job | {"tune": True, "tp": "2"}) == {
        "row": ("tuned", {"model": "gpt2", "gpus": 4, "tp": [2]}), "tokens": 2e9,
    }  # fmt: skip
    assert row_of_job({"gpus": 4})["tokens"] is None


def test_jobs_have_a_price_by_option_or_by_cluster(tmp_path, computed, monkeypatch):
    module._has_price.cache_clear()
    prices = {"priced": 2.5, "free": None}

    def load(name):
        if name not in prices:
            raise ConfigError(f"no cluster {name}")
        return SimpleNamespace(price_per_gpu_hour=prices[name])

    monkeypatch.setattr(module, "load_cluster", load)
    assert [module._has_price(name) for name in ("priced", "free", "unknown")] == [True, False, False]
    module._require_prices([{"cluster": "priced"}, {"price": 3}])
    module._require_prices([{"cluster": "free"}, {"cluster": "unknown"}])
    clusters = [{"cluster": name} for name in ("priced", "e", "d", "free", "c", "b")]
    with pytest.raises(ConfigError, match="1 of 6 jobs have a price, and jobs on e, d, free have none"):
        module._require_prices(clusters)
    module._has_price.cache_clear()


def test_parquet_needs_pyarrow_and_other_suffixes_are_refused(monkeypatch):
    for name in ("a.csv", "a.jsonl", "a.md"):
        module.require_suffix(name)
    with pytest.raises(ConfigError, match=r"\.txt|a\.txt"):
        module.require_suffix("a.txt")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"a\.parquet needs pyarrow.*write \.csv or \.jsonl"):
        module.require_suffix("a.parquet")


def test_a_key_is_of_the_options_of_a_job_and_of_the_content_of_its_files(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("a")
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "r.json").write_text("1")

    def key(**job):
        module._digest_of_path.cache_clear()
        return module._key_of(job)

    options, files = key(run_config=str(path), gpus=2).split("-")
    assert key(gpus=2, run_config=str(path)) == f"{options}-{files}", "in any order"
    path.write_text("b")
    again = key(run_config=str(path), gpus=2).split("-")
    assert again[0] == options
    assert again[1] != files
    assert key(run_config=str(path), gpus=4).split("-")[0] != options
    before = key(run=str(folder))
    (folder / "r.json").write_text("12")
    assert key(run=str(folder)) != before


def test_a_cut_line_of_a_partial_file_is_removed_from_it(tmp_path):
    path = tmp_path / "a.csv.partial.jsonl"
    lines = '{"key": "a", "row": {"note": "é ü"}}\n{"key": "b", "row": {}}\n'
    path.write_text(lines + '{"key": "c", "ö', encoding="utf-8")
    assert list(module._read_lines(path)) == [("a", {"note": "é ü"}), ("b", {})]
    assert path.read_text(encoding="utf-8") == lines
    assert list(module._read_lines(path)) == [("a", {"note": "é ü"}), ("b", {})]
    path.write_text("")
    assert list(module._read_lines(path)) == []


@pytest.mark.parametrize(
    ("seconds", "number", "size"), [(1.0, 10, 5), (8.9, 20, 1), (0.0, 3, 500), (0.011, 11, 500), (0.02, 11, 275)]
)
def test_a_block_takes_half_a_second_and_has_one_to_five_hundred_jobs(seconds, number, size):
    blocks = module._Blocks(())
    assert blocks._size() == 1
    for _ in range(2):
        blocks.note(seconds, number)
        assert blocks._size() == size, "by the mean of all"
