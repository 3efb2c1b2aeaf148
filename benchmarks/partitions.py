"""Emulated actions of all ranks on one device, compared with the simulation: an end-to-end check of both.

    python benchmarks/partitions.py                          on this CPU, with a waiting thread per rank
    python benchmarks/partitions.py --device cuda            spin kernels on a GPU, 2 to 8 ranks
    python benchmarks/partitions.py --device cuda --record runs.json     measure only: needs torch and numpy
    python benchmarks/partitions.py --report runs.json                   simulate and compare

--record writes the file after each case: the median step, and the quartiles of all steps. A repeated call
continues. Errors are projected / measured - 1: a negative error means that the projection is too fast.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ppsim
from ppsim.base.files import to_json, write_atomically
from ppsim.base.units import seconds, signed_percent
from ppsim.profiling.settings import summarise_samples
from ppsim.runs.timeline_import import ImportedRun, import_result
from ppsim.runtime.partitions import queue_streams_apart, run_partitions
from ppsim.runtime.train_config import MODELS, TrainConfig
from ppsim.schedule.grammar import format_table, parse_table

SCHEDULES = {"1f1b": None, "zb-h1": None, "zbv-fixed": 2}
EMULATED_S = {"cpu": 0.02, "cuda": 0.008}
"""Seconds of F, I and W per rank: long compared with the overshoot of a wait, and with a kernel launch by one of
many threads of one Python process.
"""


def table_of(name: str, p: int, m: int) -> ppsim.Schedule:
    return ppsim.build(name, pp=p, vpp=SCHEDULES[name], microbatches=m)


def record(arguments: argparse.Namespace, cases: list[dict[str, Any]], keep: Any) -> None:
    """Run the missing cases, and call `keep` with all cases after each; needs torch and numpy only.

    A failed case stores its error, and the next case runs.
    """
    there = {(case["p"], case["schedule"]) for case in cases if "result" in case}
    cases[:] = [case for case in cases if "result" in case]
    with tempfile.TemporaryDirectory() as name:
        for p in arguments.partitions:
            for schedule in SCHEDULES:
                if (p, schedule) in there:
                    continue
                begin = time.time()
                try:
                    case = run_case(p, schedule, Path(name), arguments)
                except Exception as error:
                    case = {"p": p, "schedule": schedule, "error": f"{type(error).__name__}: {error}"}
                    print(f"{schedule}, p {p}: {case['error']}", file=sys.stderr)
                cases.append(case | {"measured_at": [begin, time.time()]})
                keep(cases)


def run_case(p: int, schedule: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    table = table_of(schedule, p, max(arguments.microbatches, p))
    one = EMULATED_S[arguments.device] / table.vpp
    costs = {"forward_s": one, "backward_input_s": one, "backward_weight_s": one, "transfer_s": one / 10}
    paths = folder / "table.csv", folder / "costs.json"
    for path, content in zip(paths, (format_table(table), to_json(costs)), strict=True):
        path.write_text(content)
    config = TrainConfig(
        schedule=str(paths[0]), num_ranks=table.num_ranks, model=MODELS["nano"],
        layers_per_stage=[0] * table.num_stages, emulate_costs=str(paths[1]), num_steps=arguments.steps,
        num_warm_up=2, device=arguments.device,
    )  # fmt: skip
    case = {"p": p, "schedule": schedule, "table": format_table(table), "costs": costs}
    result = run_partitions(config)
    return case | {"result": thinned(result, measured(case | {"result": result}, table))}


def thinned(result: dict[str, Any], run: ImportedRun) -> dict[str, Any]:
    """Return the result with the median step only, in seconds from its start, and the quartiles of all steps."""
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
        op: summarise_samples(
            taken[:, [entry for entry, other in enumerate(ops) if other == op]].flatten().tolist()
        )
        for op in dict.fromkeys(ops)
    }
    return result | {"steps": [ranks], "num_warm_up": 0, "step_times_s": run.step_times_s, "took_s": took}


def given_costs(case: dict[str, Any], table: ppsim.Schedule) -> ppsim.StageCosts:
    return ppsim.StageCosts(**case["costs"]).with_torch_first_stage(
        num_stages=table.num_stages, num_ranks=table.num_ranks
    )


def measured(case: dict[str, Any], table: ppsim.Schedule) -> ImportedRun:
    return import_result(case["result"], table, given_costs(case, table))


def report(cases: list[dict[str, Any]]) -> None:
    print("| schedule | p | projected | measured (min–max) | error |")
    print("|---|--:|--:|--:|--:|")
    errors = []
    for case in cases:
        if "error" in case:
            print(f"| {case['schedule']} | {case['p']} | – | {case['error']} | – |")
            continue
        table = parse_table(case["table"], name=case["schedule"])
        projected, run = ppsim.simulate(table, given_costs(case, table)), measured(case, table)
        step, steps = run.timeline.step_time_s, case["result"]["step_times_s"]
        errors.append(projected.step_time_s / step - 1)
        spread = f"{seconds(step)} ({seconds(min(steps))}–{seconds(max(steps))})"
        print(
            f"| {case['schedule']} | {case['p']} | {seconds(projected.step_time_s)} | {spread} "
            f"| {signed_percent(errors[-1])} |"
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
    parser.add_argument("--partitions", type=lambda text: [int(part) for part in text.split(",")], metavar="N,N,…",
                        help="default 2,4; on CUDA 2,4,8")  # fmt: skip
    parser.add_argument("--num-microbatches", dest="microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=9, help="recorded steps per run; the median step is compared")
    parser.add_argument("--record", metavar="FILE", help="write what was measured there, and stop")
    parser.add_argument("--report", metavar="FILE", help="measure nothing; report what --record wrote")
    arguments = parser.parse_args()
    if arguments.partitions is None:
        arguments.partitions = [2, 4, 8] if arguments.device == "cuda" else [2, 4]
    if arguments.report:
        report(json.loads(Path(arguments.report).read_text()))
        return
    queue_streams_apart()
    cases: list[dict[str, Any]] = []
    if arguments.record and Path(arguments.record).exists():
        cases = json.loads(Path(arguments.record).read_text())

    def keep(cases: list[dict[str, Any]]) -> None:
        if arguments.record:
            write_atomically(arguments.record, json.dumps(cases, separators=(",", ":"), allow_nan=False) + "\n")

    record(arguments, cases, keep)
    if not arguments.record:
        report(cases)
    elif failed := [case for case in cases if "error" in case]:
        sys.exit(f"{len(failed)} of {len(cases)} cases failed")


if __name__ == "__main__":
    main()
