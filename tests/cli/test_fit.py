"""`ppsim fit` and `ppsim validate --fit-on`: files, words, and what is refused."""

import json
from pathlib import Path

from tests.cli.running import ppsim, words_of

LOG = """using world size: 8, data-parallel size: 4
------------------------ arguments ------------------------
  {arguments}
-------------------- end of arguments ---------------------
 iteration 1/ 9 | elapsed time per iteration (ms): 19138.8 |
 iteration 2/ 9 | elapsed time per iteration (ms): 500.0 |
 iteration 3/ 9 | elapsed time per iteration (ms): 520.0 |
"""
ARGUMENTS = {
    "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048, "max_position_embeddings": 2048,
    "micro_batch_size": 1, "global_batch_size": 16, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2,
    "padded_vocab_size": 50304, "bf16": True,
}  # fmt: skip


def test_a_fit_is_a_cluster_that_project_takes(folder: Path) -> None:
    said = ppsim("fit", "runs.csv", "-o", "mine.json", "--json")
    found = json.loads(said.stdout)
    assert "wrote mine.json (calibration)" in said.stderr
    assert [row["row"] for row in found["rows"]] == ["runs.csv, row 1", "runs.csv, row 2"]
    words = (
        "project",
        "--model",
        "llama3-8b",
        "--gpus",
        8,
        "--tp",
        2,
        "--pp",
        2,
        "--global-batch-size",
        32,
        "--cluster",
    )
    before, after = (json.loads(ppsim(*words, name, "--json").stdout) for name in ("dgx-h100", "mine.json"))
    assert abs(after["iteration_time_s"] / 3.9 - 1) < abs(before["iteration_time_s"] / 3.9 - 1) / 3
    printed = words_of(ppsim("clusters", "mine.json").stdout)
    assert "fitted on runs.csv" in printed
    assert "base dgx-h100" in printed


def test_a_fit_may_start_from_the_file_of_another(folder: Path) -> None:
    ppsim("fit", "runs.csv", "-o", "mine.json")
    text = (
        (folder / "runs.csv")
        .read_text()
        .replace("metric", "cluster,metric")
        .replace("iteration_s", "mine.json,iteration_s")
    )
    (folder / "more.csv").write_text(text)
    (folder / "below").mkdir()
    ppsim("fit", "more.csv", "-o", "below/more.json")
    assert json.loads((folder / "below" / "more.json").read_text())["base"] == "../mine.json"
    assert "base ../mine.json" in words_of(ppsim("clusters", "below/more.json").stdout)


def test_a_log_of_megatron_with_its_arguments_is_a_row(folder: Path) -> None:
    arguments = "\n  ".join(f"{name} {'.' * 20} {value}" for name, value in ARGUMENTS.items())
    (folder / "train.log").write_text(LOG.format(arguments=arguments))
    found = json.loads(ppsim("fit", "train.log", "--cluster", "dgx-h100", "--json").stdout)
    (row,) = found["rows"]
    assert row["measured_s"] == 0.51
    assert abs(row["error_after"]) < abs(row["error_before"])
    (folder / "short.log").write_text(LOG.format(arguments="").replace("arguments", ""))
    assert "short.log has no arguments of Megatron-LM" in ppsim("fit", "short.log", code=2).stderr


def test_a_run_that_does_not_say_what_ran_is_told_what_is_missing(folder: Path) -> None:
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "projected.json")
    measured = json.loads((folder / "projected.json").read_text()) | {"origin": "measured"}
    (folder / "run.json").write_text(json.dumps(measured))
    said = words_of(ppsim("fit", "run.json", code=2).output)
    assert "run.json says how long its steps took, not what ran: give --run-config FILE and --cluster" in said


def test_validate_prints_own_rows_before_and_after(folder: Path) -> None:
    said = words_of(ppsim("validate", "runs.csv", "--fit-on", "1").stdout)
    assert "dgx-h100: compute_share.bfloat16" in said
    assert "on runs.csv, row 1" in said
    (found,) = json.loads(ppsim("validate", "runs.csv", "--fit-on", "1", "--json").stdout)["sets"]
    (row,) = found["rows"]
    assert row["row"] == 2
    assert abs(row["error"]) < abs(row["error_before"])
    assert found["after"]["mean"] == row["error"]


def test_wrong_use_is_a_sentence_and_writes_nothing(folder: Path) -> None:
    assert "give it one of .json" in ppsim("fit", "runs.csv", "-o", "mine.toml", code=2).output
    assert (
        "there is no row 9: rows are 1 to 2"
        in ppsim("fit", "runs.csv", "--rows", "9", "-o", "m.json", code=2).output
    )
    assert "no row of runs.csv can be fitted on" in words_of(
        ppsim("validate", "runs.csv", "--fit-on", "fit", code=2).output
    )
    assert "--fit-on prints rows before and after" in ppsim("validate", "--fit-on", "one", "--fit", code=2).output
    assert not (folder / "m.json").exists()
