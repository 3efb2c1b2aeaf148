"""Ways in which publications count FLOPs for FLOP/s or MFU."""

from typing import Literal

from ppsim.model.architecture import Model

Counted = Literal["causal", "all scores", "all scores and recomputation", "parameters"]
"""causal
    Three times the forward GEMMs, with half of the scores: Megatron-LM's `num_floating_point_operations` since
    2025, also in Megatron-Bridge. Its published tokens/s and TFLOP/s agree with this count within 0.1 % for dense
    models and 0.6 % with experts.
all scores
    The same with all s × s scores: PaLM (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), TorchTitan's
    `get_num_flop_per_token` (6 N + 12 l h q t; embedding left out), Megatron-LM until 2024 and Korthikanti et al.
    2022 (arXiv 2205.05198, appendix A).
all scores and recomputation
    Includes a second forward pass of all layers: 96 B s l h² (1 + s/(6h) + V/(16 l h)), Narayanan et al. 2021
    (arXiv 2104.04473, §5.1), also used for MT-NLG.
parameters
    6 per parameter and token, without attention.
"""


def flops_a_token(model: Model, sequence_length: int, counted: Counted) -> float:
    if counted == "parameters":
        return 6.0 * model.active_parameters
    flops = model.training_flops(sequence_length, causal=counted == "causal")
    if counted != "all scores and recomputation":
        return flops
    head = 3 * model.head_forward_flops()
    return (flops - head) * 4 / 3 + head
