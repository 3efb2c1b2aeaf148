"""`ppsim project --run`: another schedule, vpp or split of a job, at the times per stage of a recorded run."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ppsim
from benchmarks.made_steps import Made
from ppsim.api.read import _require_seconds, missing_rank_question
from ppsim.base.units import seconds
from ppsim.errors import ConfigError
from ppsim.projection.projection import Projection
from ppsim.runs.links import pairs_of
from tests.cli.running import words_of

DATA = Path(__file__).parents[1] / "runs" / "data"
ONE_STAGE, TWO_STAGES = DATA / "primus_pp8_1f1b", DATA / "primus_pp8_vpp2"


def measured_s(run: Path) -> float:
    found = ppsim.read(run)
    assert isinstance(found, ppsim.api.read.MeasuredRun)
    return found.timeline.step_time_s


def error_of(made: Projection, run: Path) -> float:
    return made.timeline.step_time_s / measured_s(run) - 1


def test_a_run_on_8_gpus_is_projected_to_interleaved_1f1b_within_its_interval():
    """Primus' own recordings of one model, 1F1B and interleaved: −2.4 % and +0.4 %."""
    interleaved = ppsim.project(run=ONE_STAGE, vpp=2)
    low, high = interleaved.summary.iteration_time_interval_s
    assert interleaved.timeline.schedule.name == "interleaved-1f1b"
    assert low < measured_s(TWO_STAGES) < high
    assert -0.03 < error_of(interleaved, TWO_STAGES) < 0
    assert abs(error_of(ppsim.project(run=TWO_STAGES, schedule="1f1b", vpp=1), ONE_STAGE)) < 0.02


def test_without_options_a_run_is_projected_as_it_was():
    for run, schedule in ((ONE_STAGE, "1f1b"), (TWO_STAGES, "interleaved-1f1b")):
        made = ppsim.project(run=run)
        assert made.timeline.schedule.name == schedule
        assert (made.plan.pp, made.plan.num_microbatches) == (8, 16)
        assert abs(error_of(made, run)) < 0.02


def recorded(folder: Path, schedule: str, costs: ppsim.StageCosts, **size: int) -> Path:
    """A recording whose passes take exactly these costs, in a CSV: two steps, the first for warm-up."""
    timeline = ppsim.simulate(ppsim.build(schedule, **size), costs)
    rows = ["step,rank,kind,stage,microbatch,start,end"]
    frame = timeline.to_frame()
    for step in (0, 1, 2):
        for row in frame.itertuples():
            begin, end = (1e3 * step + time for time in (row.start_s, row.end_s))
            kind = row.name.strip("0123456789")
            if kind not in ("F", "B", "I", "W"):
                continue
            rows.append(f"{step},{row.rank},{kind},{row.stage},{row.microbatch},{begin!r},{end!r}")
    file = folder / "passes.csv"
    file.write_text("\n".join(rows))
    return file


UNEVEN = {
    "forward_s": [1.2, 1.0, 1.0, 1.5],
    "backward_input_s": [1.0, 1, 1, 1],
    "backward_weight_s": [1.0, 1, 1, 1.4],
}


def test_ends_keep_what_they_take_beyond_the_median_of_the_others(tmp_path: Path):
    file = recorded(tmp_path, "1f1b", ppsim.StageCosts(**UNEVEN), pp=4, microbatches=8)
    made = ppsim.project(run=file, vpp=2)
    assert np.allclose(made.costs.forward_s, [0.7, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0])
    assert np.allclose(np.add(made.costs.backward_input_s, made.costs.backward_weight_s)[[0, 6, 7]], [1, 1, 1.4])


def test_split_backwards_are_those_of_the_run_and_else_assumed(tmp_path: Path):
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.25, backward_weight_s=0.75)
    split = recorded(tmp_path, "zb-h1", costs, pp=4, microbatches=8)
    made = ppsim.project(run=split, schedule="zb-h2", runtime="ideal")
    assert np.allclose(made.costs.backward_weight_s, 0.75)
    assert not any("assumed (the run" in line for line in made.assumptions)
    whole = recorded(tmp_path, "1f1b", costs, pp=4, microbatches=8)
    made = ppsim.project(run=whole, schedule="zb-h2", runtime="ideal")
    assert np.allclose(made.costs.backward_weight_s, 1.0)
    assert any("assumed (the run has full backwards)" in line for line in made.assumptions)
    assert not any("assumed (the run" in line for line in ppsim.project(run=whole, vpp=2).assumptions)


JOB = {
    "stack": "plain",  # the default with a run
    "runtime": "ideal",
    "model": "llama3-8b",
    "gpus": 4,
    "pp": 4,
    "global_batch": 8,
    "micro_batch": 1,
    "seq_len": 4096,
}


def test_with_a_model_its_own_costs_are_corrected_by_stage(tmp_path: Path):
    """A run that takes 1.1, 1.2, 1.3 and 1.4 times the estimate of its stages gives these factors to its layers."""
    plain = ppsim.project(**JOB, schedule="1f1b", split="even")
    factors = np.array([1.1, 1.2, 1.3, 1.4])
    passes = {name: factors * np.asarray(getattr(plain.costs, name)) for name in UNEVEN}
    file = recorded(tmp_path, "1f1b", ppsim.StageCosts(**passes), pp=4, microbatches=8)
    for words, weights in (
        ({"vpp": 2}, np.repeat(factors, 2)),
        (
            {"split": [12, 8, 6, 6]},
            [(8 * 1.1 + 4 * 1.2) / 12, (4 * 1.2 + 4 * 1.3) / 8, (4 * 1.3 + 2 * 1.4) / 6, 1.4],
        ),
    ):
        words = {"split": "even", "schedule": None} | words
        before, made = ppsim.project(**JOB, **words), ppsim.project(**JOB, **words, run=file)
        for name in UNEVEN:
            ratio = np.asarray(getattr(made.costs, name)) / np.asarray(getattr(before.costs, name))
            assert np.allclose(ratio, weights, rtol=1e-6), name
        assert np.array_equal(made.timeline.memory.peak_bytes, before.timeline.memory.peak_bytes)


def test_a_model_does_not_change_the_number_of_microbatches_of_the_run():
    assert ppsim.project(run=ONE_STAGE, model="llama3-8b").plan.job.num_microbatches == 16
    assert ppsim.project(run=ONE_STAGE, model="llama3-8b", global_batch=24).plan.job.num_microbatches == 24


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"forward_ms": 3.0}, "--forward-ms and --run are both measured costs"),
        ({"profile": "h100"}, "--profile and --run are both measured costs"),
        ({"split": [9, 8, 8, 8, 8, 8, 8, 7]}, "a recorded run has none: give --model or --run-config too"),
        ({"memory_limit": "80GiB"}, "give --activation-memory, --model or --run-config too"),
        ({"pp": 5}, "has 8 stages, which are neither divided nor summed to 5 without a model"),
    ],
)  # fmt: skip
def test_options_that_a_run_does_not_go_with_are_refused(words, says):
    with pytest.raises(ConfigError, match=says):
        _ = ppsim.project(run=ONE_STAGE, **words).timeline


def test_a_text_that_is_no_run_is_refused(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("no run")
    with pytest.raises(ConfigError):
        ppsim.project(run=log)


@pytest.mark.torch
def test_runs_whose_actions_are_not_known_apart_are_refused(tmp_path: Path):
    costs = ppsim.StageCosts(forward_s=1e-3, backward_s=2e-3)
    pairs = tmp_path / "pairs.json"
    ppsim.save(ppsim.train(ppsim.build("combined-1f1b", pp=1, microbatches=3), emulate_costs=costs), pairs)
    with pytest.raises(ConfigError, match="pairs of a forward and a backward"):
        ppsim.project(run=pairs)


def steps_of(schedule: str, vpp: int, fault: str) -> Made:
    """Four steps of four ranks whose stages take 20 and 40 ms together, with a fault at rank 2 or link 1 → 2."""
    steps = Made(ppsim.build(schedule, pp=4, vpp=vpp, microbatches=8), seed=3, num_steps=4)
    steps.taken /= vpp
    on_link = pairs_of(steps.graph).taken[steps.graph.target] == 1 * 4 + 2
    if fault == "slow backward":
        steps.taken[:, (steps.table.rank == 2) & (steps.table.op == ppsim.Op.B)] *= 1.5
    elif fault:
        steps.hop[:, on_link] += 0.03
        steps.queues |= on_link & (fault == "queue")
    return steps


def recording_of(folder: Path, schedule: str, vpp: int, fault: str) -> Path:
    run = steps_of(schedule, vpp, fault).run()
    rows = ["step,rank,kind,stage,microbatch,start,end"]
    for step, (start, end) in enumerate(zip(run.start.tolist(), run.end.tolist(), strict=True)):
        for entry, action in enumerate(run.graph.schedule):
            times = f"{10 * step + start[entry]},{10 * step + end[entry]}"
            rows.append(
                f"{step},{run.graph.schedule.rank[entry]},{action.op.name},{action.stage},{action.microbatch},{times}"
            )
    file = folder / f"{schedule}.csv"
    file.write_text("\n".join(rows))
    return file


@pytest.mark.parametrize("names", [("1f1b", "interleaved-1f1b"), ("interleaved-1f1b", "1f1b")])
@pytest.mark.parametrize("fault", ["slow backward", "latency", "queue"])
def test_a_slow_rank_or_link_stays_in_another_schedule(tmp_path: Path, names: tuple[str, str], fault: str):
    """The same fault in the other schedule takes this long; without it, the projection is that of healthy steps."""
    vpps = {"1f1b": 1, "interleaved-1f1b": 2}
    before, after = names
    file = recording_of(tmp_path, before, vpps[before], fault)
    words = {"run": file, "schedule": after, "vpp": vpps[after]}
    made, healthy = ppsim.project(**words), ppsim.project(**words, without=["1"])
    for projection, name in ((made, fault), (healthy, "")):
        expected_s = np.median(steps_of(after, vpps[after], name).run().step_times_s)
        assert projection.timeline.step_time_s == pytest.approx(expected_s, rel=0.02)
    assert made.timeline.step_time_s > 1.05 * healthy.timeline.step_time_s
    (line,) = [line for line in made.assumptions if line.startswith("from the run: ")]
    named = "slow ranks 2 (forward × 1.00, backward × 1." if fault == "slow backward" else "slow links 1-2 (1 → 2: "
    assert line.startswith(f"from the run: 1. {named}")
    assert line.endswith(f"if healthy: {seconds(healthy.iteration_time_s)} (--without 1)")
    assert ("one after the other" in line) == (fault == "queue")
    assert not any(line.startswith("from the run: ") for line in healthy.assumptions)
    assert made.options["slow"] == named.partition(" (")[0]
    assert "slow" not in healthy.options
    with pytest.raises(
        ConfigError, match=r"--without '7': .* has no such cause: give 1 \(slow (ranks 2|links 1-2)\)"
    ):
        ppsim.project(**words, without=["7"])


def test_faults_of_ranks_are_left_out_with_another_number_of_ranks(tmp_path: Path):
    file = recording_of(tmp_path, "interleaved-1f1b", 2, "queue")
    made = ppsim.project(run=file, schedule="1f1b", pp=2, vpp=1)
    assert made.costs.slow_links is None
    (line,) = [line for line in made.assumptions if line.startswith("from the run: ")]
    assert line.startswith("from the run: left out, because it has 4 ranks: slow links 1-2 (")
    assert line in words_of(str(made)), "on the first screen"


def test_a_cause_is_removed_from_a_recorded_run_only():
    with pytest.raises(ConfigError, match="--without removes a cause from a recorded run: give --run"):
        ppsim.project(pp=4, without=["1"])


@pytest.mark.parametrize(
    ("step_s", "pass_s", "says"),
    [
        (1000.0, 1.0, None), (1001.0, 1.0, "milliseconds"), (1.0, 1e-6, None), (1.0, 0.9e-6, "are these seconds"), (1.0, 0.0, None),
    ],
)  # fmt: skip
def test_times_in_another_unit_are_doubted(step_s: float, pass_s: float, says: str | None):
    run = SimpleNamespace(
        source="r", step_times_s=[step_s], graph=SimpleNamespace(num_actions=2),
        start=np.zeros((1, 3)), end=np.array([[pass_s, pass_s, 9e9]]),
    )  # fmt: skip
    if says is None:
        _require_seconds(run)
        return
    with pytest.raises(ConfigError, match=says):
        _require_seconds(run)


@pytest.mark.parametrize(
    ("late", "part"), [((0.6,) * 5, "100.00 %"), ((0.6,) * 4 + (0.4,), "80.00 %"), ((0.6,) * 3 + (0.4,) * 2, None)]
)
def test_a_last_stage_that_waits_for_most_backwards_may_have_another_behind_it(
    late: tuple[float, ...], part: str | None
):
    """A wait of more than half a forward, in four fifths of the microbatches."""
    table = ppsim.build("1f1b", pp=2, microbatches=5)
    start = np.zeros((1, len(table)))
    for entry, action in enumerate(table):
        start[0, entry] = 3.0 * action.microbatch + (action.op is ppsim.Op.B) * (1.0 + late[action.microbatch])
    run = SimpleNamespace(graph=SimpleNamespace(schedule=table), start=start, end=start + 1.0)
    question = missing_rank_question(run)
    assert (part is None) == (question == "")
    assert part is None or f"the backward of {part}" in question
    for name, options in (("gpipe", {}), ("interleaved-1f1b", {"vpp": 2})):
        other = ppsim.build(name, pp=2, microbatches=4, **options)
        zeros = np.zeros((1, len(other)))
        run = SimpleNamespace(graph=SimpleNamespace(schedule=other), start=zeros, end=zeros + 1.0)
        assert missing_rank_question(run) == ""
