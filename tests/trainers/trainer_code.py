"""Trainers' code that runs what is exported: checkouts that a developer names, and megatron-core from pip."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parents[3] / "shared" / "trainer_checks"


def check_file(name: str) -> Path:
    """Return a file of `../shared/trainer_checks`. Skip if it is missing."""
    if not (CHECKS / name).exists():
        pytest.skip(f"needs ../shared/trainer_checks/{name}")
    return CHECKS / name


def checkout(variable: str, package: str = "") -> Path:
    """Return the checkout that PPSIM_PRIMUS, PPSIM_MEGATRON or PPSIM_AUTOMODEL names. Skip without the variable."""
    if variable not in os.environ:
        pytest.skip(f"needs a checkout: {variable}=FOLDER")
    folder = Path(os.environ[variable]).resolve()
    package = package or variable.removeprefix("PPSIM_").lower()
    assert (folder / package).is_dir(), f"{variable} names {folder}, which has no folder {package}"
    return folder


def require_megatron() -> None:
    """Skip without megatron-core. It is not imported here: that takes three times as long as to import torch."""
    missing = [name for name in ("torch", "megatron") if importlib.util.find_spec(name) is None]
    if missing or sys.platform != "linux":
        needs = " and ".join(missing) if missing else "fork"
        pytest.skip(f"needs Linux and {needs}: pip install 'ppsim-pipeline[torch,dev]'")
