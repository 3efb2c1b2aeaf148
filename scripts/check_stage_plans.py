"""Compare `ppsim project --plan auto` with brute force, for 17 small jobs drawn with a seed.

    python scripts/check_stage_plans.py [--seed N] [FIRST [LAST]]    the jobs to check, from 0 to 16; default: all

Brute force simulates all layers per stage, with all mixes of up to four kinds of recomputation in each stage. Each
line has the time of the best plan of brute force, of the best with the same recomputation on all stages (`--split
auto`), and the lower bound, relative to `--plan auto`. Exit code 1 if the same recomputation is faster, if brute
force is more than 0.5 % faster, or if it is below the bound. A job takes up to two minutes.
"""

import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

from numbered_jobs import chosen, numbers_parser

import ppsim
from ppsim.base.errors import PpsimError
from ppsim.catalog.build import find
from ppsim.costs.job_plans import with_plans
from ppsim.costs.ledger import Ledger
from ppsim.costs.stage_options import StageOptions
from ppsim.model.pipeline_stages import StagePlan
from ppsim.model.recompute import LayerPlan, text_of
from ppsim.parallel.layer_partition import AutoSplit
from ppsim.projection.plan import Plan
from ppsim.projection.project import iteration_of, table_of

_SEED, _JOBS, _MOST_GAIN = 51, 17, 0.005
_MOST_PLANS = 30_000
_MODELS = ("llama2-7b", "llama3-8b", "qwen3-4b", "mixtral-8x7b", "gpt-oss-20b")
_SCHEDULES = (("1f1b", 1), ("zb-h1", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("zbv-fixed", 2))


def jobs(seed: int) -> Iterator[dict[str, Any]]:
    """Yield the options of `ppsim.project` of each job; the memory limit is drawn by `limited`."""
    drawn = random.Random(seed)
    for _ in range(_JOBS):
        schedule, vpp = drawn.choice(_SCHEDULES)
        pp = 2 if vpp == 2 else drawn.choice([2, 3])
        yield {
            "model": drawn.choice(_MODELS), "cluster": drawn.choice(["dgx-h100", "dgx-a100", "dgx-b200"]),
            "stack": drawn.choice(["plain", "megatron-bridge@none", "torchtitan"]),
            "layers": drawn.choice([4, 5, 6]) if vpp == 1 else drawn.choice([4, 5]),
            "gpus": pp * drawn.choice([1, 2]), "pp": pp, "vpp": vpp, "schedule": schedule,
            "micro_batch": drawn.choice([1, 2]),
            "global_batch": 8 * drawn.choice([2, 3, 4]) * 3, "seq_len": drawn.choice([2048, 4096]),
            "memory_limit": drawn.uniform(0.2, 0.9),
        }  # fmt: skip


def limited(job: dict[str, Any]) -> dict[str, Any]:
    """Replace the drawn share by bytes between the peaks with full and without recomputation."""
    peaks = [
        float(
            ppsim.project(**job | {"recompute": recompute, "memory_limit": None}).timeline.memory.peak_bytes.max()
        )
        for recompute in ("full", "none")
    ]
    return job | {"memory_limit": peaks[0] + job["memory_limit"] * (peaks[1] - peaks[0])}


def splits(num_layers: int, num_stages: int) -> Iterator[list[int]]:
    """Yield all layers per stage; only the first and the last stage may have none."""
    for counts in product(range(num_layers + 1), repeat=num_stages):
        if sum(counts) == num_layers and all(counts[1:-1]):
            yield list(counts)


def stage_plans(kinds: Sequence[str], num_layers: int) -> list[StagePlan]:
    """Return all mixes of kinds of recomputation; full recomputation comes first, none last."""
    mixes = combinations_with_replacement(kinds, num_layers)
    if not num_layers:
        return [StagePlan()]
    return [StagePlan(text_of([LayerPlan(mix.count(kind), kind) for kind in dict.fromkeys(mix)])) for mix in mixes]


def brute_force(plan: Plan) -> tuple[float, str]:
    """Return the least seconds of all plans that fit, and the plan as text."""
    job, limit = plan.job, plan.memory_limit
    splits_backward = find(plan.schedule_name).splits_backward
    useful = StageOptions(Ledger(job), splits_backward).useful_words
    inner = [kind for kind in useful if kind not in ("none", "full")][:2]
    kinds = [kind for kind in ("full", *inner, "none") if kind in useful]
    table, _ = table_of(plan, find(plan.schedule_name))
    num_layers, num_stages = len(job.model.layers), table.num_model_stages
    plans = [
        (counts, stages)
        for counts in splits(num_layers, num_stages)
        for stages in product(*(stage_plans(kinds, number) for number in counts))
    ]
    if len(plans) > _MOST_PLANS:
        plans = random.Random(0).sample(plans, _MOST_PLANS)
    best = float("inf"), ""
    for counts, stages in plans:
        other = replace(plan, job=with_plans(job, stages, counts), split=AutoSplit(counts), searches_stages=False)
        seconds, peak = iteration_of(other, table)
        if limit.holds(peak):
            best = min(best, (seconds, f"{counts} {[stage.recompute for stage in stages]}"))
    return best


def uniform(job: dict[str, Any]) -> tuple[float, str]:
    """Return the least seconds of `ppsim project --recompute` for each recomputation that fits."""
    best = float("inf"), ""
    numbers = [f"block/{number}" for number in range(1, job["layers"])]
    kinds = (
        ["selective-op"] if job["stack"] == "torchtitan" else ["mlp", "layernorm", "moe_act", "layernorm+moe_act"]
    )
    for recompute in ("none", *kinds, "full", *numbers):
        for split in ("auto", "even"):
            try:
                made = ppsim.project(**job, recompute=recompute, split=split)
            except PpsimError:
                continue
            if not made.is_too_large and not made.runtime_error:
                best = min(best, (made.iteration_time_s, f"{recompute} {split}"))
    return best


def main() -> None:
    given = numbers_parser(__doc__, _SEED).parse_args()
    wrong = 0
    for number, drawn in list(enumerate(jobs(given.seed)))[chosen(given, _JOBS)]:
        print(f"{number}: {' '.join(map(str, drawn.values()))}", flush=True)
        try:
            job = limited(drawn)
            made, plain = ppsim.project(**job, stage_plan="auto"), ppsim.project(**job).plan
        except PpsimError as error:
            print(f"   {str(error)[:100]}", flush=True)
            continue
        (least_s, plan), (uniform_s, recompute) = brute_force(plain), uniform(job)
        [line] = [text for text in made.assumptions if text.startswith("plan: ")]
        bound = re.search(r"lower bound ([\d.]+) (m?s)", line)
        bound_s = float(bound[1]) * (1e-3 if bound[2] == "ms" else 1.0) if bound else 0.0
        seconds = made.iteration_time_s if not made.is_too_large else float("inf")
        is_slower = seconds > least_s * (1 + _MOST_GAIN) or seconds > uniform_s * (1 + 1e-9)
        is_wrong = is_slower or bound_s > 1.005 * min(least_s, seconds)  # 1.005: three printed digits
        wrong += is_wrong
        print(
            f"   {'WRONG' if is_wrong else 'right'}: {seconds:.5f} s, brute force "
            f"{100 * (least_s / seconds - 1):+.2f} % ({plan}), uniform {100 * (uniform_s / seconds - 1):+.2f} % "
            f"({recompute}), bound {100 * (bound_s / seconds - 1):+.2f} %; {line}", flush=True,
        )  # fmt: skip
    print(f"{wrong} jobs are wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
