"""Published measurements carried into the tests, each file with its source in its first lines."""

import csv
from pathlib import Path


def read(name):
    """Return the rows of a data file as dicts; lines that start with # are its source."""
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))
