"""What `ppsim validate` prints, and the page that it writes."""

import csv
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ppsim as ppsim_api
from ppsim.base.files import csv_text
from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.results.validation import markdown, print_validations
from ppsim.validation.error_summary import hardware_scores
from ppsim.validation.validation_result import ValidationReport, rows_of
from tests.cli.running import ppsim, words_of


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes the pages on accuracy."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return import_module("make_accuracy")


@pytest.mark.slow
def test_the_pages_of_accuracy_have_what_the_command_finds(validations, pages) -> None:
    sets = list(validations.values())
    for path, mark, text in (
        (pages.SUMMARY, pages.VALIDATE, pages.markdown_summary(sets)),
        (pages.PAGE, pages.MARKDOWN, markdown(sets)),
    ):
        page = path.read_text()
        begin, end = pages.marked(page, mark)
        assert page[begin:end].strip() == text.strip()
    assert pages.ROWS.read_text() == csv_text(pages.every_row(sets))
    assert pages.SETS.read_text() == csv_text(pages.every_set(sets))


@pytest.mark.slow
def test_the_file_has_a_set_after_one_run_as_the_command_finds_it(pages) -> None:
    (found,) = pages.every_set_after_fit(ppsim_api.validate("dgxc-405b", fit_on="one"))
    with pages.AFTER_FIT.open(newline="") as file:
        assert found in list(csv.DictReader(file))


@pytest.mark.slow
def test_the_summary_counts_every_row_once_as_seen_or_not(validations, pages) -> None:
    summary = pages.markdown_summary(list(validations.values()))
    rows = [line.split(" | ")[1:4] for line in summary.splitlines()[2:13]]
    told = [one for one in validations.values() if not one.properties.order_only]
    unseen, seen, listed = (sum(int(row[column]) for row in rows) for column in range(3))
    assert unseen + seen == sum(len(one.rows) for one in told)
    assert seen == sum(len(one.calibration_rows) for one in told)
    assert listed == sum(len(one.skipped) for one in told)


def test_json_has_every_row_with_its_signed_error_and_source() -> None:
    (found,) = json.loads(ppsim("validate", "dgxc-405b", "--json").stdout)["sets"]
    assert len(found["rows"]) == 6
    assert found["source"].startswith("NVIDIA")
    for row in found["rows"]:
        assert row["error"] == row["projected_s"] / row["measured_s"] - 1
    judged = [row["error"] for row in found["rows"] if row["use"] == "test"]
    assert found["errors"]["ppsim"]["worst"] == max(judged, key=abs)


def test_every_output_is_written_and_has_the_rows(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("a.json", "a.csv")
    said = ppsim("validate", "dgxc-405b", "--json", *(word for name in names for word in ("-o", name)))
    assert json.loads(Path("a.json").read_text()) == json.loads(said.stdout)
    with open("a.csv") as file:
        rows = list(csv.DictReader(file))
    (found,) = json.loads(said.stdout)["sets"]
    assert [float(row["error"]) for row in rows] == [row["error"] for row in found["rows"]]
    assert {(row["set"], row["quantity"], row["order_only"]) for row in rows} == {("dgxc-405b", "time", "False")}
    assert all(f"wrote {name}" in said.stderr for name in names)


@pytest.mark.slow
def test_rows_of_memory_are_bytes_and_sets_of_which_the_order_counts_are_marked(validations) -> None:
    rows = rows_of([one.to_json() for one in validations.values()])
    assert len(rows) == sum(len(one.rows) for one in validations.values())
    memory = rows[rows["set"] == "simumax-b200-memory"]
    assert set(memory["quantity"]) == {"memory"}
    assert memory["measured"].min() > 2**30
    ordered = {"primus-mi300x", "primus-mi300x-memory", "primus-mi355x", "zero-bubble-memory"}
    assert set(rows[rows["order_only"]]["set"]) == ordered


@pytest.mark.slow
def test_a_row_names_the_cluster_and_the_number_format_that_its_recipe_or_set_gives(validation_of) -> None:
    rows = rows_of([validation_of("bridge-moe-2608").to_json()])
    assert {"gb200-nvl72", "gb300-nvl72", "dgx-b200", "dgx-b300"} == set(rows["cluster"])
    assert {"mxfp8", "nvfp4", "bfloat16"} <= set(rows["dtype"])


@pytest.mark.slow
def test_a_set_by_name_prints_its_rows_and_what_constant_mfu_is() -> None:
    said = words_of(ppsim("validate", "zero-bubble").stdout)
    assert "interleaved-1f1b" in said
    assert "mean of the fit rows" in said
    assert "6/6" in said


def test_a_set_of_which_nothing_can_be_expressed_is_listed_row_by_row_with_the_reason() -> None:
    said = words_of(ppsim("validate", "llama3-herd").stdout)
    assert said.count("not stated: micro-batch") == 3
    assert "430 tflops per gpu" in said
    (found,) = json.loads(ppsim("validate", "llama3-herd", "--json").stdout)["sets"]
    assert found["rows"] == []
    assert found["errors"] == {}
    assert [row["value"] for row in found["skipped"]] == [430, 400, 380]


@pytest.mark.slow
def test_constants_that_were_fitted_are_counted_per_gpu_type_and_exist(validations, capsys) -> None:
    print_validations(ValidationReport(list(validations.values())), full=True)
    said = words_of(capsys.readouterr().out)
    assert "h100 4 (in_situ bfloat16, routing_host_s, jitter, experts)" in said
    for kind in packaged_clusters():
        efficiency = load_cluster(kind).device.efficiency
        for name, _, dtype in (one.partition(" ") for one in efficiency.fitted):
            value = getattr(efficiency, name)
            assert value is not None
            assert not dtype or dtype in (value.factors if name == "in_situ" else value)


@pytest.mark.slow
def test_sections_and_hardware_have_every_judged_row_once(validations) -> None:
    page = markdown(list(validations.values())).partition("Times of all sets")[0]
    for one in validations.values():
        assert page.count(f"\n| {one.name} | {len(one.test_rows)}") == 1
    times = [row for one in validations.values() if not one.properties.order_only for row in one.test_rows]
    times = [row for row in times if not row.case.is_memory and "forward_ms" not in row.case.options]
    alone = [row for row in times if row.constant_mfu is None]
    assert [row.case.properties.title for row in alone] == ["DeepSeek-V3"]
    assert sum(one.score.num_rows for one in hardware_scores(list(validations.values()))) == len(times) - 1


@pytest.mark.slow
def test_fit_prints_found_beside_in_use() -> None:
    said = words_of(ppsim("validate", "dgxc-405b", "--fit").stdout)
    assert "compute_share.float8 1.12 1.12 4 rows" in said


def test_wrong_use_is_a_sentence() -> None:
    assert "did you mean zero-bubble" in ppsim("validate", "zerobubble", code=2).output
    assert "no cluster with constants" in ppsim("validate", "megatron-sc21", "--fit", code=2).output
    assert "four kinds of output" in ppsim("validate", "--json", "--fit", code=2).output
    assert "-o writes a comparison" in ppsim("validate", "--fit", "-o", "a.json", code=2).output
    assert "give it one of .json, .csv" in ppsim("validate", "-o", "a.html", code=2).output


def test_rows_of_0_3_0_dev0_are_read() -> None:
    row = {"table": "1", "title": "", "gpus": 8, "use": "test", "measured_s": 2.0, "error": -0.05,
           "constant_mfu_error": None, "other_error": None}  # fmt: skip
    old, new = (rows_of([{"set": "one", "rows": [row | {key: 1.9}]}]) for key in ("predicted_s", "projected_s"))
    assert old["projected"].tolist() == new["projected"].tolist() == [1.9]
