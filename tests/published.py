"""Published numbers to check against: benchmarks/published, each file with its source in its first lines."""

import csv
from pathlib import Path


def read(name):
    """Return the rows of a data file as dicts; lines that start with # are its source."""
    lines = (Path(__file__).parents[1] / "benchmarks" / "published" / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))
