"""What a result prints is found by one table."""

from importlib import import_module

import pytest

import ppsim


@pytest.mark.parametrize("name", ppsim.TEXTS)
def test_every_text_of_the_table_is_there(name: str) -> None:
    module, _, function = ppsim.TEXTS[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_every_public_result_that_prints_is_in_the_table() -> None:
    from ppsim.base.display import Printable

    public = [getattr(ppsim, name) for name in ppsim.__all__]
    assert {one.__name__ for one in public if isinstance(one, type) and issubclass(one, Printable)} <= set(
        ppsim.TEXTS
    )
