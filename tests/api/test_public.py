"""What is public: the names of `ppsim.__all__`, and the methods of its classes that take arguments."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError

TABLE = ppsim.build("1f1b", pp=2, microbatches=4)


def public_things() -> Iterator[tuple[str, Any]]:
    """Name and object of everything whose docstring must have an example."""
    for name in ppsim.__all__:
        thing = getattr(ppsim, name)
        yield name, thing
        if inspect.isclass(thing):
            for attribute, member in list(vars(thing).items()):
                function = getattr(member, "__func__", member)  # of a class method
                if attribute.startswith("_") or not inspect.isfunction(function):
                    continue
                if len(inspect.signature(function).parameters) > 1 or attribute == "to_frame":
                    yield f"{name}.{attribute}", function


@pytest.mark.parametrize(
    ("name", "thing"), list(public_things()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_docstring_has_an_example(name: str, thing: Any) -> None:
    assert ">>> " in (inspect.getdoc(thing) or ""), f"ppsim.{name} has no example"


def test_the_examples_are_found_by_doctest_where_the_name_is_at_home() -> None:
    """Else pytest would not run them: a function is looked for in its own module only."""
    for name in ppsim.__all__:
        assert getattr(ppsim, name).__module__ == ppsim._HOME[name], name


def test_every_name_is_grouped_in_the_docstring_and_in_nothing_else() -> None:
    groups = (ppsim.__doc__ or "").partition("what there is")[2].partition("Times are in")[0]
    words = groups.replace(",", " ").replace("\n", " ").split()
    assert {word for word in words if word in ppsim.__all__} == set(ppsim.__all__)
    assert sorted(ppsim.__all__) == sorted(ppsim._HOME)


def test_import_costs_nothing() -> None:
    code = "import sys, ppsim; dir(ppsim); print(*sorted(name for name in sys.modules if 'ppsim' in name or name == 'numpy'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ppsim", "ppsim.base", "ppsim.base.version"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ppsim.build(5, pp=2, microbatches=4), "a schedule must be a name or a ScheduleEntry: got 5"),  # type: ignore[arg-type]
        (lambda: ppsim.build("1f1b", pp="2", microbatches=4), "pp must be a whole number: got '2'"),  # type: ignore[arg-type]
        (lambda: ppsim.build("1f1b", pp=True, microbatches=4), "pp must be a whole number: got True"),
        (lambda: ppsim.build("1f1b", pp=2, microbatches=4.0), "microbatches must be a whole number: got 4.0"),  # type: ignore[arg-type]
        (lambda: ppsim.build("1f1b", pp=2, microbatches=4, vpp="x"), "vpp must be a whole number: got 'x'"),  # type: ignore[arg-type]
        (lambda: ppsim.build("v-half", pp=2, microbatches=4, costs={}), "costs must be a ppsim.StageCosts: got {}"),  # type: ignore[arg-type]
        (lambda: ppsim.simulate(TABLE, {"forward_s": 1.0}), "costs must be a ppsim.StageCosts: got {'forward_s': 1.0}"),  # type: ignore[arg-type]
        (lambda: ppsim.simulate("T.csv", {}), "schedule must be a ppsim.Schedule, as from ppsim.build: got 'T.csv'"),  # type: ignore[arg-type]
        (lambda: ppsim.check("T.csv"), "schedule must be a ppsim.Schedule, as from ppsim.build or .*: got 'T.csv'"),  # type: ignore[arg-type]
        (lambda: ppsim.export("T.csv", to="torch"), "table must be a ppsim.Schedule, as from ppsim.build or .*: got 'T"),  # type: ignore[arg-type]
        (lambda: ppsim.project("1f1b"), "plan must be a ppsim.Plan: got '1f1b'"),  # type: ignore[arg-type]
        (lambda: ppsim.report(5), "cannot print int: it is no result of ppsim's"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_argument_of_another_class_gets_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()
