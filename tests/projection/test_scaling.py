"""Rows for several values of an option: the knee, the cause that grows, the deadline."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.projection import scaling
from ppsim.projection.scaling import Scaling, note_of, row_of_plan, shares_in
from tests.projection.by_hand import by_hand

BATCH_TOKENS = 1000.0


def row_of(gpus, time, *, verdict="fits", days=None, bubble=0.1, batch=BATCH_TOKENS):
    return {
        "num_gpus": gpus, "iteration_time_s": time, "tokens_per_s": batch / time, "verdict": verdict,
        "training_days": days, "stack_name": "plain", "stack_basis": None, "pipeline bubble (s)": bubble * time, "GEMMs below peak (s)": 0.2 * time,
        "empty (s)": None,
    }  # fmt: skip


def scaling_of(*rows, **more):
    return Scaling("gpus", [{"gpus": row["num_gpus"], **row} for row in rows], **more)


def test_the_knee_is_the_first_doubling_that_gains_less_than_1_6_times():
    rows = [row_of(8, 1.0), row_of(16, 0.6), row_of(24, 0.59), row_of(32, 0.4)]
    assert scaling_of(*rows).knee["num_gpus"] == 32
    rows[1] = row_of(16, 1 / 1.59)
    assert scaling_of(*rows).knee["num_gpus"] == 16
    assert scaling_of(rows[0], row_of(16, 1.0, batch=2 * BATCH_TOKENS)).knee is None, "another batch is no scaling"


def test_its_json_has_the_knee_the_cause_and_the_deadline_and_all_columns():
    rows = [row_of(8, 1.0, bubble=0.1, days=9.0), row_of(16, 0.9, bubble=0.3, days=8.0) | {"mfu": 0.4}]
    found = scaling_of(*rows, deadline_days=8.5).to_json()
    assert [row["mfu"] for row in found.pop("rows")] == [None, 0.4]
    assert found == {
        "option": "gpus", "knee_gpus": 16, "growing_cause": "pipeline bubble", "deadline_days": 8.5, "fewest_gpus": 16,
    }  # fmt: skip
    alone = scaling_of(rows[0]).to_json()
    assert (alone["knee_gpus"], alone["growing_cause"], "fewest_gpus" in alone) == (None, None, False)
    assert scaling_of(rows[0], deadline_days=8.5).to_json()["fewest_gpus"] is None


def test_the_cause_whose_share_grows_most_is_named_with_its_shares():
    found = scaling_of(row_of(32, 0.4, bubble=0.3), row_of(8, 1.0, bubble=0.1)).growing_cause
    assert found == ("pipeline bubble", pytest.approx(0.1), pytest.approx(0.3))
    assert scaling_of(row_of(8, 1.0)).growing_cause is None


def test_rows_of_several_stacks_have_no_knee_and_no_growing_cause():
    rows = [row_of(8, 1.0), row_of(16, 0.9, bubble=0.3)]
    assert scaling_of(*rows).knee
    rows[1]["stack_basis"] = "recipe of 16 GPUs"
    found = scaling_of(*rows)
    assert found.stacks == ["plain", "plain (recipe of 16 GPUs)"]
    assert found.knee is None
    assert found.growing_cause is None


def test_recipes_with_the_same_settings_are_one_stack():
    rows = [row_of(8, 1.0), row_of(16, 0.9)]
    for row, name in zip(rows, ("a/8gpu", "a/16gpu"), strict=True):
        row["stack_basis"] = f"recipe {name} is for this model: use --recipe"
    assert scaling_of(*rows).knee["num_gpus"] == 16
    assert len(scaling_of(*rows).stacks) == 1


def test_a_value_that_is_given_twice_is_a_row():
    assert len(Scaling.of("gpus", [8, 8, 16], lambda number: row_of(number, 1.0)).rows) == 2


def test_causes_are_the_columns_in_seconds():
    assert shares_in(row_of(8, 2.0)) == pytest.approx({"pipeline bubble": 0.1, "GEMMs below peak": 0.2})


def test_the_fewest_gpus_that_fit_and_meet_the_deadline():
    rows = [row_of(8, 1.0, days=40, verdict="does not fit"), row_of(32, 0.3, days=10), row_of(16, 0.5, days=20)]
    found = scaling_of(*rows, deadline_days=30)
    assert found.in_time["num_gpus"] == 16
    late = replace(found, deadline_days=5)
    assert late.in_time is None
    assert late.soonest["num_gpus"] == 32
    assert found.to_json()["fewest_gpus"] == 16
    assert "fewest_gpus" not in scaling_of(*rows).to_json()


def test_an_impossible_value_is_a_row_with_its_reason():
    def row(number):
        if number == 3:
            raise ConfigError("3 is\nodd")
        return row_of(number, 1.0)

    found = Scaling.of("gpus", [2, 3], row)
    assert found.rows[1] == {"gpus": 3, "error": "3 is odd"}
    assert [row["gpus"] for row in found.possible] == [2]
    assert found.to_json()["rows"][1]["tokens_per_s"] is None


def test_an_error_that_all_values_share_is_raised():
    def row(number):
        raise ConfigError(f"price must not be negative: got {price(number)}")

    price = {2: -1, 3: -1}.get
    with pytest.raises(ConfigError, match="price must not be negative: got -1"):
        Scaling.of("gpus", [2, 3], row)
    price = {2: -1, 3: -2}.get
    assert len(Scaling.of("gpus", [2, 3], row).rows) == 2


def test_the_parts_of_a_row_are_its_iteration():
    row = row_of_plan(ppsim.project(model="llama3-8b", gpus=8, pp=2, global_batch=16).plan)
    assert sum(shares_in(row).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"model": "gpt2", "gpus": 8, "zero": 3}, None),
        ({"model": "mixtral-8x7b", "gpus": 8, "zero": 3, "ep": 2}, None),
        ({"model": "mixtral-8x7b", "gpus": 8, "zero": 1}, None),
        ({"model": "mixtral-8x7b", "gpus": 8, "zero": 3}, "experts gathered, not exchanged"),
        ({"model": "gpt2"}, "1 GPU assumed"),
        ({"model": "gpt2", "tp": 2}, "2 GPUs assumed"),
        ({"model": "mixtral-8x7b", "tp": 2, "zero": 3}, "2 GPUs assumed, experts gathered, not exchanged"),
    ],
)
def test_doubts_about_a_plan_are_noted(options, note):
    assert note_of(ppsim.job(pp=1, **options)) == note


def test_a_cause_of_the_last_row_alone_grows_from_nothing_and_growth_below_a_thousandth_is_none():
    rows = [row_of(8, 1.0, bubble=0.1), row_of(16, 2.0, bubble=0.1) | {"rest (s)": 0.5}]
    assert scaling_of(*rows).growing_cause == ("rest", 0.0, 0.25)
    rows[1]["rest (s)"] = 0.0019
    assert scaling_of(*rows).growing_cause is None
    assert scaling_of(*rows).to_json()["growing_cause"] is None


def test_a_deadline_is_met_on_its_day_and_throughput_of_1_6_times_is_no_knee():
    rows = [row_of(8, 1.6, days=30), row_of(16, 1.0, days=20)]
    assert scaling_of(*rows, deadline_days=30).in_time["num_gpus"] == 8
    assert scaling_of(*rows).knee is None
    rows[1]["tokens_per_s"] = None
    assert scaling_of(*rows).knee is None


def test_a_row_has_the_numbers_of_its_plan_and_what_is_unknown_without_a_model():
    made = by_hand(runtime="ideal")
    row = row_of_plan(made.plan)
    interval_s = made.summary.iteration_time_interval_s
    assert [row[f"iteration_time_{end}s"] for end in ("", "low_", "high_")] == [16.0, *interval_s]
    unknown = ("headroom_bytes", "stack_name", "stack_basis", "note")
    assert (row["verdict"], [row[name] for name in unknown]) == ("unknown", [None] * 4)
    job = ppsim.job(model="gpt2", pp=1, global_batch=8, stack="plain")
    limited = ppsim.project(job=job)
    row = row_of_plan(limited.plan)
    assert (row["verdict"], row["headroom_bytes"]) == (limited.verdict.word, limited.verdict.headroom_bytes)
    assert [row[name] for name in unknown[1:]] == ["plain", None, "1 GPU assumed"]


def test_a_row_is_summarised_without_advice_and_with_the_tokens_of_the_training(monkeypatch):
    asked, made = [], by_hand(runtime="ideal")
    summarise = type(made).summarise
    monkeypatch.setattr(
        type(made), "summarise", lambda of, **options: asked.append(options) or summarise(of, with_advice=False)
    )
    monkeypatch.setattr(scaling, "values", lambda projection, columns: {"columns": columns})
    assert row_of_plan(made.plan, tokens=7.0)["columns"] == "sweep"
    assert asked == [{"tokens": 7.0, "with_advice": False}]
