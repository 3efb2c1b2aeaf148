"""Which FLOPs a publication divides by its step time, when it says FLOP/s or MFU: not all count the same."""

from typing import Literal

from ppsim.model.architecture import Model

Counted = Literal["causal", "all scores", "all scores and recomputation", "parameters"]
"""causal
    Three times the forward's matrix products, half of the scores: Megatron-LM's `num_floating_point_operations`
    since 2025 and Megatron-Bridge with it, whose published tokens/s and TFLOP/s this ties to 0.1 % for dense models
    and to 0.6 % with experts.
all scores
    The same with all s × s scores: PaLM (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), TorchTitan's
    `get_num_flop_per_token` (6 N + 12 l h q t; embedding left out), Megatron-LM until 2024 and Korthikanti et al.
    2022 (arXiv 2205.05198, appendix A).
all scores and recomputation
    The forward of all layers twice: 96 B s l h² (1 + s/(6h) + V/(16 l h)) of Narayanan et al. 2021 (arXiv
    2104.04473, §5.1), which MT-NLG's numbers have too.
parameters
    6 a parameter and token, attention left out.
"""


def flops_a_token(model: Model, sequence_length: int, counted: Counted) -> float:
    """Return the FLOPs of a token of a training step by a publication's way of counting."""
    if counted == "parameters":
        return 6.0 * model.active_parameters
    flops = model.training_flops(sequence_length, causal=counted == "causal")
    if counted != "all scores and recomputation":
        return flops
    head = 3 * model.head_forward_flops()
    return (flops - head) * 4 / 3 + head
