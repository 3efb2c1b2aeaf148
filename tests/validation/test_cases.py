"""Sets of published runs: whole, sourced, and wrong rows refused."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.validation.cases import FOLDER, Case, case_sets, cases_of, read_cases, require_set
from ppsim.validation.machines import machine_of
from ppsim.validation.predict import job_of, split_of
from ppsim.validation.score import rank_correlation


def test_every_file_is_a_set_with_a_source_and_every_row_names_a_known_class() -> None:
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(case_sets())
    for name, told in case_sets().items():
        assert told.source
        assert told.notes
        for case in cases_of(name):
            assert case.table
            assert case.machine is None or machine_of(case.machine)
            assert case.gpus % (case.tp * case.cp * case.pp) == 0


def test_rows_that_judge_are_never_rows_that_fit() -> None:
    for name in case_sets():
        rows = [(case.model_dump_json(exclude={"use"}), case.use) for case in cases_of(name)]
        assert len(dict(rows)) == len(set(rows))


LISTED = (
    "not stated", "unknown model '", "unknown cluster '", "selective checkpointing by operators",
    "NVIDIA GB200 (one of the superchip's two GPUs, 1200 W) has no peak for nvfp4",
)  # fmt: skip


def test_every_row_is_scored_or_listed_and_only_for_what_is_not_known(validations) -> None:
    """A wrong layout or a typing mistake in the data must not pass as a row that cannot be expressed."""
    for name, found in validations.items():
        assert len(found.rows) + len(found.listed) == len(cases_of(name))
        for row in found.listed:
            assert row.reason.startswith(LISTED), (name, row)


@pytest.mark.parametrize(
    "name", [name for name in case_sets() if name.startswith(("bridge", "dgxc-moe", "dgxc-gb"))]
)
def test_of_each_dtype_the_run_on_the_fewest_devices_fits(name: str) -> None:
    """Drawn before any error was seen: fewest devices, the newest release of them, the first as published."""
    by_dtype: dict[str, list[Case]] = {}
    for case in cases_of(name):
        by_dtype.setdefault(case.dtype, []).append(case)
    for cases in by_dtype.values():
        (fit,) = (case for case in cases if case.use == "fit")
        fewest = [case for case in cases if case.gpus == min(one.gpus for one in cases)]
        assert fit == min(fewest, key=lambda case: fewest[0].table != case.table)


def test_a_case_has_experts_groups_offload_and_a_split_of_its_own() -> None:
    case = next(case for case in cases_of("bridge-moe-gb200") if case.model == "deepseek-v3")
    job = job_of(case, None)
    assert (job.layout.ep, job.layout.expert_tp) == (case.ep, 1)
    assert split_of(case) == [4] * 15 + [1]
    offloaded = next(case for case in cases_of("bridge-gb200") if case.offload)
    assert job_of(offloaded, None).offload == offloaded.offload


def test_a_gpt_of_a_row_may_have_grouped_queries_and_a_head_of_its_own() -> None:
    plain = {"model": "gpt", "layers": 2, "hidden": 64, "heads": 8, "vocab": 100, "seq_len": 16}
    rest = {"use": "fit", "table": "t", "title": "m", "metric": "iteration_s", "value": 1, "cluster": "dgx-h100",
            "gpus": 1, "global_batch": 1}  # fmt: skip
    whole = Case(**plain, **rest).architecture.parameters
    grouped = Case(**plain, **rest, kv_heads=2, tied_embeddings=False).architecture.parameters
    assert grouped - whole == 64 * 100 - 2 * (2 * 6 * 8) * (64 + 1)


def test_without_multi_token_prediction_a_model_has_its_layers_alone() -> None:
    cases = cases_of("bridge-moe-gb200")
    with_it, without = (
        next(c for c in cases if c.model == "deepseek-v3" and c.mtp is has) for has in (True, False)
    )
    assert with_it.architecture.mtp
    assert not without.architecture.mtp
    assert with_it.architecture.layers == without.architecture.layers


def test_an_unknown_set_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown set 'zero-buble': did you mean zero-bubble"):
        require_set("zero-buble")


def test_an_unknown_class_of_machines_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown class of machines 'eos': there are zb-a100"):
        machine_of("eos")


HEADER = "use,table,title,seq_len,cluster,gpus,global_batch,metric,value\n"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("guess,t,m,8,dgx-h100,8,8,iteration_s,1\n", "row 1 is wrong: use: "),
        ("fit,t,m,8,dgx-h100,8,8,iteration_s,-1\n", "row 1 is wrong: value: must be more than 0"),
        ("fit,t,m,8,dgx-h100,8,8,hours,1\n", "row 1 is wrong: metric: "),
        ("fit,t,m,8,dgx-h100,0,8,iteration_s,1\n", "row 1 is wrong: gpus: must be at least 1"),
        ("fit,t,m,8,dgx-h100,8,8,mfu_percent,0\n", "row 1 is wrong: value: must be more than 0"),
        ("fit,t,m,8\n", "row 1: not as many cells as the header has"),
    ],
)
def test_a_wrong_row_is_a_sentence_with_file_row_and_column(tmp_path, row: str, says: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text("# a comment\n" + HEADER + row)
    with pytest.raises(ConfigError, match=f"^own.csv, {says}"):
        read_cases(path, {})


def test_an_unknown_column_is_refused(tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(HEADER.replace("title", "titel") + "fit,t,m,8,dgx-h100,8,8,iteration_s,1\n")
    with pytest.raises(ConfigError, match="titel: unknown key"):
        read_cases(path, {})


def test_rank_correlation_of_ties_is_of_their_mean_rank() -> None:
    assert rank_correlation([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == pytest.approx(0.75**0.5)
    assert rank_correlation([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]) == pytest.approx(-1.0)
