"""Imports of modules whose trainer need not be there."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


@contextmanager
def imported_with(stubs: Mapping[str, Mapping[str, Any]], name: str) -> Iterator[Any]:
    """Import the module `name` anew, with modules of a trainer that have only the names in `stubs`."""
    with pytest.MonkeyPatch.context() as patch:
        for trainer_module, names in stubs.items():
            stub = ModuleType(trainer_module)
            vars(stub).update(names)
            patch.setitem(sys.modules, trainer_module, stub)
        patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module(name)
        sys.modules.pop(name)
