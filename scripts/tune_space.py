"""Compare `ppsim tune` with brute force by `ppsim project`, for six jobs drawn by the hash of the commit.

    python scripts/tune_space.py [--seed N] [--plans N] [FIRST [LAST]]    the jobs, from 0 to 5; default: all

The jobs: dense, MoE, FSDP2, tight memory, LoRA, AMD. Brute force projects the full product of some options, at
least 2,000 plans per job, in which each option that the search changes has two values or more in two jobs. `tune`
searches the same ranges and keeps all other options. Exit code 1 if a best of brute force is more than 0.1 % faster
than the best of `tune`, or if a plan has other seconds, bytes or another verdict in the search (1e-9).
"""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from numbered_jobs import chosen, numbers_parser

import ppsim
from ppsim.base.errors import PpsimError
from ppsim.costs.job import Job
from ppsim.projection.changes import SWITCHES, can_switch, settings_of
from ppsim.tuning.evaluate import evaluate, simulate, table_at, task_of
from ppsim.tuning.lower_bounds import BoundsCalculator
from ppsim.tuning.space import Configuration, SearchProblem

_MOST_GAIN, _DIFFERENCE, _LEAST_PLANS, _MOST_PRINTED = 1e-3, 1e-9, 2_000, 3
_RANGES: dict[str, list[Any]] = {
    "tp": [1, 2], "cp": [1, 2], "pp": [1, 2], "ep": [1, 4], "vpp": [1, 2], "micro_batch": [1, 2],
    "schedule": ["1f1b", "interleaved-1f1b"], "recompute": ["none", "full"], "zero": [0, 1],
    "split": ["auto", "even"],
}  # fmt: skip
_ALSO: dict[str, list[Any]] = {
    "overlap_grad_reduce": [False], "overlap_param_gather": [False],
    "attention": ["unfused"], "cross_entropy": ["unfused"], "gradient_accumulation_fusion": [False],
    "moe_permute_fusion": [False],
}  # fmt: skip
"""Settings that the search only leaves."""

_KINDS: dict[str, dict[str, list[Any]]] = {
    "dense": {"model": ["llama3-8b", "llama2-7b", "qwen3-4b"], "cluster": ["dgx-h100", "dgx-a100", "dgx-b200"],
              "stack": ["plain", "megatron-bridge"], "gpus": [16]},
    "MoE": {"model": ["qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b"], "cluster": ["dgx-h100", "dgx-b200"],
            "stack": ["plain", "megatron-bridge"], "gpus": [16, 32]},
    "FSDP": {"model": ["llama3-8b", "qwen3-4b"], "cluster": ["dgx-h100", "dgx-b200"], "stack": ["torchtitan"],
             "gpus": [16]},
    "tight": {"model": ["llama2-13b", "llama3-8b"], "cluster": ["dgx-a100", "dgx-h100"], "stack": ["torchtitan"],
              "gpus": [8], "memory_limit": ["30GiB", "36GiB", "44GiB"]},
    "LoRA": {"model": ["llama3-8b", "llama2-13b"], "cluster": ["dgx-h100", "dgx-a100"],
             "stack": ["plain", "megatron-bridge"], "gpus": [8, 16], "lora": ["16"]},
    "AMD": {"model": ["mixtral-8x7b", "qwen3-30b-a3b"], "cluster": ["mi300x-8"], "stack": ["primus", "plain"],
            "gpus": [16, 32]},
}  # fmt: skip
_FIXED: dict[str, Any] = {
    "cp": 1, "ep": 1, "vpp": 1, "micro_batch": 1, "schedule": "1f1b", "recompute": "none", "split": "auto",
}  # fmt: skip
_MORE: dict[str, list[Any]] = {"micro_batch": [4], "tp": [4], "pp": [4], "vpp": [4], "cp": [4]}
"""Settings added one after another until a product has enough plans."""


def drawn_jobs(seed: int, least: int) -> list[tuple[dict[str, Any], dict[str, list[Any]]]]:
    """Return the options of each job, and the settings of each option of its product."""
    drawn = random.Random(seed)
    jobs = []
    for choices in _KINDS.values():
        job = {name: drawn.choice(settings) for name, settings in choices.items()}
        jobs.append(
            job | {"global_batch": job["gpus"] * drawn.choice([2, 4]), "seq_len": drawn.choice([2048, 4096])}
        )
    dimensions: list[dict[str, list[Any]]] = [{"tp": [1, 2], "pp": [1, 2]} for _ in jobs]
    names = list(dict.fromkeys([*_RANGES, *SWITCHES]))
    for name in drawn.sample(names, k=len(names)):
        possible = [number for number, job in enumerate(jobs) if len(_settings(job, name)) > 1]
        for number in sorted(possible, key=lambda number: len(dimensions[number]))[:2]:
            dimensions[number].setdefault(name, _settings(jobs[number], name))
    for of_job in dimensions:
        for name, more in _MORE.items():
            if prod(map(len, of_job.values())) < least:
                of_job[name] = [*of_job.get(name, [_FIXED.get(name)]), *more]
    return list(zip(jobs, dimensions, strict=True))


def _job(job: dict[str, Any], **sizes: int) -> Job:
    return ppsim.job(**{name: setting for name, setting in job.items() if name != "memory_limit"}, **sizes)


def _settings(job: dict[str, Any], name: str) -> list[Any]:
    """Return the settings of an option in the product: of a layout with tp 2, cp 2, ep 4 and pp 2."""
    is_torch = job["stack"] == "torchtitan"
    if name in _RANGES:
        has_experts = _job(job, pp=1).model.kinds[-1].is_moe
        if name == "recompute" and is_torch:
            return ["none", "selective-op", "full"]
        return ([2, 3] if name == "zero" and is_torch else _RANGES[name]) if has_experts or name != "ep" else []
    ep = {"ep": 4} if _job(job, pp=1).model.kinds[-1].is_moe else {}
    made = _job(job | {"gpus": 16}, tp=2, pp=2, **({"cp": 2} if name == "context" else {}), **ep)
    if not can_switch(made, name):
        return []
    settings = [settings_of(made)[name], *SWITCHES[name].settings(made), *_ALSO.get(name, [])]
    return list(dict.fromkeys(settings))[:3]


def plans(job: dict[str, Any], dimensions: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the options of each plan; with several stages per rank, 1f1b is interleaved."""
    fixed = _FIXED | {"zero": _job(job, pp=1).optimizer.zero_stage}
    for settings in product(*dimensions.values()):
        plan = fixed | dict(zip(dimensions, settings, strict=True))
        if plan.get("overlap_ep"):
            plan["schedule"] = "combined-1f1b"
        elif plan["vpp"] > 1 and plan["schedule"] == "1f1b":
            plan["schedule"] = "interleaved-1f1b"
        yield plan


def configuration_of(plan: dict[str, Any], question: SearchProblem) -> Configuration:
    """Return the plan as the search has it."""
    sizes = {name: plan[name] for name in ("tp", "cp", "ep", "pp", "vpp", "micro_batch")}
    dp = question.num_gpus // (sizes["tp"] * sizes["cp"] * sizes["pp"])
    split = "searched" if plan["split"] == "auto" else "even"
    others = {name: plan[name] for name in ("recompute", "schedule", "zero")}
    made = Configuration(**sizes, dp=dp, split=split, **others)
    switches = {name: setting for name, setting in plan.items() if name not in _RANGES}
    return made.changed(switches, question.own_settings(made))


Answer = tuple[float, float, str]
"""Seconds, bytes, and the verdict."""


def projected(job: dict[str, Any], plan: dict[str, Any]) -> Answer | str:
    """Return the answer of `ppsim project`, or the reason against the plan."""
    try:
        made = ppsim.project(**job, **plan)
        return made.iteration_time_s, float(made.timeline.memory.peak_bytes.max()), made.verdict.word
    except PpsimError as error:
        return str(error)


def searched(calculator: BoundsCalculator, plan: dict[str, Any]) -> Answer | str:
    """Return the answer of the search, or the reason against the plan."""
    try:
        candidate = configuration_of(plan, calculator.question)
        task = task_of(calculator, calculator.of(candidate))
        [(_, outcome)] = evaluate([task], front=())
        simulated = simulate(task.plan, table_at(task.plan))
        word = calculator.question.verdict(candidate, outcome.peak_bytes)
        is_possible = simulated.status != "not possible"
        return (simulated.iteration_time_s, outcome.peak_bytes, word) if is_possible else simulated.status
    except PpsimError as error:
        return str(error)


def is_different(one: Answer | str, other: Answer | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) != isinstance(other, str)
    differences = [abs(here / there - 1) for here, there in zip(one[:2], other[:2], strict=True)]
    return one[2] != other[2] or max(differences) > _DIFFERENCE


def check(job: dict[str, Any], dimensions: dict[str, list[Any]], most: int) -> bool:
    """Print the result of a job, and return whether it is wrong."""
    print(" ".join(map(str, job.values())), dimensions, flush=True)
    begin = time.process_time()
    every = list(plans(job, dimensions))
    if most:
        every = random.Random(0).sample(every, min(most, len(every)))
    ranges = {name: list(dict.fromkeys(plan[name] for plan in every)) for name in _RANGES}
    keep = [name for name in SWITCHES if name not in dimensions and name not in _RANGES]
    found = ppsim.tune(**job, **ranges, keep=keep, top=1)
    took = time.process_time() - begin
    calculator, different, possible = BoundsCalculator(found.question), 0, 0
    best: tuple[bool, float, dict[str, Any]] = (True, float("inf"), {})
    for plan in every:
        here, there = projected(job, plan), searched(calculator, plan)
        possible += not isinstance(here, str)
        if is_different(here, there):
            different += 1
            if different <= _MOST_PRINTED:
                print(f"   {plan}\n      project: {here}\n      tune: {there}", flush=True)
        if isinstance(here, tuple) and here[2] != "does not fit" and (here[2] != "fits", here[0]) < best[:2]:
            best = here[2] != "fits", here[0], plan
    is_tighter = (found.best[0].verdict != "fits") > best[0]
    gain = float("inf") if is_tighter else found.best[0].iteration_time_s / best[1] - 1
    print(
        f"   {len(every)} plans, {possible} possible, {different} different in the search; brute force "
        f"{100 * gain:+.3f} % faster ({took:.0f} s of tune, {time.process_time() - begin - took:.0f} s)\n"
        f"      tune: {found.best[0].candidate.key}\n      brute force: {best[2]}", flush=True,
    )  # fmt: skip
    return bool(different) or gain > _MOST_GAIN


def main() -> None:
    parser = numbers_parser(__doc__, None, seed_help="[default: the hash of the commit]")
    parser.add_argument("--plans", type=int, default=0, help="draw so many plans of each product [default: all]")
    given = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    seed = int(commit[:8], 16) if given.seed is None else given.seed
    print(f"seed {seed}")
    wrong = sum(check(*drawn, given.plans) for drawn in drawn_jobs(seed, _LEAST_PLANS)[chosen(given, len(_KINDS))])
    print(f"{wrong} jobs are wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
