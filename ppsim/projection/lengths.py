"""Costs per microbatch for sequences of different lengths, packed without padding.

At the sequence length s, a fraction q of the time of F, I, W and B is quadratic: a sequence of l tokens takes
(1 − q)·l/s + q·(l/s)² of the time of one with s tokens. Activations and transfers are proportional to the tokens.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_text
from ppsim.base.limits import DATA_BYTES, short_text
from ppsim.base.units import percent
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.projection.plan import Plan
from ppsim.schedule.table import Schedule
from ppsim.simulation.cost_arrays import CostArrays

_PASSES = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
_MOST_TOKENS = 10**9


def read_lengths(path: str | Path) -> tuple[int, ...]:
    lengths = []
    for number, line in enumerate(read_text(path, most=DATA_BYTES).splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        if not text.isdecimal() or len(text) > len(str(_MOST_TOKENS)) or not 1 <= int(text) <= _MOST_TOKENS:
            raise ConfigError(
                f"{path}: line {number} is {short_text(text)}; give the tokens of a sequence, 1 or more"
            )
        lengths.append(int(text))
    if not lengths:
        raise ConfigError(f"{path} holds no sequence: give the tokens of each, one a line")
    return tuple(lengths)


@dataclass(frozen=True, eq=False)
class SampledLengths:
    """The sequences of a step, in tokens, of shape [microbatches, sequences per microbatch]."""

    tokens: Floats
    sequence_length: int

    @classmethod
    def of(
        cls, lengths: tuple[int, ...], *, num_microbatches: int, length: int, micro_batch: int, seed: int
    ) -> "SampledLengths":
        shape = (num_microbatches, micro_batch)
        enough = len(lengths) >= num_microbatches * micro_batch
        drawn = np.random.default_rng(seed).choice(np.array(lengths, dtype=np.float64), shape, replace=not enough)
        return cls(drawn, length)

    @property
    def linear_factor(self) -> Floats:
        """Tokens of each microbatch, relative to full-length sequences."""
        parts: Floats = self.tokens.mean(axis=1) / self.sequence_length
        return parts

    @property
    def quadratic_factor(self) -> Floats:
        """Sum of squared lengths of each microbatch, relative to full-length sequences."""
        parts: Floats = (self.tokens**2).mean(axis=1) / self.sequence_length**2
        return parts

    def packed_evenly(self) -> "SampledLengths":
        """Repack the sequences, longest first, each into the microbatch with the smallest sum of squares so far."""
        rows: list[list[float]] = [[] for _ in self.tokens]
        room = self.tokens.shape[1]
        for tokens in np.sort(self.tokens, axis=None)[::-1].tolist():
            least = min((row for row in rows if len(row) < room), key=lambda row: sum(one * one for one in row))
            least.append(tokens)
        return replace(self, tokens=np.array(rows))


def sample_lengths(plan: Plan) -> SampledLengths | None:
    if plan.lengths is None:
        return None
    source = plan.modelled_source
    micro_batch = plan.job.micro_batch if plan.job else source.tokens_per_microbatch // source.sequence_length
    return SampledLengths.of(
        plan.lengths, num_microbatches=plan.num_microbatches, length=source.sequence_length,
        micro_batch=micro_batch, seed=plan.seed,
    )  # fmt: skip


def quadratic_part(plan: Plan) -> float:
    source = plan.modelled_source
    if plan.job is not None:
        model, length = plan.job.model, source.sequence_length
        decoder = replace(model, encoders=())  # images and audio count as tokens
        at_one, at_all = (decoder.training_flops(tokens, causal=True) for tokens in (1, length))
        return (at_all - at_one) / model.training_flops(length, causal=True)
    # As in `ppsim.parallel.sequence_slices`: C(x) / 2h = x² + (12h + 1)·x
    return source.sequence_length / (source.sequence_length + 12 * source.hidden_size + 1)


def quadratic_parts(plan: Plan, schedule: Schedule, assembled: StageCostSet) -> tuple[dict[str, Floats], str]:
    """Return the quadratic fraction of each action's time, and the name of the method.

    The same job is assembled with twice the sequences at half the length: GEMMs stay the same, and the time that
    disappears is half of the quadratic part. Measured costs are known at one length only, so FLOPs are used
    instead.
    """
    of_stages = _plain(assembled, schedule)
    by_flops = dict.fromkeys(_PASSES, np.full(schedule.num_stages, quadratic_part(plan))), "its FLOPs"
    job, half = plan.job, plan.modelled_source.sequence_length // 2
    if job is None or job.profile is not None or plan.measured is not None:
        return by_flops
    split = assembled.split if plan.layer_split_rule in ("auto", "balanced") else plan.layer_split_rule
    try:
        shorter = replace(
            job, sequence_length=half, micro_batch=2 * job.micro_batch, global_batch=2 * job.global_batch
        )
        shorter_costs = _plain(replace(plan, job=shorter).source.assemble(schedule, split), schedule)
    except ConfigError:  # half the length cannot be divided as the job requires
        return by_flops
    parts = {}
    for name in _PASSES:
        seconds = getattr(of_stages, name)
        more = 2 * (seconds - getattr(shorter_costs, name))
        part = np.divide(more, seconds, out=np.zeros(len(seconds)), where=seconds > 0)
        parts[name] = np.clip(part, 0.0, 1.0)
    return parts, f"the job's costs with twice the sequences of {half}"


def _plain(assembled: StageCostSet, schedule: Schedule) -> CostArrays:
    return assembled.costs.plain(
        num_stages=schedule.num_stages, num_ranks=schedule.num_ranks, num_replicas=schedule.num_replicas
    )


def with_lengths(
    plan: Plan, schedule: Schedule, assembled: StageCostSet, drawn: SampledLengths | None
) -> StageCostSet:
    if drawn is None:
        return assembled
    parts, by = quadratic_parts(plan, schedule, assembled)
    costs, linear, squares = _plain(assembled, schedule), drawn.linear_factor, drawn.quadratic_factor
    fields: dict[str, Floats | None] = {
        name: getattr(costs, name)[:, None] * ((1 - part)[:, None] * linear + part[:, None] * squares)
        for name, part in parts.items()
    }
    if assembled.costs.backward_input_s is None:
        fields |= dict.fromkeys(("backward_input_s", "backward_weight_s"))
    fields |= {
        "activation_bytes": costs.activation_bytes[:, None] * linear,
        "activation_bytes_kept_for_weight": costs.kept_bytes[:, None] * linear,
        "transfer_s": costs.transfer_s[:, None] * linear,
    }
    of_flops = quadratic_part(plan)
    mean_flops = float(((1 - of_flops) * linear + of_flops * squares).mean())
    tokens = drawn.tokens.sum(axis=1)
    attention = float(np.average(parts["forward_s"], weights=costs.forward_s)) if costs.forward_s.any() else 0.0
    again = ", some more than once" if drawn.tokens.size > len(plan.lengths or ()) else ""
    return replace(
        assembled,
        costs=assembled.costs.replace(**fields),
        forward_flops=assembled.forward_flops * mean_flops,
        parts=[],
        assumptions=[
            *assembled.assumptions,
            f"lengths: {drawn.tokens.size} of {len(plan.lengths or ())} sequences, drawn with seed {plan.seed}"
            f"{again}; {tokens.min():.0f} to {tokens.max():.0f} tokens per microbatch, {tokens.mean():.0f} in the "
            "mean, packed without padding; other replicas are taken to draw the same",
            f"lengths: {percent(attention)} of F at {drawn.sequence_length} tokens goes with a sequence's square, "
            f"by {by}; activations and transfers with its tokens",
        ],
    )
