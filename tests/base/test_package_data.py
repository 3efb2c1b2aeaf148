"""The profiles lie beside the package in a checkout, and inside it in a wheel (scripts/check_release.py tries one)."""

from pathlib import Path

import pytest

from ppsim.base import files as data


def test_a_checkout_has_the_folder_beside_the_package() -> None:
    assert data.data_folder("profiles") == Path(__file__).parents[2] / "profiles"
    assert (data.data_folder("profiles") / "zb-a100-6.2b.json").is_file()


def test_a_wheel_has_it_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "_PACKAGE", tmp_path / "ppsim")
    (tmp_path / "ppsim" / "profiles").mkdir(parents=True)
    (tmp_path / "profiles").mkdir()
    assert data.data_folder("profiles") == tmp_path / "ppsim" / "profiles"
