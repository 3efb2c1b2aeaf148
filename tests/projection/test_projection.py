"""What a projection says of itself: lines, orders, errors and the changes that it recommends."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.costs.cost_sources import RankCosts
from ppsim.projection.cost import TrainingCost
from ppsim.projection.plan import Plan
from ppsim.projection.projection import (
    ConfigurationChange,
    Projection,
    Projections,
    ProjectionSummary,
    enough_gpus,
    largest_bottleneck,
)
from ppsim.simulation.verdict import MemoryLimit
from tests.projection.by_hand import MEASURED, by_hand, free

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
    peaks: dict[int, float | None], *, limit: float = 10.0, schedule: str = "1f1b"
) -> tuple[int | None, list[int]]:
    """Return the number of GPUs that is enough, and the numbers that were tried; a peak of None is impossible."""
    tried: list[int] = []

    def on_gpus(number: int) -> Plan:
        tried.append(number)
        if peaks[number] is None:
            raise ConfigError("no such number")
        return SimpleNamespace(job=jobs(number), gradient_accumulation_steps=1)  # type: ignore[return-value]

    def jobs(number: int) -> Any:
        return SimpleNamespace(layout=SimpleNamespace(num_devices=number, pp=2))

    plan = replace(Plan(pp=2, schedule=schedule), memory_limit_bytes=limit)
    object.__setattr__(plan, "job", jobs(8))
    object.__setattr__(plan, "on_gpus", on_gpus)
    found = enough_gpus(plan, lambda other: [0.0, peaks[other.job.layout.num_devices] or 0.0])  # type: ignore[union-attr]
    return found, tried


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


def test_without_a_way_to_grow_no_number_is_enough() -> None:
    plan = Plan(pp=2, measured=MEASURED)
    assert enough_gpus(plan, lambda _: [0.0]) is None
    assert MemoryLimit.given(10.0).holds(10.0)
