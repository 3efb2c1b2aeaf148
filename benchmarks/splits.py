"""Distance of `--split auto` from the fastest contiguous split, on random small jobs with a fixed seed.

    python benchmarks/splits.py [JOBS] [SEED]

Prints one line per job, then the distribution of the distance to the fastest split and of the simulations per
search.
"""

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import comb

import ppsim
from ppsim.base.errors import PpsimError
from ppsim.parallel.layer_partition import even_split, layer_split
from ppsim.projection import project as planning
from ppsim.projection.project import iteration_of

_MOST_SPLITS = 800
_MODELS = (
    "llama2-7b",
    "llama3-8b",
    "llama3.2-1b",
    "llama2-70b",
    "gpt3-1.3b",
    "qwen2.5-7b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
)
_SCHEDULES = {
    1: ("1f1b", "gpipe", "zb-h1", "zb-h2", "eager-1f1b"),
    2: ("interleaved-1f1b", "interleaved-zb", "looped-bfs", "gis", "zbv-fixed", "v-half-fixed", "v-min-fixed", "1f1b-v", "dualpipev", "dualpipe", "chimera", "hanayo"),
    3: ("interleaved-1f1b", "interleaved-zb", "looped-bfs"),
}  # fmt: skip


def random_job(draw: random.Random) -> dict[str, object]:
    """Return the options of a job with few enough splits to try all."""
    while True:
        pp, vpp = draw.choice((2, 3, 4)), draw.choice((1, 2, 2, 2, 3))
        schedule = draw.choice(_SCHEDULES[vpp])
        stages = pp * vpp // (2 if schedule in ("dualpipe", "chimera") else 1)
        layers = draw.randint(stages, 3 * stages)
        tp, dp, micro_batch = draw.choice((1, 1, 2, 4)), draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2))
        num_microbatches = pp * draw.choice((1, 2, 4, 6))
        words = {
            "model": draw.choice(_MODELS), "layers": layers, "gpus": tp * dp * pp, "tp": tp, "pp": pp, "vpp": vpp,
            "schedule": schedule, "micro_batch": micro_batch, "global_batch": num_microbatches * micro_batch * dp,
            "seq_len": draw.choice((2048, 4096, 8192)), "zero": draw.choice((0, 1, 1, 1, 2, 3)),
            "recompute": draw.choice(("none", "none", "full")),
        }  # fmt: skip
        if comb(layers + 1, stages - 1) <= _MOST_SPLITS:
            return words


def all_splits(layers: int, stages: int) -> Iterator[list[int]]:
    """Yield every contiguous split; only the first and the last stage may have no layer."""
    for cuts in combinations(range(layers + 2 - 1), stages - 1):
        ends = [*cuts, layers + 1]
        counts = [end - begin for begin, end in zip([-1, *cuts], ends, strict=True)]
        yield [counts[0] - 1, *counts[1:-1], counts[-1] - 1]


def main(number: int, seed: int) -> None:
    draw, apart, before, trials, seconds = random.Random(seed), [], [], [], 0.0
    made_by, tried = planning.simulate_step, []
    planning.simulate_step = lambda *given: tried.append(0) or made_by(*given)
    while len(apart) < number:
        words = random_job(draw)
        try:
            job = ppsim.project(**{**words, "split": "even"})
            tried.clear()
            begin = time.perf_counter()
            made = ppsim.project(**words)
            seconds += time.perf_counter() - begin
        except PpsimError as error:
            print("skipped:", str(error)[:100], file=sys.stderr)
            continue
        trials.append(len(tried))
        plan, table = job.plan, made.timeline.schedule
        stages, limit = table.num_model_stages, plan.memory_bound_bytes
        found = {}
        for split in all_splits(words["layers"], stages):
            found[tuple(split)] = iteration_of(replace(plan, split=split), table)
        fits = {split: one for split, one in found.items() if one[1] <= limit} or found
        best = min(fits, key=lambda split: fits[split][0])
        ends = layer_split(plan.source.layer_costs().work_s, stages, **_ends(plan))
        apart.append(made.iteration_time_s / fits[best][0] - 1)
        before.append(found[tuple(ends)][0] / fits[best][0] - 1)
        even_s = found[tuple(even_split(words["layers"], stages))]
        assert even_s[1] > limit or made.iteration_time_s <= even_s[0] * (1 + 1e-9), words
        print(
            f"{100 * before[-1]:6.2f} % {100 * apart[-1]:6.2f} % {trials[-1]:3d} of {len(found):4d}"
            f"{'' if fits is found or len(fits) == len(found) else ' (some do not fit)'}  {made.split} best {list(best)}  "
            + " ".join(map(str, words.values())), flush=True,
        )  # fmt: skip
    for name, those in (("slowest stage", before), ("--split auto", apart)):
        order = sorted(those)
        print(
            f"{name}: mean {100 * sum(order) / number:.3f} %, median {100 * order[number // 2]:.3f} %, 90 % "
            f"{100 * order[9 * number // 10]:.3f} %, worst {100 * order[-1]:.3f} %, "
            f"best in {sum(one < 1e-9 for one in order)}, within 0.3 % in {sum(one <= 0.003 for one in order)} of {number}"
        )
    print(
        f"simulations per search: mean {sum(trials) / number:.1f}, most {max(trials)}; {1e3 * seconds / number:.0f} ms per projection"
    )


def _ends(plan: ppsim.Plan) -> dict[str, float]:
    from ppsim.costs.job import work_of

    embedding, head = map(work_of, plan.job.costs.ends)
    mtp = sum(work_of(plan.job.costs.mtp(layer)) for layer in plan.job.model.mtp)
    return {"embedding_s": embedding, "head_s": head * (1 + len(plan.job.model.mtp)), "mtp_s": mtp}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
