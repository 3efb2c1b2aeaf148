"""A step of accumulation rounds is the table of one round, executed several times by each rank."""

import pytest

from ppsim import build
from ppsim.errors import PpsimError
from ppsim.schedule.check import validate
from ppsim.schedule.rounds import microbatches_in_words, one_round, repeat_rounds, round_starts

NAMES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv", "dualpipe", "chimera", "dualpipev", "seq1f1b")


@pytest.mark.parametrize(("name", "microbatches"), [("1f1b", 1), ("chimera", 2), *((name, 8) for name in NAMES)])
def test_a_step_of_rounds_is_a_complete_table_and_one_round_is_had_back(name: str, microbatches: int) -> None:
    table = build(name, pp=4, microbatches=microbatches)
    step = repeat_rounds(table, 3)
    validate(step)
    assert (step.num_microbatches, step.num_rounds, len(step)) == (3 * microbatches, 3, 3 * len(table))
    assert one_round(step) == table


@pytest.mark.parametrize("name", NAMES)
def test_each_rank_executes_its_rounds_one_after_another(name: str) -> None:
    step = repeat_rounds(build(name, pp=4, microbatches=8), 3)
    for begin, end in zip(step.rank_offsets[:-1].tolist(), step.rank_offsets[1:].tolist(), strict=True):
        of_entry = step.round_of_unit[step.microbatch[begin:end]].tolist()
        assert of_entry == [0] * (len(of_entry) // 3) + [1] * (len(of_entry) // 3) + [2] * (len(of_entry) // 3)


def test_ranks_with_a_first_stage_begin_the_rounds() -> None:
    step = repeat_rounds(build("1f1b", pp=4, microbatches=8), 3)
    assert [str(step[entry]) for entry in round_starts(step).tolist()] == ["0F8", "0F16"]
    both = repeat_rounds(build("dualpipe", pp=4, microbatches=8), 2)
    assert [int(both.rank[entry]) for entry in round_starts(both).tolist()] == [0, 3]


def test_model_replicas_must_share_a_round_equally() -> None:
    table = build("chimera", pp=4, microbatches=8)
    with pytest.raises(PpsimError, match="15 microbatches cannot be divided into 3 rounds of 2 model replicas"):
        type(table)(**{**vars_of(table), "num_microbatches": 15, "num_rounds": 3})


def vars_of(table: object) -> dict[str, object]:
    """The fields of a table."""
    return {name: getattr(table, name) for name in table.__dataclass_fields__}  # type: ignore[attr-defined]


def test_the_batch_reads_as_rounds_of_microbatches() -> None:
    assert microbatches_in_words(1, 1) == "1 microbatch"
    assert microbatches_in_words(8, 8) == "8 rounds of 1 microbatch"
