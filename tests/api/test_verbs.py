"""The functions answer as the commands do: same words, same numbers, same text, same errors."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError, MissingExtra
from ppsim.base.option_declarations import declared_options, field_values
from ppsim.cli import main
from ppsim.costs.job import Job
from ppsim.model.execution import Execution
from ppsim.model.optimizer import Optimizer
from ppsim.parallel.layout import Layout
from ppsim.profiling.options import ProfileOptions
from ppsim.projection.options import PlanOptions
from ppsim.runtime.options import TrainOptions
from ppsim.runtime.train_config import TrainConfig
from ppsim.tuning.options import TuneOptions
from tests.cli.running import ppsim as command

JOB = {"model": "llama3-8b", "gpus": 32, "tp": 2, "pp": 4, "global_batch": 64}
COSTS = ppsim.StageCosts(forward_s=0.002, backward_input_s=0.002, backward_weight_s=0.001, transfer_s=0.0005)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(options: dict[str, Any]) -> list[str]:
    """Options as a shell has them."""
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-"))
        else:
            words += [option, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


@pytest.mark.parametrize(
    ("name", "words", "others"),
    [
        (
            "project",
            PlanOptions,
            {"tokens", "allow_oom", "to_config", "with_timeline", "with_rows", "full", "as_json", "outputs"},
        ),
        ("tune", TuneOptions, {"tokens", "minimise", "deadline", "to_config", "full", "as_json", "outputs"}),
        (
            "train",
            TrainOptions,
            {"schedule", "pp", "vpp", "microbatches", "with_timeline", "with_rows", "as_json", "outputs"},
        ),
        ("profile", ProfileOptions, {"output", "suite", "dry_run"}),
    ],
)
def test_the_words_are_the_options_of_the_command(name: str, words: Any, others: set[str]) -> None:
    options = {one.name for one in main.commands[name].params}
    only_in_python = {"job"} & set(words.__annotations__)
    assert set(words.__annotations__) - only_in_python == options - others - {"help_all"}


def test_the_defaults_of_training_are_those_of_the_command() -> None:
    given = main.commands["train"].make_context("train", ["--schedule", "T.csv"]).params
    assert {name: given[name] for name in declared_options(TrainOptions)} == {
        name: word.option.default for name, word in declared_options(TrainOptions).items()
    }


@pytest.mark.parametrize(
    ("made", "words", "under"),
    [
        (ppsim.Plan, PlanOptions, ""),
        (Job, PlanOptions, "job"),
        (Layout, PlanOptions, "job.layout"),
        (Execution, PlanOptions, "job.execution"),
        (Optimizer, PlanOptions, "job.optimizer"),
        (TrainConfig, TrainOptions, ""),
    ],
)
def test_the_defaults_of_options_are_those_of_the_fields_that_they_set(made: Any, words: Any, under: str) -> None:
    defaults = field_values(declared_options(words), {}, under)
    assert defaults
    assert {one.name: one.default for one in dataclasses.fields(made) if one.name in defaults} == defaults


@pytest.mark.parametrize(
    "options",
    [
        {"pp": 4},
        {"pp": 4, "vpp": 2, "microbatches": 8, "runtime": "megatron", "split": "even", "transfer_ms": 2.5},
        {"pp": 4, "schedule": "seq1f1b", "slices": 2, "channel": "edge", "receives": "deferred"},
        JOB | {"vpp": 2, "zero": 2, "sequence_parallel": False, "recompute": "full", "memory_limit": "80GiB"},
        JOB | {"cluster": "dgx-a100", "seq_len": 4096, "dtype": "float16", "layers": 16, "overlap_dp": False},
    ],
    ids=["a profile", "a network", "slices", "a job", "a cluster"],
)
def test_project_is_the_command(options: dict[str, Any]) -> None:
    made = ppsim.project(**options)
    told = json.loads(command("project", *arguments(options), "--json").output)
    assert json.loads(json.dumps(made.to_json() | made.summary.to_json())) == told
    assert str(made) == command("project", *arguments(options)).output.rstrip("\n")


def test_a_job_can_be_made_before_and_stragglers_are_a_mapping() -> None:
    words = JOB | {"stack": "plain"}  # which sets no option of a plan, unlike the default
    job = ppsim.job(**words)
    slowed = ppsim.project(job=job, vpp=2, stragglers={1: 1.5})
    assert slowed.plan.job == job
    told = json.loads(command("project", *arguments(words | {"vpp": 2}), "--straggler", "1:1.5", "--json").output)
    assert slowed.iteration_time_s == told["iteration_time_s"]
    assert ppsim.project(slowed.plan).iteration_time_s == slowed.iteration_time_s


def test_a_memory_limit_is_text_or_bytes() -> None:
    plans = [ppsim.project(pp=4, memory_limit=limit).plan for limit in ("60GiB", 60 * 2**30)]
    assert plans[0].memory_limit_bytes == plans[1].memory_limit_bytes == 60 * 2**30


@pytest.mark.slow
def test_project_all_is_the_command() -> None:
    told = json.loads(command("project", "--pp", 2, "--num-microbatches", 4, "--schedule", "all", "--json").output)
    found = ppsim.project_all(pp=2, microbatches=4)
    assert found.to_frame()["step_time_s"].tolist() == [one["step_time_s"] for one in told["projections"]]
    assert found.rejected == told["rejected"]


def test_tune_is_the_command() -> None:
    options = {
        "model": "gpt2",
        "gpus": 4,
        "global_batch": 16,
        "tp": [1],
        "vpp": [1],
        "micro_batch": [2, 4],
        "split": ["auto"],
    }
    found = ppsim.tune(**options)
    assert json.loads(json.dumps(found.to_json())) == json.loads(
        command("tune", *arguments(options), "--json").stdout
    )
    assert str(found) == command("tune", *arguments(options)).stdout.rstrip("\n")
    command("tune", *arguments(options), "-o", "tuned.csv")
    ppsim.save(found, "again.csv")
    assert Path("again.csv").read_text() == Path("tuned.csv").read_text()


@pytest.mark.parametrize(
    "target",
    ["torch", "torch-comms", "torchtitan", "deepspeed", "json", "primus", "megatron", "transformer-engine"],
)
def test_export_is_the_command(target: Any) -> None:
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    ppsim.save(table, "T.csv")
    command("export", "T.csv", "--to", target, "-o", "out")
    text = ppsim.export(table.named("T"), to=target)
    assert text == Path("out").read_text()


@pytest.mark.slow
def test_validate_is_the_command() -> None:
    found = ppsim.validate("zero-bubble")
    assert str(found) == command("validate", "zero-bubble").output.rstrip("\n")
    assert json.loads(json.dumps(found.to_json())) == json.loads(
        command("validate", "zero-bubble", "--json").output
    )


def test_report_is_what_simulate_prints() -> None:
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    ppsim.save(table, "T.csv")
    Path("C.json").write_text(
        json.dumps({f"{one}_s": 1.0 for one in ("forward", "backward_input", "backward_weight")})
    )
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    timeline = ppsim.simulate(table.named("T"), costs)
    assert ppsim.report(timeline, costs=costs) + "\n" == command("simulate", "T.csv", "--costs", "C.json").output


def test_a_run_its_comparison_and_its_calibration_are_those_of_the_commands() -> None:
    pytest.importorskip("torch")
    run = ppsim.train(ppsim.build("zb-h1", pp=2, microbatches=4), partitions=2, emulate_costs=COSTS, steps=2)
    ppsim.save(run, "measured.json")
    assert ppsim.read_timeline("measured.json").step_time_s == run.timeline.step_time_s
    for measured in (run, "measured.json"):
        found, fitted = ppsim.compare(measured), ppsim.calibrate(measured)
        told = json.loads(command("compare", "measured.json", "--json").output)
        assert told["step_error"] == found.step_error
        assert json.loads(command("calibrate", "measured.json", "--json").output)["action_overhead_s"] == (
            fitted.fits["action_overhead_s"].value
        )
        assert ppsim.report(found) in command("compare", "measured.json").output
    ppsim.save(fitted, "overheads.json")
    by_file, itself = (ppsim.project(pp=2, calibration=one) for one in ("overheads.json", fitted))
    assert by_file.iteration_time_s == itself.iteration_time_s > ppsim.project(pp=2).iteration_time_s
    projected = ppsim.simulate(run.timeline.schedule, COSTS)
    assert ppsim.compare(run, projected).projected is projected


@pytest.mark.parametrize("suffix", ["html", "svg", "json", "csv", "json.gz"])
def test_save_writes_what_the_command_writes(suffix: str) -> None:
    command("project", "--pp", 2, "--num-microbatches", 4, "-o", f"one.{suffix}")
    ppsim.save(ppsim.project(pp=2, microbatches=4), f"other.{suffix}")
    one, other = (Path(f"{name}.{suffix}").read_bytes() for name in ("one", "other"))
    assert re.sub(rb"<div><dt>command</dt>.*?</div>", b"", one) == other


def test_several_are_saved_beside_each_other() -> None:
    two = [ppsim.project(pp=2, microbatches=4, schedule=name) for name in ("1f1b", "zb-h1")]
    ppsim.save(two, "two.html", titles=["as it is", "as it could be"])
    text = Path("two.html").read_text()
    assert "as it is" in text
    assert "as it could be" in text


TABLE = ppsim.build("1f1b", pp=2, microbatches=2)
TIMELINE = ppsim.simulate(TABLE, COSTS)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ppsim.project(pp=4, gpu=8), "project has no 'gpu': did you mean gpus?"),
        (lambda: ppsim.project(pp="4"), "pp must be a whole number: got '4'"),
        (lambda: ppsim.project(), "--pp must be given"),
        (lambda: ppsim.project(pp=4, schedule=["1f1b"]), "schedule must be a text: got ['1f1b']"),
        (lambda: ppsim.project(pp=4, split=[7.5] * 4), "split must be a text or a list, a whole number each: got [7.5, 7.5"),
        (lambda: ppsim.project(pp=4, memory_limit=[1]), "memory_limit must be a text or a number: got [1]"),
        (lambda: ppsim.project(pp=4, stragglers=[(1, 1.2)]), "stragglers must be a mapping, as {3: 1.2}: got ["),
        (lambda: ppsim.project(pp=4, profile=3), "profile must be a text or a Profile: got 3"),
        (lambda: ppsim.save(3, "x.html"), "cannot save int: it is no timeline, projection or run"),
        (lambda: ppsim.project(pp=4, runtime="pytorch"), "runtime is 'pytorch': choose one of torch, megatron, ideal"),
        (lambda: ppsim.project(pp=4, gpus=8), "--gpus is for a --model on a --cluster"),
        (lambda: ppsim.project(ppsim.Plan(pp=4), vpp=2), "a plan says everything itself: leave out vpp"),
        (lambda: ppsim.project(job=ppsim.job(**JOB), tp=4), "the job says everything itself: leave out tp"),
        (lambda: ppsim.project(job=ppsim.job(**JOB), pp=8), "the job's layout has pp 4: got pp 8"),
        (lambda: ppsim.project(pp=4, memory_limit=0), "more than 0 bytes: got 0"),
        (lambda: ppsim.project(pp=4, memory_limit=40), "a memory limit of 40 has no unit: is '40GiB' meant"),
        (lambda: ppsim.project_all(pp=4, schedule="zbv"), "project_all tries every one, or those in schedules"),
        (lambda: ppsim.job(gpus=8), "--gpus is for a --model"),
        (lambda: ppsim.job(), "--model must be given"),
        (lambda: ppsim.job(model="llama3-8b", tp=0), "tp must be at least 1: got 0"),
        (lambda: ppsim.job(model="llama3-8b", micro_batch=0), "--micro-batch-size must be at least 1: got 0"),
        (lambda: ppsim.tune(model="gpt2", gpus=2, global_batch=8, tp=2), "tp is a list of what to try: got 2"),
        (lambda: ppsim.tune(model="gpt2", gpus=2), "--global-batch-size must be given"),
        (lambda: ppsim.train(TABLE, receives="ordered"), "receives is 'ordered': choose one of torch, deferred"),
        (lambda: ppsim.export(TABLE, to="jax"), "there is no target 'jax': choose one of torch"),
        (lambda: ppsim.save(TABLE, "T.html"), "a table (simulate it for a timeline) goes into .csv or .json"),
        (lambda: ppsim.save(TIMELINE, "T.json"), "give them as costs="),
        (lambda: ppsim.save([TIMELINE, TIMELINE], "T.csv"), ".csv holds one of them: got 2"),
        (lambda: ppsim.save([], "T.html"), "nothing to save"),
        (lambda: ppsim.save(TIMELINE, "T.xlsx"), "cannot tell what to write to T.xlsx"),
        (lambda: ppsim.report(TIMELINE), "give them as costs="),
        (lambda: ppsim.read_timeline("none.json"), "cannot read none.json"),
        (lambda: ppsim.calibrate(), "at least one measured run"),
        (lambda: ppsim.validate("nothing"), "nothing"),
    ],
)  # fmt: skip
def test_a_wrong_call_raises_a_sentence(call: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        call()
    assert words in str(raised.value)
    assert not list(Path().iterdir()), "and nothing is written"


def test_what_does_not_fit_says_so() -> None:
    made = ppsim.project(pp=4, memory_limit="10GiB")
    assert made.fits is False
    assert str(made.verdict) == "DOES NOT FIT: rank 0 needs 45.3 GiB, 10.0 GiB usable"
    assert repr(made).endswith("DOES NOT FIT)")


@pytest.mark.parametrize("call", [lambda: ppsim.train(TABLE), lambda: ppsim.profile(model="nano")])
def test_without_torch_the_sentence_is_that_of_the_command(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"needs torch, which is not installed: pip install 'ppsim-pipeline\[torch\]'"
    ):
        call()


def test_a_verb_takes_its_own_keywords_beside_the_words_of_the_command_line():
    announced, counted = [], []
    found = ppsim.project_all(pp=2, microbatches=4, schedules=["1f1b", "zb-h1"], announce=announced.append)
    assert announced == ["1f1b", "zb-h1"]
    assert len(found.projections) == 2
    few = {"model": "gpt2", "gpus": 1, "global_batch": 8, "micro_batch": [8]}
    ppsim.tune(**few, progress=lambda *told: counted.append(told))
    assert counted
    assert ppsim.project(plan=ppsim.Plan(pp=2, microbatches=4)).plan.pp == 2
