"""Parallel mixers in one layer: attention and Mamba-2 in Falcon-H1 (TII 2025, arXiv 2507.22448, §2).

As in transformers 4.57.1, `modeling_falcon_h1.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ppsim.model.architecture import Model
from ppsim.model.config_parts import Reader, attention_of, decoder_of, dense_of, layers_of, mamba_of
from ppsim.model.execution import Execution
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.mixer import Mixer
from ppsim.model.operators import Operator, Tensor
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes


@dataclass(frozen=True)
class ParallelMixers(Mixer):
    """Mixers that read the same tokens, and whose outputs are added before the residual."""

    mixers: tuple[Mixer, ...]

    @property
    def parts(self) -> tuple[Mixer, ...]:
        return self.mixers

    @property
    def divided(self) -> dict[str, int]:
        return {what: count for mixer in self.mixers for what, count in mixer.divided.items()}

    @property
    def norm_parameters(self) -> int:
        return sum(mixer.norm_parameters for mixer in self.mixers)

    @property
    def transient_bytes(self) -> int:
        """The largest value of all mixers, because their backwards run one after the other."""
        return max(mixer.transient_bytes for mixer in self.mixers)

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        return sum(mixer.core_flops(sequence_length, causal=causal) for mixer in self.mixers)

    def require_division(self, sizes: ParallelSizes) -> None:
        for mixer in self.mixers:
            mixer.require_division(sizes)

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        return [linear for mixer in self.mixers for linear in mixer.linears(h, tp)]

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        for number, mixer in enumerate(self.mixers):
            for operator in mixer.operators(h, sizes, execution, sequence_length):
                yield numbered(operator, str(number))
        mixed = tuple(f"{number} mixed" for number in range(len(self.mixers)))
        yield Operator(
            "add mixers", "", mixed, (Tensor("mixed", "own_tokens", h, "norms"),), passes_gradient=True, kind="add"
        )


def numbered(operator: Operator, prefix: str) -> Operator:
    """Make the names of operators and tensors unique, except the norm's output."""

    def named(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if name == "n1" else f"{prefix} {name}" for name in names)

    writes = tuple(
        replace(tensor, name=f"{prefix} {tensor.name}", storage=tensor.storage and f"{prefix} {tensor.storage}")
        for tensor in operator.writes
    )
    return replace(
        operator, name=f"{prefix} {operator.name}", writes=writes, reads=named(operator.reads),
        saved_for_i=named(operator.saved_for_i), saved_for_w=named(operator.saved_for_w),
    )  # fmt: skip


def _falcon_h1(fields: ConfigFields) -> Model:
    heads, columns = fields.count("mamba_n_heads", default=128), fields.optional("mamba_d_ssm")
    columns = columns or fields.count("mamba_expand", default=2) * fields.count("hidden_size")
    is_auto = fields.is_word("mamba_d_head", "auto") or fields.is_word("mamba_d_head", None)
    size = columns // heads if is_auto else fields.count("mamba_d_head")
    if heads * size != columns:
        fields.refuse("mamba_d_ssm", f"{columns} is not mamba_n_heads {heads} × mamba_d_head {size}")
    mamba = mamba_of(fields, heads, size, fields.count("mamba_d_state", default=256), chunk=256, groups=1)
    mamba = replace(mamba, gated_norm=fields.flag("mamba_rms_norm", default=False))
    mixers = ParallelMixers((attention_of(fields), mamba))
    return decoder_of(fields, layers_of(fields, mixers, dense_of(fields)), length=8192)


READERS: Mapping[str, Reader] = MappingProxyType({"falcon_h1": _falcon_h1})
