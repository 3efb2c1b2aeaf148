"""Other people's code that runs what is exported: a folder beside the checkout, and megatron-core from pip."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[3] / "shared" / "oracles"


def oracles(holding: str) -> Path:
    """The folder that PPSIM_ORACLES names, or the one beside the checkout; skips, saying why, where it lacks a file."""
    folder = Path(os.environ.get("PPSIM_ORACLES", BESIDE)).resolve()
    if not (folder / holding).exists():
        assert "PPSIM_ORACLES" not in os.environ, f"PPSIM_ORACLES names {folder}, which lacks the trainers' code"
        pytest.skip(f"the trainers' code is not in {folder}; PPSIM_ORACLES names another folder")
    return folder


def require_megatron() -> None:
    """Skip without megatron-core. It is not imported here: that takes three times as long as to import torch."""
    missing = [name for name in ("torch", "megatron") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: pip install 'ppsim-pipeline[torch,dev]'")


def oracles_that_run() -> Path:
    """The same, with what is needed to run what is in it; skips, saying why, where something is missing."""
    folder = oracles("run_primus_table.py")
    missing = [name for name in ("torch", "megatron") if importlib.util.find_spec(name) is None]
    if missing or sys.platform != "linux":
        pytest.skip(
            f"needs Linux and {' and '.join(missing) or 'its fork'}: pip install 'ppsim-pipeline[torch,dev]'"
        )
    return folder
