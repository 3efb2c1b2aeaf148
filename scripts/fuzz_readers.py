"""Pass mutated files to every reader, in one process, and print unexpected errors and slow or memory-hungry inputs.

    python scripts/fuzz_readers.py                     # 20,000 files
    python scripts/fuzz_readers.py --num 500 --only train.sh --seed 7

A reader must read each file, or refuse it with a sentence (`PpsimError`), within 2 s and 500 MB. Otherwise the exit
code is 1. CI runs 2,000 files (tests/fuzzing/test_readers.py).
"""

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzzing.run import fuzz

MOST_S, MOST_BYTES = 2.0, 500e6


def main() -> int:
    """Run the readers, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=20_000, help="mutated files [default: 20000]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations [default: 0]")
    parser.add_argument("--only", help="one file of the corpus, for example train.sh [default: all]")
    parser.add_argument("--keep", type=Path, help="folder for the inputs of unforeseen errors")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), options.num, options.seed, options.only)
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(found.outcomes.items()))
    print(f"{options.num:,} files, seed {options.seed}: {counts}; {time.perf_counter() - begun:.0f} s")
    for number, (key, (name, content, text)) in enumerate(found.unforeseen.items()):
        print(f"\n{key}\n{text}\nof {content[:300]!r}")
        if options.keep:
            options.keep.mkdir(exist_ok=True)
            (options.keep / f"{number}-{Path(name).name}").write_bytes(content)
    for seconds, name, content in found.slowest:
        print(f"slowest: {seconds:.2f} s, {name}, {len(content):,} bytes: {content[:60]!r}")
    for grown, name, content in found.largest:
        print(f"largest: {grown / 1e6:.0f} MB more, {name}, {len(content):,} bytes: {content[:60]!r}")
    is_slow = any(seconds > MOST_S for seconds, *_ in found.slowest)
    is_large = any(grown > MOST_BYTES for grown, *_ in found.largest)
    return int(bool(found.unforeseen) or is_slow or is_large)


if __name__ == "__main__":
    sys.exit(main())
