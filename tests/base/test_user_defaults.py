"""Dispatchers and their SMs."""

import pytest

from ppsim.base.user_defaults import DISPATCHER_SMS, runs_deepep


def test_hybridep_uses_16_sms_and_other_dispatchers_20() -> None:
    """Defaults of Megatron-LM 0.16: moe_deepep_num_sms and moe_hybridep_num_sms."""
    assert DISPATCHER_SMS == {"deepep": 20, "hybridep": 16, "alltoall": 20, "allgather": 20}


@pytest.mark.parametrize(("name", "runs"), [("dgx-b200", True), ("NVIDIA GB300", False), ("rgb200", True)])
def test_deepep_does_not_run_on_grace_blackwell(name: str, runs: bool) -> None:
    assert runs_deepep(name) == runs
