"""What a projection says of itself: lines, orders, errors and the changes that it recommends."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.cost_sources import RankCosts
from ppsim.projection.cost import TrainingCost
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.projection.projection import (
    ConfigurationChange,
    Projection,
    Projections,
    ProjectionSummary,
    _by_channel,
    enough_gpus,
    largest_bottleneck,
)
from ppsim.schedule.table import Op
from ppsim.simulation.verdict import MemoryLimit
from tests.projection.by_hand import MEASURED, by_hand, free
from tests.projection.jobs import job

GIB = 2**30


def with_memory(limit_gib: float, schedule: str = "1f1b", **fields: Any) -> Projection:
    """Return a projection of 1 GiB per forward in flight: 2 GiB on rank 0 of 1f1b."""
    costs = RankCosts(1.0, 1.0, 1.0, activation_bytes=float(GIB))
    return by_hand(measured=costs, memory_limit_bytes=limit_gib * GIB, schedule=schedule, **fields)


def test_the_line_of_a_projection_has_its_shape_and_time() -> None:
    assert free(runtime="ideal").one_line == "1f1b, pp 2, vpp 1, 4 microbatches: iteration 15.0 s, bubble 20.00 %"
    assert with_memory(8, runtime="ideal").one_line.endswith("bubble 20.00 %, peak 2.00 GiB")
    assert with_memory(1, runtime="ideal").one_line.endswith("bubble 20.00 %, peak 2.00 GiB, DOES NOT FIT")


def test_a_step_that_does_not_fit_names_its_peak() -> None:
    made = with_memory(1)
    assert (made.fits, made.is_too_large) == (False, True)
    assert made.memory_error == "rank 0 peaks at 2.00 GiB > 1.00 GiB at 0F1 (2 forwards in flight)"
    assert made.summary_without_advice == "no change that was tried makes it fit"
    split = with_memory(1, "zb-h1")
    assert split.memory_error is not None
    assert "(2 forwards in flight)" in split.memory_error


def test_a_step_that_fits_or_whose_memory_is_unknown_has_no_error() -> None:
    fitting, unknown = with_memory(8), free()
    assert (fitting.fits, fitting.is_too_large, fitting.memory_error) == (None, False, None), "only activations"
    assert fitting.summary_without_advice == "no change that was tried gains half a percent"
    assert (unknown.verdict, unknown.fits, unknown.is_too_large, unknown.memory_error) == (None, None, False, None)
    assert unknown.memory_fit_to_json() == {"fits": None, "verdict": "unknown", "memory_fit": None}


def test_plans_that_fit_and_run_come_first() -> None:
    assert with_memory(1).sort_key[:3] == (True, False, False)
    assert with_memory(8).sort_key == (False, False, False, with_memory(8).iteration_time_s, "1f1b")
    assert with_memory(8, "dualpipe").sort_key[2]
    assert not with_memory(8, "dualpipe", runtime="ideal").sort_key[2]
    keys = [with_memory(*given).sort_key for given in ((1, "1f1b"), (8, "dualpipe"), (8, "1f1b"))]
    assert sorted(keys) == keys[::-1]


def test_times_without_a_model_have_their_ranks_as_gpus() -> None:
    made = free()
    assert (made.num_gpus, made.parallel_sizes, made.split, made.stages) == (2, {"pp": 2}, [], [])
    with pytest.raises(ConfigError, match="--tokens needs a model: times given by hand: no throughput"):
        made.training_days(1e9)
    row = made.extra_report_rows()
    assert (row["layers_per_stage"], row["pipeline_layout"], row["reference_work"]) == (None, None, "")


def test_days_are_tokens_by_throughput() -> None:
    assert replace(free(), tokens_per_s=1000.0).training_days(86_400_000.0) == 1


def test_each_channel_has_its_step_time() -> None:
    times = by_hand(runtime="ideal").step_time_by_channel_s
    assert times["ideal"] == 16
    assert times["pair"] == by_hand().iteration_time_s == 16.5
    assert times["rank"] >= times["direction"] >= times["ideal"]  # type: ignore[operator]
    blocking = by_hand(runtime="megatron")
    assert blocking.costs.communication != "overlap"
    assert blocking.step_time_by_channel_s == pytest.approx(times), "compared without blocking calls"


def test_schedules_of_other_trainers_are_elsewhere() -> None:
    zb, own = by_hand(schedule="zb-h1"), by_hand()
    assert Projections([zb, own], {}, "megatron").is_elsewhere(zb)
    assert not Projections([zb, own], {}, "megatron").is_elsewhere(own)
    assert not Projections([zb, own], {}).is_elsewhere(zb)


def test_the_line_of_several_names_the_best() -> None:
    found = Projections([free(runtime="ideal"), by_hand()], {"zb-h1": "no", "dualpipe": "no"})
    assert found.one_line == "2, best 1f1b with 15.0 s an iteration, 2 not possible"
    assert Projections([], {"zb-h1": "no"}).one_line == "1 not possible"


def test_a_change_has_the_effect_that_was_missing() -> None:
    change = ConfigurationChange("--tp 2", with_memory(8, runtime="ideal"), 0.25, makes_it_fit=True)
    assert change.effect == "fits, 6.00 GiB free, +25.00 % throughput"
    assert replace(change, makes_it_fit=False).effect == "+25.00 % throughput, iteration 15.0 s"
    assert ConfigurationChange("--tp 2", free(runtime="ideal"), 0.25, makes_it_fit=True).effect.endswith("15.0 s")
    assert change.to_json() == {
        "change": "--tp 2", "throughput_gain": 0.25, "iteration_time_s": 15.0, "fits": None, "verdict": "unknown",
        "headroom_bytes": 6.0 * GIB,
    }  # fmt: skip
    unknown = ConfigurationChange("", free(), 0.0).to_json()
    assert (unknown["verdict"], unknown["headroom_bytes"]) == ("unknown", None)


def test_the_bottleneck_is_the_largest_part_or_stage() -> None:
    stages = {"compute of stage 0": 0.001, "compute of stage 1": 0.004}
    assert (
        largest_bottleneck({"compute of all stages": 0.005, "transfers": 0.004, **stages}) == "compute of stage 1"
    )
    assert largest_bottleneck({"compute of all stages": 0.003, "transfers": 0.004, **stages}) == "transfers"


def test_a_summary_is_one_line() -> None:
    summary = ProjectionSummary((1.0, 2.0), "", "", {}, [], TrainingCost(1, 1.0), {}, lambda: {"optimizer": 0.5})
    assert summary.one_line == "iteration between 1.00 s and 2.00 s, optimizer, 0 changes that gain"
    assert (summary.training_days, summary.bottleneck) == (None, "optimizer")
    json = summary.to_json()
    assert (json["iteration_time_interval_s"], json["gain_per_percent"]) == ([1.0, 2.0], {"optimizer": 0.5})


def growing(
    peaks: dict[int, float | None], *, schedule: str = "1f1b", asked: str | None = "1f1b"
) -> tuple[int | None, list[int]]:
    """Return the number of GPUs that is enough, and the numbers that were tried; a peak of None is impossible.

    `asked` is the schedule whose peaks count.
    """
    tried: list[int] = []

    def on_gpus(number: int) -> Plan:
        tried.append(number)
        if peaks[number] is None:
            raise ConfigError("no such number")
        return SimpleNamespace(job=jobs(number), gradient_accumulation_steps=1)  # type: ignore[return-value]

    def jobs(number: int) -> Any:
        return SimpleNamespace(layout=SimpleNamespace(num_devices=number, pp=2))

    plan = replace(Plan(pp=2, schedule=schedule, gradient_accumulation_steps=4), memory_limit_bytes=10.0)
    object.__setattr__(plan, "job", jobs(8))
    object.__setattr__(plan, "on_gpus", on_gpus)

    def peaks_of(other: Plan) -> list[float]:
        assert (other.schedule, other.gradient_accumulation_steps) == (asked, 1)
        return [0.0, peaks[other.job.layout.num_devices] or 0.0]  # type: ignore[union-attr]

    return enough_gpus(plan, peaks_of), tried


@pytest.mark.parametrize(
    ("peaks", "enough"),
    [
        ({16: 10.0}, 16),
        ({16: 11.0, 32: 10.5, 64: 10.0}, 64),
        ({16: 11.0, 32: 11.0}, None),
        ({16: 11.0, 32: 12.0}, None),
        ({16: None, 32: 9.0}, 32),
        ({8 * 2**power: 100.0 - power for power in range(1, 8)}, None),
    ],
)
def test_the_first_doubling_that_fits_is_enough(peaks: dict[int, float | None], enough: int | None) -> None:
    assert growing(peaks) == (enough, list(peaks))


def test_more_gpus_are_not_searched_with_a_search_for_tables() -> None:
    assert growing({16: 11.0, 32: 10.0}, schedule="auto", asked=None) == (32, [16, 32])


def test_without_a_way_to_grow_no_number_is_enough() -> None:
    plan = Plan(pp=2, measured=MEASURED)
    assert enough_gpus(plan, lambda _: [0.0]) is None
    assert MemoryLimit.given(10.0).holds(10.0)


@pytest.mark.parametrize(
    ("update_bytes", "activation_bytes", "is_of_update"),
    [([9.0, 4.0], [5.0, 4.0], False), ([0.0, 4.5], [9.0, 4.0], True)],
)
def test_a_peak_of_the_update_has_more_copies_of_gradients_than_activations(
    update_bytes: list[float], activation_bytes: list[float], *, is_of_update: bool
) -> None:
    """Rank 1 is the fullest, in its fifth action, after F F B F."""
    schedule = SimpleNamespace(
        rank_offsets=np.array([0, 3, 9]), op=np.array([0, 0, 0, Op.F, Op.F, Op.B, Op.F, Op.F, Op.W])
    )
    memory = SimpleNamespace(
        peak_bytes=np.array([3.0, 5.0]) * GIB, peak_activation_bytes=np.array(activation_bytes),
        peak_at=np.array([1, 7]),
    )  # fmt: skip
    timeline = SimpleNamespace(
        memory=memory, schedule=schedule, costs=SimpleNamespace(update_bytes=np.array(update_bytes)),
        name_of=lambda action: f"<{action}>",
    )  # fmt: skip
    made: Any = replace(with_memory(4), step=SimpleNamespace(timeline=timeline))  # type: ignore[arg-type]
    assert made.memory_error == (
        "rank 1 peaks at 5.00 GiB > 4.00 GiB during the update (with float32 copies of gradients)"
        if is_of_update
        else "rank 1 peaks at 5.00 GiB > 4.00 GiB at <7> (3 forwards in flight)"
    )


def of_plan(**fields: Any) -> Any:
    """A projection of 1f1b on two ranks, of another plan."""
    return replace(free(), plan=SimpleNamespace(**fields))  # type: ignore[arg-type]


def test_sizes_above_one_and_experts_with_an_own_tensor_parallelism_are_named() -> None:
    sizes = {"tp": 4, "cp": 2, "ep": 8, "etp": 1, "dp": 16, "pp": 9}
    layout = SimpleNamespace(**sizes)
    found = of_plan(has_model=True, job=SimpleNamespace(layout=layout), pp=3).parallel_sizes
    assert found == sizes | {"pp": 3}
    least = SimpleNamespace(**dict.fromkeys(sizes, 1) | {"etp": None})
    assert of_plan(has_model=True, job=SimpleNamespace(layout=least), pp=1).parallel_sizes == {"pp": 1}
    source = SimpleNamespace(to_json=lambda: {"profile": {"shape": {"tp": 2, "cp": 1}}}, gpus_per_rank=6)
    measured = of_plan(has_model=True, job=None, pp=2, source=source)
    assert (measured.parallel_sizes, measured.num_gpus) == ({"tp": 2, "pp": 2}, 12)


@pytest.mark.parametrize(
    ("schedule", "recompute", "runtime", "start"),
    [
        ("zb-h1", "selective-op", "torch", "torch's selective checkpoint goes through one backward only"),
        ("zb-h1", "selective-op", "ideal", None),
        ("zb-h1", "full", "torch", None),
        ("1f1b", "selective-op", "torch", None),
        ("dualpipe", "selective-op", "megatron", "torch's"),
        ("dualpipe", "none", "torch", ""),
        ("dualpipe", None, "torch", ""),
    ],
)
def test_a_runtime_refuses_two_backwards_of_a_selective_checkpoint_and_tables_that_torch_cannot_run(
    schedule: str, recompute: str | None, runtime: str, start: str | None
) -> None:
    own = recompute and SimpleNamespace(execution=SimpleNamespace(recompute=recompute))
    made = replace(by_hand(schedule=schedule), plan=SimpleNamespace(runtime=runtime, job=own))  # type: ignore[arg-type]
    error = made.runtime_error
    assert (error is None) == (start is None)
    assert start is None or error.startswith(start)  # type: ignore[union-attr]
    assert start != "" or "selective" not in error  # type: ignore[operator]


def test_a_verdict_has_the_facts_of_its_job() -> None:
    own = SimpleNamespace(
        ignored_memory_options=("--a",), layout=SimpleNamespace(num_devices=24), gpus_assumed=True
    )
    plan = {"knows_memory": True, "memory_limit": MemoryLimit.given(7.0), "has_model": True}
    memory = SimpleNamespace(peak_bytes=np.array([5.0, 9.0, 6.0]))
    step: Any = SimpleNamespace(timeline=SimpleNamespace(memory=memory))
    found = replace(of_plan(**plan, job=own), step=step).verdict
    assert (found.rank, found.peak_bytes, found.limit) == (1, 9.0, MemoryLimit.given(7.0))
    assert (found.ignored_memory_options, found.assumed_gpus, found.activations_only) == (("--a",), 24, False)
    own.gpus_assumed = False
    assert replace(of_plan(**plan, job=own), step=step).verdict.assumed_gpus is None
    alone = replace(of_plan(**plan | {"has_model": False}, job=None), step=step).verdict
    assert (alone.ignored_memory_options, alone.assumed_gpus, alone.activations_only) == ((), None, True)
    assert (alone.fits, found.fits) == (False, None)


def test_bytes_that_torch_reserves_are_an_eighth_more_with_fsdp2_only() -> None:
    memory = SimpleNamespace(peak_bytes=np.array([300.0, 1000.0]))
    step: Any = SimpleNamespace(timeline=SimpleNamespace(memory=memory))
    for sharded, reserved in ((True, [336, 1120]), (False, None)):
        own = SimpleNamespace(settings=SimpleNamespace(fully_shard=sharded))
        assert replace(of_plan(job=own), step=step).reserved_bytes == reserved
    assert free().reserved_bytes is free().peak_components_bytes is None


def test_a_channel_on_which_the_table_waits_forever_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = by_hand()

    def simulate(schedule: Any, costs: Any, *, ready_s: Any) -> Any:
        assert (schedule, costs.communication) == (made.timeline.schedule, "overlap")
        assert ready_s is made.timeline.ready_s
        if costs.channel == "rank":
            raise ScheduleError("waits")
        return SimpleNamespace(step_time_s=float(len(costs.channel)))

    monkeypatch.setattr("ppsim.projection.projection.simulate", simulate)
    times = {"ideal": 5, "edge": 4, "direction": 9, "rank": None, "pair": 16.5}
    found = _by_channel(made.timeline, made.costs)
    assert found == {channel: times[channel] for channel in found}
    assert {"ideal", "rank", "pair"} <= found.keys()
    blocking = made.costs.replace(communication="megatron")
    assert _by_channel(made.timeline, blocking)["pair"] == 4, "simulated without the blocking calls"


def test_a_job_is_projected_with_its_tokens_gpus_layers_and_bytes() -> None:
    made = project(Plan(pp=2, job=job(tp=2, pp=2, dp=2, layers=6), split=[2, 4], memory_limit_bytes=64.0 * GIB))
    row = made.to_json()
    assert (made.num_gpus, made.parallel_sizes) == (8, {"tp": 2, "dp": 2, "pp": 2})
    assert made.tokens_per_s == pytest.approx(16 * 4096 / made.iteration_time_s)
    assert f", {made.tokens_per_s / 1000:.0f} k tokens/s, bubble " in made.one_line
    assert (row["layers_per_stage"], row["memory_error"], row["reserved_bytes"]) == ([2, 4], None, None)
    assert (row["fits"], row["verdict"], row["memory_fit"]["rank"]) == (True, "fits", made.verdict.rank)  # type: ignore[union-attr]
    assert sum(row["peak_components_bytes"].values()) == int(made.timeline.memory.peak_bytes.max())
    assert [stage["layers"] for stage in row["stages"]] == [2, 4]
    assert (row["options"]["tp"], row["options"]["gpus"]) == (2, 8)
    assert row["step_time_by_channel_s"] == made.step_time_by_channel_s
    assert row["assumptions"] == made.assumptions
    assert row["exposed_s"] == made.step.exposed_s
    assert len(row["pipeline_layout"]) == 2


def test_a_recorded_rehearsal_is_in_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = SimpleNamespace(pace_s=3.5, reference_ends_s=[4.5, 5.5], reference_work="matmuls")
    made = free(fitted_runs=("run.json",))
    monkeypatch.setattr(Plan, "rehearsal", rehearsal)
    row = made.extra_report_rows()
    assert (row["reference_s"], row["reference_ends_s"]) == (3.5, [4.5, 5.5])
    assert (row["reference_work"], row["overheads_fitted_runs"]) == ("matmuls", ["run.json"])


def test_the_frame_of_several_schedules_has_a_row_of_facts_for_each() -> None:
    own, zb = with_memory(1, vpp=1), by_hand(schedule="dualpipe", vpp=2)
    frame = Projections([own, zb], {}, "megatron").to_frame()
    first, second = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert (first["schedule"], first["vpp"], first["elsewhere"]) == ("1f1b", 1, False)
    assert (second["schedule"], second["vpp"], second["elsewhere"]) == ("dualpipe", 2, True)
    assert (first["fits"], first["verdict"], first["runtime_error"]) == (False, "does not fit", None)
    assert (second["fits"], second["verdict"], second["memory_error"]) == (None, "unknown", None)
    assert (first["memory_error"], second["runtime_error"]) == (own.memory_error, zb.runtime_error)
    assert first["iteration_time_s"] == own.iteration_time_s
    assert first["runs_in"] == "all"


def test_a_summary_asks_for_its_tokens_and_its_advice() -> None:
    asked = []
    made = replace(free(), summarise_function=lambda *given, **options: asked.append((*given, options)))
    made.summarise(tokens=3.0, with_advice=False)
    _ = made.summary
    assert asked == [(made, {"tokens": 3.0, "with_advice": False}), (made, {"tokens": None, "with_advice": True})]


def test_the_json_of_a_summary_has_all_its_parts() -> None:
    change = ConfigurationChange("--tp 2", free(), 0.25)
    cost = TrainingCost(1, 1.0)
    found = ProjectionSummary((1.5, 2.5), "s", "b", {"x": 3.5}, [change], cost, {"plain": 4.5}, lambda: {"y": 0.5})
    assert found.to_json() == {
        "iteration_time_interval_s": [1.5, 2.5], "time_breakdown_s": {"x": 3.5}, "gain_per_percent": {"y": 0.5},
        "bottleneck": "y", "advice": [change.to_json()], "by_stack_s": {"plain": 4.5}, **cost.to_json(),
    }  # fmt: skip
    assert found.one_line == "iteration between 1.50 s and 2.50 s, y, 1 changes that gain"


def test_functions_do_not_count_for_equality_and_a_change_makes_nothing_fit_unless_told() -> None:
    for kind, functions in (
        (Projection, ["summarise_function", "peaks_function"]),
        (ProjectionSummary, ["sensitivities_function"]),
    ):
        assert [one.name for one in fields(kind) if not one.compare] == functions  # type: ignore[arg-type]
    assert not ConfigurationChange("", free(), 0.0).makes_it_fit
