"""Sets of published runs: whole, sourced, and wrong rows refused."""

import hashlib
import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

import pytest

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options
from ppsim.model.memory_settings import RESERVED_PER_ALLOCATED
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.parallel.sizes import ParallelSizes
from ppsim.projection.options import PlanOptions
from ppsim.trainers.recipe_table import find_recipe
from ppsim.validation import published_runs
from ppsim.validation.error_summary import rank_correlation
from ppsim.validation.published_runs import (
    FOLDER,
    WORDS,
    PublishedRun,
    RowProperties,
    case_sets,
    cases_of,
    read_cases,
    require_set,
)
from tests.cli.running import ppsim as run


def test_every_file_is_a_set_with_a_source_and_every_row_says_where_it_is_from() -> None:
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(case_sets())
    for name, told in case_sets().items():
        assert told.source
        assert told.notes
        assert all(case.properties.table for case in cases_of(name))


def test_rows_that_judge_are_never_rows_that_fit() -> None:
    for name in case_sets():
        rows = [
            (str(case.options) + str(replace(case.properties, use="fit")), case.properties.use)
            for case in cases_of(name)
        ]
        assert len(dict(rows)) == len(set(rows))


def test_what_a_row_can_say_is_what_project_can_say() -> None:
    """Every option of a plan is a column, and a column is an option or told of the number that was measured."""
    header = {name for path in FOLDER.glob("*.csv") for name in _header(path)}
    assert set(WORDS) == set(declared_options(PlanOptions))
    assert header | {word for told in case_sets().values() for word in told.defaults} <= {
        *WORDS,
        *(one.name for one in fields(RowProperties)),
    }


def _of_bridge() -> list[PublishedRun]:
    cases = [case for name in case_sets() for case in cases_of(name)]
    return [case for case in cases if case.properties.table.startswith("Megatron-Bridge")]


def test_a_row_that_names_a_recipe_has_its_words_and_the_command_has_its_name() -> None:
    cases = [case for case in _of_bridge() if "recipe" in case.options]
    assert cases
    for case in cases:
        assert f"--recipe {case.options['recipe']}" in case.command
        assert "recipe" not in case.settings
        assert {"model", "cluster", "gpus", "dtype", "global_batch"} <= case.settings.keys()
        assert case.options.items() - {("recipe", case.options["recipe"])} <= case.settings.items()


def test_each_run_of_megatron_bridge_is_a_recipe_and_its_remark_has_the_reason_for_anything_else() -> None:
    """A row types a part of the published layout that its recipe does not have."""
    layout = {
        "gpus",
        "tp",
        "cp",
        "ep",
        "pp",
        "vpp",
        "micro_batch",
        "global_batch",
        "seq_len",
        "split",
        "mtp",
        "zero",
    }
    cases = _of_bridge()
    assert len(cases) == 257
    assert sum(case.options.keys() == {"recipe"} for case in cases) == 223
    for case in cases:
        remarks = case.properties.remarks
        if "recipe" not in case.options:
            assert "not among the packaged recipes" in remarks
            continue
        release, given = find_recipe(case.options["recipe"]).release, case.options.keys() - {"recipe"}
        assert given <= layout
        if case.properties.table != f"Megatron-Bridge {release}":
            assert f"recipe of {release}" in remarks or "this recipe" in remarks
        assert "recipe" in remarks or not given


def test_the_options_of_a_recipe_replace_the_defaults_of_the_set(tmp_path) -> None:
    (tmp_path / "runs.csv").write_text(
        "recipe,tp,metric,value\n"
        "qwen3-235b-a22b/gb200/fp8@25.09,,iteration_s,9\n"
        "qwen3-235b-a22b/gb200/fp8@25.09,2,iteration_s,9\n"
    )
    plain, typed = read_cases(tmp_path / "runs.csv", {"cluster": "dgx-h100", "split": "even"})
    assert plain.options == {"recipe": "qwen3-235b-a22b/gb200/fp8@25.09"}
    assert "split" not in plain.settings
    assert (plain.settings["cluster"], plain.settings["sequence_parallel"]) == ("gb200-nvl72", False)
    assert "sequence_parallel" not in typed.settings  # Megatron-Bridge sets it next to --tp
    assert plan_of_keywords(typed.options).job.execution.sequence_parallel


def _header(path: Path) -> list[str]:
    return next(line for line in path.read_text().splitlines() if not line.startswith("#")).split(",")


PLAIN = ("dgxc-405b", "simumax-b200-memory")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in PLAIN)) for name in case_sets()]
)
def test_the_command_of_a_row_gives_its_number_to_the_bit(name: str, validation_of) -> None:
    validation = validation_of(name)
    if not validation.rows:
        assert all(reason.startswith("not stated: ") for _, reason in validation.skipped)
        return
    row = min(validation.rows, key=lambda row: row.plan.pp * row.plan.num_microbatches)
    command = shlex.split(row.case.command)
    assert command[:2] == ["ppsim", "project"]
    found = json.loads(run(*command[1:], "--json", "--allow-oom").stdout)
    peak = max(rank["peak_bytes"] for rank in found["ranks"])
    num_bytes = max(found["reserved_bytes"]) if row.case.properties.bytes_are == "reserved" else peak
    assert (num_bytes if row.case.is_memory else found["iteration_time_s"]) == row.projected
    again = ppsim.project(**row.case.options)
    assert (again.iteration_time_s, again.timeline.memory.peak_bytes.max()) == (found["iteration_time_s"], peak)


def test_an_unknown_set_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown set 'zero-buble': did you mean zero-bubble"):
        require_set("zero-buble")


HEADER = "use,table,title,model,pp,seq-len,cluster,gpus,global_batch,metric,value\n"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("guess,t,m,gpt2,1,8,dgx-h100,8,8,iteration_s,1\n", "row 1 is wrong: use: "),
        ("fit,t,m,gpt2,1,8,dgx-h100,8,8,iteration_s,-1\n", "row 1 is wrong: value: must be more than 0"),
        ("fit,t,m,gpt2,1,8,dgx-h100,8,8,hours,1\n", "row 1 is wrong: metric: "),
        ("fit,t,m,gpt2,1,8,dgx-h100,x,8,,1\n", r"row 1 is wrong: metric: missing\n  gpus: .* got 'x'"),
        (
            "fit,t,m,gtp2,1,8,dgx-h10,x,8,iteration_s,1\n",
            r"row 1 is wrong: gpus: .* got 'x'\n  unknown model 'gtp2'.*\n  unknown cluster 'dgx-h10'",
        ),
        ("fit,t,m,8\n", "row 1: not as many cells as the header has"),
        ("", "no row below its header"),
    ],
)
def test_a_wrong_row_is_all_that_is_wrong_with_file_row_and_column(tmp_path, row: str, says: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text("# a comment\n" + HEADER + row)
    with pytest.raises(ConfigError, match=f"^own.csv(, | has ){says}"):
        read_cases(path, {})


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(HEADER.replace("title", "titel") + "fit,t,m,gpt2,1,8,dgx-h100,8,8,iteration_s,1\n")
    with pytest.raises(ConfigError, match=r"titel: unknown key \(did you mean title\?\)"):
        read_cases(path, {})


def test_runs_of_ones_own_are_projected_and_what_cannot_be_is_listed(tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "model,pp,gpus,tp,overlap-tp,global_batch,dropout,metric,value\n"
        'gpt2,2,8,2,"0.5,0.75",32,yes,tokens_per_s_per_gpu,60000\n'
        "gpt2,2,8,3,,32,no,iteration_s,0.5\n"
    )
    found = json.loads(run("validate", str(path), "--json").stdout)["sets"][0]
    (row,), (refused,) = found["rows"], found["skipped"]
    assert row["options"]["overlap_tp"] == "0.5,0.75"
    assert row["options"]["dropout"] is True
    assert row["measured_s"] == pytest.approx(32 * 1024 / (8 * 60000))
    assert (
        row["projected_s"]
        == ppsim.project(
            model="gpt2", pp=2, gpus=8, tp=2, overlap_tp="0.5,0.75", dropout=True, global_batch=32
        ).iteration_time_s
    )
    assert "--tp 3" in refused["command"]
    assert "8" in refused["reason"]
    printed = run("validate", str(path)).stdout
    assert "skipped:" in printed
    assert run("validate", str(path), "--commands").stdout.splitlines() == [row["command"], refused["command"]]


def test_reserved_memory_is_projected_with_fsdp2_and_else_skipped(tmp_path) -> None:
    path = tmp_path / "own.csv"
    header = "model,pp,gpus,seq_len,recompute,stack,bytes_are,metric,value\n"
    row = "llama3-8b,1,8,2048,full,{},{},peak_gib,40\n"
    path.write_text(
        header + row.format("torchtitan", "reserved") + row.format("torchtitan", "allocated")
        + row.format("plain", "reserved")
    )  # fmt: skip
    found = json.loads(run("validate", str(path), "--json").stdout)["sets"][0]
    reserved, allocated = (one["projected_bytes"] for one in found["rows"])
    assert reserved == pytest.approx(RESERVED_PER_ALLOCATED * allocated)
    [refused] = found["skipped"]
    assert refused["reason"] == "the memory that an allocator reserves is known with --fully-shard only"


LISTED = ("not stated", "not supported yet", "a kernel that was ten times slower")


@pytest.mark.slow
def test_every_row_is_scored_or_listed_and_only_for_what_is_not_known(validations) -> None:
    """A wrong layout or a typing mistake in the data must not pass as a row that cannot be expressed."""
    for name, found in validations.items():
        assert len(found.rows) + len(found.skipped) == len(cases_of(name))
        for case, reason in found.skipped:
            assert reason.startswith(LISTED), (name, case.command, reason)


FITTED = {("bridge-moe-b200", 11): "the host time of overlapped pairs in 8 bits"}
"""Rows that became calibration rows later, because a constant was fitted to their recipe, and the constant."""

DRAWN = ("bridge-moe-2608", "bridge-moe-h100", "bridge-moe-b200", "bridge-moe-b300")
"""Sets with what no row marked fit spoke for, of which those whose numbers' hashes say so are."""


@pytest.mark.parametrize(
    "name", [name for name in case_sets() if name.startswith(("bridge", "dgxc-moe", "dgxc-gb"))]
)
def test_of_each_dtype_the_run_on_the_fewest_devices_fits(name: str) -> None:
    """Drawn before any error was seen: fewest devices, the newest release of them, the first as published; by hash."""
    by_dtype: dict[str, list[PublishedRun]] = {}
    for case in cases_of(name):
        by_dtype.setdefault(case.settings.get("dtype", "bfloat16"), []).append(case)
    fits = {case.number for case in cases_of(name) if name in DRAWN and _is_drawn(name, case)}
    fits |= {number for of, number in FITTED if of == name}
    for cases in () if "2608" in name else by_dtype.values():
        gpus = min(case.settings["gpus"] for case in cases)
        fewest = [case for case in cases if case.settings["gpus"] == gpus]
        fits.add(min(fewest, key=lambda case: fewest[0].properties.table != case.properties.table).number)
    assert {case.number for case in cases_of(name) if case.properties.use == "fit"} == fits


def _is_drawn(name: str, case: PublishedRun) -> bool:
    return int(hashlib.blake2b(f"{name}:{case.number}".encode()).hexdigest(), 16) % 5 == 0


def test_a_gpt_of_a_row_may_have_grouped_queries_and_a_head_of_its_own() -> None:
    plain = {"model": "gpt", "layers": 2, "hidden": 64, "heads": 8, "vocab": 100, "seq_len": 16, "pp": 1}
    whole = ppsim.job(**plain).model.parameters
    grouped = ppsim.job(**plain, kv_heads=2, tied_embeddings=False).model.parameters
    assert grouped - whole == 64 * 100 - 2 * (2 * 6 * 8) * (64 + 1)
    with pytest.raises(ConfigError, match="--kv-heads must divide --heads: got 3 with 8"):
        ppsim.job(**plain, kv_heads=3)
    with pytest.raises(ConfigError, match="--tied-embeddings is for --model gpt"):
        ppsim.job(model="llama3-8b", pp=1, tied_embeddings=False)


def test_without_multi_token_prediction_a_model_has_its_layers_alone() -> None:
    with_it, without = (
        ppsim.job(model="deepseek-v3", gpus=64, pp=1, ep=64, mtp=has).model for has in (None, False)
    )
    assert with_it.mtp
    assert not without.mtp
    assert with_it.layers == without.layers
    with pytest.raises(ConfigError, match="--mtp is for a model that predicts further tokens"):
        ppsim.job(model="gpt", layers=2, hidden=64, heads=8, pp=1, mtp=True)


def test_a_layer_that_is_repeated_for_further_tokens_is_computed_each_time_and_held_once() -> None:
    """Nemotron 3 Super as its recipe trains it: two tokens by one layer, 84.7 GFLOP a token published."""

    def model(**words):
        return ppsim.job(model="nemotron-3-super", gpus=64, pp=1, ep=64, **words).model

    own, repeated, apart = model(), model(mtp_num_layers=2, mtp_use_repeated_layer=True), model(mtp_num_layers=2)
    assert (len(own.mtp), len(repeated.mtp), len(apart.mtp)) == (1, 2, 2)
    assert repeated.training_flops(8192, causal=True) == pytest.approx(84.7e9, rel=0.01)
    assert repeated.mtp_parameters == own.mtp_parameters == apart.mtp_parameters / 2
    held = [
        held_parameters(one, stages_of(one, [len(one.layers)]), ParallelSizes(ep=64, dp=64)).expert
        for one in (own, repeated, apart)
    ]
    assert held[0] == held[1] < held[2]
    with pytest.raises(ConfigError, match="leave out --mtp-num-layers"):
        model(mtp=False, mtp_num_layers=2)
    added = ppsim.job(model="llama3-8b", pp=1, mtp_num_layers=1).model  # Megatron-LM repeats the last layer
    assert added.mtp == added.layers[-1:]


def test_rank_correlation_of_ties_is_of_their_mean_rank() -> None:
    assert rank_correlation([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == pytest.approx(0.75**0.5)
    assert rank_correlation([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]) == pytest.approx(-1.0)


def test_of_releases_after_the_constants_no_row_fits() -> None:
    cases = [case for name in ("bridge-moe-2608-h100", "moe-folding") for case in cases_of(name)]
    assert len(cases) == 11 + 44
    assert {case.properties.use for case in cases} == {"test"}


def test_rows_with_the_same_errors_are_described_once() -> None:
    wrong = {" is wrong: a": [1, 3, 4], " is wrong: b": [2], " is wrong: c": [5, 6]}
    assert published_runs._described("own.csv", wrong) == [
        "own.csv, row 1 is wrong: a",
        "  2 more rows have the same errors",
        "own.csv, row 2 is wrong: b",
        "own.csv, row 5 is wrong: c",
        "  1 more row has the same errors",
    ]


def test_twenty_kinds_of_errors_are_described_and_the_rows_of_the_others_counted() -> None:
    wrong = {f" is wrong: {number}": [2 * number, 2 * number + 1] for number in range(22)}
    lines = published_runs._described("own.csv", wrong)
    assert len(lines) == 2 * 20 + 1
    assert lines[-2:] == ["  1 more row has the same errors", "… and 4 more rows"]
    del wrong[" is wrong: 21"], wrong[" is wrong: 20"]
    assert len(published_runs._described("own.csv", wrong)) == 2 * 20


def test_rows_are_numbered_and_files_that_they_name_are_beside_theirs(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "# ours\nuse,pp,run-config,metric,value\njudge,2,a.yaml,iteration_s,3\n# not ours\nfit,,,iteration_s,5\n"
    )
    first, second = read_cases(path, {"pp": 7})
    assert (first.number, second.number) == (1, 2)
    assert (first.properties.use, second.properties.use) == ("test", "fit")
    assert first.options == {"pp": 2, "run_config": str(tmp_path / "a.yaml")}
    assert second.options == {"pp": 7}
    assert PublishedRun(first.properties, {}).number == 0


def test_defaults_of_a_set_are_not_for_rows_with_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("recipe,metric,value\nr,iteration_s,3\n,iteration_s,3\n")
    with_recipe, without = read_cases(path, {"pp": 7})
    assert (with_recipe.options, without.options) == ({"recipe": "r"}, {"pp": 7})


def test_only_memory_is_measured_in_bytes() -> None:
    metrics = {
        metric: PublishedRun(RowProperties(metric=metric, value=1.0), {}).is_memory
        for metric in ("iteration_s", "mfu_percent", "peak_gib", "peak_gb")
    }
    assert metrics == {"iteration_s": False, "mfu_percent": False, "peak_gib": True, "peak_gb": True}


def test_a_csv_file_is_a_set_of_its_own_and_other_names_are_refused() -> None:
    assert require_set("runs/own.CSV").source == "runs/own.CSV"
    with pytest.raises(ConfigError, match=r"unknown set 'own\.txt'"):
        require_set("own.txt")


@pytest.mark.parametrize(
    ("given", "sentences"),
    [
        ({"model": "gpt", "schedule": "auto"}, 0), ({"model": "no such model"}, 1), ({}, 0),
        ({"model": "no such model", "cluster": "no such cluster", "schedule": "no such schedule"}, 3),
        ({"model": "no such model", None: ["more"]}, 0), ({"model": "no such model", "tp": None}, 0),
    ],
)  # fmt: skip
def test_unknown_names_of_a_row_of_all_cells_are_listed(given: dict[str | None, object], sentences: int) -> None:
    assert len(published_runs._unknown_names(given)) == sentences


@pytest.mark.parametrize(
    ("name", "kind"),
    [("model", str), ("stragglers", dict[int, float]), ("gpus", int), ("price", float), ("fully_shard", bool),
     ("optimizer", Literal["adam", "muon"])],
)  # fmt: skip
def test_a_cell_has_the_type_of_its_option(name: str, kind: object) -> None:
    assert published_runs._type_of(WORDS[name]) == kind
