"""OpenTelemetry spans of Megatron-LM, in both of its formats, are read as the steps that made them."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.schedule.table import Op
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

EPOCH_NS = 1_790_000_000 * 10**9
NAMES = {Op.F: "megatron.microbatch.forward", Op.B: "megatron.microbatch.backward"}
NUM_STEPS, BETWEEN_S = 4, 0.5


def spans_of(step: Timeline, rank: int) -> list[tuple[str, int, int]]:
    """Name, begin and end in nanoseconds of what Megatron-LM writes on a pipeline rank, step after step."""
    schedule, found = step.schedule, []
    first, last = schedule.rank_offsets[rank : rank + 2]
    for number in range(NUM_STEPS):
        origin = EPOCH_NS + round(number * (step.step_time_s + BETWEEN_S) * 1e9)
        for entry in range(first, last):
            times = [origin + round(time[entry] * 1e9) for time in (step.start, step.end)]
            found.append((NAMES[schedule[entry].op], *times))
        found.append(("megatron.train.iteration", origin, origin + round(step.step_time_s * 1e9)))
        found.append(("megatron.train.log", origin, origin + 1000))
    return found


def resource_of(rank: int, pp: int, apart: int) -> dict[str, Any]:
    return {
        "dl.rank": rank * apart,
        "dl.world_size": pp * apart,
        "dl.pipeline_parallel.size": pp,
        "host.name": "n0",
    }


def as_otlp(resource: dict[str, Any], spans: list[tuple[str, int, int]]) -> str:
    """A line of the OpenTelemetry Collector's file exporter."""
    attributes = [
        {"key": key, "value": {"intValue": str(one)} if isinstance(one, int) else {"stringValue": one}}
        for key, one in resource.items()
    ]
    listed = [
        {"name": name, "startTimeUnixNano": str(begin), "endTimeUnixNano": str(end)} for name, begin, end in spans
    ]
    return json.dumps(
        {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": listed}]}]}
    )


def as_console(resource: dict[str, Any], spans: list[tuple[str, int, int]]) -> str:
    """Lines of the SDK's console exporter, whose times have microseconds."""

    def time(moment_ns: int) -> str:
        return datetime.fromtimestamp(moment_ns // 1000 / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    return "\n".join(
        json.dumps(
            {
                "name": name,
                "context": {"trace_id": "0x1", "span_id": "0x2"},
                "start_time": time(begin),
                "end_time": time(end),
                "resource": {"attributes": resource},
            }
        )
        for name, begin, end in spans
    )


def step_of(name: str, **shape: int) -> Timeline:
    table = ppsim.build(name, **shape)
    return simulate(
        table, StageCosts(forward_s=0.01, backward_input_s=0.01, backward_weight_s=0.01, transfer_s=0.001)
    )


def written(folder: Path, step: Timeline, form: Any, apart: int) -> Path:
    for rank in range(step.schedule.num_ranks):
        text = form(resource_of(rank, step.schedule.num_ranks, apart), spans_of(step, rank))
        (folder / f"rank{rank}.jsonl").write_text(text + "\n")
    return folder


@pytest.mark.parametrize("form", [as_otlp, as_console])
@pytest.mark.parametrize("apart", [1, 8])
def test_spans_are_the_steps_that_made_them(tmp_path: Path, form: Any, apart: int) -> None:
    step = step_of("1f1b", pp=4, microbatches=6)
    run = ppsim.read(written(tmp_path, step, form, apart))
    assert run.timeline.schedule.compute_only() == step.schedule.compute_only()
    assert run.step_times_s == pytest.approx([step.step_time_s] * (NUM_STEPS - 1), abs=3e-6)
    assert "OpenTelemetry spans of Megatron-LM" in str(run)


def test_interleaved_spans_need_the_table(tmp_path: Path) -> None:
    step = step_of("interleaved-1f1b", pp=2, vpp=2, microbatches=4)
    run = ppsim.read(written(tmp_path, step, as_otlp, 1), schedule=step.schedule)
    assert run.timeline.schedule.compute_only() == step.schedule.compute_only()


def test_one_file_may_hold_all_ranks(tmp_path: Path) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    lines = [as_otlp(resource_of(rank, 2, 1), spans_of(step, rank)) for rank in range(2)]
    (tmp_path / "spans.json").write_text("\n".join(lines))
    assert ppsim.read(tmp_path / "spans.json").timeline.schedule.num_ranks == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:1], "no whole pipeline of 2 ranks: set MEGATRON_OTEL_EXPORT_STRATEGY=all_ranks"),
        (
            lambda lines: [line.replace("microbatch", "layer") for line in lines],
            "--otel-span-groups step,microbatch",
        ),
        (lambda lines: [line.replace("dl.rank", "rank") for line in lines], "line 1 is no OpenTelemetry span"),
        (lambda lines: [lines[0], lines[1][:-5]], "line 2 is no OpenTelemetry span"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, change: Any, said: str) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    lines = [as_otlp(resource_of(rank, 2, 1), spans_of(step, rank)) for rank in range(2)]
    (tmp_path / "spans.jsonl").write_text("\n".join(change(lines)))
    with pytest.raises(ConfigError, match=said):
        ppsim.read(tmp_path / "spans.jsonl")


@pytest.mark.parametrize(
    ("form", "old", "new", "said"),
    [
        (as_otlp, '"2"', '"-2"', "line 1 is no OpenTelemetry span: rank 0 of -2, pipeline of 2"),
        (as_otlp, f'"{EPOCH_NS}"', "Infinity", "line 1 is no OpenTelemetry span: cannot convert float infinity"),
        (as_otlp, f'"{EPOCH_NS}"', "1e300", "line 1 is no OpenTelemetry span: from a number of 301 digits to"),
        (as_console, '"dl.world_size": 2', f'"dl.world_size": {2 * 10**300}', "rank 0 of a number of 301 digits"),
        (as_console, '"dl.world_size": 2', '"dl.world_size": 4', "of 2, pipeline of 2, but .*: rank 0 is of 4"),
    ],
)
def test_a_span_with_a_number_that_no_run_has_is_refused_by_its_line(
    tmp_path: Path, form: Any, old: str, new: str, said: str
) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    lines = [form(resource_of(rank, 2, 1), spans_of(step, rank)) for rank in range(2)]
    (tmp_path / "spans.jsonl").write_text("\n".join(lines).replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        ppsim.read(tmp_path / "spans.jsonl")


def test_a_rank_without_the_span_of_its_last_iteration_is_named_with_its_steps(tmp_path: Path) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    whole, killed = (as_console(resource_of(rank, 2, 1), spans_of(step, rank)).splitlines() for rank in range(2))
    del killed[max(at for at, line in enumerate(killed) if "megatron.train.iteration" in line)]
    (tmp_path / "spans.jsonl").write_text("\n".join([*whole, *killed]))
    with pytest.raises(ConfigError, match=r"spans.jsonl: rank 1 has 2 steps, .*: rank 0 has 4"):
        ppsim.read(tmp_path / "spans.jsonl")


def numbered(form: Any, rank: int, step: Timeline, lost: int | None = None) -> str:
    """Return a rank's spans with the numbers of the iterations, without the lost iteration."""
    lines = []
    for number in range(NUM_STEPS):
        spans = spans_of(step, rank)
        per_step = len(spans) // NUM_STEPS
        if number == lost:
            continue
        for span in spans[number * per_step : (number + 1) * per_step]:
            found = json.loads(form(resource_of(rank, 2, 1), [span]))
            if form is as_console:
                found["attributes"] = {"megatron.iteration": 100 + number}
            else:
                attributes = [{"key": "megatron.iteration", "value": {"intValue": str(100 + number)}}]
                found["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = attributes
            lines.append(json.dumps(found))
    return "\n".join(lines)


@pytest.mark.parametrize("form", [as_otlp, as_console])
def test_an_iteration_that_a_rank_lacks_is_left_out_with_the_gaps_around_it(tmp_path: Path, form: Any) -> None:
    """Four iterations 100 to 103, of which rank 1 lost 102: after the warm-up, 101 and 103 are left."""
    step = step_of("1f1b", pp=2, microbatches=4)
    for rank in range(2):
        text = numbered(form, rank, step, lost=2 if rank else None)
        (tmp_path / f"rank{rank}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    run = ppsim.read(tmp_path)
    assert run.step_times_s == pytest.approx([step.step_time_s] * 2, abs=3e-6)
    assert run.facts["between_steps_s"] == [], "101 and 103 are not consecutive"


def test_without_numbers_a_lost_step_is_refused(tmp_path: Path) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    texts = [numbered(as_console, rank, step, lost=2 if rank else None) for rank in range(2)]
    (tmp_path / "spans.jsonl").write_text("\n".join(texts).replace("megatron.iteration", "iteration"))
    with pytest.raises(ConfigError, match=r"rank 1 has 3 steps, .*: rank 0 has 4"):
        ppsim.read(tmp_path / "spans.jsonl")
