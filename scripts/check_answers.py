"""Project random plans and print those whose numbers contradict each other; the exit code is then 1.

python scripts/check_answers.py                    # 500 plans, about 15 minutes
python scripts/check_answers.py --num 50 --seed 7
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.projection.random_plans import contradictions, random_projections


def main() -> int:
    """Project the plans, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=500, help="random plans [default: 500]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plans [default: 0]")
    options = parser.parse_args()
    num_wrong = 0
    for arguments, made in random_projections(options.seed, options.num):
        if found := contradictions(made):
            num_wrong += 1
            print(arguments, *found, sep="\n  ", flush=True)
    print(f"{options.num} plans, seed {options.seed}: {num_wrong} with contradictions")
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
