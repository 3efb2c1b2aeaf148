"""Device time of a recorded run by kind of operator, from the names of its kernels.

A kernel that no pattern matches counts as memory-bound.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_GEMM = r"(?<!fb)gemm|cutlass|nvjet|xmma|cijk_|wgmma|cublas|triton_\w*_mm_|_mm$"
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in {
        "all-reduce": r"[nr]ccl\w*all_?reduce",
        "all-gather": r"[nr]ccl\w*all_?gather",
        "reduce-scatter": r"[nr]ccl\w*reduce_?scatter",
        "send-receive": r"[nr]ccl\w*send_?recv",
        "optimizer": r"multi_tensor_apply|adam|muon",
        "": r"[nr]ccl|memcpy|memset|copy ?buffer|fill ?buffer",
        "all-to-all": r"deep_?ep|hybrid_?ep",
        "attention": r"flash|fmha|sdpa|attn_fwd|attn_bwd|fused_?attention|cudnn::fusion",
        "experts": r"group(?:ed)?_?gemm|gemm_?grouped|GroupProblemShape|grouped_mm",
        "narrow gemm": rf"(?=.*(?:{_GEMM}))(?=.*(?:e4m3|e5m2|fp8|f8|fp4|e2m1|nvjet_\w*?_?qq))",
        "gemm": _GEMM,
    }.items()
)
"""Kinds of kernels with patterns of their names; the first match counts. The kind "" is for kernels that are no
operator of a layer. "send-receive" is not used, because it is a P2P transfer or a part of an all-to-all."""


def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel, "" for none.

    >>> kind_of_kernel("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_NNT"), kind_of_kernel("vectorized_elementwise_kernel<4>")
    ('gemm', 'memory')
    >>> kind_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'reduce-scatter'
    """
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "memory")


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
