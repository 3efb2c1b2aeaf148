"""Project random plans and print those whose numbers contradict each other; the exit code is then 1.

python scripts/check_answers.py                    # 500 plans, about 15 minutes
python scripts/check_answers.py --num 50 --seed 7
python scripts/check_answers.py --sums --num 2000  # only sums over stages, and the bounds of tune
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.projection.random_plans import COSTLY, contradictions, random_projections, wrong_sums


def main() -> int:
    """Project the plans, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=500, help="random plans [default: 500]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plans [default: 0]")
    parser.add_argument("--sums", action="store_true", help="check only sums over stages, and the bounds of tune")
    options = parser.parse_args()
    num_wrong, values, check = 0, Counter[str](), wrong_sums if options.sums else contradictions
    for arguments, made in random_projections(options.seed, options.num):
        values.update(f"{name} {value}" for name, value in arguments.items() if name in COSTLY)
        if found := check(made):
            num_wrong += 1
            print(arguments, *found, sep="\n  ", flush=True)
    print("plans by value:", ", ".join(f"{name}: {number}" for name, number in sorted(values.items())))
    print(f"{options.num} plans, seed {options.seed}: {num_wrong} with contradictions")
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
