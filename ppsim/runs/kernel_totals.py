"""Device time of a recorded run by kind of operator, from the names of its kernels.

A kernel that no pattern matches counts as memory-bound.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


def _in_word(first: str, then: str) -> str:
    """Match a word that has `first` and later `then`, in linear time: each word is searched once for `first`."""
    return rf"\b(?>\w*?{first})\w*?{then}"


_GEMM = rf"(?<!fb)gemm|cutlass|nvjet|xmma|cijk_|wgmma|cublas|{_in_word('triton_', '_mm_')}|_mm$"
_NARROW = rf"e4m3|e5m2|fp8|f8|fp4|e2m1|{_in_word('nvjet_', 'qq')}"
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for kind, pattern in {
        "all-reduce": _in_word("[nr]ccl", "all_?reduce"),
        "all-gather": _in_word("[nr]ccl", "all_?gather"),
        "reduce-scatter": _in_word("[nr]ccl", "reduce_?scatter"),
        "send-receive": _in_word("[nr]ccl", "send_?recv"),
        "optimizer": r"multi_tensor_apply|adam|muon",
        "": r"[nr]ccl|memcpy|memset|copy ?buffer|fill ?buffer",
        "all-to-all": r"deep_?ep|hybrid_?ep",
        "attention": r"flash|fmha|sdpa|attn_fwd|attn_bwd|fused_?attention|cudnn::fusion",
        "experts": r"group(?:ed)?_?gemm|gemm_?grouped|GroupProblemShape|grouped_mm",
        "narrow gemm": rf"\A(?=.*?(?:{_GEMM}))(?=.*?(?:{_NARROW}))",  # anchored: else tried again at every position
        "gemm": _GEMM,
    }.items()
)
"""Kinds of kernels with patterns of their names; the first match counts. The kind "" is for kernels that are no
operator of a layer. "send-receive" is not used, because it is a P2P transfer or a part of an all-to-all."""


def kind_of_kernel(name: str, most: int = 600) -> str:
    """Return the kind of a kernel, "" for none.

    Only the first `most` characters are searched: long names are templates whose arguments come last.

    >>> kind_of_kernel("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_NNT"), kind_of_kernel("vectorized_elementwise_kernel<4>")
    ('gemm', 'memory')
    >>> kind_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'reduce-scatter'
    """
    return next((kind for kind, pattern in _KINDS if pattern.search(name[:most])), "memory")


@dataclass
class KernelTotals:
    """Number and seconds of the kernels of one process, by kind.

    `messages` are collectives: (operation, bytes, devices, seconds).
    """

    counts: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    messages: list[tuple[str, float, int, float]] = field(default_factory=list)

    def add(self, name: str, seconds: float) -> None:
        if kind := kind_of_kernel(name):
            self.counts[kind] = self.counts.get(kind, 0.0) + 1
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def per_step(self, num_steps: int) -> "KernelTotals":
        def shared(found: Mapping[str, float]) -> dict[str, float]:
            return {kind: number / num_steps for kind, number in found.items()}

        return KernelTotals(shared(self.counts), shared(self.seconds), self.messages)
