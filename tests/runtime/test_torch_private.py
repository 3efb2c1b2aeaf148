"""Names of torch that are private."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from ppsim.base.errors import ConfigError
from ppsim.runtime import torch_private
from ppsim.runtime.torch_private import NEEDED, require_torch, schedule_runtime


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cu130", "3.0", "2.20.0a0"])
def test_torch_is_new_enough(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private.torch, "__version__", version)
    require_torch()


@pytest.mark.parametrize("version", ["2.12.9", "1.14", "2.9.0+cpu"])
def test_an_older_torch_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private.torch, "__version__", version)
    with pytest.raises(ConfigError, match=r"is too old to execute tables: .* \(need 2.13 or newer\)"):
        require_torch()


def test_a_torch_without_a_name_that_is_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private.torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch_private, "schedules", SimpleNamespace(**dict.fromkeys(NEEDED[:2])))
    with pytest.raises(ConfigError, match=r"torch 2\.13\.0 has no _wait_batch_p2p, _batch_p2p in torch"):
        require_torch()


@pytest.mark.parametrize("defers", [False, True])
def test_the_runtime_gets_its_stages_in_order(defers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        torch_private,
        "schedules",
        SimpleNamespace(_PipelineScheduleRuntime=lambda *all, **how: given.append((all, how))),
    )
    second, first = (SimpleNamespace(stage_index=index) for index in (5, 2))
    schedule_runtime([second, first], 7, "loss", defer_receives=defers)
    assert given == [(([first, second], 7), {"loss_fn": "loss", "defer_pp_recv": defers})]
