"""A config.json whose model_type is unknown is traced, and what is missing for it is said."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api import model_traces
from ppsim.base.errors import ConfigError, MissingExtra


@pytest.fixture
def unheard(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "unheard", "hidden_size": 8}))
    return str(path)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(model_traces, "find_spec", lambda name: None if name in packages else name)


def test_a_job_of_an_unknown_model_needs_packages_to_trace_it(
    unheard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "torch", "transformers")
    with pytest.raises(
        MissingExtra, match=r"unknown model_type 'unheard'.*; torch and transformers would be needed to"
    ):
        ppsim.job(model=unheard, pp=1)
    without(monkeypatch, "transformers")
    with pytest.raises(MissingExtra, match=r"'unheard'.*; transformers would be needed to trace it"):
        ppsim.job(model=unheard, pp=1)


def test_a_trace_that_is_asked_for_needs_a_model_type_and_packages(
    tmp_path: Path, unheard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "torch")
    with pytest.raises(MissingExtra, match=r"config\.json: --trace needs torch and transformers; torch would be"):
        model_traces.trace(unheard)
    for wrong in ([], {}, {"model_type": 3}):
        path = tmp_path / "wrong.json"
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=r"wrong\.json: model_type is missing: --trace needs a Hugging Face"):
            model_traces.trace(path)


def test_only_files_of_unknown_models_are_traced(
    tmp_path: Path, unheard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[tuple[Any, str]] = []
    monkeypatch.setattr(model_traces, "_traced", lambda data, where, unknown: (traced.append((data, where)), {})[1])
    monkeypatch.setattr(model_traces, "remember_trace", lambda data, _: traced.append((data, "kept")))
    (tmp_path / "wrong.json").write_text('{"model_type": "llama"}')
    for given in ("llama3-8b", 3, str(tmp_path), str(tmp_path / "none.json"), tmp_path / "wrong.json"):
        model_traces.trace_if_unknown(given)
    assert traced == []
    model_traces.trace_if_unknown(unheard)
    data = {"model_type": "unheard", "hidden_size": 8}
    assert traced == [(data, unheard), (data, "kept")]


def test_a_type_that_transformers_does_not_know_is_refused(unheard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(is_known=lambda kind: kind == "heard", trace=lambda data, where: (data, where))
    monkeypatch.setitem(sys.modules, "ppsim.profiling.trace_model", module)  # type: ignore[arg-type]
    without(monkeypatch)
    data = {"model_type": "unheard"}
    with pytest.raises(ConfigError, match=r"^c\.json: transformers does not know model_type 'unheard'$"):
        model_traces._traced(data, "c.json", None)
    unknown: Any = ValueError("unknown model_type 'unheard'")
    with pytest.raises(ConfigError, match=r"^unknown model_type 'unheard'; transformers does not know .* either$"):
        model_traces._traced(data, "c.json", unknown)
    heard = {"model_type": "heard"}
    assert model_traces._traced(heard, "c.json", None) == (heard, "c.json")
