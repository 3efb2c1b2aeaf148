"""Options that set several others, and values of --recompute."""

import pytest

from ppsim.trainers.same_settings import MEGATRON_SPLIT, SAME_SETTING, each_setting, is_among


@pytest.mark.parametrize("is_on", [True, False])
def test_overlap_dp_is_what_reductions_and_gathers_leave_open(is_on: bool) -> None:
    assert each_setting({"overlap_dp": is_on, "overlap_param_gather": not is_on, "pp": 2}) == {
        "overlap_dp": None,
        "overlap_grad_reduce": is_on,
        "overlap_param_gather": not is_on,
        "pp": 2,
    }


def test_an_option_that_is_not_given_sets_no_other() -> None:
    given = {"overlap_dp": None, "pp": 2}
    assert each_setting(given) == given
    assert each_setting({"overlap_grad_reduce": True}) == {"overlap_grad_reduce": True}


def test_only_recompute_has_values_for_each_layer() -> None:
    assert is_among("dispatcher", "deepep", ["deepep"])
    assert not is_among("dispatcher", "mlp+moe", ["moe"])
    assert not is_among("recompute", "mlp+moe", ["full"])
    assert is_among("recompute", "full", ["full"])


def test_what_replaces_the_split_is_replaced_by_it() -> None:
    assert SAME_SETTING["split"] == MEGATRON_SPLIT
    assert all(SAME_SETTING[name] == ("split",) for name in MEGATRON_SPLIT)
    assert all(SAME_SETTING[SAME_SETTING[name][0]] == (name,) for name in ("microbatches", "gpus"))
