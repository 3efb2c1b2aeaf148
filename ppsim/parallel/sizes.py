"""Parallel sizes of one pipeline stage."""

from dataclasses import dataclass

from ppsim.base.errors import ConfigError


@dataclass(frozen=True)
class ParallelSizes:
    """Parallel sizes of one pipeline stage, which tp·cp·dp ranks hold.

    Experts are distributed over `ep` ranks, and each expert's columns over `etp` ranks (None: tp, as in
    Megatron-LM). `sequence_parallel` divides norms, dropout and their inputs by tp too (Korthikanti et al. 2022,
    arXiv 2205.05198, §4.2.2).
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int | None = None
    sequence_parallel: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "tp", "cp", "dp", "ep", "etp")
        if self.num_ranks % (self.ep * self.expert_tp):
            raise ConfigError(
                f"ep × etp must divide tp × cp × dp: got {self.ep} × {self.expert_tp} with {self.num_ranks}"
            )

    @property
    def num_ranks(self) -> int:
        return self.tp * self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        return self.tp if self.etp is None else self.etp

    @property
    def replicas(self) -> int:
        """Number of ranks with the same parameters, except experts; these ranks can shard the optimizer state."""
        return self.cp * self.dp

    @property
    def expert_replicas(self) -> int:
        """Number of ranks with the same experts."""
        return self.num_ranks // (self.ep * self.expert_tp)

    @property
    def norm_divisor(self) -> int:
        """Number of ranks that divide the tokens of norms and dropout."""
        return self.tp if self.sequence_parallel else 1


def require_positive(sizes: object, *names: str) -> None:
    for name in names:
        value = getattr(sizes, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1: got {value}")


def share(value: int, among: int) -> int:
    return -(-value // among)


def require_divides(name: str, value: int, what: str, count: int) -> None:
    if count % value:
        near = max(divisor for divisor in range(1, value + 1) if count % divisor == 0)
        raise ConfigError(f"{name} must divide the {what}: got {value} with {count} (nearest below: {near})")
