"""The batch per data-parallel rank and gradient-accumulation round, as TorchTitan sets it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.parallel.layout import fewest_replicas


@dataclass(frozen=True)
class LocalBatch:
    """Sequences per data-parallel rank: per round, per microbatch of a pipeline, per microbatch without a pipeline.

    A round is one gradient-accumulation step.
    """

    of_round: int
    of_microbatch: int
    without_pipeline: int
    source: str

    def words(self, pp: int, global_batch: int | None) -> dict[str, int | None]:
        """A `global_batch` of None or below 1 means one round."""
        micro, of_round = self._sizes(pp)
        if of_round % micro:
            raise ConfigError(
                f"{self.source}: local_batch_size {of_round} is no multiple of the microbatch size {micro}"
            )
        if global_batch is not None and global_batch > 0:
            return {"micro_batch": micro, "global_batch": global_batch}
        return {"micro_batch": micro, "microbatches": of_round // micro}

    def _sizes(self, pp: int) -> tuple[int, int]:
        return (self.of_microbatch, self.of_round) if pp > 1 else (self.without_pipeline,) * 2

    def fill(self, options: dict[str, Any], given: Collection[str]) -> None:
        """Set microbatch size, number of microbatches and rounds, except options in `given`.

        Raises `ConfigError` if the batch is not a whole number of rounds.

        >>> options = {"pp": 4, "dp": 2, "global_batch": 128, "gradient_accumulation_steps": None}
        >>> LocalBatch(8, 1, 8, "run.sh").fill(options, {})
        >>> options["micro_batch"], options["gradient_accumulation_steps"]
        (1, 8)
        """
        micro, of_round = self._sizes(options.get("pp") or 1)
        if "micro_batch" in given:
            micro = options["micro_batch"]
            of_round = of_round if (options.get("pp") or 1) > 1 else micro
        options["micro_batch"] = micro
        if of_round % micro:
            raise ConfigError(
                f"{self.source}: a round of {of_round} sequences is no multiple of --micro-batch-size {micro}"
            )
        if not options.get("global_batch") and "microbatches" not in given:
            options["microbatches"] = of_round // micro
        if "gradient_accumulation_steps" in given:
            return
        replicas = _replicas(options)
        global_batch = options.get("global_batch") or options["microbatches"] * micro * replicas
        if global_batch % (of_round * replicas):
            raise ConfigError(
                f"{self.source}: a step of {global_batch} sequences is no multiple of local batch {of_round} · dp "
                f"{replicas}: give --global-batch-size or --gradient-accumulation-steps"
            )
        options["gradient_accumulation_steps"] = global_batch // (of_round * replicas)


def _replicas(options: dict[str, Any]) -> int:
    if options.get("dp"):
        return int(options["dp"])
    tp, cp, pp, ep = (options.get(name) or 1 for name in ("tp", "cp", "pp", "ep"))
    if options.get("gpus"):
        return int(max(1, options["gpus"] // (tp * cp * pp)))
    return fewest_replicas(tp=tp, cp=cp, ep=ep, etp=options.get("etp"))
