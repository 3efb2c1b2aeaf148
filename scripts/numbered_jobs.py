"""The arguments of scripts that check numbered jobs, which a seed draws."""

import argparse


def numbers_parser(description: str, seed: int | None, *, seed_help: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for `[--seed N] [FIRST [LAST]]`, to which a script may add options."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=seed, help=seed_help)
    parser.add_argument("first", type=int, nargs="?")
    parser.add_argument("last", type=int, nargs="?")
    return parser


def chosen(given: argparse.Namespace, num_jobs: int) -> slice:
    """Return the jobs FIRST to LAST, FIRST alone, or all."""
    first = given.first or 0
    last = num_jobs - 1 if given.first is None else given.last or given.first
    return slice(first, last + 1)
