"""Sentences and tables of an explanation whose losses are given: a step of 8 s, and 2 s until the next one."""

from dataclasses import replace

import pytest

from ppsim.runs.loss_attribution import Difference, ExplainedDifference, Explanation, LateRank, TimeLoss
from ppsim.runs.loss_report import (
    ADVICE,
    BUBBLE,
    differences_of,
    faults,
    lacks,
    markdown,
    notable_losses,
    reasons,
    remedy,
    table_of,
    title,
    whole_difference,
)

LOSSES = [
    TimeLoss("time between steps", 2.0, 1.75, "the loader", 2.0, (1.5, 2.5)),
    TimeLoss("slow ranks", 1.0, 0.5, "rank 3", 1.0, (1.0, 1.0)),
    TimeLoss("uneven stages", 0.5, 0.25),
    TimeLoss("drift", 0.25, 0.01),
    TimeLoss("pauses", 0.125, 0.0),
    TimeLoss(BUBBLE, 3.0, 1.25, "12 of 16 s"),
    TimeLoss("compute", 3.0, 3.0),
    TimeLoss("rest", 0.125, 0.125),
]
COMPARISON = ExplainedDifference(
    "plan.json", 7.0, [
        Difference("compute", 3.0, 3.5, "of stage 1"), Difference("slow ranks", 1.0, 0.0, "rank 3"),
        Difference(BUBBLE, 3.0, 3.0), Difference("drift", 0.25, 0.249), Difference("rest", 0.75, 0.25),
        Difference("pauses", 0.25, 0.0),
    ], "a note",
)  # fmt: skip
LATE = [
    LateRank(3, 0.5, 1.5, "3F2", 0.75), LateRank(1, 0.008, 0.25, "", 0.0), LateRank(2, 0.007, 9.0, "2F2", 9.0),
    LateRank(0, 8.0, 8.0, "0F0", 8.0),
]  # fmt: skip
EXPLANATION = Explanation("run.json", 8.0, 8.0, 3, LOSSES, LATE, {"F": 0.5}, COMPARISON, note="noted")


def test_an_explanation_has_its_period_and_the_causes_that_can_be_removed() -> None:
    assert EXPLANATION.period_s == 10.0
    assert EXPLANATION.has_gaps
    assert [loss.cause for loss in EXPLANATION.reasons] == [
        "time between steps",
        "slow ranks",
        "uneven stages",
        "drift",
    ]
    assert EXPLANATION.one_line == (
        "3 steps of 8.00 s: time between steps 1.75 s, slow ranks 500 ms, uneven stages 250 ms"
    )
    alone = replace(EXPLANATION, losses=LOSSES[5:])
    assert (alone.period_s, alone.has_gaps, alone.reasons) == (8.0, False, [])
    assert alone.one_line == "3 steps of 8.00 s: nothing beside the schedule"


def test_the_json_of_an_explanation_has_all_parts() -> None:
    found = replace(EXPLANATION, faster_schedule=("--vpp 2", 0.5)).to_json()
    assert {name: found[name] for name in ("source", "step_s", "period_s", "median_s", "note", "num_steps")} == {
        "source": "run.json", "step_s": 8.0, "period_s": 10.0, "median_s": 8.0, "note": "noted", "num_steps": 3,
    }  # fmt: skip
    assert (found["action_times_s"], found["faster_schedule"]) == ({"F": 0.5}, ["--vpp 2", 0.5])
    assert found["losses"][1] == {
        "cause": "slow ranks", "seconds": 1.0, "gain_s": 0.5, "detail": "rank 3", "median_s": 1.0,
        "quartiles_s": (1.0, 1.0),
    }  # fmt: skip
    assert found["losses"][2]["median_s"] == 0.0
    assert found["losses"][2]["quartiles_s"] == (0.0, 0.0)
    assert found["reasons"] == ["time between steps", "slow ranks", "uneven stages", "drift"]
    assert found["late_ranks"][0] == {
        "rank": 3, "gain_s": 0.5, "others_wait_s": 1.5, "action": "3F2", "action_s": 0.75,
    }  # fmt: skip
    assert found["comparison"]["step_s"] == 7.0
    assert found["comparison"]["differences"][1] == {
        "cause": "slow ranks", "measured_s": 1.0, "projected_s": 0.0, "detail": "rank 3", "seconds": 1.0,
    }  # fmt: skip
    alone = replace(EXPLANATION, comparison=None).to_json()
    assert "comparison" not in alone
    assert alone["faster_schedule"] is None


def test_the_title_has_the_steps_their_median_if_it_differs_and_the_time_between_them() -> None:
    assert title(EXPLANATION) == "mean step time 8.00 s (3 steps), plus 2.00 s until the next step"
    other = replace(EXPLANATION, num_steps=1, median_s=7.5, losses=LOSSES[1:])
    assert title(other) == "mean step time 8.00 s (1 step, median 7.50 s)"
    assert title(replace(other, median_s=8.004)) == "mean step time 8.00 s (1 step)"


def test_the_three_largest_causes_and_the_bubble_have_sentences() -> None:
    assert [loss.cause for loss in notable_losses(EXPLANATION)] == ["time between steps", BUBBLE, "slow ranks"]
    small = [TimeLoss("drift", 1.0, 0.008), TimeLoss("pauses", 1.0, 0.0079)]
    assert [loss.cause for loss in notable_losses(replace(EXPLANATION, losses=small))] == ["drift"]
    first, second, third = reasons(EXPLANATION)
    assert first.startswith("time between steps, 1.75 s per step (17.50 %). The loader. Look at the data loader, ")
    assert second == (
        "pipeline bubble, 1.25 s per step (12.50 %). 12 of 16 s. More microbatches per step make it smaller (a larger "
        "global batch, or fewer data-parallel ranks)."
    )
    assert third == f"slow ranks, 500 ms per step (5.00 %). Rank 3. T{ADVICE['slow ranks'][1:]}."
    assert reasons(replace(EXPLANATION, losses=LOSSES[2:3]))[0].startswith(
        "uneven stages, 250 ms per step (3.12 %). Stages "
    )
    assert reasons(replace(EXPLANATION, losses=small[1:])) == [
        "no cause takes 0.10 % of the step or more: the rest is the schedule's idle time, and the passes themselves"
    ]


def test_the_remedy_of_a_bubble_is_the_faster_schedule() -> None:
    faster = replace(EXPLANATION, faster_schedule=("--schedule zb-h1 --vpp 1", 0.5))
    assert remedy(LOSSES[5], faster) == (
        "another schedule: ppsim project --run RUN --schedule zb-h1 --vpp 1 saves 500 ms (memory not checked)"
    )
    assert remedy(LOSSES[1], faster) == ADVICE["slow ranks"]


def test_late_ranks_have_their_gain_the_wait_of_others_and_their_latest_action() -> None:
    assert faults(EXPLANATION) == [
        "rank 3: if it were as fast as the median stage, the step would take 500 ms (6.25 %) less, and the others wait "
        "1.50 s less in total; largest delay on the critical path: 3F2, 750 ms",
        "rank 1: if it were as fast as the median stage, the step would take 8.00 ms (0.10 %) less, and the others "
        "wait 250 ms less in total",
    ]


def test_a_projection_lacks_its_three_largest_differences() -> None:
    assert [one.cause for one in COMPARISON.reasons] == ["slow ranks", "compute", "rest", "pauses", "drift"]
    assert lacks(COMPARISON, 8.0) == [
        "projected too short by 12.50 % of the step: slow ranks (rank 3).",
        "projected too long by 6.25 % of the step: compute (of stage 1).",
        "projected too short by 6.25 % of the step: rest.",
    ]
    assert len(lacks(COMPARISON, 500.0)) == 3
    assert len(lacks(COMPARISON, 501.0)) == 1
    assert whole_difference(COMPARISON, 8.0) == "projected 7.00 s, measured 8.00 s: -12.50 %"


def test_causes_are_rows_with_quartiles_of_several_steps() -> None:
    rows = table_of(EXPLANATION)
    assert rows[0] == {
        "cause": "time between steps", "time": "2.00 s", "share": "20.00 %", "quartiles": "1.50 s … 2.50 s",
        "gain if removed": "1.75 s", "detail": "the loader",
    }  # fmt: skip
    assert (rows[1]["quartiles"], rows[1]["gain if removed"]) == ("", "500 ms")
    assert [row["gain if removed"] for row in rows[-3:]] == ["1.25 s", "", ""]
    assert "quartiles" not in table_of(replace(EXPLANATION, num_steps=1))[0]


def test_differences_are_rows_with_their_share_of_the_step() -> None:
    rows = differences_of(COMPARISON)
    assert rows[1] == {
        "difference by cause": "slow ranks", "measured": "1.00 s", "projected": "0 s", "difference": "1.00 s",
        "of the step": "+12.12 %", "detail": "rank 3",
    }  # fmt: skip
    assert (rows[0]["of the step"], rows[2]["of the step"]) == ("-6.06 %", "+0.00 %")


def test_the_page_has_numbered_reasons_late_ranks_and_the_projection() -> None:
    lines = markdown(EXPLANATION).splitlines()
    assert lines[:5] == [
        "# Mean step time 8.00 s (3 steps), plus 2.00 s until the next step", "",
        "Time saved per step if only this cause is removed, largest first:", "", f"1. {reasons(EXPLANATION)[0]}",
    ]  # fmt: skip
    assert lines[7:10] == [
        "", "| cause | time | share | quartiles | gain if removed | detail |", "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    assert lines[10] == "| time between steps | 2.00 s | 20.00 % | 1.50 s … 2.50 s | 1.75 s | the loader |"
    late = lines.index("## Ranks that others wait for")
    assert (lines[late - 1], lines[late + 2], lines[late + 4]) == ("", f"- {faults(EXPLANATION)[0]}", "")
    against = lines.index("## Against the projection")
    assert against == late + 5
    assert lines[against + 2 : against + 8] == [
        "projected 7.00 s, measured 8.00 s: -12.50 %.", *(f"- {one}" for one in lacks(COMPARISON, 8.0)), "- a note", "",
    ]  # fmt: skip
    assert lines[-1] == "| pauses | 250 ms | 0 s | 250 ms | +3.03 % |  |"
    short = markdown(replace(EXPLANATION, late_ranks=[], comparison=None))
    assert "##" not in short
    assert "- \n" not in markdown(replace(EXPLANATION, comparison=replace(COMPARISON, note="")))


@pytest.mark.parametrize("cause", sorted(ADVICE))
def test_every_advice_is_a_clause(cause: str) -> None:
    assert not ADVICE[cause].endswith(".")
