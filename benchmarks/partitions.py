"""The closed loop on one device: profile in a partition, project, run all ranks at once, compare.

    python benchmarks/partitions.py                          on this CPU: threads; p above the cores measures waiting
    python benchmarks/partitions.py --device cuda --model gpt2 --hidden 2048 --heads 16 --dtype bfloat16
    python benchmarks/partitions.py --device cuda --emulated     spin kernels, 2 to 8 ranks, no green contexts
    python benchmarks/partitions.py --device cuda --record runs.json     where pydantic is missing: measure only
    python benchmarks/partitions.py --report runs.json                   and elsewhere: project and compare

--record keeps the median step of each case and quartiles of the others, after each; repeated, it goes on.

Each layer is profiled inside a partition of the size that a rank gets, the others being busy with the same work.
Errors are projected / measured - 1: negative is too optimistic. The peaks are the rank's whose error is worst.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ppsim
from ppsim.base.boundary import validated
from ppsim.base.files import to_json, write_whole
from ppsim.base.units import seconds, signed_percent, size
from ppsim.layout.split import even_split
from ppsim.model.parameters import VOCAB_MULTIPLE, padded_vocabulary
from ppsim.profiling.samples import quantity
from ppsim.runs.recorded import Measured, measured_of
from ppsim.runtime.config import MODELS, GPTShape, TrainConfig
from ppsim.runtime.partitions.check import queue_streams_apart
from ppsim.schedule.grammar import format_table, parse_table

SCHEDULES = {"1f1b": None, "zb-h1": None, "zbv-fixed": 2}
EMULATED_S = {"cpu": 0.02, "cuda": 0.008}
"""What F, I and W of a spinning rank take: long beside a wait that overshoots, and beside a launch by one of many
threads of one Python."""


def table_of(name: str, p: int, m: int) -> ppsim.Schedule:
    return ppsim.build(name, pp=p, vpp=SCHEDULES[name], microbatches=m)


def shape_of(arguments: argparse.Namespace) -> GPTShape:
    shape = MODELS[arguments.model]
    if arguments.device == "cuda":  # a head whose rows are not aligned takes four times as long, and most of a step
        shape = replace(shape, vocab_size=padded_vocabulary(shape.vocab_size, tp=1, multiple=VOCAB_MULTIPLE))
    given = {"num_layers": arguments.layers, "hidden_size": arguments.hidden, "num_heads": arguments.heads}
    return replace(shape, **{name: value for name, value in given.items() if value is not None})


def config_of(table: ppsim.Schedule, folder: Path, arguments: argparse.Namespace, **fields: Any) -> TrainConfig:
    path = folder / "table.csv"
    path.write_text(format_table(table))
    shape = shape_of(arguments)
    return TrainConfig(
        schedule=str(path), num_ranks=table.num_ranks, model=shape, micro_batch=arguments.micro_batch,
        layers_per_stage=even_split(shape.num_layers, table.num_stages), num_steps=arguments.steps, num_warm_up=2,
        dtype=arguments.dtype, device=arguments.device, **fields,
    )  # fmt: skip


def profiled(p: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A profile's content, measured in one of p partitions."""
    import torch

    from ppsim.profiling.harness import measure_shape, model_header
    from ppsim.profiling.models import of_gpt
    from ppsim.profiling.settings import Key, Settings
    from ppsim.runtime.clock import raise_clock

    model = of_gpt(shape_of(arguments))
    raise_clock(torch.device(arguments.device))
    settings = Settings(arguments.device, num_repeats=arguments.repeats, num_partitions=p)
    key = Key(arguments.micro_batch, model.sequence_length, arguments.dtype)
    content = model_header(f"partition of {p}", arguments.model, model, settings)
    content["measurements"] = measure_shape(model, key, settings)
    return content


def record(arguments: argparse.Namespace, cases: list[dict[str, Any]], keep: Any) -> None:
    """Profile and run what `cases` lack, and `keep` them after each; nothing here needs more than torch and numpy.

    A case that fails is kept with its error, and the next one goes on.
    """
    there = {(case["p"], case["schedule"]) for case in cases if "result" in case}
    cases[:] = [case for case in cases if "result" in case]
    with tempfile.TemporaryDirectory() as name:
        for p in arguments.partitions:
            profile = None
            for schedule in SCHEDULES:
                if (p, schedule) in there:
                    continue
                begin = time.time()
                try:
                    profile = profile or (None if arguments.emulated else profiled(p, arguments))
                    case = run_case(p, schedule, profile, Path(name), arguments)
                except Exception as error:
                    case = {"p": p, "schedule": schedule, "error": f"{type(error).__name__}: {error}"}
                    print(f"{schedule}, p {p}: {case['error']}", file=sys.stderr)
                cases.append(case | {"measured_at": [begin, time.time()]})
                keep(cases)


def run_case(
    p: int, schedule: str, profile: dict[str, Any] | None, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    from ppsim.runtime.partitions.run import run_partitions

    table, costs, emulate = table_of(schedule, p, max(arguments.microbatches, p)), None, None
    if arguments.emulated:
        one = EMULATED_S[arguments.device] / table.vpp
        costs = {"forward_s": one, "backward_input_s": one, "backward_weight_s": one, "transfer_s": one / 10}
        emulate = str(folder / "costs.json")
        Path(emulate).write_text(to_json(costs))
    result = run_partitions(config_of(table, folder, arguments, emulate_costs=emulate))
    case = {"p": p, "schedule": schedule, "table": format_table(table), "profile": profile, "costs": costs}
    return case | {"result": thinned(result, measured(case | {"result": result}, table))}


def thinned(result: dict[str, Any], run: Measured) -> dict[str, Any]:
    """The result with the median step alone, in seconds from its begin, and quartiles of what all steps took."""
    step = result["steps"][run.chosen_step]
    zero = min(record["begin"] for rank in step for record in rank["records"])

    def at(value: Any) -> Any:
        return [at(one) for one in value] if isinstance(value, (list, tuple)) else round(value - zero, 8)

    ranks = [
        {
            "records": [
                record | {key: at(record[key]) for key in ("begin", "end", "waits", "calls")}
                for record in rank["records"]
            ],
            "transfers": {name: at(span) for name, span in rank["transfers"].items()},
        }
        for rank in step
    ]
    schedule, taken = run.timeline.schedule, run.run.end - run.run.start
    ops = [schedule[entry].op.name for entry in range(len(schedule))]
    took = {
        op: quantity(taken[:, [entry for entry, other in enumerate(ops) if other == op]].flatten().tolist())
        for op in dict.fromkeys(ops)
    }
    return result | {"steps": [ranks], "num_warm_up": 0, "step_times_s": run.step_times_s, "took_s": took}


def projected_of(case: dict[str, Any], table: ppsim.Schedule) -> ppsim.Timeline:
    """The simulation at the profile's costs, or at those emulated; copies on one device wait for their content."""
    from ppsim.costs.profile import Profile
    from ppsim.projection.plan import Plan
    from ppsim.projection.project import project_table

    if case["costs"]:
        given = ppsim.StageCosts(**case["costs"])
        counts = {"num_stages": table.num_stages, "num_ranks": table.num_ranks}
        return ppsim.simulate(table, given.with_torch_first_stage(**counts))
    profile = validated(Profile, case["profile"], "the profile")
    plan = Plan(pp=case["p"], profile=profile, split="even", channel="ideal")
    return project_table(plan, table).timeline


def measured(case: dict[str, Any], table: ppsim.Schedule) -> Measured:
    given = None
    if case["costs"]:
        counts = {"num_stages": table.num_stages, "num_ranks": table.num_ranks}
        given = ppsim.StageCosts(**case["costs"]).with_torch_first_stage(**counts)
    return measured_of(case["result"], table, given)


def report(cases: list[dict[str, Any]]) -> None:
    from ppsim.runs.peaks import peak_errors, peaks_in

    print("| schedule | p | projected | measured (min–max) | error | peak projected | peak measured | error |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    errors = []
    for case in cases:
        if "error" in case:
            print(f"| {case['schedule']} | {case['p']} | – | {case['error']} | – | – | – | – |")
            continue
        table = parse_table(case["table"], name=case["schedule"])
        projected, run = projected_of(case, table), measured(case, table)
        step, steps = run.timeline.step_time_s, case["result"]["step_times_s"]
        errors.append(projected.step_time_s / step - 1)
        peaks = sorted(peak_errors(peaks_in(case["result"], "the run"), projected), key=lambda one: abs(one.error))
        memory = ["–", "–", "–"]
        if peaks:
            worst = peaks[-1]
            memory = [size(worst.projected_bytes), size(worst.measured_bytes), signed_percent(worst.error)]
        spread = f"{seconds(step)} ({seconds(min(steps))}–{seconds(max(steps))})"
        print(
            f"| {case['schedule']} | {case['p']} | {seconds(projected.step_time_s)} | {spread} "
            f"| {signed_percent(errors[-1])} | {' | '.join(memory)} |"
        )
    if not errors:
        sys.exit("every case failed")
    mean, absolute = sum(errors) / len(errors), sum(map(abs, errors)) / len(errors)
    print(
        f"\nstep time: mean {signed_percent(mean)}, mean absolute {signed_percent(absolute).lstrip('+')}, "
        f"worst {signed_percent(max(errors, key=abs))}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--emulated", action="store_true", help="wait (CPU) or spin (CUDA) instead of computing")
    parser.add_argument("--partitions", type=lambda text: [int(part) for part in text.split(",")], metavar="N,N,…",
                        help="default 2,4; emulated on CUDA 2,4,8")  # fmt: skip
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--model", choices=list(MODELS), default="mini")
    for name in ("layers", "hidden", "heads"):
        parser.add_argument(f"--{name}", type=int, help="instead of the model's")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=9, help="recorded steps a run; the median one counts")
    parser.add_argument("--repeats", type=int, default=30, help="measurements of each pass")
    parser.add_argument("--record", metavar="FILE", help="write what was measured there, and stop")
    parser.add_argument("--report", metavar="FILE", help="measure nothing; report what --record wrote")
    arguments = parser.parse_args()
    if arguments.partitions is None:
        arguments.partitions = [2, 4, 8] if arguments.emulated and arguments.device == "cuda" else [2, 4]
    if arguments.report:
        report(json.loads(Path(arguments.report).read_text()))
        return
    queue_streams_apart()
    cases: list[dict[str, Any]] = []
    if arguments.record and Path(arguments.record).exists():
        cases = json.loads(Path(arguments.record).read_text())

    def keep(cases: list[dict[str, Any]]) -> None:
        if arguments.record:
            write_whole(arguments.record, json.dumps(cases, separators=(",", ":"), allow_nan=False) + "\n")

    record(arguments, cases, keep)
    if not arguments.record:
        report(cases)
    elif failed := [case for case in cases if "error" in case]:
        sys.exit(f"{len(failed)} of {len(cases)} cases failed")


if __name__ == "__main__":
    main()
