"""OpenTelemetry spans of Megatron-LM, in both of its formats, are read as the steps that made them."""

import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

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
    """The SDK's console exporter writes an object over several lines, with times in microseconds."""
    out, provider = io.StringIO(), TracerProvider(resource=Resource(resource), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out)))
    for name, begin, end in spans:
        provider.get_tracer("nemo.lens").start_span(name, start_time=begin).end(end)
    return out.getvalue()


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


def test_a_pipeline_without_one_of_its_ranks_is_explained_if_their_number_is_stated(tmp_path: Path) -> None:
    written(tmp_path, step_of("1f1b", pp=4, microbatches=6), as_otlp, 2)
    (tmp_path / "rank2.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"explain --ranks 4 with some"):
        ppsim.explain(tmp_path)
    assert ppsim.explain(tmp_path, ranks=4).note.startswith("without rank 2: ")
    with pytest.raises(ConfigError, match="--ranks 5: the job had 4 ranks"):
        ppsim.explain(tmp_path, ranks=5)


def test_one_file_may_hold_all_ranks(tmp_path: Path) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    lines = [as_otlp(resource_of(rank, 2, 1), spans_of(step, rank)) for rank in range(2)]
    (tmp_path / "spans.json").write_text("\n".join(lines))
    assert ppsim.read(tmp_path / "spans.json").timeline.schedule.num_ranks == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:1], "no whole pipeline of 2 ranks: set MEGATRON_OTEL_RANK_STRATEGY=all_ranks and"),
        (
            lambda lines: [line.replace("microbatch", "layer") for line in lines],
            "--otel-span-groups per_step,microbatch",
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
    spans = [spans_of(step, rank) for rank in range(2)]
    del spans[1][max(place for place, span in enumerate(spans[1]) if span[0] == "megatron.train.iteration")]
    texts = [as_console(resource_of(rank, 2, 1), spans[rank]) for rank in range(2)]
    (tmp_path / "spans.jsonl").write_text("".join(texts))
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


MS = 10**6
WORK = [  # after the last pass of an iteration: name, begin and length in ms
    ("megatron.grad_sync.finish", 0, 20),
    ("megatron.train.iteration.optimizer", 20, 100),
    ("megatron.train.iteration_report", 121, 40),  # contains the next one
    ("megatron.train.params_norm", 130, 30),
]
LATE_WORK = [
    ("megatron.evaluate", 170, 300),
    ("megatron.microbatch.forward", 180, 100),
    ("megatron.microbatch.forward", 290, 100),
    ("megatron.checkpoint.exposed_save", 500, 1900),
]


@pytest.mark.parametrize("form", [as_otlp, as_console])
def test_work_between_steps_is_named_and_forwards_of_an_evaluation_are_no_passes(tmp_path: Path, form: Any) -> None:
    """An evaluation and a checkpoint follow the fourth of six iterations; the gaps are 0.5 s, there 2.5 s."""
    step = step_of("1f1b", pp=2, microbatches=4)
    (tmp_path / "spans").mkdir()
    for rank in range(2):
        begin, spans = EPOCH_NS, []
        for number in range(6):
            spans += [
                (name, begin + at - EPOCH_NS, begin + to - EPOCH_NS) for name, at, to in spans_of(step, rank)[:9]
            ]
            done = begin + round(step.step_time_s * 1e9)
            work = WORK + LATE_WORK * (number == 3)
            spans += [(name, done + after * MS, done + (after + length) * MS) for name, after, length in work]
            begin = done + (2500 if number == 3 else 500) * MS
        (tmp_path / "spans" / f"rank{rank}.jsonl").write_text(form(resource_of(rank, 2, 1), spans) + "\n")
    if form is as_otlp:
        ppsim.save(ppsim.read(tmp_path / "spans"), tmp_path / "run.json")
    found = ppsim.explain(tmp_path / ("run.json" if form is as_otlp else "spans"))
    assert (found.num_steps, found.step_s) == (5, pytest.approx(step.step_time_s, abs=1e-5))
    between = next(loss for loss in found.losses if loss.cause == "time between steps")
    assert between.detail == (
        "rank 0 starts a step 500 ms after the last pass of the step before (optimizer 100 ms, parameter norm "
        "30.0 ms, gradient reduction 20.0 ms), 2.50 s after step 4 (checkpoint 1.90 s)"
    )


def test_the_output_of_a_run_has_log_lines_and_metrics_between_its_spans(tmp_path: Path) -> None:
    step = step_of("1f1b", pp=2, microbatches=4)
    for rank in range(2):
        text = as_console(resource_of(rank, 2, 1), spans_of(step, rank))
        metrics = '{\n    "resource_metrics": [\n        {}\n    ]\n}\n'
        log = " [2026-08-01 10:00:00] iteration 1/ 10 | elapsed time per iteration (ms): 100.0 |\n\n"
        (tmp_path / f"{rank}.log").write_text(log + text.replace("}\n{\n", f"}}\n{log}{metrics}{{\n"))
    run = ppsim.read(tmp_path / "0.log", tmp_path / "1.log")
    assert run.timeline.schedule.compute_only() == step.schedule.compute_only()


@pytest.mark.torch
def test_spans_of_two_real_ranks_name_the_pause_and_the_work_between_steps(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "megatron_spans.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    found = ppsim.explain(tmp_path)
    assert found.num_steps == 5
    details = {loss.cause: loss.detail for loss in found.losses}
    assert re.search(r"step 3: rank 0, \d\d\d ms before 0F3 \(garbage collection\)", details["pauses"])
    between = r"rank 0 starts a step .* \(.*optimizer \d+(\.\d)? ms.*\), .* after step 4 \(checkpoint \d\d\d ms\)"
    assert re.fullmatch(between, details["time between steps"])
