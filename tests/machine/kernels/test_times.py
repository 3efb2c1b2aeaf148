"""Sums of kernel times, and times from a source with round numbers."""

from typing import Literal

import pytest

from ppsim.machine.kernels.corrected import Corrected
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel, is_operator
from ppsim.machine.kernels.times import (
    AttentionCore,
    KernelTime,
    attention_time,
    gemm_time,
    memory_kernel_time,
    of_one_group,
)
from tests.defaults import field_defaults, parameter_defaults

CORE = AttentionCore(heads=2, queries=3, keys=5, qk_size=7, v_size=11)
TIME = KernelTime(1.0, 2.0, 4.0, 8.0, 16.0, 32, 64.0)


class Round:
    """A GEMM takes 3 s, attention 5 s and 7 s, and a byte 2 s; only expert GEMMs and attention are measured."""

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        return 3.0

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        return 5.0 if part == "forward" else 7.0

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        return 2.0 * num_bytes + launches

    def peak(self, of: Literal["products", "attention"]) -> float:
        return 10.0 if of == "products" else 20.0

    def is_measured(self, of: Kernels) -> bool:
        return of != "products"


def test_sums_differences_and_multiples_apply_to_every_part() -> None:
    assert TIME + TIME == KernelTime(2.0, 4.0, 8.0, 16.0, 32.0, 64, 128.0) == TIME.times(2)
    assert TIME.times(3).without(TIME) == TIME.times(2)
    assert TIME.busy_s == 2 + 8 + 16


def test_slower_kernels_have_equal_ideal_times_and_launches() -> None:
    assert TIME.slowed(3.0) == KernelTime(1.0, 6.0, 4.0, 24.0, 48.0, 32, 192.0)


def test_all_kernels_of_unfused_attention_count_as_attention() -> None:
    assert TIME.as_attention() == KernelTime(0.0, 0.0, 1.0, 26.0, 0.0, 32, 64.0)


def test_causal_attention_has_two_flops_per_multiply_add_of_half_the_scores() -> None:
    assert CORE.forward_flops == 2 * 2 * 3 * 5 * (7 + 11) / 2
    assert CORE.unmasked == 0


def test_a_gemm_has_two_flops_per_multiply_add_and_one_launch() -> None:
    assert gemm_time(Round(), "forward", 2, 3, 5) == KernelTime(2 * 2 * 3 * 5 / 10, 3.0, count=1)
    grouped = gemm_time(Round(), "forward", 8, 3, 5, groups=4)
    assert grouped == KernelTime(2 * 8 * 3 * 5 / 10, 3.0, count=1, measured_s=3.0)
    assert (
        gemm_time(Round(), "forward", 2, 0, 5) == gemm_time(Round(), "forward", 2, 3, 5, groups=0) == KernelTime()
    )


def test_groups_share_the_tokens() -> None:
    assert of_one_group("forward", 8, 3, 5, 4) == of_one_group("input", 8, 3, 5, 4) == (2, 3, 5)
    assert of_one_group("weight", 3, 5, 8, 4) == (3, 5, 2)
    assert of_one_group("weight", 3, 5, 8, 1) == (3, 5, 8)


def test_backward_attention_has_twice_the_ideal_time() -> None:
    ideal_s = CORE.forward_flops / 20
    assert attention_time(Round(), CORE) == (
        KernelTime(attention_ideal_s=ideal_s, attention_s=5.0, count=1, measured_s=5.0),
        KernelTime(attention_ideal_s=2 * ideal_s, attention_s=7.0, count=1, measured_s=7.0),
    )
    assert attention_time(Round(), AttentionCore(0, 3, 5, 7, 11)) == (KernelTime(), KernelTime())


def test_kernels_that_move_no_bytes_take_no_time() -> None:
    assert memory_kernel_time(Round(), "norm", 4, launches=3) == KernelTime(memory_s=11.0, count=3)
    assert memory_kernel_time(Round(), "norm", 4) == KernelTime(memory_s=9.0, count=1)
    assert memory_kernel_time(Round(), "norm", 0, launches=3) == KernelTime()


def test_each_kind_of_kernel_has_its_own_factor() -> None:
    factors = {"gemm-bfloat16": 2.0, "experts-bfloat16": 3.0, "attention": 4.0, "memory": 5.0, "gemm-float8": 7.0}
    times = Corrected(Round(), "bfloat16", factors)
    assert times.product_s("forward", 1, 1, 1) == 2 * 3
    assert times.product_s("forward", 1, 1, 1, groups=2) == 3 * 3
    assert times.attention_s("backward", CORE) == 4 * 7
    assert times.moved_s("copy", 1, launches=2) == 5 * 4
    assert times.moved_s("copy", 1) == 5 * 3
    assert (times.peak("products"), times.is_measured("experts"), times.is_measured("products")) == (
        10,
        True,
        False,
    )
    plain = Corrected(Round(), "bfloat16", {})
    assert plain.product_s("input", 1, 1, 1, groups=2) == plain.product_s("input", 1, 1, 1) == 3
    assert (plain.attention_s("forward", CORE), plain.moved_s("copy", 1)) == (5, 3)


@pytest.mark.parametrize(
    "name", ["gemm-float8", "experts-bfloat16", "attention", "memory", "optimizer", "all-to-all"]
)
def test_a_kind_of_operator_has_a_name(name: str) -> None:
    assert is_operator(name)


@pytest.mark.parametrize("name", ["gemm", "gemm-", "experts", "norm", "attention-bfloat16", ""])
def test_other_names_are_no_kinds_of_operators(name: str) -> None:
    assert not is_operator(name)


def test_a_kernel_alone_has_one_group_and_one_launch() -> None:
    assert set(field_defaults(KernelTime).values()) == {0}
    assert len(field_defaults(KernelTime)) == 7
    assert field_defaults(AttentionCore) == {"unmasked": 0.0}
    assert parameter_defaults(gemm_time) == parameter_defaults(Corrected.product_s) == {"groups": 1}
    assert parameter_defaults(memory_kernel_time) == parameter_defaults(Corrected.moved_s) == {"launches": 1}
