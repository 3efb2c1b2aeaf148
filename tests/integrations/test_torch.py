"""Passes of torch's Schedule1F1B, which names none, have the names of torch's pipeline runtime in a trace."""

from typing import Any

import pytest

from ppsim.integrations import torch as torch_module
from tests.defaults import number_defaults

pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile

from ppsim.integrations.torch import named_passes


class Stage:
    """What is called of a stage of torch."""

    stage_index = 3

    def forward_one_chunk(self, microbatch: int, args: Any) -> Any:
        return microbatch, args

    def backward_one_chunk(self, microbatch: int, loss: Any = None, full_backward: bool = True) -> None:
        pass

    def backward_weight_one_chunk(self, microbatch: int) -> None:
        pass


def test_passes_are_named_inside_and_not_after() -> None:
    stage: Any = Stage()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        with named_passes([stage]):
            assert stage.forward_one_chunk(1, ("x",)) == (1, ("x",))
            stage.backward_one_chunk(1, loss=None)
            stage.backward_one_chunk(2, full_backward=False)
            stage.backward_weight_one_chunk(2)
        stage.forward_one_chunk(4, ())
    names = [event.name for event in recorded.events() if event.name.startswith("PP:")]
    assert names == ["PP:3F1", "PP:3B1", "PP:3I2", "PP:3W2"]


def test_what_is_left_out_in_integrations_torch_has_these_values() -> None:
    assert number_defaults(torch_module) == {
        "load": {"defer_receives": False},
    }  # fmt: skip
