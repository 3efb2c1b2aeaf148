"""Modules of a layer whose saved tensors wait for the backward in host memory, and rules for them."""

from dataclasses import dataclass

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import joined_modules

MODULES = {
    "attn_norm": "the input of the norm before attention",
    "qkv_linear": "the tensors saved by the projections before the attention core",
    "core_attn": "the tensors saved by the attention core",
    "attn_proj": "the input of attention's output projection",
    "mlp_norm": "the input of the norm before the channel mixer",
    "expert_fc1": "the input of the routed experts",
    "moe_act": "the input of the routed experts' activation",
    "fused_group_mlp": "the tensors saved by the routed experts, with TransformerEngine's op fuser",
}
"""Values of Megatron-LM's `--offload-modules`."""

PAGED = ("expert_fc1", "moe_act", "fused_group_mlp")
"""Modules that paged stashing covers (Megatron-LM, transformer_config.py: `moe_offload_conflict`)."""

MEANING = (
    "Modules whose saved tensors are in host memory until the backward pass, joined by +, with Megatron-LM's names "
    "attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act, or fused_group_mlp with "
    "--fused-experts. A tensor that another module also saves stays on the device."
)


@dataclass(frozen=True)
class OffloadRules:
    """Selection of the offloaded tensors, as in Megatron-LM (core/transformer/transformer_config.py at d98e8a64).

    min_offloaded_tensor_size: in elements. activation_offload_fraction: fraction of a stage's groups (saved tensors
    of a module of a layer), the first ones in the forward. max_inflight_offloads: copies of a module in flight
    before the forward waits for one, None: no limit.
    """

    min_offloaded_tensor_size: int = 2**20
    activation_offload_fraction: float = 1.0
    max_inflight_offloads: int | None = None

    def __post_init__(self) -> None:
        if self.min_offloaded_tensor_size < 0:
            raise ConfigError(
                f"--min-offloaded-tensor-size is 0 or more elements: got {self.min_offloaded_tensor_size}"
            )
        if not 0 <= self.activation_offload_fraction <= 1:
            raise ConfigError(
                f"--activation-offload-fraction is a part from 0 to 1: got {self.activation_offload_fraction:g}"
            )
        if self.max_inflight_offloads is not None and self.max_inflight_offloads < 0:
            raise ConfigError(f"--max-inflight-offloads is 0 or more copies: got {self.max_inflight_offloads}")

    def require_defaults(self) -> None:
        if self != OffloadRules():
            raise ConfigError(
                "--min-offloaded-tensor-size, --activation-offload-fraction, --max-inflight-offloads are rules of "
                "--offload-modules: give modules, or leave out the rules"
            )

    def num_offloaded_groups(self, number: int) -> int:
        """Return the number of a stage's groups that are offloaded; the number that stay is rounded down.

        >>> OffloadRules(activation_offload_fraction=0.5).num_offloaded_groups(7)
        4
        """
        return number - int(number * (1 - self.activation_offload_fraction))


def offload_modules_of(text: str) -> str:
    """Normalise the option.

    >>> offload_modules_of("core_attn+attn_norm"), offload_modules_of("none")
    ('attn_norm+core_attn', '')
    """
    if text in ("", "none"):
        return ""
    return joined_modules("--offload-modules", text, MODULES, words="none")


@dataclass(frozen=True)
class Offload:
    """Bytes of a microbatch that a stage offloads to the host.

    - `freed`: bytes that leave the device; `copied`: bytes copied per layer.
    - `ahead`: the most offloaded bytes on the device at a time; `ahead_in_forward`: the most during a forward.
    - `forward`: additional bytes at the peak of a forward.
    """

    freed: float = 0.0
    copied: tuple[float, ...] = ()
    ahead: float = 0.0
    ahead_in_forward: float = 0.0
    forward: float = 0.0
