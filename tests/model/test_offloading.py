"""Rules of offloading: their ranges, defaults and modules."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.offloading import Offload, OffloadRules, offload_modules_of
from tests.defaults import field_defaults


def test_the_defaults_are_those_of_megatron_lm() -> None:
    """transformer_config.py: tensors of at least 1024 · 1024 elements, all groups, no limit of copies in flight."""
    assert OffloadRules() == OffloadRules(1024 * 1024, 1.0, None)
    assert field_defaults(Offload) == {"freed": 0.0, "ahead": 0.0, "ahead_in_forward": 0.0, "forward": 0.0}


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("min_offloaded_tensor_size", (0, 2**40), (-1,)),
        ("activation_offload_fraction", (0.0, 1.0), (-0.01, 1.01, float("nan"))),
        ("max_inflight_offloads", (0, 5, None), (-1,)),
    ],
)
def test_rules_are_within_their_ranges(
    name: str, allowed: tuple[float | None, ...], refused: tuple[float, ...]
) -> None:
    for value in allowed:
        OffloadRules(**{name: value})  # type: ignore[arg-type]
    for value in refused:
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is "):
            OffloadRules(**{name: value})  # type: ignore[arg-type]


def test_rules_need_modules() -> None:
    OffloadRules().require_defaults()
    for rules in (
        OffloadRules(7),
        OffloadRules(activation_offload_fraction=0.5),
        OffloadRules(max_inflight_offloads=2),
    ):
        with pytest.raises(ConfigError, match="are rules of --offload-modules"):
            rules.require_defaults()


@pytest.mark.parametrize(
    ("fraction", "number", "offloaded"), [(1.0, 7, 7), (0.0, 7, 0), (0.75, 7, 6), (0.25, 8, 2)]
)
def test_the_number_of_groups_that_stay_is_rounded_down(fraction: float, number: int, offloaded: int) -> None:
    assert OffloadRules(activation_offload_fraction=fraction).num_offloaded_groups(number) == offloaded


def test_modules_are_in_the_order_of_a_layer() -> None:
    assert offload_modules_of("moe_act+expert_fc1+core_attn") == "core_attn+expert_fc1+moe_act"
    assert offload_modules_of("") == offload_modules_of("none") == ""
    with pytest.raises(ConfigError, match=r"--offload-modules must be none or modules joined by \+: got 'mlp'"):
        offload_modules_of("mlp")
