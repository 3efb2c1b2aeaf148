"""Optimizer state and update, and their sharding over data-parallel ranks."""

from dataclasses import dataclass
from math import gcd
from typing import Literal

from ppsim.base.errors import ConfigError

Precision = Literal["bf16", "fp16", "fp32"]
MomentDtype = Literal["float32", "bfloat16", "float16", "float8"]
OuterSharding = Literal["no_shard", "optim"]

_MOMENT_BYTES: dict[MomentDtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


@dataclass(frozen=True)
class Optimizer:
    """Optimizer state per parameter, and its sharding over data-parallel ranks.

    Adam holds two moments, in float32 except with Megatron-LM's precision-aware optimizer; Muon one float32 moment
    for the matrices inside layers (Jordan et al. 2024). 16-bit precision adds a float32 copy of the weights, and
    during the update one of the gradients, unless they are accumulated in float32.

    - `zero_stage`: Rajbhandari et al. 2020 (arXiv 1910.02054); 1 is Megatron-LM's distributed optimizer, 3 FSDP.
    - `grad_reduce_in_bf16`: gradients have 16 bits; by default with fp16 only, as in Megatron-LM.
    - `fp8_param_gather`: GEMM weights have no 16-bit copy, if GEMMs are in 8 or 4 bits (`NarrowWeights`).
    - `layer_wise`: shard whole layers, so that the rank with the most layers determines the update time; bytes are
      even with `use_layer_wise_param_layout`, else `ppsim.model.ping_pong` gives whole tensors to ranks.
    - `num_distributed_optimizer_instances`: groups of data-parallel ranks, each with all shards (HSDP).
      `outer_dp_sharding_strategy` optim: they share the optimizer state (Megatron-FSDP, HFSDP: fully_shard.py).
    - `is_precision_aware`: Megatron-LM's precision-aware optimizer reads gradients of any dtype (`decoupled_grad`),
      and holds the other 16 bits of each main weight (`store_param_remainders`, or `main_params_dtype` fp16).
    - `master_weights_in_bf16`: no float32 copies of weights and gradients (DeepSpeed's
      `bf16_master_weights_and_grads`).
    - `offload_fraction`: fraction of the parameters whose state is in host memory (Megatron-LM's
      --optimizer-cpu-offload, core/optimizer/cpu_offloading/hybrid_optimizer.py at d98e8a64).
    - `overlap_cpu_optimizer_d2h_h2d`: overlap the update of each parameter with the copies of others.
    """

    precision: Precision = "bf16"
    name: Literal["adam", "muon"] = "adam"
    zero_stage: int = 1
    gradient_bytes: int | None = None
    grad_reduce_in_bf16: bool | None = None
    fp8_param_gather: bool = False
    layer_wise: bool = False
    use_layer_wise_param_layout: bool = True
    num_distributed_optimizer_instances: int = 1
    outer_dp_sharding_strategy: OuterSharding = "no_shard"
    exp_avg_dtype: MomentDtype = "float32"
    is_precision_aware: bool = False
    master_weights_in_bf16: bool = False
    offload_fraction: float = 0.0
    overlap_cpu_optimizer_d2h_h2d: bool = False

    def __post_init__(self) -> None:
        if self.grad_reduce_in_bf16 is None:
            object.__setattr__(self, "grad_reduce_in_bf16", self.precision == "fp16")
        if self.exp_avg_dtype not in _MOMENT_BYTES:
            raise ConfigError(f"--exp-avg-dtype must be {', '.join(_MOMENT_BYTES)}: got {self.exp_avg_dtype}")
        if self.exp_avg_dtype != "float32" and self.zero_stage == 0:
            raise ConfigError(
                f"--exp-avg-dtype {self.exp_avg_dtype} is of the distributed optimizer: --zero 1 to 3, or float32"
            )
        if self.is_precision_aware and (self.zero_stage == 0 or self.name != "adam"):
            raise ConfigError(
                "--use-precision-aware-optimizer is for adam with --zero 1 to 3: got "
                f"{self.name} and zero {self.zero_stage}"
            )
        if self.master_weights_in_bf16 and self.precision != "bf16":
            raise ConfigError(f"--bf16-master-weights-and-grads is for --dtype bfloat16: got {self.precision}")
        if self.precision not in ("bf16", "fp16", "fp32"):
            raise ConfigError(f"precision must be bf16, fp16 or fp32: got {self.precision}")
        if self.name not in ("adam", "muon"):
            raise ConfigError(f"the optimizer must be adam or muon: got {self.name}")
        if self.zero_stage not in (0, 1, 2, 3):
            raise ConfigError(f"the ZeRO stage must be 0, 1, 2 or 3: got {self.zero_stage}")
        self._require_instances()
        if not 0 <= self.offload_fraction <= 1:
            raise ConfigError(f"--optimizer-offload-fraction is a part from 0 to 1: got {self.offload_fraction:g}")
        is_possible = self.name == "adam" and self.zero_stage > 0 and self.exp_avg_dtype == "float32"
        if self.offload_fraction and not is_possible:
            raise ConfigError(
                "--optimizer-offload-fraction is for adam with --zero 1 to 3 and float32 moments: got "
                f"{self.name}, zero {self.zero_stage} and {self.exp_avg_dtype}"
            )
        if self.overlap_cpu_optimizer_d2h_h2d and not self.offload_fraction:
            raise ConfigError("--overlap-cpu-optimizer-d2h-h2d goes with --optimizer-offload-fraction: give both")
        if self.layer_wise and self.zero_stage == 0:
            raise ConfigError("--layer-wise shares layers among replicas, --zero 0 shares nothing: give --zero 1")
        if not (self.layer_wise or self.use_layer_wise_param_layout):
            raise ConfigError("--no-use-layer-wise-param-layout goes with --layer-wise")
        if self.gradient_bytes not in (None, 2, 4):
            raise ConfigError(f"gradient_bytes must be 2 or 4: got {self.gradient_bytes}")

    def _require_instances(self) -> None:
        instances = self.num_distributed_optimizer_instances
        if instances < 1:
            raise ConfigError(f"--num-distributed-optimizer-instances must be at least 1: got {instances}")
        if instances > 1 and self.zero_stage == 0:
            raise ConfigError(f"{instances} distributed optimizers share the optimizer state: give --zero 1 to 3")
        if self.outer_dp_sharding_strategy == "optim" and self.zero_stage != 3:
            raise ConfigError(f"--outer-dp-sharding-strategy optim needs --zero 3: got {self.zero_stage}")

    def ranks_of_state(self, num_ranks: int) -> int:
        """Return how many of these data-parallel ranks share optimizer state."""
        is_outer = self.outer_dp_sharding_strategy == "optim"
        return num_ranks if is_outer else num_ranks // self.instances_among(num_ranks)

    def instances_among(self, num_ranks: int) -> int:
        """Number of instances among these data-parallel ranks; instances only sum gradients with each other."""
        return gcd(num_ranks, self.num_distributed_optimizer_instances)

    @property
    def weight_bytes(self) -> int:
        return 4 if self.precision == "fp32" else 2

    @property
    def bytes_of_gradient(self) -> int:
        in_16_bits = self.grad_reduce_in_bf16 or self.master_weights_in_bf16
        return self.gradient_bytes or (2 if in_16_bits and self.precision != "fp32" else 4)

    @property
    def traffic_bytes(self) -> int:
        """Bytes moved per parameter and update; float32 weights have no copy in the state."""
        weights = 2 if self.precision == "fp32" else 1
        states = self.state_bytes() + self.gradient_copy_bytes
        return 2 * states + self.bytes_of_gradient + weights * self.weight_bytes

    @property
    def host_traffic_bytes(self) -> int:
        """Bytes of host memory moved per parameter and update, with the cast of the weight."""
        moments_and_weight, cast = 12, 0 if self.precision == "fp32" else 4 + self.weight_bytes
        return 2 * moments_and_weight + 4 + cast

    @property
    def gradient_copy_bytes(self) -> int:
        """Bytes per parameter of the float32 copy of 16-bit gradients.

        It exists from the update to the next forward (Megatron-LM at d98e8a64, core/optimizer/distrib_optimizer.py:
        `_copy_model_grads_to_main_grads`; DeepSpeed, runtime/zero/stage_1_and_2.py: `step`).
        """
        reads_16_bits = self.precision == "fp32" or self.is_precision_aware or self.master_weights_in_bf16
        return 0 if reads_16_bits or self.bytes_of_gradient == 4 else 4

    def moment_bytes(self, *, is_matrix: bool = False) -> int:
        return 4 if self.name == "muon" and is_matrix else 2 * _MOMENT_BYTES[self.exp_avg_dtype]

    @property
    def main_weight_bytes(self) -> int:
        """Bytes per parameter of the weights that are updated."""
        is_short = self.precision != "fp32" and (self.is_precision_aware or self.master_weights_in_bf16)
        return 2 if is_short else 4

    def state_bytes(self, *, is_matrix: bool = False) -> int:
        """Bytes per parameter: moments, and the main weights of 16-bit precision."""
        main = 0 if self.precision == "fp32" else self.main_weight_bytes
        return self.moment_bytes(is_matrix=is_matrix) + main
