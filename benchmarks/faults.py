"""Detection rate of `explain` for faults injected into simulated steps: ranked first, with size and place.

    PYTHONPATH=. python benchmarks/faults.py --draws 2   every fault and pair of faults on 13 tables, 2,600 draws

Actions take 20 and 40 ms, ± 1 %, in ten steps. A fault is 10 to 30 % of a forward pass, or a multiple
(`benchmarks/made_steps.py`). Of two faults, the larger one must be ranked first: without it, the mean step would be
shorter. A draw in which noise is ranked first, and costs more than all faults, is counted separately. A size is
right within 20 % of the true gain, for two faults within 30 %. A fault whose gain is below a tenth of the other's
need not be listed. `benchmarks/torch_faults.py` has the same faults in a real pipeline.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

from benchmarks.made_steps import Draw, draw, mixtures_of, seed_of_commit, tables

SIZE_OF_ONE, SIZE_OF_TWO = 0.2, 0.3
COLUMNS = ["draws", "larger first", "all of first three", "size right", "place right", "noise first, costs more"]


def row(causes: Sequence[str], draws: Sequence[Draw]) -> list[str]:
    """Return the counts for some causes, relative to the draws in which noise is not ranked first."""
    real = [one for one in draws if not one.is_noise]
    limit = SIZE_OF_ONE if len(causes) == 1 else SIZE_OF_TWO
    counts = [
        sum(one.is_larger_first for one in real),
        sum(one.are_all_named for one in real),
        sum(all(abs(error) <= limit for error in one.errors.values()) for one in real),
        sum(one.are_places_named for one in real),
    ]
    parts = [f"{100 * count / max(len(real), 1):.1f} %" for count in counts]
    return [str(len(draws)), *parts, str(len(draws) - len(real))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2, help="of each fault and pair on each table")
    parser.add_argument("--seed", type=int, default=seed_of_commit(), help="[default: from the commit]")
    parser.add_argument("--single", action="store_true", help="no pairs")
    parser.add_argument("--misses", action="store_true", help="print each draw in which something is wrong")
    arguments = parser.parse_args()
    found: dict[tuple[str, ...], list[Draw]] = defaultdict(list)
    for table in tables():
        for causes in mixtures_of(table):
            if arguments.single and len(causes) > 1:
                continue
            for seed in range(arguments.seed, arguments.seed + arguments.draws):
                one = draw(table, seed, causes)
                found[causes].append(one)
                limit = SIZE_OF_ONE if len(causes) == 1 else SIZE_OF_TWO
                is_right = one.is_larger_first and one.are_places_named
                is_right &= all(abs(error) <= limit for error in one.errors.values())
                if arguments.misses and not is_right and not one.is_noise:
                    told = [(loss.cause, round(1e3 * loss.gain_s, 1), loss.detail[:60]) for loss in one.losses[:3]]
                    true = {cause: round(1e3 * gain, 1) for cause, gain in one.gains.items()}
                    print(table.name, table.num_ranks, table.vpp, seed, true, one.places, told, flush=True)
    print("|", " | ".join(["fault", *COLUMNS]), "|")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for causes, draws in found.items():
        print("|", " | ".join([" + ".join(causes), *row(causes, draws)]), "|")
    for size, name in ((1, "all single faults"), (2, "all pairs")):
        those = [(causes, draws) for causes, draws in found.items() if len(causes) == size]
        if those:
            print("|", " | ".join([name, *row(those[0][0], [one for _, draws in those for one in draws])]), "|")


if __name__ == "__main__":
    main()
