"""Sizes of a stage: ranks that hold the same parameters, and sizes that are refused."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.parallel import sizes as sizes_module
from ppsim.parallel.sizes import ParallelSizes, require_divides, require_positive, share
from tests.defaults import number_defaults


def test_replicas_of_a_stage_and_of_its_experts() -> None:
    sizes = ParallelSizes(tp=4, cp=2, dp=6, ep=3)
    assert (sizes.num_ranks, sizes.replicas) == (48, 12)
    assert (sizes.expert_tp, sizes.expert_replicas) == (4, 4)  # 48 / (3 · 4)
    narrow = ParallelSizes(tp=4, cp=2, dp=6, ep=8, etp=2)
    assert (narrow.expert_tp, narrow.expert_replicas) == (2, 3)
    assert ParallelSizes(tp=4).norm_divisor == 4
    assert ParallelSizes(tp=4, sequence_parallel=False).norm_divisor == 1


def test_what_does_not_divide_or_is_below_1_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ep × etp must divide tp × cp × dp: got 5 × 4 with 48"):
        ParallelSizes(tp=4, cp=2, dp=6, ep=5)
    with pytest.raises(ConfigError, match="dp must be at least 1: got 0"):
        ParallelSizes(dp=0)
    require_positive(ParallelSizes(), "tp", "etp")  # None is not given
    with pytest.raises(ConfigError, match=r"tp must divide the heads: got 7 with 12 \(nearest below: 6\)"):
        require_divides("tp", 7, "heads", 12)
    require_divides("tp", 6, "heads", 12)


def test_a_share_is_rounded_up() -> None:
    assert [share(number, 4) for number in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_what_is_left_out_in_parallel_sizes_has_these_values() -> None:
    assert number_defaults(sizes_module) == {
        "ParallelSizes": {"tp": 1, "cp": 1, "dp": 1, "ep": 1, "sequence_parallel": True},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tp", "cp", "dp", "ep", "etp"])
def test_each_size_is_1_or_more(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be at least 1: got 0"):
        ParallelSizes(**{name: 0})
    ParallelSizes(**{name: 1})


def test_the_nearest_divisor_is_the_largest_one_below() -> None:
    for value, count, near in ((5, 12, 4), (13, 12, 12), (7, 7 * 5 + 1, 6), (2, 9, 1), (8, 4, 4)):
        with pytest.raises(ConfigError, match=f"nearest below: {near}\\)"):
            require_divides("tp", value, "heads", count)
    with pytest.raises(ConfigError, match="got 4 × 2 with 12"):
        ParallelSizes(tp=2, dp=6, ep=4)
    assert ParallelSizes(tp=2, dp=6, ep=4, etp=3).expert_replicas == 1
