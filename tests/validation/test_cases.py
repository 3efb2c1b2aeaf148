"""Sets of published runs: whole, sourced, and wrong rows refused."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.validation.cases import FOLDER, case_sets, cases_of, read_cases, require_set
from ppsim.validation.machines import machine_of
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
