"""Records of ranks become the steps of a run: 1F1B of two ranks, whose passes take 1 s and messages 0.25 s."""

from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.base.errors import RunFailed
from ppsim.runs import timeline_import
from ppsim.runs.timeline_import import import_result, import_run, require_agreement, run_of
from ppsim.schedule.table import Op

TABLE = ppsim.build("1f1b", pp=2, microbatches=2)
COSTS = ppsim.StageCosts(
    forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=0.25, channel="edge", receives="deferred"
)
TIMELINE = ppsim.simulate(TABLE, COSTS)
GRAPH, ACTIONS = TIMELINE.graph, TIMELINE.num_actions


def name_of(transfer: int) -> str:
    op, stage, microbatch = TABLE[int(GRAPH.source[transfer])]
    return f"{stage}{'SEND_F' if op is Op.F else 'SEND_B'}{microbatch}"


def step_at(begin: float, scale: float, *, told: bool = True, **of_actions: Any) -> list[dict[str, Any]]:
    """Return the records of a step of the timeline, `scale` times as long."""
    start, end = (begin + scale * times for times in (TIMELINE.start, TIMELINE.end))
    ranks: list[dict[str, Any]] = [{"records": [], "transfers": {}} for _ in range(2)]
    for entry in range(ACTIONS):
        name = str(TABLE[entry])
        record = {"name": name, "begin": start[entry], "end": end[entry], "waits": [], "calls": [start[entry]]}
        ranks[TABLE.rank[entry]]["records"].append(record | of_actions.get(name, {}))
    for transfer in range(GRAPH.num_transfers if told else 0):
        node = ACTIONS + transfer
        ranks[TABLE.rank[GRAPH.source[transfer]]]["transfers"][name_of(transfer)] = (start[node], end[node])
    return ranks


def result_with(*steps: Any, num_warm_up: int = 1, **fields: Any) -> dict[str, Any]:
    return {"steps": list(steps), "num_warm_up": num_warm_up, "differences": None} | fields


SCALES = (9.0, 1.0, 3.0, 2.0)
BEGINS = (0.0, 100.0, 200.0, 350.0)
LENGTH_S = TIMELINE.step_time_s
STEPS = [step_at(begin, scale) for begin, scale in zip(BEGINS, SCALES, strict=True)]


def test_steps_after_the_warm_up_have_the_times_of_their_records_and_transfers() -> None:
    run = run_of(result_with(*STEPS), TABLE, None, source="s", message_bytes=64.0)
    for step, (begin, scale) in enumerate(zip(BEGINS[1:], SCALES[1:], strict=True)):
        assert run.start[step] == pytest.approx(begin + scale * TIMELINE.start)
        assert run.end[step] == pytest.approx(begin + scale * TIMELINE.end)
    assert run.gaps_s == pytest.approx([100 - LENGTH_S, 150 - 3 * LENGTH_S])
    assert (run.source, run.message_bytes, run.has_own_costs, run.knows_transfers) == ("s", 64.0, False, True)
    assert (run.costs.channel, run.costs.transfer_s, run.costs.forward_s[0]) == ("ideal", pytest.approx(0.5), 2.0)
    assert (run.reference_s, run.reference_work, run.reference_layers, run.to_collective_s) == ((), "", (), [])
    assert (dict(run.work_s), run.launch_wait_s) == ({}, None)


def test_the_timeline_is_of_the_lower_median_step_and_starts_at_zero() -> None:
    imported = import_result(result_with(*STEPS, step_at(600.0, 4.0)), TABLE, COSTS, message_bytes=64.0)
    assert imported.step_times_s == pytest.approx([LENGTH_S, 3 * LENGTH_S, 2 * LENGTH_S, 4 * LENGTH_S])
    assert imported.chosen_step == 1 + 2
    assert imported.timeline.start == pytest.approx(2 * TIMELINE.start)
    assert imported.timeline.end == pytest.approx(2 * TIMELINE.end)
    assert (imported.timeline.origin, imported.run.message_bytes) == ("measured", 64.0)
    assert import_run(imported.run, 7).chosen_step == 7 + 2
    assert imported.costs is imported.run.costs


def test_given_costs_keep_their_channel_unless_it_is_ideal() -> None:
    run = run_of(result_with(*STEPS), TABLE, COSTS)
    assert (run.costs.channel, run.costs.transfer_s, run.has_own_costs) == ("edge", 0.25, True)
    assert run_of(result_with(*STEPS), TABLE, COSTS.replace(channel="direction")).costs.channel == "direction"
    assert run_of(result_with(*STEPS), TABLE, COSTS.replace(channel="ideal")).costs.channel == "edge"
    posted = [step_at(begin, 1.0, told=False) for begin in BEGINS]
    posted[0][0]["records"].append({"name": "0SEND_F0", "begin": 0.0, "end": 0.0, "waits": [], "calls": []})
    assert run_of(result_with(*posted), TABLE, None).costs.channel == "edge"


def test_transfers_that_are_not_recorded_take_no_time_or_that_until_their_receiver_waited() -> None:
    untold = [step_at(begin, 1.0, told=False) for begin in BEGINS]
    run = run_of(result_with(*untold), TABLE, None)
    assert not run.knows_transfers
    made = GRAPH.source
    assert run.start[0, ACTIONS:] == pytest.approx(100 + TIMELINE.end[made])
    assert run.end[0, ACTIONS:] == pytest.approx(100 + TIMELINE.end[made])
    assert run.costs.transfer_s == 0
    few = [step_at(begin, 1.0) for begin in BEGINS]
    few[3][0]["transfers"].popitem()
    assert not run_of(result_with(*few), TABLE, COSTS).knows_transfers
    posted = [step_at(begin, 1.0, told=False) for begin in BEGINS]
    receiver = next(entry for entry in range(ACTIONS) if str(TABLE[entry]) == "1F1")
    for begin, step in zip(BEGINS, posted, strict=True):
        for number, ends in ((0, 0.5), (1, 0.5)):
            step[0]["records"].append(
                {
                    "name": f"0SEND_F{number}",
                    "begin": begin + 1.0 + number,
                    "end": begin + 1.0 + number + ends,
                    "waits": [],
                    "calls": [],
                }
            )
        record = next(one for one in step[1]["records"] if one["name"] == "1F1")
        at = record["calls"][0]
        record["waits"] = [
            [at - 0.5, at - 0.25],
            [at - 0.125, at - 0.0625],
            [at + 0.5, at + 0.75],
            [at + 0.8, at + 0.9],
        ]
    run = run_of(result_with(*posted), TABLE, COSTS)
    begin, at = 100.0, 100.0 + TIMELINE.start[receiver]
    found = {
        name_of(transfer): (run.start[0, ACTIONS + transfer], run.end[0, ACTIONS + transfer])
        for transfer in range(GRAPH.num_transfers)
    }
    assert found["0SEND_F0"] == pytest.approx((begin + 1.0, begin + 1.5))
    assert found["0SEND_F1"] == pytest.approx((begin + 2.0, at - 0.0625)), "the last wait before the action"
    assert run.end[0, receiver] == pytest.approx(at + 0.5), "a wait within the action ends it"
    for step in posted:
        record = next(one for one in step[1]["records"] if one["name"] == "1F1")
        record["waits"] = [[record["calls"][0] - 0.00005, record["calls"][0]]]
    run = run_of(result_with(*posted), TABLE, COSTS)
    node = ACTIONS + next(transfer for transfer in range(GRAPH.num_transfers) if name_of(transfer) == "0SEND_F1")
    assert run.end[0, node] == pytest.approx(begin + 2.5), "no wait: when it was posted"


def test_fused_actions_end_where_the_next_is_called() -> None:
    """0F1 and 0B0 are one record, with a call each."""
    steps = [step_at(begin, 1.0) for begin in BEGINS]
    for begin, step in zip(BEGINS, steps, strict=True):
        records = [one for one in step[0]["records"] if one["name"] not in ("0F1", "0B0")]
        fused = {
            "name": "(0F1;0B0)OVERLAP",
            "begin": begin,
            "end": begin + 9.0,
            "waits": [],
            "calls": [begin + 5.0, begin + 7.0],
        }
        step[0]["records"] = [*records, fused]
    run = run_of(result_with(*steps), TABLE, COSTS)
    at = {str(TABLE[entry]): entry for entry in range(ACTIONS)}
    assert [(run.start[0, at[name]], run.end[0, at[name]]) for name in ("0F1", "0B0")] == [
        (105.0, 107.0),
        (107.0, 109.0),
    ]


def test_other_work_and_waits_for_launches_are_of_their_actions() -> None:
    steps = [*STEPS[:2], step_at(200.0, 3.0, **{"1F1": {"work": {"load": 0.5}, "launch_wait_s": 0.125}}), STEPS[3]]
    run = run_of(result_with(*steps), TABLE, COSTS)
    at = next(entry for entry in range(ACTIONS) if str(TABLE[entry]) == "1F1")
    expected = np.zeros((3, ACTIONS))
    expected[1, at] = 0.5
    assert list(run.work_s) == ["load"]
    assert (run.work_s["load"] == expected).all()
    assert run.launch_wait_s is not None
    assert (run.launch_wait_s == expected / 4).all()


def test_reference_work_between_steps_is_no_part_of_the_gaps() -> None:
    references = [[9.0, 9.0], [1.0, 2.0], [3.0, 5.0], [7.0, 4.0], [2.0, 6.0]]
    run = run_of(
        result_with(*STEPS, reference_s=references, reference_work="work", reference_layers=[3, 4]), TABLE, COSTS
    )
    assert run.gaps_s == pytest.approx([100 - LENGTH_S - 5.0, 150 - 3 * LENGTH_S - 7.0])
    assert run.reference_s == [[2.0, 3.5], [5.0, 4.5], [4.5, 5.0]]
    assert (run.reference_work, run.reference_layers) == ("work", [3, 4])


def test_gaps_of_left_out_and_verified_steps_are_left_out() -> None:
    collectives = [[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]]
    run = run_of(result_with(*STEPS, numbers=[4, 5, 6, 7], to_collective_s=collectives), TABLE, COSTS)
    assert (len(run.gaps_s), run.to_collective_s) == (2, collectives[1:])
    run = run_of(result_with(*STEPS, numbers=[4, 5, 7, 8], to_collective_s=collectives), TABLE, COSTS)
    assert (run.gaps_s, run.to_collective_s) == (pytest.approx([150 - 3 * LENGTH_S]), [])
    unknown = [[9.0, 9.0], [1.0, None], [3.0, 4.0]]
    assert run_of(result_with(*STEPS, to_collective_s=unknown), TABLE, COSTS).to_collective_s == ()
    verified = result_with(*STEPS, num_warm_up=0, differences={"loss": 0.0})
    assert run_of(verified, TABLE, COSTS).gaps_s == pytest.approx([100 - LENGTH_S, 150 - 3 * LENGTH_S])
    assert len(run_of(verified | {"differences": None}, TABLE, COSTS).gaps_s) == 3
    assert len(run_of(verified | {"num_warm_up": 1}, TABLE, COSTS).gaps_s) == 2


def test_the_steps_of_a_file_count_from_their_first_start() -> None:
    steps = [*STEPS[:2], step_at(200.0, 3.0, **{"1F1": {"work": {"load": 0.5}, "launch_wait_s": 0.125}}), STEPS[3]]
    references = [[float(step), 1.0] for step in range(5)]
    imported = import_result(
        result_with(*steps, reference_s=references, reference_work="work", reference_layers=[3, 4], to_collective_s=[[9.0], [1.0], [2.0]]),
        TABLE, COSTS, message_bytes=64.0,
    )  # fmt: skip
    found = imported.to_json()
    run = imported.run
    for step, scale in enumerate(SCALES[1:]):
        assert found["start_s"][step] == pytest.approx((scale * TIMELINE.start).tolist())
        assert found["end_s"][step] == pytest.approx((scale * TIMELINE.end).tolist())
    assert found["launch_wait_s"] == run.launch_wait_s.tolist()  # type: ignore[union-attr]
    assert found["work_s"] == {"load": run.work_s["load"].tolist()}
    assert {name: found[name] for name in ("message_bytes", "knows_transfers", "communication", "reference_work")} == {
        "message_bytes": 64.0, "knows_transfers": True, "communication": "overlap", "reference_work": "work",
    }  # fmt: skip
    assert found["between_steps_s"] == list(run.gaps_s)
    assert (found["reference_s"], found["reference_layers"]) == ([[1.5, 1.0], [2.5, 1.0], [3.5, 1.0]], [3, 4])
    assert found["to_collective_s"] == [[1.0], [2.0]]
    assert import_result(result_with(*STEPS), TABLE, COSTS).to_json()["launch_wait_s"] == []


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("float64", 1e-10)])
def test_rounding_explains_differences_up_to_its_tolerance(dtype: str, most: float) -> None:
    require_agreement({"loss": most, "gradient": 0.0}, dtype)
    require_agreement({"loss": 0.0, "gradient": most}, dtype)
    for name in ("loss", "gradient"):
        wrong = {"loss": 0.0, "gradient": 0.0} | {name: 1.01 * most}
        with pytest.raises(RunFailed, match=f"rounding in {dtype} explains {most:.0e}"):
            require_agreement(wrong, dtype)
        require_agreement(wrong, "bfloat16")
    require_agreement(None, dtype)
    with pytest.raises(RunFailed):
        require_agreement({"loss": float("nan"), "gradient": 0.0}, dtype)


def test_waits_below_a_tenth_of_a_millisecond_count_as_none() -> None:
    assert timeline_import._NO_WAIT_S == 1e-4


@pytest.mark.parametrize(
    ("wait", "ends_after"), [((0.5, 0.75), 0.5), ((0.5, 3.0), 0.5), ((-0.5, 0.5), 1.0), ((1.0, 1.5), 1.0)]
)
def test_an_action_ends_at_the_first_wait_that_begins_in_it(wait: tuple[float, float], ends_after: float) -> None:
    """1F1 takes 1 s."""
    entry = [str(action) for action in TABLE].index("1F1")
    steps = []
    for begin in BEGINS:
        at = begin + TIMELINE.start[entry]
        steps.append(step_at(begin, 1.0, **{"1F1": {"waits": [[at + wait[0], at + wait[1]]]}}))
    run = run_of(result_with(*steps), TABLE, COSTS)
    assert run.end[0, entry] - run.start[0, entry] == pytest.approx(ends_after)
