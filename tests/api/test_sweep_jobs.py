"""A file of jobs: what multiplies, what a name is, and what is refused."""

import json

import pytest

from ppsim.api.sweep_jobs import keyword_of, read_jobs, typed_options
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions

FILES = {
    "jobs.csv": "gpus,tp,overlap-dp\n64,8,true\n128,,\n",
    "jobs.jsonl": '{"gpus": 64, "tp": 8, "overlap_dp": true}\n\n{"gpus": 128, "tp": null}\n',
    "jobs.toml": "[[jobs]]\ngpus = 64\ntp = 8\noverlap_dp = true\n[[jobs]]\ngpus = 128\n",
    "jobs.yaml": "- {gpus: 64, tensor-model-parallel-size: 8, overlap-dp: true}\n- {gpus: 128}\n",
    "jobs.json": '{"jobs": [{"--gpus": 64, "tp": 8, "overlap_dp": true}, {"gpus": 128}]}',
}


def jobs_of(tmp_path, text, name="jobs.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return read_jobs(path)


@pytest.mark.parametrize("name", FILES)
def test_every_format_and_every_name_of_an_option_gives_the_same_jobs(tmp_path, name):
    words = declared_options(PlanOptions)
    jobs = [typed_options(job, words) for job in jobs_of(tmp_path, FILES[name], name)]
    assert jobs == [{"gpus": 64, "tp": 8, "overlap_dp": True}, {"gpus": 128}]


def test_lists_multiply_and_the_last_varies_fastest(tmp_path):
    jobs = jobs_of(tmp_path, "gpus: [64, 128]\ncluster: [dgx-h100, dgx-a100]\ntp: 8\n")
    assert [(job["gpus"], job["cluster"], job["tp"]) for job in jobs] == [
        (64, "dgx-h100", 8), (64, "dgx-a100", 8), (128, "dgx-h100", 8), (128, "dgx-a100", 8),
    ]  # fmt: skip


def test_a_job_replaces_what_all_have(tmp_path):
    jobs = jobs_of(tmp_path, "tp: [1, 2]\njobs:\n- {gpus: 8, tensor_model_parallel_size: 4}\n- {gpus: 16}\n")
    assert [(job["gpus"], job["tp"]) for job in jobs] == [(8, 4), (16, 1), (16, 2)]


def test_ranges_of_a_search_stay_lists(tmp_path):
    jobs = jobs_of(tmp_path, "tune: true\ntp: [1, 2]\nschedule: 1f1b\npp: 1\ngpus: [8, 16]\n")
    assert [(job["gpus"], job["tp"]) for job in jobs] == [(8, [1, 2]), (16, [1, 2])]
    words = declared_options(TuneOptions)
    assert typed_options(jobs[0], words) == {"tp": [1, 2], "schedule": ["1f1b"], "pp": [1], "gpus": 8}
    [from_csv] = jobs_of(tmp_path, 'tune,tp\ntrue,"1,2"\n', "jobs.csv")
    assert typed_options(from_csv, words) == {"tp": [1, 2]}


def test_texts_become_what_a_command_line_makes_of_them():
    words = declared_options(PlanOptions)
    job = {
        "dtype": "BF16",
        "zero": "1",
        "jitter": "0.1",
        "memory_limit": "70GiB",
        "tp": "two",
        "sequence_parallel": "no",
    }
    typed = typed_options({name: text for name, text in job.items() if name in words}, words)
    assert typed["dtype"] == "bfloat16"
    assert typed["zero"] == 1
    assert typed["memory_limit"] == "70GiB"
    assert typed["tp"] == "two", "what is no number is left for the sentence of the option"


def test_numbers_for_each_stage_are_one_value_and_lists_of_them_multiply(tmp_path):
    assert [job["split"] for job in jobs_of(tmp_path, "split: [16, 16]\n")] == [[16, 16]]
    assert [job["split"] for job in jobs_of(tmp_path, "split: [even, [8, 24]]\n")] == ["even", [8, 24]]
    [job] = jobs_of(tmp_path, '{"stragglers": {"3": 1.2}}', "jobs.json")
    assert typed_options(job, declared_options(PlanOptions)) == {"stragglers": {3: 1.2}}


def test_columns_have_the_names_of_flags():
    assert keyword_of("micro_batch") == "micro_batch_size"
    assert keyword_of("tune") == "tune"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("jobs.yaml", "gpu: 64\n", "there is no option 'gpu': did you mean gpus"),
        ("jobs.yaml", "tp: 1\ntensor-model-parallel-size: 2\n", "gives tp twice: once as 'tensor-model-parallel-size'"),
        ("jobs.yaml", "tp: []\n", "tp is an empty list"),
        ("jobs.yaml", "tune: perhaps\n", "tune must be true or false: got 'perhaps'"),
        ("jobs.yaml", "top: 3\n", "job 1: top is no option of a projection"),
        ("jobs.yaml", "tune: true\nresume: a.json\n", "resume is no option of a search"),
        ("jobs.yaml", "jobs: 3\n", "jobs must be a list of jobs: got 3"),
        ("jobs.yaml", "- 3\n", "job 1 must be options with values"),
        ("jobs.csv", "tp\n", "has no jobs"),
        ("jobs.csv", "tp,gpus,tp\n1,8,2\n", "has two columns tp: remove one"),
        ("jobs.csv", "tp\n1,2\n", "a row has more cells than the first line has names"),
        ("jobs.jsonl", '{"tp": 1}\n{"tp"\n', "is not valid JSON: line 2"),
        ("jobs.txt", "", "give it one of .csv, .jsonl"),
    ],
)  # fmt: skip
def test_what_is_no_job_gets_a_sentence(tmp_path, name, text, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        jobs_of(tmp_path, text, name)


def test_keys_of_jobs_are_json(tmp_path):
    assert json.dumps(jobs_of(tmp_path, "lora: [16, attention:8]\n"))


@pytest.mark.parametrize(
    ("name", "text", "typed"),
    [
        ("tp", "8", 8), ("tp", 8, 8), ("tp", "8.5", "8.5"), ("price", "0.25", 0.25), ("price", "x", "x"),
        ("overlap_dp", " TRUE ", True), ("overlap_dp", "False", False), ("overlap_dp", "0", "0"),
        ("dtype", " bf16 ", "bfloat16"), ("dtype", "Float8", "float8"), ("dtype", "none such", "none such"),
        ("zero", "3", 3), ("zero", "9", "9"), ("model", "8", "8"), ("split", "even", "even"),
        ("stragglers", {"3": 1.5, 4: 2.0}, {3: 1.5, 4: 2.0}), ("stragglers", {"x": 1.5}, {"x": 1.5}),
    ],
)  # fmt: skip
def test_a_text_is_what_its_option_takes_or_left_as_it_is(name, text, typed):
    declared = declared_options(PlanOptions)
    assert typed_options({name: text, "unknown": "1"}, declared) == {name: typed}
    assert type(typed_options({name: text}, declared)[name]) is type(typed)


@pytest.mark.parametrize(
    ("name", "given", "typed"),
    [
        ("tp", "1,2", [1, 2]), ("tp", 4, [4]), ("tp", (1, 2), [1, 2]), ("tp", ["1", 2], [1, 2]), ("tp", "1,x", [1, "x"]),
        ("schedule", "1f1b, zbv", ["1f1b", "zbv"]), ("schedule", ["zbv "], ["zbv"]), ("gpus", "8", 8),
    ],
)  # fmt: skip
def test_ranges_of_a_search_are_lists(name, given, typed):
    assert typed_options({name: given}, declared_options(TuneOptions)) == {name: typed}


def test_a_row_of_a_csv_may_have_empty_unnamed_cells_and_lines(tmp_path):
    for blank in ("", " "):
        text = f"gpus,,tp\n8,{blank},2,{blank}\n\n16,,\n"
        assert jobs_of(tmp_path, text, "jobs.csv") == [{"gpus": "8", "tp": "2"}, {"gpus": "16"}]
    with pytest.raises(ConfigError, match="a row has more cells than the first line has names"):
        jobs_of(tmp_path, "gpus,,tp\n8,x,2\n", "jobs.csv")


def test_tokens_are_of_a_job_and_a_search_is_marked(tmp_path):
    jobs = jobs_of(
        tmp_path, "- {gpus: 8, tokens: [1e9, 2e9]}\n- {gpus: 16, tune: 'True'}\n- {gpus: 24, tune: 'false'}\n"
    )
    assert [set(job) for job in jobs] == [{"gpus", "tokens"}] * 2 + [{"gpus", "tune"}, {"gpus"}]
    assert jobs[2]["tune"] is True
    with pytest.raises(ConfigError, match="job 2: jobs is no option of a search"):
        jobs_of(tmp_path, "- {gpus: 8}\n- {jobs: 8, tune: true}\n")
