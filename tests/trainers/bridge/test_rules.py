"""Each rule of Megatron-Bridge refuses its combinations of options, and no others."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.trainers.bridge.rules import RULES

OVERLAP = {"overlap_ep": "megatron", "ep": 8}
OFFLOAD = {"offload": 0.5}


def refused(options: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the options of the rules that refuse these."""
    return [rule.options for rule in RULES if rule.refuses(options)]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, []),
        ({"schedule": "1f1b"}, []),
        ({"schedule": "zbv"}, [("schedule",)]),
        (OVERLAP, []),
        (OVERLAP | {"overlap_ep": "megatron-delay-wgrad", "pp": 1, "vpp": 1}, []),
        (OVERLAP | {"pp": 2}, [("overlap_ep", "pp", "vpp")]),
        (OVERLAP | {"pp": 2, "vpp": 1}, [("overlap_ep", "pp", "vpp")]),
        (OVERLAP | {"pp": 2, "vpp": 2}, []),
        ({"overlap_ep": "0.5", "ep": 8, "pp": 2}, []),
        (OVERLAP | {"recompute": "full"}, [("overlap_ep", "recompute")]),
        (OVERLAP | {"recompute": "mlp+moe"}, [("overlap_ep", "recompute")]),
        (OVERLAP | {"recompute": "mlp"}, []),
        ({"recompute": "full"}, []),
        (OVERLAP | {"ep": 2}, []),
        (OVERLAP | {"ep": 1}, [("overlap_ep", "ep")]),
        ({"overlap_ep": "megatron"}, [("overlap_ep", "ep")]),
        ({"ep": 1}, []),
        (OFFLOAD | {"pp": 1}, []),
        (OFFLOAD | {"pp": 2}, [("offload", "pp")]),
        ({"pp": 2}, []),
        (OFFLOAD | {"recompute": "none"}, []),
        (OFFLOAD | {"recompute": None}, []),
        (OFFLOAD | {"recompute": "mlp"}, [("offload", "recompute")]),
        ({"moe_dispatcher": "deepep", "cluster": "dgx-b200"}, []),
        ({"moe_dispatcher": "deepep", "cluster": "gb200-nvl72"}, [("moe_dispatcher", "cluster")]),
        ({"moe_dispatcher": "deepep", "cluster": SimpleNamespace(name="gb200-nvl72")}, [("moe_dispatcher", "cluster")]),
        ({"moe_dispatcher": "hybridep", "cluster": "gb200-nvl72"}, []),
    ],
)  # fmt: skip
def test_a_rule_refuses_its_combinations_only(options: dict[str, Any], rules: list[tuple[str, ...]]) -> None:
    assert refused(options) == rules
