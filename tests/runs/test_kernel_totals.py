"""Kernels get a kind by their names, in time linear in the length of a name."""

import time
from collections import Counter

import pytest

from ppsim.runs import kernel_totals as kernel_totals_module
from ppsim.runs.kernel_totals import KernelTotals, kind_of_kernel
from ppsim.runs.readers.patterns import NameCounts
from tests.defaults import number_defaults


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "all-reduce"),
        ("void ncclKernel(args) AllReduce", ""),
        ("void rccl_nccl_all_gather<float>", "all-gather"),
        ("triton_red_fused_mm_3", "gemm"),
        ("cutlass_75_tensorop_e4m3_128x128", "narrow gemm"),
        ("e5m2 scaled\nwgmma kernel", "narrow gemm"),
        ("nvjet_sm100_qqtst_128x256", "narrow gemm"),
        ("fbgemm_e4m3_gather", "memory"),
        ("triton_poi_fused (a) _mm_", "memory"),
    ],
)
def test_a_kind_is_told_by_words_of_the_name(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize("part", ["nccl", "rcclall", "triton_", "nvjet_q", "e4m3 ", "(", "x"])
def test_a_long_name_takes_linear_time(part: str) -> None:
    begun = time.process_time()
    kind_of_kernel(part * (20_000 // len(part)) + "!")
    assert time.process_time() - begun < 0.3


def test_a_pattern_for_many_names_is_found_in_linear_time() -> None:
    names = Counter({f"forward {chr(at)}": 1 for at in range(0x4E00, 0x4E00 + 5_000)})
    begun = time.process_time()
    assert NameCounts((), names).likely_pattern() is None
    assert NameCounts((), names | Counter(["my backward 12 of 3", "my forward 5 of 40"])).likely_pattern() == (
        r"my (?P<kind>forward|backward) (?P<microbatch>\d+) of \d+"
    )
    assert time.process_time() - begun < 0.3


def test_the_arguments_of_a_long_template_do_not_count() -> None:
    template = "void at::native::elementwise_kernel<" + "cute::tuple<int, 64>, " * 60
    assert kind_of_kernel(template + "flash_fwd>") == "memory"
    assert kind_of_kernel("void flash_fwd_kernel<" + template) == "attention"


def test_kernels_are_counted_by_kind_and_divided_by_the_steps() -> None:
    totals = KernelTotals()
    for name, seconds in (("nvjet_tst", 3.0), ("nvjet_tst", 4.5), ("elementwise", 1.5), ("memcpy", 9.0)):
        totals.add(name, seconds)
    assert totals == KernelTotals({"gemm": 2, "memory": 1}, {"gemm": 7.5, "memory": 1.5})
    totals.messages.append(("all-reduce", 64.0, 8, 0.5))
    assert totals.per_step(3) == KernelTotals(
        {"gemm": 2 / 3, "memory": 1 / 3}, {"gemm": 2.5, "memory": 0.5}, [("all-reduce", 64.0, 8, 0.5)]
    )


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(kernel_totals_module) == {"kind_of_kernel": {"most": 600}}
